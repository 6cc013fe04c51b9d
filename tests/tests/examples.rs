//! The programs of `examples/`, each with its own configuration, against the built program.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_tests::{Answer, Example, free_port, program, with_longer_times};

/// Most lines of code of an example, without comments and empty lines.
const LINES_MAX: usize = 100;

/// A child that ends with the test.
struct Companion(Child);

impl Drop for Companion {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Runs a script of `tests/clients/pages` in Node. It fails if the script does.
fn in_browser(script: &str, args: &[&str]) -> Result<()> {
    let script = repository().join("tests/clients/pages").join(script);
    let output = Command::new("node").arg(script).args(args).stdin(Stdio::null()).output()?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}{complaint}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}

fn is_code(line: &str) -> bool {
    !["", "//", "#", "/*", "*"].iter().any(|begin| match *begin {
        "" => line.is_empty(),
        begin => line.starts_with(begin) && !line.starts_with("#!"),
    })
}

#[test]
fn each_example_is_short() -> Result<()> {
    let mut count = 0;
    for example in fs::read_dir(repository().join("examples"))? {
        let example = example?.path();
        if !example.is_dir() {
            continue;
        }
        count += 1;
        ensure!(example.join("README.md").exists(), "{} has no README.md", example.display());
        let mut lines = 0;
        for file in fs::read_dir(&example)? {
            let file = file?.path();
            let kind = file.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
            if ["rs", "py", "js", "mjs", "html"].contains(&kind) {
                let text = fs::read_to_string(&file)?;
                lines += text.lines().map(str::trim).filter(|line| is_code(line)).count();
            }
        }
        ensure!((1..=LINES_MAX).contains(&lines), "{}: {lines} lines of code", example.display());
    }
    ensure!(count == 5, "{count} examples, and this file tests five");
    Ok(())
}

#[test]
fn tabs_of_a_chat_see_each_other_with_tokens_of_a_backend() -> Result<()> {
    let port = free_port()?;
    let page = format!("http://127.0.0.1:{port}");
    let example = Example::start("web-chat", |directory| {
        fs::write(directory.join("secret"), "a secret of the test, long enough for HS256\n")?;
        Ok(vec![("WEIR_HTTP_CORS_ORIGINS", page.clone())])
    })?;
    let mut backend = example
        .command("python3")
        .arg("backend.py")
        .env("PORT", port.to_string())
        .env("GATEWAY", format!("http://{}", example.http))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let said = BufReader::new(backend.stdout.take().context("a pipe")?);
    let _backend = Companion(backend);
    ensure!(said.lines().next().is_some(), "the backend does not start");
    in_browser("web_chat.mjs", &[&page, &format!("http://{}", example.admin)])?;
    let at = port_addr(port);
    for path in ["/secret", "/weir.toml", "/../web-chat/secret", "/sdk/../secret"] {
        ensure!(Answer::get(at, path)?.status == 404, "{path} is served");
    }
    // A token with another signature opens nothing.
    let token = Answer::post(at, "/token", r#"{"user":"eve"}"#)?.body;
    let token: Value = serde_json::from_str(&token)?;
    let token = token["token"].as_str().context("a token")?;
    let (signed, signature) = token.rsplit_once('.').context("a JWT")?;
    let forged = format!("{signed}.{}", signature.chars().rev().collect::<String>());
    let ask = |token: &str| {
        let host = example.http;
        Answer::ask(
            host,
            &format!(
                "GET /v1/topics/chat%2Flobby/presence HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\
                 Authorization: Bearer {token}\r\n\r\n"
            ),
        )
    };
    // 404: the class has no presence.
    let statuses = (ask(token)?.status, ask(&forged)?.status);
    ensure!(statuses == (404, 401), "{statuses:?}");
    Ok(())
}

fn port_addr(port: u16) -> std::net::SocketAddr {
    ([127, 0, 0, 1], port).into()
}

#[test]
fn a_fleet_of_phones_misses_nothing() -> Result<()> {
    let example = Example::start("push-fleet", |_| Ok(Vec::new()))?;
    let pem = ["x509", "-in", "state/development.pem", "-out", "ca.pem"];
    example.run("openssl", &pem)?;
    let (phones, messages) = ("20", "10");
    let mut fleet = example
        .command(program("examples/push_fleet")?)
        .args([&example.tls.to_string(), "ca.pem", phones, messages])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut said = BufReader::new(fleet.stdout.take().context("a pipe")?);
    let mut line = String::new();
    said.read_line(&mut line)?;
    let mut fleet = Companion(fleet);
    example.await_metrics("20 devices that have come", |metrics| {
        metrics.sum("weir_connections_adopted_total", "") >= 20.0
    })?;
    let push = example
        .command("python3")
        .args(["push.py", phones, messages])
        .env("ADMIN", format!("http://{}", example.admin))
        .output()?;
    ensure!(push.status.success(), "{}", String::from_utf8_lossy(&push.stderr));
    line.clear();
    said.read_line(&mut line)?;
    let status = fleet.0.wait()?;
    ensure!(status.success() && line.contains("10 messages each, once and in order"), "{line}");
    let returns = line.split("; ").nth(1).and_then(|rest| rest.split(' ').next());
    let returns: u64 = returns.context("a number of returns")?.parse()?;
    ensure!(returns >= 20, "phones hardly slept: {line}");
    Ok(())
}

#[test]
fn players_see_each_other_move_enter_and_leave() -> Result<()> {
    with_longer_times(|scale| {
        let example = Example::start("game-room", |_| Ok(Vec::new()))?;
        let gateway = format!("http://{}", example.http);
        let play = |name: &str, seconds: u64| -> Result<Child> {
            let seconds = seconds.to_string();
            let args = ["--experimental-websocket", "player.mjs", name, "--json", "--seconds"];
            let mut player = example.command("node");
            player.args(args).args([&seconds, "--gateway", &gateway]);
            Ok(player.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
        };
        let ada = play("ada", 8 * scale)?;
        let bob = play("bob", 3 * scale)?;
        let [ada, bob] = [summary(ada)?, summary(bob)?];
        ensure!(ada["players"]["player-ada"] == ada["me"], "she does not see herself: {ada}");
        ensure!(bob["players"]["player-ada"]["name"] == "ada", "bob does not see ada: {bob}");
        // Either process may be the first to start.
        let mut joined: Vec<String> = serde_json::from_value(ada["joined"].clone())?;
        joined.sort_unstable();
        ensure!(joined == ["player-ada", "player-bob"], "{ada}");
        ensure!(ada["left"] == serde_json::json!(["player-bob"]), "bob does not leave: {ada}");
        ensure!(ada["players"].as_object().is_some_and(|seen| seen.len() == 1), "{ada}");
        Ok(())
    })
}

#[test]
fn a_lock_and_its_backend_call_each_other() -> Result<()> {
    let port = free_port()?;
    let example = Example::start("remote-lock", |directory| {
        let path = directory.join("weir.toml");
        let config = fs::read_to_string(&path)?;
        fs::write(&path, config.replace("127.0.0.1:3000", &format!("127.0.0.1:{port}")))?;
        Ok(vec![("PORT", port.to_string())])
    })?;
    let mut backend = example.command("python3");
    backend.arg("backend.py").stdout(Stdio::piped()).stderr(Stdio::null());
    let mut backend = backend.spawn()?;
    let mut said = BufReader::new(backend.stdout.take().context("a pipe")?).lines();
    let _backend = Companion(backend);
    ensure!(said.next().is_some(), "the backend does not start");
    let mut lock = example.command("node");
    lock.args(["--experimental-websocket", "lock.mjs", "lock-1", "--badge", "17", "--badge", "18"]);
    lock.args(["--gateway", &format!("http://{}", example.http)]);
    let mut lock = lock.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut said = BufReader::new(lock.stdout.take().context("a pipe")?).lines();
    let _lock = Companion(lock);
    for expected in ["badge 17: yes", "badge 18: no", "ready"] {
        let line = said.next().context("a line of the lock")??;
        ensure!(line.ends_with(expected), "{line:?} is not {expected:?}");
    }
    let admin = format!("http://{}", example.admin);
    let calls = |args: &[&str]| -> Result<String> {
        let mut caller = example.command("python3");
        let output = caller.arg("backend.py").args(args).env("ADMIN", &admin).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };
    ensure!(calls(&["open", "lock-1", "ada"])? == "open");
    let line = said.next().context("a line of the lock")??;
    ensure!(line.ends_with("opened for ada"), "{line:?}");
    ensure!(calls(&["call", "lock-1", "lock/paint"])? == "502 unsupported");
    ensure!(calls(&["call", "lock-1", "lock/self-destruct"])? == "502 refused");
    ensure!(calls(&["open", "lock-2", "ada"])?.starts_with("404 "));
    Ok(())
}

fn summary(player: Child) -> Result<Value> {
    let output = player.wait_with_output()?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{complaint}");
    serde_json::from_slice(&output.stdout).context("a line of JSON")
}

#[test]
fn meters_publish_by_datagram_what_a_service_reads() -> Result<()> {
    let example = Example::start("udp-meters", |_| Ok(Vec::new()))?;
    let import = ["--config", "weir.toml", "devices", "import", "devices.csv"];
    example.run(program("weir")?, &import)?;
    let gateway = example.udp.to_string();
    let rows = fs::read_to_string(example.directory().join("devices.csv"))?;
    for row in rows.lines().skip(1) {
        let (serial, key) = row.split_once(',').context("serial and key")?;
        let options = ["--gateway", &gateway, "--readings", "3", "--pause", "0"];
        let said = example.run("python3", &[&["meter.py", serial, key], &options[..]].concat())?;
        ensure!(said.lines().count() == 3 && said.contains("offset 3"), "{said}");
        let http = example.http;
        let history = Answer::ask(
            http,
            &format!(
                "GET /v1/topics/meter%2F{serial}/history HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\n\
                 Authorization: Bearer a-long-random-string\r\n\r\n"
            ),
        )?;
        let history: Value = serde_json::from_str(&history.body).context(history.body)?;
        let readings = history["messages"].as_array().context("messages")?;
        ensure!(readings.len() == 3, "{history}");
        ensure!(readings.iter().all(|one| one["text"].as_str().is_some_and(|t| t.contains("kwh"))));
    }
    let wrong = ["meter.py", "meter-1", "a wrong key", "--gateway", &gateway, "--readings", "1"];
    let refused = example.run("python3", &wrong);
    ensure!(refused.is_err_and(|error| error.to_string().contains("meter-1:")), "a wrong key");
    Ok(())
}
