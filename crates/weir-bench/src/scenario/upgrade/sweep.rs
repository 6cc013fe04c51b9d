//! The pause against the number of connections.

use anyhow::Result;
use serde_json::json;

use super::fit::{Line, plot};
use super::{LISTENERS, Run, verdict};
use crate::cli::UpgradeArgs;
use crate::report::Report;
use crate::stats::{median, milli};

/// The number of connections to which the line is extended.
const PROJECTED: f64 = 1e6;

/// Upgrades a gateway with each number of connections.
pub(super) fn run(args: &UpgradeArgs, report: &mut Report) -> Result<()> {
    let (mut points, mut rows) = (Vec::new(), Vec::new());
    for connections in &args.sweep {
        let connections = *connections;
        let mut run = Run::start(args, connections)?;
        let mut pauses = Vec::new();
        let (mut lag_max, mut bytes) = (0.0_f64, 0);
        for number in 1..=args.upgrades() {
            crate::workers::progress("upgrade", number, args.upgrades());
            let round = run.upgrade(args)?;
            let what = format!("{connections} connections, upgrade {number}");
            verdict::check_phase(report, &what, &round.phase, connections);
            verdict::check_upgrade(report, &what, &round.upgraded, connections + LISTENERS);
            pauses.push(round.upgraded.moved.pause_ms);
            lag_max = lag_max.max(round.phase.totals.lags.max_ms().unwrap_or(0.0));
            bytes = round.upgraded.moved.bytes;
        }
        points.extend(pauses.iter().map(|pause| (f64::from(connections), *pause)));
        rows.push(json!({
            "connections": connections,
            "pause_median_ms": median(pauses.iter().copied()).map(milli),
            "pause_min_ms": pauses.iter().copied().reduce(f64::min).map(milli),
            "pause_max_ms": pauses.iter().copied().reduce(f64::max).map(milli),
            "lag_max_ms": milli(lag_max),
            "state_bytes": bytes,
        }));
        run.meter.finish()?;
        run.crowd.close()?;
        drop(run.crowd);
        run.target.stop(report);
    }
    report.set("rounds", rows);
    let line = Line::through(&points);
    report.figure("fixed_ms", line.map(|line| line.a));
    report.figure("per_connection_us", line.map(|line| line.b * 1000.0));
    report.figure("million_ms", line.map(|line| line.at(PROJECTED)));
    report.set("plot", format!("\n{}", plot(&points, line).join("\n")));
    Ok(())
}
