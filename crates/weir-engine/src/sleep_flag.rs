//! Two small protocols under a mailbox: its consumer falls asleep without missing a push, and
//! producers take credits.
//!
//! This file knows neither queues nor wakers. So `tests/loom_mailbox.rs` can run it through every
//! interleaving, with loom's atomic types instead of the standard ones.

use super::atomics::{AtomicBool, AtomicUsize, Ordering, fence};

/// Whether the consumer of a queue sleeps, or is about to.
///
/// The consumer announces its sleep and then looks at the queue once more. A producer pushes and
/// then looks for the announcement. Each side has a fence between its two steps, so at least one of
/// them sees the other: the consumer finds the push, or the producer wakes the consumer. Without
/// either fence a wake-up can be lost, and likewise if the consumer looks before it announces.
#[derive(Debug)]
pub(crate) struct SleepFlag {
    /// The consumer waits or is about to wait. A producer that pushes must wake it.
    asleep: AtomicBool,
}

/// A count of the pushes that are still permitted.
///
/// Taking acquires what giving releases. So a producer with a credit finds the room that was made
/// for it.
#[derive(Debug)]
pub(crate) struct Credits {
    free: AtomicUsize,
}

impl SleepFlag {
    pub(crate) fn new() -> Self {
        Self { asleep: AtomicBool::new(false) }
    }

    /// Announces that the consumer is about to wait. `false` if there is something to do after all.
    pub(crate) fn try_sleep(&self, is_idle: impl FnOnce() -> bool) -> bool {
        // A swap, here and below, although a store would suffice. It costs the same, and its order
        // is certain.
        self.asleep.swap(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if is_idle() {
            return true;
        }
        self.note_awake();
        false
    }

    /// Notes that the consumer has stopped waiting.
    pub(crate) fn note_awake(&self) {
        self.asleep.swap(false, Ordering::SeqCst);
    }

    /// Called after a push. Returns whether the caller must wake the consumer. For each sleep, only
    /// one of many callers must.
    pub(crate) fn must_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst)
    }
}

impl Credits {
    pub(crate) fn new(count: usize) -> Self {
        Self { free: AtomicUsize::new(count) }
    }

    /// Takes a credit, if more than `leave` are left.
    pub(crate) fn try_take(&self, leave: usize) -> bool {
        self.free
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |free| {
                (free > leave).then(|| free - 1)
            })
            .is_ok()
    }

    /// Gives a credit back.
    pub(crate) fn give(&self) {
        self.free.fetch_add(1, Ordering::Release);
    }

    /// The number of credits that are left.
    pub(crate) fn free(&self) -> usize {
        self.free.load(Ordering::Relaxed)
    }
}
