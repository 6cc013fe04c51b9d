//! `resume`: a share of the clients reconnects. Each must get exactly its missed messages.

use std::time::Duration;

use anyhow::{Result, bail};
use toml::{Table, Value};

use super::sampler::{Sampler, growth};
use super::{Setup, arrival_of, publish_beside};
use crate::cli::ResumeArgs;
use crate::clock;
use crate::process::{rss_anon, rss_peak};
use crate::protocol::{ComeBack, Streams, Tally};
use crate::publish::{HttpSink, Published, Schedule};
use crate::report::Report;
use crate::spawn::Target;
use crate::stats::whole;
use crate::stats::{is_in_share, real};
use crate::worker::topic;
use crate::workers::{Totals, Workers};

/// Seconds of messages that the topic keeps: longer than any client is away.
const KEPT_SECONDS: f64 = 60.0;
/// Bytes that a message may take in the ring beside its payload.
const OVERHEAD_BYTES: u64 = 512;

/// A run of this scenario.
struct Run<'a> {
    args: &'a ResumeArgs,
    topic: String,
    workers: Workers,
    seqs: Vec<u32>,
}

/// Runs the scenario.
pub(crate) fn run(args: &ResumeArgs, report: &mut Report) -> Result<()> {
    let setup = Setup::new(&args.run, Some(&args.target), true)?;
    report.set("connections", args.connections);
    report.set("size", args.size);
    report.set("rate", args.rate);
    report.set("share", args.share);
    report.set("return_ms", args.return_ms);
    report.set("tick_ms", args.tick_ms);
    report.set("seconds", args.seconds);
    let settings = settings(args)?;
    let mut target = Target::start(&args.target, setup.server_cpus.as_ref(), &settings)?;
    let mut workers = setup.workers(args.connections)?;
    let plan = setup.plan(target.addr, args.size, Streams::Count(1));
    workers.open(&plan, |_, plan| plan)?;
    let topic = topic(&setup.topic_prefix, 0);
    let mut run = Run { args, topic, workers, seqs: vec![0] };
    run.storm(&mut target, report)?;
    if args.restart {
        run.restart(&mut target, report)?;
    }
    setup.describe(report);
    run.workers.close()?;
    target.stop(report);
    Ok(())
}

/// A class that keeps the messages that absent clients miss.
fn settings(args: &ResumeArgs) -> Result<Table> {
    let messages = whole(args.rate * KEPT_SECONDS).max(1000);
    let bytes = messages * (args.size as u64 + OVERHEAD_BYTES);
    let mut class = Table::new();
    class.insert("pattern".to_owned(), "bench/*".into());
    class.insert("retention_messages".to_owned(), i64::try_from(messages)?.into());
    class.insert("retention_bytes".to_owned(), i64::try_from(bytes)?.into());
    if args.tick_ms > 0 {
        class.insert("tick".to_owned(), format!("{}ms", args.tick_ms).into());
    }
    let mut settings = Table::new();
    settings.insert("topic_classes".to_owned(), Value::Array(vec![Value::Table(class)]));
    Ok(settings)
}

impl Run<'_> {
    /// A third of the time is quiet; then connections drop, and come back in the rest.
    fn storm(&mut self, target: &mut Target, report: &mut Report) -> Result<()> {
        let (args, pid) = (self.args, target.pid);
        let plan = ComeBack {
            to: Vec::new(),
            share: args.share,
            spread_ms: args.return_ms,
            again_ms: None,
        };
        let quiet = Duration::from_secs_f64(args.seconds / 3.0);
        let mut sampler = Sampler::new(target.another_http());
        let before = target.metrics()?;
        let rss_before = rss_anon(pid)?;
        let (mut rss_max, mut dropped) = (rss_before, false);
        let drop_at = clock::monotonic() + quiet;
        let cpu = Target::cpu(pid)?;
        self.workers.begin()?;
        let published = self.publish(target, args.seconds, &mut sampler, |workers| {
            rss_max = rss_max.max(rss_anon(pid)?);
            if !dropped && clock::monotonic() >= drop_at {
                dropped = true;
                workers.come_back(plan.clone())?;
            }
            Ok(())
        })?;
        let totals = self.workers.collect(&arrival_of(&self.seqs, true))?;
        let cpu = Target::cpu(pid)?.saturating_sub(cpu);
        let after = target.metrics()?;
        fill(report, args, &published, &totals);
        report.figure("cpu_us_per_message", per_message(cpu, &totals.tally));
        report.set("rss_anon_before", rss_before);
        report.set("rss_anon_max", rss_max);
        report.set("rss_anon_after", rss_anon(pid)?);
        report.set("rss_peak", rss_peak(pid)?);
        report.set("queued_bytes_max", whole(sampler.queued_max));
        report.set("queued_bytes_peak", after.sum("weir_queued_bytes_peak", &[]).map(whole));
        let closed = growth(&before, &after, "weir_connections_closed_total", "reason");
        report.set("closed", serde_json::json!(closed));
        Ok(())
    }

    /// The server ends and starts again. All clients come back, and the server answers that it
    /// knows nothing of the earlier messages.
    fn restart(&mut self, target: &mut Target, report: &mut Report) -> Result<()> {
        let began = clock::monotonic();
        target.restart()?;
        report.figure("restart_seconds", Some((clock::monotonic() - began).as_secs_f64()));
        let mut sampler = Sampler::new(target.another_http());
        self.workers.begin()?;
        let spread_ms = self.args.return_ms;
        self.workers.come_back(ComeBack {
            to: Vec::new(),
            share: 1.0,
            spread_ms,
            again_ms: None,
        })?;
        let back = clock::monotonic() + Duration::from_millis(self.args.return_ms);
        // Messages published before all clients are back would count as missing without a fault.
        let deadline = back + Duration::from_secs(60);
        let everybody = real(self.args.connections.into());
        sampler.sample_while(|metrics| {
            if clock::monotonic() > deadline {
                bail!("not all clients were back a minute after the restart");
            }
            Ok(metrics.sum("weir_memberships", &[]).unwrap_or(0.0) < everybody)
        })?;
        self.publish(target, (self.args.seconds / 3.0).max(1.0), &mut sampler, |_| Ok(()))?;
        let totals = self.workers.collect(&arrival_of(&self.seqs, true))?;
        let tally = &totals.tally;
        report.set("restart_recovered", tally.recovered);
        report.set("restart_unrecovered", tally.unrecovered);
        report.set("restart_lost", tally.lost());
        let everybody = u64::from(self.args.connections);
        report.check(tally.unrecovered == everybody && tally.recovered == 0, || {
            format!(
                "after the restart {} of {everybody} were told recovered: false, {} true",
                tally.unrecovered, tally.recovered
            )
        });
        check(report, "after the restart", tally, everybody);
        Ok(())
    }

    fn publish(
        &mut self,
        target: &Target,
        seconds: f64,
        sampler: &mut Sampler,
        mut each: impl FnMut(&mut Workers) -> Result<()>,
    ) -> Result<Published> {
        let (rate, size) = (self.args.rate, self.args.size);
        let count = u32::try_from(whole((rate * seconds).max(1.0)))?;
        let mut sink = HttpSink::new(target.another_http(), vec![self.topic.clone()]);
        let schedule = Schedule { start: clock::monotonic(), rate, count, size };
        let Run { workers, seqs, .. } = self;
        publish_beside(&mut sink, &schedule, seqs, |goes_on| {
            sampler.sample_while(|_| {
                each(workers)?;
                Ok(goes_on())
            })
        })
    }
}

fn per_message(cpu: Duration, tally: &Tally) -> Option<f64> {
    (tally.delivered > 0).then(|| cpu.as_secs_f64() * 1e6 / real(tally.delivered))
}

fn fill(report: &mut Report, args: &ResumeArgs, published: &Published, totals: &Totals) {
    let tally = &totals.tally;
    let dropped =
        (0..args.connections).filter(|number| is_in_share(*number, args.share)).count() as u64;
    report.set("messages", published.accepted);
    report.set("publish_refused", published.refused);
    report.set("delivered", tally.delivered);
    report.set("dropped", dropped);
    report.set("recovered", tally.recovered);
    report.set("unrecovered", tally.unrecovered);
    report.set("caught_up", totals.lags_slow.count());
    report.set("lost", tally.lost());
    report.set("duplicates", tally.duplicates);
    report.set("wrong", tally.wrong);
    report.set("away", tally.away);
    report.figure("live_p50_ms", totals.returns.quantile_ms(0.5));
    report.figure("live_p99_ms", totals.returns.quantile_ms(0.99));
    report.figure("live_max_ms", totals.returns.max_ms());
    report.figure("lag_p50_ms", totals.lags.quantile_ms(0.5));
    report.figure("lag_p99_ms", totals.lags.quantile_ms(0.99));
    report.figure("lag_max_ms", totals.lags.max_ms());
    report.check(tally.recovered == dropped && tally.unrecovered == 0, || {
        format!(
            "of {dropped} that came back {} were told recovered: true, {} false",
            tally.recovered, tally.unrecovered
        )
    });
    report.check(tally.away == 0, || format!("{} are not live again", tally.away));
    report.check(tally.closed == 0, || {
        format!("{} connections closed: {:?}", tally.closed, tally.closed_by)
    });
    check(report, "storm", tally, args.connections.into());
}

fn check(report: &mut Report, what: &str, tally: &Tally, connections: u64) {
    report.check(tally.lost() == 0, || format!("{what}: {} messages lost", tally.lost()));
    report.check(tally.wrong == 0, || format!("{what}: {} wrong messages", tally.wrong));
    report.check(tally.duplicates == 0, || {
        format!("{what}: {} messages twice or out of order", tally.duplicates)
    });
    report.check(tally.open == connections, || {
        format!("{what}: {} of {connections} connections are open", tally.open)
    });
    for error in &tally.errors {
        report.fail(format!("{what}: {error}"));
    }
}
