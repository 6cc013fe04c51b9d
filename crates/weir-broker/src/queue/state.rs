//! What waits in a queue, and which batches may leave. Time is an argument.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Overloaded, QueueCounts, QueueLimits, QueueResult};
use crate::contract::{Error, Published};
use crate::durations::DurationCounts;
use crate::records::{Batch, BatchId, Entry, Name, Retention};

/// The entries that wait, by topic.
///
/// A topic is in one of these states:
///
/// ```text
///   (unknown) ──offer──► ready ──poll──► away ──answered, nothing waits──► (unknown)
///                          ▲              │ ▲
///                          └──answered────┘ └── failed: sent again after a pause (`retries`)
/// ```
pub(super) struct State {
    limits: QueueLimits,
    topics: HashMap<Name, Topic>,
    /// Topics in state ready, in the order in which they became so.
    ready: VecDeque<Name>,
    ready_entries: usize,
    ready_bytes: usize,
    /// When the ready topics leave at the latest, if a call may leave then.
    leave_at: Option<Instant>,
    /// Batches that have failed, by the time of their next attempt.
    retries: BTreeMap<(Instant, BatchId), Away>,
    /// Calls on their way.
    calls: usize,
    /// A call has been answered since the last one left.
    is_answered: bool,
    next_batch: u64,
    pub(super) counts: QueueCounts,
    /// From an offer to its answer.
    pub(super) durations: DurationCounts,
}

/// A batch on its way, or between two attempts.
pub(super) struct Away {
    pub(super) batch: Batch,
    asked: Vec<Asked>,
    bytes: usize,
    attempts: u32,
    /// An attempt has left this node without an answer, so the broker may have the batch.
    is_uncertain: bool,
}

/// What a queue does next.
pub(super) enum Output {
    /// It sends batches in one call. [`State::handle_results`] takes the answer.
    Call(Vec<Away>),
    /// It looks again at this time, or when it is woken.
    Wait(Option<Instant>),
}

struct Topic {
    items: VecDeque<Item>,
    /// Of the items.
    bytes: usize,
    is_away: bool,
}

struct Item {
    entry: Entry,
    retention: Option<Retention>,
    asked: Asked,
}

/// Somebody who waits for an answer.
struct Asked {
    since: Instant,
    answer: oneshot::Sender<QueueResult>,
}

/// Pauses before an attempt: doubled each time.
const RETRY_MIN: Duration = Duration::from_millis(10);
const RETRY_MAX: Duration = Duration::from_millis(640);

impl State {
    pub(super) fn new(limits: QueueLimits, first_batch: BatchId) -> State {
        State {
            limits,
            topics: HashMap::new(),
            ready: VecDeque::new(),
            ready_entries: 0,
            ready_bytes: 0,
            leave_at: None,
            retries: BTreeMap::new(),
            calls: 0,
            is_answered: false,
            next_batch: first_batch.0,
            counts: QueueCounts::default(),
            durations: DurationCounts::default(),
        }
    }

    /// Queues an entry. Also gives whether [`State::poll`] is to be called because of it.
    pub(super) fn handle_offer(
        &mut self,
        topic: &Name,
        retention: Option<Retention>,
        entry: Entry,
        now: Instant,
    ) -> Result<(oneshot::Receiver<QueueResult>, bool), Overloaded> {
        let (entries, bytes) = (self.counts.waiting, self.counts.waiting_bytes);
        let added = bytes_of(&entry);
        let is_full = entries >= self.limits.waiting_max
            || bytes.saturating_add(added) > self.limits.waiting_bytes_max;
        if is_full {
            self.counts.refused += 1;
            return Err(Overloaded { entries, bytes });
        }
        self.counts.entries += 1;
        self.counts.waiting += 1;
        self.counts.waiting_bytes += added;
        let (answer, answered) = oneshot::channel();
        let item = Item { entry, retention, asked: Asked { since: now, answer } };
        let was_ready = !self.ready.is_empty();
        let queue = match self.topics.get_mut(topic) {
            Some(queue) => queue,
            None => {
                self.ready.push_back(Name::clone(topic));
                self.topics.entry(Name::clone(topic)).or_insert_with(Topic::new)
            }
        };
        queue.items.push_back(item);
        queue.bytes += added;
        if queue.is_away {
            return Ok((answered, false));
        }
        self.ready_entries += 1;
        self.ready_bytes += added;
        self.leave_at.get_or_insert(now + self.limits.gather_max);
        // Somebody looks already at the time when the first one has to leave.
        let is_full_load = self.is_full_load() && self.calls < self.limits.calls_max;
        Ok((answered, !was_ready || is_full_load))
    }

    /// What to do now.
    pub(super) fn poll(&mut self, now: Instant) -> Output {
        if self.calls >= self.limits.calls_max {
            return Output::Wait(None);
        }
        let retry_at = self.retries.first_key_value().map(|((at, _), _)| *at);
        let is_retry_due = retry_at.is_some_and(|at| at <= now);
        if !is_retry_due && !self.may_leave(now) {
            let times = [retry_at, self.leave_at];
            return Output::Wait(times.into_iter().flatten().min());
        }
        let mut batches = Vec::new();
        while batches.len() < self.limits.batches_max
            && let Some(first) = self.retries.first_entry()
            && first.key().0 <= now
        {
            batches.push(first.remove());
        }
        while batches.len() < self.limits.batches_max
            && let Some(topic) = self.ready.pop_front()
        {
            batches.extend(self.gather(&topic, now));
        }
        if self.ready.is_empty() {
            self.leave_at = None;
        }
        self.is_answered = false;
        if batches.is_empty() {
            // All that was ready had waited for too long.
            return self.poll(now);
        }
        self.calls += 1;
        self.counts.calls += 1;
        self.counts.batches += u64::try_from(batches.len()).unwrap_or(0);
        Output::Call(batches)
    }

    /// Takes the answers to a call, in the order of its batches. A batch without one counts as uncertain.
    pub(super) fn handle_results(
        &mut self,
        batches: Vec<Away>,
        results: Result<Vec<Result<Published, Error>>, Error>,
        now: Instant,
    ) {
        self.calls -= 1;
        self.is_answered = true;
        let mut results = results.map(Vec::into_iter);
        for away in batches {
            let result = match &mut results {
                Ok(results) => results.next().unwrap_or_else(|| Err(broken_off())),
                Err(error) => Err(error.clone()),
            };
            self.handle_result(away, result, now);
        }
    }

    /// Makes the next attempts of all batches due.
    pub(super) fn handle_wake(&mut self, now: Instant) {
        let retries = std::mem::take(&mut self.retries).into_iter();
        self.retries = retries.map(|((_, id), away)| ((now, id), away)).collect();
    }

    fn handle_result(&mut self, mut away: Away, result: Result<Published, Error>, now: Instant) {
        let result = match result {
            Ok(published) => match published.positions.len() == away.asked.len() {
                true => Ok(published),
                false => Err(Error::Damaged("positions and messages differ in number".to_owned())),
            },
            Err(error) => {
                away.is_uncertain |= matches!(error, Error::Uncertain(_));
                let give_up_at = away.since() + self.limits.timeout;
                if is_passing(&error) && now < give_up_at {
                    let pause = RETRY_MIN.saturating_mul(1 << away.attempts.min(16)).min(RETRY_MAX);
                    away.attempts += 1;
                    self.counts.retries += 1;
                    let at = (now + pause).min(give_up_at);
                    self.retries.insert((at, away.batch.id), away);
                    return;
                }
                // Only the last attempt is known to have failed.
                match away.is_uncertain && !matches!(error, Error::Uncertain(_)) {
                    true => Err(Error::Uncertain(error.to_string())),
                    false => Err(error),
                }
            }
        };
        self.end(away, result, now);
    }

    /// Answers those who wait for a batch. Its topic may send the next one.
    fn end(&mut self, away: Away, result: Result<Published, Error>, now: Instant) {
        self.counts.waiting -= away.asked.len();
        self.counts.waiting_bytes -= away.bytes;
        match result {
            Ok(published) => {
                for (asked, position) in away.asked.into_iter().zip(published.positions) {
                    self.durations.record(now.saturating_duration_since(asked.since));
                    // Those who do not wait any more are published all the same.
                    let _ = asked.answer.send(Ok((position, published.nodes)));
                }
            }
            Err(error) => {
                self.counts.failed += u64::try_from(away.asked.len()).unwrap_or(0);
                for asked in away.asked {
                    let _ = asked.answer.send(Err(error.clone()));
                }
            }
        }
        let name = away.batch.topic;
        let Some(topic) = self.topics.get_mut(&name) else { return };
        topic.is_away = false;
        if topic.items.is_empty() {
            self.topics.remove(&name);
            return;
        }
        self.ready_entries += topic.items.len();
        self.ready_bytes += topic.bytes;
        self.ready.push_back(name);
        // They have waited already.
        self.leave_at = Some(now);
    }

    /// The next batch of a ready topic; `None` if everything in it has waited for too long.
    fn gather(&mut self, name: &Name, now: Instant) -> Option<Away> {
        let topic = self.topics.get_mut(name)?;
        self.ready_entries -= topic.items.len();
        self.ready_bytes -= topic.bytes;
        while let Some(item) = topic.take_if(|item| item.asked.since + self.limits.timeout <= now) {
            self.counts.waiting -= 1;
            self.counts.waiting_bytes -= bytes_of(&item.entry);
            self.counts.failed += 1;
            let text = "an earlier message of the topic has no answer yet".to_owned();
            let _ = item.asked.answer.send(Err(Error::Unavailable(text)));
        }
        let Some(first) = topic.take_if(|_| true) else {
            self.topics.remove(name);
            return None;
        };
        topic.is_away = true;
        let (retention, mut bytes) = (first.retention, bytes_of(&first.entry));
        let (mut entries, mut asked) = (vec![first.entry], vec![first.asked]);
        while entries.len() < self.limits.batch_entries_max
            && let Some(item) = topic.take_if(|item| {
                item.retention == retention
                    && bytes + bytes_of(&item.entry) <= self.limits.batch_bytes_max
            })
        {
            bytes += bytes_of(&item.entry);
            entries.push(item.entry);
            asked.push(item.asked);
        }
        let id = BatchId(self.next_batch);
        self.next_batch += 1;
        let batch = Batch { topic: Name::clone(name), id, retention, entries };
        Some(Away { batch, asked, bytes, attempts: 0, is_uncertain: false })
    }

    /// Whether what is ready has gathered for long enough.
    fn may_leave(&self, now: Instant) -> bool {
        let is_time = self.leave_at.is_some_and(|at| at <= now);
        !self.ready.is_empty()
            && (self.calls == 0 || self.is_answered || is_time || self.is_full_load())
    }

    fn is_full_load(&self) -> bool {
        self.ready_entries >= self.limits.batch_entries_max
            || self.ready_bytes >= self.limits.batch_bytes_max
    }
}

impl Topic {
    fn new() -> Topic {
        Topic { items: VecDeque::new(), bytes: 0, is_away: false }
    }

    /// Takes the first item if this is true of it.
    fn take_if(&mut self, is_wanted: impl FnOnce(&Item) -> bool) -> Option<Item> {
        if !self.items.front().is_some_and(is_wanted) {
            return None;
        }
        let item = self.items.pop_front()?;
        self.bytes -= bytes_of(&item.entry);
        Some(item)
    }
}

impl Away {
    /// When its oldest entry was offered.
    fn since(&self) -> Instant {
        // A batch has at least one entry, the oldest first.
        self.asked[0].since
    }
}

/// What a batch is told whose call ended without an answer.
fn broken_off() -> Error {
    Error::Uncertain("the call broke off".to_owned())
}

/// Whether the next attempt may succeed.
fn is_passing(error: &Error) -> bool {
    match error {
        Error::Unavailable(_) | Error::Uncertain(_) | Error::Overloaded { .. } => true,
        Error::Refused(_) | Error::OtherCluster { .. } | Error::Damaged(_) => false,
    }
}

/// The bytes that an entry counts for.
fn bytes_of(entry: &Entry) -> usize {
    entry.payload.len() + entry.idempotency_key.as_ref().map_or(0, |key| key.len())
}
