//! `weir upgrade` and SIGUSR2 when the new process is missing, refuses, hangs, or is refused: the gateway serves on.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, geteuid};
use serde_json::{Value, json};
use weir_tests::{Device, Events, PATIENCE, Server, now, program, rest};

fn command(server: &Server, words: &[&str]) -> Result<Command> {
    let mut command = Command::new(program("weir")?);
    command.arg("upgrade").args(words).env_remove("WEIR_CONFIG");
    command.env("STATE_DIRECTORY", server.directory()).stdin(Stdio::null());
    Ok(command)
}

fn upgrade(server: &Server, words: &[&str]) -> Result<Output> {
    Ok(command(server, words)?.output()?)
}

/// A file in the directory of the server.
fn write(server: &Server, name: &str, text: &str, mode: u32) -> Result<PathBuf> {
    let path = server.directory().join(name);
    std::fs::write(&path, text)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))?;
    Ok(path)
}

/// The connection of before is served by the process of before.
fn still_served(server: &mut Server, device: &mut Device) -> Result<()> {
    ensure!(server.is_alive()?, "the server has ended: {}", server.log());
    server.publish(&json!({"topic": "news", "text": "hello"}))?;
    ensure!(device.hear()?.is_some(), "the device hears nothing");
    Ok(())
}

#[test]
fn an_upgrade_that_fails_changes_nothing_and_says_why() -> Result<()> {
    let mut server = Server::start("[threads]\nshards = 1\n")?;
    let mut device = Device::greet(server.tcp, "d", &["news"])?;
    let text = std::fs::read_to_string(server.config())?;
    let exits = write(&server, "exits", "#!/bin/sh\nexit 3\n", 0o755)?;
    let talks = write(&server, "talks", "#!/bin/sh\necho I am no gateway >&0; sleep 9\n", 0o755)?;
    let plain = write(&server, "plain", "no program", 0o644)?;
    let other = text.replace("shards = 1", "shards = 2");
    let other = write(&server, "other.toml", &other, 0o600)?;
    let files = "[tls]\ncertificates = [{ certificate = \"/nowhere\", key = \"/nowhere\" }]\n";
    let tls = text.replace("[listen]\n", "[listen]\ntls = [\"127.0.0.1:0\"]\n") + files;
    let tls = write(&server, "tls.toml", &tls, 0o600)?;
    let socket = server.directory().join("upgrade.sock");
    ensure!(std::fs::metadata(&socket)?.permissions().mode() & 0o777 == 0o600);
    let (socket, path) = (socket.display().to_string(), |path: PathBuf| path.display().to_string());
    let cases: [(&[&str], &str); 6] = [
        (&["--program", "/nowhere/weir"], "cannot start /nowhere/weir: No such file"),
        (&["--program", &path(plain)], "Permission denied"),
        (&["--program", &path(exits)], "does not take over: it has ended with exit status: 3"),
        (&["--program", &path(talks)], "a packet without the magic number"),
        (&["--config", &path(other)], "the new process has 2 shards, this one has 1"),
        (&["--config", &path(tls)], "refuses: "),
    ];
    for (words, expected) in cases {
        let found = upgrade(&server, &[words, &["--socket", &socket]].concat())?;
        let complaint = String::from_utf8_lossy(&found.stderr);
        ensure!(complaint.contains(expected), "{words:?}: {complaint}\n{}", server.log());
        ensure!(found.status.code() == Some(1), "{words:?}: {:?}", found.status);
        still_served(&mut server, &mut device)?;
    }
    ensure!(server.log().matches("upgrade failed: this process serves on").count() == cases.len());
    let nobody_there = upgrade(&server, &["--socket", "/nowhere/upgrade.sock"])?;
    let complaint = String::from_utf8_lossy(&nobody_there.stderr);
    ensure!(complaint.contains("no gateway waits at /nowhere/upgrade.sock"), "{complaint}");
    Ok(())
}

#[test]
fn a_dry_run_says_what_would_move() -> Result<()> {
    let mut server = Server::start_with_http("")?;
    let mut device = Device::greet(server.tcp, "d", &["news"])?;
    let config = server.config().display().to_string();
    let found = upgrade(&server, &["--dry-run", "--config", &config])?;
    let said = String::from_utf8_lossy(&found.stdout);
    ensure!(found.status.success(), "{found:?}\n{}", server.log());
    for part in ["runs", "accepts its configuration", "would move  1 tcp", "would stay"] {
        ensure!(said.contains(part), "{part}: {said}");
    }
    let found = upgrade(&server, &["--dry-run", "--config", &config, "--json"])?;
    let said = String::from_utf8(found.stdout)?;
    let lines: Vec<Value> = said.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    ensure!(lines[0]["stage"]["name"] == "started", "{said}");
    ensure!(lines[1]["stage"]["name"] == "answered", "{said}");
    ensure!(lines[2]["forecast"]["moves"][0] == json!({"kind": "tcp", "count": 1}), "{said}");
    still_served(&mut server, &mut device)
}

#[test]
fn sigusr2_with_a_bad_configuration_changes_nothing() -> Result<()> {
    let mut server = Server::start("")?;
    let mut device = Device::greet(server.tcp, "d", &["news"])?;
    let text = std::fs::read_to_string(server.config())?;
    let mut events = Events::get_unchunked(server.admin, "/v1/events?type=upgrade_failed")?;
    for times in 1..=2 {
        std::fs::write(server.config(), format!("{text}[limits]\nwheels = 4\n"))?;
        server.signal(Signal::USR2)?;
        server.await_log("upgrade failed: this process serves on", times)?;
        still_served(&mut server, &mut device)?;
        let event = events.expect("upgrade_failed")?.data;
        ensure!(event["reason"].as_str().is_some_and(|reason| reason.contains("limits.wheels")));
    }
    let metrics = server.metrics()?;
    ensure!(metrics.sum("weir_upgrades_total", "outcome=\"failed\"") == 2.0);
    ensure!(metrics.sum("weir_upgrade_pause_seconds", "") == 0.0, "no upgrade has made it");
    ensure!(server.log().contains("limits.wheels = 4: no such key"), "{}", server.log());
    Ok(())
}

#[test]
fn a_gateway_that_is_stopped_during_an_upgrade_ends_the_new_process() -> Result<()> {
    let mut server = Server::start("")?;
    let pid = server.directory().join("pid");
    let script =
        format!("#!/bin/sh\necho $$ > {}.new; mv {0}.new {0}; exec sleep 600\n", pid.display());
    let hangs = write(&server, "hangs", &script, 0o755)?.display().to_string();
    let config = server.config().display().to_string();
    let mut first = command(&server, &["--config", &config, "--program", &hangs])?
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let deadline = now() + PATIENCE;
    while !pid.exists() {
        ensure!(now() < deadline, "the new process does not run: {}", server.log());
        rest();
    }
    let second = upgrade(&server, &["--config", &config])?;
    let complaint = String::from_utf8_lossy(&second.stderr);
    ensure!(complaint.contains("an upgrade is under way already"), "{complaint}");
    if geteuid().is_root() {
        // Another user does not even reach the socket.
        let mut other = command(&server, &["--socket"])?;
        let socket = server.directory().join("upgrade.sock");
        let found = other.arg(socket).uid(65_534).gid(65_534).output();
        ensure!(found.is_err() || !found?.status.success());
    }
    server.signal(Signal::TERM)?;
    ensure!(server.wait()?.success(), "{}", server.log());
    ensure!(!first.wait()?.success());
    let number = std::fs::read_to_string(&pid).context("the number of the new process")?;
    ensure!(!PathBuf::from(format!("/proc/{}", number.trim())).exists(), "it lives on");
    ensure!(!server.directory().join("upgrade.sock").exists(), "its socket is left");
    Ok(())
}
