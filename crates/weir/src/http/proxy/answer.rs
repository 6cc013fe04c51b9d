//! The body of an answer while it goes to the client.

use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use hyper::body::{Body as _, Frame, SizeHint};
use std::pin::Pin;
use weir_upstream::Incoming;

use super::charge::ProxyCharge;
use super::idle::Idle;
use crate::observe::counters::routes::{InRoute, RouteFailure};
use crate::observe::traces::{Span, note, note_failure};

/// An answer's body on its way from an upstream. It is read only as fast as the client takes it. To
/// drop it early ends the request at the upstream.
///
/// Limits: the route's `idle_timeout` for each wait for the upstream.
pub(in crate::http) struct PassedBody {
    body: Incoming,
    passage: Passage,
    idle: Idle,
    charge: ProxyCharge,
}

/// A request on its way, until its answer has passed.
pub(super) struct Passage {
    pub(super) in_route: InRoute,
    pub(super) span: Option<Span>,
}

impl Passage {
    /// The head of the answer is there, from the upstream or from Weir.
    pub(super) fn note_status(&mut self, status: StatusCode) {
        note(&mut self.span, "http.response.status_code", status.as_str());
        note_failure(&mut self.span, status.is_server_error().then_some(status.as_str()));
    }
}

impl PassedBody {
    pub(super) fn new(
        body: Incoming,
        passage: Passage,
        charge: ProxyCharge,
        idle_timeout: Duration,
    ) -> PassedBody {
        PassedBody { body, passage, idle: Idle::new(idle_timeout), charge }
    }

    /// The next piece, or the trailers. `now`: the current tick.
    pub(in crate::http) fn poll_frame(
        &mut self,
        now: u32,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            ready!(self.idle.poll(now, cx));
            return Poll::Ready(Some(Err(self.fail(RouteFailure::Silent))));
        };
        self.idle.moved();
        Poll::Ready(frame.map(|frame| match frame {
            Ok(frame) => match self.charge.pass(frame.data_ref().map_or(0, Bytes::len)) {
                Ok(()) => Ok(frame),
                Err(_) => Err(self.fail(RouteFailure::NoRoom)),
            },
            Err(error) => {
                tracing::debug!(%error, "an answer has broken off");
                Err(self.fail(RouteFailure::Broken))
            }
        }))
    }

    /// Whether the whole body has come, without trailers behind it.
    pub(in crate::http) fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    pub(in crate::http) fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }

    fn fail(&mut self, failure: RouteFailure) -> io::Error {
        self.passage.in_route.route().count_failure(failure);
        note_failure(&mut self.passage.span, Some(failure.name()));
        io::Error::other(failure.name())
    }
}
