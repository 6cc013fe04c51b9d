//! The load generator's cluster, in small numbers, over a real Redis.

use anyhow::{Context, Result};
use serde_json::Value;
use weir_tests::{bench_report, program};

/// What `weir-bench cluster` reports.
fn bench(args: &[&str]) -> Result<Value> {
    let weir = program("weir")?;
    let weir = weir.to_str().context("a path in UTF-8")?;
    bench_report(&[&["cluster", "--spawn", weir], args].concat())
}

#[test]
fn a_cluster_is_compared_with_one_node_and_with_redis_alone() -> Result<()> {
    let args = ["--nodes", "2", "--clients", "21", "--topics", "5", "--publishers", "4"];
    let report = bench(
        &[&args[..], &["--rate", "100", "--seconds", "1", "--rounds", "1", "--compare"]].concat(),
    )?;
    let figure = |name: &str| report[name].as_f64().with_context(|| format!("{name}: {report}"));
    // Four publishers, 100 messages in a second, each to the clients of one topic of five.
    assert_eq!(figure("published")?, 100.0, "{report}");
    assert_eq!(figure("delivered")?, 420.0, "{report}");
    for name in ["batch_messages", "redis_us_per_publish", "script_us_per_message"] {
        assert!(figure(name)? >= 1.0, "{name}: {report}");
    }
    for name in ["redis_ratio", "delivery_ratio", "alone_us_per_delivery", "bare_lag_p50_ms"] {
        assert!(figure(name)? > 0.0, "{name}: {report}");
    }
    Ok(())
}

#[test]
fn clients_of_a_killed_node_come_back_to_the_others() -> Result<()> {
    let args = ["--clients", "20", "--topics", "5", "--publishers", "4", "--rate", "50"];
    let args = [&args[..], &["--seconds", "2", "--crowd", "40", "--return-ms", "100"]].concat();
    let report = bench(&args)?;
    assert_eq!(report["recovered"], 40, "{report}");
    assert_eq!(report["resumed"], 40, "{report}");
    // Each topic has clients at each node, which has kept what the others missed.
    assert_eq!(report["crowd_redis"]["calls"]["xrange"], Value::Null, "{report}");
    Ok(())
}
