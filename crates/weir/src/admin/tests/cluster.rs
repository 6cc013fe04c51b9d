//! Several nodes on one broker, in one process: what is not about topics.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;
use weir_broker::memory::{Memory, MemoryOptions, NodeOptions};

use super::device::{Device, text_of};
use super::http::Server;
use super::{check, post};
use crate::Config;

/// A node of the cluster that `memory` holds together.
async fn node(memory: &Memory, name: &str) -> Server {
    let mut config = Config::default();
    config.cluster.node = name.to_owned();
    node_with(memory, name, config).await
}

async fn node_with(memory: &Memory, name: &str, config: Config) -> Server {
    let (memory, name) = (memory.clone(), name.to_owned());
    Server::start_with(config, |builder| {
        builder.broker(move |handler| {
            Box::pin(async move { Ok(memory.node(&name, NodeOptions::default(), handler)) })
        })
    })
    .await
}

fn memory() -> Memory {
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
