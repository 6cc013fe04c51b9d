//! What the calls of a node cost Redis: the constants of `docs/scaling.md`.
//!
//! ```text
//! cargo run --release --package weir-broker --example redis_costs
//! ```
//!
//! It starts a Redis of its own and calls it through [`RedisBroker`], as a node does: with the same
//! scripts, in batches of the same size. CPU time is that of the Redis process
//! (`used_cpu_user` + `used_cpu_sys`) and of this process, which is the node. Memory is Redis'
//! `used_memory`. The rate is what one node reaches, with one call after the other.
#![expect(clippy::print_stdout, reason = "its result is a table")]

use std::fs;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use weir_broker::{
    Batch, BatchId, Broker as _, Claim, ConnectionNumber, Entry, Event, EventHandler, HistoryQuery,
    Name, Node, RedisBroker, RedisOptions, Retention,
};
use weir_tests::Redis;

#[tokio::main]
async fn main() -> Result<()> {
    let meter = Meter { redis: Redis::start()? };
    println!(
        "| what | each | CPU of Redis (µs) | CPU of the node (µs) | memory of Redis (B) | a second |"
    );
    println!("|---|---|---|---|---|---|");
    topics(&meter).await?;
    meter.redis.command("FLUSHALL")?;
    for nodes in [1, 10, 100] {
        claims(&meter, nodes).await?;
        meter.redis.command("FLUSHALL")?;
    }
    hot_topic(&meter).await?;
    for nodes in [1, 10, 100] {
        subscribers(&meter, nodes).await?;
    }
    end_of_a_node(&meter).await
}

/// A topic of its own for each device: followed, read, compared, published to, read again.
async fn topics(meter: &Meter) -> Result<()> {
    let broker = meter.open(KEPT).await?;
    let names: Vec<Name> = names("topic");
    let row = |what: &'static str| Row { what, each: "topic", count: NAMES };
    meter.measure(row("follow a topic (SSUBSCRIBE)"), join(&broker, &names)).await?;
    meter.measure(row("read a new topic"), read(&broker, &names)).await?;
    let tops = async {
        for names in names.chunks(CALL) {
            broker.tops(names.to_vec()).await?;
        }
        Ok(())
    };
    meter.measure(row("compare its position"), tops).await?;
    let publish = async {
        for (names, number) in names.chunks(CALL).zip(1..) {
            let batch = |name: &Name| batch(name, number, 1, true);
            for answer in broker.publish(names.iter().map(batch).collect()).await? {
                answer?;
            }
        }
        Ok(())
    };
    meter.measure(row("publish its first message of 256 B, kept"), publish).await?;
    meter.measure(row("read that message"), read(&broker, &names)).await?;
    meter.measure(row("leave a topic"), leave(&broker, &names)).await
}

/// Devices that connect, and connect again elsewhere, while so many nodes live.
async fn claims(meter: &Meter, nodes: usize) -> Result<()> {
    let mut others = Vec::new();
    for _ in 2..nodes {
        others.push(meter.open(KEPT).await?);
    }
    let names = names("device");
    let row = |what: String| Row { what: what.leak(), each: "device", count: NAMES };
    let label = |what: &str| format!("{what}; {nodes} nodes live");
    let doomed = meter.open(KEPT).await?;
    meter.measure(row(label("claim a new device")), claim(&doomed, &names, 1)).await?;
    drop(doomed);
    let second = meter.open(KEPT).await?;
    let what = label("claim a device whose node has just died");
    meter.measure(row(what), claim(&second, &names, 2)).await?;
    drop(second);
    let third = meter.open(Duration::from_secs(2)).await?;
    claim(&third, &names, 3).await?;
    drop(third);
    sleep(Duration::from_secs(4)).await;
    let fourth = meter.open(KEPT).await?;
    let what = label("claim a device whose node is known as dead");
    meter.measure(row(what), claim(&fourth, &names, 4)).await?;
    meter.measure(row(label("claim it again")), claim(&fourth, &names, 4)).await
}

/// All messages go to one topic, in batches.
async fn hot_topic(meter: &Meter) -> Result<()> {
    let broker = meter.open(KEPT).await?;
    let mut number = 0;
    for is_kept in [false, true] {
        for size in [1, 16, 256] {
            let kept = if is_kept { "kept" } else { "not kept" };
            let what = format!("publish to one topic, {size} a batch, {kept}").leak();
            let publish = async {
                for _ in 0..CALLS {
                    number += 1;
                    let batch = batch(&Name::from("hot"), number, size, is_kept);
                    for answer in broker.publish(vec![batch]).await? {
                        answer?;
                    }
                }
                Ok(())
            };
            meter.measure(Row { what, each: "message", count: CALLS * size }, publish).await?;
        }
    }
    Ok(())
}

/// One message for each node: what a node that follows a topic adds.
async fn subscribers(meter: &Meter, nodes: usize) -> Result<()> {
    let name = Name::from("news");
    let mut brokers = Vec::new();
    for _ in 0..nodes {
        let broker = meter.open(KEPT).await?;
        broker.join(vec![Name::clone(&name)]).await?;
        brokers.push(broker);
    }
    let publisher = brokers.first().context("at least one node")?;
    let mut number = 0;
    for size in [1, 16, 256] {
        let what = format!("publish to a topic that {nodes} nodes follow, {size} a batch").leak();
        let publish = async {
            for _ in 0..CALLS {
                number += 1;
                for answer in publisher.publish(vec![batch(&name, number, size, false)]).await? {
                    answer?;
                }
            }
            Ok(())
        };
        meter.measure(Row { what, each: "message", count: CALLS * size }, publish).await?;
    }
    Ok(())
}

/// A node with many subscriptions ends: how long does Redis answer nobody?
async fn end_of_a_node(meter: &Meter) -> Result<()> {
    let broker = meter.open(KEPT).await?;
    let names = names("gone");
    join(&broker, &names).await?;
    let stop = Arc::new(Notify::new());
    let pinging = tokio::spawn(longest_ping(meter.redis.addr, Arc::clone(&stop)));
    let end = async {
        drop(broker);
        sleep(SETTLE).await;
        Ok(())
    };
    let row = Row { what: "the node that follows it ends", each: "channel", count: NAMES };
    meter.measure(row, end).await?;
    stop.notify_one();
    println!("\nMeanwhile the longest PING took {} ms.", pinging.await??.as_millis());
    Ok(())
}

async fn longest_ping(addr: SocketAddr, stop: Arc<Notify>) -> Result<Duration> {
    let mut stream = TcpStream::connect(addr).await?;
    let mut longest = Duration::ZERO;
    // Seldom enough to cost nothing.
    while timeout(Duration::from_millis(10), stop.notified()).await.is_err() {
        let began = Instant::now();
        stream.write_all(b"PING\r\n").await?;
        stream.read_exact(&mut [0; 7]).await?;
        longest = longest.max(began.elapsed());
    }
    Ok(longest)
}

async fn join(broker: &RedisBroker, names: &[Name]) -> Result<()> {
    for names in names.chunks(CALL) {
        broker.join(names.to_vec()).await?;
    }
    Ok(())
}

async fn leave(broker: &RedisBroker, names: &[Name]) -> Result<()> {
    for names in names.chunks(CALL) {
        broker.leave(names.to_vec()).await?;
    }
    Ok(())
}

async fn read(broker: &RedisBroker, names: &[Name]) -> Result<()> {
    let query = |topic: &Name| {
        let (topic, bytes_max) = (Name::clone(topic), 1 << 18);
        HistoryQuery { topic, after: 0, messages_max: 256, bytes_max }
    };
    for names in names.chunks(CALL) {
        broker.read(names.iter().map(query).collect()).await?;
    }
    Ok(())
}

async fn claim(broker: &RedisBroker, names: &[Name], round: u64) -> Result<()> {
    // As a gateway does that has asked for the list of nodes.
    broker.nodes().await?;
    for (names, first) in names.chunks(CALL).zip((0..).step_by(CALL)) {
        let claim = |(device, number): (&Name, u64)| Claim {
            device: Name::clone(device),
            connection: ConnectionNumber(round << 48 | number),
            age: Duration::ZERO,
            is_counted: true,
        };
        broker.claim(names.iter().zip(first..).map(claim).collect()).await?;
    }
    Ok(())
}

fn batch(topic: &Name, number: u64, size: usize, is_kept: bool) -> Batch {
    let retention = Retention { messages_max: 1_000, ttl: Duration::from_secs(3_600) };
    let entry = Entry { payload: vec![b'x'; 256], idempotency_key: None };
    Batch {
        topic: Name::clone(topic),
        id: BatchId(number),
        retention: is_kept.then_some(retention),
        entries: vec![entry; size],
    }
}

/// As long as the ids that `weir-bench` uses: 24 characters.
fn names(kind: &str) -> Vec<Name> {
    (0..NAMES)
        .map(|number| format!("{kind}-{number:0width$}", width = 23 - kind.len()).into())
        .collect()
}

/// Measures Redis.
struct Meter {
    redis: Redis,
}

/// What is measured, and how often it happens.
struct Row {
    what: &'static str,
    each: &'static str,
    count: usize,
}

/// What Redis and this process have used.
struct Used {
    redis_us: f64,
    node_us: f64,
    bytes: f64,
}

impl Meter {
    /// Opens a node, which counts as living for so long.
    async fn open(&self, node_kept: Duration) -> Result<RedisBroker> {
        let timeout = Duration::from_secs(30);
        let options = RedisOptions {
            timeout,
            node_kept,
            waiting_max: 65_536,
            ..RedisOptions::new(&self.redis.url(), "cluster", "node")
        };
        let broker = RedisBroker::open(options, Arc::new(Deaf)).await?;
        let (name, about) = ("node".to_owned(), String::new());
        let node = Node { number: broker.number(), name, revoked_to: None, about };
        broker.announce(node).await?;
        Ok(broker)
    }

    async fn measure(&self, row: Row, work: impl Future<Output = Result<()>>) -> Result<()> {
        sleep(SETTLE).await;
        let (before, began) = (self.used()?, Instant::now());
        work.await?;
        let took = began.elapsed().as_secs_f64();
        sleep(SETTLE).await;
        let after = self.used()?;
        let Row { what, each, count } = row;
        let count = f64::from(u32::try_from(count)?);
        let redis = (after.redis_us - before.redis_us) / count;
        let node = (after.node_us - before.node_us) / count;
        let bytes = (after.bytes - before.bytes) / count;
        let rate = count / took;
        println!("| {what} | {each} | {redis:.1} | {node:.1} | {bytes:.0} | {rate:.0} |");
        Ok(())
    }

    fn used(&self) -> Result<Used> {
        let (cpu, memory) = (self.redis.command("INFO cpu")?, self.redis.command("INFO memory")?);
        let seconds = field(&cpu, "used_cpu_user")? + field(&cpu, "used_cpu_sys")?;
        let bytes = field(&memory, "used_memory")?;
        Ok(Used { redis_us: seconds * 1e6, node_us: own_cpu_us()?, bytes })
    }
}

/// CPU time of this process: user and system, in ticks of 10 ms.
fn own_cpu_us() -> Result<f64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(')').context("the name stands in parentheses")?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>()? * 10_000.0)
}

fn field(info: &str, name: &str) -> Result<f64> {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok();
    info.lines().find_map(value).with_context(|| format!("Redis does not tell {name}"))
}

/// Hears nothing.
struct Deaf;

impl EventHandler for Deaf {
    fn handle(&self, _: Event) {}
}

const NAMES: usize = 100_000;
/// Batches to one topic.
const CALLS: usize = 2_000;
/// Topics and devices in one call, as a gateway asks.
const CALL: usize = 512;
/// Longer than this runs.
const KEPT: Duration = Duration::from_secs(3_600);
/// Until buffers are given back, and Redis has noticed the end of a connection.
const SETTLE: Duration = Duration::from_millis(1_500);
