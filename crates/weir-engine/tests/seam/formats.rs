//! Connections that do not read frames of a stream: what they are told, and when it is asked of them.

use std::sync::Arc;
use std::time::Duration;

use weir_engine::{Command, Item, Message, Net as _, Share, SlowPolicy, TopicId, TopicMessage};
use weir_wire::format::Format;
use weir_wire::hot::{Payload, Push};
use weir_wire::{CloseReason, frame, v1};

use crate::stage::{Device, Stage};

/// A WebSocket's Ping without a payload, as the server sends it.
const PING: [u8; 2] = [0x89, 0];

/// Publishes to a topic whose epoch is its number.
fn publish(stage: &mut Stage, topic: u32, slow: SlowPolicy, offset: u64) {
    let message = message(stage, topic, (slow, offset), "said");
    stage.shard.push(Command::Publish(TopicId(topic), message));
    stage.settle();
}

fn message(
    stage: &mut Stage,
    topic: u32,
    (slow, offset): (SlowPolicy, u64),
    text: &str,
) -> Arc<Message> {
    let push = Push {
        topic: &topic.to_string(),
        payload: Payload::Text(text),
        message_id: offset,
        offset,
        ..Push::default()
    };
    let mut frame = Vec::new();
    push.encode_frame(&mut frame);
    let of_topic =
        TopicMessage { epoch: u64::from(topic), offset, slow, ..TopicMessage::default() };
    let now = stage.shard.net().now();
    let message = Message::of_topic(stage.shard.budget(), frame, now, None, of_topic);
    message.expect("the budget is ample")
}

/// All that a reader of events gets while the shard goes on.
fn events(stage: &mut Stage, device: Device) -> Vec<String> {
    let mut bytes = Vec::new();
    loop {
        let read = stage.shard.peer_read(device.peer);
        if read.is_empty() {
            let text = String::from_utf8(bytes).expect("events are UTF-8");
            return text.split_terminator("\n\n").map(str::to_owned).collect();
        }
        bytes.extend(read);
        stage.settle();
    }
}

/// What a connection has still to get of one topic is not claimed by another topic's event.
///
/// Fails when the position of what was made ready and not sent stays (`take_back_position`).
#[test]
fn a_position_claims_nothing_that_has_not_left() {
    for taken in [0, 10] {
        let mut stage = Stage::new();
        let reader = stage.join_speaking(Format::Sse);
        for topic in [1, 2] {
            let (conn, topic) = (reader.conn, TopicId(topic));
            stage.shard.push(Command::Subscribe { conn, topic, reply: Box::default() });
        }
        stage.settle();
        stage.shard.net().set_send_buffer(reader.peer, 0, 0);
        for offset in 1..=4 {
            publish(&mut stage, 1, SlowPolicy::Conflate, offset);
        }
        // The first one leaves, which no other was told before, and a part of the second.
        let first = "data:".len()
            + r#"{"topic":"1","text":"said","messageId":"1","offset":"1"}"#.len()
            + "\nid:0000000000000001-1\n\n".len();
        stage.shard.net().set_send_buffer(reader.peer, first + taken, 0);
        stage.settle();
        publish(&mut stage, 2, SlowPolicy::Close, 1);
        stage.shard.net().set_send_buffer(reader.peer, 4096, 2048);
        stage.settle();
        let mut heard = 0;
        for event in events(&mut stage, reader) {
            let (data, id) = event.split_once("\nid:").expect("every event has a position");
            heard += u64::from(data.contains(r#""topic":"1""#));
            assert!(id.contains(&format!("0000000000000001-{heard}")), "{event} after {heard}");
        }
        assert_eq!(heard, 4);
    }
}

/// Who was not asked for a sign of life, as the program stood still, is asked before it is closed.
///
/// Fails when its time to answer counts from what it said last (`beat`).
#[test]
fn who_is_asked_late_has_time_to_answer() {
    for is_answered in [true, false] {
        let mut stage = Stage::new();
        let client = stage.join_speaking(Format::WsJson);
        stage.shard.net().jump(Duration::from_secs(600));
        stage.shard.advance(Duration::from_secs(5));
        assert_eq!(stage.shard.peer_read(client.peer), PING, "it is asked, and not closed");
        if is_answered {
            stage.shard.peer_write(client.peer, &[0x8a, 0x80, 1, 2, 3, 4]);
        }
        stage.shard.advance(Duration::from_secs(59));
        assert_eq!(stage.shard.peer_read(client.peer).is_empty(), is_answered);
        assert_eq!(stage.reported().is_empty(), is_answered);
    }
}

/// Who takes nothing of the little that waits does not stay for ever; who takes some of it does.
///
/// Fails when a connection is closed above the high watermark alone (`beat_behind`), or though it reads.
#[test]
fn who_takes_nothing_is_closed() {
    let formats = [Format::Sse, Format::WsJson, Format::WsProtobuf];
    for (format, reads) in formats.into_iter().flat_map(|format| [(format, false), (format, true)])
    {
        let mut stage = Stage::new();
        let reader = stage.join_speaking(format);
        let (conn, topic) = (reader.conn, TopicId(1));
        stage.shard.push(Command::Subscribe { conn, topic, reply: Box::default() });
        stage.settle();
        stage.shard.net().set_send_buffer(reader.peer, 16, 0);
        for offset in 1..=4 {
            publish(&mut stage, 1, SlowPolicy::Close, offset);
        }
        for _ in 0..5 {
            stage.shard.advance(Duration::from_secs(59));
            if reads {
                assert!(!stage.shard.peer_read(reader.peer).is_empty(), "not all has come yet");
            }
            stage.settle();
        }
        let closed = stage.reported().iter().any(|report| report.contains("stalled"));
        assert_eq!(closed, !reads);
    }
}

/// A WebSocket for which something waits is not asked for a sign of life; as soon as it has taken all it is.
///
/// Fails when it is asked behind what waits, or closed although it was not asked (`beat`).
#[test]
fn who_is_slow_is_asked_when_nothing_waits() {
    let mut stage = Stage::new();
    let client = stage.join_speaking(Format::WsProtobuf);
    stage.shard.net().set_send_buffer(client.peer, 8, 0);
    stage.send(client, "what takes it some minutes to read, at eight bytes each");
    stage.settle();
    let mut read = Vec::new();
    for _ in 0..6 {
        stage.shard.advance(Duration::from_secs(59));
        read.extend(stage.shard.peer_read(client.peer));
        stage.settle();
    }
    assert!(read.len() < 50, "some of it waits");
    stage.shard.net().set_send_buffer(client.peer, 4096, 2048);
    stage.settle();
    read.extend(stage.shard.peer_read(client.peer));
    assert!(read.ends_with(b"each"), "nothing stands behind it");
    stage.shard.advance(Duration::from_secs(61));
    assert_eq!(stage.shard.peer_read(client.peer), PING);
    assert!(stage.reported().is_empty());
    stage.shard.advance(Duration::from_secs(61));
    assert_eq!(stage.reported(), ["closed 0 heartbeat_missed []"]);
}

/// A question that the socket refuses at first leaves one heartbeat for its answer, once it has left.
///
/// Fails when the time counts from when it should have left (`release_outbox`), or while it waits (`next_deadline`).
#[test]
fn who_is_asked_behind_a_full_socket_has_time_to_answer() {
    let mut stage = Stage::new();
    let client = stage.join_speaking(Format::WsProtobuf);
    stage.shard.net().set_send_buffer(client.peer, 0, 0);
    stage.shard.advance(Duration::from_secs(60 + 50));
    stage.shard.net().set_send_buffer(client.peer, 4096, 0);
    stage.settle();
    assert_eq!(stage.shard.peer_read(client.peer), PING);
    stage.shard.advance(Duration::from_secs(58));
    assert!(stage.reported().is_empty(), "it has time");
    stage.shard.advance(Duration::from_secs(3));
    assert_eq!(stage.reported(), ["closed 0 heartbeat_missed []"]);
}

/// Each reader of several topics has a copy of every message, which is not kept for who takes it.
///
/// Fails when the copies of a gathering wait until it is over (`gather`).
#[test]
fn copies_of_a_gathering_do_not_use_up_the_budget() {
    const READERS: usize = 40;
    let mut stage = Stage::new();
    let readers: Vec<Device> = (0..READERS).map(|_| stage.join_speaking(Format::Sse)).collect();
    for reader in &readers {
        stage.shard.net().set_send_buffer(reader.peer, 8 << 20, 4 << 20);
        for topic in [1, 2] {
            let (conn, topic) = (reader.conn, TopicId(topic));
            stage.shard.push(Command::Subscribe { conn, topic, reply: Box::default() });
        }
        stage.settle();
    }
    let text = "x".repeat(1 << 20);
    let walks =
        [1, 2].map(|topic| (topic, message(&mut stage, topic, (SlowPolicy::Close, 1), &text)));
    for (topic, message) in walks {
        stage.shard.push(Command::Publish(TopicId(topic), message));
    }
    stage.settle();
    for reader in readers {
        let heard = events(&mut stage, reader);
        assert_eq!(heard.len(), 2);
        assert!(heard[1].ends_with("id:0000000000000001-1,0000000000000002-1"));
        stage.shard.peer_reset(reader.peer);
    }
    stage.settle();
    assert_eq!(stage.shard.budget().used(), 0);
}

/// What is remembered of a reader of several topics counts while it is there, and no longer.
///
/// Fails when positions are not charged (`begin_positions`, `note_position`) or not given back (`forget_positions`).
#[test]
fn positions_are_charged_while_their_reader_is_there() {
    let mut stage = Stage::new();
    let reader = stage.join_speaking(Format::Sse);
    stage.settle();
    assert_eq!(stage.shard.stats().queued_bytes.get(), 64);
    for epoch in [1, 2, 1] {
        tell_position(&mut stage, reader, epoch);
    }
    assert_eq!(stage.shard.stats().queued_bytes.get(), 64 + 2 * 16);
    stage.shard.peer_reset(reader.peer);
    stage.settle();
    assert_eq!(stage.shard.budget().used(), 0);
}

/// Without room for the positions a connection ends: when it comes, or with the topic that is one too many.
///
/// Fails when the budget is not asked for them (`begin_positions`, `note_position`).
#[test]
fn a_reader_whose_positions_find_no_room_is_closed() {
    let mut stage = Stage::new();
    let budget = Arc::clone(stage.shard.budget());
    let taken = budget.bytes_max_of(Share::Http) - (64 + 16);
    assert!(budget.take(Share::Http, taken));
    let reader = stage.join_speaking(Format::Sse);
    tell_position(&mut stage, reader, 1);
    assert_eq!(events(&mut stage, reader).len(), 1);
    let ended = CloseReason::BudgetExhausted.index();
    stage.join_speaking(Format::Sse);
    stage.settle();
    assert_eq!(stage.shard.stats().closed[ended].get(), 1);
    tell_position(&mut stage, reader, 2);
    let heard = events(&mut stage, reader);
    let is_goodbye = |event: &String| event.contains("goodbye");
    assert!(heard.iter().all(is_goodbye), "neither the event nor a part of it: {heard:?}");
    assert_eq!(stage.shard.stats().closed[ended].get(), 2);
    assert_eq!(budget.used(), taken);
}

/// Tells a reader where it stands in the topic with that epoch.
fn tell_position(stage: &mut Stage, reader: Device, epoch: u64) {
    let position = Some(v1::Position { epoch, offset: 7 });
    let subscribed = v1::Subscribed { topic: "t".into(), position, recovered: true };
    let kind = Some(v1::server_message::Kind::Subscribed(subscribed));
    let mut frame = Vec::new();
    frame::encode(&v1::ServerMessage { kind }, &mut frame);
    stage.shard.push(Command::Send(reader.conn, Item::Frame(frame.into())));
    stage.settle();
}
