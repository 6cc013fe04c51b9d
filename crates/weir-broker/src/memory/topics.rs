//! The topics of the broker in memory: positions, what is kept, and what was published before.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::Instant;

use crate::contract::{Error, Published};
use crate::records::{
    Batch, BatchId, Entry, History, HistoryQuery, Name, Position, Received, Retention,
};

/// All topics that the broker remembers.
pub(super) struct Topics {
    topics: BTreeMap<Name, Topic>,
    /// How long a topic is remembered after its last use.
    kept: Duration,
    keeps_journal: bool,
    /// What each topic ever accepted, also what a failover lost.
    journal: BTreeMap<Name, Vec<(Position, Vec<u8>)>>,
}

/// What accepting a batch gives.
pub(super) struct Accepted {
    /// The answer, without the number of nodes.
    pub(super) published: Published,
    /// The new messages, in order.
    pub(super) messages: Vec<Received>,
    /// The batch was accepted before.
    pub(super) is_repeated: bool,
}

/// What a failover does to the epochs of topics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewEpoch {
    /// Each topic gets a new one, in which offsets go on from the last message that was not lost.
    GoesOn,
    /// Each topic gets a new one, begins at offset 1, and keeps no message.
    BeginsAgain,
    /// A seeded bug: topics keep their epochs, and use the lost offsets again.
    Missing,
}

struct Topic {
    top: Position,
    /// The top when the epoch began.
    began: u64,
    kept: VecDeque<Kept>,
    /// Where the message with this key stands, and until when that is remembered.
    keys: BTreeMap<Name, (Position, Instant)>,
    /// The last batch of each publisher, with its answer.
    batches: BTreeMap<u64, (BatchId, Published)>,
    forgotten_at: Instant,
}

/// A message that is kept. The offsets of a topic's kept messages follow each other and end with the top.
struct Kept {
    payload: Vec<u8>,
    until: Instant,
}

impl Topics {
    pub(super) fn new(kept: Duration, keeps_journal: bool) -> Topics {
        Topics { topics: BTreeMap::new(), kept, keeps_journal, journal: BTreeMap::new() }
    }

    /// Accepts a batch of a publisher, unless it was accepted before.
    pub(super) fn publish(
        &mut self,
        publisher: u64,
        batch: Batch,
        now: Instant,
        dice: &mut StdRng,
    ) -> Result<Accepted, Error> {
        let name = Name::clone(&batch.topic);
        let topic = self.topic(&name, now, dice);
        match topic.batches.get(&publisher) {
            Some((id, published)) if *id == batch.id => {
                let (published, messages) = (published.clone(), Vec::new());
                return Ok(Accepted { published, messages, is_repeated: true });
            }
            Some((id, _)) if *id > batch.id => {
                let text = format!("batch {} of {name:?} comes after batch {}", batch.id.0, id.0);
                return Err(Error::Refused(text));
            }
            Some(_) | None => {}
        }
        let id = batch.id;
        let accepted = topic.accept(batch, now);
        topic.batches.insert(publisher, (id, accepted.published.clone()));
        if self.keeps_journal {
            let epoch = accepted.published.epoch;
            let place = |message: &Received| Position { epoch, offset: message.offset };
            let new = accepted.messages.iter();
            let new = new.map(|message| (place(message), message.payload.clone()));
            self.journal.entry(name).or_default().extend(new);
        }
        Ok(accepted)
    }

    /// The number of nodes belongs to the answer of a batch that is published again.
    pub(super) fn note_nodes(&mut self, publisher: u64, name: &Name, nodes: u32) {
        let topic = self.topics.get_mut(name);
        if let Some((_, published)) = topic.and_then(|topic| topic.batches.get_mut(&publisher)) {
            published.nodes = nodes;
        }
    }

    pub(super) fn read(
        &mut self,
        query: &HistoryQuery,
        now: Instant,
        dice: &mut StdRng,
    ) -> History {
        let topic = self.topic(&query.topic, now, dice);
        topic.expire(now);
        let first = topic.first();
        let from = query.after.saturating_add(1).max(first).min(topic.top.offset + 1);
        let skipped = usize::try_from(from - first).unwrap_or(usize::MAX);
        let kept = (from..).zip(topic.kept.iter().skip(skipped)).take(query.messages_max);
        let mut bytes = 0;
        let fits = |(offset, kept): &(u64, &Kept)| {
            bytes += kept.payload.len();
            *offset == from || bytes <= query.bytes_max
        };
        let received =
            |(offset, kept): (u64, &Kept)| Received { offset, payload: kept.payload.clone() };
        let messages = kept.take_while(fits).map(received).collect();
        History { top: topic.top, first, began: topic.began, messages }
    }

    /// The newest position of a topic, which is remembered for longer by it.
    pub(super) fn top(&mut self, name: &Name, now: Instant, dice: &mut StdRng) -> Position {
        self.topic(name, now, dice).top
    }

    /// Loses the newest messages of each topic, as a primary that fails before it has sent them to its replica.
    pub(super) fn fail_over(&mut self, lost: u64, epochs: NewEpoch, dice: &mut StdRng) {
        for topic in self.topics.values_mut() {
            topic.lose(lost);
            match epochs {
                NewEpoch::GoesOn => {
                    topic.top.epoch = epoch(dice);
                    topic.began = topic.top.offset;
                }
                NewEpoch::BeginsAgain => {
                    topic.kept.clear();
                    topic.began = 0;
                    topic.top = Position { epoch: epoch(dice), offset: 0 };
                }
                NewEpoch::Missing => {}
            }
        }
    }

    /// What a topic ever accepted, in order.
    pub(super) fn journal(&self, name: &str) -> Vec<(Position, Vec<u8>)> {
        self.journal.get(name).cloned().unwrap_or_default()
    }

    /// The topic, new if the broker does not know it or has forgotten it.
    fn topic(&mut self, name: &Name, now: Instant, dice: &mut StdRng) -> &mut Topic {
        let forgotten_at = now + self.kept;
        if self.topics.get(name).is_some_and(|topic| topic.forgotten_at <= now) {
            self.topics.remove(name);
        }
        let topic = self.topics.entry(Name::clone(name)).or_insert_with(|| Topic {
            top: Position { epoch: epoch(dice), offset: 0 },
            began: 0,
            kept: VecDeque::new(),
            keys: BTreeMap::new(),
            batches: BTreeMap::new(),
            forgotten_at,
        });
        topic.forgotten_at = forgotten_at;
        topic
    }
}

impl Topic {
    fn accept(&mut self, batch: Batch, now: Instant) -> Accepted {
        self.expire(now);
        self.keys.retain(|_, (_, until)| *until > now);
        let mut positions = Vec::with_capacity(batch.entries.len());
        let mut messages = Vec::with_capacity(batch.entries.len());
        for entry in batch.entries {
            let known = entry.idempotency_key.as_ref().and_then(|key| self.keys.get(key));
            if let Some((position, _)) = known {
                positions.push(*position);
                continue;
            }
            self.top.offset += 1;
            positions.push(self.top);
            if let Some(key) = entry.idempotency_key {
                self.keys.insert(key, (self.top, now + Entry::KEY_KEPT));
            }
            self.keep(&entry.payload, batch.retention, now);
            messages.push(Received { offset: self.top.offset, payload: entry.payload });
        }
        let published = Published { epoch: self.top.epoch, positions, nodes: 0 };
        Accepted { published, messages, is_repeated: false }
    }

    fn keep(&mut self, payload: &[u8], retention: Option<Retention>, now: Instant) {
        let Some(retention) = retention else {
            // A message that is not kept would be a hole between those before and those after it.
            self.kept.clear();
            return;
        };
        self.kept.push_back(Kept { payload: payload.to_vec(), until: now + retention.ttl });
        let over = self.kept.len().saturating_sub(retention.messages_max);
        self.kept.drain(..over);
    }

    /// Drops what is kept for too long. Where a later message ends before an earlier one, both go.
    fn expire(&mut self, now: Instant) {
        let last = self.kept.iter().rposition(|kept| kept.until <= now);
        self.kept.drain(..last.map_or(0, |last| last + 1));
    }

    fn first(&self) -> u64 {
        let kept = u64::try_from(self.kept.len()).unwrap_or(u64::MAX);
        (self.top.offset + 1).saturating_sub(kept)
    }

    fn lose(&mut self, lost: u64) {
        let lost = lost.min(self.top.offset);
        self.top.offset -= lost;
        let left = self.kept.len().saturating_sub(usize::try_from(lost).unwrap_or(usize::MAX));
        self.kept.truncate(left);
        let top = self.top;
        let is_left = |position: &Position| position.epoch != top.epoch || *position <= top;
        self.keys.retain(|_, (position, _)| is_left(position));
        self.batches.retain(|_, (_, published)| published.positions.iter().all(is_left));
    }
}

fn epoch(dice: &mut StdRng) -> u64 {
    dice.random_range(1..=u64::MAX)
}
