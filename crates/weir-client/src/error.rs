//! Errors of a connection, by the side at fault.

use std::io;
use std::time::Duration;

use weir_wire::WireError;

use crate::{Goodbye, TlsError};

/// Why an operation of a [`Client`](crate::Client) failed. The connection is over, unless a variant
/// says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The network: the address does not resolve, nothing listens there, or the connection was
    /// reset.
    #[error(transparent)]
    Io(io::Error),
    /// TLS: the client does not trust the server, or the server does not trust the client.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// No `Welcome` within `connect_timeout`.
    #[error("no welcome within {0:?} (connect_timeout)")]
    ConnectTimedOut(Duration),
    /// The server refused the connection and gave a reason.
    #[error("refused by the server: {0}")]
    Refused(Goodbye),
    /// The server closed the connection before its `Welcome`.
    #[error("the server closed the connection without a welcome")]
    ClosedBeforeWelcome,
    /// The server closed the connection in the middle of a frame.
    #[error("the server closed the connection in the middle of a frame")]
    Truncated,
    /// The server has answered nothing, not even pings, for more than two heartbeats.
    #[error("the server is silent: no answer to {pings} pings, one every {heartbeat:?}")]
    Silent {
        /// Pings in a row without any sign of life from the server.
        pings: u32,
        /// The agreed heartbeat.
        heartbeat: Duration,
    },
    /// The server sent bytes that are no frame or no message.
    #[error("the server sent bytes that are not weir.v1: {0}")]
    Wire(#[from] WireError),
    /// The server sent a message that the protocol does not allow at this point.
    #[error("the server broke the protocol: {0}")]
    Protocol(&'static str),
    /// The caller's own message is over `frame_bytes_max`. Nothing was sent, and the connection
    /// stays.
    #[error("message of {bytes} bytes is over the limit of {limit} (frame_bytes_max)")]
    TooLarge {
        /// Bytes of the message.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The server has said `Goodbye`. The client can send nothing more.
    #[error("the connection has ended")]
    Ended,
}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> ClientError {
        TlsError::try_from(error).map_or_else(ClientError::Io, ClientError::Tls)
    }
}
