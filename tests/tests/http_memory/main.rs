//! The memory that HTTP peers can take: long heads, requests without their bodies, answers that are not read. Each is
//! refused, charged to the byte budget, or freed in time, and healthy requests are answered meanwhile.

mod bodies;
mod sockets;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::json;
use weir_tests::http2::{
    CLOSED_WINDOW, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, Http2, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, frame,
};
use weir_tests::{Answer, PATIENCE, Server, with_longer_times};

/// `http.answer_bytes_max` by default.
const ANSWER_BYTES_MAX: f64 = 4_194_304.0;
const MIB: u64 = 1 << 20;
/// The code of a stream that is not wanted any more.
const CANCEL: [u8; 4] = [0, 0, 0, 8];
/// `SETTINGS_INITIAL_WINDOW_SIZE` with 65,535 bytes.
const OPEN_WINDOW: &[u8] = &[0, 4, 0, 0, 0xff, 0xff];
const ACTIVATE: &str = "/v1/devices/activate";
/// A topic that keeps 1.2 MiB.
const KEPT: &str = "[[topic_classes]]\npattern = \"kept\"\nhistory = true\nretention_messages = 1000\n\
                    retention_bytes = 2097152\nretention_ttl = \"1h\"\n";

/// The limits that a test reaches.
#[derive(Clone, Copy)]
struct Limits<'a> {
    /// `connection.stall_timeout`.
    stall: &'a str,
    /// `http.idle_timeout`.
    idle: &'a str,
    /// `http.connections_max`.
    connections: usize,
}

/// Out of reach, however slow the machine is.
const FAR: Limits<'static> = Limits { stall: "1h", idle: "1h", connections: 10_000 };

/// A server with a budget of so many MiB, and where it speaks HTTP. Time ends nothing but what `limits` says.
fn start(budget_mib: u64, limits: Limits<'_>, extra: &str) -> Result<(Server, SocketAddr)> {
    let budget_bytes = budget_mib * MIB;
    let Limits { stall, idle, connections } = limits;
    let server = Server::start_with_http(&format!(
        "[memory]\nbudget_bytes = {budget_bytes}\n[tcp]\nuser_timeout = \"2h\"\n\
         [connection]\nstall_timeout = \"{stall}\"\n\
         [http]\nconnections_max = {connections}\nidle_timeout = \"{idle}\"\nhead_timeout = \"1h\"\n\
         body_timeout = \"1h\"\nh2_ping_interval = \"1h\"\n{extra}"
    ))?;
    let http = server.http_addr()?;
    Ok((server, http))
}

/// The same with a long history.
fn start_with_history(budget_mib: u64, limits: Limits<'_>) -> Result<(Server, SocketAddr)> {
    let (server, http) = start(budget_mib, limits, KEPT)?;
    keep(&server)?;
    Ok((server, http))
}

/// Publishes what [`KEPT`] keeps.
fn keep(server: &Server) -> Result<()> {
    let text = "x".repeat(30_000);
    for _ in 0..40 {
        server.publish(&json!({"topic": "kept", "text": text}))?;
    }
    Ok(())
}

/// `:method` as indexed, `:scheme http`, a path, `:authority localhost`.
fn head(method: u8, path: &str) -> Vec<u8> {
    let length = u8::try_from(path.len()).unwrap_or(126);
    [&[method, 0x86, 0x04, length], path.as_bytes(), b"\x01\x09localhost"].concat()
}

fn get(path: &str) -> Vec<u8> {
    head(0x82, path)
}

fn post(path: &str) -> Vec<u8> {
    head(0x83, path)
}

/// A header without a value, for the table; `index` has two digits.
fn indexed(index: u8) -> Vec<u8> {
    [&[0x40, 3], format!("h{index:02}").as_bytes(), &[0]].concat()
}

/// Asks on the first 100 streams for what `head` says, with bodies that never come.
fn ask_without_bodies(http: SocketAddr, head: impl Fn(u32) -> Vec<u8>) -> Result<Http2> {
    let mut peer = Http2::connect(http, &[])?;
    let said = (0..100).flat_map(|index| frame(HEADERS, END_HEADERS, 2 * index + 1, &head(index)));
    peer.stream.write_all(&said.collect::<Vec<u8>>())?;
    Ok(peer)
}

/// `GET /` over a connection of its own, with HTTP/2.
fn is_served(http: SocketAddr) -> Result<bool> {
    let mut peer = Http2::connect(http, &[])?;
    peer.get(1, "/rest/hello")?;
    Ok(peer.body(1)? == b"Hello World - via HTTP/2")
}

/// What it has of the budget for HTTP.
fn charged(server: &Server) -> Result<f64> {
    Ok(server.metrics()?.sum("weir_http_charged_bytes", ""))
}

fn await_nothing_charged(server: &Server) -> Result<()> {
    server
        .await_metrics("what was charged", |metrics| {
            metrics.sum("weir_http_charged_bytes", "") == 0.0
        })
        .map(drop)
}

fn grown(server: &Server, before: u64) -> Result<u64> {
    Ok(server.rss_anon()?.saturating_sub(before))
}

/// 150 connections of 100 streams once took 160 MiB, for 7 MB sent.
#[test]
fn heads_with_too_many_headers_are_refused_and_not_kept() -> Result<()> {
    let (server, http) = start(256, FAR, "")?;
    let before = server.rss_anon()?;
    // 64 headers by name, then these again and again by one byte each.
    let first: Vec<u8> = (0..64).flat_map(indexed).collect();
    let again: Vec<u8> = (62..126_u8).cycle().take(440).map(|index| 0x80 | index).collect();
    let mut peers = Vec::new();
    for _ in 0..150 {
        peers.push(ask_without_bodies(http, |index| {
            [post(ACTIVATE), if index == 0 { first.clone() } else { again.clone() }].concat()
        })?);
    }
    // Some after some, so that a slow machine has time for all.
    for count in (10..=150).step_by(10) {
        server.await_metrics("the refusals of some more", |metrics| {
            metrics.sum_of("weir_http_requests_total", &[("version", "2"), ("status", "4xx")])
                >= f64::from(count) * 99.0
        })?;
    }
    let grown = grown(&server, before)?;
    eprintln!("{} KiB more", grown / 1024);
    assert!(grown < 64 * MIB, "{grown} bytes more");
    // On the last connection the one with as many as may be waits for its body.
    let mut last = peers.pop().context("a peer")?;
    let body = b"{\"devSn\":\"a\",\"devKey\":\"b\"}";
    last.stream.write_all(&frame(DATA, END_STREAM, 1, body))?;
    let (mut refused, mut said) = (0, Vec::new());
    loop {
        match last.hear()?.context("it goes on")? {
            // `:status 404`, as there is no store; others are literals.
            (HEADERS, 1, head) => {
                assert_eq!(head.first(), Some(&0x8d));
                break;
            }
            (HEADERS, ..) => refused += 1,
            (DATA, 3, data) => said.extend(data),
            (GOAWAY, ..) => bail!("the connection is not to end"),
            _ => {}
        }
    }
    assert_eq!(refused, 99);
    let said = String::from_utf8(said)?;
    assert!(
        said.contains("440 headers are more than the limit of 64 (http.headers_max)"),
        "{said}"
    );
    assert!(said.contains("\"status\":431"), "{said}");
    Ok(())
}

/// 3,200 requests with heads of 15 KB that wait for their bodies once took 127 MiB.
#[test]
fn heads_are_not_kept_while_bodies_are_awaited() -> Result<()> {
    let (server, http) = start(256, FAR, "")?;
    let before = server.rss_anon()?;
    // Four values of 3,800 bytes, without an index.
    let value = [&[0x7f, 0xd9, 0x1c][..], "v".repeat(3_800).as_bytes()].concat();
    let long: Vec<u8> =
        (b'a'..=b'd').flat_map(|name| [&[0x00, 1, name][..], &value].concat()).collect();
    let peers = (0..32)
        .map(|_| ask_without_bodies(http, |_| [post(ACTIVATE), long.clone()].concat()))
        .collect::<Result<Vec<_>>>()?;
    server.await_metrics("all of them", |metrics| {
        metrics.sum("weir_http_charged_bytes", "") >= 3_200.0 * 5_120.0
    })?;
    let grown = grown(&server, before)?;
    eprintln!("{} KiB more, {} KiB charged", grown / 1024, charged(&server)? / 1024.0);
    assert!(grown < 40 * MIB, "{grown} bytes more");
    drop(peers);
    await_nothing_charged(&server)
}

#[test]
fn answers_that_do_not_move_are_reset_and_the_connection_goes_on() -> Result<()> {
    let (server, http) = start(256, Limits { stall: "1s", ..FAR }, "")?;
    let mut peer = Http2::connect(http, CLOSED_WINDOW)?;
    // A path of 3,900 bytes, with an index, then named by one byte.
    let path = [b"/".as_slice(), "x".repeat(3_899).as_bytes()].concat();
    let long = [&[0x82, 0x86, 0x01, 1, b'a', 0x44, 0x7f, 0xbd, 0x1d][..], &path].concat();
    let again = [0x82, 0x86, 0x01, 1, b'a', 0xbe];
    for index in 0..50 {
        let head = if index == 0 { &long[..] } else { &again };
        let said = frame(HEADERS, END_HEADERS | END_STREAM, 2 * index + 1, head);
        peer.stream.write_all(&said)?;
    }
    let (mut begun, mut reset) = (0, 0);
    while reset < 50 {
        match peer.hear()?.context("the connection goes on")? {
            (HEADERS, ..) => begun += 1,
            (RST_STREAM, _, code) => {
                assert_eq!(code, CANCEL);
                reset += 1;
            }
            (DATA | GOAWAY, ..) => bail!("no window is open, and nothing ends"),
            _ => {}
        }
    }
    assert_eq!(begun, 50);
    assert_eq!(server.metrics()?.sum("weir_http_streams_reset_total", ""), 50.0);
    // With an open window the same answer comes, and does not repeat the path.
    peer.stream.write_all(&frame(SETTINGS, 0, 0, OPEN_WINDOW))?;
    peer.stream.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 101, &again))?;
    let body = String::from_utf8(peer.body(101)?)?;
    assert!(body.len() < 1_024 && body.contains("there is nothing at \\\"/xxx"), "{body}");
    drop(peer);
    await_nothing_charged(&server)
}

/// With a window of one byte the library holds the rest, and no stream can be reset alone.
#[test]
fn a_connection_that_takes_short_answers_by_the_byte_is_ended() -> Result<()> {
    let (server, http) = start(256, Limits { stall: "300ms", ..FAR }, "")?;
    let mut peer = Http2::connect(http, &[0, 4, 0, 0, 0, 1])?;
    for index in 0..100 {
        peer.get(2 * index + 1, "/nothing")?;
    }
    peer.end()?;
    let stalled = [("cause", "stalled")];
    server.await_metrics("its end", |metrics| {
        metrics.sum_of("weir_http_connections_ended_total", &stalled) == 1.0
    })?;
    assert!(is_served(http)?);
    await_nothing_charged(&server)
}

/// Publishes as many messages as fit, on this stream, and goes on when the answer has begun: with its status.
fn publish_many(peer: &mut Http2, stream: u32) -> Result<u16> {
    let messages = vec!["{\"topic\":\"x\",\"text\":\"\"}"; 1_000].join(",");
    let body = format!("{{\"messages\":[{messages}]}}");
    // `content-type`, from the table.
    let head = [post("/v1/publish"), vec![0x0f, 0x10, 16], b"application/json".to_vec()].concat();
    peer.stream.write_all(&frame(HEADERS, END_HEADERS, stream, &head))?;
    let (first, last) = body.as_bytes().split_at(16_384);
    peer.stream.write_all(&frame(DATA, 0, stream, first))?;
    peer.stream.write_all(&frame(DATA, END_STREAM, stream, last))?;
    loop {
        if let (HEADERS, on, head) = peer.hear()?.context("it goes on")?
            && on == stream
        {
            return Ok(if head.first() == Some(&0x88) { 200 } else { 503 });
        }
    }
}

/// Each holds 260 KB for 24 KB sent.
#[test]
fn a_publish_without_room_for_its_answer_publishes_nothing() -> Result<()> {
    let (server, http) = start(256, FAR, "")?;
    let mut peer = Http2::connect(http, CLOSED_WINDOW)?;
    let mut answered = 0;
    let mut stream = 1;
    while publish_many(&mut peer, stream)? == 200 {
        answered += 1;
        stream += 2;
        ensure!(answered < 50, "there is no limit");
    }
    assert!(answered >= 8, "{answered}");
    assert!(charged(&server)? <= ANSWER_BYTES_MAX + 100.0 * 5_120.0 + 16_384.0);
    let metrics = server.metrics()?;
    // The refused request published nothing; in the others no message was permitted.
    let refused = metrics.sum("weir_publish_refused_total", "");
    assert_eq!(refused, 1_000.0 * f64::from(answered));
    assert_eq!(metrics.sum_of("weir_http_room_refused_total", &[("cause", "connection")]), 1.0);
    // Other connections have room, and this one has room again when it wants the answers no more.
    assert_eq!(publish_many(&mut Http2::connect(http, &[])?, 1)?, 200);
    for ended in (1..=stream).step_by(2) {
        peer.stream.write_all(&frame(RST_STREAM, 0, ended, &CANCEL))?;
    }
    await_nothing_charged(&server)?;
    assert_eq!(publish_many(&mut peer, stream + 2)?, 200);
    drop(peer);
    await_nothing_charged(&server)
}

/// Four connections once held all of the budget.
#[test]
fn unread_histories_leave_room_for_messages() -> Result<()> {
    let (server, http) = start_with_history(32, Limits { stall: "2s", ..FAR })?;
    let mut peers = Vec::new();
    for _ in 0..6 {
        let mut peer = Http2::connect(http, CLOSED_WINDOW)?;
        let said = (0..20).flat_map(|index| {
            let head = get("/v1/topics/kept/history");
            frame(HEADERS, END_HEADERS | END_STREAM, 2 * index + 1, &head)
        });
        peer.stream.write_all(&said.collect::<Vec<u8>>())?;
        peers.push(peer);
    }
    let answered = |metrics: &weir_tests::Metrics| {
        metrics.sum_of("weir_http_requests_total", &[("version", "2")]) >= 120.0
    };
    // Some connections end, and their requests stay without answers.
    let metrics = server.await_metrics("the answers", |metrics| {
        answered(metrics) || metrics.sum("weir_http_room_refused_total", "") >= 50.0
    })?;
    let (used, max) =
        (metrics.sum("weir_queued_bytes", ""), metrics.sum("weir_queued_bytes_max", ""));
    eprintln!("{} KiB of the budget are used", used / 1024.0);
    assert!(used < max / 2.0, "{used} of {max}");
    for _ in 0..20 {
        let message = "{\"topic\":\"x\",\"text\":\"y\"}";
        assert_eq!(Answer::post(server.admin, "/v1/publish", message)?.status, 200);
    }
    await_nothing_charged(&server)?;
    assert!(server.metrics()?.sum("weir_http_streams_reset_total", "") > 0.0);
    let whole = Answer::get(http, "/v1/topics/kept/history")?;
    assert_eq!(whole.status, 200);
    Ok(())
}

/// The largest holders end first: many greedy connections, and healthy requests between them.
#[test]
fn greedy_connections_end_before_healthy_requests_are_refused() -> Result<()> {
    // A share of 8 MiB; each of these waits with half a megabyte.
    let (server, http) = start(52, FAR, "")?;
    let mut peers = Vec::new();
    for _ in 0..60 {
        // The gateway may end a connection before all is sent.
        if let Ok(peer) = ask_without_bodies(http, |_| post(ACTIVATE)) {
            peers.push(peer);
        }
        assert!(is_served(http)?);
    }
    let of_memory = [("cause", "memory")];
    server.await_metrics("the first that give way", |metrics| {
        metrics.sum_of("weir_http_connections_ended_total", &of_memory) >= 1.0
    })?;
    assert!(charged(&server)? <= 8.2 * 1_048_576.0);
    drop(peers);
    await_nothing_charged(&server)
}

/// Such connections once counted as busy, and 95 of 95 healthy requests got 503.
#[test]
fn connections_that_wait_for_bodies_give_way() -> Result<()> {
    let (server, http) = start(256, Limits { connections: 20, ..FAR }, "")?;
    let mut peers = Vec::new();
    for _ in 0..20 {
        let mut peer = Http2::connect(http, &[])?;
        peer.stream.write_all(&frame(HEADERS, END_HEADERS, 1, &post(ACTIVATE)))?;
        peers.push(peer);
    }
    server.await_metrics("all of them", |metrics| {
        metrics.sum("weir_http_charged_bytes", "") >= 20.0 * 5_120.0
    })?;
    for _ in 0..95 {
        assert_eq!(Answer::get(http, "/rest/hello")?.status, 200);
    }
    let crowded = [("cause", "crowded")];
    server.await_metrics("their ends", |metrics| {
        metrics.sum_of("weir_http_connections_ended_total", &crowded) >= 1.0
    })?;
    Ok(())
}

/// What has left is not charged, however long its connection stays: neither a short answer, nor a long one, nor one without
/// a body, nor the last one of each.
#[test]
fn an_idle_connection_holds_nothing() -> Result<()> {
    let (server, http) = start(64, Limits { stall: "200ms", ..FAR }, "")?;
    let mut peers = Vec::new();
    for path in ["/", "/openapi.json", "/nothing"] {
        let mut peer = Http2::connect(http, &[])?;
        peer.get(1, path)?;
        assert!(!peer.body(1)?.is_empty());
        await_nothing_charged(&server)?;
        peers.push(peer);
    }
    // Ten times as long as an answer may wait.
    rest(2_000);
    for peer in &mut peers {
        peer.get(3, "/")?;
        assert!(!peer.body(3)?.is_empty());
    }
    Ok(())
}

/// The entries of a header table once kept 2.1 MiB a connection, for as long as it lived.
#[test]
fn what_a_header_table_keeps_is_charged() -> Result<()> {
    // A share of 8 MiB.
    let (server, http) = start(32, FAR, "")?;
    let before = server.rss_anon()?;
    // `:path` with an index, then four values of 3,800 bytes without one: each entry keeps 16 KiB.
    let value = [&[0x7f, 0xd9, 0x1c][..], "v".repeat(3_800).as_bytes()].concat();
    let long: Vec<u8> =
        (b'a'..=b'd').flat_map(|name| [&[0x00, 1, name][..], &value].concat()).collect();
    let head = [&[0x82, 0x86, 0x44, 1, b'/', 0x01, 1, b'a'][..], &long].concat();
    let said: Vec<u8> = (0..115)
        .flat_map(|index| frame(HEADERS, END_HEADERS | END_STREAM, 2 * index + 1, &head))
        .collect();
    let mut peers = Vec::new();
    for _ in 0..20 {
        let mut peer = Http2::connect(http, &[])?;
        // The gateway may end a connection before all is sent.
        let _ = peer.stream.write_all(&said);
        peers.push(peer);
        assert!(is_served(http)?);
    }
    let of_memory = [("cause", "memory")];
    server.await_metrics("the ends", |metrics| {
        metrics.sum_of("weir_http_connections_ended_total", &of_memory) >= 10.0
    })?;
    let grown = grown(&server, before)?;
    eprintln!("{} KiB more", grown / 1024);
    assert!(grown < 24 * MIB, "{grown} bytes more");
    drop(peers);
    await_nothing_charged(&server)
}

/// Requests that came behind the goodbye of their connection were once never freed: 400 KiB a connection.
#[test]
fn requests_behind_a_goodbye_leave_nothing() -> Result<()> {
    let (server, http) = start(256, Limits { idle: "200ms", ..FAR }, "")?;
    // A value of 3,800 bytes, without an index.
    let long = [&[0x00, 1, b'a', 0x7f, 0xd9, 0x1c][..], "v".repeat(3_800).as_bytes()].concat();
    let head = [post(ACTIVATE), long.repeat(4)].concat();
    let say_behind = |count: u32| -> Result<()> {
        let mut peers =
            (0..count).map(|_| Http2::connect(http, &[])).collect::<Result<Vec<_>>>()?;
        for peer in &mut peers {
            while peer.hear()?.context("a goodbye comes first")?.0 != GOAWAY {}
            let said = (0..10).flat_map(|index| frame(HEADERS, END_HEADERS, 2 * index + 1, &head));
            // The connection may have ended meanwhile.
            let _ = peer.stream.write_all(&said.collect::<Vec<u8>>());
        }
        drop(peers);
        server.await_metrics("their ends", |metrics| {
            metrics.sum("weir_http_connections", "") == 0.0
        })?;
        await_nothing_charged(&server)
    };
    // The allocator has its own memory afterwards.
    say_behind(50)?;
    let before = server.rss_anon()?;
    for _ in 0..5 {
        say_behind(50)?;
    }
    let grown = grown(&server, before)?;
    eprintln!("{} KiB more", grown / 1024);
    assert!(grown < 32 * MIB, "{grown} bytes more");
    Ok(())
}

/// A paused process does not read what its peers send: no time passes for them.
#[test]
fn a_pause_of_the_process_ends_no_connection() -> Result<()> {
    with_longer_times(|scale| {
        let times = format!("{scale}s");
        let limits = Limits { stall: &times, idle: &times, ..FAR };
        let (server, http) = start_with_history(64, limits)?;
        let mut idle = Http2::connect(http, &[])?;
        let mut reader = Http2::connect(http, CLOSED_WINDOW)?;
        reader.get(1, "/v1/topics/kept/history")?;
        while reader.hear()?.context("the head of the answer comes")?.0 != HEADERS {}
        server.signal(Signal::STOP)?;
        // More than twice as long as either may wait.
        rest(2_500 * scale);
        for stream in [0, 1] {
            let opened = 4_194_304_u32.to_be_bytes();
            reader.stream.write_all(&frame(WINDOW_UPDATE, 0, stream, &opened))?;
        }
        idle.get(1, "/")?;
        server.signal(Signal::CONT)?;
        ensure!(reader.body(1)?.len() > 900_000, "the answer ends early");
        ensure!(!idle.body(1)?.is_empty(), "there is no answer");
        Ok(())
    })
}

/// The peer does nothing for a while.
#[expect(clippy::disallowed_methods, reason = "the peer takes its time")]
fn rest(millis: u64) {
    std::thread::sleep(Duration::from_millis(millis));
}

/// A slow but steady reader is neither idle nor stalled, although it takes longer than either may last.
#[test]
fn a_slow_reader_gets_the_whole_answer() -> Result<()> {
    with_longer_times(|scale| {
        let (idle, stall) = (format!("{}ms", 500 * scale), format!("{scale}s"));
        let limits = Limits { stall: &stall, idle: &idle, ..FAR };
        let (_server, http) = start_with_history(64, limits)?;
        let expected = Answer::get(http, "/v1/topics/kept/history")?.body;
        ensure!(expected.len() > 900_000, "{} bytes", expected.len());
        read_slowly_over_http2(http, &expected, 60 * scale)?;
        read_slowly_over_http1(http, &expected, 20 * scale)
    })
}

/// By a window that opens a little now and then.
fn read_slowly_over_http2(http: SocketAddr, expected: &str, pause_ms: u64) -> Result<()> {
    let mut peer = Http2::connect(http, CLOSED_WINDOW)?;
    peer.get(1, "/v1/topics/kept/history")?;
    let mut body = Vec::new();
    while body.len() < expected.len() {
        rest(pause_ms);
        for stream in [0, 1] {
            peer.stream.write_all(&frame(WINDOW_UPDATE, 0, stream, &32_768_u32.to_be_bytes()))?;
        }
        let whole = (body.len() + 32_768).min(expected.len());
        while body.len() < whole {
            match peer.hear()?.context("it goes on")? {
                (DATA, 1, data) => body.extend(data),
                (RST_STREAM | GOAWAY, ..) => bail!("it ends after {} bytes", body.len()),
                _ => {}
            }
        }
    }
    ensure!(body == expected.as_bytes(), "another answer");
    Ok(())
}

/// By as much as is read now and then.
fn read_slowly_over_http1(http: SocketAddr, expected: &str, pause_ms: u64) -> Result<()> {
    let mut stream = TcpStream::connect(http)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(
        b"GET /v1/topics/kept/history HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    )?;
    let mut heard = Vec::new();
    let mut part = vec![0; 16_384];
    loop {
        match stream.read(&mut part)? {
            0 => break,
            count => heard.extend(&part[..count]),
        }
        rest(pause_ms);
    }
    ensure!(heard.ends_with(expected.as_bytes()), "{} bytes", heard.len());
    Ok(())
}
