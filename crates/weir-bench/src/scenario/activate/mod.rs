//! `activate`: devices show serial number and key and get tokens, over HTTP or by datagram. The
//! bench checks every answer.

mod bench;
mod datagrams;

use anyhow::{Result, bail};
use serde_json::json;

pub(super) use self::bench::{Bench, Load, lags_of, middle, per_second, shown};
use super::sampler::growth;
use crate::cli::ActivateArgs;
use crate::metrics::Metrics;
use crate::protocol::HttpEnd;
use crate::report::Report;
use crate::stats::milli;

/// Runs the scenario.
pub(crate) fn run(args: &ActivateArgs, report: &mut Report) -> Result<()> {
    let load = Load {
        over: args.over,
        misses: args.misses,
        until: HttpEnd::Answers(args.activations),
        requests: args.activations,
    };
    let (program, stages) = (args.target(), std::slice::from_ref(&args.stages));
    let mut bench = Bench::start(&args.run, &args.stores, Some(&program), stages, load)?;
    if let Some(reason) = bench.left_out.first() {
        bail!("{reason}");
    }
    describe(args, report);
    for round in 0..args.stores.rounds {
        crate::workers::progress("round", round + 1, args.stores.rounds);
        bench.measure(0)?;
    }
    fill(report, &mut bench)?;
    bench.stop(report);
    Ok(())
}

fn describe(args: &ActivateArgs, report: &mut Report) {
    let (connections, each) = args.stores.spread(args.over);
    report.set("over", args.over.name());
    report.set("stages", args.stages.name.as_str());
    report.set("devices", args.stores.devices);
    report.set("connections", connections);
    report.set("requests_in_flight", u64::from(connections) * u64::from(each));
    report.set("misses", args.misses);
}

fn fill(report: &mut Report, bench: &mut Bench) -> Result<()> {
    let gateway = &mut bench.gateways[0];
    let metrics = gateway.target.metrics()?;
    let outcomes = growth(&Metrics::default(), &metrics, "weir_activations_total", "outcome");
    let tallies = &gateway.tallies;
    let lags = lags_of(tallies);
    report.set("answered", tallies.iter().map(|tally| tally.answered).sum::<u64>());
    report.set("refused", tallies.iter().map(|tally| tally.refused).sum::<u64>());
    report.set("repeated_tokens", tallies.iter().map(|tally| tally.repeated).sum::<u64>());
    report.set("failed_by", json!(gateway.errors()));
    report.set("lost", gateway.lost);
    report.set("outcomes", json!(outcomes));
    report.figure("answers_per_second", middle(tallies, bench::per_second));
    report.figure("p50_ms", lags.quantile_ms(0.5));
    report.figure("p99_ms", lags.quantile_ms(0.99));
    report.figure("max_ms", lags.max_ms());
    report.figure("bytes_per_answer", middle(tallies, bench::bytes));
    let costs = gateway.costs();
    report.figure("gateway_us_per_answer", costs.gateway);
    report.figure("redis_us_per_answer", costs.redis);
    report.figure("database_us_per_answer", costs.database);
    report.figure("generator_us_per_answer", costs.generator);
    report.figure("gateway_share", costs.gateway_share());
    let rounds = tallies.iter().map(|tally| {
        json!({
            "answers_per_second": bench::per_second(tally).map(milli),
            "gateway_us_per_answer": bench::gateway_us(tally).map(milli),
        })
    });
    report.set("rounds", rounds.collect::<Vec<_>>());
    report.set("beside", bench.beside());
    Ok(())
}

#[cfg(test)]
mod tests;
