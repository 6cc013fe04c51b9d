//! What devices send.

use std::net::Shutdown;
use std::time::Duration;

use weir_engine::{Nanos, ShardSettings};
use weir_wire::v1::server_message::Kind;
use weir_wire::{CloseReason, PING_BYTES_MAX, frame, v1};

use crate::rig::{Heard, PATIENCE, Rest, Rig, ping, publish, tcp_pair, unix_pair};

#[test]
fn whole_frames_and_half_ones_read_ahead_count() {
    for shards in [1, 2] {
        let mut rig = Rig::start(shards, &ShardSettings::default());
        for shard in 0..shards {
            let (mut peer, socket) = tcp_pair();
            let published = publish(vec![7; 300]);
            let cut = ping(b"cut in two");
            let (early, late) = cut.split_at(5);
            let read_ahead = [&ping(b"whole")[..], &published, early].concat();
            let conn =
                rig.adopt(shard, socket, Rest { read_ahead: &read_ahead, ..Rest::default() });
            assert_eq!(conn.shard(), shard);
            assert_eq!(rig.received(conn)[..], published[2..]);
            peer.write(late);
            for expected in ["whole", "cut in two"] {
                let Heard::Message(Kind::Pong(pong)) = peer.hear() else { panic!("not a Pong") };
                assert_eq!(pong.data, expected.as_bytes());
            }
            peer.ping(b"and on");
            assert_eq!(rig.stats(shard).received_frames.get(), 4);
        }
        rig.wait_until_at_rest();
    }
}

#[test]
fn a_ping_comes_back_with_its_data() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    for (mut peer, socket) in [tcp_pair(), unix_pair()] {
        let conn = rig.adopt(0, socket, Rest::default());
        for bytes in [0, 1, 127, 128, PING_BYTES_MAX] {
            peer.ping(&vec![b'x'; bytes]);
        }
        peer.write(&ping(&[0; PING_BYTES_MAX + 1]));
        peer.hear_goodbye(CloseReason::Malformed);
        assert_eq!(rig.closed(conn), (CloseReason::Malformed, vec![]));
    }
    rig.wait_until_at_rest();
}

#[test]
fn pings_in_one_segment_are_all_answered_in_order() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let (mut peer, _) = rig.device(0);
    let all: Vec<u8> = (0..5000_u32).flat_map(|number| ping(&number.to_be_bytes())).collect();
    peer.write(&all);
    for number in 0..5000_u32 {
        let Heard::Message(Kind::Pong(pong)) = peer.hear() else { panic!("not a Pong") };
        assert_eq!(pong.data, number.to_be_bytes());
    }
    assert_eq!(rig.stats(0).pings.get(), 5000);
    rig.wait_until_at_rest();
}

#[test]
fn a_frame_may_be_cut_anywhere() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let (mut peer, conn) = rig.device(0);
    let bytes = publish((0..=255).collect());
    for cut in 1..bytes.len() {
        let before = rig.stats(0).received_bytes.get();
        peer.write(&bytes[..cut]);
        rig.wait_until("the first part to be read", |rig| {
            rig.stats(0).received_bytes.get() == before + cut as u64
        });
        peer.write(&bytes[cut..]);
        assert_eq!(rig.received(conn)[..], bytes[2..], "cut at {cut}");
    }
    rig.wait_until_at_rest();
}

#[test]
fn the_largest_frame_passes_and_one_byte_more_does_not() {
    let settings = ShardSettings::default();
    let mut rig = Rig::start(1, &settings);
    let largest = (0..=settings.frame_bytes_max)
        .rev()
        .map(|bytes| publish(vec![3; bytes]))
        .find(|bytes| {
            frame::whole_bytes(bytes, settings.frame_bytes_max).is_ok_and(|whole| whole.is_some())
        })
        .expect("some publish fits");
    assert_eq!(largest.len(), settings.frame_bytes_max + 3, "the frame fills the limit");
    let (mut peer, conn) = rig.device(0);
    for _ in 0..3 {
        peer.write(&largest);
        assert_eq!(rig.received(conn)[..], largest[3..]);
    }
    peer.write(&publish(vec![3; settings.frame_bytes_max])[..10]);
    peer.hear_goodbye(CloseReason::FrameTooLarge);
    assert_eq!(rig.closed(conn).0, CloseReason::FrameTooLarge);
    rig.wait_until_at_rest();
}

#[test]
fn goodbye_is_heard_over_whatever_was_still_sent() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let cases: [(&[u8], CloseReason); 4] = [
        (&[0xff, 0xff, 0xff, 0xff, 0x0f], CloseReason::FrameTooLarge),
        (&[0xff, 0xff, 0xff, 0xff, 0xff, 0x01], CloseReason::Malformed),
        (&[0x80, 0x00], CloseReason::Malformed),
        (&[0x02, 0xff, 0xff], CloseReason::Malformed),
    ];
    for (start, reason) in cases {
        for ends_its_side in [false, true] {
            let (mut peer, socket) = tcp_pair();
            // Sent before the shard looks for the first time, and more than it reads in a turn.
            peer.write(&[start, &[0; 300 * 1024]].concat());
            if ends_its_side {
                peer.stream.shutdown(Shutdown::Write).expect("the connection is there");
            }
            let conn = rig.adopt(0, socket, Rest::default());
            assert_eq!(rig.closed(conn).0, reason);
            peer.hear_goodbye(reason);
        }
    }
    let [too_large, malformed] = [CloseReason::FrameTooLarge, CloseReason::Malformed]
        .map(|reason| rig.stats(0).closed[reason.index()].get());
    assert_eq!((too_large, malformed), (2, 6));
    rig.wait_until_at_rest();
}

#[test]
fn an_unknown_kind_is_answered_and_the_connection_stays() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let (mut peer, _) = rig.device(0);
    peer.write(&[0]);
    peer.write(&[3, 0xfa, 0x01, 0]);
    for _ in 0..2 {
        let Heard::Message(Kind::Error(error)) = peer.hear() else { panic!("not an Error") };
        assert_eq!(error.code, "unknown_kind");
    }
    peer.ping(b"still there");
    // The device reads no answer before it has sent all.
    let flood = [&[0; 64 * 1024][..], &ping(b"after the flood")].concat();
    peer.write(&flood);
    for _ in 0..64 * 1024 {
        let Heard::Message(Kind::Error(error)) = peer.hear() else { panic!("not an Error") };
        assert_eq!(error.code, "unknown_kind");
    }
    let pong = v1::Pong { data: b"after the flood".to_vec() };
    assert_eq!(peer.hear(), Heard::Message(Kind::Pong(pong)));
    rig.wait_until_at_rest();
}

#[test]
fn frames_wait_for_a_front_without_room_and_silence_is_not_held_against_them() {
    let mut rig = Rig::start_with_room(1, &ShardSettings::default(), 4);
    let frames = 300;
    let mut devices = Vec::new();
    for _ in 0..5 {
        let (mut peer, socket) = tcp_pair();
        let all: Vec<u8> =
            (0..frames).flat_map(|number: u32| publish(number.to_be_bytes().to_vec())).collect();
        peer.write(&all);
        let heartbeat = Duration::from_millis(100);
        let conn = rig.adopt(0, socket, Rest { heartbeat, ..Rest::default() });
        devices.push((peer, conn));
    }
    let stats = rig.stats(0);
    pass_until(|| stats.read_paused.get() == 5);
    let began = Nanos::now();
    pass_until(|| Nanos::now().since(began) > Duration::from_millis(500));
    assert_eq!((stats.read_paused.get(), stats.connections.get()), (5, 5));
    for number in 0..frames {
        for (_, conn) in &devices {
            assert_eq!(rig.received(*conn)[..], publish(number.to_be_bytes().to_vec())[1..]);
        }
    }
    for (_, conn) in devices {
        assert_eq!(rig.closed(conn).0, CloseReason::HeartbeatMissed);
    }
    rig.wait_until_at_rest();
}

#[test]
fn a_frame_that_drips_or_stops_is_ended_by_its_time_out() {
    let frame_timeout = Duration::from_millis(400);
    let settings = ShardSettings { frame_timeout, ..ShardSettings::default() };
    let mut rig = Rig::start(1, &settings);
    for drips in [true, false] {
        let (mut peer, conn) = rig.device(0);
        peer.ping(b"a whole one before");
        let bytes = publish(vec![0; 10_000]);
        peer.write(&bytes[..1]);
        let mut dripped = 1;
        while drips && rig.kept().next().is_none() && dripped < bytes.len() {
            peer.write_if_open(&bytes[dripped..=dripped]);
            dripped += 1;
            rig.take_in(Duration::from_millis(5));
        }
        assert_eq!(rig.closed(conn).0, CloseReason::FrameTimeout);
        peer.hear_goodbye(CloseReason::FrameTimeout);
    }
    rig.wait_until_at_rest();
}

/// Waits until `holds` without taking in what is reported.
fn pass_until(holds: impl Fn() -> bool) {
    let began = Nanos::now();
    while !holds() {
        assert!(Nanos::now().since(began) < PATIENCE, "waited in vain");
        std::thread::yield_now();
    }
}

#[test]
fn who_publishes_too_fast_is_told_and_then_closed() {
    let settings =
        ShardSettings { publishes_per_second: 1, publish_burst: 2, ..ShardSettings::default() };
    let mut rig = Rig::start(1, &settings);
    let (mut peer, conn) = rig.device(0);
    // The rate gives one back a second; twenty at once are too many on any machine.
    peer.write(&publish(vec![7; 10]).repeat(20));
    for _ in 0..2 {
        rig.received(conn);
    }
    for _ in 0..2 {
        let heard = peer.hear();
        let Heard::Message(Kind::Error(error)) = heard else { panic!("no error: {heard:?}") };
        assert_eq!(error.code, "rate_limited");
        assert!(error.message.contains("limits.publishes_per_second"), "{}", error.message);
    }
    peer.hear_goodbye(CloseReason::RateLimited);
    assert_eq!(rig.closed(conn).0, CloseReason::RateLimited);
    assert!(rig.stats(0).publishes_rate_limited.get() >= 3);
}
