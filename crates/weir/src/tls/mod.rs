//! TLS on the front. rustls makes the handshake; our record layer does everything after it.
//!
//! ```text
//!  socket ─ClientHello─▶ pool: handshake, step by step ─keys─▶ Stream: Hello, refusals ─▶ shard
//!                              ▲
//!                  contexts: certificates, tickets, devices named by clients' certificates
//! ```
//!
//! `pool` orders the handshakes. `handshake` drives rustls and takes the keys out of it. `stream`
//! reads and writes records while the front has the connection. Nothing here knows frames or
//! devices.

mod alert;
mod cache;
mod certificates;
mod config;
mod contexts;
mod development;
mod expiry;
mod failure;
mod handover;
mod handshake;
mod hello;
mod identity;
mod keylog;
mod pool;
mod reload;
mod service;
mod sessions;
mod signing;
pub(crate) mod stream;
#[cfg(test)]
pub(crate) mod testing;
mod tickets;

use std::fmt::Display;
use std::path::{Path, PathBuf};

pub(crate) use contexts::Contexts;
pub use development::Development;
pub(crate) use reload::watch;
pub(crate) use service::{NotSecured, Secured, Service};
pub(crate) use sessions::{Finding, SharedSessions};
pub(crate) use signing::{NoKey, SigningKeys};

/// A file that TLS cannot use; the operator must correct it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {}: {what}", path.display())]
pub struct TlsError {
    /// The key that names the file.
    pub key: String,
    /// The file.
    pub path: PathBuf,
    /// The error.
    pub what: String,
}

impl TlsError {
    pub(crate) fn new(key: &str, path: &Path, what: impl Display) -> TlsError {
        TlsError { key: key.to_owned(), path: path.to_owned(), what: what.to_string() }
    }
}

#[cfg(test)]
mod tests;
