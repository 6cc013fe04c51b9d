//! One message to many: resumable walks over the members of a topic, or over all connections.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Shard;
use crate::command::Front;
use crate::id::TopicId;
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

/// What a fan-out walks over.
#[derive(Debug, Clone, Copy)]
enum Walk {
    Topic(TopicId),
    /// All slots whose connection was adopted before this number.
    All {
        before: u32,
    },
}

/// Sends between two looks at readiness: some 2 ms, so that a ping never waits longer behind a fan-out.
const SENDS_PER_TURN: usize = 256;

/// Entries that a walk looks at between two looks at readiness, and, when gathering, puts a message each: some 0.5 ms.
const STEPS_PER_TURN: usize = 4096;

/// A gathering ends when it has touched this many connections; what waits in outboxes is bounded by that.
const TOUCHED_MAX: usize = 32 * 1024;

impl Fanouts {
    pub(super) fn is_busy(&self) -> bool {
        !self.waiting.is_empty() || !self.touched.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.walked.len()
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
        let walk = Walk::All { before: self.table.adoptions() };
        let end = self.table.slots();
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
            || fanouts.touched.len() >= TOUCHED_MAX
            || self.lease.budget().is_tight()
    }

    /// The only fan-out, or the first while there is no budget for gathering: sends as it walks.
    fn walk_directly(&mut self) {
        let Some(mut job) = self.fanouts.waiting.pop_front() else { return };
        job.began.get_or_insert(self.now);
        let mut sends = 0;
        let mut delivered = 0;
        let mut steps = 0;
        while sends < SENDS_PER_TURN && steps < STEPS_PER_TURN && job.cursor < job.end {
            let cursor = job.cursor;
            job.cursor += 1;
            steps += 1;
            if self.is_planted_skip(cursor) {
                continue;
            }
            if let Some(slot) = self.at(job.walk, cursor) {
                sends += 1;
                delivered += u64::from(self.deliver(slot, &job.message));
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
        let mut share = STEPS_PER_TURN;
        while self.fanouts.walked.len() < GATHER_MAX
            && let Some(mut job) = self.fanouts.waiting.pop_front()
        {
            job.began.get_or_insert(self.now);
            while share > 0 && job.cursor < job.end && self.fanouts.touched.len() < TOUCHED_MAX {
                let cursor = job.cursor;
                job.cursor += 1;
                if self.is_planted_skip(cursor) {
                    continue;
                }
                share -= 1;
                if let Some(slot) = self.at(job.walk, cursor)
                    && self.gather(slot, &job.message)
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
        let to = self.fanouts.touched.len().min(from + SENDS_PER_TURN);
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
    }

    /// Who stands at `cursor` of a walk, if it is somebody that the walk is for.
    fn at(&self, walk: Walk, cursor: u32) -> Option<u32> {
        match walk {
            Walk::Topic(topic) => self.topics.member(topic, cursor).and_then(Member::present),
            Walk::All { before } => {
                let entry = &self.table[cursor];
                // Adoptions are numbered around a ring: those since the walk began lie between `before` and now.
                let now = self.table.adoptions();
                let is_earlier = now.wrapping_sub(entry.adopted) > now.wrapping_sub(before);
                (entry.state == State::Open && is_earlier).then_some(cursor)
            }
        }
    }
}
