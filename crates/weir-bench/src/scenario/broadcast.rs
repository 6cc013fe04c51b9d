//! `broadcast`: messages to many connections, in turn with a bare send loop.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};
use toml::Table;
use weir_wire::format::Format;

use super::idle::settle;
use super::{BaselineSet, Round, Setup};
use crate::baseline::Trigger;
use crate::cli::BroadcastArgs;
use crate::metrics::Metrics;
use crate::protocol::{HelloPlan, OpenPlan, Streams};
use crate::publish::{BaselineSink, HttpSink};
use crate::report::Report;
use crate::spawn::Target;
use crate::stats::whole;
use crate::stats::{Lags, median, milli, real};
use crate::worker::topic;
use crate::workers::{Totals, Workers};

/// The server and the baseline, with their connections.
struct Contest<'a> {
    workers: &'a mut Workers,
    sink: HttpSink,
    seqs: Vec<u32>,
    pid: u32,
    baseline: BaselineSet,
    topic: String,
    size: usize,
    rate: f64,
}

/// Runs the scenario.
pub(crate) fn run(args: &BroadcastArgs, report: &mut Report) -> Result<()> {
    let load = &args.load;
    let setup = Setup::new(&args.run, Some(&args.target), true)?;
    report.set("connections", load.connections);
    report.set("transport", args.transport.name());
    report.set("size", load.size);
    report.set("rate", load.rate);
    report.set("topics", if args.all { 0 } else { args.topics });
    report.set("all", args.all);
    report.set("tick_ms", args.tick_ms);
    let mut settings = args.tick_ms.map_or_else(Table::new, super::room::settings);
    if args.silent_topics > 0 {
        settings.extend(room_for_topics()?);
    }
    let mut target = Target::start(&args.target, setup.server_cpus.as_ref(), &settings)?;
    let prefix = if args.all { "" } else { setup.topic_prefix.as_str() };
    let mut workers = setup.workers(load.connections)?;
    let plan = setup.plan(target.addr, load.size, Streams::Count(args.topics));
    let plan = OpenPlan {
        topic_prefix: prefix.to_owned(),
        hello: plan.hello.map(|hello| HelloPlan { subscribe: !args.all, ..hello }),
        ..plan
    };
    let plan = setup.plan_by(args.transport, target.edge, plan)?;
    let connect = workers.open(&plan, |_, plan| plan)?;
    report.set("silent_topics", args.silent_topics);
    if args.silent_topics > 0 {
        let (before, _) = settle(target.pid, SETTLE)?;
        workers.subscribe(args.silent_topics, prefix)?;
        let (after, _) = settle(target.pid, SETTLE)?;
        let bytes = (real(after) - real(before)) / f64::from(args.silent_topics);
        report.figure("bytes_per_silent_topic", Some(bytes));
    }
    let baseline = setup.baseline(Trigger::Level, load.connections, load.size, prefix)?;
    let topics = if args.all { 0 } else { args.topics };
    let mut contest = Contest {
        sink: HttpSink::new(
            target.another_http(),
            (0..topics).map(|stream| topic(prefix, stream)).collect(),
        ),
        seqs: vec![0; args.topics as usize],
        pid: target.pid,
        workers: &mut workers,
        baseline,
        topic: topic(prefix, 0),
        size: load.size,
        rate: load.rate,
    };
    let before = target.metrics()?;
    let rounds = contest.rounds(load.rounds, load.messages_per_round())?;
    let after = target.metrics()?;
    fill(report, load.connections, load.messages_per_round(), &rounds);
    report.set("encodings", encodings(&before, &after));
    report.figure("connect_seconds", Some(connect.as_secs_f64()));
    report.set(
        "worker_processes",
        contest.workers.processes() + contest.baseline.workers.processes(),
    );
    setup.describe(report);
    drop(contest);
    workers.close()?;
    target.stop(report);
    Ok(())
}

/// Limits that leave room for silent topics.
fn room_for_topics() -> Result<Table> {
    let text = "[limits]\ntopics_max = 16777216\ntopics_per_connection_max = 4096\n\
                frames_per_second = 0\nframe_burst = 1000000\n";
    text.parse().context("the settings are TOML")
}

/// Memory must not change for this time before and after the subscriptions.
const SETTLE: Duration = Duration::from_secs(2);

/// Messages that the server has encoded in each format, by its own metrics; null if it has none.
fn encodings(before: &Metrics, after: &Metrics) -> Value {
    let made = Format::ALL.into_iter().filter_map(|format| {
        let count = |metrics: &Metrics| metrics.sum(ENCODINGS, &[("protocol", format.name())]);
        let made = whole(count(after)? - count(before).unwrap_or(0.0));
        Some((format.name().to_owned(), made.into()))
    });
    let made: Map<String, Value> = made.collect();
    if made.is_empty() { Value::Null } else { Value::Object(made) }
}

const ENCODINGS: &str = "weir_encodings_total";

impl Contest<'_> {
    /// Runs a warm-up round of each, then the rounds that count. The first one alternates.
    fn rounds(&mut self, rounds: u32, messages: u32) -> Result<Vec<(Round, Round)>> {
        let warm = self.server(1)?;
        let frame_bytes = Some(warm.totals.tally.frame_bytes).filter(|bytes| *bytes > 0);
        let warm_baseline = self.baseline(1, frame_bytes)?;
        let sound = |round: &Round| {
            let tally = &round.totals.tally;
            tally.delivered > 0 && tally.lost() == 0 && tally.wrong == 0 && tally.duplicates == 0
        };
        if !sound(&warm) || !sound(&warm_baseline) {
            // The report contains the error; more rounds would repeat it.
            return Ok(vec![(warm, warm_baseline)]);
        }
        let mut done = Vec::new();
        for round in 0..rounds {
            crate::workers::progress("round", round + 1, rounds);
            done.push(if round % 2 == 0 {
                let server = self.server(messages)?;
                (server, self.baseline(messages, frame_bytes)?)
            } else {
                let baseline = self.baseline(messages, frame_bytes)?;
                (self.server(messages)?, baseline)
            });
        }
        Ok(done)
    }

    fn server(&mut self, messages: u32) -> Result<Round> {
        let pid = self.pid;
        let load = (self.rate, messages, self.size);
        Round::run(self.workers, &mut self.sink, &mut self.seqs, load, |_| Target::cpu(pid))
    }

    fn baseline(&mut self, messages: u32, frame_bytes: Option<u64>) -> Result<Round> {
        let BaselineSet { baselines, workers, seqs } = &mut self.baseline;
        let mut sink = BaselineSink { baselines, topic: self.topic.clone(), frame_bytes };
        let load = (self.rate, messages, self.size);
        Round::run(workers, &mut sink, seqs, load, |sink| BaselineSet::cpu(sink.baselines))
    }
}

fn fill(report: &mut Report, connections: u32, messages: u32, rounds: &[(Round, Round)]) {
    let server = median(rounds.iter().filter_map(|(server, _)| server.cpu_us_per_message()));
    let baseline = median(rounds.iter().filter_map(|(_, baseline)| baseline.cpu_us_per_message()));
    let all: Vec<&Totals> = rounds.iter().map(|(server, _)| &server.totals).collect();
    let sum = |of: fn(&Totals) -> u64| all.iter().map(|totals| of(totals)).sum::<u64>();
    let (lags, baseline_lags) =
        (merged(all.iter().copied()), merged(rounds.iter().map(|(_, baseline)| &baseline.totals)));
    report.set("messages", rounds.iter().map(|(server, _)| server.published.accepted).sum::<u64>());
    report.set("delivered", sum(|totals| totals.tally.delivered));
    report.set("lost", sum(|totals| totals.tally.lost()));
    report.set("duplicates", sum(|totals| totals.tally.duplicates));
    report.set("wrong", sum(|totals| totals.tally.wrong));
    report.set(
        "publish_refused",
        rounds.iter().map(|(server, _)| server.published.refused).sum::<u64>(),
    );
    report.figure("cpu_us_per_message", server);
    report.figure("floor_us_per_message", baseline);
    report.figure("ratio", server.zip(baseline).map(|(server, baseline)| server / baseline));
    report.figure("lag_p50_ms", lags.quantile_ms(0.5));
    report.figure("lag_p99_ms", lags.quantile_ms(0.99));
    report.figure("lag_max_ms", lags.max_ms());
    report.figure("floor_lag_p50_ms", baseline_lags.quantile_ms(0.5));
    report.figure("floor_lag_p99_ms", baseline_lags.quantile_ms(0.99));
    let late = rounds.iter().map(|(server, _)| server.published.late_max).max().unwrap_or_default();
    report.figure("publish_late_max_ms", Some(late.as_secs_f64() * 1000.0));
    report.set("frame_bytes", all.iter().map(|totals| totals.tally.frame_bytes).max());
    report.set(
        "floor_frame_bytes",
        rounds.iter().map(|(_, baseline)| baseline.totals.tally.frame_bytes).max(),
    );
    report.set("messages_per_round", messages);
    report.set(
        "rounds",
        rounds.iter().map(|(server, baseline)| shown(server, baseline)).collect::<Vec<_>>(),
    );
    for (index, (server, baseline)) in rounds.iter().enumerate() {
        report.check_messages(&format!("round {}", index + 1), &server.totals);
        report.check_messages(&format!("baseline, round {}", index + 1), &baseline.totals);
    }
    let addressed: u64 = rounds.iter().map(|(server, _)| server.published.addressed).sum();
    let delivered = sum(|totals| totals.tally.delivered);
    report.check(addressed >= delivered, || {
        format!("{delivered} messages were delivered to {connections} connections, but {addressed} queued")
    });
}

fn shown(server: &Round, baseline: &Round) -> Value {
    let ratio = server
        .cpu_us_per_message()
        .zip(baseline.cpu_us_per_message())
        .map(|(server, baseline)| server / baseline);
    json!({
        "cpu_us_per_message": server.cpu_us_per_message().map(milli),
        "floor_us_per_message": baseline.cpu_us_per_message().map(milli),
        "ratio": ratio.map(milli),
        "delivered": server.totals.tally.delivered,
        "floor_delivered": baseline.totals.tally.delivered,
        "lag_p99_ms": server.totals.lags.quantile_ms(0.99).map(milli),
        "floor_lag_p99_ms": baseline.totals.lags.quantile_ms(0.99).map(milli),
    })
}

/// The lags of all rounds together.
pub(crate) fn merged<'a>(totals: impl Iterator<Item = &'a Totals>) -> Lags {
    let mut lags = Lags::new();
    totals.for_each(|totals| lags.add(&totals.lags.counts()));
    lags
}
