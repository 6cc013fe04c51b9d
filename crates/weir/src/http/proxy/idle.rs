//! The time for which one side may be silent.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// Ends a wait that lasts for too long.
///
/// Cost: a wait that is over at once needs no timer. A longer one begins a timer, which the next
/// waits use again.
pub(super) struct Idle {
    timeout: Duration,
    /// The tick in which the wait began.
    since: Option<u32>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Idle {
    pub(super) fn new(timeout: Duration) -> Idle {
        Idle { timeout, since: None, timer: None }
    }

    /// The wait is over.
    pub(super) fn moved(&mut self) {
        self.since = None;
    }

    /// Begins a wait or goes on with it; ready if it has lasted for too long. `now`: the current
    /// tick.
    pub(super) fn poll(&mut self, now: u32, cx: &mut Context<'_>) -> Poll<()> {
        let since = *self.since.get_or_insert(now);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(self.timeout)));
        loop {
            ready!(timer.as_mut().poll(cx));
            let passed = weir_engine::TICK * now.saturating_sub(since);
            // Of the first and the last tick, only a part may have passed.
            if passed + weir_engine::TICK >= self.timeout {
                return Poll::Ready(());
            }
            timer.as_mut().reset(Instant::now() + (self.timeout - passed));
        }
    }
}
