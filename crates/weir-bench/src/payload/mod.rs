//! The payload of messages: a number, the time of publishing, and a pattern that follows from both.
//!
//! A payload is ASCII: 8 hexadecimal digits of stream, 8 of sequence number, 16 of time, then letters.

pub(crate) mod foreign;
pub(crate) mod forms;

use std::fmt::Write;
use std::rc::Rc;

use weir_wire::format::Format;
use weir_wire::hot::{FromServer, Push};

use self::foreign::Protocol;

/// Bytes before the pattern. A payload has at least this size, or the head is written shorter.
pub(crate) const HEADER_BYTES: usize = 32;
/// Bytes of a short head: 20 bits of stream, 24 of sequence number, and 51 of time in microseconds, as
/// digits of six bits. No payload is smaller.
pub(crate) const SHORT_HEADER_BYTES: usize = 16;

/// The head of a payload. The rest of the payload follows from it.
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
    /// Writes the payload of this head, with `size` bytes, at least [`SHORT_HEADER_BYTES`].
    pub(crate) fn compose(self, size: usize, out: &mut String) {
        out.clear();
        if size < HEADER_BYTES {
            let rounded = Header { sent_ns: self.sent_ns / 1000 * 1000, ..self };
            rounded.compose_short(out);
            return rounded.fill(size, out);
        }
        let wrote = write!(out, "{:08x}{:08x}{:016x}", self.stream, self.seq, self.sent_ns);
        debug_assert!(wrote.is_ok(), "writing to a string does not fail");
        self.fill(size, out);
    }

    fn compose_short(self, out: &mut String) {
        let micros = u128::from(self.sent_ns / 1000);
        let bits =
            u128::from(self.stream) << 75 | u128::from(self.seq & SEQ_SHORT_MAX) << 51 | micros;
        for place in (0..SHORT_HEADER_BYTES).rev() {
            let six = usize::try_from(bits >> (6 * place) & 63).unwrap_or(0);
            out.push(char::from(DIGITS[six]));
        }
    }

    /// Appends the pattern that follows from the head.
    fn fill(self, size: usize, out: &mut String) {
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

    /// Reads the head of a payload. Only a comparison with [`Header::compose`] shows whether the
    /// payload is genuine.
    pub(crate) fn parse(payload: &[u8]) -> Option<Header> {
        if payload.len() < HEADER_BYTES {
            return Header::parse_short(payload);
        }
        let text = std::str::from_utf8(payload.get(..HEADER_BYTES)?).ok()?;
        Some(Header {
            stream: u32::from_str_radix(text.get(..8)?, 16).ok()?,
            seq: u32::from_str_radix(text.get(8..16)?, 16).ok()?,
            sent_ns: u64::from_str_radix(text.get(16..)?, 16).ok()?,
        })
    }

    fn parse_short(payload: &[u8]) -> Option<Header> {
        let mut bits = 0_u128;
        for digit in payload.get(..SHORT_HEADER_BYTES)? {
            let six = DIGITS.iter().position(|known| known == digit)?;
            bits = bits << 6 | u128::try_from(six).ok()?;
        }
        let micros = u64::try_from(bits & ((1 << 51) - 1)).ok()?;
        Some(Header {
            stream: u32::try_from(bits >> 75).ok()?,
            seq: u32::try_from(bits >> 51 & u128::from(SEQ_SHORT_MAX)).ok()?,
            sent_ns: micros * 1000,
        })
    }
}

/// Messages of a stream with short heads.
const SEQ_SHORT_MAX: u32 = (1 << 24) - 1;
/// The digits of a short head.
const DIGITS: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";

/// The golden ratio in 64 bits, as SplitMix64 uses it.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Checks messages byte by byte.
///
/// All receivers with the same format get the same bytes of a message. So a verified message is
/// kept, and later copies are only compared with it.
pub(crate) struct Verifier {
    size: usize,
    protocol: Protocol,
    /// Indexed by format and a hash of stream and number. A collision costs a second verification.
    recent: Vec<Option<Rc<Verified>>>,
    expected: String,
}

/// A verified message of the server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Verified {
    /// The heads of its payloads, in order; at least one.
    pub(crate) headers: Vec<Header>,
    /// Offset in the topic after this message; 0 without a topic.
    pub(crate) last_offset: u64,
    message: Vec<u8>,
}

impl Verifier {
    /// A verifier for payloads of `size` bytes.
    pub(crate) fn new(size: usize) -> Verifier {
        Verifier {
            size,
            protocol: Protocol::Weir,
            recent: std::iter::repeat_with(|| None).take(RECENT * Format::COUNT).collect(),
            expected: String::new(),
        }
    }

    /// The same for messages of another server.
    pub(crate) fn speaking(self, protocol: Protocol) -> Verifier {
        Verifier { protocol, ..self }
    }

    /// Verifies a message of that format on a connection that expects `(stream, seq)`; `None` if it
    /// carries no payload. Over TCP, a message is the body of a frame.
    ///
    /// The caller judges the numbers found. Errors: a sentence about what is wrong.
    /// Cost: usually a comparison of the body.
    pub(crate) fn check(
        &mut self,
        form: Format,
        (stream, seq): (u32, u32),
        topic: &str,
        message: &[u8],
    ) -> Result<Option<Rc<Verified>>, String> {
        if let Some(known) = self.known(form, stream, seq)
            && known.message == message
        {
            return Ok(Some(Rc::clone(known)));
        }
        let mut headers = Vec::new();
        let body = match self.protocol {
            Protocol::Weir => forms::body(form, message)?,
            protocol @ (Protocol::Nats | Protocol::Mqtt) => {
                foreign::body(protocol, message)?.into()
            }
        };
        let last_offset = messages_in(&body, |push| {
            headers.push(self.check_message(form, stream, topic, push)?);
            Ok(())
        })?;
        let Some(first) = headers.first() else { return Ok(None) };
        let place = slot(form, stream, first.seq);
        let verified = Rc::new(Verified { headers, last_offset, message: message.to_vec() });
        self.recent[place] = Some(Rc::clone(&verified));
        Ok(Some(verified))
    }

    fn check_message(
        &mut self,
        form: Format,
        stream: u32,
        topic: &str,
        push: &Push<'_>,
    ) -> Result<Header, String> {
        let payload = push.payload.as_bytes();
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
        self.verify(form, header, payload)?;
        Ok(header)
    }

    fn known(&self, form: Format, stream: u32, seq: u32) -> Option<&Rc<Verified>> {
        let known = self.recent[slot(form, stream, seq)].as_ref()?;
        let first = known.headers.first()?;
        (first.stream == stream && first.seq == seq).then_some(known)
    }

    fn verify(&mut self, form: Format, header: Header, payload: &[u8]) -> Result<(), String> {
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
        let known = self.known(form, stream, seq).and_then(|known| known.headers.first());
        if known.is_some_and(|known| known.sent_ns != sent_ns) {
            return Err(format!("stream {stream}, message {seq}: two payloads under one number"));
        }
        Ok(())
    }
}

/// Calls `take` for each message in the body of a frame: none, one or a batch. Returns the last
/// offset.
pub(crate) fn messages_in(
    body: &[u8],
    mut take: impl FnMut(&Push<'_>) -> Result<(), String>,
) -> Result<u64, String> {
    match FromServer::decode(body).map_err(|error| error.to_string())? {
        FromServer::Push(push) => {
            take(&push)?;
            Ok(push.offset)
        }
        FromServer::Batch(batch) => {
            for push in batch.messages() {
                take(&push.map_err(|error| error.to_string())?)?;
            }
            Ok(batch.last_offset)
        }
        FromServer::Pong { .. } | FromServer::Other | FromServer::Unknown => Ok(0),
    }
}

/// Verified messages kept for each format: more than a slow reader can lag behind.
const RECENT: usize = 1024;

fn slot(form: Format, stream: u32, seq: u32) -> usize {
    form.index() * RECENT + (stream.wrapping_mul(31).wrapping_add(seq) as usize) % RECENT
}

#[cfg(test)]
mod tests {
    use weir_wire::hot::{Payload, encode_batch_frames};

    use super::*;

    /// The heads found by a verifier.
    fn heads(verifier: &mut Verifier, stream: u32, seq: u32, body: &[u8]) -> Vec<Header> {
        verifier.check(Format::Stream, (stream, seq), "t", body).unwrap().unwrap().headers.clone()
    }

    fn frame(header: Header, size: usize, topic: &str) -> Vec<u8> {
        let mut text = String::new();
        header.compose(size, &mut text);
        let mut frame = Vec::new();
        let push = Push {
            topic,
            payload: Payload::Text(&text),
            message_id: 1,
            offset: 1,
            ..Push::default()
        };
        push.encode_frame(&mut frame);
        frame
    }

    fn body(header: Header, size: usize, topic: &str) -> Vec<u8> {
        let frame = frame(header, size, topic);
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
    fn a_small_payload_has_a_short_header() {
        let mut text = String::new();
        let rounded = Header { sent_ns: 1_700_000_000_123_456_000, ..HEADER };
        let largest = Header { stream: (1 << 20) - 1, seq: SEQ_SHORT_MAX, ..rounded };
        for (header, found) in [(HEADER, rounded), (rounded, rounded), (largest, largest)] {
            for size in [16, 17, 31] {
                header.compose(size, &mut text);
                assert_eq!(text.len(), size);
                assert_eq!(Header::parse(text.as_bytes()), Some(found));
            }
        }
        assert_eq!(Header::parse(&[b'!'; 16]), None);
        let mut verifier = Verifier::new(16);
        assert_eq!(heads(&mut verifier, 3, 7, &body(HEADER, 16, "t")), [rounded]);
    }

    #[test]
    fn a_genuine_message_passes_and_passes_again() {
        let mut verifier = Verifier::new(64);
        let body = body(HEADER, 64, "t");
        for _ in 0..2 {
            assert_eq!(heads(&mut verifier, 3, 7, &body), [HEADER]);
        }
        assert_eq!(
            heads(&mut verifier, 3, 6, &body),
            [HEADER],
            "out of order is for the caller to judge"
        );
    }

    #[test]
    fn a_batch_is_taken_message_by_message() {
        let headers: Vec<Header> = (7..10).map(|seq| Header { seq, ..HEADER }).collect();
        let singles: Vec<Vec<u8>> = headers.iter().map(|header| frame(*header, 64, "t")).collect();
        let singles: Vec<(u64, &[u8])> =
            (20..).zip(&singles).map(|(offset, frame)| (offset, &frame[..])).collect();
        let mut frames = Vec::new();
        encode_batch_frames("t", &singles, 65_536, &mut frames);
        let (batch, _) = weir_wire::frame::decode(&frames, usize::MAX).unwrap().unwrap();
        let mut verifier = Verifier::new(64);
        for _ in 0..2 {
            let found = verifier.check(Format::Stream, (3, 7), "t", batch).unwrap().unwrap();
            assert_eq!((&found.headers, found.last_offset), (&headers, 22));
        }
        let mut wrong = batch.to_vec();
        let at = wrong.len() - 40;
        wrong[at] ^= 1;
        assert!(verifier.check(Format::Stream, (3, 7), "t", &wrong).is_err());
    }

    #[test]
    fn a_wrong_byte_anywhere_in_the_payload_is_found() {
        let genuine = body(HEADER, 64, "t");
        let start = genuine.windows(8).position(|part| part == b"00000003").unwrap();
        for at in start..start + 64 {
            for known in [false, true] {
                let mut verifier = Verifier::new(64);
                if known {
                    verifier.check(Format::Stream, (3, 7), "t", &genuine).unwrap();
                }
                let mut wrong = genuine.clone();
                wrong[at] ^= 1;
                assert!(verifier.check(Format::Stream, (3, 7), "t", &wrong).is_err(), "byte {at}");
            }
        }
    }

    #[test]
    fn another_topic_stream_or_size_is_found() {
        let mut verifier = Verifier::new(64);
        assert!(verifier.check(Format::Stream, (3, 7), "u", &body(HEADER, 64, "t")).is_err());
        assert!(verifier.check(Format::Stream, (4, 7), "t", &body(HEADER, 64, "t")).is_err());
        assert!(verifier.check(Format::Stream, (3, 7), "t", &body(HEADER, 65, "t")).is_err());
        assert!(verifier.check(Format::Stream, (3, 7), "t", &body(HEADER, 64, "t")).is_ok());
        let later = Header { sent_ns: HEADER.sent_ns + 1, ..HEADER };
        assert!(
            verifier.check(Format::Stream, (3, 7), "t", &body(later, 64, "t")).is_err(),
            "one number, two messages"
        );
    }
}
