//! A request on its way to an upstream, until the head of the answer is there.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body as _, Incoming};
use weir_engine::Nanos;
use weir_upstream::{Outgoing, Protocol, SendError, SendOptions, Upstream};

use super::answer::{Passage, PassedBody};
use super::charge::{NoRoom, ProxyCharge};
use super::headers::{self, Identity, Sender};
use super::routes::Route;
use super::tunnel::Tunnel;
use super::upload::{Fate, NotWhole, Upload};
use crate::auth::Requester;
use crate::base::config::RouteAuth;
use crate::http::body::Asking;
use crate::http::connection::HttpConnection;
use crate::http::web::problem::{Kind, Problem, ServiceFault};
use crate::limits::rates;
use crate::limits::sources::Source;
use crate::observe::access::ids::{Ids, Trace};
use crate::observe::counters::routes::RouteFailure;
use crate::observe::traces::{Span, tries_of};

/// The result of a request to an upstream.
pub(in crate::http) struct Passed {
    pub(in crate::http) outcome: Result<Reached, Problem>,
    /// The device or service that the request's token names.
    pub(in crate::http) device: Option<Arc<str>>,
}

/// The answer of an upstream.
pub(in crate::http) struct Reached {
    /// Without a body if it is empty.
    pub(in crate::http) answer: Response<Option<PassedBody>>,
    /// The connection becomes this tunnel when the answer has left.
    pub(in crate::http) tunnel: Option<Box<Tunnel>>,
}

/// The answer of an upstream, as it came.
struct Sent {
    answer: Response<weir_upstream::Incoming>,
    is_head: bool,
    charge: ProxyCharge,
}

/// Why a request has not reached an upstream, or got no answer.
struct Failure(RouteFailure, Problem);

/// Passes a request on.
///
/// `expects`: the HTTP/2 stream whose sender waits for `100 Continue`. To drop the future ends the
/// request at the upstream.
pub(in crate::http) async fn pass(
    connection: &Arc<HttpConnection>,
    request: Request<Incoming>,
    (expects, ids, span): (Option<u32>, &Ids, Option<Span>),
    route: &Route,
) -> Passed {
    let mut passage = Passage { in_route: route.count.begin(), span };
    let (head, body) = request.into_parts();
    let body = Asking::new(body, Arc::clone(connection), expects);
    let requester = match admit(connection, &head, route).await {
        Ok(requester) => requester,
        Err(failure) => {
            let problem = failure.counted(route);
            passage.note_status(problem.status());
            return Passed { outcome: Err(problem), device: None };
        }
    };
    let device = requester.as_ref().and_then(|requester| requester.device.clone());
    let passing = Passing { connection, route, ids, requester: requester.as_ref() };
    let outcome = match passing.send(head, body, &passage.span).await {
        Ok(sent) => {
            passage.note_status(sent.answer.status());
            let reached = passing.reached(sent, passage);
            route.count.count_answer(reached.answer.status());
            Ok(reached)
        }
        Err(failure) => {
            let problem = failure.counted(route);
            passage.note_status(problem.status());
            Err(problem)
        }
    };
    Passed { outcome, device }
}

/// A request that may pass.
struct Passing<'a> {
    connection: &'a Arc<HttpConnection>,
    route: &'a Route,
    ids: &'a Ids,
    requester: Option<&'a Requester>,
}

impl Passing<'_> {
    async fn send(
        &self,
        mut head: Parts,
        body: Asking,
        span: &Option<Span>,
    ) -> Result<Sent, Failure> {
        let (connection, route) = (self.connection, self.route);
        let Some(upstream) = connection.edge.shared.backends.get(&route.upstream) else {
            return Err(Failure::unreachable());
        };
        let budget = connection.edge.shared.engine().budget();
        let charge = ProxyCharge::take(budget)?;
        let is_head = head.method == Method::HEAD;
        let is_websocket = is_http1(&upstream) && headers::wants_websocket(&head);
        if is_websocket && !body.is_end_stream() {
            return Err(Failure::invalid("this request has no body", "body"));
        }
        let (outgoing, fate) = self.outgoing(body, &charge)?;
        headers::prepare(&mut head, &self.sender(), route.pass_host, is_websocket);
        self.trace(&mut head, span.is_some());
        head.extensions.clear();
        let options = SendOptions { spans: tries_of(span), ..SendOptions::default() };
        connection.watch_peer(true);
        let sent = upstream.send(Request::from_parts(head, outgoing), options).await;
        connection.watch_peer(matches!(&sent, Ok(answer) if !answer.body().is_end_stream()));
        let answer = sent.map_err(|error| {
            let not_whole = fate.and_then(|fate| match error.kind() {
                "timed_out" => fate.not_whole_in_time(),
                _ => fate.not_whole(),
            });
            not_whole.map_or_else(|| Failure::of(&error), |it| Failure::of_body(it, route))
        })?;
        match (answer.status(), is_websocket) {
            (StatusCode::SWITCHING_PROTOCOLS, false) => Err(Failure::broken(true)),
            _ => Ok(Sent { answer, is_head, charge }),
        }
    }

    /// What the client gets.
    fn reached(&self, sent: Sent, passage: Passage) -> Reached {
        let Sent { answer, is_head, charge } = sent;
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            return self.tunnel(answer, passage, charge);
        }
        Reached { answer: self.answered(answer, is_head, passage, charge), tunnel: None }
    }

    fn outgoing(
        &self,
        body: Asking,
        charge: &ProxyCharge,
    ) -> Result<(Outgoing, Option<Arc<Fate>>), Failure> {
        let bytes_max = self.route.body_bytes_max;
        if body.is_end_stream() {
            return Ok((Outgoing::Whole(Bytes::new()), None));
        }
        if body.size_hint().lower() > bytes_max {
            return Err(Failure::of_body(NotWhole::TooLarge, self.route));
        }
        let (upload, fate) = Upload::new(body, self.connection, bytes_max, charge.begin_other());
        Ok((Outgoing::Streamed(UnsyncBoxBody::new(upload)), Some(fate)))
    }

    fn sender(&self) -> Sender<'_> {
        let caller = &self.connection.caller;
        let networks = &self.route.forwarding_networks;
        let identity = self.requester.and_then(|requester| {
            let device = requester.device.as_deref()?;
            Some(match requester.is_service {
                true => Identity::Service(device),
                false => Identity::Device(device),
            })
        });
        Sender {
            peer: caller.peer,
            is_tls: caller.is_tls,
            is_believed: caller.peer.is_some_and(|peer| {
                let peer = peer.to_canonical();
                networks.iter().any(|network| network.contains(&peer))
            }),
            identity,
            takes_token: self.route.auth == RouteAuth::Token,
        }
    }

    /// Puts the request's id into its head. A trace that is not recorded here passes unchanged.
    fn trace(&self, head: &mut Parts, is_recorded: bool) {
        self.ids.name(&mut head.headers);
        // The tries bring their own `traceparent`. What belongs to none that was sent is left behind.
        if is_recorded && self.ids.trace().and_then(Trace::place).is_none() {
            head.headers.remove("tracestate");
        }
    }

    fn answered(
        &self,
        answer: Response<weir_upstream::Incoming>,
        is_head: bool,
        passage: Passage,
        charge: ProxyCharge,
    ) -> Response<Option<PassedBody>> {
        let (mut head, body) = answer.into_parts();
        headers::clean_answer(&mut head.headers, is_head);
        let idle_timeout = self.route.idle_timeout;
        let body =
            (!body.is_end_stream()).then(|| PassedBody::new(body, passage, charge, idle_timeout));
        let mut answer = Response::new(body);
        (*answer.status_mut(), *answer.headers_mut()) = (head.status, head.headers);
        answer
    }

    fn tunnel(
        &self,
        mut answer: Response<weir_upstream::Incoming>,
        passage: Passage,
        charge: ProxyCharge,
    ) -> Reached {
        let upgrade = hyper::upgrade::on(&mut answer);
        let tunnel = Tunnel::new(upgrade, passage, charge, self.route.idle_timeout);
        let mut fields = std::mem::take(answer.headers_mut());
        headers::clean_answer(&mut fields, false);
        headers::mark_websocket(&mut fields);
        let mut answer = Response::new(None);
        (*answer.status_mut(), *answer.headers_mut()) = (StatusCode::SWITCHING_PROTOCOLS, fields);
        Reached { answer, tunnel: Some(Box::new(tunnel)) }
    }
}

/// Checks what can be checked before a service is asked: framing, rates, and the token.
async fn admit(
    connection: &Arc<HttpConnection>,
    head: &Parts,
    route: &Route,
) -> Result<Option<Requester>, Failure> {
    if matches!(head.method, Method::CONNECT | Method::TRACE) {
        return Err(Failure(RouteFailure::Invalid, Problem::method(METHODS)));
    }
    headers::check_framing(head)
        .map_err(|ambiguity| Failure::invalid(ambiguity.0, "Content-Length"))?;
    let (edge, caller) = (&connection.edge, &connection.caller);
    if let Some(rate) = route.rate_of_source {
        let source = rates::Sender::Source(caller.peer.map(Source::of));
        limit(edge.proxy.rates.take_at((route.count.name(), source), rate, Nanos::now()))?;
    }
    if route.auth == RouteAuth::None || is_preflight(head) {
        return Ok(None);
    }
    let requester = Box::pin(edge.api.identified(caller, head)).await;
    let requester = requester.map_err(|problem| Failure(RouteFailure::Unauthorized, problem))?;
    if let (Some(rate), Some(device)) = (route.rate_of_identity, &requester.device) {
        let sender = rates::Sender::Device(device);
        limit(edge.proxy.rates.take_at((route.count.name(), sender), rate, Nanos::now()))?;
    }
    Ok(Some(requester))
}

fn limit(taken: Result<(), Duration>) -> Result<(), Failure> {
    taken.map_err(|after| {
        let detail = "more requests come than this path takes from one sender; try again later";
        Failure(RouteFailure::RateLimited, Problem::retry(Kind::RateLimited, after, detail))
    })
}

/// A browser asks so whether a page may send a request. It never sends a token with that.
fn is_preflight(head: &Parts) -> bool {
    head.method == Method::OPTIONS
        && head.headers.contains_key(http::header::ORIGIN)
        && head.headers.contains_key(http::header::ACCESS_CONTROL_REQUEST_METHOD)
}

fn is_http1(upstream: &Upstream) -> bool {
    upstream.settings().protocol == Protocol::Http1
}

impl Failure {
    fn counted(self, route: &Route) -> Problem {
        let Failure(failure, problem) = self;
        route.count.count_failure(failure);
        route.count.count_answer(problem.status());
        problem
    }

    fn invalid(detail: &str, field: &str) -> Failure {
        Failure(RouteFailure::Invalid, Problem::field(field, detail))
    }

    fn unreachable() -> Failure {
        let detail = "the service behind this path cannot be reached; it has not seen the request";
        Failure(
            RouteFailure::Unreachable,
            Problem::new(Kind::Service(ServiceFault::Unreachable), detail),
        )
    }

    fn broken(may_have_been_sent: bool) -> Failure {
        let detail = match may_have_been_sent {
            true => "the service behind this path broke off; it may have carried out the request",
            false => "the service behind this path broke off; it has not seen the request",
        };
        Failure(RouteFailure::Broken, Problem::new(Kind::Service(ServiceFault::Broken), detail))
    }

    /// The failure behind an error, without the details of the upstream.
    fn of(error: &SendError) -> Failure {
        tracing::debug!(%error, "a request has got no answer");
        match error.kind() {
            "connect" => Failure::unreachable(),
            "full" => {
                let detail = "the service behind this path takes no more requests at the moment";
                let problem =
                    Problem::retry(Kind::Service(ServiceFault::Busy), RETRY_AFTER, detail);
                Failure(RouteFailure::Full, problem)
            }
            "timed_out" => {
                let detail = match error.may_have_been_sent() {
                    true => {
                        "the service behind this path did not answer in time; it may have carried \
                         out the request"
                    }
                    false => "the service behind this path could not be reached in time",
                };
                Failure(
                    RouteFailure::TimedOut,
                    Problem::new(Kind::Service(ServiceFault::Timeout), detail),
                )
            }
            _ => Failure::broken(error.may_have_been_sent()),
        }
    }

    fn of_body(not_whole: NotWhole, route: &Route) -> Failure {
        match not_whole {
            NotWhole::TooLarge => {
                let detail =
                    format!("the body is over the limit of {} bytes", route.body_bytes_max);
                Failure(RouteFailure::TooLarge, Problem::new(Kind::TooLarge, detail))
            }
            NotWhole::TooLate => {
                let problem = Problem::new(Kind::BodyTimeout, not_whole.name());
                Failure(RouteFailure::Client, problem)
            }
            NotWhole::Cut => {
                Failure(RouteFailure::Client, Problem::field("body", not_whole.name()))
            }
            NotWhole::Trailed => {
                let detail = "the body has trailers, which do not pass over HTTP/1.1";
                Failure::invalid(detail, "body")
            }
            NotWhole::NoRoom => NoRoom.into(),
        }
    }
}

impl From<NoRoom> for Failure {
    fn from(NoRoom: NoRoom) -> Failure {
        let detail = "the byte budget has no room for the request";
        let problem = Problem::retry(Kind::BudgetExhausted, RETRY_AFTER, detail);
        Failure(RouteFailure::NoRoom, problem)
    }
}

const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";
const RETRY_AFTER: Duration = Duration::from_secs(1);
