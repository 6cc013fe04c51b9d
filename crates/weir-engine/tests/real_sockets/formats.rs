//! WebSockets and readers of events: what they say is heard, what they are sent is in their format.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use weir_engine::{Command, ConnId, Message, Nanos, ShardSettings, TopicId, TopicMessage};
use weir_wire::format::Format;
use weir_wire::hot::{Payload, Push};
use weir_wire::v1::server_message::Kind;
use weir_wire::ws::{Opcode, decode_server_frame, encode_client_frame};
use weir_wire::{CloseReason, ProstMessage, json, v1};

use crate::rig::{Peer, Rest, Rig, ping, publish, server_frame, tcp_pair};

const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];
const EPOCH: u64 = 0xabcd_ef01_2345_6789;

/// A client that is no stream of frames.
struct Client {
    peer: Peer,
    conn: ConnId,
    received: Vec<u8>,
    /// Events that were read and not asked for yet.
    events: VecDeque<String>,
}

impl Client {
    fn join(rig: &mut Rig, shard: usize, rest: Rest<'_>) -> Client {
        let (peer, socket) = tcp_pair();
        let conn = rig.adopt(shard, socket, rest);
        Client { peer, conn, received: Vec::new(), events: VecDeque::new() }
    }

    fn of(rig: &mut Rig, shard: usize, format: Format) -> Client {
        Self::join(rig, shard, Rest { format, ..Rest::default() })
    }

    /// More bytes from the server; `false` at the end.
    fn read(&mut self) -> bool {
        let mut bytes = [0; 4096];
        let count = self.peer.stream.read(&mut bytes).expect("the server sends or ends");
        self.received.extend_from_slice(&bytes[..count]);
        count > 0
    }

    fn say(&mut self, opcode: Opcode, payload: &[u8]) {
        self.peer.write(&client_frame(opcode, payload));
    }

    /// The next frame of a WebSocket; `None` at the end.
    fn hear_frame(&mut self) -> Option<(Opcode, Vec<u8>)> {
        loop {
            let decoded = decode_server_frame(&self.received, 1 << 20).expect("well-formed frames");
            if let Some((head, used)) = decoded {
                assert!(head.is_final, "each message is one frame");
                let payload = self.received[head.payload.clone()].to_vec();
                self.received.drain(..used);
                return Some((head.opcode, payload));
            }
            if !self.read() {
                assert!(self.received.is_empty(), "the stream ends with a frame");
                return None;
            }
        }
    }

    fn hear(&mut self) -> Kind {
        let (opcode, payload) = self.hear_frame().expect("a message comes");
        let message = match opcode {
            Opcode::Binary => v1::ServerMessage::decode(payload.as_slice()).expect("weir.v1"),
            Opcode::Text => {
                let text = std::str::from_utf8(&payload).expect("text is UTF-8");
                json::server_message(text).expect("the JSON of weir.v1")
            }
            Opcode::Continuation | Opcode::Close | Opcode::Ping | Opcode::Pong => {
                panic!("not a message: {opcode:?}")
            }
        };
        message.kind.expect("every message has a kind")
    }

    fn hear_close(&mut self) -> u16 {
        let (opcode, payload) = self.hear_frame().expect("a Close frame comes");
        assert_eq!(opcode, Opcode::Close);
        assert_eq!(self.hear_frame(), None, "nothing follows a Close frame");
        payload.first_chunk().map_or(1005, |code| u16::from_be_bytes(*code))
    }

    /// The next event, comments too, without the empty line behind it.
    fn hear_event(&mut self) -> String {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            assert!(self.read(), "an event comes");
            let text = String::from_utf8(std::mem::take(&mut self.received)).expect("UTF-8");
            let (whole, rest) = text.rsplit_once("\n\n").unwrap_or(("", &text));
            self.events
                .extend(whole.split("\n\n").filter(|event| !event.is_empty()).map(Into::into));
            self.received = rest.as_bytes().to_vec();
        }
    }
}

fn client_frame(opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_client_frame(opcode, payload, MASK, &mut bytes);
    bytes
}

/// The same as one of several fragments.
fn fragment(opcode: Opcode, payload: &[u8], is_last: bool) -> Vec<u8> {
    let mut bytes = client_frame(opcode, payload);
    if !is_last {
        bytes[0] &= 0x7f;
    }
    bytes
}

fn message(rig: &Rig, topic: &str, epoch: u64, offset: u64) -> Arc<Message> {
    let push = Push {
        topic,
        payload: Payload::Text("said \"once\""),
        message_id: offset,
        offset,
        ..Push::default()
    };
    let mut frame = Vec::new();
    push.encode_frame(&mut frame);
    let of_topic = TopicMessage { epoch, offset, ..TopicMessage::default() };
    let made = Message::of_topic(&rig.budget, frame, Nanos::now(), None, of_topic);
    made.expect("the budget has room")
}

fn subscribed(rig: &Rig, client: &Client, topic: TopicId, epoch: u64, offset: u64) {
    let (name, position) = (topic.0.to_string(), Some(v1::Position { epoch, offset }));
    let reply = v1::Subscribed { topic: name, position, recovered: false };
    let reply = server_frame(Kind::Subscribed(reply));
    rig.push(client.conn.shard(), Command::Subscribe { conn: client.conn, topic, reply });
}

/// The body of a `Publish`, without the length in front of it.
fn publish_body(bytes: usize) -> Vec<u8> {
    let frame = publish(vec![7; bytes]);
    let (body, _) = weir_wire::frame::decode(&frame, usize::MAX)
        .expect("it was just encoded")
        .expect("it is whole");
    body.to_vec()
}

#[test]
fn a_message_is_encoded_once_for_all_who_speak_the_same() {
    let mut rig = Rig::start(2, &ShardSettings::default());
    let topic = TopicId(4);
    let mut clients: Vec<(Format, Client)> = (0..40)
        .map(|number| {
            let format = Format::ALL[1 + number % 3];
            (format, Client::of(&mut rig, number % 2, format))
        })
        .collect();
    for (_, client) in &clients {
        subscribed(&rig, client, topic, EPOCH, 0);
    }
    let shared = message(&rig, "4", EPOCH, 1);
    rig.push_all(|| Command::Publish(topic, Arc::clone(&shared)));
    for (format, client) in &mut clients {
        if *format == Format::Sse {
            assert!(client.hear_event().starts_with("event:subscribed\ndata:{"));
            let event = client.hear_event();
            let (data, id) = event.split_once("\nid:").expect("an event with an id");
            assert_eq!(id.trim(), "abcdef0123456789-1");
            assert!(data.starts_with("data:{\"topic\":\"4\""), "{data}");
            continue;
        }
        assert!(matches!(client.hear(), Kind::Subscribed(_)));
        let Kind::Push(push) = client.hear() else { panic!("not a push") };
        assert_eq!(push.payload, Some(v1::push::Payload::Text("said \"once\"".into())));
        assert_eq!((push.offset, push.message_id), (1, 1));
    }
    let made = |format: Format| {
        (0..2).map(|shard| rig.stats(shard).encoded[format.index()].get()).sum::<u64>()
    };
    assert_eq!(Format::ALL.map(made), [0, 1, 1, 1]);
    let open = |format: Format| {
        (0..2).map(|shard| rig.stats(shard).formats[format.index()].get()).sum::<u64>()
    };
    assert_eq!(Format::ALL.map(open), [0, 14, 13, 13]);
    drop(shared);
    rig.wait_until_at_rest();
}

#[test]
fn what_is_made_ahead_is_not_made_again() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let mut client = Client::of(&mut rig, 0, Format::WsJson);
    let shared = message(&rig, "t", 0, 0);
    let before = shared.occupied_bytes();
    assert!(shared.encode_ahead(Format::WsJson));
    assert!(shared.occupied_bytes() > before && rig.budget.used() >= shared.occupied_bytes());
    rig.push(0, Command::Broadcast(Arc::clone(&shared)));
    assert!(matches!(client.hear(), Kind::Push(_)));
    assert_eq!(rig.stats(0).encoded[Format::WsJson.index()].get(), 0);
    drop(shared);
    rig.wait_until_at_rest();
}

#[test]
fn a_message_is_heard_however_it_is_cut() {
    let settings = ShardSettings { frame_bytes_max: 4000, ..ShardSettings::default() };
    let mut rig = Rig::start(1, &settings);
    let mut client = Client::of(&mut rig, 0, Format::WsProtobuf);
    let body = publish_body(3000);
    let whole = client_frame(Opcode::Binary, &body);
    let parts = [
        fragment(Opcode::Binary, &body[..1], false),
        client_frame(Opcode::Ping, b"between"),
        fragment(Opcode::Continuation, &[], false),
        fragment(Opcode::Continuation, &body[1..2000], false),
        client_frame(Opcode::Pong, b"unasked"),
        fragment(Opcode::Continuation, &body[2000..], true),
    ]
    .concat();
    for (bytes, step) in [(&whole, 1), (&whole, 700), (&parts, 1), (&parts, 5), (&parts, 999)] {
        for piece in bytes.chunks(step) {
            client.peer.write(piece);
        }
        assert_eq!(*rig.received(client.conn), *body);
    }
    let at_once = [&whole[..], &parts, &whole].concat();
    client.peer.write(&at_once);
    for _ in 0..3 {
        assert_eq!(*rig.received(client.conn), *body);
    }
    for _ in 0..4 {
        assert_eq!(client.hear_frame(), Some((Opcode::Pong, b"between".to_vec())));
    }
    rig.wait_until_at_rest();
}

#[test]
fn json_is_the_same_protocol() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let mut client = Client::of(&mut rig, 0, Format::WsJson);
    client.say(Opcode::Text, br#"{"ping":{"data":"AQID"}}"#);
    assert_eq!(client.hear(), Kind::Pong(v1::Pong { data: vec![1, 2, 3] }));
    client.say(Opcode::Text, br#"{"publish":{"topic":"t","text":"\u00e4"}}"#);
    let body = rig.received(client.conn);
    let message = v1::ClientMessage::decode(&*body).expect("the front gets frames");
    let Some(v1::client_message::Kind::Publish(publish)) = message.kind else { panic!() };
    assert_eq!(publish.payload, Some(v1::publish::Payload::Text("ä".into())));
    for (text, field) in
        [(&br#"{"publish":{"topic":7}}"#[..], "publish.topic"), (b"{\"subscribe\":", ""), (b"", "")]
    {
        client.say(Opcode::Text, text);
        let Kind::Error(error) = client.hear() else { panic!("not an error") };
        assert_eq!(error.code, "invalid_field");
        assert!(error.message.contains(field), "{error:?}");
    }
    client.say(Opcode::Ping, b"still here");
    assert_eq!(client.hear_frame(), Some((Opcode::Pong, b"still here".to_vec())));
}

#[test]
fn what_the_front_has_no_room_for_is_heard_later() {
    let mut rig = Rig::start_with_room(1, &ShardSettings::default(), 4);
    let mut binary = Client::of(&mut rig, 0, Format::WsProtobuf);
    let mut text = Client::of(&mut rig, 0, Format::WsJson);
    let said = |number: usize| format!("{{\"unsubscribe\":{{\"topic\":\"{number}\"}}}}");
    for number in 0..50 {
        let body = json::client_body(&said(number)).unwrap();
        binary.say(Opcode::Binary, &body);
        text.say(Opcode::Text, said(number).as_bytes());
    }
    rig.wait_until("both to be held back", |rig| rig.stats(0).read_paused.get() == 2);
    for number in 0..50 {
        let body = json::client_body(&said(number)).unwrap();
        assert_eq!(*rig.received(binary.conn), *body);
        assert_eq!(*rig.received(text.conn), *body);
    }
    rig.wait_until_at_rest();
}

#[test]
fn an_end_has_a_code() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let mut client = Client::of(&mut rig, 0, Format::WsJson);
    client.say(Opcode::Close, &[&1001_u16.to_be_bytes()[..], b"bye"].concat());
    assert_eq!(client.hear_close(), 1001);
    assert_eq!(rig.closed(client.conn).0, CloseReason::PeerClosed);

    for format in [Format::WsJson, Format::WsProtobuf] {
        let mut client = Client::of(&mut rig, 0, format);
        rig.push(0, Command::Evict(client.conn, CloseReason::Replaced));
        let Kind::Goodbye(goodbye) = client.hear() else { panic!("not a Goodbye") };
        assert_eq!(goodbye.code, u32::from(CloseReason::Replaced.code()));
        assert_eq!(client.hear_close(), CloseReason::Replaced.code());
    }
    let unmasked = vec![0x82, 0x01, 0x00];
    let reserved = {
        let mut frame = client_frame(Opcode::Binary, b"x");
        frame[0] |= 0x40;
        frame
    };
    let too_large = client_frame(Opcode::Binary, &vec![0; 70_000])[..14].to_vec();
    for (bytes, code, reason) in [
        (unmasked, 1002, CloseReason::Malformed),
        (reserved, 1002, CloseReason::Malformed),
        (client_frame(Opcode::Text, b"{}"), 1003, CloseReason::Malformed),
        (client_frame(Opcode::Text, &[0xff]), 1007, CloseReason::Malformed),
        (too_large, 1009, CloseReason::FrameTooLarge),
        (client_frame(Opcode::Close, &[3]), 1002, CloseReason::Malformed),
    ] {
        let mut client = Client::of(&mut rig, 0, Format::WsProtobuf);
        client.peer.write(&bytes);
        assert_eq!(client.hear_close(), code);
        assert_eq!(rig.closed(client.conn).0, reason);
    }
    rig.wait_until_at_rest();
}

#[test]
fn who_is_silent_is_asked_and_who_reads_events_hears_that_we_live() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let rest = |format| Rest { format, heartbeat: Duration::from_millis(200), ..Rest::default() };
    let mut reader = Client::join(&mut rig, 0, rest(Format::Sse));
    let mut answers = Client::join(&mut rig, 0, rest(Format::WsJson));
    let silent = Client::join(&mut rig, 0, rest(Format::WsJson));
    for _ in 0..5 {
        assert_eq!(answers.hear_frame(), Some((Opcode::Ping, Vec::new())));
        answers.say(Opcode::Pong, b"");
        assert_eq!(reader.hear_event(), ":");
    }
    assert_eq!(rig.closed(silent.conn).0, CloseReason::HeartbeatMissed);
    assert!(rig.kept().all(|report| !matches!(report, weir_engine::Report::Closed { .. })));
    assert!(rig.stats(0).beats.get() >= 10);
}

#[test]
fn a_reader_of_several_topics_is_told_all_positions() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let rest = Rest { format: Format::Sse, tells_positions: true, ..Rest::default() };
    let mut reader = Client::join(&mut rig, 0, rest);
    let (one, two) = (TopicId(1), TopicId(2));
    subscribed(&rig, &reader, one, 0x11, 5);
    subscribed(&rig, &reader, two, 0x22, 7);
    let id = |event: &str| event.split_once("\nid:").map(|(_, id)| id.trim().to_owned());
    let at = |one: u64, two: u64| Some(format!("{:016x}-{one},{:016x}-{two}", 0x11, 0x22));
    assert_eq!(id(&reader.hear_event()), Some(format!("{:016x}-5", 0x11)));
    assert_eq!(id(&reader.hear_event()), at(5, 7));
    for (topic, epoch, offset) in [(two, 0x22, 8), (one, 0x11, 6), (one, 0x11, 9)] {
        let name = topic.0.to_string();
        rig.push(0, Command::Publish(topic, message(&rig, &name, epoch, offset)));
    }
    assert_eq!(id(&reader.hear_event()), at(5, 8));
    assert_eq!(id(&reader.hear_event()), at(6, 8));
    assert_eq!(id(&reader.hear_event()), at(9, 8));
    rig.push(0, Command::Broadcast(message(&rig, "", 0, 0)));
    assert_eq!(id(&reader.hear_event()), None, "what is to all has no position");
    // What such a client still sends says nothing.
    reader.peer.write(b"GET / HTTP/1.1\r\n\r\n");
    rig.push(0, Command::Evict(reader.conn, CloseReason::TooManyConnections));
    let goodbye = reader.hear_event();
    assert!(goodbye.contains("event:goodbye") && goodbye.contains("retry:"), "{goodbye}");
    assert!(!reader.read(), "the stream ends");
    rig.wait_until_at_rest();
}

#[test]
fn a_slow_reader_gets_every_event_whole() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    for tells_positions in [false, true] {
        let rest = Rest { format: Format::Sse, tells_positions, ..Rest::default() };
        let mut reader = Client::join(&mut rig, 0, rest);
        let topic = TopicId(9);
        subscribed(&rig, &reader, topic, EPOCH, 0);
        reader.hear_event();
        let count = 400;
        let held_up = rig.hold_up(0);
        for offset in 1..=count {
            rig.push(0, Command::Publish(topic, message(&rig, "9", EPOCH, offset)));
        }
        drop(held_up);
        for offset in 1..=count {
            let event = reader.hear_event();
            assert!(event.ends_with(&format!("{EPOCH:016x}-{offset}")), "{event}");
        }
        drop(reader);
    }
    rig.wait_until_at_rest();
}

/// Whatever a client can make the shard work for has a rate: beyond it the shard does not read for a while.
#[test]
fn a_flood_of_any_kind_is_read_more_slowly() {
    let settings = ShardSettings {
        // So slow that no machine is slower.
        frames_per_second: 10,
        frame_burst: 100,
        topics_per_connection_max: 5,
        ..ShardSettings::default()
    };
    let unsubscribe = json::client_body(r#"{"unsubscribe":{"topic":"t"}}"#).unwrap();
    let stream = [&[u8::try_from(unsubscribe.len()).unwrap()][..], &unsubscribe].concat();
    let floods: [(&str, Format, Vec<u8>, usize); 8] = [
        ("ping", Format::Stream, ping(b""), 300),
        ("unsubscribe", Format::Stream, stream, 300),
        ("unknown kind", Format::Stream, vec![0], 300),
        ("ping of WebSocket", Format::WsProtobuf, client_frame(Opcode::Ping, b""), 300),
        ("pong of WebSocket", Format::WsJson, client_frame(Opcode::Pong, b""), 300),
        ("ping in JSON", Format::WsJson, client_frame(Opcode::Text, br#"{"ping":{}}"#), 300),
        ("no JSON", Format::WsJson, client_frame(Opcode::Text, b"{"), 300),
        ("bytes to events", Format::Sse, vec![0; 4096], 150),
    ];
    for (name, format, unit, count) in floods {
        let mut rig = Rig::start(1, &settings);
        let mut client = Client::of(&mut rig, 0, format);
        client.peer.write(&unit.repeat(count));
        rig.wait_until(name, |rig| rig.stats(0).received_bytes.get() > 0);
        client.peer.write(&unit);
        rig.wait_until(name, |rig| rig.stats(0).reads_rate_limited.get() == 1);
        assert_eq!(rig.stats(0).connections.get(), 1, "{name}");
    }
}
