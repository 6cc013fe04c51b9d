//! The load generator's upgrades, in small numbers. It fails by itself if a number is lost or doubled, or a connection closed.

use anyhow::{Context, Result};
use serde_json::Value;
use weir_tests::{bench_report, program};

/// What `weir-bench upgrade` reports.
fn bench(args: &[&str]) -> Result<Value> {
    let weir = program("weir")?;
    let weir = weir.to_str().context("a path in UTF-8")?;
    let load = ["--publishes", "100", "--pings", "100", "--size", "64"];
    bench_report(&[&["upgrade", "--spawn", weir], &load[..], args].concat())
}

#[test]
fn all_transports_move_twice() -> Result<()> {
    let report =
        bench(&["--connections", "200", "--upgrades", "2", "--every", "2s", "--storm", "20"])?;
    for name in ["lost", "doubled", "closed"] {
        assert_eq!(report[name], 0, "{report}");
    }
    // Each gets two messages during each upgrade; each listener those of all devices.
    assert_eq!(report["delivered"], 800, "{report}");
    for name in ["pause_max_ms", "lag_max_ms", "device_lag_max_ms", "ping_max_ms", "guests"] {
        assert!(report[name].as_f64().is_some_and(|figure| figure > 0.0), "{name}: {report}");
    }
    let rounds = report["rounds"].as_array().context("rounds")?;
    assert_eq!(rounds.len(), 2, "{report}");
    for round in rounds {
        assert!(round["moved"].as_u64() >= Some(202), "{round}");
        assert!(round["new_bytes"].as_u64() > Some(0), "{round}");
    }
    Ok(())
}

#[test]
fn a_line_goes_through_the_pauses() -> Result<()> {
    let report = bench(&["--sweep", "40,80", "--upgrades", "1", "--every", "1s"])?;
    assert_eq!(report["rounds"][1]["connections"], 80, "{report}");
    let figure = |name: &str| report[name].as_f64().with_context(|| format!("{name}: {report}"));
    let (fixed, each) = (figure("fixed_ms")?, figure("per_connection_us")?);
    assert!((figure("million_ms")? - (fixed + each * 1000.0)).abs() < 2.0, "{report}");
    assert!(report["plot"].as_str().is_some_and(|plot| plot.contains('o')), "{report}");
    Ok(())
}
