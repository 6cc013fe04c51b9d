//! Datagrams at a gateway: calls, publishes, and what is told to who may not.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "this test needs a part of it only")]
mod common;

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use common::{Peer, config, eventually, start};
use serde_json::{Value, json};
use weir::{Actor, Config, Gateway, TokenConfig, TopicClass};
use weir_wire::ProstMessage;
use weir_wire::v1::datagram_request::Kind;
use weir_wire::v1::{self, publish};

fn room() -> Config {
    let token = |token: &str, device: Option<&str>| TokenConfig {
        token: token.to_owned(),
        device: device.map(str::to_owned),
        ..TokenConfig::default()
    };
    let mut config = config();
    config.listen.udp = vec!["127.0.0.1:0".parse().unwrap(), "[::1]:0".parse().unwrap()];
    config.auth.anonymous = Some(true);
    config.auth.tokens = vec![token("any", None), token("one", Some("d1"))];
    let devices = vec![Actor::parse("devices").unwrap()];
    let class = |pattern: &str| TopicClass {
        pattern: pattern.to_owned(),
        publish: devices.clone(),
        subscribe: devices.clone(),
        ..TopicClass::default()
    };
    config.topic_classes = vec![class("room/*"), class("own/{device}")];
    config
}

fn client(addr: SocketAddr) -> UdpSocket {
    let any = if addr.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" };
    let client = UdpSocket::bind(any).unwrap();
    client.connect(addr).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client
}

async fn ask(client: &UdpSocket, datagram: impl Into<Vec<u8>>) -> Vec<u8> {
    let (client, datagram) = (client.try_clone().unwrap(), datagram.into());
    let asked = tokio::task::spawn_blocking(move || {
        client.send(&datagram).unwrap();
        let mut buf = vec![0; 2000];
        let got = client.recv(&mut buf).expect("an answer");
        buf.truncate(got);
        buf
    });
    asked.await.unwrap()
}

async fn ask_json(client: &UdpSocket, datagram: &str) -> Value {
    serde_json::from_slice(&ask(client, datagram).await).unwrap()
}

fn metric(gateway: &Gateway, line: &str) -> Option<u64> {
    let metrics = gateway.handle().metrics();
    metrics.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_answered_over_both_families_and_in_both_forms() {
    let gateway = start(room()).await;
    for addr in gateway.udp_addrs() {
        let client = client(*addr);
        let call = r#"{"pt":"one","count":3,"id":"a"}"#;
        let answer = br#"{"answer":true,"pt":"one","count":3,"id":"a"}"#;
        assert_eq!(ask(&client, call).await, answer);
        let refused = ask_json(&client, r#"{"pt":"on","count":3,"room":"for the answer"}"#).await;
        assert_eq!((&refused["error"], &refused["field"]), (&json!("unauthorized"), &json!("pt")));
        let request =
            v1::DatagramRequest { id: 4, token: "any".to_owned(), kind: Some(Kind::Count(5)) };
        let answer = ask(&client, request.encode_to_vec()).await;
        let answer = v1::DatagramAnswer::decode(&*answer).unwrap();
        assert_eq!((answer.id, &*answer.token, answer.count), (4, "any", Some(5)));
        // A service's token is somebody's too; anonymous mode is for connections.
        assert_eq!(ask_json(&client, r#"{"pt":"","count":3}"#).await["error"], "malformed");
        let activate = r#"{"devSn":"add","devKey":"room for the answer"}"#;
        assert_eq!(ask_json(&client, activate).await["error"], "not_supported");
    }
    let done = || metric(&gateway, "weir_udp_done_total{kind=\"call\"}");
    eventually(|| done() == Some(4), "four calls are counted").await;
    assert_eq!(metric(&gateway, "weir_udp_refused_total{cause=\"credentials\"}"), Some(2));
    assert_eq!(metric(&gateway, "weir_udp_malformed_total{field=\"pt\"}"), Some(2));
    assert_eq!(metric(&gateway, "weir_udp_received_total"), Some(10));
    assert_eq!(metric(&gateway, "weir_udp_waiting"), Some(0));
    assert!(metric(&gateway, "weir_machine_udp_total{cause=\"unknown_port\"}").is_some());
    assert!(metric(&gateway, "weir_udp_queued_bytes{socket=\"0\"}").is_some());
    gateway.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publish_reaches_the_subscribers_if_its_device_may() {
    let gateway = start(room()).await;
    let mut listener = Peer::settled(&gateway, "listener", &["room/1"]).await;
    let client = client(gateway.udp_addrs()[0]);
    let published =
        ask_json(&client, r#"{"pt":"any","publish":{"topic":"room/1","text":"hi"},"id":1}"#).await;
    assert_eq!((&published["published"]["connections"], &published["id"]), (&json!(1), &json!(1)));
    let push = listener.push().await;
    assert_eq!(push.payload, Some(v1::push::Payload::Text("hi".to_owned())));
    assert_eq!(push.sender, 0);

    for (token, topic, error, field) in [
        ("any", "own/d1", "not_permitted", "publish"),
        ("one", "own/d1", "", ""),
        ("any", "elsewhere", "not_permitted", "publish"),
        ("wrong", "room/1", "unauthorized", "pt"),
        ("any", "room/*", "topic_name", "publish.topic"),
    ] {
        let publish = format!(
            r#"{{"pt":"{token}","publish":{{"topic":"{topic}","data":""}},"x":"room for the answer"}}"#
        );
        let answer = ask_json(&client, &publish).await;
        assert_eq!(answer["error"].as_str().unwrap_or_default(), error, "{publish}: {answer}");
        assert_eq!(answer["field"].as_str().unwrap_or_default(), field, "{publish}: {answer}");
    }
    let publish = v1::Publish {
        topic: "room/1".to_owned(),
        payload: Some(publish::Payload::Data(vec![7])),
        ..v1::Publish::default()
    };
    let request = v1::DatagramRequest {
        token: "any".to_owned(),
        kind: Some(Kind::Publish(publish)),
        ..v1::DatagramRequest::default()
    };
    let answer = v1::DatagramAnswer::decode(&*ask(&client, request.encode_to_vec()).await).unwrap();
    assert_eq!(answer.published.unwrap().connections, 1);
    let push = listener.push().await;
    assert_eq!(push.payload, Some(v1::push::Payload::Data(vec![7])));
    gateway.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_publishes_no_faster_than_on_a_connection() {
    let mut config = room();
    (config.limits.publishes_per_second, config.limits.publish_burst) = (1, 2);
    let gateway = start(config).await;
    let client = client(gateway.udp_addrs()[0]);
    let mut refused = 0;
    for id in 0..10 {
        let publish = format!(
            r#"{{"pt":"one","publish":{{"topic":"room/1","text":"some text"}},"id":{id}}}"#
        );
        let answer = ask_json(&client, &publish).await;
        if answer["error"] == "rate_limited" {
            assert!(answer["retryAfterMs"].as_u64().unwrap() <= 1000);
            refused += 1;
        }
    }
    // A slow machine earns it a few more.
    assert!((1..=8).contains(&refused), "{refused}");
    gateway.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_has_one_gateway_alone() {
    let gateway = start(room()).await;
    let mut config = common::config();
    config.listen.udp = vec![gateway.udp_addrs()[0]];
    let error = Gateway::builder().config(config).start().await.err().unwrap().to_string();
    assert!(error.starts_with("listen.udp: cannot listen on 127.0.0.1:"), "{error}");
    gateway.shutdown().await;
}
