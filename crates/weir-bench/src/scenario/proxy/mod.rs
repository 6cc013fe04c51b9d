//! `proxy`: requests in a closed loop through the reverse proxy, and in turn through nginx and pingora, to
//! the same backend.

pub(super) mod rivals;

use anyhow::{Context, Result};
use serde_json::Value;

use super::Setup;
use super::contestants::{self, Contestant, cpu_us, each, ratio};
use crate::baseline::http::HttpServer;
use crate::cli::ProxyArgs;
use crate::protocol::{HttpEnd, HttpPlan, HttpStyle, HttpTally};
use crate::report::Report;
use crate::spawn::Target;
use crate::stats::whole;
use crate::workers::turns;
use rivals::{DIRECT, Rivals, Site, settings};

/// The path of the requests. Weir answers it in no other way.
const PATH: &str = "/content";

/// Runs the scenario.
pub(crate) fn run(args: &ProxyArgs, report: &mut Report) -> Result<()> {
    let target_args = args.target();
    let setup = Setup::new(&args.run, Some(&target_args), true)?;
    describe(args, report);
    // With the clients: the CPUs of the servers are for the one that is measured.
    let size = args.size.to_string();
    let arguments = ["--content-bytes", &*size];
    let backend = HttpServer::start("http-epoll", &arguments, setup.client_cpus.as_ref())
        .context("the backend")?;
    let backends = [backend.addr];
    let target =
        Target::start(&target_args, setup.server_cpus.as_ref(), &settings(&backends, None)?)?;
    let edge = target.edge.context("the server has no HTTP")?;
    let site = Site { backends: &backends, directives: "", h2: args.h2 };
    let rivals = Rivals::start(&args.peers, site, setup.server_cpus.as_ref())?;
    let mut contestants = vec![Contestant::new("server", edge, target.pid)];
    for (name, addr, pid) in rivals.all() {
        contestants.push(Contestant::new(name, addr, pid));
    }
    if !args.h2 {
        contestants.push(Contestant::new(DIRECT, backend.addr, backend.pid()));
    }
    let mut plan = plan(args, &setup, &contestants[0]);
    plan.helpers = vec![backend.pid()];
    let mut workers = setup.workers(args.connections())?;
    for turn in turns(args.rounds, contestants.len()) {
        let contestant = &mut contestants[turn];
        (plan.addr, plan.pid) = (contestant.addr, Some(contestant.pid));
        let tally = workers.request(&plan).context(contestant.name)?;
        let (name, bytes) = (contestant.name, tally.content_bytes);
        report.check(bytes == args.size as u64, || {
            format!("{name}: answers have {bytes} bytes of content, not {}", args.size)
        });
        contestant.tallies.push(tally);
    }
    fill(report, &contestants, &rivals);
    setup.describe(report);
    drop(rivals);
    target.stop(report);
    Ok(())
}

fn describe(args: &ProxyArgs, report: &mut Report) {
    report.set("connections", args.connections());
    report.set("style", if args.h2 { "http2" } else { "http1" });
    report.set("requests_in_flight", args.depth());
    report.set("size", args.size);
}

fn plan(args: &ProxyArgs, setup: &Setup, first: &Contestant) -> HttpPlan {
    let until = match args.requests {
        Some(requests) => HttpEnd::Answers(requests),
        None => {
            let millis = args.seconds * 1000.0 / f64::from(args.rounds);
            HttpEnd::Millis(whole(millis.max(1.0)))
        }
    };
    HttpPlan {
        addr: first.addr,
        source: setup.source,
        path: PATH.to_owned(),
        style: if args.h2 { HttpStyle::Http2 } else { HttpStyle::Http1 },
        connections: args.connections(),
        depth: args.depth(),
        tls: None,
        warm_up_ms: args.warm_up_ms,
        until,
        pid: Some(first.pid),
        helpers: Vec::new(),
        posts: None,
    }
}

fn backend_us(tally: &HttpTally) -> Option<f64> {
    tally.helpers_cpu_ns.first().and_then(|nanos| each(*nanos, tally))
}

fn fill(report: &mut Report, contestants: &[Contestant], rivals: &Rivals) {
    let Some((server, others)) = contestants.split_first() else { return };
    contestants::fill(report, server);
    report.figure("backend_us_per_request", server.middle(backend_us));
    for other in others {
        let Some(names) = rivals::names(other.name) else { continue };
        report.figure(names.cpu_us, other.middle(cpu_us));
        report.figure(names.ratio, ratio(server, other));
    }
    contestants::fill_rounds(report, contestants, &rivals.skipped);
    let described = rivals.descriptions().into_iter();
    let described = described.map(|(name, lines)| (name.to_owned(), lines.into()));
    report.set("descriptions", Value::Object(described.collect()));
}
