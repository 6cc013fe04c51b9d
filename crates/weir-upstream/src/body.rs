//! Bodies of requests and answers.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;

use crate::error::SendError;

/// The body of a request.
pub enum Outgoing {
    /// All of it: another try can send it again. Empty: no body.
    Whole(Bytes),
    /// It comes while it is sent. A try that has taken a piece of it is the last.
    Streamed(UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>),
}

/// The body of an answer.
///
/// At its end the connection is free for another request. To drop it earlier ends the connection, or
/// resets its HTTP/2 stream.
pub struct Incoming {
    body: hyper::body::Incoming,
    upstream: Arc<str>,
}

impl Incoming {
    pub(crate) fn new(body: hyper::body::Incoming, upstream: Arc<str>) -> Incoming {
        Incoming { body, upstream }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
            Outgoing::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Outgoing::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Outgoing::Streamed(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Outgoing::Whole(bytes) => bytes.is_empty(),
            Outgoing::Streamed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Outgoing::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Outgoing::Streamed(body) => body.size_hint(),
        }
    }
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = SendError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, SendError>>> {
        let this = self.get_mut();
        Pin::new(&mut this.body).poll_frame(cx).map_err(|error| SendError::Broken {
            upstream: this.upstream.to_string(),
            error,
            sent: true,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
