//! Ends of connections as the admin API lists them: which connection, whose, and why.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "it serves other tests too")]
mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::{Peer, Says, config, eventually, hello, start};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use weir::{Config, ConnId, Gateway, TokenConfig};
use weir_wire::CloseReason;

const PATIENCE: Duration = Duration::from_secs(20);
const FREE: &str = "127.0.0.1:0";
const CLIENT: &str = "test/1.0";

/// Anyone is admitted, except as the device "owned".
fn open_config() -> Config {
    let mut config = config();
    config.listen.admin = Some(FREE.parse().unwrap());
    config.connection.heartbeat_min = Duration::from_millis(200);
    config.auth.tokens = vec![TokenConfig {
        token: "secret".to_owned(),
        device: Some("owned".to_owned()),
        ..TokenConfig::default()
    }];
    config.auth.anonymous = Some(true);
    config
}

/// `Hello` of a client program that names itself.
fn named_hello(device: &str, token: &str, client: &str) -> Says {
    let Says::Hello(mut hello) = hello(device, token, &["t"]) else { unreachable!() };
    client.clone_into(&mut hello.client);
    Says::Hello(hello)
}

async fn settled(gateway: &Gateway, device: &str) -> Peer {
    let mut peer = Peer::connect(gateway).await;
    peer.say(named_hello(device, "", CLIENT)).await;
    peer.welcome().await;
    peer.subscribed().await;
    peer
}

/// The JSON of `GET`, whatever the status.
async fn get(gateway: &Gateway, path: &str) -> Value {
    let mut stream = TcpStream::connect(gateway.admin_addr().unwrap()).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// The one end of the device, once it is there.
async fn end_of(gateway: &Gateway, device: &str) -> Value {
    let ends = async {
        loop {
            let answer = get(gateway, &format!("/v1/closes?device={device}")).await;
            if let [end] = answer["closes"].as_array().unwrap().as_slice() {
                return end.clone();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, ends).await.unwrap_or_else(|_| panic!("{device} never ends"))
}

fn check(end: &Value, reason: CloseReason, peer: SocketAddr) {
    assert_eq!(end["reason"], reason.name(), "{end}");
    assert_eq!(end["code"], reason.code(), "{end}");
    assert_eq!(end["peer"], peer.to_string(), "{end}");
    assert_eq!(end["client"], CLIENT, "{end}");
    assert_eq!((&end["transport"], &end["protocol"]), (&json!("tcp"), &json!("tcp")), "{end}");
    assert!(end["at_ms"].as_u64().is_some_and(|at| at > 1_700_000_000_000), "{end}");
    assert!(end["age_ms"].as_u64().is_some_and(|age| age < 60_000), "{end}");
}

#[tokio::test]
#[expect(clippy::wildcard_enum_match_arm, reason = "the others are not caused here")]
async fn each_end_is_listed_with_its_device_peer_client_and_reason() {
    let gateway = start(open_config()).await;
    let handle = gateway.handle();
    for (device, reason) in [
        ("closes", CloseReason::PeerClosed),
        ("resets", CloseReason::PeerReset),
        ("wrong", CloseReason::Malformed),
        ("long", CloseReason::FrameTooLarge),
        ("again", CloseReason::Replaced),
        ("revoked", CloseReason::Revoked),
        ("closed", CloseReason::ClosedByOperator),
    ] {
        let mut peer = settled(&gateway, device).await;
        let (addr, id) = (peer.stream.local_addr().unwrap(), conn_of(&gateway, device).await);
        let mut second = None;
        match reason {
            CloseReason::PeerClosed => drop(peer),
            CloseReason::PeerReset => {
                peer.stream.set_zero_linger().unwrap();
                drop(peer);
            }
            CloseReason::Malformed => {
                peer.stream.write_all(&[3, 0xff, 0xff, 0xff]).await.unwrap();
                peer.expect_goodbye(reason).await;
            }
            CloseReason::FrameTooLarge => {
                peer.stream.write_all(&[0xff, 0xff, 0xff, 0xff, 0x0f]).await.unwrap();
                peer.expect_goodbye(reason).await;
            }
            CloseReason::Replaced => {
                second = Some(settled(&gateway, device).await);
                peer.expect_goodbye(reason).await;
            }
            CloseReason::Revoked => {
                assert!(handle.revoke(device).await.unwrap());
                peer.expect_goodbye(reason).await;
            }
            _ => {
                assert!(handle.close(id).await.unwrap());
                peer.expect_goodbye(reason).await;
            }
        }
        let end = end_of(&gateway, device).await;
        check(&end, reason, addr);
        assert_eq!(end["connection"], id.to_string(), "{end}");
        drop(second);
    }
    let by_reason = get(&gateway, "/v1/closes?reason=revoked").await;
    assert_eq!(by_reason["closes"].as_array().unwrap().len(), 1, "{by_reason}");
    eventually(|| handle.metrics().contains("weir_closes_kept 8\n"), "all ends are kept").await;
    let newest = get(&gateway, "/v1/closes?limit=1").await;
    assert_eq!((&newest["kept"], newest["closes"].as_array().unwrap().len()), (&json!(8), 1));
    eventually(|| handle.metrics().contains("weir_client_names 0\n"), "no name is in use").await;
    gateway.shutdown().await;
}

async fn conn_of(gateway: &Gateway, device: &str) -> ConnId {
    let connections = gateway.handle().device(device).await.unwrap().unwrap();
    assert_eq!(connections[0].client.as_deref(), Some(CLIENT));
    connections[0].info.id
}

#[tokio::test]
async fn a_silent_device_is_listed_too() {
    let gateway = start(open_config()).await;
    let mut peer = Peer::connect(&gateway).await;
    let Says::Hello(mut hello) = named_hello("silent", "", CLIENT) else { unreachable!() };
    hello.heartbeat_ms = 200;
    peer.say(Says::Hello(hello)).await;
    let addr = peer.stream.local_addr().unwrap();
    let end = end_of(&gateway, "silent").await;
    check(&end, CloseReason::HeartbeatMissed, addr);
    assert!(end["age_ms"].as_u64().unwrap() >= 300, "{end}");
    gateway.shutdown().await;
}

#[tokio::test]
async fn a_refused_connection_is_listed_with_what_it_claimed() {
    let mut config = open_config();
    config.connection.hello_timeout = Duration::from_secs(1);
    let gateway = start(config).await;

    let mut peer = Peer::connect(&gateway).await;
    peer.say(named_hello("owned", "wrong", CLIENT)).await;
    peer.expect_goodbye(CloseReason::Unauthorized).await;
    let end = end_of(&gateway, "owned").await;
    check(&end, CloseReason::Unauthorized, peer.stream.local_addr().unwrap());
    assert_eq!(end["connection"], Value::Null, "{end}");
    assert_eq!(end["source"], "127.0.0.1", "{end}");

    let mut silent = Peer::connect(&gateway).await;
    silent.expect_goodbye(CloseReason::HelloTimeout).await;
    let late = get(&gateway, "/v1/closes?reason=hello_timeout").await;
    let late = &late["closes"][0];
    assert_eq!((&late["device"], &late["client"]), (&Value::Null, &Value::Null), "{late}");
    assert_eq!(late["peer"], silent.stream.local_addr().unwrap().to_string());

    let mut hostile = Peer::connect(&gateway).await;
    let long = format!("{}\u{1b}[2J", "x".repeat(1000));
    hostile.say(named_hello(&long, "wrong", &format!("\u{1b}\r\n{long}"))).await;
    hostile.expect_goodbye(CloseReason::Unauthorized).await;
    let newest = get(&gateway, "/v1/closes?limit=1").await;
    let newest = &newest["closes"][0];
    assert_eq!(newest["device"], "x".repeat(128), "{newest}");
    let shown = format!("\u{fffd}\u{fffd}\u{fffd}{}", "x".repeat(55));
    assert_eq!(newest["client"], shown, "{newest}");
    gateway.shutdown().await;
}

#[tokio::test]
async fn a_request_names_its_client_program_as_user_agent() {
    let mut config = open_config();
    config.listen.http = vec![FREE.parse().unwrap()];
    let gateway = start(config).await;
    let mut stream = TcpStream::connect(gateway.http_addrs()[0]).await.unwrap();
    let request = "GET /v1/sse?device=page&topic=t HTTP/1.1\r\nHost: localhost\r\n\
                   User-Agent: curl/8.5.0\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let is_there = || gateway.handle().metrics().contains("weir_client_names 1\n");
    eventually(is_there, "its name is in use").await;
    let answer = get(&gateway, "/v1/connections?device=page").await;
    assert_eq!(answer["connections"][0]["client"], "curl/8.5.0", "{answer}");
    drop(stream);
    let end = end_of(&gateway, "page").await;
    assert_eq!((&end["client"], &end["protocol"]), (&json!("curl/8.5.0"), &json!("sse")), "{end}");
    gateway.shutdown().await;
}

#[tokio::test]
async fn a_question_that_names_no_reason_is_told_which_there_are() {
    let gateway = start(open_config()).await;
    let problem = get(&gateway, "/v1/closes?reason=bored").await;
    assert_eq!((&problem["status"], &problem["field"]), (&json!(400), &json!("reason")));
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("bored") && detail.contains("peer_closed, peer_reset"), "{detail}");
    let problem = get(&gateway, "/v1/closes?limit=1001").await;
    assert_eq!(problem["field"], "limit", "{problem}");
    gateway.shutdown().await;
}

/// Whatever strangers call themselves, the gateway keeps 1,024 names, and those of devices that
/// have gone are forgotten.
#[tokio::test]
async fn names_beyond_the_limit_are_other() {
    let gateway = start(open_config()).await;
    let handle = gateway.handle();
    let mut peers = Vec::new();
    for number in 0..1030 {
        let mut peer = Peer::connect(&gateway).await;
        let client = format!("client/{number}");
        peer.say(named_hello(&format!("d{number}"), "", &client)).await;
        peers.push(peer);
    }
    for peer in &mut peers {
        peer.welcome().await;
    }
    let metrics = handle.metrics();
    for line in ["weir_client_names 1024\n", "weir_client_names_refused_total 6\n"] {
        assert!(metrics.contains(line), "{line}{metrics}");
    }
    let mut others = 0;
    for number in 0..1030 {
        let shown = handle.device(&format!("d{number}")).await.unwrap().unwrap();
        let client = shown[0].client.as_deref().unwrap();
        others += usize::from(client == "other");
        assert!(client == "other" || client == format!("client/{number}"), "{client}");
    }
    assert_eq!(others, 6);
    drop(peers);
    eventually(|| handle.metrics().contains("weir_client_names 0\n"), "all have gone").await;
    gateway.shutdown().await;
}
