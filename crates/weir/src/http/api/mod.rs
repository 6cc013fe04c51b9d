//! The public API, but for what is moved to a shard: publishing, looking at what topics keep, and its own description.
//!
//! Whom a request is from is its bearer token's to say, or its certificate's; what that one may do are the classes', as
//! on a connection.

mod activation;
mod cors;
mod history;
mod openapi;
mod publish;

use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, AUTHORIZATION, HeaderMap, HeaderValue, ORIGIN};
use http::request::Parts;
use http::{Method, Request, StatusCode};
use hyper::body::Body;

use super::Caller;
use super::record::Asker;
use crate::Handle;
use crate::auth::{NoBearer, Requester};
use crate::config::Config;
use crate::rates::Rates;
use crate::web::body::{self, Room};
use crate::web::head::bearer;
use crate::web::host::{Host, Hosts};
use crate::web::problem::{Kind, Problem};
use crate::web::query::{Query, segment};
use crate::web::reply::{self, Reply};
use cors::Cors;

/// All that requests to the public API share.
pub(crate) struct Api {
    handle: Handle,
    cors: Cors,
    /// The names that a request without a token may be for; `None`: without a token nobody is admitted.
    hosts: Option<Hosts>,
    room: Room,
    /// Of activations, which strangers send.
    small_room: Room,
    rates: Rates,
    router: matchit::Router<Route>,
}

/// A path, whatever it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    /// What the listener answers before it asks here; here for what it does not know of it.
    Hello,
    /// The same of what is moved to a shard.
    Live,
    Publish,
    History,
    Activate,
    Refresh,
    OpenApi,
}

impl Route {
    const ALL: [(&'static str, Route); 10] = [
        ("/", Route::Hello),
        ("/rest/hello", Route::Hello),
        ("/v1/connect", Route::Live),
        ("/v1/sse", Route::Live),
        ("/v1/publish", Route::Publish),
        ("/v1/topics/{topic}/history", Route::History),
        ("/auth/gw/active", Route::Activate),
        ("/v1/devices/activate", Route::Activate),
        ("/v1/devices/token/refresh", Route::Refresh),
        ("/openapi.json", Route::OpenApi),
    ];

    /// The methods that it knows, as `Allow` lists them.
    const fn methods(self) -> &'static str {
        match self {
            Route::Publish | Route::Activate | Route::Refresh => "POST, OPTIONS",
            Route::Live => "GET, OPTIONS",
            Route::Hello | Route::History | Route::OpenApi => "GET, HEAD, OPTIONS",
        }
    }
}

impl Api {
    pub(crate) fn new(handle: Handle, config: &Config) -> Api {
        let mut router = matchit::Router::new();
        for (path, route) in Route::ALL {
            router.insert(path, route).expect("the paths differ");
        }
        Api {
            handle,
            cors: Cors::new(&config.http.cors_origins),
            hosts: config.admits_anonymous().then(|| Hosts::new(&config.http.hosts)),
            room: Room::new(config.http.body_bytes_max, config.http.body_timeout),
            small_room: Room::new(activation::BODY_BYTES_MAX, config.http.body_timeout),
            rates: Rates::new(config.limits.publishes_per_second, config.limits.publish_burst),
            router,
        }
    }

    /// Answers whatever the listener does not answer itself.
    pub(crate) async fn answer<B>(&self, caller: &Caller, request: Request<B>) -> Reply
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (head, body) = request.into_parts();
        let (mut reply, allowed) = match self.check_page(caller, &head, false) {
            Ok(allowed) => {
                let answered = self.dispatch(caller, &head, body).await;
                (answered.unwrap_or_else(Problem::into_response), allowed)
            }
            Err(problem) => (problem.into_response(), None),
        };
        self.mark_origin(reply.headers_mut(), allowed);
        reply
    }

    /// Refuses a page of another origin that is not allowed; for [`Api::mark_origin`] what the answer is to say.
    ///
    /// `has_effect`: even to look at the path changes something.
    pub(crate) fn check_page(
        &self,
        caller: &Caller,
        head: &Parts,
        has_effect: bool,
    ) -> Result<Option<HeaderValue>, Problem> {
        self.cors.check(if caller.is_tls { "https" } else { "http" }, head, has_effect)
    }

    /// Refuses a request without a token for a host that is not this server.
    ///
    /// A stranger's name can be made to point here while a page of that name is open (DNS rebinding). To the browser the
    /// page and this server are one origin then, so the page may read what is answered; only `Host` tells. With an
    /// `Origin` it has been decided already, and nobody has a token by whom it was not given.
    ///
    /// Errors: 421.
    pub(crate) fn check_anonymous(&self, caller: &Caller, head: &Parts) -> Result<(), Problem> {
        let Some(hosts) = &self.hosts else { return Ok(()) };
        if caller.identity.is_some() || head.headers.contains_key(ORIGIN) {
            return Ok(());
        }
        let host = Host::of_request(&head.headers, &head.uri);
        if host.and_then(|host| hosts.find(&host, caller.local.ip())).is_some() {
            return Ok(());
        }
        let host = host.map_or(String::new(), |host| host.to_string());
        let detail = format!(
            "host {host:?} is not one of this server's, and a request without a token has to name one: localhost, a \
             loopback address, or one of http.hosts"
        );
        Err(Problem::new(Kind::UnknownHost, detail).at_header("Host"))
    }

    /// Says in an answer, a refusal too, whose pages may read it.
    pub(crate) fn mark_origin(&self, headers: &mut HeaderMap, allowed: Option<HeaderValue>) {
        self.cors.mark(headers, allowed);
    }

    async fn dispatch<B>(&self, caller: &Caller, head: &Parts, body: B) -> Result<Reply, Problem>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
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
            return Ok(options(route));
        }
        match route {
            // The listener does not ask.
            Route::Hello | Route::Live => Err(nothing()),
            Route::OpenApi => {
                Query::parse(head.uri.query(), &[])?;
                Ok(reply::bytes(StatusCode::OK, "application/json", openapi::document()))
            }
            Route::Activate => {
                Query::parse(head.uri.query(), &[])?;
                let body = self.small_room.read(&head.headers, body).await?;
                self.activate(caller, &body.bytes).await
            }
            Route::Refresh => {
                Query::parse(head.uri.query(), &[])?;
                self.refresh(caller, shown_token(&head.headers)).await
            }
            Route::Publish => {
                let requester = self.requester(caller, head).await?;
                let published = async {
                    Query::parse(head.uri.query(), &[])?;
                    body::check_json(&head.headers)?;
                    let body = self.room.read(&head.headers, body).await?;
                    self.publish(caller, &requester, &body.bytes).await
                };
                Ok(named(published.await, requester))
            }
            Route::History => {
                let requester = self.requester(caller, head).await?;
                let topic = segment(found.params.get("topic").unwrap_or_default(), "topic");
                let read =
                    topic.and_then(|topic| self.history(&requester, &topic, head.uri.query()));
                Ok(named(read, requester))
            }
        }
    }

    /// Whom a request is from.
    async fn requester(&self, caller: &Caller, head: &Parts) -> Result<Requester, Problem> {
        let token = shown_token(&head.headers);
        if token == Some("") {
            self.check_anonymous(caller, head)?;
        }
        let hub = self.handle.hub();
        let named = caller.identity.as_deref();
        let identified = match token {
            Some(token) => match hub.auth.find(token, hub.devices.mark()).await {
                Ok(bearer) => hub.auth.identify(named, &bearer).await,
                Err(no_bearer) => Err(no_bearer),
            },
            None => Err(NoBearer::Unknown),
        };
        identified.map_err(|no_bearer| match (no_bearer, token) {
            (NoBearer::Unavailable, _) => Problem::store_unavailable(),
            (NoBearer::Unknown, Some("")) => Problem::unauthorized(
                "Bearer realm=\"weir\"",
                "send one header \"Authorization: Bearer TOKEN\" with the token of a device or a service",
            ),
            (NoBearer::Unknown, _) => Problem::unauthorized(
                "Bearer realm=\"weir\", error=\"invalid_token\"",
                "the token is not one of a device or a service, or not of the device that the certificate names",
            ),
        })
    }
}

/// The token of the one header that shows it; empty without one, `None` where it is none.
fn shown_token(headers: &HeaderMap) -> Option<&str> {
    let mut shown = headers.get_all(AUTHORIZATION).iter();
    match (shown.next(), shown.next()) {
        (None, _) => Some(""),
        (Some(value), None) => {
            bearer(value.as_bytes()).and_then(|token| std::str::from_utf8(token).ok())
        }
        (Some(_), Some(_)) => None,
    }
}

/// Tells the access log whom a reply is for, a refusal too.
fn named(answered: Result<Reply, Problem>, requester: Requester) -> Reply {
    let mut reply = answered.unwrap_or_else(Problem::into_response);
    if let Some(device) = requester.device {
        reply.extensions_mut().insert(Asker(device.into()));
    }
    reply
}

/// What a path knows, and what a page may send to it.
fn options(route: Route) -> Reply {
    let mut reply = reply::empty(StatusCode::NO_CONTENT);
    let headers = reply.headers_mut();
    headers.insert(ALLOW, HeaderValue::from_static(route.methods()));
    Cors::permit(headers, route.methods());
    reply
}

const RETRY_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
