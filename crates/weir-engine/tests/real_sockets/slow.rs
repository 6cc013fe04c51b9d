//! Devices that stop reading and go on, by the policy of the topic that they are in. (`write` has those of `close`.)

use std::collections::BTreeMap;

use weir_engine::{Command, DropRule, ShardSettings, SlowPolicy, TopicId};
use weir_wire::CloseReason;

use crate::rig::{PATIENCE, Rig};

const TOPIC: TopicId = TopicId(1);

/// Publishes numbered messages, with eight keys in turn, until `rule` has dropped `count`; how many that took.
fn publish_until_dropped(rig: &mut Rig, slow: SlowPolicy, rule: DropRule, count: u64) -> u64 {
    let text = "s".repeat(3000);
    let mut published = 0;
    while rig.stats(0).dropped[rule as usize].get() < count {
        publish(rig, slow, &text, published);
        published += 1;
    }
    published
}

fn publish(rig: &mut Rig, slow: SlowPolicy, text: &str, offset: u64) {
    let message = rig.message_to_topic(text, &format!("key-{}", offset % 8), offset, slow);
    rig.push(0, Command::Publish(TOPIC, message));
    let mailbox = rig.engine.mailbox(0).clone();
    rig.wait_until("the queue to be empty", |_| mailbox.depth() == 0);
}

fn patient() -> ShardSettings {
    ShardSettings { stall_timeout: PATIENCE * 2, ..ShardSettings::default() }
}

#[test]
fn a_dropping_topic_leaves_a_gap_and_goes_on() {
    let mut rig = Rig::start(1, &patient());
    let (mut peer, conn) = rig.device(0);
    rig.subscribe(conn, TOPIC);
    peer.hear_subscribed();
    let published = publish_until_dropped(&mut rig, SlowPolicy::Drop, DropRule::Slow, 100);
    let skipped = rig.stats(0).dropped[DropRule::Slow as usize].get();
    let mut next = 0;
    for _ in 0..published - skipped {
        let push = peer.hear_push();
        assert!(push.offset >= next, "{} behind {next}", push.offset);
        next = push.offset + 1;
    }
    rig.wait_until("the recovery", |rig| rig.stats(0).stalled.get() == 0);
    publish(&mut rig, SlowPolicy::Drop, "on", published);
    assert_eq!(peer.hear_push().offset, published);
    rig.wait_until_at_rest();
    assert_eq!(rig.stats(0).dropped[DropRule::Slow as usize].get(), skipped);
}

#[test]
fn a_conflating_topic_ends_with_the_newest_of_each_key() {
    let mut rig = Rig::start(1, &patient());
    let (mut peer, conn) = rig.device(0);
    rig.subscribe(conn, TOPIC);
    peer.hear_subscribed();
    for round in 0..3 {
        let conflated = rig.stats(0).dropped[DropRule::Conflated as usize].get();
        let published = publish_until_dropped(
            &mut rig,
            SlowPolicy::Conflate,
            DropRule::Conflated,
            conflated + 500,
        );
        assert_eq!(rig.stats(0).stalled.get(), 0);
        let mut newest = BTreeMap::new();
        let mut heard = 0;
        while newest.get(&((published - 1) % 8)) != Some(&(published - 1)) {
            let push = peer.hear_push();
            assert_eq!(push.key, format!("key-{}", push.offset % 8));
            let before = newest.insert(push.offset % 8, push.offset);
            assert!(before < Some(push.offset), "round {round}: {} behind {before:?}", push.offset);
            heard += 1;
        }
        let expected = (published - 8..published).map(|offset| (offset % 8, offset));
        assert_eq!(newest, expected.collect());
        assert!(heard <= published - 500, "{heard} of {published} were sent");
        rig.wait_until_at_rest();
    }
}

#[test]
fn who_takes_nothing_of_a_conflating_topic_is_closed_by_the_stall_time_out() {
    let stall_timeout = std::time::Duration::from_millis(300);
    let mut rig = Rig::start(1, &ShardSettings { stall_timeout, ..ShardSettings::default() });
    let (peer, conn) = rig.device(0);
    rig.subscribe(conn, TOPIC);
    // The kernel may find room for some more for a while; the last of it is used up at some time.
    let text = "s".repeat(3000);
    let mut offset = 0;
    while rig.stats(0).closed[CloseReason::Stalled.index()].get() == 0 {
        publish(&mut rig, SlowPolicy::Conflate, &text, offset);
        offset += 1;
    }
    assert_eq!(rig.closed(conn), (CloseReason::Stalled, vec![TOPIC]));
    drop(peer);
    rig.wait_until_at_rest();
}
