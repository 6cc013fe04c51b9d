//! A Redis Cluster of three primaries, of real processes.

use std::sync::{Arc, Mutex};

use redis::Value;
use tokio::time::Duration;
use weir_broker::conformance::Cluster;
use weir_broker::{Answer, Broker, Error, Event, EventHandler, RedisBroker, RedisOptions, Scope};
use weir_tests::{Redis, RedisCluster};

use crate::common::{ask, batch, node_with, publish, until};

weir_broker::conformance!(three, but failovers and late calls);

/// Three primaries, and replicas of some.
struct Three {
    cluster: RedisCluster,
}

/// Clusters that no test uses: to start one takes seconds.
static IDLE: Mutex<Vec<Three>> = Mutex::new(Vec::new());

/// A cluster that another test may have used before, emptied.
struct Lent {
    /// Until it is given back.
    three: Option<Three>,
}

async fn three() -> Arc<dyn Cluster> {
    let idle = IDLE.lock().expect("no panic").pop();
    let three = match idle {
        Some(three) => three,
        None => Three::start(0),
    };
    for redis in three.redis() {
        redis.command("FLUSHALL").expect("emptied");
    }
    Arc::new(Lent { three: Some(three) })
}

impl Drop for Lent {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            IDLE.lock().expect("no panic").extend(self.three.take());
        }
    }
}

impl Lent {
    fn three(&self) -> &Three {
        self.three.as_ref().expect("not given back")
    }
}

/// The first and the last slot of each primary.
const RANGES: [(u16, u16); 3] = [(0, 5460), (5461, 10_922), (10_923, 16_383)];

impl Three {
    fn start(replicas: usize) -> Three {
        let cluster = RedisCluster::start(replicas, Duration::from_secs(1));
        Three { cluster: cluster.expect("a Redis Cluster") }
    }

    fn redis(&self) -> &[Redis] {
        &self.cluster.redis
    }

    fn id(&self, index: usize) -> String {
        self.cluster.id(index).expect("an id")
    }

    fn options(&self, name: &str) -> RedisOptions {
        let mut options = RedisOptions::new(&self.redis()[0].url(), "test", name);
        options.urls.push(self.redis()[2].url());
        options.node_kept = Duration::from_secs(2);
        options
    }

    /// Tells all Redis nodes that a slot has moved.
    fn give(&self, slot: u16, to: usize) {
        let id = self.id(to);
        let order = [to].into_iter().chain((0..self.redis().len()).filter(|index| *index != to));
        for index in order {
            let mut give = redis::cmd("CLUSTER");
            ask(&self.redis()[index], give.arg("SETSLOT").arg(slot).arg("NODE").arg(&id));
        }
    }

    /// Moves a slot with its keys, in the steps of redis-cli. Something may happen when half of them have moved.
    async fn move_slot(&self, slot: u16, from: usize, to: usize, half: impl AsyncFn()) {
        let (source, target) = (&self.redis()[from], &self.redis()[to]);
        let mut set = redis::cmd("CLUSTER");
        ask(target, set.arg("SETSLOT").arg(slot).arg("IMPORTING").arg(self.id(from)));
        let mut set = redis::cmd("CLUSTER");
        ask(source, set.arg("SETSLOT").arg(slot).arg("MIGRATING").arg(self.id(to)));
        let mut is_half = true;
        loop {
            let mut keys = redis::cmd("CLUSTER");
            let keys = ask(source, keys.arg("GETKEYSINSLOT").arg(slot).arg(1));
            let keys: Vec<Vec<u8>> = redis::from_redis_value(keys).expect("keys");
            let Some(key) = keys.first() else { break };
            let mut migrate = redis::cmd("MIGRATE");
            migrate.arg("127.0.0.1").arg(target.addr.port()).arg(key).arg(0).arg(5000);
            ask(source, &migrate);
            if std::mem::take(&mut is_half) {
                half().await;
            }
        }
        self.give(slot, to);
    }
}

impl Cluster for Lent {
    fn open<'a>(
        &'a self,
        name: &'a str,
        connections_per_device_max: usize,
        handler: Arc<dyn EventHandler>,
    ) -> Answer<'a, Arc<dyn Broker>> {
        Box::pin(async move {
            let mut options = self.three().options(name);
            options.connections_per_device_max = connections_per_device_max;
            options.presence_kept = self.presence_kept();
            Ok(Arc::new(RedisBroker::open(options, handler).await?) as Arc<dyn Broker>)
        })
    }

    fn presence_kept(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn break_connections(&self) -> Answer<'_, ()> {
        for redis in self.three().redis() {
            for kind in ["pubsub", "normal"] {
                redis.command(&format!("CLIENT KILL TYPE {kind}")).expect("an answer");
            }
        }
        Box::pin(async { Ok(()) })
    }

    fn hold_back<'a>(&'a self, _call: Answer<'a, ()>) -> Answer<'a, ()> {
        Box::pin(async { Err(Error::Refused("late calls are tested elsewhere".to_owned())) })
    }

    fn deliver(&self) -> Answer<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn fail_over(&self, _lost_max: u64) -> Answer<'_, ()> {
        Box::pin(async { Err(Error::Refused("failovers are tested elsewhere".to_owned())) })
    }
}

/// Topics in slots of each primary.
async fn topics(three: &Three) -> [Vec<String>; 3] {
    let mut topics = [const { Vec::new() }; 3];
    for number in 0..60 {
        let topic = format!("t{number}");
        let slot = slot_of(three, &topic);
        let owner = RANGES.iter().position(|(first, last)| (*first..=*last).contains(&slot));
        topics[owner.expect("a range")].push(topic);
    }
    topics
}

/// The slot of a topic, as Redis sees it.
fn slot_of(three: &Three, topic: &str) -> u16 {
    let keyslot = |key: &str| {
        let slot = ask(&three.redis()[0], redis::cmd("CLUSTER").arg("KEYSLOT").arg(key));
        let Value::Int(slot) = slot else { panic!("{slot:?}") };
        u16::try_from(slot).expect("a slot")
    };
    let tag = crc16(topic.as_bytes());
    keyslot(&format!("{{{tag}}}"))
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    let mut crc: u16 = 0;
    for byte in bytes {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
    }
    crc
}

/// What a node has of the messages of topics: each once and in order, or it was told of a gap.
#[derive(Default)]
struct Followed {
    state: Mutex<std::collections::BTreeMap<String, (u64, bool)>>,
}

impl EventHandler for Followed {
    fn handle(&self, event: Event) {
        let mut state = self.state.lock().expect("no panic");
        match event {
            Event::Messages { topic, messages, .. } => {
                let (last, has_gap) = state.entry(topic.to_string()).or_default();
                for message in messages {
                    assert!(message.offset > *last, "{topic}: {} after {last}", message.offset);
                    assert!(message.offset == *last + 1 || *has_gap, "{topic}: behind {last}");
                    *last = message.offset;
                    *has_gap = false;
                }
            }
            Event::Gap(Scope::All) => state.values_mut().for_each(|(_, has_gap)| *has_gap = true),
            Event::Gap(Scope::Topics(topics)) => {
                for topic in topics {
                    state.entry(topic.to_string()).or_default().1 = true;
                }
            }
            Event::Gap(Scope::Devices(_) | Scope::Node)
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
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_move_while_messages_flow() {
    let three = Three::start(0);
    let followed = Arc::new(Followed::default());
    let mut options = three.options("reader");
    options.probe_every = Duration::from_millis(200);
    let reader = RedisBroker::open(options, followed.clone()).await.expect("open");
    let (writer, _) = node_with(three.options("writer")).await;
    let topics = topics(&three).await;
    let all: Vec<_> = topics.iter().flatten().collect();
    reader.join(all.iter().map(|topic| topic.as_str().into()).collect()).await.expect("joined");
    let write = async |id: u64| {
        let batch = |topic: &&String| batch(topic, id, &["x", "y"]);
        let mut open: Vec<_> = all.iter().map(batch).collect();
        while !open.is_empty() {
            let answers = writer.publish(open.clone()).await.expect("answers");
            let mut answers = answers.iter();
            // Where half of a topic's keys have moved, Redis asks to try again.
            open.retain(|_| match answers.next().expect("an answer") {
                Ok(_) => false,
                Err(Error::Unavailable(_) | Error::Uncertain(_)) => true,
                Err(error) => panic!("{error}"),
            });
        }
    };
    write(1).await;
    let before = writer.tops(all.iter().map(|topic| topic.as_str().into()).collect()).await;
    let before = before.expect("tops");
    let mut moved: Vec<_> = topics[0].iter().take(4).map(|topic| slot_of(&three, topic)).collect();
    // Connections hear themselves in the first slot of their Redis node.
    moved.push(0);
    for (round, slot) in (1..).zip(moved) {
        let half = async || tokio::time::sleep(Duration::from_millis(100)).await;
        tokio::join!(three.move_slot(slot, 0, 2, half), write(10 * round));
        write(10 * round + 1).await;
        write(10 * round + 2).await;
    }
    let tops = writer.tops(all.iter().map(|topic| topic.as_str().into()).collect()).await;
    for ((topic, top), before) in all.iter().zip(tops.expect("tops")).zip(before) {
        // What moves from a primary that lives has lost nothing.
        assert_eq!((top.epoch, top.offset), (before.epoch, 2 * 16), "{topic}");
        // It has heard the last one, or knows of a gap behind the last one that it has heard.
        let followed = || {
            let state = followed.state.lock().expect("no panic");
            state.get(*topic).is_some_and(|(last, has_gap)| *last == top.offset || *has_gap)
        };
        until(&format!("{topic} is followed"), followed).await;
    }
    // Each connection hears itself again.
    let (mut missed, mut rounds) = (u64::MAX, 0);
    while missed != reader.counts().probes_missed {
        missed = reader.counts().probes_missed;
        rounds += 1;
        assert!(rounds < 20, "it does not hear itself");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // The subscriptions have moved, too.
    loop {
        let batches = all.iter().map(|topic| batch(topic, rand::random(), &["z"])).collect();
        let answers = reader.publish(batches).await.expect("answers");
        if answers.iter().all(|answer| answer.as_ref().is_ok_and(|answer| answer.nodes == 1)) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_killed_is_replaced_by_its_replica() {
    let mut three = Three::start(1);
    let topics = topics(&three).await;
    let (broker, heard) = node_with(three.options("one")).await;
    let all = topics.iter().flatten().map(|topic| topic.as_str().into()).collect();
    broker.join(all).await.expect("joined");
    let mut before = Vec::new();
    for topics in &topics {
        before.push(publish(&broker, batch(&topics[0], 1, &["a"])).await);
    }
    heard.messages(&topics[2][0], 1).await;
    three.cluster.redis[0].kill().expect("killed");
    // The others go on.
    for (topics, before) in topics[1..].iter().zip(&before[1..]) {
        let published = loop {
            let answer = broker.publish(vec![batch(&topics[0], 2, &["b"])]).await;
            // Without a majority's word that all is well, a Redis Cluster stops for a moment.
            match answer.expect("an answer").remove(0) {
                Ok(published) => break published,
                Err(Error::Unavailable(_) | Error::Uncertain(_)) => {}
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!((published.epoch, published.positions[0].offset), (before.epoch, 2));
    }
    let mut id = 1;
    let published = loop {
        // A batch again would have the answer that it had when nobody was subscribed.
        id += 1;
        let answer = broker.publish(vec![batch(&topics[0][0], id, &["b"])]).await;
        match answer.expect("an answer").remove(0) {
            Ok(published) if published.nodes == 1 => break published,
            Ok(_) | Err(Error::Unavailable(_) | Error::Uncertain(_)) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert_ne!(published.epoch, before[0].epoch);
    let is_its = |event: &Event| matches!(event, Event::Gap(Scope::Topics(of)) if of.iter().any(|of| **of == *topics[0][0]));
    heard.take(is_its).await;
}
