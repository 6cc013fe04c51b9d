//! The frames of WebSocket (RFC 6455): received from clients without keeping anything between messages, and written.
//!
//! The handshake that comes before, and its hash, are no part of this.

mod client;
mod head;

use std::ops::Range;

use crate::CloseReason;

pub use client::{ServerHead, decode_server_frame, encode_client_frame};
use head::Head;
pub use head::{HEAD_BYTES_MAX, Opcode, put_close, put_frame_head};
pub(crate) use head::{frame_head, head_bytes};

/// What is known of a message that has begun and not ended; nothing, the default, while there is none.
///
/// Shape: 16 bytes, also as an array, so that it can lie in front of the bytes that it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Assembly {
    /// Of the payload, unmasked.
    bytes: u64,
    /// Frames; 0: there is no message.
    fragments: u32,
    is_text: bool,
}

/// How large a message may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a message, all of its fragments together.
    pub message_bytes_max: usize,
    /// Fragments of a message that has several; one that comes whole is always taken.
    pub fragments_max: u32,
}

/// What [`next`] has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The frame is not there as a whole, and nothing has been changed.
    More {
        /// How long the input must be at least for the next step, as far as is known.
        needed: usize,
    },
    /// A part of a message, now behind those before it.
    Fragment {
        /// Where the frame ends in the input.
        used: usize,
    },
    /// A control frame, which may stand between the fragments of a message.
    Control {
        /// What it is for.
        control: Control,
        /// Where its payload stands in the input, at most 125 bytes.
        payload: Range<usize>,
        /// Where the frame ends in the input.
        used: usize,
    },
    /// A whole message.
    Message {
        /// Text, and it is UTF-8; otherwise binary.
        is_text: bool,
        /// Where it stands in the input.
        body: Range<usize>,
        /// Where its last frame ends in the input.
        used: usize,
    },
}

/// The kinds of control frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Ends the connection; see [`close_code`].
    Close,
    /// To be answered with a `Pong` of the same payload.
    Ping,
    /// The answer, or a sign of life.
    Pong,
}

/// What RFC 6455 does not permit, or a limit of ours: each ends the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WsError {
    /// A client's frame without a mask (§5.1).
    #[error("frame without a mask")]
    Unmasked,
    /// A server's frame with a mask (§5.1).
    #[error("frame with a mask")]
    Masked,
    /// A bit of an extension that was not agreed (§5.2).
    #[error("reserved bit")]
    ReservedBit,
    /// An opcode that means nothing (§5.2).
    #[error("reserved opcode {0}")]
    ReservedOpcode(u8),
    /// A control frame that is not the only one of its message (§5.5).
    #[error("control frame in fragments")]
    ControlFragmented,
    /// A control frame with a payload over 125 bytes (§5.5).
    #[error("control frame over 125 bytes")]
    ControlTooLong,
    /// A continuation of nothing (§5.4).
    #[error("continuation without a message")]
    NothingToContinue,
    /// A message within another one (§5.4).
    #[error("message within another one")]
    MessageNotEnded,
    /// A length over 63 bits, or in more bytes than it needs (§5.2).
    #[error("length is malformed")]
    LengthMalformed,
    /// A message over [`Limits::message_bytes_max`].
    #[error("message of {bytes} bytes is over the limit of {limit}")]
    MessageTooLarge {
        /// At least as long is the message.
        bytes: u64,
        /// The limit in force.
        limit: usize,
    },
    /// A message in more fragments than [`Limits::fragments_max`].
    #[error("message in more than {limit} fragments")]
    TooManyFragments {
        /// The limit in force.
        limit: u32,
    },
    /// Text, or a reason to close, that is not UTF-8 (§8.1).
    #[error("text is not UTF-8")]
    NotUtf8,
    /// A Close frame with one byte, or a code that must not be sent (§7.4).
    #[error("close code is malformed")]
    CloseMalformed,
}

/// What the first frame in `input` means, where it stands behind the bytes that `assembly` has gathered.
///
/// After a step the caller takes out what stands from [`Assembly::bytes`], as it is then, to `used`, adds what it has
/// received and calls again. While no message has begun, nothing of the input need be kept, and the caller may as well
/// go on with `input[used..]`.
/// Shape: payloads are unmasked where they stand; a part of a message is moved behind the parts before it, so that a
/// message always stands in one piece.
/// Limits: a message is refused as soon as its length is known, that of the frame which has only begun included.
/// `needed` is at most [`INPUT_BYTES_OVER`] more than `message_bytes_max`.
/// Errors: each is final; `input` and `assembly` mean nothing afterwards.
/// Cost: no allocation; payloads are passed over once to unmask, once to move, and text once to check.
pub fn next(assembly: &mut Assembly, input: &mut [u8], limits: Limits) -> Result<Step, WsError> {
    let gathered = assembly.bytes();
    let raw = input.get(gathered..).unwrap_or_default();
    let head = match Head::parse(raw, true)? {
        Ok(head) => head,
        Err(needed) => return Ok(Step::More { needed: gathered + needed }),
    };
    assembly.check(&head, limits)?;
    let start = gathered + head.bytes;
    // Checked against the limits: it fits.
    let used = start.saturating_add(usize::try_from(head.payload_bytes).unwrap_or(usize::MAX));
    if input.len() < used {
        return Ok(Step::More { needed: used });
    }
    unmask(&mut input[start..used], head.mask);
    if let Some(control) = head.opcode.control() {
        return Ok(Step::Control { control, payload: start..used, used });
    }
    assembly.take(&head, start..used, input)
}

/// The code in a Close frame, if it has one.
///
/// Errors: [`WsError::CloseMalformed`] for one byte or a code that must not be sent, [`WsError::NotUtf8`] for the
/// reason behind the code.
pub fn close_code(payload: &[u8]) -> Result<Option<u16>, WsError> {
    let Some((code, reason)) = payload.split_first_chunk::<2>() else {
        return if payload.is_empty() { Ok(None) } else { Err(WsError::CloseMalformed) };
    };
    let code = u16::from_be_bytes(*code);
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Err(WsError::CloseMalformed);
    }
    str::from_utf8(reason).map_err(|_| WsError::NotUtf8)?;
    Ok(Some(code))
}

impl Assembly {
    /// Bytes of the array form.
    pub const BYTES: usize = 16;

    /// Bytes that have been gathered of the message that has begun: they stand in front of what is received.
    pub fn bytes(&self) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX)
    }

    /// Whether no message has begun: there is nothing to keep.
    pub fn is_idle(&self) -> bool {
        self.fragments == 0
    }

    /// As an array.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut array = [0; Self::BYTES];
        array[..8].copy_from_slice(&self.bytes.to_le_bytes());
        array[8..12].copy_from_slice(&self.fragments.to_le_bytes());
        array[12] = u8::from(self.is_text);
        array
    }

    /// From the array that [`Assembly::to_bytes`] has made.
    pub fn from_bytes(array: [u8; Self::BYTES]) -> Assembly {
        let [b0, b1, b2, b3, b4, b5, b6, b7, f0, f1, f2, f3, is_text, ..] = array;
        Assembly {
            bytes: u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7]),
            fragments: u32::from_le_bytes([f0, f1, f2, f3]),
            is_text: is_text != 0,
        }
    }

    /// Whether a frame with this head may stand here.
    fn check(&self, head: &Head, limits: Limits) -> Result<(), WsError> {
        match head.opcode {
            Opcode::Close | Opcode::Ping | Opcode::Pong => return Ok(()),
            Opcode::Continuation if self.is_idle() => return Err(WsError::NothingToContinue),
            Opcode::Text | Opcode::Binary if !self.is_idle() => {
                return Err(WsError::MessageNotEnded);
            }
            Opcode::Continuation | Opcode::Text | Opcode::Binary => {}
        }
        let is_fragment = !head.is_final || !self.is_idle();
        if is_fragment && self.fragments >= limits.fragments_max {
            return Err(WsError::TooManyFragments { limit: limits.fragments_max });
        }
        let limit = limits.message_bytes_max;
        let bytes = self.bytes.saturating_add(head.payload_bytes);
        if bytes > limit as u64 {
            return Err(WsError::MessageTooLarge { bytes, limit });
        }
        Ok(())
    }

    /// Takes the payload of a frame that has passed [`Assembly::check`].
    fn take(
        &mut self,
        head: &Head,
        payload: Range<usize>,
        input: &mut [u8],
    ) -> Result<Step, WsError> {
        let used = payload.end;
        let mut body = payload.clone();
        if self.is_idle() {
            self.is_text = head.opcode == Opcode::Text;
        }
        if !head.is_final || !self.is_idle() {
            let gathered = self.bytes();
            body = 0..gathered + payload.len();
            input.copy_within(payload, gathered);
        }
        if !head.is_final {
            self.bytes = body.end as u64;
            self.fragments += 1;
            return Ok(Step::Fragment { used });
        }
        let is_text = std::mem::take(self).is_text;
        if is_text && str::from_utf8(&input[body.clone()]).is_err() {
            return Err(WsError::NotUtf8);
        }
        Ok(Step::Message { is_text, body, used })
    }
}

impl WsError {
    /// Why the connection ends, as it is counted.
    pub const fn reason(self) -> CloseReason {
        match self {
            WsError::MessageTooLarge { .. } => CloseReason::FrameTooLarge,
            WsError::Unmasked
            | WsError::Masked
            | WsError::ReservedBit
            | WsError::ReservedOpcode(_)
            | WsError::ControlFragmented
            | WsError::ControlTooLong
            | WsError::NothingToContinue
            | WsError::MessageNotEnded
            | WsError::LengthMalformed
            | WsError::TooManyFragments { .. }
            | WsError::NotUtf8
            | WsError::CloseMalformed => CloseReason::Malformed,
        }
    }

    /// The code that tells the peer in a Close frame (RFC 6455 §7.4.1).
    pub const fn close_code(self) -> u16 {
        match self {
            WsError::Unmasked
            | WsError::Masked
            | WsError::ReservedBit
            | WsError::ReservedOpcode(_)
            | WsError::ControlFragmented
            | WsError::ControlTooLong
            | WsError::NothingToContinue
            | WsError::MessageNotEnded
            | WsError::LengthMalformed
            | WsError::CloseMalformed => PROTOCOL_ERROR,
            WsError::NotUtf8 => INVALID_PAYLOAD,
            WsError::MessageTooLarge { .. } | WsError::TooManyFragments { .. } => TOO_BIG,
        }
    }
}

/// How much longer than the longest message the input of [`next`] must be able to become: for the head of a client's
/// frame, or a whole control frame behind fragments.
pub const INPUT_BYTES_OVER: usize = 6 + CONTROL_BYTES_MAX;

/// Longest payload of a control frame.
pub const CONTROL_BYTES_MAX: usize = 125;

/// Fragments of one message that are taken: enough for whoever sends what he reads in pieces of a packet's size.
pub const FRAGMENTS_MAX: u32 = 128;

/// Close code: nothing more is to be said.
pub const NORMAL: u16 = 1000;
/// Close code: the peer breaks the protocol.
pub const PROTOCOL_ERROR: u16 = 1002;
/// Close code: a kind of message that is not taken here, text instead of binary or the other way round.
pub const UNSUPPORTED_DATA: u16 = 1003;
/// Close code: text that is not UTF-8.
pub const INVALID_PAYLOAD: u16 = 1007;
/// Close code: a message over a limit.
pub const TOO_BIG: u16 = 1009;

/// Masks or unmasks: one is the other.
fn unmask(payload: &mut [u8], mask: [u8; 4]) {
    let [a, b, c, d] = mask;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (chunks, rest) = payload.as_chunks_mut::<8>();
    for chunk in chunks {
        *chunk = (u64::from_ne_bytes(*chunk) ^ wide).to_ne_bytes();
    }
    for (byte, key) in rest.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= key;
    }
}

const _: () = assert!(size_of::<Assembly>() <= Assembly::BYTES);
const _: () = assert!(INPUT_BYTES_OVER >= HEAD_BYTES_MAX);

#[cfg(test)]
mod tests;
