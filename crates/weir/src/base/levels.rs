//! Numbers that one thread writes and others read.

use std::sync::atomic::{AtomicUsize, Ordering};

use weir_engine::Footprint;

/// A footprint that its owner publishes now and then.
#[derive(Debug, Default)]
pub(crate) struct SharedFootprint {
    count: AtomicUsize,
    bytes: AtomicUsize,
}

impl SharedFootprint {
    pub(crate) fn set(&self, footprint: Footprint) {
        self.count.store(footprint.count, Ordering::Relaxed);
        self.bytes.store(footprint.bytes, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Footprint {
        Footprint::new(self.count.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}
