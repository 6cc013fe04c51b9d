//! A router that stands still.

use super::*;

/// What is accepted is in the export, and what is refused is not.
#[test]
fn nothing_changes_behind_an_export() {
    let class = TopicClass {
        pattern: "?".to_owned(),
        retention_messages: 1_000_000,
        retention_bytes: 1 << 30,
        ..TopicClass::default()
    };
    let tick = Duration::from_millis(1);
    let mut config = config_of(TopicClass { pattern: "a".to_owned(), ..class.clone() });
    for (pattern, tick) in [("b", tick), ("c", Duration::ZERO)] {
        config.topic_classes.push(TopicClass {
            pattern: pattern.to_owned(),
            tick,
            ..class.clone()
        });
    }
    config.memory.retention_bytes = 1 << 30;
    for round in 0..20 {
        let (mailboxes, _ends): (Vec<Mailbox<OwnedFd>>, Vec<_>) =
            (0..1).map(|_| Detached::mailbox(8, 1)).unzip();
        let budget = Budget::with_retention(1 << 32, 1 << 31);
        let router = Router::new(mailboxes.into(), budget, Arc::default(), &config, false);
        let (accepted, export) = export_under_load(&router, 100 * round);
        let numbers: BTreeMap<u64, u64> =
            export.messages.iter().map(|message| (message.number, message.offset)).collect();
        let mut exported = BTreeMap::new();
        for topic in &export.topics {
            let extra = topic.extra.clone().unwrap();
            let ring = extra.ring.unwrap_or_default().messages;
            let all = ring.into_iter().chain(extra.tick.unwrap_or_default().messages);
            let offsets: Vec<u64> = all.map(|number| numbers[&number]).collect();
            assert_eq!(offsets, (1..=topic.offset).collect::<Vec<_>>());
            if topic.offset > 0 {
                exported.insert(topic.name.clone(), topic.offset);
            }
        }
        assert_eq!(exported, accepted);
        // Nobody has taken over.
        router.resume_serving();
        assert_eq!(router.topic_count(), accepted.len());
        let routed = publish(&router, &router.budget, "c").unwrap().unwrap();
        assert_eq!(routed.offset, accepted.get("c").copied().unwrap_or(0) + 1);
    }
}

/// Two publishers for each topic, until they are refused. The export comes after some messages.
/// Returns the last offset that was accepted in each topic.
fn export_under_load(
    router: &Router,
    messages: usize,
) -> (BTreeMap<String, u64>, weir_wire::handover::v1::Topics) {
    const NAMES: [&str; 3] = ["a", "b", "c"];
    let count = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let publish = |name: &'static str| {
            let count = &count;
            scope.spawn(move || {
                let mut accepted = 0;
                loop {
                    match publish(router, &router.budget, name) {
                        Ok(Some(routed)) => accepted = accepted.max(routed.offset),
                        Err(RouteError::Busy) => return (name, accepted),
                        // The thread that ends ticks has not had its turn.
                        Err(RouteError::TickFull { .. }) => std::thread::yield_now(),
                        other => panic!("{other:?}"),
                    }
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let publishers: Vec<_> = NAMES.into_iter().chain(NAMES).map(publish).collect();
        scope.spawn(|| {
            while !router.is_still() {
                router.end_ticks();
                sweep(router, Nanos(0));
            }
        });
        while count.load(Ordering::Relaxed) < messages {
            std::thread::yield_now();
        }
        let export = sent(router);
        let mut accepted = BTreeMap::new();
        for publisher in publishers {
            let (name, offset) = publisher.join().unwrap();
            let known = accepted.entry(name.to_owned()).or_default();
            *known = offset.max(*known);
        }
        accepted.retain(|_, offset| *offset > 0);
        (accepted, export)
    })
}

#[test]
fn what_changes_a_topic_is_refused_and_works_again() {
    let mut player = Player::new(&twin::config());
    let connection = conn(1, 1);
    for name in ["who", "ring", "tick"] {
        assert_eq!(player.subscribe(connection, name, None, false), Some(Ok(())));
        player.publish(name, "").unwrap();
    }
    player.rest();
    for _ in 0..5 {
        player.publish("ring", "").unwrap();
    }
    let epoch = player.router.epoch("ring").unwrap();
    let position = Some(Position { epoch, offset: 1 });
    assert_eq!(player.subscribe(conn(2, 2), "ring", position, false), Some(Ok(())));
    player.rest();
    let before = player.state();
    let export = sent(&player.router);
    let busy = Some(Err(SubscribeError::Busy));
    for name in ["who", "ring", "plain"] {
        assert_eq!(player.subscribe(conn(0, 4), name, None, false), busy);
        assert_eq!(player.unsubscribe(connection, name), Some(false));
        assert_eq!(player.publish(name, ""), Err(RouteError::Busy));
        let admitted = player.router.admit(name, player.router.destination(name), OFFER);
        assert_eq!(admitted.map(|_| ()), Err(RouteError::Busy).or(admitted.map(|_| ())));
    }
    assert!(!player.router.end_ticks() && !player.resume_next_anyway());
    player.sweep();
    player.end_presence();
    assert!(!player.router.retry_retirements());
    assert_eq!(player.state(), before);
    assert!(player.router.mailboxes.iter().all(|mailbox| mailbox.depth() == 0));
    // An export does not take anything out: the next one is the same.
    assert_eq!(sent(&player.router), export);
    player.router.resume_serving();
    assert!(player.router.end_ticks() && player.resume_next());
    assert_eq!(player.unsubscribe(connection, "who"), Some(true));
    assert_eq!(player.publish("ring", "").map(|routed| routed.unwrap().offset), Ok(7));
    player.end();
}

#[test]
fn whoever_waits_goes_on_when_the_router_serves_again() {
    let player = Player::new(&twin::config());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        player.router.serving().await;
        player.router.stand_still();
        let router = Arc::clone(&player.router);
        let waiting = tokio::spawn(async move { router.serving().await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        player.router.resume_serving();
        waiting.await.unwrap();
    });
    player.end();
}
