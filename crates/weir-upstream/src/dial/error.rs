//! Why there is no connection.

use std::fmt;
use std::io;

/// Why there is no connection to an endpoint.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The upstream's names have no address.
    #[error("no address: {0}")]
    Dns(String),
    /// The kernel could not connect.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// The proxy cannot be reached, or does not connect.
    #[error("proxy {proxy}: {problem}")]
    Proxy {
        /// Its address.
        proxy: String,
        /// What it does, or does not.
        problem: String,
    },
    /// There is no handshake.
    #[error("TLS with {name}: {problem}")]
    Tls {
        /// The name or address that the service's certificate must have.
        name: String,
        /// Why the handshake failed.
        problem: String,
    },
    /// The step was not done in `connect_timeout`, which counts for all steps together.
    #[error("not connected within connect_timeout: {0}")]
    Timeout(DialStep),
}

/// A step on the way to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DialStep {
    /// The name is looked up.
    Dns,
    /// The kernel connects.
    Connect,
    /// The proxy connects.
    Proxy,
    /// The TLS handshake.
    Tls,
}

impl DialError {
    /// The step that failed.
    pub fn step(&self) -> DialStep {
        match self {
            DialError::Dns(_) => DialStep::Dns,
            DialError::Connect(_) => DialStep::Connect,
            DialError::Proxy { .. } => DialStep::Proxy,
            DialError::Tls { .. } => DialStep::Tls,
            DialError::Timeout(step) => *step,
        }
    }
}

impl DialStep {
    /// A word for metrics.
    pub fn word(self) -> &'static str {
        match self {
            DialStep::Dns => "dns",
            DialStep::Connect => "connect",
            DialStep::Proxy => "proxy",
            DialStep::Tls => "tls",
        }
    }
}

impl fmt::Display for DialStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DialStep::Dns => "no DNS server has answered",
            DialStep::Connect => "the endpoint has not accepted",
            DialStep::Proxy => "the proxy has not connected",
            DialStep::Tls => "the TLS handshake has not ended",
        })
    }
}
