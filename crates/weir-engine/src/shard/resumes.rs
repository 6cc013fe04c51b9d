//! The resumes of a shard: the progress of each, and the next chunk to ask for.
//!
//! ```text
//! ──first chunk──► running ──chunk──► running ──last chunk──► over
//!                    │ the next chunk is asked for once, of one topic of a connection at a time
//!                    └──unsubscribe, end of the connection, topic retired──► over
//! ```
//!
//! The caller charges [`RESUME_BYTES`] for each resume, from its first chunk to its end.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::handover::ResumeExport;
use crate::id::TopicId;
use crate::memory::Footprint;
use crate::slot::Slot;

/// The running resumes, by connection and topic.
///
/// Shape: a tree node for each. A connection's entry has no field for them.
/// Limits: `topics_per_connection_max` counts them together with the memberships.
/// Cost: while no connection resumes, one look at an empty tree for each flush.
#[derive(Debug, Default)]
pub(super) struct Resumes {
    running: BTreeMap<(Slot, TopicId), Running>,
}

/// The chunk that a connection needs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) topic: TopicId,
    /// Number of the resume, from the front.
    pub(super) resume: u32,
    /// Offset up to which its chunks have come.
    pub(super) after: u64,
}

/// One resume.
#[derive(Debug, Clone, Copy)]
struct Running {
    /// Number of the resume, from the front.
    number: u32,
    /// Offset up to which its chunks have come.
    after: u64,
    /// Number of chunks that have come.
    parts: u32,
    /// Whether the next chunk has been asked for.
    is_asked: bool,
}

/// The bytes of a running resume, with the room that a tree node leaves free.
pub(super) const RESUME_BYTES: usize = 64;

impl Resumes {
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// The running resumes.
    pub(super) fn footprint(&self) -> Footprint {
        Footprint::new(self.running.len(), self.running.len() * RESUME_BYTES)
    }

    /// Whether the connection at `slot` resumes `topic`.
    pub(super) fn is_running(&self, slot: Slot, topic: TopicId) -> bool {
        self.running.contains_key(&(slot, topic))
    }

    /// Whether the running resume has this number.
    pub(super) fn is_current(&self, slot: Slot, topic: TopicId, number: u32) -> bool {
        self.running.get(&(slot, topic)).is_some_and(|running| running.number == number)
    }

    /// The number of topics that the connection at `slot` resumes.
    pub(super) fn count(&self, slot: Slot) -> usize {
        if self.is_empty() { 0 } else { self.of(slot).count() }
    }

    /// Notes a chunk that reaches to the offset `after` and is not the last. The first one begins
    /// the resume.
    pub(super) fn handle_part(&mut self, slot: Slot, topic: TopicId, number: u32, after: u64) {
        let first = Running { number, after, parts: 0, is_asked: false };
        let running = self.running.entry((slot, topic)).or_insert(first);
        *running = Running { parts: running.parts.saturating_add(1), ..first };
    }

    /// The chunk to ask for when a connection has room: of the topic of which the fewest chunks
    /// have come. `None` while one has been asked for.
    pub(super) fn poll_ask(&mut self, slot: Slot) -> Option<Ask> {
        if self.is_empty() || self.of(slot).any(|(_, running)| running.is_asked) {
            return None;
        }
        let all = self.running.range_mut(range_of(slot));
        let ((_, topic), running) = all.min_by_key(|(_, running)| running.parts)?;
        running.is_asked = true;
        Some(Ask { topic: *topic, resume: running.number, after: running.after })
    }

    /// All resumes, for another process.
    pub(super) fn export(&self) -> Vec<ResumeExport> {
        let all = self.running.iter().map(|((slot, topic), running)| {
            let Running { number, after, parts, is_asked } = *running;
            ResumeExport { slot: slot.index(), topic: *topic, number, after, parts, is_asked }
        });
        all.collect()
    }

    /// Continues a resume of another process.
    pub(super) fn import(&mut self, export: ResumeExport) {
        let ResumeExport { slot, topic, number, after, parts, is_asked } = export;
        let running = Running { number, after, parts, is_asked };
        self.running.insert((Slot::at(slot), topic), running);
    }

    /// Ends a resume. Returns the bytes that it occupied.
    pub(super) fn end(&mut self, slot: Slot, topic: TopicId) -> usize {
        let ended = self.running.remove(&(slot, topic));
        ended.map_or(0, |_| RESUME_BYTES)
    }

    /// Ends all resumes of a connection. Returns the bytes that they occupied.
    pub(super) fn end_connection(&mut self, slot: Slot) -> usize {
        if self.is_empty() {
            return 0;
        }
        let topics: Vec<TopicId> = self.of(slot).map(|((_, topic), _)| *topic).collect();
        topics.into_iter().map(|topic| self.end(slot, topic)).sum()
    }

    /// Ends the resumes of a retired topic. Returns their connections.
    pub(super) fn end_topic(&mut self, topic: TopicId) -> Vec<Slot> {
        let mut slots = Vec::new();
        self.running.retain(|(slot, other), _| {
            if *other == topic {
                slots.push(*slot);
            }
            *other != topic
        });
        slots
    }

    fn of(&self, slot: Slot) -> impl Iterator<Item = (&(Slot, TopicId), &Running)> {
        self.running.range(range_of(slot))
    }
}

fn range_of(slot: Slot) -> RangeInclusive<(Slot, TopicId)> {
    (slot, TopicId(0))..=(slot, TopicId(u32::MAX))
}

#[cfg(any(test, feature = "sim"))]
impl Resumes {
    /// The bytes that the running resumes have taken from the lease.
    pub(super) fn charged(&self) -> usize {
        self.running.len() * RESUME_BYTES
    }

    /// Slots and topics of the running resumes, and whether their next chunk has been asked for.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Slot, TopicId, bool)> {
        self.running.iter().map(|((slot, topic), running)| (*slot, *topic, running.is_asked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: Slot = Slot::at(7);
    const OTHER: Slot = Slot::at(8);

    fn ask(topic: u32, resume: u32, after: u64) -> Option<Ask> {
        Some(Ask { topic: TopicId(topic), resume, after })
    }

    #[test]
    fn one_topic_at_a_time_and_the_one_that_has_had_least() {
        let mut resumes = Resumes::default();
        for (topic, number) in [(1, 10), (2, 20)] {
            resumes.handle_part(SLOT, TopicId(topic), number, 5);
        }
        resumes.handle_part(OTHER, TopicId(1), 30, 6);
        assert_eq!(resumes.poll_ask(SLOT), ask(1, 10, 5));
        assert_eq!(resumes.poll_ask(SLOT), None, "one is asked for");
        assert_eq!(resumes.poll_ask(OTHER), ask(1, 30, 6));
        resumes.handle_part(SLOT, TopicId(1), 10, 9);
        assert_eq!(resumes.poll_ask(SLOT), ask(2, 20, 5));
        assert_eq!(resumes.end(SLOT, TopicId(2)), RESUME_BYTES);
        assert_eq!(resumes.end(SLOT, TopicId(2)), 0);
        assert_eq!(resumes.poll_ask(SLOT), ask(1, 10, 9));
    }

    #[test]
    fn what_ends_is_given_back_and_no_more() {
        let mut resumes = Resumes::default();
        for (slot, topic) in [(SLOT, 1), (SLOT, 2), (OTHER, 1), (OTHER, 2)] {
            resumes.handle_part(slot, TopicId(topic), 1, 1);
        }
        assert!(
            resumes.is_current(SLOT, TopicId(1), 1) && !resumes.is_current(SLOT, TopicId(1), 2)
        );
        assert_eq!(resumes.end_topic(TopicId(2)), [SLOT, OTHER]);
        assert_eq!((resumes.count(SLOT), resumes.count(OTHER)), (1, 1));
        assert_eq!(resumes.end_connection(SLOT), RESUME_BYTES);
        assert_eq!((resumes.count(SLOT), resumes.charged()), (0, RESUME_BYTES));
    }
}
