//! `echo`: messages and their answers on many connections, in turn with a bare echo.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use toml::Table;

use super::sampler::growth;
use super::{BaselineSet, Setup};
use crate::baseline::Trigger;
use crate::cli::EchoArgs;
use crate::metrics::Metrics;
use crate::protocol::{EchoPlan, HelloPlan, OpenPlan, Streams};
use crate::report::Report;
use crate::spawn::Target;
use crate::stats::whole;
use crate::stats::{Lags, median, milli, real};
use crate::workers::{Echoed, Workers};

/// Time at the start of a round that does not count: until every connection has a message in
/// flight.
const WARM_UP_MS: u64 = 500;

/// The server and the baseline, with their connections.
struct Contest<'a> {
    workers: &'a mut Workers,
    pid: u32,
    baseline: BaselineSet,
    plan: EchoPlan,
}

/// A round of the server or the baseline.
pub(super) struct Round {
    echoed: Echoed,
    /// CPU time of the echoing process, and of the load generator's workers, over the whole round.
    cpu: Duration,
    client_cpu: Duration,
    seconds: f64,
}

/// Settings of the server for the echo: a connection may send without a limit.
pub(super) fn settings() -> Table {
    let mut limits = Table::new();
    limits.insert("frames_per_second".to_owned(), 0.into());
    let mut settings = Table::new();
    settings.insert("limits".to_owned(), toml::Value::Table(limits));
    settings
}

/// Runs the scenario.
pub(crate) fn run(args: &EchoArgs, report: &mut Report) -> Result<()> {
    let setup = Setup::new(&args.run, Some(&args.target), true)?;
    report.set("connections", args.connections);
    report.set("size", args.size);
    report.set("rate", args.rate);
    let mut target = Target::start(&args.target, setup.server_cpus.as_ref(), &settings())?;
    let mut workers = setup.workers(args.connections)?;
    let plan = setup.plan(target.addr, args.size, Streams::Count(1));
    let plan =
        OpenPlan { hello: plan.hello.map(|hello| HelloPlan { subscribe: false, ..hello }), ..plan };
    let connect = workers.open(&plan, |_, plan| plan)?;
    let baseline = setup.baseline(Trigger::Level, args.connections, args.size, "")?;
    let round_seconds = args.seconds / f64::from(args.rounds);
    let mut contest = Contest {
        workers: &mut workers,
        pid: target.pid,
        baseline,
        plan: EchoPlan {
            size: args.size,
            bare: false,
            rate: args.rate,
            warm_up_ms: WARM_UP_MS,
            measure_ms: whole(round_seconds * 1000.0).max(1),
        },
    };
    // A warm-up round of each causes the allocations that happen only once.
    let warm = [contest.server()?, contest.baseline()?];
    let before = target.metrics()?;
    let mut rounds = Vec::new();
    for round in 0..args.rounds {
        crate::workers::progress("round", round + 1, args.rounds);
        rounds.push(if round % 2 == 0 {
            let server = contest.server()?;
            (server, contest.baseline()?)
        } else {
            let baseline = contest.baseline()?;
            (contest.server()?, baseline)
        });
    }
    let after = target.metrics()?;
    fill(report, &rounds);
    fill_from_metrics(report, &rounds, &before, &after);
    for (what, round) in [("warm-up", &warm[0]), ("warm-up of the baseline", &warm[1])] {
        check(report, what, &round.echoed);
    }
    for (index, (server, baseline)) in rounds.iter().enumerate() {
        check(report, &format!("round {}", index + 1), &server.echoed);
        check(report, &format!("baseline, round {}", index + 1), &baseline.echoed);
    }
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

impl Contest<'_> {
    fn server(&mut self) -> Result<Round> {
        let pid = self.pid;
        Round::run(self.workers, &self.plan, || Target::cpu(pid))
    }

    fn baseline(&mut self) -> Result<Round> {
        let BaselineSet { baselines, workers, .. } = &mut self.baseline;
        let plan = EchoPlan { bare: true, ..self.plan };
        Round::run(workers, &plan, || BaselineSet::cpu(baselines))
    }
}

impl Round {
    pub(super) fn run(
        workers: &mut Workers,
        plan: &EchoPlan,
        cpu: impl Fn() -> Result<Duration>,
    ) -> Result<Round> {
        let (before, client_before) = (cpu()?, workers.cpu()?);
        let echoed = workers.echo(plan)?;
        Ok(Round {
            echoed,
            cpu: cpu()?.saturating_sub(before),
            client_cpu: workers.cpu()?.saturating_sub(client_before),
            seconds: Duration::from_millis(plan.measure_ms).as_secs_f64(),
        })
    }

    /// Messages answered in the whole round.
    pub(super) fn messages(&self) -> u64 {
        self.echoed.tally.answered_in_all
    }

    pub(super) fn lags(&self) -> &Lags {
        &self.echoed.lags
    }

    /// Reports what is wrong with the answers.
    pub(super) fn check(&self, report: &mut Report, what: &str) {
        check(report, what, &self.echoed);
    }

    pub(super) fn messages_per_second(&self) -> f64 {
        real(self.echoed.tally.answered) / self.seconds
    }

    pub(super) fn cpu_us_per_message(&self) -> Option<f64> {
        self.per_message(self.cpu)
    }

    fn client_cpu_us_per_message(&self) -> Option<f64> {
        self.per_message(self.client_cpu)
    }

    fn per_message(&self, cpu: Duration) -> Option<f64> {
        let messages = self.echoed.tally.answered_in_all;
        (messages > 0).then(|| cpu.as_secs_f64() * 1e6 / real(messages))
    }
}

fn fill(report: &mut Report, rounds: &[(Round, Round)]) {
    let servers = || rounds.iter().map(|(server, _)| server);
    let baselines = || rounds.iter().map(|(_, baseline)| baseline);
    let server = median(servers().map(Round::messages_per_second));
    let baseline = median(baselines().map(Round::messages_per_second));
    report.set("messages", servers().map(|round| round.echoed.tally.answered).sum::<u64>());
    report.set("lost", servers().map(|round| round.echoed.tally.lost).sum::<u64>());
    report.set("wrong", servers().map(|round| round.echoed.tally.wrong).sum::<u64>());
    report.figure("messages_per_second", server);
    report.figure("floor_messages_per_second", baseline);
    report.figure("ratio", server.zip(baseline).map(|(server, baseline)| server / baseline));
    let lags = merged(servers());
    report.figure("p50_ms", lags.quantile_ms(0.5));
    report.figure("p99_ms", lags.quantile_ms(0.99));
    report.figure("p999_ms", lags.quantile_ms(0.999));
    report.figure("max_ms", lags.max_ms());
    let lags = merged(baselines());
    report.figure("floor_p50_ms", lags.quantile_ms(0.5));
    report.figure("floor_p99_ms", lags.quantile_ms(0.99));
    report.figure("floor_p999_ms", lags.quantile_ms(0.999));
    report.figure("floor_max_ms", lags.max_ms());
    let cpu = median(servers().filter_map(Round::cpu_us_per_message));
    let baseline_cpu = median(baselines().filter_map(Round::cpu_us_per_message));
    report.figure("cpu_us_per_message", cpu);
    report.figure("floor_us_per_message", baseline_cpu);
    report.figure("cpu_ratio", cpu.zip(baseline_cpu).map(|(cpu, baseline)| cpu / baseline));
    report.figure(
        "client_us_per_message",
        median(servers().filter_map(Round::client_cpu_us_per_message)),
    );
    report.figure(
        "floor_client_us_per_message",
        median(baselines().filter_map(Round::client_cpu_us_per_message)),
    );
    report.set("rounds", rounds.iter().map(shown).collect::<Vec<_>>());
}

/// Reports figures from the server's metrics: bytes that its shards allocated, and the duration of
/// their turns.
fn fill_from_metrics(
    report: &mut Report,
    rounds: &[(Round, Round)],
    before: &Metrics,
    after: &Metrics,
) {
    const ALLOCATED: &str = "weir_shard_allocated_bytes_total";
    let messages: u64 = rounds.iter().map(|(server, _)| server.echoed.tally.answered_in_all).sum();
    // Every shard allocates at its start, so 0 means that the allocator does not count.
    let allocated = before
        .sum(ALLOCATED, &[])
        .filter(|bytes| *bytes > 0.0)
        .map(|_| growth(before, after, ALLOCATED, "shard").into_values().sum::<u64>());
    report.set("allocated_bytes", allocated);
    report.figure(
        "allocated_bytes_per_message",
        allocated.filter(|_| messages > 0).map(|bytes| real(bytes) / real(messages)),
    );
    let turns = after.by_label("weir_shard_turn_seconds_max", "shard");
    let turns = turns.into_iter().map(|(shard, seconds)| (shard, json!(milli(seconds * 1000.0))));
    report.set("longest_turn_ms", Value::Object(turns.collect()));
    report.figure("longest_counted_turn_ms", longest_bucket(before, after));
}

/// Upper bound of the longest turn between two scrapes, in milliseconds, from the buckets that grew.
fn longest_bucket(before: &Metrics, after: &Metrics) -> Option<f64> {
    const BUCKETS: &str = "weir_shard_turn_seconds_bucket";
    let old = before.by_label(BUCKETS, "le");
    let mut grown: Vec<(f64, f64)> = after
        .by_label(BUCKETS, "le")
        .into_iter()
        .filter_map(|(bound, count)| {
            let seconds = bound.trim_start_matches('+').parse::<f64>().ok()?;
            Some((seconds, count - old.get(&bound).copied().unwrap_or(0.0)))
        })
        .collect();
    grown.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    // Buckets are cumulative: the first one with all turns contains the longest turn.
    let all = grown.last()?.1;
    let (bound, _) = grown.into_iter().find(|(_, count)| all > 0.0 && *count >= all)?;
    bound.is_finite().then_some(bound * 1000.0)
}

fn check(report: &mut Report, what: &str, echoed: &Echoed) {
    let tally = &echoed.tally;
    report.check(tally.answered > 0, || format!("{what}: no message was answered"));
    report.check(tally.lost == 0, || format!("{what}: {} messages not answered", tally.lost));
    report.check(tally.wrong == 0, || format!("{what}: {} wrong answers", tally.wrong));
    report.check(tally.closed == 0, || format!("{what}: {} connections ended", tally.closed));
    for error in &tally.errors {
        report.fail(format!("{what}: {error}"));
    }
}

fn merged<'a>(rounds: impl Iterator<Item = &'a Round>) -> Lags {
    let mut lags = Lags::new();
    rounds.for_each(|round| lags.add(&round.echoed.lags.counts()));
    lags
}

fn shown((server, baseline): &(Round, Round)) -> Value {
    let (ours, theirs) = (server.messages_per_second(), baseline.messages_per_second());
    json!({
        "messages_per_second": milli(ours),
        "floor_messages_per_second": milli(theirs),
        "ratio": (theirs > 0.0).then(|| milli(ours / theirs)),
        "p99_ms": server.echoed.lags.quantile_ms(0.99).map(milli),
        "floor_p99_ms": baseline.echoed.lags.quantile_ms(0.99).map(milli),
        "cpu_us_per_message": server.cpu_us_per_message().map(milli),
        "floor_us_per_message": baseline.cpu_us_per_message().map(milli),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_turn_is_that_of_the_last_bucket_that_grew() {
        let scrape = |counts: [u32; 4]| {
            let bounds = ["0.001", "0.002", "0.004", "+Inf"];
            let lines = bounds.iter().zip(counts).map(|(bound, count)| {
                format!("weir_shard_turn_seconds_bucket{{le=\"{bound}\"}} {count}\n")
            });
            Metrics::parse(&lines.collect::<String>())
        };
        let before = scrape([5, 6, 9, 9]);
        assert_eq!(longest_bucket(&before, &scrape([7, 9, 12, 12])), Some(2.0));
        assert_eq!(longest_bucket(&before, &scrape([7, 8, 12, 12])), Some(4.0));
        assert_eq!(longest_bucket(&before, &scrape([7, 8, 11, 12])), None, "beyond all bounds");
        assert_eq!(longest_bucket(&before, &before), None);
    }
}
