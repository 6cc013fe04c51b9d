//! HTTP/1.1 on one connection, until its end or until it is taken from HTTP.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;

use super::arrival::PREFACE;
use super::closing::{SHORT, close, linger_of, told_to_end};
use super::guest::{Guest, Order, Phase};
use super::live::Taken;
use super::service::Service;
use super::tap::Tap;
use crate::base::config::HttpConfig;
use crate::limits::admission::{Seat, Unsettled};
use crate::observe::counters::http::End;
use crate::tls::stream::Stream;

/// How the conversation ended.
pub(super) enum Outcome {
    /// The connection is closed.
    Over(End),
    /// It is to go on otherwise.
    Taken(Box<Taken>),
}

/// The place that a connection has: among the unsettled until its first request is there.
pub(super) enum Place {
    Unsettled(Unsettled),
    Seat(Seat),
    /// While it changes.
    None,
}

/// What is common to all connections.
pub(super) fn builder(config: &HttpConfig) -> http1::Builder {
    let mut builder = http1::Builder::new();
    // The time for a head is watched by the crowd, together with all others: a timer for each head costs more.
    builder
        .header_read_timeout(None)
        .max_buf_size(config.head_bytes_max)
        .max_headers(config.headers_max)
        // Who has said all may end its side: it gets its answer.
        .half_close(true);
    builder
}

/// Serves the connection.
///
/// `ahead`: what has come so far.
pub(super) async fn converse(
    guest: &Arc<Guest>,
    stream: Stream,
    ahead: Vec<u8>,
    mut place: Place,
) -> Outcome {
    let tap = TokioIo::new(Tap::new(stream, ahead, Arc::clone(guest)));
    let service = Service::new(Arc::clone(guest));
    let mut conn = guest.edge.h1.serve_connection(tap, service);
    let (mut listening, mut is_draining) = (None, false);
    let step = poll_fn(|cx| {
        listen(guest, &mut listening, cx);
        match guest.order() {
            Some(Order::End(end)) => return Poll::Ready(Step::Told(end)),
            Some(Order::Drain) if !is_draining => {
                is_draining = true;
                Pin::new(&mut conn).graceful_shutdown();
            }
            Some(Order::Drain) | None => {}
        }
        let polled = Pin::new(&mut conn).poll(cx);
        place.settle(guest);
        match polled {
            Poll::Ready(ended) => Poll::Ready(Step::Over(ended)),
            Poll::Pending if guest.is_parked() && guest.is_flushed() => Poll::Ready(Step::Parked),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
    let parts = conn.into_parts();
    let (stream, ahead) = parts.io.into_inner().into_parts();
    let is_unread = !parts.read_buf.is_empty() || !ahead.is_empty();
    // Where it is not spoken, or not from the beginning; the library leaves the answer to us.
    let is_h2 = parts.read_buf.starts_with(PREFACE);
    match step {
        Step::Parked => {
            let mut read_ahead = Vec::from(parts.read_buf);
            read_ahead.extend(ahead);
            match (guest.take_parked(), place) {
                (Some(request), Place::Seat(seat)) => {
                    let guest = Arc::clone(guest);
                    Outcome::Taken(Box::new(Taken { stream, read_ahead, request, seat, guest }))
                }
                // A request was heard, so it has a seat.
                (Some(_) | None, _) => Outcome::Over(End::Broken),
            }
        }
        Step::Over(ended) => {
            let (end, last) = match ended {
                Err(_) if is_h2 => (End::Version, NOT_SUPPORTED),
                ended => (end_of(guest, ended, is_draining), &b""[..]),
            };
            let is_unread = is_unread || guest.phase() == Phase::Body || end.is_mid_request();
            let linger = (is_unread && !guest.has_ended()).then(|| linger_of(&guest.edge.h2));
            // Whoever needs its place gets it.
            tokio::select! {
                () = close(stream, last, linger, &guest.edge.counters) => {}
                () = told_to_end(guest) => {}
            }
            Outcome::Over(end)
        }
        Step::Told(end) => {
            let is_late = guest.phase() == Phase::Head && guest.is_flushed();
            let (last, linger): (&[u8], _) =
                if is_late { (REQUEST_TIMEOUT, Some(SHORT)) } else { (b"", None) };
            close(stream, last, linger, &guest.edge.counters).await;
            Outcome::Over(end)
        }
    }
}

enum Step {
    Over(hyper::Result<()>),
    Told(End),
    Parked,
}

impl Place {
    /// Gives the place among the unsettled back, once a request is there.
    fn settle(&mut self, guest: &Guest) {
        if let Place::Unsettled(_) = self
            && guest.phase() != Phase::First
            && let Place::Unsettled(unsettled) = std::mem::replace(self, Place::None)
        {
            *self = Place::Seat(unsettled.seat());
        }
    }
}

/// Has orders wake this task; its waker stays the same, as long as nobody else polls it.
pub(super) fn listen(guest: &Guest, listening: &mut Option<Waker>, cx: &Context<'_>) {
    if !listening.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
        guest.listen(cx.waker());
        *listening = Some(cx.waker().clone());
    }
}

/// Why it ended by itself.
fn end_of(guest: &Guest, ended: hyper::Result<()>, is_draining: bool) -> End {
    match ended {
        Ok(()) if guest.has_ended() => End::Peer,
        Ok(()) if is_draining => End::Draining,
        Ok(()) if guest.is_at_last_request() => End::RequestsMax,
        Ok(()) => End::Finished,
        Err(error) => {
            tracing::debug!(%error, peer = ?guest.caller.peer, "an HTTP connection ended early");
            if error.is_parse_too_large() {
                End::HeadTooLarge
            } else if error.is_parse() {
                End::Malformed
            } else if guest.has_ended() || error.is_incomplete_message() {
                End::Peer
            } else {
                End::Broken
            }
        }
    }
}

impl End {
    /// Whether the peer may still be sending what nobody reads.
    fn is_mid_request(self) -> bool {
        matches!(self, End::Malformed | End::HeadTooLarge)
    }
}

const REQUEST_TIMEOUT: &[u8] =
    b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
const NOT_SUPPORTED: &[u8] =
    b"HTTP/1.1 505 HTTP Version Not Supported\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
