//! Gathers what concurrent requests ask of a store, since round trips and commits are what cost.
//!
//! ```text
//!  ask ──► queue ──(count or time, and a free place among those on their way)──► batch ──► store
//!            ▲ refused when full              │
//!            └── held: its device is in a batch that is on its way ◄──┘
//! ```
//!
//! Issues, checks and states have a queue each. Nothing runs while nothing is asked: a batch is a task that ends with
//! the store's answer, and starts those that it kept waiting.

use std::sync::Arc;
use std::time::Duration;

use crate::contract::{Error, Store};
use crate::records::{Hash, Holder, Issue, Issued, Millis, Proof, Refusal, Serial, State};

mod queue;

pub use queue::QueueCounts;
use queue::{Queue, Sent};

/// How a store is asked in batches.
#[derive(Debug, Clone)]
pub struct BatchLimits {
    /// Items of each kind that may wait: who comes then is told [`Error::Overloaded`] at once.
    pub queue_max: usize,
    /// Items of the largest batch, at most [`crate::BATCH_MAX`]; with 1 each request goes by itself.
    pub batch_max: usize,
    /// How long the first item waits for others to come; with zero it goes at once, and only what comes while no batch
    /// may leave is gathered.
    pub batch_wait: Duration,
    /// Batches of each kind on their way at the same time: 1 for a store with one writer, which loses
    /// by more, several for one whose answer is a round trip away.
    pub in_flight_max: usize,
    /// How long an item may take, waiting included: then it is answered with [`Error::TimedOut`].
    pub timeout: Duration,
}

impl Default for BatchLimits {
    fn default() -> Self {
        BatchLimits {
            queue_max: 16_384,
            batch_max: 512,
            batch_wait: Duration::from_millis(1),
            in_flight_max: 1,
            timeout: Duration::from_secs(2),
        }
    }
}

/// What has been asked in batches so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchCounts {
    /// Of [`Batches::issue`].
    pub issues: QueueCounts,
    /// Of [`Batches::check`].
    pub checks: QueueCounts,
    /// Of [`Batches::state`].
    pub states: QueueCounts,
}

/// A store that is asked for one thing at a time and answers in batches.
///
/// Everything else is asked of [`Batches::store`] itself.
pub struct Batches {
    store: Arc<dyn Store>,
    issues: Arc<Queue<Issues>>,
    checks: Arc<Queue<Checks>>,
    states: Arc<Queue<States>>,
}

impl Batches {
    /// Puts batches before a store.
    pub fn new(store: Arc<dyn Store>, limits: &BatchLimits) -> Batches {
        let issues = Queue::new(Issues(Arc::clone(&store)), limits);
        let checks = Queue::new(Checks(Arc::clone(&store)), limits);
        // A connection waits for it that needed nobody before. A crowd gathers while a batch is on its way.
        let at_once = BatchLimits { batch_wait: Duration::ZERO, ..limits.clone() };
        let states = Queue::new(States(Arc::clone(&store)), &at_once);
        Batches { store, issues, checks, states }
    }

    /// The store behind it.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// [`Store::issue`] for one.
    ///
    /// Two for one device are never on their way in two batches, so that they do not work against each other, and the one
    /// asked first comes first. What counts for that is what the proof names: one with the key and one with a token are
    /// not known to be of one device, and the store sorts them out.
    ///
    /// # Errors
    /// Those of the store; [`Error::Overloaded`] at once where too many wait; [`Error::TimedOut`] at the end of its time,
    /// after which it may still be carried out if it was on its way.
    pub async fn issue(&self, issue: Issue) -> Result<Result<Issued, Refusal>, Error> {
        self.issues.ask(issue).await
    }

    /// [`Store::check`] for one. Those of one token that wait together are asked as one; where it fails,
    /// [`Store::recall`] answers those that it can.
    ///
    /// # Errors
    /// As those of [`Batches::issue`].
    pub async fn check(&self, token: Hash, now: Millis) -> Result<Option<Holder>, Error> {
        self.checks.ask((token, now)).await
    }

    /// The state of a device, of [`Store::find`]; `None`: the store does not know it. Those of one device that wait
    /// together are asked as one. None waits for others to come.
    ///
    /// # Errors
    /// As those of [`Batches::issue`].
    pub async fn state(&self, serial: Serial) -> Result<Option<State>, Error> {
        self.states.ask(serial).await
    }

    /// Why batches have failed, of issues and of checks, the last one of each.
    pub fn last_errors(&self) -> [Option<Error>; 2] {
        [self.issues.last_error(), self.checks.last_error()]
    }

    /// What has been asked so far.
    pub fn counts(&self) -> BatchCounts {
        BatchCounts {
            issues: self.issues.counts(),
            checks: self.checks.counts(),
            states: self.states.counts(),
        }
    }
}

/// What a queue carries.
trait Kind: Send + Sync + 'static {
    /// One item.
    type Ask: Clone + Send + 'static;
    /// Its answer.
    type Answer: Clone + Send + 'static;
    /// What items have in common that must not, or need not, be asked side by side.
    type Key: Clone + Eq + std::hash::Hash + Send + 'static;

    /// The key of an item.
    fn key(ask: &Self::Ask) -> Self::Key;

    /// Whether items of one key in a batch are one item, answered once.
    const JOINS: bool;

    /// Whether an item waits while another of its key is on its way.
    const HOLDS: bool;

    /// Asks the store.
    fn send(&self, asks: Vec<Self::Ask>) -> Sent<Self::Answer>;

    /// What can be said of items when that has failed.
    fn rescue(&self, asks: Vec<Self::Ask>) -> Sent<Option<Self::Answer>>;

    /// Has an item ask for another one too; only where they join.
    fn join(ask: &mut Self::Ask, other: &Self::Ask);

    /// The answer for one of those that were asked as one.
    fn share(ask: &Self::Ask, answer: Self::Answer) -> Self::Answer;
}

struct Issues(Arc<dyn Store>);

/// Whose token it is to be, as far as the proof tells.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Whose {
    Serial(Serial),
    Token(Hash),
}

impl Kind for Issues {
    type Ask = Issue;
    type Answer = Result<Issued, Refusal>;
    type Key = Whose;
    const JOINS: bool = false;
    const HOLDS: bool = true;

    fn key(ask: &Issue) -> Whose {
        match &ask.proof {
            Proof::Key { serial, .. } => Whose::Serial(serial.clone()),
            Proof::Token(token) => Whose::Token(*token),
        }
    }

    fn send(&self, asks: Vec<Issue>) -> Sent<Self::Answer> {
        let store = Arc::clone(&self.0);
        Box::pin(async move { store.issue(asks).await })
    }

    fn rescue(&self, _: Vec<Issue>) -> Sent<Option<Self::Answer>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn join(_: &mut Issue, _: &Issue) {}

    fn share(_: &Issue, answer: Self::Answer) -> Self::Answer {
        answer
    }
}

struct Checks(Arc<dyn Store>);

impl Kind for Checks {
    type Ask = (Hash, Millis);
    type Answer = Option<Holder>;
    type Key = Hash;
    const JOINS: bool = true;
    // A check must see what was answered before it began: it must not share what another one found earlier, but it may
    // be on its way beside it.
    const HOLDS: bool = false;

    fn key((token, _): &Self::Ask) -> Hash {
        *token
    }

    fn send(&self, asks: Vec<Self::Ask>) -> Sent<Self::Answer> {
        let store = Arc::clone(&self.0);
        Box::pin(async move {
            let now = earliest(&asks);
            store.check(asks.into_iter().map(|(token, _)| token).collect(), now).await
        })
    }

    fn rescue(&self, asks: Vec<Self::Ask>) -> Sent<Option<Self::Answer>> {
        let store = Arc::clone(&self.0);
        Box::pin(async move {
            let now = earliest(&asks);
            let tokens = asks.into_iter().map(|(token, _)| token).collect();
            // Who is not known there is told of the failure, and not that he is nobody.
            Ok(store
                .recall(tokens, now)
                .await?
                .into_iter()
                .map(|holder| holder.map(Some))
                .collect())
        })
    }

    fn join((_, now): &mut Self::Ask, (_, other): &Self::Ask) {
        *now = (*now).min(*other);
    }

    fn share((_, now): &Self::Ask, answer: Self::Answer) -> Self::Answer {
        answer.filter(|holder| *now < holder.expires)
    }
}

struct States(Arc<dyn Store>);

impl Kind for States {
    type Ask = Serial;
    type Answer = Option<State>;
    type Key = Serial;
    const JOINS: bool = true;
    // As with checks.
    const HOLDS: bool = false;

    fn key(serial: &Serial) -> Serial {
        serial.clone()
    }

    fn send(&self, serials: Vec<Serial>) -> Sent<Self::Answer> {
        let store = Arc::clone(&self.0);
        Box::pin(async move {
            let devices = store.find(serials).await?;
            Ok(devices.into_iter().map(|device| device.map(|device| device.state)).collect())
        })
    }

    fn rescue(&self, _: Vec<Serial>) -> Sent<Option<Self::Answer>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn join(_: &mut Serial, _: &Serial) {}

    fn share(_: &Serial, state: Self::Answer) -> Self::Answer {
        state
    }
}

/// The time to ask for several at: whoever is later asks himself whether it still holds.
fn earliest(asks: &[(Hash, Millis)]) -> Millis {
    asks.iter().map(|(_, now)| *now).min().unwrap_or_default()
}

#[cfg(test)]
mod tests;
