//! The load generator's activations and publishes over HTTP, in small numbers, against the gateway.

use anyhow::{Context, Result};
use serde_json::Value;
use weir_tests::{bench_report, program};

/// What a scenario of `weir-bench` reports.
fn bench(scenario: &str, args: &[&str]) -> Result<Value> {
    bench_report(&[&[scenario, "--warm-up-ms", "50"], args].concat())
}

#[test]
fn devices_get_tokens_whichever_way_they_ask_and_strangers_do_not() -> Result<()> {
    let weir = program("weir")?;
    let weir = weir.to_str().context("a path in UTF-8")?;
    for over in ["h1", "h2", "udp"] {
        let args = ["--activations", "400", "--misses", "0.2", "--rounds", "2"];
        let args = [&["--spawn", weir, "--over", over], &args[..], &FEW].concat();
        let report = bench("activate", &args)?;
        let answered = report["answered"].as_u64().context("a count")?;
        let refused = report["refused"].as_u64().context("a count")?;
        assert!(answered >= 800, "{over}: {report}");
        assert!((answered / 6..=answered / 4).contains(&refused), "{over}: {report}");
        for outcome in ["first", "wrong_key", "unknown_device"] {
            assert!(report["outcomes"][outcome].as_u64() > Some(50), "{over}: {report}");
        }
    }
    Ok(())
}

#[test]
fn a_publish_costs_cpu_time_and_allocations_and_arrives() -> Result<()> {
    let weir = program("weir")?;
    let weir = weir.to_str().context("a path in UTF-8")?;
    let args = ["--spawn", weir, "--connections", "8", "--rounds", "2", "--seconds", "0.5"];
    let report = bench("publish", &args)?;
    let figure = |name: &str| report[name].as_f64().context("a figure");
    assert!(figure("cpu_us_per_publish")? > 1.0, "{report}");
    assert!((1.0..1000.0).contains(&figure("allocations_per_publish")?), "{report}");
    assert!(figure("delivered")? >= figure("answered")?, "{report}");
    Ok(())
}

#[test]
fn all_stages_answer_or_are_said_to_be_left_out() -> Result<()> {
    let stages = "nothing,log,log+redis,embedded,embedded-single,log+redis+mongodb";
    let nowhere = ["--mongo-server", "/nonexistent"];
    let args =
        [&["--stages", stages, "--rounds", "1", "--seconds", "2"][..], &nowhere, &FEW].concat();
    let report = bench("stages", &args)?;
    let rows = report["rungs"].as_array().context("rows")?;
    let names: Vec<&str> = rows.iter().filter_map(|row| row["stages"].as_str()).collect();
    assert_eq!(names, ["nothing", "log", "log+redis", "embedded", "embedded-single"]);
    for row in rows {
        assert!(row["answered"].as_u64() > Some(0), "{row}");
        let has_redis = row["stages"].as_str().is_some_and(|stages| stages.contains("redis"));
        assert_eq!(row["redis_us"].as_f64() > Some(0.0), has_redis, "{row}");
    }
    let left_out = report["left_out"][0].as_str().context("a reason")?;
    assert!(left_out.starts_with("log+redis+mongodb: no server is built in /nonexistent"));
    Ok(())
}

/// Devices, and requests on their way.
const FEW: [&str; 4] = ["--devices", "500", "--concurrency", "32"];
