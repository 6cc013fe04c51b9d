//! How answers leave: which pieces the library holds, and whether they make progress.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};

use super::connection::HttpConnection;
use crate::limits::http_ledger::{Refused, Stage};

/// A request over HTTP/2 whose answer has not left yet.
///
/// It moves from the request to the answer, and from there into the answer's last piece. So it is dropped when that piece
/// is written, or when the stream is reset.
pub(super) struct Open {
    connection: Arc<HttpConnection>,
    stage: Stage,
}

/// The progress of an answer over HTTP/2. Its stream is reset when it makes none.
///
/// The library drops a piece when all of it is written: that is progress.
/// Limits: `connection.stall_timeout` for a piece; see [`HttpConnection::look_at_answers`].
pub(super) struct Leaving {
    connection: Arc<HttpConnection>,
    /// Pieces that the library holds.
    pieces: AtomicU32,
    /// The tick of the last progress, plus one; 0: the library holds no piece.
    since: AtomicU32,
    is_stalled: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// A piece of an answer; the library drops it when it is written.
pub(crate) struct Piece {
    data: Bytes,
    held: Held,
}

/// What ends with a piece.
#[derive(Default)]
pub(super) struct Held {
    #[expect(dead_code, reason = "it is kept for its drop")]
    pub(super) open: Option<Open>,
    pub(super) leaving: Option<Arc<Leaving>>,
    #[expect(dead_code, reason = "it is kept for its drop")]
    pub(super) charge: Option<Arc<dyn Send + Sync>>,
}

thread_local! {
    /// Tells the task of a request which piece its poll has given to the library.
    static HANDED: Cell<Option<Handed>> = const { Cell::new(None) };
}

/// What a poll has given to the library.
pub(super) enum Handed {
    /// A short answer, whole. Its task watches it if it has to wait.
    Short,
    /// A piece of a long answer.
    Long(Arc<Leaving>),
}

/// Takes what the last poll has given to the library.
pub(super) fn take_handed() -> Option<Handed> {
    HANDED.take()
}

pub(super) fn set_handed(handed: Handed) {
    HANDED.set(Some(handed));
}

impl Open {
    pub(super) fn begin(connection: &Arc<HttpConnection>) -> Result<Open, Refused> {
        connection.caller.ledger.open()?;
        Ok(Open { connection: Arc::clone(connection), stage: Stage::Begun })
    }

    /// The library gets the last piece.
    pub(super) fn hand(&mut self) {
        if self.stage == Stage::Begun {
            self.stage = self.connection.caller.ledger.hand();
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.connection.caller.ledger.close(self.stage);
        self.connection.touch();
    }
}

impl Leaving {
    /// For an answer in several pieces.
    pub(super) fn new(connection: &Arc<HttpConnection>) -> Arc<Leaving> {
        let leaving = Leaving::unwatched(connection);
        connection.watch_answer(&leaving);
        leaving
    }

    /// For an answer that may pause: nothing resets it.
    pub(super) fn unwatched(connection: &Arc<HttpConnection>) -> Arc<Leaving> {
        Arc::new(Leaving {
            connection: Arc::clone(connection),
            pieces: AtomicU32::new(0),
            since: AtomicU32::new(0),
            is_stalled: AtomicBool::new(false),
            waker: Mutex::default(),
        })
    }

    /// For a short answer that waits for its stream's window.
    pub(super) fn waiting(connection: &Arc<HttpConnection>) -> Arc<Leaving> {
        let leaving = Leaving::new(connection);
        leaving.handed();
        leaving
    }

    fn handed(&self) {
        self.pieces.fetch_add(1, Ordering::SeqCst);
        self.moved();
    }

    fn left(&self) {
        if self.pieces.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.since.store(0, Ordering::Relaxed);
            self.wake();
        } else {
            self.moved();
        }
    }

    fn moved(&self) {
        self.since.store(self.connection.now().saturating_add(1), Ordering::Relaxed);
    }

    /// Ready when the library holds no piece of it.
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
            // A piece came while the one before it went.
            None if self.pieces.load(Ordering::SeqCst) > 0 => self.moved(),
            None => {}
        }
    }

    /// Whether the stream is to be reset; if that is decided later, it wakes the task.
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

impl Piece {
    pub(super) fn new(data: Bytes, held: Held) -> Piece {
        if let Some(leaving) = &held.leaving {
            leaving.handed();
        }
        Piece { data, held }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Some(leaving) = &self.held.leaving {
            leaving.left();
        }
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.data.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.data.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.data.advance(count);
    }
}
