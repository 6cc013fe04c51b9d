//! What a reload asks the dispatchers: which connections and subscriptions may stay.

use std::collections::HashSet;
use std::ops::AddAssign;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};
use weir_engine::{ConnId, ConnectionInfo, DeviceRef, Origin, TopicId};

/// Settled connections of one shard that its dispatcher looks at again.
///
/// The dispatcher does so in the order of its jobs: everything that it has checked before has
/// reached the shard by then, and everything later is checked by the rules in use.
#[derive(Debug)]
pub(crate) struct Recheck {
    pub(crate) settled: Vec<Settled>,
    pub(crate) changed: Arc<Changed>,
    pub(crate) answer: oneshot::Sender<Rechecked>,
}

/// A settled connection.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) conn: ConnId,
    pub(crate) device: DeviceRef,
    pub(crate) origin: Origin,
    pub(crate) topics: Vec<TopicId>,
}

/// What a reload has changed for connections that are there.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    /// Credentials may admit a connection no more.
    pub(crate) admits_less: bool,
    /// Topics whose class permits less, or others.
    pub(crate) topics: HashSet<TopicId>,
    /// Whether subscriptions to all topics count: tokens have other rights.
    pub(crate) all_topics: bool,
}

/// What a recheck has ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Rechecked {
    /// Connections.
    pub(crate) closed: u64,
    /// Subscriptions of connections that stay.
    pub(crate) unsubscribed: u64,
}

/// The way to the dispatchers, by shard.
pub(crate) struct Rechecks(Box<[Way]>);

struct Way {
    sender: mpsc::Sender<Recheck>,
    /// Until the dispatcher has taken it.
    receiver: Mutex<Option<mpsc::Receiver<Recheck>>>,
}

impl Changed {
    /// Whether a connection may have to leave anything.
    pub(crate) fn is_any(&self) -> bool {
        self.admits_less || self.all_topics || !self.topics.is_empty()
    }

    /// Whether a subscription to the topic has to be looked at.
    pub(crate) fn concerns(&self, topic: TopicId) -> bool {
        self.all_topics || self.topics.contains(&topic)
    }
}

impl AddAssign for Rechecked {
    fn add_assign(&mut self, other: Self) {
        self.closed += other.closed;
        self.unsubscribed += other.unsubscribed;
    }
}

impl Rechecks {
    pub(crate) fn new(shards: usize) -> Rechecks {
        let way = |_| {
            let (sender, receiver) = mpsc::channel(1);
            Way { sender, receiver: Mutex::new(Some(receiver)) }
        };
        Rechecks((0..shards).map(way).collect())
    }

    /// Has a shard's dispatcher look at connections; `None`: it has ended.
    pub(super) async fn ask(
        &self,
        shard: usize,
        settled: Vec<Settled>,
        changed: &Arc<Changed>,
    ) -> Option<Rechecked> {
        let (answer, rechecked) = oneshot::channel();
        let recheck = Recheck { settled, changed: Arc::clone(changed), answer };
        self.0[shard].sender.send(recheck).await.ok()?;
        rechecked.await.ok()
    }

    /// The receiver of a shard's dispatcher, which takes it once.
    pub(crate) fn receiver(&self, shard: usize) -> mpsc::Receiver<Recheck> {
        let mut receiver = self.0[shard].receiver.lock().unwrap_or_else(PoisonError::into_inner);
        receiver.take().unwrap_or_else(|| mpsc::channel(1).1)
    }
}

impl Settled {
    pub(super) fn of(info: ConnectionInfo) -> Settled {
        let ConnectionInfo { id: conn, device, origin, topics, .. } = info;
        Settled { conn, device, origin, topics }
    }
}
