//! Subscribing and resuming: what a connection has missed, and then what comes.
//!
//! What fits one part is pushed at once, with the membership. Of a longer resume the router remembers only that it
//! runs: the shard names connection, topic and offset when it asks for the next part. A topic lives as long as one
//! runs; whoever counts on more than it keeps has fallen behind.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use weir_engine::{Command, ConnId, Credit, Item, ReplayBegin, ReplayChunk, TopicId};
use weir_wire::format::Format;
use weir_wire::v1::{Position, Subscribed, Unsubscribed, server_message::Kind};

use super::{Extra, Router, State, Topic, lock, validate_name};
use crate::base::frames;
use crate::base::model::SubscribeError;
use crate::observe::counters::ResumeOutcome;

/// Resumes that take more than one part.
///
/// Shape: an entry for each connection that has one, until its last part is pushed, its shard refuses to begin it, it
/// unsubscribes or it ends. What concerns a connection comes from one task, in order.
#[derive(Default)]
pub(super) struct Resumes {
    running: Mutex<HashMap<ConnId, Vec<Running>, foldhash::fast::RandomState>>,
    numbers: AtomicU32,
}

/// A connection resumes a topic.
#[derive(Debug, Clone, Copy)]
struct Running {
    topic: TopicId,
    /// The first of its numbers; one before it belongs to a resume that was called off.
    first: u32,
    /// The last of its numbers: a refusal of an earlier one says nothing of this.
    last: u32,
}

/// What a connection that names a position has missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missed {
    Nothing,
    /// All of it is in the ring.
    Since(u64),
    Unknown,
}

impl Resumes {
    fn number(&self) -> u32 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether that is new.
    fn begin(&self, conn: ConnId, topic: TopicId, number: u32) -> bool {
        let mut running = lock(&self.running);
        let of_conn = running.entry(conn).or_default();
        if let Some(running) = of_conn.iter_mut().find(|running| running.topic == topic) {
            running.last = number;
            return false;
        }
        of_conn.push(Running { topic, first: number, last: number });
        true
    }

    fn is_running(&self, conn: ConnId, topic: TopicId, number: u32) -> bool {
        let running = lock(&self.running);
        // Numbers go round.
        let fits = |running: &Running| {
            running.topic == topic && number.wrapping_sub(running.first) <= u32::MAX / 2
        };
        running.get(&conn).is_some_and(|of_conn| of_conn.iter().any(fits))
    }

    /// Whether it was running.
    fn end(&self, conn: ConnId, topic: TopicId) -> bool {
        self.end_if(conn, |running| running.topic == topic)
    }

    /// The resume with this number does not begin; whether it was the last one that runs.
    fn end_refused(&self, conn: ConnId, topic: TopicId, number: u32) -> bool {
        self.end_if(conn, |running| running.topic == topic && running.last == number)
    }

    fn end_if(&self, conn: ConnId, is_it: impl FnMut(&Running) -> bool) -> bool {
        let mut running = lock(&self.running);
        let Some(of_conn) = running.get_mut(&conn) else { return false };
        let Some(at) = of_conn.iter().position(is_it) else { return false };
        of_conn.swap_remove(at);
        if of_conn.is_empty() {
            running.remove(&conn);
        }
        true
    }

    fn end_all(&self, conn: ConnId) -> Vec<Running> {
        lock(&self.running).remove(&conn).unwrap_or_default()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.running).is_empty()
    }
}

impl Router {
    /// Enters a connection into a topic, which begins with it if need be; at once, or behind what it has missed since
    /// `position`. `format`: what it speaks.
    ///
    /// The credit is one of the connection's own mailbox. It was taken without any lock; refused, it is given back for
    /// the answer.
    pub(crate) fn subscribe<'a>(
        &self,
        credit: Credit<'a, OwnedFd>,
        conn: ConnId,
        name: &str,
        (format, position): (Format, Option<Position>),
    ) -> Result<(), (SubscribeError, Credit<'a, OwnedFd>)> {
        if let Err(error) = validate_name(name, self.name_bytes_max) {
            return Err((SubscribeError::Name(error), credit));
        }
        loop {
            let Some(topic) = self.find_or_begin(name) else {
                return Err((SubscribeError::TooManyTopics, credit));
            };
            let mut state = topic.lock();
            if state.ended {
                continue;
            }
            state.formats.add(format);
            let missed = position.map(|position| topic.missed(&state, position));
            if let Some(Missed::Since(offset)) = missed {
                self.begin_resume(credit, conn, &topic, &mut state, offset);
                return Ok(());
            }
            let is_recovered = missed == Some(Missed::Nothing);
            if missed.is_some() {
                self.counters.count_resume(match is_recovered {
                    true => ResumeOutcome::Recovered,
                    false => ResumeOutcome::NotRecovered,
                });
            }
            state.counts.add(conn.shard());
            self.note_attendance(&mut state);
            let reply = topic.subscribed(state.sent(&topic.class), is_recovered);
            credit.push(Command::Subscribe { conn, topic: topic.id, reply });
            return Ok(());
        }
    }

    fn begin_resume(
        &self,
        credit: Credit<'_, OwnedFd>,
        conn: ConnId,
        topic: &Arc<Topic>,
        state: &mut State,
        offset: u64,
    ) {
        let begin = ReplayBegin {
            reply: topic.subscribed(offset, true),
            reply_if_member: topic.subscribed(state.sent(&topic.class), false),
        };
        let number = self.resumes.number();
        let mut chunk = self.chunk(conn, topic, state, (number, offset));
        chunk.begin = Some(begin);
        if chunk.is_last {
            self.counters.count_resume(ResumeOutcome::Recovered);
            state.counts.add(conn.shard());
        } else if self.resumes.begin(conn, topic.id, number) {
            state.extra_mut().resuming += 1;
        }
        self.note_attendance(state);
        credit.push(Command::Resume(Box::new(chunk)));
    }

    /// A connection that resumes a topic has room for more.
    pub(crate) fn resume_next(
        &self,
        credit: Credit<'_, OwnedFd>,
        conn: ConnId,
        id: TopicId,
        (number, after): (u32, u64),
    ) {
        // Called off meanwhile, or gone.
        if !self.resumes.is_running(conn, id, number) {
            return;
        }
        let Some(topic) = self.ids.topic(id) else {
            debug_assert!(false, "a topic lives as long as it is resumed");
            return;
        };
        let mut state = topic.lock();
        if !state.extra.as_ref().is_some_and(|extra| extra.ring.reaches(after)) {
            self.counters.count_resume(ResumeOutcome::FellBehind);
            let reply = topic.fell_behind(after);
            credit.push(Command::Unsubscribe { conn, topic: id, reply });
            self.end_resume(conn, &topic, &mut state);
            return;
        }
        let chunk = self.chunk(conn, &topic, &state, (number, after));
        if chunk.is_last {
            self.counters.count_resume(ResumeOutcome::Recovered);
            state.counts.add(conn.shard());
            self.end_resume(conn, &topic, &mut state);
        }
        credit.push(Command::Resume(Box::new(chunk)));
    }

    fn chunk(
        &self,
        conn: ConnId,
        topic: &Topic,
        state: &State,
        (resume, after): (u32, u64),
    ) -> ReplayChunk {
        let ring = state.extra.as_ref().map(|extra| &extra.ring);
        let behind = ring.map(|ring| ring.behind(after, self.chunk_bytes_max));
        let (messages, is_last) = behind.unwrap_or_else(|| (Box::default(), true));
        let after = messages.last().map_or(after, |message| message.offset());
        ReplayChunk { conn, topic: topic.id, resume, begin: None, messages, after, is_last }
    }

    /// Takes a connection out of a topic and answers it; whether it was in it, only its shard knows.
    pub(crate) fn unsubscribe(&self, credit: Credit<'_, OwnedFd>, conn: ConnId, name: &str) {
        if let Some(topic) = self.find(name) {
            let mut state = topic.lock();
            if !state.ended {
                let reply = left(name);
                credit.push(Command::Unsubscribe { conn, topic: topic.id, reply });
                self.end_resume(conn, &topic, &mut state);
                return;
            }
        }
        credit.push(Command::Send(conn, Item::Frame(left(name))));
    }

    /// A connection has ended, and with it what it resumes.
    pub(crate) fn end_resumes(&self, conn: ConnId) {
        for Running { topic, .. } in self.resumes.end_all(conn) {
            self.let_go(topic);
        }
    }

    /// A shard has not begun a resume: nothing more comes of it.
    pub(crate) fn resume_refused(&self, conn: ConnId, id: TopicId, number: u32) {
        if self.resumes.end_refused(conn, id, number) {
            self.let_go(id);
        }
    }

    /// One resume less of a topic.
    fn let_go(&self, id: TopicId) {
        let Some(topic) = self.ids.topic(id) else {
            debug_assert!(false, "a topic lives as long as it is resumed");
            return;
        };
        let mut state = topic.lock();
        state.extra_mut().resuming -= 1;
        self.end_if_idle(&topic, &mut state);
    }

    fn end_resume(&self, conn: ConnId, topic: &Arc<Topic>, state: &mut State) {
        if self.resumes.end(conn, topic.id) {
            state.extra_mut().resuming -= 1;
            self.end_if_idle(topic, state);
        }
    }
}

impl Topic {
    pub(super) fn missed(&self, state: &State, position: Position) -> Missed {
        let sent = state.sent(&self.class);
        let Position { epoch, offset } = position;
        if epoch != self.epoch || offset > sent {
            return Missed::Unknown;
        }
        if offset == sent {
            return Missed::Nothing;
        }
        let reaches = |extra: &Extra| self.class.retention.is_some() && extra.ring.reaches(offset);
        match &state.extra {
            Some(extra) if reaches(extra) => Missed::Since(offset),
            Some(_) | None => Missed::Unknown,
        }
    }

    fn subscribed(&self, offset: u64, recovered: bool) -> Box<[u8]> {
        let position = Some(Position { epoch: self.epoch, offset });
        let topic = self.name.as_ref().to_owned();
        frames::encode(Kind::Subscribed(Subscribed { topic, position, recovered }))
    }

    fn fell_behind(&self, offset: u64) -> Box<[u8]> {
        let position = Some(Position { epoch: self.epoch, offset });
        let (topic, reason) = (self.name.as_ref().to_owned(), FELL_BEHIND.to_owned());
        frames::encode(Kind::Unsubscribed(Unsubscribed { topic, reason, position }))
    }
}

/// The answer to `Unsubscribe`. Without a position: which message was the last that was sent, only the shard knows.
pub(crate) fn left(topic: &str) -> Box<[u8]> {
    frames::encode(Kind::Unsubscribed(Unsubscribed {
        topic: topic.to_owned(),
        ..Unsubscribed::default()
    }))
}

/// Why a resume ends early: the topic no longer keeps what comes next.
const FELL_BEHIND: &str = "fell_behind";
