//! `/v1/drain`: its fields and answers. `tests/tests/drain.rs` drains connections of every kind.

use super::*;

const DRAIN: &str = "POST /v1/drain\nContent-Type: application/json";

#[tokio::test]
async fn a_wrong_drain_is_told_the_field_the_value_and_the_limit() {
    let server = Server::start(Config::default()).await;
    for (body, field, says) in [
        (r#"{"share":0}"#, "share", "share is 0: it must be more than 0, and at most 1"),
        (r#"{"share":-0.5}"#, "share", "share is -0.5"),
        (r#"{"share":1.01}"#, "share", "share is 1.01"),
        (r#"{"share":"all"}"#, "share", "invalid type: string"),
        (r#"{"lead":"2h"}"#, "lead", "lead is 7200s: it must be at most 3600s"),
        (r#"{"over":"25h"}"#, "over", "over is 90000s: it must be at most 86400s"),
        (r#"{"over":"soon"}"#, "over", "allowed is a whole number and a unit"),
        (r#"{"over":60}"#, "over", "invalid type: integer"),
        (r#"{"time":"1s"}"#, "time", "unknown field `time`"),
    ] {
        let answer = check(&server, DRAIN, body, 400, &[says]).await;
        assert_eq!(answer.json()["field"], field, "{body}");
    }
    check(&server, DRAIN, "[]", 400, &["a JSON object"]).await;
    check(&server, "POST /v1/drain", "{}", 415, &[]).await;
    check(&server, "POST /v1/drain?share=1\nContent-Type: application/json", "", 400, &[]).await;
    check(&server, "DELETE /v1/drain?x=1", "", 400, &[]).await;
    let idle = check(&server, "GET /v1/drain", "", 200, &[]).await.json();
    assert_eq!(idle["state"], "idle");
    assert!(idle.get("share").is_none(), "{idle}");
    check(&server, "GET /readyz", "", 200, &[]).await;
    // What is not there is cancelled at once.
    let idle = check(&server, "DELETE /v1/drain", "", 200, &[]).await.json();
    assert_eq!(idle["state"], "idle");
    server.stop().await;
}

#[tokio::test]
async fn a_drain_is_announced_refused_twice_and_cancelled() {
    let server = Server::start(Config::default()).await;
    let mut device = Device::connect(server.device_addr(), "a", &[]).await;
    let begun = check(&server, DRAIN, "", 202, &[]).await.json();
    let members = ["state", "share", "lead_ms", "over_ms", "connections", "to_close", "closed"];
    let expected = [json!("announced"), json!(1.0), json!(5_000), json!(60_000)];
    let expected: Vec<Value> = expected.into_iter().chain([1, 1, 0].map(Value::from)).collect();
    assert_eq!(members.map(|member| begun[member].clone())[..], expected[..], "{begun}");
    let ready = check(&server, "GET /readyz", "", 503, &["not ready: drain"]).await.json();
    let part = ready["parts"].as_array().unwrap().iter().find(|part| part["part"] == "drain");
    assert_eq!(part.unwrap()["state"], "failed", "{ready}");
    check(&server, "GET /readyz?exclude=drain", "", 200, &[]).await;
    let says = ["drain-running", "a drain is announced: share 1, over 60s, 0 of 1 closed"];
    check(&server, DRAIN, r#"{"share":0.5}"#, 409, &says).await;
    check(&server, "DELETE /v1/drain", "", 200, &[r#""state":"cancelled""#]).await;
    check(&server, "GET /readyz", "", 200, &[]).await;
    check(&server, DRAIN, r#"{"lead":"0ms","over":"0ms"}"#, 202, &[]).await;
    assert_eq!(device.goodbye().await, "draining");
    server.stop().await;
}

/// A shard that has ended does not keep the others from going on.
#[tokio::test]
async fn a_drain_with_a_silent_shard_is_cancelled_nevertheless() {
    let server = Server::start(Config::default()).await;
    server.stop_shard().await;
    check(&server, DRAIN, r#"{"lead":"1h"}"#, 202, &[]).await;
    let says = ["shard-silent", "shard 0 does not answer"];
    check(&server, "DELETE /v1/drain", "", 503, &says).await;
    check(&server, "GET /v1/drain", "", 200, &[r#""state":"cancelled""#]).await;
    check(&server, DRAIN, "", 202, &[]).await;
}
