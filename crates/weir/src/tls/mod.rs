//! TLS: what handshakes are made with. Certificates, tickets, and whom a client's certificate names.

mod certificates;
mod config;
mod contexts;
mod hello;
mod identity;
mod tickets;

use std::fmt::Display;
use std::path::{Path, PathBuf};

pub(crate) use contexts::{Contexts, Expiry};
pub(crate) use identity::NoIdentity;

/// A file that TLS cannot be made of: the operator's to mend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {}: {what}", path.display())]
pub struct TlsError {
    /// The key that names the file.
    pub key: String,
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub what: String,
}

impl TlsError {
    pub(crate) fn new(key: &str, path: &Path, what: impl Display) -> TlsError {
        TlsError { key: key.to_owned(), path: path.to_owned(), what: what.to_string() }
    }
}
