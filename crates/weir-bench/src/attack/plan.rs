//! The order to the attacking process.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Where attacks go, and as whom.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Devices' address.
    pub(crate) tcp: SocketAddr,
    /// Devices' address for TLS.
    pub(crate) tls: SocketAddr,
    /// HTTP's.
    pub(crate) http: SocketAddr,
    /// Datagrams'.
    pub(crate) udp: SocketAddr,
    /// Second byte of the source addresses: each attack has an address of its own.
    pub(crate) source: u8,
    /// Token of a service that may publish.
    pub(crate) token: String,
    /// `http.connections_max` of the server.
    pub(crate) http_connections: u32,
    /// Names of the attacks to make; none: all.
    pub(crate) only: Vec<String>,
    /// Before a connection that ended is replaced.
    pub(crate) pause: Duration,
}
