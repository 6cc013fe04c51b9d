//! A store that is in its place before it is open, because another process still holds its file.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::contract::{Answer, Error, Store, StoreMemory};
use crate::records::{
    Device, DeviceEntry, Hash, Holder, Issue, Issued, Millis, Page, Put, Refusal, Revoked, Serial,
};

/// A store that opens later.
///
/// Shape: until then requests wait for it, for its time limit at most. Issues do not wait: they are
/// refused at once. After [`Late::fail`] all requests are refused at once, until it opens.
/// Limits: it queues nothing itself. [`crate::Batches`] limits the requests that wait.
pub struct Late {
    name: &'static str,
    timeout: Duration,
    state: watch::Sender<State>,
}

enum State {
    /// Nobody has failed to open it yet.
    Waits,
    /// It does not open, for this reason.
    Failed(String),
    Open(Arc<dyn Store>),
    Closed,
}

impl Late {
    /// A store that is not open yet. `timeout`: the longest wait of a request.
    pub fn new(name: &'static str, timeout: Duration) -> Late {
        Late { name, timeout, state: watch::Sender::new(State::Waits) }
    }

    /// Passes all requests to this store from now on, those included that wait.
    ///
    /// # Errors
    /// It has been closed meanwhile: this store is not used.
    pub fn open(&self, store: Arc<dyn Store>) -> Result<(), Arc<dyn Store>> {
        let mut given = Some(store);
        self.state.send_if_modified(|state| match (&*state, given.take()) {
            (State::Waits | State::Failed(_), Some(store)) => {
                *state = State::Open(store);
                true
            }
            (State::Open(_) | State::Closed, store) => {
                given = store;
                false
            }
            (State::Waits | State::Failed(_), None) => false,
        });
        given.map_or(Ok(()), Err)
    }

    /// Refuses all requests with this reason until it opens.
    pub fn fail(&self, why: String) {
        self.state.send_if_modified(|state| match state {
            State::Waits | State::Failed(_) => {
                *state = State::Failed(why);
                true
            }
            State::Open(_) | State::Closed => false,
        });
    }

    /// Waits until it is open, has failed to open, or is closed.
    pub async fn tried(&self) {
        // The sender lives as long as this.
        let _ = self.state.subscribe().wait_for(|state| !matches!(state, State::Waits)).await;
    }

    /// Waits until it is closed.
    pub async fn closed(&self) {
        let _ = self.state.subscribe().wait_for(|state| matches!(state, State::Closed)).await;
    }

    /// The store, if it is open.
    fn now(&self) -> Result<Arc<dyn Store>, Error> {
        match &*self.state.borrow() {
            State::Open(store) => Ok(Arc::clone(store)),
            State::Waits => Err(unavailable("the process before this one has not closed it yet")),
            State::Failed(why) => Err(unavailable(why)),
            State::Closed => Err(unavailable("the store is closed")),
        }
    }

    /// The store, as soon as it is open.
    async fn soon(&self) -> Result<Arc<dyn Store>, Error> {
        let is_waiting = matches!(*self.state.borrow(), State::Waits);
        if is_waiting {
            // If that takes too long, the reason is the one of the moment.
            let _ = timeout(self.timeout, self.tried()).await;
        }
        self.now()
    }
}

impl Store for Late {
    fn name(&self) -> &'static str {
        self.name
    }

    fn put(&self, entries: Vec<DeviceEntry>, now: Millis) -> Answer<'_, Vec<Put>> {
        Box::pin(async move { self.soon().await?.put(entries, now).await })
    }

    fn issue(&self, issues: Vec<Issue>) -> Answer<'_, Vec<Result<Issued, Refusal>>> {
        Box::pin(async move { self.now()?.issue(issues).await })
    }

    fn check(&self, tokens: Vec<Hash>, now: Millis) -> Answer<'_, Vec<Option<Holder>>> {
        Box::pin(async move { self.soon().await?.check(tokens, now).await })
    }

    fn recall(&self, tokens: Vec<Hash>, now: Millis) -> Answer<'_, Vec<Option<Holder>>> {
        Box::pin(async move { self.now()?.recall(tokens, now).await })
    }

    fn revoke(&self, serials: Vec<Serial>) -> Answer<'_, Vec<Revoked>> {
        Box::pin(async move { self.soon().await?.revoke(serials).await })
    }

    fn find(&self, serials: Vec<Serial>) -> Answer<'_, Vec<Option<Device>>> {
        Box::pin(async move { self.soon().await?.find(serials).await })
    }

    fn list(&self, page: Page) -> Answer<'_, Vec<Device>> {
        Box::pin(async move { self.soon().await?.list(page).await })
    }

    fn seen(&self, seen: Vec<(Serial, Millis)>) -> Answer<'_, ()> {
        Box::pin(async move { self.soon().await?.seen(seen).await })
    }

    fn sweep(&self, now: Millis, limit: usize) -> Answer<'_, usize> {
        Box::pin(async move { self.soon().await?.sweep(now, limit).await })
    }

    fn count(&self) -> Answer<'_, u64> {
        Box::pin(async move { self.soon().await?.count().await })
    }

    fn probe(&self) -> Answer<'_, ()> {
        Box::pin(async move { self.soon().await?.probe().await })
    }

    fn memory(&self) -> StoreMemory {
        self.now().map_or_else(|_| StoreMemory::default(), |store| store.memory())
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            match self.state.send_replace(State::Closed) {
                State::Open(store) => store.close().await,
                State::Waits | State::Failed(_) | State::Closed => Ok(()),
            }
        })
    }
}

fn unavailable(why: &str) -> Error {
    Error::Unavailable(why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::Memory;
    use crate::records::Proof;

    fn issue() -> Vec<Issue> {
        let proof = Proof::Token(Hash([1; 32]));
        vec![Issue { proof, token: Hash([2; 32]), now: 1, expires: 2, grace_until: 1 }]
    }

    fn late() -> Arc<Late> {
        Arc::new(Late::new("it", Duration::from_secs(3600)))
    }

    #[tokio::test]
    async fn requests_wait_for_it_and_issues_do_not() {
        let late = late();
        let waiting = tokio::spawn({
            let late = Arc::clone(&late);
            async move { late.count().await }
        });
        assert!(matches!(late.issue(issue()).await, Err(Error::Unavailable(_))));
        assert!(late.open(Arc::new(Memory::new())).is_ok());
        late.tried().await;
        assert_eq!(waiting.await.unwrap(), Ok(0));
        assert_eq!(late.issue(issue()).await, Ok(vec![Err(Refusal::InvalidToken)]));
        late.fail("too late".to_owned());
        assert_eq!(late.count().await, Ok(0));
    }

    #[tokio::test]
    async fn a_failure_refuses_all_until_it_opens_nevertheless() {
        let late = late();
        for why in ["no", "still not"] {
            late.fail(why.to_owned());
            assert_eq!(late.probe().await, Err(Error::Unavailable(why.to_owned())));
        }
        assert!(late.open(Arc::new(Memory::new())).is_ok());
        assert_eq!(late.probe().await, Ok(()));
    }

    #[tokio::test]
    async fn the_wait_ends_at_its_limit() {
        let late = Late::new("it", Duration::from_millis(1));
        assert!(matches!(late.count().await, Err(Error::Unavailable(_))));
    }

    #[tokio::test]
    async fn a_closed_one_opens_no_more() {
        let late = late();
        assert_eq!(late.close().await, Ok(()));
        late.closed().await;
        assert!(late.open(Arc::new(Memory::new())).is_err());
        assert_eq!(late.count().await, Err(unavailable("the store is closed")));
    }
}
