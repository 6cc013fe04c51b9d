//! Tests of the router with scripted shards and a simple model.

mod broker;
mod handover;
mod history;
mod leaving;
mod presence;
mod replays;
mod resumes;
mod stage;
mod ticks;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use weir_engine::{Budget, ConnId, CreditKind, Detached, Mailbox, Nanos, ReplayChunk};
use weir_wire::format::Format;
use weir_wire::v1::{Position, ServerMessage, server_message};
use weir_wire::{ProstMessage, frame, hot};

use super::*;
use crate::base::config::TopicClass;
use crate::base::model::SubscribeError;
use stage::*;

proptest! {
    /// Counts, offsets and deliveries agree with a map of counts.
    #[test]
    fn agrees_with_its_twin(steps in proptest::collection::vec((0u8..12, 0u8..6, 0u8..4), 0..400)) {
        let budget = Budget::new(1 << 20);
        let tick = Duration::from_secs(1);
        let class = |pattern: &str, tick, retention_messages| {
            let pattern = pattern.to_owned();
            let resume_from_oldest = Some(false);
            TopicClass {
                pattern,
                tick,
                retention_messages,
                resume_from_oldest,
                ..TopicClass::default()
            }
        };
        let ring = class("ring/*", Duration::ZERO, 3);
        let mut config = config_of(class("tick/*", tick, 0));
        config.topic_classes.extend([ring, class("both/*", tick, 4)]);
        // A replay chunk holds one message.
        config.connection.low_watermark_bytes = 30;
        let (router, mut shards) = world_of(&config, 3, 4);
        let names = ["a", "tick/b", "ring/c", "both/d"];
        let is_kept = |name: &str| name.starts_with("ring") || name.starts_with("both");
        let mut counts = BTreeMap::<String, u32>::new();
        let mut offsets = BTreeMap::<String, u64>::new();
        let mut kept = BTreeMap::<&str, u64>::new();
        for (what, who, which) in steps {
            let conn = conn(usize::from(who) % 3, u64::from(who));
            let name = names[usize::from(which)];
            let shard = &mut shards[conn.shard()];
            let left = |name: &str| {
                if is_kept(name) {
                    return;
                }
                let count = counts.get_mut(name).unwrap();
                *count -= 1;
                if *count == 0 {
                    counts.remove(name);
                    offsets.remove(name);
                }
            };
            match what {
                0 | 1 => {
                    if subscribe(&router, conn, name) && !is_kept(name) {
                        *counts.entry(name.to_owned()).or_default() += 1;
                        offsets.entry(name.to_owned()).or_default();
                    }
                }
                2 => {
                    if let Some(credit) = router.mailboxes[conn.shard()].try_credit(CreditKind::Control) {
                        router.unsubscribe(credit, conn, name);
                    }
                }
                3 | 4 => match publish(&router, &budget, name) {
                    Ok(routed) if is_kept(name) => {
                        let offset = routed.expect("it begins with its first message").offset;
                        let before = kept.insert(name, offset).unwrap_or(0);
                        prop_assert!(offset == before + 1 || offset == 1);
                    }
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
                7 | 8 if !shard.closed.contains(&conn) => {
                    let seen = lock(&shard.told.seen).get(&(conn, name.to_owned())).copied();
                    if is_kept(name) && seen.is_some() {
                        resume(&router, conn, name, seen);
                    }
                }
                9 if who == 5 && which == 3 => sweep(&router, Nanos(u64::MAX)),
                _ => {
                    resume_next(&router, &shard.told);
                    shard.step(&router, left);
                    router.retry_retirements();
                }
            }
            let listed = router.list("", None, 10).into_iter().filter(|info| !is_kept(&info.topic));
            let listed: BTreeMap<String, (u32, u64)> =
                listed.map(|info| (info.topic, (info.subscribers, info.offset))).collect();
            let twin = counts.iter().map(|(name, count)| (name.clone(), (*count, offsets[name])));
            prop_assert_eq!(listed, twin.collect());
        }
        end(&router, &mut shards);
        prop_assert_eq!(budget.used(), 0);
    }
}

impl Router {
    /// Whether nothing is left: no topic, no id, nothing that waits.
    pub(crate) fn check_empty(&self) -> Result<(), String> {
        let lingering = lock(&self.lingering).len();
        let counts = [
            ("topics", self.topic_count()),
            ("ids", self.ids.in_use()),
            ("names", self.stripes.iter().map(|stripe| lock(stripe).len()).sum()),
            ("topics that linger", lingering),
            ("parked subscriptions", self.parked.load(Ordering::Relaxed)),
            ("unattended topics", self.unattended.load(Ordering::Relaxed)),
            ("retained messages", self.retained.messages()),
            ("retained bytes", self.retained.bytes()),
            ("resumes", usize::from(!self.resumes.is_empty())),
        ];
        match counts.into_iter().find(|(_, count)| *count > 0) {
            Some((what, count)) => Err(format!("{count} {what} are left")),
            None => Ok(()),
        }
    }
}

/// All subscribers leave: no topic, no id, no credit remains.
fn end(router: &Router, shards: &mut [Shard]) {
    let run = |shards: &mut [Shard]| loop {
        let is_idle = !shards.iter_mut().any(|shard| shard.step(router, |_| ()));
        let is_asked = shards.iter().any(|shard| resume_next(router, &shard.told));
        if router.retry_retirements() && router.end_ticks() && is_idle && !is_asked {
            break;
        }
    };
    run(shards);
    // Retained messages go only with time.
    sweep(router, Nanos(u64::MAX));
    assert_eq!((router.retained.messages(), router.retained.bytes()), (0, 0));
    for shard in shards.iter_mut() {
        let conns: BTreeSet<ConnId> = shard.members.keys().map(|(conn, _)| *conn).collect();
        for conn in conns {
            shard.close(router, conn, |_| ());
        }
    }
    run(shards);
    assert!(router.resumes.is_empty());
    assert_eq!(router.topic_count(), 0);
    assert_eq!(router.ids.in_use(), 0);
    assert!(router.stripes.iter().all(|stripe| lock(stripe).is_empty()));
    for mailbox in router.mailboxes.iter() {
        assert_eq!(mailbox.depth(), 0);
    }
}

/// Publishers and subscribers on their own threads. A shard misses no message after the position in
/// a `Subscribed`, and gets none before it.
#[test]
fn a_position_is_exact_under_threads() {
    let budget = Budget::new(1 << 20);
    const PUBLISHED: usize = 1_000;
    let (router, shards) = world(2, 64, 100);
    // One subscriber on each shard stays to the end.
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
                        match router.mailboxes[index].try_credit(CreditKind::Control) {
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
    let taken: Vec<_> =
        (0..2).map(|_| router.mailboxes[1].try_credit(CreditKind::Message).unwrap()).collect();
    for _ in 0..3 {
        let refused = router
            .publish("t", router.destination("t"), OFFER, |_, _| panic!("it is not even encoded"));
        assert_eq!(refused, Err(RouteError::Busy));
    }
    assert_eq!((router.mailboxes[0].depth(), router.mailboxes[1].depth()), (0, 2));
    drop(taken);
    // A refusal by the budget uses nothing up either.
    assert_eq!(
        router.publish("t", router.destination("t"), OFFER, |_, _| None),
        Err(RouteError::Budget)
    );
    assert_eq!((router.mailboxes[0].depth(), router.mailboxes[1].depth()), (0, 0));
    assert_eq!(
        publish(&router, &budget, "t"),
        Ok(Some(Routed { offset: 1, epoch: 0, connections: 2 }))
    );
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
        let publisher = Publisher::Backend;
        let offer = Offer { frame_bytes, key: "", accepted_at, publisher };
        without_epoch(router.publish("t", router.destination("t"), offer, |class, place| {
            message(&budget, ("t", ""), class, place)
        }))
    };
    // With or without subscribers.
    let too_large = Err(RouteError::TooLarge { limit: 100 });
    assert_eq!((publish(101, 0), publish(100, 0)), (too_large, Ok(None)));
    assert!(subscribe(&router, conn(0, 1), "t"));
    assert_eq!(publish(101, 0), too_large);
    let accepted = |offset| Ok(Some(Routed { offset, epoch: 0, connections: 1 }));
    assert_eq!((publish(100, 0), publish(1, 0)), (accepted(1), accepted(2)));
    let limited = |ms| {
        let after = Duration::from_millis(ms);
        Err(RouteError::RateLimited { per_second: 10, after })
    };
    assert_eq!((publish(1, 0), publish(1, 30)), (limited(100), limited(70)));
    assert_eq!((publish(1, 100), publish(1, 100)), (accepted(3), limited(100)));
    // A refusal for another reason uses nothing up.
    let busy: Vec<_> =
        std::iter::from_fn(|| router.mailboxes[0].try_credit(CreditKind::Message)).collect();
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
    // One mailbox is full when the topic ends, so its shard is asked later.
    let taken: Vec<_> =
        (0..2).map(|_| router.mailboxes[1].try_credit(CreditKind::Control).unwrap()).collect();
    for shard in &mut shards {
        let conn = conn(shard.index, 1);
        shard.close(&router, conn, |_| ());
    }
    assert_eq!(router.topic_count(), 0);
    let refused = |router: &Router| {
        let credit = router.mailboxes[0].try_credit(CreditKind::Control).unwrap();
        let subscriber = Subscriber::new(conn(0, 2), Format::Stream);
        router.subscribe(credit, "second", subscriber, || None).map_err(|(error, _)| error)
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
