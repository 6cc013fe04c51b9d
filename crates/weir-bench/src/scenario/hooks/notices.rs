//! Notices of messages that devices publish, with a receiver and, in turn, without one.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use toml::Table;

use super::super::{Setup, room};
use super::receiver::{Received, Receiver};
use crate::backend::Host;
use crate::cli::HooksArgs;
use crate::clock;
use crate::protocol::{HelloPlan, OpenPlan, PublishPlan, Streams};
use crate::report::Report;
use crate::spawn::Target;
use crate::stats::{median, real, whole};

const CONNECTIONS: u32 = 100;
const RATE: f64 = 10_000.0;

/// The results of a round.
struct Round {
    published: u64,
    unsent: u64,
    cpu: Duration,
    started: Duration,
    received: Received,
}

/// Runs rounds with and without a receiver in turn, each with a server of its own.
pub(super) fn run(args: &HooksArgs, setup: &Setup, report: &mut Report) -> Result<()> {
    let connections = args.connections.unwrap_or(CONNECTIONS);
    let rate = args.rate.unwrap_or(RATE);
    report.set("connections", connections);
    report.set("size", args.size);
    report.figure("rate", Some(rate));
    let seconds = args.seconds / f64::from(args.rounds);
    let each = rate / f64::from(connections);
    let count = u32::try_from(whole((each * seconds).max(1.0)))?;
    let plan = PublishPlan {
        publishers: connections,
        rate: each,
        count,
        size: args.size,
        ..PublishPlan::default()
    };
    let (mut told, mut alone) = (Vec::new(), Vec::new());
    for round in 0..args.rounds {
        crate::workers::progress("round", round + 1, args.rounds);
        told.push(measure(args, setup, &plan, true, report)?);
        alone.push(measure(args, setup, &plan, false, report)?);
    }
    fill(report, &told, &alone);
    Ok(())
}

fn measure(
    args: &HooksArgs,
    setup: &Setup,
    plan: &PublishPlan,
    is_told: bool,
    report: &mut Report,
) -> Result<Round> {
    let (host, receiver) = (Host::start()?, Arc::new(Receiver::default()));
    let backend = host.backend(receiver.conduct())?;
    let mut settings =
        if is_told { super::receiver(&backend, &["published"])? } else { Table::new() };
    settings.extend(room::settings(0));
    let limits = "publishes_per_second = 0\nframes_per_second = 0\nframe_burst = 1000000\n";
    settings.insert("limits".to_owned(), limits.parse::<Table>()?.into());
    let target = Target::start(&args.target(), setup.server_cpus.as_ref(), &settings)?;
    let mut workers = setup.workers(plan.publishers)?;
    let open = setup.plan(target.addr, args.size, Streams::Count(1));
    let hello = open.hello.map(|hello| HelloPlan { subscribe: false, ..hello });
    workers.open(&OpenPlan { hello, ..open }, |_, plan| plan)?;
    let cpu = Target::cpu(target.pid)?;
    let started = clock::monotonic();
    let tally = workers.publish(plan, || Ok(()))?;
    let published = tally.sent.iter().map(|sent| u64::from(*sent)).sum();
    ensure!(published > 0, "nothing was published");
    if is_told {
        receiver.wait_for(published);
    }
    let cpu = Target::cpu(target.pid)?.saturating_sub(cpu);
    let received = receiver.received();
    workers.close()?;
    target.stop(report);
    Ok(Round { published, unsent: tally.unsent, cpu, started, received })
}

fn fill(report: &mut Report, told: &[Round], alone: &[Round]) {
    let sum = |of: fn(&Round) -> u64| told.iter().map(of).sum::<u64>();
    let (published, delivered) = (sum(|one| one.published), sum(|one| one.received.notices));
    let requests = sum(|one| one.received.requests);
    report.set("published", published);
    report.set("delivered", delivered);
    report.set("again", sum(|one| one.received.again));
    report.set("requests", requests);
    report.figure("notices_per_request", (requests > 0).then(|| real(delivered) / real(requests)));
    let per_second = |one: &Round| {
        let seconds = one.received.arrived.saturating_sub(one.started).as_secs_f64();
        (seconds > 0.0).then(|| real(one.received.notices) / seconds)
    };
    report.figure("delivered_per_second", median(told.iter().filter_map(per_second)));
    let us = |one: &Round| one.cpu.as_secs_f64() * 1e6 / real(one.published.max(1));
    report.figure("cpu_us_per_notice", median(told.iter().map(us)));
    report.figure("cpu_us_per_publish_alone", median(alone.iter().map(us)));
    let mut lags = crate::stats::Lags::new();
    told.iter().for_each(|one| lags.add(&one.received.lags.counts()));
    report.figure("lag_p50_ms", lags.quantile_ms(0.5));
    report.figure("lag_p99_ms", lags.quantile_ms(0.99));
    report.figure("lag_max_ms", lags.max_ms());
    let (missing, unsent) = (sum(|one| one.received.missing), sum(|one| one.unsent));
    report.set("missing", missing);
    report.check(missing == 0, || format!("{missing} numbers of notices were left out"));
    report.check(delivered == published, || {
        format!("{delivered} notices of {published} messages were delivered")
    });
    report.check(unsent == 0, || {
        format!("{unsent} messages were not taken by the sockets of publishers")
    });
}
