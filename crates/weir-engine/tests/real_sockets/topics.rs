//! One message to many.

use std::sync::Arc;

use weir_engine::{Command, ConnId, Message, Priority, Report, ShardSettings, TopicId};
use weir_wire::CloseReason;
use weir_wire::v1;
use weir_wire::v1::server_message::Kind;

use crate::rig::{Heard, Peer, Rest, Rig, push_text, server_frame, tcp_pair, unix_pair};

#[test]
fn a_topic_reaches_a_thousand() {
    for shards in [1, 2] {
        let mut rig = Rig::start(shards, &ShardSettings::default());
        let topic = TopicId(3);
        let mut devices: Vec<_> = (0..1000)
            .map(|number| {
                let (peer, socket) = if number % 2 == 0 { tcp_pair() } else { unix_pair() };
                let conn = rig.adopt(number % shards, socket, Rest::default());
                rig.subscribe(conn, topic);
                (peer, conn)
            })
            .collect();
        for offset in 1..=5 {
            let message = rig.message("to all", offset, None);
            rig.push_all(|| Command::Publish(topic, Arc::clone(&message)));
        }
        for (peer, _) in &mut devices {
            peer.hear_subscribed();
            for offset in 1..=5 {
                assert_eq!(peer.hear_push().offset, offset);
            }
        }
        rig.wait_until_at_rest();
        let delivered = (0..shards).map(|shard| rig.stats(shard).delivered.get());
        assert_eq!(delivered.sum::<u64>(), 5000);
        let lags = (0..shards).map(|shard| {
            rig.stats(shard).lag[Priority::Normal.index()].counts().iter().sum::<u64>()
        });
        assert_eq!(lags.sum::<u64>(), 5000);
    }
}

#[test]
fn several_topics_at_once_keep_their_orders() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let topics = [TopicId(0), TopicId(1), TopicId(2), TopicId(3)];
    let mut devices: Vec<_> = (0..40).map(|_| rig.device(0)).collect();
    for (number, (peer, conn)) in devices.iter_mut().enumerate() {
        for topic in &topics[..=number % 4] {
            rig.subscribe(*conn, *topic);
            peer.hear_subscribed();
        }
    }
    rig.wait_until("the topics to be counted", |rig| rig.stats(0).topics.get() == 4);
    let held_up = rig.hold_up(0);
    for offset in 0..100 {
        for topic in topics {
            let message = rig.message(&topic.0.to_string(), offset, None);
            rig.push(0, Command::Publish(topic, message));
        }
    }
    drop(held_up);
    for (number, (peer, _)) in devices.iter_mut().enumerate() {
        let mut next = [0; 4];
        for _ in 0..100 * (number % 4 + 1) {
            let push = peer.hear_push();
            let offset = push.offset;
            let topic: usize = push_text(push).parse().expect("the text names the topic");
            assert_eq!(offset, next[topic]);
            next[topic] += 1;
        }
    }
    rig.wait_until_at_rest();
}

#[test]
fn a_broadcast_reaches_those_adopted_before_it() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let mut early: Vec<_> = (0..300).map(|_| rig.device(0)).collect();
    let (gone, gone_conn) = early.remove(100);
    let held_up = rig.hold_up(0);
    rig.push(0, Command::Evict(gone_conn, CloseReason::Replaced));
    let message = rig.message("to all", 1, None);
    rig.push(0, Command::Broadcast(message));
    let (mut late, socket) = tcp_pair();
    let asked = rig.offer(0, socket, Rest::default());
    drop((held_up, gone));
    rig.adopted(asked);
    for (peer, _) in &mut early {
        assert_eq!(push_text(peer.hear_push()), "to all");
        peer.ping(b"and nothing more");
    }
    late.ping(b"nothing came before");
    rig.wait_until_at_rest();
    assert_eq!(rig.stats(0).delivered.get(), 299);
}

#[test]
fn a_membership_is_made_once_within_the_limit_and_given_back_once() {
    let settings = ShardSettings { topics_per_connection_max: 3, ..ShardSettings::default() };
    let mut rig = Rig::start(1, &settings);
    let (mut peer, conn) = rig.device(0);
    for topic in 0..3 {
        rig.subscribe(conn, TopicId(topic));
        peer.hear_subscribed();
    }
    rig.subscribe(conn, TopicId(1));
    peer.hear_subscribed();
    assert!(matches!(not_entered(&mut rig), TopicId(1)));
    rig.subscribe(conn, TopicId(3));
    let Heard::Message(Kind::Error(error)) = peer.hear() else { panic!("not an Error") };
    assert_eq!((&error.code[..], &error.topic[..]), ("too_many_topics", "3"));
    assert!(matches!(not_entered(&mut rig), TopicId(3)));

    unsubscribe(&rig, conn, TopicId(0));
    rig.wait_for(
        |report| matches!(report, Report::Left { conn: left, topic: TopicId(0) } if *left == conn),
    );
    unsubscribe(&rig, conn, TopicId(0));
    for _ in 0..2 {
        assert!(matches!(peer.hear(), Heard::Message(Kind::Unsubscribed(_))));
    }
    rig.subscribe(conn, TopicId(3));
    peer.hear_subscribed();
    drop(peer);
    let (_, mut topics) = rig.closed(conn);
    topics.sort_unstable();
    assert_eq!(topics, [TopicId(1), TopicId(2), TopicId(3)]);
    rig.subscribe(conn, TopicId(5));
    assert!(matches!(not_entered(&mut rig), TopicId(5)));
    rig.wait_until_at_rest();
    assert!(!rig.kept().any(|report| matches!(report, Report::Left { .. })));
}

#[test]
fn a_topic_may_end_under_a_fan_out() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let topic = TopicId(0);
    let mut devices = subscribers(&mut rig, topic, 3);
    let held_up = rig.hold_up(0);
    for offset in 0..3 {
        rig.push(0, Command::Publish(topic, numbered(&rig, offset)));
    }
    for (_, conn) in &devices {
        unsubscribe(&rig, *conn, topic);
    }
    rig.push(0, Command::Retire(topic));
    let (mut heir, socket) = tcp_pair();
    let asked = rig.offer(0, socket, Rest::default());
    drop(held_up);
    rig.wait_for(|report| matches!(report, Report::Retired { .. }));
    let heir_conn = rig.adopted(asked);
    rig.subscribe(heir_conn, topic);
    heir.hear_subscribed();
    rig.push(0, Command::Publish(topic, numbered(&rig, 7)));
    assert_eq!(heir.hear_push().offset, 7);
    for (peer, _) in &mut devices {
        while !matches!(peer.hear(), Heard::Message(Kind::Unsubscribed(_))) {}
        peer.ping(b"and nothing more");
        rig.wait_for(|report| matches!(report, Report::Left { .. }));
    }
    rig.wait_until_at_rest();
    assert_eq!((rig.stats(0).topics.get(), rig.stats(0).memberships.get()), (1, 1));
}

#[test]
fn members_come_and_go_under_fan_outs() {
    let mut rig = Rig::start(2, &ShardSettings::default());
    let topic = TopicId(9);
    let mut steady: Vec<_> = subscribers(&mut rig, topic, 400);
    for round in 0..40 {
        rig.push_all(|| Command::Publish(topic, numbered(&rig, round)));
        let fleeting = subscribers(&mut rig, topic, 5);
        rig.push_all(|| Command::Publish(topic, numbered(&rig, 1000 + round)));
        for (peer, conn) in fleeting {
            drop(peer);
            assert_eq!(rig.closed(conn).1, [topic]);
        }
    }
    for (peer, _) in &mut steady {
        for round in 0..40 {
            assert_eq!(peer.hear_push().offset, round);
            assert_eq!(peer.hear_push().offset, 1000 + round);
        }
    }
    rig.wait_until_at_rest();
    let members: u64 = (0..2).map(|shard| rig.stats(shard).memberships.get()).sum();
    assert_eq!(members, 400);
}

fn numbered(rig: &Rig, offset: u64) -> Arc<Message> {
    rig.message("numbered", offset, None)
}

fn subscribers(rig: &mut Rig, topic: TopicId, count: usize) -> Vec<(Peer, ConnId)> {
    let shards = rig.engine.shard_count();
    let mut devices: Vec<_> = (0..count).map(|number| rig.device(number % shards)).collect();
    for (peer, conn) in &mut devices {
        rig.subscribe(*conn, topic);
        peer.hear_subscribed();
    }
    devices
}

fn unsubscribe(rig: &Rig, conn: ConnId, topic: TopicId) {
    let kind = Kind::Unsubscribed(v1::Unsubscribed { topic: "t".into(), ..Default::default() });
    rig.push(0, Command::Unsubscribe { conn, topic, reply: server_frame(kind) });
}

fn not_entered(rig: &mut Rig) -> TopicId {
    let report = rig.wait_for(|report| matches!(report, Report::NotEntered { .. }));
    let Report::NotEntered { topic, .. } = report else { panic!("not what was waited for") };
    topic
}
