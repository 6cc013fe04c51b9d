//! One message to many: resumable walks over the members of a topic, or over all connections.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use weir_wire::CloseReason;

use super::{Shard, Slices};
use crate::command::{CreditKind, Front};
use crate::id::{ConnId, Priority, TopicId};
use crate::message::Message;
use crate::net::Net;
use crate::outbox::GATHER_MAX;
use crate::slot::Slot;
use crate::table::State;
use crate::time::Nanos;
use crate::topics::Member;

/// The fan-outs of a shard.
///
/// The fan-out of a message is a walk for each priority of connections that it is for. Walks are ranked, by the
/// priority of the connections first and then by that of the message; a lower rank goes on only while no higher one has
/// anything to do, and within a rank walks go on in order of arrival. All messages of a topic are of one priority, so
/// that each of its members gets them in order.
///
/// A walk that is alone in its rank sends as it goes. When several wait, what they owe one connection leaves in one
/// gathered send: they walk first, each putting its message into the outboxes, and then every connection touched is
/// flushed once.
///
/// ```text
/// waiting ──walk (direct: send as it goes)─────────────────────► ended
///         └─walk (gather: into outboxes)──► walked ──flushed──► ended
/// ```
#[derive(Debug, Default)]
pub(super) struct Fanouts {
    ranks: [Rank; RANKS],
    /// Messages of which a walk has not ended, and the places among them that are free.
    running: Vec<Running>,
    free: Vec<u32>,
    /// Messages whose fan-out has begun.
    begun: u64,
    /// What stood in the lane behind so many messages, and waits until these have been walked.
    behind: VecDeque<(u64, Behind)>,
}

/// A rank for each priority of connections and of messages.
const RANKS: usize = Priority::COUNT * Priority::COUNT;

/// The walks of one rank.
#[derive(Debug, Default)]
struct Rank {
    /// In order of arrival; the first is being walked.
    waiting: VecDeque<Walk>,
    /// Walked, not yet flushed.
    walked: Vec<Walk>,
    /// Connections that the gathering has touched, and how many of them are flushed. Whom a higher rank has flushed
    /// meanwhile stays in the list.
    touched: Vec<Slot>,
    flushed: usize,
}

/// A message of which a walk has not ended.
#[derive(Debug)]
struct Running {
    walks: u8,
    began: Option<Nanos>,
}

/// One message on its way to the connections of one priority.
#[derive(Debug)]
struct Walk {
    message: Arc<Message>,
    over: Over,
    priority: Priority,
    /// Its message, by place among the running ones and by number in order of arrival.
    running: u32,
    number: u64,
    cursor: u32,
    /// Where the walk ends: it reaches whom it found when it was taken from the lane.
    end: u32,
}

/// An end that leaves what stood before it in the lane to those who are ended.
#[derive(Debug)]
pub(super) enum Behind {
    Evict(ConnId, CloseReason),
    Drain { over: Duration, retry_after_ms: (u32, u32), seed: u64 },
}

/// What a walk goes over.
#[derive(Debug, Clone, Copy)]
enum Over {
    Topic(TopicId),
    /// All slots whose connection was welcomed before this number.
    All {
        before: u32,
    },
}

/// What is left of a turn's work on fan-outs.
#[derive(Debug, Clone, Copy)]
struct Share {
    sends: usize,
    steps: usize,
}

/// A turn's work while there are connections of high priority: what comes for them in the middle of it waits some
/// 0.5 ms.
const SHARE_BESIDE_HIGH: Share = Share { sends: 64, steps: 1024 };

/// What is sent in one go without much copying: some microseconds.
const LITTLE_BYTES: usize = 16 * 1024;

impl Over {
    /// The topic; `TopicId::NONE` of a broadcast.
    fn topic(self) -> TopicId {
        match self {
            Over::Topic(topic) => topic,
            Over::All { .. } => TopicId::NONE,
        }
    }
}

impl Fanouts {
    pub(super) fn is_busy(&self) -> bool {
        self.ranks.iter().any(Rank::is_busy)
    }

    /// Messages whose fan-out has begun and not ended.
    pub(super) fn len(&self) -> usize {
        self.running.len() - self.free.len()
    }

    fn add(&mut self, running: Running) -> u32 {
        self.begun += 1;
        if let Some(place) = self.free.pop() {
            self.running[place as usize] = running;
            return place;
        }
        self.running.push(running);
        u32::try_from(self.running.len() - 1).expect("no more messages than the lane has credits")
    }

    /// All messages before this number have been walked.
    fn walked_before(&self) -> u64 {
        let first = |rank: &Rank| rank.waiting.front().map(|walk| walk.number);
        self.ranks.iter().filter_map(first).min().unwrap_or(self.begun)
    }
}

impl Rank {
    fn is_busy(&self) -> bool {
        !self.waiting.is_empty() || !self.touched.is_empty()
    }
}

#[cfg(any(test, feature = "sim"))]
impl Fanouts {
    /// Commands that wait for walks to end.
    pub(super) fn commands_waiting(&self) -> usize {
        self.behind.len()
    }

    /// Walks over the members of a topic that are of one priority, begun and not ended.
    pub(super) fn walks_over(&self, priority: Priority, id: TopicId) -> usize {
        let is_over = |walk: &&Walk| {
            walk.priority == priority && matches!(walk.over, Over::Topic(topic) if topic == id)
        };
        self.ranks.iter().flat_map(|rank| &rank.waiting).filter(is_over).count()
    }
}

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

    /// Begins a walk for each priority of connections for which there is one; `ends`: how far each goes.
    fn begin_fanout(&mut self, message: &Arc<Message>, over: Over, ends: [u32; Priority::COUNT]) {
        let walks = ends.map(|end| u8::from(end > 0)).iter().sum();
        if walks == 0 {
            return self.inbox.return_credit(CreditKind::Message);
        }
        let number = self.fanouts.begun;
        let running = self.fanouts.add(Running { walks, began: None });
        for (priority, end) in Priority::ALL.into_iter().zip(ends).filter(|(_, end)| *end > 0) {
            let message = Arc::clone(message);
            let rank = priority.index() * Priority::COUNT + message.priority().index();
            let walk = Walk { message, over, priority, running, number, cursor: 0, end };
            self.fanouts.ranks[rank].waiting.push_back(walk);
        }
    }

    /// Does this turn's share of the fan-outs.
    pub(super) fn go_on_with_fanouts(&mut self) {
        let Slices { sends, steps, .. } = self.slices;
        let mut share = Share { sends, steps };
        if self.table.has(Priority::High) {
            share.sends = sends.min(SHARE_BESIDE_HIGH.sends);
            share.steps = steps.min(SHARE_BESIDE_HIGH.steps);
        }
        while share.sends > 0
            && share.steps > 0
            && let Some(rank) = self.fanouts.ranks.iter().position(Rank::is_busy)
        {
            share = self.go_on_with_rank(rank, share);
        }
    }

    /// Goes on with the walks of a rank that is busy; what is left of the share, nothing after a part of a gathering.
    fn go_on_with_rank(&mut self, rank: usize, share: Share) -> Share {
        let Rank { waiting, touched, .. } = &self.fanouts.ranks[rank];
        let is_alone = waiting.len() == 1 || self.lease.is_tight();
        if touched.is_empty() && is_alone {
            return self.walk_directly(rank, share);
        }
        if !touched.is_empty() && self.is_gathering_over(rank) {
            self.flush_touched(rank, share);
        } else {
            self.walk_gathering(rank, share);
            if self.fanouts.ranks[rank].touched.is_empty() {
                self.end_walked(rank);
            }
        }
        Share { sends: 0, steps: 0 }
    }

    /// A gathering is over when all have walked, when as many have as one send can gather, when it has touched very
    /// many, once flushing has begun, or when the byte budget is short: an outbox each is some 200 bytes.
    fn is_gathering_over(&self, rank: usize) -> bool {
        let rank = &self.fanouts.ranks[rank];
        rank.waiting.is_empty()
            || rank.walked.len() >= GATHER_MAX
            || rank.flushed > 0
            || rank.touched.len() >= self.slices.touched
            || self.lease.is_tight()
    }

    /// The only walk, or the first while there is no budget for gathering: sends as it goes. What is left of the share.
    fn walk_directly(&mut self, rank: usize, share: Share) -> Share {
        let Some(mut walk) = self.fanouts.ranks[rank].waiting.pop_front() else { return share };
        self.note_begin(&walk);
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
                // A lower rank gathers for it: what is there already leaves with this.
                self.flush_gathered(slot);
            }
        }
        let now = self.net.now();
        if delivered > 0 {
            let lag = &self.stats.lag[walk.priority.index()];
            lag.record(now.since(walk.message.accepted_at()), delivered);
        }
        if walk.cursor < walk.end {
            self.fanouts.ranks[rank].waiting.push_front(walk);
        } else {
            self.end_walk(&walk);
            self.end_part(&walk, now);
        }
        share
    }

    /// One of several: puts its message into the outboxes.
    fn walk_gathering(&mut self, rank: usize, share: Share) {
        let Share { mut sends, mut steps } = share;
        while self.fanouts.ranks[rank].walked.len() < GATHER_MAX
            && let Some(mut walk) = self.fanouts.ranks[rank].waiting.pop_front()
        {
            self.note_begin(&walk);
            while sends > 0
                && steps > 0
                && walk.cursor < walk.end
                && self.fanouts.ranks[rank].touched.len() < self.slices.touched
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
                self.fanouts.ranks[rank].waiting.push_front(walk);
                return;
            }
            self.end_walk(&walk);
            self.fanouts.ranks[rank].walked.push(walk);
        }
    }

    /// Lists a connection that was gathered for, unless it is in the list. From that of a lower rank it is taken over.
    fn list_to_flush(&mut self, rank: usize, slot: Slot, is_new: bool) {
        let rank_number = u8::try_from(rank).unwrap_or(u8::MAX);
        let flags = &mut self.table[slot].flags;
        if flags.to_flush && (is_new || flags.flush_rank > rank_number) {
            flags.flush_rank = rank_number;
            self.fanouts.ranks[rank].touched.push(slot);
        }
    }

    /// Puts the connections in front that have little to be sent, where large messages were gathered. Otherwise a topic
    /// with large messages and many members would delay all others of its rank.
    fn put_small_first(&mut self, rank: usize) {
        let rank = &mut self.fanouts.ranks[rank];
        let gathered: usize = rank.walked.iter().map(|walk| walk.message.occupied_bytes()).sum();
        if gathered <= LITTLE_BYTES {
            return;
        }
        let mut small = 0;
        for index in 0..rank.touched.len() {
            let outbox = &self.table[rank.touched[index]].outbox;
            if outbox.as_ref().is_none_or(|outbox| outbox.bytes() <= LITTLE_BYTES) {
                rank.touched.swap(small, index);
                small += 1;
            }
        }
    }

    /// Flushes this turn's share of the connections that a gathering has touched.
    fn flush_touched(&mut self, rank: usize, share: Share) {
        let from = self.fanouts.ranks[rank].flushed;
        if from == 0 {
            self.put_small_first(rank);
        }
        let to = self.fanouts.ranks[rank].touched.len().min(from + share.sends);
        for index in from..to {
            self.flush_gathered(self.fanouts.ranks[rank].touched[index]);
        }
        let Rank { touched, flushed, .. } = &mut self.fanouts.ranks[rank];
        *flushed = to;
        if to == touched.len() {
            touched.clear();
            *flushed = 0;
            self.end_walked(rank);
        }
    }

    fn end_walked(&mut self, rank: usize) {
        if self.fanouts.ranks[rank].walked.is_empty() {
            return;
        }
        let now = self.net.now();
        let mut walked = std::mem::take(&mut self.fanouts.ranks[rank].walked);
        for walk in walked.drain(..) {
            self.end_part(&walk, now);
        }
        self.fanouts.ranks[rank].walked = walked;
    }

    fn note_begin(&mut self, walk: &Walk) {
        self.fanouts.running[walk.running as usize].began.get_or_insert(self.now);
    }

    /// A walk has ended and what it sent is sent; with the last one of a message its fan-out has ended.
    fn end_part(&mut self, walk: &Walk, now: Nanos) {
        let running = &mut self.fanouts.running[walk.running as usize];
        running.walks -= 1;
        if running.walks == 0 {
            self.stats.fanout.record(now.since(running.began.unwrap_or(now)), 1);
            self.fanouts.free.push(walk.running);
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

    /// Carries out an end once the messages before it have walked. Its credit returns then.
    pub(super) fn end_behind(&mut self, behind: Behind) {
        self.fanouts.behind.push_back((self.fanouts.begun, behind));
        self.take_behind();
    }

    fn take_behind(&mut self) {
        if self.fanouts.behind.is_empty() {
            return;
        }
        let walked = self.fanouts.walked_before();
        while self.fanouts.behind.front().is_some_and(|(messages, _)| *messages <= walked)
            && let Some((_, behind)) = self.fanouts.behind.pop_front()
        {
            match behind {
                Behind::Evict(conn, reason) => {
                    if let Some(slot) = self.find(conn) {
                        self.close(slot, reason);
                    }
                }
                Behind::Drain { over, retry_after_ms, seed } => {
                    self.begin_drain(over, retry_after_ms, seed);
                }
            }
            self.inbox.return_credit(CreditKind::Control);
        }
    }

    /// Who stands at `cursor` of a walk, if it is somebody that the walk is for.
    fn at(&self, walk: &Walk, cursor: u32) -> Option<Slot> {
        match walk.over {
            Over::Topic(topic) => {
                self.topics.member(walk.priority, topic, cursor).and_then(Member::present)
            }
            Over::All { before } => {
                let slot = Slot::at(cursor);
                let entry = &self.table[slot];
                // Welcomes are numbered around a ring: those since the walk began lie between `before` and now.
                let now = self.table.welcomes();
                let is_earlier = now.wrapping_sub(entry.welcomed) > now.wrapping_sub(before);
                let is_open = entry.state == State::Open && entry.flags.welcomed;
                let is_meant = is_open && entry.priority == walk.priority;
                (is_meant && is_earlier).then_some(slot)
            }
        }
    }
}
