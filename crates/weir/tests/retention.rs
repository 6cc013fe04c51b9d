//! What keeps memory is named: by topic, device and connection, with its bytes and its age.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "it serves other tests too")]
mod common;

use std::time::Duration;

use common::{Peer, config, encode, eventually, hello, start};
use socket2::SockRef;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use weir::{Config, Gateway, Payload, Publication, Retainer, Target, TopicClass};
use weir_wire::v1::{Publish, publish};

static MESSAGE: [u8; 32 * 1024] = [7; 32 * 1024];
/// More than the kernel takes for a connection whose peer does not read.
const MESSAGES: usize = 30;

fn patient() -> Config {
    let mut config = config();
    config.connection.stall_timeout = Duration::from_secs(50);
    config.connection.frame_timeout = Duration::from_secs(60);
    config.topic_classes = vec![TopicClass {
        pattern: "kept/*".to_owned(),
        retention_messages: 5,
        ..TopicClass::default()
    }];
    config
}

async fn publish_to(gateway: &Gateway, topic: &str) {
    let publication = Publication {
        target: Target::Topic(topic),
        payload: Payload::Data(&MESSAGE),
        content_type: "",
        key: "",
        ttl: None,
        sender: None,
        idempotency_key: None,
    };
    gateway.handle().publish(&publication).unwrap().await.unwrap();
}

/// A device in a topic that reads nothing but its greeting. The kernel takes little for it.
async fn sleeper(gateway: &Gateway, device: &str, topic: &str) -> Peer {
    let stream = TcpStream::connect(gateway.tcp_addrs()[0]).await.unwrap();
    SockRef::from(&stream).set_recv_buffer_size(4096).unwrap();
    let mut peer = Peer::over(stream);
    peer.say(hello(device, "", &[topic])).await;
    peer.welcome().await;
    peer.subscribed().await;
    peer
}

/// The only retainer of a kind that fits.
async fn find(gateway: &Gateway, kind: &str, fits: impl Fn(&Retainer) -> bool) -> Retainer {
    let found = gateway.handle().retention(100).await.unwrap();
    let mut fitting = found.iter().filter(|retainer| retainer.kind == kind && fits(retainer));
    let retainer = fitting.next().unwrap_or_else(|| panic!("no {kind} in {found:#?}"));
    assert!(fitting.next().is_none(), "{found:#?}");
    retainer.clone()
}

/// Checks topic and device, that a connection of this device is named, and the least age.
async fn check(
    gateway: &Gateway,
    retainer: &Retainer,
    (topic, device): (Option<&str>, &str),
    age: Duration,
) {
    assert_eq!((retainer.topic.as_deref(), retainer.device.as_deref()), (topic, Some(device)));
    let named = gateway.handle().connection(retainer.connection.unwrap()).await.unwrap();
    assert_eq!(named.unwrap().device, device);
    assert!(retainer.age >= age && retainer.age < age + Duration::from_secs(40), "{retainer:?}");
}

/// Fails if one of what can grow is not listed, or under another name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_what_keeps_memory_is_named() {
    let gateway = start(patient()).await;
    // A topic with a slow member and a healthy one: the messages wait for the slow one alone.
    let _slow = sleeper(&gateway, "slow", "feed").await;
    let mut healthy = Peer::settled(&gateway, "healthy", &["feed"]).await;
    // Half a frame.
    let mut half = Peer::settled(&gateway, "half", &[]).await;
    let kind = publish::Payload::Data(MESSAGE.to_vec());
    let publish = Publish { topic: "feed".to_owned(), payload: Some(kind), ..Publish::default() };
    let frame = encode(common::Says::Publish(publish));
    half.stream.write_all(&frame[..20_000]).await.unwrap();
    // A ring that nobody asks for, and a subscription that nobody ends.
    publish_to(&gateway, "kept/a").await;
    let _forgetful = Peer::settled(&gateway, "forgetful", &["jobs/123"]).await;
    for _ in 0..MESSAGES {
        publish_to(&gateway, "feed").await;
        healthy.push().await;
    }
    let waits = || gateway.handle().engine().budget().used_of(weir_engine::Share::Waiting) > 0;
    eventually(waits, "messages wait for the slow one").await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let least = Duration::from_millis(1400);

    let outbox = find(&gateway, "outbox", |_| true).await;
    check(&gateway, &outbox, (Some("feed"), "slow"), least).await;
    assert!(outbox.bytes > MESSAGE.len());
    let message = find(&gateway, "message", |_| true).await;
    check(&gateway, &message, (Some("feed"), "slow"), least).await;
    assert!((MESSAGE.len()..2 * MESSAGE.len()).contains(&message.bytes), "{message:?}");
    let block = find(&gateway, "block", |_| true).await;
    check(&gateway, &block, (None, "half"), least).await;
    assert!((20_000..200_000).contains(&block.bytes), "{block:?}");
    let of_forgetful = |retainer: &Retainer| retainer.device.as_deref() == Some("forgetful");
    let subscription = find(&gateway, "subscription", of_forgetful).await;
    check(&gateway, &subscription, (Some("jobs/123"), "forgetful"), least).await;
    let ring = find(&gateway, "ring", |_| true).await;
    assert_eq!(ring.topic.as_deref(), Some("kept/a"));
    assert_eq!((ring.device.as_deref(), ring.connection), (None, None));
    assert!(ring.age >= least && ring.bytes > MESSAGE.len(), "{ring:?}");
    gateway.shutdown().await;
}

/// Fails if a shard or a kind has more than its part of the list, or newer ones displace older ones.
#[tokio::test]
async fn the_oldest_of_each_kind_are_listed_and_no_more() {
    let gateway = start(patient()).await;
    let first = Peer::settled(&gateway, "first", &["a"]).await;
    tokio::time::sleep(Duration::from_millis(2200)).await;
    let mut others = Vec::new();
    for number in 0..20 {
        let device = format!("d{number}");
        others.push(Peer::settled(&gateway, &device, &["a", "b"]).await);
    }
    let found = gateway.handle().retention(3).await.unwrap();
    assert_eq!(found.len(), 3, "{found:#?}");
    assert_eq!(found[0].device.as_deref(), Some("first"));
    assert!(found.is_sorted_by_key(|retainer| std::cmp::Reverse(retainer.age)));
    drop((first, others));
    eventually(|| gateway.handle().gauges().devices == 0, "all have gone").await;
    assert_eq!(gateway.handle().retention(3).await.unwrap(), []);
    gateway.shutdown().await;
}
