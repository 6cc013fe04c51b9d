//! A primary with a replica that has not got everything.

use tokio::time::Duration;
use weir_broker::{Broker, Event, HistoryQuery, RedisOptions, Scope};
use weir_tests::Redis;

use crate::common::{Heard, batch, node_with, publish, start_quick, until};

fn options(servers: &[&Redis]) -> RedisOptions {
    let mut options = RedisOptions::new(&servers[0].url(), "test", "one");
    options.urls = servers.iter().map(|redis| redis.url()).collect();
    options
}

/// A gap is told, then that the broker is back, if it was lost.
async fn is_back(heard: &Heard) {
    let events = heard.take(|event| matches!(event, Event::Gap(_))).await;
    assert_eq!(events.last(), Some(&Event::Gap(Scope::All)));
    if events.iter().any(|event| matches!(event, Event::Lost(_))) {
        heard.take(|event| matches!(event, Event::Back { .. })).await;
    }
}

#[tokio::test]
async fn a_lost_tail_ends_the_epoch() {
    let (mut primary, replica) = (start_quick(), start_quick());
    replica.replicate(&primary).expect("replicated");
    let (broker, heard) = node_with(options(&[&primary, &replica])).await;
    broker.join(vec!["t".into()]).await.expect("joined");
    let before = publish(&broker, batch("t", 1, &["a", "b"])).await;
    until("the replica has it", || tops_out(&replica, "2")).await;
    replica.detach().expect("detached");
    let lost = publish(&broker, batch("t", 2, &["c", "d"])).await;
    assert_eq!((lost.epoch, lost.positions[1].offset), (before.epoch, 4));
    heard.messages("t", 4).await;
    primary.kill().expect("killed");
    replica.promote().expect("promoted");
    is_back(&heard).await;

    let top = broker.tops(vec!["t".into()]).await.expect("tops")[0];
    assert_ne!(top.epoch, before.epoch);
    assert_eq!(top.offset, 2);
    // The batch that is gone may be sent again.
    let again = publish(&broker, batch("t", 2, &["c", "d"])).await;
    assert_eq!((again.epoch, again.nodes), (top.epoch, 1));
    let offsets: Vec<_> = again.positions.iter().map(|position| position.offset).collect();
    assert_eq!(offsets, [3, 4]);
    let expected = [(top.epoch, 3, "c".to_owned()), (top.epoch, 4, "d".into())];
    assert_eq!(heard.messages("t", 2).await, expected);
    let (topic, bytes_max) = ("t".into(), usize::MAX);
    let query = HistoryQuery { topic, after: 0, messages_max: 10, bytes_max };
    let history = broker.read(vec![query]).await.expect("read").remove(0);
    assert_eq!((history.first, history.began, history.messages.len()), (1, 2, 4));

    // The old primary comes back as a replica, and takes over in turn.
    primary.restart().expect("restarted");
    primary.replicate(&replica).expect("replicated");
    drop(replica);
    primary.promote().expect("promoted");
    is_back(&heard).await;
    let after = publish(&broker, batch("t", 3, &["e"])).await;
    assert_ne!(after.epoch, top.epoch);
    assert_eq!(after.positions[0].offset, 5);
}

/// Whether a Redis has this offset of the topic t.
fn tops_out(redis: &Redis, offset: &str) -> bool {
    let answer = redis.command("HGET weir:{15891}t:t o");
    answer.is_ok_and(|answer| answer.ends_with(&format!("\r\n{offset}\r\n")))
}

#[tokio::test]
async fn reads_do_not_come_from_a_replica() {
    let (primary, other) = (start_quick(), start_quick());
    other.replicate(&primary).expect("replicated");
    // Only the replica is known.
    let mut only = options(&[&other]);
    only.timeout = Duration::from_millis(500);
    let opened = weir_broker::RedisBroker::open(only, std::sync::Arc::new(Heard::default())).await;
    assert!(matches!(opened, Err(weir_broker::Error::Unavailable(_))));

    let (broker, heard) = node_with(options(&[&primary, &other])).await;
    broker.join(vec!["t".into()]).await.expect("joined");
    publish(&broker, batch("t", 1, &["a"])).await;
    until("the replica has it", || tops_out(&other, "1")).await;
    // The two change places while all connections stay.
    other.promote().expect("promoted");
    primary.command(&format!("REPLICAOF 127.0.0.1 {}", other.addr.port())).expect("an answer");
    let top = broker.tops(vec!["t".into()]).await.expect("tops")[0];
    assert_eq!(top.offset, 1);
    is_back(&heard).await;
    let published = publish(&broker, batch("t", 2, &["b"])).await;
    assert_eq!((published.epoch, published.nodes), (top.epoch, 1));
}

#[tokio::test]
async fn a_node_that_asks_nothing_notices_that_its_primary_is_one_no_more() {
    let (primary, other) = (start_quick(), start_quick());
    other.replicate(&primary).expect("replicated");
    let (broker, heard) = node_with(options(&[&primary, &other])).await;
    broker.join(vec!["t".into()]).await.expect("joined");
    other.promote().expect("promoted");
    // All connections stay, and what is published at the new primary comes through the old one.
    primary.replicate(&other).expect("replicated");
    is_back(&heard).await;
    assert!(broker.counts().probes_missed >= 2);
    // Now it does not need the old one any more.
    drop(primary);
    assert_eq!(publish(&broker, batch("t", 1, &["a"])).await.nodes, 1);
    heard.messages("t", 1).await;
}

#[tokio::test]
async fn replicas_can_be_waited_for() {
    let (primary, replica) = (start_quick(), start_quick());
    replica.replicate(&primary).expect("replicated");
    let mut options = options(&[&primary, &replica]);
    options.wait_replicas = 1;
    options.timeout = Duration::from_secs(6);
    let (broker, _) = node_with(options).await;
    publish(&broker, batch("t", 1, &["a"])).await;
    assert!(tops_out(&replica, "1"));
    replica.detach().expect("detached");
    until("the primary knows", || {
        let info = primary.command("INFO replication").expect("an answer");
        info.contains("connected_slaves:0")
    })
    .await;
    let answer = broker.publish(vec![batch("t", 2, &["b"])]).await.expect("an answer");
    assert!(matches!(&answer[..], [Err(weir_broker::Error::Uncertain(_))]), "{answer:?}");
    replica.replicate(&primary).expect("replicated");
    // It had been accepted.
    assert_eq!(publish(&broker, batch("t", 2, &["b"])).await.positions[0].offset, 2);
}
