//! What becomes of the embedded store when it is new, when its disk is full, and when its key file is lost.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use weir_tests::{Answer, Device, PATIENCE, Server, now, program};
use weir_wire::v1::server_message::Kind as Said;
use weir_wire::v1::{Hello, client_message::Kind};

/// `weir devices import` in this directory.
fn import(directory: &Path, rows: &str) -> Result<Output> {
    fs::write(directory.join("devices.csv"), format!("devSn,devKey\n{rows}"))?;
    let mut command = Command::new(program("weir")?);
    command.args(["devices", "--config", "weir.toml", "import", "devices.csv"]);
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
    let mut device = Device::connect(server.tcp)?;
    let (device_id, token) = (format!("d{number}"), token.to_owned());
    device.send(Kind::Hello(Hello { device_id, token, ..Hello::default() }))?;
    Ok(matches!(device.hear()?, Some(Said::Welcome(_))))
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

const STORE: &str = "[store]\npath = \"devices.db\"\n";
const KEY: &str = "sixteen-chars-or-more";
/// More than what is left of a page, and of a block that is already there, has room for.
const DEVICES: usize = 500;
