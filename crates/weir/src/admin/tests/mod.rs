//! The admin API from outside: a running gateway, real sockets, requests as text.

mod access;
mod added_pages;
mod broken_off;
mod cluster;
mod debug;
mod device;
mod devices;
mod drain;
mod endings;
mod http;
mod openmetrics;
mod pages;
mod presence;
mod stats;
mod tls;

use serde_json::{Value, json};

use self::device::Device;
use self::http::{Answer, Server};
use crate::http::web::openapi::tests as openapi;
use crate::{AdminConfig, Config};

/// Sends a request and checks the answer's status and parts of its body.
async fn check(server: &Server, request: &str, body: &str, status: u16, says: &[&str]) -> Answer {
    let answer = server.ask(request, body).await;
    assert_eq!(answer.status, status, "{request}\n{answer:?}");
    for text in says {
        assert!(answer.body.contains(text), "{request}: no {text:?} in\n{answer:?}");
    }
    let line: Vec<&str> = request.split_whitespace().collect();
    let kind = answer.header("content-type").unwrap_or_default();
    openapi::check(&super::openapi::document(), (line[0], line[1]), status, kind);
    if status >= 400 && !request.starts_with("HEAD") {
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{request}");
        let problem = answer.json();
        assert_eq!(problem["status"], status, "{problem}");
        for member in ["type", "title", "detail"] {
            assert!(problem[member].is_string(), "{member} of {problem}");
        }
    }
    answer
}

/// A valid `POST` without its body.
fn post(path: &str) -> String {
    format!("POST {path}\nContent-Type: application/json")
}

#[tokio::test]
async fn every_path_answers_and_nothing_else_does() {
    let server = Server::start(Config::default()).await;
    for (request, status, says) in [
        ("GET /healthz", 200, "ok"),
        ("GET /readyz", 200, "ready"),
        ("GET /metrics", 200, "\n# TYPE weir_devices gauge\n"),
        ("GET /metrics\nAccept: application/openmetrics-text", 200, "# EOF"),
        ("GET /v1/connections", 200, r#"{"connections":[],"next_cursor":null}"#),
        ("GET /v1/closes", 200, r#"{"closes":[],"kept":0}"#),
        ("GET /v1/closes?device=a&reason=stalled&limit=5", 200, r#"{"closes":[],"kept":0}"#),
        ("GET /v1/closes?reason=none", 400, r#""field":"reason""#),
        ("GET /v1/topics?prefix=a&limit=5", 200, r#"{"topics":[],"next_cursor":null}"#),
        ("GET /v1/connections/00000000000000ff", 404, "there is no connection 00000000000000ff"),
        ("DELETE /v1/connections/00000000000000ff", 404, "there is no connection"),
        ("GET /v1/connections/xyz", 400, r#""field":"id""#),
        ("GET /v1/connections/+00000000000000f", 400, r#""field":"id""#),
        ("GET /v1/devices/caf%C3%A9%2F1", 404, "café/1"),
        ("GET /v1/devices/%ff", 400, "not UTF-8"),
        ("GET /v1/devices/", 404, "nothing at"),
        ("GET /ui/", 404, "nothing at"),
        ("GET /v1/stats", 200, r#""shards":[{"#),
        ("GET /v1/publish/", 404, "nothing at"),
        ("GET /v1/connections?limit=0", 400, r#""field":"limit""#),
        ("GET /v1/connections?limit=1001", 400, "from 1 to 1000"),
        ("GET /v1/connections?cursor=AAAA", 400, r#""field":"cursor""#),
        ("GET /v1/topics?cursor=%25", 400, r#""field":"cursor""#),
        ("GET /v1/topics?device=a", 400, r#""field":"device""#),
        ("GET /v1/debug/cpu", 404, "this program makes no profiles"),
        ("GET /v1/debug/cpu?seconds=61", 400, r#""field":"seconds""#),
        ("GET /v1/debug/heap", 404, "this program makes no profiles"),
        ("GET /v1/debug/heap?format=svg", 400, r#""field":"format""#),
        ("GET /healthz?x=1", 400, "this path takes none"),
        (
            "GET /v1/session",
            200,
            r#"{"name":"anyone","may":["read","publish","operate","devices"],"expires_at_ms":null}"#,
        ),
        ("GET /v1/session?x=1", 400, "this path takes none"),
        ("DELETE /v1/session", 204, ""),
        (
            "GET /v1/audit?limit=1",
            200,
            r#""act":"sign_out","what":"DELETE /v1/session","outcome":"done""#,
        ),
        ("GET /v1/audit?limit=0", 400, "from 1 to 1000"),
        ("GET /v1/hooks/x/notices", 404, "there is no receiver \\\"x\\\""),
        ("GET /v1/hooks/x/notices?after=1", 400, r#""field":"after""#),
    ] {
        check(&server, request, "", status, &[says]).await;
    }
    let reload = "POST /v1/reload\nContent-Type: application/json";
    check(&server, reload, "{}", 404, &["cannot read its configuration again"]).await;
    check(&server, reload, r#"{"file":"x"}"#, 400, &["unknown field"]).await;
    let head = check(&server, "HEAD /healthz", "", 200, &[]).await;
    assert_eq!((head.body.as_str(), head.header("content-length")), ("", Some("3")));
    server.stop().await;
}

#[tokio::test]
async fn the_description_names_every_path_and_method() {
    let mut known: Vec<String> = Vec::new();
    for (path, route) in super::routes::Route::ALL {
        let methods = route.methods().split(", ").filter(|method| *method != "HEAD");
        known.extend(methods.map(|method| format!("{method} {path}")));
    }
    known.sort_unstable();
    assert_eq!(openapi::operations(&super::openapi::document()), known);
    for (path, route) in super::routes::Route::ALL {
        for method in route.methods().split(", ").filter(|method| *method != "HEAD") {
            let scope = route.scope(&method.parse().unwrap()).map(|scope| scope.name().to_owned());
            let described = openapi::scopes(&super::openapi::document(), method, path);
            assert_eq!(described, Vec::from_iter(scope), "{method} {path}");
        }
    }
    let server = Server::start(Config::default()).await;
    let document = check(&server, "GET /openapi.json", "", 200, &[]).await.json();
    assert_eq!(document["openapi"], "3.1.0");
    server.stop().await;
}

#[tokio::test]
async fn a_method_that_a_path_does_not_know_is_told_those_it_does() {
    let server = Server::start(Config::default()).await;
    for (request, allow) in [
        ("GET /v1/publish", "POST"),
        ("PUT /v1/connections", "GET, HEAD"),
        ("POST /v1/connections/00000000000000ff", "GET, HEAD, DELETE"),
        ("DELETE /v1/devices/a", "GET, HEAD"),
        ("GET /v1/devices/a/revoke", "POST"),
        ("GET /v1/devices/a/call", "POST"),
        ("PUT /v1/drain", "GET, HEAD, POST, DELETE"),
        ("OPTIONS /v1/topics", "GET, HEAD"),
        ("POST /metrics", "GET, HEAD"),
    ] {
        let answer = check(&server, request, "", 405, &["method-not-allowed"]).await;
        assert_eq!(answer.header("allow"), Some(allow), "{request}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_body_must_be_json_of_known_and_bounded_length() {
    let server = Server::start(Config::default()).await;
    let publish = &post("/v1/publish");
    let wrong_type = "POST /v1/publish\nContent-Type: text/plain";
    let too_long = format!("{publish}\nContent-Length: 1048577");
    let chunked = &format!("{publish}\nTransfer-Encoding: chunked");
    let whole = "1f\r\n{\"topic\":\"a\",\"text\":\"chunked\"}\n\r\n0\r\n\r\n";
    let big = "x".repeat(1 << 20);
    let over = format!("100001\r\n{big}x\r\n0\r\n\r\n");
    for (request, body, status, says) in [
        (publish.as_str(), "", 411, r#""field":"Content-Length""#),
        ("POST /v1/publish", "{}", 415, r#""field":"Content-Type""#),
        (&format!("{publish}\nIdempotency-Key: "), "{}", 400, r#""field":"Idempotency-Key""#),
        (wrong_type, "{}", 415, "application/json"),
        (&too_long, "", 413, "limit of 1048576 bytes"),
        (chunked, &over, 413, "limit of 1048576 bytes"),
        (chunked, "zz\r\n", 400, "framed wrongly"),
        (chunked, whole, 200, "\"connections\":0"),
        (&post("/v1/publish?x=1"), "{}", 400, r#""field":"x""#),
        (&post("/v1/devices/nobody/revoke"), "", 404, "nobody"),
        (&post("/v1/devices/nobody/revoke"), "{ }", 404, "nobody"),
        (&post("/v1/devices/nobody/revoke"), "[]", 400, "empty object"),
        (&post("/v1/devices/nobody/call"), "", 400, "EOF"),
        (&post("/v1/devices/nobody/call"), r#"{"method":"m"}"#, 404, "not connected"),
    ] {
        check(&server, request, body, status, &[says]).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn strangers_and_web_pages_are_refused() {
    let admin = AdminConfig {
        token: "s3cret".to_owned(),
        hosts: vec!["gate.example".to_owned()],
        ..AdminConfig::default()
    };
    let server = Server::start(Config { admin, ..Config::default() }).await;
    let token = "Authorization: Bearer s3cret";
    for (request, status, says) in [
        ("GET /healthz".to_owned(), 200, "ok"),
        ("GET /readyz".to_owned(), 200, "ready"),
        (format!("GET /metrics\n{token}"), 200, "# TYPE"),
        (format!("GET /v1/topics\n{token}\nHost: gate.example"), 200, "topics"),
        ("GET /metrics".to_owned(), 401, "unauthorized"),
        ("GET /v1/topics\nAuthorization: Bearer s3cre7".to_owned(), 401, "not the one"),
        ("GET /v1/topics\nAuthorization: Basic s3cret".to_owned(), 401, "not the one"),
        ("GET /nowhere".to_owned(), 401, "unauthorized"),
        (post("/v1/publish"), 401, "unauthorized"),
        ("GET /healthz\nHost: evil.example".to_owned(), 200, "ok"),
        ("GET /readyz\nHost: evil.example".to_owned(), 200, r#"{"ready":true,"parts":[]}"#),
        ("GET /readyz\nHost: 10.9.9.9:7090".to_owned(), 200, r#""parts":[{"part":"listeners""#),
        ("GET /metrics\nHost: evil.example".to_owned(), 421, r#""field":"Host""#),
        (
            "GET /readyz\nHost: evil.example\nOrigin: http://evil.example".to_owned(),
            421,
            "evil.example",
        ),
        (
            "GET /healthz\nHost: evil.example\nSec-Fetch-Site: same-origin".to_owned(),
            421,
            "evil.example",
        ),
        ("GET /healthz\nOrigin: http://evil.example".to_owned(), 403, "foreign-origin"),
        (format!("GET /v1/topics\n{token}\nHost: evil.example"), 421, "admin.hosts"),
        ("GET /healthz\nHost: localhost\nHost: localhost".to_owned(), 400, "exactly one Host"),
        ("GET http://evil.example/healthz".to_owned(), 400, "different hosts"),
        (format!("GET /v1/topics\n{token}\nOrigin: http://evil.example"), 403, "foreign-origin"),
        (format!("GET /v1/topics\n{token}\nOrigin: null"), 403, r#""field":"Origin""#),
        (format!("GET /v1/topics\n{token}\nOrigin: http://localhost"), 200, "topics"),
    ] {
        let answer = check(&server, &request, "", status, &[says]).await;
        let challenge = answer.header("www-authenticate");
        assert_eq!(challenge.is_some_and(|value| value.starts_with("Bearer ")), status == 401);
    }
    server.stop().await;
}

#[tokio::test]
async fn one_message_or_many_can_be_published() {
    let server = Server::start(Config::default()).await;
    let publish = &post("/v1/publish");
    let big = format!(r#"{{"all":true,"text":"{}"}}"#, "x".repeat(70_000));
    let long = format!(r#"{{"topic":"{}","text":""}}"#, "t".repeat(256));
    for (body, status, says) in [
        (r#"{"topic":"a","text":"t"}"#, 200, r#""connections":0"#),
        (r#"{"device":"nobody","data":"AAEC","key":"k","ttl_ms":5}"#, 200, r#""connections":0"#),
        (r#"{"all":true,"text":"","content_type":"text/plain"}"#, 200, r#""connections":0"#),
        (r#"{"topic":"","text":"t"}"#, 400, r#""field":"topic""#),
        (r#"{"topic":"a/*","text":"t"}"#, 400, "wildcard"),
        (long.as_str(), 400, "limit of 255"),
        (big.as_str(), 413, r#""field":"text""#),
        (r#"{"topic":"a","txt":"t"}"#, 400, "unknown field `txt`"),
        (r#"{"topic":"a","data":"%"}"#, 400, r#""field":"data""#),
        (r#"{"topic":"a"} {}"#, 400, "trailing characters"),
        (r#"{"messages":[],"topic":"a"}"#, 400, "unknown field `topic`"),
        (r#"{"messages":[{"topic":"a","text":5}]}"#, 400, r#""field":"messages[0].text""#),
        (r#"{"messages":[]}"#, 200, r#"{"results":[]}"#),
        ("\"\"", 400, "expected a JSON object"),
        (r#"["a",null,null,"t",null,null,null,null]"#, 400, "expected a JSON object"),
        (r#"[[["a",null,null,"t",null,null,null,null]]]"#, 400, "expected a JSON object"),
        ("{", 400, "EOF"),
    ] {
        check(&server, publish, body, status, &[says]).await;
    }
    let many = r#"{"messages":[{"topic":"a","text":"1"},{"topic":"+","text":"2"},{"all":true,"text":"3"}]}"#;
    let results = check(&server, publish, many, 200, &[]).await.json();
    assert_eq!(results["results"][0]["id"].as_str().map(str::len), Some(16), "{results}");
    assert_eq!(results["results"][1]["error"]["field"], "messages[1].topic", "{results}");
    assert_eq!(results["results"][2]["connections"], 0, "{results}");
    server.stop().await;
}

#[tokio::test]
async fn a_connection_can_be_kept_and_ends_with_the_server() {
    let server = Server::start(Config::default()).await;
    let mut kept = server.connect().await;
    for _ in 0..3 {
        let answer = kept.ask("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        assert_eq!((answer.status, answer.body.as_str()), (200, "ok\n"));
    }
    server.stop().await;
    assert!(kept.is_closed().await);
}

#[tokio::test]
async fn one_connection_too_many_takes_the_place_of_the_longest_silent() {
    let server = Server::start(Config::default()).await;
    let health = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut kept = Vec::new();
    for _ in 0..super::CONNECTIONS_MAX {
        kept.push(server.connect().await);
    }
    // The first connection sends a request, so the second is the longest silent. The third has sent
    // a part of a body.
    assert_eq!(kept[0].ask(health).await.status, 200);
    let publish = "POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{";
    kept[2].send(publish).await;
    for _ in 0..2 {
        let mut late = server.connect().await;
        assert_eq!(late.ask(health).await.status, 200);
        kept.push(late);
    }
    assert!(kept[1].is_closed().await);
    let last = super::CONNECTIONS_MAX + 1;
    for index in [0, last - 1, last] {
        assert_eq!(kept[index].ask(health).await.status, 200, "{index}");
    }
    drop(kept);
    server.stop().await;
}

#[tokio::test]
async fn a_head_over_the_limit_is_refused() {
    let server = Server::start(Config::default()).await;
    let long = format!("GET /healthz\nX-Long: {}", "x".repeat(20_000));
    assert_eq!(server.ask(&long, "").await.status, 431);
    let many = format!("GET /healthz{}", "\nX-Many: x".repeat(100));
    assert_eq!(server.ask(&many, "").await.status, 431);
    server.stop().await;
}

#[tokio::test]
async fn a_message_reaches_the_connections_that_the_answer_counts() {
    let server = Server::start(Config::default()).await;
    let mut device = Device::connect(server.device_addr(), "thermometer/1", &["news"]).await;
    let publish = &post("/v1/publish");
    for (body, offset) in [
        (r#"{"topic":"news","text":"to the topic"}"#, json!(1)),
        (r#"{"device":"thermometer/1","text":"to the device"}"#, Value::Null),
        (r#"{"all":true,"text":"to all"}"#, Value::Null),
    ] {
        let accepted = check(&server, publish, body, 200, &[]).await.json();
        assert_eq!(accepted["connections"], 1, "{body}: {accepted}");
        assert_eq!(accepted["offset"], offset, "{body}: {accepted}");
        let push = device.push().await;
        assert_eq!(accepted["id"], format!("{:016x}", push.message_id));
        assert!(body.contains(&device::text_of(&push)), "{push:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_message_without_room_is_refused_with_a_delay() {
    let server = Server::start(Config::default()).await;
    let mut device = Device::connect(server.device_addr(), "a", &[]).await;
    let (publish, one) = (&post("/v1/publish"), r#"{"all":true,"text":"t"}"#);
    let taken = server.use_up_budget().await;
    let answer = check(&server, publish, one, 503, &["budget-exhausted", "retry_after_ms"]).await;
    assert!(answer.header("retry-after").is_some_and(|after| after.parse::<u32>().is_ok()));
    let many = format!(r#"{{"messages":[{one}]}}"#);
    let results = check(&server, publish, &many, 200, &[]).await.json();
    assert_eq!(results["results"][0]["error"]["status"], 503, "{results}");
    let refused = "weir_publish_refused_total{cause=\"budget\"} 2\n";
    check(&server, "GET /metrics", "", 200, &[refused]).await;
    server.give_budget(taken);
    check(&server, publish, one, 200, &[r#""connections":1"#]).await;
    device.push().await;
    server.stop().await;
}

#[tokio::test]
async fn connections_topics_and_devices_can_be_seen_and_ended() {
    let server = Server::start(Config::default()).await;
    let mut first = Device::connect(server.device_addr(), "a", &["news"]).await;
    let mut second = Device::connect(server.device_addr(), "b", &["news", "weather"]).await;
    let id = format!("{:016x}", first.connection_id);

    let one = check(&server, &format!("GET /v1/connections/{id}"), "", 200, &[]).await.json();
    assert_eq!((&one["device"], &one["transport"]), (&json!("a"), &json!("tcp")), "{one}");
    assert_eq!(one["topics"], json!(["news"]), "{one}");
    assert_eq!(one["peer"], json!(first.local_addr().to_string()), "{one}");
    let by_topic = server.list("/v1/connections?topic=weather&limit=10", "connections").await;
    assert_eq!(names(&by_topic, "device"), ["b"]);
    let by_device = server.list("/v1/connections?device=a", "connections").await;
    assert_eq!(names(&by_device, "id"), [id.as_str()]);
    let all = server.list("/v1/connections?limit=1", "connections").await;
    assert_eq!(names(&all, "device"), ["a", "b"]);
    let topics = server.list("/v1/topics?limit=1", "topics").await;
    assert_eq!(names(&topics, "topic"), ["news", "weather"]);
    assert_eq!(topics[0]["subscribers"], 2);
    check(&server, "GET /v1/devices/b", "", 200, &[r#"{"device":"b","connections":[{"#]).await;

    check(&server, &format!("DELETE /v1/connections/{id}"), "", 204, &[]).await;
    assert_eq!(first.goodbye().await, "closed_by_operator");
    check(&server, &post("/v1/devices/b/revoke"), "", 204, &[]).await;
    assert_eq!(second.goodbye().await, "revoked");
    server.stop().await;
}

#[tokio::test]
async fn a_shard_that_does_not_answer_is_not_one_that_has_nothing() {
    let server = Server::start(Config::default()).await;
    let _device = Device::connect(server.device_addr(), "a", &[]).await;
    server.stop_shard().await;
    let none = "/v1/connections/00000000000000ff";
    for request in ["GET /v1/connections", &format!("GET {none}"), &format!("DELETE {none}")] {
        let answer =
            check(&server, request, "", 503, &["shard-silent", "shard 0 does not answer"]).await;
        assert_eq!(answer.header("retry-after"), Some("1"), "{request}");
    }
    let elsewhere = "GET /v1/connections/003fc000000000ff";
    check(&server, elsewhere, "", 404, &["there is no connection"]).await;
}

/// The values of `member` in a list, sorted.
fn names<'a>(list: &'a [Value], member: &str) -> Vec<&'a str> {
    let mut names: Vec<_> = list.iter().filter_map(|item| item[member].as_str()).collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn the_metrics_follow_the_format_and_count_what_happens() {
    let server = Server::start(Config::default()).await;
    let mut device = Device::connect(server.device_addr(), "a", &["news"]).await;
    check(&server, &post("/v1/publish"), r#"{"topic":"news","text":"t"}"#, 200, &[]).await;
    device.push().await;
    // The header that Prometheus sends.
    let accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2";
    let scrape = format!("GET /metrics\nAccept: {accept}");
    let answer = check(&server, &scrape, "", 200, &[]).await;
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(answer.header("content-type"), Some(content_type));
    assert_eq!(answer.header("vary"), Some("Accept"));
    openmetrics::check_text(&answer.body);
    for line in [
        "weir_connections{transport=\"tcp\",state=\"unsettled\"} 0",
        "weir_connections_accepted_total 1",
        "weir_connections_adopted_total 1",
        "weir_messages_published_total{target=\"topic\"} 1",
        "weir_devices 1",
        "weir_topics 1",
        "weir_connections_closed_total{reason=\"stalled\"} 0",
        concat!("weir_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
    ] {
        assert!(answer.body.lines().any(|given| given == line), "{line}\n{}", answer.body);
    }
    let plain = check(&server, "GET /metrics\nAccept: text/plain", "", 200, &[]).await;
    let content_type = "text/plain; version=0.0.4; charset=utf-8";
    assert_eq!(plain.header("content-type"), Some(content_type));
    openmetrics::check_plain(&plain.body);
    // The same series in both.
    let series = |text: &str| {
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        samples.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(series(&plain.body), series(&answer.body));
    server.stop().await;
}
