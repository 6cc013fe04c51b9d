//! The JSON of the hot messages, written in one pass.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::hot::{Batch, Payload, Push};

/// Appends a `Push` with this topic. An empty topic is not written.
///
/// The payload is always written, even an empty one, because its kind (text or data) matters.
pub(crate) fn put_push(push: &Push<'_>, topic: &str, out: &mut Vec<u8>) {
    let texts = topic.len() + push.content_type.len() + push.key.len();
    out.reserve(PUSH_FIELDS_BYTES + texts + push.payload.as_bytes().len());
    out.push(b'{');
    if !topic.is_empty() {
        out.extend_from_slice(b"\"topic\":");
        put_string(topic, out);
        out.push(b',');
    }
    match push.payload {
        Payload::Text(text) => {
            out.extend_from_slice(b"\"text\":");
            put_string(text, out);
        }
        Payload::Data(data) => {
            out.extend_from_slice(b"\"data\":");
            put_base64(data, out);
        }
    }
    put_string_field(b",\"contentType\":", push.content_type, out);
    put_string_field(b",\"key\":", push.key, out);
    put_number_field(b",\"messageId\":", push.message_id, out);
    put_number_field(b",\"offset\":", push.offset, out);
    put_number_field(b",\"sender\":", push.sender, out);
    out.push(b'}');
}

/// Appends a `ServerMessage` with a `Batch`; `None` if one of its messages is malformed.
pub(super) fn put_batch(batch: &Batch<'_>, out: &mut Vec<u8>) -> Option<()> {
    out.extend_from_slice(b"{\"batch\":{");
    if !batch.topic.is_empty() {
        out.extend_from_slice(b"\"topic\":");
        put_string(batch.topic, out);
        out.push(b',');
    }
    out.extend_from_slice(b"\"messages\":[");
    for (index, push) in batch.messages().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        put_push(&push.ok()?, "", out);
    }
    out.push(b']');
    put_number_field(b",\"firstOffset\":", batch.first_offset, out);
    put_number_field(b",\"lastOffset\":", batch.last_offset, out);
    out.extend_from_slice(b"}}");
    Some(())
}

/// Appends a `ServerMessage` with a `Pong`.
pub(super) fn put_pong(data: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"pong\":{");
    if !data.is_empty() {
        out.extend_from_slice(b"\"data\":");
        put_base64(data, out);
    }
    out.extend_from_slice(b"}}");
}

/// Appends a number in decimal.
pub(crate) fn put_decimal(mut number: u64, out: &mut Vec<u8>) {
    let mut digits = [0; DECIMAL_DIGITS_MAX];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

fn put_string_field(name: &[u8], text: &str, out: &mut Vec<u8>) {
    if !text.is_empty() {
        out.extend_from_slice(name);
        put_string(text, out);
    }
}

/// Appends the number as a string, because JavaScript's numbers cannot hold 64 bits.
fn put_number_field(name: &[u8], number: u64, out: &mut Vec<u8>) {
    if number != 0 {
        out.extend_from_slice(name);
        out.push(b'"');
        put_decimal(number, out);
        out.push(b'"');
    }
}

/// Appends a string in quotes. Copies the text between two escaped characters as a whole.
pub(crate) fn put_string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    let bytes = text.as_bytes();
    let mut copied = 0;
    for (index, byte) in bytes.iter().enumerate() {
        let escape = ESCAPES[usize::from(*byte)];
        if escape == PLAIN {
            continue;
        }
        out.extend_from_slice(&bytes[copied..index]);
        copied = index + 1;
        out.extend_from_slice(&[b'\\', escape]);
        if escape == b'u' {
            let digit = |value: u8| b"0123456789abcdef"[usize::from(value)];
            out.extend_from_slice(&[b'0', b'0', digit(byte >> 4), digit(byte & 0x0f)]);
        }
    }
    out.extend_from_slice(&bytes[copied..]);
    out.push(b'"');
}

fn put_base64(data: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    let start = out.len();
    out.resize(start + data.len().div_ceil(3) * 4, 0);
    let written = STANDARD.encode_slice(data, &mut out[start..]);
    debug_assert_eq!(written, Ok(out.len() - start));
    out.push(b'"');
}

/// The character after the backslash, or [`PLAIN`].
const ESCAPES: [u8; 256] = {
    let mut escapes = [PLAIN; 256];
    let mut control = 0;
    while control < 0x20 {
        escapes[control] = b'u';
        control += 1;
    }
    escapes[0x08] = b'b';
    escapes[b'\t' as usize] = b't';
    escapes[b'\n' as usize] = b'n';
    escapes[0x0c] = b'f';
    escapes[b'\r' as usize] = b'r';
    escapes[b'"' as usize] = b'"';
    escapes[b'\\' as usize] = b'\\';
    escapes
};

const PLAIN: u8 = 0;

const DECIMAL_DIGITS_MAX: usize = 20;

/// Names, quotes, commas and three numbers: everything in a `Push` besides its texts and its
/// payload.
const PUSH_FIELDS_BYTES: usize = 160;
