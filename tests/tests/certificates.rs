//! The program's certificates: made at the first start, read again when SIGHUP asks for it.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::process::Signal;
use weir_tests::{Device, Server};

#[expect(clippy::disallowed_methods, reason = "a test waits for another process")]
fn await_log(server: &Server, line: &str, times: usize) -> Result<()> {
    let begun = Instant::now();
    while server.log().matches(line).count() < times {
        ensure!(begun.elapsed() < Duration::from_secs(60), "no {line:?} in\n{}", server.log());
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

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
    await_log(&server, "certificates reloaded", 1)?;
    let path = format!("/proc/{}/cwd/state/development.pem", server.pid());
    let good = fs::read(&path)?;
    fs::write(&path, "nonsense")?;
    server.signal(Signal::HUP)?;
    await_log(&server, "certificates not reloaded; those loaded before stay in use", 1)?;
    await_log(&server, "BEGIN CERTIFICATE", 1)?;
    fs::write(&path, good)?;
    server.signal(Signal::HUP)?;
    await_log(&server, "certificates reloaded", 2)?;
    let _another = Device::greet(server.tcp, "second", &[])?;
    Ok(())
}

#[test]
fn a_hangup_without_tls_ends_nothing() -> Result<()> {
    let server = Server::start("")?;
    server.signal(Signal::HUP)?;
    await_log(&server, "nothing to reload", 1)?;
    let _device = Device::greet(server.tcp, "first", &[])?;
    Ok(())
}
