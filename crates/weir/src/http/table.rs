//! The read buffers that a peer's header table keeps over HTTP/2 (RFC 7541 section 2.3.2).
//!
//! hyper's HTTP/2 library copies most values into its header table. It does not copy those of
//! `:authority`, `:path` and `:scheme`: such an entry keeps the whole buffer that it was read into.
//! So a table of 4 KiB can keep two megabytes as long as its connection lives. The library does not
//! show its table. This module therefore reads the incoming bytes and counts the buffers that the
//! table can keep.

use std::collections::VecDeque;

/// The buffers that the table of one connection can keep.
///
/// Shape: some words, and a deque of at most [`ENTRIES_MAX`] bytes once there are entries.
/// Limits: it only counts. It may count malformed bytes wrongly; the library ends their connection.
/// Cost: some nanoseconds for a frame and for a header. It allocates for the first entries only.
#[derive(Debug)]
pub(super) struct Table {
    /// Bytes of the stream so far.
    offset: u64,
    head: [u8; HEAD_BYTES],
    /// Bytes of the frame's head so far.
    filled: usize,
    /// Whether the next byte is the length of the padding.
    is_padded: bool,
    /// Bytes of this frame that are still to come: before the header block, of it, and behind it.
    front: usize,
    block: usize,
    behind: usize,
    /// The place in the header block. A block may go on in further frames.
    step: Step,
    kept: Kept,
}

/// The next byte of a header block (RFC 7541 section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// It begins a field.
    Field,
    /// It continues an integer whose value does not matter.
    Integer { value_follows: bool },
    /// It begins a length.
    Length(Text),
    /// It continues a length.
    LengthRest { text: Text, length: usize, shift: u32 },
    /// It begins a name that goes into the table.
    NewName { length: usize },
    /// It is in a text, of which `left` bytes are still to come.
    Rest { text: Text, left: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Text {
    Name { is_for_table: bool },
    Value,
}

/// The entries that keep buffers, grouped by the part of the stream in which they came.
#[derive(Debug, Default)]
struct Kept {
    /// The number of entries in each part, the oldest part first.
    parts: VecDeque<u8>,
    /// The number of the last part.
    newest: u64,
    entries: usize,
}

impl Table {
    /// The state at the beginning of a connection, before the preface.
    pub(super) fn new() -> Table {
        Table {
            offset: 0,
            head: [0; HEAD_BYTES],
            filled: 0,
            is_padded: false,
            front: 0,
            block: 0,
            behind: super::arrival::PREFACE.len(),
            step: Step::Field,
            kept: Kept::default(),
        }
    }

    /// Reads the next bytes. If the number of kept buffers changed, returns the bytes that the
    /// table can keep now.
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> Option<usize> {
        let before = self.kept.parts.len();
        while let Some(first) = bytes.first() {
            let count = if self.is_padded {
                self.is_padded = false;
                self.behind = usize::from(*first).min(self.block);
                self.block -= self.behind;
                1
            } else if self.front > 0 {
                skip(&mut self.front, bytes)
            } else if self.block > 0 {
                let part = &bytes[..self.block.min(bytes.len())];
                self.block -= part.len();
                self.read_block(part);
                part.len()
            } else if self.behind > 0 {
                skip(&mut self.behind, bytes)
            } else {
                self.read_head(bytes)
            };
            self.offset += count as u64;
            bytes = &bytes[count..];
        }
        let now = self.kept.parts.len();
        (now != before).then(|| now.saturating_sub(FREE_PARTS) * PART_KEEPS_BYTES)
    }

    /// Reads a part of a frame's head (RFC 9113 section 4.1). Returns the number of bytes read.
    fn read_head(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(HEAD_BYTES - self.filled);
        self.head[self.filled..][..count].copy_from_slice(&bytes[..count]);
        self.filled += count;
        if self.filled < HEAD_BYTES {
            return count;
        }
        self.filled = 0;
        let [high, middle, low, kind, flags, ..] = self.head;
        let mut length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        match kind {
            HEADERS => {
                self.step = Step::Field;
                self.is_padded = flags & PADDED != 0 && length > 0;
                length -= usize::from(self.is_padded);
                self.front = if flags & PRIORITY != 0 { PRIORITY_BYTES.min(length) } else { 0 };
                self.block = length - self.front;
            }
            CONTINUATION => self.block = length,
            _ => self.behind = length,
        }
        count
    }

    /// Reads a part of a header block.
    fn read_block(&mut self, mut bytes: &[u8]) {
        while let Some((first, rest)) = bytes.split_first() {
            let (step, left) = match self.step {
                Step::Field => (self.begin_field(*first), rest),
                Step::Integer { value_follows } => {
                    let next = if value_follows { Step::Length(Text::Value) } else { Step::Field };
                    (if first & MORE != 0 { self.step } else { next }, rest)
                }
                Step::Length(text) => match usize::from(first & LENGTH) {
                    LENGTH_LONG => (Step::LengthRest { text, length: LENGTH_LONG, shift: 0 }, rest),
                    length => (begin(text, length), rest),
                },
                Step::LengthRest { text, length, shift } => {
                    let more = usize::from(first & LENGTH) << shift;
                    let length = length.saturating_add(more);
                    let shift = (shift + 7).min(SHIFT_MAX);
                    let is_whole = first & MORE == 0;
                    let unfinished = Step::LengthRest { text, length, shift };
                    (if is_whole { begin(text, length) } else { unfinished }, rest)
                }
                Step::NewName { length } => {
                    if *first == COLON || first & COLON_CODED_MASK == COLON_CODED {
                        self.keep();
                    }
                    (go_on(Text::Name { is_for_table: false }, length - 1), rest)
                }
                Step::Rest { text, left } => {
                    let count = left.min(bytes.len());
                    (go_on(text, left - count), &bytes[count..])
                }
            };
            (self.step, bytes) = (step, left);
        }
    }

    /// The step after the first byte of a field.
    fn begin_field(&mut self, first: u8) -> Step {
        let name = |is_for_table| Step::Length(Text::Name { is_for_table });
        match first {
            // An index, or a new size of the table: both are plain integers.
            0xff | 0x3f => Step::Integer { value_follows: false },
            0x80.. | 0x20..0x40 => Step::Field,
            // A text for the table, with its own name or with the name of an entry.
            0x40 => name(true),
            0x41..0x80 => {
                let index = first & 0x3f;
                if matches!(index, AUTHORITY | PATH | PATH_INDEX | SCHEME | SCHEME_TLS | DYNAMIC..)
                {
                    self.keep();
                }
                if index == 0x3f {
                    Step::Integer { value_follows: true }
                } else {
                    Step::Length(Text::Value)
                }
            }
            // A text that does not go into the table, likewise.
            0x00 | 0x10 => name(false),
            0x0f | 0x1f => Step::Integer { value_follows: true },
            0x01..0x20 => Step::Length(Text::Value),
        }
    }

    /// Counts an entry that may keep its buffer.
    fn keep(&mut self) {
        self.kept.add(self.offset / PART_BYTES);
    }
}

impl Kept {
    fn add(&mut self, part: u64) {
        match self.parts.back_mut() {
            Some(last) if self.newest == part => *last += 1,
            Some(_) | None => self.parts.push_back(1),
        }
        self.newest = part;
        self.entries += 1;
        if self.entries > ENTRIES_MAX {
            self.entries -= 1;
            if let Some(oldest) = self.parts.front_mut() {
                *oldest -= 1;
                if *oldest == 0 {
                    self.parts.pop_front();
                }
            }
        }
    }
}

/// The step after the length of a text.
fn begin(text: Text, length: usize) -> Step {
    match text {
        Text::Name { is_for_table: true } if length > 0 => Step::NewName { length },
        Text::Name { .. } | Text::Value => go_on(text, length),
    }
}

/// The step when `left` bytes of a text are still to come.
fn go_on(text: Text, left: usize) -> Step {
    match (left, text) {
        (0, Text::Name { .. }) => Step::Length(Text::Value),
        (0, Text::Value) => Step::Field,
        (left, text) => Step::Rest { text, left },
    }
}

fn skip(left: &mut usize, bytes: &[u8]) -> usize {
    let count = (*left).min(bytes.len());
    *left -= count;
    count
}

const HEAD_BYTES: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
const PRIORITY_BYTES: usize = 5;
/// In an integer: another byte follows.
const MORE: u8 = 0x80;
/// In the first byte of a length: all bits except the flag of the Huffman code.
const LENGTH: u8 = 0x7f;
const LENGTH_LONG: usize = 0x7f;
/// The library refuses a length with a larger shift.
const SHIFT_MAX: u32 = 28;
/// A name that begins with a colon, in plain text and in the Huffman code.
const COLON: u8 = b':';
const COLON_CODED: u8 = 0b1011_1000;
const COLON_CODED_MASK: u8 = 0b1111_1110;
/// Entries of the static table (RFC 7541 appendix A), and the first index behind it.
const AUTHORITY: u8 = 1;
const PATH: u8 = 4;
const PATH_INDEX: u8 = 5;
const SCHEME: u8 = 6;
const SCHEME_TLS: u8 = 7;
const DYNAMIC: u8 = 62;
/// The most entries in a table of 4,096 bytes, the default size: entries of `:path` without a
/// value. Each counts 32 bytes more than its texts.
const ENTRIES_MAX: usize = 4_096 / (32 + 5);
const _: () = assert!(ENTRIES_MAX <= u8::MAX as usize);
/// The smallest buffer that the library reads into.
const PART_BYTES: u64 = 8 * 1024;
/// The most that an entry keeps: a frame, or the buffer for the decoded values of a frame.
const PART_KEEPS_BYTES: usize = 32 * 1024;
/// The first entries of every connection are in one or two buffers. These belong to the usual cost
/// of a connection.
const FREE_PARTS: usize = 2;

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// The entries that are counted, whatever way the bytes are cut.
    fn check(frames: &[u8], entries: usize) {
        let bytes = [crate::http::arrival::PREFACE, frames].concat();
        for step in 1..bytes.len().min(40) {
            let mut table = Table::new();
            for part in bytes.chunks(step) {
                let _ = table.read(part);
            }
            assert_eq!(table.kept.entries, entries, "by {step}: {frames:x?}");
            let at = (table.front, table.block, table.behind, table.filled, table.step);
            assert_eq!(at, (0, 0, 0, 0, Step::Field), "by {step}: {frames:x?}");
        }
    }

    const GET: [u8; 6] = [0x82, 0x86, 0x84, 0x01, 1, b'a'];

    #[test]
    fn entries_that_keep_buffers_are_counted() {
        for (block, entries) in [
            (&[][..], 0),
            // `:path` and `:authority` for the table; `user-agent` is copied.
            (&[0x44, 1, b'/', 0x41, 1, b'a', 0x7a, 1, b'u'], 2),
            // Not for the table; with the index of an entry of the table.
            (&[0x04, 1, b'/', 0x14, 1, b'/', 0x0f, 0x2f, 1, b'x', 0xbe, 0xff, 0x80, 0x01], 0),
            // With its own name, in plain text and coded; a name that is no pseudo-header; a field
            // that is not for the table.
            (&[0x40, 5, b':', b'p', b'a', b't', b'h', 1, b'/'], 1),
            (&[0x40, 0x84, 0xb9, 0x58, 0xd3, 0x3f, 1, b'/'], 1),
            (&[0x40, 1, b'x', 0, 0x00, 5, b':', b'p', b'a', b't', b'h', 0], 0),
            // By the name of an entry of the table, which may be one.
            (&[0x7e, 1, b'/', 0x7f, 0x80, 0x01, 1, b'/'], 2),
            // A new size of the table, in one byte and in three.
            (&[0x20, 0x3f, 0xe1, 0x1f, 0x44, 0], 1),
        ] {
            let block = [&GET[..], block].concat();
            check(&frame(HEADERS, 0x4, &block), entries);
            let padded = [&[3][..], &block, &[0x44; 3]].concat();
            check(&frame(HEADERS, 0x4 | PADDED, &padded), entries);
            let with_priority =
                [&[2, 0x44, 0x44, 0x44, 0x44, 0x44][..], &block, &[0x44; 2]].concat();
            check(&frame(HEADERS, 0x4 | PADDED | PRIORITY, &with_priority), entries);
            let data = frame(0, 0, &[0x44; 30]);
            for end in 0..=block.len() {
                let (first, last) = block.split_at(end);
                let parts = [frame(HEADERS, 0, first), frame(CONTINUATION, 0x4, last)].concat();
                check(&[&data[..], &parts, &data].concat(), entries);
            }
        }
    }

    #[test]
    fn a_long_text_is_passed_over() {
        // 300 bytes: 127 and 173 in two bytes of seven bits.
        let value = [&[0x44, 0x7f, 0xad, 0x01][..], &[0x44; 300]].concat();
        check(&frame(HEADERS, 0x4, &[&GET[..], &value, &[0x44, 0]].concat()), 2);
    }

    #[test]
    fn what_the_table_keeps_is_bounded_and_goes_with_its_entries() {
        let mut table = Table::new();
        assert_eq!(table.read(crate::http::arrival::PREFACE), None);
        let one = frame(HEADERS, 0x4, &[0x44, 1, b'/']);
        let spaced = [one.clone(), frame(0, 0, &[0; 16_000])].concat();
        let mut kept = 0;
        for _ in 0..500 {
            kept = table.read(&spaced).unwrap_or(kept);
        }
        assert_eq!(kept, (ENTRIES_MAX - FREE_PARTS) * PART_KEEPS_BYTES);
        // As many again side by side push all of these out.
        for _ in 0..ENTRIES_MAX {
            kept = table.read(&one).unwrap_or(kept);
        }
        assert_eq!(kept, 0);
    }

    proptest! {
        /// Any bytes, cut anywhere, are counted as they are whole.
        #[test]
        fn no_bytes_are_too_much(bytes in vec(any::<u8>(), 0..3_000), block in vec(any::<u8>(), 0..300), cut: Index) {
            let bytes = [frame(HEADERS, 0, &block), bytes].concat();
            let (mut whole, mut parts) = (Table::new(), Table::new());
            let _ = whole.read(&bytes);
            let (first, last) = bytes.split_at(cut.index(bytes.len()));
            let _ = parts.read(first);
            let _ = parts.read(last);
            prop_assert_eq!(whole.kept.entries, parts.kept.entries);
            prop_assert_eq!((whole.step, whole.offset), (parts.step, parts.offset));
        }
    }

    /// A client that names the same path again and again has one entry.
    #[test]
    fn a_usual_client_keeps_nothing() {
        let mut table = Table::new();
        assert_eq!(table.read(crate::http::arrival::PREFACE), None);
        let first = [0x82, 0x86, 0x41, 1, b'a', 0x44, 3, b'/', b'a', b'b', 0x7a, 1, b'u'];
        assert_eq!(table.read(&frame(HEADERS, 0x5, &first)), Some(0));
        for _ in 0..100_000 {
            let again = frame(HEADERS, 0x5, &[0x82, 0x86, 0xc0, 0xbf, 0xbe]);
            assert_eq!(table.read(&again), None);
        }
    }
}
