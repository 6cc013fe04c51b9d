//! Devices, nodes and revocations.

use std::sync::Arc;

use crate::common::{Heard, node, node_with, plain, told};
use tokio::time::Duration;
use weir_broker::{
    Broker, Claim, ConnectionNumber, Error, Event, Reach, RedisBroker, RedisOptions, Revocation,
    Scope,
};
use weir_tests::{Proxy, Redis};

fn claim(device: &str, connection: u64, age_ms: u64) -> Claim {
    let (connection, age) = (ConnectionNumber(connection), Duration::from_millis(age_ms));
    Claim { device: device.into(), connection, age, is_counted: true }
}

fn evicted(device: &str, connection: u64) -> Event {
    Event::Evicted { device: device.into(), connection: ConnectionNumber(connection) }
}

async fn sync(from: &RedisBroker, to: &RedisBroker, heard: &Heard) -> Vec<Event> {
    assert_eq!(from.to_node(to.number(), b"sync".to_vec()).await, Ok(true));
    let mut events = heard.take(|event| *event == Event::ToNode(b"sync".to_vec())).await;
    events.pop();
    events
}

#[tokio::test]
async fn the_newest_connections_of_a_device_stay() {
    let redis = Redis::start().expect("a Redis");
    let (one, heard_one) = node(&redis.url(), "one").await;
    let (two, heard_two) = node(&redis.url(), "two").await;
    one.claim(vec![claim("d", 1, 5000), claim("e", 2, 0)]).await.expect("claimed");
    two.claim(vec![claim("d", 3, 1000)]).await.expect("claimed");
    heard_one.take(|event| *event == evicted("d", 1)).await;
    // An older one that claims late gives way at once.
    one.claim(vec![claim("d", 4, 60_000)]).await.expect("claimed");
    heard_one.take(|event| *event == evicted("d", 4)).await;
    // Claimed again, the newest stays.
    two.claim(vec![claim("d", 3, 2000)]).await.expect("claimed");
    assert_eq!(sync(&one, &two, &heard_two).await, []);

    assert_eq!(one.to_device("d".into(), plain("m")).await, Ok(2));
    let message = Event::ToDevice { device: "d".into(), payload: b"m".to_vec() };
    heard_two.take(|event| *event == message).await;
    heard_one.take(|event| *event == message).await;
    one.release(vec![claim("d", 1, 0), claim("d", 4, 0)]).await.expect("released");
    assert_eq!(one.to_device("d".into(), plain("m")).await, Ok(1));
    two.release(vec![claim("d", 3, 0)]).await.expect("released");
    assert_eq!(one.to_device("d".into(), plain("m")).await, Ok(0));
    assert_eq!(redis.command("EXISTS weir:{11298}l:d").expect("an answer"), ":0\r\n");
    assert_eq!(sync(&two, &one, &heard_one).await, []);
}

#[tokio::test]
async fn a_claim_that_comes_late_does_not_count_for_newer() {
    let redis = Redis::start().expect("a Redis");
    let proxy = Proxy::start(redis.addr).expect("a proxy");
    let (one, heard_one) = node(&format!("redis://{}", proxy.addr), "one").await;
    let (two, heard_two) = node(&redis.url(), "two").await;
    one.claim(vec![claim("d", 1, 0), claim("e", 2, 0)]).await.expect("claimed");
    // The device comes to one node, and then to the other one, whose claim is there first.
    proxy.delay(Duration::from_millis(150));
    let (late, newer) = (vec![claim("d", 3, 0)], vec![claim("d", 4, 0)]);
    let newer = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        two.claim(newer).await
    };
    let (late, newer) = tokio::join!(one.claim(late), newer);
    late.expect("claimed");
    newer.expect("claimed");
    proxy.heal();
    heard_one.take(|event| *event == evicted("d", 3)).await;
    assert_eq!(sync(&one, &two, &heard_two).await, []);
}

#[tokio::test]
async fn claims_of_a_node_that_has_ended_do_not_count() {
    let redis = Redis::start().expect("a Redis");
    let options = |name: &str| {
        let mut options = RedisOptions::new(&redis.url(), "test", name);
        options.connections_per_device_max = 2;
        options.node_kept = Duration::from_secs(1);
        options
    };
    let (one, heard) = node_with(options("one")).await;
    let (two, _) = node_with(options("two")).await;
    one.claim(vec![claim("d", 1, 9000)]).await.expect("claimed");
    two.claim(vec![claim("d", 2, 100)]).await.expect("claimed");
    // As at a kill.
    drop(two);
    loop {
        one.announce(told(&one, "one")).await.expect("announced");
        let reach = one.to_all(plain("")).await.expect("sent");
        assert_eq!(reach.reached, 1);
        if reach.live == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    one.claim(vec![claim("d", 3, 0)]).await.expect("claimed");
    let (three, _) = node_with(options("three")).await;
    // A node that began just now counts, announced or not.
    three.claim(vec![claim("d", 4, 0)]).await.expect("claimed");
    let events = heard.take(|event| matches!(event, Event::Evicted { .. })).await;
    assert_eq!(events.last(), Some(&evicted("d", 1)));
}

#[tokio::test]
async fn two_nodes_race_for_one_device() {
    let redis = Redis::start().expect("a Redis");
    let (one, heard_one) = node(&redis.url(), "one").await;
    let (two, heard_two) = node(&redis.url(), "two").await;
    for round in 0..300 {
        let device = format!("d{round}");
        let (first, second) = tokio::join!(
            one.claim(vec![claim(&device, 1, 0)]),
            two.claim(vec![claim(&device, 2, 0)])
        );
        first.expect("claimed");
        second.expect("claimed");
        let mut evictions = sync(&two, &one, &heard_one).await;
        evictions.extend(sync(&one, &two, &heard_two).await);
        let [eviction] = &evictions[..] else { panic!("{evictions:?}") };
        assert!([evicted(&device, 1), evicted(&device, 2)].contains(eviction), "{eviction:?}");
    }
}

#[tokio::test]
async fn nodes_have_numbers_and_are_listed_while_they_live() {
    let redis = Redis::start().expect("a Redis");
    let (one, heard_one) = node(&redis.url(), "one").await;
    let (two, heard_two) = node(&redis.url(), "two").await;
    assert_ne!(one.number(), two.number());
    assert_eq!(one.nodes().await, Ok(vec![]));
    let mut nodes = vec![told(&one, "one"), told(&two, "two")];
    for (broker, node) in [(&one, &nodes[0]), (&two, &nodes[1])] {
        broker.announce(node.clone()).await.expect("announced");
    }
    nodes.sort_by_key(|node| node.number);
    assert_eq!(one.nodes().await, Ok(nodes.clone()));
    assert_eq!(one.to_all(plain("x")).await, Ok(Reach { reached: 2, live: 2 }));
    for heard in [&heard_one, &heard_two] {
        heard.take(|event| *event == Event::ToAll(b"x".to_vec())).await;
    }
    two.retire().await.expect("retired");
    nodes.retain(|node| node.name == "one");
    assert_eq!(one.nodes().await, Ok(nodes));
    two.close().await.expect("closed");
    // Redis sees the end of the connection when it comes to it.
    while one.to_node(two.number(), Vec::new()).await.expect("sent") {}
    assert!(matches!(two.tops(vec!["t".into()]).await, Err(Error::Unavailable(_))));
    assert_eq!(heard_two.rest(), []);
}

#[tokio::test]
async fn another_cluster_with_the_same_prefix_is_refused() {
    let redis = Redis::start().expect("a Redis");
    let (_one, _) = node(&redis.url(), "one").await;
    let mut options = RedisOptions::new(&redis.url(), "other", "two");
    let opened = RedisBroker::open(options.clone(), Arc::new(Heard::default())).await;
    let (prefix, found, own) = ("weir".into(), "test".into(), "other".into());
    assert_eq!(opened.err(), Some(Error::OtherCluster { prefix, found, own }));
    options.prefix = "other".to_owned();
    RedisBroker::open(options, Arc::new(Heard::default())).await.expect("its own prefix");
}

#[tokio::test]
async fn a_number_that_was_given_to_another_node_is_changed() {
    let redis = Redis::start().expect("a Redis");
    let (one, heard) = node(&redis.url(), "one").await;
    let number = one.number();
    // As after a day without Redis, when somebody else has it.
    let script = "return(redis.call([[HSET]],KEYS[1],ARGV[1],[[other]]..string.char(32)..[[9999999999999999]]))";
    let eval = format!("EVAL {script} 1 weir:{{{TAG}}}o:weir {}", number.0);
    assert_eq!(redis.command(&eval).expect("an answer"), ":0\r\n");
    one.announce(told(&one, "one")).await.expect("announced");
    assert_ne!(one.number(), number);
    heard.take(|event| *event == Event::Renumbered(one.number())).await;
    assert_eq!(one.to_node(one.number(), Vec::new()).await, Ok(true));
    assert_eq!(one.to_node(number, Vec::new()).await, Ok(false));
}

/// The tag of the prefix.
const TAG: u16 = 36_004;

#[tokio::test]
async fn revocations_are_heard_and_kept() {
    let redis = Redis::start().expect("a Redis");
    let (one, _) = node(&redis.url(), "one").await;
    let (two, heard) = node(&redis.url(), "two").await;
    let nothing = two.revocations(None).await.expect("read");
    assert!(nothing.is_complete && nothing.revoked.is_empty());
    let mut revoked = Vec::new();
    for device in ["a", "b c", "d"] {
        let id = one.revoke(device.into()).await.expect("revoked");
        let revocation = Revocation { id, device: device.into() };
        heard.take(|event| *event == Event::Revoked(revocation.clone())).await;
        revoked.push(revocation);
    }
    let all = two.revocations(None).await.expect("read");
    assert_eq!((all.revoked, all.is_complete), (revoked.clone(), true));
    let rest = two.revocations(Some(revoked[0].id.clone())).await.expect("read");
    assert_eq!((&rest.revoked[..], rest.is_complete), (&revoked[1..], true));
    let rest = two.revocations(Some(revoked[2].id.clone())).await.expect("read");
    assert!(rest.revoked.is_empty() && rest.is_complete);
}

#[tokio::test]
async fn a_redis_that_lost_revocations_says_so() {
    let mut redis = Redis::start().expect("a Redis");
    let (one, heard) = node(&redis.url(), "one").await;
    let id = one.revoke("a".into()).await.expect("revoked");
    redis.kill().expect("killed");
    heard.take(|event| matches!(event, Event::Lost(_))).await;
    redis.restart().expect("restarted");
    let back = heard.take(|event| matches!(event, Event::Back { .. })).await;
    assert_eq!(back[..back.len() - 1], [Event::Gap(Scope::All)]);
    let rest = one.revocations(Some(id)).await.expect("read");
    assert!(rest.revoked.is_empty() && !rest.is_complete);
    // The node keeps its number.
    let number = one.number();
    one.announce(told(&one, "one")).await.expect("announced");
    assert_eq!(one.number(), number);
}
