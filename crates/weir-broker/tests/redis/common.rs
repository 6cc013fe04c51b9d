//! What the tests of the Redis broker share.

use std::sync::{Arc, Mutex};

use tokio::sync::Notify;
use tokio::time::{Duration, timeout};
use weir_broker::{
    Batch, BatchId, Broker, Entry, Event, EventHandler, HistoryQuery, Node, Published, Received,
    RedisBroker, RedisOptions, Retention,
};
use weir_tests::Redis;

/// Longer than anything takes that works.
const PATIENCE: Duration = Duration::from_secs(30);

/// Keeps what a node hears.
#[derive(Default)]
pub(crate) struct Heard {
    events: Mutex<Vec<Event>>,
    more: Notify,
}

impl EventHandler for Heard {
    fn handle(&self, event: Event) {
        self.events.lock().expect("no panic").push(event);
        self.more.notify_waiters();
    }
}

impl Heard {
    /// Waits for an event, and takes all up to it.
    pub(crate) async fn take(&self, is_it: impl Fn(&Event) -> bool) -> Vec<Event> {
        let waiting = async {
            loop {
                let more = self.more.notified();
                {
                    let mut events = self.events.lock().expect("no panic");
                    if let Some(index) = events.iter().position(&is_it) {
                        return events.drain(..=index).collect();
                    }
                }
                more.await;
            }
        };
        let waited = timeout(PATIENCE, waiting).await;
        waited.unwrap_or_else(|_| panic!("it did not come; {:?}", self.events.lock()))
    }

    /// Waits for so many messages of a topic, and takes what came until then: epoch, offset and payload of each.
    pub(crate) async fn messages(&self, topic: &str, count: usize) -> Vec<(u64, u64, String)> {
        let mut found = Vec::new();
        while found.len() < count {
            let is_its = |event: &Event| matches!(event, Event::Messages { topic: of, .. } if **of == *topic);
            for event in self.take(is_its).await {
                if let Event::Messages { topic: of, epoch, messages } = event
                    && *of == *topic
                {
                    let message = |received: Received| {
                        let text = String::from_utf8(received.payload).expect("text");
                        (epoch, received.offset, text)
                    };
                    found.extend(messages.into_iter().map(message));
                }
            }
        }
        found
    }

    /// Looks at what came and was not taken.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&[Event]) -> T) -> T {
        look(&self.events.lock().expect("no panic"))
    }

    /// What came and was not taken.
    pub(crate) fn rest(&self) -> Vec<Event> {
        self.events.lock().expect("no panic").drain(..).collect()
    }
}

/// A node.
pub(crate) async fn node(url: &str, name: &str) -> (RedisBroker, Arc<Heard>) {
    let mut options = RedisOptions::new(url, "test", name);
    // A slow machine is no failure.
    options.timeout = Duration::from_secs(20);
    node_with(options).await
}

/// A node with these options.
pub(crate) async fn node_with(mut options: RedisOptions) -> (RedisBroker, Arc<Heard>) {
    options.probe_every = Duration::from_millis(200);
    let heard = Arc::new(Heard::default());
    let broker = RedisBroker::open(options, heard.clone()).await.expect("Redis runs");
    (broker, heard)
}

/// What a node tells of itself.
pub(crate) fn told(broker: &RedisBroker, name: &str) -> Node {
    let about = "{\"version\":\n1}".to_owned();
    Node { number: broker.number(), name: name.to_owned(), revoked_to: None, about }
}

/// What is kept, unless a test says otherwise.
pub(crate) const KEPT: Retention = Retention { messages_max: 1000, ttl: Duration::from_secs(600) };

pub(crate) fn batch(topic: &str, id: u64, payloads: &[&str]) -> Batch {
    let entries = payloads.iter().map(|payload| plain(payload)).collect();
    Batch { topic: topic.into(), id: BatchId(id), retention: Some(KEPT), entries }
}

/// A message without an idempotency key.
pub(crate) fn plain(text: &str) -> Entry {
    Entry { payload: text.into(), idempotency_key: None }
}

pub(crate) async fn publish(broker: &RedisBroker, batch: Batch) -> Published {
    let mut answers = broker.publish(vec![batch]).await.expect("an answer");
    assert_eq!(answers.len(), 1);
    answers.remove(0).expect("it is published")
}

/// First offset that is kept, offset of the last message, and what is kept above an offset.
pub(crate) async fn read(
    broker: &RedisBroker,
    topic: &str,
    after: u64,
) -> (u64, u64, Vec<(u64, String)>) {
    let (topic, bytes_max) = (topic.into(), usize::MAX);
    let query = HistoryQuery { topic, after, messages_max: 1000, bytes_max };
    let history = broker.read(vec![query]).await.expect("an answer").remove(0);
    let message =
        |received: Received| (received.offset, String::from_utf8(received.payload).expect("text"));
    let messages = history.messages.into_iter().map(message).collect();
    (history.first, history.top.offset, messages)
}

/// Waits for something that nobody tells.
pub(crate) async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("in vain: {what}"));
}

/// Has a Redis carry out a command.
pub(crate) fn ask(redis: &Redis, command: &redis::Cmd) -> redis::Value {
    let client = redis::Client::open(redis.url()).expect("a URL");
    let mut conn = client.get_connection().expect("a connection");
    command.query(&mut conn).expect("an answer")
}

/// Starts a Redis that serves replicas at once.
pub(crate) fn start_quick() -> Redis {
    let arguments = ["--repl-diskless-sync-delay", "0"].map(str::to_owned);
    Redis::start_with(|_| Ok(arguments.to_vec())).expect("a Redis")
}

/// Whether a replica has got everything that its primary had.
pub(crate) fn is_replicated(replica: &Redis) -> bool {
    replica.command("INFO replication").is_ok_and(|info| info.contains("link_status:up"))
}
