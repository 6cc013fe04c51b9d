//! An engine, its front as a channel, and the devices at the other ends of its sockets.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Resource, getrlimit, setrlimit};
use weir_engine::{
    Adoption, Budget, Command, ConnId, CreditKind, DeviceRef, Engine, Front, Inspect, InspectPage,
    InspectWhat, Item, Message, Nanos, Origin, Priority, Report, ShardSettings, ShardStats,
    SlowPolicy, Source, TlsAdoption, TopicId, TopicMessage, Urgent,
};
use weir_wire::format::Format;
use weir_wire::hot::{Payload, Push, encode_ping_frame};
use weir_wire::v1::server_message::Kind;
use weir_wire::{CloseReason, ProstMessage, frame, v1};

/// Nothing here takes this long on any machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const NEVER: Duration = Duration::from_secs(3600);
const BUDGET_BYTES: usize = 64 << 20;

/// The front: a channel of reports, and what holds the shard up.
struct Collect(SyncSender<Report>, Gates);

/// The next times that a shard is held up.
type Gates = Arc<Mutex<VecDeque<(SyncSender<()>, Receiver<()>)>>>;

impl Front for Collect {
    fn try_report(&mut self, report: Report) -> Result<(), Report> {
        match self.0.try_send(report) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(report) | TrySendError::Disconnected(report)) => Err(report),
        }
    }

    fn flush(&mut self) -> bool {
        let gate = self.1.lock().expect("no one panicked").pop_front();
        if let Some((entered, released)) = gate {
            entered.send(()).expect("somebody waits for the shard");
            let _ = released.recv();
        }
        false
    }
}

pub(crate) struct Rig {
    pub(crate) engine: Engine,
    pub(crate) budget: Arc<Budget>,
    /// By shard: how it wakes the front, if it has descriptors of its own.
    wakes: Vec<Option<OwnedFd>>,
    gates: Vec<Gates>,
    reports: Receiver<Report>,
    kept: VecDeque<Report>,
    ticket: u64,
}

impl Rig {
    pub(crate) fn start(shards: usize, settings: &ShardSettings) -> Rig {
        Rig::start_with_room(shards, settings, 1 << 16)
    }

    /// An engine whose front has room for so many reports.
    pub(crate) fn start_with_room(shards: usize, settings: &ShardSettings, room: usize) -> Rig {
        let start = |settings: &_, budget, fronts: Vec<Box<dyn Front>>| {
            let fronts = fronts.into_iter().map(|front| (front, None)).collect();
            Engine::start(settings, budget, fronts)
        };
        Rig::start_by(shards, settings, room, start).expect("threads and epolls can be had")
    }

    /// An engine that takes over what these sources give.
    pub(crate) fn take_over(settings: &ShardSettings, sources: Vec<Source>) -> io::Result<Rig> {
        Rig::start_by(sources.len(), settings, 1 << 16, |settings, budget, fronts| {
            let fronts = fronts.into_iter().zip(sources);
            let fronts = fronts.map(|(front, source)| (front, None, source)).collect();
            Ok(Engine::take_over(settings, budget, fronts)?.0)
        })
    }

    fn start_by(
        shards: usize,
        settings: &ShardSettings,
        room: usize,
        start: impl FnOnce(&ShardSettings, Arc<Budget>, Vec<Box<dyn Front>>) -> io::Result<Engine>,
    ) -> io::Result<Rig> {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit).expect("the soft limit may rise to the hard one");
        let (sender, reports) = sync_channel(room);
        let gates: Vec<Gates> = (0..shards).map(|_| Gates::default()).collect();
        let collect = |gates: &Gates| Box::new(Collect(sender.clone(), Arc::clone(gates)));
        let fronts = gates.iter().map(|gates| collect(gates) as Box<dyn Front>).collect();
        let budget = Budget::new(BUDGET_BYTES);
        let own_descriptors = crate::OWN_DESCRIPTORS;
        let settings = ShardSettings { own_descriptors, ..settings.clone() };
        let mut engine = start(&settings, Arc::clone(&budget), fronts)?;
        let wakes = (0..shards).map(|shard| engine.take_wakes(shard)).collect();
        Ok(Rig { engine, budget, wakes, gates, reports, kept: VecDeque::new(), ticket: 0 })
    }

    pub(crate) fn stats(&self, shard: usize) -> &ShardStats {
        self.engine.stats(shard)
    }

    pub(crate) fn push(&self, shard: usize, command: Command<OwnedFd>) {
        let pushed = self.engine.mailbox(shard).try_push(command);
        assert!(pushed.is_ok(), "the queue has room");
    }

    pub(crate) fn push_all(&self, mut command: impl FnMut() -> Command<OwnedFd>) {
        for shard in 0..self.engine.shard_count() {
            self.push(shard, command());
        }
    }

    /// Offers a socket without waiting for the answer, which carries the ticket.
    pub(crate) fn offer(&mut self, shard: usize, socket: OwnedFd, rest: Rest<'_>) -> u64 {
        self.offer_with(shard, socket, rest, None)
    }

    pub(crate) fn offer_with(
        &mut self,
        shard: usize,
        socket: OwnedFd,
        rest: Rest<'_>,
        tls: Option<Box<TlsAdoption>>,
    ) -> u64 {
        self.ticket += 1;
        let adoption = Adoption {
            heartbeat: rest.heartbeat,
            priority: rest.priority,
            origin: Origin::of(rest.format),
            positions: rest.tells_positions.then(Vec::new),
            read_ahead: rest.read_ahead.to_vec(),
            tls,
            ..adoption(socket, self.ticket)
        };
        self.offer_adoption(shard, adoption);
        self.ticket
    }

    pub(crate) fn offer_adoption(&self, shard: usize, adoption: Adoption<OwnedFd>) {
        let mailbox = self.engine.mailbox(shard);
        let credit = mailbox.try_credit(CreditKind::Control).expect("the queue has room");
        assert!(credit.offer_quietly(Box::new(adoption)).is_ok(), "the passage has room");
        mailbox.wake();
    }

    pub(crate) fn adopted(&mut self, asked: u64) -> ConnId {
        let report = self.wait_for(
            |report| matches!(report, Report::Adopted { ticket, .. } if *ticket == asked),
        );
        let Report::Adopted { conn, .. } = report else { panic!("not an adoption") };
        self.welcome(conn)
    }

    /// Welcomes an adopted connection.
    pub(crate) fn welcome(&mut self, conn: ConnId) -> ConnId {
        // The devices of these tests do not look for `Welcome`.
        self.push(conn.shard(), Command::Welcome(conn, Box::default()));
        self.wait_until("its welcome", |rig| rig.engine.mailbox(conn.shard()).depth() == 0);
        conn
    }

    pub(crate) fn adopt(&mut self, shard: usize, socket: OwnedFd, rest: Rest<'_>) -> ConnId {
        let ticket = self.offer(shard, socket, rest);
        self.adopted(ticket)
    }

    /// A device over TCP, held by `shard`.
    pub(crate) fn device(&mut self, shard: usize) -> (Peer, ConnId) {
        let (peer, socket) = tcp_pair();
        let conn = self.adopt(shard, socket, Rest::default());
        (peer, conn)
    }

    /// The first report that `is_wanted`; the others are kept for later.
    pub(crate) fn wait_for(&mut self, is_wanted: impl Fn(&Report) -> bool) -> Report {
        if let Some(at) = self.kept.iter().position(&is_wanted) {
            return self.kept.remove(at).expect("it was just found");
        }
        loop {
            let report = self.reports.recv_timeout(PATIENCE).expect("the report comes");
            if is_wanted(&report) {
                return report;
            }
            self.kept.push_back(report);
        }
    }

    /// Why `asked` has ended, and the topics that it left.
    pub(crate) fn closed(&mut self, asked: ConnId) -> (CloseReason, Vec<TopicId>) {
        let report =
            self.wait_for(|report| matches!(report, Report::Closed { conn, .. } if *conn == asked));
        let Report::Closed { reason, topics, .. } = report else { panic!("not an end") };
        (reason, topics.into_vec())
    }

    pub(crate) fn received(&mut self, from: ConnId) -> Box<[u8]> {
        let report = self
            .wait_for(|report| matches!(report, Report::Received { conn, .. } if *conn == from));
        let Report::Received { body, .. } = report else { panic!("not a frame") };
        body
    }

    /// Waits until `holds`, taking in what is reported meanwhile.
    pub(crate) fn wait_until(&mut self, what: &str, holds: impl Fn(&Rig) -> bool) {
        let began = Nanos::now();
        while !holds(self) {
            assert!(Nanos::now().since(began) < PATIENCE, "waited for {what} in vain");
            self.take_in(Duration::from_millis(1));
        }
    }

    /// Lets `time` pass, taking in what is reported meanwhile.
    pub(crate) fn take_in(&mut self, time: Duration) {
        if let Ok(report) = self.reports.recv_timeout(time) {
            self.kept.push_back(report);
        }
    }

    pub(crate) fn kept(&self) -> impl Iterator<Item = &Report> {
        self.kept.iter()
    }

    /// Nothing waits, is held or is owed any more.
    pub(crate) fn wait_until_at_rest(&mut self) {
        self.wait_until("bytes and entries to be given back", |rig| {
            let shards = 0..rig.engine.shard_count();
            let is_idle = |shard: usize| {
                let stats = rig.stats(shard);
                let levels = [&stats.queued_bytes, &stats.queued_items, &stats.stalled];
                levels.iter().all(|level| level.get() == 0)
                    && stats.lingering.get() == 0
                    && stats.table_entries.get() == stats.connections.get()
                    && rig.engine.mailbox(shard).depth() == 0
            };
            rig.budget.used() == 0 && shards.into_iter().all(is_idle)
        });
    }

    pub(crate) fn message(
        &self,
        text: &str,
        offset: u64,
        expires_at: Option<Nanos>,
    ) -> Arc<Message> {
        let push = Push {
            topic: "t",
            payload: Payload::Text(text),
            message_id: offset,
            offset,
            ..Push::default()
        };
        let mut bytes = Vec::new();
        push.encode_frame(&mut bytes);
        Message::new(&self.budget, bytes, Nanos::now(), expires_at).expect("the budget has room")
    }

    /// A message to a topic with this policy, with `text` and a key.
    pub(crate) fn message_to_topic(
        &self,
        text: &str,
        key: &str,
        offset: u64,
        slow: SlowPolicy,
    ) -> Arc<Message> {
        let push = Push {
            topic: "t",
            payload: Payload::Text(text),
            key,
            message_id: offset,
            offset,
            ..Push::default()
        };
        let mut bytes = Vec::new();
        push.encode_frame(&mut bytes);
        let at = bytes.windows(key.len()).position(|window| window == key.as_bytes());
        let at = u32::try_from(at.expect("it was just encoded")).expect("a short frame");
        let end = at + u32::try_from(key.len()).expect("a short key");
        let of_topic = TopicMessage { slow, offset, key: at..end, ..TopicMessage::default() };
        let message = Message::of_topic(&self.budget, bytes, Nanos::now(), None, of_topic);
        message.expect("the budget has room")
    }

    pub(crate) fn subscribe(&self, conn: ConnId, topic: TopicId) {
        let reply = server_frame(Kind::Subscribed(v1::Subscribed {
            topic: topic.0.to_string(),
            ..Default::default()
        }));
        self.push(conn.shard(), Command::Subscribe { conn, topic, reply });
    }

    pub(crate) fn inspect(&self, shard: usize, what: InspectWhat) -> InspectPage {
        let (sender, page) = sync_channel(1);
        let reply = Box::new(move |page| sender.send(page).expect("somebody waits for the page"));
        let sent = self.engine.mailbox(shard).try_urgent(Urgent::Inspect(Inspect { what, reply }));
        assert!(sent.is_ok(), "the reserved queue has room");
        if let Some(wakes) = &self.wakes[shard] {
            wait_for_wake(wakes);
            self.engine.mailbox(shard).deliver_answers();
        }
        page.recv_timeout(PATIENCE).expect("a page comes")
    }

    /// Holds a shard's thread up until the answer is dropped, so that what is pushed meanwhile is met all at once.
    pub(crate) fn hold_up(&self, shard: usize) -> SyncSender<()> {
        let (release, entered) = self.ask_to_hold_up(shard);
        entered.recv_timeout(PATIENCE).expect("the shard takes the request");
        release
    }

    /// The same, without waiting for it: the second channel tells when it has come to it.
    pub(crate) fn ask_to_hold_up(&self, shard: usize) -> (SyncSender<()>, Receiver<()>) {
        let (release, released) = sync_channel::<()>(1);
        let (sender, entered) = sync_channel(1);
        if self.wakes[shard].is_some() {
            // Answers do not run on the shard's thread.
            self.gates[shard].lock().expect("no one panicked").push_back((sender, released));
            let nobody = Urgent::Close(ConnId::from_u64(0), CloseReason::ClosedByOperator);
            let sent = self.engine.mailbox(shard).try_urgent(nobody);
            assert!(sent.is_ok(), "the reserved queue has room");
            return (release, entered);
        }
        let reply = Box::new(move |_| {
            sender.send(()).expect("somebody waits for the shard");
            let _ = released.recv();
        });
        let what = InspectWhat::All { cursor: 0, limit: 0 };
        let sent = self.engine.mailbox(shard).try_urgent(Urgent::Inspect(Inspect { what, reply }));
        assert!(sent.is_ok(), "the reserved queue has room");
        (release, entered)
    }
}

/// An adoption of a device over frames.
pub(crate) fn adoption(socket: OwnedFd, ticket: u64) -> Adoption<OwnedFd> {
    Adoption {
        socket,
        ticket,
        device: DeviceRef(u32::try_from(ticket).expect("few connections")),
        heartbeat: NEVER,
        priority: Priority::Normal,
        origin: Origin::default(),
        publish_limited: true,
        positions: None,
        read_ahead: Vec::new(),
        tls: None,
    }
}

/// Waits until a shard with descriptors of its own wakes the front.
pub(crate) fn wait_for_wake(wakes: &OwnedFd) {
    let timeout = Timespec::try_from(PATIENCE).expect("a short time");
    let mut polled = [PollFd::new(wakes, PollFlags::IN)];
    assert_eq!(poll(&mut polled, Some(&timeout)), Ok(1), "the shard wakes the front");
    let _ = rustix::io::read(wakes, &mut [0; 8]);
}

/// What an adoption carries beside the socket.
#[derive(Clone, Copy)]
pub(crate) struct Rest<'a> {
    pub(crate) heartbeat: Duration,
    pub(crate) priority: Priority,
    pub(crate) read_ahead: &'a [u8],
    pub(crate) format: Format,
    pub(crate) tells_positions: bool,
}

impl Default for Rest<'_> {
    fn default() -> Self {
        Rest {
            heartbeat: NEVER,
            priority: Priority::Normal,
            read_ahead: &[],
            format: Format::Stream,
            tells_positions: false,
        }
    }
}

/// The device's end.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    buf: Vec<u8>,
}

/// What a device reads.
#[derive(Debug, PartialEq)]
pub(crate) enum Heard {
    Message(Kind),
    /// FIN.
    End,
    Reset,
}

impl Peer {
    pub(crate) fn new(stream: TcpStream) -> Peer {
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has time-outs");
        stream.set_write_timeout(Some(PATIENCE)).expect("a socket has time-outs");
        Peer { stream, buf: Vec::new() }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    /// Writes what the server takes, which may have closed already.
    pub(crate) fn write_if_open(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    pub(crate) fn ping(&mut self, data: &[u8]) {
        self.write(&ping(data));
        assert_eq!(self.hear(), Heard::Message(Kind::Pong(v1::Pong { data: data.to_vec() })));
    }

    pub(crate) fn hear(&mut self) -> Heard {
        loop {
            if let Some((body, used)) =
                frame::decode(&self.buf, usize::MAX).expect("frames are whole")
            {
                let message = v1::ServerMessage::decode(body).expect("the server writes weir.v1");
                self.buf.drain(..used);
                return Heard::Message(message.kind.expect("every message has a kind"));
            }
            let mut bytes = [0; 16 * 1024];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Heard::End,
                Ok(count) => self.buf.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Heard::Reset,
                Err(error) => panic!("nothing came: {error}"),
            }
        }
    }

    pub(crate) fn hear_push(&mut self) -> v1::Push {
        let Heard::Message(Kind::Push(push)) = self.hear() else { panic!("not a push") };
        push
    }

    pub(crate) fn hear_subscribed(&mut self) {
        let heard = self.hear();
        assert!(matches!(heard, Heard::Message(Kind::Subscribed(_))), "{heard:?}");
    }

    /// `Goodbye` with `reason`, then the end of the stream; the delay that it names.
    pub(crate) fn hear_goodbye(&mut self, reason: CloseReason) -> u32 {
        let Heard::Message(Kind::Goodbye(goodbye)) = self.hear() else { panic!("not a Goodbye") };
        assert_eq!(goodbye.code, u32::from(reason.code()));
        assert_eq!(goodbye.reason, reason.name());
        assert_eq!(self.hear(), Heard::End);
        goodbye.retry_after_ms
    }
}

/// A TCP connection over loopback: the device's end, and the server's.
pub(crate) fn tcp_pair() -> (Peer, OwnedFd) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has free ports");
    let peer = TcpStream::connect(listener.local_addr().expect("a listener has an address"));
    let peer = peer.expect("the listener listens");
    let (stream, _) = listener.accept().expect("somebody has connected");
    stream.set_nonblocking(true).expect("any socket can");
    stream.set_nodelay(true).expect("TCP has it");
    peer.set_nodelay(true).expect("TCP has it");
    (Peer::new(peer), OwnedFd::from(stream))
}

/// A pair of Unix sockets, which a shard takes as well.
pub(crate) fn unix_pair() -> (Peer, OwnedFd) {
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let (peer, socket) = pair.expect("there are descriptors left");
    rustix::io::ioctl_fionbio(&socket, true).expect("any socket can");
    (Peer::new(TcpStream::from(peer)), socket)
}

pub(crate) fn ping(data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_ping_frame(data, &mut bytes);
    bytes
}

/// The frame of a `Publish` with `data`.
pub(crate) fn publish(data: Vec<u8>) -> Vec<u8> {
    let publish = v1::Publish {
        topic: "t".into(),
        payload: Some(v1::publish::Payload::Data(data)),
        ..Default::default()
    };
    let kind = Some(v1::client_message::Kind::Publish(publish));
    let mut bytes = Vec::new();
    frame::encode(&v1::ClientMessage { kind }, &mut bytes);
    bytes
}

pub(crate) fn server_frame(kind: Kind) -> Box<[u8]> {
    let mut bytes = Vec::new();
    frame::encode(&v1::ServerMessage { kind: Some(kind) }, &mut bytes);
    bytes.into_boxed_slice()
}

pub(crate) fn push_text(push: v1::Push) -> String {
    match push.payload {
        Some(v1::push::Payload::Text(text)) => text,
        other => panic!("not text: {other:?}"),
    }
}

pub(crate) fn send(rig: &Rig, conn: ConnId, message: &Arc<Message>) {
    rig.push(conn.shard(), Command::Send(conn, Item::Message(Arc::clone(message))));
}
