//! The router against scripted shards and an obvious twin.

mod ticks;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use weir_engine::{Budget, Detached, Mailbox, Nanos};
use weir_wire::v1::{ServerMessage, server_message};
use weir_wire::{ProstMessage, frame, hot};

use super::*;
use crate::config::TopicClass;

/// A shard as simple as can be: it carries out one command at a time and checks what it is told.
struct Shard {
    index: usize,
    lane: Detached<OwnedFd>,
    /// Per membership: the epoch and the offset after which everything is due.
    members: BTreeMap<(ConnId, TopicId), (u64, u64)>,
    names: BTreeMap<TopicId, String>,
    closed: BTreeSet<ConnId>,
    delivered: usize,
}

fn conn(shard: usize, number: u64) -> ConnId {
    ConnId::from_u64((shard as u64) << 56 | number)
}

/// A router over `shards` lanes of `capacity` commands.
fn world(shards: usize, capacity: usize, topics_max: usize) -> (Arc<Router>, Vec<Shard>) {
    let mut config = Config::default();
    config.limits.topics_max = topics_max;
    world_of(&config, shards, capacity)
}

fn world_of(config: &Config, shards: usize, capacity: usize) -> (Arc<Router>, Vec<Shard>) {
    let (lanes, ends): (Vec<Mailbox<OwnedFd>>, Vec<_>) =
        (0..shards).map(|_| Detached::mailbox(capacity, 1)).unzip();
    let shard_of = |(index, lane)| Shard {
        index,
        lane,
        members: BTreeMap::new(),
        names: BTreeMap::new(),
        closed: BTreeSet::new(),
        delivered: 0,
    };
    let shards = ends.into_iter().enumerate().map(shard_of).collect();
    let budget = Budget::new(1 << 20);
    (Arc::new(Router::new(lanes.into(), budget, Arc::default(), config)), shards)
}

/// Config with one class.
fn config_of(class: TopicClass) -> Config {
    Config { topic_classes: vec![class], ..Config::default() }
}

/// A message that carries name and offset: what a shard compares with what it knows.
fn message(
    budget: &Arc<Budget>,
    (name, key): (&str, &str),
    class: &Class,
    offset: u64,
) -> Option<Arc<Message>> {
    let push = hot::Push {
        topic: name,
        payload: hot::Payload::Text("value"),
        content_type: "",
        key,
        message_id: 1,
        offset,
        sender: 0,
    };
    let mut frame = Vec::new();
    let key = push.encode_frame(&mut frame);
    let key = u32::try_from(key.start).unwrap()..u32::try_from(key.end).unwrap();
    Message::of_topic(budget, frame, Nanos(0), None, class.topic_message(offset, key))
}

const OFFER: Offer<'_> = Offer { frame_bytes: 40, key: "", accepted_at: Nanos(0) };

fn publish(
    router: &Router,
    budget: &Arc<Budget>,
    name: &str,
) -> Result<Option<Routed>, RouteError> {
    publish_key(router, budget, name, "")
}

fn publish_key(
    router: &Router,
    budget: &Arc<Budget>,
    name: &str,
    key: &str,
) -> Result<Option<Routed>, RouteError> {
    let offer = Offer { key, ..OFFER };
    router.publish(name, offer, |class, offset| message(budget, (name, key), class, offset))
}

/// `false`: there was no credit.
fn subscribe(router: &Router, conn: ConnId, name: &str) -> bool {
    let Some(credit) = router.lanes[conn.shard()].try_credit() else { return false };
    router.subscribe(credit, conn, name).map_err(|(error, _)| error).unwrap();
    true
}

fn decode(reply: &[u8]) -> server_message::Kind {
    let (body, _) = frame::decode(reply, 1 << 20).unwrap().unwrap();
    ServerMessage::decode(body).unwrap().kind.unwrap()
}

/// Topic, offset and key of each message in the frames of one.
fn pushes(mut frames: &[u8]) -> Vec<(String, u64, String)> {
    let mut pushes = Vec::new();
    let told = |push: hot::Push<'_>| (push.topic.to_owned(), push.offset, push.key.to_owned());
    while let Some((body, taken)) = frame::decode(frames, 1 << 20).unwrap() {
        frames = &frames[taken..];
        match hot::FromServer::decode(body).unwrap() {
            hot::FromServer::Push(push) => pushes.push(told(push)),
            hot::FromServer::Batch(batch) => {
                let messages = batch.messages().map(|push| told(push.unwrap()));
                let messages: Vec<_> = messages.collect();
                let ends = |end: Option<&(String, u64, String)>| end.map(|push| push.1);
                assert_eq!(ends(messages.first()), Some(batch.first_offset));
                assert_eq!(ends(messages.last()), Some(batch.last_offset));
                pushes.extend(messages);
            }
            other @ (hot::FromServer::Pong { .. }
            | hot::FromServer::Other
            | hot::FromServer::Unknown) => panic!("no message but {other:?}"),
        }
    }
    pushes
}

impl Shard {
    /// Carries out one command; `false` if there is none. Each count that goes down is told to `left`.
    fn step(&mut self, router: &Router, mut left: impl FnMut(&str)) -> bool {
        let Some(command) = self.lane.pop() else { return false };
        match command {
            Command::Subscribe { conn, topic, reply } => {
                let server_message::Kind::Subscribed(subscribed) = decode(&reply) else { panic!() };
                let Position { epoch, offset } = subscribed.position.unwrap();
                let known = self.names.entry(topic).or_insert_with(|| subscribed.topic.clone());
                assert_eq!(*known, subscribed.topic, "a number stands for one topic at a time");
                if self.closed.contains(&conn) || self.members.contains_key(&(conn, topic)) {
                    left(&subscribed.topic);
                    router.leave(topic, self.index);
                } else {
                    self.members.insert((conn, topic), (epoch, offset));
                }
            }
            Command::Unsubscribe { conn, topic, .. } => {
                if self.members.remove(&(conn, topic)).is_some() {
                    left(&self.names[&topic]);
                    router.leave(topic, self.index);
                }
            }
            Command::Publish(topic, message) => self.deliver(topic, &message),
            Command::Retire(topic) => {
                assert!(self.members.keys().all(|(_, other)| *other != topic), "nobody is in it");
                self.names.remove(&topic).expect("only a shard that knows it is asked");
                router.retired(topic);
            }
            Command::Send(..) => {}
            other @ (Command::Adopt(_)
            | Command::Resume(_)
            | Command::Broadcast(_)
            | Command::Evict(..)
            | Command::Welcome(..)
            | Command::Drain { .. }) => panic!("the router does not push {other:?}"),
        }
        self.lane.return_credit();
        true
    }

    fn deliver(&mut self, topic: TopicId, message: &Message) {
        let pushes = pushes(message.frame());
        assert_eq!(pushes.last().map(|push| push.1), Some(message.offset()));
        for (name, offset, _) in pushes {
            assert_eq!(self.names[&topic], name);
            for ((_, other), (_, position)) in &mut self.members {
                if *other == topic {
                    assert_eq!(*position + 1, offset, "no message is missed, none comes twice");
                    *position = offset;
                    self.delivered += 1;
                }
            }
        }
    }

    fn close(&mut self, router: &Router, conn: ConnId, mut left: impl FnMut(&str)) {
        self.closed.insert(conn);
        let topics: Vec<TopicId> =
            self.members.keys().filter(|key| key.0 == conn).map(|key| key.1).collect();
        for topic in topics {
            self.members.remove(&(conn, topic));
            left(&self.names[&topic]);
            router.leave(topic, self.index);
        }
    }
}

proptest! {
    /// Counts, offsets and what reaches whom, against a map of counts.
    #[test]
    fn agrees_with_its_twin(steps in proptest::collection::vec((0u8..9, 0u8..6, 0u8..4), 0..400)) {
        let budget = Budget::new(1 << 20);
        let tick = Duration::from_secs(1);
        let class = TopicClass { pattern: "tick/*".to_owned(), tick, ..TopicClass::default() };
        let (router, mut shards) = world_of(&config_of(class), 3, 4);
        let names = ["a", "b", "tick/c", "tick/d"];
        let mut counts = BTreeMap::<String, u32>::new();
        let mut offsets = BTreeMap::<String, u64>::new();
        for (what, who, which) in steps {
            let conn = conn(usize::from(who) % 3, u64::from(who));
            let name = names[usize::from(which)];
            let shard = &mut shards[conn.shard()];
            let left = |name: &str| {
                let count = counts.get_mut(name).unwrap();
                *count -= 1;
                if *count == 0 {
                    counts.remove(name);
                    offsets.remove(name);
                }
            };
            match what {
                0 | 1 => {
                    if subscribe(&router, conn, name) {
                        *counts.entry(name.to_owned()).or_default() += 1;
                        offsets.entry(name.to_owned()).or_default();
                    }
                }
                2 => {
                    if let Some(credit) = router.lanes[conn.shard()].try_credit() {
                        router.unsubscribe(credit, conn, name);
                    }
                }
                3 | 4 => match publish(&router, &budget, name) {
                    Ok(routed) => {
                        let offset = offsets.get_mut(name).map(|offset| {
                            *offset += 1;
                            *offset
                        });
                        prop_assert_eq!(routed.map(|routed| routed.offset), offset);
                        let connections = routed.map(|routed| routed.connections);
                        prop_assert_eq!(connections, counts.get(name).copied());
                    }
                    Err(error) => prop_assert_eq!(error, RouteError::Busy),
                },
                5 => shard.close(&router, conn, left),
                6 => {
                    router.end_ticks();
                }
                _ => {
                    shard.step(&router, left);
                    router.retry_retirements();
                }
            }
            let listed = router.list("", None, 10).into_iter();
            let listed: BTreeMap<String, (u32, u64)> =
                listed.map(|info| (info.topic, (info.subscribers, info.offset))).collect();
            let twin = counts.iter().map(|(name, count)| (name.clone(), (*count, offsets[name])));
            prop_assert_eq!(listed, twin.collect());
        }
        end(&router, &mut shards);
        prop_assert_eq!(budget.used(), 0);
    }
}

/// Everybody leaves: no topic, no number, no credit remains.
fn end(router: &Router, shards: &mut [Shard]) {
    let run = |shards: &mut [Shard]| loop {
        let is_idle = !shards.iter_mut().any(|shard| shard.step(router, |_| ()));
        if router.retry_retirements() && router.end_ticks() && is_idle {
            break;
        }
    };
    run(shards);
    for shard in shards.iter_mut() {
        let conns: BTreeSet<ConnId> = shard.members.keys().map(|(conn, _)| *conn).collect();
        for conn in conns {
            shard.close(router, conn, |_| ());
        }
    }
    run(shards);
    assert_eq!(router.topic_count(), 0);
    assert_eq!(router.ids.in_use(), 0);
    assert!(router.stripes.iter().all(|stripe| lock(stripe).is_empty()));
    for lane in router.lanes.iter() {
        assert_eq!(lane.depth(), 0);
    }
}

/// Publishers and subscribers on threads of their own: a shard misses nothing behind the position that a `Subscribed`
/// named, and gets nothing before it.
#[test]
fn a_position_is_exact_under_threads() {
    let budget = Budget::new(1 << 20);
    const PUBLISHED: usize = 1_000;
    let (router, shards) = world(2, 64, 100);
    // One on each shard stays for all of it.
    assert!((0..2).all(|shard| subscribe(&router, conn(shard, 99), "t")));
    let is_over = AtomicBool::new(false);
    let mut shards: Vec<Shard> = std::thread::scope(|scope| {
        let shard_threads: Vec<_> = shards
            .into_iter()
            .map(|shard| {
                scope.spawn(|| {
                    let mut shard = { shard };
                    while !is_over.load(Ordering::SeqCst) {
                        while shard.step(&router, |_| ()) {}
                        std::thread::yield_now();
                    }
                    shard
                })
            })
            .collect();
        let publishers = (0..2).map(|_| {
            scope.spawn(|| {
                for _ in 0..PUBLISHED {
                    while publish(&router, &budget, "t") == Err(RouteError::Busy) {
                        std::thread::yield_now();
                    }
                }
            })
        });
        let publishers: Vec<_> = publishers.collect();
        let subscribers = (0..2).map(|index| {
            let (router, name) = (&router, "t");
            scope.spawn(move || {
                for number in 0..2_000 {
                    let conn = conn(index, number % 5);
                    while !subscribe(router, conn, name) {
                        std::thread::yield_now();
                    }
                    let credit = loop {
                        match router.lanes[index].try_credit() {
                            Some(credit) => break credit,
                            None => std::thread::yield_now(),
                        }
                    };
                    router.unsubscribe(credit, conn, name);
                }
            })
        });
        let subscribers: Vec<_> = subscribers.collect();
        for thread in publishers.into_iter().chain(subscribers) {
            thread.join().unwrap();
        }
        is_over.store(true, Ordering::SeqCst);
        shard_threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    end(&router, &mut shards);
    assert!(shards.iter().all(|shard| shard.delivered >= 2 * PUBLISHED));
}

#[test]
fn with_one_lane_of_two_full_nothing_is_published_anywhere() {
    let budget = Budget::new(1 << 20);
    let (router, mut shards) = world(2, 2, 100);
    for shard in &mut shards {
        assert!(subscribe(&router, conn(shard.index, 1), "t"));
        assert!(shard.step(&router, |_| ()));
    }
    let taken: Vec<_> = (0..2).map(|_| router.lanes[1].try_credit().unwrap()).collect();
    for _ in 0..3 {
        let refused = router.publish("t", OFFER, |_, _| panic!("it is not even encoded"));
        assert_eq!(refused, Err(RouteError::Busy));
    }
    assert_eq!((router.lanes[0].depth(), router.lanes[1].depth()), (0, 2));
    drop(taken);
    // Nor is anything used up when the budget refuses.
    assert_eq!(router.publish("t", OFFER, |_, _| None), Err(RouteError::Budget));
    assert_eq!((router.lanes[0].depth(), router.lanes[1].depth()), (0, 0));
    assert_eq!(publish(&router, &budget, "t"), Ok(Some(Routed { offset: 1, connections: 2 })));
    end(&router, &mut shards);
}

#[test]
fn a_class_bounds_length_and_rate() {
    let budget = Budget::new(1 << 20);
    let config = config_of(TopicClass {
        pattern: "t*".to_owned(),
        message_bytes_max: 100,
        publishes_per_second: 10,
        publish_burst: 2,
        ..TopicClass::default()
    });
    let (router, mut shards) = world_of(&config, 1, 100);
    let publish = |frame_bytes, at_ms: u64| {
        let accepted_at = Nanos(at_ms * 1_000_000);
        let offer = Offer { frame_bytes, key: "", accepted_at };
        router.publish("t", offer, |class, offset| message(&budget, ("t", ""), class, offset))
    };
    // Whether anybody is there or not.
    let too_large = Err(RouteError::TooLarge { limit: 100 });
    assert_eq!((publish(101, 0), publish(100, 0)), (too_large, Ok(None)));
    assert!(subscribe(&router, conn(0, 1), "t"));
    assert_eq!(publish(101, 0), too_large);
    let accepted = |offset| Ok(Some(Routed { offset, connections: 1 }));
    assert_eq!((publish(100, 0), publish(1, 0)), (accepted(1), accepted(2)));
    let limited = |ms| {
        let after = Duration::from_millis(ms);
        Err(RouteError::RateLimited { per_second: 10, after })
    };
    assert_eq!((publish(1, 0), publish(1, 30)), (limited(100), limited(70)));
    assert_eq!((publish(1, 100), publish(1, 100)), (accepted(3), limited(100)));
    // What is refused for another reason uses nothing up.
    let busy: Vec<_> = std::iter::from_fn(|| router.lanes[0].try_credit()).collect();
    assert_eq!(publish(1, 200), Err(RouteError::Busy));
    drop(busy);
    assert_eq!(publish(1, 200), accepted(4));
    end(&router, &mut shards);
}

#[test]
fn a_number_is_free_when_every_shard_has_let_go() {
    let (router, mut shards) = world(2, 2, 1);
    for shard in &mut shards {
        assert!(subscribe(&router, conn(shard.index, 1), "first"));
        assert!(shard.step(&router, |_| ()));
    }
    // One lane is full when the topic ends: its shard is asked later.
    let taken: Vec<_> = (0..2).map(|_| router.lanes[1].try_credit().unwrap()).collect();
    for shard in &mut shards {
        let conn = conn(shard.index, 1);
        shard.close(&router, conn, |_| ());
    }
    assert_eq!(router.topic_count(), 0);
    let refused = |router: &Router| {
        let credit = router.lanes[0].try_credit().unwrap();
        router.subscribe(credit, conn(0, 2), "second").map_err(|(error, _)| error)
    };
    assert_eq!(refused(&router), Err(SubscribeError::TooManyTopics));
    assert!(shards[0].step(&router, |_| ()));
    assert!(!router.retry_retirements());
    drop(taken);
    assert!(router.retry_retirements());
    assert_eq!(refused(&router), Err(SubscribeError::TooManyTopics));
    assert!(shards[1].step(&router, |_| ()));
    assert_eq!(refused(&router), Ok(()));
    assert_eq!(router.id("second"), Some(TopicId(0)));
    end(&router, &mut shards);
}

#[test]
fn lists_by_name_a_page_at_a_time() {
    let (router, mut shards) = world(1, 100, 100);
    for name in ["b/2", "a", "b/1", "c", "b/3"] {
        assert!(subscribe(&router, conn(0, 1), name));
    }
    let names = |prefix, after, limit| {
        let listed = router.list(prefix, after, limit).into_iter();
        listed.map(|info| info.topic).collect::<Vec<_>>()
    };
    assert_eq!(names("", None, 10), ["a", "b/1", "b/2", "b/3", "c"]);
    assert_eq!(names("b/", None, 2), ["b/1", "b/2"]);
    assert_eq!(names("b/", Some("b/2"), 2), ["b/3"]);
    assert_eq!(names("", None, 0), [""; 0]);
    end(&router, &mut shards);
}

#[test]
fn names_are_checked() {
    let check = |name: &str, expected| assert_eq!(validate_name(name, 8), expected, "{name:?}");
    check("a/b", Ok(()));
    check("größe", Ok(()));
    check("", Err(TopicNameError::Empty));
    check("123456789", Err(TopicNameError::TooLong { bytes: 9, limit: 8 }));
    check("ä\u{7f}", Err(TopicNameError::Control(2)));
    for character in ['*', '#', '+'] {
        check(&format!("a{character}"), Err(TopicNameError::Wildcard(character)));
    }
}
