//! `publish`: `POST /v1/publish` to one subscriber, in a closed loop. Measures CPU time and
//! allocations of each request.

mod subscriber;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use serde_json::json;
use toml::Table;

use self::subscriber::Subscriber;
use super::Setup;
use crate::cli::PublishArgs;
use crate::embedded::{Embedded, EmbeddedPlan};
use crate::protocol::{HttpEnd, HttpPlan, HttpStyle, HttpTally, Message, Posts};
use crate::report::Report;
use crate::spawn::Target;
use crate::stats::{Lags, median, milli, real, whole};
use crate::sys::allocator::Allocations;
use crate::workers::Workers;

/// Runs the scenario.
pub(crate) fn run(args: &PublishArgs, report: &mut Report) -> Result<()> {
    let target_args = args.target();
    let setup = Setup::new(&args.run, Some(&target_args), true)?;
    let message = Message {
        token: format!("bench-{:016x}", rand::random::<u64>()),
        topic: format!("{}publish", setup.topic_prefix),
        text: "x".repeat(args.size),
    };
    report.set("connections", args.connections);
    report.set("size", args.size);
    let cpus = setup.server_cpus.as_ref();
    let target = Target::start(&target_args, cpus, &settings(&message)?)?;
    let mut workers = setup.workers(args.connections)?;
    let edge = target.edge.context("the server has no HTTP")?;
    let plan = plan(args, &setup, edge, &message);
    let mut subscriber = Subscriber::start(target.addr, &message)?;
    let mut tallies = Vec::new();
    for round in 0..args.rounds {
        crate::workers::progress("round", round + 1, args.rounds);
        let plan = HttpPlan { pid: Some(target.pid), ..plan.clone() };
        tallies.push(publish(&mut workers, &mut subscriber, &plan)?);
    }
    fill(report, &tallies);
    report.set("delivered", subscriber.received());
    drop(subscriber);
    let allocated = allocations(&mut workers, &setup, &plan, &message)?;
    report.figure("allocations_per_publish", Some(allocated.0));
    report.figure("allocated_bytes_per_publish", Some(allocated.1));
    setup.describe(report);
    target.stop(report);
    Ok(())
}

/// Publishes, and waits until all messages have arrived.
fn publish(
    workers: &mut Workers,
    subscriber: &mut Subscriber,
    plan: &HttpPlan,
) -> Result<HttpTally> {
    let tally = workers.request(plan)?;
    // At the end the connections close with a request in flight on each. The server may have
    // carried out that request or not.
    subscriber.wait_for(tally.asked.saturating_sub(plan.connections.into()), tally.asked)?;
    Ok(tally)
}

/// Allocations and allocated bytes of a publish in an embedded gateway. They are the difference
/// between a long and a short run, so that connections and other one-time allocations do not count.
fn allocations(
    workers: &mut Workers,
    setup: &Setup,
    plan: &HttpPlan,
    message: &Message,
) -> Result<(f64, f64)> {
    let embedded = EmbeddedPlan::Publish(message.token.clone());
    let mut gateway = Embedded::start(embedded, setup.server_cpus.as_ref())?;
    let target = gateway.target();
    let mut subscriber = Subscriber::start(target.addr, message)?;
    let addr = target.edge.context("the embedded gateway has no HTTP")?;
    let plan = HttpPlan { addr, warm_up_ms: 0, ..plan.clone() };
    let mut spent = |requests| -> Result<(Allocations, u64)> {
        let before = gateway.allocations()?;
        let plan = HttpPlan { until: HttpEnd::Answers(requests), ..plan.clone() };
        let tally = publish(workers, &mut subscriber, &plan)?;
        let after = gateway.allocations()?;
        let (count, bytes) = (after.count - before.count, after.bytes - before.bytes);
        Ok((Allocations { count, bytes }, tally.asked))
    };
    // This run causes the allocations that happen only once.
    spent(SHORT_RUN)?;
    let ((short, few), (long, many)) = (spent(SHORT_RUN)?, spent(LONG_RUN)?);
    let each = |long: u64, short: u64| real(long.saturating_sub(short)) / real(many - few);
    drop(subscriber);
    gateway.stop()?;
    Ok((each(long.count, short.count), each(long.bytes, short.bytes)))
}

fn plan(args: &PublishArgs, setup: &Setup, addr: SocketAddr, message: &Message) -> HttpPlan {
    let millis = args.seconds * 1000.0 / f64::from(args.rounds);
    HttpPlan {
        addr,
        source: setup.source,
        path: "/v1/publish".to_owned(),
        style: HttpStyle::Http1,
        connections: args.connections,
        depth: 1,
        tls: None,
        warm_up_ms: args.warm_up_ms,
        until: HttpEnd::Millis(whole(millis.max(1.0))),
        pid: None,
        helpers: Vec::new(),
        posts: Some(Posts::Message(message.clone())),
    }
}

fn settings(message: &Message) -> Result<Table> {
    let token = &message.token;
    format!("[[auth.services]]\nname = \"bench\"\ntoken = \"{token}\"\nmay = [\"publish\"]")
        .parse()
        .context("the settings are TOML")
}

fn fill(report: &mut Report, tallies: &[HttpTally]) {
    let mut lags = Lags::new();
    let mut errors: BTreeMap<&str, u64> = BTreeMap::new();
    for tally in tallies {
        lags.add(&tally.lags);
        for (kind, count) in &tally.errors {
            *errors.entry(kind).or_insert(0) += count;
        }
    }
    let cpu_us = |tally: &HttpTally| Some(real(tally.server_cpu_ns?) / 1000.0 / answered(tally)?);
    let client_us = |tally: &HttpTally| Some(real(tally.client_cpu_ns) / 1000.0 / answered(tally)?);
    let per_second = |tally: &HttpTally| Some(answered(tally)? / tally.seconds);
    report.set("answered", tallies.iter().map(|tally| tally.answered).sum::<u64>());
    report.set("failed_by", json!(errors));
    report.figure("publishes_per_second", median(tallies.iter().filter_map(per_second)));
    report.figure("cpu_us_per_publish", median(tallies.iter().filter_map(cpu_us)));
    report.figure("client_us_per_publish", median(tallies.iter().filter_map(client_us)));
    report.figure("p50_ms", lags.quantile_ms(0.5));
    report.figure("p99_ms", lags.quantile_ms(0.99));
    let rounds = tallies.iter().map(|tally| json!({ "server_us": cpu_us(tally).map(milli) }));
    report.set("rounds", rounds.collect::<Vec<_>>());
    report.check(errors.is_empty(), || format!("errors: {errors:?}"));
    report.check(tallies.iter().all(|tally| tally.answered > 0), || {
        "a round without answers".to_owned()
    });
}

fn answered(tally: &HttpTally) -> Option<f64> {
    (tally.answered > 0).then(|| real(tally.answered))
}

/// Publishes of the two runs whose allocations are compared.
const SHORT_RUN: u64 = 2_000;
const LONG_RUN: u64 = 52_000;
