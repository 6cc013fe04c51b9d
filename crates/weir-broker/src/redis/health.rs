//! Whether the broker can be reached, as the node is told.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::contract::{Event, EventHandler};

/// Tells the node when the last Redis node is lost, and when the first is back.
pub(super) struct Health {
    handler: Arc<dyn EventHandler>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The Redis nodes that are used, and whether their subscriptions stand.
    stands: HashMap<u64, bool>,
    /// The number of the last one.
    last: u64,
    lost: Option<Instant>,
}

impl Health {
    pub(super) fn new(handler: Arc<dyn EventHandler>) -> Health {
        Health { handler, state: Mutex::default() }
    }

    /// A Redis node is used, from now on under this number.
    pub(super) fn add(&self) -> u64 {
        let mut state = self.lock();
        state.last += 1;
        let number = state.last;
        state.stands.insert(number, false);
        number
    }

    /// The subscriptions at a Redis node stand.
    pub(super) fn up(&self, number: u64) {
        let mut state = self.lock();
        // What one says that is no longer used means nothing.
        let Some(stands) = state.stands.get_mut(&number) else { return };
        *stands = true;
        if let Some(since) = state.lost.take() {
            self.handler.handle(Event::Back { after: since.elapsed() });
        }
    }

    /// A Redis node cannot be reached.
    pub(super) fn down(&self, number: u64, why: &str) {
        let mut state = self.lock();
        let Some(stands) = state.stands.get_mut(&number) else { return };
        *stands = false;
        if state.lost.is_none() && !state.stands.values().any(|&stands| stands) {
            state.lost = Some(Instant::now());
            self.handler.handle(Event::Lost(why.to_owned()));
        }
    }

    /// A Redis node is no longer used.
    pub(super) fn forget(&self, number: u64) {
        self.lock().stands.remove(&number);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
