//! Counts of the readers of a stream that has one document for all of them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Readers of the stream of figures. `open` is a level; the totals never fall.
#[derive(Debug, Default)]
pub(crate) struct ReaderCounts {
    open: AtomicUsize,
    refused: AtomicU64,
    skipped: AtomicU64,
}

impl ReaderCounts {
    /// Level: readers that listen.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Readers refused because there were too many.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Documents that a reader did not get, because it had not taken the one before.
    pub(crate) fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }

    pub(crate) fn set_open(&self, count: usize) {
        self.open.store(count, Ordering::Relaxed);
    }

    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_skipped(&self) {
        self.skipped.fetch_add(1, Ordering::Relaxed);
    }
}
