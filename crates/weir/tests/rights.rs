//! Who may subscribe and publish: devices, services, and what those are told who may not.

mod common;

use std::collections::HashMap;

use common::{Hears, Peer, Says, config, eventually, hello, start};
use weir::{Actor, Config, EventFilter, Gateway, Right, ServiceConfig, TokenConfig, TopicClass};
use weir_wire::CloseReason;
use weir_wire::v1::{Publish, Subscribe, Unsubscribe, publish};

fn class(pattern: &str, publish: &[&str], subscribe: &[&str]) -> TopicClass {
    let actors = |words: &[&str]| {
        words.iter().map(|word| Actor::parse(word).expect("a word for an actor")).collect()
    };
    TopicClass {
        pattern: pattern.to_owned(),
        publish: actors(publish),
        subscribe: actors(subscribe),
        ..TopicClass::default()
    }
}

fn service(token: &str, may: &[Right]) -> ServiceConfig {
    ServiceConfig { token: token.to_owned(), name: token.to_owned(), may: may.to_vec() }
}

/// Anonymous devices, those with the label `vip`, and two services.
fn room() -> Config {
    let mut config = config();
    config.auth.anonymous = Some(true);
    config.auth.tokens = vec![TokenConfig {
        token: "vip".to_owned(),
        labels: vec!["vip".to_owned()],
        ..TokenConfig::default()
    }];
    config.auth.services =
        vec![service("ears", &[Right::Subscribe]), service("mouth", &[Right::Publish])];
    config.topic_classes = vec![
        class("room/*", &["devices"], &["devices", "services"]),
        class("to/{device}", &["services"], &["devices"]),
        class("vip/*", &["label:vip", "services"], &["label:vip"]),
        TopicClass {
            publishes_per_second: 1,
            publish_burst: 1,
            ..class("slow", &["devices"], &["devices"])
        },
    ];
    config
}

fn publish(topic: &str, request: u32) -> Says {
    let payload = Some(publish::Payload::Text("hi".to_owned()));
    Says::Publish(Publish { topic: topic.to_owned(), request, payload, ..Publish::default() })
}

fn subscribe(topic: &str) -> Says {
    Says::Subscribe(Subscribe { topic: topic.to_owned(), position: None, presence: false })
}

async fn settled(gateway: &Gateway, device: &str, token: &str) -> (Peer, u64) {
    let mut peer = Peer::connect(gateway).await;
    peer.say(hello(device, token, &[])).await;
    let id = peer.welcome().await.connection_id;
    (peer, id)
}

#[tokio::test]
async fn a_service_hears_what_a_device_publishes_and_who_it_was() {
    let gateway = start(room()).await;
    let (mut ears, _) = settled(&gateway, "", "ears").await;
    ears.say(subscribe("room/1")).await;
    assert_eq!(ears.subscribed().await, ("room/1".to_owned(), 0));
    let (mut device, id) = settled(&gateway, "d", "").await;
    device.say(publish("room/1", 7)).await;
    let Some(Hears::Published(published)) = device.hear().await else { panic!("published") };
    assert_eq!((published.request, published.offset, published.connections), (7, 1, 1));
    let push = ears.push().await;
    assert_eq!((push.topic.as_str(), push.offset, push.sender), ("room/1", 1, id));
    assert_eq!(push.message_id, published.message_id);
    // Without a number there is no answer; what comes next is the answer to what was said next.
    device.say(publish("room/1", 0)).await;
    device.say(subscribe("room/1")).await;
    assert_eq!(device.subscribed().await, ("room/1".to_owned(), 2));
    assert_eq!(ears.push().await.offset, 2);
    gateway.shutdown().await;
}

#[tokio::test]
async fn what_a_device_says_of_its_message_is_bounded() {
    let gateway = start(room()).await;
    let (mut device, _) = settled(&gateway, "d", "").await;
    let (long, longest) = ("x".repeat(256), "x".repeat(255));
    for (content_type, key, message) in [
        (&*long, "", "content_type of 256 bytes is over the limit of 255"),
        ("", &*long, "key of 256 bytes is over the limit of 255"),
        ("text/plain\n", "", "content_type contains a character that is not printable ASCII"),
        (&*longest, &*longest, ""),
    ] {
        let Says::Publish(publish) = publish("room/1", 3) else { panic!("a publish") };
        let (content_type, key) = (content_type.to_owned(), key.to_owned());
        device.say(Says::Publish(Publish { content_type, key, ..publish })).await;
        match device.hear().await {
            Some(Hears::Error(error)) => {
                let told = (error.code.as_str(), error.message.as_str(), error.request);
                assert_eq!(told, ("invalid_field", message, 3));
            }
            Some(Hears::Published(_)) => assert_eq!(message, ""),
            other => panic!("{other:?}"),
        }
    }
    let metrics = gateway.handle().metrics();
    let refused = "weir_publish_refused_total{cause=\"invalid_field\"} 3\n";
    assert!(metrics.contains(refused), "{metrics}");
    gateway.shutdown().await;
}

#[tokio::test]
async fn who_leaves_a_topic_is_checked_too() {
    let gateway = start(room()).await;
    let handle = gateway.handle();
    let mut events = handle.events(EventFilter::default()).unwrap();
    let (mut ears, _) = settled(&gateway, "", "ears").await;
    ears.say(subscribe("room/1")).await;
    ears.subscribed().await;
    let (mut device, _) = settled(&gateway, "d", "").await;
    let unsubscribe = |topic: &str| Says::Unsubscribe(Unsubscribe { topic: topic.to_owned() });
    for topic in ["", "room/*", &"x".repeat(60_000)] {
        device.say(unsubscribe(topic)).await;
        let error = device.error().await;
        assert_eq!((error.code.as_str(), error.topic.as_str()), ("topic_name", ""));
        assert!(error.message.len() < 300, "{}", error.message);
    }
    for topic in ["vip/1", "to/e", "room/1"] {
        device.say(unsubscribe(topic)).await;
        let Some(Hears::Unsubscribed(left)) = device.hear().await else { panic!("unsubscribed") };
        assert_eq!((left.topic.as_str(), left.position), (topic, None));
    }
    gateway.shutdown().await;
    let mut told = Vec::new();
    while let Ok(event) = events.next().await {
        if event.kind.name() == "unsubscribed" {
            told.push(event.topic().unwrap_or_default().to_owned());
        }
    }
    assert_eq!(told, ["room/1"]);
}

#[tokio::test]
async fn what_is_forbidden_is_answered_with_who_may() {
    let gateway = start(room()).await;
    let mut peers = HashMap::new();
    for (device, token) in [("d", ""), ("v", "vip"), ("ears", "ears"), ("mouth", "mouth")] {
        peers.insert(device, settled(&gateway, device, token).await.0);
    }
    let own = ", each device where {device} is its own id";
    let lacks_publish = r#", and this service lacks the right "publish" (auth.services, may)"#;
    let lacks_subscribe = r#", and this service lacks the right "subscribe" (auth.services, may)"#;
    for (who, act, topic, class, may, but) in [
        ("d", "publish", "news/1", "", "services", ""),
        ("d", "publish", "to/d", "to/{device}", "services", ""),
        ("d", "publish", "vip/1", "vip/*", "label:vip and services", ""),
        ("d", "subscribe", "vip/1", "vip/*", "label:vip", ""),
        ("d", "subscribe", "to/e", "to/{device}", "devices", own),
        ("v", "subscribe", "to/d", "to/{device}", "devices", own),
        ("ears", "publish", "vip/1", "vip/*", "label:vip and services", lacks_publish),
        ("ears", "subscribe", "vip/1", "vip/*", "label:vip", ""),
        ("mouth", "subscribe", "room/1", "room/*", "devices and services", lacks_subscribe),
        ("mouth", "publish", "room/1", "room/*", "devices", ""),
    ] {
        let peer = peers.get_mut(who).unwrap();
        let request = if act == "publish" { 3 } else { 0 };
        peer.say(if act == "publish" { publish(topic, 3) } else { subscribe(topic) }).await;
        let error = peer.error().await;
        let class = match class {
            "" => "no class in [[topic_classes]] fits it, and the default".to_owned(),
            class => format!("class {class:?}"),
        };
        let message = format!("{act} to {topic:?} is not permitted: {class} lets {may} {act}{but}");
        assert_eq!((error.code.as_str(), error.message), ("not_permitted", message));
        assert_eq!((error.topic.as_str(), error.request), (topic, request));
    }
    let metrics = gateway.handle().metrics();
    for line in [
        "weir_publish_refused_total{cause=\"not_permitted\"} 5\n",
        "weir_subscribe_refused_total{cause=\"not_permitted\"} 5\n",
    ] {
        assert!(metrics.contains(line), "no {line} in {metrics}");
    }
    assert_eq!(gateway.handle().gauges().topics, 0);
    for (who, topic) in [("mouth", "to/d"), ("mouth", "vip/1"), ("d", "room/1")] {
        let peer = peers.get_mut(who).unwrap();
        peer.say(publish(topic, 9)).await;
        assert!(matches!(peer.hear().await, Some(Hears::Published(_))), "{who} to {topic}");
    }
    for (who, topic) in [("d", "to/d"), ("v", "vip/1"), ("v", "to/v"), ("ears", "room/1")] {
        let peer = peers.get_mut(who).unwrap();
        peer.say(subscribe(topic)).await;
        assert_eq!(peer.subscribed().await.0, topic, "{who}");
    }
    gateway.shutdown().await;
}

#[tokio::test]
async fn hello_asks_for_rights_too() {
    let gateway = start(room()).await;
    let mut peer = Peer::connect(&gateway).await;
    peer.say(hello("d", "", &["room/1", "vip/1", "to/d"])).await;
    peer.welcome().await;
    assert_eq!(peer.subscribed().await.0, "room/1");
    let error = peer.error().await;
    assert_eq!((error.code.as_str(), error.topic.as_str()), ("not_permitted", "vip/1"));
    assert_eq!(peer.subscribed().await.0, "to/d");
    gateway.shutdown().await;
}

#[tokio::test]
async fn a_message_that_cannot_be_taken_is_answered_with_its_number() {
    let gateway = start(room()).await;
    let mut device = Peer::settled(&gateway, "d", &["slow"]).await;
    device.say(publish("slow", 1)).await;
    for _ in 0..2 {
        let heard = device.hear().await;
        assert!(matches!(heard, Some(Hears::Push(_) | Hears::Published(_))), "{heard:?}");
    }
    let long = Says::Publish(Publish {
        payload: Some(publish::Payload::Text("x".repeat(65_500))),
        topic: "room/1".to_owned(),
        request: 4,
        ..Publish::default()
    });
    for (says, code, topic, request) in [
        (publish("slow", 2), "rate_limited", "slow", 2),
        (publish("room/*", 3), "topic_name", "", 3),
        (long, "too_large", "room/1", 4),
    ] {
        device.say(says).await;
        let error = device.error().await;
        assert_eq!((error.code.as_str(), error.request), (code, request), "{}", error.message);
        assert_eq!(error.topic, topic);
    }
    gateway.shutdown().await;
}

#[tokio::test]
async fn a_service_may_connect_many_times_and_no_device_in_its_name() {
    let gateway = start(room()).await;
    let handle = gateway.handle();
    let mut ears = Vec::new();
    for id in ["", "ears", "", "ears/2"] {
        ears.push(settled(&gateway, id, "ears").await.0);
    }
    assert_eq!(handle.device("ears").await.unwrap().unwrap().len(), 3);
    assert_eq!(handle.device("ears/2").await.unwrap().unwrap().len(), 1);
    for (device, token) in [("ears", ""), ("ears/2", "vip"), ("mouth", "ears"), ("", "nose")] {
        let mut peer = Peer::connect(&gateway).await;
        peer.say(hello(device, token, &[])).await;
        peer.expect_goodbye(CloseReason::Unauthorized).await;
    }
    assert!(handle.revoke("ears").await.unwrap());
    for mut peer in ears.drain(..3) {
        peer.expect_goodbye(CloseReason::Revoked).await;
    }
    eventually(|| handle.gauges().devices == 1, "only ears/2 is left").await;
    gateway.shutdown().await;
}
