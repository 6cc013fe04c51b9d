//! Who asks the broker something for this node takes a turn, so that all may rest for a moment.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedRwLockWriteGuard, RwLock, RwLockReadGuard};
use tokio::time::timeout;

/// The turns of a node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turns(Arc<RwLock<()>>);

/// While it is kept, nobody changes at the broker what another process needs to go on as this node.
#[derive(Debug)]
pub(crate) struct Rest {
    _all: OwnedRwLockWriteGuard<()>,
}

impl Turns {
    /// A turn to change something at the broker: an interest, a claim, a member.
    pub(crate) async fn take(&self) -> RwLockReadGuard<'_, ()> {
        self.0.read().await
    }

    /// Waits until all turns are over; `None`: some last for too long.
    pub(crate) async fn rest(&self, patience: Duration) -> Option<Rest> {
        let all = Arc::clone(&self.0).write_owned();
        Some(Rest { _all: timeout(patience, all).await.ok()? })
    }
}
