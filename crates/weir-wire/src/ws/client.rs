//! The client's side of WebSocket: it writes and reads frames.

use std::ops::Range;

use super::head::Head;
use super::{Opcode, WsError, frame_head, unmask};

/// A frame from the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerHead {
    /// Its kind.
    pub opcode: Opcode,
    /// Whether it ends its message.
    pub is_final: bool,
    /// The range of its payload in the input.
    pub payload: Range<usize>,
}

/// Appends a client's frame with a whole message, or a control frame.
///
/// The mask should be drawn at random for each frame (RFC 6455 §5.3).
pub fn encode_client_frame(opcode: Opcode, payload: &[u8], mask: [u8; 4], out: &mut Vec<u8>) {
    let (mut head, bytes) = frame_head(opcode, payload.len());
    head[1] |= MASKED;
    head[bytes..bytes + mask.len()].copy_from_slice(&mask);
    out.extend_from_slice(&head[..bytes + mask.len()]);
    let start = out.len();
    out.extend_from_slice(payload);
    unmask(&mut out[start..], mask);
}

/// The first frame in the bytes that a client has received, and its size; `None` if more bytes are
/// needed.
///
/// Returns the fragments of a message one by one. Weir sends each message in one frame.
/// Errors: a frame that a server must not send, and [`WsError::MessageTooLarge`] for a frame with
/// more than `payload_bytes_max`. Each error comes as soon as it is known.
pub fn decode_server_frame(
    input: &[u8],
    payload_bytes_max: usize,
) -> Result<Option<(ServerHead, usize)>, WsError> {
    let Ok(head) = Head::parse(input, false)? else { return Ok(None) };
    let limit = payload_bytes_max;
    let payload_bytes = match usize::try_from(head.payload_bytes) {
        Ok(bytes) if bytes <= limit => bytes,
        Ok(_) | Err(_) => {
            return Err(WsError::MessageTooLarge { bytes: head.payload_bytes, limit });
        }
    };
    let used = head.bytes.saturating_add(payload_bytes);
    if input.len() < used {
        return Ok(None);
    }
    let Head { opcode, is_final, .. } = head;
    Ok(Some((ServerHead { opcode, is_final, payload: head.bytes..used }, used)))
}

const MASKED: u8 = 0x80;
