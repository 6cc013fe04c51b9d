//! Another configuration for a gateway that runs, as a program that embeds it gives one.

mod common;

use common::{Hears, Peer, Says, config, eventually, hello, start, start_with};
use serde_json::json;
use weir::{Actor, CloseReason, Config, Gateway, Reloaded, TokenConfig, TopicClass};
use weir_wire::v1;

fn class(pattern: &str, subscribe: &[&str]) -> TopicClass {
    TopicClass {
        pattern: pattern.to_owned(),
        publish: vec![Actor::Devices],
        subscribe: subscribe.iter().map(|word| Actor::parse(word).expect("an actor")).collect(),
        ..TopicClass::default()
    }
}

fn token(token: &str, device: Option<&str>, labels: &[&str]) -> TokenConfig {
    TokenConfig {
        token: token.to_owned(),
        device: device.map(str::to_owned),
        labels: labels.iter().map(|label| (*label).to_owned()).collect(),
        ..TokenConfig::default()
    }
}

async fn enter(gateway: &Gateway, device: &str, token: &str, topics: &[&str]) -> Peer {
    let mut peer = Peer::connect(gateway).await;
    peer.say(hello(device, token, topics)).await;
    peer.welcome().await;
    for topic in topics {
        assert_eq!(peer.subscribed().await.0, *topic);
    }
    peer
}

fn ends(reloaded: &Reloaded) -> (u64, u64) {
    (reloaded.closed, reloaded.unsubscribed)
}

async fn left(peer: &mut Peer) -> (String, String) {
    match peer.hear().await {
        Some(Hears::Unsubscribed(told)) => (told.topic, told.reason),
        other => panic!("no unsubscribed but {other:?}"),
    }
}

#[tokio::test]
async fn a_configuration_is_applied_as_a_whole_or_not_at_all() {
    let gateway = start(config()).await;
    let handle = gateway.handle();
    let mut bad = config();
    bad.limits.topics_max = 5;
    bad.topic_classes = vec![class("*", &["devices"]), class("*", &["devices"])];
    let error = handle.reload(bad).await.unwrap_err();
    assert!(error.key.starts_with("topic_classes"), "{error}");
    // The watermark fits the new budget, which needs a restart, and not the old one.
    let mut beside = config();
    beside.memory.budget_bytes = 1 << 30;
    beside.connection.high_watermark_bytes = 16 << 20;
    let error = handle.reload(beside).await.unwrap_err();
    assert!(error.allowed.contains("keys that need a restart"), "{error}");
    assert_eq!(handle.reload(config()).await.unwrap(), Reloaded::default(), "nothing has changed");

    let mut good = config();
    (good.limits.topics_max, good.threads.shards) = (5, 3);
    for round in 0..2 {
        let reloaded = handle.reload(good.clone()).await.unwrap();
        let keys: Vec<&str> = reloaded.changed.iter().map(|change| change.key.as_str()).collect();
        assert_eq!(keys, [["limits.topics_max"].as_slice(), &[]][round]);
        let [restart] = &reloaded.restart[..] else { panic!("{reloaded:?}") };
        assert_eq!((restart.key.as_str(), &restart.to), ("threads.shards", &json!(3)));
    }
    let mut peer = Peer::settled(&gateway, "d", &["1", "2", "3", "4", "5"]).await;
    let subscribe = v1::Subscribe { topic: "6".to_owned(), position: None, presence: false };
    peer.say(Says::Subscribe(subscribe)).await;
    assert_eq!(peer.error().await.code, "too_many_topics");
    gateway.shutdown().await;
}

#[tokio::test]
async fn a_token_ends_what_it_no_longer_permits_and_nothing_else() {
    let with = |tokens: Vec<TokenConfig>| {
        let mut config = config();
        config.auth.tokens = tokens;
        config.topic_classes =
            vec![class("own/{device}", &["devices"]), class("*", &["label:a", "label:b"])];
        config
    };
    let both = ["a", "b"];
    let before =
        vec![token("one", None, &["a"]), token("two", None, &["b"]), token("three", None, &both)];
    let gateway = start(with(before)).await;
    let handle = gateway.handle();
    let mut one = enter(&gateway, "1", "one", &["x", "own/1"]).await;
    let mut two = enter(&gateway, "2", "two", &["x"]).await;
    let mut three = enter(&gateway, "3", "three", &["x"]).await;
    let mut other = enter(&gateway, "4", "three", &["x"]).await;
    let mut nobody = Peer::settled(&gateway, "5", &["own/5"]).await;

    // A label goes: one leaves the topic that needs it, and keeps its own.
    let tokens =
        vec![token("one", None, &[]), token("two", None, &["b"]), token("three", None, &both)];
    assert_eq!(ends(&handle.reload(with(tokens)).await.unwrap()), (0, 1));
    assert_eq!(left(&mut one).await, ("x".to_owned(), "not_permitted".to_owned()));
    // A token is bound to one of its devices, and an id that nobody had becomes another's.
    let tokens = vec![
        token("one", None, &[]),
        token("two", None, &["b"]),
        token("three", Some("3"), &["a"]),
        token("new", Some("5"), &[]),
    ];
    assert_eq!(ends(&handle.reload(with(tokens)).await.unwrap()), (2, 0));
    other.expect_goodbye(CloseReason::Revoked).await;
    nobody.expect_goodbye(CloseReason::Revoked).await;
    // A token goes.
    let tokens = vec![token("one", None, &[]), token("three", Some("3"), &both)];
    assert_eq!(ends(&handle.reload(with(tokens)).await.unwrap()), (1, 0));
    two.expect_goodbye(CloseReason::Revoked).await;
    for (peer, topic) in [(&mut one, "own/1"), (&mut three, "x")] {
        let publish = v1::Publish {
            topic: topic.to_owned(),
            payload: Some(v1::publish::Payload::Text("still here".to_owned())),
            ..v1::Publish::default()
        };
        peer.say(Says::Publish(publish)).await;
        assert_eq!(peer.push().await.topic, topic);
    }
    eventually(|| handle.gauges().devices == 2, "the records of those that left are gone").await;
    gateway.shutdown().await;
}

#[tokio::test]
async fn a_class_ends_the_subscriptions_that_it_forbids() {
    let with = |subscribe: &[&str], presence_for: &[&str]| {
        let mut config = config();
        let presence_for = presence_for.iter().map(|word| Actor::parse(word).unwrap()).collect();
        let presence = true;
        config.topic_classes = vec![
            TopicClass { presence, presence_for, ..class("p/*", subscribe) },
            class("*", subscribe),
        ];
        config
    };
    let gateway = start_with(Gateway::builder().config(with(&["devices"], &["devices"]))).await;
    let handle = gateway.handle();
    let mut plain = Peer::settled(&gateway, "plain", &["p/1", "x"]).await;
    let mut watcher = Peer::settled(&gateway, "watcher", &[]).await;
    let subscribe = v1::Subscribe { topic: "p/1".to_owned(), position: None, presence: true };
    watcher.say(Says::Subscribe(subscribe)).await;
    assert_eq!(watcher.subscribed().await.0, "p/1");
    // It may be in the topic, but no longer hear who else is.
    assert_eq!(ends(&handle.reload(with(&["devices"], &[])).await.unwrap()), (0, 1));
    loop {
        match watcher.hear().await {
            Some(Hears::Presence(_)) => {}
            Some(Hears::Unsubscribed(told)) => break assert_eq!(told.reason, "not_permitted"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ends(&handle.reload(with(&[], &[])).await.unwrap()), (0, 2));
    let mut topics = [left(&mut plain).await.0, left(&mut plain).await.0];
    topics.sort();
    assert_eq!(topics, ["p/1", "x"]);
    assert_eq!(ends(&handle.reload(with(&["devices"], &[])).await.unwrap()), (0, 0));
    let again = v1::Subscribe { topic: "x".to_owned(), position: None, presence: false };
    plain.say(Says::Subscribe(again)).await;
    assert_eq!(plain.subscribed().await.0, "x");
    gateway.shutdown().await;
}

#[tokio::test]
async fn reloads_follow_one_another() {
    let gateway = start(config()).await;
    let with = |topics_max: usize| {
        let mut config: Config = config();
        config.limits.topics_max = topics_max;
        config
    };
    let reloading: Vec<_> = (1..=20)
        .map(|topics_max| {
            let handle = gateway.handle();
            tokio::spawn(async move { handle.reload(with(topics_max)).await.unwrap() })
        })
        .collect();
    let mut changes = Vec::new();
    for reloading in reloading {
        let [change] = &reloading.await.unwrap().changed[..] else {
            panic!("each changes one key")
        };
        changes.push((change.from.as_u64().unwrap(), change.to.as_u64().unwrap()));
    }
    // Each one begins where another has ended.
    let mut at = 1_000_000;
    while let Some(place) = changes.iter().position(|(from, _)| *from == at) {
        at = changes.swap_remove(place).1;
    }
    assert_eq!(changes, []);
    gateway.shutdown().await;
}
