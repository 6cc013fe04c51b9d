//! `churn`: guests connect and leave at a rate. Connections that stay must not notice.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use toml::Table;

use super::Setup;
use super::beside::{Beside, Phase, fill_lags, fill_messages};
use super::idle::{settle, wait_for_connections};
use super::sampler::growth;
use crate::cli::ChurnArgs;
use crate::clock;
use crate::protocol::{ChurnPlan, Streams, Ways};
use crate::publish::HttpSink;
use crate::report::Report;
use crate::spawn::Target;
use crate::stats::real;
use crate::stats::whole;
use crate::worker::topic;
use crate::workers::{Churned, Workers};

/// Guests before the first look at memory, in seconds of the rate. They cause the allocations that
/// happen only once.
const WARM_UP_SECONDS: f64 = 3.0;
/// Memory counts as settled when it has not changed for this time.
const SETTLE: Duration = Duration::from_secs(4);

const GROWTH_BYTES: u64 = 1024 * 1024;

/// Runs the scenario.
pub(crate) fn run(args: &ChurnArgs, report: &mut Report) -> Result<()> {
    let setup = Setup::new(&args.run, Some(&args.target), true)?;
    report.set("connections", args.connections);
    report.set("churn_rate", args.churn_rate);
    report.set("hold_ms", args.hold_ms);
    report.set("size", args.size);
    report.set("rate", args.rate);
    report.set("seconds", args.seconds);
    let mut target = Target::start(&args.target, setup.server_cpus.as_ref(), &Table::new())?;
    let mut held = setup.workers(args.connections)?;
    let plan = setup.plan(target.addr, args.size, Streams::Count(1));
    held.open(&plan, |_, plan| plan)?;
    let topic = topic(&setup.topic_prefix, 0);
    let mut run = Beside {
        held,
        others: setup.workers(1)?,
        plan: ChurnPlan {
            addr: target.addr,
            source: plan.source.wrapping_add(1),
            hello: plan.hello.unwrap_or_default(),
            topic: topic.clone(),
            rate: args.churn_rate,
            count: 0,
            hold_ms: args.hold_ms,
            ways: Ways { tls: plan.tls, ..Ways::default() },
        },
        sink: HttpSink::new(target.another_http(), vec![topic]),
        seqs: vec![0],
        rate: args.rate,
        size: args.size,
    };
    let standing = f64::from(args.connections);
    let warm_up = churn(&mut run.others, &run.plan, WARM_UP_SECONDS)?;
    wait_for_connections(&mut target, standing)?;
    let (rss_before, settled_before) = settle(target.pid, SETTLE)?;
    let quiet = run.phase(args.quiet_seconds, |_, _| Ok(()))?;
    let (before, cpu) = (target.metrics()?, Target::cpu(target.pid)?);
    let began = clock::monotonic();
    let mut churned = None;
    let busy = run.phase(args.seconds, |guests, plan| {
        churned = Some(churn(guests, plan, args.seconds)?);
        Ok(())
    })?;
    let seconds = (clock::monotonic() - began).as_secs_f64();
    let cpu = Target::cpu(target.pid)?.saturating_sub(cpu);
    wait_for_connections(&mut target, standing)?;
    let (rss_after, settled_after) = settle(target.pid, SETTLE)?;
    let after = target.metrics()?;
    let churned = churned.unwrap_or_default();
    fill_guests(report, args, &warm_up, &churned);
    report.figure("cpu_share", Some(cpu.as_secs_f64() / seconds));
    report.set("closed", json!(growth(&before, &after, "weir_connections_closed_total", "reason")));
    report.set("rss_anon_before", rss_before);
    report.set("rss_anon_after", rss_after);
    report.figure("rss_growth", Some(real(rss_after) / real(rss_before.max(1)) - 1.0));
    report.set("settled", settled_before && settled_after);
    if settled_before && settled_after {
        let allowed = growth_allowed(rss_before);
        report.set("rss_growth_bytes_allowed", allowed);
        report.check(rss_after <= rss_before + allowed, || {
            format!("RssAnon grew from {rss_before} B to {rss_after} B, by more than {allowed} B")
        });
    }
    fill_held(report, &quiet, &busy);
    setup.describe(report);
    run.held.close()?;
    drop(run);
    target.stop(report);
    Ok(())
}

/// Growth of memory that is allowed: 5 %, or 1 MiB if that is more, for the allocator's own use.
fn growth_allowed(before: u64) -> u64 {
    (before / 20).max(GROWTH_BYTES)
}

/// Runs guests for this time.
fn churn(guests: &mut Workers, plan: &ChurnPlan, seconds: f64) -> Result<Churned> {
    let count = whole(plan.rate * seconds).max(1);
    guests.churn(&ChurnPlan { count, ..plan.clone() })
}

fn fill_guests(report: &mut Report, args: &ChurnArgs, warm_up: &Churned, churned: &Churned) {
    report.set("guests", churned.tally.welcomed);
    report.set("guests_failed", json!(churned.tally.failed));
    report.figure("guests_per_second", Some(real(churned.tally.welcomed) / args.seconds));
    report.figure("connect_p50_ms", churned.connects.quantile_ms(0.5));
    report.figure("connect_p99_ms", churned.connects.quantile_ms(0.99));
    report.figure("connect_max_ms", churned.connects.max_ms());
    report.figure("connect_late_max_ms", Some(real(churned.tally.late_max_us) / 1000.0));
    for (what, tally) in [("warm-up", &warm_up.tally), ("churn", &churned.tally)] {
        report.check(tally.failed.is_empty(), || {
            format!("{what}: guests that failed: {:?}", tally.failed)
        });
    }
}

fn fill_held(report: &mut Report, quiet: &Phase, busy: &Phase) {
    fill_messages(report, quiet, busy);
    report.set("lost", quiet.totals.tally.lost() + busy.totals.tally.lost());
    fill_lags(report, quiet, "during churn", busy);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_may_grow_by_a_twentieth_or_a_mebibyte() {
        assert_eq!(growth_allowed(4 << 20), 1 << 20);
        assert_eq!(growth_allowed(100 << 20), 5 << 20);
    }
}
