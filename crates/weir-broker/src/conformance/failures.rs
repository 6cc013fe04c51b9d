//! Promises about connections that break, brokers that fail, and nodes that close.

use std::collections::BTreeSet;

use super::peer::{Heard, Peer, entry, heard, until};
use super::{Make, cluster};
use crate::contract::{Error, Event, Published};
use crate::records::{Batch, Position, Scope};

/// When connections break, each node is told of a gap in its topics, and its subscriptions work again by themselves.
pub async fn broken_connections_come_back(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    for peer in [&one, &two] {
        peer.join("t").await;
        peer.claim(&format!("device of {}", peer.number().0), 1, 0).await;
    }
    one.publish("t", &["a"]).await;
    for peer in [&one, &two] {
        peer.until_text("t", "a").await;
    }
    for round in 0..3 {
        cluster.break_connections().await.expect("connections break");
        for peer in [&one, &two] {
            peer.ears.until("a gap and the end of it", |events| has_come_back(events, "t")).await;
            peer.ears.forget(|event| !matches!(event, Event::Messages { .. }));
        }
        let text = format!("after break {round}");
        let published = retried(&one, one.batch("t", &[&text])).await;
        assert_eq!(published.positions[0].offset, round + 2);
        assert_eq!(published.nodes, 2);
        for peer in [&one, &two] {
            let find = |events: &[Event]| {
                let mut all = vec![Event::Gap(Scope::All)];
                all.extend_from_slice(events);
                heard(&all, "t").iter().any(|(_, of)| of == text.as_bytes()).then_some(())
            };
            peer.ears.until(&text, find).await;
            let device = format!("device of {}", peer.number().0);
            until("the device is reached", async || {
                (one.broker.to_device(device.as_str().into(), entry("")).await == Ok(1))
                    .then_some(())
            })
            .await;
        }
    }
}

/// Each message is heard, or told as a gap, while connections break again and again. None is heard twice.
pub async fn nothing_is_missed_without_notice(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    two.join("t").await;
    for number in 0..120_u64 {
        if number % 20 == 10 {
            cluster.break_connections().await.expect("connections break");
        }
        retried(&one, one.batch("t", &[&number.to_string()])).await;
    }
    until("the subscription works", async || {
        let published = one.try_send(one.batch("t", &["probe"])).await.ok()?;
        (published.nodes == 1).then_some(())
    })
    .await;
    retried(&one, one.batch("t", &["the last"])).await;
    // This checks the order, and that offsets are missing only where a gap was told.
    two.until_text("t", "the last").await;
    let history = one.read("t", 0, 10_000).await;
    let kept: Vec<&[u8]> = history.messages.iter().map(|message| &*message.payload).collect();
    for number in 0..120_u64 {
        let text = number.to_string();
        let count = kept.iter().filter(|payload| **payload == text.as_bytes()).count();
        assert_eq!(count, 1, "{number} is published once");
    }
}

/// Revocations that a node could not hear can be read afterwards.
pub async fn a_revocation_survives_broken_connections(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    let before = one.broker.revoke("a".into()).await.expect("the broker answers");
    cluster.break_connections().await.expect("connections break");
    let revoked = until("a revocation succeeds", async || one.broker.revoke("b".into()).await.ok());
    let revoked = revoked.await;
    let read = until("the broker answers", async || {
        two.broker.revocations(Some(before.clone())).await.ok()
    });
    let read = read.await;
    assert!(read.is_complete);
    // An attempt without an answer may have succeeded, too.
    assert!(read.revoked.iter().all(|revocation| &*revocation.device == "b"), "{read:?}");
    assert!(read.revoked.iter().any(|revocation| revocation.id == revoked), "{read:?}");
}

/// A node that closes carries out what it was asked. Then it refuses, and it is not subscribed any more.
pub async fn a_node_closes_in_order(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    one.join("t").await;
    two.join("t").await;
    two.silence().await;
    let batch = two.batch("t", &["a"]);
    let (published, closed) = tokio::join!(two.try_send(batch), two.broker.close());
    closed.expect("it closes");
    assert_eq!(published.expect("it was asked before").positions[0].offset, 1);
    one.until_text("t", "a").await;
    assert!(two.try_send(two.batch("t", &["b"])).await.is_err());
    assert!(two.broker.tops(vec!["t".into()]).await.is_err());
    assert!(two.broker.nodes().await.is_err());
    until("it is not subscribed", async || {
        (one.publish("t", &["c"]).await.nodes == 1).then_some(())
    })
    .await;
}

/// When a broker loses messages that it had accepted, the topic gets a new epoch: no position names two messages. Each
/// node is told of a gap, and goes on in the new epoch.
pub async fn lost_messages_end_the_epoch(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    two.join("t").await;
    let mut places: BTreeSet<Position> = BTreeSet::new();
    for round in 0..3 {
        for number in 0..10 {
            let batch = one.batch("t", &[&format!("{round} {number}")]);
            let published = retried(&one, batch).await;
            places.extend(published.positions);
        }
        let before = one.top("t").await;
        two.until_text("t", &format!("{round} 9")).await;
        cluster.fail_over(3).await.expect("the broker fails over");
        two.ears.until("a gap", |events| has_come_back(events, "t")).await;
        let text = format!("after failover {round}");
        let published = retried(&one, one.batch("t", &[&text])).await;
        assert_ne!(published.epoch, before.epoch);
        assert_eq!(one.top("t").await, published.positions[0]);
        let heard: Vec<Heard> = two.until_text("t", &text).await;
        assert_eq!(heard.last().map(|(place, _)| *place), published.positions.last().copied());
        places.extend(published.positions);
        let history = one.read("t", 0, 1000).await;
        assert_eq!(history.top.epoch, published.epoch);
        // What is kept beyond that is of this epoch.
        assert_eq!(history.began + 1, history.top.offset);
        two.ears
            .forget(|event| matches!(event, Event::Gap(_) | Event::Back { .. } | Event::Lost(_)));
    }
    assert_eq!(places.len(), 33, "no position is given twice");
}

/// Sends a batch again until there is an answer.
async fn retried(peer: &Peer, batch: Batch) -> Published {
    until("a batch is accepted", async || match peer.try_send(batch.clone()).await {
        Ok(published) => Some(published),
        Err(Error::Unavailable(_) | Error::Uncertain(_)) => None,
        Err(error) => panic!("{error}"),
    })
    .await
}

/// Whether a gap was told, and the node is not lost.
fn has_come_back(events: &[Event], topic: &str) -> Option<()> {
    let is_gap = |event: &Event| match event {
        Event::Gap(Scope::All) => true,
        Event::Gap(Scope::Topics(topics)) => topics.iter().any(|of| **of == *topic),
        Event::Gap(Scope::Devices(_) | Scope::Node)
        | Event::Messages { .. }
        | Event::ToDevice { .. }
        | Event::ToAll(_)
        | Event::ToNode(_)
        | Event::Evicted { .. }
        | Event::Revoked(_)
        | Event::Presence { .. }
        | Event::Vacated { .. }
        | Event::Lost(_)
        | Event::Back { .. }
        | Event::Renumbered(_) => false,
    };
    let lost = events.iter().filter(|event| matches!(event, Event::Lost(_))).count();
    let back = events.iter().filter(|event| matches!(event, Event::Back { .. })).count();
    (events.iter().any(is_gap) && lost == back).then_some(())
}
