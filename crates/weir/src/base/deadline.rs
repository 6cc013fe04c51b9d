//! The time limit of an unsettled connection, without the time that it waits for Weir.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};
use weir_wire::CloseReason;

/// The time that a peer has left.
#[derive(Debug)]
pub(crate) struct Deadline {
    whole: Duration,
    ends: Instant,
}

impl Deadline {
    /// The deadline that begins now.
    pub(crate) fn of(whole: Duration) -> Self {
        Self { whole, ends: Instant::now() + whole }
    }

    /// Waits for the peer, while its time runs.
    pub(crate) async fn within<F: Future>(&self, peers: F) -> Result<F::Output, CloseReason> {
        timeout_at(self.ends, peers).await.map_err(|_| CloseReason::HelloTimeout)
    }

    /// Waits for work of our own. The peer's time stands still meanwhile, but at most for the whole
    /// original time.
    pub(crate) async fn suspend<F: Future>(&mut self, ours: F) -> Result<F::Output, CloseReason> {
        let began = Instant::now();
        let ended = timeout(self.whole, ours).await;
        self.ends += began.elapsed();
        ended.map_err(|_| CloseReason::HelloTimeout)
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::sleep;

    use super::*;

    #[tokio::test]
    async fn the_peers_time_stands_still_for_ours() {
        let mut deadline = Deadline::of(Duration::from_secs(3600));
        let (before, ours) = (deadline.ends, Duration::from_millis(3));
        assert_eq!(deadline.suspend(sleep(ours)).await, Ok(()));
        assert!(deadline.ends >= before + ours);
        assert_eq!(deadline.within(ready(1)).await, Ok(1));
        assert!(deadline.ends < before + Duration::from_secs(3600));
    }

    #[tokio::test]
    async fn nothing_is_waited_for_without_end() {
        let mut deadline = Deadline::of(Duration::ZERO);
        assert_eq!(deadline.within(pending::<()>()).await, Err(CloseReason::HelloTimeout));
        assert_eq!(deadline.suspend(pending::<()>()).await, Err(CloseReason::HelloTimeout));
    }
}
