//! What a request over HTTP takes from the allocator: alone in its process, with an allocator that counts.

#[expect(dead_code, reason = "this test needs a part of it only")]
mod common;

mod sys;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::Ordering;

use common::{config, start};
use sys::{ALLOCATIONS, Counting, IS_CLIENT};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const REQUESTS: usize = 10_000;

/// Requests one after the other on one connection; what is counted meanwhile belongs to them, but for the ticks of the
/// gateway, which are few.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_greeting_takes_nothing() {
    let mut config = config();
    config.listen.http = vec!["127.0.0.1:0".parse().unwrap()];
    let gateway = start(config).await;
    let addr = gateway.http_addrs()[0];
    let count = tokio::task::spawn_blocking(move || {
        IS_CLIENT.set(true);
        let mut stream = TcpStream::connect(addr).unwrap();
        let mut ask = |times: usize| {
            let mut answer = [0; 512];
            for _ in 0..times {
                stream.write_all(b"GET /rest/hello HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
                let count = stream.read(&mut answer).unwrap();
                assert!(answer[..count].ends_with(b"Hello World"));
            }
        };
        ask(1_000);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        ask(REQUESTS);
        let count = ALLOCATIONS.load(Ordering::Relaxed) - before;
        IS_CLIENT.set(false);
        count
    });
    let count = count.await.unwrap();
    eprintln!("{count} allocations for {REQUESTS} requests");
    assert!(count <= REQUESTS / 100, "{count} allocations for {REQUESTS} requests");
    gateway.shutdown().await;
}
