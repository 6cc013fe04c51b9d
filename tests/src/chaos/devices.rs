//! Devices that connect to two nodes at once, and devices that are revoked while their node cannot
//! reach Redis.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use weir_client::{Client, Event, Options};

use super::fault::Machines;
use super::{Fault, Round, until};
use crate::admin::Answer;
use crate::program::raise_open_files;
use crate::wait::{now, pause};

/// One connection of a device, which a task keeps until it ends.
struct Held {
    task: JoinHandle<()>,
    is_open: Arc<AtomicBool>,
}

impl Held {
    /// Connects, and keeps the connection until the server ends it.
    async fn open(addr: SocketAddr, device: String) -> Result<Held> {
        let mut client = Client::connect(addr, Options::device(device)).await?;
        let is_open = Arc::new(AtomicBool::new(true));
        let open = Arc::clone(&is_open);
        let task = tokio::spawn(async move {
            while let Ok(Some(event)) = client.next().await {
                if matches!(event, Event::Goodbye(_)) {
                    break;
                }
            }
            open.store(false, Ordering::SeqCst);
        });
        Ok(Held { task, is_open })
    }

    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Devices that each connect to two nodes at once, so many at a time. In two of three rounds a
/// node loses Redis meanwhile, and with it what the other node tells of its connection.
///
/// Returns what came of each round: the time until each device had exactly one connection, from
/// the moment on when all had settled and both nodes had Redis.
pub fn race(devices: usize, mut handle: impl FnMut(&Round)) -> Result<()> {
    raise_open_files()?;
    let machines = Machines::start(Fault::Cut, 1)?;
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    for (round, first) in (0..devices).step_by(AT_ONCE).enumerate() {
        let names: Vec<String> =
            (first..devices.min(first + AT_ONCE)).map(|number| format!("racer-{number}")).collect();
        handle(&race_once(&machines, &runtime, (round, &names))?);
    }
    Ok(())
}

fn race_once(
    machines: &Machines,
    runtime: &Runtime,
    (round, names): (usize, &[String]),
) -> Result<Round> {
    let pair = [round % machines.nodes.len(), (round + 1) % machines.nodes.len()];
    let proxy = machines.proxy(pair[round % 2])?;
    // Without Redis from the beginning, or from the moment when the first claims are on their way.
    if round % 3 == 1 {
        proxy.cut();
    }
    let connecting: Vec<_> = names
        .iter()
        .flat_map(|name| pair.map(|node| (machines.nodes[node].tcp, name.clone())))
        .map(|(addr, name)| runtime.spawn(Held::open(addr, name)))
        .collect();
    if round % 3 == 2 {
        proxy.cut();
    }
    let mut held = Vec::new();
    for connecting in connecting {
        held.push(runtime.block_on(connecting)??);
    }
    let open = |two: &[Held]| two.iter().filter(|held| held.is_open()).count();
    if round % 3 > 0 {
        pause(OUTAGE);
    }
    if round % 3 == 1 {
        let lone = held.chunks(2).filter(|two| open(two) != 2).count();
        ensure!(lone == 0, "{lone} connections are evicted where nobody can know of others");
    }
    proxy.heal();
    let has_redis = |node: usize| -> Result<bool> {
        let metrics = machines.nodes[node].metrics()?;
        Ok(metrics.sum("weir_broker_reachable", "") == 1.0)
    };
    until("both nodes have Redis", || Ok(has_redis(pair[0])? && has_redis(pair[1])?))?;
    let begun = now();
    let outcome =
        until("each device has one connection", || Ok(held.chunks(2).all(|two| open(two) <= 1)));
    let well_after = begun.elapsed();
    outcome?;
    pause(OUTAGE);
    let mut problems: Vec<String> = Vec::new();
    for (name, two) in names.iter().zip(held.chunks(2)) {
        if open(two) != 1 {
            problems.push(format!("{name} has {} connections", open(two)));
        }
    }
    Ok(Round {
        well_after,
        messages: names.len(),
        untold: problems.len(),
        problems,
        ..Round::default()
    })
}

/// Devices that are revoked at one node while another one, which has their connections, cannot
/// reach Redis.
///
/// Returns what came of each round: the time until the last of their connections was closed, from
/// the moment on when that node had Redis again.
pub fn revoke(times: usize, mut handle: impl FnMut(&Round)) -> Result<()> {
    let machines = Machines::start(Fault::Cut, 1)?;
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    for round in 0..times {
        handle(&revoke_once(&machines, &runtime, round)?);
    }
    Ok(())
}

fn revoke_once(machines: &Machines, runtime: &Runtime, round: usize) -> Result<Round> {
    let away = round % machines.nodes.len();
    let other = &machines.nodes[(away + 1) % machines.nodes.len()];
    let names: Vec<String> = (0..REVOKED).map(|number| format!("thief-{round}-{number}")).collect();
    let mut held = Vec::new();
    for name in &names {
        held.push(runtime.block_on(Held::open(machines.nodes[away].tcp, name.clone()))?);
    }
    let proxy = machines.proxy(away)?;
    if round.is_multiple_of(2) {
        proxy.freeze()
    } else {
        proxy.cut()
    };
    let node = &machines.nodes[away];
    node.await_metrics("the loss of Redis", |metrics| {
        metrics.sum("weir_broker_reachable", "") == 0.0
    })?;
    for name in &names {
        let answer = Answer::post(other.admin, &format!("/v1/devices/{name}/revoke"), "")?;
        ensure!([202, 204].contains(&answer.status), "{} {}", answer.status, answer.body);
    }
    let early = held.iter().filter(|held| !held.is_open()).count();
    ensure!(early == 0, "{early} devices are closed where nobody can know of it");
    proxy.heal();
    node.await_metrics("the return of Redis", |metrics| {
        metrics.sum("weir_broker_reachable", "") == 1.0
    })?;
    let begun = now();
    until("all are closed", || Ok(!held.iter().any(Held::is_open)))?;
    Ok(Round { well_after: begun.elapsed(), messages: names.len(), ..Round::default() })
}

impl Machines {
    /// The proxy between a node and its only Redis.
    fn proxy(&self, node: usize) -> Result<&crate::proxy::Proxy> {
        match self.proxies().get(node) {
            Some(proxy) => Ok(proxy),
            None => bail!("node {node} has no proxy"),
        }
    }
}

/// Devices that race together.
const AT_ONCE: usize = 100;
const REVOKED: usize = 5;
/// Longer than an eviction takes.
const OUTAGE: Duration = Duration::from_millis(300);
