//! A bounded queue of items, and the batches in which they leave it.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{BatchLimits, Kind};
use crate::contract::{BATCH_MAX, Error};

/// A batch on its way.
pub(super) type Sent<T> = Pin<Box<dyn Future<Output = Result<Vec<T>, Error>> + Send>>;

/// The counts of a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Items that were asked, whatever their outcome.
    pub items: u64,
    /// Items that were merged with another one.
    pub joined: u64,
    /// Batches sent.
    pub batches: u64,
    /// Batches that the store did not carry out.
    pub failed: u64,
    /// Failed batches since the last success.
    pub failed_in_a_row: u64,
    /// Items refused because too many waited.
    pub refused: u64,
    /// Items that reached their time limit.
    pub timed_out: u64,
    /// Items that wait now.
    pub queued: usize,
    /// The most items that ever waited.
    pub queued_peak: usize,
    /// Batches on their way now.
    pub in_flight: usize,
}

/// See the module.
pub(super) struct Queue<K: Kind> {
    kind: K,
    limits: BatchLimits,
    state: Mutex<State<K>>,
    items: AtomicU64,
    joined: AtomicU64,
    batches: AtomicU64,
    failed: AtomicU64,
    failed_in_a_row: AtomicU64,
    refused: AtomicU64,
    timed_out: AtomicU64,
    /// The error of the last failed batch.
    last_error: Mutex<Option<Error>>,
}

struct State<K: Kind> {
    queue: VecDeque<Item<K>>,
    /// Keys on their way, each with the items that wait for its return. Empty unless the kind holds
    /// items.
    away: HashMap<K::Key, Vec<Item<K>>>,
    /// Items in `queue` and in `away`.
    queued: usize,
    queued_peak: usize,
    in_flight: usize,
    /// Whether a task sleeps that will dispatch again.
    is_timed: bool,
}

struct Item<K: Kind> {
    ask: K::Ask,
    since: Instant,
    answer: oneshot::Sender<Result<K::Answer, Error>>,
}

/// Items that go to the store as one.
struct Asked<K: Kind> {
    ask: K::Ask,
    items: Vec<Item<K>>,
}

impl<K: Kind> Queue<K> {
    pub(super) fn new(kind: K, limits: &BatchLimits) -> Arc<Queue<K>> {
        let mut limits = limits.clone();
        limits.batch_max = limits.batch_max.clamp(1, BATCH_MAX);
        limits.in_flight_max = limits.in_flight_max.max(1);
        let state = State {
            queue: VecDeque::new(),
            away: HashMap::new(),
            queued: 0,
            queued_peak: 0,
            in_flight: 0,
            is_timed: false,
        };
        let zero = AtomicU64::default;
        Arc::new(Queue {
            kind,
            limits,
            state: Mutex::new(state),
            items: zero(),
            joined: zero(),
            batches: zero(),
            failed: zero(),
            failed_in_a_row: zero(),
            refused: zero(),
            timed_out: zero(),
            last_error: Mutex::default(),
        })
    }

    /// Queues one item and waits for its answer.
    pub(super) async fn ask(self: &Arc<Self>, ask: K::Ask) -> Result<K::Answer, Error> {
        self.items.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        {
            let mut state = self.lock();
            if state.queued >= self.limits.queue_max {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return Err(Error::Overloaded(state.queued));
            }
            state.queued += 1;
            state.queued_peak = state.queued_peak.max(state.queued);
            state.queue.push_back(Item { ask, since: Instant::now(), answer });
            self.dispatch(&mut state);
        }
        match tokio::time::timeout(self.limits.timeout, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Error::Unavailable("the request broke off".into())),
            Err(_) => {
                self.timed_out.fetch_add(1, Ordering::Relaxed);
                Err(Error::TimedOut(millis(self.limits.timeout)))
            }
        }
    }

    pub(super) fn counts(&self) -> QueueCounts {
        let (queued, queued_peak, in_flight) = {
            let state = self.lock();
            (state.queued, state.queued_peak, state.in_flight)
        };
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        QueueCounts {
            items: read(&self.items),
            joined: read(&self.joined),
            batches: read(&self.batches),
            failed: read(&self.failed),
            failed_in_a_row: read(&self.failed_in_a_row),
            refused: read(&self.refused),
            timed_out: read(&self.timed_out),
            queued,
            queued_peak,
            in_flight,
        }
    }

    /// Sends the batches that may leave now, or starts a task that dispatches again when the first
    /// item has waited long enough.
    fn dispatch(self: &Arc<Self>, state: &mut State<K>) {
        // There is no handle while a runtime ends. Then no caller waits for answers either.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        while state.in_flight < self.limits.in_flight_max {
            let Some(first) = state.queue.front() else {
                return;
            };
            let is_alone = self.limits.batch_max == 1 || self.limits.batch_wait.is_zero();
            let leaves = first.since + self.limits.batch_wait;
            if !is_alone && state.queue.len() < self.limits.batch_max && Instant::now() < leaves {
                if !state.is_timed {
                    state.is_timed = true;
                    runtime.spawn(Arc::clone(self).look_again(leaves));
                }
                return;
            }
            let batch = state.gather(self.limits.batch_max);
            if !batch.is_empty() {
                state.in_flight += 1;
                runtime.spawn(Arc::clone(self).carry(batch));
            }
        }
    }

    async fn look_again(self: Arc<Self>, at: Instant) {
        tokio::time::sleep_until(at).await;
        let mut state = self.lock();
        state.is_timed = false;
        self.dispatch(&mut state);
    }

    /// Takes one batch to the store and back. If it fails because of damage, its halves go by
    /// themselves, and their halves, until the damaged items are found. So one damaged record does
    /// not make other items fail.
    async fn carry(self: Arc<Self>, batch: Vec<Asked<K>>) {
        let joined: usize = batch.iter().map(|asked| asked.items.len() - 1).sum();
        self.joined.fetch_add(u64::try_from(joined).unwrap_or(0), Ordering::Relaxed);
        let keys = batch.iter().filter(|_| K::HOLDS).map(|asked| K::key(&asked.ask)).collect();
        let _way = Way { queue: Arc::clone(&self), keys };
        let mut parts = vec![batch];
        while let Some(mut part) = parts.pop() {
            // This also bounds the work: items without a waiting caller leave.
            part.retain(|asked| asked.items.iter().any(|item| !item.answer.is_closed()));
            if part.is_empty() {
                continue;
            }
            self.batches.fetch_add(1, Ordering::Relaxed);
            let result = self.kind.send(part.iter().map(|asked| asked.ask.clone()).collect()).await;
            self.note(result.as_ref().err());
            match result {
                Ok(answers) => {
                    // If the store gives too few answers, the items without one learn that the
                    // batch broke off.
                    for (asked, answer) in part.into_iter().zip(answers) {
                        answer_all::<K>(asked.items, Ok(answer));
                    }
                }
                Err(Error::Damaged(_)) if part.len() > 1 => {
                    // Keeps the order: the first half is on top.
                    parts.push(part.split_off(part.len() / 2));
                    parts.push(part);
                }
                Err(error) => self.answer_failed(part, &error).await,
            }
        }
    }

    /// The error of the last failed batch.
    pub(super) fn last_error(&self) -> Option<Error> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, failure: Option<&Error>) {
        let Some(error) = failure else {
            self.failed_in_a_row.store(0, Ordering::Relaxed);
            return;
        };
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
        self.failed.fetch_add(1, Ordering::Relaxed);
        self.failed_in_a_row.fetch_add(1, Ordering::Relaxed);
    }

    /// Answers the items of a failed batch with what the store recalls, or with the error.
    async fn answer_failed(&self, batch: Vec<Asked<K>>, error: &Error) {
        let items: Vec<Item<K>> = batch.into_iter().flat_map(|asked| asked.items).collect();
        let asks = items.iter().map(|item| item.ask.clone()).collect();
        let mut rescued = self.kind.rescue(asks).await.unwrap_or_default().into_iter();
        for item in items {
            let answer = rescued.next().flatten().ok_or_else(|| error.clone());
            answer_all::<K>(vec![item], answer);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Kind> State<K> {
    /// Takes the next batch out of the queue: at most `batch_max` items, in their order, without
    /// those whose key is on its way.
    fn gather(&mut self, batch_max: usize) -> Vec<Asked<K>> {
        let mut batch: Vec<Asked<K>> = Vec::with_capacity(self.queue.len().min(batch_max));
        let mut places: HashMap<K::Key, usize> = HashMap::new();
        while let Some(item) = self.queue.pop_front() {
            // The caller has gone, or its time has ended.
            if item.answer.is_closed() {
                self.queued -= 1;
                continue;
            }
            let key = K::key(&item.ask);
            if let Some(held) = self.away.get_mut(&key) {
                held.push(item);
                continue;
            }
            if let Some(place) = places.get(&key).filter(|_| K::JOINS) {
                self.queued -= 1;
                K::join(&mut batch[*place].ask, &item.ask);
                batch[*place].items.push(item);
                continue;
            }
            if batch.len() == batch_max {
                self.queue.push_front(item);
                break;
            }
            self.queued -= 1;
            places.insert(key, batch.len());
            batch.push(Asked { ask: item.ask.clone(), items: vec![item] });
        }
        if K::HOLDS {
            self.away.extend(places.into_keys().map(|key| (key, Vec::new())));
        }
        batch
    }
}

/// Answers all items that were merged into one.
fn answer_all<K: Kind>(items: Vec<Item<K>>, answer: Result<K::Answer, Error>) {
    for item in items {
        let share = answer.clone().map(|answer| K::share(&item.ask, answer));
        let _ = item.answer.send(share);
    }
}

/// A batch on its way. When it ends, in whatever way, its keys are free and the next batch may
/// leave.
struct Way<K: Kind> {
    queue: Arc<Queue<K>>,
    keys: Vec<K::Key>,
}

impl<K: Kind> Drop for Way<K> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.in_flight -= 1;
        for key in &self.keys {
            // These items go before all later ones, in their order.
            for item in state.away.remove(key).into_iter().flatten().rev() {
                state.queue.push_front(item);
            }
        }
        self.queue.dispatch(&mut state);
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
