//! One engine hands its connections over to another one, as one process does to the next.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustls::version::{TLS12, TLS13};
use weir_engine::{
    Command, ConnId, HandedOver, Keeper, Lent, Loan, Message, NotHandedOver, Priority,
    ShardSettings, SlowPolicy, Source, TakenOver, TopicId, Urgent,
};
use weir_wire::CloseReason;
use weir_wire::v1::server_message::Kind;

use crate::rig::{Heard, PATIENCE, Peer, Rig, ping, push_text};

/// Descriptors in one message.
const DESCRIPTORS: usize = 200;

/// What the shards of an engine say while they hand over.
struct Handing {
    /// The new engine's ends.
    links: Vec<OwnedFd>,
    refused: Receiver<NotHandedOver>,
    verdicts: Vec<SyncSender<Keeper>>,
}

impl Rig {
    fn tell_all(&self, urgent: impl Fn() -> Urgent) {
        for shard in 0..self.engine.shard_count() {
            assert!(self.engine.mailbox(shard).try_urgent(urgent()).is_ok(), "there is room");
        }
    }

    /// Has all shards hand over what they have, and wait for the verdict.
    fn hand_over(&self) -> Handing {
        let pairs = (0..self.engine.shard_count()).map(|_| UnixStream::pair());
        let pairs = pairs.map(|pair| pair.expect("a pair can be had"));
        let (ours, theirs): (Vec<_>, Vec<OwnedFd>) =
            pairs.map(|(ours, theirs)| (ours, theirs.into())).unzip();
        Handing { links: theirs, ..self.hand_over_by(ours) }
    }

    /// The same over these links.
    fn hand_over_by(&self, ours: Vec<UnixStream>) -> Handing {
        let (refusals, refused) = sync_channel(self.engine.shard_count());
        let mut handing = Handing { links: Vec::new(), refused, verdicts: Vec::new() };
        for (shard, ours) in ours.into_iter().enumerate() {
            let (verdict, decided) = sync_channel::<Keeper>(1);
            let refusals = refusals.clone();
            let asked = self.engine.mailbox(shard).hand_over(
                ours.into(),
                Box::new(|| true),
                Box::new(move |handed| match handed {
                    Ok((handed, link)) => {
                        // The other side may have gone.
                        let _ = send(handed, link.into());
                        decided.recv().unwrap_or(Keeper::Itself)
                    }
                    Err(cause) => {
                        refusals.send(cause).expect("somebody waits for it");
                        Keeper::Itself
                    }
                }),
            );
            asked.expect("there is room");
            handing.verdicts.push(verdict);
        }
        handing
    }

    /// Waits until all commands are carried out, so that the shards are at rest.
    fn suspend(&mut self) {
        self.tell_all(|| Urgent::Suspend);
        self.wait_until("rest", |rig| {
            (0..rig.engine.shard_count()).all(|shard| rig.engine.mailbox(shard).depth() == 0)
        });
    }

    /// Another engine takes the place of this one.
    fn replace(self, settings: &ShardSettings) -> Rig {
        self.replace_after(settings, |_| ())
    }

    /// The same; sockets are lent before, and `meanwhile` something happens.
    fn replace_lending(
        mut self,
        settings: &ShardSettings,
        meanwhile: impl FnOnce(&mut Rig),
    ) -> Rig {
        let (mut ours, mut sources, mut lent) = (Vec::new(), Vec::new(), Vec::new());
        for shard in 0..self.engine.shard_count() {
            let (our, link) = UnixStream::pair().expect("a pair can be had");
            let (tell, told) = sync_channel(1);
            let lender = Box::new(move |loan: Result<Loan<'_>, NotHandedOver>| {
                let Loan { conns, sockets, link } = loan.expect("there is a descriptor");
                let copy = link.try_clone().expect("there is a descriptor");
                let state: Vec<u8> = conns
                    .iter()
                    .flat_map(|(conn, priority)| {
                        [conn.to_u64().to_be_bytes(), (*priority as u64).to_be_bytes()].concat()
                    })
                    .collect();
                send(HandedOver { state: &state, sockets }, copy.into()).expect("it receives");
                if conns.is_empty() {
                    tell.send(()).expect("somebody waits");
                }
                true
            });
            let copy = our.try_clone().expect("a descriptor");
            self.engine.mailbox(shard).lend(copy.into(), lender).expect("there is room");
            ours.push(our);
            lent.push(told);
            sources.push(Source { link: link.into(), receive: Box::new(receive_lent) });
        }
        let settings = settings.clone();
        let taking = std::thread::spawn(move || Rig::take_over(&settings, sources));
        lent.iter().for_each(|told| told.recv_timeout(PATIENCE).expect("all are lent"));
        meanwhile(&mut self);
        self.suspend();
        let Handing { verdicts, refused, .. } = self.hand_over_by(ours);
        let next = taking.join().expect("no panic").expect("it understands");
        assert!(refused.try_recv().is_err(), "no shard refuses");
        verdicts.iter().for_each(|verdict| verdict.send(Keeper::Other).expect("it waits"));
        drop(self);
        next.engine.begin();
        next
    }

    fn replace_after(mut self, settings: &ShardSettings, meanwhile: impl FnOnce(&mut Rig)) -> Rig {
        meanwhile(&mut self);
        self.suspend();
        let Handing { links, refused, verdicts } = self.hand_over();
        let sources = links.into_iter().map(|link| Source { link, receive: Box::new(receive) });
        let next = Rig::take_over(settings, sources.collect()).expect("it understands");
        assert!(refused.try_recv().is_err(), "no shard refuses");
        verdicts.iter().for_each(|verdict| verdict.send(Keeper::Other).expect("it waits"));
        drop(self);
        next.engine.begin();
        next
    }
}

fn send(handed: HandedOver<'_>, mut link: UnixStream) -> io::Result<()> {
    for number in [handed.state.len(), handed.sockets.len()] {
        link.write_all(&(number as u64).to_be_bytes())?;
    }
    link.write_all(handed.state)?;
    for sockets in handed.sockets.chunks(DESCRIPTORS) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let sockets: &[BorrowedFd<'_>] = sockets;
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(sockets)), "there is space");
        sendmsg(&link, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
        link.read_exact(&mut [0])?;
    }
    Ok(())
}

fn receive(link: OwnedFd, _: &mut dyn FnMut(Lent) -> io::Result<()>) -> io::Result<TakenOver> {
    receive_part(&mut UnixStream::from(link))
}

/// First what is lent, until a part without sockets.
fn receive_lent(
    link: OwnedFd,
    borrow: &mut dyn FnMut(Lent) -> io::Result<()>,
) -> io::Result<TakenOver> {
    let mut link = UnixStream::from(link);
    loop {
        let TakenOver { state, sockets } = receive_part(&mut link)?;
        if sockets.is_empty() {
            return receive_part(&mut link);
        }
        for (words, socket) in state.as_chunks::<16>().0.iter().zip(sockets) {
            let (conn, priority) = words.split_at(8);
            let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("eight"));
            let priority = Priority::ALL[usize::try_from(number(priority)).expect("small")];
            borrow(Lent { conn: ConnId::from_u64(number(conn)), priority, socket })?;
        }
    }
}

fn receive_part(link: &mut UnixStream) -> io::Result<TakenOver> {
    let mut numbers = [[0; 8]; 2];
    for number in &mut numbers {
        link.read_exact(number)?;
    }
    let [bytes, count] =
        numbers.map(|number| usize::try_from(u64::from_be_bytes(number)).expect("it fits"));
    let mut state = vec![0; bytes];
    link.read_exact(&mut state)?;
    let mut sockets = Vec::with_capacity(count);
    while sockets.len() < count {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let mut parts = [IoSliceMut::new(&mut byte)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        if recvmsg(&*link, &mut parts, &mut ancillary, flags)?.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                sockets.extend(received);
            }
        }
        link.write_all(&[0])?;
    }
    Ok(TakenOver { state, sockets })
}

const TOPIC: TopicId = TopicId(7);

fn publish(rig: &Rig, message: &Arc<Message>) {
    rig.push_all(|| Command::Publish(TOPIC, Arc::clone(message)));
}

fn hear_text(heard: Heard) -> String {
    let Heard::Message(Kind::Push(push)) = heard else { panic!("no message but {heard:?}") };
    push_text(push)
}

/// Plain and under both versions of TLS: memberships, half a frame, and pings from before and after.
#[test]
fn devices_do_not_notice() {
    let settings = ShardSettings::default();
    let mut rig = Rig::start(2, &settings);
    let (mut plain, of_plain) = rig.device(0);
    let mut secure = [(0, &TLS12), (1, &TLS13)].map(|(shard, version)| {
        let (peer, conn) = rig.secure_device(shard, version);
        rig.subscribe(conn, TOPIC);
        (peer, conn)
    });
    rig.subscribe(of_plain, TOPIC);
    assert!(matches!(plain.hear(), Heard::Message(Kind::Subscribed(_))));
    plain.ping(b"before");
    let whole = ping(b"in two halves");
    let (half, rest) = whole.split_at(whole.len() / 2);
    plain.write(half);
    for (peer, _) in &mut secure {
        assert!(matches!(peer.hear(), Heard::Message(Kind::Subscribed(_))));
        peer.ping(b"before");
    }
    for round in 0..3 {
        rig = rig.replace(&settings);
        if round == 0 {
            plain.write(rest);
            let pong = weir_wire::v1::Pong { data: b"in two halves".to_vec() };
            assert_eq!(plain.hear(), Heard::Message(Kind::Pong(pong)));
        }
        publish(&rig, &rig.message(&format!("round {round}"), round + 1, None));
        assert_eq!(hear_text(plain.hear()), format!("round {round}"));
        plain.ping(b"after");
        for (peer, _) in &mut secure {
            assert_eq!(hear_text(peer.hear()), format!("round {round}"));
            peer.ping(b"after");
        }
    }
    rig.wait_until_at_rest();
    drop(plain);
    assert_eq!(rig.closed(of_plain), (CloseReason::PeerClosed, vec![TOPIC]));
}

/// What a slow device has not read yet comes whole, once, and in order.
#[test]
fn what_waits_goes_on_where_it_was() {
    let settings = ShardSettings { high_watermark_bytes: 64 << 20, ..ShardSettings::default() };
    let mut rig = Rig::start(1, &settings);
    let (mut slow, conn) = rig.device(0);
    let (mut sealed, of_sealed) = rig.secure_device(0, &TLS13);
    for conn in [conn, of_sealed] {
        rig.subscribe(conn, TOPIC);
    }
    let text = |number: u64| format!("{number} {}", "x".repeat(20_000));
    let count = 600;
    for number in 1..=count {
        let message = rig.message_to_topic(&text(number), "key", number, SlowPolicy::default());
        publish(&rig, &message);
    }
    rig.wait_until("bytes that wait", |rig| rig.engine.mailbox(0).depth() == 0);
    assert!(rig.stats(0).queued_items.get() > 100, "the sockets do not take them all");
    let mut rig = rig.replace(&settings);
    assert!(rig.stats(0).queued_items.get() > 100, "they have moved");
    assert!(matches!(slow.hear(), Heard::Message(Kind::Subscribed(_))));
    assert!(matches!(sealed.hear(), Heard::Message(Kind::Subscribed(_))));
    for number in 1..=count {
        assert_eq!(hear_text(slow.hear()), text(number));
        assert_eq!(hear_text(sealed.hear()), text(number));
        if number == 10 {
            rig = rig.replace(&settings);
        }
    }
    slow.ping(b"and then");
    sealed.ping(b"and then");
    rig.wait_until_at_rest();
}

/// If nobody takes them, the shards serve on.
#[test]
fn a_failed_hand_over_changes_nothing() {
    let settings = ShardSettings::default();
    let mut rig = Rig::start(2, &settings);
    let (mut plain, conn) = rig.device(0);
    let (mut sealed, _) = rig.secure_device(1, &TLS13);
    rig.subscribe(conn, TOPIC);
    assert!(matches!(plain.hear(), Heard::Message(Kind::Subscribed(_))));

    let handing = rig.hand_over();
    let refused = handing.refused.recv_timeout(PATIENCE);
    assert_eq!(refused, Ok(NotHandedOver::NotAtRest), "it is not suspended");

    rig.suspend();
    plain.write(&ping(b"meanwhile"));
    let handing = rig.hand_over();
    let garbled = |link, borrow: &mut dyn FnMut(Lent) -> io::Result<()>| {
        let mut taken = receive(link, borrow)?;
        taken.state.truncate(taken.state.len() / 2);
        Ok(taken)
    };
    let sources = handing.links.into_iter();
    let sources = sources.map(|link| Source { link, receive: Box::new(garbled) });
    assert!(Rig::take_over(&settings, sources.collect()).is_err(), "it is cut");
    handing.verdicts.iter().for_each(|verdict| verdict.send(Keeper::Itself).expect("it waits"));
    let pong = weir_wire::v1::Pong { data: b"meanwhile".to_vec() };
    assert_eq!(plain.hear(), Heard::Message(Kind::Pong(pong)));
    sealed.ping(b"still there");
    publish(&rig, &rig.message("to all", 1, None));
    assert_eq!(hear_text(plain.hear()), "to all");
    rig.wait_until_at_rest();
}

/// More sockets than one message carries.
#[test]
fn a_thousand_devices_move() {
    let settings = ShardSettings::default();
    let mut rig = Rig::start(1, &settings);
    let mut devices: Vec<Peer> = (0..1_000).map(|_| rig.device(0).0).collect();
    let mut rig = rig.replace(&settings);
    devices.iter_mut().for_each(|device| device.ping(b"moved"));
    assert_eq!(rig.stats(0).connections.get(), 1_000);
    drop(devices);
    rig.wait_until("all ends", |rig| rig.stats(0).connections.get() == 0);
}

/// Sockets that are lent before the pause do not move in it. Connections that end or begin meanwhile
/// do so as always, also for their peers.
#[test]
fn sockets_are_lent_before_the_pause() {
    let settings = ShardSettings::default();
    let mut rig = Rig::start(2, &settings);
    let mut devices: Vec<Peer> = (0..600).map(|nth| rig.device(nth % 2).0).collect();
    let (mut closed, of_closed) = rig.device(0);
    let (mut gone, of_gone) = rig.device(1);
    let (mut reset, of_reset) = rig.device(1);
    for _ in 0..2 {
        let mut late = None;
        rig = rig.replace_lending(&settings, |rig| late = Some(rig.device(0).0));
        devices.extend(late);
        devices.iter_mut().for_each(|device| device.ping(b"moved"));
    }
    let ends = |rig: &mut Rig| {
        let close = |conn, reason| {
            let asked =
                rig.engine.mailbox(ConnId::shard(conn)).try_urgent(Urgent::Close(conn, reason));
            assert!(asked.is_ok(), "there is room");
        };
        close(of_closed, CloseReason::ClosedByOperator);
        close(of_reset, CloseReason::Stalled);
        gone.stream.shutdown(std::net::Shutdown::Write).expect("it is open");
        for conn in [of_closed, of_gone, of_reset] {
            rig.closed(conn);
        }
        // While the other process has copies, the peers see the ends.
        while !matches!(closed.hear(), Heard::End | Heard::Reset) {}
        while !matches!(gone.hear(), Heard::End | Heard::Reset) {}
        while !matches!(reset.hear(), Heard::End | Heard::Reset) {}
    };
    let mut rig = rig.replace_lending(&settings, ends);
    devices.iter_mut().for_each(|device| device.ping(b"still there"));
    assert_eq!(rig.stats(0).connections.get() + rig.stats(1).connections.get(), 602);
    drop(devices);
    rig.wait_until("all ends", |rig| {
        rig.stats(0).connections.get() + rig.stats(1).connections.get() == 0
    });
}

/// The old process still has copies when the new one serves.
#[test]
fn a_connection_ends_before_the_old_copies_are_closed() {
    let settings = ShardSettings::default();
    let mut rig = Rig::start(1, &settings);
    let (mut closed, of_closed) = rig.device(0);
    let (mut reset, of_reset) = rig.device(0);
    rig.suspend();
    let Handing { links, verdicts, .. } = rig.hand_over();
    let sources = links.into_iter().map(|link| Source { link, receive: Box::new(receive) });
    let next = Rig::take_over(&settings, sources.collect()).expect("it understands");
    next.engine.begin();
    for (conn, reason) in
        [(of_closed, CloseReason::ClosedByOperator), (of_reset, CloseReason::Stalled)]
    {
        let asked = next.engine.mailbox(0).try_urgent(Urgent::Close(conn, reason));
        assert!(asked.is_ok(), "there is room");
    }
    while !matches!(closed.hear(), Heard::End | Heard::Reset) {}
    while !matches!(reset.hear(), Heard::End | Heard::Reset) {}
    verdicts.iter().for_each(|verdict| verdict.send(Keeper::Other).expect("it waits"));
}
