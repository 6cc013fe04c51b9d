//! Rare frames to one connection, encoded with prost.

use rand::RngExt;
use weir_wire::format::{self, Format};
use weir_wire::v1::server_message::Kind;
use weir_wire::v1::{Error, Goodbye, ServerMessage};
use weir_wire::{Advice, CloseReason, ErrorCode, frame};

/// A whole frame with its length prefix.
pub(crate) fn encode(kind: Kind) -> Box<[u8]> {
    let mut out = Vec::new();
    frame::encode(&ServerMessage { kind: Some(kind) }, &mut out);
    out.into_boxed_slice()
}

/// `Error`: a request failed, and the connection stays.
pub(crate) fn error(code: ErrorCode, message: String, topic: &str, request: u32) -> Box<[u8]> {
    let code = code.name().to_owned();
    encode(Kind::Error(Error { code, message, request, topic: topic.to_owned() }))
}

/// `Goodbye`, with a random delay if the device must come back later.
pub(crate) fn goodbye(reason: CloseReason) -> Box<[u8]> {
    let retry_after_ms = match reason.advice() {
        Advice::ReconnectLater => rand::rng().random_range(RETRY_AFTER_MS.0..=RETRY_AFTER_MS.1),
        Advice::ReconnectNow | Advice::FixCredentials | Advice::DoNotReturn => 0,
    };
    encode(Kind::Goodbye(Goodbye {
        code: u32::from(reason.code()),
        reason: reason.name().to_owned(),
        retry_after_ms,
    }))
}

/// The same in a connection's format.
pub(crate) fn goodbye_as(format: Format, reason: CloseReason) -> Vec<u8> {
    let mut out = Vec::new();
    format::encode(format, &goodbye(reason), 0, &mut out);
    out
}

/// Smallest and largest delay. The spread keeps a storm from returning all at once.
pub(crate) const RETRY_AFTER_MS: (u32, u32) = (1_000, 10_000);
