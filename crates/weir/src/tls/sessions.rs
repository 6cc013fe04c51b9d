//! Stored sessions of TLS 1.2: at this node, and for all nodes of the cluster if it is configured.
//!
//! rustls asks its store synchronously. So a session of another node is fetched into the store of
//! this node before rustls sees the ClientHello.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::server::{ProducesTickets as _, StoresServerSessions};
use weir_engine::Footprint;

use super::cache::SessionCache;
use super::hello::StoredId;
use super::tickets::{self, Ticketer};
use crate::observe::counters::tls::SessionLookup;

/// Stored sessions.
///
/// Limits: those of `local`. After `end`, the end of a revocation list, no session is resumed, as
/// in [`Ticketer::until`].
/// Cost: a new session that all nodes shall find is copied and sealed on the handshake's thread.
pub(crate) struct StoredSessions {
    pub(super) local: SessionCache,
    pub(super) end: Option<Duration>,
    /// Seals what leaves this node.
    pub(super) ticketer: Arc<Ticketer>,
    pub(super) shared: Arc<OnceLock<Arc<dyn SharedSessions>>>,
}

/// Sessions that all nodes of the cluster find. They are sealed.
pub(crate) trait SharedSessions: Send + Sync {
    /// Keeps a session of this node for a time. It does not wait, and may drop the session.
    fn keep(&self, id: StoredId, sealed: Vec<u8>, ttl: Duration);

    /// Finds a session of any node, in bounded time.
    ///
    /// Errors: why there is none.
    fn find(&self, id: StoredId) -> Finding<'_>;
}

/// A look-up on its way.
pub(crate) type Finding<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<u8>, SessionLookup>> + Send + 'a>>;

impl StoredSessions {
    /// Looks up a session that this node does not know, and stores it here. `None`: no look-up is
    /// needed, or nothing is shared.
    pub(crate) async fn fetch(&self, id: &StoredId) -> Option<SessionLookup> {
        let shared = self.shared.get()?;
        if self.local.get(id).is_some() {
            return None;
        }
        let sealed = match shared.find(*id).await {
            Ok(sealed) => sealed,
            Err(result) => return Some(result),
        };
        let Some(session) = self.ticketer.open_session(id, &sealed) else {
            return Some(SessionLookup::Unreadable);
        };
        self.local.put(id, session);
        Some(SessionLookup::Hit)
    }

    /// The sessions of this node.
    pub(crate) fn footprint(&self) -> Footprint {
        self.local.footprint()
    }

    fn is_over(&self) -> bool {
        self.end.is_some_and(|end| end < tickets::clock())
    }
}

impl StoresServerSessions for StoredSessions {
    fn put(&self, id: Vec<u8>, session: Vec<u8>) -> bool {
        if let (Some(shared), Ok(id)) = (self.shared.get(), StoredId::try_from(id.as_slice()))
            && let Some(sealed) = self.ticketer.seal_session(&id, &session)
        {
            shared.keep(id, sealed, Duration::from_secs(self.ticketer.lifetime().into()));
        }
        self.local.put(&id, session)
    }

    fn get(&self, id: &[u8]) -> Option<Vec<u8>> {
        self.local.get(id).filter(|_| !self.is_over())
    }

    fn take(&self, id: &[u8]) -> Option<Vec<u8>> {
        self.local.take(id).filter(|_| !self.is_over())
    }

    fn can_cache(&self) -> bool {
        self.local.can_cache()
    }
}

/// Without the sessions.
impl fmt::Debug for StoredSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredSessions").field("end", &self.end).finish_non_exhaustive()
    }
}
