//! The scenario `million` of `weir-bench` in small: more connections than a descriptor table has room
//! for, a third of them with TLS.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_tests::program;

#[test]
fn the_load_generator_holds_more_than_one_table_may() -> Result<()> {
    let (weir, bench) = (program("weir")?, program("weir-bench")?);
    let output = Command::new("sh")
        .args(["-c", "ulimit -n 1000 && exec \"$@\"", "sh"])
        .arg(bench)
        .args(["million", "--json", "--spawn"])
        .arg(weir)
        .args(["--connections", "1500", "--tls-share", "0.33", "--reserve-bytes", "1"])
        .args(["--ping-every", "2s", "--rest", "3s", "--settle", "500ms", "--broadcasts", "2"])
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let report = said.lines().next_back().context("a report")?;
    ensure!(output.status.success(), "{report}");
    let report: Value = serde_json::from_str(report)?;
    let figure = |name: &str| report[name].as_f64().with_context(|| format!("{name}: {report}"));
    assert_eq!(report["stopped_by"], "nothing");
    assert_eq!((figure("connections")?, figure("tls_connections")?), (1500.0, 495.0));
    assert_eq!((figure("shards")?, figure("worker_processes")?), (2.0, 2.0));
    assert_eq!(figure("delivered")?, 3000.0);
    assert!((750.0..1000.0).contains(&figure("descriptors_per_shard_max")?), "{report}");
    assert!(figure("descriptors_of_front")? < 400.0, "{report}");
    assert!(figure("rest_pings_per_second")? > 100.0, "{report}");
    Ok(())
}
