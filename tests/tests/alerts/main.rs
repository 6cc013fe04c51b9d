//! Each alert of `packaging/prometheus` fires in a real Prometheus when its fault is made to a real gateway, and clears
//! when the fault ends. All faults happen at the same time, to thirteen gateways.
//!
//! The rules are those of the package with one change: all times (`for`, ranges, offsets) are a hundredth, so five
//! minutes are three seconds. Thresholds stay as they are.

mod faults;
mod files;
mod prometheus;
mod rare;
mod service;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_tests::{PATIENCE, now, raise_open_files, rest};

use faults::Faults;
use prometheus::{Fired, Prometheus};

#[test]
fn each_alert_fires_when_its_fault_is_made_and_clears_when_it_ends() -> Result<()> {
    raise_open_files()?;
    let begun = now();
    let mut faults = Faults::new()?;
    let prometheus = Prometheus::start(&faults.targets())?;
    let count = faults.targets().len();
    await_that("all gateways to be scraped, and no alert", || {
        let up = prometheus.query("up == 1")?.len();
        let firing = prometheus.firing()?;
        Ok((up == count && firing.is_empty(), format!("{up} are up; {firing:?}")))
    })?;
    println!("quiet after {:.1?}", begun.elapsed());

    faults.make()?;
    let expected = faults.expected();
    let mut missing: BTreeSet<Fired> =
        expected.map(|(alert, gateway)| (alert.to_owned(), gateway.to_owned())).collect();
    await_that("all alerts to fire", || {
        // Each start must be scraped to be counted.
        if missing.iter().any(|(alert, _)| alert == "WeirRestartsOften") {
            let before = started(&prometheus)?;
            faults.restart()?;
            await_that("a start to be seen", || {
                Ok((started(&prometheus)? > before, String::new()))
            })?;
        }
        for fired in prometheus.firing()? {
            if missing.remove(&fired) {
                println!("{:5.1?} {} of {}", begun.elapsed(), fired.0, fired.1);
            }
        }
        Ok((missing.is_empty(), format!("missing: {missing:?}")))
    })?;
    // While all metrics of faults are there.
    let metrics = files::names(&faults)?;
    files::check_names(&metrics)?;
    files::check_dashboard(&prometheus)?;
    let lines = files::check_logs(&faults)?;
    ensure!(lines > 10, "only {lines} different lines were logged");
    println!("all have fired after {:.1?}", begun.elapsed());

    faults.mend()?;
    await_that("all alerts to clear", || {
        let firing = prometheus.firing()?;
        Ok((firing.is_empty(), format!("still: {firing:?}")))
    })?;
    println!("all have cleared after {:.1?}", begun.elapsed());
    Ok(())
}

/// When Prometheus saw the gateway start that starts again and again; 0 if it is down.
fn started(prometheus: &Prometheus) -> Result<f64> {
    let found = prometheus.query("process_start_time_seconds{instance=\"restless\"}")?;
    let value = found.first().and_then(|sample| sample["value"][1].as_str());
    Ok(value.map_or(Ok(0.0), str::parse)?)
}

/// Waits for a condition; its text says what is missing.
fn await_that(what: &str, mut condition: impl FnMut() -> Result<(bool, String)>) -> Result<()> {
    let deadline = now() + PATIENCE.min(Duration::from_secs(180));
    loop {
        let (holds, text) = condition().with_context(|| what.to_owned())?;
        if holds {
            return Ok(());
        }
        ensure!(now() < deadline, "waited in vain for {what}: {text}");
        rest();
    }
}
