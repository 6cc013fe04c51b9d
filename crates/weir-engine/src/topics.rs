//! Who is in which topic, on one shard: dense vectors to walk, positions kept on both sides.

use crate::chunks::Chunks;
use crate::id::TopicId;

/// A connection's membership in a topic, kept in its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Membership {
    pub(crate) topic: TopicId,
    /// Where the connection stands in the topic's vector.
    pub(crate) position: u32,
}

/// The memberships of one connection.
///
/// Shape: 24 bytes; two inline, more in a vector of their own.
/// Invariant: `inline` is filled from the front, and `spill` exists only when it is full.
#[derive(Debug)]
pub(crate) struct Memberships {
    inline: [Membership; INLINE],
    #[expect(
        clippy::box_collection,
        reason = "8 bytes in every entry instead of 24, for the few that need it"
    )]
    spill: Option<Box<Vec<Membership>>>,
}

const INLINE: usize = 2;
const EMPTY: Membership = Membership { topic: TopicId::NONE, position: 0 };

impl Memberships {
    pub(crate) const NONE: Memberships = Memberships { inline: [EMPTY; INLINE], spill: None };

    pub(crate) fn len(&self) -> usize {
        let inline =
            self.inline.iter().take_while(|membership| membership.topic != TopicId::NONE).count();
        inline + self.spill.as_ref().map_or(0, |spill| spill.len())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Membership> {
        let inline = self.inline.iter().take_while(|membership| membership.topic != TopicId::NONE);
        inline.chain(self.spill.iter().flat_map(|spill| spill.iter()))
    }

    pub(crate) fn find(&self, topic: TopicId) -> Option<usize> {
        self.iter().position(|membership| membership.topic == topic)
    }

    fn get_mut(&mut self, index: usize) -> &mut Membership {
        if index < INLINE {
            &mut self.inline[index]
        } else {
            let spill =
                self.spill.as_mut().expect("an index beyond the inline ones is in the spill");
            &mut spill[index - INLINE]
        }
    }

    fn push(&mut self, membership: Membership) {
        let index = self.len();
        if index < INLINE {
            self.inline[index] = membership;
        } else {
            self.spill.get_or_insert_default().push(membership);
        }
    }

    /// Removes the membership at `index`; the last one takes its place.
    fn swap_remove(&mut self, index: usize) -> Membership {
        let last_index = self.len() - 1;
        let last = *self.get_mut(last_index);
        let removed = std::mem::replace(self.get_mut(index), last);
        if last_index < INLINE {
            self.inline[last_index] = EMPTY;
        } else if let Some(spill) = &mut self.spill {
            spill.pop();
            if spill.is_empty() {
                self.spill = None;
            }
        }
        removed
    }
}

/// An element of a topic's vector.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member {
    /// The connection's slot, or `TOMBSTONE`.
    pub(crate) slot: u32,
    /// Index of the membership in the connection's entry.
    index: u32,
}

const TOMBSTONE: u32 = u32::MAX;

impl Member {
    /// The slot, unless the member has left.
    pub(crate) fn present(self) -> Option<u32> {
        (self.slot != TOMBSTONE).then_some(self.slot)
    }
}

/// The members of one topic.
#[derive(Debug, Default)]
struct Topic {
    members: Vec<Member>,
    /// Fan-outs that walk the vector: while there are any, nothing in it moves.
    walkers: u32,
    tombstones: u32,
}

/// The topics of one shard, indexed by `TopicId`.
///
/// Shape: 8 bytes a membership here, 8 in the connection's entry, 32 a topic.
/// Cost: join, leave O(1) (a walk turns leaving into a tombstone, swept in one pass when the last walk ends).
#[derive(Debug)]
pub(crate) struct Topics {
    topics: Chunks<Topic>,
    memberships: usize,
    /// Topics whose vector is not empty.
    with_members: usize,
}

/// Where the topics find the memberships of an entry.
pub(crate) trait Members {
    fn memberships(&mut self, slot: u32) -> &mut Memberships;
}

impl Topics {
    pub(crate) const fn new() -> Self {
        Self { topics: Chunks::new(), memberships: 0, with_members: 0 }
    }

    pub(crate) fn memberships(&self) -> usize {
        self.memberships
    }

    /// Topics with a list of members.
    pub(crate) fn with_members(&self) -> usize {
        self.with_members
    }

    /// Length of the topic's vector: where a walk that begins now ends.
    pub(crate) fn end(&self, topic: TopicId) -> u32 {
        self.topics.get(topic.0).map_or(0, |topic| index(topic.members.len()))
    }

    pub(crate) fn member(&self, topic: TopicId, position: u32) -> Option<Member> {
        self.topics.get(topic.0).and_then(|topic| topic.members.get(position as usize)).copied()
    }

    /// Enters the connection at `slot` into a topic that it is not in.
    pub(crate) fn join(&mut self, entries: &mut impl Members, slot: u32, topic: TopicId) {
        while self.topics.len() <= topic.0 {
            self.topics.grow(Topic::default);
        }
        let memberships = entries.memberships(slot);
        debug_assert!(memberships.find(topic).is_none(), "joins a topic once");
        let members = &mut self.topics[topic.0].members;
        self.with_members += usize::from(members.is_empty());
        let member = Member { slot, index: index(memberships.len()) };
        memberships.push(Membership { topic, position: index(members.len()) });
        members.push(member);
        self.memberships += 1;
    }

    /// Takes the connection at `slot` out of the topic of its membership `at`.
    pub(crate) fn leave(&mut self, entries: &mut impl Members, slot: u32, at: usize) -> TopicId {
        let memberships = entries.memberships(slot);
        let left = memberships.swap_remove(at);
        let moved = memberships.iter().nth(at).copied();
        if let Some(moved) = moved {
            self.topics[moved.topic.0].members[moved.position as usize].index = index(at);
        }
        let topic = &mut self.topics[left.topic.0];
        if topic.walkers > 0 {
            topic.members[left.position as usize].slot = TOMBSTONE;
            topic.tombstones += 1;
        } else {
            topic.members.swap_remove(left.position as usize);
            self.with_members -= usize::from(topic.members.is_empty());
            if let Some(moved) = topic.members.get(left.position as usize) {
                entries.memberships(moved.slot).get_mut(moved.index as usize).position =
                    left.position;
            }
        }
        self.memberships -= 1;
        left.topic
    }

    /// A walk over the topic begins.
    pub(crate) fn begin_walk(&mut self, topic: TopicId) {
        self.topics[topic.0].walkers += 1;
    }

    /// A walk has ended; the last one sweeps the tombstones.
    pub(crate) fn end_walk(&mut self, entries: &mut impl Members, id: TopicId) {
        let topic = &mut self.topics[id.0];
        topic.walkers -= 1;
        if topic.walkers > 0 || topic.tombstones == 0 {
            return;
        }
        if topic.tombstones as usize == topic.members.len() {
            *topic = Topic::default();
            self.with_members -= 1;
            return;
        }
        topic.tombstones = 0;
        let mut position = 0;
        topic.members.retain(|member| {
            let present = member.slot != TOMBSTONE;
            if present {
                entries.memberships(member.slot).get_mut(member.index as usize).position = position;
                position += 1;
            }
            present
        });
    }

    /// Gives back the memory of a topic without members, or lets the last walk over it do so.
    pub(crate) fn retire(&mut self, id: TopicId) {
        if self.topics.get(id.0).is_none() {
            return;
        }
        let topic = &mut self.topics[id.0];
        debug_assert!(
            topic.members.len() == topic.tombstones as usize,
            "a topic is retired when nobody is left in it"
        );
        if topic.walkers == 0 {
            *topic = Topic::default();
        }
    }
}

#[cfg(any(test, feature = "sim"))]
impl Member {
    /// Whether this is the membership at `index` of the connection at `slot`.
    pub(crate) fn is(self, slot: u32, index: usize) -> bool {
        self.slot == slot && self.index as usize == index
    }
}

#[cfg(any(test, feature = "sim"))]
impl Topics {
    /// Looks for contradictions; `walks` says how many walks over a topic run.
    pub(crate) fn check(&self, walks: impl Fn(TopicId) -> usize) -> Result<(), String> {
        let mut memberships = 0;
        for id in 0..self.topics.len() {
            let topic = &self.topics[id];
            if topic.members.is_empty() && topic.walkers == 0 {
                continue;
            }
            let left = topic.members.iter().filter(|member| member.present().is_none()).count();
            if left != topic.tombstones as usize || (left > 0 && topic.walkers == 0) {
                return Err(format!("topic {id}: {left} tombstones: {topic:?}"));
            }
            if topic.walkers as usize != walks(TopicId(id)) {
                return Err(format!("topic {id}: {} walks run", walks(TopicId(id))));
            }
            memberships += topic.members.len() - left;
        }
        if memberships != self.memberships {
            return Err(format!("{memberships} members, {} memberships", self.memberships));
        }
        Ok(())
    }
}

fn index(count: usize) -> u32 {
    u32::try_from(count).expect("members of a topic are bounded by the connections of a shard")
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    impl Members for Vec<Memberships> {
        fn memberships(&mut self, slot: u32) -> &mut Memberships {
            &mut self[slot as usize]
        }
    }

    const SLOTS: u32 = 12;
    const TOPICS: u32 = 5;

    fn check(topics: &Topics, entries: &[Memberships], twin: &BTreeMap<u32, BTreeSet<u32>>) {
        let mut memberships = 0;
        for id in 0..TOPICS {
            let present: BTreeSet<u32> = (0..topics.end(TopicId(id)))
                .filter_map(|position| {
                    topics.member(TopicId(id), position).and_then(Member::present)
                })
                .collect();
            assert_eq!(&present, twin.get(&id).unwrap_or(&BTreeSet::new()));
            memberships += present.len();
        }
        let lists = (0..TOPICS).filter(|id| topics.end(TopicId(*id)) > 0).count();
        assert_eq!(topics.with_members(), lists);
        assert_eq!(topics.memberships(), memberships);
        for (slot, entry) in entries.iter().enumerate() {
            for (at, membership) in entry.iter().enumerate() {
                let member = topics
                    .member(membership.topic, membership.position)
                    .expect("position is valid");
                assert_eq!((member.slot as usize, member.index as usize), (slot, at));
            }
        }
    }

    proptest! {
        #[test]
        fn both_sides_agree_with_sets(
            steps in proptest::collection::vec((0..4u8, 0..SLOTS, 0..TOPICS), 1..300),
        ) {
            let mut entries: Vec<Memberships> = (0..SLOTS).map(|_| Memberships::NONE).collect();
            let mut topics = Topics::new();
            let mut twin: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
            let mut walks = Vec::new();
            for (kind, slot, id) in steps {
                let topic = TopicId(id);
                match kind {
                    0 | 1 => match entries[slot as usize].find(topic) {
                        None => {
                            topics.join(&mut entries, slot, topic);
                            twin.entry(id).or_default().insert(slot);
                        }
                        Some(at) => {
                            prop_assert_eq!(topics.leave(&mut entries, slot, at), topic);
                            twin.entry(id).or_default().remove(&slot);
                        }
                    },
                    2 => {
                        if topics.topics.len() > id {
                            topics.begin_walk(topic);
                            walks.push(topic);
                        }
                    }
                    _ => {
                        if let Some(topic) = walks.pop() {
                            topics.end_walk(&mut entries, topic);
                        }
                    }
                }
                check(&topics, &entries, &twin);
            }
        }
    }

    #[test]
    fn a_topic_retired_under_a_walk_starts_anew_when_the_walk_ends() {
        let mut entries: Vec<Memberships> = (0..3).map(|_| Memberships::NONE).collect();
        let mut topics = Topics::new();
        let topic = TopicId(1);
        topics.join(&mut entries, 0, topic);
        topics.begin_walk(topic);
        topics.leave(&mut entries, 0, 0);
        topics.retire(topic);
        topics.join(&mut entries, 2, topic);
        topics.end_walk(&mut entries, topic);
        assert_eq!(topics.end(topic), 1, "the tombstone is swept, the newcomer stays");
        topics.leave(&mut entries, 2, 0);
        topics.retire(topic);
        assert_eq!((topics.end(topic), topics.memberships()), (0, 0));
    }

    #[test]
    fn memberships_take_twenty_four_bytes() {
        assert_eq!(size_of::<Memberships>(), 24);
    }
}
