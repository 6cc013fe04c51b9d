//! The queue before the broker in memory, with its faults, in virtual time.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::contract::{Event, EventHandler, Published};
use crate::memory::{Break, Chances, Delays, Memory, MemoryOptions, Method, NewEpoch, NodeOptions};

struct Deaf;

impl EventHandler for Deaf {
    fn handle(&self, _: Event) {}
}

struct Fixture {
    memory: Memory,
    queue: PublishQueue,
}

impl Fixture {
    fn new(limits: QueueLimits) -> Fixture {
        Fixture::with(limits, 1)
    }

    fn with(limits: QueueLimits, seed: u64) -> Fixture {
        let options = MemoryOptions { keeps_journal: true, seed, ..MemoryOptions::default() };
        let memory = Memory::new(&options);
        let broker = memory.node("a", NodeOptions::default(), Arc::new(Deaf));
        Fixture { memory, queue: PublishQueue::new(broker, limits, BatchId(1)) }
    }

    /// With calls that take this long.
    fn slow(limits: QueueLimits, millis: u64) -> Fixture {
        let fixture = Fixture::new(limits);
        fixture.set_delay(millis);
        fixture
    }

    fn set_delay(&self, millis: u64) {
        let delay = Duration::from_millis(millis);
        let delays = Delays { request: delay..delay, ..Delays::default() };
        self.memory.set_delays("a", delays);
    }

    fn offer(&self, topic: &str, text: &str) -> Waiting {
        self.try_offer(topic, text).unwrap()
    }

    fn try_offer(&self, topic: &str, text: &str) -> Result<Waiting, Overloaded> {
        self.queue.offer(&topic.into(), Some(RETENTION), entry(text))
    }

    fn break_next(&self, place: Break) {
        self.memory.break_next("a", Some(Method::Publish), place);
    }

    /// What the topic has accepted, in order.
    fn accepted(&self, topic: &str) -> Vec<String> {
        let journal = self.memory.journal(topic).into_iter();
        journal.map(|(_, payload)| String::from_utf8(payload).unwrap()).collect()
    }

    /// Calls, and batches in them.
    fn calls(&self) -> (u64, u64) {
        let counts = self.queue.counts();
        (counts.calls, counts.batches)
    }
}

const RETENTION: Retention = Retention { messages_max: 1000, ttl: Duration::from_secs(3600) };

fn entry(text: &str) -> Entry {
    Entry { payload: text.into(), idempotency_key: None }
}

async fn offsets(waiting: Vec<Waiting>) -> Vec<u64> {
    let mut offsets = Vec::new();
    for waiting in waiting {
        offsets.push(waiting.await.unwrap().0.offset);
    }
    offsets
}

async fn pause(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

#[tokio::test(start_paused = true)]
async fn what_comes_while_a_batch_is_on_its_way_is_the_next_one() {
    let fixture = Fixture::slow(QueueLimits::default(), 50);
    let mut waiting = vec![fixture.offer("t", "1")];
    pause(10).await;
    assert_eq!(fixture.calls(), (1, 1));
    for text in ["2", "3", "4"] {
        waiting.push(fixture.offer("t", text));
        pause(10).await;
    }
    assert_eq!(offsets(waiting).await, [1, 2, 3, 4]);
    assert_eq!(fixture.accepted("t"), ["1", "2", "3", "4"]);
    assert_eq!(fixture.calls(), (2, 2));
    let counts = fixture.queue.counts();
    assert_eq!((counts.waiting, counts.waiting_bytes, counts.entries), (0, 0, 4));
    // The first one took 50 ms; the others waited for it as well.
    let durations = fixture.queue.durations();
    assert_eq!(durations.buckets.iter().sum::<u64>(), 4);
    assert_eq!(durations.sum.as_millis(), 50 + 90 + 80 + 70);
}

#[tokio::test(start_paused = true)]
async fn many_topics_leave_in_one_call() {
    let limits = QueueLimits { batches_max: 4, ..QueueLimits::default() };
    let fixture = Fixture::slow(limits, 50);
    let topics = ["a", "b", "c", "d", "e", "f"];
    let waiting: Vec<Waiting> = topics.iter().map(|topic| fixture.offer(topic, "1")).collect();
    assert_eq!(offsets(waiting).await, [1; 6]);
    assert_eq!(fixture.calls(), (2, 6));
}

#[tokio::test(start_paused = true)]
async fn under_load_messages_gather_for_a_while() {
    let limits = QueueLimits {
        gather_max: Duration::from_millis(20),
        batch_entries_max: 3,
        ..QueueLimits::default()
    };
    let fixture = Fixture::slow(limits, 50);
    let mut waiting = vec![fixture.offer("a", "1")];
    // Nothing was on its way: it has left.
    pause(1).await;
    assert_eq!(fixture.calls(), (1, 1));
    waiting.push(fixture.offer("b", "1"));
    pause(10).await;
    waiting.push(fixture.offer("c", "1"));
    assert_eq!(fixture.calls(), (1, 1));
    pause(15).await;
    assert_eq!(fixture.calls(), (2, 3));
    // A whole batch waits for nobody.
    for topic in ["d", "e", "f"] {
        waiting.push(fixture.offer(topic, "1"));
    }
    pause(1).await;
    assert_eq!(fixture.calls(), (3, 6));
    // The first answer comes earlier than the time to gather ends.
    pause(15).await;
    waiting.push(fixture.offer("g", "1"));
    pause(10).await;
    assert_eq!(fixture.calls(), (4, 7));
    assert_eq!(offsets(waiting).await, [1; 7]);
}

#[tokio::test(start_paused = true)]
async fn no_more_calls_than_allowed_are_on_their_way() {
    let limits = QueueLimits { calls_max: 2, gather_max: Duration::ZERO, ..QueueLimits::default() };
    let fixture = Fixture::slow(limits, 50);
    let mut waiting = Vec::new();
    for topic in ["a", "b", "c", "d"] {
        waiting.push(fixture.offer(topic, "1"));
        pause(2).await;
    }
    assert_eq!(fixture.calls(), (2, 2));
    assert_eq!(offsets(waiting).await, [1; 4]);
    assert_eq!(fixture.calls(), (3, 4));
}

#[tokio::test(start_paused = true)]
async fn batches_have_limits_and_one_retention() {
    let limits =
        QueueLimits { batch_entries_max: 3, batch_bytes_max: 10, ..QueueLimits::default() };
    let fixture = Fixture::slow(limits, 10);
    let check = async |topic: &str, texts: &[&str], retained: &[bool], expected: u64| {
        let before = fixture.calls().1;
        let offer = |(text, retained): (&&str, &bool)| {
            let retention = retained.then_some(RETENTION);
            fixture.queue.offer(&topic.into(), retention, entry(text)).unwrap()
        };
        let waiting: Vec<Waiting> = texts.iter().zip(retained).map(offer).collect();
        offsets(waiting).await;
        assert_eq!(fixture.accepted(topic), texts);
        assert_eq!(fixture.calls().1 - before, expected, "{texts:?}");
    };
    check("entries", &["1", "2", "3", "4", "5", "6", "7"], &[true; 7], 3).await;
    check("bytes", &["123456", "789", "0", "1"], &[true; 4], 2).await;
    check("a large one", &["1", "a message of more bytes than a batch has", "2"], &[true; 3], 3)
        .await;
    check("retention", &["1", "2", "3"], &[true, false, false], 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_and_takes_again_later() {
    let limits = QueueLimits { waiting_max: 2, waiting_bytes_max: 100, ..QueueLimits::default() };
    let fixture = Fixture::slow(limits, 50);
    let long = "x".repeat(60);
    let waiting = vec![fixture.offer("t", &long)];
    let refused = fixture.try_offer("u", &long).err();
    assert_eq!(refused, Some(Overloaded { entries: 1, bytes: 60 }));
    let more = fixture.offer("u", "short");
    let refused = fixture.try_offer("v", "").err();
    assert_eq!(refused, Some(Overloaded { entries: 2, bytes: 65 }));
    assert_eq!(offsets(waiting).await, [1]);
    more.await.unwrap();
    let later = fixture.offer("u", &long);
    assert_eq!(later.await.unwrap().0.offset, 2);
    assert_eq!(fixture.queue.counts().refused, 2);
}

#[tokio::test(start_paused = true)]
async fn a_failed_batch_is_sent_again_before_the_next_one() {
    let late = Break::Late(Duration::from_secs(60));
    for place in [Break::BeforeExecution, Break::BeforeAnswer, late] {
        let fixture = Fixture::slow(QueueLimits::default(), 5);
        for _ in 0..3 {
            fixture.break_next(place);
        }
        let mut waiting = vec![fixture.offer("t", "1"), fixture.offer("t", "2")];
        pause(1).await;
        waiting.push(fixture.offer("t", "3"));
        assert_eq!(offsets(waiting).await, [1, 2, 3]);
        pause(120_000).await;
        assert_eq!(fixture.accepted("t"), ["1", "2", "3"]);
        assert_eq!(fixture.queue.counts().retries, 3);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_batch_does_not_delay_other_topics() {
    let fixture = Fixture::new(QueueLimits::default());
    fixture.break_next(Break::BeforeExecution);
    let waiting = fixture.offer("t", "1");
    pause(1).await;
    fixture.offer("u", "1").await.unwrap();
    assert_eq!(fixture.accepted("t"), [] as [&str; 0]);
    waiting.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_broker_out_of_reach_is_tried_until_the_time_out() {
    let fixture = Fixture::new(QueueLimits::default());
    fixture.memory.set_reachable(false);
    let (first, second) = (fixture.offer("t", "1"), fixture.offer("t", "2"));
    pause(3000).await;
    let third = fixture.offer("t", "3");
    let begin = Instant::now();
    for waiting in [first, second] {
        assert!(matches!(waiting.await, Err(Error::Unavailable(_))));
        assert_eq!(begin.elapsed().as_secs(), 2);
    }
    fixture.memory.set_reachable(true);
    assert_eq!(third.await.unwrap().0.offset, 1);
    assert_eq!(fixture.accepted("t"), ["3"]);
    assert_eq!(fixture.queue.counts().failed, 2);
    assert_eq!(fixture.queue.durations().buckets.iter().sum::<u64>(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_may_have_arrived_is_uncertain_in_the_end() {
    let fixture = Fixture::new(QueueLimits::default());
    fixture.break_next(Break::BeforeAnswer);
    let waiting = fixture.offer("t", "1");
    pause(1).await;
    fixture.memory.set_reachable(false);
    assert!(matches!(waiting.await, Err(Error::Uncertain(_))));

    fixture.memory.set_reachable(true);
    fixture.break_next(Break::BeforeAnswer);
    let waiting = fixture.offer("t", "2");
    pause(1).await;
    fixture.memory.set_refusal(Some("its memory is full"));
    assert!(matches!(waiting.await, Err(Error::Uncertain(_))));
    assert_eq!(fixture.accepted("t"), ["1", "2"]);
}

#[tokio::test(start_paused = true)]
async fn messages_behind_a_hanging_batch_end_in_time() {
    let fixture = Fixture::new(QueueLimits::default());
    fixture.memory.pause(Some("a"));
    let (begin, first) = (Instant::now(), fixture.offer("t", "1"));
    pause(100).await;
    let second = fixture.offer("t", "2");
    assert!(matches!(first.await, Err(Error::Uncertain(_))));
    assert!(matches!(second.await, Err(Error::Unavailable(_))));
    assert_eq!(begin.elapsed().as_secs(), 5);
    let counts = fixture.queue.counts();
    assert_eq!((counts.waiting, counts.waiting_bytes), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_at_once_and_the_next_batch_leaves() {
    let fixture = Fixture::slow(QueueLimits::default(), 10);
    fixture.memory.set_refusal(Some("its memory is full"));
    let first = fixture.offer("t", "1");
    pause(5).await;
    let second = fixture.offer("t", "2");
    assert!(matches!(first.await, Err(Error::Refused(_))));
    fixture.memory.set_refusal(None);
    assert_eq!(second.await.unwrap().0.offset, 1);
    assert_eq!(fixture.queue.counts().retries, 0);
}

#[tokio::test(start_paused = true)]
async fn waking_sends_failed_batches_at_once() {
    let fixture = Fixture::new(QueueLimits::default());
    fixture.memory.set_reachable(false);
    let waiting = fixture.offer("t", "1");
    // The pauses before attempts have grown to 320 ms.
    pause(400).await;
    fixture.memory.set_reachable(true);
    let begin = Instant::now();
    fixture.queue.wake();
    waiting.await.unwrap();
    assert!(begin.elapsed() < Duration::from_millis(10), "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn nobody_has_to_wait() {
    let fixture = Fixture::slow(QueueLimits::default(), 10);
    drop(fixture.offer("t", "1"));
    fixture.offer("t", "2").await.unwrap();
    assert_eq!(fixture.accepted("t"), ["1", "2"]);

    let first = fixture.offer("t", "3");
    pause(5).await;
    let second = fixture.offer("t", "4");
    drop(fixture.queue);
    // It was on its way. The other one never leaves.
    assert_eq!(first.await.unwrap().0.offset, 3);
    assert!(matches!(second.await, Err(Error::Uncertain(_))));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_breaks_off_is_repeated() {
    let mut state = State::new(QueueLimits::default(), BatchId(7));
    let topic: Name = "t".into();
    let mut answered = Vec::new();
    let now = Instant::now();
    for text in ["1", "2"] {
        answered.push(state.handle_offer(&topic, None, entry(text), now).unwrap().0);
    }
    let mut now = now;
    for _ in 0..2 {
        let Output::Call(batches) = state.poll(now) else { panic!("it may leave") };
        assert_eq!((batches.len(), batches[0].batch.id), (1, BatchId(7)));
        state.handle_results(batches, Ok(Vec::new()), now);
        let Output::Wait(Some(at)) = state.poll(now) else { panic!("it is sent again") };
        now = at;
    }
    let Output::Call(batches) = state.poll(now) else { panic!("it may leave") };
    let too_few = Published { epoch: 1, positions: Vec::new(), nodes: 1 };
    state.handle_results(batches, Ok(vec![Ok(too_few)]), now);
    for answered in answered {
        assert!(matches!(answered.await.unwrap(), Err(Error::Damaged(_))));
    }
    assert_eq!(state.counts.waiting, 0);
}

/// Something that happens in a run.
#[derive(Debug, Clone)]
enum Act {
    Offer { topic: &'static str, count: usize },
    Pass { millis: u64 },
    Break(Break),
    Delay { millis: u64 },
    Reachable(bool),
    Paused(bool),
    FailOver { lost: u64, epochs: NewEpoch },
}

fn act() -> impl Strategy<Value = Act> {
    let topic = select(vec!["t", "u", "v"]);
    let late = (0..8000_u64).prop_map(|millis| Break::Late(Duration::from_millis(millis)));
    let epochs = select(vec![NewEpoch::GoesOn, NewEpoch::BeginsAgain]);
    prop_oneof![
        8 => (topic, 1..6_usize).prop_map(|(topic, count)| Act::Offer { topic, count }),
        4 => (0..200_u64).prop_map(|millis| Act::Pass { millis }),
        1 => (0..6000_u64).prop_map(|millis| Act::Pass { millis }),
        2 => Just(Act::Break(Break::BeforeExecution)),
        2 => Just(Act::Break(Break::BeforeAnswer)),
        2 => late.prop_map(Act::Break),
        1 => (0..3000_u64).prop_map(|millis| Act::Delay { millis }),
        1 => any::<bool>().prop_map(Act::Reachable),
        1 => any::<bool>().prop_map(Act::Paused),
        1 => (0..5_u64, epochs).prop_map(|(lost, epochs)| Act::FailOver { lost, epochs }),
    ]
}

/// Offers numbers, and gives for each topic, in order, what became of them.
async fn play(acts: &[Act], fixture: &Fixture) -> Vec<(&'static str, u64, QueueResult)> {
    let (mut offered, mut number) = (Vec::new(), 0);
    for act in acts {
        match act {
            Act::Offer { topic, count } => {
                for _ in 0..*count {
                    number += 1;
                    offered.push((*topic, number, fixture.offer(topic, &number.to_string())));
                }
            }
            Act::Pass { millis } => pause(*millis).await,
            Act::Break(place) => fixture.break_next(*place),
            Act::Delay { millis } => fixture.set_delay(*millis),
            Act::Reachable(is_reachable) => fixture.memory.set_reachable(*is_reachable),
            Act::Paused(true) => fixture.memory.pause(None),
            Act::Paused(false) => fixture.memory.resume(None),
            Act::FailOver { lost, epochs } => fixture.memory.fail_over(*lost, *epochs),
        }
    }
    let mut ended = Vec::new();
    for (topic, number, waiting) in offered {
        ended.push((topic, number, waiting.await));
    }
    // What is late still comes.
    fixture.memory.resume(None);
    fixture.memory.set_reachable(true);
    pause(60_000).await;
    ended
}

/// Each topic has its numbers in order and once in each epoch, and the answers say what the topic has.
fn check(acts: &[Act], fixture: &Fixture, ended: &[(&'static str, u64, QueueResult)]) {
    let has_failover = acts.iter().any(|act| matches!(act, Act::FailOver { .. }));
    for topic in ["t", "u", "v"] {
        let journal = fixture.memory.journal(topic).into_iter();
        let journal: Vec<(Position, u64)> = journal
            .map(|(place, text)| (place, String::from_utf8(text).unwrap().parse().unwrap()))
            .collect();
        for two in journal.windows(2) {
            let (before, after) = (two[0], two[1]);
            let is_same = before.0.epoch == after.0.epoch;
            assert!(is_same || has_failover, "{topic}: {journal:?}");
            assert!(!is_same || before.1 < after.1, "{topic}: {journal:?}");
        }
        for (_, number, result) in ended.iter().filter(|(of, ..)| *of == topic) {
            let places = journal.iter().filter(|(_, found)| found == number);
            let places: Vec<Position> = places.map(|(place, _)| *place).collect();
            match result {
                Ok((place, _)) => assert!(places.contains(place), "{number} in {journal:?}"),
                Err(Error::Uncertain(_)) => {}
                Err(error) => assert_eq!(places, [], "{number}: {error}"),
            }
        }
    }
    let counts = fixture.queue.counts();
    assert_eq!((counts.waiting, counts.waiting_bytes), (0, 0));
}

fn run_paused<T>(run: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(run)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_order_is_kept_and_nothing_doubled(
        acts in proptest::collection::vec(act(), 1..60),
        batch_entries_max in 1..5_usize,
        calls_max in 1..4_usize,
    ) {
        run_paused(async {
            let limits = QueueLimits { batch_entries_max, calls_max, ..QueueLimits::default() };
            let fixture = Fixture::new(limits);
            let ended = play(&acts, &fixture).await;
            check(&acts, &fixture, &ended);
        });
    }
}

#[test]
fn long_runs_with_many_faults_lose_no_order() {
    let chances = Chances {
        break_before_execution: 0.1,
        break_before_answer: 0.1,
        late: 0.1,
        late_max: Duration::from_secs(7),
        ..Chances::default()
    };
    for seed in 0..20 {
        run_paused(async {
            let fixture = Fixture::with(QueueLimits::default(), seed);
            fixture.memory.set_chances("a", chances.clone());
            let range = Duration::ZERO..Duration::from_millis(30);
            let delays = Delays { request: range.clone(), answer: range, ..Delays::default() };
            fixture.memory.set_delays("a", delays);
            let step = |step: u64| match step % 3 {
                0 => Act::Offer { topic: "t", count: 2 },
                1 => Act::Offer { topic: "u", count: 1 },
                _ => Act::Pass { millis: step % 7 },
            };
            let acts: Vec<Act> = (0..1000).map(step).collect();
            let ended = play(&acts, &fixture).await;
            check(&acts, &fixture, &ended);
            let succeeded = ended.iter().filter(|(.., result)| result.is_ok()).count();
            assert!(succeeded > 500, "{succeeded} of {}", ended.len());
        });
    }
}
