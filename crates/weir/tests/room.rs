//! Topic classes over real sockets: rates, ticks, conflation, and coming back.

#[expect(dead_code, reason = "it serves other tests too")]
mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Hears, Peer, Says, config, eventually, start, start_with};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use weir::{
    Accepted, Config, Gateway, Payload, Publication, PublishError, RefuseCause, ResumeOutcome,
    Target, TopicClass,
};
use weir_wire::CloseReason;
use weir_wire::v1::{Hello, Position, Publish, Push, Subscribe, Subscribed};

/// One class for the topics in `room/`.
fn config_of(class: TopicClass) -> Config {
    let class = TopicClass { pattern: "room/*".to_owned(), ..class };
    Config { topic_classes: vec![class], ..config() }
}

fn publish(gateway: &Gateway, key: &str, text: &str) -> Result<Accepted, PublishError> {
    let publishing = gateway.handle().publish(&Publication {
        target: Target::Topic("room/1"),
        payload: Payload::Text(text),
        content_type: "",
        key,
        ttl: None,
        sender: None,
        idempotency_key: None,
    });
    publishing.map(|publishing| publishing.accepted().expect("there is no broker"))
}

/// The messages of ticks until the one with this offset, each with its topic.
async fn pushes(peer: &mut Peer, last_offset: u64) -> Vec<Push> {
    let mut pushes = Vec::<Push>::new();
    while pushes.last().is_none_or(|push| push.offset < last_offset) {
        match peer.hear().await {
            Some(Hears::Push(push)) => pushes.push(push),
            Some(Hears::Batch(batch)) => {
                assert_eq!(
                    batch.messages.first().map(|push| push.offset),
                    Some(batch.first_offset)
                );
                assert_eq!(batch.messages.last().map(|push| push.offset), Some(batch.last_offset));
                let topic = batch.topic;
                pushes.extend(batch.messages.into_iter().map(|push| {
                    assert_eq!(push.topic, "");
                    Push { topic: topic.clone(), ..push }
                }));
            }
            other => panic!("no message but {other:?}"),
        }
    }
    pushes
}

#[tokio::test]
async fn a_tick_comes_whole_to_old_and_new() {
    // Long enough that all is published within one, whatever the machine does.
    let gateway =
        start(config_of(TopicClass { tick: Duration::from_secs(2), ..TopicClass::default() }))
            .await;
    let mut old = Peer::settled(&gateway, "d1", &["room/1"]).await;
    publish(&gateway, "k", "1").unwrap();
    let accepted = publish(&gateway, "k", "2").unwrap();
    assert_eq!((accepted.offset, accepted.connections), (Some(2), 1));
    let mut new = Peer::settled(&gateway, "d2", &["room/1"]).await;
    publish(&gateway, "", "3").unwrap();
    // On a machine so slow that the tick ended before it came, it has missed what had left.
    for (peer, least) in [(&mut old, 3), (&mut new, 1)] {
        let pushes = pushes(peer, 3).await;
        let offsets: Vec<u64> = pushes.iter().map(|push| push.offset).collect();
        assert!([1, 2, 3].ends_with(&offsets) && offsets.len() >= least, "{offsets:?}");
        assert!(pushes.iter().all(|push| push.topic == "room/1"));
    }
    assert_eq!(gateway.handle().counters().tick_messages(), 3);
    gateway.shutdown().await;
}

#[tokio::test]
async fn a_conflated_tick_holds_the_newest_of_each_key() {
    let gateway = start(config_of(TopicClass {
        tick: Duration::from_millis(50),
        conflation: true,
        ..TopicClass::default()
    }))
    .await;
    let mut peer = Peer::settled(&gateway, "d1", &["room/1"]).await;
    for round in 0..100 {
        for key in ["a", "b"] {
            publish(&gateway, key, &round.to_string()).unwrap();
        }
    }
    let heard = pushes(&mut peer, 200).await;
    assert!(heard.is_sorted_by_key(|push| push.offset));
    let conflated = gateway.handle().counters().tick_conflated();
    assert_eq!(heard.len() as u64 + conflated, 200);
    for (key, offset) in [("a", 199), ("b", 200)] {
        let newest = heard.iter().rfind(|push| push.key == key).unwrap();
        assert_eq!(newest.offset, offset);
    }
    gateway.shutdown().await;
}

#[tokio::test]
async fn what_a_tick_holds_leaves_before_the_goodbye() {
    let gateway =
        start(config_of(TopicClass { tick: Duration::from_secs(60), ..TopicClass::default() }))
            .await;
    let mut peer = Peer::settled(&gateway, "d1", &["room/1"]).await;
    for text in ["1", "2"] {
        publish(&gateway, "", text).unwrap();
    }
    gateway.shutdown().await;
    assert_eq!(pushes(&mut peer, 2).await.len(), 2);
    peer.expect_goodbye(CloseReason::Draining).await;
}

#[tokio::test]
async fn what_is_beyond_a_class_is_refused_with_its_limit() {
    let mut config = config_of(TopicClass {
        publishes_per_second: 1,
        publish_burst: 2,
        message_bytes_max: 100,
        ..TopicClass::default()
    });
    config.listen.admin = Some("127.0.0.1:0".parse().unwrap());
    let gateway = start(config).await;
    let mut peer = Peer::settled(&gateway, "d1", &["room/1"]).await;
    let error = publish(&gateway, "", &"x".repeat(100)).unwrap_err().to_string();
    assert!(error.contains("limit of 100") && error.contains("message_bytes_max"), "{error}");
    publish(&gateway, "", "1").unwrap();
    peer.push().await;
    // Two at once, and then one a second: nobody is so slow for long.
    let error = loop {
        if let Err(error) = publish(&gateway, "", "2") {
            break error;
        }
    };
    let PublishError::RateLimited { per_second: 1, after } = error else { panic!("{error}") };
    assert!(after <= Duration::from_secs(1));
    let answer = loop {
        let answer = post(&gateway, &json!({"topic": "room/1", "text": "3"}).to_string()).await;
        if !answer.starts_with("HTTP/1.1 200 ") {
            break answer;
        }
    };
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    assert!(answer.to_lowercase().contains("\r\nretry-after: 1\r\n"), "{answer}");
    assert!(answer.contains("urn:problem-type:weir:rate-limited"), "{answer}");
    assert!(answer.contains("1 messages a second"), "{answer}");
    let counters = gateway.handle();
    assert_eq!(counters.counters().refused(RefuseCause::RateLimited), 2);
    // Other topics have their own.
    let other = Publication {
        target: Target::Topic("hall"),
        payload: Payload::Text(&"x".repeat(100)),
        content_type: "",
        key: "",
        ttl: None,
        sender: None,
        idempotency_key: None,
    };
    for _ in 0..10 {
        drop(gateway.handle().publish(&other).unwrap());
    }
    drop(peer);
    eventually(|| gateway.handle().gauges().topics == 0, "the topic ends").await;
    gateway.shutdown().await;
}

#[tokio::test]
async fn a_device_that_outruns_the_topic_is_told_so() {
    let config = config_of(TopicClass {
        publishes_per_second: 1,
        publish_burst: 1,
        ..TopicClass::default()
    });
    let builder = Gateway::builder().config(config).on_publish(|message| {
        let accepted = message.publish()?;
        Ok(Some(accepted))
    });
    let gateway = start_with(builder).await;
    let mut peer = Peer::settled(&gateway, "d1", &[]).await;
    let mut other = Peer::settled(&gateway, "d2", &["room/1"]).await;
    for request in 1..=10 {
        let topic = "room/1".to_owned();
        peer.say(Says::Publish(Publish { topic, request, ..Publish::default() })).await;
    }
    assert_eq!(other.push().await.offset, 1);
    let mut published = 0;
    let error = loop {
        match peer.hear().await {
            Some(Hears::Published(_)) => published += 1,
            Some(Hears::Error(error)) => break error,
            other => panic!("no answer but {other:?}"),
        }
    };
    assert_eq!((published > 0, error.code.as_str()), (true, "rate_limited"));
    assert!(error.message.contains("1 messages a second"), "{}", error.message);
    gateway.shutdown().await;
}

/// Subscribes from a position on: by `Hello`, or afterwards.
async fn come_back(
    gateway: &Gateway,
    device: &str,
    position: Position,
    by_hello: bool,
) -> (Peer, Subscribed) {
    let subscribe =
        Subscribe { topic: "room/1".to_owned(), position: Some(position), presence: false };
    let mut peer = Peer::connect(gateway).await;
    let topics = if by_hello { vec![subscribe.clone()] } else { Vec::new() };
    peer.say(Says::Hello(Hello { device_id: device.to_owned(), topics, ..Hello::default() })).await;
    peer.welcome().await;
    if !by_hello {
        peer.say(Says::Subscribe(subscribe)).await;
    }
    match peer.hear().await {
        Some(Hears::Subscribed(subscribed)) => (peer, subscribed),
        other => panic!("no subscribed but {other:?}"),
    }
}

#[tokio::test]
async fn who_comes_back_gets_exactly_what_it_missed() {
    let class = TopicClass { retention_messages: 50, ..TopicClass::default() };
    let gateway = start(config_of(class.clone())).await;
    // It begins with its first message, and keeps it.
    assert_eq!(publish(&gateway, "", "1").unwrap().connections, 0);
    let epoch = gateway.handle().topics("", None, 1)[0].epoch;
    let check = async |offset, by_hello, recovered| {
        let position = Position { epoch, offset };
        let head = publish(&gateway, "", "missed").unwrap().offset.unwrap();
        let (mut peer, subscribed) = come_back(&gateway, "d1", position, by_hello).await;
        // Of what it may have missed the 50 messages come that are retained.
        let begin = if recovered { offset } else { head - 50 };
        assert_eq!(subscribed.recovered, recovered, "{offset} by hello: {by_hello}");
        assert_eq!(subscribed.position, Some(Position { epoch, offset: begin }));
        publish(&gateway, "", "live").unwrap();
        for expected in begin + 1..=head + 1 {
            assert_eq!(peer.push().await.offset, expected);
        }
    };
    check(0, true, true).await;
    check(1, false, true).await;
    check(3, true, true).await;
    for _ in 0..60 {
        publish(&gateway, "", "more").unwrap();
    }
    check(10, true, false).await;
    check(11, false, false).await;
    check(60, true, true).await;
    let counters = gateway.handle();
    let outcome = |outcome| counters.counters().resumes(outcome);
    assert_eq!((outcome(ResumeOutcome::Recovered), outcome(ResumeOutcome::NotRecovered)), (4, 2));
    let topic = &gateway.handle().topics("", None, 1)[0];
    assert_eq!((topic.class.as_str(), topic.retained_messages), ("room/*", 50));
    assert_eq!(gateway.handle().retained().messages, 50);
    gateway.shutdown().await;

    // Another start of the server is another epoch.
    let gateway = start(config_of(class)).await;
    for _ in 0..80 {
        publish(&gateway, "", "anew").unwrap();
    }
    for by_hello in [true, false] {
        let (_, subscribed) =
            come_back(&gateway, "d1", Position { epoch, offset: 60 }, by_hello).await;
        assert!(!subscribed.recovered);
        assert_eq!(subscribed.position.map(|position| position.offset), Some(30));
    }
    gateway.shutdown().await;
}

/// Twenty come back to a megabyte each while messages go on: part by part, and then live.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_comes_back_without_gap_or_duplicate() {
    const KEPT: u64 = 1_000;
    const LIVE: u64 = 200;
    let mut config = config_of(TopicClass {
        retention_messages: 2_000,
        retention_bytes: 8 << 20,
        ..TopicClass::default()
    });
    config.memory.retention_bytes = 8 << 20;
    let gateway = start(config).await;
    let text = "x".repeat(1_000);
    for _ in 0..KEPT {
        publish(&gateway, "", &text).unwrap();
    }
    let epoch = gateway.handle().topics("", None, 1)[0].epoch;
    let gateway = Arc::new(gateway);
    let mut storm = JoinSet::new();
    for index in 0..20 {
        let gateway = Arc::clone(&gateway);
        storm.spawn(async move {
            let position = Position { epoch, offset: index };
            let (mut peer, subscribed) =
                come_back(&gateway, &index.to_string(), position, index % 2 == 0).await;
            assert!(subscribed.recovered);
            for offset in index + 1..=KEPT + LIVE {
                assert_eq!(peer.push().await.offset, offset);
            }
        });
    }
    for _ in 0..LIVE {
        while publish(&gateway, "", &text).is_err() {
            tokio::task::yield_now().await;
        }
        tokio::task::yield_now().await;
    }
    while let Some(come) = storm.join_next().await {
        come.unwrap();
    }
    let counters = gateway.handle();
    assert_eq!(counters.counters().resumes(ResumeOutcome::Recovered), 20);
    Arc::into_inner(gateway).unwrap().shutdown().await;
}

#[tokio::test]
async fn a_topic_ends_when_all_that_it_kept_is_too_old() {
    let gateway = start(config_of(TopicClass {
        retention_messages: 50,
        retention_ttl: Duration::from_secs(1),
        ..TopicClass::default()
    }))
    .await;
    publish(&gateway, "", "1").unwrap();
    assert_eq!(gateway.handle().gauges().topics, 1);
    eventually(|| gateway.handle().gauges().topics == 0, "the topic ends").await;
    assert_eq!(gateway.handle().retained().bytes, 0);
    assert_eq!(gateway.handle().engine().budget().used(), 0);
    let metrics = gateway.handle().metrics();
    for line in
        ["weir_retained_messages 0", "weir_retained_bytes 0", "weir_retained_bytes_max 4194304"]
    {
        assert!(metrics.contains(&format!("{line}\n")), "no {line} in {metrics}");
    }
    gateway.shutdown().await;
}

async fn post(gateway: &Gateway, body: &str) -> String {
    let addr = gateway.admin_addr().expect("the test configures it");
    let mut stream = TcpStream::connect(addr).await.expect("it listens");
    let head = format!(
        "POST /v1/publish HTTP/1.1\r\nHost: {addr}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it answers");
    answer
}
