//! What the topics of a cluster need from the broker: asked here, and carried out by `cluster`.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;
use weir_broker::{HistoryQuery, Name};
use weir_engine::{ConnId, TopicId};
use weir_wire::handover::v1;

use crate::topics::{Subscriber, lock};

/// A request to the broker that a topic waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Need {
    /// Join the topic, and then read what is kept above this offset.
    Join(Name, u64, Question),
    /// Read what is kept above this offset.
    Read(Name, u64, Question),
    /// Leave the topic.
    Leave(Name),
    /// Call [`Router::go_on`](super::Router::go_on) soon: a mailbox or the budget had no room.
    Retry(Name),
}

/// A part of a topic's messages that a resume needs from the broker, as the ring of this node begins
/// later.
///
/// Limits: a resume waits for one part at a time. One that has no answer to its subscription yet
/// counts as parked.
#[derive(Debug)]
pub(crate) struct Replay {
    pub(super) topic: Name,
    pub(super) after: u64,
    pub(super) bytes_max: usize,
    pub(super) conn: ConnId,
    /// Of the resume.
    pub(super) number: u32,
    /// The subscription, if it has no answer yet.
    pub(super) first: Option<Subscriber>,
}

impl Replay {
    /// What the broker is asked.
    pub(crate) fn query(&self) -> HistoryQuery {
        let (topic, after) = (Name::clone(&self.topic), self.after);
        HistoryQuery { topic, after, messages_max: PART_MAX, bytes_max: self.bytes_max }
    }
}

/// What another process needs of a part that a resume waits for.
#[derive(Debug, Clone)]
pub(super) struct Unanswered {
    pub(super) topic: TopicId,
    pub(super) after: u64,
    pub(super) first: Option<v1::TopicSubscriber>,
}

/// Tells the answers apart that a topic may get: it takes only the one that it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Question(u64);

/// The requests of all topics, in the order in which they came.
///
/// Limits: a topic has at most one join or read, one leave and one retry in it; a resume at most
/// one part.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    list: Mutex<VecDeque<Need>>,
    filled: Notify,
    /// Apart, so that a crowd of resumes delays no topic.
    replays: Mutex<VecDeque<Replay>>,
    replays_filled: Notify,
    /// Those without an answer, also those that the broker was asked for.
    unanswered: Mutex<HashMap<(ConnId, u32), Unanswered, foldhash::fast::RandomState>>,
    questions: AtomicU64,
    /// Topics that this process has joined before it takes them from another one.
    joined: Mutex<HashSet<Name, foldhash::fast::RandomState>>,
    is_closed: AtomicBool,
}

impl Needs {
    /// A question that nobody has asked before.
    pub(super) fn question(&self) -> Question {
        Question(self.questions.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn push(&self, need: Need) {
        lock(&self.list).push_back(need);
        self.filled.notify_one();
    }

    /// Nobody carries them out any more.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.filled.notify_one();
        self.replays_filled.notify_one();
    }

    pub(super) fn push_replay(&self, topic: TopicId, replay: Replay) {
        let first = replay.first.as_ref().map(Subscriber::export);
        let unanswered = Unanswered { topic, after: replay.after, first };
        lock(&self.unanswered).insert((replay.conn, replay.number), unanswered);
        self.ask_again(replay);
    }

    /// Asks for a part whose answer was not heard.
    pub(super) fn ask_again(&self, replay: Replay) {
        lock(&self.replays).push_back(replay);
        self.replays_filled.notify_one();
    }

    /// A part has its answer.
    pub(super) fn note_answer(&self, conn: ConnId, number: u32) {
        let mut unanswered = lock(&self.unanswered);
        unanswered.remove(&(conn, number));
        if unanswered.is_empty() {
            unanswered.shrink_to(NEEDS_KEPT);
        }
    }

    /// The parts without an answer, in the order of their connections.
    pub(super) fn unanswered(&self) -> Vec<((ConnId, u32), Unanswered)> {
        let unanswered = lock(&self.unanswered);
        let mut parts: Vec<_> =
            unanswered.iter().map(|(resume, part)| (*resume, part.clone())).collect();
        parts.sort_unstable_by_key(|(resume, _)| *resume);
        parts
    }

    pub(super) fn note_joined(&self, topics: impl IntoIterator<Item = Name>) {
        lock(&self.joined).extend(topics);
    }

    pub(super) fn has_joined(&self, topic: &str) -> bool {
        lock(&self.joined).contains(topic)
    }

    pub(super) fn forget_joined(&self) {
        *lock(&self.joined) = HashSet::default();
    }

    /// Takes back what topics wait for: they ask anew.
    pub(in crate::topics) fn forget_questions(&self) {
        lock(&self.list).retain(|need| matches!(need, Need::Leave(_)));
    }

    /// Waits until there is a need, and takes some, at most `limit`; none after [`Needs::close`].
    pub(crate) async fn take(&self, limit: usize) -> Vec<Need> {
        self.take_from(&self.list, &self.filled, limit).await
    }

    /// The same with parts of resumes.
    pub(crate) async fn take_replays(&self, limit: usize) -> Vec<Replay> {
        self.take_from(&self.replays, &self.replays_filled, limit).await
    }

    async fn take_from<T>(
        &self,
        list: &Mutex<VecDeque<T>>,
        filled: &Notify,
        limit: usize,
    ) -> Vec<T> {
        loop {
            let taken: Vec<T> = take_some(&mut lock(list), limit);
            if !taken.is_empty() || self.is_closed.load(Ordering::Acquire) {
                return taken;
            }
            filled.notified().await;
        }
    }

    /// Takes all needs at once.
    #[cfg(test)]
    pub(crate) fn drain(&self) -> Vec<Need> {
        lock(&self.list).drain(..).collect()
    }

    /// Takes all parts of resumes at once.
    #[cfg(test)]
    pub(crate) fn drain_replays(&self) -> Vec<Replay> {
        lock(&self.replays).drain(..).collect()
    }
}

fn take_some<T>(list: &mut VecDeque<T>, limit: usize) -> Vec<T> {
    let count = list.len().min(limit);
    let taken = list.drain(..count).collect();
    if list.is_empty() {
        // After a burst the memory is given back.
        list.shrink_to(NEEDS_KEPT);
    }
    taken
}

/// Messages of a part of a resume, however short they are.
const PART_MAX: usize = 256;
/// Places that stay allocated without use.
const NEEDS_KEPT: usize = 256;
