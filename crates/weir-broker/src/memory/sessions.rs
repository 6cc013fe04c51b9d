//! The sessions that the broker in memory keeps, each for its time.

use std::collections::BTreeMap;

use tokio::time::Instant;

use crate::records::{SessionId, StoredSession};

/// Sessions by id, and when the time of each is over.
#[derive(Default)]
pub(super) struct Sessions {
    kept: BTreeMap<SessionId, (Vec<u8>, Instant)>,
}

impl Sessions {
    pub(super) fn keep(&mut self, session: StoredSession, now: Instant) {
        self.kept.retain(|_, (_, until)| *until > now);
        self.kept.insert(session.id, (session.sealed, now + session.ttl));
    }

    pub(super) fn forget(&mut self, id: SessionId) {
        self.kept.remove(&id);
    }

    pub(super) fn find(&self, id: SessionId, now: Instant) -> Option<Vec<u8>> {
        let (sealed, until) = self.kept.get(&id)?;
        (*until > now).then(|| sealed.clone())
    }
}
