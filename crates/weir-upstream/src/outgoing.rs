//! Bodies of requests, kept for as many tries as they permit.

use std::error::Error;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;

/// The body of a request.
pub enum Outgoing {
    /// All of it: another try can send it again. Empty: no body.
    Whole(Bytes),
    /// It comes while it is sent. A try that has taken a piece of it is the last.
    Streamed(Streamed),
}

type Streamed = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// The body of a request, kept for as many tries as it permits.
pub(crate) enum Kept {
    Whole(Bytes),
    Streamed(Arc<Upload>),
}

/// A streamed body: with a try, or waiting for one.
pub(crate) struct Upload {
    /// `None`: a try has it, or has taken a piece of it.
    untouched: Mutex<Option<Streamed>>,
    has_ended: AtomicBool,
}

/// The body of one try.
pub(crate) enum TryBody {
    Whole(Bytes),
    Streamed { body: Option<Streamed>, is_touched: bool, upload: Arc<Upload> },
}

impl Kept {
    pub(crate) fn new(body: Outgoing) -> Kept {
        match body {
            Outgoing::Whole(bytes) => Kept::Whole(bytes),
            Outgoing::Streamed(body) => Kept::Streamed(Arc::new(Upload {
                untouched: Mutex::new(Some(body)),
                has_ended: AtomicBool::new(false),
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

    /// The body for a try.
    pub(crate) fn lend(&self) -> TryBody {
        match self {
            Kept::Whole(bytes) => TryBody::Whole(bytes.clone()),
            Kept::Streamed(upload) => {
                upload.has_ended.store(false, Ordering::Relaxed);
                let body = upload.lock().take();
                TryBody::Streamed { body, is_touched: false, upload: Arc::clone(upload) }
            }
        }
    }
}

impl Upload {
    /// Whether the try has taken all that it takes.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Streamed>> {
        self.untouched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TryBody {
    /// The state of a body that comes while it is sent.
    pub(crate) fn upload(&self) -> Option<Arc<Upload>> {
        match self {
            TryBody::Whole(_) => None,
            TryBody::Streamed { upload, .. } => Some(Arc::clone(upload)),
        }
    }
}

impl Drop for TryBody {
    fn drop(&mut self) {
        match self {
            TryBody::Whole(_) => {}
            TryBody::Streamed { body, is_touched, upload } => {
                if !*is_touched {
                    *upload.lock() = body.take();
                }
                upload.has_ended.store(true, Ordering::Relaxed);
            }
        }
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
            TryBody::Streamed { body: None, .. } => Poll::Ready(None),
            TryBody::Streamed { body: Some(body), is_touched, .. } => {
                let frame = Pin::new(body).poll_frame(cx);
                *is_touched |= frame.is_ready();
                frame
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            TryBody::Whole(bytes) => bytes.is_empty(),
            TryBody::Streamed { body, .. } => body.as_ref().is_none_or(Body::is_end_stream),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            TryBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            TryBody::Streamed { body, .. } => {
                body.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
            }
        }
    }
}
