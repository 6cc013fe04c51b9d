//! `cluster`: several nodes over one Redis, with publishers and clients at all of them, in turn with one
//! node alone and with Redis alone.

mod crowd;
mod publishers;
mod side;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use serde_json::{Value, json};
use weir_broker::Retention;

use self::publishers::Pace;
use self::side::{Round, Side, per};
use super::Setup;
use crate::baseline::redis::{ScriptPlan, ScriptTally, Subscribers, bare_lags, call_script};
use crate::cli::ClusterArgs;
use crate::redis::{Redis, Usage, address};
use crate::report::Report;
use crate::spawn::Beside;
use crate::stats::{Lags, median, milli, real};

/// Runs the scenario.
pub(crate) fn run(args: &ClusterArgs, report: &mut Report) -> Result<()> {
    let setup = Setup::new(&args.run, None, false)?;
    let mut broker = Broker::start(args, &setup)?;
    describe(args, &broker, report)?;
    match args.crowd {
        Some(crowd) => crowd::run(args, crowd, &setup, &mut broker, report)?,
        None => rounds(args, &setup, &mut broker, report)?,
    }
    setup.describe(report);
    Ok(())
}

/// Redis, with what belongs to the run.
struct Broker {
    server: Beside,
    addr: SocketAddr,
    client: Redis,
    /// What the keys of the cluster begin with. Those of the bare script are as long.
    prefix: String,
    bare_prefix: String,
}

/// What was measured in a round.
struct Turn {
    cluster: Round,
    rest: Option<Rest>,
}

/// What is measured beside the cluster.
struct Rest {
    alone: Round,
    /// The script at the rate of the cluster, and as fast as it is answered.
    script: Bare,
    script_flat_out: Bare,
    lags: Option<Lags>,
}

/// What the bare script did.
struct Bare {
    tally: ScriptTally,
    redis: Usage,
}

/// The parts that are compared.
struct Contest<'a> {
    args: &'a ClusterArgs,
    broker: &'a mut Broker,
    cluster: Side,
    alone: Option<Side>,
}

impl Broker {
    fn start(args: &ClusterArgs, setup: &Setup) -> Result<Broker> {
        let server = match &args.redis {
            Some(url) => Beside::running(url, 0),
            None => Beside::redis(setup.server_cpus.as_ref())?.map_err(|why| anyhow!(why))?,
        };
        let addr = address(&server.url)?;
        let number = rand::random::<u16>();
        let client = Redis::connect(addr)?;
        let (prefix, bare_prefix) = (format!("weir{number:04x}"), format!("bare{number:04x}"));
        Ok(Broker { server, addr, client, prefix, bare_prefix })
    }
}

fn describe(args: &ClusterArgs, broker: &Broker, report: &mut Report) -> Result<()> {
    report.set("connections", args.clients);
    report.set("redis", broker.server.what.as_str());
    report.set("nodes", nodes(args)?);
    report.set("topics", args.topics);
    report.set("publishers", args.publishers);
    report.set("rate", args.rate);
    report.set("size", args.size);
    report.set("retention", args.retention);
    report.set("seconds", args.seconds);
    Ok(())
}

fn rounds(
    args: &ClusterArgs,
    setup: &Setup,
    broker: &mut Broker,
    report: &mut Report,
) -> Result<()> {
    let place = (broker.server.url.as_str(), broker.prefix.as_str());
    let cluster = Side::cluster(args, setup, place, &shares(args.clients, nodes(args)?))?;
    let alone = args.compare.then(|| Side::alone(args, setup)).transpose()?;
    let mut contest = Contest { args, broker, cluster, alone };
    let turns = contest.run(report)?;
    fill(report, args, &turns);
    let Contest { cluster, alone, .. } = contest;
    for side in [Some(cluster), alone].into_iter().flatten() {
        side.stop(report);
    }
    Ok(())
}

/// How many nodes there are.
fn nodes(args: &ClusterArgs) -> Result<u32> {
    Ok(if args.nodes_at.is_empty() { args.nodes } else { u32::try_from(args.nodes_at.len())? })
}

/// Clients of each node.
fn shares(clients: u32, nodes: u32) -> Vec<u32> {
    (0..nodes).map(|node| clients / nodes + u32::from(node < clients % nodes)).collect()
}

impl Contest<'_> {
    /// Runs a short round of each that does not count, then the rounds that count. The first one
    /// alternates.
    fn run(&mut self, report: &mut Report) -> Result<Vec<Turn>> {
        let time = Duration::from_secs_f64(self.args.seconds);
        let warm_up = self.turn(0, time.min(WARM_UP), report)?;
        if !report.errors().is_empty() {
            // More rounds would repeat the error.
            return Ok(vec![warm_up]);
        }
        (1..=self.args.rounds)
            .map(|round| {
                crate::workers::progress("round", round, self.args.rounds);
                self.turn(round, time, report)
            })
            .collect()
    }

    fn turn(&mut self, round: u32, time: Duration, report: &mut Report) -> Result<Turn> {
        let pace = Pace { rate: self.args.rate, time };
        let what = format!("round {round}");
        let is_second = round.is_multiple_of(2);
        let mut alone = None;
        if is_second {
            alone = self.alone(pace, &what, report)?;
        }
        let cluster = self.cluster.round(pace, &mut self.broker.client)?;
        self.cluster.check(report, &what, &cluster.published, &cluster.totals);
        if cluster.published.accepted == 0 {
            bail!("{what}: no message was published");
        }
        if !is_second {
            alone = self.alone(pace, &what, report)?;
        }
        let rest = match alone {
            Some(alone) => Some(self.rest(&cluster, alone, time)?),
            None => None,
        };
        Ok(Turn { cluster, rest })
    }

    fn alone(&mut self, pace: Pace, what: &str, report: &mut Report) -> Result<Option<Round>> {
        let Some(side) = &mut self.alone else { return Ok(None) };
        let round = side.round(pace, &mut self.broker.client)?;
        side.check(report, what, &round.published, &round.totals);
        Ok(Some(round))
    }

    /// What Redis does without a gateway, with the batches and at the rate of the cluster.
    fn rest(&mut self, cluster: &Round, alone: Round, time: Duration) -> Result<Rest> {
        let (args, addr) = (self.args, self.broker.addr);
        let rate = real(cluster.published.accepted) / cluster.published.seconds;
        let plan = ScriptPlan {
            addr,
            prefix: self.broker.bare_prefix.clone(),
            topics: self.cluster.topics.clone(),
            connections: u32::try_from(self.cluster.nodes.len())?,
            batch: cluster.batch().unwrap_or(1.0),
            calls: cluster.calls_per_read().unwrap_or(1.0),
            message_bytes: message_bytes(cluster),
            retention: (args.retention > 0)
                .then_some(Retention { messages_max: args.retention as usize, ttl: RETENTION_AGE }),
            rate: Some(rate),
            time,
        };
        let flat_out = ScriptPlan { rate: None, ..plan.clone() };
        let subscribers = Subscribers::start(&plan)?;
        let script = self.script(&plan)?;
        let script_flat_out = self.script(&flat_out)?;
        drop(subscribers);
        let lags = args.rate.map(|rate| bare_lags(addr, rate, plan.message_bytes, time));
        Ok(Rest { alone, script, script_flat_out, lags: lags.transpose()? })
    }

    fn script(&mut self, plan: &ScriptPlan) -> Result<Bare> {
        let before = self.broker.client.usage()?;
        let tally = call_script(plan)?;
        let redis = self.broker.client.usage()?.since(&before);
        Ok(Bare { tally, redis })
    }
}

/// Bytes of a message on its way between nodes: a version, two times, and the frame.
fn message_bytes(cluster: &Round) -> usize {
    let frames = cluster.totals.iter().map(|totals| totals.tally.frame_bytes);
    usize::try_from(frames.max().unwrap_or(0)).unwrap_or(0) + ENVELOPE_BYTES
}

impl Bare {
    fn us_per_message(&self) -> Option<f64> {
        per(self.redis.cpu, self.tally.messages)
    }

    fn shown(&self) -> Value {
        json!({
            "us_per_message": self.us_per_message().map(milli),
            "messages": self.tally.messages,
            "calls": self.tally.calls,
            "redis_reads": self.redis.reads,
            "redis_writes": self.redis.writes,
        })
    }
}

fn fill(report: &mut Report, args: &ClusterArgs, turns: &[Turn]) {
    let of = |figure: &dyn Fn(&Turn) -> Option<f64>| median(turns.iter().filter_map(figure));
    let sum =
        |count: &dyn Fn(&Round) -> u64| turns.iter().map(|turn| count(&turn.cluster)).sum::<u64>();
    report.set("published", sum(&|round| round.published.accepted));
    report.set("publish_refused", sum(&|round| round.published.refused));
    report.set("publish_uncertain", sum(&|round| round.published.uncertain));
    report.set("delivered", sum(&Round::delivered));
    let tallies = |count: fn(&crate::protocol::Tally) -> u64| {
        sum(&|round| round.totals.iter().map(|totals| count(&totals.tally)).sum())
    };
    report.set("lost", tallies(crate::protocol::Tally::lost));
    report.set("duplicates", tallies(|tally| tally.duplicates));
    report.set("wrong", tallies(|tally| tally.wrong));
    report.set("told", tallies(|tally| tally.told));
    report.figure("publishes_per_second", of(&|turn| per_second(&turn.cluster)));
    report.figure("batch_messages", of(&|turn| turn.cluster.batch()));
    report.figure("calls_per_read", of(&|turn| turn.cluster.calls_per_read()));
    report.figure("gateway_us_per_publish", of(&|turn| turn.cluster.cpu_us_per_publish()));
    report.figure("gateway_us_per_delivery", of(&|turn| turn.cluster.cpu_us_per_delivery()));
    report.figure("redis_us_per_publish", of(&|turn| turn.cluster.redis_us_per_publish()));
    let answers = |round: &Round, quantile| round.published.answers.quantile_ms(quantile);
    report.figure("answer_p50_ms", of(&|turn| answers(&turn.cluster, 0.5)));
    report.figure("answer_p99_ms", of(&|turn| answers(&turn.cluster, 0.99)));
    report.figure("lag_p50_ms", of(&|turn| lag(&turn.cluster, 0.5)));
    report.figure("lag_p99_ms", of(&|turn| lag(&turn.cluster, 0.99)));
    let late = turns.iter().map(|turn| turn.cluster.published.late_max).max().unwrap_or_default();
    report.figure("publish_late_max_ms", args.rate.map(|_| late.as_secs_f64() * 1000.0));
    if args.compare {
        fill_comparison(report, args, turns);
    }
    report.set("rounds", turns.iter().map(shown).collect::<Vec<Value>>());
}

fn fill_comparison(report: &mut Report, args: &ClusterArgs, turns: &[Turn]) {
    let rests = || turns.iter().filter_map(|turn| Some((&turn.cluster, turn.rest.as_ref()?)));
    let of = |figure: &dyn Fn(&Round, &Rest) -> Option<f64>| {
        median(rests().filter_map(|(cluster, rest)| figure(cluster, rest)))
    };
    let least = |figure: &dyn Fn(&Round, &Rest) -> Option<f64>| {
        rests().filter_map(|(cluster, rest)| figure(cluster, rest)).min_by(f64::total_cmp)
    };
    report.set("alone_clients", args.alone.unwrap_or(args.clients));
    report.figure("alone_publishes_per_second", of(&|_, rest| per_second(&rest.alone)));
    report.figure("alone_us_per_publish", of(&|_, rest| rest.alone.cpu_us_per_publish()));
    report.figure("alone_us_per_delivery", of(&|_, rest| rest.alone.cpu_us_per_delivery()));
    report.figure("alone_lag_p50_ms", of(&|_, rest| lag(&rest.alone, 0.5)));
    report.figure("alone_lag_p99_ms", of(&|_, rest| lag(&rest.alone, 0.99)));
    report.figure("script_us_per_message", of(&|_, rest| rest.script.us_per_message()));
    report.figure(
        "script_flat_out_us_per_message",
        of(&|_, rest| rest.script_flat_out.us_per_message()),
    );
    report.figure(
        "script_flat_out_per_second",
        of(&|_, rest| {
            let tally = &rest.script_flat_out.tally;
            Some(real(tally.messages) / tally.seconds)
        }),
    );
    report.figure("redis_ratio", of(&redis_ratio));
    report.figure("redis_ratio_min", least(&redis_ratio));
    report.figure("redis_ratio_flat_out", of(&flat_out_ratio));
    report.figure("redis_ratio_flat_out_min", least(&flat_out_ratio));
    report.figure("delivery_ratio", of(&delivery_ratio));
    report.figure("delivery_ratio_min", least(&delivery_ratio));
    for (quantile, bare, added, multiple) in [
        (0.5, "bare_lag_p50_ms", "added_lag_p50_ms", "added_lag_p50_ratio"),
        (0.99, "bare_lag_p99_ms", "added_lag_p99_ms", "added_lag_p99_ratio"),
    ] {
        let bare_lag = |rest: &Rest| rest.lags.as_ref()?.quantile_ms(quantile);
        let added_lag = |cluster: &Round, rest: &Rest| {
            Some(lag(cluster, quantile)? - lag(&rest.alone, quantile)?)
        };
        report.figure(bare, of(&|_, rest| bare_lag(rest)));
        report.figure(added, of(&added_lag));
        report.figure(
            multiple,
            of(&|cluster, rest| Some(added_lag(cluster, rest)? / bare_lag(rest)?)),
        );
    }
}

fn per_second(round: &Round) -> Option<f64> {
    let Round { published, .. } = round;
    (published.seconds > 0.0).then(|| real(published.accepted) / published.seconds)
}

fn lag(round: &Round, quantile: f64) -> Option<f64> {
    let mut lags = Lags::new();
    round.totals.iter().for_each(|totals| lags.add(&totals.lags.counts()));
    lags.quantile_ms(quantile)
}

fn redis_ratio(cluster: &Round, rest: &Rest) -> Option<f64> {
    Some(cluster.redis_us_per_publish()? / rest.script.us_per_message()?)
}

fn flat_out_ratio(cluster: &Round, rest: &Rest) -> Option<f64> {
    Some(cluster.redis_us_per_publish()? / rest.script_flat_out.us_per_message()?)
}

fn delivery_ratio(cluster: &Round, rest: &Rest) -> Option<f64> {
    Some(cluster.cpu_us_per_delivery()? / rest.alone.cpu_us_per_delivery()?)
}

fn shown(turn: &Turn) -> Value {
    let cluster = &turn.cluster;
    let rest = turn.rest.as_ref();
    json!({
        "publishes_per_second": per_second(cluster).map(milli),
        "batch_messages": cluster.batch().map(milli),
        "calls_per_read": cluster.calls_per_read().map(milli),
        "gateway_us_per_publish": cluster.cpu_us_per_publish().map(milli),
        "gateway_us_per_delivery": cluster.cpu_us_per_delivery().map(milli),
        "redis_us_per_publish": cluster.redis_us_per_publish().map(milli),
        "lag_p50_ms": lag(cluster, 0.5).map(milli),
        "lag_p99_ms": lag(cluster, 0.99).map(milli),
        "alone_us_per_publish": rest.and_then(|rest| rest.alone.cpu_us_per_publish()).map(milli),
        "alone_us_per_delivery": rest.and_then(|rest| rest.alone.cpu_us_per_delivery()).map(milli),
        "alone_lag_p50_ms": rest.and_then(|rest| lag(&rest.alone, 0.5)).map(milli),
        "script": rest.map(|rest| rest.script.shown()),
        "script_flat_out": rest.map(|rest| rest.script_flat_out.shown()),
        "bare_lag_p50_ms":
            rest.and_then(|rest| rest.lags.as_ref()?.quantile_ms(0.5)).map(milli),
        "redis_ratio": rest.and_then(|rest| redis_ratio(cluster, rest)).map(milli),
        "delivery_ratio": rest.and_then(|rest| delivery_ratio(cluster, rest)).map(milli),
        "redis_calls": cluster.redis.calls,
        "redis_reads": cluster.redis.reads,
        "redis_writes": cluster.redis.writes,
    })
}

/// Longest round that does not count.
const WARM_UP: Duration = Duration::from_secs(1);
/// What a message has before its frame: version, time of acceptance, time to live.
const ENVELOPE_BYTES: usize = 17;
/// For how long a class keeps its messages, by default.
const RETENTION_AGE: Duration = Duration::from_secs(300);
