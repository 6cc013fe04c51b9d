//! Why there is no answer.

use std::sync::Arc;

use crate::dial::DialError;

/// Why there is no answer, or no end of one.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// No endpoint could be reached.
    #[error("upstream {upstream}: {error}")]
    Dial {
        /// The upstream's name.
        upstream: String,
        /// Why the last one could not be reached.
        error: Arc<DialError>,
    },
    /// All connections are in use, and no more requests may wait.
    #[error("upstream {upstream}: no room for another request")]
    Full {
        /// The upstream's name.
        upstream: String,
    },
    /// Neither head nor body came in time.
    #[error("upstream {upstream}: no answer in time")]
    TimedOut {
        /// The upstream's name.
        upstream: String,
        /// Whether a byte of the request may have reached a backend.
        sent: bool,
    },
    /// The connection broke, or the peer broke the rules of HTTP.
    #[error("upstream {upstream}: {error}")]
    Broken {
        /// The upstream's name.
        upstream: String,
        /// The connection's own words.
        error: hyper::Error,
        /// Whether a byte of the request may have reached a backend.
        sent: bool,
    },
}

impl SendError {
    /// A word for logs and metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            SendError::Dial { .. } => "connect",
            SendError::Full { .. } => "full",
            SendError::TimedOut { .. } => "timed_out",
            SendError::Broken { .. } => "broken",
        }
    }

    /// Whether a byte of the request may have reached a backend.
    pub fn may_have_been_sent(&self) -> bool {
        match self {
            SendError::Dial { .. } | SendError::Full { .. } => false,
            SendError::TimedOut { sent, .. } | SendError::Broken { sent, .. } => *sent,
        }
    }
}
