//! `stall`: some clients stop reading or read too slowly. The others must not suffer.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use toml::Table;

use super::sampler::{Sampler, growth};
use super::{Setup, arrival_of, publish_beside};
use crate::cli::StallArgs;
use crate::clock;
use crate::explained::Explained;
use crate::metrics::Metrics;
use crate::protocol::{Collect, OpenPlan, Reading, SlowPlan, Streams};
use crate::publish::{HttpSink, Published, Schedule};
use crate::report::Report;
use crate::spawn::Target;
use crate::stats::whole;
use crate::worker::topic;
use crate::workers::{Totals, Workers};

/// The default of the gateway.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time beyond `stall_timeout` in which a stall begins, and in which its end must show.
const STALL_BEGINS: Duration = Duration::from_secs(10);
const STALL_ENDS: Duration = Duration::from_secs(5);
/// Default time of load while all clients read too slowly.
const DRAIN_SECONDS: f64 = 30.0;

/// A run of this scenario.
struct Run<'a> {
    args: &'a StallArgs,
    workers: Workers,
    sink: HttpSink,
    sampler: Sampler,
    seqs: Vec<u32>,
    stall_timeout: Duration,
    slow: SlowPlan,
}

/// The results of a phase.
struct Phase {
    published: Published,
    totals: Totals,
    before: Metrics,
    after: Metrics,
}

/// Runs the scenario.
pub(crate) fn run(args: &StallArgs, report: &mut Report) -> Result<()> {
    let setup = Setup::new(&args.run, Some(&args.target), true)?;
    let share = args.drain_share.map_or(args.stalled_share, |_| 1.0);
    let slow = SlowPlan { share, recv_buffer: args.recv_buffer };
    report.set("connections", args.connections);
    report.set("size", args.size);
    report.set("rate", args.rate);
    let mut target = Target::start(&args.target, setup.server_cpus.as_ref(), &Table::new())?;
    let mut workers = setup.workers(args.connections)?;
    let plan =
        OpenPlan { slow: Some(slow), ..setup.plan(target.addr, args.size, Streams::Count(1)) };
    workers.open(&plan, |_, plan| plan)?;
    let mut run = Run {
        args,
        workers,
        sink: HttpSink::new(target.another_http(), vec![topic(&setup.topic_prefix, 0)]),
        sampler: Sampler::new(target.another_http()),
        seqs: vec![0],
        stall_timeout: args.target.stall_timeout.unwrap_or(STALL_TIMEOUT),
        slow,
    };
    let quiet = run.quiet(&mut target)?;
    match args.drain_share {
        None => run.stalled(&mut target, &quiet, report)?,
        Some(share) => run.drained(&mut target, &quiet, share, report)?,
    }
    report.check_messages("quiet phase", &quiet.totals);
    run.report_queue(report);
    setup.describe(report);
    run.workers.close()?;
    drop(run);
    target.stop(report);
    Ok(())
}

impl Run<'_> {
    /// The same load while all clients read, for comparison.
    fn quiet(&mut self, target: &mut Target) -> Result<Phase> {
        let before = target.metrics()?;
        self.workers.begin()?;
        let published = self.publish(self.args.quiet_seconds, |_, _| Ok(()))?;
        let totals = self.workers.collect(&arrival_of(&self.seqs, true))?;
        Ok(Phase { published, totals, before, after: target.metrics()? })
    }

    /// A share of the clients stops reading.
    fn stalled(&mut self, target: &mut Target, quiet: &Phase, report: &mut Report) -> Result<()> {
        let count = u64::try_from(
            (0..self.args.connections).filter(|index| self.slow.has(*index)).count(),
        )?;
        let seconds =
            self.args.seconds.unwrap_or((self.stall_timeout + STALL_BEGINS).as_secs_f64());
        let before = target.metrics()?;
        self.workers.begin()?;
        self.workers.read(Reading::Stop)?;
        // In the middle of the stall, before the first connection is closed.
        let middle = clock::monotonic() + self.stall_timeout / 2;
        let (mut http, mut explained) = (target.another_http(), None);
        let published = self.publish(seconds, |_, _| {
            if explained.is_none() && clock::monotonic() >= middle {
                explained = Explained::ask(&mut http)?;
            }
            Ok(())
        })?;
        Explained::fill(explained, report);
        let totals = self.workers.collect(&arrival_of(&self.seqs, false))?;
        let deadline = clock::monotonic() + self.stall_timeout + STALL_ENDS;
        self.sampler.sample_while(|now| {
            let closed: u64 = growth(&before, now, CLOSED, "reason").values().sum();
            Ok(closed < count && clock::monotonic() < deadline)
        })?;
        // Read the kernel's remaining bytes for these connections, so that the worker sees their
        // ends too.
        self.workers.read(Reading::Full)?;
        let end =
            self.workers.collect(&Collect { wait_ms: 2000, ..arrival_of(&self.seqs, true) })?;
        let phase = Phase { published, totals, before, after: target.metrics()? };
        report.set("seconds", seconds);
        report.set("stalled", count);
        report.set("stalled_still_connected", end.tally.open_slow);
        report.check_messages("with stalled clients", &phase.totals);
        report.check(end.tally.open_slow == 0, || {
            format!("{} stalled clients are still connected", end.tally.open_slow)
        });
        let healthy = u64::from(self.args.connections) - count;
        report.check(end.tally.open == healthy, || {
            format!("{} of {healthy} others are connected", end.tally.open)
        });
        report.set("closed_seen_by_clients", json!(end.tally.closed_by));
        self.report_phase(report, quiet, &phase, phase.totals.tally.lost());
        report.figure("lag_p50_ms", phase.totals.lags.quantile_ms(0.5));
        let (lag, quiet_lag) =
            (phase.totals.lags.quantile_ms(0.99), quiet.totals.lags.quantile_ms(0.99));
        report.figure("lag_p99_ms", lag);
        report.figure("quiet_lag_p50_ms", quiet.totals.lags.quantile_ms(0.5));
        report.figure("quiet_lag_p99_ms", quiet_lag);
        report.figure("lag_ratio", lag.zip(quiet_lag).map(|(lag, quiet)| lag / quiet));
        Ok(())
    }

    /// All clients read more slowly than messages come, and later at full speed.
    fn drained(
        &mut self,
        target: &mut Target,
        quiet: &Phase,
        share: f64,
        report: &mut Report,
    ) -> Result<()> {
        let slow_seconds = self.args.seconds.unwrap_or(DRAIN_SECONDS);
        let frame_bytes = crate::stats::real(quiet.totals.tally.frame_bytes);
        let bytes_per_second = share * self.args.rate * frame_bytes;
        let before = target.metrics()?;
        self.workers.begin()?;
        // They begin one after the other. So when all clients catch up, some have stalled for long
        // and some only briefly.
        let stagger_ms = whole(slow_seconds * 1000.0 / 2.0);
        self.workers.read(Reading::Paced { bytes_per_second, stagger_ms })?;
        let full_at = clock::monotonic() + Duration::from_secs_f64(slow_seconds);
        let mut full = false;
        let published = self.publish(slow_seconds + self.args.recover_seconds, |workers, _| {
            if !full && clock::monotonic() >= full_at {
                full = true;
                workers.read(Reading::Full)?;
            }
            Ok(())
        })?;
        let totals = self.workers.collect(&arrival_of(&self.seqs, true))?;
        let phase = Phase { published, totals, before, after: target.metrics()? };
        let tally = &phase.totals.tally;
        let lost = tally.gaps_slow + tally.missing_slow;
        report.set("drain_share", share);
        report.set("seconds", slow_seconds);
        report.set("recover_seconds", self.args.recover_seconds);
        report.figure("drain_bytes_per_second", Some(bytes_per_second));
        let recovered = [("outcome", "recovered")];
        let count_of =
            |metrics: &Metrics| metrics.sum("weir_stall_seconds_count", &recovered).unwrap_or(0.0);
        report.set("recovered", whole(count_of(&phase.after) - count_of(&phase.before)));
        report.figure(
            "recovered_stall_seconds_max",
            phase.after.sum("weir_stall_seconds_max", &recovered),
        );
        report.set("still_connected", tally.open_slow);
        report.set("closed_seen_by_clients", json!(tally.closed_by));
        report.check_messages("draining", &phase.totals);
        report.check(lost == 0, || format!("{lost} messages missing on connections that stayed"));
        let closed: u64 = growth(&phase.before, &phase.after, CLOSED, "reason").values().sum();
        let all = u64::from(self.args.connections);
        report.check(tally.open_slow + closed == all, || {
            format!(
                "{} of {all} stayed and {closed} were closed, as the server counts",
                tally.open_slow
            )
        });
        self.report_phase(report, quiet, &phase, lost);
        report.figure("lag_p99_ms", phase.totals.lags_slow.quantile_ms(0.99));
        report.figure("quiet_lag_p99_ms", quiet.totals.lags_slow.quantile_ms(0.99));
        Ok(())
    }

    /// Publishes for this time; takes samples and calls `each` meanwhile.
    fn publish(
        &mut self,
        seconds: f64,
        mut each: impl FnMut(&mut Workers, &Metrics) -> Result<()>,
    ) -> Result<Published> {
        let (rate, size) = (self.args.rate, self.args.size);
        let count = u32::try_from(whole((rate * seconds).max(1.0)))?;
        let schedule = Schedule { start: clock::monotonic(), rate, count, size };
        let Run { workers, sink, sampler, seqs, .. } = self;
        publish_beside(sink, &schedule, seqs, |goes_on| {
            sampler.sample_while(|metrics| {
                each(workers, metrics)?;
                Ok(goes_on())
            })
        })
    }

    fn report_phase(&self, report: &mut Report, quiet: &Phase, phase: &Phase, lost: u64) {
        let grown = |name, label| -> BTreeMap<String, u64> {
            growth(&phase.before, &phase.after, name, label)
        };
        report.set("messages", phase.published.accepted);
        report.set("publish_refused", phase.published.refused + quiet.published.refused);
        report.set("delivered", phase.totals.tally.delivered);
        report.set("lost", lost);
        report.set("closed", json!(grown(CLOSED, "reason")));
        report.set("dropped", json!(grown("weir_messages_dropped_total", "rule")));
        report.set(
            "closed_in_quiet_phase",
            json!(growth(&quiet.before, &quiet.after, CLOSED, "reason")),
        );
        report.figure(
            "stall_seconds_max",
            phase.after.sum("weir_stall_seconds_max", &[("outcome", "closed")]),
        );
        report.figure("stall_timeout_seconds", Some(self.stall_timeout.as_secs_f64()));
    }

    fn report_queue(&self, report: &mut Report) {
        let budget = self.sampler.last.sum("weir_queued_bytes_max", &[]);
        report.set("queued_bytes_max", whole(self.sampler.queued_max));
        report.set(
            "queued_bytes_peak",
            self.sampler.last.sum("weir_queued_bytes_peak", &[]).map(whole),
        );
        report.set("budget_bytes", budget.map(whole));
        report.set("samples", self.sampler.count);
        report.check(budget.is_none_or(|budget| self.sampler.queued_max <= budget), || {
            format!(
                "{} bytes were queued, beyond the budget of {}",
                self.sampler.queued_max,
                budget.unwrap_or(0.0)
            )
        });
    }
}

/// The counter of closed connections.
const CLOSED: &str = "weir_connections_closed_total";
