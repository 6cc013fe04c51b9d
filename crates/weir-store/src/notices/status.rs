//! The figures of a queue, for those who deliver its notices and for metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

use crate::records::Millis;

/// Shows a queue as it was after the last commit.
#[derive(Debug, Clone, Default)]
pub struct QueueWatch {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: AtomicU64,
    kept: AtomicU64,
    bytes: AtomicU64,
    dropped: AtomicU64,
    oldest: AtomicU64,
    acknowledged: AtomicU64,
    arrived: Notify,
}

/// The figures of a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NoticeStatus {
    /// Notices that were not delivered yet.
    pub waiting: u64,
    /// Notices in the queue, the delivered ones included.
    pub kept: u64,
    /// The bytes of their texts.
    pub bytes: u64,
    /// Notices that were dropped before they were delivered, since the queue began.
    pub dropped: u64,
    /// When the oldest undelivered notice happened; `None`: there is none.
    pub oldest: Option<Millis>,
    /// The last delivered notice.
    pub acknowledged: u64,
}

impl QueueWatch {
    /// The figures.
    pub fn status(&self) -> NoticeStatus {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let inner = &*self.inner;
        NoticeStatus {
            waiting: load(&inner.waiting),
            kept: load(&inner.kept),
            bytes: load(&inner.bytes),
            dropped: load(&inner.dropped),
            oldest: Some(load(&inner.oldest)).filter(|oldest| *oldest > 0),
            acknowledged: load(&inner.acknowledged),
        }
    }

    /// Waits until there may be a notice to deliver. One caller waits at a time.
    pub async fn arrived(&self) {
        self.inner.arrived.notified().await;
    }

    pub(super) fn set(&self, status: NoticeStatus) {
        let inner = &*self.inner;
        for (number, value) in [
            (&inner.waiting, status.waiting),
            (&inner.kept, status.kept),
            (&inner.bytes, status.bytes),
            (&inner.dropped, status.dropped),
            (&inner.oldest, status.oldest.unwrap_or(0)),
            (&inner.acknowledged, status.acknowledged),
        ] {
            number.store(value, Ordering::Relaxed);
        }
        if status.waiting > 0 {
            inner.arrived.notify_one();
        }
    }
}
