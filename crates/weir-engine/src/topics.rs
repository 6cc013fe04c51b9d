//! The members of each topic on one shard. Topic and connection each know their place in the
//! other's list.

use crate::chunks::Chunks;
use crate::id::{ConnId, Priority, TopicId};
use crate::memory::{Footprint, rounded};
use crate::slot::Slot;
use crate::time::{TICK, Tick};

/// A connection's membership in a topic, kept in its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Membership {
    pub(crate) topic: TopicId,
    /// The place of the connection in the topic's vector.
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

    /// The bytes that the memberships occupy outside the entry.
    pub(crate) fn occupied(&self) -> usize {
        self.spill.as_ref().map_or(0, |spill| {
            rounded(size_of::<Vec<Membership>>())
                + rounded(spill.capacity() * size_of::<Membership>())
        })
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
///
/// Shape: 8 bytes: the connection's slot and whether it is still there (23 bits), the index of the
/// membership in the connection's entry (13), and the second in which it joined (28).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member(u64);

const SLOT_BITS: u32 = 23;
const INDEX_BITS: u32 = 13;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
/// Eight years after the start of the shard. What joins later counts as of then.
const JOINED_MAX: u64 = (1 << (u64::BITS - SLOT_BITS - INDEX_BITS)) - 1;
/// The slot of a member that has left.
const LEFT: u64 = (1 << SLOT_BITS) - 1;
const _: () = assert!((ConnId::SLOTS_MAX as u64) < LEFT);
const _: () = assert!(size_of::<Member>() == 8);

impl Member {
    fn new(slot: Slot, index: u32, now: Tick) -> Member {
        debug_assert!(index < 1 << INDEX_BITS, "a connection is in 4,096 topics at most");
        let joined = (u64::from(now.0) / TICKS_A_SECOND).min(JOINED_MAX);
        let place = u64::from(slot.index()) | u64::from(index) << SLOT_BITS;
        Member(place | joined << (SLOT_BITS + INDEX_BITS))
    }

    /// The slot, unless the member has left.
    pub(crate) fn present(self) -> Option<Slot> {
        let slot = self.0 & LEFT;
        (slot != LEFT).then(|| Slot::at(slot as u32))
    }

    fn index(self) -> u32 {
        (self.0 >> SLOT_BITS & INDEX_MASK) as u32
    }

    fn set_index(&mut self, index: u32) {
        self.0 = self.0 & !(INDEX_MASK << SLOT_BITS) | u64::from(index) << SLOT_BITS;
    }

    fn set_left(&mut self) {
        self.0 |= LEFT;
    }

    /// When it joined, to a second.
    pub(crate) fn joined(self) -> Tick {
        let seconds = self.0 >> (SLOT_BITS + INDEX_BITS);
        Tick(u32::try_from(seconds * TICKS_A_SECOND).unwrap_or(u32::MAX))
    }
}

const TICKS_A_SECOND: u64 = 10;
const _: () = assert!(TICK.as_millis() * TICKS_A_SECOND as u128 == 1000);

/// The members of one topic with one priority.
#[derive(Debug, Default)]
struct Topic {
    members: Vec<Member>,
    /// Fan-outs that walk the vector. While there are any, nothing in it moves.
    walkers: u32,
    tombstones: u32,
}

/// The members of the topics of one shard, indexed by `TopicId` and by the priority of the connections.
///
/// Shape: 8 bytes a membership here, 8 in the connection's entry, and 32 for each topic and
/// priority that has had members.
/// Cost: join and leave are O(1). During a walk a member that leaves becomes a tombstone; the end
/// of the last walk removes all tombstones in one pass.
#[derive(Debug)]
pub(crate) struct Topics {
    /// Few connections have a priority other than normal. Their tables have chunks only where those
    /// are.
    by_priority: [Chunks<Topic, TOPIC_CHUNK>; Priority::COUNT],
    memberships: usize,
    /// Topics with at least one vector that is not empty.
    with_members: usize,
    /// Bytes of all vectors.
    vector_bytes: usize,
}

/// Topics a chunk: 4 KiB.
const TOPIC_CHUNK: usize = 128;

/// How topics reach the entries of connections.
pub(crate) trait Members {
    fn memberships(&mut self, slot: Slot) -> &mut Memberships;

    /// The priority never changes while the connection is in a topic.
    fn priority(&self, slot: Slot) -> Priority;
}

impl Topics {
    pub(crate) const fn new() -> Self {
        let by_priority = [Chunks::new(), Chunks::new(), Chunks::new()];
        Self { by_priority, memberships: 0, with_members: 0, vector_bytes: 0 }
    }

    /// The memberships, and the bytes of the topics' tables and vectors.
    pub(crate) fn footprint(&self) -> Footprint {
        let tables = self.by_priority.iter().map(Chunks::occupied).sum::<usize>();
        Footprint::new(self.memberships, tables + self.vector_bytes)
    }

    pub(crate) fn memberships(&self) -> usize {
        self.memberships
    }

    /// Topics with a list of members.
    pub(crate) fn with_members(&self) -> usize {
        self.with_members
    }

    /// Length of a vector of the topic. A walk over it that begins now ends there.
    pub(crate) fn end(&self, priority: Priority, id: TopicId) -> u32 {
        let topic = self.by_priority[priority.index()].get(id.0);
        topic.map_or(0, |topic| index(topic.members.len()))
    }

    /// The member at `position` of a vector of the topic.
    pub(crate) fn member(&self, priority: Priority, id: TopicId, position: u32) -> Option<Member> {
        let topic = self.by_priority[priority.index()].get(id.0)?;
        topic.members.get(position as usize).copied()
    }

    /// Length of all vectors of the topic together, as if they were one.
    pub(crate) fn end_of_all(&self, id: TopicId) -> u32 {
        Priority::ALL.iter().map(|priority| self.end(*priority, id)).sum()
    }

    /// The member at `position` of all vectors of the topic, as if they were one.
    pub(crate) fn member_of_all(&self, id: TopicId, position: u32) -> Option<Member> {
        let mut position = position;
        for priority in Priority::ALL {
            let end = self.end(priority, id);
            if position < end {
                return self.member(priority, id, position);
            }
            position -= end;
        }
        None
    }

    /// Enters the connection at `slot` into a topic that it is not in.
    pub(crate) fn join(
        &mut self,
        entries: &mut impl Members,
        slot: Slot,
        topic: TopicId,
        now: Tick,
    ) {
        self.with_members += usize::from(!self.is_listed(topic));
        let table = &mut self.by_priority[entries.priority(slot).index()];
        let members = &mut table.get_or_add(topic.0, Topic::default).members;
        let memberships = entries.memberships(slot);
        debug_assert!(memberships.find(topic).is_none(), "joins a topic once");
        let member = Member::new(slot, index(memberships.len()), now);
        memberships.push(Membership { topic, position: index(members.len()) });
        if members.len() == members.capacity() {
            self.vector_bytes -= vector_bytes(members);
            members.reserve(1);
            self.vector_bytes += vector_bytes(members);
        }
        members.push(member);
        self.memberships += 1;
    }

    /// Takes the connection at `slot` out of the topic of its membership `at`.
    pub(crate) fn leave(&mut self, entries: &mut impl Members, slot: Slot, at: usize) -> TopicId {
        let table = &mut self.by_priority[entries.priority(slot).index()];
        let memberships = entries.memberships(slot);
        let left = memberships.swap_remove(at);
        let moved = memberships.iter().nth(at).copied();
        if let Some(moved) = moved {
            table[moved.topic.0].members[moved.position as usize].set_index(index(at));
        }
        let topic = &mut table[left.topic.0];
        if topic.walkers > 0 {
            topic.members[left.position as usize].set_left();
            topic.tombstones += 1;
        } else {
            topic.members.swap_remove(left.position as usize);
            if let Some(moved) = topic.members.get(left.position as usize)
                && let Some(slot) = moved.present()
            {
                entries.memberships(slot).get_mut(moved.index() as usize).position = left.position;
            }
            self.with_members -= usize::from(!self.is_listed(left.topic));
        }
        self.memberships -= 1;
        left.topic
    }

    /// Whether a vector of the topic is not empty.
    fn is_listed(&self, id: TopicId) -> bool {
        let is_listed = |topic: &Topic| !topic.members.is_empty();
        self.by_priority.iter().any(|table| table.get(id.0).is_some_and(is_listed))
    }

    /// Notes that a walk over a vector of the topic begins.
    pub(crate) fn begin_walk(&mut self, priority: Priority, id: TopicId) {
        self.by_priority[priority.index()][id.0].walkers += 1;
    }

    /// Notes that a walk has ended. The last one over a vector removes the tombstones.
    pub(crate) fn end_walk(&mut self, entries: &mut impl Members, priority: Priority, id: TopicId) {
        let topic = &mut self.by_priority[priority.index()][id.0];
        topic.walkers -= 1;
        if topic.walkers > 0 || topic.tombstones == 0 {
            return;
        }
        if topic.tombstones as usize == topic.members.len() {
            self.vector_bytes -= vector_bytes(&topic.members);
            *topic = Topic::default();
            self.with_members -= usize::from(!self.is_listed(id));
            return;
        }
        topic.tombstones = 0;
        let mut position = 0;
        topic.members.retain(|member| {
            let present = member.present();
            if let Some(slot) = present {
                entries.memberships(slot).get_mut(member.index() as usize).position = position;
                position += 1;
            }
            present.is_some()
        });
    }

    /// Frees the memory of a topic without members, or lets the last walk over a vector do so.
    pub(crate) fn retire(&mut self, id: TopicId) {
        for table in &mut self.by_priority {
            let Some(topic) = table.get_mut(id.0) else { continue };
            debug_assert!(
                topic.members.len() == topic.tombstones as usize,
                "a topic without members is retired"
            );
            if topic.walkers == 0 {
                self.vector_bytes -= vector_bytes(&topic.members);
                *topic = Topic::default();
            }
        }
    }
}

#[cfg(any(test, feature = "sim"))]
impl Member {
    /// Whether this is the membership at `index` of the connection at `slot`.
    pub(crate) fn is(self, slot: Slot, index: usize) -> bool {
        self.present() == Some(slot) && self.index() as usize == index
    }
}

#[cfg(any(test, feature = "sim"))]
impl Topics {
    /// Looks for contradictions. `walks` returns the number of running walks over a vector of a
    /// topic.
    pub(crate) fn check(&self, walks: impl Fn(Priority, TopicId) -> usize) -> Result<(), String> {
        let mut memberships = 0;
        let ends = self.by_priority.iter().map(Chunks::len);
        let ids = 0..ends.max().unwrap_or(0);
        let listed = ids.clone().filter(|id| self.is_listed(TopicId(*id))).count();
        if listed != self.with_members {
            return Err(format!("{listed} topics have a list, {} are counted", self.with_members));
        }
        for id in ids {
            for priority in Priority::ALL {
                let Some(topic) = self.by_priority[priority.index()].get(id) else { continue };
                memberships += topic.check(walks(priority, TopicId(id))).map_err(|what| {
                    format!("topic {id}, {}: {what}: {topic:?}", priority.name())
                })?;
            }
        }
        let tables = self.by_priority.iter().flat_map(Chunks::iter);
        let bytes: usize = tables.map(|topic| vector_bytes(&topic.members)).sum();
        if bytes != self.vector_bytes {
            return Err(format!("the vectors have {bytes} bytes, {} counted", self.vector_bytes));
        }
        if memberships != self.memberships {
            return Err(format!("{memberships} members, {} memberships", self.memberships));
        }
        Ok(())
    }
}

#[cfg(any(test, feature = "sim"))]
impl Topic {
    /// Returns the number of members in the vector.
    fn check(&self, walks: usize) -> Result<usize, String> {
        let left = self.members.iter().filter(|member| member.present().is_none()).count();
        if left != self.tombstones as usize || (left > 0 && self.walkers == 0) {
            return Err(format!("{left} tombstones"));
        }
        if self.walkers as usize != walks {
            return Err(format!("{walks} walks run"));
        }
        Ok(self.members.len() - left)
    }
}

fn vector_bytes(members: &Vec<Member>) -> usize {
    rounded(members.capacity() * size_of::<Member>())
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
        fn memberships(&mut self, slot: Slot) -> &mut Memberships {
            &mut self[slot.index() as usize]
        }

        fn priority(&self, slot: Slot) -> Priority {
            priority_of(slot)
        }
    }

    const NOW: Tick = Tick(57);
    const SLOTS: u32 = 12;
    /// Topics lie in two chunks, and one between them is skipped.
    const TOPICS: [TopicId; 5] = [TopicId(0), TopicId(1), TopicId(2), TopicId(300), TopicId(301)];

    fn priority_of(slot: Slot) -> Priority {
        Priority::ALL[slot.index() as usize % Priority::COUNT]
    }

    fn check(topics: &Topics, entries: &[Memberships], model: &BTreeMap<TopicId, BTreeSet<Slot>>) {
        for id in TOPICS {
            let mut present = BTreeSet::new();
            for priority in Priority::ALL {
                let positions = 0..topics.end(priority, id);
                let members = positions.map(|position| topics.member(priority, id, position));
                let slots: Vec<Slot> = members.flatten().filter_map(Member::present).collect();
                assert!(slots.iter().all(|slot| priority_of(*slot) == priority));
                present.extend(slots);
            }
            let all = (0..topics.end_of_all(id)).map(|at| topics.member_of_all(id, at));
            let all: Vec<Slot> = all.flatten().filter_map(Member::present).collect();
            assert!(all.is_sorted_by_key(|slot| priority_of(*slot)));
            assert_eq!(all.into_iter().collect::<BTreeSet<Slot>>(), present);
            assert_eq!(&present, model.get(&id).unwrap_or(&BTreeSet::new()));
            assert!(topics.member_of_all(id, topics.end_of_all(id)).is_none());
        }
        assert_eq!(topics.memberships(), model.values().map(BTreeSet::len).sum::<usize>());
        for (slot, entry) in Slot::all(0..SLOTS).zip(entries) {
            for (at, membership) in entry.iter().enumerate() {
                let member = topics
                    .member(priority_of(slot), membership.topic, membership.position)
                    .expect("position is valid");
                assert!(member.is(slot, at));
            }
        }
    }

    proptest! {
        #[test]
        fn both_sides_agree_with_sets(
            steps in proptest::collection::vec((0..4u8, 0..SLOTS, 0..TOPICS.len()), 1..300),
        ) {
            let mut entries: Vec<Memberships> = (0..SLOTS).map(|_| Memberships::NONE).collect();
            let mut topics = Topics::new();
            let mut model: BTreeMap<TopicId, BTreeSet<Slot>> = BTreeMap::new();
            let mut walks = Vec::new();
            for (kind, slot, at) in steps {
                let slot = Slot::at(slot);
                let (topic, priority) = (TOPICS[at], priority_of(slot));
                match kind {
                    0 | 1 => match entries[slot.index() as usize].find(topic) {
                        None => {
                            topics.join(&mut entries, slot, topic, NOW);
                            model.entry(topic).or_default().insert(slot);
                        }
                        Some(at) => {
                            prop_assert_eq!(topics.leave(&mut entries, slot, at), topic);
                            model.entry(topic).or_default().remove(&slot);
                        }
                    },
                    2 => {
                        if topics.end(priority, topic) > 0 {
                            topics.begin_walk(priority, topic);
                            walks.push((priority, topic));
                        }
                    }
                    _ => {
                        if let Some((priority, topic)) = walks.pop() {
                            topics.end_walk(&mut entries, priority, topic);
                        }
                    }
                }
                check(&topics, &entries, &model);
                let running = |priority, id| walks.iter().filter(|walk| **walk == (priority, id)).count();
                prop_assert_eq!(topics.check(running), Ok(()));
            }
        }
    }

    #[test]
    fn a_topic_retired_under_a_walk_starts_anew_when_the_walk_ends() {
        let mut entries: Vec<Memberships> = (0..6).map(|_| Memberships::NONE).collect();
        let mut topics = Topics::new();
        let (topic, high) = (TopicId(1), Priority::High);
        topics.join(&mut entries, Slot::at(0), topic, NOW);
        topics.begin_walk(high, topic);
        topics.leave(&mut entries, Slot::at(0), 0);
        topics.retire(topic);
        topics.join(&mut entries, Slot::at(3), topic, NOW);
        topics.join(&mut entries, Slot::at(4), topic, NOW);
        topics.end_walk(&mut entries, high, topic);
        assert_eq!(topics.end(high, topic), 1, "the tombstone is swept, the newcomer stays");
        assert_eq!((topics.end_of_all(topic), topics.with_members()), (2, 1));
        topics.leave(&mut entries, Slot::at(3), 0);
        topics.leave(&mut entries, Slot::at(4), 0);
        topics.retire(topic);
        let left = (topics.end_of_all(topic), topics.memberships(), topics.with_members());
        assert_eq!(left, (0, 0, 0));
    }

    #[test]
    fn a_lone_member_of_a_high_topic_id_costs_little() {
        let mut entries: Vec<Memberships> = vec![Memberships::NONE];
        let mut topics = Topics::new();
        topics.join(&mut entries, Slot::at(0), TopicId(1_000_000), NOW);
        let table = &topics.by_priority[Priority::High.index()];
        let chunks = (0..table.len()).step_by(TOPIC_CHUNK);
        assert_eq!(chunks.filter(|at| table.get(*at).is_some()).count(), 1);
    }

    #[test]
    fn a_member_knows_slot_index_and_second() {
        let mut member = Member::new(Slot::at(4_194_303), 4095, Tick(u32::MAX));
        assert!(member.is(Slot::at(4_194_303), 4095));
        assert_eq!(member.joined(), Tick(2_684_354_550), "the last second that it can tell");
        member.set_index(7);
        assert!(member.is(Slot::at(4_194_303), 7));
        member.set_left();
        assert_eq!((member.present(), member.index()), (None, 7));
        assert_eq!(Member::new(Slot::at(0), 0, Tick(129)).joined(), Tick(120));
    }

    #[test]
    fn memberships_take_twenty_four_bytes() {
        assert_eq!(size_of::<Memberships>(), 24);
    }
}
