//! HTTP/1.1 on one connection, until its end or until an upgrade takes it.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;

use super::arrival::PREFACE;
use super::closing::{close, linger_of};
use super::connection::{HttpConnection, Phase};
use super::io_wrapper::IoWrapper;
use super::orders::Follower;
use super::proxy::tunnel::Tunnel;
use super::service::Service;
use super::upgrade::Taken;
use crate::base::config::HttpConfig;
use crate::connection::linger::SHORT;
use crate::limits::admission::{Permit, Unsettled};
use crate::observe::counters::http::End;
use crate::tls::stream::Stream;

/// How HTTP on a connection ended.
pub(super) enum ConversationEnd {
    /// The connection is closed.
    Over(End),
    /// An upgrade takes the connection from HTTP.
    Taken(Box<Taken>),
    /// The connection has become a tunnel to an upstream. The bytes came behind the last request.
    Tunnel(Box<Tunnel>, Stream, Vec<u8>),
}

/// How admission counts a connection: as unsettled until its first request is there.
pub(super) enum Admitted {
    Unsettled(Unsettled),
    Permit(Permit),
    /// For the moment in which it changes.
    None,
}

/// The settings that all connections share.
pub(super) fn builder(config: &HttpConfig) -> http1::Builder {
    let mut builder = http1::Builder::new();
    // The registry watches the times of all heads together: one timer for each head would cost
    // more.
    builder
        .header_read_timeout(None)
        .max_buf_size(config.head_bytes_max)
        .max_headers(config.headers_max)
        // A client that has sent all its requests may end its side. It still gets its answer.
        .half_close(true);
    builder
}

/// Serves the connection.
///
/// `ahead`: the bytes that have come so far.
pub(super) async fn converse(
    connection: &Arc<HttpConnection>,
    stream: Stream,
    ahead: Vec<u8>,
    mut admitted: Admitted,
) -> ConversationEnd {
    let io_wrapper = TokioIo::new(IoWrapper::new(stream, ahead, Arc::clone(connection)));
    let service = Service::new(Arc::clone(connection));
    let mut conn = connection.edge.h1.serve_connection(io_wrapper, service);
    let mut follower = Follower::default();
    let step = poll_fn(|cx| {
        let drain = || Pin::new(&mut conn).graceful_shutdown();
        if let Some(end) = follower.follow(&connection.orders, cx, drain) {
            return Poll::Ready(Step::Told(end));
        }
        let polled = Pin::new(&mut conn).poll(cx);
        admitted.settle(connection);
        match polled {
            Poll::Ready(ended) => Poll::Ready(Step::Over(ended)),
            Poll::Pending if connection.is_parked() && connection.is_flushed() => {
                Poll::Ready(Step::Parked)
            }
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
    let parts = conn.into_parts();
    let (stream, ahead) = parts.io.into_inner().into_parts();
    let is_unread = !parts.read_buf.is_empty() || !ahead.is_empty();
    // HTTP/2 is off, or its preface came behind a request. hyper leaves the answer to us.
    let is_h2 = parts.read_buf.starts_with(PREFACE);
    if let (Step::Over(Ok(())), Some(tunnel)) = (&step, connection.take_tunnel()) {
        let read_ahead = [&parts.read_buf[..], &ahead].concat();
        return ConversationEnd::Tunnel(tunnel, stream, read_ahead);
    }
    match step {
        Step::Parked => {
            let mut read_ahead = Vec::from(parts.read_buf);
            read_ahead.extend(ahead);
            match (connection.take_parked(), admitted) {
                (Some(request), Admitted::Permit(permit)) => {
                    let connection = Arc::clone(connection);
                    let taken = Taken { stream, read_ahead, request, permit, connection };
                    ConversationEnd::Taken(Box::new(taken))
                }
                // A request has come, so the connection has a permit.
                (Some(_) | None, _) => ConversationEnd::Over(End::Broken),
            }
        }
        Step::Over(ended) => {
            let (end, last) = match ended {
                Err(_) if is_h2 => (End::Version, NOT_SUPPORTED),
                ended => (end_of(connection, ended, follower.is_draining()), &b""[..]),
            };
            let is_unread = is_unread || connection.phase() == Phase::Body || end.is_mid_request();
            let linger =
                (is_unread && !connection.has_ended()).then(|| linger_of(&connection.edge.h2));
            // If another connection needs the place, this one stops lingering.
            tokio::select! {
                () = close(stream, last, linger, &connection.edge.counters) => {}
                () = connection.orders.told_to_end() => {}
            }
            ConversationEnd::Over(end)
        }
        Step::Told(end) => {
            let is_late = connection.phase() == Phase::Head && connection.is_flushed();
            let (last, linger): (&[u8], _) =
                if is_late { (REQUEST_TIMEOUT, Some(SHORT)) } else { (b"", None) };
            close(stream, last, linger, &connection.edge.counters).await;
            ConversationEnd::Over(end)
        }
    }
}

enum Step {
    Over(hyper::Result<()>),
    Told(End),
    Parked,
}

impl Admitted {
    /// Gives back the place among the unsettled connections, once a request is there.
    fn settle(&mut self, connection: &HttpConnection) {
        if let Admitted::Unsettled(_) = self
            && connection.phase() != Phase::First
            && let Admitted::Unsettled(unsettled) = std::mem::replace(self, Admitted::None)
        {
            *self = Admitted::Permit(unsettled.permit());
        }
    }
}

/// The reason why the connection ended by itself.
fn end_of(connection: &HttpConnection, ended: hyper::Result<()>, is_draining: bool) -> End {
    match ended {
        Ok(()) if connection.has_ended() => End::Peer,
        Ok(()) if is_draining => End::Draining,
        Ok(()) if connection.is_at_last_request() => End::RequestsMax,
        Ok(()) => End::Finished,
        Err(error) => {
            tracing::debug!(%error, peer = ?connection.caller.peer, "an HTTP connection ended early");
            if error.is_parse_too_large() {
                End::HeadTooLarge
            } else if error.is_parse() {
                End::Malformed
            } else if connection.has_ended() || error.is_incomplete_message() {
                End::Peer
            } else {
                End::Broken
            }
        }
    }
}

impl End {
    /// Whether the peer may still be sending bytes that nobody reads.
    fn is_mid_request(self) -> bool {
        matches!(self, End::Malformed | End::HeadTooLarge)
    }
}

const REQUEST_TIMEOUT: &[u8] =
    b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
const NOT_SUPPORTED: &[u8] =
    b"HTTP/1.1 505 HTTP Version Not Supported\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
