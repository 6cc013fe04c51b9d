//! Calls in both directions: what is answered, what ends a call, and what the limits refuse.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "it serves other tests too")]
mod common;

use std::net::SocketAddr;

use common::{Hears, Peer, Says, config, eventually, hello, start};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use weir::{Actor, CallRouteConfig, Config, Gateway, UpstreamConfig};
use weir_wire::v1::{Answer, Call, Cancel, Hello, answer, call};

/// A backend with which the test speaks HTTP/1.1 by hand.
struct Backend(TcpListener);

/// A connection of the gateway to it, with one request.
struct Asked {
    stream: TcpStream,
    head: String,
    body: String,
}

impl Backend {
    async fn asked(&self) -> Asked {
        let (mut stream, _) = self.0.accept().await.unwrap();
        let mut read = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&read).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let head = head.to_ascii_lowercase();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                if length.unwrap_or("0").parse::<usize>().unwrap() <= body.len() {
                    return Asked { stream, head, body: body.to_owned() };
                }
            }
            assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "{text}");
        }
    }
}

impl Asked {
    async fn answer(&mut self, status: &str, content_type: &str, body: &str) {
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n{body}"
        );
        self.stream.write_all(answer.as_bytes()).await.unwrap();
    }

    /// Waits until the gateway has let go of the request.
    async fn let_go(mut self) {
        let mut rest = Vec::new();
        let _ = self.stream.read_to_end(&mut rest).await;
    }
}

/// A gateway whose routes lead to the backend.
async fn with_backend(change: impl FnOnce(&mut Config)) -> (Gateway, Backend) {
    let backend = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = config();
    config.listen.admin = Some("127.0.0.1:0".parse().unwrap());
    config.upstreams = vec![UpstreamConfig {
        name: "shop".to_owned(),
        addresses: vec![backend.local_addr().unwrap().to_string()],
        ..UpstreamConfig::default()
    }];
    config.calls.routes = vec![
        route("orders/*", "/rpc", vec![Actor::Devices]),
        route("orders/close", "/rpc", vec![Actor::Services]),
    ];
    change(&mut config);
    (Box::pin(start(config)).await, Backend(backend))
}

fn route(method: &str, path: &str, callers: Vec<Actor>) -> CallRouteConfig {
    let (method, path) = (method.to_owned(), path.to_owned());
    let upstream = "shop".to_owned();
    CallRouteConfig { method, upstream, path, callers, ..CallRouteConfig::default() }
}

fn call(id: u32, method: &str, text: &str) -> Call {
    let payload = Some(call::Payload::Text(text.to_owned()));
    Call { id, method: method.to_owned(), payload, ..Call::default() }
}

/// A device that answers calls.
async fn answering(gateway: &Gateway, device: &str) -> Peer {
    let mut peer = Peer::connect(gateway).await;
    let device_id = device.to_owned();
    peer.say(Says::Hello(Hello { device_id, calls: true, ..Hello::default() })).await;
    peer.welcome().await;
    peer
}

async fn answer(peer: &mut Peer) -> Answer {
    match peer.hear().await {
        Some(Hears::Answer(answer)) => answer,
        other => panic!("no answer but {other:?}"),
    }
}

async fn called(peer: &mut Peer) -> Call {
    match peer.hear().await {
        Some(Hears::Call(call)) => call,
        other => panic!("no call but {other:?}"),
    }
}

async fn cancelled(peer: &mut Peer) -> u32 {
    match peer.hear().await {
        Some(Hears::Cancel(cancel)) => cancel.id,
        other => panic!("no cancel but {other:?}"),
    }
}

/// Sends a call to the admin address, and leaves the answer to come.
async fn ask(admin: SocketAddr, device: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(admin).await.unwrap();
    let length = body.len();
    let request = format!(
        "POST /v1/devices/{device}/call HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// The status, and the body.
async fn told(mut stream: TcpStream) -> (u16, serde_json::Value) {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap())
}

fn metric(gateway: &Gateway, line: &str) -> u64 {
    let text = gateway.handle().metrics();
    let value = text.lines().find_map(|found| found.strip_prefix(line));
    value.map_or(0, |value| value.trim().parse().unwrap())
}

async fn await_none_in_flight(gateway: &Gateway) {
    for direction in ["to_backend", "to_device"] {
        let line = format!("weir_calls_in_flight{{direction=\"{direction}\"}}");
        eventually(|| metric(gateway, &line) == 0, &line).await;
    }
    eventually(|| metric(gateway, "weir_call_payloads_bytes") == 0, "no payloads").await;
}

#[tokio::test]
async fn a_device_s_call_is_a_request_of_the_backend() {
    let (gateway, backend) = Box::pin(with_backend(|_| {})).await;
    let mut device = Peer::settled(&gateway, "van 7", &[]).await;
    let mut asking = call(5, "orders/price", "{\"sku\":1}");
    (asking.content_type, asking.deadline_ms) = ("application/json".to_owned(), 5_000);
    device.say(Says::Call(asking)).await;
    let mut asked = backend.asked().await;
    assert!(asked.head.starts_with("post /rpc/orders/price http/1.1\r\n"), "{}", asked.head);
    for line in [
        "\r\ncontent-type: application/json\r\n",
        "\r\nweir-method: orders/price\r\n",
        "\r\nweir-device: van%207\r\n",
        "\r\nweir-call: 5\r\n",
    ] {
        assert!(format!("{}\r\n", asked.head).contains(line), "{line}: {}", asked.head);
    }
    let left = asked.head.lines().find_map(|line| line.strip_prefix("weir-deadline-ms: "));
    assert!((1..=5_000).contains(&left.unwrap().parse::<u32>().unwrap()), "{}", asked.head);
    assert_eq!(asked.body, "{\"sku\":1}");
    asked.answer("200 OK", "application/json", "{\"price\":2}").await;
    let done = answer(&mut device).await;
    assert_eq!((done.id, &*done.code, done.status), (5, "", 200), "{done:?}");
    assert_eq!(done.payload, Some(answer::Payload::Text("{\"price\":2}".to_owned())));
    assert_eq!(done.content_type, "application/json");
    // An error of the backend is an answer too.
    device.say(Says::Call(call(6, "orders/price", ""))).await;
    backend.asked().await.answer("404 Not Found", "application/octet-stream", "none").await;
    let failed = answer(&mut device).await;
    assert_eq!((failed.id, &*failed.code, failed.status), (6, "failed", 404), "{failed:?}");
    assert_eq!(failed.payload, Some(answer::Payload::Data(b"none".to_vec())));
    await_none_in_flight(&gateway).await;
    let line = "weir_call_route_begun_total{route=\"orders/*\"}";
    assert_eq!(metric(&gateway, line), 2);
    gateway.shutdown().await;
}

#[tokio::test]
async fn a_call_that_cannot_be_is_refused_at_once() {
    let (gateway, backend) = with_backend(|config| {
        config.calls.routes[0].payload_bytes_max = 4;
    })
    .await;
    let mut device = Peer::settled(&gateway, "d", &[]).await;
    for (method, text, content_type, code) in [
        ("unknown", "", "", "unsupported"),
        ("orders/close", "", "", "not_permitted"),
        ("orders/../x", "", "", "invalid_field"),
        ("", "", "", "invalid_field"),
        ("orders/price", "", "a\r\nb", "invalid_field"),
        ("orders/price", "12345", "", "too_large"),
    ] {
        let content_type = content_type.to_owned();
        device.say(Says::Call(Call { content_type, ..call(1, method, text) })).await;
        let refused = answer(&mut device).await;
        assert_eq!((refused.id, &*refused.code), (1, code), "{method:?}: {refused:?}");
        assert!(!refused.message.is_empty());
    }
    device.say(Says::Call(call(0, "orders/price", ""))).await;
    assert_eq!(device.error().await.code, "invalid_field");
    device.say(Says::Call(call(9, "orders/price", ""))).await;
    let mut asked = backend.asked().await;
    device.say(Says::Call(call(9, "orders/price", ""))).await;
    assert!(device.error().await.message.contains("9 goes on already"));
    // The answer has the limit of the route, too.
    asked.answer("200 OK", "text/plain", "12345678901").await;
    assert_eq!(answer(&mut device).await.code, "too_large");
    await_none_in_flight(&gateway).await;
    gateway.shutdown().await;
}

#[tokio::test]
async fn a_backend_that_is_not_there_or_silent_is_told() {
    let (gateway, backend) = Box::pin(with_backend(|_| {})).await;
    let mut device = Peer::settled(&gateway, "d", &[]).await;
    device.say(Says::Call(Call { deadline_ms: 50, ..call(1, "orders/price", "") })).await;
    let asked = backend.asked().await;
    assert_eq!(answer(&mut device).await.code, "deadline_exceeded");
    asked.let_go().await;
    drop(backend);
    device.say(Says::Call(call(2, "orders/price", ""))).await;
    assert_eq!(answer(&mut device).await.code, "unavailable");
    await_none_in_flight(&gateway).await;
    gateway.shutdown().await;
}

#[tokio::test]
async fn limits_refuse_calls_and_their_ends_make_room() {
    let (gateway, backend) = with_backend(|config| {
        config.calls.calls_per_connection_max = 2;
        config.calls.routes[0].calls_max = 3;
    })
    .await;
    let mut device = Peer::settled(&gateway, "d", &[]).await;
    for id in [1, 2, 3] {
        device.say(Says::Call(call(id, "orders/price", ""))).await;
    }
    let refused = answer(&mut device).await;
    assert_eq!((refused.id, &*refused.code), (3, "busy"));
    let (first, second) = (backend.asked().await, backend.asked().await);
    // A call that is given up makes room, and the backend sees the end of its request.
    device.say(Says::Cancel(Cancel { id: 1 })).await;
    device.say(Says::Cancel(Cancel { id: 77 })).await;
    let given_up = if first.head.contains("weir-call: 1") { first } else { second };
    given_up.let_go().await;
    device.say(Says::Call(call(3, "orders/price", ""))).await;
    let _third = backend.asked().await;
    let mut other = Peer::settled(&gateway, "e", &[]).await;
    for id in [1, 2] {
        other.say(Says::Call(call(id, "orders/price", ""))).await;
    }
    assert_eq!(answer(&mut other).await.code, "busy");
    for limit in ["connection", "route"] {
        let line =
            format!("weir_calls_limited_total{{direction=\"to_backend\",limit=\"{limit}\"}}");
        assert_eq!(metric(&gateway, &line), 1, "{limit}");
    }
    // The end of a connection ends its calls.
    drop((device, other));
    await_none_in_flight(&gateway).await;
    let line = "weir_calls_total{direction=\"to_backend\",outcome=\"disconnected\"}";
    assert_eq!(metric(&gateway, line), 3);
    gateway.shutdown().await;
}

#[tokio::test]
async fn a_backend_calls_a_device_and_gets_its_answer() {
    let (gateway, _) = Box::pin(with_backend(|_| {})).await;
    let admin = gateway.admin_addr().unwrap();
    let mut device = answering(&gateway, "d/1").await;
    let body = r#"{"method":"lock/open","data":"aGk","content_type":"a/b","deadline_ms":5000}"#;
    let asking = ask(admin, "d%2F1", body).await;
    let heard = called(&mut device).await;
    assert_eq!((&*heard.method, &*heard.content_type), ("lock/open", "a/b"));
    assert_eq!(heard.payload, Some(call::Payload::Data(b"hi".to_vec())));
    assert!((1..=5_000).contains(&heard.deadline_ms), "{heard:?}");
    let text = Some(answer::Payload::Text("done".to_owned()));
    let done = Answer { id: heard.id, payload: text, ..Answer::default() };
    device.say(Says::Answer(done.clone())).await;
    assert_eq!(told(asking).await, (200, serde_json::json!({"text": "done"})));
    // A second answer is nobody's.
    device.say(Says::Answer(done)).await;
    let line = "weir_call_answers_late_total{direction=\"to_device\"}";
    eventually(|| metric(&gateway, line) == 1, "the second answer").await;
    let asking = ask(admin, "d%2F1", r#"{"method":"lock/open"}"#).await;
    let id = called(&mut device).await.id;
    let (code, message) = ("jammed".to_owned(), "the bolt does not move".to_owned());
    device.say(Says::Answer(Answer { id, code, message, ..Answer::default() })).await;
    let (status, problem) = told(asking).await;
    assert_eq!((status, &problem["device_code"]), (502, &"jammed".into()), "{problem}");
    assert_eq!(problem["detail"], "the bolt does not move");
    await_none_in_flight(&gateway).await;
    gateway.shutdown().await;
}

#[tokio::test]
async fn a_device_that_cannot_answer_is_told_of() {
    let (gateway, _) = Box::pin(with_backend(|_| {})).await;
    let admin = gateway.admin_addr().unwrap();
    let _plain = Peer::settled(&gateway, "plain", &[]).await;
    let mut device = answering(&gateway, "d").await;
    let long = format!(r#"{{"method":"m","text":"{}"}}"#, "x".repeat(70_000));
    for (id, body, status, kind) in [
        ("plain", r#"{"method":"m"}"#, 409, "calls-unsupported"),
        ("nobody", r#"{"method":"m"}"#, 404, "not-found"),
        ("d", r#"{"method":"a b"}"#, 400, "invalid-request"),
        ("d", r#"{"method":"m","deadline_ms":0}"#, 400, "invalid-request"),
        ("d", r#"{"method":"m","deadline_ms":60001}"#, 400, "invalid-request"),
        ("d", r#"{"method":"m","text":"","data":""}"#, 400, "invalid-request"),
        ("d", &long, 413, "too-large"),
    ] {
        let (told, problem) = told(ask(admin, id, body).await).await;
        let expected = format!("urn:problem-type:weir:{kind}");
        assert_eq!((told, &problem["type"]), (status, &expected.into()), "{problem}");
    }
    // A silent device: the caller is told at the deadline, and the device that nobody waits.
    let asking = ask(admin, "d", r#"{"method":"m","deadline_ms":50}"#).await;
    let id = called(&mut device).await.id;
    assert_eq!(told(asking).await.0, 504);
    assert_eq!(cancelled(&mut device).await, id);
    device.say(Says::Answer(Answer { id, ..Answer::default() })).await;
    let line = "weir_call_answers_late_total{direction=\"to_device\"}";
    eventually(|| metric(&gateway, line) == 1, "the late answer").await;
    // A caller that hangs up.
    let asking = ask(admin, "d", r#"{"method":"m","deadline_ms":60000}"#).await;
    let id = called(&mut device).await.id;
    drop(asking);
    assert_eq!(cancelled(&mut device).await, id);
    let line = "weir_calls_total{direction=\"to_device\",outcome=\"cancelled\"}";
    eventually(|| metric(&gateway, line) == 1, "the call that was given up").await;
    // A device that leaves.
    let asking = ask(admin, "d", r#"{"method":"m","deadline_ms":60000}"#).await;
    called(&mut device).await;
    drop(device);
    let (status, problem) = told(asking).await;
    assert_eq!((status, &problem["type"]), (502, &"urn:problem-type:weir:device-gone".into()));
    await_none_in_flight(&gateway).await;
    gateway.shutdown().await;
}

#[tokio::test]
async fn calls_of_a_device_that_wait_are_bounded() {
    let (gateway, _) =
        Box::pin(with_backend(|config| config.calls.calls_per_connection_max = 1)).await;
    let admin = gateway.admin_addr().unwrap();
    let mut device = answering(&gateway, "d").await;
    let waiting = ask(admin, "d", r#"{"method":"m","deadline_ms":60000}"#).await;
    let id = called(&mut device).await.id;
    let (status, problem) = told(ask(admin, "d", r#"{"method":"m"}"#).await).await;
    assert_eq!((status, &problem["retry_after_ms"]), (429, &1000.into()), "{problem}");
    let line = "weir_calls_limited_total{direction=\"to_device\",limit=\"connection\"}";
    assert_eq!(metric(&gateway, line), 1);
    device.say(Says::Answer(Answer { id, ..Answer::default() })).await;
    assert_eq!(told(waiting).await.0, 200);
    await_none_in_flight(&gateway).await;
    gateway.shutdown().await;
}

#[tokio::test]
async fn all_calls_together_are_bounded_and_a_reload_changes_that() {
    let (gateway, backend) = Box::pin(with_backend(|config| config.calls.calls_max = 1)).await;
    let mut device = Peer::settled(&gateway, "d", &[]).await;
    device.say(Says::Call(call(1, "orders/price", ""))).await;
    let mut first = backend.asked().await;
    device.say(Says::Call(call(2, "orders/price", ""))).await;
    assert_eq!(answer(&mut device).await.code, "busy");
    let (mut next, _) = (config(), ());
    next.upstreams = vec![UpstreamConfig {
        name: "shop".to_owned(),
        addresses: vec![backend.0.local_addr().unwrap().to_string()],
        ..UpstreamConfig::default()
    }];
    next.calls.routes = vec![route("orders/*", "/v2", vec![Actor::Devices])];
    gateway.handle().reload(next).await.unwrap();
    device.say(Says::Call(call(2, "orders/price", ""))).await;
    let mut second = backend.asked().await;
    assert!(second.head.starts_with("post /v2/orders/price "), "{}", second.head);
    second.answer("200 OK", "text/plain", "second").await;
    assert_eq!(answer(&mut device).await.id, 2);
    first.answer("200 OK", "text/plain", "first").await;
    assert_eq!(answer(&mut device).await.id, 1);
    await_none_in_flight(&gateway).await;
    gateway.shutdown().await;
}

/// What a connection without a token may do is another matter than its frames.
#[tokio::test]
async fn a_service_calls_where_routes_let_it() {
    let (gateway, backend) = with_backend(|config| {
        let service = |name: &str, may: Vec<weir::Right>| weir::ServiceConfig {
            token: format!("{name}-token"),
            name: name.to_owned(),
            may,
        };
        config.auth.services = vec![
            service("till", vec![weir::Right::Call]),
            service("ear", vec![weir::Right::Subscribe]),
        ];
        config.auth.anonymous = Some(true);
    })
    .await;
    let mut peers = Vec::new();
    for name in ["till", "ear"] {
        let mut peer = Peer::connect(&gateway).await;
        peer.say(hello("", &format!("{name}-token"), &[])).await;
        peer.welcome().await;
        peers.push(peer);
    }
    for (peer, code) in peers.iter_mut().zip(["", "not_permitted"]) {
        peer.say(Says::Call(call(1, "orders/close", ""))).await;
        if code.is_empty() {
            backend.asked().await.answer("200 OK", "text/plain", "").await;
        }
        assert_eq!(answer(peer).await.code, code);
    }
    gateway.shutdown().await;
}
