//! docs/protocol.md says what the code does: its tables, and its exchange in bytes.

use weir_wire::format::{self, Format};
use weir_wire::hot::{self, FromDevice, Payload, Push};
use weir_wire::v1::{self, client_message, server_message};
use weir_wire::{Advice, CallCode, CloseReason, ErrorCode, ProstMessage, frame, json, ws};

/// Of the topic in the examples.
const EPOCH: u64 = 0x8f3a_61c2_d4e5_b709;

const DOCUMENT: &str = include_str!("../../../docs/protocol.md");
const AUTHORS: &str = include_str!("../../../docs/client-authors.md");

#[test]
fn the_table_of_close_codes_is_complete() {
    let mut expected: Vec<_> = CloseReason::ALL
        .into_iter()
        .map(|reason| {
            [reason.code().to_string(), format!("`{reason}`"), advice(reason.advice()).to_owned()]
        })
        .collect();
    expected.sort();
    let documented: Vec<_> = table("| code | reason | do | because |")
        .into_iter()
        .map(|row| [row[0].to_owned(), row[1].to_owned(), row[2].to_owned()])
        .collect();
    assert_eq!(documented, expected);
}

#[test]
fn the_page_for_authors_of_clients_has_each_close_code() {
    let mut expected: Vec<_> = CloseReason::ALL
        .into_iter()
        .map(|reason| {
            let reaction = match reason.advice() {
                Advice::ReconnectNow => "reconnects now",
                Advice::ReconnectLater => "waits, then reconnects",
                Advice::FixCredentials => "needs another token",
                Advice::DoNotReturn => "gives up",
            };
            [reason.code().to_string(), format!("`{reason}`"), reaction.to_owned()]
        })
        .collect();
    expected.sort();
    let head = "| code | reason | what a client does | hint for its author |";
    let rows = table_of(AUTHORS, head).into_iter();
    let documented: Vec<_> = rows.map(|row| [row[0], row[1], row[2]].map(str::to_owned)).collect();
    assert_eq!(documented, expected);
}

#[test]
fn the_ranges_of_close_codes_are_those_of_the_advice() {
    for (row, expected) in table("| codes | do |").into_iter().zip([
        Advice::ReconnectNow,
        Advice::ReconnectLater,
        Advice::FixCredentials,
        Advice::DoNotReturn,
    ]) {
        let (first, last) = row[0].split_once(" to ").expect("a range of codes");
        for code in first.parse::<u32>().unwrap()..=last.parse().unwrap() {
            assert_eq!(Advice::from_code(code), Some(expected));
        }
    }
}

#[test]
fn the_table_of_error_codes_is_complete() {
    let expected: Vec<_> = ErrorCode::ALL.into_iter().map(|code| format!("`{code}`")).collect();
    let documented: Vec<_> = table("| code | meaning |").into_iter().map(|row| row[0]).collect();
    assert_eq!(documented, expected);
}

#[test]
fn the_table_of_codes_of_answers_is_complete() {
    let expected: Vec<_> = CallCode::ALL.into_iter().map(|code| format!("`{code}`")).collect();
    let documented: Vec<_> =
        table("| code of an answer | meaning |").into_iter().map(|row| row[0]).collect();
    assert_eq!(documented, expected);
}

#[test]
fn the_calls_in_bytes_are_right() {
    let call = |method: &str, text: &str, deadline_ms| v1::Call {
        id: 1,
        method: method.to_owned(),
        payload: Some(v1::call::Payload::Text(text.to_owned())),
        deadline_ms,
        ..v1::Call::default()
    };
    let (mut device, mut server) = (Vec::new(), Vec::new());
    let unsupported = v1::Answer { id: 1, code: "unsupported".to_owned(), ..v1::Answer::default() };
    for kind in [
        client_message::Kind::Call(call("orders/price", "{}", 2_000)),
        client_message::Kind::Answer(unsupported),
    ] {
        frame::encode(&v1::ClientMessage { kind: Some(kind) }, &mut device);
    }
    let payload = Some(v1::answer::Payload::Text("5".to_owned()));
    let done = v1::Answer { id: 1, payload, status: 200, ..v1::Answer::default() };
    for kind in [
        server_message::Kind::Answer(done),
        server_message::Kind::Call(call("lock/open", "", 5_000)),
    ] {
        frame::encode(&v1::ServerMessage { kind: Some(kind) }, &mut server);
    }
    let section = section("## Calls");
    assert_eq!(bytes_of(section, "device"), device);
    assert_eq!(bytes_of(section, "server"), server);
}

#[test]
fn the_exchange_in_bytes_is_right() {
    let mut device = Vec::new();
    let hello = v1::Hello {
        device_id: "sensor-17".to_owned(),
        client: "demo/1".to_owned(),
        heartbeat_ms: 30_000,
        topics: vec![v1::Subscribe { topic: "news".to_owned(), position: None, presence: false }],
        ..v1::Hello::default()
    };
    frame::encode(
        &v1::ClientMessage { kind: Some(client_message::Kind::Hello(hello)) },
        &mut device,
    );
    hot::encode_ping_frame(b"hi", &mut device);

    let mut server = Vec::new();
    let welcome = v1::Welcome {
        connection_id: 0x1_0000_0007,
        heartbeat_ms: 30_000,
        server_time_ms: 1_767_225_600_000,
    };
    frame::encode(
        &v1::ServerMessage { kind: Some(server_message::Kind::Welcome(welcome)) },
        &mut server,
    );
    let subscribed = v1::Subscribed {
        topic: "news".to_owned(),
        position: Some(v1::Position { epoch: EPOCH, offset: 41 }),
        recovered: false,
    };
    frame::encode(
        &v1::ServerMessage { kind: Some(server_message::Kind::Subscribed(subscribed)) },
        &mut server,
    );
    hot::encode_pong_frame(b"hi", &mut server);

    let section = section("## An exchange in bytes");
    assert_eq!(bytes_of(section, "device"), device);
    assert_eq!(bytes_of(section, "server"), server);
}

#[test]
fn coming_back_in_bytes_is_right() {
    let position = Some(v1::Position { epoch: EPOCH, offset: 41 });
    let mut device = Vec::new();
    let hello = v1::Hello {
        device_id: "sensor-17".to_owned(),
        topics: vec![v1::Subscribe { topic: "news".to_owned(), position, presence: false }],
        ..v1::Hello::default()
    };
    frame::encode(
        &v1::ClientMessage { kind: Some(client_message::Kind::Hello(hello)) },
        &mut device,
    );

    let section = section("## Coming back, in bytes");
    assert_eq!(bytes_of(section, "device"), device);
    let [welcome, rest] = coming_back();
    assert_eq!(bytes_of(section, "server"), [welcome, rest].concat());
}

#[test]
fn coming_back_in_json_is_right() {
    let [_, frames] = coming_back();
    let mut out = Vec::new();
    format::encode(Format::WsJson, &frames, EPOCH, &mut out);
    let mut rest = &out[..];
    for line in block(section("## JSON"), "json").lines() {
        let (head, used) = ws::decode_server_frame(rest, usize::MAX).unwrap().unwrap();
        assert_eq!(str::from_utf8(&rest[head.payload]), Ok(line));
        rest = &rest[used..];
    }
    assert_eq!(rest, b"");
}

#[test]
fn coming_back_in_events_is_right() {
    let [_, frames] = coming_back();
    let [subscribed, push, batch] = frames_of(&frames);
    let mut out = Vec::new();
    for frame in [subscribed, push, batch] {
        format::encode(Format::Sse, frame, EPOCH, &mut out);
    }
    assert_eq!(str::from_utf8(&out), Ok(block(section("## Server-sent events"), "text")));
}

/// The rows in which JSON deviates from what protobuf says, and what is said to be taken.
#[test]
fn json_is_read_as_the_page_says() {
    for taken in [
        r#"{"hello":{"device_id":"a","heartbeatMs":"5","x":1}}"#,
        r#"{"hello":{"deviceId":"a","heartbeatMs":5,"topics":[{"topic":"a","position":null}]}}"#,
        r#"{"publish":{"topic":"a","data":"-w"}}"#,
        r#"{"publish":{"topic":"a","text":null,"data":"+w=="}}"#,
    ] {
        assert!(json::client_message(taken).is_ok(), "{taken}");
    }
    for refused in [
        r#"{"hello":{"heartbeatMs":1.0}}"#,
        r#"{"hello":{"heartbeatMs":1e2}}"#,
        r#"{"hello":{"deviceId":null}}"#,
        r#"{"hello":{"heartbeatMs":null}}"#,
        r#"{"hello":{"topics":null}}"#,
        r#"{"hello":{"deviceId":"a","device_id":"a"}}"#,
        r#"{"publish":{"topic":"a","text":"a","data":"+w=="}}"#,
    ] {
        assert!(json::client_message(refused).is_err(), "{refused}");
    }
    let recovered = r#"{"subscribed":{"topic":"a","recovered":null}}"#;
    assert!(json::server_message(recovered).is_err());
}

/// `Welcome`, and what follows.
fn coming_back() -> [Vec<u8>; 2] {
    let position = Some(v1::Position { epoch: EPOCH, offset: 41 });
    let mut server = [Vec::new(), Vec::new()];
    let welcome = v1::Welcome {
        connection_id: 0x1_0000_0008,
        heartbeat_ms: 60_000,
        server_time_ms: 1_767_225_660_000,
    };
    let subscribed = v1::Subscribed { topic: "news".to_owned(), position, recovered: true };
    for (kind, out) in
        [server_message::Kind::Welcome(welcome), server_message::Kind::Subscribed(subscribed)]
            .into_iter()
            .zip(&mut server)
    {
        frame::encode(&v1::ServerMessage { kind: Some(kind) }, out);
    }
    let push = |text, key, id: u64, offset, sender| {
        let push = Push {
            topic: "news",
            payload: Payload::Text(text),
            key,
            message_id: 0x5d0c_7a9e_0000_0000 + id,
            offset,
            sender,
            ..Push::default()
        };
        let mut frame = Vec::new();
        push.encode_frame(&mut frame);
        frame
    };
    server[1].extend(push("rain", "oslo", 1, 42, 0));
    let (sun, snow) = (push("sun", "rome", 2, 43, 0), push("snow", "oslo", 4, 45, 0x2_0000_0003));
    hot::encode_batch_frames("news", &[(43, &sun), (45, &snow)], 65_536, &mut server[1]);
    server
}

/// The first frames in these bytes.
fn frames_of<const COUNT: usize>(mut bytes: &[u8]) -> [&[u8]; COUNT] {
    let frames = [(); COUNT].map(|()| {
        let whole = frame::whole_bytes(bytes, usize::MAX).expect("a frame").expect("a length");
        let (frame, rest) = bytes.split_at(whole);
        bytes = rest;
        frame
    });
    assert_eq!(bytes, b"");
    frames
}

/// What the page says of the empty frame, of two kinds in one message and of a length in two forms.
#[test]
fn the_rules_hold_that_the_page_states_in_words() {
    assert_eq!(FromDevice::decode(&[]), Ok(FromDevice::Unknown));
    assert_eq!(frame::decode(&[0x00], 1), Ok(Some((&[][..], 1))));
    assert!(frame::decode(&[0x80, 0x00], 1).is_err());
    let hello = v1::ClientMessage { kind: Some(client_message::Kind::Hello(v1::Hello::default())) };
    let ping = v1::ClientMessage { kind: Some(client_message::Kind::Ping(v1::Ping::default())) };
    assert!(FromDevice::decode(&[hello.encode_to_vec(), ping.encode_to_vec()].concat()).is_err());
    assert_eq!(
        FromDevice::decode(&[ping.encode_to_vec(), hello.encode_to_vec()].concat()),
        Ok(FromDevice::Other)
    );
}

fn advice(advice: Advice) -> &'static str {
    match advice {
        Advice::ReconnectNow => "reconnect now",
        Advice::ReconnectLater => "reconnect later",
        Advice::FixCredentials => "fix credentials",
        Advice::DoNotReturn => "do not return",
    }
}

/// The rows of the table with this head.
fn table(head: &str) -> Vec<Vec<&'static str>> {
    table_of(DOCUMENT, head)
}

fn table_of(document: &'static str, head: &str) -> Vec<Vec<&'static str>> {
    let rows: Vec<_> = document
        .lines()
        .skip_while(|line| *line != head)
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(!rows.is_empty(), "no table {head}");
    rows
}

/// From this heading to the next.
fn section(heading: &str) -> &'static str {
    let (_, rest) = DOCUMENT.split_once(heading).expect("a section");
    rest.split("\n## ").next().unwrap_or(rest)
}

/// What stands in the first block of this kind.
fn block(section: &'static str, kind: &str) -> &'static str {
    let (_, rest) = section.split_once(&format!("```{kind}\n")).expect("a block");
    rest.split("```").next().unwrap_or(rest)
}

/// All that one side sends in the exchange.
fn bytes_of(section: &str, side: &str) -> Vec<u8> {
    section
        .lines()
        .filter_map(|line| line.strip_prefix(side)?.strip_prefix("  "))
        .flat_map(str::split_whitespace)
        .map(|byte| u8::from_str_radix(byte, 16).expect("a byte in hex"))
        .collect()
}
