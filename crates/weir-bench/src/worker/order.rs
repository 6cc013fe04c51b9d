//! The order of each topic's messages, which must be the same for all its readers.
//!
//! Offsets count the messages of a topic without a gap. So each connection knows the offset that must
//! come next. The first reader of an offset verifies the message and enters it into the topic's log.
//! The others compare their bytes with the log. At the end, sums over the logs show whether readers at
//! other nodes saw the same messages at the same offsets.

use std::collections::VecDeque;

use crate::payload::{Header, messages_in};
use crate::protocol::Seen;

/// The logs of all topics.
pub(super) struct Order {
    /// Bytes of a payload.
    size: usize,
    topics: Vec<Log>,
    expected: String,
}

/// The messages of a topic, in order.
#[derive(Default)]
struct Log {
    /// The latest entries, `bytes` in all; the first is that of offset `forgotten` + 1.
    entries: VecDeque<Entry>,
    bytes: usize,
    forgotten: u64,
    seen: Seen,
    /// Number that the next message of each publisher must at least carry.
    next_seqs: Vec<u32>,
}

struct Entry {
    header: Header,
    /// The frame that carried it, if it carried nothing else.
    body: Vec<u8>,
}

/// What a frame brought to a connection.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Brought {
    /// Publishing times of its messages.
    pub(super) sent_ns: Vec<u64>,
    /// Offset of the last message.
    pub(super) offset: u64,
    /// Offsets that were skipped before.
    pub(super) skipped: u64,
    /// Messages that came again, or too late.
    pub(super) repeated: u64,
    /// What is wrong with the order, in words.
    pub(super) fault: Option<String>,
}

/// Bytes of kept frames, all topics together: some seconds of any load that a worker can receive.
const KEPT_BYTES_MAX: usize = 64 << 20;

impl Order {
    /// Logs of this number of topics, for payloads of `size` bytes.
    pub(super) fn new(topics: usize, size: usize) -> Order {
        let topics = std::iter::repeat_with(Log::default).take(topics).collect();
        Order { size, topics, expected: String::new() }
    }

    /// Handles the body of a frame on a connection that has received the topic's messages up to
    /// `offset`; `None`: the frame carries no message.
    ///
    /// Errors: a sentence about what is wrong. Cost: a comparison of the body, as a rule.
    pub(super) fn take(
        &mut self,
        (stream, topic): (u32, &str),
        offset: Option<u64>,
        body: &[u8],
    ) -> Result<Option<Brought>, String> {
        let Order { size, topics, expected } = self;
        let kept_max = KEPT_BYTES_MAX / topics.len().max(1);
        let log = topics.get_mut(stream as usize).ok_or("a topic that nobody asked for")?;
        if let Some(offset) = offset
            && let Some(entry) = log.entry(offset + 1)
            && entry.body == body
        {
            let sent_ns = vec![entry.header.sent_ns];
            return Ok(Some(Brought { sent_ns, offset: offset + 1, ..Brought::default() }));
        }
        let mut brought = Brought { offset: offset.unwrap_or(0), ..Brought::default() };
        let mut last = None;
        messages_in(body, |push| {
            if push.topic != topic {
                return Err(format!("a message of topic {:?} instead of {topic:?}", push.topic));
            }
            let header = verified(push.payload.as_bytes(), *size, expected)
                .map_err(|error| format!("topic {topic}, offset {}: {error}", push.offset))?;
            log.note((topic, push.offset), header)?;
            last = Some((push.offset, header));
            brought.note(topic, push.offset, header.sent_ns);
            Ok(())
        })?;
        let Some((offset, header)) = last else { return Ok(None) };
        if brought.sent_ns.len() == 1 {
            log.keep(offset, Entry { header, body: body.to_vec() }, kept_max);
        }
        Ok(Some(brought))
    }

    /// What was seen of each stream's topic.
    pub(super) fn seen(&self) -> Vec<(u32, Seen)> {
        let seen = (0..).zip(self.topics.iter().map(|log| log.seen));
        seen.filter(|(_, seen)| seen.count > 0).collect()
    }
}

impl Log {
    fn entry(&self, offset: u64) -> Option<&Entry> {
        let at = offset.checked_sub(self.forgotten + 1)?;
        self.entries.get(usize::try_from(at).ok()?)
    }

    /// Compares a verified message with the log, or counts it as the next one.
    fn note(&mut self, (topic, offset): (&str, u64), header: Header) -> Result<(), String> {
        if offset <= self.seen.last {
            return match self.entry(offset) {
                Some(entry) if entry.header != header => Err(format!(
                    "topic {topic}, offset {offset}: message {} of publisher {}, but another client got \
                     message {} of publisher {}",
                    header.seq, header.stream, entry.header.seq, entry.header.stream
                )),
                // What is forgotten was the same for others a long time ago, or the sums differ.
                _ => Ok(()),
            };
        }
        let publisher = header.stream as usize;
        if publisher >= PUBLISHERS_MAX {
            return Err(format!("topic {topic}, offset {offset}: no such publisher"));
        }
        if self.next_seqs.len() <= publisher {
            self.next_seqs.resize(publisher + 1, 0);
        }
        let next = &mut self.next_seqs[publisher];
        if header.seq < *next {
            return Err(format!(
                "topic {topic}, offset {offset}: message {} of publisher {publisher}, where {next} or \
                 later was to come",
                header.seq
            ));
        }
        *next = header.seq + 1;
        self.seen.add(offset, header.stream, header.seq);
        Ok(())
    }

    /// Keeps a message that comes next, and lets the oldest go.
    fn keep(&mut self, offset: u64, entry: Entry, bytes_max: usize) {
        let next = self.forgotten + self.entries.len() as u64 + 1;
        if offset < next {
            return;
        }
        if offset > next {
            // Some came in a frame with others: they are not compared by bytes.
            self.entries.clear();
            self.bytes = 0;
            self.forgotten = offset - 1;
        }
        self.bytes += entry.body.len();
        self.entries.push_back(entry);
        while self.bytes > bytes_max
            && let Some(oldest) = self.entries.pop_front()
        {
            self.bytes -= oldest.body.len();
            self.forgotten += 1;
        }
    }
}

impl Brought {
    fn note(&mut self, topic: &str, offset: u64, sent_ns: u64) {
        let next = self.offset + 1;
        if offset < next {
            self.repeated += 1;
        } else {
            self.skipped += offset - next;
            self.offset = offset;
            self.sent_ns.push(sent_ns);
        }
        if offset != next && self.fault.is_none() {
            self.fault = Some(format!("topic {topic}: offset {offset} follows {}", next - 1));
        }
    }
}

/// The head of a genuine payload.
fn verified(payload: &[u8], size: usize, expected: &mut String) -> Result<Header, String> {
    let header = Header::parse(payload).ok_or("a payload without a header")?;
    header.compose(size, expected);
    if payload != expected.as_bytes() {
        return Err(format!(
            "publisher {}, message {}: a payload that was not published",
            header.stream, header.seq
        ));
    }
    Ok(header)
}

/// Publishers of a run. A damaged number must not make a long list.
const PUBLISHERS_MAX: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use weir_wire::frame;
    use weir_wire::hot::{Payload, Push, encode_batch_frames};

    use super::*;

    /// A frame of topic `t` with the message of publisher 0 whose number is one below the offset.
    fn whole(offset: u64, seq: u32) -> Vec<u8> {
        let mut text = String::new();
        Header { stream: 0, seq, sent_ns: 77 }.compose(32, &mut text);
        let payload = Payload::Text(&text);
        let mut out = Vec::new();
        Push { topic: "t", payload, message_id: 1, offset, ..Push::default() }
            .encode_frame(&mut out);
        out
    }

    fn body(offset: u64, seq: u32) -> Vec<u8> {
        let frame = whole(offset, seq);
        frame::decode(&frame, usize::MAX).unwrap().unwrap().0.to_vec()
    }

    fn take(order: &mut Order, at: &mut Option<u64>, body: &[u8]) -> Result<Brought, String> {
        let brought = order.take((0, "t"), *at, body)?.expect("messages");
        *at = Some(brought.offset);
        Ok(brought)
    }

    #[test]
    fn all_readers_get_the_same_messages_one_by_one() {
        let (mut order, mut places) = (Order::new(1, 32), [Some(0); 2]);
        for place in &mut places {
            for (offset, seq) in (1..=3).zip(6..) {
                let brought = take(&mut order, place, &body(offset, seq)).unwrap();
                let expected = Brought { sent_ns: vec![77], offset, ..Brought::default() };
                assert_eq!(brought, expected);
            }
        }
        let mut expected = Seen::default();
        (1..=3).zip(6..).for_each(|(offset, seq)| expected.add(offset, 0, seq));
        assert_eq!(order.seen(), [(0, expected)]);
    }

    #[test]
    fn a_gap_and_a_repeated_message_are_named() {
        let (mut order, mut place) = (Order::new(1, 32), Some(0));
        take(&mut order, &mut place, &body(1, 0)).unwrap();
        let gap = take(&mut order, &mut place, &body(4, 3)).unwrap();
        assert_eq!((gap.skipped, gap.repeated, gap.sent_ns.len()), (2, 0, 1));
        assert_eq!(gap.fault.as_deref(), Some("topic t: offset 4 follows 1"));
        let again = take(&mut order, &mut place, &body(4, 3)).unwrap();
        assert_eq!((again.skipped, again.repeated, again.sent_ns.len()), (0, 1, 0));
        assert_eq!(again.fault.as_deref(), Some("topic t: offset 4 follows 4"));
    }

    #[test]
    fn one_offset_has_one_message() {
        let (mut order, mut one, mut other) = (Order::new(1, 32), Some(0), Some(0));
        take(&mut order, &mut one, &body(1, 0)).unwrap();
        let error = take(&mut order, &mut other, &body(1, 1)).unwrap_err();
        assert!(error.contains("topic t, offset 1: message 1 of publisher 0"), "{error}");
        let error = take(&mut order, &mut one, &body(2, 0)).unwrap_err();
        assert!(error.contains("where 1 or later was to come"), "{error}");
        let mut wrong = body(2, 1);
        let at = wrong.windows(8).position(|part| part == b"00000001").unwrap() + 9;
        wrong[at] = b'g';
        assert!(take(&mut order, &mut one, &wrong).is_err());
    }

    #[test]
    fn what_comes_together_counts_one_by_one() {
        let (mut order, mut one, mut other) = (Order::new(1, 32), Some(0), Some(0));
        let frames: Vec<Vec<u8>> =
            (1..=3).zip(1..).map(|(offset, seq)| whole(offset, seq)).collect();
        take(&mut order, &mut one, &body(1, 1)).unwrap();
        let parts: Vec<(u64, &[u8])> = (1..).zip(&frames).map(|(at, f)| (at, &f[..])).collect();
        let mut batch = Vec::new();
        encode_batch_frames("t", &parts, 65_536, &mut batch);
        let batch = frame::decode(&batch, usize::MAX).unwrap().unwrap().0.to_vec();
        let brought = take(&mut order, &mut other, &batch).unwrap();
        assert_eq!((brought.sent_ns.len(), brought.offset, brought.fault), (3, 3, None));
        for (offset, seq) in (2..=4).zip(2..) {
            let brought = take(&mut order, &mut one, &body(offset, seq)).unwrap();
            assert_eq!((brought.offset, brought.fault), (offset, None));
        }
        assert_eq!(order.seen()[0].1.last, 4);
    }
}
