//! Bodies: large ones on their way, those that do not end, and those that are thrown away.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::json;
use weir_tests::http2::{DATA, END_HEADERS, HEADERS, Http2, PING, frame};
use weir_tests::{Answer, PATIENCE, Server};

use super::{
    ACTIVATE, FAR, MIB, ask_without_bodies, await_nothing_charged, charged, grown, post, rest,
    start,
};

/// A service that may publish.
const SERVICE: &str =
    "[[auth.services]]\ntoken = \"a-service-token\"\nname = \"s\"\nmay = [\"publish\"]\n";
/// What it asks, without the length and the body.
const PUBLISH: &str = "POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a-service-token\r\n\
                       Content-Type: application/json\r\n";

/// A service with large bodies has much room for a moment, again and again: it stays, and those end that keep a little
/// for long.
#[test]
fn large_bodies_on_their_way_stay_beside_many_that_never_come() -> Result<()> {
    let (server, http) = start(52, FAR, SERVICE)?;
    let (published, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
    let (publisher, ended) = std::thread::scope(|scope| {
        let publisher = scope.spawn(|| publish_large(http, &published, &is_over));
        let ended = end_silent_ones(&server, http, || {
            let before = published.load(Ordering::Relaxed);
            while published.load(Ordering::Relaxed) < before + 2 && !publisher.is_finished() {
                rest(1);
            }
            ensure!(!publisher.is_finished(), "the publisher has ended");
            Ok(())
        });
        is_over.store(true, Ordering::Relaxed);
        (publisher.join(), ended)
    });
    publisher.map_err(|_| anyhow!("the publisher panicked"))??;
    eprintln!("{} published, {} connections ended", published.into_inner(), ended?);
    Ok(())
}

/// Keeps connections that wait with few requests, until the gateway has ended some hundreds for the room; how many.
///
/// `wait_longer` is between them: so each has been silent for longer than a body is on its way, before much younger ones
/// come.
fn end_silent_ones(
    server: &Server,
    http: SocketAddr,
    wait_longer: impl Fn() -> Result<()>,
) -> Result<f64> {
    let requests =
        (0..6).flat_map(|index| frame(HEADERS, END_HEADERS, 2 * index + 1, &post(ACTIVATE)));
    let said: Vec<u8> = requests.chain(frame(PING, 0, 0, &[0; 8])).collect();
    let mut peers = Vec::new();
    for _ in 0..150 {
        for _ in 0..10 {
            let mut peer = Http2::connect(http, &[])?;
            // The gateway may end a connection before all is sent.
            let _ = peer.stream.write_all(&said);
            // With its answer to the ping it has all before that.
            while peer.hear()?.is_some_and(|(kind, ..)| kind != PING) {}
            peers.push(peer);
        }
        wait_longer()?;
        let metrics = server.await_metrics("room", |metrics| {
            let max = metrics.sum("weir_http_charged_bytes_max", "");
            metrics.sum("weir_http_charged_bytes", "") <= 0.75 * max
        })?;
        let ended = metrics.sum_of("weir_http_connections_ended_total", &[("cause", "memory")]);
        if ended >= 200.0 {
            return Ok(ended);
        }
    }
    bail!("{} connections, and none had to give way", peers.len())
}

/// Bodies of which the end does not come take a sixteenth of the budget; one that comes whole finds room at once.
#[test]
fn bodies_in_progress_keep_to_their_room() -> Result<()> {
    let (server, http) = start(64, FAR, SERVICE)?;
    let before = server.rss_anon()?;
    let begun = format!("{PUBLISH}Content-Length: 1000000\r\n\r\n{}", "x".repeat(900_000));
    let mut peers = Vec::new();
    for _ in 0..60 {
        let mut stream = TcpStream::connect(http)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        // The gateway may give the body up before all is sent.
        let _ = stream.write_all(begun.as_bytes());
        peers.push(stream);
    }
    // There is room for four of them.
    server.await_metrics("those that are given up", |metrics| {
        metrics.sum_of("weir_http_requests_total", &[("status", "5xx")]) >= 56.0
    })?;
    let grown = grown(&server, before)?;
    eprintln!("{} KiB more", grown / 1024);
    // What all have sent is twice as much.
    assert!(grown < 27 * MIB, "{grown} bytes more");
    let body = json!({"topic": "small", "text": "y".repeat(30_000)}).to_string();
    let request =
        format!("{PUBLISH}Connection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let answer = Answer::ask(http, &request)?;
    assert_eq!(answer.status, 200, "{}", answer.body);
    Ok(())
}

/// Publishes messages of 30 KB over one connection, each body in two halves, until it is over, and counts them.
fn publish_large(http: SocketAddr, published: &AtomicU32, is_over: &AtomicBool) -> Result<()> {
    let mut stream = TcpStream::connect(http)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let body = json!({"topic": "large", "text": "x".repeat(30_000)}).to_string();
    let (first, second) = body.split_at(body.len() / 2);
    let length = body.len();
    while !is_over.load(Ordering::Relaxed) {
        let request = format!("{PUBLISH}Content-Length: {length}\r\n\r\n{first}");
        stream.write_all(request.as_bytes())?;
        rest(5);
        stream.write_all(second.as_bytes())?;
        let mut answer = [0; 4096];
        let read = stream.read(&mut answer)?;
        let answer = String::from_utf8_lossy(&answer[..read]);
        let before = published.fetch_add(1, Ordering::Relaxed);
        ensure!(answer.starts_with("HTTP/1.1 200"), "after {before}: {answer:?}");
    }
    Ok(())
}

/// A request whose body nobody wants stays charged, behind its answer, until its body has ended or is given up.
#[test]
fn bodies_that_are_thrown_away_are_charged() -> Result<()> {
    let (server, http) = start(256, FAR, "")?;
    let drip: Vec<u8> = (0..100).flat_map(|index| frame(DATA, 0, 2 * index + 1, b" ")).collect();
    // A machine that stands still for a second lets them be given up as silent; then they are asked again.
    for _ in 0..10 {
        let mut peer = ask_without_bodies(http, |_| post("/nothing"))?;
        let mut answered = 0;
        while answered < 100 {
            let (kind, ..) = peer.hear()?.context("it goes on")?;
            answered += u32::from(kind == HEADERS);
        }
        peer.stream.write_all(&drip)?;
        let is_charged = charged(&server)? >= 100.0 * 1_536.0;
        await_nothing_charged(&server)?;
        if is_charged {
            return Ok(());
        }
    }
    bail!("100 requests whose bodies are thrown away are charged with nothing");
}
