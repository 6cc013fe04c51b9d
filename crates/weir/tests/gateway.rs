//! A running gateway and real sockets: what devices and publishers see.

mod common;

use std::time::Duration;

use common::{Hears, Peer, Says, config, encode, eventually, hello, start, start_with};
use tokio::io::AsyncWriteExt;
use weir::{Gateway, Payload, Publication, Target, TokenConfig};
use weir_wire::CloseReason;
use weir_wire::v1::{Ping, Publish, Refresh, Subscribe, Unsubscribe, publish};

fn text<'a>(target: Target<'a>, text: &'a str) -> Publication<'a> {
    Publication {
        target,
        payload: Payload::Text(text),
        content_type: "",
        key: "",
        ttl: None,
        sender: None,
        idempotency_key: None,
    }
}

#[tokio::test]
async fn a_message_reaches_topic_device_and_all() {
    let gateway = start(config()).await;
    let handle = gateway.handle();
    let mut first = Peer::settled(&gateway, "d1", &["news"]).await;
    let mut second = Peer::settled(&gateway, "d2", &["news", "more"]).await;

    let accepted = handle.publish(&text(Target::Topic("news"), "one")).unwrap().await.unwrap();
    assert_eq!((accepted.offset, accepted.connections), (Some(1), 2));
    for peer in [&mut first, &mut second] {
        let push = peer.push().await;
        assert_eq!((push.topic.as_str(), push.offset, push.message_id), ("news", 1, accepted.id));
    }
    let accepted = handle.publish(&text(Target::Device("d2"), "two")).unwrap().await.unwrap();
    assert_eq!((accepted.offset, accepted.connections), (None, 1));
    let push = second.push().await;
    assert_eq!((push.topic.as_str(), push.offset, push.message_id), ("", 0, accepted.id));

    let accepted = handle.publish(&text(Target::All, "three")).unwrap().await.unwrap();
    assert_eq!(accepted.connections, 2);
    assert_eq!(first.push().await.message_id, accepted.id);
    assert_eq!(second.push().await.message_id, accepted.id);

    for target in [Target::Topic("nobody"), Target::Device("nobody")] {
        let accepted = handle.publish(&text(target, "four")).unwrap().await.unwrap();
        assert_eq!((accepted.offset, accepted.connections), (None, 0));
    }
    gateway.shutdown().await;
}

#[tokio::test]
async fn a_topic_begins_with_its_first_subscriber_and_ends_with_its_last() {
    let gateway = start(config()).await;
    let handle = gateway.handle();
    let mut peer = Peer::settled(&gateway, "d1", &[]).await;
    for round in 0..3 {
        peer.say(Says::Subscribe(Subscribe {
            topic: "t".to_owned(),
            position: None,
            presence: false,
        }))
        .await;
        assert_eq!(peer.subscribed().await, ("t".to_owned(), 0), "round {round}");
        handle.publish(&text(Target::Topic("t"), "x")).unwrap().await.unwrap();
        assert_eq!(peer.push().await.offset, 1);
        // Once more: the position, but no second membership.
        peer.say(Says::Subscribe(Subscribe {
            topic: "t".to_owned(),
            position: None,
            presence: false,
        }))
        .await;
        assert_eq!(peer.subscribed().await.1, 1);
        let is_one = || handle.topics("", None, 10).iter().all(|topic| topic.subscribers == 1);
        eventually(is_one, "one membership").await;
        peer.say(Says::Unsubscribe(Unsubscribe { topic: "t".to_owned() })).await;
        let Some(Hears::Unsubscribed(left)) = peer.hear().await else { panic!("unsubscribed") };
        assert_eq!((left.topic.as_str(), left.reason.as_str(), left.position), ("t", "", None));
        eventually(|| handle.gauges().topics == 0, "the topic ends").await;
    }
    peer.say(Says::Unsubscribe(Unsubscribe { topic: "t".to_owned() })).await;
    assert!(matches!(peer.hear().await, Some(Hears::Unsubscribed(_))));
    gateway.shutdown().await;
}

#[tokio::test]
async fn the_newest_connection_of_a_device_wins() {
    let gateway = start(config()).await;
    let handle = gateway.handle();
    let mut old = Peer::settled(&gateway, "d", &["t"]).await;
    let mut new = Peer::settled(&gateway, "d", &["t"]).await;
    old.expect_goodbye(CloseReason::Replaced).await;
    drop(old);
    eventually(|| handle.topics("t", None, 1)[0].subscribers == 1, "the old one has left").await;
    assert_eq!(handle.device("d").await.unwrap().unwrap().len(), 1);
    assert_eq!(
        handle.publish(&text(Target::Device("d"), "x")).unwrap().await.unwrap().connections,
        1
    );
    new.push().await;
    gateway.shutdown().await;
}

#[tokio::test]
async fn what_is_no_hello_is_refused_with_its_reason() {
    let mut config = config();
    config.auth.tokens = vec![TokenConfig {
        token: "secret".to_owned(),
        device: Some("d1".to_owned()),
        ..TokenConfig::default()
    }];
    let patient = start(config.clone()).await;
    // For those alone who say too little.
    config.connection.hello_timeout = Duration::from_secs(1);
    let hasty = start(config).await;
    for (bytes, reason) in [
        (encode(Says::Ping(Ping::default())), CloseReason::Malformed),
        (vec![0xff, 0xff, 0xff, 0xff, 0x0f], CloseReason::FrameTooLarge),
        (vec![0xff, 0xff, 0xff, 0xff, 0xff], CloseReason::Malformed),
        (vec![3, 0xff, 0xff, 0xff], CloseReason::Malformed),
        (encode(hello("", "", &[])), CloseReason::Malformed),
        (encode(hello("d2", "wrong", &[])), CloseReason::Unauthorized),
        (encode(hello("d2", "secret", &[])), CloseReason::Unauthorized),
        (encode(hello("d1", "", &[])), CloseReason::Unauthorized),
        (encode(hello("d2", "", &[]))[..3].to_vec(), CloseReason::HelloTimeout),
        (Vec::new(), CloseReason::HelloTimeout),
    ] {
        let gateway = if reason == CloseReason::HelloTimeout { &hasty } else { &patient };
        let before = gateway.handle().counters().closed(reason);
        let mut peer = Peer::connect(gateway).await;
        peer.stream.write_all(&bytes).await.unwrap();
        peer.expect_goodbye(reason).await;
        assert_eq!(gateway.handle().counters().closed(reason), before + 1, "{bytes:?}");
    }
    for gateway in [patient, hasty] {
        eventually(|| gateway.handle().counters().unsettled() == 0, "all places are free").await;
        assert_eq!(gateway.handle().gauges().devices, 0);
        assert_eq!(gateway.handle().engine().budget().used(), 0);
        gateway.shutdown().await;
    }
}

#[tokio::test]
async fn hello_may_come_byte_by_byte_and_with_more_behind_it() {
    let gateway = start(config()).await;
    let mut peer = Peer::connect(&gateway).await;
    peer.stream.set_nodelay(true).unwrap();
    let mut bytes = encode(hello("d", "", &["a"]));
    bytes.extend(encode(Says::Subscribe(Subscribe {
        topic: "b".to_owned(),
        position: None,
        presence: false,
    })));
    let (begin, end) = bytes.split_at(6);
    for byte in begin {
        peer.stream.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    peer.stream.write_all(end).await.unwrap();
    let welcome = peer.welcome().await;
    assert_eq!(welcome.heartbeat_ms, 60_000);
    assert_eq!(peer.subscribed().await.0, "a");
    assert_eq!(peer.subscribed().await.0, "b");
    gateway.shutdown().await;
}

#[tokio::test]
async fn the_heartbeat_is_agreed() {
    let gateway = start(config()).await;
    for (wished, agreed) in [(0, 60_000), (1, 15_000), (30_000, 30_000), (u32::MAX, 900_000)] {
        let mut peer = Peer::connect(&gateway).await;
        let Says::Hello(mut hello) = hello("d", "", &[]) else { unreachable!() };
        hello.heartbeat_ms = wished;
        peer.say(Says::Hello(hello)).await;
        assert_eq!(peer.welcome().await.heartbeat_ms, agreed);
    }
    gateway.shutdown().await;
}

#[tokio::test]
async fn what_cannot_be_done_is_answered_and_the_connection_stays() {
    let mut config = config();
    config.limits.topics_max = 2;
    config.limits.topics_per_connection_max = 3;
    config.auth.tokens =
        vec![TokenConfig { token: "secret".to_owned(), device: None, ..TokenConfig::default() }];
    let gateway = start(config).await;
    let mut peer = Peer::settled(&gateway, "d", &["a", "b"]).await;
    let subscribe = |topic: &str| {
        Says::Subscribe(Subscribe { topic: topic.to_owned(), position: None, presence: false })
    };
    for (says, code) in [
        (subscribe("c"), "too_many_topics"),
        (subscribe(""), "topic_name"),
        (subscribe("a\nb"), "topic_name"),
        (subscribe("a/*"), "topic_name"),
        (subscribe(&"x".repeat(256)), "topic_name"),
        (hello("d", "", &[]), "already_greeted"),
        (Says::Refresh(Refresh::default()), "not_supported"),
        (Says::Publish(Publish { topic: "a".to_owned(), ..Publish::default() }), "not_permitted"),
    ] {
        peer.say(says.clone()).await;
        let error = peer.error().await;
        assert_eq!(error.code, code, "{says:?}: {}", error.message);
    }
    peer.say(Says::Ping(Ping { data: b"alive".to_vec() })).await;
    assert!(matches!(peer.hear().await, Some(Hears::Pong(_))));
    let mut many = Peer::connect(&gateway).await;
    many.say(hello("e", "", &["a", "b", "a", "b", "a"])).await;
    many.welcome().await;
    for topic in ["a", "b", "a"] {
        assert_eq!(many.subscribed().await.0, topic);
    }
    assert_eq!(many.error().await.code, "too_many_topics");
    let metrics = gateway.handle().metrics();
    for (cause, count) in [("topics_max", 1), ("topics_per_connection_max", 1), ("topic_name", 4)] {
        let line = format!("weir_subscribe_refused_total{{cause=\"{cause}\"}} {count}\n");
        assert!(metrics.contains(&line), "no {line} in {metrics}");
    }
    gateway.shutdown().await;
}

#[tokio::test]
async fn what_a_shard_refuses_is_counted_too() {
    let mut config = config();
    config.limits.topics_per_connection_max = 1;
    let gateway = start(config).await;
    let mut peer = Peer::settled(&gateway, "d", &["a"]).await;
    peer.say(Says::Subscribe(Subscribe { topic: "b".to_owned(), position: None, presence: false }))
        .await;
    assert_eq!(peer.error().await.code, "too_many_topics");
    let line = "weir_subscribe_refused_total{cause=\"topics_per_connection_max\"} 1\n";
    assert!(gateway.handle().metrics().contains(line));
    gateway.shutdown().await;
}

#[tokio::test]
async fn what_devices_publish_goes_to_the_program() {
    let builder = Gateway::builder().config(config()).on_publish(|message| {
        assert_ne!(message.key, "panic", "on purpose");
        Ok(Some(message.publish()?))
    });
    let gateway = start_with(builder).await;
    let mut peer = Peer::settled(&gateway, "d", &["t"]).await;
    let publish = |topic: &str, key: &str, request| {
        Says::Publish(Publish {
            topic: topic.to_owned(),
            key: key.to_owned(),
            request,
            payload: Some(publish::Payload::Text("hi".to_owned())),
            ..Publish::default()
        })
    };
    peer.say(publish("t", "k", 7)).await;
    let (mut published, mut push) = (None, None);
    for _ in 0..2 {
        match peer.hear().await {
            Some(Hears::Published(heard)) => published = Some(heard),
            Some(Hears::Push(heard)) => push = Some(heard),
            other => panic!("{other:?}"),
        }
    }
    let (published, push) = (published.unwrap(), push.unwrap());
    assert_eq!((published.request, published.offset, published.connections), (7, 1, 1));
    assert_eq!((push.message_id, push.key.as_str()), (published.message_id, "k"));
    let connections = gateway.handle().device("d").await.unwrap().unwrap();
    assert_eq!(push.sender, connections[0].info.id.to_u64());
    peer.say(publish("t", "", 0)).await;
    assert_eq!(peer.push().await.offset, 2);
    peer.say(publish("a*", "", 8)).await;
    let error = peer.error().await;
    assert_eq!((error.code.as_str(), error.request), ("topic_name", 8));
    peer.say(publish("t", "panic", 9)).await;
    assert_eq!(peer.error().await.code, "busy");
    gateway.shutdown().await;
}

#[tokio::test]
async fn connections_are_listed_found_closed_and_revoked() {
    let gateway = start(config()).await;
    let handle = gateway.handle();
    let mut peers = Vec::new();
    for index in 0..7 {
        let topics: &[&str] = if index % 2 == 0 { &["even"] } else { &[] };
        peers.push(Peer::settled(&gateway, &format!("d{index}"), topics).await);
    }
    let mut query = weir::ConnectionQuery { limit: 2, ..Default::default() };
    let mut devices = Vec::new();
    loop {
        let (page, cursor) = handle.connections(&query).await.unwrap();
        assert!(page.len() <= 2);
        devices.extend(page.into_iter().map(|connection| connection.device));
        match cursor {
            Some(_) => query.cursor = cursor,
            None => break,
        }
    }
    devices.sort();
    assert_eq!(devices, ["d0", "d1", "d2", "d3", "d4", "d5", "d6"]);
    let topic = Some("even".to_owned());
    let query = weir::ConnectionQuery { limit: 100, topic, ..Default::default() };
    let (even, _) = handle.connections(&query).await.unwrap();
    assert_eq!(even.len(), 4);
    assert!(even.iter().all(|connection| connection.topics == ["even"]));

    let id = handle.device("d3").await.unwrap().unwrap()[0].info.id;
    assert_eq!(handle.connection(id).await.unwrap().unwrap().device, "d3");
    assert!(handle.close(id).await.unwrap());
    peers[3].expect_goodbye(CloseReason::ClosedByOperator).await;
    assert!(handle.revoke("d4").await.unwrap());
    peers[4].expect_goodbye(CloseReason::Revoked).await;
    eventually(|| handle.gauges().devices == 5, "both are gone").await;
    assert!(!handle.close(id).await.unwrap() && !handle.revoke("d4").await.unwrap());
    assert!(handle.device("d4").await.unwrap().is_none());
    assert!(handle.connection(id).await.unwrap().is_none());
    // It may come back: its credentials are still good.
    Peer::settled(&gateway, "d4", &[]).await;
    gateway.shutdown().await;
}

#[tokio::test]
async fn beyond_the_limits_a_connection_is_told_to_come_later() {
    let mut config = config();
    config.limits.connections_max = 2;
    config.limits.unsettled_connections_max = 1;
    config.connection.hello_timeout = Duration::from_secs(60);
    let gateway = start(config).await;
    let handle = gateway.handle();
    let silent = Peer::connect(&gateway).await;
    eventually(|| handle.counters().unsettled() == 1, "one is unsettled").await;
    Peer::connect(&gateway).await.expect_goodbye(CloseReason::TooManyConnections).await;
    drop(silent);
    eventually(|| handle.counters().unsettled() == 0, "it has gone").await;

    let first = Peer::settled(&gateway, "d1", &[]).await;
    let _second = Peer::settled(&gateway, "d2", &[]).await;
    let mut third = Peer::connect(&gateway).await;
    third.say(hello("d3", "", &[])).await;
    match third.hear().await {
        Some(Hears::Goodbye(goodbye)) => {
            assert!((1_000..=10_000).contains(&goodbye.retry_after_ms))
        }
        other => panic!("{other:?}"),
    }
    drop((first, third));
    eventually(|| handle.gauges().devices == 1, "the first has gone").await;
    eventually(|| handle.counters().unsettled() == 0, "the third has gone").await;
    Peer::settled(&gateway, "d3", &[]).await;
    gateway.shutdown().await;
}

#[tokio::test]
async fn draining_says_goodbye_to_all() {
    let gateway = start(config()).await;
    let handle = gateway.handle();
    assert!(handle.is_ready());
    let mut settled = Peer::settled(&gateway, "d", &["t"]).await;
    let mut silent = Peer::connect(&gateway).await;
    eventually(|| handle.counters().unsettled() == 1, "one is unsettled").await;
    let told = tokio::spawn(async move {
        settled.expect_goodbye(CloseReason::Draining).await;
        drop(settled);
        silent.expect_goodbye(CloseReason::Draining).await;
    });
    let addr = gateway.tcp_addrs()[0];
    gateway.shutdown().await;
    told.await.unwrap();
    assert!(!handle.is_ready());
    assert!(tokio::net::TcpStream::connect(addr).await.is_err());
}

#[tokio::test]
async fn ipv6_and_both_at_once() {
    let mut config = config();
    config.listen.tcp = vec!["[::1]:0".parse().unwrap(), "127.0.0.1:0".parse().unwrap()];
    match Gateway::builder().config(config).start().await {
        Ok(gateway) => {
            for addr in gateway.tcp_addrs() {
                tokio::net::TcpStream::connect(addr).await.unwrap();
            }
            gateway.shutdown().await;
        }
        // A machine without IPv6 says so.
        Err(error) => assert!(error.to_string().starts_with("listen.tcp: "), "{error}"),
    }
}
