//! What a call by datagram takes from the allocator: alone in its process, with an allocator that counts.

#[expect(dead_code, reason = "this test needs a part of it only")]
mod common;

mod sys;

use std::net::UdpSocket;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{config, start};
use sys::{ALLOCATIONS, Counting, IS_CLIENT};
use weir::TokenConfig;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CALLS: usize = 10_000;

/// Calls one after the other, as JSON and as protocol buffers; what is counted meanwhile belongs to them, but for the
/// ticks of the gateway, which are few.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_token_is_known_takes_nothing() {
    let mut config = config();
    config.listen.udp = vec!["127.0.0.1:0".parse().unwrap()];
    config.auth.tokens = vec![TokenConfig { token: "known".to_owned(), ..TokenConfig::default() }];
    // It is looked up once.
    config.udp.token_cache_ttl = Duration::from_secs(60);
    config.udp.datagrams_per_source_per_second = 0;
    let gateway = start(config).await;
    let addr = gateway.udp_addrs()[0];
    let count = tokio::task::spawn_blocking(move || {
        IS_CLIENT.set(true);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(addr).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let calls: [&[u8]; 3] = [
            br#"{"pt":"known","count":5}"#,
            br#"{"id":"a name","pt":"known","count":18446744073709551615}"#,
            // `id` 300, `token`, and `count` 5.
            b"\x08\xac\x02\x12\x05known\x18\x05",
        ];
        let ask = |times: usize| {
            let mut answer = [0; 512];
            for call in calls.iter().cycle().take(times) {
                socket.send(call).unwrap();
                let count = socket.recv(&mut answer).unwrap();
                assert!(answer[..count].windows(5).any(|part| part == b"known"));
            }
        };
        ask(1_000);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        ask(CALLS);
        let count = ALLOCATIONS.load(Ordering::Relaxed) - before;
        IS_CLIENT.set(false);
        count
    });
    let count = count.await.unwrap();
    eprintln!("{count} allocations for {CALLS} calls");
    assert!(count <= CALLS / 100, "{count} allocations for {CALLS} calls");
    gateway.shutdown().await;
}
