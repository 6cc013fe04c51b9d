//! Several nodes on one broker, in one process: what is not about topics.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::sleep;
use weir_broker::memory::{Delays, Memory, MemoryOptions, NodeOptions};
use weir_store::{BatchLimits, Secrets};

use super::device::{Device, text_of};
use super::http::Server;
use super::{check, post};
use crate::base::config::TopicClass;
use crate::base::model::{Payload, Publication, PublishError, Target};
use crate::core::node::Question;
use crate::{ClusterLimit, Config, DeviceStore, GatewayBuilder};

/// A node of the cluster that `memory` holds together.
fn node(memory: &Memory, name: &str) -> impl Future<Output = Server> {
    node_with(memory, name, |builder| builder)
}

fn node_with(
    memory: &Memory,
    name: &str,
    embed: impl FnOnce(GatewayBuilder) -> GatewayBuilder,
) -> impl Future<Output = Server> {
    node_with_config(Config::default(), memory, name, embed)
}

pub(super) fn node_of(config: Config, memory: &Memory, name: &str) -> impl Future<Output = Server> {
    node_with_config(config, memory, name, |builder| builder)
}

fn node_with_config(
    mut config: Config,
    memory: &Memory,
    name: &str,
    embed: impl FnOnce(GatewayBuilder) -> GatewayBuilder,
) -> impl Future<Output = Server> {
    config.cluster.node = name.to_owned();
    let (memory, name) = (memory.clone(), name.to_owned());
    let embed = |builder: GatewayBuilder| {
        embed(builder).broker(move |handler| {
            Box::pin(async move { Ok(memory.node(&name, NodeOptions::default(), handler)) })
        })
    };
    Server::start_with(config, embed)
}

pub(super) fn memory() -> Memory {
    Memory::new(&MemoryOptions::default())
}

/// Waits until the broker has the claims of so many connections of a device.
async fn claimed(memory: &Memory, device: &str, connections: &[u64]) {
    let mut wanted = connections.to_vec();
    wanted.sort_unstable();
    while memory.connections(device).into_iter().map(|number| number.0).ne(wanted.iter().copied()) {
        sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn the_newest_connection_of_a_device_stays_on_whichever_node() {
    let memory = memory();
    let (one, two) = (node(&memory, "one").await, node(&memory, "two").await);
    let mut first = Device::connect(one.device_addr(), "d", &[]).await;
    claimed(&memory, "d", &[first.connection_id]).await;
    let mut second = Device::connect(two.device_addr(), "d", &[]).await;
    assert_eq!(first.goodbye().await, "replaced");
    claimed(&memory, "d", &[second.connection_id]).await;
    let third = Device::connect(one.device_addr(), "d", &[]).await;
    assert_eq!(second.goodbye().await, "replaced");
    claimed(&memory, "d", &[third.connection_id]).await;
    assert_ne!(first.connection_id >> 54, second.connection_id >> 54, "ids tell nodes apart");
    drop(third);
    claimed(&memory, "d", &[]).await;
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn a_device_that_came_while_the_broker_was_away_is_claimed_on_its_return() {
    let memory = memory();
    let (one, two) = (node(&memory, "one").await, node(&memory, "two").await);
    memory.set_reachable(false);
    let mut first = Device::connect(one.device_addr(), "d", &[]).await;
    let second = Device::connect(two.device_addr(), "d", &[]).await;
    memory.set_reachable(true);
    assert_eq!(first.goodbye().await, "replaced");
    claimed(&memory, "d", &[second.connection_id]).await;
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn a_claim_that_was_lost_is_made_again() {
    let memory = memory();
    let (one, two) = (node(&memory, "one").await, node(&memory, "two").await);
    let mut first = Device::connect(one.device_addr(), "d", &[]).await;
    claimed(&memory, "d", &[first.connection_id]).await;
    // The eviction does not arrive; the gap says so.
    memory.drop_next("one", weir_broker::memory::EventKind::Evicted, 1);
    let second = Device::connect(two.device_addr(), "d", &[]).await;
    claimed(&memory, "d", &[second.connection_id]).await;
    memory.lose_subscriptions("one", &weir_broker::Scope::Devices(vec!["d".into()]));
    assert_eq!(first.goodbye().await, "replaced");
    claimed(&memory, "d", &[second.connection_id]).await;
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn a_message_reaches_a_device_at_another_node() {
    let memory = memory();
    let (one, two) = (node(&memory, "one").await, node(&memory, "two").await);
    let mut device = Device::connect(two.device_addr(), "d", &[]).await;
    claimed(&memory, "d", &[device.connection_id]).await;
    let many = r#"{"messages":[{"device":"d","text":"1"},{"device":"d","text":"2"},{"device":"e","text":""}]}"#;
    let answer = check(&one, &post("/v1/publish"), many, 200, &[]).await.json();
    let counts = |index: usize| {
        let result = &answer["results"][index];
        (result["connections"].clone(), result["nodes"].clone())
    };
    assert_eq!(counts(0), (json!(0), json!(1)), "{answer}");
    assert_eq!(counts(2), (json!(0), json!(0)), "{answer}");
    for text in ["1", "2"] {
        let push = device.push().await;
        assert_eq!((text_of(&push).as_str(), push.offset), (text, 0));
    }
    let own = check(&two, &post("/v1/publish"), r#"{"device":"d","text":"3"}"#, 200, &[]).await;
    assert_eq!(
        (own.json()["connections"].clone(), own.json()["nodes"].clone()),
        (json!(1), json!(1))
    );
    assert_eq!(text_of(&device.push().await), "3");
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn a_message_to_all_reaches_every_node_once() {
    let memory = memory();
    let (one, two) = (node(&memory, "one").await, node(&memory, "two").await);
    let mut devices = Vec::new();
    for (server, id) in [(&one, "a"), (&one, "b"), (&two, "c")] {
        devices.push(Device::connect(server.device_addr(), id, &[]).await);
    }
    for text in ["x", "y"] {
        let body = json!({"all": true, "text": text}).to_string();
        let answer = check(&one, &post("/v1/publish"), &body, 200, &[]).await.json();
        assert_eq!(answer["connections"], 2);
        assert_eq!(answer["nodes"], json!({"reached": 2, "live": 2}));
    }
    for device in &mut devices {
        for text in ["x", "y"] {
            assert_eq!(text_of(&device.push().await), text);
        }
    }
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn what_the_broker_does_not_take_is_refused() {
    let memory = memory();
    let one = node(&memory, "one").await;
    let device = Device::connect(one.device_addr(), "d", &[]).await;
    claimed(&memory, "d", &[device.connection_id]).await;
    memory.set_reachable(false);
    for body in [r#"{"device":"d","text":""}"#, r#"{"all":true,"text":""}"#] {
        check(&one, &post("/v1/publish"), body, 503, &["broker-unavailable"]).await;
    }
    one.stop().await;
}

#[tokio::test]
async fn a_revocation_closes_the_device_at_every_node() {
    let memory = memory();
    let (one, two) = (node(&memory, "one").await, node(&memory, "two").await);
    let mut device = Device::connect(two.device_addr(), "d", &[]).await;
    claimed(&memory, "d", &[device.connection_id]).await;
    check(&one, &post("/v1/devices/d/revoke"), "", 204, &[]).await;
    assert_eq!(device.goodbye().await, "revoked");
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn a_device_that_comes_back_after_its_revocation_stays() {
    let memory = memory();
    let (one, two) = (node(&memory, "one").await, node(&memory, "two").await);
    let delay = Duration::from_millis(200);
    // What a node is told comes late: at the node that was asked to revoke, and at another one.
    let late = Delays { event: delay..delay, ..Delays::default() };
    memory.set_delays("one", late);
    let device = Device::connect(one.device_addr(), "d", &[]).await;
    revoked_once(&memory, &one, (&one, "d", device)).await;
    memory.set_delays("one", Delays::default());
    // What it is told is also read, and the question arrives late.
    let late = Delays { request: delay..delay, ..Delays::default() };
    let device = Device::connect(two.device_addr(), "e", &[]).await;
    claimed(&memory, "e", &[device.connection_id]).await;
    memory.set_delays("two", late);
    memory.lose_subscriptions("two", &weir_broker::Scope::Node);
    revoked_once(&memory, &one, (&two, "e", device)).await;
    one.stop().await;
    two.stop().await;
}

/// Revokes a device that comes back at once, and looks whether its new connection stays.
async fn revoked_once(
    memory: &Memory,
    at: &Server,
    (server, id, mut device): (&Server, &str, Device),
) {
    let path = post(&format!("/v1/devices/{id}/revoke"));
    let come_back = async {
        assert_eq!(device.goodbye().await, "revoked");
        Device::connect(server.device_addr(), id, &[]).await
    };
    let (_, mut again) = tokio::join!(check(at, &path, "", 204, &[]), come_back);
    // The last revocation is carried out behind the first one.
    check(at, &post("/v1/devices/nobody/revoke"), "", 204, &[]).await;
    claimed(memory, id, &[again.connection_id]).await;
    let body = json!({"device": id, "text": "still here"}).to_string();
    check(at, &post("/v1/publish"), &body, 200, &[]).await;
    assert_eq!(text_of(&again.push().await), "still here");
}

#[tokio::test]
async fn a_node_that_was_away_revokes_on_its_return_and_is_named_until_then() {
    let memory = memory();
    let (one, two) = (node(&memory, "one").await, node(&memory, "two").await);
    let mut device = Device::connect(two.device_addr(), "d", &[]).await;
    claimed(&memory, "d", &[device.connection_id]).await;
    memory.disconnect("two");
    let says = &[r#""confirmed":[1]"#, r#""missing_nodes":[2]"#];
    check(&one, &post("/v1/devices/d/revoke"), "", 202, says).await;
    memory.reconnect("two");
    assert_eq!(device.goodbye().await, "revoked");
    // A device that comes afterwards is not concerned, at a new node neither.
    let three = node(&memory, "three").await;
    let mut again = Device::connect(three.device_addr(), "d", &["t"]).await;
    claimed(&memory, "d", &[again.connection_id]).await;
    check(&one, &post("/v1/publish"), r#"{"device":"d","text":"x"}"#, 200, &[]).await;
    assert_eq!(text_of(&again.push().await), "x");
    check(&one, &post("/v1/devices/other/revoke"), "", 204, &[]).await;
    memory.set_reachable(false);
    check(&one, &post("/v1/devices/d/revoke"), "", 503, &["broker-unavailable"]).await;
    for server in [one, two, three] {
        server.stop().await;
    }
}

#[tokio::test]
async fn a_node_that_was_away_for_too_long_asks_the_store() {
    let (memory, limits) = (memory(), BatchLimits::default());
    let store = Arc::new(weir_store::conformance::Memory::new());
    let store = Arc::new(DeviceStore::new(store, &limits, Secrets::new(&[1; 32])));
    let with_store = |builder: GatewayBuilder| builder.devices(Arc::clone(&store));
    let one = node_with(&memory, "one", with_store).await;
    let two = node_with(&memory, "two", with_store).await;
    let mut device = Device::connect(two.device_addr(), "d", &[]).await;
    let other = Device::connect(two.device_addr(), "other", &[]).await;
    claimed(&memory, "d", &[device.connection_id]).await;
    let import = "POST /v1/devices\nContent-Type: text/csv";
    check(&one, import, "devSn,devKey\nd,key\n", 200, &[r#""added":1"#]).await;
    memory.disconnect("two");
    check(&one, &post("/v1/devices/d/revoke"), "", 202, &[r#""missing_nodes":[2]"#]).await;
    memory.forget_revocations(1);
    memory.reconnect("two");
    assert_eq!(device.goodbye().await, "revoked");
    claimed(&memory, "other", &[other.connection_id]).await;
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn the_admin_api_looks_at_every_node() {
    let memory = memory();
    let (one, two) = (node(&memory, "one").await, node(&memory, "two").await);
    let device = Device::connect(two.device_addr(), "d", &[]).await;
    let id = format!("{:016x}", device.connection_id);
    let nodes = check(&one, "GET /v1/nodes", "", 200, &[]).await.json();
    let names = [0, 1].map(|at| nodes["nodes"][at]["name"].clone());
    assert_eq!(names, [json!("one"), json!("two")], "{nodes}");
    assert_eq!(nodes["nodes"][0]["own"], true);
    assert_eq!(nodes["nodes"][1]["about"]["version"], env!("CARGO_PKG_VERSION"));
    for (request, status, says) in [
        ("GET /v1/devices/d".to_owned(), 200, format!(r#""id":"{id}","node":2"#)),
        (format!("GET /v1/connections/{id}"), 200, r#""device":"d""#.to_owned()),
        ("GET /v1/connections?node=2".to_owned(), 200, id.clone()),
        (
            "GET /v1/connections".to_owned(),
            200,
            r#"{"connections":[],"next_cursor":null}"#.to_owned(),
        ),
        ("GET /v1/connections?node=9".to_owned(), 200, r#""missing_nodes":[9]"#.to_owned()),
        ("GET /v1/connections?node=x".to_owned(), 400, r#""field":"node""#.to_owned()),
        ("GET /v1/devices/e".to_owned(), 404, "not known".to_owned()),
        (format!("DELETE /v1/connections/{id}"), 204, String::new()),
    ] {
        check(&one, &request, "", status, &[&says]).await;
    }
    claimed(&memory, "d", &[]).await;
    check(&one, &format!("DELETE /v1/connections/{id}"), "", 404, &[]).await;
    memory.disconnect("two");
    check(&one, &format!("GET /v1/connections/{id}"), "", 503, &["node-silent"]).await;
    memory.reconnect("two");
    two.stop().await;
    let nodes = check(&one, "GET /v1/nodes", "", 200, &[]).await.json();
    assert_eq!(nodes["nodes"].as_array().unwrap().len(), 1, "a node that ends is listed no more");
    one.stop().await;
}

#[tokio::test]
async fn what_waits_for_the_broker_and_for_other_nodes_is_bounded() {
    let memory = memory();
    let (one, two) = (node(&memory, "one").await, node(&memory, "two").await);
    // Neither requests of the one nor answers of the other get through in time.
    let long = Duration::from_secs(1);
    let slow = Delays { request: long..long, ..Delays::default() };
    memory.set_delays("two", slow);
    let handle = one.handle();
    let asking = handle.shared().node.as_ref().unwrap();
    let mut asked = JoinSet::new();
    for _ in 0..=1024 {
        let node = Arc::clone(asking);
        asked.spawn(async move { node.ask(2, Question::Connection { id: 1 }).await.is_some() });
    }
    let mut answered = 0;
    while let Some(found) = asked.join_next().await {
        answered += usize::from(found.unwrap());
    }
    assert_eq!(answered, 64);
    let reached = |server: &Server, limit| server.handle().counters().cluster_limits(limit);
    assert_eq!(reached(&one, ClusterLimit::Questions), 1);
    assert_eq!(reached(&two, ClusterLimit::Answers), 1024 - 64);
    memory.pause(Some("one"));
    let publication = Publication {
        target: Target::All,
        payload: Payload::Text("x"),
        content_type: "",
        key: "",
        ttl: None,
        sender: None,
        idempotency_key: None,
    };
    let publish = || handle.publish(&publication);
    let sent: Vec<_> = (0..4096).map(|_| publish()).collect();
    assert!(sent.iter().all(Result::is_ok));
    assert_eq!(asking.backlog(&handle.shared().devices).messages, 4096);
    assert!(matches!(publish(), Err(PublishError::Busy(_))));
    assert_eq!(reached(&one, ClusterLimit::Messages), 1);
    memory.resume(Some("one"));
    while asking.backlog(&handle.shared().devices).messages > 0 {
        sleep(Duration::from_millis(5)).await;
    }
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn nodes_with_other_topic_classes_are_told() {
    let memory = memory();
    let config_of = |pattern: &str| {
        let class = TopicClass { pattern: pattern.to_owned(), ..TopicClass::default() };
        let mut config = Config { topic_classes: vec![class], ..Config::default() };
        config.cluster.node_ttl = Duration::from_secs(2);
        config
    };
    let alike = Box::pin(node_of(config_of("a/*"), &memory, "one")).await;
    let two = Box::pin(node_of(config_of("a/*"), &memory, "two")).await;
    check(&alike, "GET /v1/nodes", "", 200, &[r#""settings_differ":false"#]).await;
    let other = Box::pin(node_of(config_of("b/*"), &memory, "other")).await;
    check(&two, "GET /v1/nodes", "", 200, &[r#""settings_differ":true"#]).await;
    let shows = async |server: &Server, same: u64, different: u64| {
        let lines = [("different", different), ("same", same)].map(|(settings, count)| {
            format!("weir_cluster_nodes{{settings=\"{settings}\"}} {count}\n")
        });
        loop {
            let metrics = check(server, "GET /metrics", "", 200, &[]).await.body;
            if lines.iter().all(|line| metrics.contains(line)) {
                break;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    shows(&alike, 2, 1).await;
    shows(&other, 1, 2).await;
    other.stop().await;
    shows(&alike, 2, 0).await;
    check(&two, "GET /v1/nodes", "", 200, &[r#""settings_differ":false"#]).await;
    for server in [alike, two] {
        server.stop().await;
    }
}

#[tokio::test]
async fn a_node_alone_lists_itself() {
    let server = Server::start(Config::default()).await;
    check(&server, "GET /v1/nodes", "", 200, &[r#""number":0"#, r#""own":true"#]).await;
    let silent = [r#""missing_nodes":[1]"#];
    check(&server, "GET /v1/connections?node=1", "", 200, &silent).await;
    check(&server, "GET /v1/connections?node=0", "", 200, &[r#""next_cursor":null"#]).await;
    server.stop().await;
}
