//! Events of connections over HTTP: who hears what, who may, and what becomes of a reader that is slow.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "it serves other tests too")]
mod common;

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Peer, Says, config, encode, eventually, hello, start};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use weir::{Config, EventFilter, EventKind, Events, EventsEnd, Gateway, Right, ServiceConfig};
use weir_wire::CloseReason;
use weir_wire::v1::{Subscribe, Unsubscribe};

const PATIENCE: Duration = Duration::from_secs(20);

fn admin_config() -> Config {
    let mut config = config();
    config.listen.admin = Some("127.0.0.1:0".parse().unwrap());
    config
}

fn request(target: &str, token: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n")
}

/// A stream of events on a plain socket.
struct Reader {
    stream: TcpStream,
    text: String,
}

impl Reader {
    async fn open(gateway: &Gateway, target: &str) -> Reader {
        let stream = TcpStream::connect(gateway.admin_addr().unwrap()).await.unwrap();
        Reader::ask(stream, target).await
    }

    async fn ask(mut stream: TcpStream, target: &str) -> Reader {
        stream.write_all(request(target, "any").as_bytes()).await.unwrap();
        let mut reader = Reader { stream, text: String::new() };
        while !reader.text.contains("\n:\n\n") {
            assert!(reader.more().await, "{}", reader.text);
        }
        assert!(reader.text.contains("content-type: text/event-stream"), "{}", reader.text);
        reader
    }

    async fn more(&mut self) -> bool {
        let mut bytes = vec![0; 16 * 1024];
        let count = timeout(PATIENCE, self.stream.read(&mut bytes)).await.unwrap().unwrap();
        self.text.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
        count > 0
    }

    /// Reads until as many events have come, and gives type, device, and topic or reason of each.
    async fn events(&mut self, count: usize) -> Vec<String> {
        while self.data().count() < count {
            assert!(self.more().await, "{}", self.text);
        }
        self.data().map(brief).collect()
    }

    /// Of the lines that are whole.
    fn data(&self) -> impl Iterator<Item = &str> {
        let (whole, _) = self.text.rsplit_once('\n').unwrap_or_default();
        whole.lines().filter_map(|line| line.strip_prefix("data: "))
    }
}

fn brief(data: &str) -> String {
    let event: serde_json::Value = serde_json::from_str(data).unwrap();
    let text = |member: &str| event[member].as_str().unwrap_or_default().to_owned();
    assert_eq!(text("connection").len(), 16, "{event}");
    assert!(event["time_ms"].is_u64(), "{event}");
    format!("{} {} {}{}", text("type"), text("device"), text("topic"), text("reason"))
}

fn unsubscribe(topic: &str) -> Says {
    Says::Unsubscribe(Unsubscribe { topic: topic.to_owned() })
}

/// Two devices come and go; one is replaced and one revoked.
async fn scene(gateway: &Gateway) {
    let handle = gateway.handle();
    let mut first = Peer::settled(gateway, "a", &["news/1", "room"]).await;
    first.say(unsubscribe("room")).await;
    first.hear().await;
    let second = Peer::settled(gateway, "a", &[]).await;
    first.expect_goodbye(CloseReason::Replaced).await;
    drop(first);
    eventually(|| handle.gauges().topics == 0, "the first has gone").await;
    drop(second);
    eventually(|| handle.gauges().devices == 0, "the second has gone").await;
    let mut third = Peer::settled(gateway, "b", &["room"]).await;
    assert!(handle.revoke("b").await.unwrap());
    third.expect_goodbye(CloseReason::Revoked).await;
    drop(third);
    eventually(|| handle.gauges().topics == 0, "the third has gone").await;
}

const SCENE: [&str; 9] = [
    "connected a ",
    "subscribed a news/1",
    "subscribed a room",
    "unsubscribed a room",
    "connected a ",
    "disconnected a replaced",
    "disconnected a peer_closed",
    "connected b ",
    "subscribed b room",
];

#[tokio::test]
async fn a_reader_hears_what_it_asks_for() {
    let gateway = start(admin_config()).await;
    let mut all = Reader::open(&gateway, "/v1/events").await;
    let mut ends = Reader::open(&gateway, "/v1/events?type=disconnected&device=a").await;
    let mut room = Reader::open(&gateway, "/v1/events?topic=ro").await;
    let mut none = Reader::open(&gateway, "/v1/events?sample=0").await;
    assert!(gateway.handle().metrics().contains("weir_event_readers 4\n"));
    scene(&gateway).await;
    let heard = all.events(10).await;
    assert_eq!(heard[..9], SCENE);
    assert_eq!(heard[9], "disconnected b revoked");
    assert_eq!(ends.events(2).await, ["disconnected a replaced", "disconnected a peer_closed"]);
    assert_eq!(
        room.events(3).await,
        ["subscribed a room", "unsubscribed a room", "subscribed b room"]
    );
    drop(all);
    let handle = gateway.handle();
    let is_noticed = || handle.metrics().contains("weir_event_readers 3\n");
    eventually(is_noticed, "one reader has gone").await;
    gateway.shutdown().await;
    // The stream ends as it should: the last piece is empty.
    while none.more().await {}
    assert_eq!(none.data().count(), 0);
    assert!(none.text.ends_with("0\r\n\r\n"), "{}", none.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_reads_the_events() {
    let gateway = start(admin_config()).await;
    let url =
        format!("http://{}/v1/events?type=connected,disconnected", gateway.admin_addr().unwrap());
    let curl = Command::new("curl").args(["-sN", &url]).stdout(Stdio::piped()).spawn();
    // A machine without curl has the other tests.
    let Ok(mut curl) = curl else { return gateway.shutdown().await };
    let handle = gateway.handle();
    let is_there = || handle.metrics().contains("weir_event_readers 1\n");
    eventually(is_there, "curl is there").await;
    scene(&gateway).await;
    let output = BufReader::new(curl.stdout.take().unwrap());
    let lines = tokio::task::spawn_blocking(|| output.lines().map_while(Result::ok).collect());
    // The stream ends with the server, and curl with it.
    gateway.shutdown().await;
    let lines: Vec<String> = timeout(PATIENCE, lines).await.unwrap().unwrap();
    assert!(curl.wait().unwrap().success());
    let data = lines.iter().filter_map(|line| line.strip_prefix("data: ")).map(brief);
    let is_end = |event: &&str| event.contains("connected");
    let expected = SCENE.into_iter().filter(is_end).chain(["disconnected b revoked"]);
    assert!(data.eq(expected), "{lines:?}");
    assert_eq!(lines.iter().filter(|line| *line == "event: connected").count(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_is_cut_and_the_others_go_on() {
    let mut config = admin_config();
    // The device causes more events than its rate allows.
    config.limits.frames_per_second = 0;
    let gateway = start(config).await;
    let handle = gateway.handle();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 * 1024).unwrap();
    let slow = socket.connect(gateway.admin_addr().unwrap()).await.unwrap();
    let mut slow = Reader::ask(slow, "/v1/events").await;
    let mut quick = Reader::open(&gateway, "/v1/events").await;
    let mut peer = Peer::settled(&gateway, "d", &[]).await;
    quick.events(1).await;
    let topic = "t".repeat(255);
    let mut round = Vec::new();
    for _ in 0..100 {
        let subscribe = Subscribe { topic: topic.clone(), position: None, presence: false };
        round.extend(encode(Says::Subscribe(subscribe)));
        round.extend(encode(unsubscribe(&topic)));
    }
    while handle.metrics().contains("weir_event_readers_cut_total 0\n") {
        peer.stream.write_all(&round).await.unwrap();
        for _ in 0..200 {
            peer.hear().await.unwrap();
        }
        // It gets all of them, each time, before more come.
        quick.text.clear();
        quick.events(200).await;
    }
    assert!(handle.metrics().contains("weir_events_dropped_total 1025\n"));
    drop(peer);
    quick.text.clear();
    assert_eq!(quick.events(1).await, ["disconnected d peer_closed"]);
    while slow.more().await {}
    let end = "event: overflow\ndata: {\"dropped\":1025}\n\n\r\n0\r\n\r\n";
    let tail = &slow.text[slow.text.len().saturating_sub(200)..];
    assert!(slow.text.ends_with(end), "{tail}");
    gateway.shutdown().await;
}

async fn answer(admin: SocketAddr, head: &str, token: &str) -> String {
    let mut stream = TcpStream::connect(admin).await.unwrap();
    let body = r#"{"topic":"t","text":"hi"}"#;
    let token =
        if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
    let request = format!(
        "{head} HTTP/1.1\r\nHost: localhost\r\n{token}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = vec![0; 4096];
    let count = timeout(PATIENCE, stream.read(&mut bytes)).await.unwrap().unwrap();
    String::from_utf8_lossy(&bytes[..count]).into_owned()
}

#[tokio::test]
async fn a_service_s_token_is_good_for_what_it_may() {
    let service = |name: &str, may: &[Right]| ServiceConfig {
        token: format!("{name}-token"),
        name: name.to_owned(),
        may: may.to_vec(),
    };
    let mut config = admin_config();
    config.admin.token = "admin".to_owned();
    config.auth.services =
        vec![service("mouth", &[Right::Publish]), service("eyes", &[Right::Events])];
    let gateway = start(config).await;
    let admin = gateway.admin_addr().unwrap();
    let lacks = |name: &str, right: &str| {
        let json =
            format!("the token of service {name:?} lacks the right {right:?} (auth.services, may)");
        json.replace('"', "\\\"")
    };
    let nothing = "this needs admin.token";
    for (head, token, status, says) in [
        ("POST /v1/publish", "mouth-token", 200, "\"connections\":0"),
        ("POST /v1/publish", "eyes-token", 403, &*lacks("eyes", "publish")),
        ("GET /v1/events", "mouth-token", 403, &*lacks("mouth", "events")),
        ("GET /v1/events", "eyes-token", 200, "text/event-stream"),
        ("GET /v1/events", "admin", 200, "text/event-stream"),
        ("GET /v1/events", "", 401, "with admin.token or the token of a service"),
        ("GET /v1/events", "nose-token", 401, "nor that of a service"),
        ("GET /v1/events?type=x", "admin", 400, "\"field\":\"type\""),
        ("POST /v1/events", "admin", 405, "allow: GET"),
        ("GET /metrics", "mouth-token", 403, nothing),
        ("GET /v1/connections", "eyes-token", 403, nothing),
        ("POST /v1/devices/d/revoke", "mouth-token", 403, nothing),
        ("GET /nowhere", "mouth-token", 403, nothing),
        ("GET /metrics", "admin", 200, "text/plain; version=0.0.4"),
        ("GET /healthz", "", 200, "ok"),
    ] {
        let answer = answer(admin, head, token).await;
        let line = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(&line), "{head} as {token:?}: {answer}");
        assert!(answer.contains(says), "{head} as {token:?}: {answer}");
        let challenge = answer.contains("www-authenticate: Bearer realm=\"weir\"");
        assert_eq!(challenge, matches!(status, 401 | 403), "{answer}");
    }
    gateway.shutdown().await;
}

#[tokio::test]
async fn there_is_a_bound_on_streams() {
    let gateway = start(admin_config()).await;
    let admin = gateway.admin_addr().unwrap();
    let mut readers = Vec::new();
    for _ in 0..Events::READERS_MAX {
        readers.push(Reader::open(&gateway, "/v1/events").await);
    }
    let refused = answer(admin, "GET /v1/events", "").await;
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert!(refused.contains("16 streams of events are open"), "{refused}");
    gateway.shutdown().await;
}

#[tokio::test]
async fn an_embedding_program_listens_too() {
    let gateway = start(config()).await;
    let filter = EventFilter { kinds: vec!["connected"], ..EventFilter::default() };
    let mut events = gateway.handle().events(filter).unwrap();
    let mut peer = Peer::connect(&gateway).await;
    peer.say(hello("d", "", &["t"])).await;
    let id = peer.welcome().await.connection_id;
    let event = timeout(PATIENCE, events.next()).await.unwrap().unwrap();
    let conn = event.conn.map(|conn| conn.to_u64());
    assert_eq!((conn, event.device.as_deref()), (Some(id), Some("d")));
    assert_eq!(event.kind, EventKind::Connected);
    gateway.shutdown().await;
    assert_eq!(events.next().await, Err(EventsEnd::Closed));
}
