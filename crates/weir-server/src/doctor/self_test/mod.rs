//! The self-test: a gateway in this process, on loopback, with some thousand connections. It
//! measures what a connection and a delivery cost on this machine.
//!
//! `kernel` measures the kernel's memory for a socket; `clients` are the connections.

mod clients;
mod kernel;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tokio::time::{Instant, sleep};
use weir::{Config, Gateway, LimitedMemory, Payload, Publication, Started, Target, Transport};
use weir_client::TlsOptions;

use super::forecast::Costs;
use super::machine::Machine;
use crate::scratch::Scratch;
use crate::sys;
use clients::Clients;

/// The topic to which all connections subscribe.
const TOPIC: &str = "weir-doctor";

/// What a gateway found at its start, and what the memory was then.
pub(super) struct Seen {
    pub(super) started: Started,
    /// Bytes in use of each limited memory, in their order.
    pub(super) used: Vec<Option<u64>>,
}

/// Starts a gateway without connections, to see what it finds and takes.
pub(super) async fn see(config: &Config, memory: &[LimitedMemory]) -> Result<Seen> {
    let scratch = Scratch::new("doctor")?;
    let gateway = start(&on_loopback(config, scratch.path(), false)).await?;
    let used = memory.iter().map(LimitedMemory::used_bytes).collect();
    let started = gateway.started().clone();
    gateway.shutdown().await;
    Ok(Seen { started, used })
}

/// Runs the self-test with at most `connections` connections of each kind.
pub(super) async fn run(
    config: &Config,
    machine: &Machine,
    memory: &[LimitedMemory],
    seen: &Seen,
) -> Result<Costs> {
    let connections = connections(machine, memory, seen);
    let mut costs = Costs::default();
    if connections < CONNECTIONS_MIN {
        return Ok(costs);
    }
    let cgroup = memory.iter().skip(1).min_by_key(|memory| memory.bytes_max);
    if connections >= PAIRS_MIN {
        let kernel =
            kernel::measure(machine, cgroup, connections).context("the sockets' memory")?;
        costs.kernel_measured = kernel.machine.is_some();
        costs.kernel_bytes = kernel.machine.unwrap_or(costs.kernel_bytes);
        costs.cgroup_kernel_bytes = kernel.cgroup;
    }
    let plain = Box::pin(measure(config, connections, Transport::Tcp)).await?;
    let tls = Box::pin(measure(config, connections, Transport::Tls)).await.context("with TLS")?;
    (costs.delivery_us, costs.tls_delivery_us) = (plain.delivery_us, tls.delivery_us);
    costs.connections = plain.connections.min(tls.connections);
    if costs.connections >= CONNECTIONS_FOR_BYTES {
        costs.process_measured = true;
        (costs.process_bytes, costs.tls_process_bytes) = (plain.bytes, tls.bytes);
    }
    Ok(costs)
}

/// Connections for which descriptors and memory have room: each takes two descriptors here, and
/// memory at both ends.
fn connections(machine: &Machine, memory: &[LimitedMemory], seen: &Seen) -> usize {
    // The clients' sockets share one table, even if each shard has its own.
    let table = usize::try_from(seen.started.open_files.soft).unwrap_or(usize::MAX);
    let files = seen.started.connections_max.min(table) / 3;
    let backlog = machine.number("proc/sys/net/core/somaxconn").unwrap_or(128) / 2;
    let left = memory.iter().zip(&seen.used);
    let left =
        left.filter_map(|(memory, used)| memory.bytes_for_connections().checked_sub((*used)?));
    let room = left.min().unwrap_or(u64::MAX) / 2 / BYTES_FOR_BOTH_ENDS;
    let most = usize::try_from(room.min(backlog)).unwrap_or(usize::MAX);
    CONNECTIONS_MAX.min(files).min(most)
}

/// What one kind of connection costs.
struct Measured {
    connections: u64,
    /// Of the process, for each connection.
    bytes: u64,
    delivery_us: Option<f64>,
}

async fn measure(config: &Config, count: usize, transport: Transport) -> Result<Measured> {
    let scratch = Scratch::new("doctor")?;
    let gateway = start(&on_loopback(config, scratch.path(), transport == Transport::Tls)).await?;
    let (addr, tls) = match transport {
        Transport::Tcp => (gateway.tcp_addrs().first(), None),
        Transport::Tls => (gateway.tls_addrs().first(), Some(trusting(&gateway)?)),
    };
    let addr = *addr.context("the gateway does not listen")?;
    let deadline = Instant::now() + OPEN_TIMEOUT;
    // They cause the allocations that happen only once.
    drop(Clients::open(addr, tls.as_ref(), WARM_UP.min(count), deadline).await?);
    settle(&gateway, 0).await?;
    let before = sys::allocated_in_all();
    let mut clients = Clients::open(addr, tls.as_ref(), count, deadline).await?;
    let connections = clients.count() as u64;
    settle(&gateway, connections).await?;
    let grown = sys::allocated_in_all().saturating_sub(before);
    clients.read()?;
    let delivery_us = deliver(&gateway, connections).await?;
    drop(clients);
    settle(&gateway, 0).await?;
    gateway.shutdown().await;
    Ok(Measured { connections, bytes: grown / connections.max(1), delivery_us })
}

/// Publishes to all connections for a second, one message at a time. Returns the processor time of
/// the shards for each delivery; `None` if nothing arrived.
async fn deliver(gateway: &Gateway, connections: u64) -> Result<Option<f64>> {
    let handle = gateway.handle();
    let engine = handle.engine();
    let delivered =
        || (0..engine.shard_count()).map(|shard| engine.stats(shard).delivered.get()).sum::<u64>();
    let publication = Publication {
        target: Target::Topic(TOPIC),
        payload: Payload::Data(&[0x5a; super::PUSHED_BYTES]),
        content_type: "",
        key: "",
        ttl: None,
        sender: None,
        idempotency_key: None,
    };
    let (begun, end) = (delivered(), Instant::now() + PUSH_TIME);
    let before = shards_time()?;
    while Instant::now() < end {
        let goal = delivered() + connections;
        handle.publish(&publication).context("cannot publish")?.await.context("cannot publish")?;
        while delivered() < goal && Instant::now() < end + PUSH_TIME {
            sleep(Duration::from_millis(1)).await;
        }
    }
    let (time, deliveries) = (shards_time()?.saturating_sub(before), delivered() - begun);
    let micros = time.as_secs_f64() * 1e6;
    Ok((deliveries > 0).then(|| micros / deliveries as f64))
}

/// Processor time of the shards' threads so far.
fn shards_time() -> Result<Duration> {
    let mut nanos = 0;
    for task in fs::read_dir("/proc/self/task").context("/proc/self/task")? {
        let task = task?.path();
        // A thread may end meanwhile.
        let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
        if name.starts_with("shard-") {
            let stat = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
            nanos += stat.split(' ').next().and_then(|time| time.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    Ok(Duration::from_nanos(nanos))
}

/// Waits until the shards hold so many connections.
async fn settle(gateway: &Gateway, connections: u64) -> Result<()> {
    let (handle, deadline) = (gateway.handle(), Instant::now() + OPEN_TIMEOUT);
    let engine = handle.engine();
    let entries = || {
        (0..engine.shard_count()).map(|shard| engine.stats(shard).table_entries.get()).sum::<u64>()
    };
    while entries() != connections {
        if Instant::now() > deadline {
            return Err(anyhow!("{} connections instead of {connections}", entries()));
        }
        sleep(Duration::from_millis(5)).await;
    }
    // What the front still holds of openings and ends goes meanwhile.
    sleep(Duration::from_millis(100)).await;
    Ok(())
}

async fn start(config: &Config) -> Result<Gateway> {
    let started = Gateway::builder().config(config.clone()).start().await;
    started.map_err(|error| anyhow!("a gateway on loopback does not start: {error}"))
}

fn trusting(gateway: &Gateway) -> Result<TlsOptions> {
    let certificate = gateway.started().development.as_ref().context("no certificate")?;
    let pem = fs::read(&certificate.path).context("the certificate cannot be read")?;
    Ok(TlsOptions::new("localhost", &pem)?)
}

/// The configuration for a gateway that talks to nobody: as many listeners, on loopback, and the same
/// threads, memory and sockets.
fn on_loopback(config: &Config, scratch: &Path, needs_tls: bool) -> Config {
    let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut own = Config {
        threads: config.threads.clone(),
        engine: config.engine.clone(),
        memory: config.memory.clone(),
        connection: config.connection.clone(),
        tcp: config.tcp.clone(),
        http: config.http.clone(),
        udp: config.udp.clone(),
        ..Config::default()
    };
    let same = |addrs: &Vec<SocketAddr>| vec![anywhere; addrs.len()];
    let listen = &config.listen;
    own.listen.tcp = vec![anywhere; listen.tcp.len().max(1)];
    own.listen.tls = vec![anywhere; listen.tls.len().max(usize::from(needs_tls))];
    (own.listen.http, own.listen.https) = (same(&listen.http), same(&listen.https));
    own.listen.udp = same(&listen.udp);
    own.listen.admin = listen.admin.map(|_| anywhere);
    own.listen.accept_backlog = listen.accept_backlog;
    own.auth.anonymous = Some(true);
    own.tls.handshake_threads = config.tls.handshake_threads;
    own.tls.development_directory = scratch.to_owned();
    own.connection.drain_timeout = Duration::ZERO;
    // The limit on open files shall show.
    own.limits.connections_max = 1 << 24;
    own
}

/// Connections of each kind. More would cost time and tell nothing new.
const CONNECTIONS_MAX: usize = 4_000;
/// With fewer, nothing is measured.
const CONNECTIONS_MIN: usize = 16;
/// With fewer, the bytes of the process are assumed: whatever else it allocates counts too much.
const CONNECTIONS_FOR_BYTES: u64 = 800;
/// With fewer, the bytes of the kernel are assumed, which counts whole pages.
const PAIRS_MIN: usize = 200;
const WARM_UP: usize = 64;
/// Of a connection in this process, with what the test itself needs.
const BYTES_FOR_BOTH_ENDS: u64 = 10 << 10;
/// How long connections of one kind open.
const OPEN_TIMEOUT: Duration = Duration::from_secs(4);
const PUSH_TIME: Duration = Duration::from_secs(1);
