//! The frames of WebSocket (RFC 6455): reading those of clients without keeping anything between
//! messages, and writing.
//!
//! The opening handshake, with its hash, is not here.

mod client;
mod head;

use std::ops::Range;

use crate::CloseReason;

pub use client::{ServerHead, decode_server_frame, encode_client_frame};
use head::Head;
pub use head::{HEAD_BYTES_MAX, Opcode, put_close, put_frame_head};
pub(crate) use head::{frame_head, head_bytes};

/// The state of a begun message. The default state means that there is none.
///
/// Shape: 16 bytes, also as an array, so that it can lie in front of the message's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Assembly {
    /// Bytes of the payload, which is unmasked.
    bytes: u64,
    /// Number of frames; 0: there is no message.
    fragments: u32,
    is_text: bool,
}

/// The limits of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a message, all of its fragments together.
    pub message_bytes_max: usize,
    /// Fragments of a message that has several. A message in one frame is always taken.
    pub fragments_max: u32,
}

/// The result of [`next`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The frame is not whole yet, and nothing has changed.
    More {
        /// The known minimum length of the input for the next step.
        needed: usize,
    },
    /// A fragment of a message, which now follows the earlier ones.
    Fragment {
        /// The end of the frame in the input.
        used: usize,
    },
    /// A control frame, which may stand between the fragments of a message.
    Control {
        /// Its kind.
        control: Control,
        /// The range of its payload in the input, at most 125 bytes.
        payload: Range<usize>,
        /// The end of the frame in the input.
        used: usize,
    },
    /// A whole message.
    Message {
        /// Whether it is text, which is then UTF-8; otherwise it is binary.
        is_text: bool,
        /// Its range in the input.
        body: Range<usize>,
        /// The end of its last frame in the input.
        used: usize,
    },
}

/// The kinds of control frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Ends the connection; see [`close_code`].
    Close,
    /// A ping. The answer is a `Pong` with the same payload.
    Ping,
    /// The answer, or a sign of life.
    Pong,
}

/// A violation of RFC 6455, or of a limit of ours. Each ends the connection.
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
    /// An opcode without a meaning (§5.2).
    #[error("reserved opcode {0}")]
    ReservedOpcode(u8),
    /// A control frame in fragments (§5.5).
    #[error("control frame in fragments")]
    ControlFragmented,
    /// A control frame with a payload over 125 bytes (§5.5).
    #[error("control frame over 125 bytes")]
    ControlTooLong,
    /// A continuation without a begun message (§5.4).
    #[error("continuation without a message")]
    NothingToContinue,
    /// A message inside another one (§5.4).
    #[error("message within another one")]
    MessageNotEnded,
    /// A length over 63 bits, or in more bytes than necessary (§5.2).
    #[error("length is malformed")]
    LengthMalformed,
    /// A message over [`Limits::message_bytes_max`].
    #[error("message of {bytes} bytes is over the limit of {limit}")]
    MessageTooLarge {
        /// The message has at least this many bytes.
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

/// Reads the first frame in `input`. It stands after the bytes that `assembly` has gathered.
///
/// After a step the caller removes the bytes from [`Assembly::bytes`], as it then is, to `used`,
/// appends received bytes, and calls again. While no message has begun, the caller need not keep
/// earlier input, and can continue with `input[used..]`.
/// Shape: payloads are unmasked in place. A fragment is moved behind the earlier ones, so a message
/// is always in one piece.
/// Limits: a message is refused as soon as its length is known, including the length of a frame
/// that has only begun. `needed` is at most [`INPUT_BYTES_OVER`] more than `message_bytes_max`.
/// Errors: each is final. `input` and `assembly` mean nothing afterwards.
/// Cost: no allocation. Payloads are passed over once to unmask and once to move, and text once to
/// check.
pub fn next(assembly: &mut Assembly, input: &mut [u8], limits: Limits) -> Result<Step, WsError> {
    let gathered = assembly.bytes();
    let raw = input.get(gathered..).unwrap_or_default();
    let head = match Head::parse(raw, true)? {
        Ok(head) => head,
        Err(needed) => return Ok(Step::More { needed: gathered + needed }),
    };
    assembly.check(&head, limits)?;
    let start = gathered + head.bytes;
    // This fits, because it was checked against the limits.
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
/// Errors: [`WsError::CloseMalformed`] for one byte or a code that must not be sent;
/// [`WsError::NotUtf8`] for the reason after the code.
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

    /// The gathered bytes of the begun message. They stand in front of received bytes.
    pub fn bytes(&self) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX)
    }

    /// Whether no message has begun. Then there is nothing to keep.
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

    /// The state from an array of [`Assembly::to_bytes`].
    pub fn from_bytes(array: [u8; Self::BYTES]) -> Assembly {
        let [b0, b1, b2, b3, b4, b5, b6, b7, f0, f1, f2, f3, is_text, ..] = array;
        Assembly {
            bytes: u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7]),
            fragments: u32::from_le_bytes([f0, f1, f2, f3]),
            is_text: is_text != 0,
        }
    }

    /// Checks that a frame with this head may come now.
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
    /// The close reason under which the connection's end is counted.
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

    /// The code for the Close frame to the peer (RFC 6455 §7.4.1).
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

/// The bytes by which the input of [`next`] may exceed the longest message: the head of a client's
/// frame, or a whole control frame after fragments.
pub const INPUT_BYTES_OVER: usize = 6 + CONTROL_BYTES_MAX;

/// Longest payload of a control frame.
pub const CONTROL_BYTES_MAX: usize = 125;

/// The most fragments of one message. It suffices for a client that sends its input in packet-sized
/// pieces.
pub const FRAGMENTS_MAX: u32 = 128;

/// Close code: a normal end.
pub const NORMAL: u16 = 1000;
/// Close code: the peer breaks the protocol.
pub const PROTOCOL_ERROR: u16 = 1002;
/// Close code: a kind of message that is not accepted here, text instead of binary or the reverse.
pub const UNSUPPORTED_DATA: u16 = 1003;
/// Close code: text that is not UTF-8.
pub const INVALID_PAYLOAD: u16 = 1007;
/// Close code: a message over a limit.
pub const TOO_BIG: u16 = 1009;

/// Masks or unmasks. Both are the same operation.
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
