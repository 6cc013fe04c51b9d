//! A copy of the store, made while devices activate, and put back after the gateway was killed: nothing that was answered
//! before the copy began is missing.

use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_tests::{Answer, Device, PATIENCE, Server, now, program, rest};
use weir_wire::CloseReason;
use weir_wire::v1::client_message::Kind;
use weir_wire::v1::{Hello, server_message};

/// What the gateway has answered about a device.
#[derive(Clone)]
struct Answered {
    serial: String,
    token: String,
    is_revoked: bool,
}

/// Devices that the gateway has answered for, and whether more shall follow.
#[derive(Default)]
struct Load {
    answered: Mutex<Vec<Answered>>,
    failure: Mutex<Option<anyhow::Error>>,
    is_over: AtomicBool,
}

impl Load {
    fn answered(&self) -> Vec<Answered> {
        self.answered.lock().expect("no panic").clone()
    }

    /// Waits until it has answered for so many.
    fn await_count(&self, count: usize) -> Result<Vec<Answered>> {
        let deadline = now() + PATIENCE;
        loop {
            let answered = self.answered();
            if answered.len() >= count {
                return Ok(answered);
            }
            if let Some(failure) = self.failure.lock().expect("no panic").take() {
                return Err(failure);
            }
            ensure!(now() < deadline, "{} of {count} are answered", answered.len());
            rest();
        }
    }

    /// Imports and activates devices, and revokes some, until it is over.
    fn put_on(&self, server: &Server, worker: usize) {
        for number in 0.. {
            match one(server, format!("meter-{worker}-{number}"), number % 4 == 3) {
                Ok(answered) => self.answered.lock().expect("no panic").push(answered),
                Err(failure) => {
                    self.failure.lock().expect("no panic").replace(failure);
                    return;
                }
            }
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}

fn one(server: &Server, serial: String, is_revoked: bool) -> Result<Answered> {
    server.import(&format!("{serial},key-of-{serial}\n"))?;
    let token = server.token(&serial, &format!("key-of-{serial}"))?;
    if is_revoked {
        let revoked = Answer::post(server.admin, &format!("/v1/devices/{serial}/revoke"), "{}")?;
        ensure!((200..300).contains(&revoked.status), "{revoked:?}");
    }
    Ok(Answered { serial, token, is_revoked })
}

/// `weir devices …` with the server's configuration.
fn devices(directory: &Path, args: &[&str]) -> Result<Output> {
    let mut command = Command::new(program("weir")?);
    command.args(["devices", "--config", "weir.toml"]).args(args).current_dir(directory);
    command.env_remove("WEIR_CONFIG").env_remove("WEIR_ADMIN_TOKEN").stdin(Stdio::null());
    Ok(command.output()?)
}

#[track_caller]
fn refused(directory: &Path, args: &[&str], why: &str) -> Result<()> {
    let output = devices(directory, args)?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(why), "{args:?}: expected {why:?}: {said}");
    Ok(())
}

/// How the gateway receives a device with this token.
fn comes(server: &Server, answered: &Answered) -> Result<Option<server_message::Kind>> {
    let mut device = Device::connect(server.tcp)?;
    device.send(Kind::Hello(Hello {
        device_id: answered.serial.clone(),
        token: answered.token.clone(),
        ..Hello::default()
    }))?;
    device.hear()
}

const STORE: &str =
    "[store]\npath = \"devices.db\"\n[activation]\ngateways = [\"gate.example:7070\"]\n";

#[test]
fn nothing_that_was_answered_is_missing() -> Result<()> {
    let mut server = Server::start_with_http(STORE)?;
    let directory = server.directory().to_owned();
    let load = Load::default();
    let (before, copied) = thread::scope(|scope| -> Result<_> {
        for worker in 0..3 {
            let (load, server) = (&load, &server);
            scope.spawn(move || load.put_on(server, worker));
        }
        let backed_up = || {
            let before = load.await_count(60)?;
            let output = devices(&directory, &["backup", "copy.db"])?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            refused(&directory, &["backup", "copy.db"], "exists already")?;
            refused(&directory, &["restore", "--replace", "copy.db"], "is held by process")?;
            // The load went on, so there are answers that the copy need not have.
            let after = load.await_count(load.answered().len() + 20);
            after.map(|_| (before, output.stdout))
        };
        let outcome = backed_up();
        load.is_over.store(true, Ordering::Relaxed);
        outcome
    })?;
    server.kill()?;
    let said = String::from_utf8(copied)?;
    let devices_copied: usize =
        said.split(' ').nth(1).and_then(|count| count.parse().ok()).context("a count")?;
    ensure!(devices_copied >= before.len(), "{said} for {}", before.len());

    refused(&directory, &["restore", "copy.db"], "add --replace")?;
    let restored = devices(&directory, &["restore", "--replace", "copy.db"])?;
    ensure!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    let old = std::fs::read(directory.join("devices.db.old"))?;
    // Whoever chose the wrong copy tries again, and the first store is still there.
    let again = devices(&directory, &["restore", "--replace", "copy.db"])?;
    let said = String::from_utf8(again.stdout)?;
    ensure!(said.ends_with("; the store before is devices.db.old-2\n"), "{said}");
    ensure!(std::fs::read(directory.join("devices.db.old"))? == old, "the first store is kept");
    server.restart()?;
    for answered in &before {
        let stored = server.stored(&answered.serial)?;
        let state = if answered.is_revoked { "revoked" } else { "active" };
        ensure!(stored["state"] == state, "{}: {stored}", answered.serial);
        match comes(&server, answered)? {
            Some(server_message::Kind::Welcome(_)) if !answered.is_revoked => {}
            Some(server_message::Kind::Goodbye(goodbye)) if answered.is_revoked => {
                let code = u32::from(CloseReason::Unauthorized.code());
                ensure!(goodbye.code == code, "{}: {goodbye:?}", answered.serial);
            }
            other => anyhow::bail!("{}: {other:?}", answered.serial),
        }
    }
    let exported = devices(&directory, &["export"])?;
    ensure!(exported.status.success(), "{}", String::from_utf8_lossy(&exported.stderr));
    let rows = exported.stdout.split(|byte| *byte == b'\n').filter(|row| !row.is_empty());
    let rows: Vec<Value> = rows.map(serde_json::from_slice).collect::<Result<_, _>>()?;
    ensure!(rows.len() == devices_copied, "{} of {devices_copied}", rows.len());
    ensure!(!server.log().contains("file that ends in -wal is gone"), "{}", server.log());
    Ok(())
}

#[test]
fn a_gateway_that_is_killed_during_the_copy_keeps_its_log() -> Result<()> {
    let mut server = Server::start_with_http(STORE)?;
    let directory = server.directory().to_owned();
    let answered = one(&server, "meter-1".to_owned(), false)?;
    server.kill()?;
    // The copy alone has the file open now.
    let output = devices(&directory, &["backup", "copy.db"])?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    ensure!(directory.join("devices.db-wal").exists(), "the log is the gateway's");
    server.restart()?;
    ensure!(!server.log().contains("file that ends in -wal is gone"), "{}", server.log());
    let welcome = comes(&server, &answered)?;
    ensure!(matches!(welcome, Some(server_message::Kind::Welcome(_))), "{welcome:?}");
    Ok(())
}

#[test]
fn a_copy_that_is_wrong_changes_nothing() -> Result<()> {
    let mut server = Server::start_with_http(STORE)?;
    let directory = server.directory().to_owned();
    let rows: String = (0..500).map(|n| format!("meter-{n},key-of-meter-{n}\n")).collect();
    server.import(&rows)?;
    let answered = one(&server, "meter-1".to_owned(), false)?;
    ensure!(devices(&directory, &["backup", "copy.db"])?.status.success(), "no copy");
    server.kill()?;

    let copy = std::fs::read(directory.join("copy.db"))?;
    let write = |name: &str, bytes: &[u8]| std::fs::write(directory.join(name), bytes);
    let mut damaged = copy.clone();
    // Whole pages in the middle.
    let middle = copy.len() / 2 / 4096 * 4096;
    damaged[middle..middle + 8192].fill(0xa5);
    let mut later = copy.clone();
    // `user_version`, the format of the tables.
    later[60..64].copy_from_slice(&9_u32.to_be_bytes());
    write("text.db", b"devSn,devKey\n")?;
    write("empty.db", b"")?;
    write("cut.db", &copy[..copy.len() / 2 / 4096 * 4096])?;
    write("damaged.db", &damaged)?;
    write("later.db", &later)?;
    write("live.db", &copy)?;
    write("live.db-wal", b"")?;
    for (name, why) in [
        ("none.db", "No such file"),
        ("text.db", "is no store of devices"),
        ("empty.db", "is empty"),
        ("cut.db", "is damaged"),
        ("damaged.db", "is damaged"),
        ("later.db", "has format 9"),
        ("live.db", "and no backup"),
    ] {
        refused(&directory, &["restore", "--replace", name], why)?;
    }
    let other = tempfile::tempdir()?;
    std::fs::write(other.path().join("weir.toml"), "[store]\npath = \"devices.db\"\n")?;
    let from = directory.join("copy.db");
    let from = from.to_str().context("a path in UTF-8")?;
    refused(other.path(), &["restore", from], "restore the key file first")?;
    std::fs::write(other.path().join("rows.csv"), "devSn,devKey\nother,key-of-other\n")?;
    let imported = devices(other.path(), &["import", "rows.csv"])?;
    ensure!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
    refused(other.path(), &["restore", "--replace", from], "hashed with another key file")?;

    let names: Vec<String> = std::fs::read_dir(&directory)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.contains(".old") || name.contains(".restore"))
        .collect();
    ensure!(names.is_empty(), "left behind: {names:?}");
    server.restart()?;
    let welcome = comes(&server, &answered)?;
    ensure!(matches!(welcome, Some(server_message::Kind::Welcome(_))), "{welcome:?}");
    Ok(())
}

/// An operator who is root restores the store of a gateway that is not.
#[test]
fn a_restored_store_belongs_to_the_owner_of_its_directory() -> Result<()> {
    let of_gateway = tempfile::tempdir()?;
    let directory = of_gateway.path();
    std::fs::write(directory.join("weir.toml"), "[store]\npath = \"devices.db\"\n")?;
    std::fs::write(directory.join("rows.csv"), "devSn,devKey\nmeter,key-of-meter\n")?;
    for args in [&["import", "--new-store", "rows.csv"][..], &["backup", "copy.db"]] {
        let output = devices(directory, args)?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    // A new machine: it has the key and the copy, and nothing else.
    for name in ["devices.db", "devices.db.lock"] {
        std::fs::remove_file(directory.join(name))?;
    }
    let mut owner = std::fs::metadata(directory)?.uid();
    if owner == 0 {
        owner = 65_534;
        chown(directory, Some(owner), Some(owner))?;
    }
    let restored = devices(directory, &["restore", "copy.db"])?;
    ensure!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    for name in ["devices.db", "devices.db.lock"] {
        let file = std::fs::metadata(directory.join(name))?;
        ensure!(file.uid() == owner && file.mode() & 0o777 == 0o600, "{name}: {file:?}");
    }
    Ok(())
}
