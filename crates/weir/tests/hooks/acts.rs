//! Subscriptions and messages: on connections, by HTTP and by datagram.

use std::net::UdpSocket;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use weir::{Config, Gateway, TokenConfig};

use super::backend::{Backend, Reply};
use super::common::{Hears, Peer, eventually, hello, start};
use super::{config, hear_text, metric, publishing, saved, subscribe};

/// Refuses `room/secret` and the text `bad`, changes `change`, and permits everything else.
fn decide(question: &Value) -> Reply {
    let text = question["message"]["text"].as_str();
    Reply::Json(match (question["topic"].as_str(), text) {
        (Some("room/secret"), _) => json!({"allow": false, "reason": "it is secret"}),
        (_, Some("bad")) => json!({"allow": false}),
        (_, Some("change")) => json!({
            "allow": true, "message": {"text": "changed", "content_type": "text/x", "key": "k"},
        }),
        _ => json!({"allow": true}),
    })
}

fn asking(backend: &Backend) -> Config {
    let mut config = config();
    backend.serves(&mut config);
    config.hooks.subscribe.upstream = "api".to_owned();
    config.hooks.publish.upstream = "api".to_owned();
    config.auth.tokens.push(TokenConfig {
        token: "d1".to_owned(),
        device: Some("d1".to_owned()),
        ..TokenConfig::default()
    });
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_needs_the_backend_s_permission() {
    let backend = Backend::start(decide).await;
    let mut config = asking(&backend);
    // A class may ask nobody.
    config.topic_classes[0].subscribe_hook = None;
    let mut quiet = super::class("quiet/*", "devices");
    quiet.subscribe_hook = Some(String::new());
    config.topic_classes.insert(0, quiet);
    let gateway = start(config).await;
    let mut peer = Peer::connect(&gateway).await;
    peer.say(hello("d7", "", &["room/1", "room/secret", "quiet/1", "room/2"])).await;
    let id = peer.welcome().await.connection_id;
    assert_eq!(peer.subscribed().await.0, "room/1");
    let error = peer.error().await;
    let expected = "subscribe to \"room/secret\" is not permitted: it is secret";
    assert_eq!((&*error.code, &*error.message), ("not_permitted", expected));
    assert_eq!(error.topic, "room/secret");
    assert_eq!(peer.subscribed().await.0, "quiet/1");
    assert_eq!(peer.subscribed().await.0, "room/2");
    // What the class forbids is no question.
    peer.say(subscribe("vip/1")).await;
    assert_eq!(peer.error().await.code, "not_permitted");
    peer.say(subscribe("room/3")).await;
    assert_eq!(peer.subscribed().await.0, "room/3");
    assert_eq!(backend.count("subscribe"), 4);
    let asked = backend.asked().pop().unwrap();
    assert_eq!(asked.path, "/weir/subscribe");
    let connection = format!("{id:016x}");
    let (device, topic) = ("d7", "room/3");
    assert_eq!(asked.body["connection"], json!(connection));
    assert_eq!((&asked.body["device"], &asked.body["topic"]), (&json!(device), &json!(topic)));
    let refused = metric(&gateway, "weir_subscribe_refused_total{cause=\"hook\"}");
    assert_eq!(refused, 1);
    gateway.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_may_be_refused_and_changed() {
    let backend = Backend::start(decide).await;
    let gateway = start(asking(&backend)).await;
    let mut hears = Peer::settled(&gateway, "d2", &["room/1"]).await;
    let mut says = Peer::settled(&gateway, "d3", &[]).await;
    for (request, text) in (1..).zip(["good", "bad", "change"]) {
        says.say(publishing("room/1", text, request)).await;
    }
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(match says.hear().await {
            Some(Hears::Published(published)) => (published.request, None),
            Some(Hears::Error(error)) => (error.request, Some(error.code)),
            other => panic!("{other:?}"),
        });
    }
    let refused = Some("not_permitted".to_owned());
    assert_eq!(answers, [(1, None), (2, refused), (3, None)]);
    assert_eq!(hear_text(&mut hears).await, "good");
    let changed = hears.push().await;
    assert_eq!((&*changed.content_type, &*changed.key), ("text/x", "k"));
    let text = weir_wire::v1::push::Payload::Text("changed".to_owned());
    assert_eq!(changed.payload, Some(text));
    assert_eq!(metric(&gateway, "weir_publish_refused_total{cause=\"hook\"}"), 1);
    gateway.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_keep_their_order_and_nobody_else_waits() {
    let (open, gate) = watch::channel(false);
    let backend = Backend::start(move |question| {
        match question["message"]["text"].as_str().is_some_and(|text| text.starts_with("slow")) {
            true => Reply::Held(gate.clone(), json!({"allow": true})),
            false => decide(question),
        }
    });
    let backend = backend.await;
    let mut config = asking(&backend);
    config.threads.shards = 1;
    config.hooks.publish.timeout = Duration::from_secs(60);
    let gateway = start(config).await;
    let mut hears = Peer::settled(&gateway, "d2", &["room/1"]).await;
    let mut slow = Peer::settled(&gateway, "d3", &[]).await;
    slow.say(publishing("room/1", "slow", 1)).await;
    slow.say(publishing("room/1", "quick", 2)).await;
    slow.say(subscribe("room/2")).await;
    eventually(|| backend.count("publish") == 2, "both messages are asked about at once").await;
    // Another device of the same shard publishes and subscribes meanwhile.
    let mut other = Peer::settled(&gateway, "d4", &["room/3"]).await;
    other.say(publishing("room/1", "other", 1)).await;
    assert_eq!(hear_text(&mut hears).await, "other");
    // More than a line holds is refused at once.
    for request in 10..80 {
        slow.say(publishing("room/1", "slow", request)).await;
    }
    let busy = slow.error().await;
    assert_eq!((&*busy.code, &*busy.topic), ("busy", "room/1"));
    assert!(metric(&gateway, "weir_hook_frames_waiting") > 0);
    eventually(
        || metric(&gateway, "weir_publish_refused_total{cause=\"hook_waiting\"}") == 9,
        "70 more messages are 9 too many",
    )
    .await;
    assert!(saved(&gateway, "publish", "joined") > 0, "alike messages are one question");
    open.send(true).unwrap();
    assert_eq!(hear_text(&mut hears).await, "slow");
    assert_eq!(hear_text(&mut hears).await, "quick");
    eventually(|| metric(&gateway, "weir_hook_frames_waiting") == 0, "nothing waits").await;
    gateway.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_device_has_sent_is_published_although_it_leaves() {
    let (open, gate) = watch::channel(false);
    let backend = Backend::start(move |question| match question["message"]["text"].as_str() {
        Some("slow") => Reply::Held(gate.clone(), json!({"allow": true})),
        _ => decide(question),
    });
    let backend = backend.await;
    let mut config = asking(&backend);
    config.hooks.publish.timeout = Duration::from_secs(60);
    let gateway = start(config).await;
    let mut hears = Peer::settled(&gateway, "d2", &["room/1"]).await;
    let mut leaves = Peer::settled(&gateway, "d3", &[]).await;
    leaves.say(publishing("room/1", "slow", 0)).await;
    leaves.say(publishing("room/1", "last", 0)).await;
    eventually(|| backend.count("publish") == 2, "both messages are asked about").await;
    drop(leaves);
    eventually(
        || metric(&gateway, "weir_hook_frames_waiting") == 3,
        "the end waits behind the messages",
    )
    .await;
    open.send(true).unwrap();
    assert_eq!(hear_text(&mut hears).await, "slow");
    assert_eq!(hear_text(&mut hears).await, "last");
    eventually(|| gateway.handle().gauges().devices == 1, "the device has gone").await;
    gateway.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_payload_a_kept_answer_serves_all_messages_of_a_device() {
    let backend = Backend::start(|_| Reply::Json(json!({"allow": true, "cache_ms": 60_000})));
    let backend = backend.await;
    let mut config = asking(&backend);
    config.hooks.publish.payload = false;
    let gateway = start(config).await;
    let mut hears = Peer::settled(&gateway, "d2", &["room/1"]).await;
    let mut says = Peer::settled(&gateway, "d3", &[]).await;
    for text in ["a", "b", "c"] {
        says.say(publishing("room/1", text, 0)).await;
        assert_eq!(hear_text(&mut hears).await, text);
    }
    assert_eq!(backend.count("publish"), 1);
    assert_eq!(backend.asked().pop().unwrap().body.get("message"), None);
    assert_eq!(saved(&gateway, "publish", "cached"), 2);
    assert!(metric(&gateway, "weir_hook_cache_bytes") > 0);
    gateway.shutdown().await;
}

/// The status and the body of a request with the token `d1`.
async fn request(gateway: &Gateway, head: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(gateway.http_addrs()[0]).await.unwrap();
    let length = body.len();
    let request = format!(
        "{head} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer d1\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut heard = String::new();
    stream.read_to_string(&mut heard).await.unwrap();
    let (head, body) = heard.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_and_datagrams_are_asked_about_too() {
    let backend = Backend::start(decide).await;
    let mut config = asking(&backend);
    config.topic_classes[0].retention_messages = 10;
    config.topic_classes[0].history = true;
    let gateway = start(config).await;
    let mut hears = Peer::settled(&gateway, "d2", &["room/1"]).await;
    let publish = |text: &str| json!({"topic": "room/1", "text": text}).to_string();
    let (status, body) = request(&gateway, "POST /v1/publish", &publish("change")).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(hear_text(&mut hears).await, "changed");
    let asked = backend.asked().pop().unwrap().body;
    assert_eq!((&asked["device"], &asked["transport"]), (&json!("d1"), &json!("http")));
    let (status, body) = request(&gateway, "POST /v1/publish", &publish("bad")).await;
    assert_eq!(status, 403, "{body}");
    // Many messages keep their order, and each has its own answer.
    let texts = ["one", "bad", "two"].map(|text| json!({"topic": "room/1", "text": text}));
    let many = json!({"messages": texts}).to_string();
    let (status, body) = request(&gateway, "POST /v1/publish", &many).await;
    let results: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status, 200, "{body}");
    assert_eq!(results["results"][1]["error"]["status"], 403, "{body}");
    assert_eq!(hear_text(&mut hears).await, "one");
    assert_eq!(hear_text(&mut hears).await, "two");
    for (topic, expected) in [("room%2F1", 200), ("room%2Fsecret", 403)] {
        let path = format!("GET /v1/topics/{topic}/history");
        let (status, body) = request(&gateway, &path, "").await;
        assert_eq!(status, expected, "{body}");
    }
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(gateway.udp_addrs()[0]).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    for (text, error) in [("by datagram", None), ("bad", Some("not_permitted"))] {
        let publish = json!({"topic": "room/1", "text": text});
        let datagram = json!({"pt": "d1", "publish": publish, "id": text}).to_string();
        let asking = client.try_clone().unwrap();
        let answer = tokio::task::spawn_blocking(move || {
            asking.send(datagram.as_bytes()).unwrap();
            let mut buf = [0; 2_000];
            let bytes = asking.recv(&mut buf).unwrap();
            serde_json::from_slice::<Value>(&buf[..bytes]).unwrap()
        });
        assert_eq!(answer.await.unwrap().get("error").and_then(Value::as_str), error);
    }
    assert_eq!(hear_text(&mut hears).await, "by datagram");
    gateway.shutdown().await;
}
