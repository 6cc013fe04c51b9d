//! The members of each topic on one shard. Topic and connection each know their place in the
//! other's list.

use crate::chunks::Chunks;
use crate::id::{Priority, TopicId};
use crate::slot::Slot;

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
    /// The connection's slot; none once it has left.
    pub(crate) slot: Slot,
    /// Index of the membership in the connection's entry.
    index: u32,
}

impl Member {
    /// The slot, unless the member has left.
    pub(crate) fn present(self) -> Option<Slot> {
        self.slot.some()
    }
}

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
        Self { by_priority, memberships: 0, with_members: 0 }
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
    pub(crate) fn join(&mut self, entries: &mut impl Members, slot: Slot, topic: TopicId) {
        self.with_members += usize::from(!self.is_listed(topic));
        let table = &mut self.by_priority[entries.priority(slot).index()];
        let members = &mut table.get_or_add(topic.0, Topic::default).members;
        let memberships = entries.memberships(slot);
        debug_assert!(memberships.find(topic).is_none(), "joins a topic once");
        let member = Member { slot, index: index(memberships.len()) };
        memberships.push(Membership { topic, position: index(members.len()) });
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
            table[moved.topic.0].members[moved.position as usize].index = index(at);
        }
        let topic = &mut table[left.topic.0];
        if topic.walkers > 0 {
            topic.members[left.position as usize].slot = Slot::NONE;
            topic.tombstones += 1;
        } else {
            topic.members.swap_remove(left.position as usize);
            if let Some(moved) = topic.members.get(left.position as usize) {
                entries.memberships(moved.slot).get_mut(moved.index as usize).position =
                    left.position;
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
            *topic = Topic::default();
            self.with_members -= usize::from(!self.is_listed(id));
            return;
        }
        topic.tombstones = 0;
        let mut position = 0;
        topic.members.retain(|member| {
            let present = member.slot != Slot::NONE;
            if present {
                entries.memberships(member.slot).get_mut(member.index as usize).position = position;
                position += 1;
            }
            present
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
                *topic = Topic::default();
            }
        }
    }
}

#[cfg(any(test, feature = "sim"))]
impl Member {
    /// Whether this is the membership at `index` of the connection at `slot`.
    pub(crate) fn is(self, slot: Slot, index: usize) -> bool {
        self.slot == slot && self.index as usize == index
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
                            topics.join(&mut entries, slot, topic);
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
        topics.join(&mut entries, Slot::at(0), topic);
        topics.begin_walk(high, topic);
        topics.leave(&mut entries, Slot::at(0), 0);
        topics.retire(topic);
        topics.join(&mut entries, Slot::at(3), topic);
        topics.join(&mut entries, Slot::at(4), topic);
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
        topics.join(&mut entries, Slot::at(0), TopicId(1_000_000));
        let table = &topics.by_priority[Priority::High.index()];
        let chunks = (0..table.len()).step_by(TOPIC_CHUNK);
        assert_eq!(chunks.filter(|at| table.get(*at).is_some()).count(), 1);
    }

    #[test]
    fn memberships_take_twenty_four_bytes() {
        assert_eq!(size_of::<Memberships>(), 24);
    }
}
