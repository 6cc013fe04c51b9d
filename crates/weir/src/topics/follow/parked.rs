//! Subscribers that wait until a topic of the cluster can answer them, and topics that wait for
//! subscribers to come back.

use std::hash::BuildHasher;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use weir_broker::Name;
use weir_engine::{Command, ConnId, Credit, CreditKind, Item, Nanos};
use weir_wire::ErrorCode;

use super::{Need, Phase};
use crate::base::frames;
use crate::observe::counters::ClusterLimit;
use crate::topics::{NotBegun, Router, State, Subscriber, Topic, lock};

/// A connection that waits for a topic.
///
/// The list of resumes has it too, under the same number: there its end, or its `Unsubscribe`,
/// takes it out. So no answer goes to a connection that has gone.
#[derive(Debug)]
pub(in crate::topics) struct Parked {
    pub(super) subscriber: Subscriber,
    pub(super) number: u32,
}

/// What becomes of a subscription to a topic of the cluster.
pub(in crate::topics) enum Entry<'a> {
    /// It can be answered now.
    Now(Subscriber, Credit<'a, OwnedFd>),
    /// It waits; the credit has been given back.
    Parked,
    /// The broker cannot be reached, or too many wait.
    Refused(Credit<'a, OwnedFd>),
}

/// Whether this node follows a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Followed {
    /// It does, or the topic belongs to this node alone.
    Live,
    /// It will, when the broker has answered.
    Waits,
    /// The broker cannot be reached, or there are too many topics.
    Refused,
}

impl Router {
    /// Begins to follow a topic of the cluster without subscribing, for those who only look.
    pub(crate) fn follow(&self, name: &str) -> Followed {
        if !self.destination(name).class().is_cluster {
            return Followed::Live;
        }
        if self.is_broker_lost() {
            return Followed::Refused;
        }
        loop {
            let is_new = self.find(name).is_none();
            if is_new && self.unattended.load(Ordering::Relaxed) >= self.unattended_max() {
                return Followed::Refused;
            }
            let topic = match self.find_or_begin(name) {
                Ok(topic) => topic,
                Err(NotBegun::Still) => return Followed::Waits,
                Err(NotBegun::TooMany) => return Followed::Refused,
            };
            let mut state = topic.lock();
            if state.ended {
                continue;
            }
            if self.is_still() {
                return Followed::Waits;
            }
            self.note_attendance(&topic, &mut state);
            if state.is_unattended() {
                self.linger(&topic, &mut state);
            }
            return match state.cluster().phase {
                Phase::Live => Followed::Live,
                Phase::Joining | Phase::CatchingUp => Followed::Waits,
                Phase::Apart => {
                    self.join(&topic, &mut state);
                    Followed::Waits
                }
            };
        }
    }

    /// Whether a subscription can be answered from what this node knows; if not, it waits.
    pub(in crate::topics) fn enter_or_park<'a>(
        &self,
        credit: Credit<'a, OwnedFd>,
        subscriber: Subscriber,
        (topic, state): (&Arc<Topic>, &mut State),
    ) -> Entry<'a> {
        if self.is_broker_lost() {
            return Entry::Refused(credit);
        }
        let sent = state.sent(&topic.class());
        let is_known = subscriber
            .position
            .is_none_or(|position| position.epoch == state.epoch && position.offset <= sent);
        let phase = state.cluster().phase;
        if matches!(phase, Phase::Live | Phase::CatchingUp) && is_known {
            return Entry::Now(subscriber, credit);
        }
        if !self.may_wait() {
            return Entry::Refused(credit);
        }
        let conn = subscriber.conn;
        let Some(number) = self.begin_to_wait(credit, conn, (topic, state)) else {
            return Entry::Parked;
        };
        self.parked.fetch_add(1, Ordering::Relaxed);
        state.cluster().parked.push(Parked { subscriber, number });
        if phase == Phase::Apart {
            self.join(topic, state);
        } else {
            self.check(topic, state);
        }
        Entry::Parked
    }

    /// The number of a connection that waits from here on. `None`: it waits already, and is told so.
    pub(super) fn begin_to_wait(
        &self,
        credit: Credit<'_, OwnedFd>,
        conn: ConnId,
        (topic, state): (&Arc<Topic>, &mut State),
    ) -> Option<u32> {
        let number = self.resumes.number();
        if !self.resumes.begin_alone(conn, topic.id, (number, state.epoch)) {
            let message = "connection is subscribing to this topic; wait for the answer";
            let frame = frames::error(ErrorCode::Busy, message.to_owned(), &topic.name, 0);
            credit.push(Command::Send(conn, Item::Frame(frame)));
            return None;
        }
        state.extra_mut().resuming += 1;
        self.note_attendance(topic, state);
        Some(number)
    }

    /// Whether one more subscription may wait.
    pub(super) fn may_wait(&self) -> bool {
        let may = self.parked_count() < PARKED_MAX;
        if !may {
            self.counters.count_cluster_limit(ClusterLimit::Subscriptions);
        }
        may
    }

    /// Subscriptions that wait.
    pub(crate) fn parked_count(&self) -> usize {
        self.parked.load(Ordering::Relaxed)
    }

    /// Answers those who wait: this node knows now what the broker knew after they came.
    pub(super) fn answer_parked(&self, topic: &Arc<Topic>, state: &mut State) {
        if state.cluster().parked.is_empty() {
            return;
        }
        // They may have seen what another node's tick has sent already.
        if topic.class().tick.is_some() && !self.end_tick(topic, state) {
            return self.retry(topic, state);
        }
        self.end_waits(topic, state, |credit, Parked { subscriber, number }, state| {
            self.enter(credit, subscriber, (topic, state), Some(number));
        });
    }

    /// Calls `end` for each of those who wait and are still there. Where a mailbox has no room, the rest goes on waiting
    /// until the topic's next retry.
    fn end_waits<'a>(
        &'a self,
        topic: &Arc<Topic>,
        state: &mut State,
        mut end: impl FnMut(Credit<'a, OwnedFd>, Parked, &mut State),
    ) {
        while let Some(parked) = state.cluster().parked.pop() {
            let conn = parked.subscriber.conn;
            if self.resumes.is_running(conn, topic.id, parked.number) {
                let mailbox = &self.mailboxes[conn.shard()];
                let Some(credit) = mailbox.try_credit(CreditKind::Control) else {
                    state.cluster().parked.push(parked);
                    return self.retry(topic, state);
                };
                end(credit, parked, state);
            }
            self.parked.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Takes a connection out of the list of resumes; `false`: it has gone, or has unsubscribed.
    pub(in crate::topics) fn end_parked(
        &self,
        conn: ConnId,
        topic: &Topic,
        state: &mut State,
        number: u32,
    ) -> bool {
        let was_running = self.resumes.end_parked(conn, topic.id, number);
        if was_running {
            state.extra_mut().resuming -= 1;
        }
        was_running
    }

    /// Tells those who wait to come back later. Those for whom a mailbox has no room now are told soon, or answered if
    /// the topic can begin by then.
    pub(super) fn refuse_parked(&self, topic: &Arc<Topic>, state: &mut State) {
        self.end_waits(topic, state, |credit, Parked { subscriber, number }, state| {
            self.end_parked(subscriber.conn, topic, state, number);
            tell_unreachable(credit, subscriber.conn, topic);
        });
    }

    /// A topic of the cluster has lost its last subscriber: it is followed for some time, for those
    /// who come back.
    pub(in crate::topics) fn linger(&self, topic: &Arc<Topic>, state: &mut State) {
        let now = Nanos::now();
        let cluster = state.cluster();
        cluster.empty_since = now;
        cluster.lingers = true;
        if !std::mem::replace(&mut cluster.is_listed, true) {
            lock(&self.lingering).push_back((now, Arc::clone(topic)));
        }
    }

    /// Leaves topics that have had no subscriber for `delay`; how long until the next one is due.
    pub(crate) fn leave_empty(&self, delay: Duration, now: Nanos) -> Duration {
        loop {
            let topic = {
                let mut lingering = lock(&self.lingering);
                match lingering.front() {
                    None => return delay,
                    Some((since, _)) if since.after(delay) > now => {
                        return since.after(delay).since(now);
                    }
                    Some(_) => lingering.pop_front(),
                }
            };
            let Some((listed, topic)) = topic else { return delay };
            let mut state = topic.lock();
            if state.ended {
                continue;
            }
            if self.is_still() {
                lock(&self.lingering).push_front((listed, Arc::clone(&topic)));
                return delay;
            }
            let is_empty = state.is_unattended();
            let cluster = state.cluster();
            cluster.is_listed = false;
            if !is_empty {
                cluster.lingers = false;
            } else if cluster.empty_since.after(delay) > now {
                // Somebody was here meanwhile.
                cluster.is_listed = true;
                let since = cluster.empty_since;
                lock(&self.lingering).push_back((since, Arc::clone(&topic)));
            } else {
                cluster.lingers = false;
                self.end_if_idle(&topic, &mut state);
            }
        }
    }

    /// The broker may not have heard that this node has left a topic: it is told again, unless the
    /// topic is wanted meanwhile.
    pub(crate) fn leave_again(&self, name: &Name) {
        let hash = self.hasher.hash_one(name.as_ref());
        let topic = {
            let stripe = lock(self.stripe(hash));
            let found = stripe.find(hash, |topic| topic.name.as_ref() == name.as_ref());
            let Some(topic) = found else {
                // Under this lock, so that a join comes behind it.
                return self.needs.push(Need::Leave(Name::clone(name)));
            };
            Arc::clone(topic)
        };
        let mut state = topic.lock();
        // One that has ended meanwhile has told so itself, or was apart as well. Another process that
        // takes over has joined nothing.
        if state.cluster().phase == Phase::Apart && !state.ended {
            self.needs.push(Need::Leave(Name::clone(name)));
        }
    }

    /// A topic of the cluster has ended: what it holds goes, and the broker forgets this node.
    pub(in crate::topics) fn leave_broker(&self, topic: &Topic, state: &mut State) {
        self.drop_held(state);
        // Nobody waits for an answer any more: a subscription that waits keeps its topic.
        let cancelled = std::mem::take(&mut state.cluster().parked).len();
        self.parked.fetch_sub(cancelled, Ordering::Relaxed);
        let extra = state.extra_mut();
        extra.ring.begin_behind(0, &self.retained);
        extra.tick.forget(0);
        if state.cluster().phase != Phase::Apart {
            self.needs.push(Need::Leave(Name::from(topic.name.as_ref())));
        }
    }
}

/// Tells a connection to try again later.
pub(super) fn tell_unreachable(credit: Credit<'_, OwnedFd>, conn: ConnId, topic: &Topic) {
    let message = "the broker cannot be reached; try again in a second".to_owned();
    let frame = frames::error(ErrorCode::Busy, message, &topic.name, 0);
    credit.push(Command::Send(conn, Item::Frame(frame)));
}

/// Subscriptions that wait, of all topics together: 21 MB.
pub(in crate::topics) const PARKED_MAX: usize = 1 << 18;
