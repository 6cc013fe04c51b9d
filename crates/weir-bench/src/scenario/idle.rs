//! `idle`: the server's memory for an idle connection.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Result, bail};
use toml::Table;

use super::Setup;
use crate::cli::IdleArgs;
use crate::clock;
use crate::explained::Explained;
use crate::payload::HEADER_BYTES;
use crate::process::rss_anon;
use crate::protocol::Streams;
use crate::report::Report;
use crate::spawn::Target;

/// Clients that come and go before the first look at memory. They cause the allocations that happen
/// only once.
const WARM_UP: u32 = 256;
/// Connections that share a topic.
const PER_TOPIC: u32 = 1000;
/// Memory that changes by less than this has settled.
const SETTLED_BYTES: u64 = 64 << 10;
/// Longest wait for memory to settle, and for connections to end.
const SETTLE_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The results of a server.
struct Held {
    before: u64,
    after: u64,
    settled: bool,
    connect: Duration,
    workers: u32,
    explained: Option<Explained>,
}

/// Runs the scenario.
pub(crate) fn run(args: &IdleArgs, report: &mut Report) -> Result<()> {
    // The server runs as in service, with all its CPUs, unless the options say otherwise.
    let setup = Setup::new(&args.run, Some(&args.target), false)?;
    report.set("connections", args.connections);
    report.set("transport", args.transport.name());
    let own_first = args.own_topics;
    let mut held = hold(args, &setup, if own_first { 1 } else { PER_TOPIC }, report)?;
    let per_connection = held.per_connection(args.connections);
    report.figure("bytes_per_connection", (!own_first).then_some(per_connection));
    let own = if args.target.spawn.is_some() { Some(hold(args, &setup, 1, report)?) } else { None };
    let own_per_connection = own.as_ref().map(|own| own.per_connection(args.connections));
    report.figure(
        "bytes_per_connection_own_topic",
        own_per_connection.or(own_first.then_some(per_connection)),
    );
    report.set("rss_anon_before", held.before);
    report.set("rss_anon_after", held.after);
    report.set("rss_anon_before_own_topic", own.as_ref().map(|own| own.before));
    report.set("rss_anon_after_own_topic", own.as_ref().map(|own| own.after));
    report.set("settled", held.settled && own.as_ref().is_none_or(|own| own.settled));
    report.figure("connect_seconds", Some(held.connect.as_secs_f64()));
    report.figure(
        "connects_per_second",
        Some(f64::from(args.connections) / held.connect.as_secs_f64().max(1e-6)),
    );
    report.set("connections_per_topic", if own_first { 1 } else { PER_TOPIC });
    report.set("warm_up_connections", WARM_UP);
    Explained::fill(held.explained.take(), report);
    report.set("worker_processes", held.workers);
    setup.describe(report);
    Ok(())
}

impl Held {
    fn per_connection(&self, connections: u32) -> f64 {
        (crate::stats::real(self.after) - crate::stats::real(self.before)) / f64::from(connections)
    }
}

/// Starts a server if the options say so, and lets it hold the connections.
fn hold(args: &IdleArgs, setup: &Setup, per_topic: u32, report: &mut Report) -> Result<Held> {
    let mut target = Target::start(&args.target, setup.server_cpus.as_ref(), &Table::new())?;
    let plan = setup.plan(target.addr, HEADER_BYTES, Streams::Block(per_topic));
    let plan = setup.plan_by(args.transport, target.edge, plan)?;
    let standing = connections(&mut target)?.unwrap_or(0.0);
    let mut warm_up = setup.workers(WARM_UP)?;
    warm_up.open(&plan, |_, plan| plan)?;
    warm_up.close()?;
    drop(warm_up);
    wait_for_connections(&mut target, standing)?;
    let (before, settled_before) = settle(target.pid, args.settle)?;
    let mut workers = setup.workers(args.connections)?;
    let connect = workers.open(&plan, |_, plan| plan)?;
    let (after, settled_after) = settle(target.pid, args.settle)?;
    let explained = Explained::ask(&mut target.http)?;
    let holds = connections(&mut target)?;
    let expected = standing + f64::from(args.connections);
    report.check(holds.is_none_or(|holds| holds >= expected), || {
        format!("the server holds {} connections instead of {expected}", holds.unwrap_or(0.0))
    });
    let processes = workers.processes();
    workers.close()?;
    drop(workers);
    wait_for_connections(&mut target, standing)?;
    target.stop(report);
    Ok(Held {
        before,
        after,
        settled: settled_before && settled_after,
        connect,
        workers: processes,
        explained,
    })
}

/// Connections that the server holds, by its metrics.
fn connections(target: &mut Target) -> Result<Option<f64>> {
    Ok(target.metrics()?.sum("weir_connections", &[]))
}

/// Waits until the server holds no more than `most` connections.
pub(super) fn wait_for_connections(target: &mut Target, most: f64) -> Result<()> {
    let deadline = clock::monotonic() + SETTLE_MAX;
    loop {
        let holds = connections(target)?.unwrap_or(0.0);
        if holds <= most {
            return Ok(());
        }
        if clock::monotonic() > deadline {
            bail!("{holds} connections are still held {SETTLE_MAX:?} after all clients have gone");
        }
        clock::sleep(Duration::from_millis(100));
    }
}

/// Waits until `RssAnon` has not changed for `quiet`. Returns its value, and whether it has
/// settled.
pub(super) fn settle(pid: u32, quiet: Duration) -> Result<(u64, bool)> {
    let deadline = clock::monotonic() + SETTLE_MAX.max(2 * quiet);
    let looks = usize::try_from(quiet.as_millis() / LOOK_EVERY.as_millis())?.max(1) + 1;
    let mut seen = VecDeque::new();
    loop {
        let now = rss_anon(pid)?;
        seen.push_back(now);
        if seen.len() > looks {
            seen.pop_front();
        }
        let (least, most) = seen
            .iter()
            .fold((now, now), |(least, most), value| (least.min(*value), most.max(*value)));
        let settled = seen.len() == looks && most - least <= SETTLED_BYTES;
        if settled || clock::monotonic() > deadline {
            return Ok((now, settled));
        }
        clock::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_at_rest_settles() {
        let (bytes, _) = settle(std::process::id(), Duration::from_millis(500)).unwrap();
        assert!(bytes > 0);
    }

    #[test]
    fn a_connection_costs_the_difference() {
        let held = Held {
            before: 1_000_000,
            after: 4_000_000,
            settled: true,
            connect: Duration::ZERO,
            workers: 1,
            explained: None,
        };
        assert!((held.per_connection(10_000) - 300.0).abs() < 1e-9);
    }
}
