//! `priorities`: a few connections of high priority among many, under more messages than the CPU can send.

use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::json;
use toml::{Table, Value};

use super::sampler::growth;
use super::{Setup, publish_beside};
use crate::cli::PrioritiesArgs;
use crate::clock;
use crate::metrics::Metrics;
use crate::protocol::{Collect, HelloPlan, OpenPlan, Streams};
use crate::publish::{HttpSink, Published, Schedule};
use crate::report::Report;
use crate::spawn::Target;
use crate::stats::real;
use crate::stats::whole;
use crate::worker::topic;
use crate::workers::{Totals, Workers};

/// Token of the connections of high priority, unless `--token` names that of a running server.
const TOKEN: &str = "bench-high";
/// Longest wait for the connections of high priority after a phase, and for all others.
const HIGH_PATIENCE_MS: u64 = 15_000;
const CROWD_PATIENCE_MS: u64 = 30_000;

/// A run of this scenario.
struct Run<'a> {
    args: &'a PrioritiesArgs,
    high: Workers,
    crowd: Workers,
    sink: HttpSink,
    seqs: Vec<u32>,
}

/// One load.
struct Phase {
    published: Published,
    high: Totals,
    crowd: Totals,
    /// CPU time of the server, and duration of the load.
    cpu: Duration,
    seconds: f64,
    before: Metrics,
    after: Metrics,
}

/// Runs the scenario.
pub(crate) fn run(args: &PrioritiesArgs, report: &mut Report) -> Result<()> {
    if args.high >= args.connections {
        bail!("--high: {} of {} connections leave no others", args.high, args.connections);
    }
    let setup = Setup::new(&args.run, Some(&args.target), true)?;
    report.set("connections", args.connections);
    report.set("high", args.high);
    report.set("size", args.size);
    report.set("rate", args.rate);
    report.set("quiet_rate", args.quiet_rate);
    report.set("tick_ms", args.tick_ms);
    report.set("seconds", args.seconds);
    let mut target =
        Target::start(&args.target, setup.server_cpus.as_ref(), &settings(args.tick_ms))?;
    // Their process goes before the others, so that the kernel's bytes for these few connections
    // are read at once.
    let (mut high, mut crowd) =
        (setup.workers(args.high)?, setup.workers(args.connections - args.high)?);
    crowd.stand_back()?;
    let plan = setup.plan(target.addr, args.size, Streams::Count(1));
    let token = args.target.token.clone().unwrap_or_else(|| TOKEN.to_owned());
    let hello = |token: String| Some(HelloPlan { token, subscribe: true });
    crowd.open(&OpenPlan { hello: hello(String::new()), ..plan.clone() }, |_, plan| plan)?;
    let source = plan.source.wrapping_add(1);
    high.open(&OpenPlan { hello: hello(token), source, ..plan }, |_, plan| plan)?;
    let sink = HttpSink::new(target.another_http(), vec![topic(&setup.topic_prefix, 0)]);
    let mut run = Run { args, high, crowd, sink, seqs: vec![0] };
    let quiet = run.phase(&mut target, args.quiet_rate, args.quiet_seconds)?;
    let flood = run.phase(&mut target, args.rate, args.seconds)?;
    fill(report, args, &quiet, &flood);
    setup.describe(report);
    run.high.close()?;
    run.crowd.close()?;
    drop(run);
    target.stop(report);
    Ok(())
}

/// A token of high priority beside the anonymous others.
fn settings(tick_ms: u32) -> Table {
    let mut token = Table::new();
    token.insert("token".to_owned(), TOKEN.into());
    token.insert("priority".to_owned(), "high".into());
    let mut auth = Table::new();
    auth.insert("tokens".to_owned(), Value::Array(vec![Value::Table(token)]));
    let mut settings = if tick_ms > 0 { super::room::settings(tick_ms) } else { Table::new() };
    settings.insert("auth".to_owned(), Value::Table(auth));
    settings
}

impl Run<'_> {
    fn phase(&mut self, target: &mut Target, rate: f64, seconds: f64) -> Result<Phase> {
        let count = u32::try_from(whole((rate * seconds).max(1.0)))?;
        let (before, cpu) = (target.metrics()?, Target::cpu(target.pid)?);
        self.high.begin()?;
        self.crowd.begin()?;
        let start = clock::monotonic();
        let schedule = Schedule { start, rate, count, size: self.args.size };
        let published = publish_beside(&mut self.sink, &schedule, &mut self.seqs, |_| Ok(()))?;
        let order = |wait_ms| Collect { published: self.seqs.clone(), wait_ms, slow_too: false };
        let high = self.high.collect(&order(HIGH_PATIENCE_MS))?;
        let seconds = (clock::monotonic() - start).as_secs_f64();
        let cpu = Target::cpu(target.pid)?.saturating_sub(cpu);
        let crowd = self.crowd.collect(&order(CROWD_PATIENCE_MS))?;
        let after = target.metrics()?;
        Ok(Phase { published, high, crowd, cpu, seconds, before, after })
    }
}

impl Phase {
    fn p99(&self) -> Option<f64> {
        self.high.lags.quantile_ms(0.99)
    }
}

fn fill(report: &mut Report, args: &PrioritiesArgs, quiet: &Phase, flood: &Phase) {
    report.set("messages", flood.published.accepted);
    report.set("publish_refused", flood.published.refused);
    report.figure("publish_late_max_ms", Some(flood.published.late_max.as_secs_f64() * 1000.0));
    report.set("delivered_high", flood.high.tally.delivered);
    report.set("delivered_others", flood.crowd.tally.delivered);
    report.set("lost_high", flood.high.tally.lost() + quiet.high.tally.lost());
    report.set("lost_others", flood.crowd.tally.lost());
    report.set("closed_others", json!(flood.crowd.tally.closed_by));
    let closed = growth(&flood.before, &flood.after, "weir_connections_closed_total", "reason");
    report.set("closed", json!(closed));
    report.figure(
        "delivered_per_second",
        Some(real(flood.high.tally.delivered + flood.crowd.tally.delivered) / flood.seconds),
    );
    let offered = args.rate * f64::from(args.connections);
    report.figure("offered_per_second", Some(offered));
    report.figure("cpu_share", Some(flood.cpu.as_secs_f64() / flood.seconds));
    report.figure("quiet_cpu_share", Some(quiet.cpu.as_secs_f64() / quiet.seconds));
    report.figure("quiet_lag_p50_ms", quiet.high.lags.quantile_ms(0.5));
    report.figure("quiet_lag_p99_ms", quiet.p99());
    report.figure("lag_p50_ms", flood.high.lags.quantile_ms(0.5));
    report.figure("lag_p99_ms", flood.p99());
    report.figure("lag_max_ms", flood.high.lags.max_ms());
    report
        .figure("lag_ratio", flood.p99().zip(quiet.p99()).map(|(flooded, quiet)| flooded / quiet));
    report.figure("others_quiet_lag_p99_ms", quiet.crowd.lags.quantile_ms(0.99));
    report.figure("others_lag_p50_ms", flood.crowd.lags.quantile_ms(0.5));
    report.figure("others_lag_p99_ms", flood.crowd.lags.quantile_ms(0.99));
    report.check_messages("quiet phase", &quiet.high);
    report.check_messages("quiet phase, others", &quiet.crowd);
    report.check_messages("flooded", &flood.high);
    report.check(flood.crowd.tally.wrong == 0, || {
        format!("flooded, others: {} wrong messages", flood.crowd.tally.wrong)
    });
    report.check(flood.crowd.tally.duplicates == 0, || {
        format!("flooded, others: {} messages twice", flood.crowd.tally.duplicates)
    });
}
