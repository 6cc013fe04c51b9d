//! Whether the broker can be reached, as the node is told.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::options::Address;
use crate::contract::{Event, EventHandler};

/// Tells the node when the last Redis node is lost, and when the first is back.
pub(super) struct Health {
    handler: Arc<dyn EventHandler>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Redis nodes, and whether their subscriptions stand.
    stands: HashMap<Address, bool>,
    lost: Option<Instant>,
}

impl Health {
    pub(super) fn new(handler: Arc<dyn EventHandler>) -> Health {
        Health { handler, state: Mutex::default() }
    }

    /// The subscriptions at a Redis node stand.
    pub(super) fn up(&self, address: &Address) {
        let mut state = self.lock();
        state.stands.insert(address.clone(), true);
        if let Some(since) = state.lost.take() {
            let after = since.elapsed();
            let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
            tracing::info!(after_ms, "the broker can be reached again");
            self.handler.handle(Event::Back { after });
        }
    }

    /// A Redis node cannot be reached.
    pub(super) fn down(&self, address: &Address, why: &str) {
        let mut state = self.lock();
        state.stands.insert(address.clone(), false);
        if state.lost.is_none() && !state.stands.values().any(|&stands| stands) {
            state.lost = Some(Instant::now());
            tracing::warn!(why, "the broker cannot be reached");
            self.handler.handle(Event::Lost(why.to_owned()));
        }
    }

    /// A Redis node is no longer used.
    pub(super) fn forget(&self, address: &Address) {
        self.lock().stands.remove(address);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
