//! Hostile and broken clients: each ends with the right reason, others are undisturbed, nothing is left behind.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::net::sockopt;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use weir_tests::{
    Answer, Authority, Device, Metrics, Server, Socket, Upgrade, masked, raise_open_files,
};
use weir_wire::v1::{self, client_message, server_message};
use weir_wire::{CloseReason, ProstMessage, frame};

const SHORT: &str = "[connection]\nhello_timeout = \"2s\"\nframe_timeout = \"2s\"\n[limits]\nunsettled_connections_max = 12000\n";

fn code(reason: CloseReason) -> u32 {
    u32::from(reason.code())
}

/// Behind each attack a well-behaved device must still be served, and the house must be empty in the end.
fn check(settled: bool, attack: &[u8], reason: CloseReason) -> Result<()> {
    let server = Server::start(SHORT)?;
    let mut witness = Device::greet(server.tcp, "witness", &["news"])?;
    let mut hostile = if settled {
        Device::greet(server.tcp, "hostile", &[])?
    } else {
        Device::connect(server.tcp)?
    };
    hostile.send_bytes(attack)?;
    let goodbye = hostile.goodbye()?;
    assert_eq!(goodbye.code, code(reason), "{goodbye:?}");
    assert_eq!(goodbye.reason, reason.name());
    drop(hostile);
    server.publish(&serde_json::json!({"topic": "news", "text": "still here"}))?;
    assert_eq!(witness.push()?.topic, "news");
    drop(witness);
    let metrics = server.await_metrics("an empty house", |metrics| metrics.is_empty_house())?;
    assert_eq!(metrics.closed(reason.name()), 1.0);
    assert!(!server.log().contains("panicked"), "{}", server.log());
    Ok(())
}

fn noise(bytes: usize) -> Vec<u8> {
    // A fixed sequence that begins with a frame of length 0x23 whose body is no message.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut noise: Vec<u8> = (0..bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[0]
        })
        .collect();
    noise[0] = 0x23;
    noise[1] = 0xff;
    noise
}

#[test]
fn random_bytes_are_malformed() -> Result<()> {
    check(true, &noise(4096), CloseReason::Malformed)
}

#[test]
fn random_bytes_instead_of_hello_are_malformed() -> Result<()> {
    check(false, &noise(4096), CloseReason::Malformed)
}

#[test]
fn a_length_of_four_gibibytes_is_too_large() -> Result<()> {
    check(true, &[0xff, 0xff, 0xff, 0xff, 0x0f], CloseReason::FrameTooLarge)
}

/// `Hello` has its own limit, 16 KiB, for frames and for the first message of a WebSocket.
#[test]
fn a_hello_of_the_longest_length_is_welcome_and_one_byte_more_is_too_large() -> Result<()> {
    const LONGEST: usize = 16 * 1024;
    check(false, &[0x81, 0x80, 0x01], CloseReason::FrameTooLarge)?;
    let server = Server::start_with_http("")?;
    let hello = |filling: usize| {
        let client = "x".repeat(filling);
        v1::Hello { device_id: "long".into(), client, ..v1::Hello::default() }
    };
    let message = |hello| v1::ClientMessage { kind: Some(client_message::Kind::Hello(hello)) };
    let longest =
        (LONGEST - 100..LONGEST).find(|filling| message(hello(*filling)).encoded_len() == LONGEST);
    let mut bytes = Vec::new();
    frame::encode(&message(hello(longest.context("a length")?)), &mut bytes);
    let mut device = Device::connect(server.tcp)?;
    device.send_bytes(&bytes)?;
    assert!(matches!(device.hear()?, Some(server_message::Kind::Welcome(_))));
    let text = serde_json::json!({"hello": {"deviceId": "wide"}}).to_string();
    let padded = |length| format!("{text}{}", " ".repeat(length - text.len()));
    let http = server.http.context("HTTP")?;
    let mut socket = Socket::open(http)?;
    socket.send(&masked(0x81, padded(LONGEST).as_bytes()))?;
    socket.expect("welcome")?;
    let mut socket = Socket::open(http)?;
    socket.send(&masked(0x81, padded(LONGEST + 1).as_bytes()))?;
    assert_eq!(socket.closed()?.0, 1009);
    Ok(())
}

#[test]
fn a_length_of_four_gibibytes_instead_of_hello_is_too_large() -> Result<()> {
    check(false, &[0xff, 0xff, 0xff, 0xff, 0x0f], CloseReason::FrameTooLarge)
}

#[test]
fn a_length_without_end_is_malformed() -> Result<()> {
    check(true, &[0xff; 64], CloseReason::Malformed)
}

#[test]
fn half_a_frame_and_silence_ends_by_frame_timeout() -> Result<()> {
    check(true, &[100, 1, 2, 3], CloseReason::FrameTimeout)
}

#[test]
fn half_a_hello_and_silence_ends_by_hello_timeout() -> Result<()> {
    check(false, &[100, 1, 2, 3], CloseReason::HelloTimeout)
}

#[test]
fn silence_instead_of_hello_ends_by_hello_timeout() -> Result<()> {
    check(false, &[], CloseReason::HelloTimeout)
}

#[test]
fn a_first_message_that_is_not_hello_is_malformed() -> Result<()> {
    let mut ping = Vec::new();
    weir_wire::hot::encode_ping_frame(b"first", &mut ping);
    check(false, &ping, CloseReason::Malformed)
}

#[test]
fn a_frame_that_drips_in_ends_by_frame_timeout() -> Result<()> {
    let server = Server::start(SHORT)?;
    let mut hostile = Device::greet(server.tcp, "hostile", &[])?;
    let mut slow = hostile.stream().try_clone()?;
    let dripping = std::thread::spawn(move || {
        // A frame of 100 bytes, two of them a second, until the server has had enough.
        for byte in std::iter::once(100).chain(std::iter::repeat_n(1, 100)) {
            if slow.write_all(&[byte]).is_err() {
                return;
            }
            pause(Duration::from_millis(500));
        }
    });
    assert_eq!(hostile.goodbye()?.code, code(CloseReason::FrameTimeout));
    drop(hostile);
    assert!(dripping.join().is_ok());
    server.await_metrics("an empty house", |metrics| metrics.is_empty_house())?;
    Ok(())
}

#[test]
fn ten_thousand_connections_without_hello_all_end_by_hello_timeout() -> Result<()> {
    const COUNT: usize = 10_000;
    raise_open_files()?;
    let server = Server::start(SHORT)?;
    let mut witness = Device::greet(server.tcp, "witness", &["news"])?;
    let before = server.rss_anon()?;
    let mut silent = Vec::with_capacity(COUNT);
    for _ in 0..COUNT {
        silent.push(Device::connect(server.tcp)?);
    }
    for device in &mut silent {
        assert_eq!(device.goodbye()?.code, code(CloseReason::HelloTimeout));
    }
    drop(silent);
    server.publish(&serde_json::json!({"topic": "news", "text": "still here"}))?;
    assert_eq!(witness.push()?.topic, "news");
    let metrics = server
        .await_metrics("the silent ones gone", |metrics| metrics.connections("unsettled") == 0.0)?;
    assert_eq!(metrics.closed("hello_timeout"), COUNT as f64);
    drop(witness);
    server.await_metrics("an empty house", |metrics| metrics.is_empty_house())?;
    let grown = server.rss_anon()?.saturating_sub(before);
    assert!(
        grown < 64 << 20,
        "{grown} bytes are left of {COUNT} connections that never said Hello"
    );
    Ok(())
}

#[test]
fn a_message_of_an_unknown_kind_is_answered_and_forgiven() -> Result<()> {
    let server = Server::start("")?;
    let mut device = Device::greet(server.tcp, "from-the-future", &[])?;
    // Field 15, length-delimited, empty: a kind that no version has yet.
    device.send_bytes(&[2, 0x7a, 0])?;
    match device.hear()? {
        Some(server_message::Kind::Error(error)) => assert_eq!(error.code, "unknown_kind"),
        other => panic!("expected Error, got {other:?}"),
    }
    device.send(client_message::Kind::Ping(v1::Ping { data: b"still here".to_vec() }))?;
    assert_eq!(
        device.hear()?,
        Some(server_message::Kind::Pong(v1::Pong { data: b"still here".to_vec() }))
    );
    Ok(())
}

#[test]
fn a_flood_of_pings_that_reads_no_answer_is_bounded() -> Result<()> {
    let server =
        Server::start("[connection]\nstall_timeout = \"2s\"\n[memory]\nbudget_bytes = 8388608\n")?;
    let mut witness = Device::greet(server.tcp, "witness", &["news"])?;
    let mut hostile = Device::greet(server.tcp, "hostile", &[])?;
    let mut ping = Vec::new();
    weir_wire::hot::encode_ping_frame(&[7; 256], &mut ping);
    let flood = ping.repeat(1000);
    hostile.stream().set_write_timeout(Some(Duration::from_millis(500)))?;
    // The server stops reading once it cannot answer: then the flood stops too.
    let mut sent = 0_usize;
    while hostile.send_bytes(&flood).is_ok() {
        sent += flood.len();
        assert!(sent < 1 << 30, "a gigabyte of unread answers was taken in");
    }
    server.await_metrics("the flood's end", |metrics| metrics.closed("stalled") == 1.0)?;
    server.publish(&serde_json::json!({"topic": "news", "text": "still here"}))?;
    assert_eq!(witness.push()?.topic, "news");
    let peak = server.metrics()?.sum("weir_queued_bytes_peak", "");
    assert!(peak <= 8_388_608.0, "{peak} bytes were queued against a budget of 8 MiB");
    Ok(())
}

/// What strangers say before they authenticate, and never to its end.
struct Opening {
    name: &'static str,
    addr: SocketAddr,
    /// For those that make a handshake before.
    secured: Option<Arc<ClientConfig>>,
    /// What begins it, and how many bytes follow.
    begins: Vec<u8>,
    rest: usize,
}

impl Opening {
    fn all(server: &Server, authority: &Authority) -> Result<Vec<Opening>> {
        let (http, tls) = (server.http.context("HTTP")?, server.tls.context("TLS")?);
        let https = server.https.context("HTTPS")?;
        let client = authority.client()?;
        let plain = |name, addr, begins: &[u8], rest| {
            let begins = begins.to_vec();
            Opening { name, addr, secured: None, begins, rest }
        };
        // A message of 64 KiB in records of 16 KiB, of which the first says that it is a ClientHello.
        let long_hello = [22, 3, 1, 0x40, 0, 1, 0, 0xff, 0];
        let mut client_hello = Vec::new();
        let name = ServerName::try_from("localhost")?;
        ClientConnection::new(Arc::clone(&client), name)?.write_tls(&mut client_hello)?;
        let upgrade = Upgrade::default();
        let upgrade = [upgrade.line, upgrade.headers, "\r\n"].concat().into_bytes();
        // A text of 16,000 bytes behind a mask.
        let text = [&upgrade[..], &[0x81, 0xfe, 0x3e, 0x80, 0, 0, 0, 0]].concat();
        let head = b"GET / HTTP/1.1\r\nHost: a\r\nX: ";
        let record = |name, addr| {
            let secured = Some(Arc::clone(&client));
            Opening { name, addr, secured, begins: vec![23, 3, 3, 0x40, 0], rest: 0x4000 - 1 }
        };
        Ok(vec![
            plain("a Hello of 64 KiB", server.tcp, &[0xdc, 0xff, 0x03], 65_499),
            plain("a Hello of 16 KiB", server.tcp, &[0x80, 0x80, 0x01], 16_383),
            plain("half a ClientHello", tls, &long_hello, 0x4000 - 4 - 1),
            plain("half a ClientHello for HTTPS", https, &long_hello, 0x4000 - 4 - 1),
            plain("a ClientHello and no more", tls, &client_hello, 0),
            plain("a WebSocket's Hello", http, &text, 15_999),
            plain("a head of HTTP", http, head, 16_000),
            record("a record", tls),
            record("a record for HTTPS", https),
        ])
    }

    /// Says it, or as much of it as is heard.
    fn say(&self) -> Result<Option<TcpStream>> {
        let mut stream = match &self.secured {
            None => TcpStream::connect(self.addr)?,
            Some(client) => match Device::connect_tls(self.addr, client) {
                Ok(mut device) => device.stream().try_clone()?,
                // There is no room for a handshake: the bound is reached.
                Err(_) => return Ok(None),
            },
        };
        stream.set_write_timeout(Some(Duration::from_secs(5)))?;
        let bytes = [&self.begins[..], &vec![b'a'; self.rest]].concat();
        let _ = stream.write_all(&bytes);
        Ok(Some(stream))
    }
}

/// Strangers who begin and do not end take no more than their share of the budget: it is open for publishing and for
/// those who say little, and memory does not grow by more than that.
#[test]
fn strangers_take_no_more_than_their_share_of_the_budget() -> Result<()> {
    const BUDGET: f64 = 16.0 * 1024.0 * 1024.0;
    const STRANGERS: usize = 1_000;
    const BATCH: usize = 20;
    raise_open_files()?;
    let authority = Authority::new()?;
    let certificate = authority.files("server", "localhost", false)?;
    let server = Server::start_with_all_doors(&format!(
        "[memory]\nbudget_bytes = 16777216\n[connection]\nhello_timeout = \"60s\"\n\
         [http]\nhead_timeout = \"60s\"\n{certificate}"
    ))?;
    let mut witness = Device::greet(server.tcp, "witness", &["news"])?;
    let (tls, mut failures) = (server.tls.context("TLS")?, Vec::new());
    for opening in Opening::all(&server, &authority)? {
        let before = server.metrics()?;
        let refused = |metrics: &Metrics| {
            metrics.sum("weir_budget_refused_total", "") + metrics.closed("frame_too_large")
        };
        let (memory, mut sent, mut strangers) = (server.rss_anon()?, 0, Vec::new());
        let is_reached = || Ok::<_, anyhow::Error>(refused(&server.metrics()?) > refused(&before));
        for number in 0..STRANGERS {
            if number % BATCH == 0 && is_reached()? {
                break;
            }
            if let Some(stranger) = opening.say()? {
                strangers.push(stranger);
                sent += opening.begins.len() + opening.rest;
            }
        }
        for _ in 0..100 {
            if is_reached()? {
                break;
            }
            pause(Duration::from_millis(50));
        }
        let metrics = server.metrics()?;
        let (count, queued) = (strangers.len(), metrics.sum("weir_queued_bytes", ""));
        let published = server.publish(&serde_json::json!({"topic": "news", "text": "still here"}));
        let newcomer = Device::greet(server.tcp, "newcomer", &[]);
        let secure = Device::connect_tls(tls, &authority.client()?);
        println!(
            "{}: {count} strangers sent {sent} bytes; {queued} of {BUDGET} are taken, {} more are resident, publish {}, newcomer {}, with TLS {}",
            opening.name,
            server.rss_anon()?.saturating_sub(memory),
            if published.is_ok() { "accepted" } else { "refused" },
            if newcomer.is_ok() { "welcome" } else { "refused" },
            if secure.is_ok() { "welcome" } else { "refused" },
        );
        let is_bounded = is_reached()? && queued <= BUDGET / 4.0;
        // Handshakes keep out others alone.
        let is_open = secure.is_ok() || opening.addr == tls && opening.rest == 0;
        if published.is_err() || newcomer.is_err() || !is_open || !is_bounded {
            failures.push(opening.name);
        }
        if published.is_ok() {
            assert_eq!(witness.push()?.topic, "news");
        }
        drop((strangers, newcomer, secure));
        server.await_metrics("the strangers to have gone", |metrics| {
            metrics.connections("unsettled") == 0.0
                && metrics.connections("settled") == 1.0
                && metrics.sum("weir_http_connections", "") == 0.0
                && metrics.sum("weir_budget_used_bytes", "share=\"unsettled\"") == 0.0
                && metrics.sum("weir_budget_used_bytes", "share=\"http\"") == 0.0
        })?;
    }
    assert!(failures.is_empty(), "{failures:?}");
    Ok(())
}

/// Devices that read nothing fill the budget, which the kernel's limit on memory has decided: the process does not die of
/// an allocation, and serves on.
fn check_memory_limit(option: char, name: &str) -> Result<()> {
    const LIMIT_KIB: u64 = 200_000;
    const MESSAGE_BYTES: usize = 256 * 1024;
    let long = format!(
        "[limits]\nframe_bytes_max = {}\n[connection]\nhigh_watermark_bytes = {}\n",
        MESSAGE_BYTES + 4096,
        MESSAGE_BYTES * 2
    );
    let mut server = Server::start_with_memory(&long, option, LIMIT_KIB)?;
    let budget = server.metrics()?.sum("weir_queued_bytes_max", "");
    let mut witness = Device::greet(server.tcp, "witness", &["news"])?;
    let text = "x".repeat(MESSAGE_BYTES);
    let mut silent = Vec::new();
    let mut sent = 0;
    for number in 0.. {
        let device = format!("silent-{number}");
        silent.push(Device::greet(server.tcp, &device, &[])?);
        for _ in 0..32 {
            let message = serde_json::json!({"device": device, "text": text}).to_string();
            let answer = Answer::post(server.admin, "/v1/publish", &message);
            let Ok(answer) = answer else { panic!("it has died: {}", server.log()) };
            assert!([200, 503].contains(&answer.status), "{}", answer.body);
            sent += text.len();
        }
        // More than is left of the limit beside the process itself: what was cut has been given back.
        if sent > 768 * usize::try_from(LIMIT_KIB)? {
            break;
        }
    }
    assert!(server.is_alive()?, "{}", server.log());
    let peak = server.metrics()?.sum("weir_queued_bytes_peak", "");
    // What waits has a quarter of it, which was filled.
    assert!(peak > budget / 5.0 && peak <= budget, "{peak} of {budget} were used");
    assert!(server.log().contains(name), "{}", server.log());
    drop(silent);
    server.publish(&serde_json::json!({"topic": "news", "text": "still here"}))?;
    assert_eq!(witness.push()?.topic, "news");
    Ok(())
}

#[test]
fn a_limited_address_space_is_enough_for_the_budget() -> Result<()> {
    check_memory_limit('v', "RLIMIT_AS")
}

#[test]
fn a_limited_data_segment_is_enough_for_the_budget() -> Result<()> {
    check_memory_limit('d', "RLIMIT_DATA")
}

#[test]
fn a_hello_in_pieces_is_a_hello() -> Result<()> {
    let server = Server::start("")?;
    let hello = v1::Hello { device_id: "slow-typist".into(), ..v1::Hello::default() };
    let mut bytes = Vec::new();
    frame::encode(
        &v1::ClientMessage { kind: Some(client_message::Kind::Hello(hello)) },
        &mut bytes,
    );
    let mut device = Device::connect(server.tcp)?;
    for byte in bytes {
        device.send_bytes(&[byte])?;
    }
    assert!(matches!(device.hear()?, Some(server_message::Kind::Welcome(_))));
    Ok(())
}

/// With figures: `cargo test -p weir-tests --test hostile -- --ignored --nocapture one_source`.
#[test]
#[ignore = "measures for some seconds, and means something on a quiet machine only"]
fn one_source_that_connects_as_fast_as_it_can_disturbs_nobody() -> Result<()> {
    const LIMITS: &str = "[limits]\nconnections_per_source_max = 100\n\
        connects_per_source_per_second = 100\nconnects_per_source_burst = 200\n";
    let server = Server::start(LIMITS)?;
    println!("quiet: {}", connect_times(&server)?);
    let stop = Arc::new(AtomicBool::new(false));
    let flood: Vec<_> = (0..2)
        .map(|_| {
            let (stop, addr) = (Arc::clone(&stop), server.tcp);
            std::thread::spawn(move || {
                let mut connects = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    let connected = Device::connect_from(Ipv4Addr::new(127, 0, 0, 2), addr);
                    let Ok(mut device) = connected else { continue };
                    connects += 1;
                    // Ends with a reset, or its ports would all wait for their time soon.
                    let _ = sockopt::set_socket_linger(device.stream(), Some(Duration::ZERO));
                }
                connects
            })
        })
        .collect();
    let (before, began) = (server.cpu_ticks()?, now());
    let times = connect_times(&server)?;
    let (used, took) = (server.cpu_ticks()? - before, began.elapsed());
    stop.store(true, Ordering::Relaxed);
    let connects: u64 = flood.into_iter().map(|thread| thread.join().expect("no panic")).sum();
    println!("flooded: {times}; {connects} connects in {took:.2?}, server {used} ticks of 10 ms");
    let metrics = server.metrics()?;
    for cause in ["source_rate", "source_connections", "unsettled_max"] {
        let count = metrics.sum("weir_connections_refused_total", &format!("cause=\"{cause}\""));
        println!("refused for {cause}: {count}");
    }
    let lines = server.log().lines().filter(|line| line.contains("connections refused")).count();
    println!("{lines} lines in the log");
    Ok(())
}

/// From connect to `Welcome`, for devices that each come from an address of their own.
fn connect_times(server: &Server) -> Result<String> {
    let mut times = Vec::new();
    for number in 0..2_000_u16 {
        let [high, low] = number.to_be_bytes();
        let began = now();
        let mut device = Device::connect_from(Ipv4Addr::new(127, 1, high, low), server.tcp)?;
        let device_id = format!("device-{number}");
        let hello = v1::Hello { device_id, ..v1::Hello::default() };
        device.send(client_message::Kind::Hello(hello))?;
        assert!(matches!(device.hear()?, Some(server_message::Kind::Welcome(_))));
        times.push(began.elapsed());
        pause(Duration::from_millis(2));
    }
    times.sort();
    let at = |per_mille: usize| times[(times.len() * per_mille / 1000).min(times.len() - 1)];
    let (p50, p99, max) = (at(500), at(990), at(1000));
    Ok(format!("connect to Welcome p50 {p50:.2?}, p99 {p99:.2?}, max {max:.2?}"))
}

#[expect(clippy::disallowed_methods, reason = "a test measures")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "a slow peer is slow by waiting")]
fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
