//! Frames of a byte stream: each message behind its length as a base-128 varint.
//!
//! The framing of Netty's `ProtobufVarint32FrameDecoder` and of `writeDelimitedTo` in protobuf's own libraries.

use crate::{ProstMessage, WireError, fields};

/// Longest length prefix, in bytes: 32 bits in groups of seven.
pub const LENGTH_BYTES_MAX: usize = 5;

/// Splits the first frame off `input`: its body and the bytes it took, prefix included.
///
/// `None` means that more bytes are needed: call again with the same bytes and more behind them. An empty body is a
/// frame. One length has one form: a prefix that ends in a needless zero byte (`80 00` for 0) is refused, though
/// protobuf's parsers would take it; no encoder in use writes one, so it means a broken or hostile peer.
/// Limits: a length is refused as soon as its last byte is there, before any of the body.
/// Errors: an overlong length, one beyond 32 bits, or one above `frame_bytes_max`; each is final for the stream.
/// Cost: at most five bytes are looked at; no copy, no allocation.
pub fn decode(input: &[u8], frame_bytes_max: usize) -> Result<Option<(&[u8], usize)>, WireError> {
    let Some((start, end)) = bounds(input, frame_bytes_max)? else { return Ok(None) };
    Ok(input.get(start..end).map(|body| (body, end)))
}

/// Bytes of the frame that begins `input`, prefix included; `None` while its length is not known.
///
/// Errors and cost: as for [`decode`].
pub fn whole_bytes(input: &[u8], frame_bytes_max: usize) -> Result<Option<usize>, WireError> {
    Ok(bounds(input, frame_bytes_max)?.map(|(_, end)| end))
}

/// Where the body of the first frame begins and ends.
fn bounds(input: &[u8], frame_bytes_max: usize) -> Result<Option<(usize, usize)>, WireError> {
    let mut length: u64 = 0;
    for (index, byte) in input.iter().take(LENGTH_BYTES_MAX).enumerate() {
        length |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 != 0 {
            continue;
        }
        if (index > 0 && *byte == 0) || length > u64::from(u32::MAX) {
            return Err(WireError::LengthMalformed);
        }
        let start = index + 1;
        return match usize::try_from(length) {
            Ok(bytes) if bytes <= frame_bytes_max => Ok(Some((start, start.saturating_add(bytes)))),
            Ok(_) | Err(_) => {
                Err(WireError::FrameTooLarge { bytes: length, limit: frame_bytes_max })
            }
        };
    }
    if input.len() >= LENGTH_BYTES_MAX {
        return Err(WireError::LengthMalformed);
    }
    Ok(None)
}

/// Appends `message` to `out` as one frame.
///
/// Limits: the caller keeps `message` below 4 GiB, far above what any peer takes.
/// Cost: grows `out` at most once.
pub fn encode(message: &impl ProstMessage, out: &mut Vec<u8>) {
    let bytes = message.encoded_len();
    out.reserve(bytes + LENGTH_BYTES_MAX);
    encode_length(bytes, out);
    message.encode_raw(out);
}

/// Appends a length prefix to `out`.
pub(crate) fn encode_length(bytes: usize, out: &mut Vec<u8>) {
    fields::put_varint(bytes as u64, out);
}
