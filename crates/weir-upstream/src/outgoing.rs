//! Bodies of requests, kept for as many tries as they permit.

use std::collections::VecDeque;
use std::error::Error;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use tokio::time::{Duration, Instant};

/// The body of a request.
pub enum Outgoing {
    /// All of it: another try can send it again. Empty: no body.
    Whole(Bytes),
    /// It comes while it is sent. A try that has sent a piece of it is the last.
    Streamed(Streamed),
}

type NextFrame = Result<Frame<Bytes>, Box<dyn Error + Send + Sync>>;
type Streamed = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// The body of a request, kept for as many tries as it permits.
pub(crate) enum Kept {
    Whole(Bytes),
    Streamed(Arc<Upload>),
}

/// A streamed body: with a try, or waiting for one.
pub(crate) struct Upload {
    /// `None`: a try has it, or has sent a piece of it.
    untouched: Mutex<Option<Rest>>,
    has_ended: AtomicBool,
    /// The connection waits for the next piece.
    is_awaited: AtomicBool,
    created: Instant,
    /// The last progress, in nanoseconds after `created`.
    moved: AtomicU64,
}

/// The pieces that a failed try has taken and not sent, then what has not come yet.
pub(crate) struct Rest {
    unsent: VecDeque<Bytes>,
    body: Streamed,
    /// There is nothing behind the unsent pieces.
    is_at_end: bool,
}

/// The pieces that a try has taken. The connection's buffer holds them too until it has written a
/// byte of the request, and only so long they are kept here.
#[derive(Default)]
pub(crate) struct Taken {
    pieces: VecDeque<Bytes>,
    /// A piece may have been sent, or cannot be sent again.
    is_lost: bool,
    /// The bytes that the connection has written, now and before the request. `None`: they are not
    /// known.
    written: Option<(Arc<AtomicU64>, u64)>,
}

/// The body of one try.
pub(crate) enum TryBody {
    Whole(Bytes),
    Streamed(Box<TryUpload>),
}

/// A streamed body that a try has. On the heap, so that requests without one stay small.
pub(crate) struct TryUpload {
    /// `None`: an earlier try has sent a piece of it.
    rest: Option<Rest>,
    taken: Taken,
    upload: Arc<Upload>,
}

impl Kept {
    pub(crate) fn new(body: Outgoing) -> Kept {
        match body {
            Outgoing::Whole(bytes) => Kept::Whole(bytes),
            Outgoing::Streamed(body) => Kept::Streamed(Arc::new(Upload {
                untouched: Mutex::new(Some(Rest {
                    unsent: VecDeque::new(),
                    body,
                    is_at_end: false,
                })),
                has_ended: AtomicBool::new(false),
                is_awaited: AtomicBool::new(false),
                created: Instant::now(),
                moved: AtomicU64::new(0),
            })),
        }
    }

    /// Whether there is a body for another try.
    pub(crate) fn is_untouched(&self) -> bool {
        match self {
            Kept::Whole(_) => true,
            Kept::Streamed(upload) => upload.lock().is_some(),
        }
    }

    /// The state of a body that comes while it is sent.
    pub(crate) fn upload(&self) -> Option<Arc<Upload>> {
        match self {
            Kept::Whole(_) => None,
            Kept::Streamed(upload) => Some(Arc::clone(upload)),
        }
    }

    /// The body for a try.
    pub(crate) fn lend(&self) -> TryBody {
        match self {
            Kept::Whole(bytes) => TryBody::Whole(bytes.clone()),
            Kept::Streamed(upload) => {
                upload.has_ended.store(false, Ordering::Relaxed);
                upload.is_awaited.store(false, Ordering::Relaxed);
                let (rest, taken) = (upload.lock().take(), Taken::default());
                TryBody::Streamed(Box::new(TryUpload { rest, taken, upload: Arc::clone(upload) }))
            }
        }
    }
}

impl Upload {
    /// Whether the try has taken all that it takes.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Whether it is the caller that keeps the connection waiting.
    pub(crate) fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Relaxed) && !self.has_ended()
    }

    /// A piece was taken or written, or the body has ended.
    pub(crate) fn note_progress(&self) {
        let nanos = self.created.elapsed().as_nanos();
        self.moved.store(u64::try_from(nanos).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// When the body has moved on for the last time.
    pub(crate) fn last_progress(&self) -> Instant {
        self.created + Duration::from_nanos(self.moved.load(Ordering::Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Rest>> {
        self.untouched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rest {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<NextFrame>> {
        if let Some(piece) = self.unsent.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        if self.is_at_end {
            return Poll::Ready(None);
        }
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        self.is_at_end = matches!(frame, Poll::Ready(None));
        frame
    }

    /// Keeps what is behind the first bytes of a long piece. So a connection that does not tell
    /// what it has written takes the next piece soon.
    fn cut(&mut self, frame: Option<NextFrame>) -> Option<NextFrame> {
        let frame = match frame {
            Some(Ok(frame)) => frame,
            other => return other,
        };
        Some(Ok(match frame.into_data() {
            Ok(mut piece) if piece.len() > PIECE_BYTES_MAX => {
                self.unsent.push_front(piece.split_off(PIECE_BYTES_MAX));
                Frame::data(piece)
            }
            Ok(piece) => Frame::data(piece),
            Err(trailers) => trailers,
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.unsent.is_empty() && (self.is_at_end || self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let unsent = self.unsent.iter().map(|piece| piece.len() as u64).sum::<u64>();
        let body = if self.is_at_end { SizeHint::with_exact(0) } else { self.body.size_hint() };
        let mut all = SizeHint::new();
        all.set_lower(body.lower().saturating_add(unsent));
        if let Some(upper) = body.upper().and_then(|upper| upper.checked_add(unsent)) {
            all.set_upper(upper);
        }
        all
    }
}

impl Taken {
    /// Keeps a piece that the connection takes, as long as nothing of the request has been sent.
    fn note(&mut self, frame: &Option<NextFrame>) {
        self.is_lost |= self.may_be_sent();
        match frame {
            Some(Ok(frame)) if !self.is_lost => match frame.data_ref() {
                Some(piece) => self.pieces.push_back(piece.clone()),
                // Trailers are not kept.
                None => self.is_lost = true,
            },
            None => {}
            Some(Ok(_) | Err(_)) => self.is_lost = true,
        }
        if self.is_lost {
            self.pieces.clear();
        }
    }

    fn may_be_sent(&self) -> bool {
        self.written.as_ref().is_none_or(|(now, before)| now.load(Ordering::Relaxed) != *before)
    }

    /// What another try can send, if this one has sent nothing.
    fn give_back(&mut self, mut rest: Rest) -> Option<Rest> {
        if self.is_lost || !self.pieces.is_empty() && self.may_be_sent() {
            return None;
        }
        while let Some(piece) = self.pieces.pop_back() {
            rest.unsent.push_front(piece);
        }
        Some(rest)
    }
}

impl TryBody {
    /// Keeps the pieces that it gives, until the connection has written more bytes than now.
    pub(crate) fn keep_until(&mut self, written: &Arc<AtomicU64>) {
        if let TryBody::Streamed(streamed) = self {
            streamed.taken.written = Some((Arc::clone(written), written.load(Ordering::Relaxed)));
        }
    }
}

impl Drop for TryUpload {
    fn drop(&mut self) {
        if let Some(rest) = self.rest.take() {
            *self.upload.lock() = self.taken.give_back(rest);
        }
        self.upload.has_ended.store(true, Ordering::Relaxed);
        self.upload.note_progress();
    }
}

impl Body for TryBody {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
            TryBody::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            TryBody::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            TryBody::Streamed(streamed) => {
                let TryUpload { rest, taken, upload } = &mut **streamed;
                let Some(rest) = rest else { return Poll::Ready(None) };
                let mut frame = rest.poll_frame(cx);
                if taken.written.is_none() {
                    frame = frame.map(|frame| rest.cut(frame));
                }
                upload.is_awaited.store(frame.is_pending(), Ordering::Relaxed);
                if let Poll::Ready(frame) = &frame {
                    taken.note(frame);
                    upload.note_progress();
                }
                frame
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            TryBody::Whole(bytes) => bytes.is_empty(),
            TryBody::Streamed(streamed) => streamed.rest.as_ref().is_none_or(Rest::is_end_stream),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            TryBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            TryBody::Streamed(streamed) => {
                streamed.rest.as_ref().map_or(SizeHint::with_exact(0), Rest::size_hint)
            }
        }
    }
}

/// A frame of HTTP/2 holds no more by default.
const PIECE_BYTES_MAX: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::task::Waker;

    use http_body_util::{BodyExt as _, Full};

    use super::*;

    fn streamed(text: &'static str) -> Kept {
        let body = Full::new(Bytes::from_static(text.as_bytes()));
        Kept::new(Outgoing::Streamed(
            body.map_err(|never: Infallible| match never {}).boxed_unsync(),
        ))
    }

    /// Takes all pieces of a try.
    fn take(body: &mut TryBody) -> String {
        let mut text = String::new();
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(frame)) = Pin::new(&mut *body).poll_frame(&mut cx) {
            text += std::str::from_utf8(frame.unwrap().data_ref().unwrap()).unwrap();
        }
        text
    }

    #[test]
    fn pieces_that_a_try_has_taken_and_not_sent_go_to_the_next_one() {
        let (kept, written) = (streamed("piece"), Arc::new(AtomicU64::new(7)));
        for _ in 0..3 {
            let mut body = kept.lend();
            body.keep_until(&written);
            assert!(!kept.is_untouched() && !body.is_end_stream());
            assert_eq!(body.size_hint().exact(), Some(5));
            assert_eq!(take(&mut body), "piece");
            assert_eq!((body.is_end_stream(), body.size_hint().exact()), (true, Some(0)));
            drop(body);
            assert!(kept.is_untouched());
        }
    }

    #[test]
    fn pieces_that_may_have_been_sent_are_gone() {
        let written = Arc::new(AtomicU64::new(7));
        // It was written after the piece was taken, before, or nobody knows.
        for (before, after, is_known) in [(7, 8, true), (8, 8, true), (7, 7, false)] {
            written.store(7, Ordering::Relaxed);
            let kept = streamed("piece");
            let mut body = kept.lend();
            if is_known {
                body.keep_until(&written);
            }
            written.store(before, Ordering::Relaxed);
            assert_eq!(take(&mut body), "piece");
            written.store(after, Ordering::Relaxed);
            drop(body);
            assert!(!kept.is_untouched(), "{before} {after} {is_known}");
        }
        // Of a body whose pieces nobody has taken, only the head was sent.
        let kept = streamed("piece");
        let mut body = kept.lend();
        body.keep_until(&written);
        written.store(9, Ordering::Relaxed);
        drop(body);
        assert!(kept.is_untouched());
    }
}
