//! Orders to a connection: another task tells it to end, and its own task obeys.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use crate::observe::counters::http::End;

/// What a connection has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// End when no request is in progress.
    Drain,
    /// End now.
    End(End),
}

/// The order that one connection has got, and the waker of the task that serves it.
///
/// Limits: an order is never taken back. Of two ends, the one that stands later in [`End`] counts.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    code: AtomicU8,
    waker: Mutex<Option<Waker>>,
}

/// How far the task of a connection has followed its [`Orders`].
#[derive(Debug, Default)]
pub(crate) struct Follower {
    /// The waker that the orders have. It changes only when another task polls the connection.
    waker: Option<Waker>,
    is_draining: bool,
}

impl Orders {
    /// Gives an order, and wakes the connection's task.
    pub(crate) fn tell(&self, order: Order) {
        let code = match order {
            Order::Drain => DRAIN,
            Order::End(end) => FIRST_END + end as u8,
        };
        let told = self.code.fetch_max(code, Ordering::Release);
        if told < code {
            self.wake();
        }
    }

    pub(crate) fn order(&self) -> Option<Order> {
        match self.code.load(Ordering::Acquire) {
            NO_ORDER => None,
            DRAIN => Some(Order::Drain),
            end => End::ALL.get(usize::from(end - FIRST_END)).map(|end| Order::End(*end)),
        }
    }

    /// Wakes the task that serves the connection.
    pub(super) fn wake(&self) {
        if let Some(waker) = &*self.waker() {
            waker.wake_by_ref();
        }
    }

    /// Waits until the connection is told to end.
    pub(crate) async fn told_to_end(&self) {
        poll_fn(|cx| {
            self.listen(cx.waker());
            match self.order() {
                Some(Order::End(_)) => Poll::Ready(()),
                Some(Order::Drain) | None => Poll::Pending,
            }
        })
        .await;
    }

    fn listen(&self, waker: &Waker) {
        *self.waker() = Some(waker.clone());
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().expect("no panic happens under the lock of a connection's waker")
    }
}

impl Follower {
    /// Looks at the orders, before the task polls its connection. The first order to drain calls
    /// `drain`, which is hyper's graceful shutdown. `Some`: the connection has to end now.
    pub(crate) fn follow(
        &mut self,
        orders: &Orders,
        cx: &Context<'_>,
        drain: impl FnOnce(),
    ) -> Option<End> {
        if !self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            orders.listen(cx.waker());
            self.waker = Some(cx.waker().clone());
        }
        match orders.order()? {
            Order::End(end) => return Some(end),
            Order::Drain if !self.is_draining => {
                self.is_draining = true;
                drain();
            }
            Order::Drain => {}
        }
        None
    }

    /// Whether the connection was told to end when no request is in progress.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining
    }
}

const NO_ORDER: u8 = 0;
const DRAIN: u8 = 1;
const FIRST_END: u8 = 2;
