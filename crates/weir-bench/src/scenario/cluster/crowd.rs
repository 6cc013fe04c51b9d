//! A node is killed, and all its clients come back to the others.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use super::publishers::Pace;
use super::side::{Round, Side, counter};
use super::{Broker, per_second};
use crate::cli::ClusterArgs;
use crate::clock;
use crate::protocol::ComeBack;
use crate::report::Report;
use crate::scenario::Setup;
use crate::spawn::Target;
use crate::stats::Lags;
use crate::workers::Totals;

/// Publishes for some time in peace, then for the same time again; in it the last node is killed.
pub(super) fn run(
    args: &ClusterArgs,
    crowd: u32,
    setup: &Setup,
    broker: &mut Broker,
    report: &mut Report,
) -> Result<()> {
    report.set("crowd", crowd);
    report.set("return_ms", args.return_ms);
    let mut clients = super::shares(args.clients, args.nodes - 1);
    clients.push(crowd);
    let place = (broker.server.url.as_str(), broker.prefix.as_str());
    let mut side = Side::cluster(args, setup, place, &clients)?;
    let pace = Pace { rate: args.rate, time: Duration::from_secs_f64(args.seconds) };
    let quiet = side.round(pace, &mut broker.client)?;
    side.check(report, "quiet", &quiet.published, &quiet.totals);
    let killed = side.nodes.pop().context("there is no node")?;
    let before = resumes(&mut side)?;
    let storm = storm(args, &mut side, killed, broker, pace)?;
    side.check_order(report, "crowd", &storm.published, &storm.totals);
    let (returned, stayed) = storm.totals.split_last().context("there is no node")?;
    for (node, totals) in (1..).zip(stayed) {
        report.check_messages(&format!("crowd, node {node}"), totals);
    }
    check(report, crowd, returned);
    fill(report, (&quiet, &storm), returned);
    report.set("resumed", resumes(&mut side)? - before);
    side.stop(report);
    Ok(())
}

fn storm(
    args: &ClusterArgs,
    side: &mut Side,
    killed: Target,
    broker: &mut Broker,
    pace: Pace,
) -> Result<Round> {
    let before = side.begin(&mut broker.client)?;
    let Side { nodes, clients, publishers, .. } = &mut *side;
    let to: Vec<_> = nodes.iter().map(|node| node.addr).collect();
    let returning = clients.last_mut().context("there are no clients")?;
    let began = clock::monotonic();
    let published = publishers.run(pace, |_| {
        clock::sleep_until(began + pace.time / 4);
        // It is killed when it is dropped.
        drop(killed);
        returning.come_back(ComeBack { to, share: 1.0, spread_ms: args.return_ms, again_ms: None })
    })?;
    side.end(before, published, &mut broker.client)
}

/// Resumes that the nodes have answered.
fn resumes(side: &mut Side) -> Result<u64> {
    let count = |node: &mut Target| Ok(counter(&node.metrics()?, "weir_resumes_total"));
    side.nodes.iter_mut().map(count).sum()
}

fn check(report: &mut Report, crowd: u32, returned: &Totals) {
    let tally = &returned.tally;
    let crowd = u64::from(crowd);
    report.check(tally.wrong == 0, || format!("crowd: {} wrong messages", tally.wrong));
    report.check(tally.duplicates == 0, || {
        format!("crowd: {} messages twice or out of order", tally.duplicates)
    });
    report.check(tally.lost() == 0, || format!("crowd: {} messages lost", tally.lost()));
    report.check(tally.recovered == crowd && tally.unrecovered == 0, || {
        format!(
            "crowd: of {crowd} that came back {} were told recovered: true, {} false",
            tally.recovered, tally.unrecovered
        )
    });
    report.check(tally.open == crowd, || format!("crowd: {} of {crowd} are connected", tally.open));
    for error in &tally.errors {
        report.fail(format!("crowd: {error}"));
    }
}

fn fill(report: &mut Report, (quiet, storm): (&Round, &Round), returned: &Totals) {
    let stayed = |round: &Round| {
        let mut lags = Lags::new();
        let (_, stayed) = round.totals.split_last()?;
        stayed.iter().for_each(|totals| lags.add(&totals.lags.counts()));
        Some(lags)
    };
    let tally = &returned.tally;
    report.set("published", quiet.published.accepted + storm.published.accepted);
    report.set("publish_refused", quiet.published.refused + storm.published.refused);
    report.set("publish_uncertain", quiet.published.uncertain + storm.published.uncertain);
    report.figure("publishes_per_second", per_second(storm));
    report.set("delivered", quiet.delivered() + storm.delivered());
    report.set("recovered", tally.recovered);
    report.set("unrecovered", tally.unrecovered);
    report.set("lost", tally.lost());
    report.set("duplicates", tally.duplicates);
    report.set("away", tally.away);
    report.figure("live_p50_ms", returned.returns.quantile_ms(0.5));
    report.figure("live_p99_ms", returned.returns.quantile_ms(0.99));
    report.figure("live_max_ms", returned.returns.max_ms());
    for (name, round, quantile) in [
        ("quiet_lag_p50_ms", quiet, 0.5),
        ("quiet_lag_p99_ms", quiet, 0.99),
        ("lag_p50_ms", storm, 0.5),
        ("lag_p99_ms", storm, 0.99),
        ("lag_max_ms", storm, 1.0),
    ] {
        report.figure(name, stayed(round).and_then(|lags| lags.quantile_ms(quantile)));
    }
    for (name, round, quantile) in [
        ("quiet_answer_p99_ms", quiet, 0.99),
        ("answer_p99_ms", storm, 0.99),
        ("answer_max_ms", storm, 1.0),
    ] {
        report.figure(name, round.published.answers.quantile_ms(quantile));
    }
    report.figure("quiet_gateway_cpu_seconds", Some(quiet.cpu.as_secs_f64()));
    report.figure("gateway_cpu_seconds", Some(storm.cpu.as_secs_f64()));
    report.figure("quiet_redis_cpu_seconds", Some(quiet.redis.cpu.as_secs_f64()));
    report.figure("redis_cpu_seconds", Some(storm.redis.cpu.as_secs_f64()));
    for (name, round) in [("quiet_redis", quiet), ("crowd_redis", storm)] {
        let redis = &round.redis;
        report.set(
            name,
            json!({ "reads": redis.reads, "writes": redis.writes, "calls": redis.calls }),
        );
    }
}
