//! HTTP on several nodes: histories and events of topics that another node has published to.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "it serves other tests too")]
mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::{config, eventually, start_with};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use weir::{Actor, Gateway, Payload, Publication, Target, TokenConfig, TopicClass};
use weir_broker::memory::{Memory, MemoryOptions, NewEpoch, NodeOptions};

/// Nothing here takes this long; what does, hangs.
const PATIENCE: Duration = Duration::from_secs(20);

async fn node(memory: &Memory, name: &'static str) -> Gateway {
    let mut config = config();
    config.listen.http = vec!["127.0.0.1:0".parse().unwrap()];
    config.auth.tokens = vec![TokenConfig {
        token: "d".to_owned(),
        device: Some("d".to_owned()),
        ..TokenConfig::default()
    }];
    config.topic_classes = vec![TopicClass {
        pattern: "room/*".to_owned(),
        subscribe: vec![Actor::Devices],
        retention_messages: 100,
        history: true,
        ..TopicClass::default()
    }];
    let memory = memory.clone();
    let builder = Gateway::builder().config(config).broker(move |handler| {
        let node = memory.node(name, NodeOptions::default(), handler);
        Box::pin(std::future::ready(Ok(node)))
    });
    start_with(builder).await
}

/// Publishes to `room/1`; the epoch, as a position writes it, and the offset.
async fn publish(gateway: &Gateway, text: &str) -> (String, u64) {
    let publication = Publication {
        target: Target::Topic("room/1"),
        payload: Payload::Text(text),
        content_type: "",
        key: "",
        ttl: None,
        sender: None,
        idempotency_key: None,
    };
    let accepted = gateway.handle().publish(&publication).unwrap().await.unwrap();
    (format!("{:016x}", accepted.epoch.unwrap()), accepted.offset.unwrap())
}

/// Sends a request of the device `d`; the stream of what is answered.
async fn get(addr: SocketAddr, path: &str, header: &str) -> TcpStream {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: {addr}\r\nAuthorization: Bearer d\r\nConnection: close\r\n\
         {header}\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

async fn rest(mut stream: TcpStream) -> (u16, Value) {
    let mut heard = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut heard)).await.expect("in time").unwrap();
    let status = heard.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(&heard[heard.find("\r\n\r\n").unwrap()..]).unwrap())
}

/// The status of an answer; the rest of it is not waited for.
async fn status(mut stream: TcpStream) -> u16 {
    let mut line = [0; b"HTTP/1.1 200".len()];
    timeout(PATIENCE, stream.read_exact(&mut line)).await.expect("in time").unwrap();
    str::from_utf8(&line[b"HTTP/1.1 ".len()..]).unwrap().parse().unwrap()
}

async fn history(addr: SocketAddr, query: &str) -> (u16, Value) {
    rest(get(addr, &format!("/v1/topics/room%2F1/history?{query}"), "").await).await
}

fn texts(history: &Value) -> Vec<&str> {
    let messages = history["messages"].as_array().unwrap();
    messages.iter().map(|message| message["text"].as_str().unwrap()).collect()
}

async fn ask_for_events(addr: SocketAddr, last: &str) -> TcpStream {
    let header = match last {
        "" => String::new(),
        id => format!("Last-Event-ID: {id}\r\n"),
    };
    get(addr, "/v1/sse?topic=room/1", &header).await
}

/// A stream of events.
struct Events {
    stream: TcpStream,
    heard: String,
}

impl Events {
    /// `last`: what it has seen, if anything.
    async fn open(addr: SocketAddr, last: &str) -> Events {
        Events { stream: ask_for_events(addr, last).await, heard: String::new() }
    }

    /// The data of the next event with this name; `None`: of a message.
    async fn next(&mut self, name: Option<&str>) -> Value {
        loop {
            while let Some(end) = self.heard.find("\n\n") {
                let event: String = self.heard.drain(..end + 2).collect();
                let line = |key: &str| {
                    event.lines().find_map(|line| Some(line.strip_prefix(key)?.to_owned()))
                };
                if let Some(data) = line("data:")
                    && line("event:").as_deref() == name
                {
                    return serde_json::from_str(&data).unwrap();
                }
            }
            let mut part = vec![0; 4096];
            let read = timeout(PATIENCE, self.stream.read(&mut part)).await.expect("in time");
            let read = read.unwrap();
            assert!(read > 0, "the stream ends: {}", self.heard);
            self.heard.push_str(str::from_utf8(&part[..read]).unwrap());
        }
    }

    async fn text(&mut self) -> String {
        self.next(None).await["text"].as_str().unwrap().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_is_the_same_at_a_node_that_did_not_know_the_topic() {
    let memory = Memory::new(&MemoryOptions::default());
    let (one, two) = (node(&memory, "one").await, node(&memory, "two").await);
    let mut epoch = String::new();
    for (text, offset) in [("1", 1), ("2", 2), ("3", 3)] {
        let position = publish(&one, text).await;
        assert_eq!(position.1, offset);
        epoch = position.0;
    }
    for gateway in [&one, &two] {
        let addr = gateway.http_addrs()[0];
        let (status, all) = history(addr, "").await;
        assert_eq!((status, &all["epoch"], &all["more"]), (200, &json!(epoch), &json!(false)));
        assert_eq!(texts(&all), ["1", "2", "3"]);
        let (_, rest) = history(addr, &format!("after={epoch}-1&limit=1")).await;
        assert_eq!((&rest["recovered"], &rest["more"]), (&json!(true), &json!(true)));
        assert_eq!(texts(&rest), ["2"]);
    }
    // A topic that is followed already has what comes later.
    publish(&two, "4").await;
    let addr = one.http_addrs()[0];
    let comes = async { while texts(&history(addr, "").await.1).len() < 4 {} };
    timeout(PATIENCE, comes).await.expect("in time");
    // A topic that this node does not follow yet cannot be told while the broker is away.
    memory.set_reachable(false);
    let three = node(&memory, "three").await;
    let (status, problem) = history(three.http_addrs()[0], "").await;
    let unavailable = json!("urn:problem-type:weir:broker-unavailable");
    assert_eq!((status, &problem["type"]), (503, &unavailable));
    memory.set_reachable(true);
    for gateway in [one, two, three] {
        gateway.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_resume_at_another_node() {
    let memory = Memory::new(&MemoryOptions::default());
    let (one, two) = (node(&memory, "one").await, node(&memory, "two").await);
    let mut events = Events::open(one.http_addrs()[0], "").await;
    let subscribed = events.next(Some("subscribed")).await;
    assert_eq!(subscribed["topic"], "room/1");
    let (epoch, _) = publish(&two, "1").await;
    assert_eq!(events.text().await, "1");
    drop(events);
    for text in ["2", "3"] {
        publish(&one, text).await;
    }
    let last = format!("{epoch}-1");
    let mut events = Events::open(two.http_addrs()[0], &last).await;
    let subscribed = events.next(Some("subscribed")).await;
    let from = (&subscribed["recovered"], &subscribed["position"]["offset"]);
    assert_eq!(from, (&json!(true), &json!("1")));
    publish(&one, "4").await;
    for text in ["2", "3", "4"] {
        assert_eq!(events.text().await, text);
    }
    // A loss is told in the running stream.
    memory.fail_over(2, NewEpoch::BeginsAgain);
    let told = events.next(Some("subscribed")).await;
    assert_ne!(told["recovered"], json!(true));
    eventually(|| one.handle().is_ready() && two.handle().is_ready(), "both are ready").await;
    let (newer, _) = publish(&one, "5").await;
    assert_ne!(newer, epoch);
    assert_eq!(events.text().await, "5");
    // While the broker is away, no stream begins with a topic of the cluster. One that begins before
    // the node has noticed is told in an event.
    memory.set_reachable(false);
    let is_refused =
        async { while status(ask_for_events(one.http_addrs()[0], &last).await).await != 503 {} };
    timeout(PATIENCE, is_refused).await.expect("in time");
    memory.set_reachable(true);
    one.shutdown().await;
    two.shutdown().await;
}
