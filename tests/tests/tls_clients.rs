//! TLS of other hands: Python's `ssl` and Go's `crypto/tls` speak frames with the server.
//!
//! The clients lie in `clients/tls`; each greets, subscribes, hears what a backend publishes, sends 60 KiB in many small
//! records and many frames in one record, and resumes its session.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use weir_tests::{Authority, Server};

fn client(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/tls").join(name)
}

/// Runs a client against a server with each version, and looks at what the server has counted.
fn check(command: impl Fn() -> Command, kind_of_resumption: &str) -> Result<()> {
    let authority = Authority::new()?;
    let certificate = authority.files("server", "localhost", false)?;
    let class = "[[topic_classes]]\npattern = \"open/*\"\npublish = [\"devices\"]\n";
    let server = Server::start_with_tls(&format!("{certificate}{class}"))?;
    let tls = server.tls.context("it listens with TLS")?;
    for version in ["1.3", "1.2"] {
        let output = command()
            .args([tls.to_string(), server.admin.to_string()])
            .arg(authority.path("ca.pem"))
            .arg(version)
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success() && said.contains("done"),
            "TLS {version}: {said}{complaint}\n{}",
            server.log()
        );
        let metrics = server.metrics()?;
        for kind in ["full", kind_of_resumption] {
            let labels = [("version", version), ("kind", kind)];
            let samples = metrics.sum_of("weir_tls_handshakes_total", &labels);
            assert_eq!(samples, 1.0, "{version} {kind}: {}", metrics.text());
        }
    }
    let metrics = server.await_metrics("the end of all", |metrics| {
        metrics.connections("settled") + metrics.connections("lingering") == 0.0
    })?;
    for nothing in [
        "weir_tls_handshakes_failed_total",
        "weir_tls_not_moved_total",
        "weir_tls_alerts_received_total",
    ] {
        assert_eq!(metrics.sum(nothing, ""), 0.0, "{nothing}: {}", metrics.text());
    }
    assert_eq!(metrics.closed("tls_record"), 0.0, "{}", metrics.text());
    Ok(())
}

#[test]
fn python_speaks_frames_through_tls() -> Result<()> {
    let command = || {
        let mut command = Command::new("python3");
        command.arg(client("device.py"));
        command
    };
    check(command, "ticket")
}

#[test]
fn go_speaks_frames_through_tls() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = directory.path().join("device");
    let output = Command::new("go")
        .arg("build")
        .arg("-o")
        .arg(&program)
        .arg(client("device.go"))
        .env("GOTOOLCHAIN", "local")
        .env("GO111MODULE", "off")
        .output()
        .context("running go, which `cargo xtask test` installs")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    check(|| Command::new(&program), "ticket")
}
