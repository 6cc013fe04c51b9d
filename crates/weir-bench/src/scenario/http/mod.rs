//! `http`: requests in a closed loop, compared with bare responders and nginx.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use toml::Table;

mod rivals;

use super::Setup;
use super::contestants::{self, Contestant, cpu_us, ratio};
use crate::cli::HttpArgs;
use crate::protocol::{HttpEnd, HttpPlan, HttpStyle};
use crate::report::Report;
use crate::spawn::Target;
use crate::stats::whole;
use crate::tls::{COMMON_GROUP, TlsPlan, TlsVersion};
use crate::workers::{Workers, turns};
use rivals::{Rival, Rivals};

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

fn fill(report: &mut Report, contestants: &[Contestant], skipped: &[String]) {
    let Some((server, rivals)) = contestants.split_first() else { return };
    contestants::fill(report, server);
    for rival in rivals {
        let names = rivals::names(rival.name);
        report.figure(names.cpu_us, rival.middle(cpu_us));
        report.figure(names.ratio, ratio(server, rival));
    }
    contestants::fill_rounds(report, contestants, skipped);
}

#[cfg(test)]
mod tests;
