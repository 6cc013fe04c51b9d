//! Batches in front of a store that answers on command.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Semaphore;

use super::*;
use crate::contract::Answer;
use crate::records::{Device, DeviceEntry, Page, Put, Revoked};

/// Answers one batch for each permit of its gate, and remembers the requests.
struct Scripted {
    gate: Semaphore,
    fails: AtomicBool,
    panics: AtomicBool,
    answers_max: AtomicUsize,
    asked: Mutex<Vec<Vec<String>>>,
}

impl Scripted {
    fn new() -> Arc<Scripted> {
        Arc::new(Scripted {
            gate: Semaphore::new(0),
            fails: AtomicBool::new(false),
            panics: AtomicBool::new(false),
            answers_max: AtomicUsize::new(usize::MAX),
            asked: Mutex::default(),
        })
    }

    fn asked(&self) -> Vec<Vec<String>> {
        self.asked.lock().unwrap().clone()
    }

    async fn pass(&self, asked: Vec<String>) -> Result<usize, Error> {
        let count = asked.len().min(self.answers_max.load(Ordering::Relaxed));
        let is_damaged = asked.iter().any(|name| name.starts_with("damaged"));
        self.asked.lock().unwrap().push(asked);
        self.gate.acquire().await.unwrap().forget();
        if is_damaged {
            return Err(Error::Damaged("as the test wants it".into()));
        }
        assert!(!self.panics.load(Ordering::Relaxed), "as the test wants it");
        if self.fails.load(Ordering::Relaxed) {
            return Err(Error::Unavailable("as the test wants it".into()));
        }
        Ok(count)
    }
}

impl Store for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn issue(&self, issues: Vec<Issue>) -> Answer<'_, Vec<Result<Issued, Refusal>>> {
        Box::pin(async move {
            let names: Vec<String> = issues.iter().map(name).collect();
            let count = self.pass(names.clone()).await?;
            let issued = |name: &String| {
                let serial = Serial::new(name).unwrap();
                Ok(Issued { serial, generation: 1, is_first: true })
            };
            Ok(names.iter().take(count).map(issued).collect())
        })
    }

    fn check(&self, tokens: Vec<Hash>, now: Millis) -> Answer<'_, Vec<Option<Holder>>> {
        Box::pin(async move {
            let names = tokens.iter().map(|token| format!("{}@{now}", token.0[0])).collect();
            let count = self.pass(names).await?;
            Ok(vec![Some(holder()); count])
        })
    }

    /// Recalls the holder of token 1.
    fn recall(&self, tokens: Vec<Hash>, _: Millis) -> Answer<'_, Vec<Option<Holder>>> {
        let known = |token: &Hash| (token.0[0] == 1).then(holder);
        let known = tokens.iter().map(known).collect();
        Box::pin(std::future::ready(Ok(known)))
    }

    fn put(&self, _: Vec<DeviceEntry>, _: Millis) -> Answer<'_, Vec<Put>> {
        unreachable!()
    }

    fn revoke(&self, _: Vec<Serial>) -> Answer<'_, Vec<Revoked>> {
        unreachable!()
    }

    fn find(&self, serials: Vec<Serial>) -> Answer<'_, Vec<Option<Device>>> {
        Box::pin(async move {
            let count = self.pass(serials.iter().map(Serial::to_string).collect()).await?;
            Ok(serials.into_iter().take(count).map(device).collect())
        })
    }

    fn list(&self, _: Page) -> Answer<'_, Vec<Device>> {
        unreachable!()
    }

    fn seen(&self, _: Vec<(Serial, Millis)>) -> Answer<'_, ()> {
        unreachable!()
    }

    fn sweep(&self, _: Millis, _: usize) -> Answer<'_, usize> {
        unreachable!()
    }

    fn count(&self) -> Answer<'_, u64> {
        unreachable!()
    }

    fn probe(&self) -> Answer<'_, ()> {
        unreachable!()
    }
}

fn holder() -> Holder {
    Holder {
        serial: Serial::new("a").unwrap(),
        labels: BTreeMap::new(),
        generation: 1,
        expires: 100,
    }
}

/// Finds devices whose name begins with "a".
fn device(serial: Serial) -> Option<Device> {
    serial.as_str().starts_with('a').then(|| Device {
        serial,
        key: Hash([0; 32]),
        state: State::Active,
        labels: BTreeMap::new(),
        created: 1,
        activated: Some(1),
        seen: None,
        generation: 1,
        token: None,
        previous: None,
    })
}

fn name(issue: &Issue) -> String {
    match &issue.proof {
        Proof::Key { serial, .. } => format!("{serial}{}", issue.token.0[0]),
        Proof::Token(token) => format!("token{}-{}", token.0[0], issue.token.0[0]),
    }
}

fn issue(serial: &str, token: u8) -> Issue {
    let proof = Proof::Key { serial: Serial::new(serial).unwrap(), key: Hash([0; 32]) };
    Issue { proof, token: Hash([token; 32]), now: 1, expires: 100, grace_until: 2 }
}

fn at_once() -> BatchLimits {
    BatchLimits {
        batch_wait: Duration::ZERO,
        timeout: Duration::from_secs(60),
        ..BatchLimits::default()
    }
}

struct Fixture {
    store: Arc<Scripted>,
    batches: Arc<Batches>,
    asked: u64,
}

type Waiting<T> = tokio::task::JoinHandle<Result<T, Error>>;

impl Fixture {
    fn new(limits: &BatchLimits) -> Fixture {
        let store = Scripted::new();
        let batches = Arc::new(Batches::new(Arc::clone(&store) as Arc<dyn Store>, limits));
        Fixture { store, batches, asked: 0 }
    }

    /// Sends a request, and waits until the queue has it.
    async fn issue(&mut self, issue: Issue) -> Waiting<Result<Issued, Refusal>> {
        let batches = Arc::clone(&self.batches);
        let waiting = tokio::spawn(async move { batches.issue(issue).await });
        self.asked += 1;
        let asked = self.asked;
        self.until(move |counts| counts.issues.items == asked).await;
        waiting
    }

    async fn check(&mut self, token: u8, now: Millis) -> Waiting<Option<Holder>> {
        let batches = Arc::clone(&self.batches);
        let waiting = tokio::spawn(async move { batches.check(Hash([token; 32]), now).await });
        self.asked += 1;
        let asked = self.asked;
        self.until(move |counts| counts.checks.items == asked).await;
        waiting
    }

    async fn state(&mut self, serial: &str) -> Waiting<Option<State>> {
        let batches = Arc::clone(&self.batches);
        let serial = Serial::new(serial).unwrap();
        let waiting = tokio::spawn(async move { batches.state(serial).await });
        self.asked += 1;
        let asked = self.asked;
        self.until(move |counts| counts.states.items == asked).await;
        waiting
    }

    async fn until(&self, condition: impl Fn(BatchCounts) -> bool) {
        while !condition(self.batches.counts()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn until_asked(&self, batches: usize) {
        while self.store.asked().len() < batches {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test]
async fn while_a_batch_is_on_its_way_the_next_one_gathers() {
    let mut fixture = Fixture::new(&at_once());
    let mut waiting = Vec::new();
    for serial in ["a", "b", "c", "d"] {
        waiting.push(fixture.issue(issue(serial, 1)).await);
    }
    fixture.store.gate.add_permits(2);
    for (waiting, name) in waiting.into_iter().zip(["a1", "b1", "c1", "d1"]) {
        assert_eq!(waiting.await.unwrap().unwrap().unwrap().serial.as_str(), name);
    }
    assert_eq!(fixture.store.asked(), [vec!["a1"], vec!["b1", "c1", "d1"]]);
    fixture.until(|counts| counts.issues.in_flight == 0).await;
    let expected = QueueCounts { items: 4, batches: 2, queued_peak: 3, ..QueueCounts::default() };
    assert_eq!(fixture.batches.counts().issues, expected);
}

#[tokio::test]
async fn count_or_time_ends_the_gathering() {
    let for_ever = Duration::from_secs(3600);
    let limits = BatchLimits { batch_max: 3, batch_wait: for_ever, ..at_once() };
    let mut fixture = Fixture::new(&limits);
    fixture.store.gate.add_permits(10);
    let waiting = [
        fixture.issue(issue("a", 1)).await,
        fixture.issue(issue("b", 1)).await,
        fixture.issue(issue("c", 1)).await,
    ];
    for waiting in waiting {
        waiting.await.unwrap().unwrap().unwrap();
    }
    assert_eq!(fixture.store.asked(), [vec!["a1", "b1", "c1"]]);

    let limits = BatchLimits { batch_wait: Duration::from_millis(1), ..limits };
    let mut fixture = Fixture::new(&limits);
    fixture.store.gate.add_permits(1);
    fixture.issue(issue("a", 1)).await.await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn a_batch_of_one_is_no_batch() {
    let limits = BatchLimits { batch_max: 1, batch_wait: Duration::from_secs(3600), ..at_once() };
    let mut fixture = Fixture::new(&limits);
    let waiting = [fixture.issue(issue("a", 1)).await, fixture.issue(issue("b", 1)).await];
    fixture.store.gate.add_permits(2);
    for waiting in waiting {
        waiting.await.unwrap().unwrap().unwrap();
    }
    assert_eq!(fixture.store.asked(), [vec!["a1"], vec!["b1"]]);
}

#[tokio::test]
async fn one_too_many_is_refused_at_once() {
    let mut fixture = Fixture::new(&BatchLimits { queue_max: 2, ..at_once() });
    let mut waiting = Vec::new();
    for serial in ["a", "b", "c"] {
        waiting.push(fixture.issue(issue(serial, 1)).await);
    }
    // The first one is on its way and does not count as waiting.
    assert_eq!(fixture.batches.issue(issue("d", 1)).await, Err(Error::Overloaded(2)));
    fixture.store.gate.add_permits(2);
    for waiting in waiting {
        waiting.await.unwrap().unwrap().unwrap();
    }
    assert_eq!(fixture.batches.counts().issues.refused, 1);
    assert_eq!(fixture.batches.counts().issues.queued, 0);
}

#[tokio::test]
async fn nobody_waits_longer_than_allowed_and_who_has_gone_is_not_served() {
    let mut fixture =
        Fixture::new(&BatchLimits { timeout: Duration::from_millis(20), ..at_once() });
    let waiting = [fixture.issue(issue("a", 1)).await, fixture.issue(issue("b", 1)).await];
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap(), Err(Error::TimedOut(20)));
    }
    fixture.store.gate.add_permits(2);
    fixture.until(|counts| counts.issues.queued == 0 && counts.issues.in_flight == 0).await;
    assert_eq!(fixture.store.asked(), [vec!["a1"]]);
    assert_eq!(fixture.batches.counts().issues.timed_out, 2);
    fixture.batches.issue(issue("c", 1)).await.unwrap().unwrap();
}

#[tokio::test]
async fn issues_for_one_device_are_never_on_their_way_side_by_side() {
    let mut fixture = Fixture::new(&BatchLimits { in_flight_max: 3, ..at_once() });
    let mut waiting = Vec::new();
    for (serial, token) in [("a", 1), ("a", 2), ("b", 1), ("a", 3), ("b", 2), ("c", 1)] {
        waiting.push(fixture.issue(issue(serial, token)).await);
    }
    let by_token = Issue { proof: Proof::Token(Hash([9; 32])), ..issue("x", 7) };
    waiting.push(fixture.issue(by_token).await);
    fixture.until_asked(3).await;
    assert_eq!(fixture.store.asked(), [vec!["a1"], vec!["b1"], vec!["c1"]]);
    // Held items go before later ones, and keep their order.
    fixture.store.gate.add_permits(10);
    for waiting in waiting {
        waiting.await.unwrap().unwrap().unwrap();
    }
    let asked: Vec<String> = fixture.store.asked().into_iter().flatten().collect();
    let of_a: Vec<&String> = asked.iter().filter(|name| name.starts_with('a')).collect();
    assert_eq!(of_a, ["a1", "a2", "a3"]);
    assert_eq!(fixture.batches.counts().issues.queued, 0);
}

#[tokio::test]
async fn checks_of_one_token_are_asked_as_one_and_each_at_its_time() {
    let mut fixture = Fixture::new(&at_once());
    let first = fixture.check(1, 50).await;
    let waiting = [
        fixture.check(2, 60).await,
        fixture.check(2, 100).await,
        fixture.check(1, 99).await,
        fixture.check(2, 55).await,
    ];
    fixture.store.gate.add_permits(2);
    assert!(first.await.unwrap().unwrap().is_some());
    let mut found = Vec::new();
    for waiting in waiting {
        found.push(waiting.await.unwrap().unwrap().is_some());
    }
    // The token ends at 100.
    assert_eq!(found, [true, false, true, true]);
    // A check on its way is not joined, because it may not see later changes.
    assert_eq!(fixture.store.asked(), [vec!["1@50"], vec!["2@55", "1@55"]]);
    assert_eq!(fixture.batches.counts().checks.joined, 2);
}

#[tokio::test]
async fn states_of_one_device_are_asked_as_one_and_nothing_is_made_up() {
    let mut fixture = Fixture::new(&at_once());
    let first = fixture.state("a1").await;
    let waiting = [fixture.state("b").await, fixture.state("a2").await, fixture.state("b").await];
    fixture.store.gate.add_permits(2);
    assert_eq!(first.await.unwrap(), Ok(Some(State::Active)));
    let mut found = Vec::new();
    for waiting in waiting {
        found.push(waiting.await.unwrap().unwrap());
    }
    assert_eq!(found, [None, Some(State::Active), None]);
    assert_eq!(fixture.store.asked(), [vec!["a1"], vec!["b", "a2"]]);
    assert_eq!(fixture.batches.counts().states.joined, 1);
    fixture.store.fails.store(true, Ordering::Relaxed);
    fixture.store.gate.add_permits(1);
    assert!(fixture.state("a1").await.await.unwrap().is_err());
}

#[tokio::test]
async fn whatever_the_store_does_everyone_is_told_and_the_next_one_is_served() {
    let mut fixture = Fixture::new(&at_once());
    let gate = |fixture: &Fixture| fixture.store.gate.add_permits(1);
    let failed = |what: &str| Err(Error::Unavailable(what.to_owned()));

    fixture.store.fails.store(true, Ordering::Relaxed);
    gate(&fixture);
    let answer = fixture.issue(issue("a", 1)).await.await.unwrap();
    assert_eq!(answer, failed("as the test wants it"));

    fixture.store.fails.store(false, Ordering::Relaxed);
    fixture.store.panics.store(true, Ordering::Relaxed);
    gate(&fixture);
    assert_eq!(fixture.issue(issue("a", 1)).await.await.unwrap(), failed("the request broke off"));

    fixture.store.panics.store(false, Ordering::Relaxed);
    fixture.store.answers_max.store(0, Ordering::Relaxed);
    gate(&fixture);
    assert_eq!(fixture.issue(issue("a", 1)).await.await.unwrap(), failed("the request broke off"));

    fixture.store.answers_max.store(usize::MAX, Ordering::Relaxed);
    gate(&fixture);
    fixture.issue(issue("a", 1)).await.await.unwrap().unwrap().unwrap();
    fixture.until(|counts| counts.issues.in_flight == 0).await;
    assert_eq!(fixture.batches.counts().issues.failed, 1);
}

#[tokio::test]
async fn damage_is_told_to_those_whom_it_concerns() {
    let mut fixture = Fixture::new(&at_once());
    let first = fixture.issue(issue("a", 1)).await;
    let mut waiting = Vec::new();
    for serial in ["b", "c", "damaged", "d", "e"] {
        waiting.push(fixture.issue(issue(serial, 1)).await);
    }
    fixture.store.gate.add_permits(100);
    assert!(first.await.unwrap().unwrap().is_ok());
    let mut answers = Vec::new();
    for waiting in waiting {
        answers.push(waiting.await.unwrap().map(|issued| issued.unwrap().serial.to_string()));
    }
    let answered = |name: &str| Ok(name.to_owned());
    let damaged = Err(Error::Damaged("as the test wants it".into()));
    let expected = [answered("b1"), answered("c1"), damaged, answered("d1"), answered("e1")];
    assert_eq!(answers, expected);
    let asked: Vec<String> = fixture.store.asked().iter().map(|batch| batch.join(" ")).collect();
    let expected = ["a1", "b1 c1 damaged1 d1 e1", "b1 c1", "damaged1 d1 e1", "damaged1", "d1 e1"];
    assert_eq!(asked, expected);
}

#[tokio::test]
async fn a_check_that_fails_is_answered_from_memory_where_that_knows() {
    let mut fixture = Fixture::new(&at_once());
    fixture.store.fails.store(true, Ordering::Relaxed);
    let first = fixture.check(1, 50).await;
    let waiting = [
        fixture.check(2, 50).await,
        fixture.check(1, 50).await,
        fixture.check(1, 100).await,
        fixture.check(2, 50).await,
    ];
    fixture.store.gate.add_permits(2);
    assert_eq!(first.await.unwrap(), Ok(Some(holder())));
    let failed = Err(Error::Unavailable("as the test wants it".into()));
    let expected = [failed.clone(), Ok(Some(holder())), Ok(None), failed];
    for (waiting, expected) in waiting.into_iter().zip(expected) {
        assert_eq!(waiting.await.unwrap(), expected);
    }
    assert_eq!(fixture.batches.counts().checks.failed, 2);
}
