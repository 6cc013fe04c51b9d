//! Tickers: each ends the ticks of one length.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use weir_engine::Nanos;

use super::{Topic, lock};

/// Ends the ticks of one length.
pub(super) struct Ticker {
    length: Duration,
    list: Mutex<List>,
    filled: Notify,
    /// No class has such ticks any more.
    is_retired: AtomicBool,
}

/// The tickers of all lengths.
pub(super) struct Tickers {
    /// Those that classes have, and retired ones with messages.
    all: Mutex<Vec<Arc<Ticker>>>,
    /// Those that do not run yet.
    added: Mutex<Vec<Arc<Ticker>>>,
    changed: Notify,
}

#[derive(Default)]
struct List {
    /// Topics whose tick has gathered messages.
    due: VecDeque<Arc<Topic>>,
    /// Topics taken off the list whose tick has not ended yet.
    in_hand: usize,
}

impl fmt::Debug for Ticker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticker").field("length", &self.length).finish_non_exhaustive()
    }
}

impl Ticker {
    pub(super) fn new(length: Duration) -> Self {
        let is_retired = AtomicBool::new(false);
        Self { length, list: Mutex::default(), filled: Notify::new(), is_retired }
    }

    pub(super) fn length(&self) -> Duration {
        self.length
    }

    /// The rest of the tick in which `now` falls.
    pub(super) fn rest(&self, now: Nanos) -> Duration {
        let length = u64::try_from(self.length.as_nanos()).unwrap_or(u64::MAX).max(1);
        Duration::from_nanos(length - now.0 % length)
    }

    pub(super) fn list(&self, topic: Arc<Topic>) {
        lock(&self.list).due.push_back(topic);
        self.filled.notify_one();
    }

    pub(super) fn take(&self) -> Option<Arc<Topic>> {
        let mut list = lock(&self.list);
        let topic = list.due.pop_front()?;
        list.in_hand += 1;
        Some(topic)
    }

    pub(super) fn put_down(&self) {
        let mut list = lock(&self.list);
        list.in_hand -= 1;
        // Returns the memory after a burst.
        if list.due.is_empty() {
            list.due.shrink_to(LIST_KEPT);
        }
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.list).due.len()
    }

    /// Waits until it has something to end, or may be over.
    pub(super) async fn filled(&self) {
        self.filled.notified().await;
    }

    /// Whether no class has such ticks, and none is running.
    pub(super) fn is_over(&self) -> bool {
        self.is_retired.load(Ordering::Acquire) && self.is_done()
    }

    pub(super) fn is_done(&self) -> bool {
        let list = lock(&self.list);
        list.due.is_empty() && list.in_hand == 0
    }
}

impl Tickers {
    pub(super) fn new(tickers: &[Arc<Ticker>]) -> Tickers {
        let [all, added] = [tickers.to_vec(), tickers.to_vec()].map(Mutex::new);
        Tickers { all, added, changed: Notify::new() }
    }

    pub(super) fn all(&self) -> Vec<Arc<Ticker>> {
        lock(&self.all).clone()
    }

    /// Topics of another process wait for these, which no class has.
    pub(super) fn add_former(&self, former: &[Arc<Ticker>]) {
        former.iter().for_each(|ticker| ticker.is_retired.store(true, Ordering::Release));
        lock(&self.all).extend_from_slice(former);
        lock(&self.added).extend_from_slice(former);
        self.changed.notify_one();
    }

    /// Those that do not run yet.
    pub(super) fn take_added(&self) -> Vec<Arc<Ticker>> {
        std::mem::take(&mut *lock(&self.added))
    }

    /// Waits until there are others.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// These are the tickers that classes have now, and all topics with them. Others end when
    /// nothing waits for them.
    pub(super) fn replace(&self, tickers: &[Arc<Ticker>]) {
        let is_in = |list: &[Arc<Ticker>], ticker: &Arc<Ticker>| {
            list.iter().any(|known| Arc::ptr_eq(known, ticker))
        };
        let mut all = lock(&self.all);
        for ticker in all.iter().filter(|ticker| !is_in(tickers, ticker)) {
            ticker.is_retired.store(true, Ordering::Release);
            ticker.filled.notify_one();
        }
        all.retain(|ticker| is_in(tickers, ticker) || !ticker.is_done());
        let added = tickers.iter().filter(|ticker| !is_in(&all, ticker)).cloned();
        let added: Vec<Arc<Ticker>> = added.collect();
        all.extend_from_slice(&added);
        drop(all);
        lock(&self.added).extend(added);
        self.changed.notify_one();
    }
}

/// Unused capacity that a list keeps: 8 KiB.
const LIST_KEPT: usize = 1024;
