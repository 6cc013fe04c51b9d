//! Bytes of HTTP/2 that no library would send (RFC 9113; headers by RFC 7541).

/// A connection's first bytes: preface, and settings by which no stream may send before its window
/// is opened.
pub(super) fn closed_windows() -> Vec<u8> {
    opening(&[0, 4, 0, 0, 0, 0])
}

/// The same with the usual windows.
pub(super) fn usual_windows() -> Vec<u8> {
    opening(&[])
}

fn opening(settings: &[u8]) -> Vec<u8> {
    let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    frame(&mut out, SETTINGS, 0, 0, settings);
    out
}

/// The answer to a `PING` that nobody sent.
pub(super) fn ping_ack(out: &mut Vec<u8>) {
    frame(out, PING, ACK, 0, &[0; 8]);
}

/// A request's head. `more` are encoded header fields; `ends`: the request has no body.
pub(super) fn head(out: &mut Vec<u8>, stream: u32, start: &[&[u8]], ends: bool) {
    let flags = END_HEADERS | if ends { END_STREAM } else { 0 };
    frame(out, HEADERS, flags, stream, &start.concat());
}

/// A whole body.
pub(super) fn body(out: &mut Vec<u8>, stream: u32, bytes: &[u8]) {
    for (index, part) in bytes.chunks(FRAME_BYTES_MAX).enumerate() {
        let last = (index + 1) * FRAME_BYTES_MAX >= bytes.len();
        frame(out, DATA, if last { END_STREAM } else { 0 }, stream, part);
    }
}

/// A field with this name of the static table, added to the dynamic table, where it is then
/// [`NEWEST`].
pub(super) fn kept(name: u8, value: &[u8]) -> Vec<u8> {
    let mut out = vec![0x40 | name];
    string(&mut out, value);
    out
}

/// The same with a new name.
pub(super) fn kept_new(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut out = vec![0x40];
    string(&mut out, name);
    string(&mut out, value);
    out
}

/// A field with this name of the static table (below 15), not added to the dynamic table.
pub(super) fn field(name: u8, value: &[u8]) -> Vec<u8> {
    let mut out = vec![name];
    string(&mut out, value);
    out
}

/// The stream of a request, by its place.
pub(super) fn stream(index: u32) -> u32 {
    2 * index + 1
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    out.extend(&length[1..]);
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
}

/// A string without Huffman code; its length is an integer with a prefix of 7 bits.
fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    let length = bytes.len();
    if let Ok(short @ 0..127) = u8::try_from(length) {
        out.push(short);
    } else {
        out.push(127);
        let mut rest = length - 127;
        while rest >= 128 {
            out.push(u8::try_from(rest % 128).unwrap_or(0) | 128);
            rest /= 128;
        }
        out.push(u8::try_from(rest).unwrap_or(0));
    }
    out.extend(bytes);
}

/// `:method GET`, as a whole field.
pub(super) const GET: &[u8] = &[0x82];
/// `:method POST`.
pub(super) const POST: &[u8] = &[0x83];
/// `:scheme http`.
pub(super) const HTTP: &[u8] = &[0x86];
/// The name `:authority` in the static table.
pub(super) const AUTHORITY: u8 = 1;
/// The name `:path`.
pub(super) const PATH: u8 = 4;
/// The name `authorization`.
pub(super) const AUTHORIZATION: u8 = 23;
/// The newest field of the dynamic table, as one byte.
pub(super) const NEWEST: &[u8] = &[0x80 | 62];

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// Longest frame that a server accepts by default.
const FRAME_BYTES_MAX: usize = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_carry_their_length() {
        for (length, head) in
            [(5, vec![5]), (126, vec![126]), (127, vec![127, 0]), (300, vec![127, 0xad, 1])]
        {
            let mut out = Vec::new();
            string(&mut out, &vec![b'a'; length]);
            assert_eq!(out[..head.len()], head, "{length}");
            assert_eq!(out.len(), head.len() + length);
        }
    }

    #[test]
    fn a_body_ends_its_stream_once() {
        let mut out = Vec::new();
        body(&mut out, 3, &[7; 20_000]);
        assert_eq!(out[..9], [0, 0x40, 0, DATA, 0, 0, 0, 0, 3]);
        assert_eq!(out[9 + 16_384..][..9], [0, 0x0e, 0x20, DATA, END_STREAM, 0, 0, 0, 3]);
    }
}
