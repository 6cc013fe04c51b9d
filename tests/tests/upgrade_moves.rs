//! `weir upgrade` while devices of every transport are connected: nobody is closed, and nothing is lost or doubled.

use std::collections::HashSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, ensure};
use rustix::process::Pid;
use serde_json::json;
use weir_tests::{
    Answer, Authority, Device, Events, Newest, PATIENCE, SClient, Server, now, rest, upgrade,
};
use weir_wire::v1::{Hello, Ping, client_message, push, server_message};

#[path = "upgrade_moves/calls.rs"]
mod calls;
#[path = "upgrade_moves/cluster.rs"]
mod cluster;
#[path = "upgrade_moves/configuration.rs"]
mod configuration;
#[path = "upgrade_moves/datagrams.rs"]
mod datagrams;
#[path = "upgrade_moves/formats.rs"]
mod formats;
#[path = "upgrade_moves/hooks.rs"]
mod hooks;
#[path = "upgrade_moves/publishers.rs"]
mod publishers;

/// Publishes numbers, one after the other, until it is told to stop. A refused one is sent again.
struct Publisher {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<u64>>,
    sent: Arc<AtomicU64>,
}

impl Publisher {
    fn start(admin: SocketAddr) -> Publisher {
        let (stop, sent) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&sent));
        let thread = std::thread::spawn(move || {
            let mut number = 0;
            while !stopped.load(Ordering::Relaxed) {
                let message = json!({"topic": "feed/a", "text": number.to_string(), "key": "k"});
                let body = json!({"messages": [message]}).to_string();
                // While nobody serves, the answer says when to come again.
                if let Ok(answer) = Answer::post(admin, "/v1/publish", &body)
                    && answer.status == 200
                    && !answer.body.contains("\"error\"")
                {
                    number += 1;
                    counted.store(number, Ordering::Relaxed);
                }
            }
            Ok(number)
        });
        Publisher { stop, thread, sent }
    }

    fn finish(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the publisher has failed"))?
    }

    /// Waits until so many more are published.
    fn await_more(&self, count: u64) -> Result<()> {
        let (until, deadline) = (self.sent.load(Ordering::Relaxed) + count, now() + PATIENCE);
        while self.sent.load(Ordering::Relaxed) < until {
            ensure!(now() < deadline, "nothing is published any more");
            rest();
        }
        Ok(())
    }
}

/// Checks that a device gets the numbers in order, each once, and no end.
fn hear_all(device: &mut Device, count: u64) -> Result<()> {
    let mut next = 0;
    while next < count {
        let push = device.push()?;
        let Some(push::Payload::Text(text)) = push.payload else { continue };
        ensure!(text == next.to_string(), "{text} came where {next} is due");
        ensure!(push.offset == next + 1, "offset {} of {text}", push.offset);
        next += 1;
    }
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
    let publisher = Publisher::start(server.admin);
    let mut processes = HashSet::new();
    let mut newest = None;
    for round in 0..3 {
        publisher.await_more(20)?;
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
        let stayed = json!([{"kind": "http", "count": 1}, {"kind": "unsettled", "count": 1}]);
        ensure!(moved["stayed"] == stayed, "{moved}");
        for client in &mut clients {
            client.ping(&format!("round{round}"))?;
        }
        publisher.await_more(20)?;
    }
    let count = publisher.finish()?;
    hear_all(&mut plain, count)?;
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
