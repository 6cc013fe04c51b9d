//! Gathers concurrent requests to a store into batches, because round trips and commits are
//! expensive.
//!
//! ```text
//!  ask ──► queue ──(count or time, and a free place among those on their way)──► batch ──► store
//!            ▲ refused when full              │
//!            └── held: its device is in a batch that is on its way ◄──┘
//! ```
//!
//! Issues, checks and states have a queue each. Nothing runs without requests: a batch is a task
//! that ends with the store's answer, and starts the batches that waited for it.

use std::sync::Arc;
use std::time::Duration;

use crate::contract::{Error, Store};
use crate::records::{Hash, Holder, Issue, Issued, Millis, Proof, Refusal, Serial, State};

mod queue;

pub use queue::QueueCounts;
use queue::{Queue, Sent};

/// How requests to a store are gathered into batches.
#[derive(Debug, Clone)]
pub struct BatchLimits {
    /// The largest number of waiting items of each kind. A further item fails with
    /// [`Error::Overloaded`] at once.
    pub queue_max: usize,
    /// Items of the largest batch, at most [`crate::BATCH_MAX`]. With 1 each request goes by
    /// itself.
    pub batch_max: usize,
    /// How long the first item waits for others. With zero it goes at once; then a batch gathers
    /// only items that come while no batch may leave.
    pub batch_wait: Duration,
    /// Batches of each kind on their way at the same time. 1 for a store with one writer, which
    /// becomes slower with more; several for a store whose answer is a round trip away.
    pub in_flight_max: usize,
    /// The time limit of an item, waiting included. After it the item fails with
    /// [`Error::TimedOut`].
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

/// The counts of all queues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchCounts {
    /// Of [`Batches::issue`].
    pub issues: QueueCounts,
    /// Of [`Batches::check`].
    pub checks: QueueCounts,
    /// Of [`Batches::state`].
    pub states: QueueCounts,
}

/// A store that takes one item at a time and carries out batches.
///
/// For all other methods use [`Batches::store`] directly.
pub struct Batches {
    store: Arc<dyn Store>,
    issues: Arc<Queue<Issues>>,
    checks: Arc<Queue<Checks>>,
    states: Arc<Queue<States>>,
}

impl Batches {
    /// Puts batches in front of a store.
    pub fn new(store: Arc<dyn Store>, limits: &BatchLimits) -> Batches {
        let issues = Queue::new(Issues(Arc::clone(&store)), limits);
        let checks = Queue::new(Checks(Arc::clone(&store)), limits);
        // A connection that needed no request until now waits for the answer. Items still gather
        // while a batch is on its way.
        let at_once = BatchLimits { batch_wait: Duration::ZERO, ..limits.clone() };
        let states = Queue::new(States(Arc::clone(&store)), &at_once);
        Batches { store, issues, checks, states }
    }

    /// The store behind the batches.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// [`Store::issue`] for one item.
    ///
    /// Two items for one device are never on their way in two batches, so that they do not
    /// conflict, and the first request is carried out first. The proof decides which items belong
    /// together. One item with a key and one with a token do not show that they concern one device;
    /// the store puts them in order.
    ///
    /// # Errors
    /// Those of the store. [`Error::Overloaded`] at once if too many items wait.
    /// [`Error::TimedOut`] at the time limit; an item that was on its way may still be carried out.
    pub async fn issue(&self, issue: Issue) -> Result<Result<Issued, Refusal>, Error> {
        self.issues.ask(issue).await
    }

    /// [`Store::check`] for one token. Waiting checks of one token become one item. If the check
    /// fails, [`Store::recall`] answers the tokens that it knows.
    ///
    /// # Errors
    /// Those of [`Batches::issue`].
    pub async fn check(&self, token: Hash, now: Millis) -> Result<Option<Holder>, Error> {
        self.checks.ask((token, now)).await
    }

    /// The state of a device, from [`Store::find`]; `None`: the store does not know it. Waiting
    /// requests for one device become one item. No item waits for others to come.
    ///
    /// # Errors
    /// Those of [`Batches::issue`].
    pub async fn state(&self, serial: Serial) -> Result<Option<State>, Error> {
        self.states.ask(serial).await
    }

    /// The error of the last failed batch, of issues and of checks.
    pub fn last_errors(&self) -> [Option<Error>; 2] {
        [self.issues.last_error(), self.checks.last_error()]
    }

    /// The counts so far.
    pub fn counts(&self) -> BatchCounts {
        BatchCounts {
            issues: self.issues.counts(),
            checks: self.checks.counts(),
            states: self.states.counts(),
        }
    }
}

/// A kind of items, which has a queue of its own.
trait Kind: Send + Sync + 'static {
    /// One item.
    type Ask: Clone + Send + 'static;
    /// Its answer.
    type Answer: Clone + Send + 'static;
    /// The key of an item: items with the same key must not, or need not, go to the store side by
    /// side.
    type Key: Clone + Eq + std::hash::Hash + Send + 'static;

    /// The key of an item.
    fn key(ask: &Self::Ask) -> Self::Key;

    /// Whether items with one key in a batch are one item with one answer.
    const JOINS: bool;

    /// Whether an item waits while another one with its key is on its way.
    const HOLDS: bool;

    /// Asks the store.
    fn send(&self, asks: Vec<Self::Ask>) -> Sent<Self::Answer>;

    /// The answers that are still possible when the store has failed.
    fn rescue(&self, asks: Vec<Self::Ask>) -> Sent<Option<Self::Answer>>;

    /// Merges another item into this one. Called only if items join.
    fn join(ask: &mut Self::Ask, other: &Self::Ask);

    /// The answer for one of the items that were merged.
    fn share(ask: &Self::Ask, answer: Self::Answer) -> Self::Answer;
}

struct Issues(Arc<dyn Store>);

/// The device of the token, as far as the proof tells.
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
    // A check must see the changes that were answered before it began. So it must not share an
    // earlier check's answer, but it may be on its way at the same time.
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
            // If the store cannot recall a token, its caller gets the failure. An answer would say
            // that the token is not valid.
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
    // For the same reason as with checks.
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

/// The time for several merged checks. A later check compares the end with its own time again.
fn earliest(asks: &[(Hash, Millis)]) -> Millis {
    asks.iter().map(|(_, now)| *now).min().unwrap_or_default()
}

#[cfg(test)]
mod tests;
