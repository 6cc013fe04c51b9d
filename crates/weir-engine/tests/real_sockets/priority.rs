//! Connections of high priority, which are in an epoll of their own.

use std::sync::Arc;

use weir_engine::{Command, ConnId, Priority, ShardSettings, TopicId, Urgent};
use weir_wire::CloseReason;

use crate::rig::{PATIENCE, Peer, Rest, Rig, ping, tcp_pair};

/// Urgent requests that a shard takes in a turn, as it is built.
const URGENT_PER_TURN: usize = 64;

fn device(rig: &mut Rig, priority: Priority) -> (Peer, ConnId) {
    let (peer, socket) = tcp_pair();
    let conn = rig.adopt(0, socket, Rest { priority, ..Rest::default() });
    (peer, conn)
}

/// Whether anything has come for the device.
fn has_heard(peer: &Peer) -> bool {
    peer.stream.set_nonblocking(true).expect("any socket can");
    let outcome = peer.stream.peek(&mut [0]);
    peer.stream.set_nonblocking(false).expect("any socket can");
    outcome.is_ok()
}

#[test]
fn every_priority_is_served() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let topic = TopicId(0);
    // More of high priority than one look at them brings.
    let of = |number: usize| if number < 300 { Priority::High } else { Priority::ALL[number % 3] };
    let mut devices: Vec<_> = (0..390).map(|number| device(&mut rig, of(number))).collect();
    for round in 0..3 {
        let held_up = rig.hold_up(0);
        for (peer, _) in &mut devices {
            peer.write(&ping(&[round]));
        }
        drop(held_up);
        for (peer, conn) in &mut devices {
            peer.hear();
            // And alone, when the shard sleeps.
            peer.ping(b"alone");
            rig.subscribe(*conn, topic);
            peer.hear_subscribed();
        }
        let message = rig.message("to all", round.into(), None);
        rig.push(0, Command::Publish(topic, Arc::clone(&message)));
        for (peer, _) in &mut devices {
            assert_eq!(peer.hear_push().offset, u64::from(round));
        }
    }
    for (peer, conn) in devices {
        drop(peer);
        assert_eq!(rig.closed(conn).0, CloseReason::PeerClosed);
    }
    rig.wait_until_at_rest();
    // A walk counts when it has ended, which may be after its last message is heard.
    for priority in Priority::ALL {
        let lags: u64 = rig.stats(0).lag[priority.index()].counts().iter().sum();
        let members = (0..390).filter(|number| of(*number) == priority).count();
        assert_eq!(lags, 3 * members as u64, "{priority:?}");
    }
}

#[test]
fn a_turn_hears_every_high_connection_and_some_of_the_others() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let mut normal: Vec<_> = (0..600).map(|_| device(&mut rig, Priority::Normal)).collect();
    let mut high: Vec<_> = (0..10).map(|_| device(&mut rig, Priority::High)).collect();
    let (first, entered) = rig.ask_to_hold_up(0);
    entered.recv_timeout(PATIENCE).expect("the shard takes the request");
    for (peer, _) in normal.iter_mut().chain(&mut high) {
        peer.write(&ping(b"now"));
    }
    // The rest of this turn's urgent requests; the next turn has heard who is ready when it comes to the last one.
    let nobody = ConnId::from_u64(0);
    for _ in 1..URGENT_PER_TURN {
        let close = Urgent::Close(nobody, CloseReason::ClosedByOperator);
        assert!(rig.engine.mailbox(0).try_urgent(close).is_ok());
    }
    let (second, entered) = rig.ask_to_hold_up(0);
    drop(first);
    entered.recv_timeout(PATIENCE).expect("the shard takes the request");
    assert!(high.iter().all(|(peer, _)| has_heard(peer)));
    let heard = normal.iter().filter(|(peer, _)| has_heard(peer)).count();
    assert!((1..=256).contains(&heard), "{heard} others were heard in one turn");
    drop(second);
    for (peer, _) in normal.iter_mut().chain(&mut high) {
        peer.hear();
    }
}
