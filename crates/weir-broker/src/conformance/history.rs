//! Promises about what is kept of a topic.

use std::time::Duration;

use super::peer::{KEPT, Peer, names, read_texts, until};
use super::{Make, cluster};
use crate::records::{Batch, HistoryQuery, Retention};

/// A topic that nobody knows gets an epoch, and keeps it.
pub async fn an_unknown_topic_gets_an_epoch(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    let top = one.top("t").await;
    assert_ne!(top.epoch, 0);
    assert_eq!(top.offset, 0);
    assert_eq!(two.top("t").await, top);
    let history = two.read("t", 0, 10).await;
    assert_eq!((history.top, history.first, history.began), (top, 1, 0));
    assert!(history.messages.is_empty());
    assert_eq!(two.publish("t", &["a"]).await.epoch, top.epoch);

    let history = one.read("u", 0, 10).await;
    assert_ne!(history.top.epoch, 0);
    assert_eq!((history.top.offset, history.first), (0, 1));
    assert_eq!(two.top("u").await, history.top);
    assert_eq!(two.publish("u", &["a"]).await.epoch, history.top.epoch);
}

/// What is kept is read from any offset on, as much as is asked for.
pub async fn what_is_kept_is_read_in_parts(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    let texts: Vec<String> = (1..=50).map(|number| number.to_string()).collect();
    for texts in texts.chunks(7) {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        one.publish("t", &texts).await;
    }
    let top = one.top("t").await;
    for (after, messages_max) in
        [(0, 100), (0, 50), (0, 3), (10, 5), (45, 100), (49, 1), (50, 10), (60, 10), (5, 0)]
    {
        let history = two.read("t", after, messages_max).await;
        assert_eq!((history.top, history.first, history.began), (top, 1, 0));
        let expected = texts.iter().skip(usize::try_from(after).expect("small"));
        let expected: Vec<&String> = expected.take(messages_max).collect();
        assert_eq!(read_texts(&history).iter().collect::<Vec<_>>(), expected, "after {after}");
        let first = history.messages.first().map(|message| message.offset);
        assert_eq!(first, (!expected.is_empty()).then_some(after + 1));
    }
    assert_eq!(two.read("t", u64::MAX, 10).await.messages, []);
    // By bytes: 1 to 9 have one each, the others two. One message always comes.
    for (after, limits, count) in [
        (0, (100, 9), 9),
        (0, (100, 10), 9),
        (0, (100, 11), 10),
        (0, (5, 11), 5),
        (10, (100, 5), 2),
        (10, (100, 1), 1),
        (10, (100, 0), 1),
        (10, (0, 100), 0),
        (0, (100, 91), 50),
    ] {
        let history = two.read_bytes("t", after, limits).await;
        let skipped = texts.iter().skip(usize::try_from(after).expect("small"));
        let expected: Vec<&String> = skipped.take(count).collect();
        let found = read_texts(&history);
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{limits:?} after {after}");
    }
}

/// Queries and topics of one call are answered in order.
pub async fn many_topics_are_asked_at_once(make: &impl Make) {
    let cluster = cluster(make).await;
    let peer = Peer::open(&cluster, "one").await;
    let topics: Vec<String> = (0..700).map(|number| format!("t{number}")).collect();
    let batches: Vec<Batch> =
        topics.iter().step_by(2).map(|topic| peer.batch(topic, &[topic, "b"])).collect();
    peer.broker.publish(batches).await.expect("the broker answers");
    let texts: Vec<&str> = topics.iter().map(String::as_str).collect();
    let tops = peer.broker.tops(names(&texts)).await.expect("the broker answers");
    let query = |topic: &&str| {
        let (topic, bytes_max) = ((*topic).into(), usize::MAX);
        HistoryQuery { topic, after: 0, messages_max: 1, bytes_max }
    };
    let queries: Vec<HistoryQuery> = texts.iter().map(query).collect();
    let histories = peer.broker.read(queries).await.expect("the broker answers");
    assert_eq!((tops.len(), histories.len()), (700, 700));
    for (index, (top, history)) in tops.iter().zip(&histories).enumerate() {
        assert_eq!(history.top, *top);
        let is_empty = index % 2 == 1;
        assert_eq!(top.offset, if is_empty { 0 } else { 2 });
        let expected = if is_empty { Vec::new() } else { vec![topics[index].clone()] };
        assert_eq!(read_texts(history), expected);
    }
    assert!(peer.broker.tops(Vec::new()).await.expect("the broker answers").is_empty());
    assert!(peer.broker.read(Vec::new()).await.expect("the broker answers").is_empty());
}

/// Of a topic the newest messages are kept, as many as its class says; perhaps a tenth more.
pub async fn as_many_are_kept_as_wanted(make: &impl Make) {
    let cluster = cluster(make).await;
    let peer = Peer::open(&cluster, "one").await;
    for (topic, messages_max) in [("one", 1), ("few", 5), ("many", 100)] {
        let retention = Some(Retention { messages_max, ..KEPT });
        for number in 0..60 {
            let texts: Vec<String> = (0..5).map(|index| (5 * number + index).to_string()).collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            peer.send(Batch { retention, ..peer.batch(topic, &texts) }).await;
        }
        let history = peer.read(topic, 0, 1000).await;
        let kept = history.messages.len();
        assert!(
            (messages_max..=messages_max + messages_max.div_ceil(10)).contains(&kept),
            "{kept}"
        );
        let kept = u64::try_from(kept).expect("small");
        assert_eq!((history.top.offset, history.first), (300, 301 - kept));
        let expected: Vec<String> = (300 - kept..300).map(|number| number.to_string()).collect();
        assert_eq!(read_texts(&history), expected);
    }
}

/// A message is kept for as long as its class says. Offsets go on when none is left.
pub async fn old_messages_go(make: &impl Make) {
    let cluster = cluster(make).await;
    let peer = Peer::open(&cluster, "one").await;
    peer.publish("kept", &["a", "b"]).await;
    let retention = Some(Retention { ttl: Duration::from_millis(500), ..KEPT });
    let epoch = peer.send(Batch { retention, ..peer.batch("t", &["a", "b", "c"]) }).await.epoch;
    until("the messages are too old", async || {
        let history = peer.read("t", 0, 100).await;
        let left = 3 - usize::try_from(history.first - 1).expect("small");
        assert_eq!((history.top.offset, history.messages.len()), (3, left));
        (left == 0).then_some(())
    })
    .await;
    let published = peer.send(Batch { retention, ..peer.batch("t", &["d"]) }).await;
    assert_eq!((published.epoch, published.positions[0].offset), (epoch, 4));
    // It may be gone already.
    let history = peer.read("t", 0, 100).await;
    assert!(history.messages.iter().all(|message| message.offset == 4), "{history:?}");
    assert!(history.first >= 4, "{history:?}");
    assert_eq!(peer.read("kept", 0, 100).await.messages.len(), 2);
}

/// What is kept belongs to the cluster: a node that joins later reads it.
pub async fn history_outlives_its_publisher(make: &impl Make) {
    let cluster = cluster(make).await;
    let one = Peer::open(&cluster, "one").await;
    one.publish("t", &["a", "b"]).await;
    let top = one.top("t").await;
    one.die().await;
    let two = Peer::open(&cluster, "two").await;
    let history = two.read("t", 0, 10).await;
    assert_eq!((history.top, read_texts(&history)), (top, vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(two.publish("t", &["c"]).await.positions[0].offset, 3);
}
