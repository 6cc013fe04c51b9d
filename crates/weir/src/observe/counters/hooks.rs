//! Counts of the questions to hooks.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::Times;

weir_wire::named_enum! {
    /// A kind of question to a hook.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Hook {
        /// Who has this token?
        Connect = "connect",
        /// May this connection go on, with this token?
        Refresh = "refresh",
        /// May this device subscribe?
        Subscribe = "subscribe",
        /// May this device publish?
        Publish = "publish",
    }
}

weir_wire::named_enum! {
    /// How a question ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum QuestionOutcome {
        /// The answer permits it.
        Allowed = "allowed",
        /// The answer permits it, with another message.
        Changed = "changed",
        /// The answer forbids it.
        Refused = "refused",
        /// There was no answer in time.
        TimedOut = "timed_out",
        /// The upstream could not be reached, or broke off.
        Unreachable = "unreachable",
        /// The status of the answer was not 200.
        Status = "status",
        /// The answer was longer than `hooks.answer_bytes_max`.
        TooLong = "too_long",
        /// The answer was not one that fits the question.
        Malformed = "malformed",
        /// Too many questions were in flight.
        Full = "full",
    }
}

/// Counts by hook, and two levels.
#[derive(Debug, Default)]
pub(crate) struct HookCounts {
    outcomes: [[AtomicU64; QuestionOutcome::ALL.len()]; Hook::ALL.len()],
    cached: [AtomicU64; Hook::ALL.len()],
    joined: [AtomicU64; Hook::ALL.len()],
    in_flight: [AtomicUsize; Hook::ALL.len()],
    times: [Times; Hook::ALL.len()],
    cache_bytes: AtomicUsize,
    waiting_frames: AtomicUsize,
}

impl HookCounts {
    /// A question that was asked has ended, after this time.
    pub(crate) fn count(&self, hook: Hook, outcome: QuestionOutcome, time: Duration) {
        self.outcomes[hook as usize][outcome as usize].fetch_add(1, Ordering::Relaxed);
        self.times[hook as usize].record(time);
    }

    /// A question was not asked, because too many were in flight.
    pub(crate) fn count_full(&self, hook: Hook) {
        self.outcomes[hook as usize][QuestionOutcome::Full as usize]
            .fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_cached(&self, hook: Hook) {
        self.cached[hook as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_joined(&self, hook: Hook) {
        self.joined[hook as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set_in_flight(&self, hook: Hook, count: usize) {
        self.in_flight[hook as usize].store(count, Ordering::Relaxed);
    }

    pub(crate) fn set_cache_bytes(&self, bytes: usize) {
        self.cache_bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_waiting(&self, frames: usize) {
        self.waiting_frames.fetch_add(frames, Ordering::Relaxed);
    }

    pub(crate) fn remove_waiting(&self, frames: usize) {
        self.waiting_frames.fetch_sub(frames, Ordering::Relaxed);
    }

    pub(crate) fn outcomes(&self, hook: Hook, outcome: QuestionOutcome) -> u64 {
        self.outcomes[hook as usize][outcome as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn cached(&self, hook: Hook) -> u64 {
        self.cached[hook as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn joined(&self, hook: Hook) -> u64 {
        self.joined[hook as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn in_flight(&self, hook: Hook) -> usize {
        self.in_flight[hook as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn times(&self, hook: Hook) -> &Times {
        &self.times[hook as usize]
    }

    pub(crate) fn cache_bytes(&self) -> usize {
        self.cache_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn waiting_frames(&self) -> usize {
        self.waiting_frames.load(Ordering::Relaxed)
    }
}
