//! Something to connect to.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

/// Something to connect to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Endpoint {
    /// An address, with the name to which it belongs.
    Tcp { addr: SocketAddr, name: Option<Arc<str>> },
    /// A name that a proxy looks up.
    Named { name: Arc<str>, port: u16 },
    /// A unix socket.
    Unix(Arc<Path>),
}

impl Endpoint {
    /// The authority for requests to this endpoint.
    pub(crate) fn authority(&self) -> String {
        match self {
            Endpoint::Tcp { addr, name: None } => addr.to_string(),
            Endpoint::Tcp { addr, name: Some(name) } => format!("{}:{}", bare(name), addr.port()),
            Endpoint::Named { name, port } => format!("{}:{port}", bare(name)),
            Endpoint::Unix(_) => "localhost".to_owned(),
        }
    }

    /// The name or the IP address that a certificate of this endpoint should have.
    pub(crate) fn host(&self) -> String {
        match self {
            Endpoint::Tcp { addr, name: None } => addr.ip().to_string(),
            Endpoint::Tcp { name: Some(name), .. } | Endpoint::Named { name, .. } => {
                bare(name).to_owned()
            }
            Endpoint::Unix(_) => "localhost".to_owned(),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp { addr, .. } => addr.fmt(f),
            Endpoint::Named { name, port } => write!(f, "{}:{port}", bare(name)),
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The name without the dot that only DNS needs.
fn bare(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}
