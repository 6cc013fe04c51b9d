//! Promises about devices: which of their connections count, and where messages to them go.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::peer::{Peer, claim, until};
use super::{Make, cluster};
use crate::contract::Event;
use crate::records::{Claim, Entry};

/// Of a device's connections the newest count. The node of each other one is told, and only that node.
pub async fn the_newest_connections_stay(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    one.claim("d", 1, 10).await;
    two.claim("other", 9, 0).await;
    assert_eq!(one.evicted("d").await, []);
    two.claim("d", 2, 5).await;
    assert_eq!(one.evicted("d").await, [1]);
    assert_eq!(two.evicted("d").await, []);
    one.claim("d", 3, 0).await;
    assert_eq!(two.evicted("d").await, [2]);
    assert_eq!(one.evicted("d").await, [1]);
    assert_eq!(two.evicted("other").await, []);
}

/// As many connections of a device count as are allowed.
pub async fn several_connections_of_a_device_count(make: &impl Make) {
    let cluster = cluster(make).await;
    let one = Peer::with(&cluster, "one", 3).await;
    let two = Peer::with(&cluster, "two", 3).await;
    one.claim("d", 1, 50).await;
    two.claim("d", 2, 40).await;
    one.claim("d", 3, 30).await;
    assert_eq!((one.evicted("d").await, two.evicted("d").await), (vec![], vec![]));
    two.claim("d", 4, 20).await;
    two.claim("d", 5, 10).await;
    assert_eq!((one.evicted("d").await, two.evicted("d").await), (vec![1], vec![2]));
}

/// Connections that do not count for their device evict none and are not evicted, and messages to the device reach them.
pub async fn uncounted_connections_only_hear(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    let uncounted = |connection, age_secs| {
        let claim = claim("d", connection, age_secs);
        vec![Claim { is_counted: false, ..claim }]
    };
    one.claim("d", 1, 50).await;
    for (peer, connection, age_secs) in [(&one, 2, 60), (&two, 3, 40), (&two, 4, 1)] {
        peer.broker.claim(uncounted(connection, age_secs)).await.expect("the broker answers");
    }
    assert_eq!((one.evicted("d").await, two.evicted("d").await), (vec![], vec![]));
    assert_eq!(one.to_device("d", "to both").await, 2);
    // One that counts replaces the one that does.
    two.claim("d", 5, 30).await;
    assert_eq!((one.evicted("d").await, two.evicted("d").await), (vec![1], vec![]));
    // The node is asked as long as one of them is there.
    for (connection, reached) in [(3, 2), (5, 2), (4, 1)] {
        two.release("d", connection).await;
        assert_eq!(one.to_device("d", "to those that are left").await, reached);
    }
    one.release("d", 1).await;
    one.broker.release(uncounted(2, 60)).await.expect("the broker answers");
    assert_eq!(two.to_device("d", "to none").await, 0);
}

/// Age decides, not the order in which claims arrive. In one call, too.
pub async fn an_older_connection_yields_though_it_comes_later(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    one.claim("d", 1, 5).await;
    two.claim("d", 2, 3600).await;
    assert_eq!((one.evicted("d").await, two.evicted("d").await), (vec![], vec![2]));
    let claims = vec![claim("e", 3, 20), claim("e", 4, 10), claim("f", 5, 0), claim("e", 6, 30)];
    one.broker.claim(claims).await.expect("the broker answers");
    assert_eq!((one.evicted("e").await, one.evicted("f").await), (vec![3, 6], vec![]));
}

/// To claim again is to renew. A connection that was evicted and claims again is evicted again.
pub async fn claims_are_made_again(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    for age in [10, 10, 11] {
        one.claim("d", 1, age).await;
    }
    assert_eq!(one.evicted("d").await, []);
    two.claim("d", 2, 5).await;
    assert_eq!(one.evicted("d").await, [1]);
    one.ears.forget(|event| matches!(event, Event::Evicted { .. }));
    one.claim("d", 1, 12).await;
    assert_eq!(one.evicted("d").await, [1]);
    two.claim("d", 2, 5).await;
    assert_eq!(two.evicted("d").await, []);
    one.broker.claim(Vec::<Claim>::new()).await.expect("the broker answers");
}

/// A released connection does not count, and the device is not known at its node any more if it was the last one there.
pub async fn released_connections_do_not_count(make: &impl Make) {
    let cluster = cluster(make).await;
    let one = Peer::with(&cluster, "one", 2).await;
    let two = Peer::with(&cluster, "two", 2).await;
    one.claim("d", 1, 30).await;
    one.claim("d", 2, 20).await;
    one.release("d", 2).await;
    two.claim("d", 3, 10).await;
    assert_eq!((one.evicted("d").await, two.evicted("d").await), (vec![], vec![]));
    assert_eq!(two.to_device("d", "to both").await, 2);
    one.release("d", 1).await;
    one.release("d", 1).await;
    one.release("never claimed", 7).await;
    assert_eq!(one.to_device("d", "to one").await, 1);
    two.release("d", 3).await;
    assert_eq!(one.to_device("d", "to none").await, 0);
}

/// A message to a device reaches the nodes that have it, and says how many those are.
pub async fn messages_reach_a_device(make: &impl Make) {
    let cluster = cluster(make).await;
    let one = Peer::with(&cluster, "one", 9).await;
    let two = Peer::with(&cluster, "two", 9).await;
    assert_eq!(one.to_device("d", "nobody").await, 0);
    one.claim("d", 1, 0).await;
    two.claim("d", 2, 0).await;
    two.claim("d", 3, 0).await;
    two.claim("e", 4, 0).await;
    let payload: Vec<u8> = (0..=u8::MAX).collect();
    let message = Entry { payload: payload.clone(), idempotency_key: None };
    let sent = one.broker.to_device("d".into(), message).await;
    assert_eq!(sent, Ok(2));
    assert_eq!(one.to_device("e", "for e").await, 1);
    assert_eq!(two.to_device("d", "the last").await, 2);
    for peer in [&one, &two] {
        let find = |events: &[Event]| {
            let heard: Vec<Vec<u8>> = events.iter().filter_map(to_d).collect();
            (heard.last()? == b"the last").then_some(heard)
        };
        let heard = peer.ears.until("the last message", find).await;
        assert_eq!(heard, [payload.clone(), b"the last".to_vec()]);
    }
    let is_for_e =
        |event: &Event| matches!(event, Event::ToDevice { device, .. } if &**device == "e");
    assert!(!one.ears.events().iter().any(is_for_e));
    two.ears
        .until("the message for e", |events| events.iter().find(|e| is_for_e(e)).cloned())
        .await;
}

/// A message to a device that is sent again with its idempotency key is not sent again, whichever node sends it.
pub async fn messages_to_a_device_have_keys(make: &impl Make) {
    let cluster = cluster(make).await;
    let one = Peer::with(&cluster, "one", 9).await;
    let two = Peer::with(&cluster, "two", 9).await;
    // What has reached nobody is sent when it comes again.
    assert_eq!(one.to_device_as("d", "k", "to nobody").await, 0);
    two.claim("d", 1, 0).await;
    two.claim("e", 2, 0).await;
    assert_eq!(one.to_device_as("d", "k", "first").await, 1);
    assert_eq!(two.to_device_as("d", "k", "second").await, 1);
    // Another device, another key, and none.
    assert_eq!(two.to_device_as("e", "k", "to e").await, 1);
    assert_eq!(one.to_device_as("d", "l", "third").await, 1);
    one.claim("d", 3, 0).await;
    assert_eq!(one.to_device_as("d", "k", "fourth").await, 1);
    for _ in 0..2 {
        assert_eq!(one.to_device("d", "last").await, 2);
    }
    let find = |events: &[Event]| {
        let heard: Vec<Vec<u8>> = events.iter().filter_map(to_d).collect();
        (heard.iter().filter(|text| *text == b"last").count() == 2).then_some(heard)
    };
    let heard = two.ears.until("the last messages", find).await;
    assert_eq!(heard, [&b"first"[..], b"third", b"last", b"last"]);
}

/// However nodes race for a device, the newest connections count in the end, and every other one was evicted.
pub async fn racing_claims_leave_the_newest(make: &impl Make) {
    let cluster = cluster(make).await;
    let mut peers = Vec::new();
    for number in 0..4 {
        peers.push(Arc::new(Peer::with(&cluster, &format!("node {number}"), 2).await));
    }
    let mut tasks = Vec::new();
    for (number, peer) in (0_u64..).zip(peers.iter().cloned()) {
        tasks.push(tokio::spawn(async move {
            for round in 0..25 {
                let connection = 4 * round + number;
                // Those with higher numbers are younger.
                peer.claim("d", connection, 1_000_000 - 1_000 * connection).await;
            }
        }));
    }
    for task in tasks {
        task.await.expect("the task ends");
    }
    let mut evicted = Vec::new();
    for peer in &peers {
        evicted.extend(peer.evicted("d").await);
    }
    let evicted: BTreeSet<u64> = evicted.into_iter().collect();
    assert_eq!(evicted, (0..98).collect());
}

/// The claims of a node that has died do not count.
pub async fn claims_of_a_dead_node_do_not_count(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    let dead = Peer::open(&cluster, "dead").await;
    let number = dead.number();
    dead.claim("d", 1, 0).await;
    dead.die().await;
    until("the node is gone", async || {
        let nodes = one.broker.nodes().await.expect("the broker answers");
        nodes.iter().all(|node| node.number != number).then_some(())
    })
    .await;
    one.claim("d", 2, 7200).await;
    two.claim("d", 3, 3600).await;
    assert_eq!((one.evicted("d").await, two.evicted("d").await), (vec![2], vec![]));
    assert_eq!(one.to_device("d", "to the living").await, 2);
}

/// The claims of a node that has retired do not count either.
pub async fn claims_of_a_retired_node_do_not_count(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    let retired = Peer::open(&cluster, "retired").await;
    retired.claim("d", 1, 0).await;
    retired.silence().await;
    retired.broker.retire().await.expect("the broker answers");
    one.claim("d", 2, 7200).await;
    two.claim("d", 3, 3600).await;
    assert_eq!((one.evicted("d").await, two.evicted("d").await), (vec![2], vec![]));
}

fn to_d(event: &Event) -> Option<Vec<u8>> {
    if let Event::ToDevice { device, payload } = event
        && &**device == "d"
    {
        Some(payload.clone())
    } else {
        None
    }
}
