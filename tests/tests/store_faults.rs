//! What becomes of a store when it is new, when its disk is full, and when it or its key file is lost.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use weir_tests::{Answer, Database, Device, Metrics, PATIENCE, Redis, Server, now, program};
use weir_wire::v1::server_message::Kind as Said;
use weir_wire::v1::{Hello, client_message::Kind};

/// `weir devices import` in this directory.
fn import(directory: &Path, rows: &str) -> Result<Output> {
    fs::write(directory.join("devices.csv"), format!("devSn,devKey\n{rows}"))?;
    devices(directory, &["import", "devices.csv"])
}

/// `weir devices` in this directory.
fn devices(directory: &Path, args: &[&str]) -> Result<Output> {
    let mut command = Command::new(program("weir")?);
    command.args(["devices", "--config", "weir.toml"]).args(args);
    command.env_remove("WEIR_CONFIG").current_dir(directory).stdin(Stdio::null());
    Ok(command.output()?)
}

/// Activates a device; its token, or the answer if there is none.
fn activate(server: &Server, number: usize) -> Result<std::result::Result<String, Answer>> {
    let body = json!({"devSn": format!("d{number}"), "devKey": KEY}).to_string();
    let http = server.http.context("it speaks HTTP")?;
    let answer = Answer::post(http, "/v1/devices/activate", &body)?;
    if answer.status != 200 {
        return Ok(Err(answer));
    }
    let answer: Value = serde_json::from_str(&answer.body)?;
    Ok(Ok(answer["pt"].as_str().context("a token")?.to_owned()))
}

/// Connects with a token; whether it is let in.
fn is_let_in(server: &Server, number: usize, token: &str) -> Result<bool> {
    Ok(refusal(server, number, token)?.is_none())
}

/// The same; with which code it is turned away, if it is.
fn refusal(server: &Server, number: usize, token: &str) -> Result<Option<u32>> {
    let mut device = Device::connect(server.tcp)?;
    let (device_id, token) = (format!("d{number}"), token.to_owned());
    device.send(Kind::Hello(Hello { device_id, token, ..Hello::default() }))?;
    let heard = device.hear()?;
    if let Some(Said::Goodbye(goodbye)) = &heard {
        return Ok(Some(goodbye.code));
    }
    ensure!(matches!(heard, Some(Said::Welcome(_))), "{heard:?}");
    Ok(None)
}

#[test]
fn on_a_full_disk_nothing_is_answered_that_is_lost() -> Result<()> {
    let mut server = Server::start_with_limited_files(STORE)?;
    let rows: String = (0..DEVICES).map(|number| format!("d{number},{KEY}\n")).collect();
    let output = import(server.directory(), &rows)?;
    ensure!(output.status.success(), "{output:?}");
    let first = activate(&server, 0)?.ok().context("a token")?;
    let mut tokens = vec![first];

    // Its files may not grow any more. Readiness tells before anybody asks for something.
    let log = server.directory().join("devices.db-wal");
    server.limit_files(Some(fs::metadata(log)?.len()))?;
    let not_ready = await_part(&server, "store", "failed")?;
    assert_eq!((not_ready.status, &not_ready.body.contains("\"cause\":")), (503, &true));
    let refused = loop {
        match activate(&server, tokens.len())? {
            Ok(token) => tokens.push(token),
            Err(answer) => break answer,
        }
        ensure!(tokens.len() < DEVICES, "the store went on without room");
    };
    assert_eq!(
        (refused.status, refused.head.to_ascii_lowercase().contains("retry-after")),
        (503, true)
    );
    assert!(is_let_in(&server, 0, &tokens[0])?, "what needs no room goes on");
    server.await_log("devices cannot be activated", 1)?;
    let ready = Answer::get(server.admin, "/readyz?exclude=store")?;
    assert_eq!(ready.status, 200, "it still serves: {ready:?}");

    // Room again: it goes on by itself.
    server.limit_files(None)?;
    await_part(&server, "store", "ok")?;
    let deadline = now() + PATIENCE;
    let token = loop {
        ensure!(now() < deadline, "it did not recover; log:\n{}", server.log());
        if let Ok(token) = activate(&server, tokens.len())? {
            break token;
        }
    };
    tokens.push(token);
    server.kill()?;
    server.restart()?;
    for (number, token) in tokens.iter().enumerate() {
        ensure!(is_let_in(&server, number, token)?, "the token of d{number} is lost");
    }
    Ok(())
}

#[test]
fn a_store_is_made_where_nothing_is_yet() -> Result<()> {
    let server = Server::start("[store]\npath = \"state/weir/devices.db\"\n")?;
    for name in ["devices.db", "store.key"] {
        ensure!(server.directory().join("state/weir").join(name).exists(), "there is no {name}");
    }
    Ok(())
}

#[test]
fn without_its_key_file_a_store_is_not_opened() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let at = directory.path();
    fs::write(at.join("weir.toml"), STORE)?;
    ensure!(import(at, "add,abc\n")?.status.success());
    fs::rename(at.join("store.key"), at.join("copy"))?;
    let output = import(at, "add,abc\n")?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        said.contains("store.key does not exist") && said.contains("another key file"),
        "{said}"
    );
    assert!(!at.join("store.key").exists(), "another one is in its place");
    // Brought back, it is opened again.
    fs::rename(at.join("copy"), at.join("store.key"))?;
    let output = import(at, "add,abc\n")?;
    ensure!(output.status.success(), "{output:?}");
    Ok(())
}

/// A start that is refused: what it says.
fn refused_start(directory: &Path) -> Result<String> {
    // One that is not refused would serve for ever.
    let mut command = Command::new("timeout");
    command.arg("30").arg(program("weir")?).args(["serve", "--config", "weir.toml"]);
    command.env_remove("WEIR_CONFIG").current_dir(directory).stdin(Stdio::null());
    let output = command.output()?;
    ensure!(output.status.code() == Some(1), "it was not refused: {output:?}");
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_removed_store_takes_no_more_and_is_not_begun_anew_in_silence() -> Result<()> {
    let mut server = Server::start_with_http(STORE)?;
    server.import(&format!("d0,{KEY}\nd1,{KEY}\n"))?;
    let token = activate(&server, 0)?.ok().context("a token")?;
    fs::remove_file(server.directory().join("devices.db"))?;

    let answer = activate(&server, 1)?.err().context("an activation that would be lost")?;
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(is_let_in(&server, 0, &token)?, "what was written is still known");
    let not_ready = await_part(&server, "store", "failed")?;
    assert!(
        not_ready.status == 503 && not_ready.body.contains("devices.db is gone"),
        "{not_ready:?}"
    );
    let state = |metrics: &Metrics, state: &str| {
        metrics.sum_of("weir_part_state", &[("part", "store"), ("state", state)])
    };
    let metrics = server.metrics()?;
    assert_eq!((state(&metrics, "failed"), state(&metrics, "ok")), (1.0, 0.0));
    server.await_log("not ready part=\"store\"", 1)?;
    // Whoever may use the admin API is told why.
    let imported = server.import("d2,abc\n").err().context("devices that would be lost")?;
    assert!(format!("{imported:?}").contains("devices.db is gone"), "{imported:?}");

    server.signal(Signal::TERM)?;
    server.wait()?;
    let said = refused_start(server.directory())?;
    assert!(said.contains("devices.db: does not exist") && said.contains("--new-store"), "{said}");
    let listed = devices(server.directory(), &["list"])?;
    assert!(!listed.status.success(), "{listed:?}");

    server.restart_with(&["serve", "--new-store"])?;
    server.await_log("created a new device store path=devices.db devices=0", 2)?;
    assert_eq!(activate(&server, 0)?.err().map(|answer| answer.status), Some(401));
    // It leaves alone what is there.
    server.import(&format!("d0,{KEY}\n"))?;
    let token = activate(&server, 0)?.ok().context("a token")?;
    server.kill()?;
    server.restart_with(&["serve", "--new-store"])?;
    server
        .await_log("the device store is open; no damage was found path=devices.db devices=1", 1)?;
    assert!(is_let_in(&server, 0, &token)?);
    Ok(())
}

/// Fills a store, so that it has pages of every kind, and has it moved into its file.
fn fill(server: &mut Server) -> Result<PathBuf> {
    let rows: String = (0..4_000).map(|number| format!("d{number},{KEY}\n")).collect();
    server.import(&rows)?;
    server.signal(Signal::TERM)?;
    server.wait()?;
    Ok(server.directory().join("devices.db"))
}

/// Overwrites pages in place; which ones, the byte that they begin with says.
fn damage(path: &Path, kinds: &[u8]) -> Result<usize> {
    const PAGE_BYTES: u64 = 4_096;
    let file = fs::OpenOptions::new().read(true).write(true).open(path)?;
    let mut count = 0;
    // The first pages are those that every look begins with.
    for at in (5 * PAGE_BYTES..file.metadata()?.len()).step_by(4_096) {
        let mut kind = [0];
        file.read_exact_at(&mut kind, at)?;
        if kinds.contains(&kind[0]) {
            file.write_all_at(&[0x55; 4_096], at)?;
            count += 1;
        }
    }
    Ok(count)
}

/// The next start would be refused; as long as the gateway runs somebody can still do something.
#[test]
fn a_key_file_that_is_gone_is_told_before_the_next_start() -> Result<()> {
    let server = Server::start_with_http(STORE)?;
    let (key, away) = (server.directory().join("store.key"), server.directory().join("away"));
    fs::rename(&key, &away)?;
    let degraded = await_part(&server, "store", "degraded")?;
    assert!(degraded.status == 200 && degraded.body.contains("store.key is gone"), "{degraded:?}");
    fs::rename(&away, &key)?;
    await_part(&server, "store", "ok")?;
    Ok(())
}

#[test]
fn a_store_that_is_damaged_in_part_does_not_start() -> Result<()> {
    let mut server = Server::start_with_http(STORE)?;
    let path = fill(&mut server)?;
    // The index of serial numbers, which no start reads by itself.
    let pages = damage(&path, &[0x02, 0x0a])?;
    ensure!(pages > 0, "the file has no such pages");
    let said = refused_start(server.directory())?;
    assert!(said.contains("store.path: store devices.db: is damaged: "), "{said}");
    Ok(())
}

#[test]
fn a_store_that_is_damaged_while_it_runs_is_not_ready() -> Result<()> {
    let mut server = Server::start_with_http(STORE)?;
    let path = fill(&mut server)?;
    server.restart()?;
    await_part(&server, "store", "ok")?;
    ensure!(damage(&path, &[0x02, 0x05, 0x0a, 0x0d])? > 0, "the file has no such pages");
    for number in (0..4_000).step_by(400) {
        let answer = activate(&server, number)?.err().context("its record is damaged")?;
        assert_eq!(answer.status, 503, "{answer:?}");
    }
    let not_ready = await_part(&server, "store", "failed")?;
    assert!(not_ready.body.contains("malformed"), "{not_ready:?}");
    Ok(())
}

#[test]
fn readiness_tells_of_the_database_and_of_the_cache() -> Result<()> {
    let (mut database, mut redis) = (Database::start_with_file()?, Redis::start()?);
    let server = Server::start_with_http(&format!(
        "[admin]\ntoken = \"secret\"\n[store]\nkind = \"mongodb\"\npath = \"devices.db\"\ntimeout = \"2s\"\n\
         [store.mongodb]\nuri = \"{}\"\n[cache]\nredis = \"{}\"\ntimeout = \"1s\"\n",
        database.uri(),
        redis.url()
    ))?;
    redis.kill()?;
    let degraded = await_part(&server, "cache", "degraded")?;
    assert_eq!(degraded.status, 200, "the store is asked instead: {degraded:?}");
    redis.restart()?;
    await_part(&server, "cache", "ok")?;
    database.stop()?;
    let failed = await_part(&server, "store", "failed")?;
    assert_eq!(failed.status, 503);
    assert!(failed.head.to_ascii_lowercase().contains("retry-after"), "{failed:?}");
    assert!(!failed.body.contains("cause"), "strangers learn no causes: {failed:?}");
    let asked = |token: &str| {
        let addr = server.admin;
        let head = format!("GET /readyz HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n");
        Answer::ask(addr, &format!("{head}Authorization: Bearer {token}\r\n\r\n"))
    };
    assert!(asked("secret")?.body.contains("cause") && !asked("wrong")?.body.contains("cause"));
    database.restart()?;
    await_part(&server, "store", "ok")?;
    let unknown = Answer::get(server.admin, "/readyz?exclude=disk")?;
    assert!(unknown.status == 400 && unknown.body.contains("listeners, shards"), "{unknown:?}");
    Ok(())
}

/// Waits until readiness says so of a part; all that it says then.
fn await_part(server: &Server, part: &str, state: &str) -> Result<Answer> {
    server.await_answer("/readyz", |said| {
        let parts = said["parts"].as_array().into_iter().flatten();
        let mut found = parts.filter(|found| found["part"] == part);
        found.any(|found| found["state"] == state && found["since_ms"].as_u64() > Some(0))
    })?;
    let answer = Answer::get(server.admin, "/readyz")?;
    let said: Value = serde_json::from_str(&answer.body)?;
    ensure!(said["ready"] == (answer.status == 200), "{answer:?}");
    Ok(answer)
}

#[test]
fn an_orderly_end_leaves_one_whole_file() -> Result<()> {
    let mut server = Server::start_with_http(STORE)?;
    server.import(&format!("d0,{KEY}\n"))?;
    let token = activate(&server, 0)?.ok().context("a token")?;
    server.signal(Signal::TERM)?;
    server.wait()?;
    let at = server.directory().to_owned();
    assert!(!at.join("devices.db-wal").exists(), "the log was not moved into the file");
    // The file alone, as somebody copies it.
    fs::rename(at.join("devices.db"), at.join("copy"))?;
    fs::rename(at.join("copy"), at.join("devices.db"))?;
    server.restart()?;
    assert!(is_let_in(&server, 0, &token)?);
    Ok(())
}

#[test]
fn whoever_only_looks_for_devices_begins_no_store() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let at = directory.path();
    fs::write(at.join("weir.toml"), "[store]\npath = \"state/devices.db\"\n")?;
    for args in [&["list"][..], &["export"], &["show", "d0"], &["revoke", "d0"]] {
        let output = devices(at, args)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("store.key does not exist"), "{said}");
    }
    assert_eq!(fs::read_dir(at)?.count(), 1, "something was made");
    Ok(())
}

#[test]
fn dropped_collections_are_a_loss_and_not_an_empty_store() -> Result<()> {
    let database = Database::start()?;
    let store = format!(
        "[store]\nkind = \"mongodb\"\npath = \"devices.db\"\n[store.mongodb]\nuri = \"{}\"\n",
        database.uri()
    );
    let mut server = Server::start_with_http(&store)?;
    server.import(&format!("d0,{KEY}\nd1,{KEY}\n"))?;
    let token = activate(&server, 0)?.ok().context("a token")?;
    database.drop_database("weir")?;
    let answer = activate(&server, 1)?.err().context("nobody is known there")?;
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(refusal(&server, 0, &token)?, Some(4106), "nobody is told to go for good");
    server.kill()?;
    let said = refused_start(server.directory())?;
    assert!(said.contains("database \"weir\"") && said.contains("--new-store"), "{said}");
    server.restart_with(&["serve", "--new-store"])?;
    assert_eq!(activate(&server, 0)?.err().map(|answer| answer.status), Some(401));
    Ok(())
}

const STORE: &str = "[store]\npath = \"devices.db\"\n";
const KEY: &str = "sixteen-chars-or-more";
/// More than what is left of a page, and of a block that is already there, has room for.
const DEVICES: usize = 500;
