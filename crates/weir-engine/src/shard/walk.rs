//! Fan-outs to connections. A walk goes over the members of a topic, or over all connections. It
//! sends as it goes, or it gathers. Each turn does a share of the work.

use std::sync::Arc;

use super::fanouts::{Behind, LITTLE_BYTES, Over, Step, Walk};
use super::{Shard, Slices};
use crate::command::{CreditKind, Front};
use crate::id::{Priority, TopicId};
use crate::message::Message;
use crate::net::Net;
use crate::slot::Slot;
use crate::time::Nanos;
use crate::topics::Member;

/// The remaining share of a turn's work on fan-outs.
#[derive(Debug, Clone, Copy)]
struct Share {
    sends: usize,
    steps: usize,
}

/// A turn's share while there are connections of high priority. Events for them in the middle of a
/// turn wait some 0.5 ms.
const SHARE_BESIDE_HIGH: Share = Share { sends: 64, steps: 1024 };

impl<N: Net, F: Front> Shard<N, F> {
    /// Begins a fan-out to the members of a topic.
    pub(super) fn begin_topic_fanout(&mut self, topic: TopicId, message: Arc<Message>) {
        let ends = Priority::ALL.map(|priority| self.topics.end(priority, topic));
        for (priority, end) in Priority::ALL.into_iter().zip(ends) {
            if end > 0 {
                self.topics.begin_walk(priority, topic);
            }
        }
        self.begin_fanout(&message, Over::Topic(topic), ends);
    }

    /// Begins a fan-out to all connections.
    pub(super) fn begin_broadcast(&mut self, message: Arc<Message>) {
        let over = Over::All { before: self.table.welcomes() };
        let slots = self.table.slots();
        let ends = Priority::ALL.map(|priority| if self.table.has(priority) { slots } else { 0 });
        self.begin_fanout(&message, over, ends);
    }

    /// Begins the walks of a message. `ends` has the end of the walk over each priority.
    fn begin_fanout(&mut self, message: &Arc<Message>, over: Over, ends: [u32; Priority::COUNT]) {
        if !self.fanouts.begin(message, over, ends) {
            self.inbox.return_credit(CreditKind::Message);
        }
    }

    /// Does this turn's share of the fan-outs. A part of a gathering uses up the share.
    pub(super) fn go_on_with_fanouts(&mut self) {
        let Slices { sends, steps, touched, .. } = self.slices;
        let mut share = Share { sends, steps };
        if self.table.has(Priority::High) {
            share.sends = sends.min(SHARE_BESIDE_HIGH.sends);
            share.steps = steps.min(SHARE_BESIDE_HIGH.steps);
        }
        while share.sends > 0
            && share.steps > 0
            && let Some(step) = self.fanouts.poll_step(|| self.lease.is_tight(), touched)
        {
            match step {
                Step::Send(rank) => share = self.walk_directly(rank, share),
                Step::Gather(rank) => {
                    self.walk_gathering(rank, share);
                    return self.end_flushed(rank);
                }
                Step::Flush(rank) => {
                    self.flush_touched(rank, share);
                    return self.end_flushed(rank);
                }
            }
        }
    }

    /// Walks the only walk, or the first while the budget has no room for gathering. Sends as it
    /// goes. Returns the rest of the share.
    fn walk_directly(&mut self, rank: usize, share: Share) -> Share {
        let Some(mut walk) = self.fanouts.take_walk(rank, self.now) else { return share };
        let mut share = share;
        let mut delivered = 0;
        while share.sends > 0 && share.steps > 0 && walk.cursor < walk.end {
            let cursor = walk.cursor;
            walk.cursor += 1;
            share.steps -= 1;
            if self.is_seeded_skip(cursor) {
                continue;
            }
            if let Some(slot) = self.at(&walk, cursor) {
                share.sends -= 1;
                delivered += u64::from(self.deliver(slot, walk.over.topic(), &walk.message));
                // A lower rank has gathered messages for it. They leave together with this one.
                self.flush_gathered(slot);
            }
        }
        let now = self.net.now();
        if delivered > 0 {
            let lag = &self.stats.lag[walk.priority.index()];
            lag.record(now.since(walk.message.accepted_at()), delivered);
        }
        if walk.cursor < walk.end {
            self.fanouts.rank(rank).put_back(walk);
        } else {
            self.end_walk(&walk);
            self.end_part(&walk, now);
        }
        share
    }

    /// Walks one of several walks. Puts its message into the outboxes.
    fn walk_gathering(&mut self, rank: usize, share: Share) {
        let Share { mut sends, mut steps } = share;
        while !self.fanouts.rank(rank).is_full()
            && let Some(mut walk) = self.fanouts.take_walk(rank, self.now)
        {
            while sends > 0
                && steps > 0
                && walk.cursor < walk.end
                && self.fanouts.rank(rank).touched() < self.slices.touched
            {
                let cursor = walk.cursor;
                walk.cursor += 1;
                if self.is_seeded_skip(cursor) {
                    continue;
                }
                steps -= 1;
                if let Some(slot) = self.at(&walk, cursor) {
                    let gathered = self.gather(slot, walk.over.topic(), &walk.message);
                    sends -= usize::from(gathered.has_sent);
                    self.list_to_flush(rank, slot, gathered.is_new);
                }
            }
            if walk.cursor < walk.end {
                self.fanouts.rank(rank).put_back(walk);
                return;
            }
            self.end_walk(&walk);
            self.fanouts.rank(rank).put_walked(walk);
        }
    }

    /// Lists a connection for which a message was gathered, unless it is listed. Takes it over from
    /// the list of a lower rank.
    fn list_to_flush(&mut self, rank: usize, slot: Slot, is_new: bool) {
        let rank_number = u8::try_from(rank).unwrap_or(u8::MAX);
        let flags = &mut self.table[slot].flags;
        if flags.to_flush && (is_new || flags.flush_rank > rank_number) {
            flags.flush_rank = rank_number;
            self.fanouts.rank(rank).touch(slot);
        }
    }

    /// Flushes this turn's share of the touched connections.
    fn flush_touched(&mut self, rank: usize, share: Share) {
        let table = &self.table;
        self.fanouts.rank(rank).put_small_first(|slot| {
            let outbox = table[slot].outbox.as_ref();
            outbox.is_none_or(|outbox| outbox.bytes() <= LITTLE_BYTES)
        });
        for _ in 0..share.sends {
            let Some(slot) = self.fanouts.rank(rank).poll_flush() else { return };
            self.flush_gathered(slot);
        }
    }

    /// Ends the walks of a rank whose gathering is flushed.
    fn end_flushed(&mut self, rank: usize) {
        let mut flushed = self.fanouts.rank(rank).take_flushed();
        if flushed.is_empty() {
            return self.fanouts.rank(rank).keep(flushed);
        }
        let now = self.net.now();
        for walk in flushed.drain(..) {
            self.end_part(&walk, now);
        }
        self.fanouts.rank(rank).keep(flushed);
    }

    /// Notes that a walk has ended and its sends have left.
    fn end_part(&mut self, walk: &Walk, now: Nanos) {
        if let Some(began) = self.fanouts.end_walk(walk, now) {
            self.stats.fanout.record(now.since(began), 1);
            self.inbox.return_credit(CreditKind::Message);
        }
    }

    fn end_walk(&mut self, walk: &Walk) {
        match walk.over {
            Over::Topic(topic) => self.topics.end_walk(&mut self.table, walk.priority, topic),
            Over::All { .. } => {}
        }
        self.take_behind();
    }

    /// Carries out a waiting command once the messages before it have been walked. Its credit
    /// returns then.
    pub(super) fn end_behind(&mut self, behind: Behind) {
        self.fanouts.put_behind(behind);
        self.take_behind();
    }

    fn take_behind(&mut self) {
        while let Some(behind) = self.fanouts.poll_behind() {
            match behind {
                Behind::Evict(conn, reason) => {
                    if let Some(slot) = self.find(conn) {
                        self.close(slot, reason);
                    }
                }
                Behind::Drain(drain) => self.begin_drain(drain),
            }
            self.inbox.return_credit(CreditKind::Control);
        }
    }

    /// The connection at `cursor` of a walk, if the walk is for it.
    fn at(&self, walk: &Walk, cursor: u32) -> Option<Slot> {
        match walk.over {
            Over::Topic(topic) => {
                self.topics.member(walk.priority, topic, cursor).and_then(Member::present)
            }
            Over::All { before } => {
                let slot = Slot::at(cursor);
                let is_meant = self.table[slot].priority == walk.priority;
                (is_meant && self.table.is_welcomed_before(slot, before)).then_some(slot)
            }
        }
    }
}
