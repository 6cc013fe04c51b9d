//! One topic in every format at once: each reader gets what the topic's class promises, and a message is made once for
//! all who read a format.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "it serves other tests too")]
mod common;

use std::time::Duration;

use common::{Hears, Peer, Says, config, eventually, start};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use weir::{Actor, Gateway, Payload, Publication, Target, TopicClass};
use weir_wire::format::{Format, parse_sse_id};
use weir_wire::v1::{ClientMessage, Hello, Position, Push, ServerMessage, Subscribe};
use weir_wire::ws::{self, Opcode};
use weir_wire::{ProstMessage, json};

/// Nothing here takes this long; what does, hangs.
const PATIENCE: Duration = Duration::from_secs(20);
const FIRST: &str = "room/1";
const SECOND: &str = "room/2";

/// How somebody reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Tcp,
    Protobuf,
    Json,
    Events,
    /// Over HTTP/2.
    Streamed,
}

/// All of them; those with two topics too, as these have events of their own.
const READERS: [(Way, &[&str]); 6] = [
    (Way::Tcp, &[FIRST, SECOND]),
    (Way::Protobuf, &[FIRST]),
    (Way::Json, &[FIRST]),
    (Way::Events, &[FIRST]),
    (Way::Events, &[FIRST, SECOND]),
    (Way::Streamed, &[FIRST, SECOND]),
];

/// One reader.
struct Reader {
    way: Way,
    topics: &'static [&'static str],
    stream: TcpStream,
    buf: Vec<u8>,
    /// What was in the frames of the answer, over HTTP/2.
    body: Vec<u8>,
    /// Messages and batches that have come for each topic, in frames.
    frames: [u64; 2],
    heard: Vec<Push>,
    /// Where it has come to, by the topics that it has.
    positions: Vec<Position>,
    /// The last `id`, as it came.
    id: String,
    /// Whether it asks who is in its topics.
    presence: bool,
}

impl Reader {
    /// Comes, or comes back from `positions`, and hears that it is in its topics; and what comes meanwhile.
    async fn enter(gateway: &Gateway, number: usize, before: Option<&Reader>) -> Reader {
        Reader::enter_with(gateway, number, before, false).await
    }

    async fn enter_with(
        gateway: &Gateway,
        number: usize,
        before: Option<&Reader>,
        presence: bool,
    ) -> Reader {
        let (way, topics) = READERS[number % READERS.len()];
        let addr = if way == Way::Tcp { gateway.tcp_addrs()[0] } else { gateway.http_addrs()[0] };
        let mut reader = Reader {
            way,
            topics,
            stream: TcpStream::connect(addr).await.unwrap(),
            buf: Vec::new(),
            body: Vec::new(),
            frames: [0; 2],
            heard: Vec::new(),
            positions: before.map(|before| before.positions.clone()).unwrap_or_default(),
            id: before.map(|before| before.id.clone()).unwrap_or_default(),
            presence,
        };
        reader.ask(&format!("d{number}")).await;
        let (mut subscribed, is_back) = (0, before.is_some());
        while subscribed < topics.len() {
            let heard = reader.hear().await;
            if let Hears::Welcome(_) | Hears::Presence(_) = heard {
                continue;
            }
            let Hears::Subscribed(answer) = heard else {
                reader.take(heard);
                continue;
            };
            assert_eq!(answer.recovered, is_back, "{way:?} {answer:?}");
            let position = answer.position.unwrap();
            if is_back {
                assert!(reader.positions.contains(&position), "{way:?} {answer:?}");
            } else {
                // In the order of the topics.
                assert_eq!(answer.topic, topics[subscribed]);
                reader.positions.push(position);
            }
            subscribed += 1;
        }
        reader
    }

    /// Says who it is, and what it wants to read.
    async fn ask(&mut self, device: &str) {
        let subscribe = |(index, topic): (usize, &&str)| {
            let position = self.positions.get(index).copied();
            Subscribe { topic: (*topic).to_owned(), position, presence: self.presence }
        };
        let hello = Hello {
            device_id: device.to_owned(),
            topics: self.topics.iter().enumerate().map(subscribe).collect(),
            ..Hello::default()
        };
        let mut path = format!("/v1/sse?device={device}&topic={}", self.topics.join("&topic="));
        if self.presence {
            path += &format!("&presence={}", self.topics.join("&presence="));
        }
        match self.way {
            Way::Tcp => self.say(&common::encode(Says::Hello(hello))).await,
            Way::Protobuf | Way::Json => {
                let hello = ClientMessage { kind: Some(Says::Hello(hello)) };
                let (name, opcode, hello) = if self.way == Way::Json {
                    let hello = json::client_message_to_json(&hello).into_bytes();
                    ("weir.v1.json", Opcode::Text, hello)
                } else {
                    ("weir.v1.protobuf", Opcode::Binary, hello.encode_to_vec())
                };
                let head = format!(
                    "GET /v1/connect HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                     Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                     Sec-WebSocket-Protocol: {name}\r\n\r\n"
                );
                let mut said = head.into_bytes();
                ws::encode_client_frame(opcode, &hello, [1, 2, 3, 4], &mut said);
                self.say(&said).await;
                self.pass_head("HTTP/1.1 101 ").await;
            }
            Way::Events => {
                let id = if self.id.is_empty() {
                    String::new()
                } else {
                    format!("Last-Event-ID: {}\r\n", self.id)
                };
                self.say(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{id}\r\n").as_bytes())
                    .await;
                self.pass_head("HTTP/1.1 200 ").await;
            }
            Way::Streamed => {
                // The last id stands in the query too, for those who cannot send the header.
                let id = if self.id.is_empty() { "" } else { "&last_event_id=" };
                self.say(&http2_request(&format!("{path}{id}{}", self.id))).await;
            }
        }
    }

    async fn say(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    async fn read(&mut self) {
        let read = timeout(PATIENCE, self.stream.read_buf(&mut self.buf)).await;
        assert!(read.expect("it comes in time").unwrap() > 0, "{:?} ends", self.way);
    }

    async fn pass_head(&mut self, begin: &str) {
        let end = loop {
            if let Some(at) = self.buf.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break at + 4;
            }
            self.read().await;
        };
        assert!(self.buf.starts_with(begin.as_bytes()));
        self.buf.drain(..end);
    }

    /// The next message, whatever it came in.
    async fn hear(&mut self) -> Hears {
        loop {
            let (heard, used) = match self.way {
                Way::Tcp => match weir_wire::frame::decode(&self.buf, 1 << 20).unwrap() {
                    Some((body, used)) => (ServerMessage::decode(body).unwrap().kind, used),
                    None => (None, 0),
                },
                Way::Protobuf | Way::Json => self.parse_frame(),
                Way::Events => self.parse_event(&self.buf.clone()),
                Way::Streamed => {
                    self.take_http2().await;
                    let (heard, used) = self.parse_event(&self.body.clone());
                    self.body.drain(..used);
                    (heard, 0)
                }
            };
            self.buf.drain(..used);
            match heard {
                Some(heard) => return heard,
                // Something that was passed over: there may be more.
                None if used > 0 => {}
                None => self.read().await,
            }
        }
    }

    fn parse_frame(&self) -> (Option<Hears>, usize) {
        let Some((head, used)) = ws::decode_server_frame(&self.buf, 1 << 20).unwrap() else {
            return (None, 0);
        };
        let payload = &self.buf[head.payload];
        let message = match (head.opcode, self.way) {
            (Opcode::Text, Way::Json) => {
                json::server_message(str::from_utf8(payload).unwrap()).unwrap()
            }
            (Opcode::Binary, Way::Protobuf) => ServerMessage::decode(payload).unwrap(),
            (other, way) => panic!("{other:?} to {way:?}"),
        };
        (message.kind, used)
    }

    /// An event, with its position noted.
    fn parse_event(&mut self, bytes: &[u8]) -> (Option<Hears>, usize) {
        let Some(end) = bytes.windows(2).position(|bytes| bytes == b"\n\n") else {
            return (None, 0);
        };
        let text = str::from_utf8(&bytes[..end]).unwrap();
        let value = |field| text.lines().find_map(|line| line.strip_prefix(field));
        if let Some(id) = value("id:") {
            id.trim().clone_into(&mut self.id);
        }
        let Some(data) = value("data:") else { return (None, end + 2) };
        let name = value("event:").map_or("push", str::trim);
        let message = json::server_message(&format!("{{\"{name}\":{data}}}")).unwrap();
        (message.kind, end + 2)
    }

    /// Moves what is in frames of data to the body; answers pings.
    async fn take_http2(&mut self) {
        while let Some((head, rest)) = self.buf.split_first_chunk::<9>() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            if rest.len() < length {
                return;
            }
            let (kind, flags, payload) = (head[3], head[4], rest[..length].to_vec());
            self.buf.drain(..9 + length);
            match kind {
                // DATA; PING without ACK; of HEADERS the status, 200; RST_STREAM and GOAWAY.
                0 => self.body.extend(payload),
                6 if flags & 1 == 0 => self.say(&http2_frame(6, 1, 0, &payload)).await,
                1 => assert_eq!(payload.first(), Some(&0x88)),
                3 | 7 => panic!("the stream ends: {payload:?}"),
                _ => {}
            }
        }
    }

    fn take(&mut self, heard: Hears) {
        let (topic, pushes) = match Some(heard) {
            Some(Hears::Push(push)) => (push.topic.clone(), vec![push]),
            Some(Hears::Batch(batch)) => (batch.topic, batch.messages),
            other => panic!("no message but {other:?}"),
        };
        self.frames[usize::from(topic == SECOND)] += 1;
        let index = self.topics.iter().position(|own| *own == topic).expect("a topic of its own");
        for push in pushes {
            let position = &mut self.positions[index];
            assert!(push.offset > position.offset, "{:?}: {push:?} behind {position:?}", self.way);
            position.offset = push.offset;
            self.heard.push(Push { topic: topic.clone(), ..push });
        }
    }

    /// Reads until it has heard that a device has entered all its topics, or left them.
    async fn hear_of(&mut self, device: &str, enters: bool) {
        let mut awaited = self.topics.to_vec();
        while !awaited.is_empty() {
            let Hears::Presence(presence) = self.hear().await else { panic!("presence") };
            let members = if enters { presence.joined } else { presence.left };
            if members.iter().any(|member| member.device_id == device) {
                awaited.retain(|topic| *topic != presence.topic);
            }
        }
    }

    /// Reads until it has come to these offsets.
    async fn read_until(&mut self, offsets: [u64; 2]) {
        while self.positions.iter().zip(offsets).any(|(position, last)| position.offset < last) {
            let heard = self.hear().await;
            self.take(heard);
        }
        if matches!(self.way, Way::Events | Way::Streamed) {
            let mut told = parse_sse_id(&self.id).unwrap();
            told.sort_by_key(|position| position.epoch);
            let mut own = self.positions.clone();
            own.sort_by_key(|position| position.epoch);
            assert_eq!(told, own, "{:?}: its id names all that it has seen", self.way);
        }
    }

    fn of(&self, topic: &str) -> Vec<Push> {
        self.heard.iter().filter(|push| push.topic == topic).cloned().collect()
    }
}

fn http2_frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes()[..], payload].concat()
}

/// The preface, windows as large as they can be, and a request.
fn http2_request(path: &str) -> Vec<u8> {
    let settings = [0, 4, 0x7f, 0xff, 0xff, 0xff];
    // `:method GET`, `:scheme http`, `:path` and `:authority a` without an index.
    let mut head = vec![0x82, 0x86, 0x04];
    // In seven bits, and the rest in as many again (RFC 7541 section 5.1).
    match u8::try_from(path.len()) {
        Ok(length @ ..127) => head.push(length),
        Ok(length @ 127..=254) => head.extend([127, length - 127]),
        Ok(_) | Err(_) => panic!("a shorter path does"),
    }
    head.extend([path.as_bytes(), b"\x01\x09localhost"].concat());
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        http2_frame(4, 0, 0, &settings),
        http2_frame(8, 0, 0, &0x7000_0000_u32.to_be_bytes()),
        http2_frame(1, 5, 1, &head),
    ]
    .concat()
}

async fn start_room(class: TopicClass) -> Gateway {
    let mut config = config();
    config.listen.http = vec!["127.0.0.1:0".parse().unwrap()];
    config.topic_classes = vec![TopicClass { pattern: "room/*".to_owned(), ..class }];
    Box::pin(start(config)).await
}

/// Two of each kind, so that there are some on each shard.
async fn enter_all(gateway: &Gateway) -> Vec<Reader> {
    let mut readers = Vec::new();
    for number in 0..2 * READERS.len() {
        readers.push(Reader::enter(gateway, number, None).await);
    }
    readers
}

/// Messages of ten keys, some of them with what JSON and lines have to be careful with.
async fn publish(gateway: &Gateway, topic: &str, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let (key, text) = (format!("k{}", number % 10), format!("{number}\n\"größer\"\r\u{1}\\"));
        let data = [number.to_le_bytes(), [0xff; 8]].concat();
        let payload =
            if number % 4 == 3 { Payload::Data(&data) } else { Payload::Text(text.as_str()) };
        let publication = Publication {
            target: Target::Topic(topic),
            payload,
            content_type: "text/plain",
            key: &key,
            ttl: None,
            sender: None,
            idempotency_key: None,
        };
        drop(gateway.handle().publish(&publication).unwrap());
        // Others have their turn: ticks end in between.
        tokio::task::yield_now().await;
    }
}

/// All have heard the same of `FIRST`, and who is in it, of `SECOND`.
fn all_have_heard_the_same(readers: &[Reader]) {
    let model = &readers[0];
    assert_eq!(model.way, Way::Tcp);
    for reader in readers {
        for topic in reader.topics {
            assert_eq!(reader.of(topic), model.of(topic), "{:?} of {topic}", reader.way);
        }
    }
}

/// As many encodings as there were frames, whatever the number of readers; protobuf's frames are there anyway.
async fn encodings_are(gateway: &Gateway, frames: [u64; 2]) {
    let of_both = frames[0] + frames[1];
    let expected =
        [(Format::WsProtobuf, frames[0]), (Format::WsJson, frames[0]), (Format::Sse, of_both)];
    let handle = gateway.handle();
    for (format, count) in expected {
        let line = format!("weir_encodings_total{{protocol=\"{}\"}} {count}\n", format.name());
        eventually(|| handle.metrics().contains(&line), &line).await;
    }
}

async fn check_live(class: TopicClass) -> (Gateway, Vec<Reader>) {
    let gateway = start_room(class).await;
    let mut readers = enter_all(&gateway).await;
    // All have come so far before it goes on: so there are several ticks, however slow the machine is.
    for round in 0..4 {
        publish(&gateway, FIRST, 50 * round..50 * round + 25).await;
        publish(&gateway, SECOND, 5 * round..5 * round + 5).await;
        publish(&gateway, FIRST, 50 * round + 25..50 * round + 50).await;
        for reader in &mut readers {
            reader.read_until([50 * (round + 1), 5 * (round + 1)]).await;
        }
    }
    assert!(readers[0].frames.iter().all(|frames| *frames >= 4), "{:?}", readers[0].frames);
    all_have_heard_the_same(&readers);
    encodings_are(&gateway, readers[0].frames).await;
    (gateway, readers)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_class_with_presence() {
    let presence_for = vec![Actor::Devices];
    let class = TopicClass { presence: true, presence_for, ..TopicClass::default() };
    let gateway = start_room(class).await;
    let mut readers = Vec::new();
    for number in 0..READERS.len() {
        readers.push(Reader::enter_with(&gateway, number, None, true).await);
    }
    let guest = Peer::settled(&gateway, "guest", &[FIRST, SECOND]).await;
    for reader in &mut readers {
        reader.hear_of("guest", true).await;
    }
    drop(guest);
    for reader in &mut readers {
        reader.hear_of("guest", false).await;
    }
    // What is told has no position, and changes none.
    publish(&gateway, FIRST, 0..1).await;
    publish(&gateway, SECOND, 0..1).await;
    for reader in &mut readers {
        reader.read_until([1, 1]).await;
    }
    gateway.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_class_with_a_tick() {
    let tick = Duration::from_millis(20);
    let (gateway, readers) =
        Box::pin(check_live(TopicClass { tick, ..TopicClass::default() })).await;
    let offsets: Vec<u64> = readers[0].of(FIRST).iter().map(|push| push.offset).collect();
    assert_eq!(offsets, (1..=200).collect::<Vec<_>>());
    drop(readers);
    gateway.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_class_that_conflates() {
    let (tick, conflation) = (Duration::from_millis(20), true);
    let class = TopicClass { tick, conflation, ..TopicClass::default() };
    let (gateway, readers) = Box::pin(check_live(class)).await;
    let heard = readers[0].of(FIRST);
    for key in 0..10 {
        let name = format!("k{key}");
        let newest = heard.iter().rfind(|push| push.key == name).unwrap();
        assert_eq!(newest.offset, 191 + key);
    }
    drop(readers);
    gateway.shutdown().await;
}

/// Half of it comes live; then all are cut off, and the other half waits for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_class_that_keeps() {
    let class = TopicClass { retention_messages: 1_000, ..TopicClass::default() };
    let gateway = start_room(class).await;
    let mut readers = enter_all(&gateway).await;
    publish(&gateway, FIRST, 0..100).await;
    publish(&gateway, SECOND, 0..20).await;
    for reader in &mut readers {
        reader.read_until([100, 20]).await;
    }
    encodings_are(&gateway, [100, 20]).await;
    let before = readers;
    let mut readers = Vec::new();
    // Cut in the middle of something, for whoever is quick; it has not seen it then.
    publish(&gateway, FIRST, 100..150).await;
    for (number, mut before) in before.into_iter().enumerate() {
        before.stream.shutdown().await.unwrap();
        readers.push(Reader::enter(&gateway, number, Some(&before)).await);
        readers[number].heard.splice(0..0, before.heard);
    }
    publish(&gateway, FIRST, 150..200).await;
    publish(&gateway, SECOND, 20..30).await;
    for reader in &mut readers {
        reader.read_until([200, 30]).await;
        let offsets: Vec<u64> = reader.of(FIRST).iter().map(|push| push.offset).collect();
        assert_eq!(offsets, (1..=200).collect::<Vec<_>>(), "{:?}", reader.way);
    }
    all_have_heard_the_same(&readers);
    // What was published while nobody had left was made once too; what was missed is not kept in other forms.
    encodings_are(&gateway, [200, 30]).await;
    drop(readers);
    gateway.shutdown().await;
}
