//! Promises about publishing, and about what nodes hear of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::peer::{Heard, KEPT, Peer, names, texts, until};
use super::{Make, cluster};
use crate::contract::Error;
use crate::records::{Batch, BatchId, Entry, Position};

/// Offsets begin at 1 and follow each other, from whichever node and in however many batches messages come.
pub async fn offsets_follow_each_other(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    let first = one.publish("t", &["a", "b"]).await;
    let second = two.publish("t", &["c"]).await;
    let third = one.publish("t", &["d", "e"]).await;
    let epoch = first.epoch;
    assert_ne!(epoch, 0);
    for (published, offsets) in [(first, vec![1, 2]), (second, vec![3]), (third, vec![4, 5])] {
        assert_eq!(published.epoch, epoch);
        let positions = offsets.into_iter().map(|offset| Position { epoch, offset });
        assert_eq!(published.positions, positions.collect::<Vec<_>>());
        assert_eq!(published.nodes, 0, "nobody has joined");
    }
    assert_eq!(two.top("t").await, Position { epoch, offset: 5 });
}

/// Every node that has joined hears a message, with its offset, the publisher's own node too; and the answer says how
/// many nodes those are.
pub async fn messages_reach_the_nodes_that_have_joined(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    let three = Peer::open(&cluster, "three").await;
    one.join("t").await;
    two.join("t").await;
    three.join("u").await;
    let published = one.publish("t", &["a", "b"]).await;
    assert_eq!(published.nodes, 2);
    three.publish("t", &["c"]).await;
    for peer in [&one, &two] {
        let heard = peer.until_text("t", "c").await;
        assert_eq!(texts(&heard), ["a", "b", "c"]);
        let places: Vec<Position> = heard.iter().map(|(place, _)| *place).collect();
        assert_eq!(places[..2], published.positions);
    }
    // It would have heard it before this.
    three.join("t").await;
    assert_eq!(one.publish("t", &["d"]).await.nodes, 3);
    assert_eq!(three.texts("t", "d").await, ["d"]);
}

/// Payloads and names of topics are bytes that a broker does not look at.
pub async fn bytes_arrive_as_they_are(make: &impl Make) {
    let cluster = cluster(make).await;
    let peer = Peer::open(&cluster, "one").await;
    let all: Vec<u8> = (0..=u8::MAX).collect();
    let large = all.repeat(4096);
    let payloads = [Vec::new(), vec![0], all, large, b"\r\n$5\r\n".to_vec(), vec![0xff; 3]];
    let long = "long".repeat(60);
    let named = ["a b", "{a}", "}{", "{}", "{a}b", "{b", "ä/東", "*", "[a]\\?", "\r\n", ":", &long];
    for name in named {
        peer.join(name).await;
        let mut batch = peer.batch(name, &[]);
        let entry = |payload: &Vec<u8>| Entry { payload: payload.clone(), idempotency_key: None };
        batch.entries = payloads.iter().map(entry).collect();
        peer.send(batch).await;
        peer.publish(name, &["the last"]).await;
        let heard = peer.until_text(name, "the last").await;
        let heard: Vec<&Vec<u8>> = heard.iter().map(|(_, payload)| payload).collect();
        assert_eq!(heard.len(), payloads.len() + 1, "in {name:?}");
        assert!(heard.into_iter().zip(&payloads).all(|(heard, sent)| heard == sent), "{name:?}");
        let read = peer.read(name, 0, 100).await;
        let read: Vec<&Vec<u8>> = read.messages.iter().map(|message| &message.payload).collect();
        assert!(read.into_iter().zip(&payloads).all(|(read, sent)| read == sent), "{name:?}");
    }
}

/// Batches of one call go to their topics, and are answered in order.
pub async fn batches_of_many_topics_go_together(make: &impl Make) {
    let cluster = cluster(make).await;
    let peer = Peer::open(&cluster, "one").await;
    let topics: Vec<String> = (0..200).map(|number| format!("t{number}")).collect();
    let wanted: Vec<_> = topics.iter().map(|topic| topic.as_str().into()).collect();
    peer.broker.join(wanted).await.expect("the broker answers");
    for round in 0..3_u64 {
        let texts = [format!("{round}a"), format!("{round}b")];
        let texts = [texts[0].as_str(), texts[1].as_str()];
        let batches: Vec<Batch> = topics.iter().map(|topic| peer.batch(topic, &texts)).collect();
        let answers = peer.broker.publish(batches).await.expect("the broker answers");
        assert_eq!(answers.len(), topics.len());
        for answer in answers {
            let answer = answer.expect("the broker accepts a batch");
            let offsets: Vec<u64> = answer.positions.iter().map(|place| place.offset).collect();
            assert_eq!((offsets, answer.nodes), (vec![2 * round + 1, 2 * round + 2], 1));
        }
    }
    for topic in &topics {
        let heard = peer.texts(topic, "2b").await;
        assert_eq!(heard, ["0a", "0b", "1a", "1b", "2a", "2b"], "in {topic}");
    }
    assert!(peer.broker.publish(Vec::new()).await.expect("the broker answers").is_empty());
}

/// When several nodes publish at once, all nodes hear the same sequence, and each answer names the right place in it.
pub async fn a_topic_has_one_order(make: &impl Make) {
    let cluster = cluster(make).await;
    let mut peers = Vec::new();
    for number in 0..3 {
        let peer = Arc::new(Peer::open(&cluster, &format!("node {number}")).await);
        peer.join("t").await;
        peers.push(peer);
    }
    let mut tasks = Vec::new();
    for (number, peer) in peers.iter().cloned().enumerate() {
        tasks.push(tokio::spawn(async move {
            let mut answered = Vec::new();
            for round in 0..40 {
                let text = [format!("{number}-{round}a"), format!("{number}-{round}b")];
                let published = peer.publish("t", &[&text[0], &text[1]]).await;
                answered.extend(published.positions.into_iter().zip(text));
            }
            answered
        }));
    }
    let mut answered: BTreeMap<Position, String> = BTreeMap::new();
    for task in tasks {
        answered.extend(task.await.expect("the task ends"));
    }
    assert_eq!(answered.len(), 240, "each message has a place of its own");
    let expected: Vec<Heard> =
        answered.into_iter().map(|(place, text)| (place, text.into_bytes())).collect();
    peers[0].publish("t", &["the last"]).await;
    for peer in &peers {
        let heard = peer.until_text("t", "the last").await;
        assert_eq!(heard[..240], expected);
    }
}

/// A batch that is published again has the first answer, and is heard once.
pub async fn a_batch_again_changes_nothing(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    one.join("t").await;
    let batch = one.batch("t", &["a", "b"]);
    let first = one.send(batch.clone()).await;
    // What others publish in between does not matter.
    two.publish("t", &["c"]).await;
    assert_eq!(one.send(batch.clone()).await, first);
    assert_eq!(one.send(batch).await, first);
    one.publish("t", &["d"]).await;
    assert_eq!(one.texts("t", "d").await, ["a", "b", "c", "d"]);
    assert_eq!(one.top("t").await.offset, 4);
}

/// A batch that comes behind a later one of its node is refused: it comes from a connection that has broken.
pub async fn an_old_batch_is_refused(make: &impl Make) {
    let cluster = cluster(make).await;
    let peer = Peer::open(&cluster, "one").await;
    let (never_seen, old) = (peer.batch("t", &["a"]), peer.batch("t", &["b"]));
    peer.send(old.clone()).await;
    peer.publish("t", &["c"]).await;
    // Batches of other topics do not count.
    let other = peer.batch("u", &["d"]);
    peer.publish("t", &["e"]).await;
    peer.send(other).await;
    for batch in [never_seen, old] {
        let answer = peer.try_send(batch).await;
        assert!(matches!(answer, Err(Error::Refused(_))), "{answer:?}");
    }
    assert_eq!(peer.top("t").await.offset, 3);
}

/// Numbers of batches count for one node: another one uses the same.
pub async fn batches_of_two_nodes_are_different(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    for (peer, id, offset) in [(&one, 7, 1), (&two, 7, 2), (&one, 9, 3), (&two, 8, 4)] {
        let mut batch = peer.batch("t", &["a"]);
        batch.id = BatchId(id);
        assert_eq!(peer.send(batch).await.positions[0].offset, offset);
    }
    // The largest there are.
    for (peer, id, offset) in [(&one, u64::MAX - 1, 5), (&one, u64::MAX, 6), (&two, 1 << 60, 7)] {
        let mut batch = peer.batch("t", &["a"]);
        batch.id = BatchId(id);
        assert_eq!(peer.send(batch).await.positions[0].offset, offset);
    }
}

/// A message with a known idempotency key is not published. Its answer is that of the first one.
pub async fn idempotency_keys_are_remembered(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    one.join("t").await;
    let first = one.publish_as("t", "key", "a").await;
    assert_eq!(one.publish_as("t", "key", "b").await, first);
    assert_eq!(two.publish_as("t", "key", "c").await, first);
    // Another key, and the same key in another topic.
    assert_eq!(two.publish_as("t", "key 2", "d").await.offset, 2);
    assert_eq!(two.publish_as("u", "key", "e").await.offset, 1);
    // In the middle of a batch, and twice in it; what is not kept is remembered, too.
    let mut batch = one.batch("t", &["f", "g", "h", "i", "j"]);
    batch.retention = None;
    for (index, key) in [(1, "key"), (2, "key 3"), (3, "key 3")] {
        batch.entries[index].idempotency_key = Some(key.into());
    }
    let published = one.send(batch).await;
    let offsets: Vec<u64> = published.positions.iter().map(|place| place.offset).collect();
    assert_eq!(offsets, [3, 1, 4, 4, 5]);
    assert_eq!(one.texts("t", "j").await, ["a", "d", "f", "h", "j"]);
}

/// From the answer to a join on, nothing is missed, also while messages keep coming.
pub async fn a_joined_node_misses_nothing(make: &impl Make) {
    let cluster = cluster(make).await;
    let publisher = Arc::new(Peer::open(&cluster, "publisher").await);
    let busy = tokio::spawn({
        let publisher = Arc::clone(&publisher);
        async move {
            for number in 0..300 {
                publisher.publish("t", &[&number.to_string()]).await;
            }
        }
    });
    let mut joined = Vec::new();
    for number in 0..5 {
        let peer = Peer::open(&cluster, &format!("node {number}")).await;
        peer.join("t").await;
        let top = peer.top("t").await;
        joined.push((peer, top));
    }
    busy.await.expect("the task ends");
    publisher.publish("t", &["the last"]).await;
    for (peer, top) in joined {
        let heard = peer.until_text("t", "the last").await;
        let first = heard[0].0.offset;
        assert!(first <= top.offset + 1, "{first} is the first heard, {top:?} was the top");
        assert_eq!(heard.last().map(|(place, _)| place.offset), Some(301));
    }
}

/// To join twice is to join once; what is left is heard no more, and what is joined again is heard again.
pub async fn topics_are_joined_and_left(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    one.broker.join(names(&["t", "t", "u"])).await.expect("the broker answers");
    one.join("t").await;
    assert_eq!(two.publish("t", &["a"]).await.nodes, 1);
    one.texts("t", "a").await;
    one.leave("t").await;
    one.leave("never joined").await;
    assert_eq!(two.publish("t", &["b"]).await.nodes, 0);
    assert_eq!(two.publish("u", &["b"]).await.nodes, 1);
    one.join("t").await;
    assert_eq!(two.publish("t", &["c"]).await.nodes, 1);
    assert_eq!(one.until_text("u", "b").await.len(), 1);
    let heard = one.ears.until("the message after the second join", |events| {
        let of_t = events.iter().filter(|event| event_of(event, "t"));
        (of_t.count() == 2).then(|| events.to_vec())
    });
    let heard: Vec<u64> = heard.await.iter().flat_map(|event| offsets(event, "t")).collect();
    assert_eq!(heard, [1, 3]);
    one.broker.join(Vec::new()).await.expect("the broker answers");
    one.broker.leave(Vec::new()).await.expect("the broker answers");
}

/// A node that has ended is not counted, and the others go on.
pub async fn a_dead_node_is_not_subscribed(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    one.join("t").await;
    two.join("t").await;
    assert_eq!(one.publish("t", &["a"]).await.nodes, 2);
    two.die().await;
    until("one node is left", async || (one.publish("t", &["b"]).await.nodes == 1).then_some(()))
        .await;
    one.publish("t", &["c"]).await;
    one.texts("t", "c").await;
}

/// What a class does not retain is carried, and not kept.
pub async fn what_is_not_retained_has_positions(make: &impl Make) {
    let cluster = cluster(make).await;
    let peer = Peer::open(&cluster, "one").await;
    peer.join("t").await;
    for (text, offset) in [("a", 1), ("b", 2)] {
        let batch = Batch { retention: None, ..peer.batch("t", &[text]) };
        assert_eq!(peer.send(batch).await.positions[0].offset, offset);
    }
    assert_eq!(peer.texts("t", "b").await, ["a", "b"]);
    let history = peer.read("t", 0, 100).await;
    assert_eq!((history.top.offset, history.first, history.messages.len()), (2, 3, 0));
    // Afterwards it is retained, and then not.
    let batch = Batch { retention: Some(KEPT), ..peer.batch("t", &["c", "d"]) };
    peer.send(batch).await;
    let history = peer.read("t", 0, 100).await;
    assert_eq!((history.top.offset, history.first, history.messages.len()), (4, 3, 2));
    let batch = Batch { retention: None, ..peer.batch("t", &["e"]) };
    peer.send(batch).await;
    let history = peer.read("t", 0, 100).await;
    assert_eq!((history.top.offset, history.first, history.messages.len()), (5, 6, 0));
}

fn event_of(event: &crate::contract::Event, topic: &str) -> bool {
    !offsets(event, topic).is_empty()
}

fn offsets(event: &crate::contract::Event, topic: &str) -> Vec<u64> {
    if let crate::contract::Event::Messages { topic: of, messages, .. } = event
        && **of == *topic
    {
        messages.iter().map(|message| message.offset).collect()
    } else {
        Vec::new()
    }
}
