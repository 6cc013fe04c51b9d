//! Idempotency keys over real sockets: what is sent again is published once.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "it serves other tests too")]
mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::{Hears, Peer, Says, config, eventually, hello, start, start_with};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use weir::{Actor, Config, Gateway, Right, ServiceConfig, TokenConfig, TopicClass};
use weir_broker::memory::{Chances, Memory, MemoryOptions, NodeOptions};
use weir_wire::v1::{Publish, publish::Payload};

/// Nothing here takes this long; what does, hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// The devices `d1` and `d2` and the service `mouth`, with their names as tokens, may all publish
/// to `room/`.
fn with_callers() -> Config {
    let mut config = config();
    config.listen.http = vec!["127.0.0.1:0".parse().unwrap()];
    config.listen.admin = Some("127.0.0.1:0".parse().unwrap());
    config.admin.token = "operator".to_owned();
    config.auth.tokens = ["d1", "d2"]
        .map(|device| TokenConfig {
            token: device.to_owned(),
            device: Some(device.to_owned()),
            ..TokenConfig::default()
        })
        .into();
    config.auth.services = vec![ServiceConfig {
        token: "mouth".to_owned(),
        name: "mouth".to_owned(),
        may: vec![Right::Publish],
    }];
    config.topic_classes = vec![TopicClass {
        pattern: "room/*".to_owned(),
        publish: vec![Actor::Devices, Actor::Services],
        subscribe: vec![Actor::Devices],
        retention_messages: 10,
        ..TopicClass::default()
    }];
    config
}

/// Publishes over HTTP; returns the status and the answer.
async fn publish(addr: SocketAddr, token: &str, key: &str, body: &Value) -> (u16, Value) {
    let body = body.to_string();
    let mut head = format!(
        "POST /v1/publish HTTP/1.1\r\nHost: {addr}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n",
        body.len()
    );
    if !key.is_empty() {
        head += &format!("Idempotency-Key: {key}\r\n");
    }
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(format!("{head}\r\n{body}").as_bytes()).await.unwrap();
    let mut heard = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut heard)).await.expect("in time").unwrap();
    let status = heard.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(&heard[heard.find("\r\n\r\n").unwrap()..]).unwrap())
}

fn to_room(text: &str) -> Value {
    json!({ "topic": "room/1", "text": text })
}

async fn device(gateway: &Gateway, name: &str, topics: &[&str]) -> Peer {
    let mut peer = Peer::connect(gateway).await;
    peer.say(hello(name, name, topics)).await;
    peer.welcome().await;
    for _ in topics {
        peer.subscribed().await;
    }
    peer
}

/// The text of the next message.
async fn text(peer: &mut Peer) -> String {
    match peer.push().await.payload {
        Some(weir_wire::v1::push::Payload::Text(text)) => text,
        other => panic!("no text but {other:?}"),
    }
}

fn offset(answer: &(u16, Value)) -> u64 {
    assert_eq!(answer.0, 200, "{answer:?}");
    answer.1["offset"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_sent_again_is_published_once() {
    let gateway = start(with_callers()).await;
    let (public, admin) = (gateway.http_addrs()[0], gateway.admin_addr().unwrap());
    let mut peer = device(&gateway, "d1", &["room/1"]).await;
    let first = publish(public, "d1", "k", &to_room("1")).await;
    assert_eq!(offset(&first), 1);
    assert_eq!(publish(public, "d1", "k", &to_room("again")).await, first);
    // Another key, another caller, and no key.
    for (token, key, expected) in [("d1", "l", 2), ("d2", "k", 3), ("mouth", "k", 4), ("d1", "", 5)]
    {
        assert_eq!(offset(&publish(public, token, key, &to_room("new")).await), expected);
    }
    // A service is the same on both addresses.
    assert_eq!(offset(&publish(admin, "mouth", "k", &to_room("again")).await), 4);
    let many = json!({ "messages": [to_room("6"), {"text": "to nobody"}, to_room("7")] });
    let outcome = publish(public, "d1", "k", &many).await;
    assert_eq!(
        (&outcome.1["results"][0]["offset"], &outcome.1["results"][2]["offset"]),
        (&json!(6), &json!(7))
    );
    assert_eq!(publish(public, "d1", "k", &many).await, outcome);
    for text_of in ["1", "new", "new", "new", "new", "6", "7"] {
        assert_eq!(text(&mut peer).await, text_of);
    }
    // To a device and to all.
    for target in [json!({"device": "d1", "text": "d"}), json!({"all": true, "text": "a"})] {
        let first = publish(public, "mouth", "m", &target).await;
        assert_eq!((first.0, &first.1["connections"]), (200, &json!(1)));
        assert_eq!(publish(admin, "mouth", "m", &target).await, first);
    }
    assert_eq!((text(&mut peer).await, text(&mut peer).await), ("d".to_owned(), "a".to_owned()));
    for key in ["two words", &"k".repeat(256)] {
        for addr in [public, admin] {
            let (status, problem) = publish(addr, "mouth", key, &to_room("x")).await;
            assert_eq!((status, &problem["field"]), (400, &json!("Idempotency-Key")));
        }
    }
    let metrics = gateway.handle().metrics();
    for line in ["weir_idempotency_keys 8", "weir_publish_repeated_total 6"] {
        assert!(metrics.lines().any(|found| found == line), "{line}");
    }
    gateway.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_on_a_connection_has_the_epoch_too() {
    let gateway = start(with_callers()).await;
    let mut peer = device(&gateway, "d1", &[]).await;
    let publish_on = Publish {
        topic: "room/1".to_owned(),
        payload: Some(Payload::Text("1".to_owned())),
        request: 7,
        ..Publish::default()
    };
    peer.say(Says::Publish(publish_on)).await;
    let Some(Hears::Published(published)) = peer.hear().await else { panic!("not published") };
    assert_eq!((published.request, published.offset), (7, 1));
    let (_, answer) = publish(gateway.http_addrs()[0], "d1", "", &to_room("2")).await;
    assert_eq!(answer["epoch"], format!("{:016x}", published.epoch), "{answer}");
    gateway.shutdown().await;
}

async fn node(memory: &Memory, name: &'static str) -> Gateway {
    let memory = memory.clone();
    let builder = Gateway::builder().config(with_callers()).broker(move |handler| {
        let node = memory.node(name, NodeOptions::default(), handler);
        Box::pin(std::future::ready(Ok(node)))
    });
    start_with(builder).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_known_at_every_node_of_a_cluster() {
    let memory = Memory::new(&MemoryOptions::default());
    let (one, two) = (node(&memory, "one").await, node(&memory, "two").await);
    let (at_one, at_two) = (one.http_addrs()[0], two.http_addrs()[0]);
    let mut peer = device(&two, "d1", &["room/1"]).await;
    let first = publish(at_one, "d1", "k", &to_room("1")).await;
    let again = publish(at_two, "d1", "k", &to_room("again")).await;
    assert_eq!((offset(&first), offset(&again)), (1, 1));
    assert_eq!(first.1["epoch"], again.1["epoch"]);
    assert_eq!(offset(&publish(at_two, "d2", "k", &to_room("2")).await), 2);
    // The broker publishes, and no answer comes back.
    memory.set_chances("one", Chances { break_before_answer: 1.0, ..Chances::default() });
    let (status, problem) = publish(at_one, "d1", "l", &to_room("3")).await;
    assert_eq!((status, &problem["type"]), (503, &json!("urn:problem-type:weir:uncertain")));
    assert!(problem["detail"].as_str().unwrap().contains("the same Idempotency-Key"), "{problem}");
    assert_eq!(offset(&publish(at_two, "d1", "l", &to_room("again")).await), 3);
    for text_of in ["1", "2", "3"] {
        assert_eq!(text(&mut peer).await, text_of);
    }
    memory.set_chances("one", Chances::default());
    eventually(|| one.handle().is_ready(), "the first node is ready").await;
    assert_eq!(offset(&publish(at_one, "d1", "m", &to_room("4")).await), 4);
    assert_eq!(text(&mut peer).await, "4");
    one.shutdown().await;
    two.shutdown().await;
}

/// The answer to a message of the service, as soon as the node has the broker.
async fn accepted(addr: SocketAddr, key: &str, target: &Value) -> Value {
    let accepted = async {
        loop {
            match publish(addr, "mouth", key, target).await {
                (200, answer) => return answer,
                (503, _) => tokio::time::sleep(Duration::from_millis(5)).await,
                refused => panic!("{refused:?}"),
            }
        }
    };
    timeout(PATIENCE, accepted).await.expect("in time")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_a_message_to_a_device_or_to_all_is_known_at_every_node_too() {
    let memory = Memory::new(&MemoryOptions::default());
    let (one, two) = (node(&memory, "one").await, node(&memory, "two").await);
    let (at_one, at_two) = (one.http_addrs()[0], two.http_addrs()[0]);
    let mut peer = device(&two, "d1", &[]).await;
    eventually(|| !memory.connections("d1").is_empty(), "the device is claimed").await;
    for (target, nodes) in [
        (json!({"device": "d1", "text": "d"}), json!(1)),
        (json!({"all": true, "text": "a"}), json!({"reached": 2, "live": 2})),
    ] {
        for addr in [at_one, at_one, at_two] {
            assert_eq!(accepted(addr, "k", &target).await["nodes"], nodes);
        }
        // The broker sends it, and no answer comes back.
        memory.set_chances("one", Chances { break_before_answer: 1.0, ..Chances::default() });
        let (status, problem) = publish(at_one, "mouth", "l", &target).await;
        assert_eq!((status, &problem["type"]), (503, &json!("urn:problem-type:weir:uncertain")));
        memory.set_chances("one", Chances::default());
        for addr in [at_two, at_one] {
            assert_eq!(accepted(addr, "l", &target).await["nodes"], nodes);
        }
    }
    // What the broker has not taken is not remembered.
    memory.set_reachable(false);
    let target = json!({"all": true, "text": "b"});
    assert_eq!(publish(at_one, "mouth", "m", &target).await.0, 503);
    memory.set_reachable(true);
    accepted(at_two, "m", &target).await;
    accepted(at_one, "m", &target).await;
    for text_of in ["d", "d", "a", "a", "b"] {
        assert_eq!(text(&mut peer).await, text_of);
    }
    one.shutdown().await;
    two.shutdown().await;
}
