//! Messages that were published before, by their idempotency keys.
//!
//! These are the keys of a node without a cluster, and in a cluster those of messages to topics of
//! the node alone. The broker remembers all others.

mod handover;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use weir_broker::Entry;
use weir_engine::{Budget, Footprint, Nanos, Share};

use crate::base::model::{Accepted, Publication, PublishError, RETRY_AFTER, Target};
use crate::limits::duplicates::{Before, Duplicates, Key};
pub(in crate::core) use handover::{accepted_message, message_accepted};

/// The answers to messages with an idempotency key, for [`Entry::KEY_KEPT`].
///
/// Limits: `limits.idempotency_keys_max` answers, and an eighth of the byte budget's share for HTTP,
/// where each is charged with [`KEY_BYTES`]. Beyond that the oldest answers of the caller with the
/// most are forgotten.
/// Cost: a message without a key costs nothing. One with a key takes a lock twice; nothing waits
/// under it.
pub(crate) struct Idempotency {
    budget: Arc<Budget>,
    table: Mutex<Table>,
    /// Whether the answers are being handed over to another process.
    is_shut: AtomicBool,
    repeated: AtomicU64,
    forgotten: AtomicU64,
}

/// What the metrics show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdempotencyCounts {
    /// Keys that are remembered now.
    pub(crate) known: usize,
    /// Messages that were not published again.
    pub(crate) repeated: u64,
    /// Answers forgotten before their time.
    pub(crate) forgotten: u64,
}

struct Table {
    answers: Duplicates<Accepted>,
    charged: usize,
}

/// A message with a new key, which is being published. Dropped without an answer, it is forgotten.
struct Begun {
    idempotency: Arc<Idempotency>,
    key: Key,
    answer: Option<Accepted>,
}

/// What is known of a message that is to be published.
enum Begin {
    /// It was published before, with this answer.
    Known(Accepted),
    /// Nothing; `None`: it has no key.
    New(Option<Begun>),
}

impl Begun {
    /// The message is published: another one with its key gets this answer.
    fn end(mut self, answer: Accepted) {
        self.answer = Some(answer);
    }
}

impl Idempotency {
    pub(crate) fn new(budget: &Arc<Budget>, keys_max: usize) -> Arc<Idempotency> {
        let answers = Duplicates::new(keys_max_of(budget, keys_max), Entry::KEY_KEPT);
        Arc::new(Idempotency {
            budget: Arc::clone(budget),
            table: Mutex::new(Table { answers, charged: 0 }),
            is_shut: AtomicBool::new(false),
            repeated: AtomicU64::default(),
            forgotten: AtomicU64::default(),
        })
    }

    /// Changes the limit for further keys.
    pub(crate) fn limit(&self, keys_max: usize) {
        self.lock().answers.limit(keys_max_of(&self.budget, keys_max));
    }

    /// Publishes a message, unless one with its key and target was published before: then the
    /// answer is that of the first. A refusal is not remembered.
    pub(crate) fn once(
        self: &Arc<Self>,
        publication: &Publication<'_>,
        publish: impl FnOnce() -> Result<Accepted, PublishError>,
    ) -> Result<Accepted, PublishError> {
        match self.begin(publication)? {
            Begin::Known(accepted) => Ok(accepted),
            Begin::New(begun) => {
                let accepted = publish()?;
                if let Some(begun) = begun {
                    begun.end(accepted);
                }
                Ok(accepted)
            }
        }
    }

    fn begin(self: &Arc<Self>, publication: &Publication<'_>) -> Result<Begin, PublishError> {
        let Some(key) = publication.idempotency_key else { return Ok(Begin::New(None)) };
        let target = match publication.target {
            Target::Topic(topic) => (0u8, topic),
            Target::Device(device) => (1, device),
            Target::All => (2, ""),
        };
        let mut table = self.lock();
        if self.is_shut.load(Ordering::Relaxed) {
            return Err(PublishError::Busy(RETRY_AFTER));
        }
        let key = table.answers.key(key.caller, (key.key, target));
        match table.answers.begin(key, Nanos::now()) {
            Before::Never => {}
            Before::InProgress => return Err(PublishError::InProgress(RETRY_AFTER)),
            Before::Answered(accepted) => {
                let accepted = *accepted;
                drop(table);
                self.repeated.fetch_add(1, Ordering::Relaxed);
                return Ok(Begin::Known(accepted));
            }
        }
        let has_room = self.charge(&mut table);
        drop(table);
        let begun = Begun { idempotency: Arc::clone(self), key, answer: None };
        if !has_room {
            return Err(PublishError::BudgetExhausted(RETRY_AFTER));
        }
        Ok(Begin::New(Some(begun)))
    }

    /// Forgets the answers whose time has ended.
    pub(crate) fn sweep(&self) {
        let mut table = self.lock();
        table.answers.sweep(Nanos::now());
        self.charge(&mut table);
    }

    pub(crate) fn footprint(&self) -> Footprint {
        self.lock().answers.footprint()
    }

    pub(crate) fn counts(&self) -> IdempotencyCounts {
        IdempotencyCounts {
            known: self.lock().answers.len(),
            repeated: self.repeated.load(Ordering::Relaxed),
            forgotten: self.forgotten.load(Ordering::Relaxed),
        }
    }

    /// Has the charge fit the known keys; `false` if the budget is used up.
    fn charge(&self, table: &mut Table) -> bool {
        let needed = table.answers.len() * KEY_BYTES;
        if needed > table.charged {
            if !self.budget.take(Share::Http, needed - table.charged) {
                return false;
            }
        } else {
            self.budget.give(Share::Http, table.charged - needed);
        }
        table.charged = needed;
        true
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no panic happens under this lock")
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let idempotency = &self.idempotency;
        let mut table = idempotency.lock();
        if table.answers.end(self.key, self.answer, Nanos::now()) {
            idempotency.forgotten.fetch_add(1, Ordering::Relaxed);
        }
        idempotency.charge(&mut table);
    }
}

impl Drop for Idempotency {
    fn drop(&mut self) {
        self.budget.give(Share::Http, self.lock().charged);
    }
}

/// The configured limit, or what an eighth of HTTP's share has room for.
fn keys_max_of(budget: &Budget, keys_max: usize) -> usize {
    keys_max.min(budget.bytes_max_of(Share::Http) / 8 / KEY_BYTES).max(1)
}

/// What a key takes at worst: its place in a hash map that has just grown, and in a queue that has.
const KEY_BYTES: usize = 288;
const _: () = assert!(
    (size_of::<(Key, Option<Accepted>)>() + 1) * 16 / 7 + 2 * size_of::<(Nanos, Key)>()
        <= KEY_BYTES
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::model::{IdempotencyKey, Payload};

    fn message<'a>(caller: &'a str, key: &'a str, target: Target<'a>) -> Publication<'a> {
        Publication {
            target,
            payload: Payload::Text("hi"),
            content_type: "",
            key: "",
            ttl: None,
            sender: None,
            idempotency_key: Some(IdempotencyKey { caller, key }),
        }
    }

    fn accepted(id: u64) -> Result<Accepted, PublishError> {
        Ok(Accepted { id, offset: Some(id), epoch: Some(7), connections: 1, nodes: None })
    }

    fn id(published: Result<Accepted, PublishError>) -> u64 {
        published.map_or(0, |accepted| accepted.id)
    }

    #[test]
    fn a_key_belongs_to_its_caller_and_target() {
        let budget = Budget::new(16 << 20);
        let keys = Idempotency::new(&budget, 1000);
        let topic = Target::Topic("a");
        for (count, (caller, key, target)) in [
            ("one", "k", topic),
            ("two", "k", topic),
            ("one", "l", topic),
            ("one", "k", Target::Topic("b")),
            ("one", "k", Target::Device("a")),
            ("one", "k", Target::All),
        ]
        .into_iter()
        .enumerate()
        {
            let number = count as u64 + 1;
            let message = message(caller, key, target);
            assert_eq!(id(keys.once(&message, || accepted(number))), number);
            assert_eq!(id(keys.once(&message, || accepted(99))), number);
        }
        let counts = IdempotencyCounts { known: 6, repeated: 6, forgotten: 0 };
        assert_eq!(keys.counts(), counts);
        assert_eq!(budget.used_of(Share::Http), 6 * KEY_BYTES);
        drop(keys);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn what_was_refused_is_published_when_it_comes_again() {
        let keys = Idempotency::new(&Budget::new(16 << 20), 1000);
        let message = message("one", "k", Target::All);
        let refused = keys.once(&message, || Err(PublishError::Busy(RETRY_AFTER)));
        assert_eq!(refused.err(), Some(PublishError::Busy(RETRY_AFTER)));
        assert_eq!(keys.counts().known, 0);
        let published = keys.once(&message, || {
            let meanwhile = keys.once(&message, || accepted(2));
            assert_eq!(meanwhile.err(), Some(PublishError::InProgress(RETRY_AFTER)));
            accepted(1)
        });
        assert_eq!(id(published), 1);
    }

    #[test]
    fn a_caller_pushes_out_its_own_keys_and_the_budget_bounds_them() {
        let budget = Budget::new(16 << 20);
        let keys = Idempotency::new(&budget, 100);
        let first = message("quiet", "k", Target::All);
        assert_eq!(id(keys.once(&first, || accepted(1))), 1);
        for number in 0..1000 {
            let key = number.to_string();
            assert_eq!(id(keys.once(&message("busy", &key, Target::All), || accepted(2))), 2);
        }
        assert_eq!(id(keys.once(&first, || accepted(3))), 1);
        assert_eq!((keys.counts().known, keys.counts().forgotten), (100, 901));
        let rest = budget.bytes_max_of(Share::Http) - budget.used_of(Share::Http);
        assert!(budget.take(Share::Http, rest));
        let refused = keys.once(&message("quiet", "l", Target::All), || accepted(4));
        assert_eq!(refused.err(), Some(PublishError::BudgetExhausted(RETRY_AFTER)));
        assert_eq!(keys.counts().known, 100);
    }
}
