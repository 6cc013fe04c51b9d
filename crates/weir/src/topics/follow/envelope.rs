//! What nodes write into the payload of a message: the frame of its `Push`, and times.

use std::time::Duration;

use weir_wire::{frame, hot};

/// A message as it travels between nodes.
///
/// Shape: version (1 byte), wall-clock time of acceptance in milliseconds since 1970 (8 bytes,
/// little endian), time to live in milliseconds (8 bytes; 0: no end), and the frame of a `Push` with
/// offset 0. So a node of a later version can tell what it does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Envelope<'a> {
    pub(crate) accepted_ms: u64,
    pub(crate) ttl: Option<Duration>,
    pub(crate) push: hot::Push<'a>,
}

impl<'a> Envelope<'a> {
    /// The bytes of the envelope.
    ///
    /// Cost: one allocation.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let push = hot::Push { offset: 0, ..self.push };
        let mut out = Vec::with_capacity(HEAD_BYTES + push.frame_bytes());
        out.push(VERSION);
        out.extend(self.accepted_ms.to_le_bytes());
        let millis = self.ttl.map_or(0, |ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        // A time to live that is shorter than a millisecond must not become one without an end.
        let millis = if self.ttl.is_some() { millis.max(1) } else { 0 };
        out.extend(millis.to_le_bytes());
        push.encode_frame(&mut out);
        out
    }

    /// Reads an envelope; `None`: another version has written it, or it is damaged.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Envelope<'a>> {
        let (version, rest) = bytes.split_first()?;
        if *version != VERSION {
            return None;
        }
        let (accepted_ms, rest) = rest.split_first_chunk()?;
        let (ttl_ms, rest) = rest.split_first_chunk()?;
        let (body, used) = frame::decode(rest, usize::MAX).ok()??;
        if used != rest.len() {
            return None;
        }
        let hot::FromServer::Push(push) = hot::FromServer::decode(body).ok()? else { return None };
        let ttl = match u64::from_le_bytes(*ttl_ms) {
            0 => None,
            millis => Some(Duration::from_millis(millis)),
        };
        Some(Envelope { accepted_ms: u64::from_le_bytes(*accepted_ms), ttl, push })
    }

    /// What is left of the time to live, by the clock of this machine; `None`: it is over.
    pub(crate) fn rest(&self, now_ms: u64) -> Option<Option<Duration>> {
        let Some(ttl) = self.ttl else { return Some(None) };
        let age = Duration::from_millis(now_ms.saturating_sub(self.accepted_ms));
        ttl.checked_sub(age).filter(|rest| !rest.is_zero()).map(Some)
    }
}

const VERSION: u8 = 1;
const HEAD_BYTES: usize = 17;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_and_refuses_what_it_does_not_know() {
        let push = hot::Push {
            topic: "a",
            payload: hot::Payload::Data(b"12"),
            content_type: "text/plain",
            key: "k",
            message_id: 7,
            offset: 0,
            sender: 3,
        };
        for ttl in [None, Some(Duration::from_millis(5))] {
            let envelope = Envelope { accepted_ms: 1000, ttl, push };
            let bytes = envelope.encode();
            assert_eq!(Envelope::decode(&bytes), Some(envelope));
            for cut in 0..bytes.len() {
                assert_eq!(Envelope::decode(&bytes[..cut]), None, "{cut}");
            }
            let mut newer = bytes;
            newer[0] += 1;
            assert_eq!(Envelope::decode(&newer), None);
        }
    }

    #[test]
    fn expires_by_the_wall_clock() {
        let push = hot::Push {
            topic: "a",
            payload: hot::Payload::Text("x"),
            content_type: "",
            key: "",
            message_id: 7,
            offset: 0,
            sender: 0,
        };
        let ttl = Some(Duration::from_millis(5));
        let envelope = Envelope { accepted_ms: 1000, ttl, push };
        let rests = [990, 1000, 1004, 1005].map(|now| envelope.rest(now));
        let millis = |millis| Some(Some(Duration::from_millis(millis)));
        assert_eq!(rests, [millis(5), millis(5), millis(1), None]);
        assert_eq!(Envelope { ttl: None, ..envelope }.rest(u64::MAX), Some(None));
    }
}
