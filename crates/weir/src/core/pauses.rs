//! The pause of an upgrade, for the dispatchers: each carries out what its shard has reported, and
//! then stands still until it is known which process goes on.

use std::sync::{Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};
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
pub(crate) struct Pauses(Box<[Way]>);

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
        Pauses((0..shards).map(way).collect())
    }

    /// Waits until a shard's dispatcher stands still; `None`: it has ended.
    pub(crate) async fn pause(&self, shard: usize) -> Option<Paused> {
        let (still, is_still) = oneshot::channel();
        let (keeper, decided) = oneshot::channel();
        let pause = Pause { is_still: still, keeper: decided };
        self.0[shard].sender.send(pause).await.ok()?;
        let terms = is_still.await.ok()?;
        Some(Paused { terms, keeper })
    }

    /// The receiver of a shard's dispatcher, which takes it once.
    pub(crate) fn receiver(&self, shard: usize) -> mpsc::Receiver<Pause> {
        let mut receiver = self.0[shard].receiver.lock().unwrap_or_else(PoisonError::into_inner);
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
