//! What stands between publishers and [`Broker::publish`]: it gathers messages into batches, in order.
//!
//! ```text
//!  offer ──► queue of its topic ──(the topic's last batch is answered)──► batch ─┐
//!              ▲ refused when full                                              ├──► one call for many topics
//!              └──────── a batch that failed is sent again first ◄──────────────┘
//! ```
//!
//! Load decides how long a message waits for others. If no call is on its way, it leaves at once. Otherwise it leaves with
//! the next answer, or when a batch is full, or at the latest after [`QueueLimits::gather_max`].

mod state;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use self::state::{Away, Output, State};
use crate::contract::{Broker, Error};
use crate::durations::DurationCounts;
use crate::records::{BatchId, Entry, Name, Position, Retention};

/// Publishes messages in batches. Each topic keeps the order in which its messages are offered.
///
/// At most one batch of a topic is on its way. A batch that the broker could not be asked, or that has no answer, is sent
/// again as it is before the next one of its topic. Each message is published at most once, whatever happens, as long as
/// the broker loses nothing.
///
/// # Limits
/// [`QueueLimits`]. When the queue is full, [`PublishQueue::offer`] refuses.
///
/// # Errors
/// A message is answered with [`Error::Uncertain`] if an attempt may have succeeded and no later one did until the
/// time-out; with [`Error::Unavailable`] or [`Error::Overloaded`] if none has left this node until then; and with
/// whatever else the broker answers at once.
pub struct PublishQueue {
    shared: Arc<Shared>,
}

/// How much a queue takes, and in which portions it sends it.
#[derive(Debug, Clone)]
pub struct QueueLimits {
    /// Messages that may wait, those on their way included.
    pub waiting_max: usize,
    /// Their bytes.
    pub waiting_bytes_max: usize,
    /// Messages of a batch.
    pub batch_entries_max: usize,
    /// Bytes of a batch; a larger message is a batch of its own.
    pub batch_bytes_max: usize,
    /// Batches of a call.
    pub batches_max: usize,
    /// Calls on their way.
    pub calls_max: usize,
    /// How long a message waits for others at most. Tokio's timers round it up to a millisecond; on a local network the
    /// next answer comes earlier.
    pub gather_max: Duration,
    /// How long a message is tried, from its offer. Its answer comes then, or when the call ends that is on its way.
    pub timeout: Duration,
}

/// What has gone through a queue so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Messages taken.
    pub entries: u64,
    /// Messages refused because the queue was full.
    pub refused: u64,
    /// Messages answered with an error.
    pub failed: u64,
    /// Batches sent, each attempt by itself.
    pub batches: u64,
    /// Attempts that were put off because the one before had failed.
    pub retries: u64,
    /// Calls of the broker.
    pub calls: u64,
    /// Messages that wait now, those on their way included.
    pub waiting: usize,
    /// Their bytes.
    pub waiting_bytes: usize,
}

/// The queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{entries} messages with {bytes} bytes wait for the broker already (cluster.waiting_max)")]
pub struct Overloaded {
    /// Messages that wait.
    pub entries: usize,
    /// Their bytes.
    pub bytes: usize,
}

/// Where a message stands, and how many nodes were subscribed to its topic then.
pub type QueueResult = Result<(Position, u32), Error>;

/// Waits for the answer to one message. To drop it changes nothing: the message is published all the same.
pub struct Waiting {
    answered: oneshot::Receiver<QueueResult>,
}

struct Shared {
    broker: Arc<dyn Broker>,
    state: Mutex<State>,
    wake: Arc<Notify>,
}

impl Default for QueueLimits {
    fn default() -> Self {
        QueueLimits {
            waiting_max: 65_536,
            waiting_bytes_max: 64 << 20,
            batch_entries_max: 256,
            batch_bytes_max: 1 << 20,
            batches_max: 512,
            calls_max: 32,
            gather_max: Duration::from_micros(100),
            timeout: Duration::from_secs(5),
        }
    }
}

impl PublishQueue {
    /// An empty queue before a broker. Called within a tokio runtime. `first_batch` is above all batches that this node
    /// has ever sent, also before a restart.
    pub fn new(broker: Arc<dyn Broker>, limits: QueueLimits, first_batch: BatchId) -> PublishQueue {
        let (state, wake) = (State::new(limits, first_batch), Arc::new(Notify::new()));
        let shared = Arc::new(Shared { broker, state: Mutex::new(state), wake: Arc::clone(&wake) });
        tokio::spawn(run(Arc::downgrade(&shared), wake));
        PublishQueue { shared }
    }

    /// Queues a message. Those of one topic are published in the order of these calls.
    ///
    /// # Errors
    /// [`Overloaded`]: the message is not taken.
    pub fn offer(
        &self,
        topic: &Name,
        retention: Option<Retention>,
        entry: Entry,
    ) -> Result<Waiting, Overloaded> {
        let now = Instant::now();
        let (answered, is_news) = self.shared.lock().handle_offer(topic, retention, entry, now)?;
        if is_news {
            self.shared.wake.notify_one();
        }
        Ok(Waiting { answered })
    }

    /// Sends failed batches again now, for instance because the broker can be reached again.
    pub fn wake(&self) {
        self.shared.lock().handle_wake(Instant::now());
        self.shared.wake.notify_one();
    }

    /// What has gone through so far.
    pub fn counts(&self) -> QueueCounts {
        self.shared.lock().counts
    }

    /// From the offer of a message to its answer, of those that were published.
    pub fn durations(&self) -> DurationCounts {
        self.shared.lock().durations
    }
}

impl Drop for PublishQueue {
    fn drop(&mut self) {
        self.shared.wake.notify_one();
    }
}

impl Future for Waiting {
    type Output = QueueResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<QueueResult> {
        Pin::new(&mut self.answered).poll(context).map(|answered| {
            answered.unwrap_or_else(|_| Err(Error::Uncertain("the queue has ended".to_owned())))
        })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets batches leave until the queue is dropped.
async fn run(shared: Weak<Shared>, wake: Arc<Notify>) {
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let output = shared.lock().poll(Instant::now());
        match output {
            Output::Call(batches) => {
                let mut call = Call { shared, batches };
                tokio::spawn(async move { call.carry().await });
            }
            Output::Wait(at) => {
                drop(shared);
                match at {
                    None => wake.notified().await,
                    Some(at) => tokio::select! {
                        biased;
                        () = wake.notified() => {}
                        () = tokio::time::sleep_until(at) => {}
                    },
                }
            }
        }
    }
}

/// A call on its way. However it ends, its topics may go on.
struct Call {
    shared: Arc<Shared>,
    batches: Vec<Away>,
}

impl Call {
    async fn carry(&mut self) {
        let batches = self.batches.iter().map(|away| away.batch.clone()).collect();
        let results = self.shared.broker.publish(batches).await;
        let batches = std::mem::take(&mut self.batches);
        self.shared.lock().handle_results(batches, results, Instant::now());
        self.shared.wake.notify_one();
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let batches = std::mem::take(&mut self.batches);
        if !batches.is_empty() {
            self.shared.lock().handle_results(batches, Ok(Vec::new()), Instant::now());
            self.shared.wake.notify_one();
        }
    }
}
