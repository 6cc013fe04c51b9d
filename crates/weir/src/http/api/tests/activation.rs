//! Activation, from the side of a device.

use std::sync::Arc;

use weir_store::conformance::Memory;
use weir_store::{BatchLimits, DeviceEntry, Secrets, Serial, Store as _};

use super::*;
use crate::DeviceStore;

/// With the device `add`, whose key is `abc`.
fn start(config: Config) -> impl Future<Output = Stage> {
    // Otherwise the future would be as large as the whole configuration.
    let config = Box::new(config);
    async { start_boxed(config).await }
}

async fn start_boxed(config: Box<Config>) -> Stage {
    let secrets = Secrets::new(&[1; 32]);
    let serial = Serial::new("add").unwrap();
    let key = secrets.key_hash(&serial, "abc");
    let memory = Memory::new();
    let entry = DeviceEntry { serial, key, labels: Default::default() };
    memory.put(vec![entry], 1).await.unwrap();
    let devices = DeviceStore::new(Arc::new(memory), &BatchLimits::default(), secrets);
    Box::pin(Stage::embed(*config, |builder| builder.devices(Arc::new(devices)))).await
}

#[tokio::test]
async fn a_token_is_given_for_the_key_and_for_a_token() {
    let stage = Box::pin(start(Config::default())).await;
    let body = r#"{"devSn":"add","devKey":"abc"}"#;
    for path in ["/auth/gw/active", "/v1/devices/activate"] {
        let answer = stage.ask(&format!("POST {path}"), body).await;
        assert_eq!((answer.status, &answer.body["gateways"]), (200, &json!([])), "{answer:?}");
        let token = answer.body["pt"].as_str().unwrap().to_owned();
        let refreshed = stage.send("POST /v1/devices/token/refresh", &token, "").await;
        assert_eq!(refreshed.status, 200, "{refreshed:?}");
        assert_ne!(refreshed.body["pt"], answer.body["pt"]);
    }
    let wrong = stage.ask("POST /auth/gw/active", r#"{"devSn":"add","devKey":"x"}"#).await;
    let unknown = stage.ask("POST /auth/gw/active", r#"{"devSn":"x","devKey":"abc"}"#).await;
    assert_eq!((wrong.status, &wrong.body), (401, &unknown.body));
    assert_eq!(wrong.headers, unknown.headers);
    assert!(!wrong.header("www-authenticate").is_empty());
    for token in ["", "x", "AAAAAAAAAAAAAAAAAAAAAA"] {
        let answer = stage.send("POST /v1/devices/token/refresh", token, "").await;
        assert_eq!(answer.status, 401, "{token}: {answer:?}");
    }
    stage.stop().await;
}

#[tokio::test]
async fn what_is_not_there_or_cannot_be_is_said() {
    let mut config = Config::default();
    config.activation.failures_per_source_burst = 1;
    let stage = Box::pin(start(config)).await;
    for (line, body, status, field) in [
        ("POST /v1/devices/activate", r#"{"devSn":"add"}"#, 400, "devKey"),
        ("POST /v1/devices/activate", r#"{"devSn":7,"devKey":"abc"}"#, 400, "devSn"),
        ("POST /v1/devices/activate?x=1", "", 400, "x"),
        ("GET /v1/devices/activate", "", 405, ""),
        ("POST /v1/devices/activate", &"x".repeat(16 * 1024 + 1), 413, ""),
        ("POST /v1/devices/activate", r#"{"devSn":"add","devKey":"x"}"#, 401, ""),
        ("POST /v1/devices/activate", r#"{"devSn":"add","devKey":"abc"}"#, 429, ""),
    ] {
        let answer = stage.ask(line, body).await;
        assert_eq!(answer.status, status, "{line}: {answer:?}");
        assert_eq!(answer.body["field"].as_str().unwrap_or_default(), field, "{answer:?}");
        assert_eq!(answer.header("retry-after").is_empty(), status != 429, "{answer:?}");
    }
    stage.stop().await;
}

#[tokio::test]
async fn where_nobody_activates_there_is_nothing() {
    let body = r#"{"devSn":"add","devKey":"abc"}"#;
    let stage = Stage::start(Config::default()).await;
    assert_eq!(stage.ask("POST /auth/gw/active", body).await.status, 404);
    stage.stop().await;
    let mut config = Config::default();
    config.activation.enabled = false;
    let stage = Box::pin(start(config)).await;
    assert_eq!(stage.ask("POST /auth/gw/active", body).await.status, 404);
    stage.stop().await;
}
