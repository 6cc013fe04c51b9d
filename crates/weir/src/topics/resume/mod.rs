//! Subscribing and resuming: the messages that a connection has missed, and then the new ones.
//!
//! If the missed messages fit one replay chunk, the router pushes it at once, with the membership.
//! Of a longer resume the router remembers only that it runs. The shard names connection, topic and
//! offset when it asks for the next chunk. A topic lives as long as a resume of it runs. A
//! connection whose next message is no longer retained has fallen behind. In a cluster, chunks that
//! are older than the ring come from the broker (`follow/replay.rs`).

mod handover;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use weir_broker::Name;
use weir_engine::{
    Command, ConnId, Credit, Footprint, Item, ReplayBegin, ReplayChunk, TopicId, rounded,
    rounded_table,
};
use weir_wire::v1::{Position, Subscribed, Unsubscribed, server_message::Kind};

use super::follow::Entry;
use super::{Extra, Router, SeededBug, State, Subscriber, Topic, lock, validate_name};
use crate::base::frames;
use crate::base::model::SubscribeError;
use crate::observe::counters::ResumeOutcome;

/// Resumes that take more than one chunk.
///
/// Shape: an entry for each connection with such a resume. It stays until the last chunk is pushed,
/// the shard refuses to begin the resume, the connection unsubscribes, or the connection ends. All
/// calls for one connection come from one task, in order.
#[derive(Default)]
pub(super) struct Resumes {
    running: Mutex<HashMap<ConnId, Vec<Running>, foldhash::fast::RandomState>>,
    numbers: AtomicU32,
}

/// A running resume of a topic by a connection.
#[derive(Debug, Clone, Copy)]
struct Running {
    topic: TopicId,
    /// The first of its numbers. An earlier number belongs to a resume that was cancelled.
    first: u32,
    /// The last of its numbers. The refusal of an earlier number does not end this resume.
    last: u32,
    /// The epoch whose messages it sends.
    epoch: u64,
    /// What is counted when its last part has left.
    outcome: ResumeOutcome,
    /// Whether it has been answered. Until then it waits for its topic.
    has_begun: bool,
}

/// The messages that a connection has missed since the position that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missed {
    Nothing,
    /// The messages after this offset; the ring has all of them.
    Since(u64),
    /// The messages after this offset. The ring lacks some that the broker may still keep.
    AtBroker(u64),
    Unknown,
}

impl Resumes {
    /// The running resumes.
    pub(super) fn footprint(&self) -> Footprint {
        let running = lock(&self.running);
        let table = rounded_table(running.capacity(), size_of::<(ConnId, Vec<Running>)>());
        let mut sum = Footprint::new(0, table);
        for of_conn in running.values() {
            let list = rounded(of_conn.capacity() * size_of::<Running>());
            sum += Footprint::new(of_conn.len(), list);
        }
        sum
    }

    pub(super) fn number(&self) -> u32 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes a running resume; returns whether it is new, and not one that has waited for its topic.
    /// `None`: the connection resumes this topic already.
    fn begin(
        &self,
        conn: ConnId,
        topic: TopicId,
        number: u32,
        (epoch, outcome): (u64, ResumeOutcome),
    ) -> Option<bool> {
        let mut running = lock(&self.running);
        let of_conn = running.entry(conn).or_default();
        if let Some(running) = of_conn.iter_mut().find(|running| running.topic == topic) {
            running.last = number;
            return (!std::mem::replace(&mut running.has_begun, true)).then_some(false);
        }
        let has_begun = true;
        of_conn.push(Running { topic, first: number, last: number, epoch, outcome, has_begun });
        Some(true)
    }

    /// Begins a resume that waits for its topic; `false`: the connection resumes the topic already.
    pub(super) fn begin_alone(
        &self,
        conn: ConnId,
        topic: TopicId,
        (number, epoch): (u32, u64),
    ) -> bool {
        let outcome = ResumeOutcome::Recovered;
        let mut running = lock(&self.running);
        let of_conn = running.entry(conn).or_default();
        let is_alone = of_conn.iter().all(|running| running.topic != topic);
        if is_alone {
            let has_begun = false;
            of_conn.push(Running { topic, first: number, last: number, epoch, outcome, has_begun });
        }
        is_alone
    }

    /// A resume that waited for its topic begins in this epoch; `false`: it has begun already.
    pub(super) fn restart(
        &self,
        conn: ConnId,
        topic: TopicId,
        number: u32,
        (epoch, outcome): (u64, ResumeOutcome),
    ) -> bool {
        let mut running = lock(&self.running);
        let is_it = |running: &&mut Running| running.topic == topic && running.last == number;
        let running = running.get_mut(&conn).and_then(|running| running.iter_mut().find(is_it));
        let Some(running) = running else { return false };
        (running.epoch, running.outcome) = (epoch, outcome);
        !std::mem::replace(&mut running.has_begun, true)
    }

    pub(super) fn is_running(&self, conn: ConnId, topic: TopicId, number: u32) -> bool {
        self.state_of(conn, topic, number).is_some()
    }

    /// The epoch whose messages a resume sends, and its outcome; `None`: it was cancelled, or has
    /// ended.
    pub(super) fn state_of(
        &self,
        conn: ConnId,
        topic: TopicId,
        number: u32,
    ) -> Option<(u64, ResumeOutcome)> {
        let running = lock(&self.running);
        // Numbers wrap around.
        let fits = |running: &Running| {
            running.topic == topic && number.wrapping_sub(running.first) <= u32::MAX / 2
        };
        let running = running.get(&conn)?.iter().find(|running| fits(running))?;
        Some((running.epoch, running.outcome))
    }

    /// Ends a resume, if it is running.
    fn end(&self, conn: ConnId, topic: TopicId) -> Option<Running> {
        self.end_if(conn, |running| running.topic == topic)
    }

    /// Ends the resume whose shard refused this number. A later number keeps it running.
    fn end_refused(&self, conn: ConnId, topic: TopicId, number: u32) -> Option<Running> {
        self.end_if(conn, |running| running.topic == topic && running.last == number)
    }

    /// Ends a resume that waits for its topic; `false`: it was cancelled, or has ended.
    pub(super) fn end_parked(&self, conn: ConnId, topic: TopicId, number: u32) -> bool {
        self.end_refused(conn, topic, number).is_some()
    }

    fn end_if(&self, conn: ConnId, is_it: impl FnMut(&Running) -> bool) -> Option<Running> {
        let mut running = lock(&self.running);
        let of_conn = running.get_mut(&conn)?;
        let at = of_conn.iter().position(is_it)?;
        let ended = of_conn.swap_remove(at);
        if of_conn.is_empty() {
            running.remove(&conn);
        }
        Some(ended)
    }

    pub(super) fn topics_of(&self, conn: ConnId) -> Vec<TopicId> {
        let running = lock(&self.running);
        let of_conn = running.get(&conn).map(Vec::as_slice).unwrap_or_default();
        of_conn.iter().map(|running| running.topic).collect()
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
    /// Subscribes a connection to a topic and begins the topic if it does not exist. `device` finds
    /// the id of its device; it is called only if the topic has presence.
    ///
    /// The credit belongs to the mailbox of the connection's shard; the caller took it without
    /// holding a lock. An error returns it, for the answer.
    pub(crate) fn subscribe<'a>(
        &self,
        credit: Credit<'a, OwnedFd>,
        name: &str,
        mut subscriber: Subscriber,
        device: impl Fn() -> Option<Name>,
    ) -> Result<(), (SubscribeError, Credit<'a, OwnedFd>)> {
        if let Err(error) = validate_name(name, self.name_bytes_max()) {
            return Err((SubscribeError::Name(error), credit));
        }
        loop {
            let topic = match self.find_or_begin(name) {
                Ok(topic) => topic,
                Err(error) => return Err((error.into(), credit)),
            };
            // Before the topic's lock, because the devices have one too.
            let device = if topic.class().presence { device() } else { None };
            let mut state = topic.lock();
            if state.ended {
                continue;
            }
            if self.is_still() {
                return Err((SubscribeError::Busy, credit));
            }
            if topic.class().presence && !self.make_place(&mut state, &mut subscriber, device) {
                self.end_if_idle(&topic, &mut state);
                return Err((SubscribeError::TooManyMembers, credit));
            }
            let (subscriber, credit) = if topic.class().is_cluster {
                match self.enter_or_park(credit, subscriber, (&topic, &mut state)) {
                    Entry::Now(subscriber, credit) => (subscriber, credit),
                    Entry::Parked => return Ok(()),
                    Entry::Refused(credit) => {
                        self.end_if_idle(&topic, &mut state);
                        return Err((SubscribeError::BrokerUnavailable, credit));
                    }
                }
            } else {
                (subscriber, credit)
            };
            self.enter(credit, subscriber, (&topic, &mut state), None);
            return Ok(());
        }
    }

    /// Makes a connection a member, or begins to send it what it has missed. `parked`: its number,
    /// if it has waited for the topic.
    pub(super) fn enter(
        &self,
        credit: Credit<'_, OwnedFd>,
        mut subscriber: Subscriber,
        (topic, state): (&Arc<Topic>, &mut State),
        parked: Option<u32>,
    ) {
        state.formats.add(subscriber.format);
        let position = subscriber.position.map(|position| {
            match self.is_seeded(SeededBug::ResumeAcrossEpochs) {
                true => Position { epoch: state.epoch, ..position },
                false => position,
            }
        });
        let missed = position.map(|position| topic.missed(state, position));
        if let Some(Missed::Since(offset)) = missed {
            let from = (offset, ResumeOutcome::Recovered);
            return self.begin_resume(credit, subscriber, (topic, state), from, parked);
        }
        let from_broker = missed.and_then(|missed| topic.asked_of_broker(state, missed));
        if let Some(after) = from_broker {
            subscriber.position = position;
            return self.wait_for_broker(credit, subscriber, (topic, state), parked, after);
        }
        let oldest = state.extra.as_ref().and_then(|extra| extra.ring.oldest());
        if let (Some(Missed::Unknown), Some(offset)) = (missed, oldest)
            && topic.class().resumes_from_oldest
        {
            let from = (offset, ResumeOutcome::NotRecovered);
            return self.begin_resume(credit, subscriber, (topic, state), from, parked);
        }
        let is_recovered = missed.map(|missed| missed == Missed::Nothing);
        self.enter_at_end(credit, subscriber, (topic, state), is_recovered, parked);
    }

    /// Makes a connection a member, which gets the next message first. `is_recovered`: if it came
    /// with a position, whether it has missed nothing.
    pub(super) fn enter_at_end(
        &self,
        credit: Credit<'_, OwnedFd>,
        mut subscriber: Subscriber,
        (topic, state): (&Arc<Topic>, &mut State),
        is_recovered: Option<bool>,
        parked: Option<u32>,
    ) {
        let conn = subscriber.conn;
        if let Some(is_recovered) = is_recovered {
            self.counters.count_resume(match is_recovered {
                true => ResumeOutcome::Recovered,
                false => ResumeOutcome::NotRecovered,
            });
        }
        self.add_member(topic, state, conn.shard());
        self.enter_presence(topic, state, &mut subscriber);
        if let Some(number) = parked {
            self.end_parked(conn, topic, state, number);
        }
        self.note_attendance(topic, state);
        let is_recovered = is_recovered == Some(true);
        let reply = topic.subscribed(state.epoch, state.sent(&topic.class()), is_recovered);
        credit.push(Command::Subscribe { conn, topic: topic.id, reply });
    }

    pub(super) fn begin_resume(
        &self,
        credit: Credit<'_, OwnedFd>,
        mut subscriber: Subscriber,
        (topic, state): (&Arc<Topic>, &mut State),
        (offset, outcome): (u64, ResumeOutcome),
        parked: Option<u32>,
    ) {
        let conn = subscriber.conn;
        let number = parked.unwrap_or_else(|| self.resumes.number());
        let mut chunk = self.chunk(conn, topic, state, (number, offset));
        chunk.begin = Some(topic.replay_begin(state, (offset, outcome)));
        if chunk.is_last {
            self.counters.count_resume(outcome);
            self.add_member(topic, state, conn.shard());
            self.enter_presence(topic, state, &mut subscriber);
            if let Some(number) = parked {
                self.end_parked(conn, topic, state, number);
            }
        } else if parked.is_some() {
            if self.resumes.restart(conn, topic.id, number, (state.epoch, outcome)) {
                self.enter_presence(topic, state, &mut subscriber);
            }
        } else if let Some(is_new) =
            self.resumes.begin(conn, topic.id, number, (state.epoch, outcome))
        {
            state.extra_mut().resuming += u32::from(is_new);
            self.enter_presence(topic, state, &mut subscriber);
        }
        self.note_attendance(topic, state);
        credit.push(Command::Resume(Box::new(chunk)));
    }

    /// Pushes the next chunk of a resume, for a connection that has room for it. `false`: the router
    /// stands still.
    pub(crate) fn resume_next(
        &self,
        credit: Credit<'_, OwnedFd>,
        conn: ConnId,
        id: TopicId,
        (number, after): (u32, u64),
    ) -> bool {
        // The resume was cancelled meanwhile, or has ended.
        let Some((epoch, outcome)) = self.resumes.state_of(conn, id, number) else { return true };
        let Some(topic) = self.ids.topic(id) else {
            debug_assert!(false, "a topic lives as long as it is resumed");
            return true;
        };
        let mut state = topic.lock();
        if self.is_still() {
            return false;
        }
        let is_retained = topic.class().retention.is_some();
        let reaches = state.extra.as_ref().is_some_and(|extra| extra.ring.reaches(after));
        let has_next = is_retained && reaches;
        if epoch == state.epoch && !has_next && topic.may_be_kept(&state, after) {
            self.read_next(&topic, (conn, number), after);
            return true;
        }
        if epoch != state.epoch || !has_next {
            self.fall_behind(credit, conn, (&topic, &mut state), (epoch, after));
            return true;
        }
        let chunk = self.chunk(conn, &topic, &state, (number, after));
        if chunk.is_last {
            self.counters.count_resume(outcome);
            self.add_member(&topic, &mut state, conn.shard());
            // Its presence is that of the membership from here on.
            if self.resumes.end(conn, id).is_some() {
                state.extra_mut().resuming -= 1;
            }
        }
        credit.push(Command::Resume(Box::new(chunk)));
        true
    }

    /// Ends a resume whose next message is retained no more.
    pub(super) fn fall_behind(
        &self,
        credit: Credit<'_, OwnedFd>,
        conn: ConnId,
        (topic, state): (&Arc<Topic>, &mut State),
        (epoch, after): (u64, u64),
    ) {
        self.counters.count_resume(ResumeOutcome::FellBehind);
        let reply = topic.fell_behind(epoch, after);
        credit.push(Command::Unsubscribe { conn, topic: topic.id, reply });
        self.cancel_resume(conn, topic, state);
    }

    fn chunk(
        &self,
        conn: ConnId,
        topic: &Topic,
        state: &State,
        (resume, after): (u32, u64),
    ) -> ReplayChunk {
        let ring = state.extra.as_ref().map(|extra| &extra.ring);
        let behind = ring.map(|ring| ring.behind(after, self.chunk_bytes_max()));
        let (messages, is_last) = behind.unwrap_or_else(|| (Box::default(), true));
        let after = messages.last().map_or(after, |message| message.offset());
        ReplayChunk { conn, topic: topic.id, resume, begin: None, messages, after, is_last }
    }

    /// Takes a connection out of a topic and answers it. Only the shard knows whether it was a
    /// member. `false`: the router stands still.
    pub(crate) fn unsubscribe(
        &self,
        credit: Credit<'_, OwnedFd>,
        conn: ConnId,
        name: &str,
    ) -> bool {
        self.end_subscription(credit, conn, name, left(name))
    }

    /// The same for a connection that may no longer be in the topic.
    pub(crate) fn expel(&self, credit: Credit<'_, OwnedFd>, conn: ConnId, name: &str) -> bool {
        let (topic, reason) = (name.to_owned(), NOT_PERMITTED.to_owned());
        let told = Unsubscribed { topic, reason, ..Unsubscribed::default() };
        self.end_subscription(credit, conn, name, frames::encode(Kind::Unsubscribed(told)))
    }

    fn end_subscription(
        &self,
        credit: Credit<'_, OwnedFd>,
        conn: ConnId,
        name: &str,
        reply: Box<[u8]>,
    ) -> bool {
        if let Some(topic) = self.find(name) {
            let mut state = topic.lock();
            if self.is_still() {
                return false;
            }
            if !state.ended {
                credit.push(Command::Unsubscribe { conn, topic: topic.id, reply });
                self.end_watch(&topic, &mut state, conn);
                self.cancel_resume(conn, &topic, &mut state);
                return true;
            }
        }
        if self.is_still() {
            return false;
        }
        credit.push(Command::Send(conn, Item::Frame(reply)));
        true
    }

    /// Ends all resumes of a connection that has ended.
    pub(crate) fn end_resumes(&self, conn: ConnId) {
        for running in self.resumes.end_all(conn) {
            self.let_go(conn, running);
        }
    }

    /// Ends a resume that its shard refused to begin.
    pub(crate) fn resume_refused(&self, conn: ConnId, id: TopicId, number: u32) {
        if let Some(running) = self.resumes.end_refused(conn, id, number) {
            self.let_go(conn, running);
        }
    }

    /// Counts one resume of a topic less.
    fn let_go(&self, conn: ConnId, running: Running) {
        let Some(topic) = self.ids.topic(running.topic) else {
            debug_assert!(false, "a topic lives as long as it is resumed");
            return;
        };
        let mut state = topic.lock();
        self.let_go_of(conn, &topic, &mut state, running);
    }

    fn let_go_of(&self, conn: ConnId, topic: &Arc<Topic>, state: &mut State, running: Running) {
        state.extra_mut().resuming -= 1;
        if running.has_begun {
            self.exit_presence(topic, state, conn);
        }
        self.end_if_idle(topic, state);
    }

    fn cancel_resume(&self, conn: ConnId, topic: &Arc<Topic>, state: &mut State) {
        if let Some(running) = self.resumes.end(conn, topic.id) {
            self.let_go_of(conn, topic, state, running);
        }
    }
}

impl Topic {
    pub(super) fn missed(&self, state: &State, position: Position) -> Missed {
        let sent = state.sent(&self.class());
        let Position { epoch, offset } = position;
        if epoch != state.epoch || offset > sent {
            return Missed::Unknown;
        }
        if offset == sent {
            return Missed::Nothing;
        }
        let reaches =
            |extra: &Extra| self.class().retention.is_some() && extra.ring.reaches(offset);
        match &state.extra {
            Some(extra) if reaches(extra) => Missed::Since(offset),
            Some(_) if self.may_be_kept(state, offset) => Missed::AtBroker(offset),
            Some(_) | None => Missed::Unknown,
        }
    }

    /// The answer at the beginning of a resume behind this offset.
    pub(super) fn replay_begin(
        &self,
        state: &State,
        (offset, outcome): (u64, ResumeOutcome),
    ) -> ReplayBegin {
        let is_recovered = outcome == ResumeOutcome::Recovered;
        ReplayBegin {
            reply: self.subscribed(state.epoch, offset, is_recovered),
            reply_if_member: self.subscribed(state.epoch, state.sent(&self.class()), false),
        }
    }

    pub(super) fn subscribed(&self, epoch: u64, offset: u64, recovered: bool) -> Box<[u8]> {
        let position = Some(Position { epoch, offset });
        let topic = self.name.as_ref().to_owned();
        frames::encode(Kind::Subscribed(Subscribed { topic, position, recovered }))
    }

    fn fell_behind(&self, epoch: u64, offset: u64) -> Box<[u8]> {
        let position = Some(Position { epoch, offset });
        let (topic, reason) = (self.name.as_ref().to_owned(), FELL_BEHIND.to_owned());
        frames::encode(Kind::Unsubscribed(Unsubscribed { topic, reason, position }))
    }
}

/// The answer to `Unsubscribe`. It has no position: only the shard knows the last message sent.
pub(crate) fn left(topic: &str) -> Box<[u8]> {
    frames::encode(Kind::Unsubscribed(Unsubscribed {
        topic: topic.to_owned(),
        ..Unsubscribed::default()
    }))
}

/// The reason why a subscription ends after a reload: the topic's class no longer permits it.
const NOT_PERMITTED: &str = "not_permitted";
/// The reason why a resume ends early: the topic no longer retains the next message.
const FELL_BEHIND: &str = "fell_behind";
