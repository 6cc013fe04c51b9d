//! Connections that do not keep up: what becomes of what is published meanwhile, by the policy of its topic.

use std::time::Duration;

use weir_engine::{
    Command, DropRule, Message, Net as _, Priority, ShardSettings, Share, SlowPolicy, TopicId,
    TopicMessage,
};

use crate::stage::{Device, Stage, said};

/// Marks of a hundred and two hundred bytes.
fn low_marks() -> ShardSettings {
    ShardSettings {
        low_watermark_bytes: 100,
        high_watermark_bytes: 200,
        stall_timeout: Duration::from_secs(2),
        ..ShardSettings::default()
    }
}

/// A member of topic 1 whose kernel holds `capacity` bytes.
fn slow_member(stage: &mut Stage, capacity: usize) -> Device {
    let device = stage.members(1, 1)[0];
    stage.shard.net().set_send_buffer(device.peer, capacity, capacity / 2);
    device
}

fn dropped(stage: &Stage, rule: DropRule) -> u64 {
    stage.shard.stats().dropped[rule as usize].get()
}

/// What is begun is finished; of what follows the newest of each key comes, in the order of the offsets.
///
/// Fails when the older message of a key is kept (`enter` in latest.rs), or what is begun is not committed
/// (`send_batch`).
#[test]
fn a_slow_connection_gets_the_newest_of_each_key_behind_what_was_begun() {
    let mut stage = Stage::new();
    let device = slow_member(&mut stage, 6);
    for (offset, text) in (1..).zip(["a=1", "a=2", "b=1", "c=1", "b=2", "a=3"]) {
        stage.conflate(1, offset, text);
        stage.settle();
    }
    // The kernel has one whole and a byte of the next: that is committed.
    assert_eq!(stage.heard_slowly(device), ["a=1", "a=2", "c=1", "b=2", "a=3"]);
    assert_eq!(dropped(&stage, DropRule::Conflated), 1);
    stage.conflate(1, 7, "a=4");
    stage.settle();
    assert_eq!(stage.heard_slowly(device), ["a=4"]);
    assert_eq!(stage.shard.stats().queued_bytes.get(), 0, "nothing is kept for who keeps up");
}

/// The same of ticks, of which the single messages are kept, and of a socket that takes nothing at all.
///
/// Fails when the tick itself is kept (`remember`), or is queued whole when the socket refuses it (`deliver`).
#[test]
fn of_a_tick_the_single_messages_are_kept() {
    let mut stage = Stage::new();
    let device = slow_member(&mut stage, 0);
    stage.conflate_tick(1, 1, &["a=1", "b=1", "none"]);
    stage.settle();
    stage.conflate_tick(1, 4, &["b=2", "c=1"]);
    stage.settle();
    assert_eq!(stage.shard.stats().queued_items.get(), 0);
    stage.shard.net().set_send_buffer(device.peer, 9, 4);
    stage.settle();
    assert_eq!(stage.heard_slowly(device), ["a=1", "none", "b=2", "c=1"]);
    stage.conflate_tick(1, 6, &["b=3", "d=1"]);
    stage.settle();
    assert_eq!(stage.heard_slowly(device), ["b=3,d=1"]);
}

/// A message comes once, from the store or from its walk, though a walk is behind when the socket takes bytes again.
///
/// Fails when a connection gets from the store what no walk has brought it (`seen` in `gather` of latest.rs).
#[test]
fn what_the_store_has_before_the_walk_comes_once() {
    let mut stage = Stage::new();
    let devices = stage.members(1, 40);
    for device in &devices {
        stage.shard.net().set_send_buffer(device.peer, 0, 0);
    }
    stage.conflate(1, 1, "a=1");
    stage.settle();
    stage.shard.cut_turns(512, 10, 10, 1 << 15, 1 << 16);
    stage.conflate(1, 2, "b=1");
    stage.shard.turn();
    for device in &devices {
        stage.shard.net().set_send_buffer(device.peer, 1000, 500);
    }
    stage.shard.turn();
    assert!(stage.shard.stats().fanouts.get() > 0, "the walk has not ended");
    stage.conflate(1, 3, "a=2");
    stage.settle();
    for device in devices {
        assert_eq!(stage.heard(device), ["a=1", "b=1", "a=2"]);
    }
}

/// Several fan-outs that walk together leave the same: what waits only because they gather is not slowness.
///
/// Fails when a gathering counts as waiting (`gather` in write.rs).
#[test]
fn gathered_messages_are_not_conflated_for_who_keeps_up() {
    let mut stage = Stage::new();
    let quick = stage.members(1, 1)[0];
    let slow = slow_member(&mut stage, 6);
    for round in 0..3 {
        for at in 0..4 {
            stage.conflate(1, round * 4 + at + 1, &format!("a={at}"));
        }
        stage.settle();
    }
    assert_eq!(stage.heard(quick), ["a=0", "a=1", "a=2", "a=3"].repeat(3));
    let heard = stage.heard_slowly(slow);
    assert_eq!(heard[..4], ["a=0", "a=1", "a=2", "a=3"], "gathered before it was slow");
    assert_eq!(heard[4..], ["a=3"]);
}

/// A gathering that sends in between, to see who keeps up, sends no more in a turn than any other fan-out.
///
/// Fails when those sends are not taken from the turn's share (`walk_gathering` in walk.rs).
#[test]
fn what_a_gathering_sends_in_between_counts() {
    let mut stage = Stage::with_settings(low_marks());
    let devices = stage.members(1, 200);
    stage.shard.cut_turns(512, 20, 4096, 1 << 15, 1 << 16);
    for offset in 1..=3 {
        stage.conflate(1, offset, &format!("a={offset:0120}"));
    }
    let mut before = stage.shard.net().sends();
    for turn in 0..60 {
        stage.shard.turn();
        let sends = stage.shard.net().sends();
        assert!(sends - before <= 20, "{} sends in turn {turn}", sends - before);
        before = sends;
    }
    stage.settle();
    for device in devices {
        assert_eq!(stage.heard(device).len(), 3);
    }
}

/// Who lags ends as stalled only when its socket takes nothing at all.
///
/// Fails when the clock of a lagging connection runs from the beginning (`taken_at` in `advance` of write.rs), or does
/// not run (`next_deadline`).
#[test]
fn who_lags_is_closed_when_its_socket_takes_nothing() {
    let mut stage = Stage::with_settings(low_marks());
    let (drips, takes_nothing) = (slow_member(&mut stage, 3), slow_member(&mut stage, 3));
    let mut bytes = Vec::new();
    for offset in 1..=100 {
        stage.conflate(1, offset, &format!("a={offset:030}"));
        stage.shard.advance(Duration::from_millis(500));
        bytes.extend(stage.shard.peer_read(drips.peer));
        if offset == 3 {
            let page = stage.stalled_for(takes_nothing).expect("its socket takes nothing");
            assert!((1000..1600).contains(&page.as_millis()), "{page:?}");
        }
    }
    assert_eq!(stage.reported(), ["closed 1 stalled [1]"]);
    assert!(bytes.len() > 100, "{} bytes have come in 50 s", bytes.len());
    assert_eq!(stage.shard.stats().stall_closed.counts().iter().sum::<u64>(), 1);
}

/// Who leaves a topic gets nothing of it behind the answer, nor does who is evicted.
///
/// Fails when leaving does not end the lag (`unsubscribe`, `close`): the tables disagree then.
#[test]
fn leaving_ends_what_was_owed() {
    for evicted in [false, true] {
        let mut stage = Stage::new();
        let device = slow_member(&mut stage, 2);
        stage.subscribe(device, 2, "in");
        stage.settle();
        for (offset, text) in (1..).zip(["a=1", "b=1", "c=1"]) {
            stage.conflate(1, offset, text);
            stage.conflate(2, offset, text);
            stage.settle();
        }
        if evicted {
            stage.evict(device);
        } else {
            stage.unsubscribe(device, 1, "out");
        }
        stage.settle();
        let heard = stage.heard_slowly(device);
        if evicted {
            assert_eq!(heard, ["in", "goodbye replaced"]);
        } else {
            assert_eq!(heard, ["in", "out", "a=1", "b=1", "c=1"]);
        }
    }
}

/// Of more keys than are kept the oldest message falls out, and everything is given back at the end.
///
/// Fails when the number of messages kept is not bounded (`enter`).
#[test]
fn no_more_messages_are_kept_than_the_limit_says() {
    let settings = ShardSettings { conflation_keys_max: 3, ..ShardSettings::default() };
    let mut stage = Stage::with_settings(settings);
    let device = slow_member(&mut stage, 0);
    for (offset, text) in (1..).zip(["a=1", "none", "b=1", "c=1", "a=2"]) {
        stage.conflate(1, offset, text);
        stage.settle();
    }
    assert_eq!(dropped(&stage, DropRule::Conflated), 2);
    stage.shard.net().set_send_buffer(device.peer, 100, 50);
    stage.settle();
    assert_eq!(stage.heard_slowly(device), ["b=1", "c=1", "a=2"]);
    assert_eq!(stage.shard.budget().used(), 0);
}

/// What has fallen out is counted once, though walks that are behind bring it again.
///
/// Fails when an old message is entered into a full store, and falls out of it (`enter`).
#[test]
fn what_falls_out_counts_once() {
    let settings = ShardSettings { conflation_keys_max: 3, ..ShardSettings::default() };
    let mut stage = Stage::with_settings(settings);
    for priority in Priority::ALL {
        let device = stage.join_of(priority);
        stage.subscribe(device, 1, "in");
        stage.settle();
        stage.shard.net().set_send_buffer(device.peer, 0, 0);
    }
    stage.conflate(1, 1, "lag");
    stage.settle();
    for offset in 2..=6 {
        stage.conflate(1, offset, &format!("{offset}=1"));
    }
    stage.settle();
    assert_eq!(dropped(&stage, DropRule::Conflated), 3);
}

/// Two topics that lag have their turns.
///
/// Fails when the first is served until it has caught up (`rotate_left` in `send_batch`).
#[test]
fn a_busy_topic_does_not_starve_another() {
    let mut stage = Stage::new();
    let device = slow_member(&mut stage, 0);
    stage.shard.net().set_send_buffer(device.peer, 100, 50);
    stage.subscribe(device, 2, "in");
    stage.settle();
    stage.heard(device);
    stage.shard.net().set_send_buffer(device.peer, 0, 0);
    for offset in 1..=3 {
        stage.conflate(1, offset, "busy");
        stage.settle();
    }
    stage.conflate(2, 1, "other");
    stage.settle();
    stage.shard.net().set_send_buffer(device.peer, 6, 3);
    let mut bytes = Vec::new();
    for offset in 2..20 {
        stage.conflate(1, 2 * offset, "busy");
        stage.conflate(1, 2 * offset + 1, "busy");
        stage.settle();
        bytes.extend(stage.shard.peer_read(device.peer));
    }
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.contains("other"), "{text}");
}

/// A dropping and a conflating topic that are both too busy for the link have their turns.
///
/// Fails when a lagging connection takes all that a dropping topic sends (`is_held_up` in write.rs).
#[test]
fn a_dropping_topic_does_not_starve_a_conflating_one() {
    let mut stage = Stage::new();
    let device = slow_member(&mut stage, 100);
    stage.subscribe(device, 2, "in");
    stage.settle();
    stage.heard(device);
    stage.shard.net().set_send_buffer(device.peer, 40, 20);
    let mut bytes = Vec::new();
    for offset in 1..=40 {
        stage.conflate(1, offset, &format!("a={offset:018}"));
        for at in 0..3 {
            let drop = TopicMessage {
                slow: SlowPolicy::Drop,
                offset: 3 * offset + at,
                ..Default::default()
            };
            stage.post(2, &format!("{:020}", 3 * offset + at), drop);
            stage.settle();
        }
        bytes.extend(stage.shard.peer_read(device.peer));
    }
    let text = String::from_utf8_lossy(&bytes);
    let conflated = text.matches("a=").count();
    let others = bytes.len() / 22 - conflated;
    assert!(conflated > 10 && others > 10, "{conflated} of one and {others} of the other");
    assert!(dropped(&stage, DropRule::Slow) > 0);
}

/// Above the high watermark messages are skipped, down to the low one; what was queued comes.
///
/// Fails when a recovery is not waited for (`deliver_behind` in write.rs).
#[test]
fn a_dropping_topic_is_skipped_from_the_high_mark_to_the_low_one() {
    let mut stage = Stage::with_settings(low_marks());
    let device = slow_member(&mut stage, 30);
    let drop = |offset| TopicMessage { slow: SlowPolicy::Drop, offset, ..Default::default() };
    let text = |number: u64| format!("{number:028}");
    // 30 bytes each: one in the kernel, seven more wait above the mark, of which five are left at the low one.
    for number in 1..=12 {
        stage.post(1, &text(number), drop(number));
        stage.settle();
    }
    assert_eq!(stage.shard.stats().stalled.get(), 1);
    assert_eq!(dropped(&stage, DropRule::Slow), 4);
    let mut heard = stage.heard(device);
    stage.settle();
    stage.post(1, &text(13), drop(13));
    stage.settle();
    assert_eq!(dropped(&stage, DropRule::Slow), 5, "between the marks it goes on being skipped");
    for _ in 0..4 {
        heard.extend(stage.heard(device));
        stage.settle();
    }
    assert_eq!(stage.shard.stats().stalled.get(), 0);
    stage.post(1, &text(14), drop(14));
    stage.settle();
    heard.extend(stage.heard_slowly(device));
    let numbers = (1..=8).chain([14]);
    assert_eq!(heard, numbers.map(text).collect::<Vec<_>>());
}

/// A tick larger than the high watermark stalls nobody who took the one before it.
///
/// Fails when a tick counts as it is queued (`bytes_counted` in outbox.rs).
#[test]
fn a_large_tick_stalls_nobody_who_keeps_up() {
    let mut stage = Stage::with_settings(low_marks());
    let device = slow_member(&mut stage, 30);
    let tick = || TopicMessage { is_tick: true, ..TopicMessage::default() };
    let text = "x".repeat(1000);
    for _ in 0..3 {
        stage.post(1, &text, tick());
        stage.settle();
        assert_eq!(stage.shard.stats().stalled.get(), 0);
        assert_eq!(stage.heard_slowly(device), [&text[..]]);
    }
    stage.post(1, &text, tick());
    stage.settle();
    stage.post(1, &text, tick());
    stage.settle();
    assert_eq!(stage.shard.stats().stalled.get(), 0, "those of several topics end together");
    stage.shard.advance(Duration::from_millis(60));
    stage.post(1, &text, tick());
    stage.settle();
    assert_eq!(stage.shard.stats().stalled.get(), 1, "it has not taken the ones before");
    assert_eq!(stage.heard_slowly(device), [&text[..]; 3]);
}

/// A device of topic `topic` whose kernel takes nothing.
fn deaf_member(stage: &mut Stage, topic: u32) -> Device {
    let device = stage.members(topic, 1)[0];
    stage.shard.net().set_send_buffer(device.peer, 0, 0);
    device
}

/// A message of `bytes` to a topic.
fn large(stage: &mut Stage, topic: u32, offset: u64, bytes: usize) -> bool {
    let of_topic = TopicMessage { epoch: topic.into(), offset, ..TopicMessage::default() };
    let now = stage.shard.net().now();
    let budget = stage.shard.budget();
    let Some(message) = Message::of_topic(budget, vec![0; bytes], now, None, of_topic) else {
        return false;
    };
    stage.shard.push(Command::Publish(TopicId(topic), message));
    stage.settle();
    true
}

/// Where what waits has no more room, the largest holder gives way, even below the high watermark; others keep what they
/// have, and no message is refused.
///
/// Fails when what waits takes the room of messages (`hold_all`), when the one that waits longest is closed instead
/// (`largest_of_window`), or when its bytes stay until the linger ends (`cut`).
#[test]
fn the_largest_holder_gives_way_and_no_message_is_refused() {
    let mut stage = Stage::with_budget(1 << 20);
    let most = stage.shard.budget().bytes_max_of(Share::Waiting);
    let modest: Vec<Device> = (1..=50).map(|topic| deaf_member(&mut stage, topic)).collect();
    for topic in 1..=50 {
        assert!(large(&mut stage, topic, 1, 100));
    }
    // They share each message, so all of them have to go before it does.
    let greedy: Vec<Device> = (0..3).map(|_| deaf_member(&mut stage, 99)).collect();
    let mut offset = 0;
    while stage.shard.stats().cut.get() == 0 {
        offset += 1;
        assert!(large(&mut stage, 99, offset, 30_000), "message {offset} is refused");
        assert!(stage.shard.budget().used_of(Share::Waiting) <= most);
    }
    let kept = usize::try_from(offset).expect("a few") * 30_000;
    assert!(kept > most / 4 * 3, "closed below the limit, after {offset} messages");
    stage.shard.advance(Duration::from_millis(10));
    assert_eq!(stage.shard.stats().cut.get(), 3);
    assert!(stage.shard.budget().used_of(Share::Waiting) < most / 2, "its room is there at once");
    for device in greedy {
        assert_eq!(stage.stalled_or_gone(device), None);
    }
    for device in modest {
        assert_eq!(stage.stalled_or_gone(device), Some(false));
    }
}

/// A sender that fills the queues of many gives way before a topic that has more than any single one of them.
///
/// Fails when only topics and devices are counted (`holders` in message.rs).
#[test]
fn a_sender_counts_with_all_that_it_has_sent() {
    let mut stage = Stage::with_budget(1 << 20);
    let modest = deaf_member(&mut stage, 1);
    assert!(large(&mut stage, 1, 1, 20_000));
    let flooded: Vec<Device> = (2..=200).map(|topic| deaf_member(&mut stage, topic)).collect();
    for topic in 2..=200 {
        let of_topic = TopicMessage {
            epoch: topic.into(),
            offset: 1,
            sender: 4711,
            ..TopicMessage::default()
        };
        let (now, budget) = (stage.shard.net().now(), stage.shard.budget());
        let message = Message::of_topic(budget, vec![0; 8000], now, None, of_topic);
        let message = message.expect("no message is refused");
        stage.shard.push(Command::Publish(TopicId(topic), message));
        stage.settle();
    }
    assert!(stage.shard.stats().cut.get() > 50);
    assert_eq!(stage.stalled_or_gone(modest), Some(false));
    let left = flooded.into_iter().filter(|device| stage.stalled_or_gone(*device).is_some());
    assert!(left.count() > 10);
}

/// A message that a ring keeps counts as waiting only while a queue holds it.
///
/// Fails when it stays counted behind the last queue (`release`), as what waits would fill with what nobody waits for.
#[test]
fn what_is_kept_and_was_waited_for_waits_no_more() {
    let mut stage = Stage::with_budget(1 << 20);
    let device = slow_member(&mut stage, 3);
    let of_topic = TopicMessage { epoch: 1, offset: 1, ..TopicMessage::default() };
    let (now, budget) = (stage.shard.net().now(), stage.shard.budget());
    let kept = Message::of_topic(budget, said("kept"), now, None, of_topic).expect("room");
    let bytes = kept.occupied_bytes();
    stage.shard.push(Command::Publish(TopicId(1), std::sync::Arc::clone(&kept)));
    stage.settle();
    let used = |stage: &Stage| Share::ALL.map(|share| stage.shard.budget().used_of(share));
    assert_eq!(used(&stage)[0], 0);
    assert!(used(&stage)[1] >= bytes);
    assert_eq!(stage.heard_slowly(device), ["kept"]);
    assert_eq!(used(&stage), [bytes, 0, 0, 0, 0]);
    drop(kept);
    assert_eq!(stage.shard.budget().used(), 0);
}
