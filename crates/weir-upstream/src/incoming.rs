//! Bodies of answers.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use crate::endpoint::{Flight, Http1, Stream};
use crate::error::SendError;

/// The body of an answer.
///
/// At its end the connection is free for another request. To drop it earlier ends the connection, or
/// resets its HTTP/2 stream.
pub struct Incoming {
    body: hyper::body::Incoming,
    lease: Option<Lease>,
    upstream: Arc<str>,
    traceparent: Option<HeaderValue>,
}

/// The connection from which an answer comes.
pub(crate) enum Lease {
    Http1 { connection: Box<Http1>, flight: Flight },
    Http2 { _stream: Stream, flight: Flight },
}

impl Incoming {
    pub(crate) fn new(
        body: hyper::body::Incoming,
        lease: Lease,
        upstream: Arc<str>,
        traceparent: Option<HeaderValue>,
    ) -> Incoming {
        let mut incoming = Incoming { body, lease: Some(lease), upstream, traceparent };
        if incoming.body.is_end_stream() {
            incoming.end();
        }
        incoming
    }

    /// The header `traceparent` of the try that was answered: its span has an id of its own.
    pub fn traceparent(&self) -> Option<&HeaderValue> {
        self.traceparent.as_ref()
    }

    /// The body has ended: the connection is free.
    fn end(&mut self) {
        match self.lease.take() {
            Some(Lease::Http1 { connection, flight }) => {
                flight.target.park(connection, Instant::now());
            }
            Some(Lease::Http2 { .. }) | None => {}
        }
    }

    /// The body has broken: nothing can be done with the connection.
    fn fail(&mut self) {
        if let Some(Lease::Http1 { flight, .. } | Lease::Http2 { flight, .. }) = self.lease.take() {
            flight.target.failed(Instant::now(), Duration::ZERO, false);
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
        let frame = match &mut this.lease {
            Some(Lease::Http1 { connection, .. }) => connection.poll_body(&mut this.body, cx),
            Some(Lease::Http2 { .. }) | None => Pin::new(&mut this.body).poll_frame(cx),
        };
        match &frame {
            Poll::Ready(Some(Ok(_))) if !this.body.is_end_stream() => {}
            Poll::Ready(Some(Ok(_)) | None) => this.end(),
            Poll::Ready(Some(Err(_))) => this.fail(),
            Poll::Pending => {}
        }
        frame.map_err(|error| SendError::Broken {
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
