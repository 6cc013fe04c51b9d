//! The list of who is in a topic, on one node and on several.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;
use weir_broker::Scope;
use weir_broker::memory::{EventKind, Memory};

use super::cluster::{memory, node_of};
use super::*;
use crate::{Actor, TopicClass};

fn rooms() -> Config {
    let class = TopicClass {
        pattern: "room/*".to_owned(),
        presence: true,
        presence_for: vec![Actor::Devices],
        ..TopicClass::default()
    };
    Config { topic_classes: vec![class], ..Config::default() }
}

const ROOM: &str = "GET /v1/topics/room%2F1/presence";

/// Waits until the list names these devices, and returns it.
async fn listed(server: &Server, devices: &[&str]) -> Value {
    loop {
        let list = check(server, ROOM, "", 200, &[]).await.json();
        let members = list["members"].as_array().unwrap();
        let mut found: Vec<&str> =
            members.iter().map(|member| member["device"].as_str().unwrap()).collect();
        found.sort_unstable();
        if found == devices {
            assert_eq!(list["connections"], json!(devices.len()), "{list}");
            return list;
        }
        sleep(Duration::from_millis(2)).await;
    }
}

/// Hears until the device has entered, or left.
async fn hears(watcher: &mut Device, device: &str, enters: bool) {
    loop {
        let presence = watcher.presence().await;
        let members = if enters { presence.joined } else { presence.left };
        if members.iter().any(|member| member.device_id == device) {
            return;
        }
    }
}

#[tokio::test]
async fn a_list_has_pages() {
    let server = Server::start(rooms()).await;
    let first = Device::connect(server.device_addr(), "a", &["room/1"]).await;
    let second = Device::connect(server.device_addr(), "b", &["room/1", "room/2"]).await;
    let all = check(&server, ROOM, "", 200, &[]).await.json();
    assert_eq!(
        (&all["connections"], &all["devices"], &all["complete"]),
        (&json!(2), &json!(2), &json!(true))
    );
    let mut ids = [first.connection_id, second.connection_id];
    ids.sort_unstable();
    let after = format!("{:016x}", ids[0]);
    let page = check(&server, &format!("{ROOM}?limit=1"), "", 200, &[]).await.json();
    assert_eq!((&page["next_after"], &page["members"][0]["node"]), (&json!(after), &Value::Null));
    let page = check(&server, &format!("{ROOM}?after={after}"), "", 200, &[]).await.json();
    assert_eq!(page["members"][0]["connection"], json!(format!("{:016x}", ids[1])), "{page}");
    assert_eq!((&page["next_after"], &page["connections"]), (&Value::Null, &json!(2)));
    for (request, status, says) in [
        ("GET /v1/topics/news/presence", 404, "no presence"),
        ("GET /v1/topics/room%2F1/presence?after=xyz", 400, r#""field":"after""#),
        ("GET /v1/topics/room%2F1/presence?cursor=a", 400, r#""field":"cursor""#),
        ("GET /v1/topics/%01/presence", 400, r#""field":"topic""#),
        ("GET /v1/topics/room%2F9/presence", 200, r#""connections":0"#),
    ] {
        check(&server, request, "", status, &[says]).await;
    }
    server.stop().await;
}

/// The connections of a shard that has ended are not there any more.
#[tokio::test]
async fn who_is_lost_with_a_shard_is_not_listed() {
    let server = Server::start(rooms()).await;
    let mut devices = Vec::new();
    while devices.iter().all(|device: &Device| device.connection_id >> 46 & 0xff != 0)
        || devices.iter().all(|device| device.connection_id >> 46 & 0xff == 0)
    {
        let device = format!("d{}", devices.len());
        devices.push(Device::connect(server.device_addr(), &device, &["room/1"]).await);
    }
    let stay = devices.iter().enumerate();
    let stay = stay.filter(|(_, device)| device.connection_id >> 46 & 0xff != 0);
    let mut stay: Vec<String> = stay.map(|(number, _)| format!("d{number}")).collect();
    stay.sort_unstable();
    server.stop_shard().await;
    listed(&server, &stay.iter().map(String::as_str).collect::<Vec<_>>()).await;
}

async fn node(memory: &Memory, name: &str) -> Server {
    Box::pin(node_of(rooms(), memory, name)).await
}

#[tokio::test]
async fn in_a_cluster_everybody_hears_of_everybody() {
    let memory = memory();
    let (one, two) = (node(&memory, "one").await, node(&memory, "two").await);
    let mut watcher = Device::connect(one.device_addr(), "watcher", &[]).await;
    watcher.subscribe("room/1", true).await;
    let here = Device::connect(one.device_addr(), "here", &["room/1"]).await;
    let there = Device::connect(two.device_addr(), "there", &["room/1"]).await;
    for device in ["here", "there"] {
        hears(&mut watcher, device, true).await;
    }
    for server in [&one, &two] {
        let list = listed(server, &["here", "there", "watcher"]).await;
        let node = |device| {
            let mut members = list["members"].as_array().unwrap().iter();
            members.find(|member| member["device"] == device).unwrap()["node"].as_u64()
        };
        assert_eq!(node("here"), Some(here.connection_id >> 54));
        assert_eq!(node("there"), Some(there.connection_id >> 54));
        assert_eq!(list["complete"], json!(true));
    }
    drop(here);
    hears(&mut watcher, "here", false).await;
    // The node ends in order: what it had leaves at once.
    two.stop().await;
    hears(&mut watcher, "there", false).await;
    listed(&one, &["watcher"]).await;
    one.stop().await;
}

#[tokio::test]
async fn what_the_broker_has_missed_or_lost_is_told_again() {
    let memory = memory();
    let (one, two) = (node(&memory, "one").await, node(&memory, "two").await);
    let mut watcher = Device::connect(one.device_addr(), "watcher", &[]).await;
    watcher.subscribe("room/1", true).await;
    let there = Device::connect(two.device_addr(), "there", &["room/1"]).await;
    hears(&mut watcher, "there", true).await;
    memory.set_reachable(false);
    let answer = check(&one, ROOM, "", 503, &["broker-unavailable"]).await;
    assert_eq!(answer.header("retry-after"), Some("1"));
    drop(there);
    memory.set_reachable(true);
    listed(&one, &["watcher"]).await;
    // What is not heard is told as missed, and the list has it.
    memory.drop_next("one", EventKind::Presence, 1);
    let _there = Device::connect(two.device_addr(), "there", &["room/1"]).await;
    listed(&one, &["there", "watcher"]).await;
    memory.lose_subscriptions("one", &Scope::All);
    while !watcher.presence().await.missed {}
    one.stop().await;
    two.stop().await;
}
