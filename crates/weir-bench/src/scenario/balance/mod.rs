//! `balance`: three endpoints behind a reverse proxy, one fast, one slow, one failing. Weir, nginx and
//! pingora have the same load in turn, at a fixed rate.

mod clients;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use toml::Table;

use self::clients::{Load, Tally};
use super::Setup;
use super::proxy::rivals::{Rivals, Site, settings};
use crate::backend::{Backend, Conduct, Host};
use crate::cli::{BalanceArgs, Failure};
use crate::report::Report;
use crate::spawn::{Content, Nginx, Target};
use crate::stats::{milli, real};

/// The endpoints, in this order.
const ENDPOINTS: [&str; 3] = ["fast", "slow", "failing"];
/// nginx that asks another endpoint also after the answer 503.
const NGINX_503: &str = "nginx_503";
const NEXT_503: &str = "proxy_next_upstream error timeout http_503;";

/// Runs the scenario.
pub(crate) fn run(args: &BalanceArgs, report: &mut Report) -> Result<()> {
    let target_args = args.target();
    let setup = Setup::new(&args.run, Some(&target_args), true)?;
    report.set("connections", args.connections);
    report.figure("rate", Some(args.rate));
    report.set("fast_ms", args.fast_ms);
    report.set("slow_ms", args.slow_ms);
    let mut rows = Vec::new();
    let mut about = None;
    for failure in &args.failures {
        // Servers without a past.
        let host = Host::start()?;
        let backends = endpoints(args, *failure, &host)?;
        let addrs: Vec<SocketAddr> = backends.iter().map(|backend| backend.addr).collect();
        let cpus = setup.server_cpus.as_ref();
        let target = Target::start(&target_args, cpus, &settings(&addrs, None)?)?;
        let edge = target.edge.context("the server has no HTTP")?;
        let site = Site { backends: &addrs, directives: "", h2: false };
        let rivals = Rivals::start(&args.peers, site, cpus)?;
        let content = Content::Proxied { backends: &addrs, directives: NEXT_503 };
        let other = crate::spawn::Site { credentials: None, h2: false, content };
        let other = Nginx::start(&args.peers.nginx, other, cpus).context(NGINX_503)?;
        let mut contestants = vec![("weir", edge)];
        contestants.extend(rivals.all().into_iter().map(|(name, addr, _)| (name, addr)));
        contestants.extend(other.iter().map(|nginx| (NGINX_503, nginx.addr)));
        for (name, addr) in contestants {
            let row = measure(args, &host, &backends, addr)
                .with_context(|| format!("{name}, {}", failure.name()))?;
            report.check(row.tally.answered > 0, || {
                format!("{name}: no request was answered: {:?}", row.tally.errors)
            });
            rows.push(row.shown(name, *failure));
        }
        about.get_or_insert_with(|| (rivals.descriptions(), rivals.skipped.clone()));
        drop((rivals, other));
        target.stop(report);
    }
    report.set("results", rows);
    let (described, skipped) = about.unwrap_or_default();
    report.set("skipped", skipped);
    let described = described.into_iter().map(|(name, lines)| (name.to_owned(), lines.into()));
    report.set("descriptions", Value::Object(described.collect()));
    setup.describe(report);
    Ok(())
}

fn endpoints(args: &BalanceArgs, failure: Failure, host: &Host) -> Result<[Backend; 3]> {
    let says = Conduct::says("an answer of an endpoint that is well");
    let fails = match failure {
        Failure::Status => match Conduct::says("an answer of an endpoint that is not well") {
            Conduct::Answers { after, content, .. } => {
                Conduct::Answers { after, status: 503, content }
            }
            other @ (Conduct::Resets | Conduct::Refuses) => other,
        },
        Failure::Reset => Conduct::Resets,
        Failure::Refuse => Conduct::Refuses,
    };
    let late = |millis| says.clone().late(Duration::from_millis(millis));
    Ok([host.backend(late(args.fast_ms))?, host.backend(late(args.slow_ms))?, host.backend(fails)?])
}

/// What came of the load on one server.
struct Row {
    tally: Tally,
    /// Requests that came to each endpoint.
    came: [u64; 3],
}

fn measure(
    args: &BalanceArgs,
    host: &Host,
    backends: &[Backend; 3],
    addr: SocketAddr,
) -> Result<Row> {
    let counts = || backends.each_ref().map(Backend::requests);
    let before = counts();
    let seconds = Duration::from_secs_f64(args.seconds);
    let load = Load { addr, connections: args.connections, rate: args.rate, seconds };
    let tally = host.run(clients::run(load))?;
    let after = counts();
    let came = std::array::from_fn(|place| after[place] - before[place]);
    Ok(Row { tally, came })
}

impl Row {
    fn shown(&self, name: &str, failure: Failure) -> Value {
        let Row { tally, came } = self;
        let sum: u64 = came.iter().sum();
        let share = |count: u64, of: u64| (of > 0).then(|| milli(real(count) / real(of)));
        let quantile = |quantile| tally.lags.quantile_ms(quantile).map(milli);
        let shares = ENDPOINTS.iter().zip(came);
        let shares: Table = shares
            .map(|(endpoint, count)| ((*endpoint).to_owned(), share(*count, sum).unwrap_or(0.0)))
            .map(|(endpoint, share)| (endpoint, share.into()))
            .collect();
        json!({
            "name": name,
            "failure": failure.name(),
            "requests": tally.sent,
            "failed_share": share(tally.sent - tally.answered, tally.sent),
            "failed_by": tally.errors,
            "shares": shares,
            "backend_requests_per_request": share(sum, tally.sent),
            "p50_ms": quantile(0.5),
            "p99_ms": quantile(0.99),
            "max_ms": tally.lags.max_ms().map(milli),
        })
    }
}
