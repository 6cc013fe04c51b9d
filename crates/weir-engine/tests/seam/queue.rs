//! Mailboxes: the order of the queue, credits, the reserved queue, and the way back.

use weir_engine::sim::SeededBug;
use weir_engine::{Command, ConnId, CreditKind, ShardSettings, TopicId};
use weir_wire::hot;

use crate::stage::{Device, Stage, said};

/// The first connection of a shard, named before the front has heard of it: node 0, shard 0, slot 0, generation 1.
const FIRST: ConnId = ConnId::from_u64(1);

/// Nothing overtakes a connection's welcome: neither the answer to what it has sent ahead, nor a broadcast.
///
/// Fails when a connection is read from before it (`read_open`), or a broadcast reaches it then (`at` in walk.rs).
#[test]
fn nothing_passes_the_welcome() {
    let mut stage = Stage::new();
    let mut ping = Vec::new();
    hot::encode_ping_frame(b"ahead", &mut ping);
    let (peer, _) = stage.offer(&ping);
    stage.shard.turn();
    stage.shard.peer_write(peer, &ping);
    stage.broadcast("too early");
    stage.settle();
    let device = Device { peer, conn: FIRST };
    assert!(stage.heard(device).is_empty());
    stage.shard.push(Command::Welcome(FIRST, said("welcome").into()));
    stage.broadcast("now");
    stage.settle();
    assert_eq!(stage.heard(device), ["welcome", "pong ahead", "pong ahead", "now"]);
    assert_eq!(stage.shard.stats().queued_bytes.get(), 0);
}

/// Publish against subscribe: the place in the queue alone decides who gets what.
///
/// Fails when a walk takes its end as it begins instead of when it is dequeued (`end` in `begin_topic_fanout`).
#[test]
fn whoever_subscribes_gets_what_stands_behind_in_the_queue_and_nothing_before() {
    let mut stage = Stage::new();
    let old = stage.members(1, 3);
    let new = stage.join();
    stage.publish(1, "before");
    stage.subscribe(new, 1, "subscribed");
    stage.publish(1, "behind");
    stage.settle();
    assert_eq!(stage.heard(new), ["subscribed", "behind"]);
    for device in old {
        assert_eq!(stage.heard(device), ["before", "behind"]);
    }
}

/// Leaving ends delivery at once, and for nobody else: nothing of a topic comes behind `Unsubscribed`.
///
/// Fails when leaving under a walk moves the last member into the gap instead of writing a tombstone (`leave` in
/// topics.rs).
#[test]
fn nothing_comes_behind_unsubscribed() {
    let mut stage = Stage::new();
    let mut devices = stage.members(1, 700);
    stage.publish(1, "one");
    stage.shard.turn();
    let (ahead, passed) = (devices.remove(300), devices.remove(10));
    stage.unsubscribe(ahead, 1, "unsubscribed");
    stage.unsubscribe(passed, 1, "unsubscribed");
    stage.publish(1, "two");
    stage.settle();
    assert_eq!(stage.heard(ahead), ["unsubscribed"]);
    assert_eq!(stage.heard(passed), ["one", "unsubscribed"]);
    for device in devices {
        assert_eq!(stage.heard(device), ["one", "two"]);
    }
    assert_eq!(stage.reported(), ["left 1", "left 1"]);
}

/// A credit returns when the fan-out ends, and not before.
///
/// Fails when the credit is returned as the message is dequeued (`begin_fanout`).
#[test]
fn a_credit_is_out_until_its_fan_out_has_ended() {
    let settings = ShardSettings { message_capacity: 2, ..ShardSettings::default() };
    let mut stage = Stage::with_settings(settings);
    let devices = stage.members(1, 600);
    stage.publish(1, "one");
    stage.shard.turn();
    assert_eq!(stage.shard.mailbox().depth(), 1);
    stage.publish(1, "two");
    assert!(stage.shard.mailbox().try_credit(CreditKind::Message).is_none(), "none is left");
    let other = Command::Retire(TopicId(9));
    assert!(stage.shard.mailbox().try_push(other).is_ok(), "messages take no other credits");
    stage.settle();
    assert_eq!(stage.shard.mailbox().depth(), 0);
    for device in devices {
        assert_eq!(stage.heard(device), ["one", "two"]);
    }
}

/// The reserved queue waits neither for messages nor for the commands before it.
///
/// Fails when urgent requests are taken only while no fan-out runs (`take_urgent`).
#[test]
fn closing_by_an_operator_overtakes_messages() {
    let mut stage = Stage::new();
    let devices = stage.members(1, 600);
    for number in 0..5 {
        stage.publish(1, &format!("{number}"));
    }
    stage.shard.turn();
    let last = devices[599];
    stage.send(last, "in the queue");
    stage.close(last);
    stage.shard.turn();
    assert_eq!(stage.reported().len(), 1, "it is closed though fan-outs run");
    assert!(stage.shard.mailbox().depth() > 0, "they run");
    stage.settle();
    assert_eq!(stage.heard(last), ["goodbye closed_by_operator"]);
    assert_eq!(stage.heard(devices[0]).len(), 5);
}

/// Commands for a connection that has gone do not reach who has its slot now; each count meets its end.
///
/// Fails when generations are not compared (`find_open`): the seeded bug does that.
#[test]
fn a_membership_that_meets_an_old_generation_is_reported() {
    for bug in [None, Some(SeededBug::StaleSlot)] {
        let mut stage = Stage::new();
        bug.into_iter().for_each(|bug| stage.shard.seed_bug(bug));
        let old = stage.join();
        stage.shard.peer_reset(old.peer);
        stage.settle();
        assert_eq!(stage.reported(), ["closed 0 peer_reset []"]);
        let new = stage.join();
        stage.subscribe(old, 1, "subscribed");
        stage.send(old, "sent");
        stage.publish(1, "published");
        stage.settle();
        let is_kept_apart = stage.heard(new).is_empty() && stage.reported() == ["not entered 1"];
        assert_eq!(is_kept_apart, bug.is_none());
    }
}

/// Commands for a connection of another node do not reach the one that has the same shard, slot and generation here.
///
/// Fails when the numbers of nodes are not compared (`find_open` in table.rs).
#[test]
fn a_command_for_a_connection_of_another_node_is_stale() {
    let settings = ShardSettings::default();
    let node = settings.node.clone();
    let mut stage = Stage::with_settings(settings);
    let before = stage.join();
    assert!(node.renumber(7));
    let after = stage.join();
    assert_eq!((before.conn.node(), after.conn.node()), (0, 7));
    for (device, other) in [(before, 7), (after, 0)] {
        let number = device.conn.to_u64() & ((1 << 54) - 1) | other << 54;
        let foreign = Device { conn: ConnId::from_u64(number), ..device };
        assert_eq!((foreign.conn.node(), foreign.conn.shard()), (u16::try_from(other).unwrap(), 0));
        stage.send(foreign, "sent");
        stage.subscribe(foreign, 1, "subscribed");
        stage.close(foreign);
        stage.settle();
        assert_eq!(stage.reported(), ["not entered 1"]);
        stage.send(device, "its own");
        stage.settle();
        assert_eq!(stage.heard(device), ["its own"]);
    }
}

/// Each count up meets exactly one count down.
///
/// Fails when a second subscription is not reported (`subscribe` in commands.rs).
#[test]
fn each_membership_asked_for_ends_once() {
    let settings = ShardSettings { topics_per_connection_max: 2, ..ShardSettings::default() };
    let mut stage = Stage::with_settings(settings);
    let device = stage.join();
    for topic in [1, 1, 2, 3] {
        stage.subscribe(device, topic, "in");
    }
    stage.unsubscribe(device, 2, "out");
    stage.unsubscribe(device, 2, "out");
    stage.settle();
    assert_eq!(stage.heard(device), ["in", "in", "in", "error too_many_topics", "out", "out"]);
    assert_eq!(stage.reported(), ["not entered 1", "not entered 3", "left 2"]);
    stage.shard.peer_end(device.peer);
    stage.settle();
    assert_eq!(stage.reported(), ["closed 0 peer_closed [1]"]);
}

/// Of each connection the front hears that it is there, then what it said, then that it has gone.
///
/// Fails when a socket is read from while what it said is held back (`read_open`).
#[test]
fn reports_of_a_connection_come_in_order_however_little_room_there_is() {
    let mut stage = Stage::new();
    stage.shard.front_mut().set_room(0);
    let frame = |number| [3, 0x0a, 1, number];
    let (peer, _) = stage.offer(&frame(1));
    stage.shard.turn();
    stage.welcome(FIRST);
    stage.shard.peer_write(peer, &[frame(2), frame(3)].concat());
    stage.shard.peer_end(peer);
    stage.offer(&[]);
    for _ in 0..20 {
        stage.shard.advance(std::time::Duration::from_millis(10));
    }
    assert!(stage.shard.stats().connections.get() > 0, "nobody is lost");
    let mut reported = Vec::new();
    for _ in 0..20 {
        stage.shard.front_mut().set_room(1);
        stage.shard.advance(std::time::Duration::from_millis(10));
        stage.shard.check().unwrap();
        reported.extend(stage.reported());
    }
    let of_first: Vec<_> = reported.iter().filter(|report| *report != "adopted 2").collect();
    assert_eq!(
        of_first,
        [
            "adopted 1",
            "received [10, 1, 1]",
            "received [10, 1, 2]",
            "received [10, 1, 3]",
            "closed 0 peer_closed []"
        ]
    );
}

/// What happens while older reports wait does not pass them, even if there is room by then.
///
/// Fails when an end is offered past reports that wait (`report` in shard/mod.rs), or a frame is (`handle_frame`).
#[test]
fn nothing_passes_the_reports_that_wait() {
    for ends in [true, false] {
        let mut stage = Stage::new();
        stage.shard.front_mut().set_room(0);
        let (peer, _) = stage.offer(&[]);
        stage.shard.turn();
        stage.welcome(FIRST);
        if ends {
            stage.shard.peer_reset(peer);
        } else {
            stage.shard.peer_write(peer, &[3, 0x0a, 1, 7]);
        }
        stage.shard.front_mut().set_room(9);
        stage.shard.advance(std::time::Duration::from_millis(20));
        let second = if ends { "closed 0 peer_reset []" } else { "received [10, 1, 7]" };
        assert_eq!(stage.reported(), ["adopted 1", second]);
    }
}

/// A topic's id can be used anew at once: a walk over its former members does not reach its new ones.
///
/// Fails when retiring empties a vector that is walked (`retire` in topics.rs).
#[test]
fn an_id_is_reused_under_a_walk_of_its_former_topic() {
    let mut stage = Stage::new();
    let devices = stage.members(1, 400);
    stage.shard.cut_turns(4096, 50, 4096, 1 << 15, 1 << 16);
    stage.publish(1, "old");
    stage.shard.turn();
    for device in &devices {
        stage.unsubscribe(*device, 1, "out");
    }
    stage.shard.push(Command::Retire(TopicId(1)));
    for device in &devices {
        stage.subscribe(*device, 1, "in");
    }
    stage.publish(1, "new");
    stage.settle();
    let expected = [vec!["old", "out", "in", "new"], vec!["out", "in", "new"]];
    for (index, device) in devices.into_iter().enumerate() {
        assert_eq!(stage.heard(device), expected[usize::from(index >= 50)]);
    }
}
