//! Resumes that reach further back than the ring of this node: the broker is asked for what the
//! ring lacks, part by part, until the ring goes on.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weir_broker::{History, Name};
use weir_engine::{Command, ConnId, Credit, ReplayChunk};

use super::apply::Arrived;
use super::needs::Replay;
use super::parked::{Parked, tell_unreachable};
use super::{Acted, Source};
use crate::base::mailboxes;
use crate::observe::counters::ResumeOutcome;
use crate::topics::resume::Missed;
use crate::topics::{MessagePosition, Router, State, Subscriber, Topic};

impl Topic {
    /// Whether the broker may keep messages behind this offset that the ring has let go of.
    pub(in crate::topics) fn may_be_kept(&self, state: &State, after: u64) -> bool {
        let is_cut = state.extra.as_ref().is_some_and(|extra| extra.ring.is_cut());
        is_cut && self.kept_behind(state).is_some_and(|behind| behind <= after)
    }

    /// The offset behind which the broker may keep messages.
    fn kept_behind(&self, state: &State) -> Option<u64> {
        let retention = self.class().retention.filter(|_| self.class().is_cluster)?;
        let messages_max = u64::try_from(retention.messages_max).unwrap_or(u64::MAX);
        Some(state.offset.saturating_sub(messages_max))
    }

    /// Behind which offset the broker is to be asked for what a connection gets first.
    pub(in crate::topics) fn asked_of_broker(&self, state: &State, missed: Missed) -> Option<u64> {
        match missed {
            Missed::AtBroker(offset) => Some(offset),
            Missed::Unknown if self.class().resumes_from_oldest => {
                self.kept_behind(state).filter(|behind| self.may_be_kept(state, *behind))
            }
            Missed::Unknown | Missed::Nothing | Missed::Since(_) => None,
        }
    }
}

impl Router {
    /// A subscription waits for what the broker keeps behind this offset.
    pub(in crate::topics) fn wait_for_broker(
        &self,
        credit: Credit<'_, OwnedFd>,
        subscriber: Subscriber,
        (topic, state): (&Arc<Topic>, &mut State),
        parked: Option<u32>,
        after: u64,
    ) {
        let conn = subscriber.conn;
        let number = match parked {
            Some(number) => number,
            None if !self.may_wait() => return tell_unreachable(credit, conn, topic),
            None => match self.begin_to_wait(credit, conn, (topic, state)) {
                Some(number) => number,
                None => return,
            },
        };
        self.parked.fetch_add(1, Ordering::Relaxed);
        self.read_part(topic, (conn, number), after, Some(subscriber));
    }

    /// A running resume goes on with what the broker keeps behind this offset.
    pub(in crate::topics) fn read_next(
        &self,
        topic: &Topic,
        (conn, number): (ConnId, u32),
        after: u64,
    ) {
        self.read_part(topic, (conn, number), after, None);
    }

    fn read_part(
        &self,
        topic: &Topic,
        (conn, number): (ConnId, u32),
        after: u64,
        first: Option<Subscriber>,
    ) {
        self.counters.count_resume_read();
        let replay = Replay {
            topic: Name::from(topic.name.as_ref()),
            after,
            bytes_max: self.chunk_bytes_max(),
            conn,
            number,
            first,
        };
        self.needs.push_replay(topic.id, replay);
    }

    /// Hands a resume the part that it has waited for; `None`: the broker has not answered.
    pub(crate) async fn answer_replay(&self, replay: Replay, history: Option<&History>) {
        let credit = mailboxes::credit(&self.mailboxes[replay.conn.shard()]).await;
        let (name, mut asked) = (Name::clone(&replay.topic), Some(replay));
        let acted = self.act(&name, |topic, state| {
            let Some(replay) = asked.take() else { return };
            self.note_answer(&replay);
            let Replay { after, conn, number, first, .. } = replay;
            // The connection may have gone meanwhile, or have unsubscribed.
            let Some((epoch, _)) = self.resumes.state_of(conn, topic.id, number) else { return };
            match first {
                Some(subscriber) => {
                    let parked = Parked { subscriber, number };
                    self.begin_replay(credit, (topic, state), parked, history);
                }
                None => {
                    let history = history
                        .filter(|history| history.top.epoch == epoch && state.epoch == epoch);
                    let part = history.and_then(|history| {
                        self.part_of(history, (topic, state), (conn, number), after)
                    });
                    match part {
                        Some(chunk) => credit.push(Command::Resume(Box::new(chunk))),
                        None => self.fall_behind(credit, conn, (topic, state), (epoch, after)),
                    }
                }
            }
        });
        match (acted, asked) {
            (Acted::Still, Some(replay)) => self.needs.ask_again(replay),
            (Acted::Gone, Some(replay)) => self.note_answer(&replay),
            (Acted::Done(()) | Acted::Still | Acted::Gone, _) => {}
        }
    }

    fn note_answer(&self, replay: &Replay) {
        self.needs.note_answer(replay.conn, replay.number);
        if replay.first.is_some() {
            self.parked.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Answers a subscription from what the broker keeps.
    fn begin_replay(
        &self,
        credit: Credit<'_, OwnedFd>,
        (topic, state): (&Arc<Topic>, &mut State),
        parked: Parked,
        history: Option<&History>,
    ) {
        let (conn, number) = (parked.subscriber.conn, parked.number);
        let position = parked.subscriber.position;
        let refuse = |state: &mut State, credit| {
            self.end_parked(conn, topic, state, number);
            tell_unreachable(credit, conn, topic);
        };
        let Some(history) = history else { return refuse(state, credit) };
        if history.top.epoch != state.epoch {
            // One of the two knows the newer epoch: the answer waits until both do.
            self.parked.fetch_add(1, Ordering::Relaxed);
            state.cluster().parked.push(parked);
            return self.check(topic, state);
        }
        let (after, outcome) = match position.map(|position| topic.missed(state, position)) {
            Some(Missed::AtBroker(offset)) if history.first <= offset + 1 => {
                (offset, ResumeOutcome::Recovered)
            }
            Some(Missed::AtBroker(_) | Missed::Unknown)
                if topic.class().resumes_from_oldest
                    && history.first <= state.sent(&topic.class()) =>
            {
                (history.first - 1, ResumeOutcome::NotRecovered)
            }
            Some(Missed::AtBroker(_) | Missed::Unknown) => {
                let waited = Some(number);
                return self.enter_at_end(
                    credit,
                    parked.subscriber,
                    (topic, state),
                    Some(false),
                    waited,
                );
            }
            // The ring reaches it now.
            Some(Missed::Nothing | Missed::Since(_)) | None => {
                return self.enter(credit, parked.subscriber, (topic, state), Some(number));
            }
        };
        if state.extra_mut().ring.reaches(after) {
            let from = (after, outcome);
            return self.begin_resume(
                credit,
                parked.subscriber,
                (topic, state),
                from,
                Some(number),
            );
        }
        let part = self.part_of(history, (topic, state), (conn, number), after);
        let Some(mut chunk) = part else { return refuse(state, credit) };
        chunk.begin = Some(topic.replay_begin(state, (after, outcome)));
        if self.resumes.restart(conn, topic.id, number, (state.epoch, outcome)) {
            let mut subscriber = parked.subscriber;
            self.enter_presence(topic, state, &mut subscriber);
        }
        credit.push(Command::Resume(Box::new(chunk)));
    }

    /// The messages that follow on an offset. `None`: the next one is not there, or the budget has
    /// no room for it. It is never the last part: the ring has that.
    fn part_of(
        &self,
        history: &History,
        (topic, state): (&Topic, &State),
        (conn, resume): (ConnId, u32),
        behind: u64,
    ) -> Option<ReplayChunk> {
        let (mut messages, mut bytes, mut after) = (Vec::new(), 0, behind);
        // What this node has not sent yet comes to members, when it is sent.
        let sent = state.sent(&topic.class());
        for received in history.messages.iter().filter(|received| received.offset > behind) {
            if received.offset != after + 1 || received.offset > sent {
                break;
            }
            match Arrived::read(received, Source::Kept) {
                Err(unread) => self.pass_over(unread, 1),
                Ok(arrived) => {
                    let (epoch, offset, shift) = (state.epoch, received.offset, state.shift());
                    let place = MessagePosition { topic: Some(topic.id), epoch, offset, shift };
                    let message = arrived.message(&self.budget, &topic.class(), place);
                    let Some(message) = message else { break };
                    bytes += message.frame().len();
                    if bytes > self.chunk_bytes_max() && !messages.is_empty() {
                        break;
                    }
                    messages.push(message);
                }
            }
            after = received.offset;
        }
        let (messages, begin, is_last) = (messages.into(), None, false);
        let chunk = ReplayChunk { conn, topic: topic.id, resume, begin, messages, after, is_last };
        (after > behind).then_some(chunk)
    }
}
