//! Another process goes on as a node.

use tokio::time::Duration;
use weir_broker::{
    Attendance, Broker, Claim, ConnectionNumber, Event, Member, Name, RedisBroker, RedisOptions,
};
use weir_tests::Redis;

use crate::common::{node_with, plain, told};

fn options(redis: &Redis, name: &str) -> RedisOptions {
    let mut options = RedisOptions::new(&redis.url(), "test", name);
    // A slow machine is no failure.
    options.timeout = Duration::from_secs(20);
    options
}

fn claim(device: &str, connection: u64) -> Claim {
    let (device, connection) = (device.into(), ConnectionNumber(connection));
    Claim { device, connection, age: Duration::ZERO, is_counted: true }
}

fn member(device: &str, connection: u64) -> Member {
    Member { connection: ConnectionNumber(connection), device: device.into() }
}

async fn members(broker: &RedisBroker, topic: &str) -> Vec<u64> {
    let page = broker.members(topic.into(), None, 100).await.expect("an answer");
    page.members.into_iter().map(|member| member.connection.0).collect()
}

#[tokio::test]
async fn another_process_goes_on_as_this_node_and_claims_nothing() {
    let redis = Redis::start().expect("redis-server is installed");
    let (old, _) = node_with(options(&redis, "one")).await;
    let (other, other_heard) = node_with(options(&redis, "two")).await;
    old.announce(told(&old, "one")).await.expect("announced");
    other.announce(told(&other, "two")).await.expect("announced");
    old.claim(vec![claim("phone", 1), claim("tablet", 2)]).await.expect("claimed");
    let topic = Name::from("room");
    old.enter(vec![(topic.clone(), member("phone", 1))]).await.expect("entered");
    let attendance = |is_attended| Attendance { topic: topic.clone(), is_attended, is_sure: true };
    let begun = old.attend(vec![attendance(true)]).await.expect("an answer").remove(0);
    assert!(begun.begun.is_some());
    let state = old.state().await.expect("an answer").expect("it can be handed over");
    assert_eq!((state.claimed.len(), state.entries.len()), (2, 2));
    let goes_on = Some(state.clone());
    let (new, heard) = node_with(RedisOptions { goes_on, ..options(&redis, "one") }).await;
    assert_eq!(new.number(), old.number());
    // The old process is gone, without a word.
    drop(old);
    new.announce(told(&new, "one")).await.expect("announced");
    let nodes = other.nodes().await.expect("an answer");
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(members(&other, "room").await, [1]);
    let reached = other.to_device("phone".into(), plain("hi")).await.expect("sent");
    assert_eq!(reached, 1);
    heard.take(|event| matches!(event, Event::ToDevice { .. })).await;
    assert!(other.to_node(new.number(), b"letter".to_vec()).await.expect("sent"));
    heard.take(|event| matches!(event, Event::ToNode { .. })).await;
    // Nobody begins anew, and a newer connection elsewhere evicts the one that was claimed before.
    let again = new.attend(vec![attendance(true)]).await.expect("an answer").remove(0);
    assert_eq!((again.begun, again.ended), (None, None));
    other.claim(vec![claim("phone", 9)]).await.expect("claimed");
    let is_evicted =
        |event: &Event| matches!(event, Event::Evicted { connection, .. } if connection.0 == 1);
    heard.take(is_evicted).await;
    new.exit(vec![(topic.clone(), member("phone", 1))]).await.expect("left");
    assert!(members(&other, "room").await.is_empty());
    let ended = new.attend(vec![attendance(false)]).await.expect("an answer").remove(0);
    assert_eq!(ended.ended, begun.begun);
    new.release(vec![claim("tablet", 2)]).await.expect("released");
    assert_eq!(other.to_device("tablet".into(), plain("hi")).await.expect("sent"), 0);
    let last = new.state().await.expect("an answer").expect("it can be handed over");
    assert_eq!((last.instance, last.stay, last.number), (state.instance, state.stay, state.number));
    for heard in [&heard, &other_heard] {
        heard.look(|events| {
            let is_lost = |event: &Event| matches!(event, Event::Renumbered(_) | Event::Gap(_));
            assert!(!events.iter().any(is_lost), "{events:?}");
        });
    }
    new.retire().await.expect("retired");
    assert_eq!(other.nodes().await.expect("an answer").len(), 1);
}

/// Waits until a message to the device reaches so many connections to Redis.
async fn await_reached(broker: &RedisBroker, device: &str, count: u32) {
    for _ in 0..400 {
        if broker.to_device(device.into(), plain("probe")).await.expect("sent") == count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("messages to {device} do not reach {count}");
}

#[tokio::test]
async fn what_becomes_of_the_node_meanwhile_is_known_to_the_other_process() {
    let redis = Redis::start().expect("redis-server is installed");
    let (old, old_heard) = node_with(options(&redis, "one")).await;
    let (other, _) = node_with(options(&redis, "two")).await;
    old.claim(vec![claim("phone", 1), claim("tablet", 2)]).await.expect("claimed");
    let goes_on = old.state().await.expect("an answer");
    let (new, heard) = node_with(RedisOptions { goes_on, ..options(&redis, "one") }).await;
    // Both processes listen.
    assert_eq!(other.to_device("phone".into(), plain("hi")).await.expect("sent"), 2);
    old.claim(vec![claim("watch", 3)]).await.expect("claimed");
    old.release(vec![claim("tablet", 2)]).await.expect("released");
    old.enter(vec![("room".into(), member("watch", 3))]).await.expect("entered");
    let state = old.state().await.expect("an answer").expect("it can be handed over");
    new.go_on(state.clone()).await.expect("it goes on");
    await_reached(&other, "watch", 2).await;
    await_reached(&other, "tablet", 0).await;
    let last = new.state().await.expect("an answer").expect("it can be handed over");
    let sorted = |mut claimed: Vec<(Name, ConnectionNumber)>| {
        claimed.sort_by_key(|(_, connection)| connection.0);
        claimed
    };
    assert_eq!(sorted(last.claimed), sorted(state.claimed));
    assert_eq!((last.entries, last.last_entry), (state.entries, state.last_entry));
    // Only one does any more, and what the other one publishes counts still.
    old.hush();
    await_reached(&other, "phone", 1).await;
    drop(old_heard.rest());
    assert_eq!(old.to_device("phone".into(), plain("last")).await.expect("sent"), 1);
    let is_last =
        |event: &Event| matches!(event, Event::ToDevice { payload, .. } if payload == b"last");
    heard.take(is_last).await;
    assert_eq!(old_heard.rest(), []);
    drop(old);
    assert_eq!(members(&other, "room").await, [3]);
}
