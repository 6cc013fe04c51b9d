//! Stands still while another process takes over: no topic changes any more.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;
use weir_broker::Scope;

use crate::topics::{Router, lock};

/// Whether topics may change.
///
/// Each operation that changes a topic asks under the lock of the topic, or of the stripe in which
/// the topic would begin. So whoever has closed the gate and then had each lock once has seen the
/// last change.
#[derive(Debug, Default)]
pub(in crate::topics) struct Gate {
    is_closed: AtomicBool,
    opened: Notify,
    /// The broker has told something that was not heard.
    has_missed: AtomicBool,
}

impl Router {
    /// From here on, and until [`Router::resume_serving`], nothing from outside the shards changes a
    /// topic, or sends anything to a shard. When this returns, no such change is under way.
    ///
    /// Publishes, subscriptions, their ends and the next parts of resumes are refused and can be
    /// tried again; ticks and whatever ends with time wait. What the broker tells is kept with its
    /// topic, as far as it cannot be asked for again.
    ///
    /// What shards report is noted as always: [`Router::leave`], [`Router::retired`],
    /// [`Router::end_resumes`], [`Router::resume_refused`] and [`Router::forget_shard`]. Whoever
    /// exports the router sees to it that no report is on its way any more.
    ///
    /// Cost: takes the lock of each topic once.
    pub(crate) fn stand_still(&self) {
        self.gate.is_closed.store(true, Ordering::Relaxed);
        self.stripes.iter().for_each(|stripe| drop(lock(stripe)));
        let mut chunk = 0;
        while let Some(topics) = self.ids.chunk(chunk) {
            topics.iter().for_each(|topic| drop(topic.lock()));
            chunk += 1;
        }
    }

    /// Nobody has taken over: topics change again, and what the broker was asked meanwhile is asked
    /// again.
    pub(crate) fn resume_serving(&self) {
        self.gate.is_closed.store(false, Ordering::Relaxed);
        self.needs.forget_questions();
        for topic in self.topics_with(|_| true) {
            let mut state = topic.lock();
            if !state.ended && topic.class().is_cluster {
                self.follow_again(&topic, &mut state);
            }
            // It may have begun for something that was then refused.
            self.end_if_idle(&topic, &mut state);
        }
        if self.gate.has_missed.swap(false, Ordering::Relaxed) {
            self.handle_gap(&Scope::All);
        }
        self.gate.opened.notify_waiters();
    }

    /// Waits while the router stands still.
    pub(crate) async fn serving(&self) {
        loop {
            let opened = self.gate.opened.notified();
            if !self.is_still() {
                return;
            }
            opened.await;
        }
    }

    /// Whether nothing may change. It counts where it is read under the lock of a topic, or of a
    /// stripe for topics that begin.
    pub(in crate::topics) fn is_still(&self) -> bool {
        self.gate.is_closed.load(Ordering::Relaxed)
    }

    /// The same for what the broker tells: it is asked again when the router serves again.
    pub(in crate::topics) fn is_deaf(&self) -> bool {
        let is_still = self.is_still();
        if is_still {
            self.gate.has_missed.store(true, Ordering::Relaxed);
        }
        is_still
    }
}
