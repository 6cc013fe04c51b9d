//! What devices do not take.

use std::sync::Arc;
use std::time::Duration;

use weir_engine::{Command, ConnId, DropRule, Item, Nanos, ShardSettings};
use weir_wire::{CloseReason, v1};

use crate::rig::{Heard, PATIENCE, Rest, Rig, push_text, send, tcp_pair, unix_pair};

/// Queues more for everybody than any default for the buffers of both ends, by reference.
fn flood(rig: &Rig) {
    let message = rig.message(&"x".repeat(60_000), 0, None);
    for _ in 0..400 {
        rig.push_all(|| Command::Broadcast(Arc::clone(&message)));
    }
}

/// Sends numbered messages until the connection is stalled; how many.
///
/// The kernel may find room for some more a little later, so it may have recovered by itself when this returns.
fn stall(rig: &mut Rig, conn: ConnId, text: &str) -> u64 {
    let mut count = 0;
    while rig.stats(conn.shard()).stalled.get() == 0 {
        let message = rig.message(text, count, None);
        send(rig, conn, &message);
        count += 1;
        drop(message);
        let mailbox = rig.engine.mailbox(conn.shard()).clone();
        rig.wait_until("the queue to be empty", |_| mailbox.depth() == 0);
    }
    count
}

#[test]
fn a_device_that_takes_nothing_is_closed_by_the_stall_time_out() {
    let stall_timeout = Duration::from_millis(500);
    let settings = ShardSettings { stall_timeout, ..ShardSettings::default() };
    let mut rig = Rig::start(1, &settings);
    for ends in [tcp_pair(), unix_pair()] {
        let (peer, socket) = ends;
        let conn = rig.adopt(0, socket, Rest::default());
        flood(&rig);
        assert_eq!(rig.closed(conn).0, CloseReason::Stalled);
        drop(peer);
        rig.wait_until_at_rest();
    }
    let stats = rig.stats(0);
    assert_eq!(stats.closed[CloseReason::Stalled.index()].get(), 2);
    assert_eq!(stats.stall_closed.counts().iter().sum::<u64>(), 2);
    assert!(stats.stall_closed.sum() >= 2 * stall_timeout, "none is closed early");
    assert!(stats.dropped[DropRule::Closed as usize].get() > 0);
}

#[test]
fn a_device_that_reads_in_time_misses_nothing() {
    let settings = ShardSettings { stall_timeout: PATIENCE, ..ShardSettings::default() };
    let mut rig = Rig::start(1, &settings);
    let (mut peer, conn) = rig.device(0);
    let text = "y".repeat(5000);
    for stalls in 1..=3 {
        let count = stall(&mut rig, conn, &text);
        // What it says while it is stalled is read once it has recovered.
        peer.write(&crate::rig::ping(b"late"));
        for offset in 0..count {
            let push = peer.hear_push();
            assert_eq!(push.offset, offset);
            assert_eq!(push_text(push), text);
        }
        let pong = v1::Pong { data: b"late".to_vec() };
        assert_eq!(peer.hear(), Heard::Message(v1::server_message::Kind::Pong(pong)));
        rig.wait_until_at_rest();
        let recovered = rig.stats(0).stall_recovered.counts().iter().sum::<u64>();
        assert!(recovered >= stalls, "{recovered} of {stalls}");
        assert_eq!(rig.stats(0).connections.get(), 1);
    }
    assert_eq!(rig.stats(0).dropped[DropRule::Closed as usize].get(), 0);
}

#[test]
fn silence_while_stalled_is_not_a_missed_heartbeat() {
    let settings =
        ShardSettings { stall_timeout: Duration::from_secs(4), ..ShardSettings::default() };
    let mut rig = Rig::start(1, &settings);
    let (_peer, socket) = tcp_pair();
    let heartbeat = Duration::from_secs(1);
    let conn = rig.adopt(0, socket, Rest { heartbeat, ..Rest::default() });
    let held_up = rig.hold_up(0);
    flood(&rig);
    drop(held_up);
    assert_eq!(rig.closed(conn).0, CloseReason::Stalled);
    rig.wait_until_at_rest();
}

#[test]
fn the_end_of_a_stalled_device_is_noticed() {
    let settings = ShardSettings { stall_timeout: PATIENCE * 2, ..ShardSettings::default() };
    let mut rig = Rig::start(1, &settings);
    for reads_all in [true, false] {
        let (peer, conn) = rig.device(0);
        let count = stall(&mut rig, conn, &"z".repeat(4096));
        if reads_all {
            peer.stream.shutdown(std::net::Shutdown::Write).expect("the connection is there");
            assert_eq!(rig.closed(conn).0, CloseReason::PeerClosed);
        } else {
            // Closing over unread bytes is a reset.
            drop(peer);
            assert_eq!(rig.closed(conn).0, CloseReason::PeerReset);
        }
        assert!(count > 0);
        rig.wait_until_at_rest();
    }
}

#[test]
fn what_has_expired_is_not_begun() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let (mut peer, conn) = rig.device(0);
    let passed = Some(Nanos::now());
    let held_up = rig.hold_up(0);
    for (offset, expires_at) in [(0, passed), (1, None), (2, passed), (3, None)] {
        let message = rig.message("in time or not", offset, expires_at);
        send(&rig, conn, &message);
        rig.push(0, Command::Broadcast(message));
    }
    drop(held_up);
    for offset in [1, 3, 1, 3] {
        assert_eq!(peer.hear_push().offset, offset);
    }
    rig.wait_until_at_rest();
    assert_eq!(
        (rig.stats(0).dropped[DropRule::Expired as usize].get(), rig.stats(0).delivered.get()),
        (4, 4)
    );
}

#[test]
fn a_send_to_a_connection_that_has_gone_is_counted() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let (peer, conn) = rig.device(0);
    drop(peer);
    rig.closed(conn);
    let (mut heir, _) = rig.device(0);
    let message = rig.message("stale", 0, None);
    send(&rig, conn, &message);
    rig.push(0, Command::Send(ConnId::from_u64(u64::MAX >> 8), Item::Message(message)));
    heir.ping(b"nothing came before");
    rig.wait_until_at_rest();
    assert_eq!(rig.stats(0).dropped[DropRule::Gone as usize].get(), 2);
}
