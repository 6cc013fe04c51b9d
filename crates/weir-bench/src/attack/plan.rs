//! The order to the attacking process.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The addresses of the attacks, and their credentials.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The address for devices.
    pub(crate) tcp: SocketAddr,
    /// The address for devices with TLS.
    pub(crate) tls: SocketAddr,
    /// The address for HTTP.
    pub(crate) http: SocketAddr,
    /// The address for datagrams.
    pub(crate) udp: SocketAddr,
    /// Second byte of the source addresses: each attack has an address of its own.
    pub(crate) source: u8,
    /// Token of a service that may publish.
    pub(crate) token: String,
    /// `http.connections_max` of the server.
    pub(crate) http_connections: u32,
    /// Names of the attacks to make; empty: all.
    pub(crate) only: Vec<String>,
    /// The pause before an ended connection is replaced.
    pub(crate) pause: Duration,
}
