//! The public API from outside: requests to the API of a running gateway, without sockets in
//! between.

mod activation;

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use weir_engine::Share;

use super::*;
use crate::base::config::{Actor, ServiceConfig, TokenConfig, TopicClass};
use crate::core::publish::NotPublished;
use crate::core::rights::{self, CallerDevice};
use crate::http::web::openapi::tests as described;
use crate::limits::http_ledger::Ledger;
use crate::limits::rates::Sender;
use crate::{ErrorCode, Gateway, GatewayBuilder, Refusal, Right};
use crate::{Payload, Publication, Target};

/// A gateway and its API.
struct Stage {
    gateway: Gateway,
    api: Api,
    caller: Caller,
}

#[derive(Debug)]
struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Value,
}

impl Stage {
    fn start(config: Config) -> impl Future<Output = Stage> {
        Stage::embed(config, |builder| builder)
    }

    /// The future does not contain the configuration, which is large.
    fn embed(
        mut config: Config,
        embed: impl FnOnce(GatewayBuilder) -> GatewayBuilder,
    ) -> impl Future<Output = Stage> {
        let free: SocketAddr = "127.0.0.1:0".parse().unwrap();
        config.listen.tcp = vec![free];
        config.listen.udp = vec![];
        config.listen.http = vec![];
        config.listen.admin = None;
        config.threads.shards = 1;
        config.threads.pin = false;
        config.memory.budget_bytes = 64 << 20;
        let builder = embed(Gateway::builder().config(config));
        async move { Stage::of(Box::pin(builder.start()).await.unwrap(), free) }
    }

    fn of(gateway: Gateway, free: SocketAddr) -> Stage {
        let handle = gateway.handle();
        let api = Api::new(handle.clone(), &handle.config());
        let peer = Some(IpAddr::from([127, 0, 0, 1]));
        let ledger = Ledger::new(&handle.shared().http_share, 4 << 20);
        let caller = Caller { peer, local: free, is_tls: false, identity: None, ledger };
        Stage { gateway, api, caller }
    }

    /// Sends a request: method and target, headers on a line each, then the body. Checks that the
    /// document describes the answer.
    async fn ask(&self, request: &str, body: &str) -> Answer {
        let (line, headers) = request.split_once('\n').unwrap_or((request, ""));
        let (method, target) = line.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(target);
        if !headers.contains("Host: ") {
            request = request.header("Host", "localhost");
        }
        for header in headers.lines() {
            let (name, value) = header.split_once(": ").unwrap();
            request = request.header(name, value);
        }
        let request = request.body(Full::from(body.to_owned())).unwrap();
        let reply = self.api.answer(&self.caller, request).await;
        let (head, body) = reply.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let answer = Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            body: serde_json::from_slice(&body).unwrap_or(Value::Null),
        };
        described::check(
            &openapi::document(),
            (method, target),
            answer.status,
            answer.header("content-type"),
        );
        answer
    }

    /// The same, with a token and a JSON body, if these are not empty.
    async fn send(&self, line: &str, token: &str, body: &str) -> Answer {
        let mut request = line.to_owned();
        if !token.is_empty() {
            request += &format!("\nAuthorization: Bearer {token}");
        }
        if !body.is_empty() {
            request += "\nContent-Type: application/json";
        }
        self.ask(&request, body).await
    }

    async fn publish(&self, token: &str, body: &str) -> Answer {
        self.send("POST /v1/publish", token, body).await
    }

    async fn history(&self, token: &str, target: &str) -> Value {
        let answer = self.send(&format!("GET /v1/topics/{target}"), token, "").await;
        assert_eq!(answer.status, 200, "{target}: {answer:?}");
        answer.body
    }

    async fn stop(self) {
        self.gateway.shutdown().await;
    }
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// Tokens: `d1` for that device, `any` for any device, `vip` with a label; services `mouth`, which
/// may publish, and `ear`.
fn config() -> Config {
    let token = |token: &str, device: Option<&str>, labels: &[&str]| TokenConfig {
        token: token.to_owned(),
        device: device.map(str::to_owned),
        labels: labels.iter().map(|label| (*label).to_owned()).collect(),
        ..TokenConfig::default()
    };
    let service = |name: &str, may| ServiceConfig {
        token: name.to_owned(),
        name: format!("service-{name}"),
        may: vec![may],
    };
    let class = |pattern: &str, actors: &[Actor]| TopicClass {
        pattern: pattern.to_owned(),
        publish: actors.to_vec(),
        subscribe: actors.to_vec(),
        retention_messages: 5,
        history: true,
        ..TopicClass::default()
    };
    let mut config = Config::default();
    config.auth.anonymous = Some(false);
    config.auth.tokens =
        vec![token("d1", Some("d1"), &[]), token("any", None, &[]), token("vip", None, &["vip"])];
    config.auth.services = vec![service("mouth", Right::Publish), service("ear", Right::Subscribe)];
    config.topic_classes = vec![
        class("own/{device}", &[Actor::Devices]),
        class("vip/*", &[Actor::Label("vip".to_owned())]),
        class("open/*", &[Actor::Devices, Actor::Services]),
        TopicClass {
            pattern: "closed/*".to_owned(),
            publish: vec![Actor::Devices],
            ..TopicClass::default()
        },
    ];
    config
}

/// One message to a topic.
fn to(topic: &str) -> String {
    json!({"topic": topic, "text": "t"}).to_string()
}

#[tokio::test]
async fn the_description_names_every_path_and_method() {
    let mut known: Vec<String> = Vec::new();
    for (path, route) in Route::ALL {
        let methods = route.methods().split(", ");
        let methods = methods.filter(|method| !matches!(*method, "HEAD" | "OPTIONS"));
        known.extend(methods.map(|method| format!("{method} {path}")));
    }
    known.sort_unstable();
    assert_eq!(described::operations(&openapi::document()), known);
    let stage = Stage::start(config()).await;
    let answer = stage.ask("GET /openapi.json", "").await;
    assert_eq!((answer.status, &answer.body["openapi"]), (200, &json!("3.1.0")));
    stage.stop().await;
}

#[tokio::test]
async fn what_cannot_be_is_refused_by_its_name() {
    let stage = Stage::start(config()).await;
    let post = "POST /v1/publish\nAuthorization: Bearer d1";
    let json = format!("{post}\nContent-Type: application/json");
    for (request, body, status, field) in [
        ("GET /nowhere", "", 404, ""),
        ("GET /v1/topics/a/b/history", "", 404, ""),
        ("GET /v1/publish", "", 405, ""),
        ("DELETE /v1/topics/a/history", "", 405, ""),
        ("POST /v1/sse", "", 405, ""),
        ("GET /openapi.json?x=1", "", 400, "x"),
        ("POST /v1/publish\nContent-Type: application/json", "{}", 401, ""),
        ("POST /v1/publish\nAuthorization: Basic d1", "{}", 401, ""),
        ("POST /v1/publish\nAuthorization: Bearer d1\nAuthorization: Bearer d1", "{}", 401, ""),
        ("GET /v1/topics/open%2Fa/history\nAuthorization: Bearer wrong", "", 401, ""),
        (post, "{}", 415, "Content-Type"),
        (&format!("{json}\nIdempotency-Key: a b"), "{}", 400, "Idempotency-Key"),
        (&json, "[]", 400, ""),
        (&json, r#"{"text":"t"}"#, 400, "topic"),
        (&format!("{json}\nContent-Length: 1048577"), "", 413, ""),
    ] {
        let answer = stage.ask(request, body).await;
        assert_eq!(answer.status, status, "{request}: {answer:?}");
        assert_eq!(answer.header("content-type"), "application/problem+json", "{request}");
        assert_eq!(answer.body["field"].as_str().unwrap_or_default(), field, "{answer:?}");
        assert_eq!(answer.header("www-authenticate").is_empty(), status != 401, "{answer:?}");
        assert_eq!(answer.header("allow").is_empty(), status != 405, "{answer:?}");
    }
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("after=5", "after"),
        ("after=-5", "after"),
        ("after=00000000000000ff-", "after"),
        ("after=00000000000000ff-%2B5", "after"),
        ("after=00000000000000fg-5", "after"),
        ("after=00000000000000ff-18446744073709551616", "after"),
        ("before=1", "before"),
    ] {
        let line = format!("GET /v1/topics/open%2Fa/history?{query}");
        let answer = stage.send(&line, "d1", "").await;
        assert_eq!((answer.status, answer.body["field"].as_str()), (400, Some(field)), "{query}");
    }
    stage.stop().await;
}

#[tokio::test]
async fn who_may_publish_is_as_on_a_connection() {
    let stage = Stage::start(config()).await;
    let (device, all) = (r#"{"device":"d1","text":"t"}"#, r#"{"all":true,"text":"t"}"#);
    for (token, body, status) in [
        ("d1", to("own/d1").as_str(), 200),
        ("d1", &to("own/d2"), 403),
        // A token for any device names none, so no topic is its own.
        ("any", &to("own/d1"), 403),
        ("any", &to("open/a"), 200),
        ("any", &to("vip/a"), 403),
        ("vip", &to("vip/a"), 200),
        ("d1", device, 403),
        ("d1", all, 403),
        ("mouth", &to("open/a"), 200),
        ("mouth", &to("vip/a"), 403),
        ("mouth", device, 200),
        ("mouth", all, 200),
        ("ear", &to("open/a"), 403),
        ("ear", device, 403),
        ("d1", &to("open/*"), 400),
        ("", &to("open/a"), 401),
    ] {
        let answer = stage.publish(token, body).await;
        assert_eq!(answer.status, status, "{token:?} {body}: {answer:?}");
    }
    let many = format!(r#"{{"messages":[{},{},{device}]}}"#, to("own/d1"), to("own/d2"));
    let results = stage.publish("d1", &many).await.body;
    assert_eq!(results["results"][0]["offset"], 2, "{results}");
    assert_eq!(results["results"][1]["error"]["field"], "messages[1].topic", "{results}");
    assert_eq!(results["results"][2]["error"]["field"], "messages[2].device", "{results}");
    stage.stop().await;
}

#[tokio::test]
async fn a_certificate_names_the_device_and_anonymous_requests_name_none() {
    let mut config = config();
    config.auth.anonymous = Some(true);
    let mut stage = Stage::start(config).await;
    assert_eq!(stage.publish("", &to("open/a")).await.status, 200);
    assert_eq!(stage.publish("", &to("own/d2")).await.status, 403);
    stage.caller.identity = Some("d2".to_owned());
    assert_eq!(stage.publish("", &to("own/d2")).await.status, 200);
    assert_eq!(stage.publish("any", &to("own/d2")).await.status, 200);
    assert_eq!(stage.publish("d1", &to("own/d1")).await.status, 401);
    stage.stop().await;
}

/// Whether a datagram of the device is refused because of the rate.
fn is_refused_by_datagram(handle: &Handle, device: &str) -> bool {
    let grant = handle.shared().auth.nobody();
    let device_name = CallerDevice::Named(Some(device));
    let came_by = rights::CameBy::Request(None);
    let caller = rights::Caller { grant, device: device_name, came_by };
    let publication = Publication {
        target: Target::Topic("open/a"),
        payload: Payload::Text(""),
        content_type: "",
        key: "",
        ttl: None,
        sender: None,
        idempotency_key: None,
    };
    let sender = Some(Sender::new(Some(device), None));
    let published = handle.publish_as(&caller, sender, &publication);
    matches!(published, Err(NotPublished::SenderRate { .. }))
}

#[tokio::test]
async fn a_device_that_publishes_too_fast_is_told_when_to_go_on() {
    let mut config = config();
    config.limits.publishes_per_second = 1;
    config.limits.publish_burst = 2;
    let stage = Stage::start(config).await;
    // A place becomes free each second. So one of many is refused, however slow the machine is.
    let body = format!(r#"{{"messages":[{}]}}"#, vec![to("open/a"); 1000].join(","));
    let results = stage.publish("d1", &body).await.body;
    let statuses = results["results"].as_array().unwrap().iter();
    assert!(statuses.clone().any(|outcome| outcome["error"]["status"] == 429), "{results}");
    let (asked_at, answer) = loop {
        let asked_at = tokio::time::Instant::now();
        let answer = stage.publish("d1", &to("open/a")).await;
        if answer.status != 200 {
            break (asked_at, answer);
        }
    };
    // Its datagrams count with its requests. On a slow machine the next place may be free by now.
    let is_refused = is_refused_by_datagram(&stage.gateway.handle(), "d1");
    assert!(is_refused || asked_at.elapsed() > std::time::Duration::from_millis(900));
    assert_eq!((answer.status, answer.header("retry-after").is_empty()), (429, false));
    assert!(answer.body["detail"].as_str().unwrap().contains("limits.publishes_per_second"));
    let refused = stage.gateway.handle().counters().refused(crate::RefuseCause::SenderRate);
    assert!(refused >= 2, "{refused}");
    // A service has no rate limit.
    let results = stage.publish("mouth", &body).await.body;
    let mut outcomes = results["results"].as_array().unwrap().iter();
    assert!(outcomes.all(|outcome| outcome["id"].is_string()), "{results}");
    stage.stop().await;
}

#[tokio::test]
async fn an_embedding_program_decides_alone() {
    let stage = Stage::embed(config(), |builder| {
        builder.on_publish(|message| match message.topic {
            "own/d1" => Ok(Some(message.publish()?)),
            "vip/taken" => {
                assert_eq!((message.conn, message.device), (None, ""));
                assert_eq!(message.ttl, Some(Duration::from_millis(5)));
                Ok(None)
            }
            "panic" => panic!("as the test wants it"),
            other => Err(Refusal { code: ErrorCode::NotPermitted, message: other.to_owned() }),
        })
    })
    .await;
    let taken = r#"{"topic":"vip/taken","text":"t","ttl_ms":5}"#;
    for (token, body, status) in [
        ("d1", to("own/d1").as_str(), 200),
        ("any", taken, 200),
        ("d1", &to("open/a"), 403),
        ("mouth", &to("open/a"), 403),
        ("d1", &to("panic"), 503),
        ("mouth", r#"{"all":true,"text":"t"}"#, 200),
    ] {
        let answer = stage.publish(token, body).await;
        assert_eq!(answer.status, status, "{token} {body}: {answer:?}");
    }
    let answer = stage.publish("any", taken).await;
    assert_eq!(answer.body, json!({"id": "0000000000000000", "connections": 0}));
    stage.stop().await;
}

#[tokio::test]
async fn what_is_kept_can_be_read_in_parts() {
    let stage = Stage::start(config()).await;
    let path = "open%2Fa/history";
    let nothing = stage.history("d1", path).await;
    assert_eq!(
        nothing,
        json!({"topic": "open/a", "epoch": null, "recovered": false, "messages": [], "more": false, "next": null})
    );
    for text in 1..=7 {
        let body = json!({"topic": "open/a", "text": text.to_string(), "key": "k"});
        assert_eq!(stage.publish("mouth", &body.to_string()).await.status, 200);
    }
    let data = json!({"topic": "open/a", "data": "AAE", "content_type": "x/y"}).to_string();
    let id = stage.publish("mouth", &data).await.body["id"].as_str().unwrap().to_owned();
    let offsets = |page: &Value| -> Vec<String> {
        let messages = page["messages"].as_array().unwrap().iter();
        messages.map(|push| push["offset"].as_str().unwrap().to_owned()).collect()
    };
    // Five of eight are kept.
    let mut page = stage.history("d1", &format!("{path}?limit=2")).await;
    assert_eq!((offsets(&page), &page["recovered"]), (vec!["4".into(), "5".into()], &json!(false)));
    let mut seen = offsets(&page);
    while page["more"] == true {
        let next = page["next"].as_str().unwrap().to_owned();
        page = stage.history("d1", &format!("{path}?limit=2&after={next}")).await;
        assert_eq!(page["recovered"], true, "{page}");
        seen.extend(offsets(&page));
    }
    assert_eq!(seen, ["4", "5", "6", "7", "8"]);
    let epoch = page["epoch"].as_str().unwrap();
    assert_eq!(page["next"], format!("{epoch}-8"));
    let message_id = u64::from_str_radix(&id, 16).unwrap().to_string();
    let push = json!({"topic": "open/a", "data": "AAE=", "contentType": "x/y", "messageId": message_id, "offset": "8"});
    assert_eq!(page["messages"].as_array().unwrap().last(), Some(&push));
    for (after, recovered, expected) in [
        (format!("{epoch}-8"), true, &[][..]),
        (format!("{epoch}-3"), true, &["4", "5", "6", "7", "8"]),
        (format!("{epoch}-2"), false, &["4", "5", "6", "7", "8"]),
        ("0000000000000001-8".to_owned(), false, &["4", "5", "6", "7", "8"]),
    ] {
        let page = stage.history("d1", &format!("{path}?after={after}")).await;
        assert_eq!(
            (offsets(&page), &page["recovered"]),
            (expected.iter().map(|text| (*text).to_owned()).collect(), &json!(recovered)),
            "{after}"
        );
    }
    stage.stop().await;
}

#[tokio::test]
async fn an_answer_is_bounded_and_the_budget_pays_for_it() {
    let mut config = config();
    config.topic_classes[2].retention_messages = 100;
    config.topic_classes[2].retention_bytes = 4 << 20;
    let stage = Stage::start(config).await;
    // In JSON each takes six bytes.
    let text = "\u{1}".repeat(60_000);
    for _ in 0..5 {
        let body = json!({"topic": "open/a", "text": text}).to_string();
        assert_eq!(stage.publish("mouth", &body).await.status, 200);
    }
    let path = "open%2Fa/history";
    let mut page = stage.history("d1", path).await;
    let mut counts = vec![page["messages"].as_array().unwrap().len()];
    while page["more"] == true {
        let next = page["next"].as_str().unwrap().to_owned();
        page = stage.history("d1", &format!("{path}?after={next}")).await;
        counts.push(page["messages"].as_array().unwrap().len());
    }
    assert_eq!(counts, [2, 2, 1]);
    let budget = std::sync::Arc::clone(stage.gateway.handle().engine().budget());
    let used = budget.used();
    let request = Request::get(format!("/v1/topics/{path}"))
        .header("authorization", "Bearer d1")
        .body(Full::<Bytes>::default())
        .unwrap();
    let reply = stage.api.answer(&stage.caller, request).await;
    assert!(budget.used() > used + 700_000, "{used} {}", budget.used());
    drop(reply);
    assert_eq!(budget.used(), used);
    let rest = budget.bytes_max_of(Share::Http) - budget.used_of(Share::Http);
    assert!(budget.take(Share::Http, rest));
    let answer = stage.send(&format!("GET /v1/topics/{path}"), "d1", "").await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, "1"), "{answer:?}");
    budget.give(Share::Http, rest);
    stage.stop().await;
}

#[tokio::test]
async fn history_is_for_those_who_may_subscribe_where_the_class_has_one() {
    let stage = Stage::start(config()).await;
    for (token, topic, status) in [
        ("d1", "own%2Fd1", 200),
        ("d1", "own%2Fd2", 403),
        ("any", "own%2Fd1", 403),
        ("vip", "vip%2Fa", 200),
        ("any", "vip%2Fa", 403),
        ("ear", "open%2Fa", 200),
        ("mouth", "open%2Fa", 403),
        ("d1", "closed%2Fa", 404),
        ("d1", "unknown", 404),
        ("d1", "a%2B", 400),
        ("d1", "a%0a", 400),
        ("d1", "%ff", 400),
        ("", "open%2Fa", 401),
    ] {
        let answer = stage.send(&format!("GET /v1/topics/{topic}/history"), token, "").await;
        assert_eq!(answer.status, status, "{token:?} {topic}: {answer:?}");
    }
    stage.stop().await;
}

#[tokio::test]
async fn pages_of_allowed_origins_may_ask_and_read() {
    let mut config = config();
    config.http.cors_origins = vec!["https://app.example".to_owned()];
    let stage = Stage::start(config).await;
    let page = "Host: gate.example\nOrigin: https://app.example";
    let answer = stage
        .ask(&format!("OPTIONS /v1/publish\n{page}\nAccess-Control-Request-Method: POST"), "")
        .await;
    assert_eq!(answer.status, 204, "{answer:?}");
    assert_eq!(answer.header("access-control-allow-origin"), "https://app.example");
    assert_eq!(answer.header("access-control-allow-methods"), "POST, OPTIONS");
    assert!(answer.header("access-control-allow-headers").contains("Authorization"));
    assert_eq!(answer.header("access-control-max-age"), "600");
    assert_eq!(answer.header("vary"), "Origin");
    // A page can read a refusal too, and may ask about the paths of the edge.
    let answer = stage.ask(&format!("POST /v1/publish\n{page}"), "{}").await;
    assert_eq!(answer.status, 401);
    assert_eq!(answer.header("access-control-allow-origin"), "https://app.example");
    assert_eq!(stage.ask(&format!("OPTIONS /v1/sse\n{page}"), "").await.status, 204);
    // Without a page the answer names no origin, but says that it would depend on one.
    let answer = stage.ask("GET /openapi.json\nHost: gate.example", "").await;
    assert_eq!(answer.header("access-control-allow-origin"), "");
    assert_eq!(answer.header("vary"), "Origin");
    let stranger = "Host: gate.example\nOrigin: https://evil.example";
    for line in ["OPTIONS /v1/publish", "POST /v1/publish", "GET /openapi.json", "GET /nowhere"] {
        let answer = stage.ask(&format!("{line}\n{stranger}\nAuthorization: Bearer d1"), "").await;
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (403, ""));
        assert_eq!(answer.body["type"], "urn:problem-type:weir:foreign-origin", "{line}");
    }
    stage.stop().await;
}

#[test]
fn no_route_to_an_upstream_takes_a_path_of_the_api() {
    let own = Route::ALL.iter().filter(|(_, route)| !matches!(route, Route::Hello));
    let own: Vec<&str> = own.map(|(path, _)| *path).collect();
    assert_eq!(own, crate::base::config::OWN_PATHS);
    for path in own {
        assert!(OWN_BEGINNINGS.iter().any(|beginning| path.starts_with(beginning)), "{path}");
    }
}
