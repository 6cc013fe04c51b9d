//! Escapes strangers' text: the output is printable ASCII without quotation marks, whatever the
//! input.
//!
//! So a stranger cannot begin, end or forge a line, or control a terminal that shows it.

/// Appends bytes as the inside of a JSON string. Bytes that are not UTF-8 become U+FFFD.
///
/// Shape: at most six bytes for one.
pub(super) fn json(out: &mut Vec<u8>, text: &[u8]) {
    let mut rest = text;
    while let Some(first) = take_plain(out, &mut rest) {
        match first {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', first]),
            0..0x80 => unit(out, u16::from(first)),
            0x80.. => {
                // The byte already taken is the first one of the character.
                let start = text.len() - rest.len() - 1;
                let bytes = character(out, &text[start..]);
                rest = &text[start + bytes..];
            }
        }
    }
}

/// Appends bytes as the inside of a quoted text of the combined format, with `\xHH` for bytes that
/// are not printable.
///
/// Shape: at most four bytes for one.
pub(super) fn combined(out: &mut Vec<u8>, text: &[u8]) {
    let mut rest = text;
    while let Some(first) = take_plain(out, &mut rest) {
        match first {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', first]),
            _ => hex(out, first),
        }
    }
}

/// The same for a text between spaces and without quotation marks.
pub(super) fn combined_word(out: &mut Vec<u8>, text: &[u8]) {
    for (index, part) in text.split(|byte| *byte == b' ').enumerate() {
        if index > 0 {
            hex(out, b' ');
        }
        combined(out, part);
    }
}

/// Appends the bytes before the first one that needs an escape, and takes that one.
fn take_plain(out: &mut Vec<u8>, rest: &mut &[u8]) -> Option<u8> {
    let plain = plain_bytes(rest);
    out.extend_from_slice(&rest[..plain]);
    let (first, others) = rest[plain..].split_first()?;
    *rest = others;
    Some(*first)
}

/// The number of bytes before the first one that needs an escape.
///
/// Cost: looks at eight bytes at a time.
fn plain_bytes(text: &[u8]) -> usize {
    let Some(last) = text.last_chunk::<8>() else {
        return text.iter().position(|byte| !is_plain(*byte)).unwrap_or(text.len());
    };
    for (index, word) in text.as_chunks::<8>().0.iter().enumerate() {
        let special = specials(*word);
        if special != 0 {
            return index * 8 + first_byte(special);
        }
    }
    // The bytes that it shares with the word before are plain.
    text.len() - 8 + first_byte(specials(*last))
}

fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\'
}

/// The bytes of eight that are not plain, by their high bits. After the first one, some may be
/// marked wrongly.
fn specials(word: [u8; 8]) -> u64 {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let word = u64::from_le_bytes(word);
    // A subtraction borrows from the next byte only after it has found one.
    let below = |word: u64, bound: u8| word.wrapping_sub(LOW * u64::from(bound)) & !word & HIGH;
    let equal = |byte: u8| below(word ^ (LOW * u64::from(byte)), 1);
    (word & HIGH) | below(word, b' ') | equal(b'"') | equal(b'\\') | equal(0x7f)
}

/// The first byte whose high bit is set; eight if none is.
fn first_byte(specials: u64) -> usize {
    specials.trailing_zeros() as usize / 8
}

/// Appends the first character of the text, and returns the number of its bytes.
fn character(out: &mut Vec<u8>, text: &[u8]) -> usize {
    let ahead = &text[..text.len().min(4)];
    let chunk = ahead.utf8_chunks().next();
    if let Some(found) = chunk.as_ref().and_then(|chunk| chunk.valid().chars().next()) {
        found.encode_utf16(&mut [0; 2]).iter().for_each(|found| unit(out, *found));
        return found.len_utf8();
    }
    unit(out, 0xfffd);
    chunk.map_or(1, |chunk| chunk.invalid().len().max(1))
}

/// Appends `\uHHHH`.
fn unit(out: &mut Vec<u8>, unit: u16) {
    let [high, low] = unit.to_be_bytes().map(digits);
    out.extend_from_slice(&[b'\\', b'u', high[0], high[1], low[0], low[1]]);
}

/// Appends `\xHH`.
fn hex(out: &mut Vec<u8>, byte: u8) {
    let [high, low] = digits(byte);
    out.extend_from_slice(&[b'\\', b'x', high, low]);
}

/// A byte as two hexadecimal digits.
pub(super) fn digits(byte: u8) -> [u8; 2] {
    [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_printable_is_escaped() {
        let check = |text: &[u8], as_json: &str, as_combined: &str| {
            let (mut one, mut other) = (Vec::new(), Vec::new());
            json(&mut one, text);
            combined(&mut other, text);
            assert_eq!(String::from_utf8(one).unwrap(), as_json, "{text:?}");
            assert_eq!(String::from_utf8(other).unwrap(), as_combined, "{text:?}");
        };
        check(b"", "", "");
        check(b"/a/b~ c", "/a/b~ c", "/a/b~ c");
        check(b"01234567\"8", "01234567\\\"8", "01234567\\\"8");
        check(b"a\\b", "a\\\\b", "a\\\\b");
        check(b"a\r\nb\x7f", "a\\u000d\\u000ab\\u007f", "a\\x0d\\x0ab\\x7f");
        check("é".as_bytes(), "\\u00e9", "\\xc3\\xa9");
        check("😀x".as_bytes(), "\\ud83d\\ude00x", "\\xf0\\x9f\\x98\\x80x");
        check("\u{2028}".as_bytes(), "\\u2028", "\\xe2\\x80\\xa8");
        check(b"\xff\xc3", "\\ufffd\\ufffd", "\\xff\\xc3");
        check(b"\xf0\x9fab", "\\ufffdab", "\\xf0\\x9fab");
    }

    #[test]
    fn eight_bytes_at_once_find_what_one_at_a_time_does() {
        for byte in 0..=u8::MAX {
            for (bytes, place) in (1..20).flat_map(|bytes| (0..bytes).map(move |at| (bytes, at))) {
                for other in [b' ', b'!', b'#', b'~', b'[', 0, 0xff] {
                    let mut text = vec![b'!'; bytes];
                    text[place] = byte;
                    text[place + 1..].fill(other);
                    let expected = text.iter().take_while(|byte| is_plain(**byte)).count();
                    assert_eq!(plain_bytes(&text), expected, "{text:?}");
                }
            }
        }
    }

    #[test]
    fn a_word_of_the_combined_format_has_no_space() {
        let mut out = Vec::new();
        combined_word(&mut out, b" a b\n");
        assert_eq!(String::from_utf8(out).unwrap(), "\\x20a\\x20b\\x0a");
    }
}
