//! The program's certificates: made at the first start, read again when SIGHUP asks for it.

use std::fs;

use anyhow::{Result, ensure};
use rustix::process::Signal;
use weir_tests::{Device, Server};

#[test]
fn a_hangup_has_certificates_read_and_ends_nothing() -> Result<()> {
    let tls = "tls = [\"127.0.0.1:0\"]\n[tls]\ndevelopment_directory = \"state\"\nreload_interval = \"1h\"\n";
    let server = Server::start(tls)?;
    let _device = Device::greet(server.tcp, "first", &[])?;
    let metrics = server.metrics()?;
    let expiry =
        "weir_tls_certificate_expiry_seconds{kind=\"certificate\",file=\"state/development.pem\"} ";
    ensure!(metrics.text().contains(expiry), "{}", metrics.text());

    server.signal(Signal::HUP)?;
    server.await_log("certificates reloaded", 1)?;
    let path = format!("/proc/{}/cwd/state/development.pem", server.pid());
    let good = fs::read(&path)?;
    fs::write(&path, "nonsense")?;
    server.signal(Signal::HUP)?;
    server.await_log("certificates not reloaded; those loaded before stay in use", 1)?;
    server.await_log("BEGIN CERTIFICATE", 1)?;
    fs::write(&path, good)?;
    server.signal(Signal::HUP)?;
    server.await_log("certificates reloaded", 2)?;
    let _another = Device::greet(server.tcp, "second", &[])?;
    Ok(())
}

#[test]
fn a_hangup_without_tls_ends_nothing() -> Result<()> {
    let server = Server::start("")?;
    server.signal(Signal::HUP)?;
    server.await_log("the configuration has not changed", 1)?;
    let _device = Device::greet(server.tcp, "first", &[])?;
    Ok(())
}
