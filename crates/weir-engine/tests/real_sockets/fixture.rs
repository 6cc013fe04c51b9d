//! What programs of each version of the format have handed over is still understood.

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::net::sockopt::set_socket_send_buffer_size;
use rustls::version::{TLS12, TLS13};
use weir_engine::handover::ShardExport;
use weir_engine::{
    Command, Keeper, Nanos, ShardSettings, SlowPolicy, Source, TakenOver, TopicId, Urgent,
};
use weir_wire::ProstMessage;
use weir_wire::handover::{split_shard, v1};
use weir_wire::v1::server_message::Kind;

use crate::rig::{Heard, Peer, Rig, ping, tcp_pair, unix_pair};

const TOPIC: TopicId = TopicId(7);
const HALVES: &[u8] = b"in two halves";
const LETTERS: usize = 30_000;

/// `weir.handover.v1.Shard` of four connections: plain with half a ping, TLS 1.2, TLS 1.3, and one
/// whose socket took only the beginning of a message.
const VERSION_1: &[u8] = include_bytes!("fixtures/shard-1.bin");

#[test]
fn a_shard_of_version_1_goes_on() {
    let mut shard = v1::Shard::decode(VERSION_1).expect("it is a shard");
    let devices: Vec<u32> = shard.connections.iter().map(|conn| conn.device).collect();
    assert_eq!(devices.len(), 4);
    let versions = shard.connections.iter().filter_map(|conn| conn.tls.as_ref()?.session.as_ref());
    let versions: Vec<u32> = versions.map(|session| session.version).collect();
    assert_eq!(versions, [0x0303, 0x0304]);
    // Nothing is passed over.
    let split = split_shard(VERSION_1).expect("it is a shard");
    let export = ShardExport::decode(split, |_, _| Some(())).expect("it is understood");
    assert_eq!(v1::Shard::decode(&*export.encode().0), Ok(shard.clone()));

    // It began on another machine, whose clock told another time.
    shard.started = Nanos::now().0;
    let (mut peers, sockets): (Vec<Peer>, Vec<OwnedFd>) = (0..4).map(|_| tcp_pair()).unzip();
    let taken = TakenOver { state: shard.encode_to_vec(), sockets };
    let (_, link) = UnixStream::pair().expect("a pair can be had");
    let source = Source { link: link.into(), receive: Box::new(|_, _| Ok(taken)) };
    let rig = Rig::take_over(&ShardSettings::default(), vec![source]).expect("it is understood");
    rig.engine.begin();
    let whole = ping(HALVES);
    peers[0].write(&whole[whole.len() / 2..]);
    let pong = weir_wire::v1::Pong { data: HALVES.to_vec() };
    assert_eq!(peers[0].hear(), Heard::Message(Kind::Pong(pong)));
    rig.push(0, Command::Publish(TOPIC, rig.message("on", 2, None)));
    assert_eq!(peers[0].hear_push().offset, 2);
    for peer in &mut peers[1..3] {
        let mut header = [0; 3];
        peer.stream.read_exact(&mut header).expect("the shard writes");
        assert_eq!(header, [23, 3, 3], "a record of application data");
    }
    // The end of the message: so many letters, and what is behind the text.
    let (mut letters, mut byte) = (0, [0]);
    while letters == 0 || byte == *b"x" {
        peers[3].stream.read_exact(&mut byte).expect("the shard writes");
        letters += usize::from(byte == *b"x");
    }
    assert!((1..LETTERS).contains(&letters), "{letters}");
}

#[test]
#[ignore = "writes the fixture, once for each version of the format"]
fn write_the_fixture() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let (mut plain, of_plain) = rig.device(0);
    let secure = [&TLS12, &TLS13].map(|version| rig.secure_device(0, version));
    let (slow, socket) = unix_pair();
    set_socket_send_buffer_size(&socket, 1).expect("any socket can");
    let of_slow = rig.adopt(0, socket, Default::default());
    for conn in [of_plain, secure[0].1, secure[1].1, of_slow] {
        rig.subscribe(conn, TOPIC);
    }
    plain.hear_subscribed();
    let text = "x".repeat(LETTERS);
    let message = rig.message_to_topic(&text, "key", 1, SlowPolicy::default());
    rig.push(0, Command::Publish(TOPIC, message));
    assert_eq!(plain.hear_push().offset, 1);
    let whole = ping(HALVES);
    plain.write(&whole[..whole.len() / 2]);
    rig.wait_until("half a frame", |rig| rig.stats(0).received_bytes.get() > 0);
    assert!(rig.engine.mailbox(0).try_urgent(Urgent::Suspend).is_ok());
    rig.wait_until("rest", |rig| rig.engine.mailbox(0).depth() == 0);
    let (_, link) = UnixStream::pair().expect("a pair can be had");
    let (written, is_written) = std::sync::mpsc::sync_channel(1);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real_sockets/fixtures/shard-1.bin");
    let take = Box::new(move |handed: Result<(weir_engine::HandedOver<'_>, _), _>| {
        let (handed, _) = handed.expect("the shard is at rest");
        written.send(fs::write(path, handed.state)).expect("somebody waits");
        Keeper::Itself
    });
    rig.engine.mailbox(0).hand_over(link.into(), Box::new(|| true), take).expect("there is room");
    is_written.recv().expect("the shard answers").expect("the file can be written");
    drop((secure, slow));
}
