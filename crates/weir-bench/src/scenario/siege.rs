//! `siege`: all attacks at once. Healthy connections that receive messages must not notice.

use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rcgen::KeyPair;
use serde_json::{Value, json};
use toml::Table;

use super::sampler::growth;
use super::{Setup, arrival_of, publish_beside};
use crate::attack::{Attackers, Done, HISTORY, Plan, Tally};
use crate::baseline::discard::Discard;
use crate::cli::{SiegeArgs, TargetArgs};
use crate::clock;
use crate::http::Http;
use crate::metrics::Metrics;
use crate::process::{rss_peak, rss_resident};
use crate::protocol::Streams;
use crate::publish::{HttpSink, Published, Schedule};
use crate::report::Report;
use crate::spawn::{self, Scratch, Target};
use crate::stats::whole;
use crate::worker::topic;
use crate::workers::{Totals, Workers};

/// The held connections and their load.
struct Run {
    held: Workers,
    sink: HttpSink,
    seqs: Vec<u32>,
    rate: f64,
    size: usize,
}

/// The results of a phase.
struct Phase {
    published: Published,
    totals: Totals,
}

/// Observations of the server's process and of healthy requests under attack.
#[derive(Debug, Default)]
struct Watched {
    rss_max: u64,
    requests: u64,
    unanswered: u64,
}

/// Runs the scenario.
pub(crate) fn run(args: &SiegeArgs, report: &mut Report) -> Result<()> {
    let setup = Setup::new(&args.run, Some(&args.target), true)?;
    report.set("connections", args.connections);
    report.set("size", args.size);
    report.set("rate", args.rate);
    report.set("seconds", args.seconds);
    report.set("pause_ms", args.pause_ms);
    let keys = Scratch::empty()?;
    let (tls, udp) = (spawn::free_port()?, spawn::free_port()?);
    let args_target = TargetArgs {
        budget_bytes: args.target.budget_bytes.or(Some(BUDGET_BYTES)),
        ..args.target.clone()
    };
    let settings = settings(keys.path(), tls, udp)?;
    let mut target = Target::start(&args_target, setup.server_cpus.as_ref(), &settings)?;
    let edge = target.edge.context("siege needs --spawn")?;
    fill_history(&mut target.another_http())?;
    let mut held = setup.workers(args.connections)?;
    held.open(&setup.plan(target.addr, args.size, Streams::Count(1)), |_, plan| plan)?;
    let mut run = Run {
        held,
        sink: HttpSink::new(target.another_http(), vec![topic(&setup.topic_prefix, 0)]),
        seqs: vec![0],
        rate: args.rate,
        size: args.size,
    };
    let plan = Plan {
        tcp: target.addr,
        tls,
        http: edge,
        udp,
        source: setup.another_source(),
        token: TOKEN.to_owned(),
        http_connections: HTTP_CONNECTIONS,
        only: args.only.clone(),
        pause: Duration::from_millis(args.pause_ms),
    };
    let quiet = run.phase(args.quiet_seconds, || Ok(()))?;
    let (baseline, discarded) = baseline(&mut run, args, &setup, &plan)?;
    let before = target.metrics()?;
    let attackers = Attackers::start(&plan, setup.client_cpus.as_ref())?;
    let mut watched = Watched::default();
    let siege = run.phase(args.seconds, || {
        watched = watch(target.pid, edge, args.seconds)?;
        Ok(())
    });
    let done = attackers.stop()?;
    let siege = siege?;
    let after = target.metrics()?;
    report.set("attacks", shown(&done));
    report.set("attacks_on_baseline", shown(&discarded));
    fill_lags(report, &quiet, &baseline, &siege);
    fill_server(report, &before, &after);
    fill_memory(report, &target, &watched, &after)?;
    setup.describe(report);
    run.held.close()?;
    drop(run);
    target.stop(report);
    Ok(())
}

/// Runs the same attacks against a process that discards them. It uses the same processors as the
/// server, which pushes messages meanwhile.
fn baseline(run: &mut Run, args: &SiegeArgs, setup: &Setup, plan: &Plan) -> Result<(Phase, Tally)> {
    let discard = Discard::start(setup.server_cpus.as_ref())?;
    let to = discard.addr;
    let plan = Plan { tcp: to, tls: to, http: to, udp: to, ..plan.clone() };
    let attackers = Attackers::start(&plan, setup.client_cpus.as_ref())?;
    let phase = run.phase(args.baseline_seconds, || Ok(()));
    let tally = attackers.stop()?;
    Ok((phase?, tally))
}

impl Run {
    fn phase(&mut self, seconds: f64, beside: impl FnOnce() -> Result<()>) -> Result<Phase> {
        let Run { held, sink, seqs, rate, size } = self;
        let count = u32::try_from(whole((*rate * seconds).max(1.0)))?;
        held.begin()?;
        let schedule = Schedule { start: clock::monotonic(), rate: *rate, count, size: *size };
        let published = publish_beside(sink, &schedule, seqs, |_| beside())?;
        let totals = held.collect(&arrival_of(seqs, false))?;
        Ok(Phase { published, totals })
    }
}

/// Samples the server's memory, and sends an HTTP request each second as a healthy client would.
fn watch(pid: u32, edge: SocketAddr, seconds: f64) -> Result<Watched> {
    let mut watched = Watched::default();
    let end = clock::monotonic() + Duration::from_secs_f64(seconds);
    let mut next = clock::monotonic();
    while clock::monotonic() < end {
        for _ in 0..LOOKS {
            watched.rss_max = watched.rss_max.max(rss_resident(pid)?);
            next += LOOK_EVERY;
            clock::sleep_until(next);
        }
        watched.requests += 1;
        // A new connection each time, because the server refuses connections.
        let asked = thread::spawn(move || Http::new(edge, None).get("/rest/hello"));
        let answer = asked.join().map_err(|_| anyhow!("a healthy request panicked"))?;
        watched.unanswered += u64::from(!answer.is_ok_and(|answer| answer.status == 200));
    }
    Ok(watched)
}

/// Settings that the attacks need: tokens, topics, listeners, and a table of HTTP connections that can be filled.
fn settings(keys: &Path, tls: SocketAddr, udp: SocketAddr) -> Result<Table> {
    let key = keys.join("issuer.pem");
    std::fs::write(&key, KeyPair::generate()?.public_key_pem())
        .with_context(|| format!("cannot write {}", key.display()))?;
    let text = format!(
        r#"
        [listen]
        tls = ["{tls}"]
        udp = ["{udp}"]
        [tls]
        development_directory = "{directory}"
        [http]
        connections_max = {HTTP_CONNECTIONS}
        [store]
        kind = "embedded"
        path = "{directory}/devices.db"
        [[auth.services]]
        token = "{TOKEN}"
        name = "siege"
        may = ["subscribe", "publish"]
        [[auth.jwt.keys]]
        algorithm = "ES256"
        file = "{key}"
        [[topic_classes]]
        pattern = "kept/*"
        retention_messages = 1000
        history = true
        [[topic_classes]]
        pattern = "forbidden/*"
        subscribe = ["services"]
        "#,
        directory = keys.display(),
        key = key.display(),
    );
    text.parse().context("the settings are not TOML")
}

/// Publishes a thousand messages of a kilobyte, for the attacks that request histories.
fn fill_history(http: &mut Http) -> Result<()> {
    for part in 0..10 {
        let text = format!("{part}").repeat(1_000);
        let message = format!(r#"{{"topic":"{HISTORY}","text":"{text}"}}"#);
        let body = format!(r#"{{"messages":[{}]}}"#, vec![message; 100].join(","));
        let response = http.post("/v1/publish", &body)?;
        if response.status != 200 {
            bail!("filling {HISTORY} gave {}: {}", response.status, response.body);
        }
    }
    Ok(())
}

fn shown(tally: &Tally) -> Value {
    let row = |(name, done): (&String, &Done)| {
        json!({
            "attack": name, "connects": done.connects, "failed": done.failed, "closed": done.closed,
            "units": done.units, "bytes": done.bytes,
        })
    };
    tally.iter().map(row).collect::<Vec<_>>().into()
}

fn fill_lags(report: &mut Report, quiet: &Phase, baseline: &Phase, siege: &Phase) {
    let p99 = |phase: &Phase| phase.totals.lags.quantile_ms(0.99);
    report.figure("quiet_lag_p99_ms", p99(quiet));
    report.figure("baseline_lag_p50_ms", baseline.totals.lags.quantile_ms(0.5));
    report.figure("baseline_lag_p99_ms", p99(baseline));
    report.figure("lag_p50_ms", siege.totals.lags.quantile_ms(0.5));
    report.figure("lag_p99_ms", p99(siege));
    report.figure("lag_max_ms", siege.totals.lags.max_ms());
    let ratio = p99(siege).zip(p99(baseline)).map(|(siege, baseline)| siege / baseline);
    report.figure("lag_ratio", ratio);
    report.set("delivered", siege.totals.tally.delivered);
    report.set("established_closed", siege.totals.tally.closed);
    report.set("publishes", siege.published.accepted + siege.published.refused);
    report.set("publish_refused", siege.published.refused);
    for (what, phase) in [("quiet phase", quiet), ("baseline", baseline), ("siege", siege)] {
        report.check_messages(what, &phase.totals);
        let refused = phase.published.refused;
        report.check(refused == 0, || format!("{what}: {refused} publishes refused"));
    }
}

fn fill_server(report: &mut Report, before: &Metrics, after: &Metrics) {
    for (field, name, label) in [
        ("closed", "weir_connections_closed_total", "reason"),
        ("refused", "weir_connections_refused_total", "reason"),
        ("publishes_refused_by", "weir_publish_refused_total", "reason"),
    ] {
        report.set(field, json!(growth(before, after, name, label)));
    }
}

fn fill_memory(
    report: &mut Report,
    target: &Target,
    watched: &Watched,
    after: &Metrics,
) -> Result<()> {
    let budget = after.sum("weir_queued_bytes_max", &[]).map_or(0, whole);
    let peak = rss_peak(target.pid)?.max(watched.rss_max);
    report.set("rss_max_bytes", peak);
    report.set("budget_bytes", budget);
    report.set("queued_bytes_peak", after.sum("weir_queued_bytes_peak", &[]).map(whole));
    report.set("healthy_requests", watched.requests);
    report.set("healthy_requests_refused", watched.unanswered);
    report.check(peak <= budget + SLACK_BYTES, || {
        format!("{peak} bytes were resident, beyond the budget of {budget} and {SLACK_BYTES}")
    });
    report.check(watched.unanswered == 0, || {
        format!("{} of {} healthy requests were not answered", watched.unanswered, watched.requests)
    });
    Ok(())
}

/// The service that publishes noise.
const TOKEN: &str = "siege-service-token";
/// `memory.budget_bytes`.
const BUDGET_BYTES: u64 = 256 << 20;
/// Memory that may be resident beyond the budget: program, tables, stacks.
const SLACK_BYTES: u64 = 64 << 20;
/// `http.connections_max`.
const HTTP_CONNECTIONS: u32 = 2_000;
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Looks at memory between two healthy requests.
const LOOKS: u32 = 10;
