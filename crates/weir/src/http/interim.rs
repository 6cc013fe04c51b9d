//! `100 Continue` over HTTP/2 (RFC 9110 section 10.1.1, RFC 9113 section 8.1.1).
//!
//! hyper sends it over HTTP/1.1 only, and offers no way to send it on a stream. So this module
//! sends it, between two frames of hyper's. For that it reads the heads of all frames that pass,
//! nine bytes each:
//!
//! ```text
//!  HEADERS of a new stream ─▶ opened ─its request is answered by the service─▶ claimed
//!                                        its body is awaited ─▶ due ─between two frames─▶ said
//! ```
//!
//! hyper hands requests over in the order in which their streams were opened. So the first opened
//! stream belongs to the next request. hyper never hands over a request that it refuses itself. All
//! requests that came with it are handed over in the same turn. Streams that are still opened at
//! the end of the turn are therefore forgotten. The order is wrong for that turn at most. Then a
//! `100 Continue` is missed, and no client may wait for that without end.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::arrival::PREFACE;

/// The streams of one connection, as far as interim answers need them.
///
/// Limits: it keeps the streams that were opened in one turn, bounded by the bytes that are read in
/// one. It also keeps the streams that wait for `100 Continue`, at most `http.h2_streams_max`.
/// Cost: some nanoseconds a frame, and a lock that no other thread holds.
#[derive(Default)]
pub(super) struct Interim {
    streams: Mutex<Streams>,
    is_due: AtomicBool,
}

#[derive(Default)]
struct Streams {
    read: Frames,
    /// Bytes of the preface that are still to come; `None` at the beginning.
    preface_left: Option<usize>,
    written: Frames,
    /// hyper is between HEADERS and their end. No other frame may stand there.
    is_within_headers: bool,
    last: u32,
    opened: VecDeque<u32>,
    due: Vec<u32>,
}

/// The place in a row of frames: where one ends and the next one begins.
#[derive(Default)]
struct Frames {
    head: [u8; HEAD_BYTES],
    /// Bytes of the head that have come.
    known: usize,
    /// Bytes of the payload that are still to come.
    left: usize,
}

/// The head of a frame, without its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    kind: u8,
    flags: u8,
    stream: u32,
}

impl Interim {
    /// Reads bytes that have come.
    pub(super) fn read(&self, bytes: &[u8]) {
        let mut streams = self.lock();
        let Streams { read, preface_left, last, opened, due, .. } = &mut *streams;
        let left = preface_left.get_or_insert(PREFACE.len());
        let skipped = bytes.len().min(*left);
        *left -= skipped;
        read.pass(&bytes[skipped..], |head| match head.kind {
            // HEADERS on a stream that was opened before are trailers.
            HEADERS if head.stream > *last => {
                *last = head.stream;
                opened.push_back(head.stream);
            }
            RST_STREAM => due.retain(|stream| *stream != head.stream),
            _ => {}
        });
    }

    /// Reads bytes of hyper's that have left.
    pub(super) fn written(&self, bytes: &[u8]) {
        let mut streams = self.lock();
        let Streams { written, is_within_headers, opened, due, .. } = &mut *streams;
        written.pass(bytes, |head| {
            if matches!(head.kind, HEADERS | CONTINUATION) {
                *is_within_headers = head.flags & END_HEADERS == 0;
            }
            // The request is answered or ended, so `100 Continue` would come too late.
            if matches!(head.kind, HEADERS | RST_STREAM) {
                due.retain(|stream| *stream != head.stream);
                opened.retain(|stream| *stream != head.stream);
            }
        });
    }

    /// The stream of the request that hyper hands over now.
    pub(super) fn claim(&self) -> Option<u32> {
        self.lock().opened.pop_front()
    }

    /// Notes that hyper has handed over all requests that have come.
    pub(super) fn settle(&self) {
        self.lock().opened.clear();
    }

    /// The handler waits for the body of a request, and its sender waits for `100 Continue`.
    pub(super) fn want(&self, stream: u32) {
        self.lock().due.push(stream);
        self.is_due.store(true, Ordering::Release);
    }

    /// The bytes to be sent now, between two frames; empty: none.
    pub(super) fn take_due(&self) -> Vec<u8> {
        if !self.is_due.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut streams = self.lock();
        if streams.is_within_headers || !streams.written.is_between() {
            return Vec::new();
        }
        self.is_due.store(false, Ordering::Release);
        let due = std::mem::take(&mut streams.due);
        due.into_iter()
            .flat_map(|stream| [&CONTINUE[..5], &stream.to_be_bytes(), &CONTINUE[5..]].concat())
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().expect("no panic happens under the lock of the streams")
    }
}

impl Frames {
    /// Calls `see` with the heads in the next bytes.
    fn pass(&mut self, mut bytes: &[u8], mut see: impl FnMut(Head)) {
        loop {
            let skipped = bytes.len().min(self.left);
            self.left -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return;
            }
            let count = bytes.len().min(HEAD_BYTES - self.known);
            self.head[self.known..self.known + count].copy_from_slice(&bytes[..count]);
            self.known += count;
            bytes = &bytes[count..];
            if self.known == HEAD_BYTES {
                let [high, middle, low, kind, flags, stream @ ..] = self.head;
                self.known = 0;
                self.left = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
                // The highest bit is reserved.
                let stream = u32::from_be_bytes(stream) & (u32::MAX >> 1);
                see(Head { kind, flags, stream });
            }
        }
    }

    fn is_between(&self) -> bool {
        self.known == 0 && self.left == 0
    }
}

/// The length of a frame's head (RFC 9113 section 4.1).
const HEAD_BYTES: usize = 9;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
/// HEADERS of five bytes, without the stream: `:status 100`. The name is an index, and the field
/// does not go into a table.
const CONTINUE: &[u8; 10] = b"\x00\x00\x05\x01\x04\x08\x03100";

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }

    /// What comes: a stream that goes on, one that ends, trailers of the first, and a third one.
    fn said() -> Vec<u8> {
        [
            PREFACE.to_vec(),
            frame(4, 0, 0, &[0; 6]),
            frame(HEADERS, END_HEADERS, 1, &[0; 20]),
            frame(HEADERS, END_HEADERS | 1, 3, &[0; 7]),
            frame(0, 0, 1, &[0; 300]),
            frame(HEADERS, END_HEADERS | 1, 1, &[]),
            frame(HEADERS, 0, 0x8000_0005, &[0; 9]),
            frame(CONTINUATION, END_HEADERS, 5, &[0; 9]),
        ]
        .concat()
    }

    #[test]
    fn streams_are_claimed_in_their_order_however_they_are_cut() {
        let said = said();
        for cut in 0..said.len() {
            let interim = Interim::default();
            interim.read(&said[..cut]);
            interim.read(&said[cut..]);
            let claimed = [(); 4].map(|()| interim.claim());
            assert_eq!(claimed, [Some(1), Some(3), Some(5), None], "cut at {cut}");
        }
    }

    #[test]
    fn the_word_stands_between_two_frames() {
        let headers = [frame(HEADERS, 0, 7, &[0; 5]), frame(CONTINUATION, END_HEADERS, 7, b"x")];
        let written = [headers.concat(), frame(0, 0, 7, &[0; 40])].concat();
        let ends = [0, headers.concat().len(), written.len()];
        for cut in 0..=written.len() {
            let interim = Interim::default();
            interim.read(&said());
            interim.want(1);
            interim.want(5);
            interim.written(&written[..cut]);
            let word = |stream| frame(HEADERS, END_HEADERS, stream, b"\x08\x03100");
            let expected = if ends.contains(&cut) { [word(1), word(5)].concat() } else { vec![] };
            assert_eq!(interim.take_due(), expected, "cut at {cut}");
            interim.written(&written[cut..]);
            let expected = if ends.contains(&cut) { vec![] } else { [word(1), word(5)].concat() };
            assert_eq!(interim.take_due(), expected, "behind a cut at {cut}");
        }
    }

    #[test]
    fn nothing_is_said_to_who_is_answered_or_gone() {
        let interim = Interim::default();
        interim.read(&said());
        for stream in [1, 3, 5] {
            interim.want(stream);
        }
        interim.read(&frame(RST_STREAM, 0, 3, &[0; 4]));
        interim.written(&frame(HEADERS, END_HEADERS, 1, &[0x88]));
        interim.written(&frame(RST_STREAM, 0, 5, &[0; 4]));
        assert_eq!(interim.take_due(), Vec::<u8>::new());
    }

    #[test]
    fn what_is_not_handed_over_is_forgotten() {
        let interim = Interim::default();
        interim.read(&said());
        // The library refuses the first one.
        interim.written(&frame(RST_STREAM, 0, 1, &[0; 4]));
        assert_eq!(interim.claim(), Some(3));
        interim.settle();
        interim.read(&frame(HEADERS, END_HEADERS, 9, &[0; 4]));
        assert_eq!(interim.claim(), Some(9));
    }
}
