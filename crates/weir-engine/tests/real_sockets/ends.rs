//! How connections end.

use std::time::Duration;

use rustix::net::sockopt::{set_socket_linger, set_tcp_user_timeout};
use weir_engine::{
    Command, CreditKind, Drain, DrainWhat, DropRule, Engine, Item, Nanos, Report, ShardSettings,
    Urgent,
};
use weir_wire::CloseReason;

use crate::rig::{Heard, PATIENCE, Rest, Rig, adoption, publish, send, tcp_pair, unix_pair};

#[test]
fn an_orderly_end_and_a_reset_are_told_apart() {
    let mut rig = Rig::start(2, &ShardSettings::default());
    for shard in 0..2 {
        for (half, is_reset) in [(false, false), (false, true), (true, false), (true, true)] {
            let (mut peer, conn) = rig.device(shard);
            peer.ping(b"alive");
            if half {
                peer.write(&publish(vec![0; 100])[..50]);
            }
            if is_reset {
                set_socket_linger(&peer.stream, Some(Duration::ZERO)).expect("a socket has it");
            }
            drop(peer);
            let expected = if is_reset { CloseReason::PeerReset } else { CloseReason::PeerClosed };
            assert_eq!(rig.closed(conn), (expected, vec![]));
        }
        let closed = &rig.stats(shard).closed;
        assert_eq!(closed[CloseReason::PeerClosed.index()].get(), 2);
        assert_eq!(closed[CloseReason::PeerReset.index()].get(), 2);
    }
    let (peer, socket) = unix_pair();
    let conn = rig.adopt(0, socket, Rest::default());
    drop(peer);
    assert_eq!(rig.closed(conn).0, CloseReason::PeerClosed);
    rig.wait_until_at_rest();
}

#[test]
fn what_was_sent_before_the_end_is_taken() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let (mut peer, socket) = tcp_pair();
    let bytes = publish(vec![1; 60_000]);
    for _ in 0..8 {
        peer.write(&bytes);
    }
    drop(peer);
    let conn = rig.adopt(0, socket, Rest::default());
    for _ in 0..8 {
        assert_eq!(rig.received(conn)[..], bytes[3..]);
    }
    assert_eq!(rig.closed(conn).0, CloseReason::PeerClosed);
    rig.wait_until_at_rest();
}

#[test]
fn a_device_that_is_silent_for_two_heartbeats_is_closed() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let (mut silent, socket) = tcp_pair();
    let heartbeat = Duration::from_millis(300);
    let began = Nanos::now();
    let conn = rig.adopt(0, socket, Rest { heartbeat, ..Rest::default() });
    let (mut other, _) = rig.device(0);
    assert_eq!(rig.closed(conn).0, CloseReason::HeartbeatMissed);
    assert!(Nanos::now().since(began) >= heartbeat, "it has two");
    silent.hear_goodbye(CloseReason::HeartbeatMissed);
    other.ping(b"has an hour");
    rig.wait_until_at_rest();
}

#[test]
fn the_kernel_gives_up_on_a_window_that_stays_shut() {
    let settings = ShardSettings { stall_timeout: PATIENCE * 2, ..ShardSettings::default() };
    let mut rig = Rig::start(1, &settings);
    let (_peer, socket) = tcp_pair();
    set_tcp_user_timeout(&socket, 300).expect("TCP has it");
    let conn = rig.adopt(0, socket, Rest::default());
    let message = rig.message(&"x".repeat(60_000), 1, None);
    // More than any default for the buffers of both ends.
    for _ in 0..400 {
        send(&rig, conn, &message);
    }
    drop(message);
    assert_eq!(rig.closed(conn).0, CloseReason::KernelTimeout);
    rig.wait_until_at_rest();
    assert!(rig.stats(0).dropped[DropRule::Closed as usize].get() > 0, "what waited is counted");
}

#[test]
fn an_eviction_stands_behind_what_was_queued_before_it() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    for reason in [CloseReason::Replaced, CloseReason::TooManyConnections] {
        let (mut peer, conn) = rig.device(0);
        let held_up = rig.hold_up(0);
        for offset in 0..3 {
            let message = rig.message("before", offset, None);
            send(&rig, conn, &message);
        }
        rig.push(0, Command::Evict(conn, reason));
        let late = rig.message("after", 9, None);
        send(&rig, conn, &late);
        drop((late, held_up));
        for offset in 0..3 {
            assert_eq!(peer.hear_push().offset, offset);
        }
        peer.hear_goodbye(reason);
        assert_eq!(rig.closed(conn).0, reason);
    }
    rig.wait_until("what came for the gone to be counted", |rig| {
        rig.stats(0).dropped[DropRule::Gone as usize].get() == 2
    });
    rig.wait_until_at_rest();
}

#[test]
fn an_urgent_close_waits_behind_nothing() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let (mut peer, conn) = rig.device(0);
    let held_up = rig.hold_up(0);
    let message = rig.message("never arrives", 0, None);
    for _ in 0..rig.engine.mailbox(0).capacity(CreditKind::Message) {
        send(&rig, conn, &message);
    }
    let is_full = rig.engine.mailbox(0).try_push(Command::Send(conn, Item::Message(message)));
    assert!(is_full.is_err(), "the queue is full");
    drop(is_full);
    let mailbox = rig.engine.mailbox(0);
    assert!(mailbox.try_urgent(Urgent::Close(conn, CloseReason::ClosedByOperator)).is_ok());
    drop(held_up);
    peer.hear_goodbye(CloseReason::ClosedByOperator);
    assert_eq!(rig.closed(conn).0, CloseReason::ClosedByOperator);
    rig.wait_until_at_rest();
}

#[test]
fn a_drain_tells_everybody_when_to_come_back() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let devices: Vec<_> = (0..50).map(|_| rig.device(0)).collect();
    let retry_after_ms = (1_000, 2_000);
    let over = Duration::from_millis(300);
    let (number, what) = (1, DrainWhat::All);
    rig.push(0, Command::Drain(Drain { number, what, over, retry_after_ms, seed: 7 }));
    let (mut late, socket) = tcp_pair();
    let late_conn = rig.adopt(0, socket, Rest::default());
    late.hear_goodbye(CloseReason::Draining);
    assert_eq!(rig.closed(late_conn).0, CloseReason::Draining);
    drop(late);
    let mut delays = Vec::new();
    for (mut peer, conn) in devices {
        delays.push(peer.hear_goodbye(CloseReason::Draining));
        assert_eq!(rig.closed(conn).0, CloseReason::Draining);
    }
    assert!(delays.iter().all(|delay| (1_000..=2_000).contains(delay)), "{delays:?}");
    delays.sort_unstable();
    delays.dedup();
    assert!(delays.len() > 25, "the delays are spread: {delays:?}");
    rig.wait_for(|report| matches!(report, Report::Drained { number: 1 }));
    rig.wait_until("the table to be empty", |rig| rig.stats(0).table_entries.get() == 0);
    rig.wait_until_at_rest();
}

#[test]
fn a_drain_of_nobody_is_over_at_once() {
    let mut rig = Rig::start(2, &ShardSettings::default());
    let (number, what, over) = (1, DrainWhat::All, PATIENCE);
    rig.push_all(|| Command::Drain(Drain { number, what, over, retry_after_ms: (0, 0), seed: 0 }));
    for _ in 0..2 {
        rig.wait_for(|report| matches!(report, Report::Drained { number: 1 }));
    }
}

#[test]
fn a_full_table_refuses_and_has_room_again_after_an_end() {
    let settings = ShardSettings { connections_max: 2, ..ShardSettings::default() };
    let mut rig = Rig::start(1, &settings);
    let (first, first_conn) = rig.device(0);
    let (_second, _) = rig.device(0);
    let (mut refused, socket) = tcp_pair();
    let asked = rig.offer(0, socket, Rest::default());
    let report = rig.wait_for(|report| matches!(report, Report::Refused { .. }));
    let Report::Refused { ticket, reason } = report else { panic!("not a refusal") };
    assert_eq!((ticket, reason), (asked, CloseReason::TooManyConnections));
    assert_eq!(refused.hear(), Heard::End);
    drop(first);
    rig.closed(first_conn);
    let (mut third, third_conn) = rig.device(0);
    third.ping(b"in its place");
    assert_ne!(third_conn, first_conn, "an id is never used twice");
    rig.wait_until_at_rest();
}

#[test]
fn a_descriptor_that_epoll_refuses_is_reported() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let file = std::fs::File::open("/proc/self/status").expect("Linux has it");
    rig.offer_adoption(0, adoption(file.into(), 99));
    let report = rig.wait_for(|report| matches!(report, Report::Refused { ticket: 99, .. }));
    assert!(matches!(report, Report::Refused { reason: CloseReason::SocketError, .. }));
    rig.wait_until_at_rest();
}

#[test]
fn stopping_closes_what_is_left_and_takes_no_more() {
    let mut rig = Rig::start(2, &ShardSettings::default());
    let mut peers: Vec<_> = (0..10).map(|number| rig.device(number % 2).0).collect();
    for peer in &mut peers {
        peer.ping(b"alive");
    }
    rig.engine.stop();
    for peer in &mut peers {
        assert_eq!(peer.hear(), Heard::End);
    }
    assert_eq!(rig.budget.used(), 0);
    rig.engine.stop();
}

#[test]
fn an_engine_without_shards_is_refused() {
    let budget = weir_engine::Budget::new(1);
    let refused = Engine::start(&ShardSettings::default(), budget, Vec::new());
    assert!(refused.is_err_and(|error| error.to_string().contains("at least 1")));
}
