//! The revocations that the broker in memory keeps, for a day.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::records::{Name, Revocation, RevocationId, Revocations};

/// What was revoked, oldest first.
pub(super) struct RevocationLog {
    kept: VecDeque<(Revocation, Instant)>,
    last: RevocationId,
    /// The last one that is not kept any more.
    removed: Option<RevocationId>,
}

/// How long a revocation is kept.
const KEPT: Duration = Duration::from_secs(86_400);

impl RevocationLog {
    pub(super) fn new() -> RevocationLog {
        RevocationLog { kept: VecDeque::new(), last: RevocationId(0, 0), removed: None }
    }

    /// Adds a revocation, at a time in milliseconds.
    pub(super) fn add(&mut self, device: Name, millis: u64, now: Instant) -> Revocation {
        let RevocationId(last, count) = self.last;
        self.last = match millis > last {
            true => RevocationId(millis, 0),
            false => RevocationId(last, count + 1),
        };
        let revocation = Revocation { id: self.last.clone(), device };
        self.kept.push_back((revocation.clone(), now + KEPT));
        revocation
    }

    pub(super) fn after(&mut self, after: Option<&RevocationId>, now: Instant) -> Revocations {
        while self.kept.front().is_some_and(|(_, until)| *until <= now) {
            self.forget(1);
        }
        let newer = self.kept.iter().filter(|(revocation, _)| Some(&revocation.id) > after);
        let page = newer.take(Revocations::PAGE).map(|(revocation, _)| revocation.clone());
        Revocations { revoked: page.collect(), is_complete: self.removed.as_ref() <= after }
    }

    /// Removes the oldest ones.
    pub(super) fn forget(&mut self, count: usize) {
        let count = count.min(self.kept.len());
        if let Some((revocation, _)) = self.kept.drain(..count).next_back() {
            self.removed = Some(revocation.id);
        }
    }
}
