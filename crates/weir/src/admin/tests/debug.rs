//! `/v1/debug`: where memory is, and what keeps it.

use serde_json::Value;

use super::check;
use super::device::Device;
use super::http::Server;
use crate::Config;

fn part<'a>(memory: &'a Value, name: &str) -> &'a Value {
    let parts = memory["parts"].as_array().expect("a list");
    let found = parts.iter().find(|part| part["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {memory}"))
}

/// Fails if a part is missing, does not grow with its things, or has no bytes.
#[tokio::test]
async fn parts_of_the_memory_are_named_and_grow() {
    let server = Server::start(Config::default()).await;
    let before = check(&server, "GET /v1/debug/memory", "", 200, &[]).await.json();
    let _devices = [
        Device::connect(server.device_addr(), "one", &["news"]).await,
        Device::connect(server.device_addr(), "two", &["news", "other"]).await,
    ];
    let after = check(&server, "GET /v1/debug/memory", "", 200, &[]).await.json();
    for (name, count) in [("connections", 2), ("devices", 2), ("members", 3), ("topics", 2)] {
        assert_eq!(part(&before, name)["count"], 0, "{name}");
        let part = part(&after, name);
        assert_eq!(part["count"], count, "{name}");
        assert!(part["bytes"].as_u64() > Some(100) && part["heap"] == true, "{part}");
    }
    assert_eq!(part(&after, "thread_stacks")["heap"], false);
    assert!(after["rss_anon"].as_u64() > Some(1 << 20));
    // The test's own allocator has no figures.
    assert_eq!((&after["allocator"], &after["explained"]), (&Value::Null, &Value::Null));
    server.stop().await;
}

#[tokio::test]
async fn retainers_are_listed_with_their_names() {
    let server = Server::start(Config::default()).await;
    check(&server, "GET /v1/debug/retention", "", 200, &[r#"{"retainers":[]}"#]).await;
    let device = Device::connect(server.device_addr(), "d1", &["jobs/1"]).await;
    let path = "GET /v1/debug/retention?limit=5";
    let listed = check(&server, path, "", 200, &[]).await.json();
    let [retainer] = listed["retainers"].as_array().expect("a list").as_slice() else {
        panic!("{listed}");
    };
    for (member, value) in [("kind", "subscription"), ("topic", "jobs/1"), ("device", "d1")] {
        assert_eq!(retainer[member], value, "{retainer}");
    }
    assert_eq!(retainer["connection"].as_str().map(str::len), Some(16));
    assert!(retainer["age_ms"].is_u64() && retainer["bytes"].is_u64());
    check(&server, "GET /v1/debug/retention?limit=0", "", 400, &[r#""field":"limit""#]).await;
    check(&server, "GET /v1/debug/memory?limit=1", "", 400, &["this path takes none"]).await;
    drop(device);
    server.stop().await;
}
