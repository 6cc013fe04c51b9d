//! One request to one named service.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use http::header::HOST;
use http::{HeaderValue, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::time::{Instant, timeout_at};
use tracing::debug;

use crate::body::{Incoming, Outgoing};
use crate::dial::{DialError, Dialer, Stream};
use crate::error::SendError;
use crate::names::{Endpoint, Names};
use crate::settings::{Protocol, Settings, SettingsError};
use crate::status::{EndpointStatus, Failures, Status};

/// A named service. Clones share everything.
#[derive(Clone)]
pub struct Upstream {
    inner: Arc<Inner>,
}

/// What a caller asks of one request.
#[derive(Debug, Clone, Default)]
pub struct SendOptions {
    /// When the caller gives up. The settings' deadline counts too.
    pub deadline: Option<Instant>,
    /// Whether the request may reach a backend twice. `None`: as its method says (RFC 9110 section
    /// 9.2.2).
    pub idempotent: Option<bool>,
    /// The trace that the request belongs to, as the header `traceparent` has it (W3C Trace
    /// Context).
    pub traceparent: Option<HeaderValue>,
}

struct Inner {
    name: Arc<str>,
    settings: Settings,
    names: Names,
    dialer: Dialer,
    turn: AtomicUsize,
    requests: AtomicU64,
    failures: FailureCounts,
}

impl Upstream {
    /// Errors: the first setting that is not allowed.
    /// Cost: nothing is connected before the first request.
    pub fn new(settings: Settings) -> Result<Upstream, SettingsError> {
        settings.check()?;
        let (names, dialer) = (Names::new(&settings)?, Dialer::new(&settings)?);
        let name = settings.name.as_str().into();
        let (turn, requests, failures) = Default::default();
        Ok(Upstream {
            inner: Arc::new(Inner { name, settings, names, dialer, turn, requests, failures }),
        })
    }

    /// The name in the settings.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The settings in use.
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// Sends a request, and resolves when the head of its answer is there.
    ///
    /// The request's URI is a path with its query. `Host` is the request's own, else the settings',
    /// else the endpoint's address. An answer 101 can be upgraded with [`hyper::upgrade::on`].
    /// Dropping the future cancels the request.
    /// Errors: no answer; [`SendError::may_have_been_sent`] tells whether a backend may have seen
    /// the request.
    pub async fn send(
        &self,
        request: Request<Outgoing>,
        options: SendOptions,
    ) -> Result<Response<Incoming>, SendError> {
        let inner = &*self.inner;
        inner.requests.fetch_add(1, Ordering::Relaxed);
        let own = Instant::now() + inner.settings.deadline;
        let deadline = options.deadline.map_or(own, |deadline| deadline.min(own));
        let sent = async { Box::pin(inner.send(request, options)).await };
        let answer = timeout_at(deadline, sent).await.unwrap_or_else(|_| {
            Err(SendError::TimedOut { upstream: inner.name.to_string(), sent: true })
        });
        if let Err(error) = &answer {
            inner.failures.count(error);
        }
        answer
    }

    /// The figures now.
    pub fn status(&self) -> Status {
        let endpoints = self.inner.settings.addresses.iter();
        Status {
            requests: self.inner.requests.load(Ordering::Relaxed),
            failures: self.inner.failures.status(),
            names: self.inner.names.status(),
            dials: self.inner.dialer.status(),
            endpoints: endpoints
                .map(|address| EndpointStatus {
                    address: address.clone(),
                    ..EndpointStatus::default()
                })
                .collect(),
            ..Status::default()
        }
    }
}

#[derive(Default)]
struct FailureCounts {
    connect: AtomicU64,
    full: AtomicU64,
    timed_out: AtomicU64,
    broken: AtomicU64,
}

impl FailureCounts {
    fn count(&self, error: &SendError) {
        let counter = match error {
            SendError::Dial { .. } => &self.connect,
            SendError::Full { .. } => &self.full,
            SendError::TimedOut { .. } => &self.timed_out,
            SendError::Broken { .. } => &self.broken,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn status(&self) -> Failures {
        Failures {
            connect: self.connect.load(Ordering::Relaxed),
            full: self.full.load(Ordering::Relaxed),
            timed_out: self.timed_out.load(Ordering::Relaxed),
            broken: self.broken.load(Ordering::Relaxed),
        }
    }
}

impl Inner {
    async fn send(
        &self,
        mut request: Request<Outgoing>,
        options: SendOptions,
    ) -> Result<Response<Incoming>, SendError> {
        let dial = |error| SendError::Dial { upstream: self.name.to_string(), error };
        let endpoints = self.names.endpoints().await.map_err(dial)?;
        let endpoint = &endpoints[self.turn.fetch_add(1, Ordering::Relaxed) % endpoints.len()];
        let stream = self.dialer.connect(endpoint).await.map_err(dial)?;
        if let Some(traceparent) = options.traceparent {
            request.headers_mut().insert("traceparent", traceparent);
        }
        self.address(&mut request, endpoint).map_err(dial)?;
        let broken =
            |error| SendError::Broken { upstream: self.name.to_string(), error, sent: true };
        let answer = exchange(self.settings.protocol, stream, request).await.map_err(broken)?;
        Ok(answer.map(|body| Incoming::new(body, Arc::clone(&self.name))))
    }

    fn address(
        &self,
        request: &mut Request<Outgoing>,
        endpoint: &Endpoint,
    ) -> Result<(), DialError> {
        let invalid = |_| DialError::Connect(std::io::ErrorKind::InvalidInput.into());
        let host = match self.settings.host.as_str() {
            "" => endpoint.authority(),
            host => host.to_owned(),
        };
        let host = HeaderValue::from_str(&host).map_err(invalid)?;
        let host = request.headers().get(HOST).unwrap_or(&host).clone();
        match self.settings.protocol {
            Protocol::Http1 => drop(request.headers_mut().insert(HOST, host)),
            Protocol::Http2 => {
                let mut parts = std::mem::take(request.uri_mut()).into_parts();
                parts.scheme = Some(self.dialer.scheme());
                parts.authority =
                    Some(host.as_bytes().try_into().map_err(|_: http::uri::InvalidUri| {
                        DialError::Connect(std::io::ErrorKind::InvalidInput.into())
                    })?);
                request.headers_mut().remove(HOST);
                *request.uri_mut() = http::Uri::from_parts(parts)
                    .map_err(|_| DialError::Connect(std::io::ErrorKind::InvalidInput.into()))?;
            }
        }
        Ok(())
    }
}

async fn exchange(
    protocol: Protocol,
    stream: Stream,
    request: Request<Outgoing>,
) -> Result<Response<hyper::body::Incoming>, hyper::Error> {
    let io = TokioIo::new(stream);
    match protocol {
        Protocol::Http1 => {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
            tokio::spawn(async move {
                if let Err(error) = connection.with_upgrades().await {
                    debug!(%error, "a connection to an upstream has ended");
                }
            });
            sender.send_request(request).await
        }
        Protocol::Http2 => {
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await?;
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    debug!(%error, "a connection to an upstream has ended");
                }
            });
            sender.send_request(request).await
        }
    }
}
