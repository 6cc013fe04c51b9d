//! The public API: publishing, history, presence, activation, and its own description. Upgrades are not here.
//!
//! The bearer token or the client certificate identifies the caller. Topic classes authorise it, as
//! on a connection.

mod activation;
mod cors;
mod history;
mod openapi;
mod presence;
mod publish;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, HeaderMap, HeaderValue, ORIGIN};
use http::request::Parts;
use http::{Method, Request, StatusCode};
use hyper::body::Body;

use super::Caller;
use super::record::Asker;
use crate::Handle;
use crate::auth::{Bearer, NoBearer, Requester, TokenOrigin};
use crate::base::config::Config;
use crate::base::derived::Derived;
use crate::base::host::{Host, Hosts};
use crate::core::rights::{self, CallerDevice, CameBy};
use crate::http::web::body::{self, Announced, Room};
use crate::http::web::head::bearer_token;
use crate::http::web::idempotency::key_of;
use crate::http::web::presence::PageAsked;
use crate::http::web::problem::{Kind, Problem};
use crate::http::web::query::{Query, segment};
use crate::http::web::reply::{self, Reply};
use crate::topics::Range;
use cors::Cors;

/// The values that all requests to the public API share.
pub(crate) struct Api {
    handle: Handle,
    /// For the configuration in use.
    pages: Derived<PageRules>,
    room: Room,
    /// Reads the bodies of activations, which strangers send.
    small_room: Room,
    router: matchit::Router<Route>,
}

/// The rules for pages of browsers.
struct PageRules {
    cors: Cors,
    /// The hosts of requests without a token; `None`: requests without a token are never admitted.
    hosts: Option<Hosts>,
}

/// The path of a request, whatever its method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    /// The edge answers GET and HEAD itself, and asks here about other methods.
    Hello,
    /// The same for upgrades.
    Upgraded,
    Publish,
    History,
    Presence,
    Activate,
    Refresh,
    OpenApi,
}

/// The task that the head of a request gives. The head itself is dropped before the task begins.
enum Job {
    /// The answer is known.
    Done(Reply),
    Activate(Announced),
    Refresh(Option<String>),
    /// Holds the result of the other checks of the head. It counts once the caller is known.
    Publish(Shown, Result<(Option<String>, Announced), Problem>),
    History(Shown, Result<(String, Range), Problem>),
    Presence(Shown, Result<(String, PageAsked), Problem>),
}

/// The token of a request.
enum Shown {
    /// The request has none.
    Nothing(Bearer),
    Known(Bearer),
    /// The store has to be asked. Holds the mark of the devices at the time of the look.
    Asks(String, u64),
    /// The token is malformed or unknown.
    Wrong,
}

impl Route {
    const ALL: [(&'static str, Route); 11] = [
        ("/", Route::Hello),
        ("/rest/hello", Route::Hello),
        ("/v1/connect", Route::Upgraded),
        ("/v1/sse", Route::Upgraded),
        ("/v1/publish", Route::Publish),
        ("/v1/topics/{topic}/history", Route::History),
        ("/v1/topics/{topic}/presence", Route::Presence),
        ("/auth/gw/active", Route::Activate),
        ("/v1/devices/activate", Route::Activate),
        ("/v1/devices/token/refresh", Route::Refresh),
        ("/openapi.json", Route::OpenApi),
    ];

    /// The methods of the path, as `Allow` lists them.
    const fn methods(self) -> &'static str {
        match self {
            Route::Publish | Route::Activate | Route::Refresh => "POST, OPTIONS",
            Route::Upgraded => "GET, OPTIONS",
            Route::Hello | Route::History | Route::Presence | Route::OpenApi => {
                "GET, HEAD, OPTIONS"
            }
        }
    }
}

impl Api {
    pub(crate) fn new(handle: Handle, config: &Arc<Config>) -> Api {
        let mut router = matchit::Router::new();
        for (path, route) in Route::ALL {
            router.insert(path, route).expect("the paths differ");
        }
        let budget_bytes = handle.engine().budget().bytes_max();
        let room = |bytes_max| Room::new(bytes_max, config.http.body_timeout, budget_bytes);
        Api {
            pages: Derived::new(config, |config| PageRules {
                cors: Cors::new(&config.http.cors_origins),
                hosts: config.admits_anonymous().then(|| Hosts::new(&config.http.hosts)),
            }),
            room: room(config.http.body_bytes_max),
            small_room: room(activation::BODY_BYTES_MAX),
            router,
            handle,
        }
    }

    /// Answers the requests that the edge does not answer itself.
    pub(crate) async fn answer<B>(&self, caller: &Caller, request: Request<B>) -> Reply
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (head, body) = request.into_parts();
        let (job, allowed) = match self.check_page(caller, &head, false) {
            Ok(allowed) => (self.job(caller, &head), allowed),
            Err(problem) => (Err(problem), None),
        };
        // Many requests may wait at one time, so none of them keeps its head, which may be long.
        drop(head);
        let answered = match job {
            Ok(job) => self.carry_out(caller, job, body).await,
            Err(problem) => Err(problem),
        };
        let mut reply = answered.unwrap_or_else(Problem::into_response);
        self.mark_origin(reply.headers_mut(), allowed);
        reply
    }

    /// Refuses a page of another origin that is not allowed. Returns the origin for
    /// [`Api::mark_origin`].
    ///
    /// `has_effect`: even a GET of the path changes something.
    pub(crate) fn check_page(
        &self,
        caller: &Caller,
        head: &Parts,
        has_effect: bool,
    ) -> Result<Option<HeaderValue>, Problem> {
        let pages = self.pages.of(&self.handle.config());
        pages.cors.check(if caller.is_tls { "https" } else { "http" }, head, has_effect)
    }

    /// Refuses a request without a token for a host that is not this server.
    ///
    /// A stranger can make a name point here while a page of that name is open (DNS rebinding).
    /// Then the browser takes the page and this server for one origin, and the page may read the
    /// answers. Only `Host` shows this. A request with an `Origin` has been checked already, and a
    /// page has only the tokens that it was given.
    ///
    /// Errors: 421.
    pub(crate) fn check_anonymous(&self, caller: &Caller, head: &Parts) -> Result<(), Problem> {
        let pages = self.pages.of(&self.handle.config());
        let Some(hosts) = &pages.hosts else { return Ok(()) };
        if caller.identity.is_some() || head.headers.contains_key(ORIGIN) {
            return Ok(());
        }
        let host = Host::of_request(&head.headers, &head.uri);
        if host.and_then(|host| hosts.find(&host, caller.local.ip())).is_some() {
            return Ok(());
        }
        let host = host.map_or(String::new(), |host| host.to_string());
        let detail = format!(
            "host {host:?} does not name this server, and a request without a token must: localhost, a loopback \
             address, or one of http.hosts"
        );
        Err(Problem::new(Kind::UnknownHost, detail).at_header("Host"))
    }

    /// Tells in an answer, or in a refusal, which pages may read it.
    pub(crate) fn mark_origin(&self, headers: &mut HeaderMap, allowed: Option<HeaderValue>) {
        self.pages.of(&self.handle.config()).cors.mark(headers, allowed);
    }

    /// Reads the task from a head, without waiting.
    fn job(&self, caller: &Caller, head: &Parts) -> Result<Job, Problem> {
        let nothing = || {
            let detail = format!("there is nothing at {:?}", head.uri.path());
            Problem::new(Kind::NotFound, detail)
        };
        let found = self.router.at(head.uri.path()).map_err(|_| nothing())?;
        let (route, method) = (*found.value, &head.method);
        if !route.methods().split(", ").any(|known| known == method.as_str()) {
            return Err(Problem::method(route.methods()));
        }
        if *method == Method::OPTIONS {
            return Ok(Job::Done(options(route)));
        }
        let query = head.uri.query();
        match route {
            // The edge answers GET and HEAD of these itself.
            Route::Hello | Route::Upgraded => Err(nothing()),
            Route::OpenApi => {
                Query::parse(query, &[])?;
                let document = openapi::document();
                Ok(Job::Done(reply::bytes(StatusCode::OK, "application/json", document)))
            }
            Route::Activate => {
                Query::parse(query, &[])?;
                Ok(Job::Activate(self.small_room.check(&head.headers)?))
            }
            Route::Refresh => {
                Query::parse(query, &[])?;
                Ok(Job::Refresh(activation::refreshed(&head.headers)))
            }
            Route::Publish => {
                let checked = Query::parse(query, &[])
                    .and_then(|_| body::check_json(&head.headers))
                    .and_then(|()| key_of(&head.headers))
                    .and_then(|key| Ok((key.map(str::to_owned), self.room.check(&head.headers)?)));
                Ok(Job::Publish(self.shown(caller, head)?, checked))
            }
            Route::History => {
                let topic = segment(found.params.get("topic").unwrap_or_default(), "topic");
                let asked = topic.and_then(|topic| Ok((topic, history::range(query)?)));
                Ok(Job::History(self.shown(caller, head)?, asked))
            }
            Route::Presence => {
                let topic = segment(found.params.get("topic").unwrap_or_default(), "topic");
                let asked = topic.and_then(|topic| Ok((topic, PageAsked::of(query)?)));
                Ok(Job::Presence(self.shown(caller, head)?, asked))
            }
        }
    }

    async fn carry_out<B>(&self, caller: &Caller, job: Job, body: B) -> Result<Reply, Problem>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        match job {
            Job::Done(reply) => Ok(reply),
            Job::Activate(announced) => {
                let body = self.small_room.read(announced, body).await?;
                Box::pin(self.activate(caller, &body.bytes)).await
            }
            Job::Refresh(token) => {
                beside(body, Box::pin(self.refresh(caller, token.as_deref()))).await
            }
            Job::Publish(shown, checked) => {
                let (key, announced) = match checked {
                    Ok((key, announced)) => (key, Ok(announced)),
                    Err(problem) => (None, Err(problem)),
                };
                let whole = async { self.room.read(announced?, body).await };
                // The body is read meanwhile, so that hyper does not keep it.
                let (requester, whole) = tokio::try_join!(
                    biased;
                    self.requester(caller, shown),
                    async { Ok(whole.await) },
                )?;
                let published = match whole {
                    Ok(body) => {
                        self.publish(caller, &requester, (key.as_deref(), &body.bytes)).await
                    }
                    Err(problem) => Err(problem),
                };
                Ok(self.named(published, &requester))
            }
            Job::History(shown, asked) => {
                let requester = beside(body, self.requester(caller, shown)).await?;
                let read = match asked {
                    Ok((topic, range)) => self.history(caller, &requester, (&topic, range)).await,
                    Err(problem) => Err(problem),
                };
                Ok(self.named(read, &requester))
            }
            Job::Presence(shown, asked) => {
                let requester = beside(body, self.requester(caller, shown)).await?;
                let read = match asked {
                    Ok((topic, asked)) => self.presence(caller, &requester, topic, asked).await,
                    Err(problem) => Err(problem),
                };
                Ok(self.named(read, &requester))
            }
        }
    }

    /// Whether Weir answers the path itself, whatever the routes say.
    pub(crate) fn is_own(&self, path: &str) -> bool {
        // Most paths of services begin otherwise.
        let is_candidate = OWN_BEGINNINGS.iter().any(|beginning| path.starts_with(beginning));
        is_candidate && self.router.at(path).is_ok_and(|found| !matches!(found.value, Route::Hello))
    }

    /// The sender of a request to a route that asks for a token. A certificate counts as one.
    ///
    /// Errors: 401 without a token, also where anonymous devices are admitted; 403 for a page of
    /// another origin that uses the certificate of its browser.
    pub(crate) async fn identified(
        &self,
        caller: &Caller,
        head: &Parts,
    ) -> Result<Requester, Problem> {
        if caller.identity.is_none() && matches!(bearer_token(&head.headers), Ok(None)) {
            return Err(no_token());
        }
        let shown = match self.shown(caller, head)? {
            shown @ Shown::Nothing(_) => {
                self.check_page(caller, head, true)?;
                shown
            }
            shown @ (Shown::Known(_) | Shown::Asks(..) | Shown::Wrong) => shown,
        };
        self.requester(caller, shown).await
    }

    /// Looks the token of a request up.
    ///
    /// Errors: 421 without a token, for a host that is not this server.
    fn shown(&self, caller: &Caller, head: &Parts) -> Result<Shown, Problem> {
        let shared = self.handle.shared();
        let Ok(token) = bearer_token(&head.headers) else { return Ok(Shown::Wrong) };
        let token = token.unwrap_or_default();
        if token.is_empty() {
            self.check_anonymous(caller, head)?;
        }
        let mark = shared.devices.mark();
        Ok(match shared.auth.look(token, mark) {
            Some(Ok(bearer)) if token.is_empty() => Shown::Nothing(bearer),
            Some(Ok(bearer)) => Shown::Known(bearer),
            Some(Err(_)) => Shown::Wrong,
            None => Shown::Asks(token.to_owned(), mark),
        })
    }

    /// The caller of a request.
    async fn requester(&self, caller: &Caller, shown: Shown) -> Result<Requester, Problem> {
        let shared = self.handle.shared();
        let is_shown = !matches!(shown, Shown::Nothing(_));
        let origin = TokenOrigin::Request(caller.peer);
        let bearer = match shown {
            Shown::Nothing(bearer) | Shown::Known(bearer) => Some(bearer),
            Shown::Asks(token, mark) => match Box::pin(shared.auth.ask(&token, origin, mark)).await
            {
                Err(NoBearer::Unavailable) => return Err(Problem::store_unavailable()),
                Err(NoBearer::Limited(after)) => return Err(Problem::too_many_tokens(after)),
                found => found.ok(),
            },
            Shown::Wrong => None,
        };
        let named = caller.identity.as_deref();
        let identified = match bearer {
            Some(bearer) => shared.auth.identify(named, &bearer).await,
            None => Err(NoBearer::Unknown),
        };
        identified.map_err(|no_bearer| match (no_bearer, is_shown) {
            (NoBearer::Unavailable, _) => Problem::store_unavailable(),
            (NoBearer::Limited(after), _) => Problem::too_many_tokens(after),
            (NoBearer::Unknown, false) => no_token(),
            (NoBearer::Unknown, true) => Problem::unauthorized(
                "Bearer realm=\"weir\", error=\"invalid_token\"",
                "the token does not belong to a device or a service, or the certificate names another device",
            ),
        })
    }

    /// Tells the access log whom a reply is for, a refusal too.
    fn named(&self, answered: Result<Reply, Problem>, requester: &Requester) -> Reply {
        let mut reply = answered.unwrap_or_else(Problem::into_response);
        if let Some(device) = &requester.device {
            self.note_asker(&mut reply, device);
        }
        reply
    }

    /// The same, where there is an access log.
    fn note_asker(&self, reply: &mut Reply, device: &str) {
        if !self.handle.shared().access_log.is_off() {
            reply.extensions_mut().insert(Asker(device.into()));
        }
    }
}

fn no_token() -> Problem {
    Problem::unauthorized(
        "Bearer realm=\"weir\"",
        "send one header \"Authorization: Bearer TOKEN\" with the token of a device or a service",
    )
}

/// Reads and drops the body of a request while the work goes on, so that hyper does not keep it.
async fn beside<B: Body, T>(body: B, work: impl Future<Output = T>) -> T {
    let (mut body, mut work) = (pin!(body), pin!(work));
    let mut is_over = false;
    poll_fn(|cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(done);
        }
        for _ in 0..FRAMES_AT_A_TIME {
            if is_over {
                return Poll::Pending;
            }
            is_over = !matches!(ready!(body.as_mut().poll_frame(cx)), Some(Ok(_)));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

/// What a path knows, and what a page may send to it.
fn options(route: Route) -> Reply {
    let mut reply = reply::empty(StatusCode::NO_CONTENT);
    let headers = reply.headers_mut();
    headers.insert(ALLOW, HeaderValue::from_static(route.methods()));
    Cors::permit(headers, route.methods());
    reply
}

/// The sender of a request, as a caller of topics.
fn caller_as<'a>(requester: &'a Requester, caller: &Caller) -> rights::Caller<'a> {
    let device = CallerDevice::Named(requester.device.as_deref());
    rights::Caller { grant: &requester.grant, device, came_by: CameBy::Request(caller.peer) }
}

const OWN_BEGINNINGS: [&str; 3] = ["/v1/", "/auth/", "/openapi.json"];
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// After so many messages, other tasks of the thread have their turn.
const FRAMES_AT_A_TIME: usize = 16;

#[cfg(test)]
mod tests;
