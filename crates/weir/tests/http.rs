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

/// Requests before it are answered, and what comes behind it is not lost: it is said how much there was.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_taken_from_http_behind_all_answers() {
    let gateway = start_http().await;
    let mut said = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(50);
    said.extend(b"GET /v1/connect HTTP/1.1\r\nHost: a\r\n\r\nand more");
    let heard = talk(gateway.http_addrs()[0], &said).await;
    assert_eq!(heard.matches("Hello World").count(), 50, "{heard}");
    assert!(heard.ends_with(
        "HTTP/1.1 501 Not Implemented\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    ));
    gateway.shutdown().await;
}
