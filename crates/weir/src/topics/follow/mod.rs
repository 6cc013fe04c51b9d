//! Follows the topics of a cluster: applies their messages in the order of the broker, finds and
//! fills gaps, and lets subscribers wait until the topic can tell them the truth.
//!
//! ```text
//!            subscriber                 read to the top
//!   Apart ──────────────► Joining ───────────────────────► Live ◄─────────────┐
//!     ▲                      │                               │ gap, no room,  │ read to the top,
//!     │ the broker refuses   │                               │ unknown place  │ all applied
//!     └──────────────────────┘                               └──► CatchingUp ─┘
//! ```
//!
//! Nothing here waits or talks to the broker: a topic lists what it needs ([`Need`]), and the
//! answers come back by the methods of [`Router`]. So a simulation can play the broker.

mod apply;
mod envelope;
mod handover;
mod history;
mod needs;
mod parked;
mod replay;
mod seeded_bug;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weir_broker::{History, Name, Position, Received, Scope};
use weir_engine::{Nanos, Share};

use super::{Router, State, Topic};
use crate::base::clock::unix_millis;
use crate::observe::counters::{ClusterLimit, Following};
pub(crate) use envelope::Envelope;
pub(crate) use needs::{Need, Needs, Question, Replay};
pub(super) use parked::Entry;
pub(crate) use parked::Followed;
#[cfg(test)]
pub(super) use parked::PARKED_MAX;
use parked::Parked;
pub(crate) use seeded_bug::SeededBug;

/// How far this node follows a topic of the cluster.
///
/// Shape: in the `Extra` of such a topic; nothing waits in it at rest.
/// Limits: [`HELD_MAX`] messages that wait for earlier ones, charged to the byte budget.
pub(super) struct ClusterTopic {
    phase: Phase,
    /// Live messages that cannot be applied yet, as they came.
    held: VecDeque<(u64, Received)>,
    /// Connections that wait for the topic.
    parked: Vec<Parked>,
    /// The question whose answer the topic waits for.
    asked: Option<Question>,
    /// A retry is under way.
    is_retrying: bool,
    /// Something may have been missed since the last read began.
    again: bool,
    /// Offset and shift give the order of a message on this node: see `TopicMessage::shift`.
    shift: u64,
    /// When the last subscriber left.
    empty_since: Nanos,
    /// Whether the topic is kept for subscribers that may come back.
    lingers: bool,
    /// Whether the list of lingering topics has it.
    is_listed: bool,
}

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Apart,
    Joining,
    Live,
    CatchingUp,
}

/// What became of a message that was to be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Applied,
    /// A mailbox or the budget has no room.
    NoRoom,
}

/// Where a message comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The subscription: it was accepted a moment ago.
    Live,
    /// A read: its age is in it.
    Kept,
}

/// Whether something was done with a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Acted<T> {
    Done(T),
    /// There is no topic of this name.
    Gone,
    /// The router stands still.
    Still,
}

impl ClusterTopic {
    pub(super) fn new() -> ClusterTopic {
        ClusterTopic {
            phase: Phase::Apart,
            held: VecDeque::new(),
            parked: Vec::new(),
            asked: None,
            is_retrying: false,
            again: false,
            shift: 0,
            empty_since: Nanos::default(),
            lingers: false,
            is_listed: false,
        }
    }

    pub(super) fn shift(&self) -> u64 {
        self.shift
    }

    pub(super) fn lingers(&self) -> bool {
        self.lingers
    }
}

impl State {
    fn cluster(&mut self) -> &mut ClusterTopic {
        let cluster = self.extra_mut().cluster.as_mut();
        cluster.expect("a topic of the cluster has its state")
    }
}

impl Router {
    /// What the topics need from the broker.
    pub(crate) fn needs(&self) -> &Needs {
        &self.needs
    }

    /// The broker has been lost, or is back: subscriptions are refused meanwhile.
    pub(crate) fn set_broker_lost(&self, is_lost: bool) {
        if self.broker_lost.swap(is_lost, Ordering::Relaxed) != is_lost {
            self.broker_since_ms.store(unix_millis(), Ordering::Relaxed);
        }
    }

    /// When the broker was lost or came back last, or this node started, in milliseconds since 1970.
    pub(crate) fn broker_since_ms(&self) -> u64 {
        self.broker_since_ms.load(Ordering::Relaxed)
    }

    /// Whether the broker cannot be reached.
    pub(crate) fn is_broker_lost(&self) -> bool {
        self.broker_lost.load(Ordering::Relaxed)
    }

    /// Messages of a topic from the subscription.
    ///
    /// Cost: the topic's lock; a message is encoded once, as by a publish on this node.
    pub(crate) fn handle_messages(&self, name: &str, epoch: u64, messages: Vec<Received>) {
        let Some(topic) = self.find(name) else { return };
        let mut state = topic.lock();
        if state.ended || !topic.class().is_cluster {
            return;
        }
        if self.is_still() {
            return self.keep_for_later(&topic, &mut state, epoch, messages);
        }
        for message in messages {
            self.handle_live(&topic, &mut state, epoch, message);
        }
        self.end_if_idle(&topic, &mut state);
    }

    /// Acts on a topic that this node follows, or begins to follow.
    fn act<T>(&self, name: &str, act: impl FnOnce(&Arc<Topic>, &mut State) -> T) -> Acted<T> {
        let Some(topic) = self.find(name) else { return Acted::Gone };
        let mut state = topic.lock();
        if self.is_still() {
            return Acted::Still;
        }
        if state.ended || !topic.class().is_cluster {
            return Acted::Gone;
        }
        let done = act(&topic, &mut state);
        self.end_if_idle(&topic, &mut state);
        Acted::Done(done)
    }

    fn handle_live(&self, topic: &Arc<Topic>, state: &mut State, epoch: u64, message: Received) {
        let phase = state.cluster().phase;
        match phase {
            Phase::Apart => {}
            Phase::Joining | Phase::CatchingUp => self.hold(topic, state, epoch, message),
            Phase::Live if epoch != state.epoch => {
                self.hold(topic, state, epoch, message);
                self.check(topic, state);
            }
            Phase::Live if message.offset <= state.offset => {
                self.counters.count_followed(Following::Duplicate, 1);
            }
            Phase::Live => {
                let missing = message.offset - state.offset - 1;
                let is_kept = topic.class().retention.is_some();
                if missing > 0 && is_kept && !self.is_seeded(SeededBug::UnfilledGap) {
                    self.counters.count_followed(Following::Gap, 1);
                    self.hold(topic, state, epoch, message);
                    return self.check(topic, state);
                }
                // Without retention nobody can fill the gap: the offsets tell subscribers of it.
                if self.apply(topic, state, &message, Source::Live) == Outcome::NoRoom {
                    self.hold(topic, state, epoch, message);
                    state.cluster().phase = Phase::CatchingUp;
                    return self.retry(topic, state);
                }
                self.counters.count_followed(Following::Lost, missing);
            }
        }
    }

    /// Joins the topic at the broker, and reads it.
    fn join(&self, topic: &Topic, state: &mut State) {
        let question = self.needs.question();
        state.cluster().phase = Phase::Joining;
        state.cluster().asked = Some(question);
        self.needs.push(Need::Join(Name::from(topic.name.as_ref()), 0, question));
    }

    /// Reads what the broker keeps behind what the topic has.
    fn read(&self, topic: &Topic, state: &mut State) {
        let question = self.needs.question();
        state.cluster().asked = Some(question);
        self.needs.push(Need::Read(Name::from(topic.name.as_ref()), state.offset, question));
    }

    /// Goes on soon, where a mailbox or the budget has no room now.
    fn retry(&self, topic: &Topic, state: &mut State) {
        if !std::mem::replace(&mut state.cluster().is_retrying, true) {
            self.needs.push(Need::Retry(Name::from(topic.name.as_ref())));
        }
    }

    /// Keeps a message until those before it are there. Without room it is let go: a read finds it
    /// again if the class retains messages; otherwise it is lost, and counted when it is passed.
    fn hold(&self, topic: &Topic, state: &mut State, epoch: u64, message: Received) {
        let is_kept = topic.class().retention.is_some();
        let cluster = state.cluster();
        let has_room = cluster.held.len() < HELD_MAX
            && self.budget.take(Share::Messages, held_bytes(&message));
        if has_room {
            return cluster.held.push_back((epoch, message));
        }
        cluster.again |= is_kept;
        self.counters.count_cluster_limit(ClusterLimit::Held);
    }

    fn give_back(&self, message: &Received) {
        self.budget.give(Share::Messages, held_bytes(message));
    }

    /// Lets go of all messages that wait.
    fn drop_held(&self, state: &mut State) {
        for (_, message) in std::mem::take(&mut state.cluster().held) {
            self.give_back(&message);
        }
    }

    /// Asks the broker what has been accepted, unless that is under way.
    fn check(&self, topic: &Topic, state: &mut State) {
        let cluster = state.cluster();
        match cluster.phase {
            Phase::Live => {
                cluster.phase = Phase::CatchingUp;
                cluster.again = false;
                self.read(topic, state);
            }
            Phase::Joining | Phase::CatchingUp => cluster.again = true,
            Phase::Apart => {}
        }
    }

    /// Messages of these topics may have been missed.
    pub(crate) fn handle_gap(&self, scope: &Scope) {
        if self.is_deaf() {
            return;
        }
        match scope {
            Scope::Topics(names) => {
                for name in names {
                    let acted = self.act(name, |topic, state| {
                        self.check(topic, state);
                        self.check_presence(topic, state);
                    });
                    if acted == Acted::Still && self.is_deaf() {
                        return;
                    }
                    self.say_attendance_again(Some(name));
                }
            }
            Scope::Devices(_) | Scope::Node => {}
            Scope::All => {
                for topic in self.cluster_topics() {
                    let mut state = topic.lock();
                    if self.is_deaf() {
                        return;
                    }
                    if !state.ended {
                        self.check(&topic, &mut state);
                        self.check_presence(&topic, &mut state);
                    }
                }
                self.say_attendance_again(None);
            }
        }
    }

    /// All topics of the cluster that this node knows.
    fn cluster_topics(&self) -> Vec<Arc<Topic>> {
        self.topics_with(|class| class.is_cluster)
    }

    /// Names of the topics that this node follows.
    pub(crate) fn followed(&self) -> Vec<Name> {
        let topics = self.cluster_topics();
        let is_live = |topic: &&Arc<Topic>| {
            let mut state = topic.lock();
            !state.ended && state.cluster().phase == Phase::Live
        };
        topics.iter().filter(is_live).map(|topic| Name::from(topic.name.as_ref())).collect()
    }

    /// The broker's newest position of a topic: what it has and this node has not is read.
    pub(crate) fn handle_top(&self, name: &str, top: Position) {
        self.act(name, |topic, state| {
            let is_behind = topic.class().retention.is_some() && top.offset > state.offset;
            if top.epoch != state.epoch || is_behind {
                self.check(topic, state);
            }
        });
    }

    /// The broker could not be asked: connections that wait are told so. Returns whether the broker
    /// is to be asked again, because the topic has been followed before.
    pub(crate) fn handle_failure(&self, name: &str, question: Question) -> bool {
        let is_followed = self.act(name, |topic, state| {
            if state.cluster().asked != Some(question) {
                return false;
            }
            self.refuse_parked(topic, state);
            if state.cluster().phase == Phase::Joining {
                state.cluster().phase = Phase::Apart;
                state.cluster().asked = None;
                self.drop_held(state);
                // The broker may have carried the join out.
                self.needs.push(Need::Leave(Name::from(topic.name.as_ref())));
            }
            let is_followed = state.cluster().phase == Phase::CatchingUp;
            self.end_if_idle(topic, state);
            is_followed && !state.ended
        });
        is_followed == Acted::Done(true)
    }

    /// What the broker keeps of a topic, as asked for by [`Need::Join`] and [`Need::Read`].
    pub(crate) fn handle_history(&self, name: &str, question: Question, history: &History) {
        self.act(name, |topic, state| {
            if state.cluster().asked == Some(question) {
                state.cluster().asked = None;
                self.follow_history(topic, state, history);
            }
        });
    }

    fn follow_history(&self, topic: &Arc<Topic>, state: &mut State, history: &History) {
        let is_kept = topic.class().retention.is_some();
        let has_room = match state.epoch {
            0 => {
                let begin = if is_kept { history.first - 1 } else { history.top.offset };
                self.begin_epoch(state, Position { epoch: history.top.epoch, offset: begin });
                true
            }
            epoch if epoch != history.top.epoch && self.is_seeded(SeededBug::UntoldEpoch) => {
                state.epoch = history.top.epoch;
                true
            }
            epoch if epoch != history.top.epoch => self.change_epoch(topic, state, history),
            epoch if is_kept && history.first > state.offset + 1 => {
                // What lies between has gone for good, and members are told.
                self.counters.count_followed(Following::Lost, history.first - 1 - state.offset);
                self.replace_epoch(topic, state, Position { epoch, offset: history.first - 1 })
            }
            _ => true,
        };
        let apply = |message: &Received, state: &mut State| {
            let is_next = message.offset == state.offset + 1;
            !is_next || self.apply(topic, state, message, Source::Kept) == Outcome::Applied
        };
        let has_room =
            has_room && (!is_kept || history.messages.iter().all(|message| apply(message, state)));
        if !has_room {
            state.cluster().again = true;
            return self.retry(topic, state);
        }
        if is_kept && state.offset < history.top.offset {
            // A page more, or messages that the broker has let go of meanwhile.
            return self.read(topic, state);
        }
        self.apply_held(topic, state);
    }

    /// Goes on where a mailbox or the budget had no room.
    pub(crate) fn go_on(&self, name: &str) {
        self.act(name, |topic, state| {
            state.cluster().is_retrying = false;
            let (phase, asked) = (state.cluster().phase, state.cluster().asked);
            match phase {
                // Some were not told that the join has failed.
                Phase::Apart => self.refuse_parked(topic, state),
                Phase::Live => self.answer_parked(topic, state),
                // What is read goes on by itself.
                Phase::Joining | Phase::CatchingUp if asked.is_some() => {}
                Phase::Joining | Phase::CatchingUp => self.apply_held(topic, state),
            }
        });
    }

    /// Applies what waited. Then the topic is live, if nothing is missing.
    fn apply_held(&self, topic: &Arc<Topic>, state: &mut State) {
        let is_kept = topic.class().retention.is_some();
        #[cfg(test)]
        if self.joins_late(topic, state) {
            return;
        }
        while let Some((epoch, message)) = state.cluster().held.pop_front() {
            let missing = message.offset.saturating_sub(state.offset + 1);
            let is_new = epoch == state.epoch && message.offset > state.offset;
            if epoch != state.epoch || (is_kept && missing > 0) {
                // Of an epoch that has ended, of a newer one, or above a gap: a read tells.
                state.cluster().again |= is_new || epoch != state.epoch;
            } else if is_new {
                if self.apply(topic, state, &message, Source::Live) == Outcome::NoRoom {
                    state.cluster().held.push_front((epoch, message));
                    return self.retry(topic, state);
                }
                self.counters.count_followed(Following::Lost, missing);
            }
            self.give_back(&message);
        }
        if std::mem::take(&mut state.cluster().again) {
            return self.read(topic, state);
        }
        state.cluster().phase = Phase::Live;
        self.answer_parked(topic, state);
    }
}

/// What a message that waits occupies.
fn held_bytes(message: &Received) -> usize {
    message.payload.len() + size_of::<(u64, Received)>()
}

/// Messages of a topic that wait for earlier ones: a read of a page takes some milliseconds.
const HELD_MAX: usize = 1024;
