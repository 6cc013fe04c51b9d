//! Rings: the messages of a topic that are kept for those who come back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::task::coop;
use weir_engine::handover::{ImportedMessages, Messages, NotUnderstood};
use weir_engine::{Footprint, Message, Nanos, rounded};
use weir_wire::handover::v1;

use super::classes::Retention;
use super::{Router, Topic, lock};
use crate::base::handover::refused;

/// The newest messages of a topic that have been sent, one by one.
///
/// Shape: references by offset; conflation in ticks leaves gaps.
/// Limits: messages, bytes and age by the topic's class, and [`Retained`] for all rings together.
/// Bytes count as in the byte budget, which charges each message as long as a ring keeps it.
#[derive(Default)]
pub(super) struct Ring {
    /// Each message with the bytes that it occupied when it came.
    messages: VecDeque<(Arc<Message>, usize)>,
    bytes: usize,
    /// The log start offset: no message above it is missing.
    base: u64,
    /// Whether the last messages to go went for want of room. The broker of a cluster, which bounds
    /// number and age alone, may still keep them.
    is_cut: bool,
    /// Whether the sweep has the topic on its list.
    is_listed: bool,
}

/// The retained messages of all topics together.
#[derive(Debug)]
pub(crate) struct Retained {
    messages: AtomicUsize,
    bytes: AtomicUsize,
    refused: AtomicU64,
    bytes_max: usize,
}

impl Ring {
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// The bytes that its messages occupy.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// When its oldest message was accepted.
    pub(super) fn since(&self) -> Option<Nanos> {
        self.messages.front().map(|(message, _)| message.accepted_at())
    }

    /// The messages, and the bytes of the list of them.
    pub(super) fn footprint(&self) -> Footprint {
        let list = self.messages.capacity() * size_of::<(Arc<Message>, usize)>();
        Footprint::new(self.len(), rounded(list))
    }

    /// The offset before the oldest message, if there is one.
    pub(super) fn oldest(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.base)
    }

    /// Whether the ring has every message sent after this offset.
    pub(super) fn reaches(&self, offset: u64) -> bool {
        self.base <= offset
    }

    /// Whether the ring begins later than number and age of the messages ask for.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// The messages after `offset` whose frames together have at most `bytes_max` bytes; the first
    /// one always fits. The flag says whether the ring has no later messages.
    pub(super) fn behind(&self, offset: u64, bytes_max: usize) -> (Box<[Arc<Message>]>, bool) {
        self.some_behind(offset, bytes_max, usize::MAX)
    }

    /// The same, with at most `count_max` messages.
    pub(super) fn some_behind(
        &self,
        offset: u64,
        bytes_max: usize,
        count_max: usize,
    ) -> (Box<[Arc<Message>]>, bool) {
        let first = self.messages.partition_point(|(message, _)| message.offset() <= offset);
        let mut bytes = 0;
        let fits = |message: &&Arc<Message>| {
            let is_first = bytes == 0;
            bytes += message.frame().len();
            is_first || bytes <= bytes_max
        };
        let behind = self.messages.range(first..).take(count_max).map(|(message, _)| message);
        let messages: Box<[_]> = behind.take_while(fits).cloned().collect();
        let is_all = first + messages.len() == self.messages.len();
        (messages, is_all)
    }

    /// Appends a message and removes the oldest ones to make room. If the room is still too small,
    /// it keeps nothing.
    fn push(&mut self, message: &Arc<Message>, limits: Retention, retained: &Retained) {
        let bytes = message.occupied_bytes();
        while self.len() >= limits.messages_max && self.pop(retained) {
            self.is_cut = false;
        }
        let is_over = |ring: &Ring| ring.bytes + bytes > limits.bytes_max;
        while is_over(self) && self.pop(retained) {
            self.is_cut = true;
        }
        let has_room = loop {
            if is_over(self) {
                break false;
            }
            if retained.take(bytes) {
                break true;
            }
            if !self.pop(retained) {
                break false;
            }
            self.is_cut = true;
        };
        if has_room {
            self.bytes += bytes;
            message.retain(true);
            self.messages.push_back((Arc::clone(message), bytes));
        } else {
            retained.refused.fetch_add(1, Ordering::Relaxed);
            self.base = message.offset();
            self.is_cut = true;
        }
    }

    /// Removes messages beyond smaller limits, a limited number at a time; returns whether no more
    /// are beyond. Without limits nothing is retained, and `sent` is the last message.
    pub(super) fn shrink(
        &mut self,
        limits: Option<Retention>,
        sent: u64,
        retained: &Retained,
    ) -> bool {
        for _ in 0..TRIMMED_AT_ONCE {
            let is_over = match limits {
                Some(limits) => self.len() > limits.messages_max || self.bytes > limits.bytes_max,
                None => !self.is_empty(),
            };
            if !is_over {
                if limits.is_none() {
                    self.begin_behind(sent, retained);
                }
                self.messages.shrink_to(2 * self.messages.len());
                return true;
            }
            self.is_cut = limits.is_some_and(|limits| self.len() <= limits.messages_max);
            self.pop(retained);
        }
        false
    }

    /// Removes messages older than `ttl`, a limited number at a time; returns whether no older one
    /// is left.
    fn trim(&mut self, limits: Retention, now: Nanos, retained: &Retained) -> bool {
        let is_old =
            |(message, _): &(Arc<Message>, usize)| message.accepted_at().after(limits.ttl) <= now;
        for _ in 0..TRIMMED_AT_ONCE {
            if !self.messages.front().is_some_and(is_old) {
                break;
            }
            self.pop(retained);
            self.is_cut = false;
        }
        // Returns the memory after a burst.
        if self.messages.capacity() > 4 * self.messages.len() + CAPACITY_KEPT {
            self.messages.shrink_to(2 * self.messages.len());
        }
        !self.messages.front().is_some_and(is_old)
    }

    /// Removes all messages, counts them as refused, and keeps those behind `offset` from here on.
    pub(super) fn give_up(&mut self, offset: u64, retained: &Retained) {
        retained.refused.fetch_add(self.len() as u64, Ordering::Relaxed);
        self.begin_behind(offset, retained);
        self.is_cut = true;
    }

    /// Removes all messages, and keeps those behind `offset` from here on.
    pub(super) fn begin_behind(&mut self, offset: u64, retained: &Retained) {
        while self.pop(retained) {}
        self.base = offset;
        self.is_cut = false;
    }

    fn pop(&mut self, retained: &Retained) -> bool {
        let Some((message, bytes)) = self.messages.pop_front() else { return false };
        self.bytes -= bytes;
        message.retain(false);
        self.base = message.offset();
        retained.give(bytes);
        true
    }
}

/// Handing over.
impl Ring {
    /// All messages.
    pub(super) fn all(&self) -> Vec<Arc<Message>> {
        self.messages.iter().map(|(message, _)| Arc::clone(message)).collect()
    }

    /// `newest`: the newest message that was sent early. `None`: there is nothing to tell.
    pub(super) fn export(
        &self,
        messages: &mut Messages,
        newest: Option<&Arc<Message>>,
    ) -> Option<v1::TopicRing> {
        let early = newest.map_or(0, |newest| self.up_to(newest));
        let kept = self.messages.range(early..).map(|(message, _)| messages.number(message));
        let (base, is_cut) = (self.base, self.is_cut);
        let ring = v1::TopicRing { messages: kept.collect(), base, is_cut, early: early as u64 };
        (ring != v1::TopicRing::default()).then_some(ring)
    }

    /// How many messages are up to this one; 0: it has gone. Only the oldest ones go, or all.
    fn up_to(&self, newest: &Arc<Message>) -> usize {
        let count = self.messages.partition_point(|(one, _)| one.offset() <= newest.offset());
        let last = count.checked_sub(1).and_then(|place| self.messages.get(place));
        if last.is_some_and(|(last, _)| Arc::ptr_eq(last, newest)) { count } else { 0 }
    }

    /// Appends a message that another process has kept.
    pub(super) fn append(
        &mut self,
        message: Arc<Message>,
        retained: &Retained,
    ) -> Result<(), NotUnderstood> {
        let before = self.messages.back().map_or(self.base, |(last, _)| last.offset());
        if message.offset() <= before {
            return Err(refused("topic_ring.messages", message.offset()));
        }
        let bytes = message.occupied_bytes();
        message.retain(true);
        retained.take_anyway(1, bytes);
        self.bytes += bytes;
        self.messages.push_back((message, bytes));
        Ok(())
    }

    /// Keeps what another process has kept, even beyond the limits. `last` is the topic's offset.
    /// `early`: what came of the ring before, which counts in the other [`Retained`].
    pub(super) fn import(
        export: v1::TopicRing,
        last: u64,
        messages: &ImportedMessages,
        retained: &Retained,
        (early, of_early): (Option<Ring>, &Retained),
    ) -> Result<Ring, NotUnderstood> {
        let v1::TopicRing { messages: numbers, base, is_cut, early: kept } = export;
        let mut ring = early.unwrap_or_default();
        while ring.len() as u64 > kept && ring.pop(of_early) {}
        if ring.len() as u64 != kept {
            return Err(refused("topic_ring.early", kept));
        }
        of_early.give_back(ring.len(), ring.bytes);
        retained.take_anyway(ring.len(), ring.bytes);
        let oldest = ring.messages.front().map(|(message, _)| message.offset());
        if base > last || oldest.is_some_and(|oldest| oldest <= base) {
            return Err(refused("topic_ring.base", base));
        }
        (ring.base, ring.is_cut) = (base, is_cut);
        ring.messages.reserve_exact(numbers.len());
        for number in numbers {
            ring.append(messages.get(number)?, retained)?;
        }
        let newest = ring.messages.back().map_or(base, |(message, _)| message.offset());
        if newest > last {
            return Err(refused("topic_ring.messages", newest));
        }
        ring.is_listed = !ring.is_empty();
        Ok(ring)
    }
}

impl Retained {
    /// Takes messages with so many bytes in any case.
    fn take_anyway(&self, messages: usize, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.messages.fetch_add(messages, Ordering::Relaxed);
    }

    /// Messages count elsewhere from here on.
    fn give_back(&self, messages: usize, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.messages.fetch_sub(messages, Ordering::Relaxed);
    }

    /// Another process has not retained so many messages.
    pub(super) fn note_refused(&self, messages: u64) {
        self.refused.fetch_add(messages, Ordering::Relaxed);
    }

    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            messages: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            bytes_max,
        }
    }

    pub(crate) fn messages(&self) -> usize {
        self.messages.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Messages that were not retained because of a limit on bytes or on unattended topics.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> bool {
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.bytes_max);
        let is_taken = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
        if is_taken {
            self.messages.fetch_add(1, Ordering::Relaxed);
        }
        is_taken
    }

    fn give(&self, bytes: usize) {
        self.give_back(1, bytes);
    }
}

impl Router {
    /// Keeps a sent message, if the topic's class retains messages.
    pub(super) fn retain(&self, topic: &Arc<Topic>, ring: &mut Ring, message: &Arc<Message>) {
        let Some(limits) = topic.class().retention else { return };
        ring.push(message, limits, &self.retained);
        if !ring.is_listed && !ring.is_empty() {
            ring.is_listed = true;
            lock(&self.rings).push(Arc::clone(topic));
        }
    }

    /// Removes messages that are too old, and ends topics that existed only for them.
    pub(crate) async fn sweep_rings(&self) {
        let topics = std::mem::take(&mut *lock(&self.rings));
        let mut kept = Vec::new();
        for topic in topics {
            if self.sweep_ring(&topic, Nanos::now()) {
                kept.push(topic);
            }
            coop::consume_budget().await;
        }
        lock(&self.rings).append(&mut kept);
    }

    /// Removes old messages of one topic; returns whether messages stay. A large sweep releases the
    /// topic's lock between its parts.
    pub(super) fn sweep_ring(&self, topic: &Arc<Topic>, now: Nanos) -> bool {
        loop {
            let mut state = topic.lock();
            if self.is_still() {
                return true;
            }
            let Some(extra) = &mut state.extra else { return false };
            let Some(limits) = topic.class().retention else {
                extra.ring.is_listed = false;
                return false;
            };
            if extra.ring.trim(limits, now, &self.retained) {
                extra.ring.is_listed = !extra.ring.is_empty();
                let is_listed = extra.ring.is_listed;
                self.end_if_idle(topic, &mut state);
                return is_listed;
            }
        }
    }

    /// The retained messages of all topics.
    pub(crate) fn retained(&self) -> &Retained {
        &self.retained
    }
}

/// Messages freed under one hold of a topic's lock: some tens of microseconds.
const TRIMMED_AT_ONCE: usize = 1024;
/// Unused capacity that a ring keeps: 1 KiB.
const CAPACITY_KEPT: usize = 64;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use weir_engine::{Budget, TopicMessage};

    use super::*;

    fn message(budget: &Arc<Budget>, offset: u64, bytes: usize) -> Arc<Message> {
        let topic = TopicMessage { offset, ..TopicMessage::default() };
        Message::of_topic(budget, vec![0; bytes], Nanos(offset), None, topic).unwrap()
    }

    fn offsets(messages: &[Arc<Message>]) -> Vec<u64> {
        messages.iter().map(|message| message.offset()).collect()
    }

    proptest! {
        /// Within all limits, a ring misses nothing above its base.
        #[test]
        fn keeps_the_newest_within_all_bounds(
            sizes in proptest::collection::vec((1usize..400, 1u64..4), 1..60),
            (messages_max, bytes_max, sum_max) in (1usize..20, 300usize..3000, 0usize..3000),
            ttl in 1u64..200,
        ) {
            let budget = Budget::new(1 << 20);
            let retained = Retained::new(sum_max);
            let limits = Retention { messages_max, bytes_max, ttl: Duration::from_nanos(ttl) };
            let mut ring = Ring::default();
            let (mut all, mut offset) = (Vec::new(), 0);
            for (index, (bytes, step)) in sizes.into_iter().enumerate() {
                offset += step;
                all.push(offset);
                ring.push(&message(&budget, offset, bytes), limits, &retained);
                if index % 7 == 0 {
                    ring.trim(limits, Nanos(offset), &retained);
                    let oldest = ring.messages.front().map(|(message, _)| message.offset());
                    prop_assert!(oldest.is_none_or(|oldest| oldest + ttl > offset));
                }
                let kept: Vec<u64> = ring.messages.iter().map(|(message, _)| message.offset()).collect();
                let due: Vec<u64> = all.iter().copied().filter(|at| *at > ring.base).collect();
                prop_assert_eq!(kept, due);
                prop_assert!(ring.len() <= messages_max && ring.bytes <= bytes_max);
                prop_assert!(ring.bytes <= sum_max);
                prop_assert_eq!((retained.bytes(), retained.messages()), (ring.bytes, ring.len()));
            }
            while ring.pop(&retained) {}
            prop_assert_eq!((retained.bytes(), retained.messages(), budget.used()), (0, 0, 0));
        }
    }

    #[test]
    fn a_burst_that_is_too_old_goes_in_parts() {
        let budget = Budget::new(1 << 30);
        let retained = Retained::new(1 << 30);
        let ttl = Duration::from_nanos(1);
        let limits = Retention { messages_max: 5_000, bytes_max: 1 << 30, ttl };
        let mut ring = Ring::default();
        for offset in 1..=2_500 {
            ring.push(&message(&budget, offset, 1), limits, &retained);
        }
        let mut trim = || (ring.trim(limits, Nanos(2_401), &retained), ring.len());
        assert_eq!([trim(), trim(), trim()], [(false, 1_476), (false, 452), (true, 100)]);
    }

    #[test]
    fn a_message_that_cannot_fit_counts_as_refused() {
        let budget = Budget::new(1 << 20);
        let retained = Retained::new(1 << 20);
        let largest = message(&budget, 2, 100);
        let limits = |bytes_max| {
            let ttl = Duration::from_secs(1);
            Retention { messages_max: 10, bytes_max, ttl }
        };
        let mut ring = Ring::default();
        for (bytes_max, len, refused) in
            [(largest.occupied_bytes(), 1, 0), (largest.occupied_bytes() - 1, 0, 1)]
        {
            ring.push(&message(&budget, 1, 10), limits(bytes_max), &retained);
            ring.push(&largest, limits(bytes_max), &retained);
            assert_eq!((ring.len(), retained.refused(), ring.base), (len, refused, 2 - len as u64));
            while ring.pop(&retained) {}
        }
    }

    #[test]
    fn is_read_in_parts_of_at_most_so_many_bytes_or_one_message() {
        let budget = Budget::new(1 << 20);
        let retained = Retained::new(1 << 20);
        let ttl = Duration::from_secs(1);
        let limits = Retention { messages_max: 10, bytes_max: 1 << 20, ttl };
        let mut ring = Ring::default();
        for (offset, bytes) in [(1, 50), (2, 50), (4, 500), (5, 10)] {
            ring.push(&message(&budget, offset, bytes), limits, &retained);
        }
        let check = |behind, expected: &[u64], is_all| {
            let (messages, all) = ring.behind(behind, 100);
            assert_eq!((offsets(&messages), all), (expected.to_vec(), is_all), "{behind}");
        };
        check(0, &[1, 2], false);
        check(2, &[4], false);
        check(3, &[4], false);
        check(4, &[5], true);
        check(5, &[], true);
    }
}
