//! `call`: devices that call a backend all at once, and a backend that calls devices of which some
//! are silent.

mod backend;
mod callers;
mod devices;

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use toml::Table;

use super::Setup;
use crate::cli::CallArgs;
use crate::clock;
use crate::process::rss_anon;
use crate::report::Report;
use crate::spawn::{Target, free_port};
use crate::stats::{Lags, is_in_share, real};
use callers::Called;
use devices::{Device, Outcome};

/// Runs the scenario.
pub(crate) fn run(args: &CallArgs, report: &mut Report) -> Result<()> {
    ensure!(args.target.spawn.is_some(), "call needs --spawn: it configures routes of calls");
    let setup = Setup::new(&args.run, Some(&args.target), true)?;
    let backend = free_port()?;
    let target =
        Target::start(&args.target, setup.server_cpus.as_ref(), &settings(args, backend)?)?;
    let runtime = Builder::new_multi_thread().enable_all().worker_threads(2).build()?;
    runtime.block_on(backend::serve(backend))?;
    for (name, value) in [("devices", args.devices), ("size", args.size), ("called", args.called)] {
        report.set(name, value);
    }
    to_backend(args, &setup, &target, &runtime, report)?;
    to_devices(args, &target, &runtime, report)?;
    setup.describe(report);
    target.stop(report);
    Ok(())
}

/// All devices call at once, round by round.
fn to_backend(
    args: &CallArgs,
    setup: &Setup,
    target: &Target,
    runtime: &Runtime,
    report: &mut Report,
) -> Result<()> {
    let connecting = Device::connect_all(target.addr, args.devices, setup.window);
    let mut devices = runtime.block_on(connecting)?;
    let idle = rss_anon(target.pid)?;
    let (mut lags, mut rates) = (Lags::new(), Vec::new());
    let mut sum = Outcome::default();
    for round in 0..args.rounds {
        crate::workers::progress("round", round + 1, args.rounds);
        let began = clock::monotonic();
        let (back, outcome) =
            runtime.block_on(devices::call_all(devices, round, args.size as usize))?;
        rates.push(real(u64::from(args.devices)) / (clock::monotonic() - began).as_secs_f64());
        devices = back;
        outcome.lags.iter().for_each(|nanos| lags.record(*nanos));
        sum.add(&outcome);
    }
    let after = rss_anon(target.pid)?;
    report.figure("to_backend_p50_ms", lags.quantile_ms(0.5));
    report.figure("to_backend_p99_ms", lags.quantile_ms(0.99));
    report.figure("to_backend_max_ms", lags.max_ms());
    report.figure("to_backend_per_second", crate::stats::median(rates));
    report.set("to_backend_answered", lags.count());
    report.set("to_backend_rss_bytes", json!({ "idle": idle, "after": after }));
    tell(report, "to_backend", &sum);
    Ok(())
}

fn tell(report: &mut Report, what: &str, sum: &Outcome) {
    for (name, count) in
        [("lost", sum.lost), ("answered twice", sum.twice), ("wrong or refused", sum.wrong)]
    {
        report.check(count == 0, || format!("{what}: {count} calls {name}"));
    }
    report.set("to_backend_lost", sum.lost);
    report.set("to_backend_twice", sum.twice);
    report.set("to_backend_wrong", sum.wrong);
}

/// A backend calls devices at once; some of them never answer.
fn to_devices(
    args: &CallArgs,
    target: &Target,
    runtime: &Runtime,
    report: &mut Report,
) -> Result<()> {
    if args.called == 0 {
        return Ok(());
    }
    let silent = |number: u32| is_in_share(number, args.silent_share);
    let answering = Device::answer_all(target.addr, args.called, silent);
    let stop = runtime.block_on(answering)?;
    let before = rss_anon(target.pid)?;
    let admin = target.admin();
    let calls = callers::call_all(admin, args.called, args.deadline, silent);
    let called = runtime.block_on(calls)?;
    // The devices hear of the last deadlines, and the allocator returns what it keeps a moment.
    clock::sleep(SETTLING);
    let after = rss_anon(target.pid)?;
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    fill(args, &called, (before, after), report);
    Ok(())
}

fn fill(args: &CallArgs, called: &Called, (before, after): (u64, u64), report: &mut Report) {
    report.figure("to_device_p50_ms", called.answered.quantile_ms(0.5));
    report.figure("to_device_p99_ms", called.answered.quantile_ms(0.99));
    report.set("to_device_answered", called.answered.count());
    report.set("silent", called.late.count());
    report.figure("deadline_late_p50_ms", called.late.quantile_ms(0.5));
    report.figure("deadline_late_p99_ms", called.late.quantile_ms(0.99));
    report.figure("deadline_late_max_ms", called.late.max_ms());
    report.set("deadline_early", called.early);
    report.set("to_device_rss_bytes", json!({ "before": before, "after": after }));
    let sum = called.answered.count() + called.late.count();
    report.check(sum == u64::from(args.called), || {
        format!(
            "of {} calls to devices, {sum} ended as they should: {:?}",
            args.called, called.wrong
        )
    });
    report.check(called.early == 0, || format!("{} deadlines ended early", called.early));
}

/// The routes to the backend, and limits that let all devices call at once.
fn settings(args: &CallArgs, backend: SocketAddr) -> Result<Table> {
    let (calls, bytes) = (args.devices.max(16), u64::from(args.devices) * u64::from(args.size) * 4);
    let bytes = bytes.max(64 << 20);
    let text = format!(
        "[[upstreams]]\nname = \"bench\"\naddresses = [\"{backend}\"]\nprotocol = \"http2\"\n\
         [calls]\ncalls_max = {calls}\npayload_bytes_max = {bytes}\n\
         [[calls.routes]]\nmethod = \"bench/*\"\nupstream = \"bench\"\ncalls_max = {calls}\n"
    );
    text.parse().context("the settings are TOML")
}

const SETTLING: std::time::Duration = std::time::Duration::from_secs(2);
