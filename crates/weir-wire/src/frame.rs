//! Frames of a byte stream: each message behind its length as a base-128 varint.
//!
//! The framing of Netty's `ProtobufVarint32FrameDecoder` and of `writeDelimitedTo` in protobuf's own libraries.

use crate::{ProstMessage, WireError};

/// Longest length prefix, in bytes: 32 bits in groups of seven.
pub const LENGTH_BYTES_MAX: usize = 5;

/// Splits the first frame off `input`: its body and the bytes it took, prefix included.
///
/// `None` means that more bytes are needed. Cost: no copy, no allocation.
/// Errors: an overlong length, one beyond 32 bits, or one above `frame_bytes_max`; each is final for the stream.
pub fn decode(input: &[u8], frame_bytes_max: usize) -> Result<Option<(&[u8], usize)>, WireError> {
    let mut length: u64 = 0;
    for (index, byte) in input.iter().take(LENGTH_BYTES_MAX).enumerate() {
        length |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 != 0 {
            continue;
        }
        if index > 0 && *byte == 0 {
            return Err(WireError::LengthMalformed);
        }
        let Ok(bytes) = u32::try_from(length) else {
            return Err(WireError::LengthMalformed);
        };
        let bytes = bytes as usize;
        if bytes > frame_bytes_max {
            return Err(WireError::FrameTooLarge { bytes: length, limit: frame_bytes_max });
        }
        let start = index + 1;
        return Ok(input.get(start..start + bytes).map(|body| (body, start + bytes)));
    }
    if input.len() >= LENGTH_BYTES_MAX {
        return Err(WireError::LengthMalformed);
    }
    Ok(None)
}

/// Appends `message` to `out` as one frame.
pub fn encode(message: &impl ProstMessage, out: &mut Vec<u8>) {
    let bytes = message.encoded_len();
    out.reserve(bytes + LENGTH_BYTES_MAX);
    encode_length(bytes, out);
    message.encode_raw(out);
}

/// Appends a length prefix to `out`.
pub(crate) fn encode_length(bytes: usize, out: &mut Vec<u8>) {
    let mut rest = bytes as u64;
    while rest >= 0x80 {
        out.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    out.push((rest & 0x7f) as u8);
}
