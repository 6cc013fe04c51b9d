//! What becomes of a store when it is new, when its disk is full, and when it or its key file is lost.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use weir_tests::{Answer, Database, Device, PATIENCE, Server, now, program};
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

    // Its files may not grow any more.
    let log = server.directory().join("devices.db-wal");
    server.limit_files(Some(fs::metadata(log)?.len()))?;
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
    let ready = Answer::get(server.admin, "/readyz")?;
    assert_eq!(ready.status, 200, "it still serves");

    // Room again: it goes on by itself.
    server.limit_files(None)?;
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
    assert!(said.contains("store.key is not there") && said.contains("another key file"), "{said}");
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
    server.await_log("devices.db is gone", 1)?;

    server.signal(Signal::TERM)?;
    server.wait()?;
    let said = refused_start(server.directory())?;
    assert!(said.contains("devices.db: is not there") && said.contains("--new-store"), "{said}");
    let listed = devices(server.directory(), &["list"])?;
    assert!(!listed.status.success(), "{listed:?}");

    server.restart_with(&["serve", "--new-store"])?;
    server.await_log("a new store of devices was made path=devices.db devices=0", 2)?;
    assert_eq!(activate(&server, 0)?.err().map(|answer| answer.status), Some(401));
    // It leaves alone what is there.
    server.import(&format!("d0,{KEY}\n"))?;
    let token = activate(&server, 0)?.ok().context("a token")?;
    server.kill()?;
    server.restart_with(&["serve", "--new-store"])?;
    server.await_log(
        "the store of devices is open; no damage was found path=devices.db devices=1",
        1,
    )?;
    assert!(is_let_in(&server, 0, &token)?);
    Ok(())
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
        assert!(!output.status.success() && said.contains("store.key is not there"), "{said}");
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
