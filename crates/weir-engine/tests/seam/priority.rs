//! Priorities: of connections, and of what is sent to them.

use std::collections::BTreeSet;

use weir_engine::{Priority, ShardSettings};

use crate::stage::{Device, Part, Stage};

/// A high member has a message before any other, whoever joined first.
///
/// Fails when a topic's members stand in one vector (`by_priority` in topics.rs), or ranks are not looked at
/// (`go_on_with_fanouts`).
#[test]
fn a_high_member_gets_a_message_first_though_it_joined_last() {
    let mut stage = Stage::new();
    let low = stage.join_of(Priority::Low);
    stage.subscribe(low, 1, "in");
    let normal = stage.members(1, 300);
    let high = stage.join_of(Priority::High);
    stage.subscribe(high, 1, "in");
    stage.settle();
    assert_eq!((stage.heard(low), stage.heard(high)), (vec!["in".into()], vec!["in".into()]));
    stage.publish(1, "message");
    stage.shard.cut_turns(512, 1, 4096, 1 << 15, 1 << 16);
    let sends = stage.shard.net().sends();
    stage.shard.turn();
    assert_eq!(stage.shard.net().sends() - sends, 1);
    assert_eq!(stage.heard(high), ["message"]);
    stage.shard.cut_turns(512, 256, 4096, 1 << 15, 1 << 16);
    stage.shard.turn();
    assert!(stage.heard(low).is_empty(), "it comes last though it joined first");
    let reached = normal.iter().filter(|device| !stage.heard(**device).is_empty()).count();
    assert_eq!(reached, 64, "slices are smaller beside a connection of high priority");
    stage.settle();
    assert_eq!(stage.heard(low), ["message"]);
}

/// The same for all connections; who leaves and whose slot is taken again does not disturb it.
///
/// Fails when a broadcast is one walk (`begin_fanout`), or a walk takes whom another one is for (`is_meant` in `at`).
#[test]
fn a_broadcast_reaches_the_priorities_in_their_order() {
    let mut stage = Stage::new();
    let mut devices: Vec<(Priority, Device)> = Vec::new();
    for _ in 0..20 {
        for priority in [Priority::Low, Priority::Normal, Priority::High] {
            devices.push((priority, stage.join_of(priority)));
        }
    }
    stage.settle();
    stage.shard.cut_turns(512, 1, 4096, 1 << 15, 1 << 16);
    stage.broadcast("message");
    let mut order = Vec::new();
    for _ in 0..devices.len() {
        stage.shard.turn();
        for (priority, device) in &devices {
            let heard = stage.heard(*device);
            order.extend(heard.iter().map(|_| *priority));
        }
    }
    stage.settle();
    assert_eq!(order.len(), devices.len());
    assert!(order.is_sorted(), "{order:?}");
}

/// A message of high priority does not wait behind a long fan-out of lower ones; each topic's order holds.
///
/// Fails when the message's priority is no part of the rank (`begin_fanout`).
#[test]
fn a_high_message_overtakes_a_long_fan_out() {
    let mut stage = Stage::new();
    let devices = stage.members(1, 1000);
    for device in &devices {
        stage.subscribe(*device, 2, "in");
        stage.shard.turn();
        stage.heard(*device);
    }
    stage.publish_of(Priority::Low, 1, "low 1");
    stage.shard.turn();
    stage.publish_of(Priority::Low, 1, "low 2");
    stage.publish_of(Priority::High, 2, "high 1");
    let under_way = devices.iter().filter(|device| stage.heard(**device) == ["low 1"]).count();
    assert_eq!(under_way, 256);
    stage.shard.turn();
    stage.publish_of(Priority::High, 2, "high 2");
    // A turn to gather both, and four to send them.
    for _ in 0..5 {
        stage.shard.turn();
    }
    for device in &devices {
        assert_eq!(stage.heard(*device), ["high 1", "high 2"]);
    }
    stage.settle();
    for (index, device) in devices.into_iter().enumerate() {
        let rest = if index < 256 { vec!["low 2"] } else { vec!["low 1", "low 2"] };
        assert_eq!(stage.heard(device), rest);
    }
}

/// Nor does it wait until a gathering is over, however many connections that has touched; and nothing is lost of what
/// was gathered.
///
/// Fails when a walk leaves what a lower rank has gathered to that one's flush (`walk_directly`, `list_to_flush`).
#[test]
fn a_high_message_does_not_wait_for_a_gathering() {
    for messages in [1, 2, 5] {
        let mut stage = Stage::new();
        let devices = stage.members(1, 600);
        for device in &devices {
            stage.subscribe(*device, 2, "in");
            stage.shard.turn();
            stage.heard(*device);
        }
        stage.shard.cut_turns(512, 50, 100, 1 << 15, 1 << 16);
        for text in ["one", "two", "three"] {
            stage.publish_of(Priority::Low, 1, text);
        }
        for _ in 0..8 {
            stage.shard.turn();
        }
        assert!(devices.iter().all(|device| stage.heard(*device).is_empty()), "they gather");
        let high: Vec<String> = (0..messages).map(|number| format!("high {number}")).collect();
        for text in &high {
            stage.publish_of(Priority::High, 2, text);
        }
        // A turn for each hundred members that a walk gathers for, and for each fifty that are sent to.
        for _ in 0..6 * messages + 12 {
            stage.shard.turn();
        }
        let mut heard: Vec<Vec<String>> = Vec::new();
        for device in &devices {
            heard.push(stage.heard(*device));
            let of_high: Vec<&String> = heard
                .last()
                .into_iter()
                .flatten()
                .filter(|text| text.starts_with("high"))
                .collect();
            assert_eq!(of_high, high.iter().collect::<Vec<_>>());
        }
        assert!(stage.shard.stats().fanouts.get() > 0, "the others are still under way");
        stage.settle();
        for (device, heard) in devices.into_iter().zip(&mut heard) {
            heard.extend(stage.heard(device));
            heard.retain(|text| !text.starts_with("high"));
            assert_eq!(*heard, ["one", "two", "three"]);
        }
        assert_eq!(stage.shard.stats().queued_bytes.get(), 0);
    }
}

/// What is for a connection alone does not wait until a gathering is over that higher ranks put off, and who takes
/// nothing meanwhile is found to be stalled.
///
/// Fails when what is queued behind gathered messages is left to the gathering's flush (`send_bytes`, `send_item` in
/// write.rs, `queue_chunk` in resume.rs).
#[test]
fn what_is_for_one_connection_does_not_wait_for_a_gathering() {
    let settings = ShardSettings {
        low_watermark_bytes: 100,
        high_watermark_bytes: 200,
        ..ShardSettings::default()
    };
    let mut stage = Stage::with_settings(settings);
    let devices = stage.members(1, 300);
    let takes_nothing = devices[4];
    stage.shard.cut_turns(512, 50, 100, 1 << 15, 1 << 16);
    for text in ["one", "two"] {
        stage.publish_of(Priority::Low, 1, text);
    }
    stage.shard.turn();
    stage.ping(devices[0], "now");
    stage.send(devices[1], "pushed");
    let missed = Part { number: 1, begin: "", texts: &["missed"], after: 1, is_last: true };
    stage.resume(devices[2], 2, Part { begin: "in", ..missed });
    stage.send_message(devices[3], "message");
    stage.shard.net().set_send_buffer(takes_nothing.peer, 0, 0);
    stage.send(takes_nothing, &"x".repeat(300));
    stage.shard.turn();
    assert_eq!(stage.heard(devices[0]), ["one", "pong now"]);
    assert_eq!(stage.heard(devices[1]), ["one", "pushed"]);
    assert_eq!(stage.heard(devices[2]), ["one", "in", "missed"]);
    assert_eq!(stage.heard(devices[3]), ["one", "message"]);
    assert_eq!(stage.shard.stats().stalled.get(), 1);
    assert!(stage.shard.stats().fanouts.get() > 0, "the gathering goes on");
    stage.settle();
    for device in &devices[..4] {
        assert_eq!(stage.heard(*device), ["two"]);
    }
}

/// Who is evicted gets what stood before it in the queue, of every rank; the credits return when all walks have ended.
///
/// Fails when an end waits for as many walks as had begun, whichever they are (`walked_before`).
#[test]
fn an_eviction_waits_for_the_fan_outs_of_all_ranks() {
    let mut stage = Stage::new();
    let devices = stage.members(1, 600);
    let high = stage.join_of(Priority::High);
    let evicted = devices[599];
    for topic in 1..=3 {
        stage.subscribe(high, topic, "in");
    }
    stage.subscribe(evicted, 2, "in");
    stage.subscribe(evicted, 3, "in");
    stage.settle();
    stage.heard(high);
    stage.heard(evicted);
    stage.publish_of(Priority::Low, 1, "low");
    stage.publish_of(Priority::Normal, 2, "normal");
    stage.publish_of(Priority::High, 3, "high");
    stage.evict(evicted);
    stage.evict(high);
    stage.publish_of(Priority::High, 3, "behind");
    let mut heard = Vec::new();
    while heard.len() < 4 {
        stage.shard.turn();
        assert!(stage.reported().is_empty(), "nobody is evicted while a walk goes on");
        heard.extend(stage.heard(high));
    }
    assert_eq!(heard, ["high", "behind", "normal", "low"]);
    assert!(stage.shard.mailbox().depth() >= 3, "one message, and what waits for it");
    stage.settle();
    let ends: BTreeSet<String> = stage.reported().into_iter().collect();
    assert_eq!(ends.len(), 2);
    assert_eq!(stage.heard(evicted), ["high", "behind", "normal", "low", "goodbye replaced"]);
    assert_eq!(stage.heard(high), ["goodbye replaced"]);
    assert_eq!(stage.shard.mailbox().depth(), 0);
}

/// What a high connection says is heard in the same turn, whoever else is ready.
///
/// Fails when its readiness is announced with that of the others (`poll_high`).
#[test]
fn a_high_connection_is_read_from_first() {
    let mut stage = Stage::new();
    let normal: Vec<Device> = (0..400).map(|_| stage.join()).collect();
    let high = stage.join_of(Priority::High);
    stage.settle();
    for device in &normal {
        stage.ping(*device, "normal");
    }
    stage.ping(high, "high");
    stage.shard.turn();
    assert_eq!(stage.heard(high), ["pong high"]);
    let answered = normal.iter().filter(|device| !stage.heard(**device).is_empty()).count();
    assert_eq!(answered, 256, "the rest has its turn later");
    stage.settle();
    let answered = normal.iter().filter(|device| !stage.heard(**device).is_empty()).count();
    assert_eq!(answered, 144);
}

/// Nor does it wait until a queue full of resumes is served, of which a turn takes as many as their bytes allow.
///
/// Fails when a part of a resume weighs as much as any command (`weight_of` in commands.rs), or nobody looks in between
/// (`take_commands`).
#[test]
fn a_high_connection_does_not_wait_for_a_mass_resume() {
    let mut stage = Stage::new();
    stage.join_of(Priority::High);
    let normal: Vec<Device> = (0..200).map(|_| stage.join()).collect();
    stage.settle();
    let text = "x".repeat(64);
    let part = Part { number: 1, begin: "in", texts: &[&text[..]; 500], after: 500, is_last: true };
    for device in &normal {
        stage.resume(*device, 1, part);
    }
    let looks = stage.shard.net().looks();
    stage.shard.turn();
    assert!(stage.shard.net().looks() - looks >= 16, "one for each 32 of 512");
    let served = normal.iter().filter(|device| !stage.heard(**device).is_empty()).count();
    assert_eq!(served, 57, "each weighs nine");
    stage.settle();
    for device in &normal[served..] {
        assert_eq!(stage.heard(*device).len(), 501);
    }
}
