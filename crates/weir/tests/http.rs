//! HTTP as clients see it: real sockets, and curl.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "some of it is for devices")]
mod common;

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use common::{config, eventually, start};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use weir::{Config, Gateway};

/// Nothing here takes this long; what does, hangs.
const PATIENCE: Duration = Duration::from_secs(20);

fn http() -> Config {
    let mut config = config();
    config.listen.http = vec!["127.0.0.1:0".parse().unwrap()];
    config
}

async fn start_http() -> Gateway {
    start(http()).await
}

/// What curl says of a URL, with its version of HTTP in front; `None`: there is no curl.
async fn curl(args: &[&str]) -> Option<String> {
    let mut command = Command::new("curl");
    command.args(["-sSk", "-w", "\n%{http_version} %{http_code}"]).args(args);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap();
    let output = output.ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

/// Sends bytes, and reads until the end of the stream.
async fn talk(addr: SocketAddr, said: &[u8]) -> String {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(said).await.unwrap();
    let mut heard = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut heard)).await.expect("it ends in time").unwrap();
    String::from_utf8(heard).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn hello_over_every_version() {
    let mut config = http();
    config.listen.https = vec!["127.0.0.1:0".parse().unwrap()];
    let directory = tempfile::tempdir().unwrap();
    config.tls.development_directory = directory.path().to_owned();
    let gateway = start(config).await;
    let (http, https) = (gateway.http_addrs()[0], gateway.https_addrs()[0]);
    for path in ["/", "/rest/hello"] {
        let (plain, secure) = (format!("http://{http}{path}"), format!("https://{https}{path}"));
        for (args, expected) in [
            (&["--http1.1", &plain], "Hello World\n1.1 200"),
            (&["--http1.0", &plain], "Hello World\n1.1 200"),
            (&["--http2-prior-knowledge", &plain], "Hello World - via HTTP/2\n2 200"),
            (&["--http1.1", &secure], "Hello World\n1.1 200"),
            (&["--http2", &secure], "Hello World - via HTTP/2\n2 200"),
        ] {
            // A machine without curl has the other tests.
            let Some(said) = curl(args).await else { return gateway.shutdown().await };
            // Asked in 1.0 it answers in 1.0.
            let expected = if args[0] == "--http1.0" { "Hello World\n1 200" } else { expected };
            assert_eq!(said.replace("\n1.0 ", "\n1 "), expected, "{args:?}");
        }
    }
    let metrics = gateway.handle().metrics();
    assert!(
        metrics.contains("weir_http_requests_total{version=\"1.1\",status=\"2xx\"} 6\n"),
        "{metrics}"
    );
    assert!(
        metrics.contains("weir_http_requests_total{version=\"2\",status=\"2xx\"} 4\n"),
        "{metrics}"
    );
    gateway.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelined_requests_are_answered_in_order() {
    let gateway = start_http().await;
    let said = "GET / HTTP/1.1\r\nHost: a\r\n\r\nHEAD /rest/hello HTTP/1.1\r\nHost: a\r\n\r\n\
                POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n\
                GET /nothing HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let heard = talk(gateway.http_addrs()[0], said.as_bytes()).await;
    let heads: Vec<&str> = heard.matches("HTTP/1.1 ").collect();
    assert_eq!(heads.len(), 4, "{heard}");
    let at = |what: &str| heard.find(what).unwrap_or_else(|| panic!("no {what} in {heard}"));
    assert!(at("200 OK") < at("Hello World"), "{heard}");
    assert!(at("Hello World") < at("405 Method Not Allowed"), "{heard}");
    assert!(at("allow: GET, HEAD") < at("404 Not Found"), "{heard}");
    assert_eq!(heard.matches("Hello World").count(), 1);
    assert_eq!(heard.matches("content-length: 11\r\n").count(), 2);
    let handle = gateway.handle();
    let ended = || handle.metrics().contains("connections_ended_total{cause=\"finished\"} 1\n");
    eventually(ended, "the end is counted").await;
    gateway.shutdown().await;
}

/// Requests before it are answered, and what comes behind it is the WebSocket's.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_taken_from_http_behind_all_answers() {
    let gateway = start_http().await;
    let mut said = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(50);
    said.extend(
        b"GET /v1/connect HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
        Sec-WebSocket-Protocol: weir.v1.json\r\n\r\n",
    );
    // A frame without a mask, which ends it.
    said.extend([0x81, 0x02, b'{', b'}']);
    let mut peer = TcpStream::connect(gateway.http_addrs()[0]).await.unwrap();
    peer.write_all(&said).await.unwrap();
    let mut heard = Vec::new();
    timeout(PATIENCE, peer.read_to_end(&mut heard)).await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&heard);
    assert_eq!(text.matches("Hello World").count(), 50, "{text}");
    let (_, upgrade) = text.split_once("HTTP/1.1 101 ").expect("it is upgraded");
    assert!(
        upgrade.contains("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"),
        "{upgrade}"
    );
    assert!(heard.windows(4).any(|bytes| bytes[0] == 0x88 && bytes[2..] == 1002_u16.to_be_bytes()));
    gateway.shutdown().await;
}

/// What ends a connection: what was said, what is answered, and the cause; a time is short only where it is the cause.
#[tokio::test(flavor = "multi_thread")]
async fn every_end_has_its_cause() {
    let hello = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let headers = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(16));
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "y".repeat(16 * 1024));
    for (said, answer, cause) in [
        (hello, "200 OK", "idle_timeout"),
        ("GET / HTTP/1.1\r\nHo", "", "head_timeout"),
        (&format!("{hello}GET /"), "200 OK", "idle_timeout"),
        (&hello.repeat(4), "200 OK", "requests_max"),
        ("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "200 OK", "finished"),
        ("BAD\r\n\r\n", "400 Bad Request", "malformed"),
        (&headers, "431 Request Header Fields Too Large", "head_too_large"),
        (&long, "431 Request Header Fields Too Large", "head_too_large"),
    ] {
        let mut config = http();
        (config.http.requests_per_connection_max, config.http.headers_max) = (3, 16);
        match cause {
            // It runs from the accept on, and what is said has to be there before.
            "head_timeout" => config.http.head_timeout = Duration::from_secs(2),
            "idle_timeout" => config.http.idle_timeout = Duration::from_millis(200),
            _ => {}
        }
        let gateway = start(config).await;
        let heard = talk(gateway.http_addrs()[0], said.as_bytes()).await;
        assert!(heard.contains(answer), "{said:?}: {heard}");
        assert_eq!(heard.is_empty(), answer.is_empty(), "{said:?}: {heard}");
        let counted = format!("weir_http_connections_ended_total{{cause=\"{cause}\"}} 1\n");
        eventually(|| gateway.handle().metrics().contains(&counted), cause).await;
        eventually(|| gateway.handle().counters().unsettled() == 0, "nobody is left").await;
        gateway.shutdown().await;
    }
}

/// A head that goes on slowly, behind a request, is told that it is too late.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_head_ends_in_time() {
    let mut config = http();
    // The first head has to be there before it.
    config.http.head_timeout = Duration::from_secs(2);
    let gateway = start(config).await;
    let mut stream = TcpStream::connect(gateway.http_addrs()[0]).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut heard = vec![0; 1024];
    let count = stream.read(&mut heard).await.unwrap();
    assert!(heard[..count].starts_with(b"HTTP/1.1 200 OK\r\n"));
    let (mut reading, mut writing) = stream.into_split();
    let dripping = tokio::spawn(async move {
        // Until it is closed, a byte at a time.
        while writing.write_all(b"G").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let mut heard = String::new();
    // Whether the answer is read or a reset overtakes it, it ends.
    let _ = timeout(PATIENCE, reading.read_to_string(&mut heard)).await.expect("it ends in time");
    assert!(heard.starts_with("HTTP/1.1 408 ") || heard.is_empty(), "{heard}");
    dripping.await.unwrap();
    let handle = gateway.handle();
    let ended = || handle.metrics().contains("ended_total{cause=\"head_timeout\"} 1\n");
    eventually(ended, "it is counted").await;
    gateway.shutdown().await;
}

/// A topic that is named twice is subscribed to once, like one that is named once.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_events_are_asked_of_twice_counts_once() {
    let mut config = http();
    config.auth.anonymous = Some(true);
    config.limits.topics_per_connection_max = 2;
    let gateway = start(config).await;
    let mut stream = TcpStream::connect(gateway.http_addrs()[0]).await.unwrap();
    let query = "device=d&topic=b&topic=a&topic=b&topic=%61";
    let ask = format!("GET /v1/sse?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(ask.as_bytes()).await.unwrap();
    let mut heard = String::new();
    while heard.matches("\n\n").count() < 3 {
        let mut bytes = [0; 1024];
        let count = timeout(PATIENCE, stream.read(&mut bytes)).await.unwrap().unwrap();
        assert!(count > 0, "{heard}");
        heard.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
    }
    gateway.shutdown().await;
    timeout(PATIENCE, stream.read_to_string(&mut heard)).await.expect("it ends in time").unwrap();
    assert_eq!(heard.matches("event:subscribed\n").count(), 2, "{heard}");
    assert!(!heard.contains("event:error"), "{heard}");
}

/// Who asks and asks, and reads no answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_reads_nothing_ends_in_time() {
    let mut config = http();
    config.connection.stall_timeout = Duration::from_millis(300);
    let gateway = start(config).await;
    let mut stream = TcpStream::connect(gateway.http_addrs()[0]).await.unwrap();
    let requests = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1_000);
    while stream.write_all(&requests).await.is_ok() {}
    let handle = gateway.handle();
    let ended = || handle.metrics().contains("ended_total{cause=\"stalled\"} 1\n");
    eventually(ended, "it is counted").await;
    gateway.shutdown().await;
}

/// An idle connection is none of those who have not settled: it does not keep devices out.
#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_leave_room_for_devices() {
    let mut config = http();
    config.limits.unsettled_connections_max = 1;
    let gateway = start(config).await;
    let handle = gateway.handle();
    let mut idle = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(gateway.http_addrs()[0]).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
        eventually(|| handle.counters().unsettled() == 0, "its request is known").await;
        idle.push(stream);
    }
    let _device = common::Peer::settled(&gateway, "d", &[]).await;
    assert!(handle.metrics().contains("weir_http_connections{version=\"1.1\"} 3\n"));
    // Its end ends them too.
    gateway.shutdown().await;
    for mut stream in idle {
        assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_tells_where_requests_come_from() {
    let mut config = http();
    config.listen.proxy_networks = vec!["127.0.0.1/32".parse().unwrap()];
    config.auth.anonymous = Some(true);
    config.limits.connections_per_source_max = 1;
    let gateway = start(config).await;
    let addr = gateway.http_addrs()[0];
    let ask = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let from = |source: u8| format!("PROXY TCP4 192.0.2.{source} 127.0.0.1 4096 8080\r\n{ask}");
    let mut first = TcpStream::connect(addr).await.unwrap();
    first.write_all(from(7).as_bytes()).await.unwrap();
    assert!(first.read(&mut [0; 1024]).await.unwrap() > 100);
    assert_eq!(gateway.handle().gauges().sources, 1);
    // As many as one source may have, and one that does not say where it comes from.
    for said in [from(7).as_str(), ask] {
        let refused = talk(addr, said.as_bytes()).await;
        let expected = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n";
        assert!(refused.starts_with(expected), "{said}: {refused}");
    }
    gateway.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_http2_nobody_is_offered_it() {
    let mut config = http();
    config.http.h2 = false;
    config.listen.https = vec!["127.0.0.1:0".parse().unwrap()];
    let directory = tempfile::tempdir().unwrap();
    config.tls.development_directory = directory.path().to_owned();
    let gateway = start(config).await;
    let secure = format!("https://{}/", gateway.https_addrs()[0]);
    if let Some(said) = curl(&["--http2", &secure]).await {
        assert_eq!(said, "Hello World\n1.1 200");
    }
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice();
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let hello = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".as_slice();
    // With what a client says behind it, and behind a request.
    for said in [&[preface, &settings][..], &[hello, preface]] {
        let refused = talk(gateway.http_addrs()[0], &said.concat()).await;
        let (answered, last) = refused.split_at(refused.rfind("HTTP/1.1 ").expect("an answer"));
        assert_eq!(answered.contains("Hello World"), said[0] == hello, "{refused}");
        assert!(last.starts_with("HTTP/1.1 505 "), "{refused}");
    }
    let metrics = || gateway.handle().metrics();
    let counted = "weir_http_connections_ended_total{cause=\"version\"} 2\n";
    eventually(|| metrics().contains(counted), "both are counted").await;
    gateway.shutdown().await;
}
