//! The head of a frame, before its payload.

use super::{CONTROL_BYTES_MAX, Control, WsError};

/// The kind of a frame (RFC 6455 §5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// A further fragment of a message.
    Continuation = 0,
    /// A text message, or its first fragment.
    Text = 1,
    /// A binary message, or its first fragment.
    Binary = 2,
    /// The end of the connection.
    Close = 8,
    /// A ping, which the peer must answer.
    Ping = 9,
    /// The answer to a ping.
    Pong = 10,
}

/// Longest head of a frame: two bytes, a length of eight, a mask.
pub const HEAD_BYTES_MAX: usize = 14;

/// Appends the head of a server's frame with a whole message, or of a control frame.
///
/// Limits: the caller keeps the payload of control frames to [`CONTROL_BYTES_MAX`].
pub fn put_frame_head(opcode: Opcode, payload_bytes: usize, out: &mut Vec<u8>) {
    let (head, bytes) = frame_head(opcode, payload_bytes);
    out.extend_from_slice(&head[..bytes]);
}

/// Appends a server's Close frame with this code, and as much of the reason as fits.
pub fn put_close(code: u16, reason: &str, out: &mut Vec<u8>) {
    let reason = &reason[..crate::char_boundary(reason, CONTROL_BYTES_MAX - size_of::<u16>())];
    put_frame_head(Opcode::Close, size_of::<u16>() + reason.len(), out);
    out.extend_from_slice(&code.to_be_bytes());
    out.extend_from_slice(reason.as_bytes());
}

/// The head of a frame without a mask, and its size.
pub(crate) fn frame_head(opcode: Opcode, payload_bytes: usize) -> ([u8; HEAD_BYTES_MAX], usize) {
    let mut head = [0; HEAD_BYTES_MAX];
    head[0] = FINAL | opcode as u8;
    let bytes = head_bytes(payload_bytes);
    let length = (payload_bytes as u64).to_be_bytes();
    match bytes {
        2 => head[1] = length[7],
        4 => {
            head[1] = LENGTH_OF_2;
            head[2..4].copy_from_slice(&length[6..]);
        }
        _ => {
            head[1] = LENGTH_OF_8;
            head[2..10].copy_from_slice(&length);
        }
    }
    (head, bytes)
}

/// Bytes of the head of a frame without a mask.
pub(crate) fn head_bytes(payload_bytes: usize) -> usize {
    match payload_bytes {
        0..=125 => 2,
        126..=0xffff => 4,
        _ => 10,
    }
}

impl Opcode {
    /// The kind of a control frame; `None` for the frames of messages.
    pub(super) fn control(self) -> Option<Control> {
        match self {
            Opcode::Close => Some(Control::Close),
            Opcode::Ping => Some(Control::Ping),
            Opcode::Pong => Some(Control::Pong),
            Opcode::Continuation | Opcode::Text | Opcode::Binary => None,
        }
    }

    fn parse(number: u8) -> Result<Opcode, WsError> {
        match number {
            0 => Ok(Opcode::Continuation),
            1 => Ok(Opcode::Text),
            2 => Ok(Opcode::Binary),
            8 => Ok(Opcode::Close),
            9 => Ok(Opcode::Ping),
            10 => Ok(Opcode::Pong),
            _ => Err(WsError::ReservedOpcode(number)),
        }
    }
}

impl From<Control> for Opcode {
    fn from(control: Control) -> Opcode {
        match control {
            Control::Close => Opcode::Close,
            Control::Ping => Opcode::Ping,
            Control::Pong => Opcode::Pong,
        }
    }
}

/// A parsed head.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub(super) is_final: bool,
    pub(super) opcode: Opcode,
    /// Below 2^63.
    pub(super) payload_bytes: u64,
    /// Zero if there is no mask.
    pub(super) mask: [u8; 4],
    /// The size of the head itself.
    pub(super) bytes: usize,
}

impl Head {
    /// The head at the beginning of `input`, or how many bytes are needed to know more.
    ///
    /// The head is returned as soon as its length is known. If its mask is missing, `input` has
    /// fewer bytes than [`Head::bytes`].
    /// Errors: each as soon as the byte is there that shows it.
    pub(super) fn parse(input: &[u8], is_masked: bool) -> Result<Result<Head, usize>, WsError> {
        let Some(first) = input.first() else { return Ok(Err(2)) };
        if first & RESERVED != 0 {
            return Err(WsError::ReservedBit);
        }
        let (opcode, is_final) = (Opcode::parse(first & OPCODE)?, first & FINAL != 0);
        if opcode.control().is_some() && !is_final {
            return Err(WsError::ControlFragmented);
        }
        let Some(second) = input.get(1) else { return Ok(Err(2)) };
        match (second & MASKED != 0, is_masked) {
            (false, true) => return Err(WsError::Unmasked),
            (true, false) => return Err(WsError::Masked),
            (true, true) | (false, false) => {}
        }
        let short = second & LENGTH;
        if opcode.control().is_some() && usize::from(short) > CONTROL_BYTES_MAX {
            return Err(WsError::ControlTooLong);
        }
        let (payload_bytes, length_end) = match parse_length(short, &input[2..])? {
            Ok(length) => length,
            Err(needed) => return Ok(Err(needed)),
        };
        let bytes = length_end + if is_masked { MASK_BYTES } else { 0 };
        let mask = input.get(length_end..bytes).and_then(|mask| mask.try_into().ok());
        let mask = mask.unwrap_or_default();
        Ok(Ok(Head { is_final, opcode, payload_bytes, mask, bytes }))
    }
}

/// A length and its end in the head, or how many bytes of the head are needed to know it.
fn parse_length(short: u8, rest: &[u8]) -> Result<Result<(u64, usize), usize>, WsError> {
    let (length, least, end) = match short {
        LENGTH_OF_2 => {
            let Some(length) = rest.first_chunk::<2>() else { return Ok(Err(4)) };
            (u64::from(u16::from_be_bytes(*length)), 126, 4)
        }
        LENGTH_OF_8 => {
            let Some(length) = rest.first_chunk::<8>() else { return Ok(Err(10)) };
            (u64::from_be_bytes(*length), 0x1_0000, 10)
        }
        _ => (u64::from(short), 0, 2),
    };
    if length < least || length >> 63 != 0 {
        return Err(WsError::LengthMalformed);
    }
    Ok(Ok((length, end)))
}

const MASK_BYTES: usize = 4;

const FINAL: u8 = 0x80;
const RESERVED: u8 = 0x70;
const OPCODE: u8 = 0x0f;
const MASKED: u8 = 0x80;
const LENGTH: u8 = 0x7f;
const LENGTH_OF_2: u8 = 126;
const LENGTH_OF_8: u8 = 127;
