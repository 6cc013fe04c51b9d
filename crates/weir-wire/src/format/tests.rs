//! Each message in each format. tests/json.rs checks random messages.

use super::*;
use crate::hot::{self, Payload, Push};
use crate::v1::server_message::Kind;
use crate::v1::{self, Position};

const EPOCH: u64 = 0x8f3a_61c2_d4e5_b709;

fn push(topic: &'static str, text: &'static str, offset: u64) -> Push<'static> {
    Push { topic, payload: Payload::Text(text), message_id: 7, offset, ..Push::default() }
}

fn push_frame(topic: &'static str, text: &'static str, offset: u64) -> Vec<u8> {
    let mut frame = Vec::new();
    push(topic, text, offset).encode_frame(&mut frame);
    frame
}

/// A tick of the topic `a`, of messages with these offsets.
fn batch_frame(offsets: &[u64]) -> Vec<u8> {
    let singles: Vec<_> =
        offsets.iter().map(|offset| (*offset, push_frame("a", "hi", *offset))).collect();
    let singles: Vec<_> = singles.iter().map(|(offset, frame)| (*offset, &frame[..])).collect();
    let mut frame = Vec::new();
    hot::encode_batch_frames("a", &singles, usize::MAX, &mut frame);
    frame
}

fn frame_of(kind: Kind) -> Vec<u8> {
    let mut out = Vec::new();
    frame::encode(&v1::ServerMessage { kind: Some(kind) }, &mut out);
    out
}

fn goodbye(reason: &str) -> Vec<u8> {
    let goodbye = v1::Goodbye { code: 4100, reason: reason.to_owned(), retry_after_ms: 1500 };
    frame_of(Kind::Goodbye(goodbye))
}

/// Checks the events for `frames`, appended to a buffer that is not empty. `encode` must return the
/// position of the id in `tail`, the end of the events.
#[track_caller]
fn check_sse(frames: &[u8], epoch: u64, expected: &str, tail: &str) {
    let mut out = b"before".to_vec();
    let found = encode(Format::Sse, frames, epoch, &mut out);
    assert_eq!(str::from_utf8(&out), Ok(&*format!("before{expected}")));
    let tail_bytes = found.map_or(0, |found| found.bytes);
    assert_eq!(str::from_utf8(&out[out.len() - tail_bytes..]), Ok(tail));
    let id = tail.strip_prefix("id:").map(|id| parse_sse_id(id.trim_end()).unwrap());
    assert_eq!(found.map(|found| vec![found.position]), id);
}

#[test]
fn every_format_stands_at_its_index() {
    for (index, format) in Format::ALL.into_iter().enumerate() {
        assert_eq!(format.index(), index);
    }
    assert_eq!(size_of::<Option<Format>>(), 1);
}

#[test]
fn a_stream_gets_a_copy() {
    let frames = [push_frame("a", "hi", 1), goodbye("draining")].concat();
    let mut out = vec![9];
    assert_eq!(encode(Format::Stream, &frames, EPOCH, &mut out), None);
    assert_eq!(out, [&[9], &frames[..]].concat());
}

#[test]
fn a_message_is_an_event_with_its_position() {
    let data = "data:{\"topic\":\"a\",\"text\":\"hi\",\"messageId\":\"7\",\"offset\":\"5\"}\n";
    let id = "id:8f3a61c2d4e5b709-5\n\n";
    check_sse(&push_frame("a", "hi", 5), EPOCH, &format!("{data}{id}"), id);
    check_sse(&push_frame("a", "hi", 5), 0, &format!("{data}\n"), "");
    let data = "data:{\"text\":\"hi\",\"messageId\":\"7\"}\n\n";
    check_sse(&push_frame("", "hi", 0), EPOCH, data, "");
}

#[test]
fn a_tick_is_an_event_for_each_message_and_the_last_has_the_id() {
    let data = |offset| {
        format!(
            "data:{{\"topic\":\"a\",\"text\":\"hi\",\"messageId\":\"7\",\"offset\":\"{offset}\"}}\n"
        )
    };
    let frames = [batch_frame(&[5, 6]), push_frame("a", "hi", 7), batch_frame(&[9])].concat();
    let id = "id:8f3a61c2d4e5b709-9\n\n";
    let events = format!("{}\n{}\n{}\n{}{id}", data(5), data(6), data(7), data(9));
    check_sse(&frames, EPOCH, &events, id);
    let events = format!("{}\n{}\n{}\n{}\n", data(5), data(6), data(7), data(9));
    check_sse(&frames, 0, &events, "");
}

#[test]
fn other_messages_are_named_events() {
    let position = Some(Position { epoch: EPOCH, offset: 41 });
    let subscribed = v1::Subscribed { topic: "a".to_owned(), position, recovered: true };
    let event = "event:subscribed\ndata:{\"topic\":\"a\",\"position\":{\"epoch\":\"10320668985496286985\",\"offset\":\"41\"},\"recovered\":true}\n";
    let id = "id:8f3a61c2d4e5b709-41\n\n";
    let subscribed = frame_of(Kind::Subscribed(subscribed));
    check_sse(&subscribed, 0, &format!("{event}{id}"), id);

    let bye = "event:goodbye\nretry:1500\ndata:{\"code\":4100,\"reason\":\"draining\",\"retryAfterMs\":1500}\n\n";
    check_sse(&goodbye("draining"), EPOCH, bye, "");
    let both = [subscribed, goodbye("draining")].concat();
    check_sse(&both, 0, &format!("{event}{id}{bye}"), "");

    let unsubscribed = v1::Unsubscribed { topic: "a".to_owned(), ..v1::Unsubscribed::default() };
    let unsubscribed = frame_of(Kind::Unsubscribed(unsubscribed));
    check_sse(&unsubscribed, EPOCH, "event:unsubscribed\ndata:{\"topic\":\"a\"}\n\n", "");
    let error = v1::Error { code: "busy".to_owned(), ..v1::Error::default() };
    let error = frame_of(Kind::Error(error));
    check_sse(&error, EPOCH, "event:error\ndata:{\"code\":\"busy\"}\n\n", "");
    let expiring = frame_of(Kind::Expiring(v1::Expiring { expires_at_ms: 1 }));
    check_sse(&expiring, EPOCH, "event:expiring\ndata:{\"expiresAtMs\":\"1\"}\n\n", "");
    let welcome = v1::Welcome { heartbeat_ms: 60_000, ..v1::Welcome::default() };
    let welcome = frame_of(Kind::Welcome(welcome));
    check_sse(&welcome, EPOCH, "event:welcome\ndata:{\"heartbeatMs\":60000}\n\n", "");
}

#[test]
fn answers_to_what_was_not_sent_are_no_events() {
    let mut pong = Vec::new();
    hot::encode_pong_frame(b"hi", &mut pong);
    check_sse(&pong, EPOCH, "", "");
    check_sse(&frame_of(Kind::Published(v1::Published::default())), EPOCH, "", "");
}

/// Splits a WebSocket encoding into frames with their payload, as a client reads them.
fn ws_frames(format: Format, frames: &[u8]) -> Vec<(Opcode, Vec<u8>)> {
    let mut out = b"before".to_vec();
    assert_eq!(encode(format, frames, EPOCH, &mut out), None);
    let mut rest = out.strip_prefix(b"before").unwrap();
    let mut read = Vec::new();
    while !rest.is_empty() {
        let (head, used) = ws::decode_server_frame(rest, usize::MAX).unwrap().unwrap();
        assert!(head.is_final);
        read.push((head.opcode, rest[head.payload].to_vec()));
        rest = &rest[used..];
    }
    read
}

#[test]
fn websocket_messages_have_the_head_for_their_length() {
    for bytes in [0, 1, 50, 90, 125, 126, 127, 30_000, 65_400, 65_535, 65_536, 70_000] {
        let text: &'static str = "\u{1}".repeat(bytes).leak();
        let (first, second) = (push_frame("a", text, 5), push_frame("a", "hi", 6));
        let frames = [&first[..], &second].concat();
        let (first_body, _) = frame::decode(&first, usize::MAX).unwrap().unwrap();
        let (second_body, _) = frame::decode(&second, usize::MAX).unwrap().unwrap();
        assert_eq!(
            ws_frames(Format::WsProtobuf, &frames),
            [(Opcode::Binary, first_body.to_vec()), (Opcode::Binary, second_body.to_vec())]
        );
        let json = |text: &str, offset| {
            let escaped = text.replace('\u{1}', "\\u0001");
            format!(
                "{{\"push\":{{\"topic\":\"a\",\"text\":\"{escaped}\",\"messageId\":\"7\",\"offset\":\"{offset}\"}}}}"
            )
        };
        assert_eq!(
            ws_frames(Format::WsJson, &frames),
            [
                (Opcode::Text, json(text, 5).into_bytes()),
                (Opcode::Text, json("hi", 6).into_bytes())
            ]
        );
    }
}

#[test]
fn behind_goodbye_a_close_frame_has_its_code_and_reason() {
    let long = "ö".repeat(70);
    for (reason, cut) in [("draining", "draining"), ("", ""), (&*long, &long[..122])] {
        let close = [&4100_u16.to_be_bytes()[..], cut.as_bytes()].concat();
        for format in [Format::WsProtobuf, Format::WsJson] {
            let frames = ws_frames(format, &goodbye(reason));
            assert_eq!(frames.len(), 2);
            assert_eq!(frames[1], (Opcode::Close, close.clone()));
            assert_eq!(ws::close_code(&frames[1].1), Ok(Some(4100)));
        }
    }
}

#[test]
fn an_id_names_positions_and_an_empty_one_nothing() {
    let mut out = Vec::new();
    sse_id([(EPOCH, 17), (3, u64::MAX), (u64::MAX, 0)].into_iter(), &mut out);
    let expected =
        "id:8f3a61c2d4e5b709-17,0000000000000003-18446744073709551615,ffffffffffffffff-0\n\n";
    assert_eq!(str::from_utf8(&out), Ok(expected));
    let id = expected.trim_end().strip_prefix("id:").unwrap();
    let position = |epoch, offset| Position { epoch, offset };
    let positions = [position(EPOCH, 17), position(3, u64::MAX), position(u64::MAX, 0)];
    assert_eq!(parse_sse_id(id).as_deref(), Some(&positions[..]));
    for before in ["", "data:{}\n"] {
        let mut out = before.as_bytes().to_vec();
        sse_id(std::iter::empty(), &mut out);
        assert_eq!(out, [before.as_bytes(), b"\n"].concat());
    }
}

#[test]
fn what_is_no_id_is_none() {
    for id in [
        "",
        ",",
        "-",
        "8f3a61c2d4e5b709",
        "8f3a61c2d4e5b709-",
        "8f3a61c2d4e5b709-x",
        "8f3a61c2d4e5b709-05",
        "8f3a61c2d4e5b709-+5",
        "8f3a61c2d4e5b709--5",
        "8f3a61c2d4e5b709-18446744073709551616",
        "8F3A61C2D4E5B709-5",
        "+f3a61c2d4e5b709-5",
        "8f3a61c2d4e5b70-5",
        "08f3a61c2d4e5b709-5",
        "8f3a61c2d4e5b709-5,",
        ",8f3a61c2d4e5b709-5",
        "8f3a61c2d4e5b709-5, 8f3a61c2d4e5b709-5",
        " 8f3a61c2d4e5b709-5",
        "8f3a61c2d4e5b709-5\n",
        "8f3a61c2d4e5b709-٣",
    ] {
        assert_eq!(parse_sse_id(id), None, "{id:?}");
    }
}
