//! Who is let in, tried with real sockets from several loopback addresses.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "it serves other tests too")]
mod common;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use common::{Hears, Peer, config, encode, eventually, hello, start};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;
use weir::{Config, ConnectRefuseCause, Gateway};
use weir_engine::Share;
use weir_wire::CloseReason;

/// From 127.0.0.`host`.
async fn from(gateway: &Gateway, host: u8) -> Peer {
    let socket = TcpSocket::new_v4().unwrap();
    let local = Ipv4Addr::new(127, 0, 0, host);
    socket.bind(SocketAddr::from((local, 0))).unwrap();
    Peer::over(socket.connect(gateway.tcp_addrs()[0]).await.unwrap())
}

async fn settled_from(gateway: &Gateway, host: u8, device: &str) -> Peer {
    let mut peer = from(gateway, host).await;
    peer.say(hello(device, "", &[])).await;
    peer.welcome().await;
    peer
}

fn refused(gateway: &Gateway, cause: ConnectRefuseCause) -> u64 {
    gateway.handle().counters().connect_refused(cause)
}

/// Hears `Goodbye`, which says when to come back.
async fn expect_later(peer: &mut Peer, reason: CloseReason) {
    match peer.hear().await {
        Some(Hears::Goodbye(goodbye)) => {
            assert_eq!(goodbye.reason, reason.name());
            assert!(goodbye.retry_after_ms > 0, "{goodbye:?}");
        }
        other => panic!("no goodbye for {reason} but {other:?}"),
    }
}

fn limited(connections: usize, rate: u32, burst: u32) -> Config {
    let mut config = config();
    config.limits.connections_per_source_max = connections;
    config.limits.connects_per_source_per_second = rate;
    config.limits.connects_per_source_burst = burst;
    config
}

#[tokio::test]
async fn a_source_has_so_many_connections_and_no_more() {
    let gateway = start(limited(2, 0, 1)).await;
    let settled = settled_from(&gateway, 2, "d1").await;
    // One that says nothing counts too.
    let silent = from(&gateway, 2).await;
    let handle = gateway.handle();
    eventually(|| handle.counters().unsettled() == 1, "the silent one is accepted").await;
    for _ in 0..3 {
        expect_later(&mut from(&gateway, 2).await, CloseReason::TooManyConnections).await;
    }
    assert_eq!(refused(&gateway, ConnectRefuseCause::SourceConnections), 3);
    let _other = settled_from(&gateway, 3, "d2").await;
    assert_eq!(handle.gauges().sources, 2);
    drop(silent);
    eventually(|| handle.counters().unsettled() == 0, "the silent one is gone").await;
    let again = settled_from(&gateway, 2, "d3").await;
    drop((settled, again));
    eventually(|| handle.gauges().sources == 1, "the source is forgotten").await;
    gateway.shutdown().await;
}

#[tokio::test]
async fn whoever_is_refused_by_the_shard_or_the_rules_gives_its_place_back() {
    let mut config = limited(1, 0, 1);
    config.limits.connections_max = 1;
    let gateway = start(config).await;
    let handle = gateway.handle();
    let mut malformed = from(&gateway, 2).await;
    malformed.say(hello("", "", &[])).await;
    malformed.expect_goodbye(CloseReason::Malformed).await;
    drop(malformed);
    eventually(|| handle.gauges().sources == 0, "its source is forgotten").await;
    // Two that are let in race for the only place.
    let (mut first, mut second) = (from(&gateway, 2).await, from(&gateway, 3).await);
    eventually(|| handle.counters().unsettled() == 2, "both are accepted").await;
    first.say(hello("d1", "", &[])).await;
    first.welcome().await;
    second.say(hello("d2", "", &[])).await;
    expect_later(&mut second, CloseReason::TooManyConnections).await;
    // And who comes now is told at once.
    expect_later(&mut from(&gateway, 4).await, CloseReason::TooManyConnections).await;
    assert_eq!(refused(&gateway, ConnectRefuseCause::ConnectionsMax), 2);
    drop((first, second));
    eventually(|| handle.gauges().sources == 0, "all sources are forgotten").await;
    let _third = settled_from(&gateway, 4, "d3").await;
    gateway.shutdown().await;
}

#[tokio::test]
async fn a_source_connects_as_fast_as_it_may() {
    const BURST: u32 = 5;
    let gateway = start(limited(0, 1, BURST)).await;
    let mut admitted = 0;
    while refused(&gateway, ConnectRefuseCause::SourceRate) == 0 {
        let mut peer = from(&gateway, 2).await;
        peer.say(hello(&format!("d{admitted}"), "", &[])).await;
        match peer.hear().await {
            Some(Hears::Welcome(_)) => admitted += 1,
            Some(Hears::Goodbye(goodbye)) => assert!(goodbye.retry_after_ms > 0),
            other => panic!("{other:?}"),
        }
    }
    assert!(admitted >= BURST, "{admitted}");
    let _other = settled_from(&gateway, 3, "other").await;
    // Without connections, but not forgotten: its bucket is not full yet.
    assert_eq!(gateway.handle().gauges().sources, 2);
    gateway.shutdown().await;
}

#[tokio::test]
async fn near_the_byte_budget_nobody_is_let_in() {
    let gateway = start(config()).await;
    let handle = gateway.handle();
    let mut waiting = from(&gateway, 2).await;
    eventually(|| handle.counters().unsettled() == 1, "it is accepted").await;
    let budget = handle.engine().budget();
    let taken = budget.bytes_max_of(Share::Messages) / 8 * 7 + 1;
    assert!(budget.take(Share::Messages, taken));
    // At accept, and at settling.
    expect_later(&mut from(&gateway, 3).await, CloseReason::BudgetExhausted).await;
    waiting.say(hello("d1", "", &[])).await;
    expect_later(&mut waiting, CloseReason::BudgetExhausted).await;
    assert_eq!(refused(&gateway, ConnectRefuseCause::Memory), 2);
    budget.give(Share::Messages, taken);
    let _later = settled_from(&gateway, 3, "d2").await;
    gateway.shutdown().await;
}

#[tokio::test]
async fn as_many_as_may_be_silent() {
    let mut config = config();
    config.limits.unsettled_connections_max = 2;
    let gateway = start(config).await;
    let handle = gateway.handle();
    let silent = (from(&gateway, 2).await, from(&gateway, 2).await);
    eventually(|| handle.counters().unsettled() == 2, "both are accepted").await;
    expect_later(&mut from(&gateway, 3).await, CloseReason::TooManyConnections).await;
    assert_eq!(refused(&gateway, ConnectRefuseCause::UnsettledMax), 1);
    drop(silent);
    eventually(|| handle.counters().unsettled() == 0, "both are gone").await;
    let _later = settled_from(&gateway, 3, "d1").await;
    gateway.shutdown().await;
}

#[tokio::test]
async fn a_connection_shows_its_source() {
    for limits in [0, 10] {
        let gateway = start(limited(limits, 0, 1)).await;
        let _peer = settled_from(&gateway, 7, "d1").await;
        let connections = gateway.handle().device("d1").await.unwrap().unwrap();
        assert_eq!(connections[0].source.as_deref(), Some("127.0.0.7"));
        assert_eq!(gateway.handle().gauges().sources, usize::from(limits > 0));
        gateway.shutdown().await;
    }
}

/// Only 127.0.0.9 is a proxy.
fn behind_a_proxy(mut config: Config) -> Config {
    config.listen.proxy_networks = vec!["127.0.0.9/32".parse().unwrap()];
    config.auth.anonymous = Some(true);
    config
}

async fn say_bytes(peer: &mut Peer, bytes: &[u8]) {
    peer.stream.write_all(bytes).await.unwrap();
}

#[tokio::test]
async fn a_proxy_tells_where_a_connection_comes_from() {
    let gateway = start(behind_a_proxy(limited(1, 0, 1))).await;
    let handle = gateway.handle();
    let v2 =
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x08\x7f\x00\x00\x01\x10\x00\x1b\x9e";
    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00";
    let announced: [(&[u8], &str); 4] = [
        (b"PROXY TCP4 192.0.2.7 127.0.0.1 4096 7070\r\n", "192.0.2.7"),
        (v2, "192.0.2.8"),
        (b"PROXY TCP6 2001:db8:0:1::7 ::1 4096 7070\r\n", "2001:db8:0:1::/64"),
        (local, "127.0.0.9"),
    ];
    let mut peers = Vec::new();
    for (header, source) in announced {
        let mut peer = from(&gateway, 9).await;
        // Byte by byte, and Hello right behind it.
        for byte in header {
            say_bytes(&mut peer, &[*byte]).await;
        }
        peer.say(hello(source, "", &[])).await;
        peer.welcome().await;
        let connections = handle.device(source).await.unwrap().unwrap();
        assert_eq!(connections[0].source.as_deref(), Some(source));
        assert_eq!(connections[0].info.peer.unwrap().ip().to_string(), "127.0.0.9");
        // One more from there is one too many, whatever the proxy has.
        let mut more = from(&gateway, 9).await;
        say_bytes(&mut more, header).await;
        expect_later(&mut more, CloseReason::TooManyConnections).await;
        peers.push(peer);
    }
    assert_eq!(refused(&gateway, ConnectRefuseCause::SourceConnections), 4);
    drop(peers);
    eventually(|| handle.gauges().sources == 0, "all sources are forgotten").await;
    gateway.shutdown().await;
}

#[tokio::test]
async fn header_and_hello_may_come_in_one_piece() {
    // Where nothing is limited, the source shows nevertheless.
    let gateway = start(behind_a_proxy(config())).await;
    let header = b"PROXY TCP4 192.0.2.7 127.0.0.1 4096 7070\r\n";
    let mut peer = from(&gateway, 9).await;
    say_bytes(&mut peer, &[&header[..], &encode(hello("d1", "", &[]))].concat()).await;
    peer.welcome().await;
    let connections = gateway.handle().device("d1").await.unwrap().unwrap();
    assert_eq!(connections[0].source.as_deref(), Some("192.0.2.7"));
    gateway.shutdown().await;
}

#[tokio::test]
async fn a_proxy_has_to_tell_and_nobody_else_is_asked() {
    let gateway = start(behind_a_proxy(config())).await;
    let handle = gateway.handle();
    let header = b"PROXY TCP4 192.0.2.7 127.0.0.1 4096 7070\r\n";
    let v2 = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00";
    // Whichever it is, the operator has to mend it, and devices come back until then: a proxy without a header, with
    // one that goes on for ever, and one that is not listed.
    let endless = [&b"PROXY UNKNOWN "[..], &[b'x'; 93]].concat();
    let wrong: [(u8, &[u8]); 4] =
        [(9, &encode(hello("d1", "", &[]))), (9, &endless), (8, header), (8, v2)];
    for (count, (host, bytes)) in (1..).zip(wrong) {
        let mut peer = from(&gateway, host).await;
        say_bytes(&mut peer, bytes).await;
        expect_later(&mut peer, CloseReason::Internal).await;
        assert_eq!(refused(&gateway, ConnectRefuseCause::ProxyHeader), count);
        eventually(|| handle.counters().unsettled() == 0, "its place is free").await;
    }
    // What is no header from elsewhere is the peer's own fault.
    let mut peer = from(&gateway, 8).await;
    say_bytes(&mut peer, &[0; 64]).await;
    peer.expect_goodbye(CloseReason::Malformed).await;
    let _direct = settled_from(&gateway, 8, "d2").await;
    gateway.shutdown().await;
}

#[tokio::test]
async fn a_header_that_does_not_come_ends_by_hello_timeout() {
    let mut config = behind_a_proxy(config());
    config.connection.hello_timeout = Duration::from_millis(100);
    let gateway = start(config).await;
    let mut peer = from(&gateway, 9).await;
    say_bytes(&mut peer, b"PROXY TCP4 192.0.2.7").await;
    peer.expect_goodbye(CloseReason::HelloTimeout).await;
    gateway.shutdown().await;
}

#[tokio::test]
async fn a_source_over_its_limit_keeps_no_place_behind_a_proxy() {
    const TOO_MANY: usize = 40;
    let gateway = start(behind_a_proxy(limited(1, 0, 1))).await;
    let handle = gateway.handle();
    let mut peers = Vec::new();
    for number in 0..=TOO_MANY {
        let mut peer = from(&gateway, 9).await;
        say_bytes(&mut peer, b"PROXY TCP4 192.0.2.7 127.0.0.1 4096 7070\r\n").await;
        if number == 0 {
            peer.say(hello("d1", "", &[])).await;
            peer.welcome().await;
        } else {
            expect_later(&mut peer, CloseReason::TooManyConnections).await;
        }
        peers.push(peer);
    }
    // None of them has closed its side.
    assert!(handle.counters().unsettled() < TOO_MANY / 4, "{}", handle.counters().unsettled());
    gateway.shutdown().await;
}
