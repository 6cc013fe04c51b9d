//! The progress of answers over HTTP/2: whether hyper writes the pieces that it holds.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use super::Edge;

/// The progress of an answer over HTTP/2. Without progress its stream is reset.
///
/// hyper drops a piece when it has written all of it: that is progress.
/// Limits: `connection.stall_timeout` for a piece; see [`Leaving::look`].
pub(super) struct Leaving {
    edge: Arc<Edge>,
    /// The number of pieces that hyper holds.
    pieces: AtomicU32,
    /// The tick of the last progress, plus one; 0: hyper holds no piece.
    since: AtomicU32,
    is_stalled: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

thread_local! {
    /// Tells the task of a request which piece its poll has given to hyper.
    static HANDED: Cell<Option<Handed>> = const { Cell::new(None) };
}

/// What a poll has given to hyper.
pub(super) enum Handed {
    /// A whole short answer. Its task watches it if it has to wait.
    Short,
    /// A piece of a long answer.
    Long(Arc<Leaving>),
}

/// Takes what the last poll has given to hyper.
pub(super) fn take_handed() -> Option<Handed> {
    HANDED.take()
}

pub(super) fn set_handed(handed: Handed) {
    HANDED.set(Some(handed));
}

impl Leaving {
    pub(super) fn new(edge: &Arc<Edge>) -> Arc<Leaving> {
        Arc::new(Leaving {
            edge: Arc::clone(edge),
            pieces: AtomicU32::new(0),
            since: AtomicU32::new(0),
            is_stalled: AtomicBool::new(false),
            waker: Mutex::default(),
        })
    }

    /// Notes that hyper gets a piece.
    pub(super) fn handed(&self) {
        self.pieces.fetch_add(1, Ordering::SeqCst);
        self.moved();
    }

    /// Notes that hyper has written a piece.
    pub(super) fn left(&self) {
        if self.pieces.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.since.store(0, Ordering::Relaxed);
            self.wake();
        } else {
            self.moved();
        }
    }

    fn moved(&self) {
        self.since.store(self.edge.registry.now().saturating_add(1), Ordering::Relaxed);
    }

    /// Ready when hyper holds no piece of the answer.
    pub(super) fn poll_gone(&self, cx: &Context<'_>) -> Poll<()> {
        self.listen(cx);
        match self.pieces.load(Ordering::SeqCst) {
            0 => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }

    /// Resets the stream if there was no progress for longer than `stall` ticks.
    pub(super) fn look(&self, now: u32, stall: u32) {
        match self.since.load(Ordering::Relaxed).checked_sub(1) {
            Some(since) if now.saturating_sub(since) > stall => {
                self.is_stalled.store(true, Ordering::Release);
                self.wake();
            }
            Some(_) => {}
            // A new piece came while the one before it left.
            None if self.pieces.load(Ordering::SeqCst) > 0 => self.moved(),
            None => {}
        }
    }

    /// Whether the stream has to be reset. A later decision wakes the task.
    pub(super) fn is_stalled(&self, cx: &Context<'_>) -> bool {
        self.listen(cx);
        self.is_stalled.load(Ordering::Acquire)
    }

    fn listen(&self, cx: &Context<'_>) {
        let mut waker = self.waker();
        match &mut *waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => *waker = Some(cx.waker().clone()),
        }
    }

    fn wake(&self) {
        let waker = self.waker().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().expect("no panic happens under the lock of an answer's waker")
    }
}
