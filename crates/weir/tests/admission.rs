//! Who is let in, tried with real sockets from several loopback addresses.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::net::{Ipv4Addr, SocketAddr};

use common::{Hears, Peer, config, eventually, hello, start};
use tokio::net::TcpSocket;
use weir::{Config, ConnectRefuseCause, Gateway};
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
    let gateway = start(limited(2, 0, 0)).await;
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
    let mut config = limited(1, 0, 0);
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
    let taken = budget.bytes_max() / 8 * 7 + 1;
    assert!(budget.take(taken));
    // At accept, and at settling.
    expect_later(&mut from(&gateway, 3).await, CloseReason::BudgetExhausted).await;
    waiting.say(hello("d1", "", &[])).await;
    expect_later(&mut waiting, CloseReason::BudgetExhausted).await;
    assert_eq!(refused(&gateway, ConnectRefuseCause::Memory), 2);
    budget.give(taken);
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
        let gateway = start(limited(limits, 0, 0)).await;
        let _peer = settled_from(&gateway, 7, "d1").await;
        let connections = gateway.handle().device("d1").await.unwrap();
        assert_eq!(connections[0].source.as_deref(), Some("127.0.0.7"));
        assert_eq!(gateway.handle().gauges().sources, usize::from(limits > 0));
        gateway.shutdown().await;
    }
}
