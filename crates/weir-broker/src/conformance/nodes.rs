//! Promises about nodes and presence.

use std::collections::BTreeSet;

use super::peer::{Peer, until};
use super::{Make, cluster};
use crate::contract::Event;
use crate::records::{ConnectionNumber, Member, MemberPage, Name, Node, NodeNumber, Reach};

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
    let reach = one.broker.to_all(payload.clone()).await;
    assert_eq!(reach, Ok(Reach { reached: 2, live: 2 }));
    for peer in [&one, &two] {
        peer.ears.until("the message", |events| find(events, &Event::ToAll(payload.clone()))).await;
    }
    two.silence().await;
    two.broker.retire().await.expect("the broker answers");
    let reach = one.broker.to_all(Vec::new()).await.expect("the broker answers");
    assert_eq!(reach.live, 1);
    one.ears.until("the message", |events| find(events, &Event::ToAll(Vec::new()))).await;
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

/// Who is present on any node is listed by connection number, in pages; connections and devices are counted.
pub async fn members_are_listed_in_pages(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    assert_eq!(page(&one, "t", None, 10).await, (vec![], true, 0, 0));
    enter(&one, "t", &[(30, "a"), (10, "b"), (1 << 63, "c")]).await;
    enter(&two, "t", &[(20, "a"), (40, "d")]).await;
    enter(&two, "u", &[(50, "e")]).await;
    let last = 1 << 63;
    assert_eq!(page(&one, "t", None, 10).await, (vec![10, 20, 30, 40, last], true, 5, 4));
    assert_eq!(page(&two, "t", None, 5).await, (vec![10, 20, 30, 40, last], true, 5, 4));
    assert_eq!(page(&two, "t", None, 2).await, (vec![10, 20], false, 5, 4));
    assert_eq!(page(&two, "t", Some(20), 2).await, (vec![30, 40], false, 5, 4));
    assert_eq!(page(&two, "t", Some(40), 2).await, (vec![last], true, 5, 4));
    assert_eq!(page(&two, "t", Some(35), 2).await, (vec![40, last], true, 5, 4));
    assert_eq!(page(&two, "t", Some(last), 2).await, (vec![], true, 5, 4));
    assert_eq!(page(&one, "u", None, 10).await, (vec![50], true, 1, 1));
}

/// To enter twice is to enter once; who exits is not listed, at its own node's word alone.
pub async fn members_enter_and_exit(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    enter(&one, "t", &[(1, "a"), (2, "b")]).await;
    enter(&one, "t", &[(1, "a")]).await;
    enter(&two, "t", &[(3, "a")]).await;
    assert_eq!(page(&one, "t", None, 10).await, (vec![1, 2, 3], true, 3, 2));
    for _ in 0..2 {
        exit(&one, "t", &[(1, "a"), (7, "never entered")]).await;
        assert_eq!(page(&two, "t", None, 10).await, (vec![2, 3], true, 2, 2));
    }
    exit(&one, "never entered", &[(1, "a")]).await;
    exit(&one, "t", &[(2, "b")]).await;
    exit(&two, "t", &[(3, "a")]).await;
    assert_eq!(page(&one, "t", None, 10).await, (vec![], true, 0, 0));
    enter(&one, "t", &[(1, "a")]).await;
    assert_eq!(page(&one, "t", None, 10).await, (vec![1], true, 1, 1));
}

/// The members of a node count as long as the node lives, whether it dies or retires.
pub async fn members_of_a_node_that_ends_are_not_listed(make: &impl Make) {
    let cluster = cluster(make).await;
    let one = Peer::open(&cluster, "one").await;
    let (dead, retired) =
        (Peer::open(&cluster, "dead").await, Peer::open(&cluster, "retired").await);
    enter(&one, "t", &[(1, "a")]).await;
    enter(&dead, "t", &[(2, "b")]).await;
    enter(&retired, "t", &[(3, "a")]).await;
    assert_eq!(page(&one, "t", None, 10).await, (vec![1, 2, 3], true, 3, 2));
    retired.silence().await;
    retired.broker.retire().await.expect("the broker answers");
    assert_eq!(page(&one, "t", None, 10).await, (vec![1, 2], true, 2, 2));
    dead.die().await;
    until("the dead node's member is gone", async || {
        (page(&one, "t", None, 10).await == (vec![1], true, 1, 1)).then_some(())
    })
    .await;
}

/// Many members, so that a broker that works in portions shows it.
pub async fn many_members_are_listed(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    for (peer, parity) in [(&one, 0), (&two, 1)] {
        let members = (0..1500).map(|number| (2 * number + parity, format!("d{}", number / 3)));
        let members: Vec<(u64, String)> = members.collect();
        let members: Vec<(u64, &str)> =
            members.iter().map(|(number, device)| (*number, device.as_str())).collect();
        enter(peer, "t", &members).await;
    }
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let (members, is_last, connections, devices) = page(&one, "t", after, 700).await;
        assert_eq!((connections, devices), (3000, 500));
        after = members.last().copied();
        all.extend(members);
        if is_last {
            break;
        }
    }
    assert_eq!(all, (0..3000).collect::<Vec<u64>>());
}

fn members(topic: &str, members: &[(u64, &str)]) -> Vec<(Name, Member)> {
    let member = |(connection, device): &(u64, &str)| Member {
        connection: ConnectionNumber(*connection),
        device: (*device).into(),
    };
    members.iter().map(|entry| (topic.into(), member(entry))).collect()
}

async fn enter(peer: &Peer, topic: &str, entered: &[(u64, &str)]) {
    peer.broker.enter(members(topic, entered)).await.expect("the broker answers");
}

async fn exit(peer: &Peer, topic: &str, gone: &[(u64, &str)]) {
    peer.broker.exit(members(topic, gone)).await.expect("the broker answers");
}

/// Connections, whether they are the last, connections in all, devices in all.
async fn page(
    peer: &Peer,
    topic: &str,
    after: Option<u64>,
    limit: usize,
) -> (Vec<u64>, bool, u64, u64) {
    let after = after.map(ConnectionNumber);
    let page = peer.broker.members(topic.into(), after, limit).await.expect("the broker answers");
    let MemberPage { members, is_last, connections, devices } = page;
    (members.iter().map(|member| member.connection.0).collect(), is_last, connections, devices)
}

fn find(events: &[Event], wanted: &Event) -> Option<()> {
    events.iter().find(|event| *event == wanted).map(|_| ())
}
