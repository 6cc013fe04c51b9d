//! One try of a request at one endpoint: choose it, get a connection, exchange head for head.

use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::uri::Scheme;
use http::{HeaderValue, Request, Response};
use hyper::client::conn::TrySendError;
use hyper::client::conn::http2::SendRequest;
use tokio::time::{Duration, Instant, timeout_at};

use crate::balance::Balance;
use crate::dial::{ByteStream, DialError, DialStatus, Dialer};
use crate::endpoint::{Flight, Http1, Place, Rules, Stream, Taken, Target};
use crate::error::SendError;
use crate::head::{Template, Try};
use crate::incoming::{Incoming, Lease};
use crate::names::{Endpoint, Names, NamesStatus};
use crate::outgoing::{TryBody, Upload};
use crate::retry::is_failure;
use crate::trace::TrySpans;

/// What reaches the endpoints of an upstream.
pub(crate) struct Core {
    pub(crate) name: Arc<str>,
    pub(crate) rules: Arc<Rules>,
    pub(crate) names: Source,
    pub(crate) dialer: Box<dyn Connect>,
    pub(crate) balance: Balance,
    pub(crate) waiting_timed_out: AtomicU64,
}

/// Where endpoints come from.
pub(crate) enum Source {
    Names(Names),
    /// A test says them.
    #[cfg(test)]
    Script(tokio::sync::watch::Receiver<Arc<[Endpoint]>>),
}

pub(crate) type Connecting<'a> =
    Pin<Box<dyn Future<Output = Result<Box<dyn ByteStream>, DialError>> + Send + 'a>>;

/// Connects endpoints.
pub(crate) trait Connect: Send + Sync {
    fn connect<'a>(&'a self, endpoint: &'a Endpoint) -> Connecting<'a>;

    fn scheme(&self) -> Scheme;

    fn status(&self) -> DialStatus;
}

/// When a try ends, and which endpoints it should not use.
pub(crate) struct Terms<'a> {
    pub(crate) deadline: Instant,
    /// The deadline is the caller's own.
    pub(crate) is_callers: bool,
    pub(crate) tried: &'a [Arc<Target>],
    pub(crate) is_last: bool,
    pub(crate) spans: Option<&'a dyn TrySpans>,
}

/// A try without an answer.
pub(crate) struct Failure {
    pub(crate) error: SendError,
    pub(crate) kind: FailureKind,
    is_endpoints_fault: bool,
    /// The endpoint that has failed.
    pub(crate) target: Option<Arc<Target>>,
}

/// What follows from a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// The connection had ended before, so nothing was tried.
    Stale,
    /// This endpoint has failed.
    Endpoint,
    /// There is no endpoint, no place or no time.
    Final,
}

/// An open connection that is this request's own, or a stream of it.
enum Connection {
    Http1 { connection: Box<Http1>, is_reused: bool },
    Http2 { sender: SendRequest<TryBody>, stream: Stream, is_reused: bool },
}

/// When the exchange of a try ends.
struct Until {
    end: Instant,
    /// How long the head may take, counted from the last progress of a streamed body.
    patience: Duration,
    /// The caller's own deadline, which nothing moves.
    callers: Option<Instant>,
    /// The body, if it is streamed.
    upload: Option<Arc<Upload>>,
}

type Answered = Result<Response<hyper::body::Incoming>, TrySendError<Request<TryBody>>>;

impl Core {
    /// Makes one try.
    pub(crate) async fn attempt(
        &self,
        template: &mut Template,
        terms: &Terms<'_>,
    ) -> Result<(Response<Incoming>, Arc<Target>), Failure> {
        let (flight, taken) = self.place(terms).await.map_err(Failure::last)?;
        let span = terms.spans.map(|spans| spans.begin(&flight.target.endpoint.to_string()));
        let trace = match &span {
            Some(span) => Some(span.traceparent()),
            None => template.trace(self.balance.chance().next()),
        };
        let result = self.try_at(template, terms, (flight, taken), trace).await;
        if let Some(span) = span {
            span.end(match &result {
                Ok((answer, _)) => Ok(answer.status()),
                Err(failure) => Err(&failure.error),
            });
        }
        result
    }

    /// Makes a try at the endpoint that was chosen.
    async fn try_at(
        &self,
        template: &mut Template,
        terms: &Terms<'_>,
        (mut flight, taken): (Flight, Taken),
        trace: Option<HeaderValue>,
    ) -> Result<(Response<Incoming>, Arc<Target>), Failure> {
        let mut connection = self.connect(&flight, taken, terms.deadline).await?;
        let (now, settings) = (Instant::now(), &self.rules.settings);
        let left = terms.deadline.saturating_duration_since(now);
        let patience = left.min(settings.try_timeout);
        let callers = terms.is_callers.then_some(terms.deadline);
        let upload = template.body.upload();
        let mut until = Until { end: now + patience, patience, callers, upload };
        let this = Try {
            target: &flight.target,
            protocol: settings.protocol,
            scheme: self.dialer.scheme(),
            timeout: patience,
            grpc_timeout: terms.is_callers.then_some(left),
            trace: trace.clone(),
            is_last: terms.is_last,
        };
        let Some(request) = template.make(&this) else {
            let error = DialError::Connect(io::ErrorKind::InvalidInput.into());
            return Err(Failure::last(self.dial_error(error)));
        };
        flight.begin(now);
        let answered = match &mut connection {
            Connection::Http1 { connection, .. } => {
                let before = connection.written();
                let answer = {
                    let answer = pin!(connection.begin(request, template.may_upgrade));
                    let exchange = pin!(connection.finish(answer, until.upload.clone()));
                    until.wait(exchange).await
                };
                (answer, connection.written() != before)
            }
            Connection::Http2 { sender, .. } => {
                let exchange = pin!(sender.try_send_request(request));
                (until.wait(exchange).await, true)
            }
        };
        let target = Arc::clone(&flight.target);
        let answer = self.conclude(answered, connection, template, flight, &until)?;
        Ok((answer.map(|(body, lease)| self.incoming(body, lease, trace)), target))
    }

    /// An endpoint, with a connection or a place for one. Waits until there is one.
    async fn place(&self, terms: &Terms<'_>) -> Result<(Flight, Taken), SendError> {
        let endpoints = timeout_at(terms.deadline, self.names.endpoints()).await;
        let endpoints = endpoints
            .map_err(|_| self.timed_out(false))?
            .map_err(|error| self.dial_error(error))?;
        if endpoints.is_empty() {
            return Err(self.dial_error(DialError::Connect(io::ErrorKind::NotFound.into())));
        }
        self.balance.update(&endpoints);
        let queue = &self.rules.queue;
        if queue.waiting() == 0
            && let Some(found) = self.balance.take(Instant::now(), terms.tried)
        {
            return Ok(found);
        }
        // Once a place is free, it takes any endpoint: it does not let one pass.
        let look = |is_first: bool| {
            self.balance.take(Instant::now(), if is_first { terms.tried } else { &[] })
        };
        match timeout_at(terms.deadline, queue.wait(look)).await {
            Ok(Some(found)) => Ok(found),
            Ok(None) => Err(SendError::Full { upstream: self.name.to_string() }),
            Err(_) => {
                self.waiting_timed_out.fetch_add(1, Ordering::Relaxed);
                Err(self.timed_out(false))
            }
        }
    }

    async fn connect(
        &self,
        flight: &Flight,
        taken: Taken,
        deadline: Instant,
    ) -> Result<Connection, Failure> {
        match taken {
            Taken::Idle(connection) => Ok(Connection::Http1 { connection, is_reused: true }),
            Taken::Free(place) => {
                let opening = Box::pin(self.open_http1(&flight.target, place));
                let opened = timeout_at(deadline, opening).await;
                let opened = opened.map_err(|_| Failure::last(self.timed_out(false)))?;
                opened
                    .map(|connection| Connection::Http1 { connection, is_reused: false })
                    .map_err(|error| self.dial_failure(flight, Arc::new(error)))
            }
            Taken::Stream(stream) => {
                let is_reused = stream.connection.is_open();
                let opening = Box::pin(self.open_http2(&flight.target, &stream));
                let opened = timeout_at(deadline, opening).await;
                let opened = opened.map_err(|_| Failure::last(self.timed_out(false)))?;
                opened
                    .map(|sender| Connection::Http2 { sender, stream, is_reused })
                    .map_err(|error| self.dial_failure(flight, error))
            }
        }
    }

    /// Opens a connection for HTTP/1.1. A failure counts for the endpoint.
    pub(crate) async fn open_http1(
        &self,
        target: &Target,
        place: Arc<Place>,
    ) -> Result<Box<Http1>, DialError> {
        let began = Instant::now();
        let opened = async {
            let stream = self.dialer.connect(&target.endpoint).await?;
            let now = Instant::now();
            let opened = Http1::open(stream, place, now, target.expires(now)).await;
            opened.map_err(|error| DialError::Connect(io::Error::other(error)))
        };
        opened.await.inspect_err(|_| count_dial_failure(target, began))
    }

    /// Opens a connection for HTTP/2, or waits until another request has. A failure counts once for
    /// the endpoint.
    pub(crate) async fn open_http2(
        &self,
        target: &Target,
        stream: &Stream,
    ) -> Result<SendRequest<TryBody>, Arc<DialError>> {
        let began = Instant::now();
        let dial = self.dialer.connect(&target.endpoint);
        let opened = stream.connection.sender(dial).await;
        opened.map_err(|(error, was_tried)| {
            if was_tried {
                count_dial_failure(target, began);
            }
            error
        })
    }

    /// Says what follows from the result of an exchange, which counts for the endpoint. `sent`: bytes
    /// of the request have left.
    fn conclude(
        &self,
        (answer, sent): (Option<Answered>, bool),
        connection: Connection,
        template: &mut Template,
        mut flight: Flight,
        until: &Until,
    ) -> Result<Response<(hyper::body::Incoming, Lease)>, Failure> {
        let target = Arc::clone(&flight.target);
        if let Some(upload) = &until.upload {
            flight.exclude_until(upload.last_progress());
        }
        let now = Instant::now();
        match answer {
            Some(Ok(answer)) => {
                let took = flight.end(now);
                if is_failure(answer.status()) {
                    target.failed(now, took, false);
                } else {
                    target.succeeded(now, took);
                }
                Ok(answer.map(|body| (body, connection.lease(flight))))
            }
            Some(Err(error)) => {
                let took = flight.end(now);
                let failure = self.broken(error, sent, connection.is_reused(), template, &target);
                if failure.is_endpoints_fault {
                    target.failed(now, took, false);
                }
                Err(failure)
            }
            None if until.is_patience_of_caller() || until.awaits_caller() => {
                // Nothing is known but that it takes longer: the flight notes it at its end.
                Err(Failure::last(self.timed_out(sent)))
            }
            None => {
                target.failed(now, flight.end(now), false);
                Err(Failure::of(self.timed_out(sent), FailureKind::Endpoint, &target))
            }
        }
    }

    /// A connection has ended without an answer.
    fn broken(
        &self,
        mut error: TrySendError<Request<TryBody>>,
        sent: bool,
        is_reused: bool,
        template: &mut Template,
        target: &Arc<Target>,
    ) -> Failure {
        let given_back = error.take_message();
        let is_unsent = given_back.is_some();
        if let Some(request) = given_back {
            template.restore(request);
        }
        let error = error.into_error();
        let was_refused = was_refused(&error);
        let sent = sent && !is_unsent && !was_refused;
        let upstream = self.name.to_string();
        let error = SendError::Broken { upstream, error, sent };
        let kind = if is_reused && (is_unsent || !sent && !was_refused) {
            FailureKind::Stale
        } else {
            FailureKind::Endpoint
        };
        let is_endpoints_fault = !was_refused && (sent || !is_reused);
        Failure { is_endpoints_fault, ..Failure::of(error, kind, target) }
    }

    fn incoming(
        &self,
        body: hyper::body::Incoming,
        lease: Lease,
        trace: Option<HeaderValue>,
    ) -> Incoming {
        Incoming::new(body, lease, Arc::clone(&self.name), trace)
    }

    fn dial_failure(&self, flight: &Flight, error: Arc<DialError>) -> Failure {
        let error = SendError::Dial { upstream: self.name.to_string(), error };
        Failure::of(error, FailureKind::Endpoint, &flight.target)
    }

    fn dial_error(&self, error: DialError) -> SendError {
        SendError::Dial { upstream: self.name.to_string(), error: Arc::new(error) }
    }

    fn timed_out(&self, sent: bool) -> SendError {
        SendError::TimedOut { upstream: self.name.to_string(), sent }
    }
}

impl Until {
    /// Waits for the head of the answer. The time begins again with each progress of a streamed
    /// body. `None`: it was over.
    async fn wait<F: Future>(&mut self, mut exchange: Pin<&mut F>) -> Option<F::Output> {
        loop {
            if let Ok(answer) = timeout_at(self.end, exchange.as_mut()).await {
                return Some(answer);
            }
            let moved = self.upload.as_ref()?.last_progress() + self.patience;
            let end = self.callers.map_or(moved, |callers| moved.min(callers));
            if end <= self.end {
                return None;
            }
            self.end = end;
        }
    }

    /// The connection waits for the body, which the caller does not send.
    fn awaits_caller(&self) -> bool {
        self.upload.as_ref().is_some_and(|upload| upload.is_awaited())
    }

    /// The endpoint has not used all the time that it may use.
    fn is_patience_of_caller(&self) -> bool {
        self.callers == Some(self.end)
    }
}

impl Connection {
    fn is_reused(&self) -> bool {
        match self {
            Connection::Http1 { is_reused, .. } | Connection::Http2 { is_reused, .. } => *is_reused,
        }
    }

    fn lease(self, flight: Flight) -> Lease {
        match self {
            Connection::Http1 { connection, .. } => Lease::Http1 { connection, flight },
            Connection::Http2 { stream, .. } => Lease::Http2 { _stream: stream, flight },
        }
    }
}

impl Failure {
    /// After it no other try makes sense.
    fn last(error: SendError) -> Failure {
        Failure { error, kind: FailureKind::Final, is_endpoints_fault: false, target: None }
    }

    fn of(error: SendError, kind: FailureKind, target: &Arc<Target>) -> Failure {
        let target = Some(Arc::clone(target));
        Failure { error, kind, is_endpoints_fault: true, target }
    }
}

impl Source {
    pub(crate) fn status(&self) -> NamesStatus {
        match self {
            Source::Names(names) => names.status(),
            #[cfg(test)]
            Source::Script(_) => NamesStatus::default(),
        }
    }

    pub(crate) async fn endpoints(&self) -> Result<Arc<[Endpoint]>, DialError> {
        match self {
            Source::Names(names) => names.endpoints().await,
            #[cfg(test)]
            Source::Script(endpoints) => Ok(Arc::clone(&endpoints.borrow())),
        }
    }
}

impl Connect for Dialer {
    fn connect<'a>(&'a self, endpoint: &'a Endpoint) -> Connecting<'a> {
        Box::pin(Dialer::connect(self, endpoint))
    }

    fn scheme(&self) -> Scheme {
        Dialer::scheme(self)
    }

    fn status(&self) -> DialStatus {
        Dialer::status(self)
    }
}

fn count_dial_failure(target: &Target, began: Instant) {
    let now = Instant::now();
    target.failed(now, now.saturating_duration_since(began), true);
}

/// Whether the peer says that it has not looked at the request: RST_STREAM with REFUSED_STREAM, or a
/// stream above the last one of a GOAWAY (RFC 9113, sections 6.8 and 8.7).
fn was_refused(error: &hyper::Error) -> bool {
    let Some(error) = error.source().and_then(|source| source.downcast_ref::<h2::Error>()) else {
        return false;
    };
    let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    error.is_remote() && (error.is_go_away() || is_refused)
}
