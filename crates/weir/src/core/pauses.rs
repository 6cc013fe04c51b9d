//! The pause of an upgrade, for the dispatchers: each carries out what its shard has reported, and
//! then stands still until it is known which process goes on.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use weir_engine::Keeper;
use weir_wire::handover::v1;

/// Asks a dispatcher to stand still as soon as it has nothing left to do.
#[derive(Debug)]
pub(crate) struct Pause {
    /// Told when the dispatcher stands still: the terms of its connections.
    pub(crate) is_still: oneshot::Sender<v1::Terms>,
    /// Who goes on. If the sender is dropped, it is this process.
    pub(crate) keeper: oneshot::Receiver<Keeper>,
}

/// A dispatcher that was asked to stand still. Dropped, it lets the dispatcher go on.
#[derive(Debug)]
pub(crate) struct Paused {
    /// The terms of its connections.
    pub(crate) terms: v1::Terms,
    keeper: oneshot::Sender<Keeper>,
}

/// The way to the dispatchers, by shard.
pub(crate) struct Pauses {
    ways: Box<[Way]>,
    /// Answers to devices that wait for the broker of the cluster.
    answers: Arc<AtomicUsize>,
}

/// An answer to a device that is still to come, until it is in the queue of its shard.
#[derive(Debug)]
pub(crate) struct Answering(Arc<AtomicUsize>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

struct Way {
    sender: mpsc::Sender<Pause>,
    /// Until the dispatcher has taken it.
    receiver: Mutex<Option<mpsc::Receiver<Pause>>>,
}

impl Pauses {
    pub(crate) fn new(shards: usize) -> Pauses {
        let way = |_| {
            let (sender, receiver) = mpsc::channel(1);
            Way { sender, receiver: Mutex::new(Some(receiver)) }
        };
        Pauses { ways: (0..shards).map(way).collect(), answers: Arc::default() }
    }

    /// Begins an answer that comes when the broker has answered.
    pub(crate) fn answer(&self) -> Answering {
        self.answers.fetch_add(1, Ordering::Relaxed);
        Answering(Arc::clone(&self.answers))
    }

    /// Waits until all such answers are on their way. No others begin: the dispatchers stand still.
    pub(crate) async fn answered(&self) {
        while self.answers.load(Ordering::Acquire) > 0 {
            sleep(ANSWER_PAUSE).await;
        }
    }

    /// Waits until a shard's dispatcher stands still; `None`: it has ended.
    pub(crate) async fn pause(&self, shard: usize) -> Option<Paused> {
        let (still, is_still) = oneshot::channel();
        let (keeper, decided) = oneshot::channel();
        let pause = Pause { is_still: still, keeper: decided };
        self.ways[shard].sender.send(pause).await.ok()?;
        let terms = is_still.await.ok()?;
        Some(Paused { terms, keeper })
    }

    /// The receiver of a shard's dispatcher, which takes it once.
    pub(crate) fn receiver(&self, shard: usize) -> mpsc::Receiver<Pause> {
        let mut receiver = self.ways[shard].receiver.lock().unwrap_or_else(PoisonError::into_inner);
        receiver.take().unwrap_or_else(|| mpsc::channel(1).1)
    }
}

impl Paused {
    /// Another process goes on: the dispatcher ends.
    pub(crate) fn end(self) {
        // A dispatcher that has failed says so itself.
        let _ = self.keeper.send(Keeper::Other);
    }
}

/// A broker nearby answers in less.
const ANSWER_PAUSE: Duration = Duration::from_millis(1);
