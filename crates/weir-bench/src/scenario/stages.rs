//! `stages`: the stage breakdown of an activation over HTTP/1.1. Gateways with more and more
//! stages, embedded in the bench, take turns in every round.

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::activate::{Bench, Load, per_second, shown};
use crate::cli::{Over, StagesArgs};
use crate::protocol::HttpEnd;
use crate::report::Report;
use crate::stats::milli;
use crate::workers::turns;

/// Runs the scenario.
pub(crate) fn run(args: &StagesArgs, report: &mut Report) -> Result<()> {
    let load = Load {
        over: Over::H1,
        misses: 0.0,
        until: HttpEnd::Millis(crate::stats::whole((args.seconds * 1000.0).max(1.0))),
        requests: 0,
    };
    let (connections, each) = args.stores.spread(load.over);
    report.set("devices", args.stores.devices);
    report.set("connections", connections);
    report.set("requests_in_flight", u64::from(connections) * u64::from(each));
    let mut bench = Bench::start(&args.run, &args.stores, None, &args.stages, load)?;
    let count = bench.gateways.len();
    if count == 0 {
        bail!("everything is left out: {:?}", bench.left_out);
    }
    for turn in turns(args.stores.rounds, count) {
        bench.measure(turn)?;
    }
    report.set("beside", bench.beside());
    report.set("rounds", rounds(&bench, args.stores.rounds));
    report.set("left_out", bench.left_out.clone());
    report.set("rungs", bench.gateways.iter().map(shown).collect::<Vec<_>>());
    bench.stop(report);
    Ok(())
}

/// Answers per second of each gateway in each round.
fn rounds(bench: &Bench, rounds: u32) -> Vec<Value> {
    let row = |round: usize| {
        let figures = bench.gateways.iter().map(|gateway| {
            let figure = gateway.tallies.get(round).and_then(per_second).map(milli);
            (gateway.stages.name.clone(), json!(figure))
        });
        Value::Object(figures.collect())
    };
    (0..rounds as usize).map(row).collect()
}
