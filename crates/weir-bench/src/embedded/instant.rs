//! A store that answers at once. With it the stage breakdown measures everything except a store.

use std::future::ready;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_store::{
    Answer, Device, DeviceEntry, Hash, Holder, Issue, Issued, Millis, Page, Proof, Put, Refusal,
    Revoked, Serial, Store,
};

/// Issues a token to every device that shows a key, keeps nothing, and knows no token.
#[derive(Debug, Default)]
pub(super) struct Instant {
    generation: AtomicU64,
}

impl Instant {
    /// The answer for a device that had a token before: a cache is then told that the old token has ended.
    fn issue_one(&self, issue: Issue) -> Result<Issued, Refusal> {
        match issue.proof {
            Proof::Key { serial, .. } => {
                let generation = self.generation.fetch_add(1, Ordering::Relaxed) + 1;
                Ok(Issued { serial, generation, is_first: false })
            }
            Proof::Token(_) => Err(Refusal::InvalidToken),
        }
    }
}

impl Store for Instant {
    fn name(&self) -> &'static str {
        "instant"
    }

    fn put(&self, entries: Vec<DeviceEntry>, _: Millis) -> Answer<'_, Vec<Put>> {
        Box::pin(ready(Ok(vec![Put::Unchanged; entries.len()])))
    }

    fn issue(&self, issues: Vec<Issue>) -> Answer<'_, Vec<Result<Issued, Refusal>>> {
        let issued = issues.into_iter().map(|issue| self.issue_one(issue)).collect();
        Box::pin(ready(Ok(issued)))
    }

    fn check(&self, tokens: Vec<Hash>, _: Millis) -> Answer<'_, Vec<Option<Holder>>> {
        Box::pin(ready(Ok(vec![None; tokens.len()])))
    }

    fn revoke(&self, serials: Vec<Serial>) -> Answer<'_, Vec<Revoked>> {
        Box::pin(ready(Ok(vec![Revoked::Unknown; serials.len()])))
    }

    fn find(&self, serials: Vec<Serial>) -> Answer<'_, Vec<Option<Device>>> {
        Box::pin(ready(Ok(vec![None; serials.len()])))
    }

    fn list(&self, _: Page) -> Answer<'_, Vec<Device>> {
        Box::pin(ready(Ok(Vec::new())))
    }

    fn seen(&self, _: Vec<(Serial, Millis)>) -> Answer<'_, ()> {
        Box::pin(ready(Ok(())))
    }

    fn sweep(&self, _: Millis, _: usize) -> Answer<'_, usize> {
        Box::pin(ready(Ok(0)))
    }

    fn count(&self) -> Answer<'_, u64> {
        Box::pin(ready(Ok(0)))
    }

    fn probe(&self) -> Answer<'_, ()> {
        Box::pin(ready(Ok(())))
    }
}
