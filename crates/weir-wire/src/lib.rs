//! The wire format of Weir: frames, messages and close codes.
//!
//! Bytes in, values out. There is no I/O here, no clock, and no unsafe code.
//!
//! Begin with `proto/weir/v1.proto` (the messages of devices and Weir), then read [`frame`].
//!
//! | part | does | does not |
//! |---|---|---|
//! | [`frame`] | finds where a message ends in a stream | read the message |
//! | [`v1`] | all messages, generated | avoid allocations: see [`hot`] |
//! | [`hot`] | reads and writes the frequent messages in place | know the rare ones |
//! | [`json`] | the same messages as JSON | add anything to them |
//! | [`handover`] | what one process of a gateway hands over to another | know what it means |
//! | [`ws`] | frames of WebSocket | open a WebSocket |
//! | [`format`](mod@format) | turns frames into the format of a connection | choose the format |
//! | [`datagram`] | requests and answers over UDP | send them |
//! | `close`, `error_code`, `call_code` | why a connection ends, why a request or a call fails | act on it |
#![forbid(unsafe_code)]

mod call_code;
mod close;
pub mod datagram;
mod error_code;
mod fields;
pub mod format;
pub mod frame;
pub mod handover;
pub mod hot;
pub mod json;
mod named;
pub mod ws;

pub use call_code::CallCode;
pub use close::{Advice, CloseReason};
pub use error_code::ErrorCode;

/// The messages of `weir.v1`, generated from `proto/weir/v1.proto`.
#[expect(missing_docs, reason = "generated; the .proto is the document")]
#[expect(clippy::pedantic, clippy::allow_attributes_without_reason, reason = "generated")]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/weir.v1.rs"));
    include!(concat!(env!("OUT_DIR"), "/weir.v1.serde.rs"));
}

pub use prost::Message as ProstMessage;

/// Longest `data` of a `Ping`, in bytes. Enough for a time stamp and an id, and too little to use
/// the server as an amplifier.
pub const PING_BYTES_MAX: usize = 256;

/// Bytes that are no frame or no message. This is always the sender's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A length that does not end within five bytes or does not fit 32 bits.
    #[error("frame length is not a varint of at most 5 bytes and 32 bits")]
    LengthMalformed,
    /// A length over the limit.
    #[error("frame of {bytes} bytes is over the limit of {limit}")]
    FrameTooLarge {
        /// The length that the frame announced.
        bytes: u64,
        /// The limit in force.
        limit: usize,
    },
    /// A body that is not a message of protocol buffers.
    #[error("message is malformed: {0}")]
    MessageMalformed(&'static str),
    /// `data` of a `Ping` over [`PING_BYTES_MAX`].
    #[error("ping data of {0} bytes is over the limit of 256")]
    PingTooLarge(usize),
}

/// The length of the longest beginning of `text` that has at most `bytes_max` bytes and is text
/// too.
pub(crate) fn char_boundary(text: &str, bytes_max: usize) -> usize {
    (0..=bytes_max.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}
