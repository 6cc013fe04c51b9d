//! Tests of the messages that a tick gathers, and of their batch.

use weir_engine::SlowPolicy;

use super::*;

/// A topic `t` of this class with one member, whose `Subscribe` has been carried out.
fn topic(class: TopicClass) -> (Arc<Router>, Shard) {
    let class = TopicClass { pattern: "t".to_owned(), tick: Duration::from_secs(1), ..class };
    let (router, mut shards) = world_of(&config_of(class), 1, 8);
    let mut shard = shards.remove(0);
    assert!(subscribe(&router, conn(0, 1), "t"));
    assert!(shard.step(&router, |_| ()));
    (router, shard)
}

/// The message of a tick in the mailbox.
fn sent(shard: &mut Shard) -> Arc<Message> {
    let Some(Command::Publish(_, message)) = shard.mailbox.pop() else {
        panic!("nothing was sent")
    };
    shard.mailbox.return_credit(CreditKind::Message);
    message
}

fn offsets(message: &Message) -> Vec<u64> {
    pushes(message.frame()).iter().map(|push| push.1).collect()
}

fn accepted(offset: u64) -> Result<Option<Routed>, RouteError> {
    Ok(Some(Routed { offset, epoch: 0, connections: 1 }))
}

#[test]
fn only_the_newest_of_each_key_leaves_in_order_of_offsets() {
    let budget = Budget::new(1 << 20);
    let (router, mut shard) = topic(TopicClass { conflation: true, ..TopicClass::default() });
    let keys = ["a", "b", "", "a", "", "c", "b", "a"];
    for (offset, key) in (1..).zip(keys) {
        assert_eq!(publish_key(&router, &budget, "t", key), accepted(offset));
    }
    assert!(router.end_ticks());
    let message = sent(&mut shard);
    assert_eq!(offsets(&message), [3, 5, 6, 7, 8]);
    assert!(message.is_tick() && message.singles().is_empty());
    assert_eq!(message.offset(), 8);
    assert_eq!((router.counters.tick_conflated(), router.counters.tick_messages()), (3, 5));
    // One key many times: a replaced message goes at once.
    for _ in 0..1_000 {
        publish_key(&router, &budget, "t", "a").unwrap();
        publish_key(&router, &budget, "t", "b").unwrap();
    }
    assert!(budget.used() < 10_000, "{}", budget.used());
    assert!(router.end_ticks());
    assert_eq!(offsets(&sent(&mut shard)), [2007, 2008]);
    assert_eq!(router.counters.ticks(), 2);
}

#[test]
fn without_conflation_all_leave_and_one_alone_leaves_as_it_is() {
    let budget = Budget::new(1 << 20);
    let (router, mut shard) = topic(TopicClass::default());
    for offset in 1..=2 {
        assert_eq!(publish_key(&router, &budget, "t", "a"), accepted(offset));
    }
    assert!(router.end_ticks());
    assert_eq!(offsets(&sent(&mut shard)), [1, 2]);
    publish_key(&router, &budget, "t", "a").unwrap();
    assert!(router.end_ticks());
    let alone = sent(&mut shard);
    assert_eq!((offsets(&alone), alone.is_tick(), alone.key()), (vec![3], false, &b"a"[..]));
    assert!(router.end_ticks());
    assert!(shard.mailbox.pop().is_none(), "an empty tick sends nothing");
    assert_eq!(router.counters.ticks(), 2);
}

#[test]
fn a_tick_beyond_the_frame_limit_leaves_as_several_frames_in_one_message() {
    let budget = Budget::new(1 << 20);
    let mut config = config_of(TopicClass {
        pattern: "t".to_owned(),
        tick: Duration::from_secs(1),
        slow: SlowPolicy::Conflate,
        ..TopicClass::default()
    });
    config.limits.frame_bytes_max = 200;
    let (router, mut shards) = world_of(&config, 1, 8);
    assert!(subscribe(&router, conn(0, 1), "t"));
    assert!(shards[0].step(&router, |_| ()));
    for _ in 0..50 {
        publish(&router, &budget, "t").unwrap();
    }
    assert!(router.end_ticks());
    let message = sent(&mut shards[0]);
    assert_eq!(offsets(&message), (1..=50).collect::<Vec<_>>());
    let (mut frames, mut count) = (message.frame(), 0);
    while let Some((body, taken)) = frame::decode(frames, 200).unwrap() {
        assert!(body.len() <= 200);
        (frames, count) = (&frames[taken..], count + 1);
    }
    assert!(count > 5, "{count} frames");
    let singles = message.singles().iter().map(|single| single.offset());
    assert_eq!(singles.collect::<Vec<_>>(), (1..=50).collect::<Vec<_>>());
}

#[test]
fn a_tick_that_cannot_leave_goes_on_to_its_bound() {
    let budget = Budget::new(1 << 20);
    let tick_bytes_max = 2 * Message::occupied_by(45);
    let (router, mut shard) =
        topic(TopicClass { tick_bytes_max, conflation: true, ..TopicClass::default() });
    let busy: Vec<_> =
        std::iter::from_fn(|| router.mailboxes[0].try_credit(CreditKind::Message)).collect();
    assert_eq!(publish_key(&router, &budget, "t", "a"), accepted(1));
    assert!(!router.end_ticks());
    assert_eq!(publish_key(&router, &budget, "t", "b"), accepted(2));
    assert!(!router.end_ticks());
    assert_eq!(router.counters.ticks_deferred(), 2);
    let refused = publish_key(&router, &budget, "t", "c");
    let Err(RouteError::TickFull { limit, after }) = refused else { panic!("{refused:?}") };
    assert_eq!(limit, tick_bytes_max);
    assert_eq!(after, Duration::from_secs(1), "the rest of the tick");
    // A message that replaces another needs only its room.
    assert_eq!(publish_key(&router, &budget, "t", "a"), accepted(3));
    drop(busy);
    assert!(router.end_ticks());
    assert_eq!(offsets(&sent(&mut shard)), [2, 3]);
    assert_eq!(publish_key(&router, &budget, "t", "c"), accepted(4));
}

#[test]
fn a_newcomer_gets_the_whole_running_tick() {
    let budget = Budget::new(1 << 20);
    let (router, mut shard) = topic(TopicClass::default());
    publish(&router, &budget, "t").unwrap();
    assert!(router.end_ticks());
    publish(&router, &budget, "t").unwrap();
    assert!(subscribe(&router, conn(0, 2), "t"));
    assert!(router.end_ticks());
    while shard.step(&router, |_| ()) {}
    let positions = shard.members.values().map(|(_, offset)| *offset);
    assert_eq!(positions.collect::<Vec<_>>(), [2, 2]);
    // With its last member the topic ends, together with messages that nobody will get.
    publish(&router, &budget, "t").unwrap();
    let mut shards = [shard];
    end(&router, &mut shards);
    assert_eq!(budget.used(), 0);
}

#[test]
fn what_expires_within_its_tick_does_not_leave() {
    let budget = Budget::new(1 << 20);
    let (router, mut shard) = topic(TopicClass::default());
    let expiring = |class: &Class, place| {
        let frame = message(&budget, ("t", ""), class, place)?;
        Message::new(&budget, frame.frame().to_vec(), Nanos(0), Some(Nanos(1)))
    };
    router.publish("t", router.destination("t"), OFFER, expiring).unwrap();
    publish(&router, &budget, "t").unwrap();
    assert!(router.end_ticks());
    assert_eq!(offsets(&sent(&mut shard)), [2]);
    router.publish("t", router.destination("t"), OFFER, expiring).unwrap();
    assert!(router.end_ticks());
    assert!(shard.mailbox.pop().is_none());
    assert_eq!(router.counters.expired(), 2);
    assert!(subscribe(&router, conn(0, 2), "t"));
    let Some(Command::Subscribe { reply, .. }) = shard.mailbox.pop() else { panic!() };
    let server_message::Kind::Subscribed(subscribed) = decode(&reply) else { panic!() };
    assert_eq!(subscribed.position.unwrap().offset, 3, "it has left, in a way");
}

#[test]
fn ticks_that_have_used_the_budget_up_leave() {
    let class = TopicClass { pattern: "*".to_owned(), ..TopicClass::default() };
    let class = TopicClass { tick: Duration::from_secs(1), ..class };
    for slow in [SlowPolicy::Close, SlowPolicy::Conflate] {
        for retention_messages in [0, 1_000_000] {
            let class = TopicClass { slow, retention_messages, ..class.clone() };
            let (router, mut shards) = world_of(&config_of(class), 1, 64);
            let budget = Arc::clone(&router.budget);
            let names: Vec<String> = (0..20).map(|name| name.to_string()).collect();
            for name in &names {
                assert!(subscribe(&router, conn(0, 1), name));
                assert!(shards[0].step(&router, |_| ()));
            }
            let accepted = |name: &&String| publish(&router, &budget, name).is_ok();
            let count = names.iter().cycle().take_while(accepted).count();
            let refused = publish(&router, &budget, &names[0]);
            assert_eq!(refused, Err(RouteError::Budget), "of {count}");
            let gathered = budget.used();
            assert!(router.end_ticks());
            assert!(budget.used() <= 2 * gathered, "{} for {gathered}", budget.used());
            while shards[0].step(&router, |_| ()) {}
            assert_eq!(shards[0].delivered, count);
            end(&router, &mut shards);
            assert_eq!(budget.used(), 0);
        }
    }
}

#[test]
fn what_each_message_occupies_counts_in_a_tick() {
    let budget = Budget::new(1 << 20);
    let (router, _shard) = topic(TopicClass { tick_bytes_max: 4096, ..TopicClass::default() });
    while publish(&router, &budget, "t").is_ok() {}
    let used = budget.used();
    assert!((3_700..=4_096).contains(&used), "{used}");
}

#[test]
fn what_expires_leaves_a_tick_that_cannot_leave() {
    let budget = Budget::new(1 << 20);
    let (router, mut shard) = topic(TopicClass { conflation: true, ..TopicClass::default() });
    publish_key(&router, &budget, "t", "a").unwrap();
    let used = budget.used();
    for key in ["b", "c"] {
        let expiring = |class: &Class, place| {
            let of_topic = class.topic_message(place, 0..1);
            Message::of_topic(&budget, key.into(), Nanos(0), Some(Nanos(1)), of_topic)
        };
        router.publish("t", router.destination("t"), Offer { key, ..OFFER }, expiring).unwrap();
    }
    let busy: Vec<_> =
        std::iter::from_fn(|| router.mailboxes[0].try_credit(CreditKind::Message)).collect();
    assert!(!router.end_ticks());
    assert_eq!((budget.used(), router.counters.expired()), (used, 2));
    drop(busy);
    publish_key(&router, &budget, "t", "a").unwrap();
    publish_key(&router, &budget, "t", "b").unwrap();
    assert!(router.end_ticks());
    assert_eq!(offsets(&sent(&mut shard)), [4, 5]);
}
