//! Keyed messages: the newest value of each key on each client, and its age.

use crate::payload::{Header, messages_in};
use crate::stats::Lags;

/// The newest value of each key on every connection of a worker.
pub(super) struct Keys {
    topic: String,
    /// Bytes of a payload.
    size: usize,
    keys: u32,
    /// By connection, then by key.
    held: Vec<Held>,
    expected: String,
}

/// The newest value of one key on one connection.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    /// The value's number plus one; 0: no value yet.
    next_seq: u32,
    sent_ns: u64,
}

/// The values in a frame.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Brought {
    /// Publishing times of the messages that are newer than the held values.
    pub(super) sent_ns: Vec<u64>,
    /// Number of messages that are not newer.
    pub(super) stale: u64,
}

impl Keys {
    /// A table for payloads of `size` bytes and this number of keys.
    pub(super) fn new(topic: String, size: usize, keys: u32) -> Keys {
        Keys { topic, size, keys, held: Vec::new(), expected: String::new() }
    }

    /// Handles the body of a frame that connection `index` received; `None` if it carries no
    /// message.
    ///
    /// Errors: a sentence about what is wrong.
    pub(super) fn take(&mut self, index: usize, body: &[u8]) -> Result<Option<Brought>, String> {
        let mut brought = Brought::default();
        messages_in(body, |push| {
            if push.topic != self.topic {
                return Err(format!("a message of topic {:?}", push.topic));
            }
            let payload = push.payload.as_bytes();
            let header = Header::parse(payload).ok_or("a payload without a header")?;
            header.compose(self.size, &mut self.expected);
            let key = header.stream;
            if payload != self.expected.as_bytes() || key >= self.keys || push.key != name(key) {
                return Err(format!(
                    "key {:?}, message {}: not what was published under it",
                    push.key, header.seq
                ));
            }
            let held = self.held(index, key);
            if header.seq < held.next_seq {
                brought.stale += 1;
            } else {
                *held = Held { next_seq: header.seq + 1, sent_ns: header.sent_ns };
                brought.sent_ns.push(header.sent_ns);
            }
            Ok(())
        })?;
        Ok((brought != Brought::default()).then_some(brought))
    }

    /// Keys whose newest value connection `index` does not hold, given the number of published
    /// messages of each.
    pub(super) fn missing(&self, index: usize, published: &[u32]) -> u64 {
        let from = index * self.keys as usize;
        let held = self.held.get(from..).unwrap_or(&[]);
        let next = held.iter().map(|held| held.next_seq).chain(std::iter::repeat(0));
        published.iter().zip(next).filter(|(published, next)| next < *published).count() as u64
    }

    /// Records the ages of the values that connection `index` holds.
    pub(super) fn ages(&self, index: usize, now_ns: u64, ages: &mut Lags) {
        let from = index * self.keys as usize;
        let held = self.held.iter().skip(from).take(self.keys as usize);
        for held in held.filter(|held| held.next_seq > 0) {
            ages.record(now_ns.saturating_sub(held.sent_ns));
        }
    }

    fn held(&mut self, index: usize, key: u32) -> &mut Held {
        let place = index * self.keys as usize + key as usize;
        if self.held.len() <= place {
            self.held.resize(place + 1, Held::default());
        }
        &mut self.held[place]
    }
}

/// Name of a key.
pub(crate) fn name(key: u32) -> String {
    format!("k{key}")
}

#[cfg(test)]
mod tests {
    use weir_wire::frame;
    use weir_wire::hot::{Payload, Push};

    use super::*;

    fn body(key: u32, seq: u32, called: &str) -> Vec<u8> {
        let mut text = String::new();
        Header { stream: key, seq, sent_ns: 1000 * u64::from(seq) }.compose(40, &mut text);
        let mut out = Vec::new();
        Push {
            topic: "t",
            payload: Payload::Text(&text),
            key: called,
            message_id: 1,
            offset: 1,
            ..Push::default()
        }
        .encode_frame(&mut out);
        frame::decode(&out, usize::MAX).unwrap().unwrap().0.to_vec()
    }

    #[test]
    fn the_newest_value_of_each_key_is_held() {
        let mut keys = Keys::new("t".to_owned(), 40, 2);
        assert_eq!(keys.missing(3, &[0, 0]), 0);
        assert_eq!(keys.missing(3, &[5, 1]), 2);
        for (seq, stale) in [(0, 0), (4, 0), (2, 1), (4, 1)] {
            let brought = keys.take(3, &body(0, seq, "k0")).unwrap().unwrap();
            assert_eq!((brought.stale, brought.sent_ns.len() as u64), (stale, 1 - stale));
        }
        assert_eq!((keys.missing(3, &[5, 1]), keys.missing(2, &[5, 1])), (1, 2));
        keys.take(3, &body(1, 0, "k1")).unwrap();
        assert_eq!((keys.missing(3, &[5, 1]), keys.missing(3, &[6, 1])), (0, 1));
        let mut ages = Lags::new();
        keys.ages(3, 1_004_000, &mut ages);
        keys.ages(2, 1_004_000, &mut ages);
        assert_eq!((ages.count(), ages.max_ms()), (2, Some(1.004)));
    }

    #[test]
    fn another_key_or_byte_is_wrong() {
        let mut keys = Keys::new("t".to_owned(), 40, 2);
        assert!(keys.take(0, &body(0, 0, "k1")).is_err());
        assert!(keys.take(0, &body(2, 0, "k2")).is_err());
        let mut wrong = body(0, 0, "k0");
        let at = wrong.iter().rposition(|byte| (b'a'..=b'p').contains(byte)).unwrap();
        wrong[at - 12] ^= 1;
        assert!(keys.take(0, &wrong).is_err());
    }
}
