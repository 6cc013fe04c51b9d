//! Profiles of a running gateway, read by the tool of others: `go tool pprof`.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use rustls::{ClientConfig, ClientConnection};
use serde_json::json;
use weir_tests::{Answer, Authority, Device, Server};
use weir_wire::v1::push::Payload;

/// `GET path` with curl: the status, and the body in `file`.
fn fetch(server: &Server, path: &str, token: &str, file: &Path) -> Result<u16> {
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--write-out", "%{http_code}", "--output"])
        .arg(file)
        .args(["--header", &format!("Authorization: Bearer {token}")])
        .arg(format!("http://{}{path}", server.admin))
        .output()
        .context("running curl, which `cargo xtask test` installs")?;
    ensure!(output.status.success(), "curl: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.parse()?)
}

/// The table of `go tool pprof`.
fn top(file: &Path, options: &[&str]) -> Result<String> {
    let output = Command::new("go")
        .args(["tool", "pprof", "-top", "-nodecount=100000"])
        .args(options)
        .arg(file)
        .env("GOTOOLCHAIN", "local")
        .output()
        .context("running go, which `cargo xtask test` installs")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Makes handshakes until `done`; returns how many.
fn shake_hands(tls: SocketAddr, client: &Arc<ClientConfig>, done: &AtomicBool) -> Result<u32> {
    let mut count = 0;
    while !done.load(Ordering::Relaxed) {
        let mut stream = TcpStream::connect(tls)?;
        let mut session = ClientConnection::new(Arc::clone(client), "localhost".try_into()?)?;
        while session.is_handshaking() {
            session.complete_io(&mut stream)?;
        }
        count += 1;
    }
    Ok(count)
}

/// Publishes until `done`, and hears each message through TLS.
fn converse(server: &Server, device: &mut Device, done: &AtomicBool) -> Result<()> {
    let text = "x".repeat(10_000);
    let body = json!({"topic": "news", "text": text}).to_string();
    let request = format!(
        "POST /v1/publish HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        server.admin,
        body.len()
    );
    while !done.load(Ordering::Relaxed) {
        let answer = Answer::ask(server.admin, &request)?;
        ensure!(answer.status == 200, "{answer:?}");
        ensure!(device.push()?.payload == Some(Payload::Text(text.clone())), "another message");
    }
    Ok(())
}

/// Profiles while others make load: one at a time.
fn take_profiles(server: &Server, directory: &Path) -> Result<()> {
    let path = |name: &str| directory.join(name);
    thread::scope(|scope| -> Result<()> {
        let running =
            scope.spawn(|| fetch(server, "/v1/debug/cpu?seconds=4", TOKEN, &path("first")));
        let mut statuses = Vec::new();
        while !running.is_finished() {
            statuses.push(fetch(server, "/v1/debug/cpu?seconds=1", TOKEN, &path("second"))?);
        }
        statuses.push(running.join().expect("no panic")?);
        statuses.sort_unstable();
        statuses.dedup();
        ensure!(statuses == [200, 409], "{statuses:?}");
        Ok(())
    })?;
    let status = fetch(server, "/v1/debug/cpu?seconds=3", TOKEN, &path("pprof"))?;
    ensure!(status == 200, "{status}");
    let status = fetch(server, "/v1/debug/cpu?seconds=3&format=folded", TOKEN, &path("folded"))?;
    ensure!(status == 200, "{status}");
    Ok(())
}

#[test]
fn cpu_time_under_tls_is_profiled_and_nothing_crashes() -> Result<()> {
    let authority = Authority::new()?;
    let certificate = authority.files("server", "localhost", false)?;
    // A shard with descriptors of its own has a device's socket where the front has something else.
    // The device says nothing, and profiles take minutes on a busy machine.
    let server = Server::start_with_tls(&format!(
        "[admin]\ntoken = \"{TOKEN}\"\n[connection]\nheartbeat = \"15m\"\n\
         [engine]\nown_descriptors = true\n{certificate}"
    ))?;
    let (tls, client) = (server.tls.context("it listens with TLS")?, authority.client()?);
    let mut device = Device::connect_tls(tls, &client)?;
    device.say_hello("witness", &["news"])?;
    let directory = tempfile::tempdir()?;
    let done = AtomicBool::new(false);
    thread::scope(|scope| -> Result<()> {
        let hands: Vec<_> =
            (0..2).map(|_| scope.spawn(|| shake_hands(tls, &client, &done))).collect();
        let conversation = scope.spawn(|| converse(&server, &mut device, &done));
        let profiled = take_profiles(&server, directory.path());
        done.store(true, Ordering::Relaxed);
        for hands in hands {
            ensure!(hands.join().expect("no panic")? > 0, "no handshakes");
        }
        conversation.join().expect("no panic")?;
        profiled
    })?;
    let table = top(&directory.path().join("pprof"), &[])?;
    for part in ["Type: cpu", "rustls::", "weir::"] {
        ensure!(table.contains(part), "no {part}: {table}");
    }
    let text = std::fs::read_to_string(directory.path().join("folded"))?;
    ensure!(
        text.lines().any(|line| line.starts_with("weir-tls") && line.contains(";rustls::")),
        "{text}"
    );
    Ok(())
}

#[test]
fn memory_in_use_is_profiled_if_asked_for() -> Result<()> {
    let authority = Authority::new()?;
    let certificate = authority.files("server", "localhost", false)?;
    // The program executes itself once more. Descriptor 9 and the own options stay.
    let server = Server::start_after(
        "exec 9</dev/null; export MALLOC_CONF=narenas:3",
        &format!("[admin]\ntoken = \"{TOKEN}\"\nheap_profile = true\n{certificate}"),
    )?;
    let process = format!("/proc/{}", server.pid());
    let environment = std::fs::read(format!("{process}/environ"))?;
    let environment = String::from_utf8_lossy(&environment);
    let options = environment.split('\0').find(|line| line.starts_with("MALLOC_CONF="));
    assert_eq!(options, Some("MALLOC_CONF=prof:true,lg_prof_sample:19,narenas:3"));
    assert_eq!(std::fs::read_link(format!("{process}/fd/9"))?, Path::new("/dev/null"));
    assert_eq!(std::fs::read_to_string(format!("{process}/comm"))?, "weir\n");

    let directory = tempfile::tempdir()?;
    let file = directory.path().join("heap");
    assert_eq!(fetch(&server, "/v1/debug/heap", TOKEN, &file)?, 200);
    let table = top(&file, &["-cum"])?;
    for part in ["Type: inuse_space", "weir::"] {
        ensure!(table.contains(part), "no {part}: {table}");
    }
    ensure!(
        top(&file, &["-sample_index=inuse_objects"])?.contains("Type: inuse_objects"),
        "{table}"
    );
    Ok(())
}

#[test]
fn profiles_need_the_token_and_the_key() -> Result<()> {
    let server = Server::start(&format!("[admin]\ntoken = \"{TOKEN}\"\n"))?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("answer");
    let check = |path: &str, token: &str, status: u16, part: &str| -> Result<()> {
        assert_eq!(fetch(&server, path, token, &file)?, status, "{path}");
        let text = std::fs::read_to_string(&file)?;
        ensure!(text.contains(part), "{path}: {text}");
        Ok(())
    };
    check("/v1/debug/heap", TOKEN, 404, "admin.heap_profile = true")?;
    check("/v1/debug/heap", "wrong", 401, "token")?;
    check("/v1/debug/cpu", "wrong", 401, "token")?;
    for value in ["0", "61", "-1", "x", "99999999999999999999"] {
        let path = format!("/v1/debug/cpu?seconds={value}");
        check(
            &path,
            TOKEN,
            400,
            &format!("seconds is \\\"{value}\\\"; it is a number from 1 to 60"),
        )?;
    }
    check("/v1/debug/cpu?format=svg", TOKEN, 400, "it is one of pprof, folded")?;
    check("/v1/debug/cpu?seconds=1&format=folded", TOKEN, 200, "")
}

const TOKEN: &str = "operator-token";
