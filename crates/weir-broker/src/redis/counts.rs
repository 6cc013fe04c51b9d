//! What a Redis broker counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a Redis broker has counted so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BrokerCounts {
    /// Requests sent to Redis.
    pub requests: u64,
    /// Pipelines in which they left.
    pub pipelines: u64,
    /// Subscriptions made again after an interruption.
    pub resubscriptions: u64,
    /// Messages to itself that a connection did not hear.
    pub probes_missed: u64,
    /// Messages that it did not understand: another version wrote them.
    pub unknown_messages: u64,
}

/// The counters behind [`BrokerCounts`].
#[derive(Default)]
pub(super) struct Counters {
    pub(super) requests: AtomicU64,
    pub(super) pipelines: AtomicU64,
    pub(super) resubscriptions: AtomicU64,
    pub(super) probes_missed: AtomicU64,
    pub(super) unknown_messages: AtomicU64,
}

impl Counters {
    pub(super) fn read(&self) -> BrokerCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        BrokerCounts {
            requests: read(&self.requests),
            pipelines: read(&self.pipelines),
            resubscriptions: read(&self.resubscriptions),
            probes_missed: read(&self.probes_missed),
            unknown_messages: read(&self.unknown_messages),
        }
    }
}

/// Counts one more.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
