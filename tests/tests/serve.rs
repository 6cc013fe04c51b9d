//! The main job over real sockets: greet, subscribe, push to one, to a topic, to all; sessions, tokens, ends.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde_json::json;
use weir_tests::http2::{Http2, PING, frame as http2_frame};
use weir_tests::{Answer, Device, Metrics, PATIENCE, Server, Upgrade, masked, now};
use weir_wire::v1::{self, client_message, push, server_message};
use weir_wire::{Advice, CloseReason, frame};

fn text(push: &v1::Push) -> &str {
    match &push.payload {
        Some(push::Payload::Text(text)) => text,
        other => panic!("expected text, got {other:?}"),
    }
}

#[test]
fn a_message_to_a_topic_reaches_its_subscribers_and_nobody_else() -> Result<()> {
    let server = Server::start("")?;
    let mut first = Device::greet(server.tcp, "first", &["news", "sport"])?;
    let mut second = Device::greet(server.tcp, "second", &["news"])?;
    let mut third = Device::greet(server.tcp, "third", &["sport"])?;
    let answer = server.publish(&json!({"topic": "news", "text": "one"}))?;
    assert_eq!((answer["connections"].as_u64(), answer["offset"].as_u64()), (Some(2), Some(1)));
    server.publish(
        &json!({"topic": "sport", "text": "two", "content_type": "text/plain", "key": "k"}),
    )?;
    let to_first = [first.push()?, first.push()?];
    assert_eq!(to_first.each_ref().map(text), ["one", "two"]);
    assert_eq!((to_first[1].content_type.as_str(), to_first[1].key.as_str()), ("text/plain", "k"));
    let to_second = second.push()?;
    assert_eq!((text(&to_second), to_second.offset, to_second.topic.as_str()), ("one", 1, "news"));
    assert_eq!(format!("{:016x}", to_second.message_id), answer["id"]);
    assert_eq!(text(&third.push()?), "two");
    Ok(())
}

#[test]
fn a_message_to_all_and_one_to_a_device() -> Result<()> {
    let server = Server::start("")?;
    let mut first = Device::greet(server.tcp, "first", &[])?;
    let mut second = Device::greet(server.tcp, "second", &[])?;
    assert_eq!(server.publish(&json!({"all": true, "data": "AAEC"}))?["connections"], 2);
    for device in [&mut first, &mut second] {
        assert_eq!(device.push()?.payload, Some(push::Payload::Data(vec![0, 1, 2])));
    }
    assert_eq!(server.publish(&json!({"device": "second", "text": "you"}))?["connections"], 1);
    assert_eq!(text(&second.push()?), "you");
    assert_eq!(server.publish(&json!({"device": "nobody", "text": "you"}))?["connections"], 0);
    Ok(())
}

#[test]
fn who_unsubscribes_hears_no_more_and_who_returns_begins_there() -> Result<()> {
    let server = Server::start("")?;
    let mut device = Device::greet(server.tcp, "first", &["news"])?;
    let mut keeper = Device::greet(server.tcp, "keeper", &["news"])?;
    device.send(client_message::Kind::Unsubscribe(v1::Unsubscribe { topic: "news".into() }))?;
    assert!(matches!(device.hear()?, Some(server_message::Kind::Unsubscribed(_))));
    // The count goes down when the shard's report has come, which may be after the device has its answer.
    server.await_answer("/v1/topics", |topics| topics["topics"][0]["subscribers"] == 1)?;
    assert_eq!(server.publish(&json!({"topic": "news", "text": "missed"}))?["connections"], 1);
    assert_eq!(text(&keeper.push()?), "missed");
    device.send(client_message::Kind::Subscribe(v1::Subscribe {
        topic: "news".into(),
        position: None,
        presence: false,
    }))?;
    let Some(server_message::Kind::Subscribed(subscribed)) = device.hear()? else {
        panic!("expected Subscribed");
    };
    assert_eq!(subscribed.position.context("a position")?.offset, 1);
    server.publish(&json!({"topic": "news", "text": "seen"}))?;
    let push = device.push()?;
    assert_eq!((text(&push), push.offset), ("seen", 2));
    Ok(())
}

#[test]
fn a_second_connection_of_a_device_replaces_the_first() -> Result<()> {
    let server = Server::start("")?;
    let mut first = Device::greet(server.tcp, "twin", &["news"])?;
    let mut second = Device::greet(server.tcp, "twin", &["news"])?;
    let goodbye = first.goodbye()?;
    assert_eq!(goodbye.code, u32::from(CloseReason::Replaced.code()));
    let metrics =
        server.await_metrics("one connection", |metrics| metrics.connections("settled") == 1.0)?;
    assert_eq!(metrics.closed("replaced"), 1.0);
    assert_eq!(server.publish(&json!({"device": "twin", "text": "hello"}))?["connections"], 1);
    assert_eq!(text(&second.push()?), "hello");
    Ok(())
}

/// What a device connects by.
#[derive(Debug, Clone, Copy)]
enum Way {
    Frames,
    WebSocket,
    Events,
    EventsOverHttp2,
}

impl Way {
    const ALL: [Way; 4] = [Way::Frames, Way::WebSocket, Way::Events, Way::EventsOverHttp2];

    /// Connects and asks for the topic `news`. Reads nothing: the server may be stopped.
    fn connect(self, server: &Server, device: &str) -> Result<TcpStream> {
        let http = server.http.context("it speaks HTTP")?;
        let path = format!("/v1/sse?device={device}&topic=news");
        let stream = match self {
            Way::Frames => {
                let topics =
                    vec![v1::Subscribe { topic: "news".into(), position: None, presence: false }];
                let hello = v1::Hello { device_id: device.into(), topics, ..v1::Hello::default() };
                let hello = v1::ClientMessage { kind: Some(client_message::Kind::Hello(hello)) };
                let mut bytes = Vec::new();
                frame::encode(&hello, &mut bytes);
                let mut stream = TcpStream::connect(server.tcp)?;
                stream.write_all(&bytes)?;
                stream
            }
            Way::WebSocket => {
                let hello = json!({"hello": {"deviceId": device, "topics": [{"topic": "news"}]}});
                let rest = masked(0x81, hello.to_string().as_bytes());
                Upgrade { rest: &rest, ..Upgrade::default() }.say(http)?
            }
            Way::Events => {
                let mut stream = TcpStream::connect(http)?;
                write!(stream, "GET {path} HTTP/1.1\r\nHost: {http}\r\n\r\n")?;
                stream
            }
            Way::EventsOverHttp2 => {
                let mut client = Http2::connect(http, &[])?;
                client.get(1, &path)?;
                client.stream
            }
        };
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    }
}

/// Reads on until one of these words comes, whatever is round it; `None` at the end.
fn hear_word<'a>(stream: &mut TcpStream, words: &[&'a str]) -> Option<&'a str> {
    let (mut heard, mut bytes) = (Vec::new(), [0; 4096]);
    loop {
        let has =
            |word: &&&str| heard.windows(word.len()).any(|part: &[u8]| part == word.as_bytes());
        if let Some(word) = words.iter().find(has) {
            return Some(word);
        }
        match stream.read(&mut bytes) {
            Ok(0) | Err(_) => return None,
            Ok(count) => heard.extend(&bytes[..count]),
        }
    }
}

/// Devices reconnect while the process is stopped, each once more than it may have connections: the connections that it
/// opened last stay, and the first one is told that it was replaced, if it is still there to hear it.
fn check_pause(per_device: usize) -> Result<()> {
    const DEVICES: usize = 400;
    let server = Server::start_with_http(&format!(
        "[limits]\nconnections_per_device_max = {per_device}\n[threads]\nshards = 4\n"
    ))?;
    let devices: Vec<(Way, String)> = (0..DEVICES)
        .map(|number| (Way::ALL[number % Way::ALL.len()], format!("{per_device}-{number}")))
        .collect();
    let connect = |(way, id): &(Way, String)| way.connect(&server, id);
    let mut before = devices.iter().map(connect).collect::<Result<Vec<_>>>()?;
    for stream in &mut before {
        assert_eq!(hear_word(stream, &["news", "replaced"]), Some("news"));
    }
    server.signal(Signal::STOP)?;
    drop(before);
    let first = devices.iter().map(connect).collect::<Result<Vec<_>>>()?;
    // Every second one is gone before the process goes on.
    let mut first: Vec<_> =
        first.into_iter().enumerate().map(|(at, one)| (at % 8 < 4).then_some(one)).collect();
    let mut latest = (0..per_device)
        .map(|_| devices.iter().map(connect).collect::<Result<Vec<_>>>())
        .collect::<Result<Vec<_>>>()?;
    server.signal(Signal::CONT)?;

    let mut lost = Vec::new();
    for streams in &mut latest {
        for ((way, device), stream) in devices.iter().zip(streams) {
            if hear_word(stream, &["news", "replaced"]) != Some("news") {
                lost.push((*way, device));
            }
        }
    }
    let accepted = (DEVICES * (per_device + 1)) as f64;
    server.await_metrics("all to be let in", |metrics| {
        metrics.connections("unsettled") == 0.0
            && metrics.sum("weir_connections_accepted_total", "") >= accepted
    })?;
    server.publish(&json!({"topic": "news", "text": "still here"}))?;
    for streams in &mut latest {
        for ((way, device), stream) in devices.iter().zip(streams) {
            if hear_word(stream, &["still here", "replaced"]) != Some("still here") {
                lost.push((*way, device));
            }
        }
    }
    assert!(lost.is_empty(), "{} of {DEVICES} lost a newer connection: {lost:?}", lost.len());
    for stream in first.iter_mut().flatten() {
        assert_eq!(hear_word(stream, &["replaced"]), Some("replaced"));
    }
    server.await_metrics("one connection too many to be closed", |metrics| {
        metrics.connections("settled") == (DEVICES * per_device) as f64
    })?;
    Ok(())
}

#[test]
fn a_pause_of_the_process_leaves_each_device_its_newest_connection() -> Result<()> {
    check_pause(1)
}

#[test]
fn a_pause_of_the_process_leaves_each_device_its_newest_connections() -> Result<()> {
    check_pause(2)
}

const TOKENS: &str = "[auth]\nanonymous = true\n[[auth.tokens]]\ntoken = \"open-sesame-open-sesame\"\n\
    [[auth.tokens]]\ntoken = \"only-for-the-gate-house\"\ndevice = \"gate\"\n";

fn hello(device_id: &str, token: &str) -> client_message::Kind {
    client_message::Kind::Hello(v1::Hello {
        device_id: device_id.into(),
        token: token.into(),
        ..v1::Hello::default()
    })
}

fn check_token(server: &Server, device_id: &str, token: &str, is_welcome: bool) -> Result<()> {
    let mut device = Device::connect(server.tcp)?;
    device.send(hello(device_id, token))?;
    if is_welcome {
        assert!(
            matches!(device.hear()?, Some(server_message::Kind::Welcome(_))),
            "{device_id} {token}"
        );
    } else {
        let goodbye = device.goodbye()?;
        assert_eq!(
            goodbye.code,
            u32::from(CloseReason::Unauthorized.code()),
            "{device_id} {token}"
        );
        assert_eq!(Advice::from_code(goodbye.code), Some(Advice::FixCredentials));
    }
    Ok(())
}

#[test]
fn a_token_permits_what_it_permits_and_a_wrong_one_nothing() -> Result<()> {
    let server = Server::start(TOKENS)?;
    check_token(&server, "anybody", "", true)?;
    check_token(&server, "somebody", "open-sesame-open-sesame", true)?;
    check_token(&server, "gate", "only-for-the-gate-house", true)?;
    check_token(&server, "house", "only-for-the-gate-house", false)?;
    check_token(&server, "anybody", "wrong", false)?;
    check_token(&server, "somebody", "open-sesame-open-sesam", false)?;
    let closed = Server::start(&TOKENS.replace("true", "false"))?;
    check_token(&closed, "anybody", "", false)?;
    check_token(&closed, "somebody", "open-sesame-open-sesame", true)
}

#[test]
fn an_operator_closes_one_connection_and_revokes_a_device() -> Result<()> {
    let server = Server::start("")?;
    let mut device = Device::greet(server.tcp, "first", &["news"])?;
    let page: serde_json::Value =
        serde_json::from_str(&Answer::get(server.admin, "/v1/connections")?.body)?;
    let connection = &page["connections"][0];
    assert_eq!((&connection["device"], &connection["topics"]), (&json!("first"), &json!(["news"])));
    let id = connection["id"].as_str().context("an id")?;
    assert_eq!(Answer::get(server.admin, &format!("/v1/connections/{id}"))?.status, 200);
    assert_eq!(Answer::delete(server.admin, &format!("/v1/connections/{id}"))?.status, 204);
    assert_eq!(device.goodbye()?.code, u32::from(CloseReason::ClosedByOperator.code()));
    assert_eq!(Answer::get(server.admin, &format!("/v1/connections/{id}"))?.status, 404);
    let mut second = Device::greet(server.tcp, "second", &[])?;
    assert_eq!(Answer::post(server.admin, "/v1/devices/second/revoke", "{}")?.status, 204);
    assert_eq!(second.goodbye()?.code, u32::from(CloseReason::Revoked.code()));
    Ok(())
}

#[test]
fn sigterm_says_goodbye_with_a_delay_and_exits_with_zero() -> Result<()> {
    let mut server = Server::start("[connection]\ndrain_timeout = \"2s\"\n")?;
    let mut devices = (0..50)
        .map(|number| Device::greet(server.tcp, &format!("device-{number}"), &["news"]))
        .collect::<Result<Vec<_>>>()?;
    server.publish(&json!({"topic": "news", "text": "last"}))?;
    server.signal(Signal::TERM)?;
    let mut delays = Vec::new();
    for device in &mut devices {
        assert_eq!(text(&device.push()?), "last");
        let goodbye = device.goodbye()?;
        assert_eq!(goodbye.code, u32::from(CloseReason::Draining.code()));
        delays.push(goodbye.retry_after_ms);
    }
    delays.sort_unstable();
    assert!(delays[0] >= 1_000 && delays[49] <= 10_000, "as is documented: {delays:?}");
    delays.dedup();
    assert!(delays.len() > 10, "the delays are spread: {delays:?}");
    drop(devices);
    assert!(server.wait()?.success(), "{}", server.log());
    Ok(())
}

#[test]
fn curl_publishes_many_in_one_request() -> Result<()> {
    let server = Server::start("")?;
    let mut device = Device::greet(server.tcp, "first", &["news"])?;
    let body = json!({"messages": [
        {"topic": "news", "text": "one"},
        {"topic": "ne*s", "text": "two"},
        {"device": "first", "text": "three"},
    ]});
    let output = Command::new("curl")
        .args([
            "--silent",
            "--show-error",
            "--max-time",
            "30",
            "--header",
            "Content-Type: application/json",
        ])
        .args(["--data", &body.to_string(), &format!("http://{}/v1/publish", server.admin)])
        .output()
        .context("running curl")?;
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let results = answer["results"].as_array().context("results")?;
    assert_eq!(results.len(), 3, "{answer}");
    assert_eq!((&results[0]["connections"], &results[2]["connections"]), (&json!(1), &json!(1)));
    assert_eq!(results[1]["error"]["status"], 400, "{answer}");
    // A topic's messages come in order; between a topic and a device there is none.
    let mut texts = [device.push()?, device.push()?].map(|push| text(&push).to_owned());
    texts.sort();
    assert_eq!(texts, ["one", "three"]);
    Ok(())
}

#[test]
fn a_broadcast_published_with_curl_reaches_ten_thousand() -> Result<()> {
    const COUNT: usize = 10_000;
    weir_tests::raise_open_files()?;
    let server = Server::start("")?;
    let mut devices = (0..COUNT)
        .map(|number| Device::greet(server.tcp, &format!("device-{number}"), &[]))
        .collect::<Result<Vec<_>>>()?;
    let content = "to everybody, once and whole: ".repeat(8);
    let output = Command::new("curl")
        .args([
            "--silent",
            "--show-error",
            "--max-time",
            "30",
            "--header",
            "Content-Type: application/json",
        ])
        .args(["--data", &json!({"all": true, "text": content}).to_string()])
        .arg(format!("http://{}/v1/publish", server.admin))
        .output()
        .context("running curl")?;
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(answer["connections"], COUNT);
    for device in &mut devices {
        assert_eq!(text(&device.push()?), content);
    }
    #[expect(clippy::cast_precision_loss, reason = "ten thousand")]
    server.await_metrics("the deliveries to be counted", |metrics| {
        metrics.sum("weir_messages_delivered_total", "") == COUNT as f64
    })?;
    Ok(())
}

/// After its own end a device is told nothing, before `Hello` as after it.
#[test]
fn a_device_that_ends_before_hello_is_told_nothing() -> Result<()> {
    let server = Server::start_with_http("")?;
    let upgrade = format!(
        "GET /v1/connect HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
         Sec-WebSocket-Protocol: weir.v1.protobuf\r\n\r\n",
        server.http_addr()?
    );
    for (addr, said, is_answered) in [
        (server.tcp, &b""[..], false),
        (server.tcp, b"\x21\x0a", false),
        (server.http_addr()?, upgrade.as_bytes(), true),
    ] {
        let mut stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(said)?;
        stream.shutdown(Shutdown::Write)?;
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard)?;
        let head = heard.windows(4).position(|part| part == b"\r\n\r\n");
        assert_eq!(head.is_some(), is_answered, "{heard:?}");
        let behind = head.map_or(&heard[..], |head| &heard[head + 4..]);
        assert!(behind.is_empty(), "it is told {behind:?}");
    }
    server.await_metrics("their ends", |metrics| metrics.closed("peer_closed") == 3.0)?;
    Ok(())
}

/// An operator learns why a signed token is refused, and a stranger with many of them fills no log.
#[test]
fn a_refused_signed_token_is_told_with_its_cause() -> Result<()> {
    const REFUSED: usize = 100;
    let directory = tempfile::tempdir()?;
    let key = directory.path().join("key");
    std::fs::write(&key, "0123456789abcdef0123456789abcdef")?;
    let server = Server::start_with_http(&format!(
        "[[auth.jwt.keys]]\nalgorithm = \"HS256\"\nkid = \"ours\"\nfile = {key:?}\n"
    ))?;
    // {"alg":"HS256","kid":"ours"} and {"sub":"van-7","exp":4102444800}, and a signature that is none of it.
    let token =
        "eyJhbGciOiJIUzI1NiIsImtpZCI6Im91cnMifQ.eyJzdWIiOiJ2YW4tNyIsImV4cCI6NDEwMjQ0NDgwMH0.AAAA";
    check_token(&server, "van-7", token, false)?;
    let told = "a signed token is refused why=\"InvalidSignature\" kid=\"ours\" subject=\"van-7\" \
                source=\"127.0.0.1\"";
    server.await_log(told, 1)?;
    let addr = server.http_addr()?;
    let ask = || {
        let head =
            format!("GET /v1/topics/t/history HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n");
        Answer::ask(addr, &format!("{head}Authorization: Bearer {token}\r\n\r\n"))
    };
    let began = now();
    for _ in 1..REFUSED {
        assert_eq!(ask()?.status, 401);
    }
    let lines = server.log().matches("a signed token is refused").count();
    let seconds = usize::try_from(began.elapsed().as_secs())? + 2;
    assert!(lines <= 5 * seconds, "{lines} lines in {seconds} s");
    assert!(!server.log().contains(token), "a token is in the log");
    Ok(())
}

/// A stranger makes a library log a line for each of his frames.
#[test]
fn a_peer_fills_no_log() -> Result<()> {
    const FRAMES: usize = 50_000;
    let server = Server::start_with_http("")?;
    let mut peer = Http2::connect(server.http_addr()?, &[])?;
    let began = now();
    // The answer to a ping that was never sent.
    let frames = http2_frame(PING, 1, 0, b"abcdefgh").repeat(1_000);
    for _ in 0..FRAMES / 1_000 {
        peer.stream.write_all(&frames)?;
    }
    // All of them have been read when what stands behind them is answered.
    peer.get(1, "/rest/hello")?;
    peer.body(1)?;
    let seconds = usize::try_from(began.elapsed().as_secs())? + 2;
    server.await_log("PING ack", 1)?;
    let lines = server.log().matches("PING ack").count();
    assert!(lines <= 10 * seconds, "{lines} lines in {seconds} s");
    let suppressed = |metrics: &Metrics| metrics.sum("weir_log_lines_suppressed_total", "");
    server.await_metrics("lines that were suppressed", |metrics| suppressed(metrics) > 0.0)?;
    let lines = server.log().matches("PING ack").count();
    #[expect(clippy::cast_precision_loss, reason = "some thousands")]
    server.await_metrics("all of them to be counted", |metrics| {
        suppressed(metrics) == (FRAMES - lines) as f64
    })?;
    server.await_log("similar lines were suppressed", 1)?;
    assert!(server.log().contains("of=\"h2::"), "{}", server.log());
    Ok(())
}
