//! Topics.

use std::io::ErrorKind;
use std::sync::Arc;

use crate::common::{Heard, KEPT, batch, node, node_with, publish, read, until};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tokio::time::Duration;
use weir_broker::{Broker, Error, Event, Position, RedisOptions, Retention, Scope};
use weir_tests::Redis;

#[tokio::test]
async fn messages_reach_every_node_in_one_order() {
    let redis = Redis::start().expect("a Redis");
    let (one, heard_one) = node(&redis.url(), "one").await;
    let (two, heard_two) = node(&redis.url(), "two").await;
    let topic = "a{b}/c";
    one.join(vec![topic.into()]).await.expect("joined");
    two.join(vec![topic.into(), "other".into()]).await.expect("joined");
    let first = publish(&one, batch(topic, 1, &["a", "b\n\r"])).await;
    assert_eq!(first.nodes, 2);
    let second = publish(&two, batch(topic, 1, &["c"])).await;
    let epoch = first.epoch;
    let offsets = first.positions.iter().chain(&second.positions);
    let expected: Vec<_> = (1..=3).map(|offset| Position { epoch, offset }).collect();
    assert_eq!(offsets.copied().collect::<Vec<_>>(), expected);
    let expected = [(epoch, 1, "a".to_owned()), (epoch, 2, "b\n\r".into()), (epoch, 3, "c".into())];
    assert_eq!(heard_one.messages(topic, 3).await, expected);
    assert_eq!(heard_two.messages(topic, 3).await, expected);

    one.leave(vec![topic.into()]).await.expect("left");
    // The answer to this comes behind that to the one before.
    one.join(vec!["more".into()]).await.expect("joined");
    assert_eq!(publish(&two, batch(topic, 2, &["d"])).await.nodes, 1);
    assert_eq!(heard_two.messages(topic, 1).await, [(epoch, 4, "d".to_owned())]);
    assert_eq!(heard_one.rest(), []);
    assert_eq!(one.tops(vec!["new".into(), topic.into()]).await.expect("tops")[1].offset, 4);
}

#[tokio::test]
async fn many_topics_are_published_joined_and_asked_for_at_once() {
    let redis = Redis::start().expect("a Redis");
    let (broker, heard) = node(&redis.url(), "one").await;
    let topics: Vec<String> = (0..3000).map(|number| format!("topic/{number}")).collect();
    broker.join(topics.iter().map(|topic| topic.as_str().into()).collect()).await.expect("joined");
    let batches = topics.iter().map(|topic| batch(topic, 1, &["x", "y"])).collect();
    let answers = broker.publish(batches).await.expect("answers");
    let odd = answers.iter().find(|answer| !answer.as_ref().is_ok_and(|answer| answer.nodes == 1));
    assert_eq!(odd, None);
    for topic in [&topics[0], &topics[2999]] {
        heard.messages(topic, 2).await;
    }
    let tops = broker.tops(topics.iter().map(|topic| topic.as_str().into()).collect()).await;
    let tops = tops.expect("tops");
    assert_eq!(tops.len(), topics.len());
    for (top, answer) in tops.iter().zip(answers) {
        assert_eq!(Some(top), answer.expect("it is published").positions.last());
    }
    let counts = broker.counts();
    assert!(counts.pipelines < 100, "{counts:?}");
    assert!(counts.commands.contains(&("publish", 3000)), "{counts:?}");
    assert_eq!(counts.round_trips.buckets.iter().sum::<u64>(), counts.pipelines);
    assert_eq!(counts.connects, 2);
}

#[tokio::test]
async fn a_batch_that_is_sent_again_changes_nothing() {
    let redis = Redis::start().expect("a Redis");
    let (broker, heard) = node(&redis.url(), "one").await;
    broker.join(vec!["t".into()]).await.expect("joined");
    let first = publish(&broker, batch("t", 7, &["a", "b"])).await;
    assert_eq!(publish(&broker, batch("t", 7, &["a", "b"])).await, first);
    let later = publish(&broker, batch("t", 8, &["c"])).await;
    assert_eq!(later.positions[0].offset, 3);
    let late = broker.publish(vec![batch("t", 7, &["a", "b"])]).await.expect("an answer");
    assert!(matches!(&late[..], [Err(Error::Refused(_))]), "{late:?}");
    assert_eq!(heard.messages("t", 3).await.len(), 3);
    assert_eq!(read(&broker, "t", 0).await.1, 3);
    assert_eq!(heard.rest(), []);
}

#[tokio::test]
async fn an_idempotency_key_is_answered_as_before() {
    let redis = Redis::start().expect("a Redis");
    let (one, heard) = node(&redis.url(), "one").await;
    let (two, _) = node(&redis.url(), "two").await;
    one.join(vec!["t".into()]).await.expect("joined");
    let keyed = |id, keys: &[Option<&str>]| {
        let mut batch = batch("t", id, &vec!["x"; keys.len()]);
        for (entry, key) in batch.entries.iter_mut().zip(keys) {
            entry.idempotency_key = key.map(Into::into);
        }
        batch
    };
    let offsets = |published: weir_broker::Published| {
        published.positions.iter().map(|position| position.offset).collect::<Vec<_>>()
    };
    let first = keyed(1, &[Some("k"), None, Some("k"), Some("l")]);
    assert_eq!(offsets(publish(&one, first).await), [1, 2, 1, 3]);
    let second = keyed(1, &[None, Some("l"), Some("k"), None]);
    assert_eq!(offsets(publish(&two, second).await), [4, 3, 1, 5]);
    assert_eq!(offsets(publish(&two, keyed(2, &[Some("k")])).await), [1]);
    let heard: Vec<_> = heard.messages("t", 5).await.into_iter().map(|(_, at, _)| at).collect();
    assert_eq!(heard, [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn what_is_kept_is_bounded_in_number_and_age() {
    let redis = Redis::start().expect("a Redis");
    let (broker, _) = node(&redis.url(), "one").await;
    let retained = |id, kept| {
        let mut batch = batch("t", id, &["x"; 10]);
        batch.retention = kept;
        batch
    };
    for id in 0..50 {
        publish(&broker, retained(id, Some(Retention { messages_max: 20, ..KEPT }))).await;
    }
    let (first, top, messages) = read(&broker, "t", 0).await;
    assert_eq!((first, top, messages.len()), (481, 500, 20));
    let (_, _, messages) = read(&broker, "t", 497).await;
    assert_eq!(messages.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [498, 499, 500]);
    assert_eq!(read(&broker, "t", 500).await, (481, 500, vec![]));

    // Of positions only, nothing is kept.
    publish(&broker, retained(50, None)).await;
    assert_eq!(read(&broker, "t", 0).await, (511, 510, vec![]));

    // These end while the test reads; the others stay.
    let brief = Retention { messages_max: 1000, ttl: Duration::from_millis(300) };
    for id in 51..53 {
        publish(&broker, retained(id, Some(brief))).await;
    }
    tokio::time::sleep(Duration::from_millis(310)).await;
    publish(&broker, retained(53, Some(KEPT))).await;
    let (first, top, messages) = read(&broker, "t", 0).await;
    assert_eq!((first, top, messages.len()), (531, 540, 10));
}

#[tokio::test]
async fn a_redis_that_lost_everything_begins_a_new_epoch() {
    let mut redis = Redis::start().expect("a Redis");
    let (broker, heard) = node(&redis.url(), "one").await;
    broker.join(vec!["t".into()]).await.expect("joined");
    let before = publish(&broker, batch("t", 1, &["a", "b"])).await;
    heard.messages("t", 2).await;
    redis.kill().expect("killed");
    let lost = heard.take(|event| matches!(event, Event::Lost(_))).await;
    assert_eq!(lost.len(), 1, "{lost:?}");
    let answer = broker.publish(vec![batch("t", 2, &["c"])]).await.expect("an answer");
    assert!(matches!(&answer[..], [Err(Error::Unavailable(_))]), "{answer:?}");
    let refused = broker.join(vec!["u".into()]).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    assert!(matches!(broker.tops(vec!["t".into()]).await, Err(Error::Unavailable(_))));
    redis.restart().expect("restarted");
    let back = heard.take(|event| matches!(event, Event::Back { .. })).await;
    assert_eq!(back[..back.len() - 1], [Event::Gap(Scope::All)]);
    // Its scripts are gone, too.
    let after = publish(&broker, batch("t", 2, &["c"])).await;
    assert_ne!(after.epoch, before.epoch);
    assert_eq!((after.positions[0].offset, after.nodes), (1, 1));
    assert_eq!(heard.messages("t", 1).await, [(after.epoch, 1, "c".to_owned())]);
}

#[tokio::test]
async fn scripts_that_were_flushed_are_loaded_again() {
    let redis = Redis::start().expect("a Redis");
    let (broker, _) = node(&redis.url(), "one").await;
    publish(&broker, batch("t", 1, &["a"])).await;
    redis.command("SCRIPT FLUSH").expect("flushed");
    let batches = vec![batch("t", 2, &["b"]), batch("u", 1, &["c"])];
    let answers = broker.publish(batches).await.expect("answers");
    let offsets: Vec<_> =
        answers.into_iter().map(|answer| answer.expect("done").positions[0].offset).collect();
    assert_eq!(offsets, [2, 1]);
}

#[tokio::test]
async fn a_cut_subscription_stands_again_with_a_gap_and_nothing_is_lost_for_long() {
    let redis = Redis::start().expect("a Redis");
    let (broker, heard) = node(&redis.url(), "one").await;
    broker.join(vec!["t".into(), "u".into()]).await.expect("joined");
    for round in 1..=5 {
        redis.command("CLIENT KILL TYPE pubsub").expect("killed");
        let gap = heard.take(|event| matches!(event, Event::Gap(_))).await;
        assert_eq!(gap, [Event::Gap(Scope::All)]);
        assert_eq!(publish(&broker, batch("t", round, &["a"])).await.nodes, 1);
        heard.messages("t", 1).await;
    }
    assert_eq!(heard.rest(), []);
    assert!(broker.counts().resubscriptions >= 10);
}

#[tokio::test]
async fn a_redis_that_hangs_is_lost_and_comes_back() {
    let redis = Redis::start().expect("a Redis");
    let mut options = RedisOptions::new(&redis.url(), "test", "one");
    options.timeout = Duration::from_millis(300);
    options.connect_timeout = Duration::from_millis(300);
    let (broker, heard) = node_with(options).await;
    broker.join(vec!["t".into()]).await.expect("joined");
    // No time-out ends the pause before the connection that asked for it goes on.
    redis.command("CLIENT PAUSE 3000 ALL").expect("paused");
    let answer = broker.publish(vec![batch("t", 1, &["a"])]).await.expect("an answer");
    assert!(matches!(&answer[..], [Err(Error::Uncertain(_))]), "{answer:?}");
    heard.take(|event| matches!(event, Event::Lost(_))).await;
    heard.take(|event| matches!(event, Event::Back { .. })).await;
    // It was carried out after all, once.
    let again = publish(&broker, batch("t", 1, &["a"])).await;
    assert_eq!(again.positions[0].offset, 1);
    assert_eq!(read(&broker, "t", 0).await.1, 1);
}

#[tokio::test]
async fn what_waits_is_bounded() {
    let redis = Redis::start().expect("a Redis");
    let mut options = RedisOptions::new(&redis.url(), "test", "one");
    options.waiting_max = 2;
    let (broker, _) = node_with(options).await;
    let broker = Arc::new(broker);
    redis.command("CLIENT PAUSE 200 ALL").expect("paused");
    let ask = |topic: &str| {
        let (broker, topic) = (broker.clone(), topic.into());
        tokio::spawn(async move { broker.tops(vec![topic]).await })
    };
    let asked = [ask("a"), ask("b"), ask("c")];
    let mut refused = 0;
    for answer in asked {
        match answer.await.expect("no panic") {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error, Error::Overloaded { waiting: 2 });
                refused += 1;
            }
        }
    }
    assert_eq!(refused, 1);
}

#[tokio::test]
async fn a_redis_that_may_remove_keys_is_counted() {
    let redis = Redis::start().expect("a Redis");
    redis.command("CONFIG SET maxmemory-policy allkeys-lru").expect("set");
    let (broker, _) = node(&redis.url(), "one").await;
    until("it is counted", || broker.counts().evicting == 1).await;
}

#[tokio::test]
async fn a_redis_that_is_not_there_is_said() {
    let port = weir_tests::free_port().expect("a port");
    let options = RedisOptions::new(&format!("redis://127.0.0.1:{port}"), "test", "one");
    let opened = weir_broker::RedisBroker::open(options, Arc::new(Heard::default())).await;
    assert!(matches!(opened, Err(Error::Unavailable(_))));
}

#[tokio::test]
async fn a_cable_that_is_pulled_is_noticed() {
    let redis = Redis::start().expect("a Redis");
    let proxy = weir_tests::Proxy::start(redis.addr).expect("a proxy");
    let mut options = RedisOptions::new(&format!("redis://{}", proxy.addr), "test", "one");
    options.timeout = Duration::from_millis(500);
    options.connect_timeout = Duration::from_millis(500);
    let (broker, heard) = node_with(options).await;
    let (other, _) = node(&redis.url(), "two").await;
    broker.join(vec!["t".into()]).await.expect("joined");
    proxy.freeze();
    // Nobody asks anything: the connection for subscriptions itself notices.
    heard.take(|event| matches!(event, Event::Lost(_))).await;
    publish(&other, batch("t", 1, &["a"])).await;
    let refused = broker.publish(vec![batch("t", 1, &["b"])]).await.expect("an answer");
    assert!(matches!(&refused[..], [Err(Error::Unavailable(_))]), "{refused:?}");
    proxy.heal();
    let back = heard.take(|event| matches!(event, Event::Back { .. })).await;
    // What was on its way may come late, before the gap.
    let gaps = back.iter().filter(|event| **event == Event::Gap(Scope::All)).count();
    assert_eq!(gaps, 1, "{back:?}");
    // Redis may not have noticed yet that the old connection has ended.
    assert!(publish(&broker, batch("t", 2, &["c"])).await.nodes >= 1);
    assert_eq!(heard.messages("t", 1).await.last().map(|(_, at, _)| *at), Some(2));
}

#[tokio::test]
async fn a_join_that_ends_in_vain_leaves_nothing() {
    let redis = Redis::start().expect("a Redis");
    let mut options = RedisOptions::new(&redis.url(), "test", "one");
    options.timeout = Duration::from_millis(200);
    // Nothing is noticed while Redis pauses.
    let heard = Arc::new(Heard::default());
    options.probe_every = Duration::from_secs(20);
    let broker = weir_broker::RedisBroker::open(options, heard.clone()).await.expect("open");
    let (other, _) = node(&redis.url(), "two").await;
    broker.join(vec!["t".into()]).await.expect("joined");
    redis.command("CLIENT PAUSE 500 ALL").expect("paused");
    let joined = broker.join(vec!["t".into(), "u".into()]).await;
    assert!(matches!(joined, Err(Error::Unavailable(_))), "{joined:?}");
    // The answer to this comes behind all others.
    while broker.join(vec!["v".into()]).await.is_err() {}
    assert_eq!(publish(&other, batch("u", 1, &["a"])).await.nodes, 0);
    assert_eq!(publish(&other, batch("t", 1, &["a"])).await.nodes, 1);
    heard.messages("t", 1).await;
}

#[tokio::test]
async fn a_connection_that_is_given_up_carries_nothing_afterwards() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("an address"));
    let mut options = RedisOptions::new(&url, "test", "one");
    options.connect_timeout = Duration::from_millis(100);
    let opening = weir_broker::RedisBroker::open(options, Arc::new(Heard::default()));
    let reading = async {
        let (mut silent, _) = listener.accept().await.expect("a connection");
        loop {
            match silent.read(&mut [0; 1024]).await {
                Ok(0) => panic!("it was closed, and what it had sent would have come before"),
                Ok(_) => {}
                Err(error) => break error.kind(),
            }
        }
    };
    let (opened, ended) = tokio::join!(opening, reading);
    assert!(matches!(opened.err(), Some(Error::Unavailable(_))));
    assert_eq!(ended, ErrorKind::ConnectionReset);
}
