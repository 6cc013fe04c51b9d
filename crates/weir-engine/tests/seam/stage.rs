//! A shard with devices, and few words to play a scene.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use weir_engine::sim::{PeerId, Reports, SimShard};
use weir_engine::{
    Adoption, Budget, Command, ConnId, DeviceRef, Inspect, InspectPage, InspectWhat, Item, Message,
    Nanos, Net, Origin, Priority, ReplayBegin, ReplayChunk, Report, ShardSettings, SlowPolicy,
    TopicId, TopicMessage, Urgent,
};
use weir_wire::format::Format;
use weir_wire::hot::{Payload, Publish};
use weir_wire::{CloseReason, ProstMessage, frame, hot, v1};

/// Sends of a fan-out in one turn, as the shard is built.
pub(crate) const SENDS_PER_TURN: usize = 256;

/// A shard and what it has reported.
pub(crate) struct Stage {
    pub(crate) shard: SimShard<Reports>,
    /// Whether the rate of publishing holds for who is adopted from now on.
    pub(crate) publish_limited: bool,
    reports: Vec<String>,
    tickets: u64,
}

/// A device and its connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Device {
    pub(crate) peer: PeerId,
    pub(crate) conn: ConnId,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self::with_settings(ShardSettings::default())
    }

    pub(crate) fn with_settings(settings: ShardSettings) -> Self {
        Self::of(settings, 64 << 20)
    }

    /// With so small a budget.
    pub(crate) fn with_budget(bytes: usize) -> Self {
        Self::of(ShardSettings::default(), bytes)
    }

    fn of(settings: ShardSettings, budget_bytes: usize) -> Self {
        let budget = Budget::new(budget_bytes);
        let shard = SimShard::new(0, settings, budget, Reports::default(), 1);
        Self { shard, publish_limited: true, reports: Vec::new(), tickets: 0 }
    }

    /// Pushes an adoption; the device says `ahead` with it.
    pub(crate) fn offer(&mut self, ahead: &[u8]) -> (PeerId, u64) {
        self.offer_of(Priority::Normal, Format::Stream, ahead)
    }

    fn offer_of(&mut self, priority: Priority, format: Format, ahead: &[u8]) -> (PeerId, u64) {
        let (peer, socket) = self.shard.connect();
        self.tickets += 1;
        let adoption = Adoption {
            socket,
            ticket: self.tickets,
            device: DeviceRef(peer.number()),
            heartbeat: Duration::from_secs(60),
            priority,
            origin: Origin::of(format),
            publish_limited: self.publish_limited,
            positions: (format == Format::Sse).then(Vec::new),
            read_ahead: ahead.to_vec(),
            tls: None,
        };
        self.shard.push(Command::Adopt(Box::new(adoption)));
        (peer, self.tickets)
    }

    /// A connection that is adopted by the time this returns; everything else goes on meanwhile.
    pub(crate) fn join(&mut self) -> Device {
        self.join_of(Priority::Normal)
    }

    /// The same, of some priority.
    pub(crate) fn join_of(&mut self, priority: Priority) -> Device {
        let offered = self.offer_of(priority, Format::Stream, &[]);
        self.joined(offered)
    }

    /// The same, of some format; who reads events is told the positions of all topics.
    pub(crate) fn join_speaking(&mut self, format: Format) -> Device {
        let offered = self.offer_of(Priority::Normal, format, &[]);
        self.joined(offered)
    }

    fn joined(&mut self, (peer, wanted): (PeerId, u64)) -> Device {
        for _ in 0..10_000 {
            self.shard.turn();
            for report in self.shard.front_mut().take() {
                if let Report::Adopted { conn, ticket } = report
                    && ticket == wanted
                {
                    self.welcome(conn);
                    return Device { peer, conn };
                }
                self.reports.push(named(&report));
            }
        }
        panic!("never adopted");
    }

    /// Greets a connection, so that it is read from and broadcasts reach it. The devices do not look for the frame.
    pub(crate) fn welcome(&mut self, conn: ConnId) {
        self.shard.push(Command::Welcome(conn, Box::default()));
        self.shard.turn();
    }

    /// Connections in a topic.
    pub(crate) fn members(&mut self, topic: u32, count: usize) -> Vec<Device> {
        let devices: Vec<Device> = (0..count).map(|_| self.join()).collect();
        for device in &devices {
            self.subscribe(*device, topic, "in");
            self.shard.turn();
        }
        self.settle();
        for device in &devices {
            assert_eq!(self.heard(*device), ["in"]);
        }
        devices
    }

    pub(crate) fn subscribe(&self, device: Device, topic: u32, reply: &str) {
        let (conn, topic) = (device.conn, TopicId(topic));
        self.shard.push(Command::Subscribe { conn, topic, reply: said(reply).into() });
    }

    pub(crate) fn unsubscribe(&self, device: Device, topic: u32, reply: &str) {
        let (conn, topic) = (device.conn, TopicId(topic));
        self.shard.push(Command::Unsubscribe { conn, topic, reply: said(reply).into() });
    }

    pub(crate) fn publish(&mut self, topic: u32, text: &str) {
        let message = self.message(text);
        self.shard.push(Command::Publish(TopicId(topic), message));
    }

    /// Publishes a message of which more is said.
    pub(crate) fn post(&mut self, topic: u32, text: &str, of_topic: TopicMessage) {
        let message = self.message_of(text, of_topic);
        self.shard.push(Command::Publish(TopicId(topic), message));
    }

    /// Publishes to a conflating topic; what stands before `=` is the key.
    pub(crate) fn conflate(&mut self, topic: u32, offset: u64, text: &str) {
        self.post(topic, text, conflating(offset, text));
    }

    /// Publishes a tick of a conflating topic, whose text is that of its single messages, which begin at `offset`.
    pub(crate) fn conflate_tick(&mut self, topic: u32, offset: u64, texts: &[&str]) {
        let singles: Vec<_> = (offset..)
            .zip(texts)
            .map(|(offset, text)| self.message_of(text, conflating(offset, text)))
            .collect();
        let last = offset + singles.len() as u64 - 1;
        let tick = TopicMessage { is_tick: true, singles: singles.into(), ..conflating(last, "") };
        self.post(topic, &texts.join(","), tick);
    }

    /// Resumes a topic: the part `texts`, which begins with `begin` if it is not empty.
    pub(crate) fn resume(&mut self, device: Device, topic: u32, part: Part<'_>) {
        let begin = (!part.begin.is_empty()).then(|| ReplayBegin {
            reply: said(part.begin).into(),
            reply_if_member: said("is member").into(),
        });
        let messages = part.texts.iter().map(|text| self.message(text)).collect();
        self.shard.push(Command::Resume(Box::new(ReplayChunk {
            conn: device.conn,
            topic: TopicId(topic),
            resume: part.number,
            begin,
            messages,
            after: part.after,
            is_last: part.is_last,
        })));
    }

    /// A message to a topic whose messages are of some priority.
    pub(crate) fn publish_of(&mut self, priority: Priority, topic: u32, text: &str) {
        let now = self.shard.net().now();
        let of_topic = TopicMessage { priority, ..TopicMessage::default() };
        let message = Message::of_topic(self.shard.budget(), said(text), now, None, of_topic);
        let message = message.expect("the budget is ample");
        self.shard.push(Command::Publish(TopicId(topic), message));
    }

    pub(crate) fn broadcast(&mut self, text: &str) {
        let message = self.message(text);
        self.shard.push(Command::Broadcast(message));
    }

    pub(crate) fn send(&self, device: Device, text: &str) {
        self.shard.push(Command::Send(device.conn, Item::Frame(said(text).into())));
    }

    /// Sends a message to one device, as a push does.
    pub(crate) fn send_message(&mut self, device: Device, text: &str) {
        let message = self.message(text);
        self.shard.push(Command::Send(device.conn, Item::Message(message)));
    }

    pub(crate) fn evict(&self, device: Device) {
        self.shard.push(Command::Evict(device.conn, CloseReason::Replaced));
    }

    pub(crate) fn close(&self, device: Device) {
        self.shard.push_urgent(Urgent::Close(device.conn, CloseReason::ClosedByOperator));
    }

    pub(crate) fn ping(&mut self, device: Device, data: &str) {
        let mut frame = Vec::new();
        hot::encode_ping_frame(data.as_bytes(), &mut frame);
        self.shard.peer_write(device.peer, &frame);
    }

    /// Publishes from a device, in one write; their numbers are `requests`.
    pub(crate) fn publish_from(&mut self, device: Device, requests: RangeInclusive<u32>) {
        let mut frames = Vec::new();
        for request in requests {
            let payload = Payload::Text("");
            let publish = Publish { topic: "t", payload, content_type: "", key: "", request };
            publish.encode_frame(&mut frames);
        }
        self.shard.peer_write(device.peer, &frames);
    }

    fn message(&mut self, text: &str) -> Arc<Message> {
        self.message_of(text, TopicMessage::default())
    }

    fn message_of(&mut self, text: &str, of_topic: TopicMessage) -> Arc<Message> {
        let now: Nanos = self.shard.net().now();
        let budget = self.shard.budget();
        Message::of_topic(budget, said(text), now, None, of_topic).expect("the budget is ample")
    }

    /// What a device reads while the shard goes on, until nothing comes any more, in words.
    pub(crate) fn heard_slowly(&mut self, device: Device) -> Vec<String> {
        let mut bytes = Vec::new();
        loop {
            let read = self.shard.peer_read(device.peer);
            if read.is_empty() {
                return understood_all(&bytes);
            }
            bytes.extend(read);
            self.settle();
        }
    }

    /// Whether a device is stalled; `None`: it has gone.
    pub(crate) fn stalled_or_gone(&mut self, device: Device) -> Option<bool> {
        let page = self.look(device);
        page.connections.first().map(|info| info.stalled.is_some())
    }

    /// How long a device has been stuck, as an operator sees it.
    pub(crate) fn stalled_for(&mut self, device: Device) -> Option<Duration> {
        self.look(device).connections[0].stalled
    }

    fn look(&mut self, device: Device) -> InspectPage {
        let (sender, page) = std::sync::mpsc::sync_channel(1);
        let reply = Box::new(move |page| sender.send(page).expect("somebody waits for the page"));
        let what = InspectWhat::One(device.conn);
        self.shard.push_urgent(Urgent::Inspect(Inspect { what, reply }));
        self.settle();
        page.recv().expect("a page comes")
    }

    /// Lets the shard do all that there is to do, and holds its tables against themselves.
    pub(crate) fn settle(&mut self) {
        self.shard.settle();
        self.shard.check().expect("the tables agree");
    }

    /// What a device has read since the last time, in words.
    pub(crate) fn heard(&mut self, device: Device) -> Vec<String> {
        understood_all(&self.shard.peer_read(device.peer))
    }

    /// What the shard has reported since the last time, in words.
    pub(crate) fn reported(&mut self) -> Vec<String> {
        let new: Vec<String> = self.shard.front_mut().take().iter().map(named).collect();
        self.reports.extend(new);
        std::mem::take(&mut self.reports)
    }
}

/// A frame whose body is a text that no message of the protocol is.
pub(crate) fn said(text: &str) -> Vec<u8> {
    let mut frame = Vec::new();
    let mut rest = text.len() + 1;
    while rest > 0x7f {
        frame.push(u8::try_from(rest & 0x7f).expect("seven bits") | 0x80);
        rest >>= 7;
    }
    frame.extend([u8::try_from(rest).expect("seven bits"), TEXT]);
    frame.extend_from_slice(text.as_bytes());
    frame
}

/// What is said of a message to a conflating topic, of a short text.
fn conflating(offset: u64, text: &str) -> TopicMessage {
    let key = text.split_once('=').map_or(0, |(key, _)| u32::try_from(key.len()).expect("short"));
    TopicMessage { slow: SlowPolicy::Conflate, offset, key: 2..2 + key, ..TopicMessage::default() }
}

/// A part of a resume.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) number: u32,
    pub(crate) begin: &'a str,
    pub(crate) texts: &'a [&'a str],
    pub(crate) after: u64,
    pub(crate) is_last: bool,
}

fn understood_all(bytes: &[u8]) -> Vec<String> {
    let mut rest = bytes;
    let mut heard = Vec::new();
    while let Some((body, used)) = frame::decode(rest, usize::MAX).expect("frames") {
        heard.push(understood(body));
        rest = &rest[used..];
    }
    assert!(rest.is_empty(), "a frame is cut");
    heard
}

const TEXT: u8 = 0xf9;

fn understood(body: &[u8]) -> String {
    use v1::server_message::Kind;
    if let Some((&TEXT, text)) = body.split_first() {
        return String::from_utf8(text.to_vec()).expect("text");
    }
    match v1::ServerMessage::decode(body).expect("a message").kind {
        Some(Kind::Goodbye(goodbye)) => format!("goodbye {}", goodbye.reason),
        Some(Kind::Pong(pong)) => format!("pong {}", String::from_utf8_lossy(&pong.data)),
        Some(Kind::Error(error)) if error.request > 0 => {
            format!("error {} to {} of {}", error.code, error.request, error.topic)
        }
        Some(Kind::Error(error)) => format!("error {}", error.code),
        other => panic!("{other:?}"),
    }
}

fn named(report: &Report) -> String {
    match report {
        Report::Adopted { ticket, .. } => format!("adopted {ticket}"),
        Report::Refused { ticket, reason } => format!("refused {ticket} {reason}"),
        Report::Received { body, .. } => format!("received {body:?}"),
        Report::NotEntered { topic, .. } => format!("not entered {}", topic.0),
        Report::ResumeNext { topic, after, .. } => format!("resume {} after {after}", topic.0),
        Report::ResumeRefused { topic, resume, .. } => format!("refused {resume} of {}", topic.0),
        Report::Left { topic, .. } => format!("left {}", topic.0),
        Report::Closed { device, reason, topics, .. } => {
            let mut topics: Vec<u32> = topics.iter().map(|topic| topic.0).collect();
            topics.sort_unstable();
            format!("closed {} {reason} {topics:?}", device.0)
        }
        Report::Retired { topic } => format!("retired {}", topic.0),
        Report::Drained { number } => format!("drained {number}"),
    }
}
