//! What a message carries: a number, the time of its publishing and a pattern that follows from both.
//!
//! A payload is ASCII: 8 hexadecimal digits of stream, 8 of sequence number, 16 of time, then letters.

use std::fmt::Write;

use weir_wire::hot::{Payload, Push};

/// Bytes before the pattern: the least size of a payload.
pub(crate) const HEADER_BYTES: usize = 32;

/// The head of a payload, which fixes all the rest of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// Topic of the run, from 0.
    pub(crate) stream: u32,
    /// Number of the message in its stream, from 0, without gaps.
    pub(crate) seq: u32,
    /// Wall-clock time just before it was published, in nanoseconds since 1970.
    pub(crate) sent_ns: u64,
}

impl Header {
    /// Writes the payload of `size` bytes that this head demands; at least [`HEADER_BYTES`].
    pub(crate) fn compose(self, size: usize, out: &mut String) {
        out.clear();
        let wrote = write!(out, "{:08x}{:08x}{:016x}", self.stream, self.seq, self.sent_ns);
        debug_assert!(wrote.is_ok(), "writing to a string does not fail");
        // A step of SplitMix64 for every eight letters: every bit of the head changes them.
        let mut state =
            (u64::from(self.stream) << 32 | u64::from(self.seq)).wrapping_mul(ODD) ^ self.sent_ns;
        while out.len() < size {
            state = state.wrapping_add(ODD);
            let mut mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^= mixed >> 31;
            for byte in mixed.to_ne_bytes().into_iter().take(size - out.len()) {
                out.push(char::from(b'a' + (byte & 15)));
            }
        }
    }

    /// Reads the head of a payload. Only [`Header::compose`] and a comparison tell whether it is genuine.
    pub(crate) fn parse(payload: &[u8]) -> Option<Header> {
        let text = std::str::from_utf8(payload.get(..HEADER_BYTES)?).ok()?;
        Some(Header {
            stream: u32::from_str_radix(text.get(..8)?, 16).ok()?,
            seq: u32::from_str_radix(text.get(8..16)?, 16).ok()?,
            sent_ns: u64::from_str_radix(text.get(16..)?, 16).ok()?,
        })
    }
}

/// The golden ratio in 64 bits, as SplitMix64 uses it.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Checks messages byte by byte.
///
/// All receivers of a message get the same frame, so a frame once verified is kept and the next copies of it are only
/// compared with it.
pub(crate) struct Verifier {
    size: usize,
    /// Indexed by a hash of stream and number; a collision costs a second verification.
    recent: Vec<Option<Verified>>,
    expected: String,
}

struct Verified {
    header: Header,
    body: Vec<u8>,
}

impl Verifier {
    /// For payloads of `size` bytes.
    pub(crate) fn new(size: usize) -> Verifier {
        Verifier {
            size,
            recent: std::iter::repeat_with(|| None).take(RECENT).collect(),
            expected: String::new(),
        }
    }

    /// Verifies the body of a frame on a connection that awaits `(stream, seq)`; `None` if it is not a `Push`.
    ///
    /// The number found is for the caller to judge. Errors: a sentence that says what is wrong.
    /// Cost: a comparison of the body, as a rule.
    pub(crate) fn check(
        &mut self,
        stream: u32,
        seq: u32,
        topic: &str,
        body: &[u8],
    ) -> Result<Option<Header>, String> {
        if let Some(known) = self.known(stream, seq)
            && known.body == body
        {
            return Ok(Some(known.header));
        }
        let push = Push::decode(body).map_err(|error| error.to_string())?;
        let Some(push) = push else { return Ok(None) };
        let payload = match push.payload {
            Payload::Text(text) => text.as_bytes(),
            Payload::Data(data) => data,
        };
        let Some(header) = Header::parse(payload) else {
            return Err(format!(
                "stream {stream}: payload of {} bytes without a header",
                payload.len()
            ));
        };
        if header.stream != stream || push.topic != topic {
            return Err(format!(
                "stream {stream} got a message of stream {}, topic {:?}",
                header.stream, push.topic
            ));
        }
        if self.known(stream, header.seq).is_none_or(|known| known.body != body) {
            self.verify(header, payload)?;
            self.recent[slot(stream, header.seq)] = Some(Verified { header, body: body.to_vec() });
        }
        Ok(Some(header))
    }

    fn known(&self, stream: u32, seq: u32) -> Option<&Verified> {
        let known = self.recent[slot(stream, seq)].as_ref()?;
        (known.header.stream == stream && known.header.seq == seq).then_some(known)
    }

    fn verify(&mut self, header: Header, payload: &[u8]) -> Result<(), String> {
        let Header { stream, seq, sent_ns } = header;
        if payload.len() != self.size {
            return Err(format!(
                "stream {stream}, message {seq}: {} bytes instead of {}",
                payload.len(),
                self.size
            ));
        }
        header.compose(self.size, &mut self.expected);
        let pairs = payload.iter().zip(self.expected.as_bytes());
        if let Some(at) = pairs.into_iter().position(|(got, expected)| got != expected) {
            return Err(format!(
                "stream {stream}, message {seq}: wrong byte at {at} of the payload"
            ));
        }
        match self.known(stream, seq) {
            Some(known) if known.header.sent_ns != sent_ns => {
                Err(format!("stream {stream}, message {seq}: two payloads under one number"))
            }
            _ => Ok(()),
        }
    }
}

/// Verified frames kept: as many as the messages that a slow reader may lag behind, and then some.
const RECENT: usize = 1024;

fn slot(stream: u32, seq: u32) -> usize {
    (stream.wrapping_mul(31).wrapping_add(seq) as usize) % RECENT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(header: Header, size: usize, topic: &str) -> Vec<u8> {
        let mut text = String::new();
        header.compose(size, &mut text);
        let mut frame = Vec::new();
        let push = Push {
            topic,
            payload: Payload::Text(&text),
            content_type: "",
            key: "",
            message_id: 1,
            offset: 1,
            sender: 0,
        };
        push.encode_frame(&mut frame);
        let (body, _) = weir_wire::frame::decode(&frame, usize::MAX).unwrap().unwrap();
        body.to_vec()
    }

    const HEADER: Header = Header { stream: 3, seq: 7, sent_ns: 1_700_000_000_123_456_789 };

    #[test]
    fn a_header_survives_its_payload() {
        let mut text = String::new();
        for size in [32, 33, 64, 4096] {
            HEADER.compose(size, &mut text);
            assert_eq!(text.len(), size);
            assert_eq!(Header::parse(text.as_bytes()), Some(HEADER));
        }
        assert_eq!(Header::parse(b"short"), None);
        assert_eq!(Header::parse(&[b'z'; 40]), None);
    }

    #[test]
    fn a_genuine_message_passes_and_passes_again() {
        let mut verifier = Verifier::new(64);
        let body = body(HEADER, 64, "t");
        for _ in 0..2 {
            assert_eq!(verifier.check(3, 7, "t", &body), Ok(Some(HEADER)));
        }
        assert_eq!(
            verifier.check(3, 6, "t", &body),
            Ok(Some(HEADER)),
            "out of order is for the caller to judge"
        );
    }

    #[test]
    fn a_wrong_byte_anywhere_in_the_payload_is_found() {
        let genuine = body(HEADER, 64, "t");
        let start = genuine.windows(8).position(|part| part == b"00000003").unwrap();
        for at in start..start + 64 {
            for known in [false, true] {
                let mut verifier = Verifier::new(64);
                if known {
                    verifier.check(3, 7, "t", &genuine).unwrap();
                }
                let mut wrong = genuine.clone();
                wrong[at] ^= 1;
                assert!(verifier.check(3, 7, "t", &wrong).is_err(), "byte {at}");
            }
        }
    }

    #[test]
    fn another_topic_stream_or_size_is_found() {
        let mut verifier = Verifier::new(64);
        assert!(verifier.check(3, 7, "u", &body(HEADER, 64, "t")).is_err());
        assert!(verifier.check(4, 7, "t", &body(HEADER, 64, "t")).is_err());
        assert!(verifier.check(3, 7, "t", &body(HEADER, 65, "t")).is_err());
        assert!(verifier.check(3, 7, "t", &body(HEADER, 64, "t")).is_ok());
        let later = Header { sent_ns: HEADER.sent_ns + 1, ..HEADER };
        assert!(
            verifier.check(3, 7, "t", &body(later, 64, "t")).is_err(),
            "one number, two messages"
        );
    }
}
