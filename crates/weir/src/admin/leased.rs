//! Streams that end with the permission to read them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Either};
use hyper::body::{Body, Frame};

use crate::auth::admin::Lease;
use crate::http::web::reply::{Reply, Stream};

/// A body that breaks off when the session or the token that asked for it ends.
struct Leased {
    body: Stream,
    /// `None`: it has ended.
    end: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// Bounds the stream of an answer, if it is one.
pub(super) fn leased(reply: Reply, lease: impl FnOnce() -> Lease) -> Reply {
    if matches!(reply.body(), Either::Left(_)) {
        return reply;
    }
    let lease = lease();
    reply.map(|body| match body {
        Either::Right(body) => {
            let end: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(lease.end());
            Either::Right(Leased { body, end: Some(end) }.boxed_unsync())
        }
        Either::Left(whole) => Either::Left(whole),
    })
}

impl Body for Leased {
    type Data = Bytes;
    type Error = io::Error;

    /// Errors: the permission has ended. The body then lacks its proper end, so no reader takes it
    /// for the whole.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = &mut *self;
        let Some(end) = &mut this.end else { return Poll::Ready(None) };
        if end.as_mut().poll(cx).is_ready() {
            this.end = None;
            let error = "the session has ended, or the token has been removed";
            return Poll::Ready(Some(Err(io::Error::other(error))));
        }
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        if frame.is_none() {
            this.end = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.end.is_none() || self.body.is_end_stream()
    }
}
