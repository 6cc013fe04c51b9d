//! The end of a connection, and of a request that is refused while its body still comes.
//!
//! A client that sends a long body sees an early refusal only if we read its bytes meanwhile. A
//! socket that is closed while bytes come resets the connection, and the reset overtakes the answer
//! (RFC 9112 section 9.6). Over HTTP/2 the reset of a stream follows the answer, but many clients
//! take it for a failure of the whole request. So the gateway reads and discards the input for a
//! while, with limits on bytes and time.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::connection::HttpConnection;
use crate::base::config::HttpConfig;
use crate::connection::linger::{Linger, SILENCE, TlsEnd, say_last};
use crate::observe::counters::Counters;
use crate::observe::counters::http::{Dialect, Discarded};
use crate::tls::stream::Stream;

/// A request's body. Over HTTP/2 the unread rest is discarded, so that the stream is not reset.
pub(super) struct Inbound {
    /// `None` after the drop has taken it.
    body: Option<Incoming>,
    connection: Arc<HttpConnection>,
    /// The number of the HTTP/2 stream whose sender waits for `100 Continue`.
    expects: Option<u32>,
}

/// The reason why a body does not come to its end.
pub(super) type Cut = Box<dyn std::error::Error + Send + Sync>;

/// The memory of an HTTP/2 stream and of the task that discards its body.
/// Source: `RssAnon` grew by 1.4 KiB for each of 15,000 requests that were refused and whose bodies
/// did not come (`heads_with_too_many_headers_are_refused_and_not_kept` in
/// `tests/tests/http_memory/main.rs`).
const DISCARD_BYTES: usize = 1536;

/// The limits for the body of a refused request. It has as much time as a wanted body.
pub(super) fn linger_of(config: &HttpConfig) -> Linger {
    Linger { bytes_max: config.discard_bytes_max, time: config.body_timeout, silence: SILENCE }
}

/// Sends the last bytes and closes. `linger`: set if the peer may still be sending.
pub(super) async fn close(
    mut stream: Stream,
    last: &[u8],
    linger: Option<Linger>,
    counters: &Counters,
) {
    if stream.is_plain() && last.is_empty() && linger.is_none() {
        return;
    }
    let said = say_last(&mut stream, last, linger.as_ref(), TlsEnd::AfterSilence);
    if let Some(discarded) = said.await {
        counters.http.count_discarded(discarded);
    }
}

/// Reads and discards the rest of a body over HTTP/2.
async fn discard(linger: Linger, connection: &HttpConnection, mut body: Incoming) -> Discarded {
    let mut left = linger.bytes_max;
    let discarding = async {
        loop {
            let next = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
            let Ok(frame) = timeout(SILENCE, next).await else { return Discarded::Silent };
            let Some(Ok(frame)) = frame else { return Discarded::Ended };
            let count = frame.data_ref().map_or(0, Bytes::len);
            if count >= left || connection.orders.order().is_some() {
                return Discarded::TooLong;
            }
            left -= count;
        }
    };
    timeout(linger.time, discarding).await.unwrap_or(Discarded::TooLate)
}

impl Inbound {
    /// `expects`: the HTTP/2 stream whose sender waits for `100 Continue`.
    pub(super) fn new(
        body: Incoming,
        connection: &Arc<HttpConnection>,
        expects: Option<u32>,
    ) -> Inbound {
        Inbound { body: Some(body), connection: Arc::clone(connection), expects }
    }
}

impl Drop for Inbound {
    fn drop(&mut self) {
        if let Some(body) = self.body.take() {
            pass_over(&self.connection, body);
        }
    }
}

/// Leaves an unwanted body. Over HTTP/2 a task discards it. Over HTTP/1.1 it has to pass, or the
/// connection ends: see [`close`].
pub(super) fn pass_over(connection: &Arc<HttpConnection>, mut body: Incoming) {
    if connection.dialect() != Dialect::Http2
        || body.is_end_stream()
        || connection.orders.order().is_some()
    {
        return;
    }
    // A short body is usually there already.
    let mut cx = Context::from_waker(Waker::noop());
    while let Poll::Ready(frame) = Pin::new(&mut body).poll_frame(&mut cx) {
        if !matches!(frame, Some(Ok(_))) {
            return;
        }
    }
    let Ok(runtime) = Handle::try_current() else { return };
    // The stream and this task outlive the answer, so they are charged. Without room the stream is
    // reset.
    let Ok(charge) = connection.caller.ledger.charge(DISCARD_BYTES) else { return };
    let connection = Arc::clone(connection);
    runtime.spawn(async move {
        let discarded = discard(linger_of(&connection.edge.h2), &connection, body).await;
        connection.edge.counters.http.count_discarded(discarded);
        drop(charge);
    });
}

impl Body for Inbound {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let Inbound { body, connection, expects } = &mut *self;
        let Some(body) = body else { return Poll::Ready(None) };
        let polled = Pin::new(&mut *body).poll_frame(cx);
        if polled.is_pending()
            && let (Some(stream), Some(interim)) = (expects.take(), &connection.interim)
        {
            interim.want(stream);
            connection.orders.wake();
        }
        // hyper reports a reset as the end of the body.
        let is_cut = matches!(polled, Poll::Ready(None))
            && connection.dialect() == Dialect::Http2
            && !body.is_end_stream();
        if is_cut {
            return Poll::Ready(Some(Err("the stream was reset".into())));
        }
        polled.map_err(Cut::from)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or(SizeHint::default(), Body::size_hint)
    }
}
