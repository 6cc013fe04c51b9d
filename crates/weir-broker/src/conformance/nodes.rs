//! Promises about nodes.

use std::collections::BTreeSet;

use super::peer::{Peer, until};
use super::{Make, cluster};
use crate::contract::Event;
use crate::records::{Entry, Node, NodeNumber, Reach};

/// Each node has a number of its own, and is listed by it with what it tells of itself.
pub async fn nodes_are_listed(make: &impl Make) {
    let cluster = cluster(make).await;
    let mut peers = Vec::new();
    for number in 0..4 {
        peers.push(Peer::open(&cluster, &format!("node {number}")).await);
    }
    let numbers: BTreeSet<NodeNumber> = peers.iter().map(Peer::number).collect();
    assert_eq!(numbers.len(), 4);
    assert!(numbers.iter().all(|number| (1..1024).contains(&number.0)), "{numbers:?}");
    let id = peers[0].broker.revoke("d".into()).await.expect("the broker answers");
    peers[0].silence().await;
    let told = Node {
        number: peers[0].number(),
        name: "näme".to_owned(),
        revoked_to: Some(id),
        about: "{\"more\":[\" {}\\r\\n\"]}".to_owned(),
    };
    // What a node tells later replaces what it told before.
    peers[0].broker.announce(told.clone()).await.expect("the broker answers");
    let nodes = peers[1].broker.nodes().await.expect("the broker answers");
    let listed: Vec<NodeNumber> = nodes.iter().map(|node| node.number).collect();
    assert_eq!(listed, numbers.into_iter().collect::<Vec<_>>());
    assert_eq!(nodes.iter().find(|node| node.number == told.number), Some(&told));
    for (number, peer) in peers.iter().enumerate().skip(1) {
        let node = nodes.iter().find(|node| node.number == peer.number()).expect("it is listed");
        assert_eq!((&node.name, &node.revoked_to), (&format!("node {number}"), &None));
        assert_eq!(node.about, format!("{{\"of\":\"node {number}\"}}"));
    }
}

/// A node that dies is not listed for long. One that retires is not listed at once. The others stay.
pub async fn nodes_that_end_are_not_listed(make: &impl Make) {
    let cluster = cluster(make).await;
    let one = Peer::open(&cluster, "one").await;
    let (dead, retired) =
        (Peer::open(&cluster, "dead").await, Peer::open(&cluster, "retired").await);
    let list = async || {
        let nodes = one.broker.nodes().await.expect("the broker answers");
        nodes.into_iter().map(|node| node.name).collect::<BTreeSet<_>>()
    };
    assert_eq!(list().await, ["one", "dead", "retired"].map(str::to_owned).into());
    retired.silence().await;
    retired.broker.retire().await.expect("the broker answers");
    assert_eq!(list().await, ["one", "dead"].map(str::to_owned).into());
    dead.die().await;
    until("the dead node is gone", async || {
        (list().await == ["one"].map(str::to_owned).into()).then_some(())
    })
    .await;
}

/// A message to all nodes reaches each, and says how many listen and how many live.
pub async fn messages_reach_all_nodes(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    let payload: Vec<u8> = (0..=u8::MAX).collect();
    let message =
        |payload: &[u8]| Entry { payload: payload.to_vec(), idempotency_key: Some("k".into()) };
    let reach = one.broker.to_all(message(&payload)).await;
    assert_eq!(reach, Ok(Reach { reached: 2, live: 2 }));
    for peer in [&one, &two] {
        peer.ears.until("the message", |events| find(events, &Event::ToAll(payload.clone()))).await;
    }
    // Its key is known at the other node too.
    let reach = two.broker.to_all(message(b"again")).await;
    assert_eq!(reach, Ok(Reach { reached: 2, live: 2 }));
    two.silence().await;
    two.broker.retire().await.expect("the broker answers");
    let last = Entry { payload: Vec::new(), idempotency_key: None };
    let reach = one.broker.to_all(last).await.expect("the broker answers");
    assert_eq!(reach.live, 1);
    one.ears.until("the message", |events| find(events, &Event::ToAll(Vec::new()))).await;
    assert_eq!(find(&one.ears.events(), &Event::ToAll(b"again".to_vec())), None);
}

/// A message to one node reaches that one alone.
pub async fn messages_reach_one_node(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    let send = async |number, text: &str| {
        one.broker.to_node(number, text.into()).await.expect("the broker answers")
    };
    assert!(send(two.number(), "for two").await);
    assert!(send(one.number(), "for one").await);
    for (peer, text) in [(&one, "for one"), (&two, "for two")] {
        let event = Event::ToNode(text.into());
        peer.ears.until("the message", |events| find(events, &event)).await;
        let is_to_node = |event: &&Event| matches!(event, Event::ToNode(_));
        assert_eq!(peer.ears.events().iter().filter(is_to_node).count(), 1);
    }
    let numbers = [one.number(), two.number()];
    let nobody = (1..1024).map(NodeNumber).find(|number| !numbers.contains(number));
    assert!(!send(nobody.expect("1,023 are more than two"), "for nobody").await);
}

fn find(events: &[Event], wanted: &Event) -> Option<()> {
    events.iter().find(|event| *event == wanted).map(|_| ())
}
