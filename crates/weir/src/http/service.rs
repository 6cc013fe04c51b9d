//! From a request to its answer. Cheap answers are made at once; the public API makes the others.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use hyper::body::{Body as _, Incoming};
use tracing::Instrument as _;

use super::body::{Answer, Asking, Turn};
use super::checks::{check_coding, check_host};
use super::closing::pass_over;
use super::connection::{HttpConnection, Phase};
use super::orders::Order;
use super::piece::Open;
use super::proxy::{self, Found, Passed, Reached};
use super::record::{Asker, LoggedAnswer, Noted, record_at_once};
use super::traced;
use super::upgrade::{Admitting, Path, Relayed, UpgradeRequest, relay};
use crate::base::handover::HandingOver;
use crate::http::web::body::is_passed_over;
use crate::http::web::problem::{Kind, Problem};
use crate::http::web::publish::PUBLISH_PATH;
use crate::observe::access::ids::{Ids, Wanted};
use crate::observe::counters::http::Dialect;

const HELLO: &str = "Hello World";
const HELLO_BY_H2: &str = "Hello World - via HTTP/2";

/// Answers the requests of one connection.
///
/// Cost: for `GET /` and `GET /rest/hello` our code allocates nothing. Each other request allocates
/// one future. An activation, and a body that comes in parts, allocate another one.
pub(super) struct Service {
    connection: Arc<HttpConnection>,
}

/// An answer on its way.
pub(super) enum Answering {
    Ready(Option<Response<Answer>>),
    Slow(Pin<Box<dyn Future<Output = Response<Answer>> + Send>>),
    /// A future that decides whether an answer follows. Without one, the connection is parked.
    Deciding(Pin<Box<dyn Future<Output = Option<Response<Answer>>> + Send>>),
    /// Never answered: an upgrade takes the connection from HTTP.
    Parked,
    /// There is no room for a request over HTTP/2. Its stream is refused, and its client may retry
    /// (RFC 9113 section 8.7).
    Refused,
}

/// The path of a request, whatever its method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    Hello,
    Connect,
    Sse,
    Api,
}

impl Route {
    fn of(path: &str) -> Route {
        match path {
            "/" | "/rest/hello" => Route::Hello,
            "/v1/connect" => Route::Connect,
            "/v1/sse" => Route::Sse,
            _ => Route::Api,
        }
    }
}

impl Service {
    pub(super) fn new(connection: Arc<HttpConnection>) -> Self {
        Self { connection }
    }

    fn answer(&self, request: Request<Incoming>) -> Answering {
        let connection = &self.connection;
        let has_body = !request.body().is_end_stream();
        // Each request claims its stream; otherwise the next request would claim it.
        let stream = connection.interim.as_ref().and_then(|interim| interim.claim());
        let is_last = self.note(connection.asked(has_body));
        // Over HTTP/1.1 a connection has one request at a time.
        let open = match connection.dialect() {
            Dialect::Http1 => None,
            Dialect::Http2 => match Open::begin(connection) {
                Ok(open) => Some(open),
                Err(_) => return Answering::Refused,
            },
        };
        let asked = self.asked(&request, is_last, open);
        if let Err(problem) = self.check_headers(&request) {
            let (head, body) = request.into_parts();
            pass_over(connection, body);
            let reply = problem.into_response();
            return asked.at_once(connection, &head, Answer::of(reply, Turn::of(connection)));
        }
        if let Err(refusal) = check_host(&request).and_then(|()| check_coding(&request)) {
            let (head, body) = request.into_parts();
            pass_over(connection, body);
            return asked.at_once(connection, &head, refusal.answer());
        }
        match self.found(&request) {
            Found::Nothing => {}
            Found::Route(route) => return self.pass(asked, request, stream, route),
            Found::Ambiguous => {
                let (head, body) = request.into_parts();
                pass_over(connection, body);
                let reply = ambiguous().into_response();
                return asked.at_once(connection, &head, Answer::of(reply, Turn::of(connection)));
            }
        }
        match Route::of(request.uri().path()) {
            Route::Hello if matches!(*request.method(), Method::GET | Method::HEAD) => {
                let (mut head, body) = request.into_parts();
                pass_over(connection, body);
                let is_h2 = Dialect::of(head.version) == Dialect::Http2;
                let text = if is_h2 { HELLO_BY_H2 } else { HELLO };
                asked.record(connection, &head, StatusCode::OK, text.len() as u64);
                asked.at_once_unrecorded(connection, hello(&mut head, text, is_h2))
            }
            // A method other than GET: the API answers a preflight, and refuses all others.
            Route::Connect | Route::Sse if *request.method() != Method::GET => {
                self.ask_api(asked, request, stream)
            }
            Route::Connect => self.take(asked, request, Path::Connect),
            Route::Sse => self.take(asked, request, Path::Events),
            Route::Hello | Route::Api => self.ask_api(asked, request, stream),
        }
    }

    /// Refuses too many headers. Over HTTP/1.1 hyper does that.
    fn check_headers(&self, request: &Request<Incoming>) -> Result<(), Problem> {
        let (count, max) = (request.headers().len(), self.connection.edge.h2.headers_max);
        if count <= max {
            return Ok(());
        }
        let detail = format!("{count} headers are more than the limit of {max} (http.headers_max)");
        Err(Problem::new(Kind::HeadTooLarge, detail))
    }

    /// The parts of a request that are kept until it is answered.
    fn asked(&self, request: &Request<Incoming>, is_last: bool, open: Option<Open>) -> Asked {
        let (shared, headers) = (&self.connection.edge.shared, request.headers());
        let is_logged = !shared.access_log.is_off();
        let in_answers = shared.config().http.request_ids;
        Asked {
            version: request.version(),
            is_head: *request.method() == Method::HEAD,
            is_last,
            is_passed_over: is_passed_over(request.body()),
            open,
            ids: Ids::of(headers, Wanted { in_answers, in_log: is_logged }),
            began: is_logged.then(now),
        }
    }

    /// `stream`: the number of the HTTP/2 stream.
    fn ask_api(&self, asked: Asked, request: Request<Incoming>, stream: Option<u32>) -> Answering {
        let expects = stream.filter(|_| expects_continue(request.headers()));
        let turn = Turn::of(&self.connection);
        let noted = asked.began.map(|began| Noted::of(began, &request));
        let span = asked.ids.span();
        let traced = traced::begin(&self.connection.edge.shared.tracer, &asked.ids, &request);
        let answering = async move {
            let connection = Arc::clone(turn.connection());
            let request = request.map(|body| Asking::new(body, Arc::clone(&connection), expects));
            let edge = &connection.edge;
            let door = &edge.shared.door;
            let opened = match request.uri().path() == PUBLISH_PATH {
                true => door.open_or_moved().await,
                false => door.open().await,
            };
            let reply = match opened {
                Ok(()) => edge.api.answer(&connection.caller, request).await,
                Err(HandingOver) => Problem::handing_over().into_response(),
            };
            traced::end(traced, reply.status());
            asked.answered(&connection, noted.as_deref(), Answer::of(reply, turn))
        };
        Answering::Slow(Box::pin(answering.instrument(span)))
    }

    /// The route of a request that Weir does not answer itself.
    fn found(&self, request: &Request<Incoming>) -> Found {
        let edge = &self.connection.edge;
        let config = edge.shared.config();
        match config.http.routes.is_empty() || edge.api.is_own(request.uri().path()) {
            true => Found::Nothing,
            false => edge.proxy.find(&config, request),
        }
    }

    /// Passes a request on to an upstream.
    fn pass(
        &self,
        asked: Asked,
        request: Request<Incoming>,
        stream: Option<u32>,
        route: Arc<proxy::Route>,
    ) -> Answering {
        let expects = stream.filter(|_| expects_continue(request.headers()));
        let turn = Turn::of(&self.connection);
        let noted = asked.began.map(|began| Noted::of(began, &request));
        let span = asked.ids.span();
        let tracer = &self.connection.edge.shared.tracer;
        let traced = traced::begin_passed(tracer, &asked.ids, &request);
        let answering = async move {
            let connection = Arc::clone(turn.connection());
            let how = (expects, &asked.ids, traced);
            let passing = Box::pin(proxy::pass(&connection, request, how, &route));
            let Passed { outcome, device } = passing.await;
            let (mut answer, tunnel) = match outcome {
                Ok(Reached { answer, tunnel }) => {
                    let body = |body| match body {
                        Some(body) => Answer::passed(body, turn),
                        None => Answer::empty(),
                    };
                    (answer.map(body), tunnel)
                }
                Err(problem) => (Answer::of(problem.into_response(), turn), None),
            };
            if let Some(device) = device.filter(|_| noted.is_some()) {
                answer.extensions_mut().insert(Asker((&*device).into()));
            }
            let is_tunnel = tunnel.is_some();
            if let Some(tunnel) = tunnel {
                connection.become_tunnel(tunnel);
            }
            let mut answer = asked.answered(&connection, noted.as_deref(), answer);
            if is_tunnel {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
            }
            answer
        };
        Answering::Slow(Box::pin(answering.instrument(span)))
    }

    /// Whether this is the last request that the connection may make. Over HTTP/2 the connection
    /// then drains.
    fn note(&self, requests: u32) -> bool {
        let max = self.connection.edge.requests_max;
        if max == 0 || requests < max {
            return false;
        }
        if self.connection.dialect() == Dialect::Http2 {
            self.connection.orders.tell(Order::Drain);
        }
        true
    }

    /// Answers an upgrade request. If it is allowed, the connection is taken from HTTP, or a shard
    /// feeds its stream.
    fn take(&self, asked: Asked, request: Request<Incoming>, path: Path) -> Answering {
        let (turn, connection) = (Turn::of(&self.connection), Arc::clone(&self.connection));
        let has_body = !request.body().is_end_stream();
        let noted = asked.began.map(|began| Noted::of(began, &request));
        let (head, body) = request.into_parts();
        pass_over(&connection, body);
        let (upgrade, allowed) =
            match connection.edge.api.check_page(&connection.caller, &head, true) {
                Ok(_) if has_body => {
                    (Err(Problem::field("body", "this request has no body")), None)
                }
                Ok(allowed) => {
                    (UpgradeRequest::of(&connection, &head, path, allowed.clone()), allowed)
                }
                Err(problem) => (Err(problem), None),
            };
        let is_h1 = head.version == Version::HTTP_11;
        let upgrade = match is_h1 || head.version == Version::HTTP_2 {
            true => upgrade,
            false => upgrade
                .and(Err(Problem::new(Kind::InvalidRequest, "this takes HTTP/1.1 or HTTP/2"))),
        };
        match upgrade.map(|upgrade| upgrade.admit(&connection)) {
            Ok(Admitting::Done(Ok(upgrade))) if is_h1 => {
                drop(turn);
                asked.park(&connection, noted.as_deref(), head, upgrade);
                Answering::Parked
            }
            Ok(Admitting::Asks(upgrade)) if is_h1 => {
                let span = asked.ids.span();
                let deciding = async move {
                    match upgrade.ask(&connection).await {
                        Ok(upgrade) => {
                            drop(turn);
                            asked.park(&connection, noted.as_deref(), head, upgrade);
                            None
                        }
                        Err(problem) => Some(asked.refused((turn, noted), allowed, problem)),
                    }
                };
                Answering::Deciding(Box::pin(deciding.instrument(span)))
            }
            Ok(Admitting::Done(Ok(upgrade))) => asked
                .later((turn, noted), allowed, async move { relayed(&connection, upgrade).await }),
            Ok(Admitting::Asks(upgrade)) => {
                // The upgrade holds copies of the query's values.
                let room =
                    connection.caller.ledger.charge(2 * head.uri.query().map_or(0, str::len));
                asked.later((turn, noted), allowed, async move {
                    let _room = room?;
                    let upgrade = upgrade.ask(&connection).await?;
                    relayed(&connection, upgrade).await
                })
            }
            Ok(Admitting::Done(Err(problem))) | Err(problem) => {
                asked.later((turn, noted), allowed, async move { Err(problem) })
            }
        }
    }
}

impl hyper::service::Service<Request<Incoming>> for Service {
    type Response = Response<Answer>;
    type Error = h2::Error;
    type Future = Answering;

    fn call(&self, request: Request<Incoming>) -> Answering {
        self.answer(request)
    }
}

impl Future for Answering {
    type Output = Result<Response<Answer>, h2::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        match this {
            Answering::Ready(answer) => match answer.take() {
                Some(answer) => Poll::Ready(Ok(answer)),
                None => Poll::Pending,
            },
            Answering::Slow(answer) => answer.as_mut().poll(cx).map(Ok),
            Answering::Deciding(decision) => match ready!(decision.as_mut().poll(cx)) {
                Some(answer) => Poll::Ready(Ok(answer)),
                None => {
                    *this = Answering::Parked;
                    Poll::Pending
                }
            },
            Answering::Parked => Poll::Pending,
            Answering::Refused => Poll::Ready(Err(h2::Reason::REFUSED_STREAM.into())),
        }
    }
}

/// The parts of a request that are kept until it is answered.
struct Asked {
    version: Version,
    is_head: bool,
    /// Whether the connection may make no further request.
    is_last: bool,
    /// Whether the next request can be found behind a body that nobody reads.
    is_passed_over: bool,
    /// Only over HTTP/2.
    open: Option<Open>,
    ids: Ids,
    /// The time at which its head had come; only where there is an access log.
    began: Option<Instant>,
}

impl Asked {
    fn at_once(
        self,
        connection: &HttpConnection,
        head: &Parts,
        answer: Response<Answer>,
    ) -> Answering {
        self.record(connection, head, answer.status(), length(&answer));
        self.at_once_unrecorded(connection, answer)
    }

    fn at_once_unrecorded(
        self,
        connection: &HttpConnection,
        answer: Response<Answer>,
    ) -> Answering {
        if connection.dialect() == Dialect::Http1 {
            connection.answered();
        }
        Answering::Ready(Some(self.counted(connection, answer)))
    }

    /// Gives the access log, if there is one, the line of a request whose head is still there.
    fn record(&self, connection: &HttpConnection, head: &Parts, status: StatusCode, bytes: u64) {
        let Some(began) = self.began else { return };
        let logged = LoggedAnswer { status: status.as_u16(), bytes, device: None };
        let asked = (&head.method, head.uri.path(), head.version);
        record_at_once(connection, began, asked, &head.headers, (&self.ids, &logged));
    }

    /// Finishes the answer to a request whose head has gone, and gives the access log its line.
    fn answered(
        self,
        connection: &HttpConnection,
        noted: Option<&Noted>,
        answer: Response<Answer>,
    ) -> Response<Answer> {
        if let Some(noted) = noted {
            let asker = answer.extensions().get::<Asker>();
            let device = asker.map(|asker| &*asker.0);
            let (status, bytes) = (answer.status().as_u16(), length(&answer));
            noted.record(
                connection,
                self.version,
                &self.ids,
                &LoggedAnswer { status, bytes, device },
            );
        }
        self.counted(connection, answer)
    }

    /// Answers with the relayed events, or with the problem that prevents them.
    fn later(
        self,
        (turn, noted): (Turn, Option<Box<Noted>>),
        allowed: Option<HeaderValue>,
        relayed: impl Future<Output = Result<Response<Relayed>, Problem>> + Send + 'static,
    ) -> Answering {
        let span = self.ids.span();
        let answering = async move {
            match relayed.await {
                Ok(response) => {
                    let connection = Arc::clone(turn.connection());
                    let answer = response.map(|relayed| Answer::relayed(relayed, turn));
                    self.answered(&connection, noted.as_deref(), answer)
                }
                Err(problem) => self.refused((turn, noted), allowed, problem),
            }
        };
        Answering::Slow(Box::pin(answering.instrument(span)))
    }

    /// Keeps the upgrade request for the connection's task, which takes the connection from HTTP.
    fn park(
        self,
        connection: &HttpConnection,
        noted: Option<&Noted>,
        mut head: Parts,
        upgrade: UpgradeRequest,
    ) {
        let status = StatusCode::from_u16(upgrade.status()).unwrap_or_default();
        connection.edge.counters.http.count_request(Dialect::Http1, status);
        if let Some(noted) = noted {
            let logged =
                LoggedAnswer { status: upgrade.status(), bytes: 0, device: upgrade.device() };
            noted.record(connection, head.version, &self.ids, &logged);
        }
        head.extensions.insert(upgrade);
        connection.park(Request::from_parts(head, ()));
    }

    /// Answers with the problem that prevents the upgrade.
    fn refused(
        self,
        (turn, noted): (Turn, Option<Box<Noted>>),
        allowed: Option<HeaderValue>,
        problem: Problem,
    ) -> Response<Answer> {
        let connection = Arc::clone(turn.connection());
        let mut reply = problem.into_response();
        connection.edge.api.mark_origin(reply.headers_mut(), allowed);
        self.answered(&connection, noted.as_deref(), Answer::of(reply, turn))
    }

    /// Finishes an answer: counts it, and sets the headers that depend on its request. Every answer
    /// passes here.
    fn counted(
        self,
        connection: &HttpConnection,
        mut answer: Response<Answer>,
    ) -> Response<Answer> {
        let dialect = Dialect::of(self.version);
        connection.edge.counters.http.count_request(dialect, answer.status());
        match dialect {
            // The rest of the body has not come, and nobody will read it.
            Dialect::Http1
                if self.is_last || !self.is_passed_over && connection.phase() == Phase::Body =>
            {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Dialect::Http1 => {}
            // Over HTTP/1.1 hyper omits the body.
            Dialect::Http2 if self.is_head => {
                let length = answer.body().size_hint().exact();
                if let Some(length) = length.filter(|length| *length > 0) {
                    answer.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
                }
                *answer.body_mut() = Answer::empty();
            }
            Dialect::Http2 => {}
        }
        answer.body_mut().belongs_to(self.open);
        self.ids.answer(answer.headers_mut());
        answer
    }
}

fn ambiguous() -> Problem {
    let detail =
        "the path has a segment \".\" or \"..\", which services may resolve in different ways";
    Problem::field("path", detail)
}

/// Lets a shard feed a stream of HTTP/2 with events.
async fn relayed(
    connection: &Arc<HttpConnection>,
    upgrade: UpgradeRequest,
) -> Result<Response<Relayed>, Problem> {
    match upgrade {
        UpgradeRequest::Events(upgrade) => relay(connection, upgrade).await,
        // Refused before, with the headers for upgrades.
        UpgradeRequest::Socket(_) => Err(Problem::new(Kind::InvalidRequest, "this takes HTTP/1.1")),
    }
}

fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "the access log tells when a request came")]
    Instant::now()
}

/// The length of an answer's body, as far as it is known; otherwise 0.
fn length(answer: &Response<Answer>) -> u64 {
    answer.body().size_hint().exact().unwrap_or(0)
}

/// The cheapest answer. It uses the header map of the request again.
fn hello(head: &mut Parts, text: &'static str, is_h2: bool) -> Response<Answer> {
    let mut headers = std::mem::take(&mut head.headers);
    headers.clear();
    if headers.capacity() > HEADERS_REUSED_MAX {
        headers = HeaderMap::new();
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    if is_h2 {
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("24"));
    }
    let mut answer = Response::new(Answer::text(text));
    *answer.headers_mut() = headers;
    answer
}

/// Whether the sender of a body waits for `100 Continue`.
fn expects_continue(headers: &HeaderMap) -> bool {
    headers.get(EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// A map with more capacity is freed, and does not wait for its answer to leave.
const HEADERS_REUSED_MAX: usize = 48;
