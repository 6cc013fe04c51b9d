//! A shard in steady state allocates nothing, and neither do TLS records: alone in their process, with an allocator that
//! counts by thread.
//!
//! jemalloc stands for C's `malloc` as well, so that what a library of C would allocate is counted too.

#[expect(dead_code, reason = "this test needs a part of it only")]
#[path = "real_sockets/rig.rs"]
mod rig;
#[expect(dead_code, reason = "this test needs a part of it only")]
#[path = "real_sockets/secure_rig.rs"]
mod secure_rig;

use std::io::{IoSlice, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustls::version::{TLS12, TLS13};
use tikv_jemalloc_ctl::thread::{ThreadLocal, allocatedp};
use weir_engine::tls::{Alert, Cipher, Keys12, PLAINTEXT_BYTES_MAX, Session};
use weir_engine::{Command, ConnId, Inspect, InspectWhat, ShardSettings, TopicId, Urgent};

use rig::{Peer, Rig, ping, publish, send};
use secure_rig::SecurePeer;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

thread_local! {
    static ALLOCATED: ThreadLocal<u64> = allocatedp::read().expect("jemalloc counts by thread");
}

const OWN_DESCRIPTORS: bool = false;
const CONNECTIONS: usize = 64;
const CONNECTIONS_WITH_TLS: usize = 8;
const TOPICS: u32 = 4;
const ROUNDS: u32 = 50;

/// Some connections, all in a few topics.
struct Scene {
    rig: Rig,
    devices: Vec<(Peer, ConnId)>,
    /// Those with TLS: its two versions.
    secure: Vec<(SecurePeer, ConnId)>,
}

impl Scene {
    fn new() -> Scene {
        let allocated_bytes: fn() -> u64 = || ALLOCATED.with(|bytes| bytes.get());
        let settings =
            ShardSettings { allocated_bytes: Some(allocated_bytes), ..ShardSettings::default() };
        let mut rig = Rig::start(1, &settings);
        let mut devices: Vec<_> = (0..CONNECTIONS).map(|_| rig.device(0)).collect();
        for (peer, conn) in &mut devices {
            for topic in 0..TOPICS {
                rig.subscribe(*conn, TopicId(topic));
                peer.hear_subscribed();
            }
        }
        let versions = [&TLS12, &TLS13].into_iter().cycle();
        let mut secure: Vec<_> = versions
            .take(CONNECTIONS_WITH_TLS)
            .map(|version| rig.secure_device(0, version))
            .collect();
        for (peer, conn) in &mut secure {
            rig.subscribe(*conn, TopicId(TOPICS));
            peer.hear();
        }
        Scene { rig, devices, secure }
    }

    /// What the shard has allocated, all that it was asked for included.
    fn allocated(&self) -> u64 {
        for _ in 0..2 {
            // The second look is in a later turn than the first, which has stored the count by then.
            self.rig.inspect(0, InspectWhat::All { cursor: 0, limit: 0 });
        }
        self.rig.stats(0).allocated_bytes.get()
    }

    /// Bytes allocated by `ROUNDS` of something, once it has been done for some time.
    fn cost(&mut self, mut round: impl FnMut(&mut Scene)) -> u64 {
        for _ in 0..ROUNDS {
            round(self);
        }
        let before = self.allocated();
        for _ in 0..ROUNDS {
            round(self);
        }
        self.allocated() - before
    }

    /// Holds the shard up while the flag is set, without a channel: waiting at one allocates.
    fn hold_up(&self) -> Arc<AtomicBool> {
        let is_held_up = Arc::new(AtomicBool::new(true));
        let flag = Arc::clone(&is_held_up);
        let reply = Box::new(move |_| {
            while flag.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        });
        let what = InspectWhat::All { cursor: 0, limit: 0 };
        let sent = self.rig.engine.mailbox(0).try_urgent(Urgent::Inspect(Inspect { what, reply }));
        assert!(sent.is_ok(), "the reserved queue has room");
        is_held_up
    }

    fn echo(&mut self) {
        let data = [7; 256];
        let held_up = self.hold_up();
        for (peer, _) in &mut self.devices {
            peer.write(&ping(&data));
        }
        held_up.store(false, Ordering::Release);
        for (peer, _) in &mut self.devices {
            peer.hear();
        }
    }

    /// A frame in two pieces, which meets the shard between them.
    fn echo_in_pieces(&mut self) {
        let (peer, conn) = &mut self.devices[0];
        let frame = ping(&[7; 200]);
        let (early, late) = frame.split_at(90);
        peer.write(early);
        self.rig.inspect(0, InspectWhat::One(ConnId::from_u64(conn.to_u64() ^ 1 << 20)));
        peer.write(late);
        peer.hear();
    }

    fn echo_over_tls(&mut self) {
        let data = [7; 256];
        let held_up = self.hold_up();
        for (peer, _) in &mut self.secure {
            peer.write(&ping(&data));
        }
        held_up.store(false, Ordering::Release);
        for (peer, _) in &mut self.secure {
            peer.hear();
        }
    }

    fn publish_over_tls(&mut self) {
        let message = self.rig.message("to all", 1, None);
        self.rig.push(0, Command::Publish(TopicId(TOPICS), message));
        for (peer, _) in &mut self.secure {
            peer.hear_push();
        }
    }

    /// A record in two pieces, which meets the shard between them.
    fn echo_over_tls_in_pieces(&mut self) {
        let (peer, conn) = &mut self.secure[0];
        peer.stream.conn.writer().write_all(&ping(&[7; 200])).expect("there is room");
        let mut record = Vec::new();
        peer.stream.conn.write_tls(&mut record).expect("a vector takes all");
        let (early, late) = record.split_at(90);
        peer.stream.sock.write_all(early).expect("the server reads");
        self.rig.inspect(0, InspectWhat::One(ConnId::from_u64(conn.to_u64() ^ 1 << 20)));
        peer.stream.sock.write_all(late).expect("the server reads");
        peer.hear();
    }

    fn publish(&mut self, topics: u32) {
        let held_up = self.hold_up();
        for topic in 0..topics {
            let message = self.rig.message("to all", 1, None);
            self.rig.push(0, Command::Publish(TopicId(topic), Arc::clone(&message)));
        }
        held_up.store(false, Ordering::Release);
        for (peer, _) in &mut self.devices {
            for _ in 0..topics {
                peer.hear_push();
            }
        }
    }

    fn deliver(&mut self) {
        let message = self.rig.message("to one", 1, None);
        for (peer, conn) in &mut self.devices {
            send(&self.rig, *conn, &message);
            peer.hear_push();
        }
    }

    fn broadcast(&mut self) {
        let message = self.rig.message("to everybody", 1, None);
        self.rig.push(0, Command::Broadcast(message));
        for (peer, _) in &mut self.devices {
            peer.hear_push();
        }
        for (peer, _) in &mut self.secure {
            peer.hear_push();
        }
    }

    /// What a device publishes is copied for the front: this allocates.
    fn pass_on(&mut self) {
        let (peer, conn) = &mut self.devices[0];
        peer.write(&publish(vec![7; 100]));
        self.rig.received(*conn);
    }
}

#[test]
fn a_shard_in_steady_state_allocates_nothing() {
    let mut scene = Scene::new();
    let costs = [
        ("a ping answered", scene.cost(Scene::echo)),
        ("a ping in two pieces", scene.cost(Scene::echo_in_pieces)),
        ("a fan-out", scene.cost(|scene| scene.publish(1))),
        ("several fan-outs gathered", scene.cost(|scene| scene.publish(TOPICS))),
        ("a delivery to one", scene.cost(Scene::deliver)),
        ("a broadcast", scene.cost(Scene::broadcast)),
        ("a ping answered over TLS", scene.cost(Scene::echo_over_tls)),
        ("a ping in two pieces over TLS", scene.cost(Scene::echo_over_tls_in_pieces)),
        ("a fan-out over TLS", scene.cost(Scene::publish_over_tls)),
    ];
    for (what, bytes) in costs {
        assert_eq!(bytes, 0, "bytes allocated for {what}, {ROUNDS} times");
    }
    assert!(scene.cost(Scene::pass_on) > 0, "the count counts");
}

/// Sessions of each version and cipher, with their peers.
fn sessions() -> Vec<(Session, Session)> {
    let (ours, theirs) = ([1; 48], [2; 48]);
    let mut pairs = Vec::new();
    for (cipher, secret, key) in [
        (Cipher::Aes128Gcm, 32, 16),
        (Cipher::Aes256Gcm, 48, 32),
        (Cipher::ChaCha20Poly1305, 32, 32),
    ] {
        let (a, b) = ((&ours[..secret], 0), (&theirs[..secret], 0));
        pairs.push((Session::tls13(cipher, a, b), Session::tls13(cipher, b, a)));
        let keys = |bytes: &'static [u8; 48]| (Keys12 { key: &bytes[..key], iv: &bytes[..12] }, 0);
        let (a, b) = (keys(&[1; 48]), keys(&[2; 48]));
        pairs.push((Session::tls12(cipher, a, b), Session::tls12(cipher, b, a)));
    }
    pairs.into_iter().map(|(a, b)| (a.expect("right lengths"), b.expect("right lengths"))).collect()
}

/// Records both ways, new keys, alerts, and one that does not open.
fn exchange(a: &mut Session, b: &mut Session, out: &mut Vec<u8>) {
    a.set_records_log2(5);
    let text = [7; PLAINTEXT_BYTES_MAX];
    for bytes in (0..20).flat_map(|_| [1, 100, PLAINTEXT_BYTES_MAX]) {
        let (early, late) = text[..bytes].split_at(bytes / 2);
        out.clear();
        if a.seal(&[IoSlice::new(early), IoSlice::new(late)], out).is_err() {
            break;
        }
        assert_eq!(b.open(out).expect("a good record").plaintext, bytes);
    }
    out.clear();
    b.seal(&[IoSlice::new(b"x")], out).expect("few records");
    b.seal_alert(Alert::CloseNotify, out).expect("few records");
    assert!(a.open(out).expect("good records").is_end);
    out.clear();
    a.seal_alert(Alert::InternalError, out).expect("one record is kept for it");
    out[10] ^= 1;
    assert_eq!(b.open(out).map_err(|violation| violation.alert), Err(Some(Alert::BadRecordMac)));
}

#[test]
fn records_are_sealed_and_opened_without_allocating() {
    let mut out = Vec::with_capacity(Session::SEALED_BYTES_MAX);
    // The library sets itself up when it is first used.
    for (mut a, mut b) in sessions() {
        exchange(&mut a, &mut b, &mut out);
    }
    for (mut a, mut b) in sessions() {
        let before = ALLOCATED.with(|bytes| bytes.get());
        exchange(&mut a, &mut b, &mut out);
        let bytes = ALLOCATED.with(|bytes| bytes.get()) - before;
        assert_eq!(bytes, 0, "bytes allocated by {a:?}");
    }
    let before = ALLOCATED.with(|bytes| bytes.get());
    drop(std::hint::black_box(vec![1; 10]));
    assert!(ALLOCATED.with(|bytes| bytes.get()) > before, "the count counts");
}

#[test]
fn a_call_by_datagram_is_read_and_answered_without_allocating() {
    use weir_wire::datagram::{self, Answer, Request};
    let json = br#"{"pt":"AAAAAAAAAAAAAAAAAAAAAA","count":7,"id":"x-1"}"#.as_slice();
    let protobuf = [&[8, 5, 18, 22][..], &[b'A'; 22], &[24, 7]].concat();
    let mut out = Vec::with_capacity(1024);
    let before = ALLOCATED.with(|bytes| bytes.get());
    for _ in 0..1000 {
        for bytes in [json, &protobuf] {
            out.clear();
            let call = datagram::decode(bytes).unwrap();
            let Request::Call { token, count } = &call.request else { panic!("a call") };
            let answer = Answer::Call { token, count: *count };
            assert!(answer.encode(call.form, &call.id, 3 * bytes.len(), &mut out));
        }
    }
    assert_eq!(ALLOCATED.with(|bytes| bytes.get()), before);
}
