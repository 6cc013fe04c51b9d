//! The allocations of a request over HTTP. The test is alone in its process, with an allocator that
//! counts.

#[expect(dead_code, reason = "this test needs a part of it only")]
mod common;

mod sys;

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::Ordering;

use common::{Peer, config, start};
use sys::{ALLOCATIONS, Counting, IS_CLIENT};
use tokio::sync::Mutex;
use weir::{Right, RouteConfig, ServiceConfig, UpstreamConfig};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const REQUESTS: usize = 10_000;
/// The allocations of a publish: one for the future that answers it, one for hyper's channel of the
/// body, one for the body, two for the frame and its message, two for the headers of the answer,
/// and one for its document.
const BY_PUBLISH: usize = 8;

/// The allocations of a proxied request whose trace is not recorded here. With a span of each try
/// they were 24.
const BY_PASSING: usize = 19;

/// The tests count with one counter, so one of them runs at a time.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Counts the gateway's allocations for requests that a client makes one after the other, without
/// the first thousand. It counts the few ticks of the gateway too.
async fn allocations(mut ask: impl FnMut() + Send + 'static) -> usize {
    let count = tokio::task::spawn_blocking(move || {
        IS_CLIENT.set(true);
        (0..1_000).for_each(|_| ask());
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        (0..REQUESTS).for_each(|_| ask());
        let count = ALLOCATIONS.load(Ordering::Relaxed) - before;
        drop(ask);
        IS_CLIENT.set(false);
        count
    });
    count.await.expect("the client gets its answers")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_greeting_takes_nothing() {
    let _alone = ALONE.lock().await;
    let mut config = config();
    config.listen.http = vec!["127.0.0.1:0".parse().unwrap()];
    let gateway = start(config).await;
    let mut stream = TcpStream::connect(gateway.http_addrs()[0]).unwrap();
    let mut answer = [0; 512];
    let count = allocations(move || {
        stream.write_all(b"GET /rest/hello HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let count = stream.read(&mut answer).unwrap();
        assert!(answer[..count].ends_with(b"Hello World"));
    });
    let count = count.await;
    eprintln!("{count} allocations for {REQUESTS} requests");
    assert!(count <= REQUESTS / 100, "{count} allocations for {REQUESTS} requests");
    gateway.shutdown().await;
}

/// By a service, to one subscriber.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publish_takes_little() {
    let _alone = ALONE.lock().await;
    let mut config = config();
    config.listen.http = vec!["127.0.0.1:0".parse().unwrap()];
    let (token, name) = ("secret".to_owned(), "backend".to_owned());
    config.auth.services = vec![ServiceConfig { token, name, may: vec![Right::Publish] }];
    let gateway = start(config).await;
    let subscriber = Peer::settled(&gateway, "device", &["topic"]).await;
    let mut subscriber = subscriber.stream.into_std().unwrap();
    subscriber.set_nonblocking(false).unwrap();
    let text = "x".repeat(256);
    let body = format!(r#"{{"topic":"topic","text":"{text}"}}"#);
    let request = format!(
        "POST /v1/publish HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer secret\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(gateway.http_addrs()[0]).unwrap();
    let mut read = [0; 1024];
    let count = allocations(move || {
        stream.write_all(request.as_bytes()).unwrap();
        let count = stream.read(&mut read).unwrap();
        assert!(read[..count].starts_with(b"HTTP/1.1 200 OK"));
        let count = subscriber.read(&mut read).unwrap();
        assert!(read[..count].windows(text.len()).any(|part| part == text.as_bytes()));
    });
    let count = count.await;
    eprintln!("{count} allocations for {REQUESTS} publishes");
    let most = BY_PUBLISH * REQUESTS + REQUESTS / 100;
    assert!(count <= most, "{count} allocations for {REQUESTS} publishes");
    gateway.shutdown().await;
}

/// A service that answers each request of one connection.
fn service(listener: &TcpListener) -> io::Result<()> {
    IS_CLIENT.set(true);
    let (mut stream, _) = listener.accept()?;
    let mut head = [0; 1024];
    while stream.read(&mut head)? > 0 {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone")?;
    }
    Ok(())
}

/// Built with spans or without: while no collector is named they cost nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxied_request_takes_nothing_for_spans() {
    let _alone = ALONE.lock().await;
    let mut config = config();
    config.listen.http = vec!["127.0.0.1:0".parse().unwrap()];
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = vec![listener.local_addr().unwrap().to_string()];
    std::thread::spawn(move || service(&listener));
    let name = "back".to_owned();
    config.upstreams = vec![UpstreamConfig { name, addresses, ..UpstreamConfig::default() }];
    let (prefix, upstream) = ("/app".to_owned(), "back".to_owned());
    config.http.routes = vec![RouteConfig { prefix, upstream, ..RouteConfig::default() }];
    let gateway = start(config).await;
    let mut stream = TcpStream::connect(gateway.http_addrs()[0]).unwrap();
    let mut answer = [0; 512];
    let count = allocations(move || {
        // Its sender records the trace.
        let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let head = "GET /app HTTP/1.1\r\nHost: a\r\ntraceparent: ";
        stream.write_all(format!("{head}{trace}\r\n\r\n").as_bytes()).unwrap();
        let count = stream.read(&mut answer).unwrap();
        assert!(answer[..count].ends_with(b"done"));
    });
    let count = count.await;
    eprintln!("{count} allocations for {REQUESTS} requests");
    let most = BY_PASSING * REQUESTS + REQUESTS / 100;
    assert!(count <= most, "{count} allocations for {REQUESTS} requests");
    gateway.shutdown().await;
}
