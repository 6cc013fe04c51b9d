//! Frames of a byte stream: each message after its length as a base-128 varint.
//!
//! Netty's `ProtobufVarint32FrameDecoder`, and `writeDelimitedTo` in protobuf's own libraries, use
//! the same framing.

use crate::{ProstMessage, WireError, fields};

/// Longest length prefix, in bytes: 32 bits in groups of seven.
pub const LENGTH_BYTES_MAX: usize = 5;

/// Splits the first frame off `input`: returns its body and the bytes that it took, prefix
/// included.
///
/// `None` means that more bytes are needed: call again with the same bytes and more behind them. An
/// empty body is a frame. A length has only one valid form: a prefix that ends in a needless zero
/// byte (`80 00` for 0) is refused. Protobuf's parsers would take it, but no encoder in use writes
/// one, so the peer is broken or hostile.
/// Limits: a length is refused as soon as its last byte is there, before any of the body.
/// Errors: an overlong length, one beyond 32 bits, or one above `frame_bytes_max`. Each is final
/// for the stream.
/// Cost: reads at most five bytes; no copy, no allocation.
pub fn decode(input: &[u8], frame_bytes_max: usize) -> Result<Option<(&[u8], usize)>, WireError> {
    let Some((start, end)) = bounds(input, frame_bytes_max)? else { return Ok(None) };
    Ok(input.get(start..end).map(|body| (body, end)))
}

/// Bytes of the frame that begins `input`, prefix included; `None` while its length is unknown.
///
/// Errors and cost: as for [`decode`].
pub fn whole_bytes(input: &[u8], frame_bytes_max: usize) -> Result<Option<usize>, WireError> {
    Ok(bounds(input, frame_bytes_max)?.map(|(_, end)| end))
}

/// The range of the first frame's body.
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

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 300;

    /// Checks the result for `input`. Every shorter cut must ask for more or return the same.
    #[track_caller]
    fn check(input: &[u8], expected: Result<Option<(&[u8], usize)>, WireError>) {
        assert_eq!(decode(input, LIMIT), expected);
        for end in 0..input.len() {
            let cut = decode(&input[..end], LIMIT);
            assert!(cut == Ok(None) || cut == expected, "cut at {end}: {cut:?}");
        }
    }

    /// Checks an error that appears with the last byte of `input`, and not before.
    #[track_caller]
    fn check_earliest_error(input: &[u8], expected: WireError) {
        check(input, Err(expected));
        assert_eq!(decode(&input[..input.len() - 1], LIMIT), Ok(None));
        assert_eq!(whole_bytes(input, LIMIT), Err(expected));
    }

    #[test]
    fn whole_frames_are_split_off_without_a_copy() {
        check(&[0], Ok(Some((&[], 1))));
        check(&[2, 7, 8], Ok(Some((&[7, 8], 3))));
        check(&[1, 7, 1, 8], Ok(Some((&[7], 2))));
        let mut longest = vec![0xac, 0x02];
        longest.resize(2 + LIMIT, 9);
        check(&longest, Ok(Some((&longest[2..], 2 + LIMIT))));
    }

    #[test]
    fn what_is_cut_needs_more() {
        check(&[], Ok(None));
        check(&[0x80], Ok(None));
        check(&[0x80, 0x80, 0x80, 0x80], Ok(None));
        check(&[2, 7], Ok(None));
        assert_eq!(whole_bytes(&[0x80], LIMIT), Ok(None));
        assert_eq!(whole_bytes(&[2, 7], LIMIT), Ok(Some(3)));
        assert_eq!(whole_bytes(&[0x80, 0x01], LIMIT), Ok(Some(130)));
    }

    #[test]
    fn an_oversized_length_is_refused_before_the_body() {
        let too_large = |bytes| WireError::FrameTooLarge { bytes, limit: LIMIT };
        check_earliest_error(&[0xad, 0x02], too_large(301));
        check_earliest_error(&[0xff, 0xff, 0xff, 0x7f], too_large((1 << 28) - 1));
        check_earliest_error(&[0xff, 0xff, 0xff, 0xff, 0x0f], too_large(u64::from(u32::MAX)));
    }

    #[test]
    fn a_length_has_one_form() {
        check_earliest_error(&[0x80, 0x00], WireError::LengthMalformed);
        check_earliest_error(&[0x85, 0x80, 0x00], WireError::LengthMalformed);
        check_earliest_error(&[0x80, 0x80, 0x80, 0x80, 0x00], WireError::LengthMalformed);
    }

    #[test]
    fn a_length_over_32_bits_is_malformed() {
        check_earliest_error(&[0x80, 0x80, 0x80, 0x80, 0x10], WireError::LengthMalformed);
        check_earliest_error(&[0xff, 0xff, 0xff, 0xff, 0xff], WireError::LengthMalformed);
    }

    #[test]
    fn prefixes_are_those_of_prost() {
        for bytes in [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, u32::MAX as usize] {
            let (mut ours, mut twin) = (Vec::new(), Vec::new());
            encode_length(bytes, &mut ours);
            prost::encode_length_delimiter(bytes, &mut twin).unwrap();
            assert_eq!(ours, twin);
        }
    }
}
