//! The body of a request while it goes to an upstream.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::charge::ProxyCharge;
use super::idle::Idle;
use crate::http::body::Asking;
use crate::http::closing::Cut;
use crate::http::connection::HttpConnection;
use crate::observe::counters::http::Dialect;

/// A request's body on its way to an upstream. It is read only as fast as the upstream takes it.
///
/// Limits: the route's `body_bytes_max`; `http.body_timeout` for each wait for the client, which the
/// registry watches over HTTP/1.1.
pub(super) struct Upload {
    body: Asking,
    connection: Arc<HttpConnection>,
    bytes_left: u64,
    idle: Idle,
    charge: ProxyCharge,
    fate: Arc<Fate>,
}

/// Why a body did not come to its end, for those who do not have the body any more.
#[derive(Debug, Default)]
pub(super) struct Fate {
    not_whole: AtomicU8,
    /// It is the client's turn.
    is_awaited: AtomicBool,
}

weir_wire::named_enum! {
    /// Why a body did not come to its end.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum NotWhole {
        /// It is longer than the route permits.
        TooLarge = "the body is over the limit",
        /// The client was silent for too long.
        TooLate = "the body did not come in time",
        /// The client gave up, or broke the framing.
        Cut = "the body ends early or is framed wrongly",
        /// It has trailers, over HTTP/1.1.
        Trailed = "the body has trailers",
        /// The byte budget has no room.
        NoRoom = "there is no room for the body",
    }
}

impl Fate {
    pub(super) fn not_whole(&self) -> Option<NotWhole> {
        let code = self.not_whole.load(Ordering::Acquire).checked_sub(1)?;
        NotWhole::ALL.get(usize::from(code)).copied()
    }

    /// The same after a wait that was too long for the upstream.
    pub(super) fn not_whole_in_time(&self) -> Option<NotWhole> {
        let is_awaited = self.is_awaited.load(Ordering::Acquire);
        self.not_whole().or(is_awaited.then_some(NotWhole::TooLate))
    }

    fn set(&self, not_whole: NotWhole) -> Cut {
        self.not_whole.store(not_whole as u8 + 1, Ordering::Release);
        not_whole.name().into()
    }
}

impl Upload {
    pub(super) fn new(
        body: Asking,
        connection: &Arc<HttpConnection>,
        bytes_max: u64,
        charge: ProxyCharge,
    ) -> (Upload, Arc<Fate>) {
        let fate = Arc::<Fate>::default();
        let upload = Upload {
            body,
            connection: Arc::clone(connection),
            bytes_left: bytes_max,
            idle: Idle::new(connection.edge.h2.body_timeout),
            charge,
            fate: Arc::clone(&fate),
        };
        (upload, fate)
    }

    fn take(&mut self, frame: Frame<Bytes>) -> Result<Option<Frame<Bytes>>, NotWhole> {
        let Some(data) = frame.data_ref() else {
            // hyper reads a bare LF in a trailer as a part of a line. What stands before Weir may
            // see the end of the body there, and another request behind it.
            return match self.connection.dialect() {
                Dialect::Http1 => Err(NotWhole::Trailed),
                Dialect::Http2 => Ok(None),
            };
        };
        let bytes = data.len() as u64;
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or(NotWhole::TooLarge)?;
        self.charge.pass(data.len()).map_err(|_| NotWhole::NoRoom)?;
        Ok(Some(frame))
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let upload = &mut *self;
        let Poll::Ready(frame) = Pin::new(&mut upload.body).poll_frame(cx) else {
            upload.connection.hold_body(false);
            upload.fate.is_awaited.store(true, Ordering::Release);
            if upload.connection.dialect() == Dialect::Http2 {
                ready!(upload.idle.poll(upload.connection.now(), cx));
                return Poll::Ready(Some(Err(upload.fate.set(NotWhole::TooLate))));
            }
            return Poll::Pending;
        };
        upload.connection.hold_body(true);
        upload.fate.is_awaited.store(false, Ordering::Release);
        upload.idle.moved();
        let taken = match frame {
            Some(Ok(frame)) => upload.take(frame).map_err(|not_whole| upload.fate.set(not_whole)),
            Some(Err(_)) => Err(upload.fate.set(NotWhole::Cut)),
            None => Ok(None),
        };
        Poll::Ready(taken.transpose())
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // It is the client's turn again, also if nobody reads the rest.
        self.connection.hold_body(false);
    }
}
