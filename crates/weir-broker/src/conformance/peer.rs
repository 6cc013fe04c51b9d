//! A node as the promises use it: a broker, what it hears, and an announcement that is repeated.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::Cluster;
use crate::contract::{Broker, Error, Event, EventHandler, Published};
use crate::records::{
    Batch, BatchId, Claim, ConnectionNumber, Entry, History, HistoryQuery, Name, Node, NodeNumber,
    Position, Received, Retention,
};

/// A node. To drop it is to kill it.
pub(super) struct Peer {
    pub(super) broker: Arc<dyn Broker>,
    pub(super) ears: Arc<Ears>,
    name: String,
    batches: AtomicU64,
    heartbeat: JoinHandle<()>,
}

/// What a node has heard.
#[derive(Default)]
pub(super) struct Ears {
    events: Mutex<Vec<Event>>,
    heard: Notify,
}

/// A message as it was heard or read.
pub(super) type Heard = (Position, Vec<u8>);

/// So long is waited for what has to come. It only ends a test that fails.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Announcements are repeated so often, and what does not announce itself is asked so often.
pub(super) const STEP: Duration = Duration::from_millis(100);

/// What most topics of these tests keep.
pub(super) const KEPT: Retention =
    Retention { messages_max: 10_000, ttl: Duration::from_secs(3600) };

impl Peer {
    /// Opens a node, for one connection per device.
    pub(super) async fn open(cluster: &Arc<dyn Cluster>, name: &str) -> Peer {
        Peer::with(cluster, name, 1).await
    }

    pub(super) async fn with(
        cluster: &Arc<dyn Cluster>,
        name: &str,
        connections_max: usize,
    ) -> Peer {
        let ears = Arc::new(Ears::default());
        let handler: Arc<dyn EventHandler> = Arc::clone(&ears) as Arc<dyn EventHandler>;
        let broker = cluster.open(name, connections_max, handler).await.expect("a node opens");
        announce(&*broker, name).await.expect("the broker answers");
        let (weak, name) = (Arc::downgrade(&broker), name.to_owned());
        let own = name.clone();
        let heartbeat = tokio::spawn(async move {
            loop {
                tokio::time::sleep(STEP).await;
                let Some(broker) = weak.upgrade() else { return };
                // It fails while the broker cannot be reached, and after the node's end.
                let _ = announce(&*broker, &own).await;
            }
        });
        Peer { broker, ears, name, batches: AtomicU64::new(1_000), heartbeat }
    }

    pub(super) fn number(&self) -> NodeNumber {
        self.broker.number()
    }

    /// Ends without a word, as a process that is killed.
    pub(super) async fn die(self) {
        self.silence().await;
    }

    /// Ends the announcements.
    pub(super) async fn silence(&self) {
        self.heartbeat.abort();
        until("the heartbeat ends", async || self.heartbeat.is_finished().then_some(())).await;
    }

    /// Announces itself once.
    pub(super) async fn announce(&self) {
        announce(&*self.broker, &self.name).await.expect("the broker answers");
    }

    pub(super) async fn join(&self, topic: &str) {
        self.broker.join(vec![topic.into()]).await.expect("the broker answers");
    }

    pub(super) async fn leave(&self, topic: &str) {
        self.broker.leave(vec![topic.into()]).await.expect("the broker answers");
    }

    /// A batch with a new id.
    pub(super) fn batch(&self, topic: &str, texts: &[&str]) -> Batch {
        let id = BatchId(self.batches.fetch_add(1, Ordering::Relaxed));
        let entries = texts.iter().map(|text| entry(text)).collect();
        Batch { topic: topic.into(), id, retention: Some(KEPT), entries }
    }

    pub(super) async fn send(&self, batch: Batch) -> Published {
        self.try_send(batch).await.expect("the broker accepts a batch")
    }

    pub(super) async fn try_send(&self, batch: Batch) -> Result<Published, Error> {
        let mut answers = self.broker.publish(vec![batch]).await?;
        assert_eq!(answers.len(), 1, "one batch has one answer");
        answers.remove(0)
    }

    pub(super) async fn publish(&self, topic: &str, texts: &[&str]) -> Published {
        self.send(self.batch(topic, texts)).await
    }

    /// Publishes under an idempotency key.
    pub(super) async fn publish_as(&self, topic: &str, key: &str, text: &str) -> Position {
        let mut batch = self.batch(topic, &[text]);
        batch.entries[0].idempotency_key = Some(key.into());
        self.send(batch).await.positions[0]
    }

    pub(super) async fn top(&self, topic: &str) -> Position {
        let tops = self.broker.tops(vec![topic.into()]).await.expect("the broker answers");
        assert_eq!(tops.len(), 1, "one topic has one answer");
        tops[0]
    }

    pub(super) async fn read(&self, topic: &str, after: u64, messages_max: usize) -> History {
        self.read_bytes(topic, after, (messages_max, usize::MAX)).await
    }

    /// The limits are on messages and on their bytes.
    pub(super) async fn read_bytes(
        &self,
        topic: &str,
        after: u64,
        (messages_max, bytes_max): (usize, usize),
    ) -> History {
        let query = HistoryQuery { topic: topic.into(), after, messages_max, bytes_max };
        let mut answers = self.broker.read(vec![query]).await.expect("the broker answers");
        assert_eq!(answers.len(), 1, "one query has one answer");
        answers.remove(0)
    }

    pub(super) async fn claim(&self, device: &str, connection: u64, age_secs: u64) {
        let claim = claim(device, connection, age_secs);
        self.broker.claim(vec![claim]).await.expect("the broker answers");
    }

    pub(super) async fn release(&self, device: &str, connection: u64) {
        let claim = claim(device, connection, 0);
        self.broker.release(vec![claim]).await.expect("the broker answers");
    }

    pub(super) async fn to_device(&self, device: &str, text: &str) -> u32 {
        let sent = self.broker.to_device(device.into(), entry(text));
        sent.await.expect("the broker answers")
    }

    /// The same under an idempotency key.
    pub(super) async fn to_device_as(&self, device: &str, key: &str, text: &str) -> u32 {
        let message = Entry { idempotency_key: Some(key.into()), ..entry(text) };
        let sent = self.broker.to_device(device.into(), message);
        sent.await.expect("the broker answers")
    }

    /// The connections of a device that this node was told to close so far, once or more often, by number.
    pub(super) async fn evicted(&self, device: &str) -> Vec<u64> {
        // What comes for one device comes in order.
        self.to_device(device, "fence").await;
        let fence = b"fence".as_slice();
        let find = |events: &[Event]| {
            let is_fence = |event: &&Event| {
                matches!(event, Event::ToDevice { device: of, payload }
                    if **of == *device && payload == fence)
            };
            let fences = events.iter().filter(is_fence).count();
            (fences > 0).then(|| evictions(events, device))
        };
        let mut evicted = self.ears.until("a message to a device", find).await;
        self.ears.forget(|event| matches!(event, Event::ToDevice { .. }));
        evicted.sort_unstable();
        evicted.dedup();
        evicted
    }

    /// What was heard of a topic, when a message with this text has come.
    pub(super) async fn until_text(&self, topic: &str, text: &str) -> Vec<Heard> {
        let find = |events: &[Event]| {
            let heard = heard(events, topic);
            heard.iter().any(|(_, payload)| payload == text.as_bytes()).then_some(heard)
        };
        self.ears.until(&format!("{text:?} in {topic:?}"), find).await
    }

    /// The texts of [`Peer::until_text`].
    pub(super) async fn texts(&self, topic: &str, last: &str) -> Vec<String> {
        texts(&self.until_text(topic, last).await)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.heartbeat.abort();
    }
}

impl Ears {
    /// Waits until something is found in what has been heard.
    pub(super) async fn until<T>(&self, what: &str, find: impl Fn(&[Event]) -> Option<T>) -> T {
        let found = tokio::time::timeout(PATIENCE, async {
            loop {
                let heard = self.heard.notified();
                if let Some(found) = find(&self.events()) {
                    return found;
                }
                heard.await;
            }
        });
        match found.await {
            Ok(found) => found,
            Err(_) => panic!("{what} did not come; heard: {:?}", self.events()),
        }
    }

    /// Forgets what is like this.
    pub(super) fn forget(&self, is_forgotten: impl Fn(&Event) -> bool) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.retain(|event| !is_forgotten(event));
    }

    pub(super) fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl EventHandler for Ears {
    fn handle(&self, event: Event) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        self.heard.notify_waiters();
    }
}

/// Asks again and again until there is an answer.
pub(super) async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let found = tokio::time::timeout(PATIENCE, async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            tokio::time::sleep(STEP).await;
        }
    });
    found.await.unwrap_or_else(|_| panic!("waited in vain: {what}"))
}

pub(super) fn entry(text: &str) -> Entry {
    Entry { payload: text.into(), idempotency_key: None }
}

pub(super) fn claim(device: &str, connection: u64, age_secs: u64) -> Claim {
    let age = Duration::from_secs(age_secs);
    let connection = ConnectionNumber(connection);
    Claim { device: device.into(), connection, age, is_counted: true }
}

pub(super) fn names(names: &[&str]) -> Vec<Name> {
    names.iter().map(|name| Name::from(*name)).collect()
}

/// Messages of a topic, in the order in which they were heard. Their offsets rise within an epoch, and follow each other
/// unless a gap was told.
pub(super) fn heard(events: &[Event], topic: &str) -> Vec<Heard> {
    let (mut found, mut has_gap) = (Vec::<Heard>::new(), true);
    for event in events {
        match event {
            Event::Messages { topic: of, epoch, messages } if **of == *topic => {
                for Received { offset, payload } in messages {
                    let place = Position { epoch: *epoch, offset: *offset };
                    if let Some((last, _)) = found.last().filter(|(last, _)| last.epoch == *epoch) {
                        let next = last.offset + 1;
                        let follows = place.offset == next || has_gap && place.offset > next;
                        assert!(follows, "{place:?} comes after {last:?}");
                    }
                    found.push((place, payload.clone()));
                    has_gap = false;
                }
            }
            Event::Gap(_) => has_gap = true,
            Event::Messages { .. }
            | Event::ToDevice { .. }
            | Event::ToAll(_)
            | Event::ToNode(_)
            | Event::Evicted { .. }
            | Event::Revoked(_)
            | Event::Presence { .. }
            | Event::Vacated { .. }
            | Event::Lost(_)
            | Event::Back { .. }
            | Event::Renumbered(_) => {}
        }
    }
    found
}

pub(super) fn texts(heard: &[Heard]) -> Vec<String> {
    heard.iter().map(|(_, payload)| String::from_utf8_lossy(payload).into_owned()).collect()
}

/// The messages of a history as text. Their offsets follow each other.
pub(super) fn read_texts(history: &History) -> Vec<String> {
    for two in history.messages.windows(2) {
        assert_eq!(two[0].offset + 1, two[1].offset, "what is kept has no holes: {history:?}");
    }
    let payloads = history.messages.iter().map(|message| &message.payload);
    payloads.map(|payload| String::from_utf8_lossy(payload).into_owned()).collect()
}

fn evictions(events: &[Event], device: &str) -> Vec<u64> {
    let evicted = |event: &Event| match event {
        Event::Evicted { device: of, connection } if **of == *device => Some(connection.0),
        Event::Messages { .. }
        | Event::Gap(_)
        | Event::ToDevice { .. }
        | Event::ToAll(_)
        | Event::ToNode(_)
        | Event::Evicted { .. }
        | Event::Revoked(_)
        | Event::Presence { .. }
        | Event::Vacated { .. }
        | Event::Lost(_)
        | Event::Back { .. }
        | Event::Renumbered(_) => None,
    };
    events.iter().filter_map(evicted).collect()
}

async fn announce(broker: &dyn Broker, name: &str) -> Result<(), Error> {
    let about = format!("{{\"of\":\"{name}\"}}");
    let node = Node { number: broker.number(), name: name.to_owned(), revoked_to: None, about };
    broker.announce(node).await
}
