//! `weir upgrade` while devices of every transport are connected: nobody is closed, and nothing is lost or doubled.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::Pid;
use serde_json::json;
use weir_tests::{
    Answer, Authority, Device, Events, Newest, Numbers, PATIENCE, SClient, Server, UnderWay,
    free_addr, free_udp, now, program, rest, upgrade,
};
use weir_wire::v1::{Hello, Ping, client_message, server_message};

#[path = "upgrade_moves/calls.rs"]
mod calls;
#[path = "upgrade_moves/clients.rs"]
mod clients;
#[path = "upgrade_moves/cluster.rs"]
mod cluster;
#[path = "upgrade_moves/configuration.rs"]
mod configuration;
#[path = "upgrade_moves/datagrams.rs"]
mod datagrams;
#[path = "upgrade_moves/formats.rs"]
mod formats;
#[path = "upgrade_moves/handshakes.rs"]
mod handshakes;
#[path = "upgrade_moves/hooks.rs"]
mod hooks;
#[path = "upgrade_moves/publishers.rs"]
mod publishers;
#[path = "upgrade_moves/retries.rs"]
mod retries;

/// Checks what the new process tells of the upgrade, of so many rounds.
fn tells(server: &Server, newest: &Newest, rounds: u32) -> Result<()> {
    // Who comes back soon hears of it.
    let event =
        Events::get_unchunked(server.admin, "/v1/events?type=upgraded")?.expect("upgraded")?.data;
    ensure!(event["pid"] == newest.pid().as_raw_nonzero().get(), "{event}");
    ensure!((&event["connections"], &event["stayed"]) == (&json!(4), &json!(2)), "{event}");
    ensure!(event["before"].as_str().is_some_and(|before| before.starts_with("weir ")), "{event}");
    ensure!(event["pause_ms"].as_f64().is_some_and(|pause| pause > 0.0), "{event}");
    server.await_answer("/v1/stats", |stats| stats["upgrade"]["pid"] == event["pid"])?;
    let metrics = server.metrics()?;
    ensure!(metrics.sum("weir_upgrades_total", "outcome=\"moved\"") == f64::from(rounds));
    ensure!(metrics.sum("weir_upgrade_pause_seconds", "") > 0.0, "{}", metrics.text());
    ensure!(metrics.sum("weir_upgrade_connections_moved", "") == 4.0, "{}", metrics.text());
    ensure!(metrics.sum("weir_upgrade_connections_stayed", "") == 2.0, "{}", metrics.text());
    Ok(())
}

/// A connection that has had an answer, and may ask again.
fn idle(http: SocketAddr) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(http)?;
    stream.write_all(b"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n")?;
    ensure!(stream.read(&mut [0; 512])? > 0, "it answers nothing");
    Ok(stream)
}

/// Room for all that a fast machine publishes while the upgrades last.
const RETAINED: &str = "[[topic_classes]]\npattern = \"feed/*\"\nretention_messages = 100000\nretention_bytes = 33554432\npublish = [\"devices\"]\n";

#[test]
fn nobody_is_closed_and_nothing_is_lost_or_doubled() -> Result<()> {
    let authority = Authority::new()?;
    let certificates = authority.files("ecdsa", "localhost", false)?;
    let server = Server::start_with_all_doors(&format!("{RETAINED}[tls]\n{certificates}"))?;
    let tls = server.tls.context("it listens with TLS")?;
    let http = server.http()?;
    let mut plain = Device::greet(server.tcp, "plain", &["feed/a"])?;
    let ca = authority.path("ca.pem").display().to_string();
    let mut clients = Vec::new();
    for version in ["-tls1_2", "-tls1_3"] {
        let options = format!("-CAfile {ca} -verify_return_error -servername localhost {version}");
        clients.push(SClient::greet(tls, &options, version)?);
    }
    let mut events = Events::get(http, "/v1/sse?device=events&topic=feed/a", "")?;
    events.settle(1)?;
    let numbers = Numbers::start(server.admin);
    let mut processes = HashSet::new();
    let mut newest = None;
    for round in 0..3 {
        numbers.await_more(20)?;
        let mut ends = Events::get_unchunked(server.admin, "/v1/events")?;
        // One that has asked something and stays, and one that has said nothing yet.
        let _idle = idle(http)?;
        let _silent = TcpStream::connect(server.tcp)?;
        server.await_metrics("the silent ones", |metrics| {
            metrics.sum("weir_connections", "state=\"unsettled\"") == 1.0
        })?;
        let (process, moved) = upgrade(&server)?;
        // The one before has ended by itself.
        drop(newest.replace(process));
        ensure!(processes.insert(newest.as_ref().map(Newest::pid)), "it is a new process");
        let count: u64 = moved["moved"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|kind| kind["count"].as_u64())
            .sum();
        ensure!(count == 4, "{moved}");
        while ends.hear()?.is_some() {}
        tells(&server, newest.as_ref().context("a process")?, round + 1)?;
        let stayed = json!([{"kind": "http", "count": 1}, {"kind": "unsettled", "count": 1}]);
        ensure!(moved["stayed"] == stayed, "{moved}");
        for client in &mut clients {
            client.ping(&format!("round{round}"))?;
        }
        numbers.await_more(20)?;
    }
    let count = numbers.finish()?;
    Numbers::heard_by(&mut plain, count)?;
    let mut next = 0;
    while next < count {
        let event = events.expect("")?;
        let number = event.data["text"].as_str().and_then(|text| text.parse().ok());
        ensure!(number == Some(next), "{event:?} came where {next} is due");
        next += 1;
    }
    plain.send(client_message::Kind::Ping(Ping { data: b"x".to_vec() }))?;
    ensure!(matches!(plain.hear()?, Some(server_message::Kind::Pong(_))));
    // New ones come in, and what is retained is still there.
    let mut late =
        Events::get(http, "/v1/sse?device=late&topic=feed/a", "Last-Event-ID: none\r\n")?;
    late.settle(1)?;
    let first = late.expect("")?;
    ensure!(first.data["text"] == "0", "{first:?}");
    ensure!(Path::new(&server.directory().join("upgrade.sock")).exists());
    Ok(())
}

const KEY: &str = "a key of a device";

/// Connects with a token.
fn connect(server: &Server, token: &str) -> Result<Device> {
    let mut device = Device::connect(server.tcp)?;
    let hello = Hello { token: token.to_owned(), ..Hello::default() };
    device.send(client_message::Kind::Hello(hello))?;
    let heard = device.hear()?;
    ensure!(matches!(heard, Some(server_message::Kind::Welcome(_))), "{heard:?}");
    Ok(device)
}

#[test]
fn the_store_changes_hands_each_time() -> Result<()> {
    let server = Server::start_with_http("[limits]\nconnections_per_device_max = 8\n[store]\n")?;
    server.import(&format!("first,{KEY}\nround-0,{KEY}\nround-1,{KEY}\n"))?;
    let token = server.token("first", KEY)?;
    let mut device = connect(&server, &token)?;
    let mut newest = None;
    for round in 0..2 {
        let (process, _) = upgrade(&server)?;
        drop(newest.replace(process));
        // What comes right after the upgrade finds the store, and what it held before.
        let of_round = server.token(&format!("round-{round}"), KEY)?;
        for token in [&token, &of_round] {
            connect(&server, token)?;
        }
        let refused = connect(&server, "AAAAAAAAAAAAAAAAAAAAAA");
        ensure!(refused.is_err(), "an unknown token is let in");
        let lock = std::fs::read_to_string(server.directory().join("devices.db.lock"))?;
        let holder = lock.trim().parse().ok().and_then(Pid::from_raw);
        ensure!(holder == newest.as_ref().map(Newest::pid), "held by {holder:?}");
        device.send(client_message::Kind::Ping(Ping { data: b"x".to_vec() }))?;
        let heard = device.hear()?;
        ensure!(matches!(heard, Some(server_message::Kind::Pong(_))), "{heard:?}");
        ensure!(Answer::get(server.admin, "/readyz")?.status == 200);
    }
    // The connects that no process had told the store of were told at the end of each.
    ensure!(server.stored("round-0")?["seen_ms"].as_u64().is_some());
    let log = server.log();
    ensure!(!log.contains("did not close") && !log.contains("without closing"), "{log}");
    Ok(())
}

#[test]
fn a_store_that_does_not_open_after_the_upgrade_is_tried_again() -> Result<()> {
    let server = Server::start_with_http("[store]\n")?;
    server.import(&format!("first,{KEY}\nsecond,{KEY}\n"))?;
    let token = server.token("first", KEY)?;
    let (file, away) = (server.directory().join("devices.db"), server.directory().join("away.db"));
    std::fs::rename(&file, &away)?;
    let (_newest, _) = upgrade(&server)?;
    server.await_log("the device store does not open; it is tried again", 1)?;
    let ready = Answer::get(server.admin, "/readyz")?;
    ensure!(ready.status == 503 && ready.body.contains("does not exist"), "{ready:?}");
    let refused = server.activate([127, 0, 0, 1], "second", KEY)?;
    ensure!(
        refused.status == 503 && refused.head.to_lowercase().contains("retry-after: "),
        "{refused:?}"
    );
    std::fs::rename(&away, &file)?;
    server.await_answer("/readyz", |answer| answer["ready"] == true)?;
    server.token("second", KEY)?;
    connect(&server, &token)?;
    Ok(())
}

/// What `weir` does where nothing is configured but its addresses, in an empty home.
#[test]
fn the_default_configuration_is_upgraded_and_rolled_back() -> Result<()> {
    let home = tempfile::tempdir()?;
    let (tcp, http, admin) = (free_addr()?, free_addr()?, free_addr()?);
    let udp = free_udp([127, 0, 0, 1].into())?;
    let command = |words: &[&str]| -> Result<Command> {
        let mut command = Command::new(program("weir")?);
        command.args(words).current_dir(home.path()).env("HOME", home.path()).stdin(Stdio::null());
        for (name, addr) in [("TCP", tcp), ("HTTP", http), ("UDP", udp), ("ADMIN", admin)] {
            command.env(format!("WEIR_LISTEN_{name}"), addr.to_string());
        }
        for name in ["STATE_DIRECTORY", "XDG_STATE_HOME", "WEIR_CONFIG"] {
            command.env_remove(name);
        }
        Ok(command)
    };
    let log = home.path().join("log");
    let mut first = command(&[])?;
    let mut first = first.stdout(Stdio::null()).stderr(File::create(&log)?).spawn()?;
    let deadline = now() + PATIENCE;
    while !Answer::get(admin, "/readyz").is_ok_and(|answer| answer.status == 200) {
        ensure!(now() < deadline, "{}", std::fs::read_to_string(&log)?);
        rest();
    }
    let mut device = Device::greet(tcp, "d", &["t"])?;
    let dry = command(&["upgrade", "--dry-run", "--json"])?.output()?;
    let said = String::from_utf8_lossy(&dry.stdout);
    ensure!(dry.status.success() && said.contains("\"refused\":null"), "{dry:?}");
    let mut newest: Option<Newest> = None;
    let ours = program("weir")?.display().to_string();
    // The second goes back to the program of before.
    for words in [&[][..], &["--program", &ours]] {
        let words = [&["upgrade", "--json"], words].concat();
        let ended = UnderWay::begin_with(command(&words)?)?.end()?;
        let (process, _) = ended.map_err(|reason| anyhow::anyhow!("{reason}"))?;
        drop(newest.replace(process));
        device.send(client_message::Kind::Ping(Ping { data: b"x".to_vec() }))?;
        let heard = device.hear()?;
        ensure!(matches!(heard, Some(server_message::Kind::Pong(_))), "{heard:?}");
        Device::greet(tcp, "e", &[])?;
        ensure!(Answer::get(admin, "/readyz")?.status == 200);
    }
    ensure!(first.wait()?.success(), "{}", std::fs::read_to_string(&log)?);
    ensure!(home.path().join(".local/state/weir/upgrade.sock").exists());
    Ok(())
}

#[test]
fn there_is_room_for_as_many_as_before() -> Result<()> {
    let server = Server::start_with_open_files("", Some(320))?;
    let greet = |number: u32| Device::greet(server.tcp, &format!("device-{number}"), &["news"]);
    let mut devices: Vec<Device> = (0..100).map(greet).collect::<Result<_>>()?;
    let (_newest, moved) = upgrade(&server)?;
    ensure!(moved["descriptors"] == 100, "{moved}");
    // Those that have moved are not counted twice.
    let more: Vec<Device> = (100..130).map(greet).collect::<Result<_>>()?;
    devices.extend(more);
    server.publish(&json!({"topic": "news", "text": "all"}))?;
    for device in &mut devices {
        ensure!(device.push()?.topic == "news", "{moved}");
    }
    Ok(())
}
