//! Fan-out: walks that are interrupted, joined and left, and what leaves together.

use std::collections::BTreeSet;

use crate::stage::{Device, SENDS_PER_TURN, Stage};

/// A walk is resumed behind closings, reused slots and newcomers: every member of its time gets the message once.
///
/// Fails when leaving under a walk moves the last member into the gap (`leave` in topics.rs).
#[test]
fn a_walk_reaches_its_members_once_whoever_comes_and_goes() {
    let mut stage = Stage::new();
    let devices = stage.members(1, 1000);
    stage.shard.cut_turns(512, 50, 4096, 1 << 15, 1 << 16);
    stage.publish(1, "message");
    stage.shard.turn();
    // Behind the walk, ahead of it, and the last.
    let gone: Vec<Device> = [0, 3, 49, 50, 300, 998, 999].map(|at| devices[at]).into();
    for device in &gone {
        stage.shard.peer_reset(device.peer);
    }
    stage.shard.turn();
    let newcomers: Vec<Device> = (0..7).map(|_| stage.join()).collect();
    let slots = |devices: &[Device]| -> BTreeSet<u64> {
        devices.iter().map(|device| device.conn.to_u64() >> 24).collect()
    };
    assert_eq!(slots(&gone), slots(&newcomers), "the slots are taken again");
    assert!(stage.shard.stats().fanouts.get() > 0, "the walk is under way");
    for device in &newcomers {
        stage.subscribe(*device, 1, "in");
    }
    stage.settle();
    for device in newcomers {
        assert_eq!(stage.heard(device), ["in"]);
    }
    let is_gone = |device: &Device| gone.iter().any(|other| other.conn == device.conn);
    for device in devices.into_iter().filter(|device| !is_gone(device)) {
        assert_eq!(stage.heard(device), ["message"]);
    }
}

/// A broadcast reaches those who were adopted before it, and no slot's later owner.
///
/// Fails when the number of the adoption is not looked at (`is_earlier` in `at`).
#[test]
fn a_broadcast_passes_over_whoever_is_adopted_later() {
    let mut stage = Stage::new();
    let devices: Vec<Device> = (0..700).map(|_| stage.join()).collect();
    let last = devices[699];
    stage.broadcast("message");
    stage.shard.turn();
    stage.shard.peer_reset(last.peer);
    stage.shard.turn();
    let reuses = stage.join();
    let is_new = stage.join();
    stage.settle();
    assert!(stage.heard(reuses).is_empty());
    assert!(stage.heard(is_new).is_empty());
    for device in &devices[..699] {
        assert_eq!(stage.heard(*device), ["message"]);
    }
    assert_eq!(reuses.conn.to_u64() >> 24, last.conn.to_u64() >> 24);
}

/// What several fan-outs owe a connection leaves in one send, in the order of the queue.
///
/// Fails when each walk sends as it goes (`go_on_with_rank`).
#[test]
fn fan_outs_that_wait_together_leave_in_one_send_each() {
    let mut stage = Stage::new();
    let devices = stage.members(0, 50);
    for device in &devices {
        for topic in 1..8 {
            stage.subscribe(*device, topic, "in");
        }
        stage.settle();
        stage.heard(*device);
    }
    let sends = stage.shard.net().sends();
    for topic in 0..8 {
        stage.publish(topic, &format!("{topic}"));
    }
    stage.settle();
    assert_eq!(stage.shard.net().sends() - sends, 50);
    for device in devices {
        assert_eq!(stage.heard(device), ["0", "1", "2", "3", "4", "5", "6", "7"]);
    }
}

/// Messages that come without pause do not hold one another back.
///
/// Fails when a gathering goes on as long as there are messages (`is_gathering_over`).
#[test]
fn messages_in_every_turn_are_delivered_meanwhile() {
    let mut stage = Stage::new();
    let devices = stage.members(1, 20);
    let mut longest = 0;
    let mut heard = 0;
    for number in 0..600 {
        stage.publish(1, &format!("{number}"));
        stage.publish(1, &format!("{number}"));
        stage.shard.turn();
        heard += stage.heard(devices[0]).len();
        longest = longest.max(2 * number + 2 - heard);
    }
    assert!(longest <= 200, "{longest} messages were under way");
}

/// A ping is answered within the next slice of sends, whatever is being fanned out.
///
/// Fails when a walk does not end its turn (`sends` in `Slices`); and, for the gathered ones, when an edge does not
/// flush what was gathered for its connection (`handle_event`), as the answer stands behind that.
#[test]
fn a_ping_does_not_wait_behind_a_huge_fan_out() {
    for messages in [1, 3] {
        let mut stage = Stage::new();
        let devices = stage.members(1, 5000);
        for _ in 0..messages {
            stage.publish(1, "message");
        }
        for _ in 0..4 {
            stage.shard.turn();
        }
        assert!(stage.shard.stats().fanouts.get() > 0, "the fan-out is under way");
        for device in [devices[0], devices[4999]] {
            let before = stage.shard.net().sends();
            stage.ping(device, "now");
            stage.shard.turn();
            let heard = stage.heard(device);
            assert!(heard.contains(&"pong now".to_string()), "{messages} messages: {heard:?}");
            let sends = stage.shard.net().sends() - before;
            assert!(sends <= SENDS_PER_TURN as u64 + 2, "{sends} sends");
        }
        stage.settle();
    }
}
