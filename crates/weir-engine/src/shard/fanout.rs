//! One message to many: resumable walks over the members of a topic, or over all connections.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use weir_wire::CloseReason;

use super::Shard;
use crate::command::Front;
use crate::id::{ConnId, TopicId};
use crate::message::Message;
use crate::net::Net;
use crate::outbox::GATHER_MAX;
use crate::table::State;
use crate::time::Nanos;
use crate::topics::Member;

/// The fan-outs of a shard.
///
/// A lone fan-out sends as it walks. When several wait, what they owe one connection leaves in one gathered send: they
/// walk first, each putting its message into the outboxes, and then every connection touched is flushed once.
///
/// ```text
/// waiting ──walk (direct: send as it goes)─────────────────────► ended
///         └─walk (gather: into outboxes)──► walked ──flushed──► ended
/// ```
#[derive(Debug, Default)]
pub(super) struct Fanouts {
    /// In order of arrival; the first is being walked.
    waiting: VecDeque<Job>,
    /// Walked, not yet flushed.
    walked: Vec<Job>,
    /// Connections that the gathering has touched, and how many of them are flushed.
    touched: Vec<u32>,
    flushed: usize,
    /// Walks that have begun, and that have ended: they end in the order in which they began.
    walks_begun: u64,
    walks_ended: u64,
    /// What stood in the lane behind a message, and waits until that message has walked so many walks.
    behind: VecDeque<(u64, Behind)>,
}

/// One fan-out.
#[derive(Debug)]
struct Job {
    message: Arc<Message>,
    walk: Walk,
    cursor: u32,
    /// Where the walk ends: it reaches whom it found when it was taken from the lane.
    end: u32,
    began: Option<Nanos>,
}

/// An end that leaves what stood before it in the lane to those who are ended.
#[derive(Debug)]
pub(super) enum Behind {
    Evict(ConnId, CloseReason),
    Drain { over: Duration, retry_after_ms: (u32, u32), seed: u64 },
}

/// What a fan-out walks over.
#[derive(Debug, Clone, Copy)]
enum Walk {
    Topic(TopicId),
    /// All slots whose connection was welcomed before this number.
    All {
        before: u32,
    },
}

impl Walk {
    /// The topic; `TopicId::NONE` of a broadcast.
    fn topic(self) -> TopicId {
        match self {
            Walk::Topic(topic) => topic,
            Walk::All { .. } => TopicId::NONE,
        }
    }
}

impl Fanouts {
    pub(super) fn is_busy(&self) -> bool {
        !self.waiting.is_empty() || !self.touched.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.walked.len()
    }
}

#[cfg(any(test, feature = "sim"))]
impl Fanouts {
    /// Commands that wait for walks to end.
    pub(super) fn commands_waiting(&self) -> usize {
        self.behind.len()
    }

    /// Walks over a topic that have begun and not ended.
    pub(super) fn walks_over(&self, id: TopicId) -> usize {
        self.waiting
            .iter()
            .filter(|job| matches!(job.walk, Walk::Topic(topic) if topic == id))
            .count()
    }
}

impl<N: Net, F: Front> Shard<N, F> {
    /// Begins a fan-out to the members of a topic.
    pub(super) fn begin_topic_fanout(&mut self, topic: TopicId, message: Arc<Message>) {
        let end = self.topics.end(topic);
        if end == 0 {
            return self.inbox.return_credit();
        }
        self.topics.begin_walk(topic);
        self.fanouts.walks_begun += 1;
        self.fanouts.waiting.push_back(Job {
            message,
            walk: Walk::Topic(topic),
            cursor: 0,
            end,
            began: None,
        });
    }

    /// Begins a fan-out to all connections.
    pub(super) fn begin_broadcast(&mut self, message: Arc<Message>) {
        let walk = Walk::All { before: self.table.welcomes() };
        let end = self.table.slots();
        self.fanouts.walks_begun += 1;
        self.fanouts.waiting.push_back(Job { message, walk, cursor: 0, end, began: None });
    }

    /// Does this turn's share of the fan-outs.
    pub(super) fn go_on_with_fanouts(&mut self) {
        if self.fanouts.flushed < self.fanouts.touched.len() && self.is_gathering_over() {
            return self.flush_touched();
        }
        let is_alone = self.fanouts.waiting.len() == 1 || self.lease.budget().is_tight();
        if is_alone && self.fanouts.touched.is_empty() {
            self.walk_directly();
        } else if !self.fanouts.waiting.is_empty() {
            self.walk_gathering();
        }
        if self.fanouts.touched.is_empty() {
            self.end_walked();
        }
    }

    /// A gathering is over when all have walked, when as many have as one send can gather, when it has touched very
    /// many, once flushing has begun, or when the byte budget is short: an outbox each is some 200 bytes.
    fn is_gathering_over(&self) -> bool {
        let fanouts = &self.fanouts;
        fanouts.waiting.is_empty()
            || fanouts.walked.len() >= GATHER_MAX
            || fanouts.flushed > 0
            || fanouts.touched.len() >= self.slices.touched
            || self.lease.budget().is_tight()
    }

    /// The only fan-out, or the first while there is no budget for gathering: sends as it walks.
    fn walk_directly(&mut self) {
        let Some(mut job) = self.fanouts.waiting.pop_front() else { return };
        job.began.get_or_insert(self.now);
        let mut sends = 0;
        let mut delivered = 0;
        let mut steps = 0;
        while sends < self.slices.sends && steps < self.slices.steps && job.cursor < job.end {
            let cursor = job.cursor;
            job.cursor += 1;
            steps += 1;
            if self.is_planted_skip(cursor) {
                continue;
            }
            if let Some(slot) = self.at(job.walk, cursor) {
                sends += 1;
                delivered += u64::from(self.deliver(slot, job.walk.topic(), &job.message));
            }
        }
        let now = self.net.now();
        if delivered > 0 {
            self.stats.lag.record(now.since(job.message.accepted_at()), delivered);
        }
        if job.cursor < job.end {
            self.fanouts.waiting.push_front(job);
        } else {
            self.end_walk(job.walk);
            self.end_job(&job, now);
        }
    }

    /// One of several: puts its message into the outboxes.
    fn walk_gathering(&mut self) {
        let mut share = self.slices.steps;
        while self.fanouts.walked.len() < GATHER_MAX
            && let Some(mut job) = self.fanouts.waiting.pop_front()
        {
            job.began.get_or_insert(self.now);
            while share > 0
                && job.cursor < job.end
                && self.fanouts.touched.len() < self.slices.touched
            {
                let cursor = job.cursor;
                job.cursor += 1;
                if self.is_planted_skip(cursor) {
                    continue;
                }
                share -= 1;
                if let Some(slot) = self.at(job.walk, cursor)
                    && self.gather(slot, job.walk.topic(), &job.message)
                {
                    self.fanouts.touched.push(slot);
                }
            }
            if job.cursor < job.end {
                self.fanouts.waiting.push_front(job);
                return;
            }
            self.end_walk(job.walk);
            self.fanouts.walked.push(job);
        }
    }

    /// Flushes this turn's share of the connections that a gathering has touched.
    fn flush_touched(&mut self) {
        let from = self.fanouts.flushed;
        let to = self.fanouts.touched.len().min(from + self.slices.sends);
        for index in from..to {
            self.flush_gathered(self.fanouts.touched[index]);
        }
        self.fanouts.flushed = to;
        if to == self.fanouts.touched.len() {
            self.fanouts.touched.clear();
            self.fanouts.flushed = 0;
            self.end_walked();
        }
    }

    fn end_walked(&mut self) {
        if self.fanouts.walked.is_empty() {
            return;
        }
        let now = self.net.now();
        let mut walked = std::mem::take(&mut self.fanouts.walked);
        for job in walked.drain(..) {
            self.end_job(&job, now);
        }
        self.fanouts.walked = walked;
    }

    fn end_job(&mut self, job: &Job, now: Nanos) {
        self.stats.fanout.record(now.since(job.began.unwrap_or(now)), 1);
        self.inbox.return_credit();
    }

    fn end_walk(&mut self, walk: Walk) {
        match walk {
            Walk::Topic(topic) => self.topics.end_walk(&mut self.table, topic),
            Walk::All { .. } => {}
        }
        self.fanouts.walks_ended += 1;
        self.take_behind();
    }

    /// Carries out an end once the messages before it have walked. Its credit returns then.
    pub(super) fn end_behind(&mut self, behind: Behind) {
        self.fanouts.behind.push_back((self.fanouts.walks_begun, behind));
        self.take_behind();
    }

    fn take_behind(&mut self) {
        let ended = self.fanouts.walks_ended;
        while self.fanouts.behind.front().is_some_and(|(walks, _)| *walks <= ended)
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
            self.inbox.return_credit();
        }
    }

    /// Who stands at `cursor` of a walk, if it is somebody that the walk is for.
    fn at(&self, walk: Walk, cursor: u32) -> Option<u32> {
        match walk {
            Walk::Topic(topic) => self.topics.member(topic, cursor).and_then(Member::present),
            Walk::All { before } => {
                let entry = &self.table[cursor];
                // Welcomes are numbered around a ring: those since the walk began lie between `before` and now.
                let now = self.table.welcomes();
                let is_earlier = now.wrapping_sub(entry.welcomed) > now.wrapping_sub(before);
                let is_open = entry.state == State::Open && entry.flags.welcomed;
                (is_open && is_earlier).then_some(cursor)
            }
        }
    }
}
