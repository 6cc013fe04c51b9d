//! `room`: many clients publish to one topic with a tick, and all clients receive all messages.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use toml::{Table, Value};

use super::sampler::{Sampler, growth};
use super::{ARRIVAL_PATIENCE, Setup, publish_beside};
use crate::cli::RoomArgs;
use crate::clock;
use crate::metrics::Metrics;
use crate::protocol::{Check, Collect, OpenPlan, PublishPlan, PublishTally, Streams};
use crate::publish::{HttpSink, Schedule};
use crate::report::Report;
use crate::spawn::Target;
use crate::stats::real;
use crate::stats::whole;
use crate::worker::topic;
use crate::workers::{Totals, Workers};

/// The results of the run.
struct Outcome {
    published: PublishTally,
    refused: u64,
    totals: Totals,
    cpu: Duration,
    before: Metrics,
    after: Metrics,
    /// Most stalled connections in any sample.
    stalled_max: f64,
}

/// Runs the scenario.
pub(crate) fn run(args: &RoomArgs, report: &mut Report) -> Result<()> {
    let setup = Setup::new(&args.run, Some(&args.target), true)?;
    let publishers = args.publishers.unwrap_or(args.connections).min(args.connections);
    report.set("connections", args.connections);
    report.set("publishers", publishers);
    report.set("size", args.size);
    report.set("rate", args.rate);
    report.set("tick_ms", args.tick_ms);
    report.set("seconds", args.seconds);
    let settings = settings(args.tick_ms);
    let mut target = Target::start(&args.target, setup.server_cpus.as_ref(), &settings)?;
    let mut workers = setup.workers(args.connections)?;
    let plan = OpenPlan {
        // A backend that publishes over the admin API is a publisher too.
        check: Check::Room(publishers.max(1)),
        ..setup.plan(target.addr, args.size, Streams::Count(1))
    };
    let connect = workers.open(&plan, |_, plan| plan)?;
    let name = topic(&setup.topic_prefix, 0);
    let mut sampler = Sampler::new(target.another_http());
    let outcome = load(args, publishers, &mut target, &mut workers, &mut sampler, name)?;
    fill(report, args, publishers, &outcome);
    report.set("queued_bytes_max", whole(sampler.queued_max));
    report.set("queued_bytes_peak", outcome.after.sum("weir_queued_bytes_peak", &[]).map(whole));
    report.figure("connect_seconds", Some(connect.as_secs_f64()));
    report.set("worker_processes", workers.processes());
    setup.describe(report);
    workers.close()?;
    target.stop(report);
    Ok(())
}

/// Settings of the server for the room: devices may publish to it without a limit.
pub(crate) fn settings(tick_ms: u32) -> Table {
    let mut class = Table::new();
    class.insert("pattern".to_owned(), "bench/*".into());
    class.insert("tick".to_owned(), format!("{tick_ms}ms").into());
    class.insert("publish".to_owned(), Value::Array(vec!["devices".into(), "services".into()]));
    let mut limits = Table::new();
    limits.insert("publishes_per_second".to_owned(), 0.into());
    let mut settings = Table::new();
    settings.insert("topic_classes".to_owned(), Value::Array(vec![Value::Table(class)]));
    settings.insert("limits".to_owned(), Value::Table(limits));
    settings
}

fn load(
    args: &RoomArgs,
    publishers: u32,
    target: &mut Target,
    workers: &mut Workers,
    sampler: &mut Sampler,
    name: String,
) -> Result<Outcome> {
    let count = u32::try_from(whole((args.rate * args.seconds).max(1.0)))?;
    let before = target.metrics()?;
    workers.begin()?;
    let cpu = Target::cpu(target.pid)?;
    let start = clock::monotonic();
    let end = start + Duration::from_secs_f64(args.seconds);
    let mut stalled_max = 0.0_f64;
    let mut watch = |metrics: &Metrics| {
        let stalled = metrics.sum("weir_connections_stalled", &[]).unwrap_or(0.0);
        stalled_max = stalled_max.max(stalled);
    };
    let (published, refused) = if publishers == 0 {
        let mut sink = HttpSink::new(target.another_http(), vec![name]);
        let mut seqs = vec![0];
        let schedule = Schedule { start, rate: args.rate, count, size: args.size };
        let published = publish_beside(&mut sink, &schedule, &mut seqs, |goes_on| {
            sampler.sample_while(|metrics| {
                watch(metrics);
                Ok(goes_on())
            })
        })?;
        let late_max_us = u64::try_from(published.late_max.as_micros())?;
        let tally = PublishTally { sent: seqs, late_max_us, ..PublishTally::default() };
        (tally, published.refused)
    } else {
        let plan = PublishPlan {
            publishers,
            rate: args.rate,
            count,
            size: args.size,
            ..PublishPlan::default()
        };
        let published = workers.publish(&plan, || {
            sampler.sample_while(|metrics| {
                watch(metrics);
                Ok(clock::monotonic() < end)
            })
        })?;
        (published, 0)
    };
    clock::sleep_until(end);
    let patience = ARRIVAL_PATIENCE + 2 * Duration::from_millis(args.tick_ms.into());
    let wait_ms = u64::try_from(patience.as_millis())?;
    let order = Collect { published: published.sent.clone(), wait_ms, slow_too: false };
    let totals = workers.collect(&order)?;
    let cpu = Target::cpu(target.pid)?.saturating_sub(cpu);
    Ok(Outcome { published, refused, totals, cpu, before, after: target.metrics()?, stalled_max })
}

fn fill(report: &mut Report, args: &RoomArgs, publishers: u32, outcome: &Outcome) {
    let (tally, totals) = (&outcome.totals.tally, &outcome.totals);
    let published: u64 = outcome.published.sent.iter().map(|sent| u64::from(*sent)).sum();
    let cpu = outcome.cpu.as_secs_f64();
    let delivered = real(tally.delivered);
    let ticks = args.seconds * 1000.0 / f64::from(args.tick_ms);
    let ticks = Some(ticks).filter(|_| args.tick_ms > 0);
    let per_message = (tally.delivered > 0).then(|| cpu * 1e6 / delivered);
    let stalls = |metrics: &Metrics| {
        metrics.sum("weir_stall_seconds_count", &[]).unwrap_or(0.0)
            + metrics.sum("weir_connections_stalled", &[]).unwrap_or(0.0)
    };
    let ended = whole(stalls(&outcome.after) - stalls(&outcome.before));
    let stalled = ended.max(whole(outcome.stalled_max));
    report.set("published", published);
    report.set("publish_refused", outcome.refused);
    report.set("delivered", tally.delivered);
    report.set("lost", tally.missing);
    report.set("duplicates", tally.duplicates);
    report.set("wrong", tally.wrong);
    report.set("stalled", stalled);
    report.set(
        "dropped",
        json!(growth(&outcome.before, &outcome.after, "weir_messages_dropped_total", "rule")),
    );
    report.figure("delivered_per_second", Some(delivered / args.seconds));
    report.figure("cpu_us_per_message", per_message);
    report.figure("delivered_per_cpu_second", per_message.map(|micros| 1e6 / micros));
    report.figure("cpu_ms_per_tick", ticks.map(|ticks| cpu * 1000.0 / ticks));
    report.figure("cpu_share", Some(cpu / args.seconds));
    let frames = (tally.open > 0).then(|| real(tally.frames) / real(tally.open));
    report.figure("frames_per_tick", frames.zip(ticks).map(|(frames, ticks)| frames / ticks));
    report
        .figure("bytes_per_message", (tally.delivered > 0).then(|| real(tally.bytes) / delivered));
    report.figure("lag_p50_ms", totals.lags.quantile_ms(0.5));
    report.figure("lag_p99_ms", totals.lags.quantile_ms(0.99));
    report.figure("lag_max_ms", totals.lags.max_ms());
    report.figure("last_lag_p50_ms", totals.lags_last.quantile_ms(0.5));
    report.figure("last_lag_p99_ms", totals.lags_last.quantile_ms(0.99));
    report.figure("publish_late_max_ms", Some(real(outcome.published.late_max_us) / 1000.0));
    report.check_messages("room", totals);
    report.check(stalled == 0, || format!("{stalled} stalls of clients that read all the time"));
    report.check(outcome.published.unsent == 0, || {
        format!("{} messages were not taken by the sockets of publishers", outcome.published.unsent)
    });
    let expected = published * u64::from(args.connections);
    report.check(tally.delivered + tally.missing == expected, || {
        format!(
            "{} delivered and {} lost are not the {expected} of {publishers} publishers",
            tally.delivered, tally.missing
        )
    });
}
