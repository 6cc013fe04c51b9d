//! An upgrade in which one of the two processes dies or stands still, or has too little of something:
//! before the decision nobody notices, and afterwards one process serves everybody.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use weir_tests::{Device, Newest, Numbers, PATIENCE, Server, UnderWay, now, program, rest};
use weir_wire::v1::{Ping, client_message, server_message};

/// Room for all that a fast machine publishes while the upgrades last.
const RETAINED: &str = "[threads]\nshards = 1\n[[topic_classes]]\npattern = \"feed/*\"\n\
                        retention_messages = 100000\nretention_bytes = 33554432\n";

/// A program in the directory of the server that does something, and then becomes `weir`.
fn script(server: &Server, name: &str, before: &str) -> Result<String> {
    let path = server.directory().join(name);
    let weir = program("weir")?;
    std::fs::write(&path, format!("#!/bin/sh\n{before} '{}' \"$@\"\n", weir.display()))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(path.display().to_string())
}

/// A program that becomes `weir`, each of whose threads gets a signal when it reads from the other
/// process for the nth time.
fn struck(server: &Server, signal: &str, nth: u32) -> Result<String> {
    let before = format!(
        "exec strace -D -f -qq -o /dev/null -e trace=recvmsg -e signal=none \
         -e inject=recvmsg:signal={signal}:when={nth}"
    );
    script(server, &format!("{signal}-{nth}"), &before)
}

/// Whether a process stands still, for good; `None`: it has ended.
fn is_still(pid: Pid) -> Option<bool> {
    let looks = |_| {
        rest();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
        stat.rsplit_once(") ")?.1.chars().next().filter(|state| !matches!(state, 'Z' | 'X'))
    };
    // Whoever watches its calls stops it for moments.
    let states: Option<Vec<char>> = (0..10).map(looks).collect();
    states.map(|states| states.iter().all(|state| matches!(state, 'T' | 't')))
}

/// In the pause and after it, the old process itself ends one that stands still.
fn kill_once_still(pid: Pid, (is_paused, is_over): (&AtomicBool, &AtomicBool)) {
    while !is_over.load(Ordering::Relaxed) && !is_paused.load(Ordering::Relaxed) {
        match is_still(pid) {
            Some(true) => {
                // It may have ended.
                let _ = kill_process(pid, Signal::KILL);
                return;
            }
            Some(false) => {}
            None => return,
        }
    }
}

/// Waits for the end of an upgrade, and notes when the pause begins.
fn follow(
    mut under_way: UnderWay,
    is_paused: &AtomicBool,
) -> Result<Result<(Newest, Value), String>> {
    while let Some(line) = under_way.line()? {
        is_paused.fetch_or(line["stage"]["name"] == "paused", Ordering::Relaxed);
    }
    under_way.end()
}

/// Upgrades to programs that get a signal at a later and later moment, until one has taken over.
fn strike_everywhere(signal: &str) -> Result<()> {
    let mut server = Server::start(RETAINED)?;
    let mut device = Device::greet(server.tcp, "d", &["feed/a"])?;
    let numbers = Numbers::start_slowly(server.admin);
    let mut nth = 1;
    let (_newest, moved) = loop {
        numbers.await_more(5)?;
        let program = struck(&server, signal, nth)?;
        let mut under_way = UnderWay::begin(&server, &["--program", &program])?;
        let pid = under_way.await_stage("started")?;
        let (is_paused, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        let ended = std::thread::scope(|scope| {
            scope.spawn(|| kill_once_still(pid, (&is_paused, &is_over)));
            let ended = follow(under_way, &is_paused);
            is_over.store(true, Ordering::Relaxed);
            ended
        })?;
        match ended {
            Ok(moved) => break moved,
            Err(reason) => ensure!(reason.contains("not upgraded: "), "{nth}: {reason}"),
        }
        ensure!(server.is_alive()?, "{nth}: the server has ended: {}", server.log());
        nth += 1;
    };
    ensure!(nth > 4, "it was struck at {nth} messages only");
    ensure!(moved["moved"][0] == json!({"kind": "tcp", "count": 1}), "{moved}");
    numbers.await_more(5)?;
    Numbers::heard_by(&mut device, numbers.finish()?)?;
    let failed = server.metrics()?.sum("weir_upgrades_total", "outcome=\"failed\"");
    ensure!(failed == f64::from(nth - 1), "{failed} of {nth}");
    Ok(())
}

#[test]
fn nobody_notices_a_new_process_that_is_killed() -> Result<()> {
    strike_everywhere("SIGKILL")
}

#[test]
fn nobody_is_lost_by_a_new_process_that_stands_still_and_is_killed() -> Result<()> {
    strike_everywhere("SIGSTOP")
}

fn ping(device: &mut Device) -> Result<()> {
    device.send(client_message::Kind::Ping(Ping { data: b"x".to_vec() }))?;
    let heard = device.hear()?;
    ensure!(matches!(heard, Some(server_message::Kind::Pong(_))), "{heard:?}");
    Ok(())
}

/// Upgrades up to the decision.
fn decide(server: &Server) -> Result<UnderWay> {
    let mut under_way = UnderWay::begin(server, &[])?;
    under_way.await_stage("committed")?;
    Ok(under_way)
}

#[test]
fn the_new_process_serves_alone_when_the_old_one_is_killed_after_the_decision() -> Result<()> {
    let mut server = Server::start(RETAINED)?;
    let mut device = Device::greet(server.tcp, "d", &["feed/a"])?;
    let mut under_way = decide(&server)?;
    let newest = under_way.take_newest()?;
    server.kill()?;
    // The command may have heard the last line before, or not.
    let _ = under_way.end();
    ping(&mut device)?;
    server.publish(&json!({"topic": "feed/a", "text": "hello"}))?;
    ensure!(device.push()?.offset == 1);
    ping(&mut Device::greet(server.tcp, "e", &[])?)?;
    drop(newest);
    Ok(())
}

#[test]
fn an_old_process_that_stands_still_after_the_decision_delays_nobody() -> Result<()> {
    let mut server = Server::start(RETAINED)?;
    let mut device = Device::greet(server.tcp, "d", &["feed/a"])?;
    let under_way = decide(&server)?;
    server.signal(Signal::STOP)?;
    ping(&mut device)?;
    server.publish(&json!({"topic": "feed/a", "text": "hello"}))?;
    ensure!(device.push()?.offset == 1);
    server.signal(Signal::CONT)?;
    let (newest, _) = under_way.finish(&server)?;
    ensure!(server.wait()?.success(), "{}", server.log());
    ping(&mut device)?;
    drop(newest);
    Ok(())
}

#[test]
fn a_new_process_with_too_little_is_refused_and_nobody_notices() -> Result<()> {
    let mut server = Server::start(RETAINED)?;
    let mut devices: Vec<Device> = (0..40)
        .map(|number| Device::greet(server.tcp, &format!("d{number}"), &["feed/a"]))
        .collect::<Result<_>>()?;
    let check = |limit: &str, expected: &str| {
        let program = script(&server, &limit.replace(' ', ""), &format!("ulimit {limit}; exec"))?;
        let ended = UnderWay::begin(&server, &["--program", &program])?.end()?;
        let reason = ended.err().with_context(|| format!("it moves with {limit}"))?;
        ensure!(reason.contains("not upgraded: ") && reason.contains(expected), "{reason}");
        Ok(())
    };
    // Enough to start, and too few for all devices.
    check("-n 48", "this one has 40")?;
    // Too few to start.
    check("-n 8", "")?;
    // KiB of memory: too few for its threads.
    check("-v 60000", "")?;
    ensure!(server.is_alive()?, "{}", server.log());
    server.publish(&json!({"topic": "feed/a", "text": "hello"}))?;
    for device in &mut devices {
        ensure!(device.push()?.offset == 1);
        ping(device)?;
    }
    Ok(())
}

#[test]
fn a_server_with_few_descriptors_is_upgraded() -> Result<()> {
    let server = Server::start_with_open_files(RETAINED, Some(64))?;
    let mut devices: Vec<Device> = (0..8)
        .map(|number| Device::greet(server.tcp, &format!("d{number}"), &["feed/a"]))
        .collect::<Result<_>>()?;
    let mut newest = None;
    for offset in 1..=2 {
        let (process, _) = UnderWay::begin(&server, &[])?.finish(&server)?;
        drop(newest.replace(process));
        server.publish(&json!({"topic": "feed/a", "text": "hello"}))?;
        for device in &mut devices {
            ensure!(device.push()?.offset == offset);
        }
    }
    let deadline = now() + PATIENCE;
    while server.metrics()?.sum("weir_upgrades_total", "outcome=\"moved\"") < 2.0 {
        ensure!(now() < deadline, "{}", server.log());
        rest();
    }
    Ok(())
}
