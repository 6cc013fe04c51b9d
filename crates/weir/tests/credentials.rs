//! Credentials that have to be asked for, that end, and that are withdrawn meanwhile.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "it serves other tests too")]
mod common;
mod tokens;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{Hears, Peer, Says, config, eventually, hello, start_with};
use tokens::{Tokens, name, now_ms};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use weir::{
    Actor, AuthKind, AuthOutcome, CloseReason, Config, Gateway, RefreshOutcome, TokenConfig,
    TopicClass,
};
use weir_engine::Share;
use weir_store::State;
use weir_wire::v1::{Refresh, Subscribe};

const PATIENCE: Duration = Duration::from_secs(20);

async fn start(tokens: &Arc<Tokens>, config: Config) -> Gateway {
    start_with(Gateway::builder().config(config).tokens(Arc::clone(tokens) as _)).await
}

/// Without anonymous devices, with one label and HTTP.
fn strict() -> Config {
    let mut config = config();
    config.auth.anonymous = Some(false);
    config.auth.tokens = vec![TokenConfig { token: "static".to_owned(), ..TokenConfig::default() }];
    config.listen.http = vec!["127.0.0.1:0".parse().unwrap()];
    config.topic_classes = vec![TopicClass {
        pattern: "road/*".to_owned(),
        subscribe: vec![Actor::parse("label:role=driver").unwrap()],
        ..TopicClass::default()
    }];
    config
}

async fn says_hello(gateway: &Gateway, device: &str, token: &str) -> Peer {
    let mut peer = Peer::connect(gateway).await;
    peer.say(hello(device, token, &[])).await;
    peer
}

fn refresh(token: &str) -> Says {
    Says::Refresh(Refresh { token: name(token) })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_asked_for_admits_its_device_alone() {
    let tokens = Tokens::new();
    tokens.add("one", "van-7", Duration::from_secs(3600));
    let gateway = start(&tokens, strict()).await;
    for device in ["", "van-7"] {
        let mut peer = says_hello(&gateway, device, &name("one")).await;
        peer.welcome().await;
        // Its columns are labels.
        let topic = "road/1".to_owned();
        peer.say(Says::Subscribe(Subscribe { topic, position: None, presence: false })).await;
        assert_eq!(peer.subscribed().await.0, "road/1");
    }
    for (device, token) in [("van-8", name("one")), ("", name("two")), ("van-7", name("two"))] {
        let mut peer = says_hello(&gateway, device, &token).await;
        peer.expect_goodbye(CloseReason::Unauthorized).await;
    }
    // What could be no token is not asked for, and neither is one of the configuration.
    let asked = tokens.asked();
    for token in ["x".repeat(21), "x".repeat(23), "x".repeat(21) + "=", "a.b.c".to_owned()] {
        let mut peer = says_hello(&gateway, "", &token).await;
        peer.expect_goodbye(CloseReason::Unauthorized).await;
    }
    says_hello(&gateway, "van-9", "static").await.welcome().await;
    assert_eq!(tokens.asked(), asked);
    let handle = gateway.handle();
    let count = |outcome| handle.counters().authentications(AuthKind::Device, outcome);
    assert_eq!((count(AuthOutcome::Accepted), count(AuthOutcome::Refused)), (2, 3));
    gateway.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_be_checked_is_told_to_come_back() {
    let tokens = Tokens::new();
    tokens.is_down.store(true, Ordering::SeqCst);
    let gateway = start(&tokens, strict()).await;
    let mut peer = says_hello(&gateway, "", &name("one")).await;
    match peer.hear().await {
        Some(Hears::Goodbye(goodbye)) => {
            assert_eq!((goodbye.code, &*goodbye.reason), (4106, "store_unavailable"));
            assert!(goodbye.retry_after_ms > 0);
        }
        other => panic!("{other:?}"),
    }
    for request in
        ["GET /v1/sse?topic=a", "GET /v1/topics/a/history", "POST /v1/publish", "GET /v1/connect"]
    {
        let answer = ask(&gateway, request, &name("one")).await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "{request}: {answer}");
        assert!(answer.to_lowercase().contains("\r\nretry-after: 2\r\n"), "{answer}");
        assert!(answer.contains("urn:problem-type:weir:store-unavailable"), "{answer}");
    }
    gateway.shutdown().await;
    // One that never answers is not waited for beyond the time of `Hello`, which has to be there before.
    let mut config = strict();
    config.connection.hello_timeout = Duration::from_secs(2);
    let gateway = start(&tokens, config).await;
    tokens.is_down.store(false, Ordering::SeqCst);
    tokens.gate.forget_permits(usize::MAX);
    let mut peer = says_hello(&gateway, "", &name("one")).await;
    let token = name("one");
    let answer = ask(&gateway, "GET /v1/sse?topic=a", &token);
    let ((), answer) = tokio::join!(peer.expect_goodbye(CloseReason::StoreUnavailable), answer);
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    gateway.shutdown().await;
}

/// What waits with a token for its answer is kept, so it stays charged.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_with_a_token_is_bounded() {
    let tokens = Tokens::new();
    tokens.gate.forget_permits(usize::MAX);
    let mut config = strict();
    config.connection.hello_timeout = Duration::from_secs(60);
    // A device's own token: its id is not looked up.
    config.auth.tokens.push(TokenConfig {
        token: "own".to_owned(),
        device: Some("d".into()),
        ..TokenConfig::default()
    });
    let gateway = start(&tokens, config).await;
    let handle = gateway.handle();
    let budget = handle.engine().budget();
    let names: Vec<String> = (0..64).map(|number| format!("{number:->200}")).collect();
    let topics: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut waiting = Vec::new();
    while budget.refused_of(Share::Unsettled) == 0 {
        assert!(waiting.len() < 1_000, "{} are taken", budget.used_of(Share::Unsettled));
        let mut peer = Peer::connect(&gateway).await;
        peer.say(hello("", &name("none"), &topics)).await;
        waiting.push(peer);
        let count = waiting.len() as u64;
        let is_heard = || tokens.asked() as u64 + budget.refused_of(Share::Unsettled) >= count;
        eventually(is_heard, "it is asked for, or refused").await;
    }
    // Each holds its topics, and there is room for one that asks for nothing.
    let held = 64 * (200 + size_of::<Subscribe>());
    assert!(budget.used_of(Share::Unsettled) >= (waiting.len() - 1) * held);
    assert!(budget.used_of(Share::Unsettled) <= budget.bytes_max_of(Share::Unsettled) / 2);
    assert!(waiting.pop().unwrap().hear().await.is_some(), "it is told");
    says_hello(&gateway, "d", "own").await.welcome().await;
    drop(waiting);
    tokens.gate.add_permits(1_000);
    eventually(|| budget.used_of(Share::Unsettled) == 0, "nothing is held").await;
    gateway.shutdown().await;
}

/// What an HTTP/1.1 request with a token is answered with, to the end or to as much as there is of it.
async fn ask(gateway: &Gateway, request: &str, token: &str) -> String {
    let mut stream = open(gateway, request, token).await;
    // Nothing more is asked, so the answer is the last one.
    stream.shutdown().await.unwrap();
    let mut heard = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut heard)).await.unwrap().unwrap();
    String::from_utf8(heard).unwrap()
}

async fn open(gateway: &Gateway, request: &str, token: &str) -> TcpStream {
    let mut stream = TcpStream::connect(gateway.http_addrs()[0]).await.unwrap();
    let upgrade = match request.ends_with("/v1/connect") {
        true => {
            "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: weir.v1.json\r\n"
        }
        false => "Connection: close\r\nContent-Type: application/json\r\nContent-Length: 0\r\n",
    };
    let said =
        format!("{request} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n{upgrade}\r\n");
    stream.write_all(said.as_bytes()).await.unwrap();
    stream
}

/// Reads until a text has come.
async fn hear(stream: &mut TcpStream, text: &str) -> String {
    let mut heard = Vec::new();
    let reading = async {
        loop {
            let so_far = String::from_utf8_lossy(&heard).into_owned();
            if so_far.contains(text) {
                return so_far;
            }
            assert!(stream.read_buf(&mut heard).await.unwrap() > 0, "no {text} in {so_far}");
        }
    };
    timeout(PATIENCE, reading).await.expect(text)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_in_takes_such_tokens() {
    let tokens = Tokens::new();
    tokens.add("one", "van-7", Duration::from_secs(3600));
    let gateway = start(&tokens, strict()).await;
    let request = "GET /v1/sse?topic=road%2F1";
    let mut events = open(&gateway, request, &name("one")).await;
    hear(&mut events, "event:subscribed").await;
    // One question a stream: what is known is not asked again.
    assert_eq!(tokens.asked(), 1);
    let mut socket = open(&gateway, "GET /v1/connect", &name("one")).await;
    hear(&mut socket, "HTTP/1.1 101 ").await;
    let answer = ask(&gateway, "GET /v1/topics/road%2F1/history", &name("one")).await;
    assert!(answer.contains("have no history"), "{answer}");
    for token in ["two", "one?"] {
        for request in [request, "GET /v1/connect", "POST /v1/publish"] {
            let answer = ask(&gateway, request, &name(token)).await;
            assert!(answer.starts_with("HTTP/1.1 401 "), "{request}: {answer}");
        }
    }
    let answer = ask(&gateway, "GET /v1/sse?device=van-8", &name("one")).await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    drop((events, socket));
    gateway.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_revoked_while_it_is_asked_for_does_not_survive() {
    let tokens = Tokens::new();
    tokens.add("one", "van-7", Duration::from_secs(3600));
    tokens.gate.forget_permits(usize::MAX);
    let gateway = start(&tokens, strict()).await;
    // By its token alone, by the id it claims too, and by HTTP.
    let mut unnamed = says_hello(&gateway, "", &name("one")).await;
    let mut named = says_hello(&gateway, "van-7", &name("one")).await;
    let mut events = open(&gateway, "GET /v1/sse", &name("one")).await;
    eventually(|| tokens.asked() == 3, "all have asked").await;
    // The store first, then the gateway: the answers that are on their way say otherwise.
    tokens.remove("one");
    gateway.handle().revoke("van-7").await.unwrap();
    tokens.gate.add_permits(1_000);
    unnamed.expect_goodbye(CloseReason::Revoked).await;
    named.expect_goodbye(CloseReason::Revoked).await;
    hear(&mut events, "\"reason\":\"revoked\"").await;
    says_hello(&gateway, "", &name("one")).await.expect_goodbye(CloseReason::Unauthorized).await;
    assert_eq!(gateway.handle().gauges().devices, 0);
    drop((unnamed, named, events));
    gateway.shutdown().await;
}

/// Runs a test of credentials that end: with a short life at first, and if it fails, with longer ones. So a slow machine
/// has time enough in the end, a fast one does not wait, and a defect fails with all of them.
async fn with_longer_lives<F: Future<Output = ()> + Send + 'static>(test: fn(Duration) -> F) {
    for life in [3, 9] {
        // What it panics with is shown.
        if tokio::spawn(test(Duration::from_secs(life))).await.is_ok() {
            return;
        }
    }
    test(Duration::from_secs(27)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_told_prolonged_and_ended() {
    with_longer_lives(|life| async move {
        let tokens = Tokens::new();
        let gateway = start(&tokens, strict()).await;
        // Told half-way: as long as that is what has to be done before the end may take.
        tokens.add("short", "van-7", life);
        let mut peer = says_hello(&gateway, "", &name("short")).await;
        peer.welcome().await;
        let Some(Hears::Expiring(expiring)) = peer.hear().await else { panic!("it is told") };
        let left = u128::from(expiring.expires_at_ms.saturating_sub(now_ms()));
        assert!((1..=life.as_millis()).contains(&left), "{left} ms are left");
        tokens.add("next", "van-7", life);
        peer.say(refresh("next")).await;
        let Some(Hears::Refreshed(refreshed)) = peer.hear().await else {
            panic!("it is prolonged")
        };
        assert!(refreshed.expires_at_ms > expiring.expires_at_ms);
        let Some(Hears::Expiring(expiring)) = peer.hear().await else { panic!("it is told again") };
        assert_eq!(expiring.expires_at_ms, refreshed.expires_at_ms);
        peer.expect_goodbye(CloseReason::Expired).await;
        assert!(now_ms() >= expiring.expires_at_ms);
        let handle = gateway.handle();
        assert_eq!(handle.counters().refreshes(RefreshOutcome::Prolonged), 1);
        assert_eq!(handle.counters().expiring_told(), 2);
        let closed = "weir_connections_closed_total{reason=\"expired\"} 1\n";
        eventually(|| handle.metrics().contains(closed), "the end is counted").await;
        gateway.shutdown().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_with_what_does_not_admit_the_device_changes_nothing() {
    let tokens = Tokens::new();
    tokens.add("one", "van-7", Duration::from_secs(3600));
    tokens.add("other", "van-8", Duration::from_secs(3600));
    let gateway = start(&tokens, strict()).await;
    let mut peer = says_hello(&gateway, "", &name("one")).await;
    peer.welcome().await;
    for token in ["other", "unknown"] {
        loop {
            peer.say(refresh(token)).await;
            let error = peer.error().await;
            // Once a second.
            if error.code != "rate_limited" {
                assert_eq!((error.code.as_str(), error.request), ("not_permitted", 0), "{error:?}");
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    let handle = gateway.handle();
    assert_eq!(handle.counters().refreshes(RefreshOutcome::Refused), 2);
    drop(peer);
    gateway.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_reads_events_is_told_and_ended() {
    with_longer_lives(|life| async move {
        let tokens = Tokens::new();
        let gateway = start(&tokens, strict()).await;
        tokens.add("short", "van-7", life);
        let mut events = open(&gateway, "GET /v1/sse?topic=road%2F1", &name("short")).await;
        let told = hear(&mut events, "event:expiring").await;
        let at = |text: &str| told.find(text).unwrap_or_else(|| panic!("no {text} in {told}"));
        assert!(at("event:subscribed") < at("event:expiring"), "{told}");
        let ended = hear(&mut events, "\"reason\":\"expired\"").await;
        assert!(ended.contains("event:goodbye"), "{ended}");
        gateway.shutdown().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refresh_of_what_does_not_end_is_refused_and_of_one_in_doubt_put_off() {
    let tokens = Tokens::new();
    tokens.add("one", "van-7", Duration::from_secs(3600));
    let gateway = start(&tokens, strict()).await;
    let mut peer = says_hello(&gateway, "van-9", "static").await;
    peer.welcome().await;
    peer.say(refresh("one")).await;
    assert_eq!(peer.error().await.code, "not_supported");
    let mut peer = says_hello(&gateway, "", &name("one")).await;
    peer.welcome().await;
    tokens.is_down.store(true, Ordering::SeqCst);
    tokens.gate.forget_permits(usize::MAX);
    peer.say(refresh("one")).await;
    eventually(|| tokens.asked() == 2, "it is asked for").await;
    // The dispatcher does not wait with it.
    peer.say(refresh("one")).await;
    let error = peer.error().await;
    assert_eq!((error.code.as_str(), error.request), ("busy", 0));
    let topic = "road/1".to_owned();
    peer.say(Says::Subscribe(Subscribe { topic, position: None, presence: false })).await;
    assert_eq!(peer.subscribed().await.0, "road/1");
    tokens.gate.add_permits(1_000);
    let error = peer.error().await;
    assert_eq!(error.code, "busy", "{error:?}");
    tokens.is_down.store(false, Ordering::SeqCst);
    // A token that does not end prolongs it for good.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    peer.say(Says::Refresh(Refresh { token: "static".to_owned() })).await;
    let Some(Hears::Refreshed(refreshed)) = peer.hear().await else { panic!("it is prolonged") };
    assert_eq!(refreshed.expires_at_ms, 0);
    drop(peer);
    gateway.shutdown().await;
}

/// Whoever may claim any id waits for what knows ids; without an answer he is told to come back, and never let in.
#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_cannot_be_looked_up_is_not_given_away() {
    let tokens = Tokens::new();
    tokens.add("one", "van-7", Duration::from_secs(3600));
    tokens.known.lock().unwrap().insert("van-7".to_owned(), State::Active);
    let mut config = strict();
    config.auth.anonymous = Some(true);
    let gateway = start(&tokens, config.clone()).await;
    tokens.is_down.store(true, Ordering::SeqCst);
    for token in ["static", ""] {
        for device in ["van-7", "van-8"] {
            let mut peer = says_hello(&gateway, device, token).await;
            peer.expect_goodbye(CloseReason::StoreUnavailable).await;
        }
    }
    let answer = ask(&gateway, "GET /v1/sse?device=van-7&topic=a", "static").await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    // A request that claims no id needs no answer.
    let answer = ask(&gateway, "GET /v1/topics/a/history", "static").await;
    assert!(answer.contains("have no history"), "{answer}");
    tokens.is_down.store(false, Ordering::SeqCst);
    says_hello(&gateway, "van-8", "static").await.welcome().await;
    says_hello(&gateway, "van-7", "static").await.expect_goodbye(CloseReason::Unauthorized).await;
    says_hello(&gateway, "van-7", &name("one")).await.welcome().await;
    let handle = gateway.handle();
    let count = |outcome| handle.counters().authentications(AuthKind::Token, outcome);
    assert_eq!((count(AuthOutcome::Stored), count(AuthOutcome::Unavailable)), (1, 3));
    gateway.shutdown().await;
    // One that never answers is not waited for beyond the time of `Hello`.
    config.connection.hello_timeout = Duration::from_secs(2);
    let gateway = start(&tokens, config).await;
    tokens.gate.forget_permits(usize::MAX);
    says_hello(&gateway, "d", "static").await.expect_goodbye(CloseReason::StoreUnavailable).await;
    gateway.shutdown().await;
}

/// A device that is revoked while its id is looked up is out, as while its token is.
#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_is_revoked_while_it_is_looked_up_is_not_given_away() {
    let tokens = Tokens::new();
    tokens.gate.forget_permits(usize::MAX);
    let gateway = start(&tokens, strict()).await;
    let mut peer = says_hello(&gateway, "van-8", "static").await;
    eventually(|| tokens.looked_up.load(Ordering::SeqCst) == 1, "it is looked up").await;
    gateway.handle().revoke("van-8").await.unwrap();
    tokens.gate.add_permits(1_000);
    peer.expect_goodbye(CloseReason::Revoked).await;
    drop(peer);
    gateway.shutdown().await;
}

/// A JWT of HS256 that nobody has signed.
fn forged(number: usize) -> String {
    format!("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJkIiwiZXhwIjo0MTAyNDQ0ODAwfQ.{number:043}")
}

/// As signed with `SECRET`, for `user-7`, until the year 2100.
const SIGNED: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJ1c2VyLTciLCJleHAiOjQxMDI0NDQ4MDB9.ppbPv3VnDgRRWiPwfpHe-08yAbZLB1Hw6SPC7fEQ6IU";
const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// Tokens that are forged cost a source its attempts, and nobody else anything.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_verifies_and_asks_for_so_many_wrong_tokens() {
    const BURST: u32 = 20;
    const FLOOD: usize = 100;
    let tokens = Tokens::new();
    tokens.add("one", "van-7", Duration::from_secs(3600));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("jwt.key");
    std::fs::write(&file, SECRET).unwrap();
    let mut config = strict();
    config.auth.jwt.keys =
        vec![weir::JwtKeyConfig { kid: None, algorithm: weir::JwtAlgorithm::Hs256, file }];
    (config.auth.failures_per_source_per_second, config.auth.failures_per_source_burst) =
        (1, BURST);
    let gateway = start(&tokens, config).await;
    // Valid ones do not count, however many; what was verified is known.
    for _ in 0..2 * BURST {
        says_hello(&gateway, "", SIGNED).await.welcome().await;
        says_hello(&gateway, "", &name("one")).await.welcome().await;
    }
    let handle = gateway.handle();
    assert_eq!(handle.counters().verifications(), 1);
    let (asked, mut limited) = (tokens.asked(), 0);
    for number in 0..FLOOD {
        let token = if number % 2 == 0 { forged(number) } else { name(&number.to_string()) };
        if number % 4 < 2 {
            let mut peer = says_hello(&gateway, "", &token).await;
            match peer.hear().await {
                Some(Hears::Goodbye(goodbye)) if goodbye.code == 4105 => {
                    assert!(goodbye.retry_after_ms > 0);
                    limited += 1;
                }
                Some(Hears::Goodbye(goodbye)) => assert_eq!(goodbye.code, 4200, "{goodbye:?}"),
                other => panic!("{other:?}"),
            }
            continue;
        }
        let requests = ["POST /v1/publish", "GET /v1/sse?topic=a", "GET /v1/connect"];
        let answer = ask(&gateway, requests[number / 4 % 3], &token).await;
        if answer.starts_with("HTTP/1.1 429 ") {
            assert!(answer.to_lowercase().contains("\r\nretry-after: "), "{answer}");
            assert!(answer.contains("auth.failures_per_source_per_second"), "{answer}");
            limited += 1;
        } else {
            assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
        }
    }
    let count = |kind, outcome| handle.counters().authentications(kind, outcome);
    let of_both = |outcome| count(AuthKind::Jwt, outcome) + count(AuthKind::Device, outcome);
    let verified = usize::try_from(handle.counters().verifications() - 1).unwrap();
    let worked = verified + tokens.asked() - asked;
    assert_eq!(of_both(AuthOutcome::Limited), limited);
    assert_eq!(worked + usize::try_from(limited).unwrap(), FLOOD);
    // A slow machine forgives some.
    assert!((20..90).contains(&worked), "{worked}");
    // What is known here is let in from there nevertheless.
    says_hello(&gateway, "", SIGNED).await.welcome().await;
    says_hello(&gateway, "d", "static").await.welcome().await;
    gateway.shutdown().await;
}

/// A connection with credentials of its own does not become everlasting by those of nobody in particular.
#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_needs_the_devices_own_credentials_too() {
    let tokens = Tokens::new();
    tokens.add("one", "van-7", Duration::from_secs(3600));
    tokens.known.lock().unwrap().insert("van-7".to_owned(), State::Active);
    let gateway = start(&tokens, strict()).await;
    let mut peer = says_hello(&gateway, "", &name("one")).await;
    peer.welcome().await;
    peer.say(Says::Refresh(Refresh { token: "static".to_owned() })).await;
    assert_eq!(peer.error().await.code, "not_permitted");
    drop(peer);
    gateway.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nobody_is_to_be_asked_an_unknown_token_is_none() {
    let gateway = common::start(strict()).await;
    says_hello(&gateway, "d", &name("one")).await.expect_goodbye(CloseReason::Unauthorized).await;
    gateway.shutdown().await;
}
