//! `http`: requests in a closed loop, compared with bare responders and nginx.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use toml::Table;

mod rivals;

use super::Setup;
use crate::cli::HttpArgs;
use crate::protocol::{HttpEnd, HttpPlan, HttpStyle, HttpTally};
use crate::report::Report;
use crate::spawn::Target;
use crate::stats::{Lags, median, milli, real, whole};
use crate::tls::{COMMON_GROUP, TlsPlan, TlsVersion};
use crate::workers::{Workers, turns};
use rivals::{Rival, Rivals};

/// One of the servers that are measured in turn.
struct Contestant {
    name: &'static str,
    addr: SocketAddr,
    pid: u32,
    tallies: Vec<HttpTally>,
}

/// Milliseconds of requests to a server before the measurement.
const PROBE_MS: u64 = 200;
/// The suite for a comparison if the options name none: all servers have it.
const COMMON_SUITE: &str = "TLS13_AES_128_GCM_SHA256";

/// Runs the scenario.
pub(crate) fn run(args: &HttpArgs, report: &mut Report) -> Result<()> {
    let target_args = args.target();
    let setup = Setup::new(&args.run, Some(&target_args), true)?;
    describe(args, report);
    let target = match args.addr {
        Some(_) => None,
        None => Some(Target::start(&target_args, setup.server_cpus.as_ref(), &Table::new())?),
    };
    let (addr, pid) = match (&target, args.addr, args.pid) {
        (Some(target), ..) => (target.edge.context("the server has no HTTP")?, target.pid),
        (None, Some(addr), Some(pid)) => (addr, pid),
        (None, ..) => bail!("neither --spawn nor --connect is given"),
    };
    let mut plan = plan(args, &setup, addr, pid)?;
    let mut workers = setup.workers(args.connections())?;
    let answer = probe(&mut workers, &plan).context("the server")?;
    let mut contestants = vec![Contestant::new("server", addr, pid)];
    let mut skipped = Vec::new();
    let mut descriptions = Vec::new();
    let rivals = if args.compare {
        let rivals = Rivals::start(args, &answer, setup.server_cpus.as_ref())?;
        for Rival { name, addr, pid } in rivals.all() {
            contestants.push(Contestant::new(name, addr, pid));
        }
        skipped.clone_from(&rivals.skipped);
        report.set("nginx_version", rivals.nginx_version());
        descriptions = rivals.descriptions();
        Some(rivals)
    } else {
        None
    };
    for netty in contestants.iter().filter(|contestant| contestant.name == rivals::NETTY) {
        warm_up(args, &mut workers, netty, &plan)?;
    }
    for turn in turns(args.rounds, contestants.len()) {
        let contestant = &mut contestants[turn];
        (plan.addr, plan.pid) = (contestant.addr, Some(contestant.pid));
        let tally = workers.request(&plan).context(contestant.name)?;
        contestant.tallies.push(tally);
    }
    fill(report, &contestants, &skipped);
    let described = descriptions.into_iter().map(|(name, lines)| (name.to_owned(), lines.into()));
    report.set("descriptions", Value::Object(described.collect()));
    for tally in &contestants[0].tallies {
        setup.handshakes.add(&tally.handshakes);
    }
    setup.describe(report);
    drop(rivals);
    if let Some(target) = target {
        target.stop(report);
    }
    Ok(())
}

fn describe(args: &HttpArgs, report: &mut Report) {
    report.set("connections", args.connections());
    report.set(
        "style",
        match args.style() {
            HttpStyle::Http1 => "http1",
            HttpStyle::PerConnection => "http1_per_connection",
            HttpStyle::Http2 => "http2",
            HttpStyle::Http2PerConnection => "http2_per_connection",
        },
    );
    report.set("requests_in_flight", args.depth());
    report.set("path", args.path.as_str());
}

fn plan(args: &HttpArgs, setup: &Setup, addr: SocketAddr, pid: u32) -> Result<HttpPlan> {
    let style = args.style();
    let mut tls = setup.tls.clone();
    if let Some(tls) = tls.as_mut().filter(|_| args.compare) {
        // The CA of the rivals, beside the CA of a running server.
        tls.ca += &args.tls.credentials()?.ca;
    }
    let tls = tls.map(|tls| TlsPlan {
        alpn: vec![style.alpn().to_owned()],
        suite: match (&tls.suite, tls.version) {
            (None, None) if args.compare => Some(COMMON_SUITE.to_owned()),
            _ => tls.suite.clone(),
        },
        group: (args.compare && tls.version != Some(TlsVersion::Tls12))
            .then(|| COMMON_GROUP.to_owned()),
        ..tls
    });
    let until = match args.requests {
        Some(requests) => HttpEnd::Answers(requests),
        None => {
            let millis = args.seconds * 1000.0 / f64::from(args.rounds);
            HttpEnd::Millis(whole(millis.max(1.0)))
        }
    };
    Ok(HttpPlan {
        addr,
        source: setup.source,
        path: args.path.clone(),
        style,
        connections: args.connections(),
        depth: args.depth(),
        tls,
        warm_up_ms: args.warm_up_ms,
        until,
        pid: Some(pid),
        helpers: Vec::new(),
        posts: None,
    })
}

/// Sends requests for a moment; returns the answer. Any error fails.
fn probe(workers: &mut Workers, plan: &HttpPlan) -> Result<Vec<u8>> {
    let tls = plan.tls.clone().map(|tls| TlsPlan { resume: 0.0, ..tls });
    let plan = HttpPlan {
        connections: 1,
        warm_up_ms: 0,
        until: HttpEnd::Millis(PROBE_MS),
        tls,
        ..plan.clone()
    };
    let tally = workers.request(&plan)?;
    if tally.answer.is_empty() {
        bail!("no answer to {}: {:?}", plan.path, tally.errors);
    }
    Ok(tally.answer)
}

/// Java compiles what it runs often: its first rounds would cost more.
fn warm_up(
    args: &HttpArgs,
    workers: &mut Workers,
    java: &Contestant,
    plan: &HttpPlan,
) -> Result<()> {
    let until = HttpEnd::Millis(whole(args.warm_up_seconds * 1000.0).max(1));
    let plan = HttpPlan { addr: java.addr, pid: Some(java.pid), until, ..plan.clone() };
    workers.request(&plan).context(java.name)?;
    Ok(())
}

impl Contestant {
    fn new(name: &'static str, addr: SocketAddr, pid: u32) -> Contestant {
        Contestant { name, addr, pid, tallies: Vec::new() }
    }

    fn middle(&self, of: fn(&HttpTally) -> Option<f64>) -> Option<f64> {
        median(self.tallies.iter().filter_map(of))
    }

    fn sum(&self, of: fn(&HttpTally) -> u64) -> u64 {
        self.tallies.iter().map(of).sum()
    }

    fn lags(&self) -> Lags {
        let mut lags = Lags::new();
        self.tallies.iter().for_each(|tally| lags.add(&tally.lags));
        lags
    }

    fn errors(&self) -> BTreeMap<&str, u64> {
        let mut all = BTreeMap::new();
        for (kind, count) in self.tallies.iter().flat_map(|tally| &tally.errors) {
            *all.entry(kind.as_str()).or_insert(0) += count;
        }
        all
    }

    /// The agreed suites and groups, for full and resumed handshakes.
    fn agreed(&self) -> Vec<&str> {
        let handshakes = self.tallies.iter().flat_map(|tally| tally.handshakes.keys());
        let words = |agreed: &'_ str| agreed.match_indices(' ').nth(2).map(|(at, _)| at);
        let mut all: Vec<&str> =
            handshakes.map(|agreed| &agreed[..words(agreed).unwrap_or(agreed.len())]).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn shown(&self) -> Value {
        let lags = self.lags();
        let figure = |of| self.middle(of).map(milli);
        let quantile = |quantile| lags.quantile_ms(quantile).map(milli);
        json!({
            "name": self.name,
            "cpu_us_per_request": figure(cpu_us),
            "requests_per_second": figure(per_second),
            "busy": figure(busy),
            "client_us_per_request": figure(client_us),
            "p50_ms": quantile(0.5),
            "p75_ms": quantile(0.75),
            "p90_ms": quantile(0.9),
            "p99_ms": quantile(0.99),
            "answer_bytes": self.tallies.first().map(|tally| tally.answer.len()),
            "answered": self.sum(|tally| tally.answered),
            "failed_by": self.errors(),
        })
    }
}

fn each(nanos: u64, tally: &HttpTally) -> Option<f64> {
    (tally.answered > 0).then(|| real(nanos) / 1000.0 / real(tally.answered))
}

fn cpu_us(tally: &HttpTally) -> Option<f64> {
    tally.server_cpu_ns.and_then(|nanos| each(nanos, tally))
}

fn client_us(tally: &HttpTally) -> Option<f64> {
    each(tally.client_cpu_ns, tally)
}

fn per_second(tally: &HttpTally) -> Option<f64> {
    (tally.seconds > 0.0).then(|| real(tally.answered) / tally.seconds)
}

/// CPUs that the server kept busy.
fn busy(tally: &HttpTally) -> Option<f64> {
    let nanos = tally.server_cpu_ns?;
    (tally.seconds > 0.0).then(|| real(nanos) / 1e9 / tally.seconds)
}

/// CPU time of the server divided by that of a rival, round by round.
fn ratio(server: &Contestant, rival: &Contestant) -> Option<f64> {
    let pairs = server.tallies.iter().zip(&rival.tallies);
    median(pairs.filter_map(|(server, rival)| Some(cpu_us(server)? / cpu_us(rival)?)))
}

fn fill(report: &mut Report, contestants: &[Contestant], skipped: &[String]) {
    let Some((server, rivals)) = contestants.split_first() else { return };
    let lags = server.lags();
    report.set("answered", server.sum(|tally| tally.answered));
    report.set("failed_by", json!(server.errors()));
    report.set("reopened", server.sum(|tally| tally.reopened));
    report.figure("requests_per_second", server.middle(per_second));
    report.figure("cpu_us_per_request", server.middle(cpu_us));
    report.figure("busy", server.middle(busy));
    report.figure("client_us_per_request", server.middle(client_us));
    report.figure("p50_ms", lags.quantile_ms(0.5));
    report.figure("p75_ms", lags.quantile_ms(0.75));
    report.figure("p90_ms", lags.quantile_ms(0.9));
    report.figure("p99_ms", lags.quantile_ms(0.99));
    report.figure("max_ms", lags.max_ms());
    let bytes = |of: fn(&HttpTally) -> u64| {
        median(
            server
                .tallies
                .iter()
                .filter(|tally| tally.answered > 0)
                .map(|tally| real(of(tally)) / real(tally.answered)),
        )
    };
    report.figure("received_bytes_per_request", bytes(|tally| tally.received_bytes));
    report.figure("sent_bytes_per_request", bytes(|tally| tally.sent_bytes));
    report.set("answer_bytes", server.tallies.first().map(|tally| tally.answer.len()));
    for rival in rivals {
        let names = rivals::names(rival.name);
        report.figure(names.cpu_us, rival.middle(cpu_us));
        report.figure(names.ratio, ratio(server, rival));
    }
    if !rivals.is_empty() || !skipped.is_empty() {
        report.set("contestants", contestants.iter().map(Contestant::shown).collect::<Vec<_>>());
        report.set("skipped", skipped.to_vec());
    }
    let rounds = server.tallies.len();
    report.set("rounds", (0..rounds).map(|round| shown(contestants, round)).collect::<Vec<_>>());
    check(report, contestants);
}

fn shown(contestants: &[Contestant], round: usize) -> Value {
    let figures = contestants.iter().flat_map(|contestant| {
        let tally = contestant.tallies.get(round);
        let figure = |of: fn(&HttpTally) -> Option<f64>| Value::from(tally.and_then(of).map(milli));
        let name = contestant.name;
        [(format!("{name}_us"), figure(cpu_us)), (format!("{name}_per_second"), figure(per_second))]
    });
    Value::Object(figures.collect())
}

fn check(report: &mut Report, contestants: &[Contestant]) {
    for contestant in contestants {
        let (name, errors) = (contestant.name, contestant.errors());
        report.check(errors.is_empty(), || format!("{name}: errors: {errors:?}"));
        report.check(contestant.tallies.iter().all(|tally| tally.answered > 0), || {
            format!("{name}: a round without answers")
        });
        let (own, first) = (contestant.agreed(), contestants[0].agreed());
        report.check(own == first, || {
            format!("{name} agreed on {own:?}, {} on {first:?}", contestants[0].name)
        });
    }
}

#[cfg(test)]
mod tests;
