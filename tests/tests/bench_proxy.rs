//! The load generator's reverse proxies, in small numbers. nginx and pingora take part where they are.

use anyhow::{Context, Result};
use serde_json::Value;
use weir_tests::{bench_report, program};

/// What a scenario reports.
fn bench(args: &[&str]) -> Result<Value> {
    let (scenario, args) = args.split_first().context("a scenario")?;
    let weir = program("weir")?;
    let weir = weir.to_str().context("a path in UTF-8")?;
    bench_report(&[&[*scenario, "--spawn", weir], args].concat())
}

#[test]
fn answers_of_all_sizes_come_through_the_proxy() -> Result<()> {
    let small = ["--requests", "200", "--rounds", "1", "--warm-up-ms", "50"];
    for (args, size) in [
        (&["--connections", "8"][..], 1024),
        (&["--connections", "8", "--size", "65536"], 65_536),
        (&["--connections", "2", "--h2", "--streams", "4"], 1024),
    ] {
        let report = bench(&[&["proxy"], &small[..], args].concat())?;
        assert_eq!(report["size"], size, "{report}");
        let figure =
            |name: &str| report[name].as_f64().with_context(|| format!("{name}: {report}"));
        assert!(figure("answered")? >= 200.0, "{report}");
        for name in ["cpu_us_per_request", "backend_us_per_request", "p99_ms"] {
            assert!(figure(name)? > 0.0, "{name}: {report}");
        }
        let names = report["contestants"].as_array().context("contestants")?;
        assert_eq!(names[0]["name"], "server", "{report}");
    }
    Ok(())
}

#[test]
fn requests_are_counted_at_each_of_three_endpoints() -> Result<()> {
    let args = ["--rate", "100", "--connections", "20", "--slow-ms", "50", "--seconds", "1"];
    let report = bench(&[&["balance"], &args[..]].concat())?;
    let results = report["results"].as_array().context("results")?;
    let own: Vec<&Value> = results.iter().filter(|result| result["name"] == "weir").collect();
    let failures: Vec<&str> = own.iter().filter_map(|one| one["failure"].as_str()).collect();
    assert_eq!(failures, ["status", "reset", "refuse"], "{report}");
    for one in own {
        let requests = one["requests"].as_u64().context("requests")?;
        assert!((100..=101).contains(&requests), "{one}");
        let share = |name: &str| one["shares"][name].as_f64();
        let sum: f64 = ["fast", "slow", "failing"].into_iter().filter_map(share).sum();
        assert!((0.99..1.01).contains(&sum), "{one}");
        assert_eq!(share("failing") == Some(0.0), one["failure"] == "refuse", "{one}");
    }
    Ok(())
}
