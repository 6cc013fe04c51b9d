//! The figures of a node: the document, and the stream of it.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use weir_upstream::{Outgoing, SendOptions};

use super::check;
use super::device::Device;
use super::http::Server;
use crate::Config;
use crate::base::config::UpstreamConfig;

/// A reader of the stream, in the form in which HTTP sends it.
struct Reader {
    stream: TcpStream,
    read: String,
}

impl Reader {
    async fn open(server: &Server) -> Reader {
        let mut stream = TcpStream::connect(server.admin_addr()).await.unwrap();
        let request = "GET /v1/stats/stream HTTP/1.1\r\nHost: localhost\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        Reader { stream, read: String::new() }
    }

    /// The text up to the end of the next event; `None` at the end of the stream.
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some((event, rest)) = self.read.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.read = rest;
                return Some(event);
            }
            let mut bytes = vec![0; 16 * 1024];
            let length = self.stream.read(&mut bytes).await.unwrap_or(0);
            if length == 0 {
                return None;
            }
            self.read += std::str::from_utf8(&bytes[..length]).expect("figures are ASCII here");
        }
    }

    async fn data(&mut self) -> String {
        let event = self.next().await.expect("the stream goes on");
        let (_, data) = event.split_once("data: ").expect("an event has data");
        data.to_owned()
    }
}

async fn readers(server: &Server, expected: usize) {
    while server.handle().counters().stats.open() != expected {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_document_has_the_figures_of_the_metrics() {
    let server = Server::start(Config::default()).await;
    let _device = Device::connect(server.device_addr(), "d1", &["news"]).await;
    let _refused = server.ask("POST /v1/publish\nContent-Type: application/json", "{}").await;
    // The shard counts a membership after it has told the device.
    let figures = loop {
        let figures = check(&server, "GET /v1/stats", "", 200, &[]).await.json();
        if figures["connections"]["memberships"] != 0 {
            break figures;
        }
    };
    for (pointer, expected) in [
        ("/connections/transports/tcp/settled", Value::from(1)),
        ("/connections/protocols/tcp", Value::from(1)),
        ("/connections/devices", Value::from(1)),
        ("/connections/topics", Value::from(1)),
        ("/connections/memberships", Value::from(1)),
        ("/connections/adopted", Value::from(1)),
        ("/connections/closed/peer_closed", Value::from(0)),
        ("/connections/authentications/accepted", Value::from(1)),
        ("/ready", Value::from(true)),
        ("/parts/0/state", Value::from("ok")),
        ("/drain/state", Value::from("idle")),
        ("/node/number", Value::from(0)),
        ("/cluster", Value::Null),
    ] {
        assert_eq!(figures.pointer(pointer), Some(&expected), "{pointer} of {figures}");
    }
    assert_eq!(figures["shards"].as_array().map(Vec::len), Some(2));
    let bounds = figures["times"]["bounds_s"].as_array().unwrap().len();
    for times in ["fanout", "settle", "turn", "stall_recovered", "stall_closed"] {
        let counts = figures["times"][times]["counts"].as_array().unwrap();
        assert_eq!(counts.len(), bounds + 1, "{times}");
    }
    assert!(figures["process"]["cpu_ms"].as_u64().unwrap() > 0);
    assert!(figures["process"]["resident_bytes"].as_u64().unwrap() > 1_000_000);
    check(&server, "HEAD /v1/stats", "", 200, &[]).await;
    assert_eq!(server.ask("HEAD /v1/stats/stream", "").await.status, 405);
    check(&server, "GET /v1/stats?node=1", "", 400, &["this path takes none"]).await;
    server.stop().await;
}

#[tokio::test]
async fn all_readers_get_the_same_document_and_nobody_costs_nothing() {
    let server = Server::start(Config::default()).await;
    let mut first = Reader::open(&server).await;
    let begin = first.data().await;
    let mut second = Reader::open(&server).await;
    assert_eq!(second.data().await, begin, "who comes later gets the last one at once");
    assert_eq!(first.data().await, second.data().await);
    check(&server, "GET /metrics", "", 200, &["\nweir_stats_readers 2\n"]).await;
    drop(first);
    readers(&server, 1).await;
    drop(second);
    readers(&server, 0).await;
    // The task has ended: the next reader gets a new document.
    let mut third = Reader::open(&server).await;
    let time = |text: &str| serde_json::from_str::<Value>(text).unwrap()["time_ms"].as_u64();
    assert!(time(&third.data().await) > time(&begin));
    server.stop().await;
}

#[tokio::test]
async fn readers_are_limited_and_end_with_the_server() {
    let server = Server::start(Config::default()).await;
    let mut open = Vec::new();
    for _ in 0..64 {
        let mut reader = Reader::open(&server).await;
        reader.data().await;
        open.push(reader);
    }
    let says = "64 streams of figures are open, which is the limit";
    check(&server, "GET /v1/stats/stream", "", 503, &[says]).await;
    check(&server, "GET /metrics", "", 200, &["weir_stats_readers_refused_total 1\n"]).await;
    let stopping = tokio::time::timeout(Duration::from_secs(4), server.stop());
    assert!(stopping.await.is_ok(), "the streams keep the server");
    for mut reader in open {
        while reader.next().await.is_some() {}
    }
}

#[tokio::test]
async fn upstreams_show_in_the_figures_and_in_the_metrics() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let upstream = UpstreamConfig {
        name: "api".to_owned(),
        addresses: vec![gone.to_string()],
        ..UpstreamConfig::default()
    };
    let config = Config { upstreams: vec![upstream], ..Config::default() };
    let server = Server::start(config).await;
    let api = server.handle().shared().backends.get("api").unwrap();
    let request = http::Request::new(Outgoing::Whole(bytes::Bytes::new()));
    api.send(request, SendOptions::default()).await.err().expect("nothing listens there");
    let figures = check(&server, "GET /v1/stats", "", 200, &[]).await.json();
    let shown = &figures["upstreams"][0];
    assert_eq!((&shown["name"], &shown["failures"]["connect"]), (&"api".into(), &1.into()));
    assert_eq!(shown["endpoints"][0]["address"], gone.to_string());
    let metrics = [
        "\nweir_upstream_requests_total{upstream=\"api\"} 1\n",
        "\nweir_upstream_failures_total{upstream=\"api\",kind=\"connect\"} 1\n",
        &format!("\nweir_upstream_endpoint_in_flight{{upstream=\"api\",endpoint=\"{gone}\"}} 0\n"),
        // A request is tried three times.
        "\nweir_upstream_dial_failures_total{upstream=\"api\",step=\"connect\"} 3\n",
        "\nweir_upstream_endpoints_left_out{upstream=\"api\"} 0\n",
        "\nweir_upstream_endpoints{upstream=\"api\",state=\"probing\"} 0\n",
    ];
    check(&server, "GET /metrics", "", 200, &metrics).await;
    server.stop().await;
}
