//! Tokens that the backend knows: connections, requests, datagrams, and their ends.

use std::time::Duration;

use serde_json::json;
use tokio::sync::watch;
use weir::Gateway;
use weir_wire::CloseReason;
use weir_wire::v1::Refresh;

use super::backend::{Backend, Reply};
use super::common::{Hears, Peer, Says, eventually, hello, start};
use super::{MOMENT, config, questions, saved, subscribe};

async fn gateway_of(backend: &Backend) -> Gateway {
    let mut config = config();
    config.auth.anonymous = Some(false);
    backend.serves(&mut config);
    config.hooks.connect.upstream = "api".to_owned();
    Box::pin(start(config)).await
}

fn van(lifetime_ms: u64) -> Reply {
    Reply::Json(json!({"allow": true, "device": "van-7", "expires_in_ms": lifetime_ms}))
}

async fn connect(gateway: &Gateway, device: &str, token: &str) -> Peer {
    let mut peer = Peer::connect(gateway).await;
    peer.say(hello(device, token, &[])).await;
    peer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_brings_its_device_labels_and_topics() {
    let backend = Backend::start(|question| match question["token"].as_str() {
        Some("good") => Reply::Json(json!({
            "allow": true, "device": "van-7", "labels": ["vip", "unheard-of"],
            "topics": ["vip/{device}", "room/1"], "priority": "high",
        })),
        _ => Reply::Json(json!({"allow": false, "reason": "who is this?"})),
    });
    let backend = backend.await;
    let gateway = Box::pin(gateway_of(&backend)).await;
    let mut van = connect(&gateway, "", "good").await;
    let welcome = van.welcome().await;
    assert_ne!(welcome.connection_id, 0);
    for (topic, is_permitted) in [("vip/van-7", true), ("room/1", true), ("vip/x", false)] {
        van.say(subscribe(topic)).await;
        match van.hear().await {
            Some(Hears::Subscribed(subscribed)) if is_permitted => {
                assert_eq!(subscribed.topic, topic);
            }
            Some(Hears::Error(error)) if !is_permitted => {
                assert_eq!(error.code, "not_permitted");
            }
            other => panic!("{topic}: {other:?}"),
        }
    }
    let asked = &backend.asked()[0];
    assert_eq!(asked.path, "/weir/connect");
    assert!(asked.is_signed);
    let expected = json!({
        "hook": "connect", "source": "127.0.0.1", "transport": "connection", "token": "good",
    });
    assert_eq!(asked.body, expected);
    // A token is that of one device, and a token that is refused opens nothing.
    let mut other = connect(&gateway, "van-8", "good").await;
    other.expect_goodbye(CloseReason::Unauthorized).await;
    let mut stranger = connect(&gateway, "van-7", "bad").await;
    stranger.expect_goodbye(CloseReason::Unauthorized).await;
    // Without a token there is no question.
    let mut nobody = connect(&gateway, "van-9", "").await;
    nobody.expect_goodbye(CloseReason::Unauthorized).await;
    assert_eq!(backend.count("connect"), 3);
    assert_eq!(questions(&gateway, "connect", "allowed"), 2);
    assert_eq!(questions(&gateway, "connect", "refused"), 1);
    gateway.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_end_when_the_answer_says_and_refresh_asks_again() {
    let backend =
        Backend::start(|question| match (question["hook"].as_str(), question["token"].as_str()) {
            (Some("connect"), Some("short")) => van(1_500),
            (Some("connect"), _) => van(3_600_000),
            (Some("refresh"), Some("new")) => {
                Reply::Json(json!({"allow": true, "expires_in_ms": 7_200_000}))
            }
            (Some("refresh"), Some("other")) => {
                Reply::Json(json!({"allow": true, "device": "van-8"}))
            }
            _ => Reply::Json(json!({"allow": false})),
        });
    let backend = backend.await;
    let gateway = Box::pin(gateway_of(&backend)).await;
    let mut van = connect(&gateway, "", "long").await;
    let id = van.welcome().await.connection_id;
    for (token, is_right) in [("other", false), ("bad", false), ("new", true)] {
        // A connection may refresh once a second.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        van.say(Says::Refresh(Refresh { token: token.to_owned() })).await;
        match van.hear().await {
            Some(Hears::Refreshed(refreshed)) if is_right => {
                let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis();
                let left = u128::from(refreshed.expires_at_ms) - now;
                assert!((7_100_000..=7_200_000).contains(&left), "{left}");
            }
            Some(Hears::Error(error)) if !is_right => {
                assert_eq!(error.code, "not_permitted", "{token}");
            }
            other => panic!("{token}: {other:?}"),
        }
    }
    let asked = backend.asked();
    let last = &asked.last().unwrap().body;
    assert_eq!((&last["hook"], &last["device"]), (&json!("refresh"), &json!("van-7")));
    assert_eq!(last["connection"], json!(format!("{id:016x}")));
    // `hooks.refresh` names no upstream, so that of `connect` is asked at its path.
    assert_eq!(asked.last().unwrap().path, "/weir/connect");
    let mut brief = connect(&gateway, "", "short").await;
    brief.welcome().await;
    match brief.hear().await {
        Some(Hears::Expiring(_)) => {}
        other => panic!("no expiring but {other:?}"),
    }
    brief.expect_goodbye(CloseReason::Expired).await;
    gateway.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alike_questions_are_asked_once_and_answers_kept_as_they_say() {
    let (open, gate) = watch::channel(false);
    let backend = Backend::start(move |_| {
        let answer = json!({"allow": true, "device": "van-7", "cache_ms": 60_000});
        Reply::Held(gate.clone(), answer)
    });
    let backend = backend.await;
    let gateway = Box::pin(gateway_of(&backend)).await;
    let mut first = connect(&gateway, "", "t").await;
    eventually(|| backend.count("connect") == 1, "the first token is asked about").await;
    let mut second = connect(&gateway, "", "t").await;
    eventually(|| saved(&gateway, "connect", "joined") == 1, "the second question joins").await;
    open.send(true).unwrap();
    first.welcome().await;
    second.welcome().await;
    let mut third = connect(&gateway, "", "t").await;
    third.welcome().await;
    assert_eq!(saved(&gateway, "connect", "cached"), 1);
    assert_eq!(backend.count("connect"), 1);
    // Another configuration asks anew.
    let mut config = config();
    config.auth.anonymous = Some(false);
    backend.serves(&mut config);
    config.hooks.connect.upstream = "api".to_owned();
    config.hooks.connect.timeout = Duration::from_secs(3);
    gateway.handle().reload(config).await.unwrap();
    let mut fourth = connect(&gateway, "", "t").await;
    fourth.welcome().await;
    assert_eq!(backend.count("connect"), 2);
    // And so does a device that is revoked.
    let kept = |report: &weir::MemoryReport| {
        report.heap.iter().find(|part| part.name == "hook_answers").map(|part| part.count)
    };
    assert_eq!(kept(&gateway.handle().memory().await.unwrap()), Some(1));
    gateway.handle().revoke("van-7").await.unwrap();
    fourth.expect_goodbye(CloseReason::Revoked).await;
    assert_eq!(kept(&gateway.handle().memory().await.unwrap()), Some(0));
    let mut fifth = connect(&gateway, "", "t").await;
    fifth.welcome().await;
    assert_eq!(backend.count("connect"), 3);
    gateway.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_does_not_answer_makes_devices_come_back() {
    let backend = Backend::start(|_| Reply::Never).await;
    let mut config = config();
    config.auth.anonymous = Some(false);
    backend.serves(&mut config);
    config.hooks.connect.upstream = "api".to_owned();
    config.hooks.connect.timeout = MOMENT;
    config.hooks.connect.in_flight_max = 1;
    let gateway = start(config.clone()).await;
    let mut van = connect(&gateway, "", "t").await;
    van.expect_goodbye(CloseReason::StoreUnavailable).await;
    assert_eq!(questions(&gateway, "connect", "timed_out"), 1);
    config.hooks.connect.timeout = Duration::from_secs(60);
    gateway.handle().reload(config).await.unwrap();
    let _waits = connect(&gateway, "", "t").await;
    eventually(|| backend.count("connect") == 2, "the question is in flight").await;
    let mut full = connect(&gateway, "", "u").await;
    full.expect_goodbye(CloseReason::StoreUnavailable).await;
    assert_eq!(questions(&gateway, "connect", "full"), 1);
    assert_eq!(super::metric(&gateway, "weir_hook_questions_in_flight{hook=\"connect\"}"), 1);
    gateway.shutdown().await;
}
