//! Two small protocols under a mailbox: how its consumer falls asleep without missing a push, and
//! credits.
//!
//! This file knows neither queues nor wakers. So `tests/loom_mailbox.rs` can run it through every
//! interleaving, with loom's atomic types instead of the standard ones.

use super::atomics::{AtomicBool, AtomicUsize, Ordering, fence};

/// Whether the consumer of a queue sleeps, or is about to.
///
/// The consumer announces its sleep and then looks at the queue once more; a producer pushes and then looks whether
/// sleep is announced. With a fence between the two steps on either side, at least one of them sees the other: a push
/// is found, or it wakes the consumer. Either fence left out loses a wake-up, as does looking before announcing.
#[derive(Debug)]
pub(crate) struct SleepFlag {
    /// The consumer is about to wait, or waits: a producer that pushes must wake it.
    asleep: AtomicBool,
}

/// A count of what may still be pushed.
///
/// Taking acquires what giving releases. So a producer with a credit finds the room that was made for it.
#[derive(Debug)]
pub(crate) struct Credits {
    free: AtomicUsize,
}

impl SleepFlag {
    pub(crate) fn new() -> Self {
        Self { asleep: AtomicBool::new(false) }
    }

    /// Announces that the consumer is about to wait; `false` if there is something to do after all.
    pub(crate) fn try_sleep(&self, is_idle: impl FnOnce() -> bool) -> bool {
        // A swap, here and below, where a store would do: it costs the same and leaves no doubt about what came first.
        self.asleep.swap(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if is_idle() {
            return true;
        }
        self.note_awake();
        false
    }

    /// The consumer has stopped waiting.
    pub(crate) fn note_awake(&self) {
        self.asleep.swap(false, Ordering::SeqCst);
    }

    /// After a push: whether the caller must wake the consumer. One of many callers must, once a sleep.
    pub(crate) fn must_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst)
    }
}

impl Credits {
    pub(crate) fn new(count: usize) -> Self {
        Self { free: AtomicUsize::new(count) }
    }

    /// Takes one, if more than `leave` are left.
    pub(crate) fn try_take(&self, leave: usize) -> bool {
        self.free
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |free| {
                (free > leave).then(|| free - 1)
            })
            .is_ok()
    }

    /// Gives one back.
    pub(crate) fn give(&self) {
        self.free.fetch_add(1, Ordering::Release);
    }

    /// How many are left.
    pub(crate) fn free(&self) -> usize {
        self.free.load(Ordering::Relaxed)
    }
}
