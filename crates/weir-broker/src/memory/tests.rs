//! The faults of the broker in memory. The conformance suite shows that it keeps the contract without them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;
use crate::contract::{Broker, Error, Event, EventHandler, Published};
use crate::records::{
    Batch, BatchId, Claim, Entry, HistoryQuery, Member, Node, Received, Retention,
};

#[derive(Default)]
struct Recorder(Mutex<Vec<Event>>);

impl EventHandler for Recorder {
    fn handle(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }
}

impl Recorder {
    /// What has been heard since the last time.
    async fn heard(&self) -> Vec<Event> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

struct Fixture {
    memory: Memory,
    node: Arc<dyn Broker>,
    recorder: Arc<Recorder>,
}

impl Fixture {
    /// A node "a" that has joined "t".
    async fn new() -> Fixture {
        let options = MemoryOptions { keeps_journal: true, ..MemoryOptions::default() };
        let memory = Memory::new(&options);
        let (node, recorder) = node(&memory, "a");
        node.join(vec!["t".into()]).await.unwrap();
        Fixture { memory, node, recorder }
    }

    async fn publish(&self, id: u64, text: &str) -> Result<Published, Error> {
        self.node.publish(vec![batch("t", id, text)]).await?.remove(0)
    }

    /// Texts of messages that have arrived, and other events by a word.
    async fn heard(&self) -> Vec<String> {
        self.recorder.heard().await.iter().map(text).collect()
    }

    async fn top(&self) -> Position {
        self.node.tops(vec!["t".into()]).await.unwrap()[0]
    }
}

fn node(memory: &Memory, name: &str) -> (Arc<dyn Broker>, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::default());
    let handler: Arc<dyn EventHandler> = recorder.clone();
    (memory.node(name, NodeOptions::default(), handler), recorder)
}

fn batch(topic: &str, id: u64, text: &str) -> Batch {
    let entry = |word: &str| Entry { payload: word.into(), idempotency_key: None };
    Batch {
        topic: topic.into(),
        id: BatchId(id),
        retention: Some(Retention { messages_max: 100, ttl: Duration::from_secs(3600) }),
        entries: text.split(' ').map(entry).collect(),
    }
}

fn text(event: &Event) -> String {
    match event {
        Event::Messages { messages, .. } => words(messages),
        Event::Gap(_) => "gap".to_owned(),
        Event::Lost(_) => "lost".to_owned(),
        Event::Back { after } => format!("back after {} s", after.as_secs()),
        Event::Renumbered(number) => format!("number {}", number.0),
        Event::Evicted { connection, .. } => format!("evicted {}", connection.0),
        Event::ToDevice { .. }
        | Event::ToAll(_)
        | Event::ToNode(_)
        | Event::Revoked(_)
        | Event::Presence { .. }
        | Event::Vacated { .. } => format!("{event:?}"),
    }
}

fn words(messages: &[Received]) -> String {
    let words: Vec<_> =
        messages.iter().map(|message| String::from_utf8_lossy(&message.payload)).collect();
    words.join(" ")
}

fn is_uncertain<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Uncertain(_)))
}

async fn pause(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn a_cut_request_is_carried_out_or_not_and_a_retry_changes_nothing() {
    for (place, is_executed) in [(Break::BeforeExecution, false), (Break::BeforeAnswer, true)] {
        let fixture = Fixture::new().await;
        fixture.memory.break_next("a", Some(Method::Publish), place);
        assert!(is_uncertain(&fixture.publish(1, "x y").await));
        assert_eq!(fixture.top().await.offset, if is_executed { 2 } else { 0 });
        let published = fixture.publish(1, "x y").await.unwrap();
        assert_eq!(published.positions.last(), Some(&fixture.top().await));
        assert_eq!((published.positions.len(), published.nodes), (2, 1));
        assert_eq!(fixture.heard().await, ["x y"]);
        assert_eq!(fixture.memory.counts(None).broken, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_request_comes_behind_its_retry() {
    let fixture = Fixture::new().await;
    fixture.memory.break_next("a", None, Break::Late(Duration::from_secs(5)));
    assert!(is_uncertain(&fixture.publish(1, "x").await));
    fixture.publish(1, "x").await.unwrap();
    fixture.publish(2, "y").await.unwrap();
    pause(10).await;
    assert_eq!(fixture.heard().await, ["x", "y"]);
}

#[tokio::test(start_paused = true)]
async fn a_late_request_that_nobody_repeats_is_carried_out() {
    let fixture = Fixture::new().await;
    fixture.memory.break_next("a", None, Break::Late(Duration::from_secs(5)));
    assert!(is_uncertain(&fixture.publish(1, "x").await));
    assert_eq!(fixture.heard().await, [] as [&str; 0]);
    pause(10).await;
    assert_eq!(fixture.heard().await, ["x"]);
}

#[tokio::test(start_paused = true)]
async fn delays_keep_the_order_of_a_topic() {
    let fixture = Fixture::new().await;
    let range = Duration::ZERO..Duration::from_millis(500);
    let delays = Delays { request: range.clone(), answer: range.clone(), event: range };
    fixture.memory.set_delays("a", delays);
    let other = node(&fixture.memory, "b").0;
    let mut expected = Vec::new();
    for id in 1..50 {
        other.publish(vec![batch("t", id, &id.to_string())]).await.unwrap().remove(0).unwrap();
        expected.push(id.to_string());
    }
    pause(1).await;
    assert_eq!(fixture.heard().await, expected);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_takes_too_long_is_uncertain_and_may_still_be_carried_out() {
    let fixture = Fixture::new().await;
    let long = Duration::from_secs(3)..Duration::from_secs(4);
    fixture.memory.set_delays("a", Delays { request: long, ..Delays::default() });
    assert!(is_uncertain(&fixture.publish(1, "x").await));
    pause(3).await;
    assert_eq!(fixture.heard().await, ["x"]);
}

#[tokio::test(start_paused = true)]
async fn events_are_dropped_and_doubled() {
    let fixture = Fixture::new().await;
    fixture.memory.drop_next("a", EventKind::Messages, 1);
    fixture.memory.double_next("a", EventKind::Messages, 1);
    for (id, word) in [(1, "x"), (2, "y"), (3, "z")] {
        fixture.publish(id, word).await.unwrap();
    }
    assert_eq!(fixture.heard().await, ["y", "y", "z"]);
    let counts = fixture.memory.counts(Some("a"));
    assert_eq!((counts.dropped, counts.doubled, counts.events[&EventKind::Messages]), (1, 1, 3));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_cut_off_hears_of_it_and_of_its_return() {
    let fixture = Fixture::new().await;
    let other = node(&fixture.memory, "b").0;
    let publish = |id, text| other.publish(vec![batch("t", id, text)]);
    publish(1, "x").await.unwrap();
    assert_eq!(fixture.heard().await, ["x"]);
    fixture.memory.disconnect("a");
    publish(2, "y").await.unwrap();
    assert!(matches!(fixture.publish(1, "z").await, Err(Error::Unavailable(_))));
    pause(5).await;
    assert_eq!(fixture.heard().await, ["lost"]);
    fixture.memory.reconnect("a");
    publish(3, "z").await.unwrap();
    assert_eq!(fixture.heard().await, ["gap", "back after 5 s", "z"]);
    fixture.memory.set_reachable(false);
    let (_late, recorder) = node(&fixture.memory, "c");
    assert_eq!(recorder.heard().await.iter().map(text).collect::<Vec<_>>(), ["lost"]);
    fixture.memory.set_reachable(true);
    assert_eq!(fixture.heard().await, ["lost", "gap", "back after 0 s"]);
}

#[tokio::test(start_paused = true)]
async fn a_short_pause_delays_and_a_long_one_loses() {
    let fixture = Fixture::new().await;
    fixture.memory.pause(None);
    let (result, ()) = tokio::join!(fixture.publish(1, "x"), async {
        pause(1).await;
        fixture.memory.resume(None);
    });
    result.unwrap();
    assert_eq!(fixture.heard().await, ["x"]);

    fixture.memory.pause(Some("a"));
    assert!(is_uncertain(&fixture.publish(2, "y").await));
    assert_eq!(fixture.heard().await, ["lost"]);
    assert!(matches!(fixture.publish(2, "y").await, Err(Error::Unavailable(_))));
    fixture.memory.resume(Some("a"));
    assert_eq!(fixture.heard().await, ["gap", "back after 0 s"]);
    // It waited in the paused connection.
    assert_eq!(fixture.top().await.offset, 2);
    assert_eq!(fixture.publish(2, "y").await.unwrap().positions, [fixture.top().await]);
}

#[tokio::test(start_paused = true)]
async fn a_failover_loses_the_newest_messages_and_begins_an_epoch() {
    for epochs in [NewEpoch::GoesOn, NewEpoch::BeginsAgain, NewEpoch::Missing] {
        let fixture = Fixture::new().await;
        for (id, word) in [(1, "v"), (2, "w"), (3, "x"), (4, "y z")] {
            fixture.publish(id, word).await.unwrap();
        }
        let before = fixture.top().await;
        fixture.heard().await;
        fixture.memory.fail_over(1, epochs);
        assert_eq!(fixture.heard().await, ["lost", "gap", "back after 0 s"]);
        let after = fixture.top().await;
        assert_eq!(after.epoch == before.epoch, epochs == NewEpoch::Missing);
        assert_eq!(after.offset, if epochs == NewEpoch::BeginsAgain { 0 } else { 4 });
        let (topic, bytes_max) = ("t".into(), usize::MAX);
        let query = HistoryQuery { topic, after: 0, messages_max: 100, bytes_max };
        let history = fixture.node.read(vec![query]).await.unwrap().remove(0);
        let expected = if epochs == NewEpoch::BeginsAgain { "" } else { "v w x y" };
        assert_eq!(words(&history.messages), expected);
        assert_eq!(history.began, if epochs == NewEpoch::GoesOn { 4 } else { 0 });
        // The batch was lost in part, so it is a new one for the replica.
        let published = fixture.publish(4, "y z").await.unwrap();
        assert_eq!(published.positions[0].offset, after.offset + 1);
        assert_eq!(fixture.memory.journal("t").len(), 7);
    }
}

fn claim(connection: u64) -> Claim {
    let connection = ConnectionNumber(connection);
    Claim { device: "d".into(), connection, age: Duration::ZERO, is_counted: true }
}

#[tokio::test(start_paused = true)]
async fn a_killed_node_counts_until_its_announcement_ends() {
    let fixture = Fixture::new().await;
    let (other, recorder) = node(&fixture.memory, "b");
    other.claim(vec![claim(7)]).await.unwrap();
    assert_eq!(fixture.memory.connections("d"), [ConnectionNumber(7)].into());
    fixture.memory.kill("b");
    let nothing = Entry { payload: Vec::new(), idempotency_key: None };
    assert!(other.nodes().await.is_err());
    assert_eq!(fixture.node.to_device("d".into(), nothing).await, Ok(0));
    pause(11).await;
    assert_eq!(fixture.memory.connections("d"), [].into());
    assert_eq!(recorder.heard().await, []);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_away_for_longer_than_its_lease_gets_another_number() {
    let options = MemoryOptions { lease: Duration::from_secs(60), ..MemoryOptions::default() };
    let memory = Memory::new(&options);
    let (first, recorder) = node(&memory, "a");
    assert_eq!(first.number(), NodeNumber(1));
    memory.disconnect("a");
    pause(61).await;
    let (second, _) = node(&memory, "b");
    assert_eq!(second.number(), NodeNumber(1));
    memory.reconnect("a");
    let heard: Vec<String> = recorder.heard().await.iter().map(text).collect();
    assert_eq!(heard, ["lost", "gap", "number 2", "back after 61 s"]);
    assert_eq!(first.number(), NodeNumber(2));
    let about = Node {
        number: NodeNumber(1),
        name: "a".to_owned(),
        revoked_to: None,
        about: "{}".to_owned(),
    };
    assert!(matches!(first.announce(about).await, Err(Error::Refused(_))));
}

#[tokio::test(start_paused = true)]
async fn the_broker_forgets_in_time() {
    let options =
        MemoryOptions { topics_kept: Duration::from_secs(600), ..MemoryOptions::default() };
    let node = node(&Memory::new(&options), "a").0;
    let top = async || node.tops(vec!["t".into()]).await.unwrap()[0];
    let publish = async |id| {
        let mut batch = batch("t", id, "x");
        batch.entries[0].idempotency_key = Some("key".into());
        node.publish(vec![batch]).await.unwrap().remove(0).unwrap().positions[0]
    };
    let first = publish(1).await;
    pause(Entry::KEY_KEPT.as_secs() - 1).await;
    assert_eq!(publish(2).await, first);
    pause(2).await;
    assert_eq!(publish(3).await.offset, 2);
    for _ in 0..5 {
        pause(599).await;
        assert_eq!(top().await, Position { epoch: first.epoch, offset: 2 });
    }
    pause(601).await;
    let new = top().await;
    assert_eq!(new.offset, 0);
    assert_ne!(new.epoch, first.epoch);

    let revoke = async || node.revoke("d".into()).await.unwrap();
    let read = async |after| {
        let revocations = node.revocations(after).await.unwrap();
        let ids: Vec<_> = revocations.revoked.into_iter().map(|revocation| revocation.id).collect();
        (ids, revocations.is_complete)
    };
    let old = revoke().await;
    pause(86_390).await;
    let new = revoke().await;
    assert_eq!(read(None).await, (vec![old.clone(), new.clone()], true));
    pause(20).await;
    assert_eq!(read(None).await, (vec![new.clone()], false));
    assert_eq!(read(Some(old)).await, (vec![new.clone()], true));
    assert_eq!(read(Some(new)).await, (vec![], true));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_silent_for_long_has_claimed_nothing() {
    for (silence, is_remembered) in [(35, true), (45, false)] {
        let memory = Memory::new(&MemoryOptions::default());
        let node = node(&memory, "a").0;
        let about = Node {
            number: node.number(),
            name: "a".to_owned(),
            revoked_to: None,
            about: "{}".to_owned(),
        };
        node.announce(about.clone()).await.unwrap();
        node.claim(vec![claim(1)]).await.unwrap();
        pause(silence).await;
        assert_eq!(memory.connections("d"), [].into());
        node.announce(about).await.unwrap();
        assert_eq!(memory.connections("d").len(), usize::from(is_remembered));
    }
}

/// Nodes "a" and "b", which announce themselves and listen to "t", and a member of "b".
async fn two_nodes() -> (Memory, [(Arc<dyn Broker>, Arc<Recorder>); 2]) {
    let memory = Memory::new(&MemoryOptions::default());
    let nodes = ["a", "b"].map(|name| node(&memory, name));
    for (node, _) in &nodes {
        let node = Arc::downgrade(node);
        tokio::spawn(async move {
            while let Some(node) = node.upgrade() {
                let (number, name) = (node.number(), String::new());
                let about = Node { number, name, revoked_to: None, about: String::new() };
                let _ = node.announce(about).await;
                drop(node);
                pause(3).await;
            }
        });
    }
    for (node, _) in &nodes {
        node.join(vec!["t".into()]).await.unwrap();
    }
    nodes[1].0.enter(vec![member(1)]).await.unwrap();
    for (_, recorder) in &nodes {
        assert_eq!(presence(recorder).await, ["1 joins"]);
    }
    (memory, nodes)
}

fn member(connection: u64) -> (Name, Member) {
    ("t".into(), Member { connection: ConnectionNumber(connection), device: "d".into() })
}

/// What has been heard of presence since the last time, and of gaps.
async fn presence(recorder: &Recorder) -> Vec<String> {
    let mut told = Vec::new();
    for event in recorder.heard().await {
        if let Event::Presence { joined, left, .. } = event {
            let members = [(joined, "joins"), (left, "leaves")];
            let told_each = members.into_iter().flat_map(|(members, what)| {
                members.into_iter().map(move |member| format!("{} {what}", member.connection.0))
            });
            told.extend(told_each);
        } else if event == Event::Gap(Scope::All) {
            told.push("gap".to_owned());
        }
    }
    told
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_nobody_reaches_empties_no_room() {
    let (memory, [(_a, one), (_b, two)]) = two_nodes().await;
    for stops in [true, false] {
        match stops {
            true => memory.pause(None),
            false => memory.set_reachable(false),
        }
        pause(300).await;
        match stops {
            true => memory.resume(None),
            false => memory.set_reachable(true),
        }
        pause(60).await;
        assert_eq!(
            (presence(&one).await, presence(&two).await),
            (vec!["gap".into()], vec!["gap".into()])
        );
    }
}

#[tokio::test(start_paused = true)]
async fn members_of_a_node_that_is_cut_off_leave_once() {
    let (memory, [(_a, one), (b, two)]) = two_nodes().await;
    memory.disconnect("b");
    pause(20).await;
    memory.pause(Some("a"));
    pause(300).await;
    memory.resume(Some("a"));
    pause(5).await;
    assert_eq!(presence(&one).await, ["gap"]);
    pause(30).await;
    assert_eq!(presence(&one).await, ["1 leaves"]);
    memory.reconnect("b");
    // Of what it has missed, and, with its next announcement, of its members.
    pause(4).await;
    assert_eq!(presence(&two).await, ["gap", "gap"]);
    b.enter(vec![member(1), member(2)]).await.unwrap();
    pause(60).await;
    assert_eq!(presence(&one).await, ["1 joins", "2 joins"]);
    memory.kill("b");
    pause(60).await;
    assert_eq!(presence(&one).await, ["1 leaves", "2 leaves"]);
}

#[tokio::test(start_paused = true)]
async fn changes_of_presence_are_dropped_and_doubled() {
    let (memory, [(a, one), (_b, two)]) = two_nodes().await;
    memory.drop_next("a", EventKind::Presence, 1);
    memory.double_next("b", EventKind::Presence, 1);
    memory.set_delays(
        "b",
        Delays { event: Duration::from_secs(2)..Duration::from_secs(3), ..Delays::default() },
    );
    a.enter(vec![member(7)]).await.unwrap();
    a.exit(vec![member(7)]).await.unwrap();
    assert_eq!(presence(&one).await, ["7 leaves"]);
    assert_eq!(presence(&two).await, Vec::<String>::new());
    pause(3).await;
    assert_eq!(presence(&two).await, ["7 joins", "7 joins", "7 leaves"]);
    memory.lose_subscriptions("b", &Scope::Topics(vec!["t".into()]));
    a.enter(vec![member(8)]).await.unwrap();
    memory.lose_subscriptions("b", &Scope::Topics(vec!["t".into()]));
    pause(3).await;
    assert_eq!(presence(&two).await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn too_much_breaks_what_it_must() {
    let fixture = Fixture::new().await;
    fixture.memory.set_refusal(Some("its memory is full"));
    assert!(matches!(fixture.publish(1, "x").await, Err(Error::Refused(_))));
    fixture.memory.set_refusal(None);
    fixture.publish(1, "x").await.unwrap();
    let (one, two) = tokio::join!(fixture.publish(2, "y"), fixture.publish(3, "z"));
    assert!(one.is_ok() && matches!(two, Err(Error::Refused(_))), "{two:?}");

    let recorder = Arc::new(Recorder::default());
    let options = NodeOptions { waiting_max: 1, ..NodeOptions::default() };
    let narrow = fixture.memory.node("b", options, recorder);
    let (one, two) = tokio::join!(narrow.nodes(), narrow.nodes());
    assert_eq!((one.is_ok(), two), (true, Err(Error::Overloaded { waiting: 1 })));
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_is_the_same_run() {
    async fn run(seed: u64) -> Vec<String> {
        let memory = Memory::new(&MemoryOptions { seed, ..MemoryOptions::default() });
        let (node, recorder) = node(&memory, "a");
        node.join(vec!["t".into()]).await.unwrap();
        let chances = Chances { drop: 0.2, double: 0.2, ..Chances::default() };
        memory.set_chances("a", chances);
        for id in 1..100 {
            node.publish(vec![batch("t", id, &id.to_string())]).await.unwrap().remove(0).unwrap();
        }
        recorder.heard().await.iter().map(text).collect()
    }
    assert_eq!(run(1).await, run(1).await);
    assert_ne!(run(1).await, run(2).await);
}
