//! Tests of retained messages and of the connections that resume.

use super::*;
use crate::observe::counters::ResumeOutcome;

const TTL_NANOS: u64 = 300_000_000_000;

/// A router whose topics retain messages, with one shard. A replay chunk holds two messages.
fn room(class: TopicClass, retention_bytes: usize) -> (Arc<Router>, Arc<Budget>, Shard) {
    let class = TopicClass { pattern: "t*".to_owned(), ..class };
    let mut config = config_of(class);
    config.connection.low_watermark_bytes = 60;
    config.memory.retention_bytes = retention_bytes;
    let (router, mut shards) = world_of(&config, 1, 64);
    let budget = Arc::clone(&router.budget);
    (router, budget, shards.remove(0))
}

fn kept(retention_messages: usize) -> TopicClass {
    let resume_from_oldest = Some(false);
    TopicClass { retention_messages, resume_from_oldest, ..TopicClass::default() }
}

/// The answer to a connection and its messages, until it is subscribed or told that it is not.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    recovered: bool,
    offset: u64,
    messages: Vec<u64>,
    /// Position of an `Unsubscribed`.
    fell_behind: Option<u64>,
}

fn ask(router: &Router, shard: &mut Shard, name: &str, position: Option<Position>) -> Answer {
    assert!(resume(router, conn(0, 1), name, position));
    answer(router, shard, |_| ())
}

/// Follows a resume. `between` runs before each further chunk.
fn answer(router: &Router, shard: &mut Shard, mut between: impl FnMut(u64)) -> Answer {
    let mut answer = Answer { recovered: false, offset: 0, messages: vec![], fell_behind: None };
    let subscribed = |reply: &[u8]| {
        let server_message::Kind::Subscribed(subscribed) = decode(reply) else { panic!() };
        (subscribed.recovered, subscribed.position.unwrap().offset)
    };
    loop {
        let command = shard.mailbox.pop().expect("a resume goes on");
        shard.mailbox.return_credit(command.credit_kind());
        match command {
            Command::Subscribe { topic, reply, .. } => {
                shard.names.insert(topic, router.name(topic).unwrap());
                (answer.recovered, answer.offset) = subscribed(&reply);
                return answer;
            }
            Command::Unsubscribe { reply, .. } => {
                let server_message::Kind::Unsubscribed(told) = decode(&reply) else { panic!() };
                assert_eq!(told.reason, "fell_behind");
                answer.fell_behind = Some(told.position.unwrap().offset);
                return answer;
            }
            Command::Resume(chunk) => {
                if let Some(begin) = chunk.begin {
                    (answer.recovered, answer.offset) = subscribed(&begin.reply);
                    let (recovered, head) = subscribed(&begin.reply_if_member);
                    assert!(!recovered && head >= answer.offset);
                }
                answer.messages.extend(chunk.messages.iter().map(|message| message.offset()));
                if chunk.is_last {
                    shard.names.insert(chunk.topic, router.name(chunk.topic).unwrap());
                    return answer;
                }
                between(chunk.after);
                let credit = router.mailboxes[0].try_credit(CreditKind::Control).unwrap();
                let part = (chunk.resume, chunk.after);
                router.resume_next(credit, chunk.conn, chunk.topic, part);
            }
            // Messages that `between` publishes go to members.
            Command::Publish(..) => {}
            other @ (Command::Adopt(_)
            | Command::AdoptPassed(_)
            | Command::Welcome(..)
            | Command::Send(..)
            | Command::Broadcast(_)
            | Command::Evict(..)
            | Command::Retire(_)
            | Command::Drain(_)
            | Command::EndDrain(_)
            | Command::Inspect(_)) => panic!("not expected: {other:?}"),
        }
    }
}

fn epoch(router: &Router, name: &str) -> u64 {
    router.epoch(name).unwrap()
}

fn outcomes(router: &Router) -> [u64; 3] {
    ResumeOutcome::ALL.map(|outcome| router.counters.resumes(outcome))
}

#[test]
fn what_was_missed_comes_or_recovered_is_false() {
    let (router, budget, mut shard) = room(kept(5), 0);
    for _ in 0..7 {
        let routed = publish(&router, &budget, "t").unwrap().unwrap();
        assert_eq!(routed.connections, 0, "nobody is there, and it is kept");
    }
    let epoch = epoch(&router, "t");
    let mut check = |offset, epoch, recovered, expected: &[u64]| {
        let answer = ask(&router, &mut shard, "t", Some(Position { epoch, offset }));
        let begin = if recovered { offset } else { 7 };
        let messages = expected.to_vec();
        let expected = Answer { recovered, offset: begin, messages, fell_behind: None };
        assert_eq!(answer, expected, "{offset}");
        router.leave(router.id("t").unwrap(), conn(0, 1));
    };
    check(7, epoch, true, &[]);
    check(6, epoch, true, &[7]);
    check(5, epoch, true, &[6, 7]);
    check(2, epoch, true, &[3, 4, 5, 6, 7]);
    check(1, epoch, false, &[]);
    check(0, epoch, false, &[]);
    check(8, epoch, false, &[]);
    check(6, epoch ^ 1, false, &[]);
    assert_eq!(outcomes(&router), [4, 4, 0]);
    let answer = ask(&router, &mut shard, "t", None);
    assert_eq!((answer.recovered, answer.offset), (false, 7));
    assert_eq!(outcomes(&router), [4, 4, 0], "who names no position does not resume");
    router.leave(router.id("t").unwrap(), conn(0, 1));
    end(&router, &mut [shard]);
}

#[test]
fn an_unknown_position_begins_at_the_oldest_message_if_the_class_says_so() {
    let class = TopicClass { resume_from_oldest: None, ..kept(5) };
    let (router, budget, mut shard) = room(class, 0);
    for _ in 0..7 {
        publish(&router, &budget, "t").unwrap();
    }
    let epoch = epoch(&router, "t");
    // Another epoch, too old, and from the future.
    for (epoch, offset) in [(epoch ^ 1, 6), (epoch, 1), (epoch, 8)] {
        let answer = ask(&router, &mut shard, "t", Some(Position { epoch, offset }));
        let messages = vec![3, 4, 5, 6, 7];
        let expected = Answer { recovered: false, offset: 2, messages, fell_behind: None };
        assert_eq!(answer, expected, "{offset}");
        router.leave(router.id("t").unwrap(), conn(0, 1));
    }
    assert_eq!(outcomes(&router), [0, 3, 0]);
    let answer = ask(&router, &mut shard, "t", Some(Position { epoch, offset: 2 }));
    assert!(answer.recovered && answer.messages.len() == 5);
    router.leave(router.id("t").unwrap(), conn(0, 1));
    end(&router, &mut [shard]);
}

#[test]
fn without_a_ring_only_who_missed_nothing_is_recovered() {
    let (router, budget, mut shard) = room(kept(0), 0);
    assert!(subscribe(&router, conn(0, 9), "t"));
    assert!(shard.step(&router, |_| ()));
    publish(&router, &budget, "t").unwrap();
    assert!(shard.step(&router, |_| ()));
    let epoch = epoch(&router, "t");
    for (offset, recovered) in [(1, true), (0, false)] {
        let answer = ask(&router, &mut shard, "t", Some(Position { epoch, offset }));
        assert_eq!((answer.recovered, answer.offset), (recovered, 1));
        router.leave(router.id("t").unwrap(), conn(0, 1));
    }
    end(&router, &mut [shard]);
}

#[test]
fn who_is_overtaken_is_told_where_it_stood() {
    let (router, budget, mut shard) = room(kept(6), 0);
    for _ in 0..6 {
        publish(&router, &budget, "t").unwrap();
    }
    let position = Position { epoch: epoch(&router, "t"), offset: 0 };
    assert!(resume(&router, conn(0, 1), "t", Some(position)));
    // One further message during the resume does no harm; eight do.
    let answered = answer(&router, &mut shard, |after| {
        for _ in 0..if after == 2 { 1 } else { 8 } {
            publish(&router, &budget, "t").unwrap();
        }
    });
    let expected =
        Answer { recovered: true, offset: 0, messages: vec![1, 2, 3, 4], fell_behind: Some(4) };
    assert_eq!(answered, expected);
    assert_eq!(outcomes(&router), [0, 0, 1]);
    assert!(router.resumes.is_empty());
    end(&router, &mut [shard]);
}

#[test]
fn a_topic_lives_while_it_keeps_something_or_is_resumed() {
    let (router, budget, mut shard) = room(kept(6), 0);
    for _ in 0..6 {
        publish(&router, &budget, "t").unwrap();
    }
    let first = epoch(&router, "t");
    sweep(&router, Nanos(TTL_NANOS - 1));
    assert_eq!((router.topic_count(), router.retained.messages()), (1, 6));
    // The topic is resumed while its other messages expire.
    assert!(resume(&router, conn(0, 1), "t", Some(Position { epoch: first, offset: 1 })));
    sweep(&router, Nanos(TTL_NANOS));
    assert_eq!((router.topic_count(), router.retained.messages(), budget.used() > 0), (1, 0, true));
    let answered = answer(&router, &mut shard, |_| ());
    assert_eq!((answered.messages, answered.fell_behind), (vec![2, 3], Some(3)));
    assert_eq!((router.topic_count(), budget.used()), (0, 0));
    // Another epoch, in which a position of the first one means nothing.
    publish(&router, &budget, "t").unwrap();
    assert_ne!(epoch(&router, "t"), first);
    let answered = ask(&router, &mut shard, "t", Some(Position { epoch: first, offset: 1 }));
    assert_eq!((answered.recovered, answered.offset), (false, 1));
    router.leave(router.id("t").unwrap(), conn(0, 1));
    // The end of a connection, or its unsubscribing, ends its resume.
    for _ in 0..6 {
        publish(&router, &budget, "t").unwrap();
    }
    let position = Some(Position { epoch: epoch(&router, "t"), offset: 1 });
    for number in [1, 2] {
        assert!(resume(&router, conn(0, number), "t", position));
    }
    sweep(&router, Nanos(TTL_NANOS));
    router.unsubscribe(
        router.mailboxes[0].try_credit(CreditKind::Control).unwrap(),
        conn(0, 1),
        "t",
    );
    assert_eq!(router.topic_count(), 1);
    router.end_resumes(conn(0, 2));
    assert_eq!(router.topic_count(), 0);
    end(&router, &mut [shard]);
}

/// Fails if a refusal is ignored (`resume_refused`), or if the refusal of an earlier resume ends a
/// later one (`end_refused`).
#[test]
fn a_resume_that_its_shard_refuses_keeps_no_topic() {
    let (router, budget, shard) = room(kept(6), 0);
    for _ in 0..6 {
        publish(&router, &budget, "t").unwrap();
    }
    let position = Some(Position { epoch: epoch(&router, "t"), offset: 1 });
    let begin = || {
        assert!(resume(&router, conn(0, 1), "t", position));
        let Some(Command::Resume(chunk)) = shard.mailbox.pop() else { panic!() };
        shard.mailbox.return_credit(CreditKind::Control);
        assert!(!chunk.is_last);
        (chunk.conn, chunk.topic, chunk.resume)
    };
    let (first, second) = (begin(), begin());
    sweep(&router, Nanos(TTL_NANOS));
    for _ in 0..2 {
        router.resume_refused(first.0, first.1, first.2);
        assert_eq!((router.resumes.is_empty(), router.topic_count()), (false, 1));
    }
    router.resume_refused(second.0, second.1, second.2);
    assert_eq!((router.resumes.is_empty(), router.topic_count()), (true, 0));
    end(&router, &mut [shard]);
}

#[test]
fn all_topics_together_keep_no_more_than_they_may() {
    let (router, budget, shard) = room(kept(100), 2_000);
    for round in 0..200 {
        publish(&router, &budget, &format!("t{}", round % 3)).unwrap();
        let (retained, messages) = (&router.retained, router.retained.messages());
        assert!(retained.bytes() <= 2_000 && messages <= 20, "{retained:?}");
    }
    assert_eq!(router.retained.bytes(), budget.used());
    // A topic removes only its own messages. Without any it retains nothing, and ends.
    assert_eq!(router.topic_count(), 3);
    let before = router.retained.messages();
    publish(&router, &budget, "t-late").unwrap();
    assert_eq!((router.topic_count(), router.retained.messages()), (3, before));
    assert_eq!(router.retained.refused(), 1);
    end(&router, &mut [shard]);
}

#[test]
fn a_tick_is_kept_as_it_left() {
    let tick = Duration::from_secs(1);
    let (router, budget, mut shard) = room(TopicClass { tick, conflation: true, ..kept(10) }, 0);
    for key in ["a", "b", "a"] {
        publish_key(&router, &budget, "t", key).unwrap();
    }
    let position = Position { epoch: epoch(&router, "t"), offset: 0 };
    let answered = ask(&router, &mut shard, "t", Some(position));
    assert_eq!((answered.recovered, answered.messages), (true, vec![]), "it has not left");
    router.leave(router.id("t").unwrap(), conn(0, 1));
    assert_eq!(router.topic_count(), 1, "it will be kept");
    assert!(router.end_ticks());
    publish_key(&router, &budget, "t", "c").unwrap();
    let answered = ask(&router, &mut shard, "t", Some(position));
    assert_eq!((answered.recovered, answered.messages), (true, vec![2, 3]));
    router.leave(router.id("t").unwrap(), conn(0, 1));
    end(&router, &mut [shard]);
}

#[test]
fn half_of_the_topics_may_be_without_subscribers() {
    let mut config = config_of(TopicClass { pattern: "t*".to_owned(), ..kept(3) });
    config.limits.topics_max = 4;
    let (router, mut shards) = world_of(&config, 1, 8);
    let budget = Arc::clone(&router.budget);
    let publish = |name| publish(&router, &budget, name).map(|routed| routed.is_some());
    assert_eq!([publish("t1"), publish("t2")], [Ok(true), Ok(true)]);
    assert_eq!(publish("t3"), Err(RouteError::TooManyTopics));
    // Subscribers can still join the other topics, and their messages are retained.
    for (number, name) in [(3, "t3"), (4, "t4")] {
        assert!(subscribe(&router, conn(0, number), name));
        assert!(shards[0].step(&router, |_| ()));
        assert_eq!(publish(name), Ok(true));
        assert!(shards[0].step(&router, |_| ()));
    }
    assert_eq!((router.topic_count(), router.retained.messages()), (4, 4));
    // Without their subscribers there are too many.
    shards[0].close(&router, conn(0, 3), |_| ());
    assert_eq!((router.topic_count(), router.retained.messages()), (3, 3));
    assert_eq!((router.find("t3").is_none(), router.retained.refused()), (true, 1));
    // A returning connection makes room for another topic.
    let position = Position { epoch: epoch(&router, "t1"), offset: 0 };
    assert!(resume(&router, conn(0, 1), "t1", Some(position)));
    assert!(shards[0].step(&router, |_| ()));
    shards[0].close(&router, conn(0, 4), |_| ());
    assert_eq!((router.topic_count(), router.retained.refused()), (3, 1));
    assert_eq!(router.unattended.load(Ordering::Relaxed), 2);
    end(&router, &mut shards);
    assert_eq!(router.unattended.load(Ordering::Relaxed), 0);
}

#[test]
fn a_topic_that_cannot_begin_refuses_what_it_would_keep() {
    let mut config = config_of(TopicClass { pattern: "t*".to_owned(), ..kept(1) });
    config.limits.topics_max = 1;
    let (router, mut shards) = world_of(&config, 1, 8);
    let budget = Arc::clone(&router.budget);
    assert!(publish(&router, &budget, "t1").unwrap().is_some());
    assert_eq!(publish(&router, &budget, "t2"), Err(RouteError::TooManyTopics));
    assert_eq!(publish(&router, &budget, "other"), Ok(None));
    end(&router, &mut shards);
}

/// A publisher, and connections that leave and return, on their own threads. Each connection gets
/// exactly the messages that it missed.
#[test]
fn resumes_are_exact_under_threads() {
    let mut config = config_of(TopicClass { pattern: "t".to_owned(), ..kept(400) });
    config.connection.low_watermark_bytes = 200;
    let (router, shards) = world_of(&config, 2, 64);
    let budget = Arc::clone(&router.budget);
    // One subscriber on each shard stays to the end, so that the publisher waits for credits.
    assert!((0..2).all(|shard| subscribe(&router, conn(shard, 99), "t")));
    let told = shards.iter().map(|shard| Arc::clone(&shard.told)).collect::<Vec<_>>();
    let is_over = AtomicBool::new(false);
    let mut shards: Vec<Shard> = std::thread::scope(|scope| {
        let run = |mut shard: Shard| {
            let (router, is_over) = (&router, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    while shard.step(router, |_| ()) {}
                    std::thread::yield_now();
                }
                shard
            })
        };
        let shards: Vec<_> = shards.into_iter().map(run).collect();
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                if publish(&router, &budget, "t").is_err() {
                    std::thread::yield_now();
                }
            }
        });
        let dispatchers = told.iter().enumerate().map(|(index, told)| {
            let router = &router;
            scope.spawn(move || come_and_go(router, told, index))
        });
        let dispatchers: Vec<_> = dispatchers.collect();
        for dispatcher in dispatchers {
            dispatcher.join().unwrap();
        }
        is_over.store(true, Ordering::SeqCst);
        shards.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    end(&router, &mut shards);
    let [recovered, ..] = outcomes(&router);
    assert!(recovered > 0);
}

/// The work of a dispatcher for five connections; every second one leaves before it returns.
fn come_and_go(router: &Router, told: &Told, shard: usize) {
    for number in (0..5).cycle().take(1_500) {
        let conn = conn(shard, number);
        let seen = lock(&told.seen).get(&(conn, "t".to_owned())).copied();
        while !resume(router, conn, "t", seen) {
            std::thread::yield_now();
        }
        for _ in 0..8 {
            resume_next(router, told);
            std::thread::yield_now();
        }
        if number % 2 == 0
            && let Some(credit) = router.mailboxes[shard].try_credit(CreditKind::Control)
        {
            router.unsubscribe(credit, conn, "t");
        }
    }
}
