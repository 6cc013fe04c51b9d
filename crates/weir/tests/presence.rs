//! Who is in a topic: who hears of it, who may ask, and what is bounded.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "it serves other tests too")]
mod common;

use std::time::Duration;

use common::{Hears, Peer, Says, config, eventually, hello, start};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use weir::{Actor, Config, Gateway, Right, ServiceConfig, TopicClass};
use weir_wire::v1::{Ping, Subscribe, Unsubscribe};

/// Nothing here takes this long; what does, hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// `room/*` for devices, `desk/*` for services, `to/{device}` for its own device; all others have
/// no presence.
fn rooms() -> Config {
    let mut config = config();
    config.listen.http = vec!["127.0.0.1:0".parse().unwrap()];
    config.auth.anonymous = Some(true);
    config.auth.services = vec![ServiceConfig {
        token: "ears".to_owned(),
        name: "ears".to_owned(),
        may: vec![Right::Subscribe],
    }];
    let class = |pattern: &str, presence_for: &[Actor]| TopicClass {
        pattern: pattern.to_owned(),
        presence: true,
        presence_for: presence_for.to_vec(),
        ..TopicClass::default()
    };
    config.topic_classes = vec![
        class("room/*", &[Actor::Devices]),
        class("to/{device}", &[Actor::Devices]),
        TopicClass { presence: true, pattern: "desk/*".to_owned(), ..TopicClass::default() },
    ];
    config
}

fn subscribe(topic: &str, presence: bool) -> Says {
    Says::Subscribe(Subscribe { topic: topic.to_owned(), position: None, presence })
}

/// Connects, and hears that it is in the topic.
async fn entered(gateway: &Gateway, device: &str, topic: &str, presence: bool) -> (Peer, u64) {
    let mut peer = Peer::connect(gateway).await;
    peer.say(hello(device, "", &[])).await;
    let id = peer.welcome().await.connection_id;
    peer.say(subscribe(topic, presence)).await;
    assert_eq!(peer.subscribed().await.0, topic);
    (peer, id)
}

/// Hears of these connections, in one message or several: `+` has entered, `-` has left.
async fn hears(peer: &mut Peer, topic: &str, expected: &[&str]) {
    let mut heard = Vec::new();
    while heard.len() < expected.len() {
        let Some(Hears::Presence(presence)) = peer.hear().await else { panic!("presence") };
        assert_eq!((presence.topic.as_str(), presence.missed), (topic, false));
        heard.extend(presence.left.iter().map(|member| format!("-{}", member.device_id)));
        heard.extend(presence.joined.iter().map(|member| format!("+{}", member.device_id)));
    }
    heard.sort_unstable();
    assert_eq!(heard, expected);
}

/// What comes next is the answer to this, so nothing came before.
async fn hears_nothing(peer: &mut Peer) {
    peer.say(Says::Ping(Ping::default())).await;
    assert!(matches!(peer.hear().await, Some(Hears::Pong(_))));
}

/// Status and body of an answer of the public API.
async fn get(gateway: &Gateway, target: &str, headers: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(gateway.http_addrs()[0]).await.unwrap();
    let head =
        format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("it ends").unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap())
}

const EARS: &str = "Authorization: Bearer ears\r\n";

#[tokio::test]
async fn who_asks_hears_who_enters_and_who_leaves() {
    let gateway = start(rooms()).await;
    let (mut plain, _) = entered(&gateway, "plain", "room/1", false).await;
    let (mut watcher, _) = entered(&gateway, "watcher", "room/1", true).await;
    let (mut other, _) = entered(&gateway, "other", "room/2", true).await;
    hears(&mut watcher, "room/1", &["+watcher"]).await;
    hears(&mut other, "room/2", &["+other"]).await;
    let (mut guest, _) = entered(&gateway, "guest", "room/1", false).await;
    hears(&mut watcher, "room/1", &["+guest"]).await;
    guest.say(Says::Unsubscribe(Unsubscribe { topic: "room/1".to_owned() })).await;
    hears(&mut watcher, "room/1", &["-guest"]).await;
    // From here on both hear of the one that has not entered before them.
    plain.say(subscribe("room/1", true)).await;
    assert_eq!(plain.subscribed().await.0, "room/1");
    watcher.say(subscribe("room/1", false)).await;
    assert_eq!(watcher.subscribed().await.0, "room/1");
    guest.hear().await;
    guest.say(subscribe("room/1", false)).await;
    hears(&mut plain, "room/1", &["+guest"]).await;
    drop(guest);
    hears(&mut plain, "room/1", &["-guest"]).await;
    hears_nothing(&mut watcher).await;
    hears_nothing(&mut other).await;
    let handle = gateway.handle();
    assert!(handle.metrics().contains("weir_presence_members 3\n"), "{}", handle.metrics());
    assert!(handle.metrics().contains("weir_presence_changes_total{outcome=\"joined\"} 4\n"));
    drop((plain, watcher, other));
    eventually(|| handle.metrics().contains("weir_presence_members 0\n"), "all have gone").await;
    eventually(|| handle.gauges().topics == 0, "the topics end").await;
    gateway.shutdown().await;
}

#[tokio::test]
async fn who_may_not_or_cannot_hear_of_others_does_not_enter() {
    let gateway = start(rooms()).await;
    let mut peer = Peer::settled(&gateway, "d", &[]).await;
    for (topic, code, says) in [
        ("news", "not_supported", "have no presence (topic_classes, presence)"),
        ("desk/1", "not_permitted", "lets services see it (topic_classes, presence_for)"),
        ("to/e", "not_permitted", "to/{device}"),
    ] {
        peer.say(subscribe(topic, true)).await;
        let error = peer.error().await;
        assert_eq!((error.code.as_str(), error.topic.as_str()), (code, topic));
        assert!(error.message.contains(says), "{}", error.message);
    }
    assert_eq!(gateway.handle().gauges().topics, 0);
    for topic in ["news", "desk/1"] {
        peer.say(subscribe(topic, false)).await;
        assert_eq!(peer.subscribed().await.0, topic);
    }
    let (mut owner, _) = entered(&gateway, "e", "to/e", true).await;
    hears(&mut owner, "to/e", &["+e"]).await;
    let mut service = Peer::connect(&gateway).await;
    service.say(hello("", "ears", &[])).await;
    service.welcome().await;
    service.say(subscribe("desk/1", true)).await;
    assert_eq!(service.subscribed().await.0, "desk/1");
    hears(&mut service, "desk/1", &["+ears"]).await;
    let refused = "weir_subscribe_refused_total{cause=\"no_presence\"} 1\n";
    assert!(gateway.handle().metrics().contains(refused));
    gateway.shutdown().await;
}

#[tokio::test]
async fn the_list_is_for_those_whom_the_class_lets_see_it() {
    let gateway = start(rooms()).await;
    let mut peers = Vec::new();
    let mut ids = Vec::new();
    for device in ["a", "b", "c"] {
        let (peer, id) = entered(&gateway, device, "room/1", false).await;
        ids.push((id, device));
        peers.push(peer);
    }
    ids.sort_unstable();
    let path = "/v1/topics/room%2F1/presence";
    let (status, first) = get(&gateway, &format!("{path}?limit=2"), "").await;
    assert_eq!(
        (status, &first["topic"], &first["complete"]),
        (200, &"room/1".into(), &true.into())
    );
    assert_eq!((&first["connections"], &first["devices"]), (&3.into(), &3.into()), "{first}");
    let next = first["next_after"].as_str().unwrap();
    let (_, second) = get(&gateway, &format!("{path}?limit=2&after={next}"), "").await;
    assert_eq!(second["next_after"], Value::Null);
    let members = [&first, &second].map(|page| page["members"].as_array().unwrap().clone());
    let listed: Vec<(String, String)> = members
        .concat()
        .iter()
        .map(|member| (member["connection"].to_string(), member["device"].to_string()))
        .collect();
    let expected = ids.iter().map(|(id, device)| (format!("\"{id:016x}\""), format!("{device:?}")));
    assert_eq!(listed, expected.collect::<Vec<_>>());
    let (status, nobody) = get(&gateway, "/v1/topics/room%2F2/presence", "").await;
    assert_eq!((status, &nobody["connections"]), (200, &0.into()), "{nobody}");
    for (target, headers, status, says) in [
        ("/v1/topics/news/presence", "", 404, "have no presence"),
        ("/v1/topics/desk%2F1/presence", "", 403, "lets services see it"),
        ("/v1/topics/desk%2F1/presence", EARS, 200, ""),
        ("/v1/topics/room%2F1/presence", EARS, 403, "lets devices see it"),
        ("/v1/topics/room%2F1/presence?after=1", "", 400, "16 hexadecimal digits"),
        ("/v1/topics/room%2F1/presence?limit=0", "", 400, "1 to 1000"),
        ("/v1/topics/room%2A/presence", "", 400, "topic"),
    ] {
        let (answered, body) = get(&gateway, target, headers).await;
        assert_eq!(answered, status, "{target} {body}");
        assert!(body.to_string().contains(says), "{target} {body}");
    }
    gateway.shutdown().await;
}

#[tokio::test]
async fn beyond_the_limit_nobody_is_listed_and_nobody_can_watch() {
    let mut config = rooms();
    config.limits.presence_members_max = 2;
    let gateway = start(config).await;
    let (_first, _) = entered(&gateway, "a", "room/1", false).await;
    let (second, _) = entered(&gateway, "b", "room/2", false).await;
    let (mut third, _) = entered(&gateway, "c", "room/1", false).await;
    third.say(subscribe("room/3", true)).await;
    let error = third.error().await;
    assert_eq!((error.code.as_str(), error.topic.as_str()), ("busy", "room/3"));
    assert!(error.message.contains("all 2 places"), "{}", error.message);
    let (_, list) = get(&gateway, "/v1/topics/room%2F1/presence", "").await;
    assert_eq!((&list["connections"], &list["complete"]), (&1.into(), &false.into()), "{list}");
    let metrics = gateway.handle().metrics();
    for line in [
        "weir_presence_members 2\n",
        "weir_presence_unlisted 1\n",
        "weir_presence_changes_total{outcome=\"unlisted\"} 1\n",
        "weir_subscribe_refused_total{cause=\"presence_members_max\"} 1\n",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    drop(second);
    let handle = gateway.handle();
    eventually(|| handle.metrics().contains("weir_presence_members 1\n"), "it has gone").await;
    third.say(subscribe("room/1", true)).await;
    assert_eq!(third.subscribed().await.0, "room/1");
    hears(&mut third, "room/1", &["+c"]).await;
    let (_, list) = get(&gateway, "/v1/topics/room%2F1/presence", "").await;
    assert_eq!((&list["connections"], &list["complete"]), (&2.into(), &true.into()), "{list}");
    gateway.shutdown().await;
}
