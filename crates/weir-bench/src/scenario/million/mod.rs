//! `million`: as many connections as the machine holds, in one server.

mod crowd;
mod memory;

use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Resource, getrlimit};
use toml::{Table, Value};

use super::Setup;
use super::idle::{settle, wait_for_connections};
use crate::cli::MillionArgs;
use crate::clock;
use crate::explained::Explained;
use crate::protocol::{HelloPlan, HoldOrder, HoldPlan, Streams};
use crate::publish::{HttpSink, Schedule};
use crate::report::Report;
use crate::spawn::Target;
use crate::stats::{Lags, real};
use crate::tls::{TlsPlan, TlsVersion};
use crowd::{Crowd, Stop};
use memory::MachineMemory;

/// Clients that come and go before the first look at memory. They cause the allocations that happen
/// only once.
const WARM_UP: u32 = 256;
/// Connections that share a topic.
const PER_TOPIC: u32 = 1000;
/// Connections of a shard whose table has room for so many descriptors, less these: its own, and
/// some that still linger.
const KEPT_DESCRIPTORS: u64 = 32;
/// Longest heartbeat that a server grants by default.
const HEARTBEAT_MAX: Duration = Duration::from_secs(15 * 60);
/// Longest wait for a message to all, for each connection, and at least.
const ARRIVAL_PER_CONNECTION: Duration = Duration::from_micros(100);
const ARRIVAL_MIN: Duration = Duration::from_secs(20);

/// Memory of server, clients and kernel.
struct Held {
    server: u64,
    clients: u64,
    machine: MachineMemory,
}

/// Runs the scenario.
pub(crate) fn run(args: &MillionArgs, report: &mut Report) -> Result<()> {
    let mut target_args = args.target.clone();
    target_args.tls.tls |= args.tls_share > 0.0;
    // The server runs as in service, with all its CPUs, unless the options say otherwise.
    let setup = Setup::new(&args.run, Some(&target_args), false)?;
    let shards = args.shards.unwrap_or_else(|| shards_for(args.connections));
    let settings = settings(args, shards);
    let mut target = Target::start(&target_args, setup.server_cpus.as_ref(), &settings)?;
    report.set("connections_wanted", args.connections);
    report.set("tls_share", args.tls_share);
    report.set("shards", target_args.spawn.is_some().then_some(shards));
    report.set("reserve_bytes", args.reserve_bytes);
    let plan = plan(args, &setup, &target);
    let mut crowd = Crowd::start(&plan, args.connections, args.reserve_bytes)?;
    report.set("worker_processes", crowd.processes());
    crowd.warm_up(WARM_UP)?;
    wait_for_connections(&mut target, 0.0)?;
    let (before, _) = held(&target, &crowd, args.settle)?;
    let ramp = crowd.open(args.at_once as usize)?;
    report.set("connections", ramp.open);
    report.set("tls_connections", ramp.tls);
    report.figure("connect_seconds", Some(ramp.took.as_secs_f64()));
    let rate = f64::from(ramp.open) / ramp.took.as_secs_f64().max(1e-6);
    report.figure("connects_per_second", Some(rate));
    match &ramp.stopped_by {
        None => report.set("stopped_by", "nothing"),
        Some(Stop::Reserve) => {
            report.set("stopped_by", "memory_reserve");
            report.check(ramp.open > 0, || {
                "less memory than the reserve is available from the start".to_owned()
            });
        }
        Some(Stop::Error(error)) => {
            report.set("stopped_by", "error");
            report.fail(format!("after {} connections: {error}", ramp.open));
        }
    }
    let (after, settled) = held(&target, &crowd, args.settle)?;
    fill_memory(report, (&before, &after), f64::from(ramp.open.max(1)));
    report.set("settled", settled);
    let holds = target.metrics()?.sum("weir_connections", &[("state", "settled")]);
    report.check(holds == Some(f64::from(ramp.open)), || {
        format!("the server holds {holds:?} connections and not {}", ramp.open)
    });
    fill_descriptors(report, &mut target)?;
    Explained::fill(Explained::ask(&mut target.http)?, report);
    rest(args, &mut crowd, &mut target, report)?;
    broadcast(args, ramp.open, &mut crowd, &target, report)?;
    let began = clock::monotonic();
    crowd.close()?;
    wait_for_connections(&mut target, 0.0)?;
    let took = clock::monotonic().saturating_sub(began);
    report.figure("close_seconds", Some(took.as_secs_f64()));
    let (left, _) = held(&target, &crowd, args.settle)?;
    report.set("rss_anon_left", left.server);
    report.set("available_bytes_min", crowd.available_min);
    setup.describe(report);
    target.stop(report);
    Ok(())
}

/// Shards that so many connections need under this process's limit on open files, which the server
/// inherits.
fn shards_for(connections: u32) -> u32 {
    let Some(limit) = getrlimit(Resource::Nofile).maximum else { return 0 };
    let room = u32::try_from(limit.saturating_sub(KEPT_DESCRIPTORS)).unwrap_or(u32::MAX);
    connections.div_ceil(room.max(1)).clamp(2, 256)
}

/// The keys that the scenario needs.
fn settings(args: &MillionArgs, shards: u32) -> Table {
    let mut settings = Table::new();
    let mut set = |section: &str, key: &str, value: Value| {
        let table = settings.entry(section).or_insert_with(|| Value::Table(Table::new()));
        if let Value::Table(table) = table {
            table.insert(key.to_owned(), value);
        }
    };
    set("engine", "own_descriptors", true.into());
    set("threads", "shards", i64::from(shards).into());
    set("limits", "connections_max", i64::from(args.connections.max(WARM_UP)).into());
    settings
}

fn plan(args: &MillionArgs, setup: &Setup, target: &Target) -> HoldPlan {
    let base = setup.plan(target.addr, args.size, Streams::Block(PER_TOPIC));
    let millis = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
    let is_split = args.tls_share > 0.0;
    let tls_share = if base.tls.is_some() && !is_split { 1.0 } else { args.tls_share };
    HoldPlan {
        addr: target.plain,
        // The clients keep only keys, and those of one version.
        tls: base.tls.map(|tls| (target.addr, TlsPlan { version: Some(TlsVersion::Tls13), ..tls })),
        tls_share,
        first: 0,
        source: base.source,
        window: base.window / args.at_once.max(1),
        patience_ms: base.patience_ms,
        hello: base.hello.unwrap_or_else(|| HelloPlan { subscribe: true, ..Default::default() }),
        topic_prefix: base.topic_prefix,
        per_topic: PER_TOPIC,
        heartbeat_ms: millis((3 * args.ping_every).min(HEARTBEAT_MAX)),
        ping_ms: millis(args.ping_every),
        size: args.size,
    }
}

/// The memory of all, when that of the server has settled.
fn held(target: &Target, crowd: &Crowd, quiet: Duration) -> Result<(Held, bool)> {
    let (server, settled) = settle(target.pid, quiet)?;
    let (clients, machine) = (crowd.rss_anon()?, MachineMemory::now()?);
    Ok((Held { server, clients, machine }, settled))
}

fn fill_memory(report: &mut Report, (before, after): (&Held, &Held), connections: f64) {
    let each = |of: &dyn Fn(&Held) -> u64| Some((real(of(after)) - real(of(before))) / connections);
    report.figure("bytes_per_connection", each(&|held| held.server));
    report.figure("slab_bytes_per_connection", each(&|held| held.machine.slab));
    report.figure("buffer_bytes_per_connection", each(&|held| held.machine.buffers));
    report.figure("table_bytes_per_connection", each(&|held| held.machine.tables));
    report.figure(
        "kernel_bytes_per_connection",
        each(&|Held { machine, .. }| machine.slab + machine.buffers + machine.tables),
    );
    report.figure("client_bytes_per_connection", each(&|held| held.clients));
    let used = real(before.machine.available) - real(after.machine.available);
    report.figure("machine_bytes_per_connection", Some(used / connections));
    report.set("rss_anon_before", before.server);
    report.set("rss_anon_after", after.server);
    report.set("available_bytes_before", before.machine.available);
    report.set("available_bytes_after", after.machine.available);
}

/// Descriptors in the fullest table of a shard, and their limit.
fn fill_descriptors(report: &mut Report, target: &mut Target) -> Result<()> {
    let metrics = target.metrics()?;
    let used = metrics.by_label("weir_descriptors", "table");
    let most = used.iter().filter(|(table, _)| *table != "front").map(|(_, count)| *count);
    report.figure("descriptors_per_shard_max", most.max_by(f64::total_cmp));
    report.figure("descriptors_of_front", used.get("front").copied());
    let limit = metrics.by_label("weir_descriptors_max", "table");
    report.figure("descriptors_limit", limit.values().copied().min_by(f64::total_cmp));
    Ok(())
}

/// Measures the server while nothing but pings happens.
fn rest(
    args: &MillionArgs,
    crowd: &mut Crowd,
    target: &mut Target,
    report: &mut Report,
) -> Result<()> {
    let pings = |target: &mut Target| {
        target.metrics()?.sum("weir_pings_total", &[]).context("the server counts no pings")
    };
    let pinged = pings(target)?;
    let (began, before) = (clock::monotonic(), Target::cpu(target.pid)?);
    crowd.wait(args.rest)?;
    let cpu = Target::cpu(target.pid)?.saturating_sub(before).as_secs_f64();
    let time = clock::monotonic().saturating_sub(began).as_secs_f64();
    let pinged = pings(target)? - pinged;
    report.figure("ping_seconds", Some(args.ping_every.as_secs_f64()));
    report.figure("rest_seconds", Some(time));
    report.figure("rest_cpu_share", Some(cpu / time));
    report.figure("rest_pings_per_second", Some(pinged / time));
    report.figure("rest_cpu_us_per_ping", (pinged > 0.0).then(|| cpu * 1e6 / pinged));
    Ok(())
}

/// Sends messages to all, one after the other.
fn broadcast(
    args: &MillionArgs,
    connections: u32,
    crowd: &mut Crowd,
    target: &Target,
    report: &mut Report,
) -> Result<()> {
    crowd.tell_all(&HoldOrder::Quiet)?;
    // Answers to the last pings.
    crowd.wait(Duration::from_secs(1))?;
    let mut sink = HttpSink::new(target.another_http(), Vec::new());
    let wait = (ARRIVAL_PER_CONNECTION * connections).max(ARRIVAL_MIN);
    let (mut seqs, mut delivered, mut rounds) = ([0], 0, Vec::new());
    for _ in 0..args.broadcasts {
        crowd.expect_messages(seqs[0] + 1, wait)?;
        let before = Target::cpu(target.pid)?;
        let schedule = Schedule { start: clock::monotonic(), rate: 1.0, count: 1, size: args.size };
        let published = crate::publish::run(&mut sink, &schedule, &mut seqs)?;
        report.check(published.addressed == u64::from(connections), || {
            format!("the server addressed {} of {connections}", published.addressed)
        });
        let (tally, lags) = crowd.collect(wait)?;
        let cpu = Target::cpu(target.pid)?.saturating_sub(before);
        delivered += tally.delivered;
        let lost = [tally.missing, tally.wrong, tally.closed, tally.unstamped];
        report.check(lost == [0; 4], || {
            format!("missing, wrong, closed, without a time stamp: {lost:?}: {:?}", tally.errors)
        });
        rounds.push((lags, cpu.as_secs_f64() * 1e6 / real(tally.delivered.max(1))));
    }
    crowd.tell_all(&HoldOrder::Ping)?;
    report.set("size", args.size);
    report.set("broadcasts", args.broadcasts);
    report.set("delivered", delivered);
    let lag = |of: &dyn Fn(&Lags) -> Option<f64>| {
        crate::stats::median(rounds.iter().filter_map(|(lags, _)| of(lags)))
    };
    report.figure("lag_p50_ms", lag(&|lags| lags.quantile_ms(0.5)));
    report.figure("broadcast_seconds", lag(&|lags| lags.max_ms()).map(|ms| ms / 1000.0));
    let cpu = crate::stats::median(rounds.iter().map(|(_, cpu)| *cpu));
    report.figure("cpu_us_per_message", cpu);
    Ok(())
}
