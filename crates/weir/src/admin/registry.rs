//! The registry of open connections. It decides which one gives way to a new one.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::task::Id;

use crate::http::orders::{Order, Orders};
use crate::observe::counters::http::End;

/// The open connections.
///
/// Limits: the longest silent one gives way to a new one. A connection is silent while no byte
/// comes of a head or a body. It is not silent while its request is carried out, or while its
/// events stream.
#[derive(Default)]
pub(super) struct Registry {
    members: HashMap<Id, Arc<Life>>,
    turns: Arc<AtomicU64>,
}

/// The state of a connection.
pub(super) struct Life {
    turns: Arc<AtomicU64>,
    /// The number of the last sign of life. All connections draw from one row of numbers, so no
    /// clock is needed.
    heard: AtomicU64,
    is_busy: AtomicBool,
    /// Whether the body of its request has been read to its end.
    is_whole: AtomicBool,
    /// The orders to its task.
    orders: Orders,
}

/// A request's body that tells the connection's [`Life`] when a part of it comes.
pub(super) struct Watched<B> {
    body: B,
    life: Arc<Life>,
}

impl Registry {
    pub(super) fn count(&self) -> usize {
        self.members.len()
    }

    /// The state of a new connection.
    pub(super) fn life(&self) -> Arc<Life> {
        let heard = AtomicU64::new(self.turns.fetch_add(1, Ordering::Relaxed));
        Arc::new(Life {
            turns: Arc::clone(&self.turns),
            heard,
            is_busy: AtomicBool::new(false),
            is_whole: AtomicBool::new(true),
            orders: Orders::default(),
        })
    }

    pub(super) fn enter(&mut self, id: Id, life: Arc<Life>) {
        self.members.insert(id, life);
    }

    pub(super) fn leave(&mut self, id: Id) {
        self.members.remove(&id);
    }

    /// Closes the longest silent connection; `false` if all are busy.
    pub(super) fn close_longest_silent(&mut self) -> bool {
        let silent = self.members.iter().filter(|(_, life)| !life.is_busy());
        let longest = silent.min_by_key(|(_, life)| life.heard.load(Ordering::Relaxed));
        let Some(id) = longest.map(|(id, _)| *id) else { return false };
        if let Some(life) = self.members.remove(&id) {
            life.orders.tell(Order::End(End::Crowded));
        }
        true
    }

    /// Tells all connections to end when no request is in progress.
    pub(super) fn drain(&self) {
        for life in self.members.values() {
            life.orders.tell(Order::Drain);
        }
    }
}

impl Life {
    pub(super) fn orders(&self) -> &Orders {
        &self.orders
    }

    /// Notes a sign of life. `is_busy`: it is the gateway's turn now, and not the peer's.
    pub(super) fn hear(&self, is_busy: bool) {
        self.heard.store(self.turns.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        self.is_busy.store(is_busy, Ordering::Relaxed);
    }

    /// Notes that a request has come. `is_whole`: it has no body that is still to come.
    pub(super) fn begin(&self, is_whole: bool) {
        self.is_whole.store(is_whole, Ordering::Relaxed);
        self.hear(is_whole);
    }

    /// Whether the body of its request has been read to its end.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Relaxed)
    }

    fn is_busy(&self) -> bool {
        self.is_busy.load(Ordering::Relaxed)
    }
}

impl<B> Watched<B> {
    pub(super) fn new(body: B, life: Arc<Life>) -> Self {
        Self { body, life }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Watched<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(_)) => self.life.hear(false),
            // The body is whole, and the request is carried out now.
            Poll::Ready(None) => self.life.begin(true),
            Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
