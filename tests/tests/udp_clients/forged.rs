//! Datagrams in another one's name, and tokens that are nobody's: what they cannot lead to.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use weir_tests::{Datagrams, Server, now};
use weir_wire::ProstMessage;
use weir_wire::v1::{self, datagram_request::Kind};

use super::udp;

/// What goes to `to` from `via`, and comes back there, until `limit` datagrams were passed on or one is not answered: what
/// a datagram sent in the other one's name leads to.
fn passed_on(gateways: [&Server; 2], seed: &[u8], limit: usize) -> Result<usize> {
    let via = [Datagrams::new(gateways[0].udp_addr()?)?, Datagrams::new(gateways[1].udp_addr()?)?];
    let mut datagram = seed.to_vec();
    for passed in 0..limit {
        let (server, socket) = (gateways[passed % 2], &via[passed % 2]);
        let before = server.metrics()?.sum("weir_udp_received_total", "");
        socket.send(&datagram)?;
        server.await_metrics("the datagram", |metrics| {
            metrics.sum("weir_udp_received_total", "") > before
                && metrics.sum("weir_udp_waiting", "") == 0.0
        })?;
        match socket.hear_within(Duration::from_millis(200))? {
            Some(answer) => datagram = answer,
            None => return Ok(passed),
        }
    }
    Ok(limit)
}

/// Two gateways that hear each other's answers fall silent: an answer is never answered, whatever it says.
#[test]
fn gateways_do_not_answer_the_answers_of_each_other() -> Result<()> {
    const LIMIT: usize = 20;
    let config = "[[auth.tokens]]\ntoken = \"shared\"\n[[auth.tokens]]\ntoken = \"one\"\ndevice = \"d1\"\n\
        [[topic_classes]]\npattern = \"*\"\npublish = [\"devices\"]\n[store]\npath = \"devices.db\"\n";
    let a = Server::start_with_datagrams(config)?;
    // What is longer than it takes is not answered either if it is an answer.
    let b = Server::start_with_datagrams(&format!("{config}[udp]\ndatagram_bytes_max = 512\n"))?;
    a.import("add,abc\n")?;
    let long = format!("{{\"pt\":\"shared\",\"count\":1,\"id\":\"{}\"}}", "i".repeat(64));
    let mut seeds: Vec<Vec<u8>> = [
        r#"{"pt":"shared","count":1}"#,
        r#"{"count":1,"id":7,"pt":"shared"}"#,
        &long,
        r#"{"pt":"nobody's","count":1,"room":"for what is told"}"#,
        r#"{"pt":5,"count":1,"room":"for what is told of it"}"#,
        r#"{"pt":"shared"}"#,
        r#"{"pt":"shared","publish":{"topic":"a","text":"b"},"id":"x"}"#,
        r#"{"pt":"one","publish":{"topic":"*","text":"b"},"room":"for what is told"}"#,
        r#"{"devSn":"add","devKey":"abc"}"#,
        r#"{"devSn":"add","devKey":"wrong","room":"for what is told"}"#,
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect();
    let protobuf = |token: &str, kind| {
        v1::DatagramRequest { id: 3, token: token.to_owned(), kind: Some(kind) }.encode_to_vec()
    };
    let activate = v1::Activate { serial: "add".to_owned(), key: "abc".to_owned() };
    seeds.push(protobuf("shared", Kind::Count(5)));
    seeds.push(protobuf("nobody's, with some room", Kind::Count(5)));
    seeds.push(protobuf("", Kind::Activate(activate)));
    for seed in &seeds {
        let passed = passed_on([&a, &b], seed, LIMIT)?;
        let shown = String::from_utf8_lossy(seed);
        assert_eq!(passed, 1, "{shown}: passed on so often, of at most {LIMIT}");
    }
    assert!(udp(&b, "refused", "answer")? >= 12.0, "{}", b.metrics()?.text());
    Ok(())
}

/// A datagram in the gateway's own name, by a socket that shares its address.
#[test]
fn a_gateway_does_not_answer_itself() -> Result<()> {
    let config = "[[auth.tokens]]\ntoken = \"shared\"\n[udp]\nthreads = 2\n";
    let server = Server::start_with_datagrams(config)?;
    let addr = server.udp_addr()?;
    let spoofer = socket_at(addr)?;
    let count = 20;
    for number in 0..count {
        let call = json!({"pt": "shared", "count": number}).to_string();
        spoofer.send_to(call.as_bytes(), addr)?;
    }
    server.await_metrics("all of them", |metrics| {
        metrics.sum("weir_udp_received_total", "") >= f64::from(count)
            && metrics.sum("weir_udp_waiting", "") == 0.0
    })?;
    assert_eq!(udp(&server, "sent", "")?, 0.0, "{}", server.metrics()?.text());
    assert_eq!(udp(&server, "refused", "source")?, f64::from(count));
    drop(spoofer);
    let client = Datagrams::new(addr)?;
    assert_eq!(client.ask(r#"{"pt":"shared","count":9}"#)?["count"], 9);
    Ok(())
}

/// A socket that is bound to an address which sockets of another process have. It is connected elsewhere, so that the
/// kernel deals nothing of what comes to that address to it.
fn socket_at(addr: SocketAddr) -> Result<UdpSocket> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    bind(&socket, &addr)?;
    let socket = UdpSocket::from(socket);
    socket.connect("127.0.0.1:9")?;
    Ok(socket)
}

/// A stranger does not push out the memory of what a device has published: its retry is no second message.
#[test]
fn strangers_do_not_make_a_retry_a_second_message() -> Result<()> {
    // The memory has 256 shares, by hashes with random keys. Two devices seldom have the same one.
    ensure!(is_remembered()? || is_remembered()?, "another device's flood made it forget");
    Ok(())
}

/// Whether a new server still knows the device's message when another device has filled its memory.
fn is_remembered() -> Result<bool> {
    const REMEMBERED: usize = 512;
    let server = Server::start_with_datagrams(&format!(
        "[udp]\nthreads = 1\nduplicates_max = {REMEMBERED}\nduplicate_window = \"60s\"\n\
         datagrams_per_source_per_second = 0\n\
         [[auth.tokens]]\ntoken = \"device's\"\ndevice = \"d1\"\n\
         [[auth.tokens]]\ntoken = \"other's\"\ndevice = \"d2\"\n[limits]\npublishes_per_second = 0\n\
         [[topic_classes]]\npattern = \"news\"\npublish = [\"devices\"]\n"
    ))?;
    let device = Datagrams::from([127, 0, 0, 2], server.udp_addr()?)?;
    let publish = r#"{"pt":"device's","publish":{"topic":"news","text":"once"},"id":1}"#;
    let published = device.ask(publish)?;
    let first = published["published"]["messageId"].as_str().context("an id")?.to_owned();
    let flood = |token: &str, says: &str| -> Result<()> {
        let stranger = Datagrams::from([127, 0, 0, 3], server.udp_addr()?)?;
        for number in 0..REMEMBERED * 2 {
            let publish = json!({"topic": "news", "text": "x"});
            let datagram = json!({"pt": token, "publish": publish, "id": number, "room": "for it"});
            let answer = stranger.ask(&datagram.to_string())?;
            ensure!(answer[says].is_string() || answer[says].is_object(), "{answer}");
        }
        Ok(())
    };
    flood("nobody's", "error")?;
    assert_eq!(device.ask(publish)?["published"]["messageId"], *first, "a stranger's flood");
    assert_eq!(udp(&server, "forgotten", "")?, 0.0);
    // Another device fills the memory with what was done, and pushes out its own alone.
    flood("other's", "published")?;
    let again = device.ask(publish)?;
    assert!(udp(&server, "forgotten", "")? > 0.0);
    Ok(again["published"]["messageId"] == *first)
}

/// Forged signed tokens, more than may fail: they are refused before anything is computed, and the device whose token was
/// verified is served as before.
#[test]
fn forged_signatures_by_datagram_have_a_rate() -> Result<()> {
    const FLOOD: u32 = 3_000;
    // HS256 by `SECRET`, for `user-7`, until the year 2100.
    const SECRET: &str = "0123456789abcdef0123456789abcdef";
    const SIGNED: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJ1c2VyLTciLCJleHAiOjQxMDI0NDQ4MDB9.ppbPv3VnDgRRWiPwfpHe-08yAbZLB1Hw6SPC7fEQ6IU";
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("jwt.key");
    std::fs::write(&file, SECRET)?;
    let server = Server::start_with_datagrams(&format!(
        "[udp]\ndatagrams_per_source_per_second = 0\n[auth.jwt]\ndatagram_failures_per_second = 20\n\
         [[auth.jwt.keys]]\nalgorithm = \"HS256\"\nfile = {file:?}\n\
         [[topic_classes]]\npattern = \"news\"\npublish = [\"devices\"]\n"
    ))?;
    let addr = server.udp_addr()?;
    let device = Datagrams::from([127, 0, 0, 2], addr)?;
    let publish = |token: &str, number: u32| {
        let publish = json!({"topic": "news", "text": "x"});
        json!({"pt": token, "publish": publish, "id": number}).to_string()
    };
    ensure!(device.ask(&publish(SIGNED, 0))?["published"].is_object());
    let begun = now();
    let mut limited = 0;
    for number in 0..FLOOD {
        let [_, _, high, low] = number.to_be_bytes();
        let stranger = Datagrams::from([127, 66, high, low], addr)?;
        let forged =
            format!("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJkIiwiZXhwIjo0MTAyNDQ0ODAwfQ.{number:043}");
        let refused = stranger.ask(&publish(&forged, number))?;
        match refused["error"].as_str() {
            Some("rate_limited") => {
                ensure!(refused["retryAfterMs"].as_u64().is_some_and(|ms| ms > 0), "{refused}");
                limited += 1;
            }
            Some("unauthorized") => {}
            _ => bail!("{refused}"),
        }
    }
    let forgiven = 20.0 * (1.0 + begun.elapsed().as_secs_f64().ceil());
    let metrics = server.metrics()?;
    let verified = metrics.sum("weir_jwt_verifications_total", "") - 1.0;
    assert!(limited > 0 && verified <= forgiven, "{verified} were verified, {forgiven} may fail");
    assert_eq!(verified + f64::from(limited), f64::from(FLOOD));
    let of_limit = [("kind", "jwt"), ("outcome", "limited")];
    assert_eq!(metrics.sum_of("weir_authentications_total", &of_limit), f64::from(limited));
    for number in 1..50 {
        let published = device.ask(&publish(SIGNED, number))?;
        ensure!(published["published"].is_object(), "{published}");
    }
    assert_eq!(server.metrics()?.sum("weir_jwt_verifications_total", ""), verified + 1.0);
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.pid()))?;
    let names = threads.map(|thread| Ok(std::fs::read_to_string(thread?.path().join("comm"))?));
    let names: Vec<String> = names.collect::<Result<_>>()?;
    assert!(names.iter().any(|name| name == "weir-verify\n"), "{names:?}");
    Ok(())
}
