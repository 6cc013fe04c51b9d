//! Places for connections, and the requests that wait for one.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// The requests of an upstream that wait for a place, first come, first served.
pub(crate) struct Queue {
    waiting: AtomicUsize,
    waiting_max: usize,
    freed: Notify,
}

/// The connections of one endpoint: open ones, those being opened, those that were upgraded.
pub(crate) struct Places {
    open: AtomicUsize,
    max: usize,
    queue: Arc<Queue>,
}

/// One connection's place. It is free again when the stream and all owners have gone.
pub(crate) struct Place {
    places: Arc<Places>,
    /// Bytes that the stream has taken.
    pub(crate) written: Arc<AtomicU64>,
}

/// A request in the queue.
struct Waiting<'a>(&'a Queue);

impl Queue {
    pub(crate) fn new(waiting_max: usize) -> Queue {
        Queue { waiting: AtomicUsize::new(0), waiting_max, freed: Notify::new() }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// A place is free, or a connection: the request that has waited longest looks again.
    pub(crate) fn freed(&self) {
        if self.waiting() > 0 {
            self.freed.notify_one();
        }
    }

    /// Other endpoints are there: all look again.
    pub(crate) fn changed(&self) {
        self.freed.notify_waiters();
    }

    /// Waits until `look` finds something. It learns whether it is the first look.
    ///
    /// Errors: `None`, because the queue is full.
    pub(crate) async fn wait<T>(&self, mut look: impl FnMut(bool) -> Option<T>) -> Option<T> {
        let _waiting = self.enter()?;
        let mut is_first = true;
        loop {
            let mut freed = pin!(self.freed.notified());
            // From here on it hears of places, so none is missed between the look and the wait.
            freed.as_mut().enable();
            if let Some(found) = look(is_first) {
                return Some(found);
            }
            freed.await;
            is_first = false;
        }
    }

    fn enter(&self) -> Option<Waiting<'_>> {
        let entered = self.waiting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |waiting| {
            (waiting < self.waiting_max).then_some(waiting + 1)
        });
        entered.ok().map(|_| Waiting(self))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Places {
    pub(crate) fn new(max: usize, queue: Arc<Queue>) -> Arc<Places> {
        Arc::new(Places { open: AtomicUsize::new(0), max, queue })
    }

    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    pub(crate) fn has_room(&self) -> bool {
        self.open() < self.max
    }

    /// A place, unless there are `max` connections.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Arc<Place>> {
        let taken = self.open.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |open| {
            (open < self.max).then_some(open + 1)
        });
        let places = Arc::clone(self);
        taken.ok().map(|_| Arc::new(Place { places, written: Arc::default() }))
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.open.fetch_sub(1, Ordering::SeqCst);
        self.places.queue.freed();
    }
}
