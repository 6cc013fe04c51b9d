//! Answers of the shard itself: each message gets its answer, even if many answers are due and the device does not read.

use std::time::Duration;

use weir_engine::ShardSettings;
use weir_wire::format::Format;
use weir_wire::ws::{self, Opcode};
use weir_wire::{ProstMessage, json, v1};

use crate::stage::{Device, Stage};

/// Messages whose answers are more than may wait for a connection. Most formats need a single read for them.
const COUNT: usize = 5000;

/// The high watermark, the block of one read, and some answers.
const QUEUED_BYTES_MAX: u64 = (128 + 64 + 64) * 1024;

/// Checks that the device is stalled with few answers, and then lets it read.
fn stall_then_read(stage: &mut Stage, device: Device) {
    stage.settle();
    let stats = stage.shard.stats();
    let (stalled, queued) = (stats.stalled.get(), stats.queued_bytes.get());
    assert_eq!(stalled, 1);
    assert!(queued < QUEUED_BYTES_MAX, "{queued} bytes wait");
    stage.shard.advance(Duration::from_secs(9));
    stage.shard.net().set_send_buffer(device.peer, 1 << 16, 1 << 15);
    stage.settle();
}

/// Behind much that the shard must answer, a message of an unknown kind gets its answer too. Its device may read at once,
/// or so late that it was stalled.
///
/// Fails when the answer is left out (`handle_frame`), when many leave at once (`owes_answers`), or when the held back
/// frames are not read again (`read_open`).
#[test]
fn each_message_of_an_unknown_kind_is_answered() {
    for reads_at_once in [true, false] {
        let mut stage = Stage::new();
        let device = stage.join();
        let capacity = if reads_at_once { 8 << 20 } else { 0 };
        stage.shard.net().set_send_buffer(device.peer, capacity, capacity / 2);
        let data = "x".repeat(250);
        for _ in 0..100 {
            stage.ping(device, &data);
        }
        stage.shard.peer_write(device.peer, &[0; COUNT]);
        stage.ping(device, "after them");
        if !reads_at_once {
            stall_then_read(&mut stage, device);
        }
        stage.settle();
        let heard = stage.heard_slowly(device);
        assert_eq!(heard[..100], vec![format!("pong {data}"); 100]);
        assert_eq!(heard[100..100 + COUNT], vec!["error unknown_kind"; COUNT]);
        assert_eq!(heard[100 + COUNT..], ["pong after them"]);
        assert_eq!(stage.shard.budget().used(), 0);
    }
}

/// The same of WebSockets, and of text that is no JSON. A message may be empty.
///
/// Fails when the answer is left out (`take_ws_message`), or when an empty message is forgotten (`Begun::whole`).
#[test]
fn each_message_of_a_websocket_is_answered() {
    let cases = [
        (Format::WsProtobuf, Opcode::Binary, "", "unknown_kind"),
        (Format::WsJson, Opcode::Text, "{}", "unknown_kind"),
        (Format::WsJson, Opcode::Text, "", "invalid_field"),
        (Format::WsJson, Opcode::Text, "{", "invalid_field"),
    ];
    for (format, opcode, text, code) in cases {
        let mut stage = Stage::new();
        let device = stage.join_speaking(format);
        stage.shard.net().set_send_buffer(device.peer, 0, 0);
        let mut said = Vec::new();
        for _ in 0..COUNT {
            ws::encode_client_frame(opcode, text.as_bytes(), [1, 2, 3, 4], &mut said);
        }
        ws::encode_client_frame(Opcode::Ping, b"after them", [1, 2, 3, 4], &mut said);
        stage.shard.peer_write(device.peer, &said);
        stall_then_read(&mut stage, device);
        assert_eq!(
            errors_before_pong(&mut stage, device),
            vec![code; COUNT],
            "{text} to {format:?}"
        );
        assert_eq!(stage.shard.budget().used(), 0);
    }
}

/// The codes of the errors that a WebSocket reads before a Pong, which is the last frame.
fn errors_before_pong(stage: &mut Stage, device: Device) -> Vec<String> {
    let (mut bytes, mut read) = (Vec::new(), stage.shard.peer_read(device.peer));
    while !read.is_empty() {
        bytes.append(&mut read);
        stage.settle();
        read = stage.shard.peer_read(device.peer);
    }
    let (mut codes, mut rest) = (Vec::new(), &bytes[..]);
    loop {
        let (head, used) = ws::decode_server_frame(rest, usize::MAX)
            .expect("frames of a server")
            .expect("a Pong is the last one");
        let payload = &rest[head.payload];
        rest = &rest[used..];
        let message = match head.opcode {
            Opcode::Text => json::server_message(std::str::from_utf8(payload).expect("UTF-8")),
            Opcode::Binary => Ok(v1::ServerMessage::decode(payload).expect("a message")),
            opcode @ (Opcode::Continuation | Opcode::Close | Opcode::Ping | Opcode::Pong) => {
                assert_eq!((opcode, payload, rest.len()), (Opcode::Pong, &b"after them"[..], 0));
                return codes;
            }
        };
        match message.expect("a message").kind {
            Some(v1::server_message::Kind::Error(error)) => codes.push(error.code),
            other => panic!("{other:?}"),
        }
    }
}

/// A device does not owe the publishes that were read late: however many they are, each refused one is answered, and no
/// more answers wait than for any other device.
///
/// Fails when all are refused at once (`handle_publish`).
#[test]
fn each_publish_that_is_refused_is_answered() {
    let mut stage = Stage::with_settings(ShardSettings {
        publishes_per_second: 1,
        publish_burst: 3,
        ..ShardSettings::default()
    });
    let device = stage.join();
    stage.shard.net().set_send_buffer(device.peer, 0, 0);
    stage.shard.front_mut().set_room(0);
    let count = 4000;
    stage.publish_from(device, 1..=count);
    stage.settle();
    stage.shard.front_mut().set_room(100);
    stage.shard.advance(Duration::from_millis(20));
    stall_then_read(&mut stage, device);
    let heard = stage.heard_slowly(device);
    assert_eq!(heard.len() + stage.reported().len(), count as usize);
    assert_eq!(heard.last().map(|last| &last[..]), Some("error rate_limited to 4000 of t"));
}
