//! `conflate`: keyed values for clients behind a slow link, with conflation and without.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value as Json, json};
use toml::{Table, Value};

use super::sampler::{Sampler, growth};
use super::{Setup, publish_beside};
use crate::cli::ConflateArgs;
use crate::clock;
use crate::metrics::Metrics;
use crate::process::rss_anon;
use crate::protocol::{Check, Collect, OpenPlan, Reading, SlowPlan, Streams};
use crate::publish::{HttpSink, Published, Schedule};
use crate::report::Report;
use crate::spawn::Target;
use crate::stats::milli;
use crate::stats::whole;
use crate::worker::topic;
use crate::workers::{Totals, Workers};

/// Time between two measurements of the ages of the clients' values.
const AGES_EVERY: Duration = Duration::from_millis(500);
/// Load before the first measurement: until the kernel's buffers are full.
const WARM_UP: Duration = Duration::from_secs(5);

/// The results of a server.
struct Outcome {
    published: Published,
    totals: Totals,
    /// Time from the last message until every client held the newest values.
    settle: Duration,
    before: Metrics,
    after: Metrics,
    queued_max: f64,
    rss_before: u64,
    rss_max: u64,
}

/// Runs the scenario.
pub(crate) fn run(args: &ConflateArgs, report: &mut Report) -> Result<()> {
    let setup = Setup::new(&args.run, Some(&args.target), true)?;
    report.set("connections", args.connections);
    report.set("keys", args.keys);
    report.set("size", args.size);
    report.set("rate", args.rate);
    report.set("tick_ms", args.tick_ms);
    report.set("link_bytes_per_second", args.link_bytes_per_second);
    report.set("recv_buffer", args.recv_buffer);
    report.set("seconds", args.seconds);
    let with = measure(args, &setup, true, report)?;
    let tally = &with.totals.tally;
    with.fill(report);
    let accepted = with.published.accepted;
    report.check(accepted > 0 && tally.delivered > 0, || {
        format!("{accepted} messages were accepted and {} delivered", tally.delivered)
    });
    report.check(tally.wrong == 0, || format!("{} wrong messages", tally.wrong));
    report.check(tally.closed_by.is_empty(), || {
        format!("clients were closed: {:?}", tally.closed_by)
    });
    report.check(tally.missing_slow == 0 && tally.open_slow == u64::from(args.connections), || {
        format!(
            "{} clients are there, and {} newest values are not",
            tally.open_slow, tally.missing_slow
        )
    });
    for error in &tally.errors {
        report.fail(error.clone());
    }
    let compare = !args.only_conflated && args.target.spawn.is_some();
    let without = compare.then(|| measure(args, &setup, false, report)).transpose()?;
    report.set("without", without.map(|outcome| outcome.shown()));
    setup.describe(report);
    Ok(())
}

/// A class with a tick, with conflation or without, and a kernel that holds little for a slow socket.
fn settings(args: &ConflateArgs, conflated: bool) -> Table {
    let mut class = Table::new();
    class.insert("pattern".to_owned(), "bench/*".into());
    class.insert("tick".to_owned(), format!("{}ms", args.tick_ms).into());
    class.insert("conflation".to_owned(), conflated.into());
    class.insert("slow".to_owned(), if conflated { "conflate" } else { "close" }.into());
    let mut tcp = Table::new();
    tcp.insert("notsent_lowat_bytes".to_owned(), 2048.into());
    tcp.insert("send_buffer_bytes".to_owned(), 4096.into());
    let mut settings = Table::new();
    settings.insert("topic_classes".to_owned(), Value::Array(vec![Value::Table(class)]));
    settings.insert("tcp".to_owned(), Value::Table(tcp));
    settings
}

fn measure(
    args: &ConflateArgs,
    setup: &Setup,
    conflated: bool,
    report: &mut Report,
) -> Result<Outcome> {
    let settings = settings(args, conflated);
    let mut target = Target::start(&args.target, setup.server_cpus.as_ref(), &settings)?;
    let mut workers = setup.workers(args.connections)?;
    let plan = OpenPlan {
        slow: Some(SlowPlan { share: 1.0, recv_buffer: args.recv_buffer }),
        check: Check::Keys(args.keys),
        ..setup.plan(target.addr, args.size, Streams::Count(1))
    };
    workers.open(&plan, |_, plan| plan)?;
    let topic = topic(&setup.topic_prefix, 0);
    let sink = HttpSink::keyed(target.another_http(), topic);
    let outcome = load(args, &mut target, &mut workers, sink, conflated)?;
    workers.close()?;
    target.stop(report);
    Ok(outcome)
}

fn load(
    args: &ConflateArgs,
    target: &mut Target,
    workers: &mut Workers,
    mut sink: HttpSink,
    conflated: bool,
) -> Result<Outcome> {
    let pid = target.pid;
    let mut sampler = Sampler::new(target.another_http());
    let (before, rss_before) = (target.metrics()?, rss_anon(pid)?);
    let mut rss_max = rss_before;
    workers.begin()?;
    workers
        .read(Reading::Paced { bytes_per_second: args.link_bytes_per_second, stagger_ms: 1000 })?;
    let count = u32::try_from(whole((args.rate * args.seconds).max(1.0)))?;
    let start = clock::monotonic();
    let schedule = Schedule { start, rate: args.rate, count, size: args.size };
    let mut seqs = vec![0; args.keys as usize];
    let mut ages_at = start + WARM_UP;
    let published = publish_beside(&mut sink, &schedule, &mut seqs, |goes_on| {
        sampler.sample_while(|_| {
            rss_max = rss_max.max(rss_anon(pid)?);
            if clock::monotonic() >= ages_at {
                ages_at += AGES_EVERY;
                workers.note_ages()?;
            }
            Ok(goes_on())
        })
    })?;
    let last = clock::monotonic();
    // Without conflation no client catches up.
    let wait_ms = if conflated { 60_000 } else { 5_000 };
    let totals = workers.collect(&Collect { published: seqs, wait_ms, slow_too: true })?;
    Ok(Outcome {
        published,
        totals,
        settle: clock::monotonic() - last,
        before,
        after: target.metrics()?,
        queued_max: sampler.queued_max,
        rss_before,
        rss_max,
    })
}

impl Outcome {
    fn fill(&self, report: &mut Report) {
        if let Json::Object(fields) = self.shown() {
            for name in FIELDS {
                report.set(name, fields.get(name).cloned().unwrap_or_default());
            }
        }
    }

    fn shown(&self) -> Json {
        let (tally, totals) = (&self.totals.tally, &self.totals);
        let family = |name, label| growth(&self.before, &self.after, name, label);
        json!({
            "messages": self.published.accepted,
            "publish_refused": self.published.refused,
            "delivered": tally.delivered,
            "stale": tally.duplicates,
            "wrong": tally.wrong,
            "still_connected": tally.open_slow,
            "newest_missing": tally.missing_slow,
            "settle_seconds": milli(self.settle.as_secs_f64()),
            "staleness_p50_ms": totals.ages.quantile_ms(0.5).map(milli),
            "staleness_p99_ms": totals.ages.quantile_ms(0.99).map(milli),
            "staleness_max_ms": totals.ages.max_ms().map(milli),
            "lag_p50_ms": totals.lags_slow.quantile_ms(0.5).map(milli),
            "lag_p99_ms": totals.lags_slow.quantile_ms(0.99).map(milli),
            "queued_bytes_max": whole(self.queued_max),
            "queued_bytes_peak": self.after.sum("weir_queued_bytes_peak", &[]).map(whole),
            "rss_anon_before": self.rss_before,
            "rss_anon_max": self.rss_max,
            "dropped": family("weir_messages_dropped_total", "rule"),
            "closed": family("weir_connections_closed_total", "reason"),
            "closed_seen_by_clients": tally.closed_by,
        })
    }
}

/// The fields of a server, in the order of the report.
const FIELDS: [&str; 20] = [
    "messages",
    "publish_refused",
    "delivered",
    "stale",
    "wrong",
    "still_connected",
    "newest_missing",
    "settle_seconds",
    "staleness_p50_ms",
    "staleness_p99_ms",
    "staleness_max_ms",
    "lag_p50_ms",
    "lag_p99_ms",
    "queued_bytes_max",
    "queued_bytes_peak",
    "rss_anon_before",
    "rss_anon_max",
    "dropped",
    "closed",
    "closed_seen_by_clients",
];
