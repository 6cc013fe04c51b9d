//! The body of an answer while it goes to the client.

use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as _, Frame, SizeHint};
use std::pin::Pin;
use weir_upstream::Incoming;

use super::charge::ProxyCharge;
use super::idle::Idle;
use crate::observe::counters::routes::{InRoute, RouteFailure};

/// An answer's body on its way from an upstream. It is read only as fast as the client takes it. To
/// drop it early ends the request at the upstream.
///
/// Limits: the route's `idle_timeout` for each wait for the upstream.
pub(in crate::http) struct PassedBody {
    body: Incoming,
    in_route: InRoute,
    idle: Idle,
    charge: ProxyCharge,
}

impl PassedBody {
    pub(super) fn new(
        body: Incoming,
        in_route: InRoute,
        charge: ProxyCharge,
        idle_timeout: Duration,
    ) -> PassedBody {
        PassedBody { body, in_route, idle: Idle::new(idle_timeout), charge }
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

    fn fail(&self, failure: RouteFailure) -> io::Error {
        self.in_route.route().count_failure(failure);
        io::Error::other(failure.name())
    }
}
