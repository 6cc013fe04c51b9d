//! The JSON of messages: our encoder against the library's, and what is written against what is read.

use std::ops::Range;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;
use weir_wire::format::{self, Format};
use weir_wire::v1::{self, server_message::Kind};
use weir_wire::{ProstMessage, frame, hot, json, ws};

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_the_server_writes_is_what_the_library_writes(kind in kind()) {
        let message = v1::ServerMessage { kind: Some(kind) };
        let text = websocket_json(&message);
        let twin = json::server_message_to_json(&message);
        prop_assert_eq!(value(&text), value(&twin), "{} {}", text, twin);
        prop_assert_eq!(json::server_message(&text), Ok(message));
    }

    /// What docs/protocol.md tells clients to allow.
    #[test]
    fn json_is_not_longer_than_is_said(
        topic in text(),
        messages in vec((push(), 1..u64::MAX / 8, 1 << 40..u64::MAX), 1..8),
    ) {
        let mut offset = 0_u64;
        let mut singles = Vec::new();
        for (push, step, message_id) in &messages {
            offset = offset.saturating_add(*step);
            let mut single = Vec::new();
            hot_push(push, &topic, offset, *message_id).encode_frame(&mut single);
            singles.push((offset, single));
        }
        let singles: Vec<_> = singles.iter().map(|(offset, single)| (*offset, &single[..])).collect();
        let mut frames = Vec::new();
        hot::encode_batch_frames(&topic, &singles, usize::MAX, &mut frames);
        for frames in singles.iter().map(|(_, frames)| *frames).chain([&frames[..]]) {
            let (body, _) = frame::decode(frames, usize::MAX).expect("a frame").expect("all of it");
            let text = json_of(frames);
            prop_assert!(text.len() <= format::JSON_GROWTH_MAX * body.len(), "{}", text);
        }
    }

    #[test]
    fn presence_in_json_is_not_longer_than_is_said(
        topic in text(),
        members in vec((text(), any::<u64>(), any::<bool>()), 1..20),
        missed in any::<bool>(),
    ) {
        let (mut joined, mut left) = (Vec::new(), Vec::new());
        for (id, connection_id, is_new) in members {
            // No device is without a name.
            let member = v1::Member { device_id: format!("d{id}"), connection_id };
            if is_new { joined.push(member) } else { left.push(member) }
        }
        let presence = v1::Presence { topic, joined, left, missed };
        let mut frames = Vec::new();
        frame::encode(&v1::ServerMessage { kind: Some(Kind::Presence(presence)) }, &mut frames);
        let text = json_of(&frames);
        prop_assert!(text.len() <= format::JSON_GROWTH_MAX * frames.len(), "{}", text);
    }

    #[test]
    fn calls_in_json_are_not_longer_than_is_said(kind in call_kind()) {
        let mut frames = Vec::new();
        frame::encode(&v1::ServerMessage { kind: Some(kind) }, &mut frames);
        let (body, _) = frame::decode(&frames, usize::MAX).expect("a frame").expect("all of it");
        let text = json_of(&frames);
        prop_assert!(text.len() <= format::JSON_GROWTH_MAX * body.len(), "{}", text);
    }

    #[test]
    fn an_event_holds_what_the_message_holds(kind in kind()) {
        let epoch = 5;
        let (events, tail) = events(&v1::ServerMessage { kind: Some(kind.clone()) }, epoch);
        prop_assert!(events.ends_with(&tail));
        let data = events.lines().filter_map(|line| line.strip_prefix("data:"));
        let data: Vec<Value> = data.map(value).collect();
        let pushes = match kind {
            Kind::Push(push) => vec![push],
            Kind::Batch(batch) => batch
                .messages
                .into_iter()
                .map(|push| v1::Push { topic: batch.topic.clone(), ..push })
                .collect(),
            kind @ (Kind::Welcome(_)
            | Kind::Pong(_)
            | Kind::Subscribed(_)
            | Kind::Unsubscribed(_)
            | Kind::Published(_)
            | Kind::Error(_)
            | Kind::Expiring(_)
            | Kind::Refreshed(_)
            | Kind::Presence(_)
            | Kind::Call(_)
            | Kind::Answer(_)
            | Kind::Cancel(_)
            | Kind::Goodbye(_)) => {
                let name = events.lines().find_map(|line| line.strip_prefix("event:"));
                let message = v1::ServerMessage { kind: Some(kind.clone()) };
                let twin = value(&json::server_message_to_json(&message));
                match (name, kind) {
                    (Some(name), _) => prop_assert_eq!(&data, &[twin[name].clone()]),
                    (None, kind) => {
                        let is_silent = matches!(
                            kind,
                            Kind::Pong(_)
                                | Kind::Published(_)
                                | Kind::Refreshed(_)
                                | Kind::Call(_)
                                | Kind::Answer(_)
                                | Kind::Cancel(_)
                        );
                        prop_assert!(is_silent);
                        prop_assert_eq!(&events, "");
                    }
                }
                return Ok(());
            }
        };
        let twins = pushes.iter().map(|push| serde_json::to_value(push).expect("JSON"));
        let twins: Vec<Value> = twins.collect();
        prop_assert_eq!(&data, &twins);
        let last = pushes.last().map_or(0, |push| push.offset);
        let id = if last == 0 { String::new() } else { format!("id:{epoch:016x}-{last}\n\n") };
        prop_assert_eq!(&tail, &id);
        prop_assert_eq!(events.matches("\n\n").count(), pushes.len());
        let lines = pushes.len() * 2 + usize::from(!tail.is_empty());
        prop_assert_eq!(events.lines().count(), lines);
    }

    #[test]
    fn what_a_device_writes_is_read(
        text in text(),
        data in vec(any::<u8>(), 0..20),
        number in any::<u32>(),
    ) {
        use v1::client_message::Kind;
        let position = Some(v1::Position { epoch: u64::from(number) << 20, offset: u64::MAX });
        let topics =
            vec![v1::Subscribe { topic: text.clone(), position, presence: false }, v1::Subscribe::default()];
        let hello = v1::Hello {
            token: text.clone(),
            heartbeat_ms: number,
            topics,
            ..v1::Hello::default()
        };
        let publish = v1::Publish {
            topic: text.clone(),
            payload: Some(v1::publish::Payload::Data(data.clone())),
            key: text.clone(),
            request: number,
            ..v1::Publish::default()
        };
        for kind in [
            Kind::Hello(hello),
            Kind::Ping(v1::Ping { data }),
            Kind::Publish(publish),
            Kind::Unsubscribe(v1::Unsubscribe { topic: text.clone() }),
            Kind::Refresh(v1::Refresh { token: text.clone() }),
            Kind::Call(call_of(text.clone(), number)),
            Kind::Answer(answer_of(text, number)),
            Kind::Cancel(v1::Cancel { id: number }),
        ] {
            let message = v1::ClientMessage { kind: Some(kind) };
            let json = json::client_message_to_json(&message);
            prop_assert_eq!(json::client_body(&json), Ok(message.encode_to_vec()));
            prop_assert_eq!(json::client_message(&json), Ok(message));
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        let body = json::client_message(&text).map(|message| message.encode_to_vec());
        prop_assert_eq!(body, json::client_body(&text));
    }
}

/// As a client reads it, and that nothing stands behind it but a Close frame.
fn websocket_json(message: &v1::ServerMessage) -> String {
    let (mut frames, mut out) = (Vec::new(), Vec::new());
    frame::encode(message, &mut frames);
    format::encode(Format::WsJson, &frames, 5, &mut out);
    let (head, used) =
        ws::decode_server_frame(&out, usize::MAX).expect("a frame").expect("all of it");
    let is_goodbye = matches!(message.kind, Some(Kind::Goodbye(_)));
    assert_eq!(used < out.len(), is_goodbye);
    assert_eq!((head.opcode, head.is_final), (ws::Opcode::Text, true));
    text_of(&out, head.payload)
}

/// What a gateway makes of a publish.
fn hot_push<'a>(push: &'a v1::Push, topic: &'a str, offset: u64, message_id: u64) -> hot::Push<'a> {
    let payload = match &push.payload {
        Some(v1::push::Payload::Text(text)) => hot::Payload::Text(text),
        Some(v1::push::Payload::Data(data)) => hot::Payload::Data(data),
        None => hot::Payload::Text(""),
    };
    // What is not printable is refused there.
    let is_media_type = push.content_type.chars().all(|char| (' '..='~').contains(&char));
    let content_type = if is_media_type { &push.content_type } else { "\"" };
    hot::Push {
        topic,
        payload,
        content_type,
        key: &push.key,
        message_id,
        offset,
        sender: push.sender,
    }
}

fn json_of(frames: &[u8]) -> String {
    let mut out = Vec::new();
    format::encode(Format::WsJson, frames, 5, &mut out);
    let (head, _) = ws::decode_server_frame(&out, usize::MAX).expect("a frame").expect("all of it");
    text_of(&out, head.payload)
}

/// The longest there is, from a body as long as it may be.
#[test]
fn the_longest_json_is_nearly_as_long_as_is_said() {
    let text = "\u{1}".repeat(65_000);
    let push = v1::Push { payload: Some(v1::push::Payload::Text(text)), ..v1::Push::default() };
    let mut frames = Vec::new();
    hot_push(&push, "t", 1, u64::MAX).encode_frame(&mut frames);
    let json_bytes = json_of(&frames).len();
    assert!((390_000..=format::JSON_GROWTH_MAX * frames.len()).contains(&json_bytes));
}

/// The events of a message, and their tail.
fn events(message: &v1::ServerMessage, epoch: u64) -> (String, String) {
    let (mut frames, mut out) = (Vec::new(), Vec::new());
    frame::encode(message, &mut frames);
    let tail = format::encode(Format::Sse, &frames, epoch, &mut out);
    let tail = tail.map_or(0, |tail| tail.bytes);
    (text_of(&out, 0..out.len()), text_of(&out, out.len() - tail..out.len()))
}

fn text_of(bytes: &[u8], range: Range<usize>) -> String {
    String::from_utf8(bytes[range].to_vec()).expect("UTF-8")
}

/// Parsed, and with the list of messages that the library leaves out if it is empty.
fn value(text: &str) -> Value {
    let mut value: Value = serde_json::from_str(text).expect("JSON");
    if let Some(batch) = value.get_mut("batch").and_then(Value::as_object_mut) {
        batch.entry("messages").or_insert_with(|| Value::Array(Vec::new()));
    }
    value
}

fn kind() -> impl Strategy<Value = Kind> {
    let welcome = (any::<u64>(), any::<u32>(), any::<u64>()).prop_map(
        |(connection_id, heartbeat_ms, server_time_ms)| {
            Kind::Welcome(v1::Welcome { connection_id, heartbeat_ms, server_time_ms })
        },
    );
    let subscribed =
        (text(), position(), any::<bool>()).prop_map(|(topic, position, recovered)| {
            Kind::Subscribed(v1::Subscribed { topic, position, recovered })
        });
    let unsubscribed = (text(), text(), position()).prop_map(|(topic, reason, position)| {
        Kind::Unsubscribed(v1::Unsubscribed { topic, reason, position })
    });
    let published = (any::<u32>(), number(), any::<u64>()).prop_map(|(request, offset, epoch)| {
        Kind::Published(v1::Published { request, offset, epoch, ..v1::Published::default() })
    });
    let error = (text(), text(), any::<u32>()).prop_map(|(code, message, request)| {
        Kind::Error(v1::Error { code, message, request, topic: String::new() })
    });
    let goodbye =
        (4000..4400_u32, text(), any::<u32>()).prop_map(|(code, reason, retry_after_ms)| {
            Kind::Goodbye(v1::Goodbye { code, reason, retry_after_ms })
        });
    prop_oneof![
        8 => push().prop_map(Kind::Push),
        4 => batch().prop_map(Kind::Batch),
        1 => vec(any::<u8>(), 0..20).prop_map(|data| Kind::Pong(v1::Pong { data })),
        1 => welcome,
        1 => subscribed,
        1 => unsubscribed,
        1 => published,
        1 => presence().prop_map(Kind::Presence),
        1 => error,
        1 => number().prop_map(|at| Kind::Expiring(v1::Expiring { expires_at_ms: at })),
        1 => number().prop_map(|at| Kind::Refreshed(v1::Refreshed { expires_at_ms: at })),
        1 => goodbye,
        3 => call_kind(),
    ]
}

/// Calls have ids and methods; both may be as short as can be.
fn call_kind() -> impl Strategy<Value = Kind> {
    let id = || prop_oneof![1..=200_u32, any::<u32>().prop_map(|id| id.max(1))];
    prop_oneof![
        (id(), text()).prop_map(|(id, text)| Kind::Call(v1::Call { id, ..call_of(text, id) })),
        (id(), text())
            .prop_map(|(id, text)| Kind::Answer(v1::Answer { id, ..answer_of(text, id) })),
        id().prop_map(|id| Kind::Cancel(v1::Cancel { id })),
    ]
}

fn call_of(text: String, number: u32) -> v1::Call {
    v1::Call {
        id: number,
        method: format!("m{text}"),
        payload: Some(match number % 2 {
            0 => v1::call::Payload::Text(text),
            _ => v1::call::Payload::Data(text.into_bytes()),
        }),
        content_type: if number.is_multiple_of(3) { "a/b".to_owned() } else { String::new() },
        deadline_ms: number,
    }
}

fn answer_of(text: String, number: u32) -> v1::Answer {
    v1::Answer {
        id: number,
        code: if number.is_multiple_of(3) { "failed".to_owned() } else { String::new() },
        message: text.clone(),
        payload: Some(match number % 2 {
            0 => v1::answer::Payload::Text(text),
            _ => v1::answer::Payload::Data(text.into_bytes()),
        }),
        content_type: String::new(),
        status: number,
    }
}

fn presence() -> impl Strategy<Value = v1::Presence> {
    let members = || {
        let member = (text(), any::<u64>())
            .prop_map(|(device_id, connection_id)| v1::Member { device_id, connection_id });
        vec(member, 0..4)
    };
    (text(), members(), members(), any::<bool>())
        .prop_map(|(topic, joined, left, missed)| v1::Presence { topic, joined, left, missed })
}

/// As Weir makes them: its messages have offsets, and no topic of their own.
fn batch() -> impl Strategy<Value = v1::Batch> {
    (text(), any::<u64>(), number(), vec(push(), 0..4)).prop_map(
        |(topic, first_offset, last_offset, mut messages)| {
            for push in &mut messages {
                push.topic.clear();
                push.offset = push.offset.max(1);
            }
            v1::Batch { topic, first_offset, last_offset, messages }
        },
    )
}

fn position() -> impl Strategy<Value = Option<v1::Position>> {
    prop::option::of(
        (any::<u64>(), number()).prop_map(|(epoch, offset)| v1::Position { epoch, offset }),
    )
}

fn push() -> impl Strategy<Value = v1::Push> {
    let payload = prop_oneof![
        text().prop_map(v1::push::Payload::Text),
        vec(any::<u8>(), 0..40).prop_map(v1::push::Payload::Data),
    ];
    (text(), payload, text(), text(), number(), number(), number()).prop_map(
        |(topic, payload, content_type, key, message_id, offset, sender)| v1::Push {
            topic,
            payload: Some(payload),
            content_type,
            key,
            message_id,
            offset,
            sender,
        },
    )
}

/// Every character that has to be escaped is likely.
fn text() -> impl Strategy<Value = String> {
    let char = prop_oneof![
        4 => prop::char::range('a', 'z'),
        2 => prop::char::range('\0', '\x7f'),
        1 => prop::sample::select(vec!['"', '\\', '/', '\u{2028}', '\u{7f}', 'ö', '☃', '😀']),
        1 => any::<char>(),
    ];
    vec(char, 0..12).prop_map(|chars| chars.into_iter().collect())
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 1..200_u64, any::<u64>(), Just(u64::MAX)]
}
