//! The last moments of a connection, and of a request that is refused while its body still comes.
//!
//! A client that sends a long body hears of an early refusal only if its bytes are taken meanwhile: a socket that is closed
//! while bytes come resets the connection, and a reset overtakes the answer (RFC 9112 section 9.6). Over HTTP/2 many
//! clients take the reset of a stream, which is said behind its answer, for a failure of the whole request. So what comes
//! is read and thrown away for a while, within bounds of bytes and time.

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

/// A request's body. Over HTTP/2 its rest is thrown away where nobody reads it, so that its stream is not reset.
pub(super) struct Inbound {
    /// Until it is dropped.
    body: Option<Incoming>,
    connection: Arc<HttpConnection>,
    /// The stream of HTTP/2 whose sender waits for `100 Continue`.
    expects: Option<u32>,
}

/// Why a body does not come to its end.
pub(super) type Cut = Box<dyn std::error::Error + Send + Sync>;

/// What a stream over HTTP/2 holds while its body is thrown away: stream and task.
/// Source: `RssAnon` grew by 1.4 KiB for each of 15,000 requests that were refused and whose bodies did not come
/// (`heads_with_too_many_headers_are_refused_and_not_kept` in `tests/tests/http_memory/main.rs`).
const DISCARD_BYTES: usize = 1536;

/// For a request that is refused: its body has as much time as one that is wanted.
pub(super) fn linger_of(config: &HttpConfig) -> Linger {
    Linger { bytes_max: config.discard_bytes_max, time: config.body_timeout, silence: SILENCE }
}

/// Sends the last bytes and closes. `linger`: the peer may still be sending.
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

/// Throws away the rest of a body over HTTP/2.
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
    /// `expects`: the stream of HTTP/2 whose sender waits for `100 Continue`.
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

/// Leaves a body that nobody wants. Over HTTP/1.1 it has to pass, or ends the connection: see [`close`].
pub(super) fn pass_over(connection: &Arc<HttpConnection>, mut body: Incoming) {
    if connection.dialect() != Dialect::Http2
        || body.is_end_stream()
        || connection.orders.order().is_some()
    {
        return;
    }
    // A short one is mostly there.
    let mut cx = Context::from_waker(Waker::noop());
    while let Poll::Ready(frame) = Pin::new(&mut body).poll_frame(&mut cx) {
        if !matches!(frame, Some(Ok(_))) {
            return;
        }
    }
    let Ok(runtime) = Handle::try_current() else { return };
    // The stream and this task stay, also when the answer has left. Without room for them the stream is reset.
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
        // The library calls that an end, as it is for a client.
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
