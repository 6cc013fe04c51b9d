//! The load generator's services that are asked and told, in small numbers.

use anyhow::{Context, Result};
use serde_json::Value;
use weir_tests::{bench_report, program};

/// What `weir-bench hooks` reports about a work.
fn bench(work: &str, args: &[&str]) -> Result<Value> {
    let weir = program("weir")?;
    let weir = weir.to_str().context("a path in UTF-8")?;
    bench_report(&[&["hooks", work, "--spawn", weir, "--rounds", "1"], args].concat())
}

#[test]
fn a_receiver_is_told_of_each_message() -> Result<()> {
    let report = bench("notices", &["--connections", "10", "--rate", "200", "--seconds", "1"])?;
    assert_eq!((&report["published"], &report["delivered"]), (&200.into(), &200.into()));
    assert_eq!(report["missing"], 0, "{report}");
    Ok(())
}

#[test]
fn pushes_arrive_whatever_the_services_do() -> Result<()> {
    let args = ["--connections", "20", "--guests", "20", "--slow-ms", "500", "--seconds", "1"];
    let report = bench("lag", &args)?;
    let results = report["results"].as_array().context("results")?;
    let names: Vec<&str> = results.iter().filter_map(|one| one["services"].as_str()).collect();
    assert_eq!(names, ["none", "fast", "slow", "dead"], "{report}");
    for one in results {
        assert_eq!((&one["delivered"], &one["guests"]), (&400.into(), &20.into()), "{one}");
    }
    // Two guests have a token; who is dead knows none.
    for (services, welcomed) in [("none", 2), ("fast", 2), ("slow", 2), ("dead", 0)] {
        let one = results.iter().find(|one| one["services"] == services).context("a line")?;
        assert_eq!(one["askers"], welcomed, "{one}");
    }
    Ok(())
}

#[test]
fn each_token_is_asked_about() -> Result<()> {
    let report = bench("connect", &["--questions", "50"])?;
    assert_eq!((&report["questions"], &report["welcomed"]), (&50.into(), &50.into()), "{report}");
    Ok(())
}
