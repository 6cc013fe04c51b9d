//! Devices in the store, through the admin API.

use std::sync::Arc;

use weir_store::conformance::Memory;
use weir_store::{BatchLimits, Secrets};

use super::*;
use crate::DeviceStore;

async fn start() -> Server {
    let limits = BatchLimits::default();
    let devices = DeviceStore::new(Arc::new(Memory::new()), &limits, Secrets::new(&[1; 32]));
    let embed = |builder: crate::GatewayBuilder| builder.devices(Arc::new(devices));
    Box::pin(Server::start_with(Config::default(), embed)).await
}

const CSV: &str = "POST /v1/devices\nContent-Type: text/csv; charset=utf-8";
const LINES: &str = "POST /v1/devices\nContent-Type: application/x-ndjson";

#[tokio::test]
async fn rows_are_imported_and_counted() {
    let server = start().await;
    let rows = "devSn,devKey,site\nadd,abc,n\nb,k,\n,k,\nb,k2,\nadd,abc,s\nadd,abc,s\n";
    let answer = check(&server, CSV, rows, 200, &[]).await.json();
    let expected = json!({
        "rows": 6, "added": 2, "unchanged": 1, "relabelled": 1, "rekeyed": 1, "bad": 1, "short_keys": 5,
        "errors": [{"line": 4, "field": "devSn", "detail": "devSn is empty"}],
    });
    assert_eq!(answer, expected);
    let line = "{\"devSn\":\"c\",\"devKey\":\"0123456789abcdef\"}\n{}\n";
    let answer = check(&server, LINES, line, 200, &[]).await.json();
    assert_eq!((&answer["added"], &answer["short_keys"]), (&json!(1), &json!(0)));
    assert_eq!(answer["errors"][0]["line"], 2);
    for (request, body, status, says) in [
        ("POST /v1/devices\nContent-Type: application/json", "{}", 415, "text/csv"),
        ("POST /v1/devices", "", 415, r#""field":"Content-Type""#),
        (CSV, "add,abc\n", 400, "no column"),
        (CSV, "", 400, "the header devSn,devKey is missing"),
    ] {
        check(&server, request, body, status, &[says]).await;
    }
    let many: String = (0..300).map(|_| ",\n").collect();
    let answer = check(&server, CSV, &format!("devSn,devKey\n{many}"), 200, &[]).await.json();
    assert_eq!((&answer["bad"], answer["errors"].as_array().unwrap().len()), (&json!(300), 100));
    server.stop().await;
}

#[tokio::test]
async fn devices_are_listed_by_pages_and_never_with_hashes() {
    let server = start().await;
    let rows: String = (0..2_500).map(|number| format!("d{number:04},key\n")).collect();
    check(&server, CSV, &format!("devSn,devKey\n{rows}"), 200, &[r#""added":2500"#]).await;
    let page = check(&server, "GET /v1/devices?limit=2", "", 200, &[]).await.json();
    assert_eq!(page["next_after"], "d0001");
    let first = &page["devices"][0];
    assert_eq!((&first["device"], &first["state"]), (&json!("d0000"), &json!("new")));
    assert!(first.get("key").is_none() && first.get("token").is_none(), "{first}");
    let last = check(&server, "GET /v1/devices?after=d2497", "", 200, &[]).await.json();
    assert_eq!((last["devices"].as_array().unwrap().len(), &last["next_after"]), (2, &Value::Null));
    for (request, says) in [
        ("GET /v1/devices?after=", r#""field":"after""#),
        ("GET /v1/devices?limit=0", r#""field":"limit""#),
        ("GET /v1/devices?cursor=a", "known are limit, after"),
        ("GET /v1/devices/export?limit=1", "this path takes none"),
    ] {
        check(&server, request, "", 400, &[says]).await;
    }
    let export = check(&server, "GET /v1/devices/export", "", 200, &[]).await;
    assert_eq!(export.body.matches("\"device\":").count(), 2_500);
    server.stop().await;
}

#[tokio::test]
async fn a_device_that_is_kept_is_shown_and_revoked_without_connections() {
    let server = start().await;
    check(&server, CSV, "devSn,devKey\na/b,key\n", 200, &[]).await;
    let shown = check(&server, "GET /v1/devices/a%2Fb", "", 200, &[]).await.json();
    assert_eq!((&shown["connections"], &shown["stored"]["state"]), (&json!([]), &json!("new")));
    for _ in 0..2 {
        check(&server, &post("/v1/devices/a%2Fb/revoke"), "{}", 204, &[]).await;
    }
    let shown = check(&server, "GET /v1/devices/a%2Fb", "", 200, &[]).await.json();
    assert_eq!(shown["stored"]["state"], "revoked");
    check(&server, &post("/v1/devices/nobody/revoke"), "{}", 404, &["not known here"]).await;
    check(&server, "GET /metrics", "", 200, &["weir_activations_total{outcome=\"first\"} 0"]).await;
    server.stop().await;
}

#[tokio::test]
async fn without_a_store_there_is_nothing_to_list() {
    let server = Server::start(Config::default()).await;
    for (request, body) in
        [("GET /v1/devices", ""), ("GET /v1/devices/export", ""), (CSV, "devSn,devKey\n")]
    {
        check(&server, request, body, 404, &["store.kind"]).await;
    }
    server.stop().await;
}
