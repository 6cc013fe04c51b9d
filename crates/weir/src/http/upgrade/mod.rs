//! Requests for a long-lived connection: WebSockets and server-sent events.
//!
//! ```text
//!  request ─valid?─▶ UpgradeRequest ─▶ taken from HTTP, or relayed over HTTP/2 ─▶ opening ─▶ shard
//!          └── no: a problem document, and the connection continues
//! ```

mod events;
mod relay;
mod socket;

use std::sync::Arc;

use http::header::{HeaderMap, USER_AGENT};
use http::request::Parts;
use http::{HeaderValue, Request, Version};

use super::Edge;
use super::closing::close;
use super::connection::HttpConnection;
use crate::auth::{NoBearer, TokenOrigin};
use crate::connection::linger::SHORT;
use crate::connection::opening;
use crate::core::clients::{NAME_BYTES_MAX, readable};
use crate::http::web::head::bearer_token;
use crate::http::web::problem::{Kind, Problem};
use crate::limits::admission::{AcceptOrder, Permit};
use crate::tls::stream::Stream;
use events::EventsUpgrade;
pub(super) use relay::{Relayed, Watch, relay, take_watch};
use socket::SocketUpgrade;

/// The valid request for an upgrade.
#[derive(Debug, Clone)]
pub(crate) enum UpgradeRequest {
    Socket(SocketUpgrade),
    Events(EventsUpgrade),
}

/// A connection over HTTP/1.1 whose last request asks for an upgrade.
///
/// All earlier answers have left completely; the last request has no answer yet.
pub(crate) struct Taken {
    pub(super) stream: Stream,
    /// The bytes that came behind the request.
    pub(super) read_ahead: Vec<u8>,
    pub(super) request: Request<()>,
    pub(super) permit: Permit,
    pub(super) connection: Arc<HttpConnection>,
}

impl UpgradeRequest {
    /// Reads an upgrade request; [`UpgradeRequest::admit`] checks its token.
    ///
    /// `allowed`: the origin of the page that asks, if it is an allowed one of another site.
    pub(super) fn of(
        connection: &HttpConnection,
        head: &Parts,
        path: Path,
        allowed: Option<HeaderValue>,
    ) -> Result<UpgradeRequest, Problem> {
        let edge = &connection.edge;
        let order = connection.accept_order();
        match path {
            Path::Connect if head.version != Version::HTTP_11 => Err(Problem::new(
                Kind::UpgradeRequired,
                "a WebSocket needs an upgrade of HTTP/1.1, and cannot open over HTTP/2",
            )),
            Path::Connect => SocketUpgrade::of(edge, head, order).map(UpgradeRequest::Socket),
            Path::Events => {
                EventsUpgrade::of(edge, head, allowed, order).map(UpgradeRequest::Events)
            }
        }
        .and_then(|upgrade| upgrade.checked(connection, head))
    }

    /// A WebSocket without a token here is anonymous, or shows its token in `Hello`.
    fn checked(self, connection: &HttpConnection, head: &Parts) -> Result<UpgradeRequest, Problem> {
        if self.token().is_empty() {
            connection.edge.api.check_anonymous(&connection.caller, head)?;
        }
        Ok(self)
    }

    /// Checks the token and the claimed device id, without waiting. [`Admitting::Asks`]: that takes
    /// [`UpgradeRequest::ask`].
    pub(super) fn admit(self, connection: &HttpConnection) -> Admitting {
        let shared = &connection.edge.shared;
        let bearer = match shared.auth.look(self.token(), shared.devices.mark()) {
            Some(Ok(bearer)) => bearer,
            Some(Err(no_bearer)) => return Admitting::Done(Err(problem(no_bearer))),
            None => return Admitting::Asks(self),
        };
        match self {
            UpgradeRequest::Socket(upgrade) => {
                Admitting::Done(Ok(UpgradeRequest::Socket(upgrade.admitted(bearer))))
            }
            UpgradeRequest::Events(upgrade) => match upgrade.claim(connection, &bearer) {
                Ok(claim) => match claim.settled(&shared.auth) {
                    // A node of a cluster may have to ask for the epochs of the positions.
                    Ok(_) if shared.cluster.is_some() && upgrade.resumed().next().is_some() => {
                        Admitting::Asks(UpgradeRequest::Events(upgrade))
                    }
                    Ok(admission) => {
                        Admitting::Done(Ok(UpgradeRequest::Events(upgrade.admitted(admission))))
                    }
                    Err(_) => Admitting::Asks(UpgradeRequest::Events(upgrade)),
                },
                Err(problem) => Admitting::Done(Err(problem)),
            },
        }
    }

    /// Waits for the check of the token, or of the device id that the request claims.
    pub(super) async fn ask(self, connection: &HttpConnection) -> Result<UpgradeRequest, Problem> {
        let auth = &connection.edge.shared.auth;
        let origin = TokenOrigin::Request(connection.caller.peer);
        let found = auth.find(self.token(), origin, connection.edge.shared.devices.mark()).await;
        let bearer = found.map_err(problem)?;
        match self {
            UpgradeRequest::Socket(upgrade) => Ok(UpgradeRequest::Socket(upgrade.admitted(bearer))),
            UpgradeRequest::Events(upgrade) => {
                let admission = match upgrade.claim(connection, &bearer)?.settled(auth) {
                    Ok(admission) => admission,
                    Err(claim) => Box::pin(auth.confirm(claim)).await.map_err(problem)?,
                };
                let shared = &connection.edge.shared;
                let followed = Box::pin(shared.follow(upgrade.resumed())).await;
                followed.map_err(Problem::unknown_to_broker)?;
                Ok(UpgradeRequest::Events(upgrade.admitted(admission)))
            }
        }
    }

    fn token(&self) -> &str {
        match self {
            UpgradeRequest::Socket(upgrade) => upgrade.token(),
            UpgradeRequest::Events(upgrade) => upgrade.token(),
        }
    }

    /// The accept order of the request.
    fn order(&self) -> AcceptOrder {
        match self {
            UpgradeRequest::Socket(upgrade) => upgrade.order,
            UpgradeRequest::Events(upgrade) => upgrade.order,
        }
    }

    /// The status of the answer.
    pub(super) fn status(&self) -> u16 {
        match self {
            UpgradeRequest::Socket(_) => 101,
            UpgradeRequest::Events(_) => 200,
        }
    }

    /// The device that the request names, if any.
    pub(super) fn device(&self) -> Option<&str> {
        match self {
            UpgradeRequest::Socket(_) => None,
            UpgradeRequest::Events(upgrade) => upgrade.device(),
        }
    }
}

/// The result of [`UpgradeRequest::admit`].
pub(super) enum Admitting {
    Done(Result<UpgradeRequest, Problem>),
    /// The token has to be checked elsewhere.
    Asks(UpgradeRequest),
}

/// The kind of upgrade that a path stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Path {
    Connect,
    Events,
}

/// Carries out the upgrade: the connection leaves HTTP and continues as an opening.
pub(super) async fn go_on(taken: Taken) {
    let Taken { stream, read_ahead, mut request, permit, connection } = taken;
    let shared = &connection.edge.shared;
    let Some(upgrade) = request.extensions_mut().remove::<UpgradeRequest>() else {
        debug_assert!(false, "a parked connection has an upgrade request");
        return;
    };
    drop(request);
    let addr = permit.addr();
    let unsettled = match permit.stand_up(upgrade.order()) {
        Ok(unsettled) => unsettled,
        Err((_permit, cause)) => {
            shared.counters().count_closed(shared.admission.refuse(cause, addr));
            let linger = Some(SHORT);
            return close(stream, super::UNAVAILABLE, linger, shared.counters()).await;
        }
    };
    let identity = connection.caller.identity.clone();
    let upgraded = match upgrade {
        UpgradeRequest::Socket(upgrade) => upgrade.into_live(identity, read_ahead),
        UpgradeRequest::Events(upgrade) => match upgrade.into_live(&connection.edge, identity) {
            Some(upgraded) => upgraded,
            None => return,
        },
    };
    opening::run_upgraded(shared, stream, unsettled, upgraded).await;
}

/// The token of a request, from its header or, if permitted, from its query; empty if there is
/// none.
///
/// Errors: 401 for a malformed token.
fn token(headers: &HeaderMap, from_query: Option<&str>) -> Result<String, Problem> {
    match (bearer_token(headers), from_query) {
        (Ok(None), token) => Ok(token.unwrap_or_default().to_owned()),
        (Ok(Some(token)), None) => Ok(token.to_owned()),
        (Ok(Some(_)), Some(_)) | (Err(_), _) => Err(unknown_token()),
    }
}

/// The name of the client program, unless its `Hello` gives one.
fn user_agent(headers: &HeaderMap) -> String {
    let name = headers.get(USER_AGENT).and_then(|name| name.to_str().ok());
    readable(name.unwrap_or_default(), NAME_BYTES_MAX).into_owned()
}

fn problem(no_bearer: NoBearer) -> Problem {
    match no_bearer {
        NoBearer::Unknown => unknown_token(),
        NoBearer::Unavailable => Problem::store_unavailable(),
        NoBearer::Limited(after) => Problem::too_many_tokens(after),
    }
}

fn unknown_token() -> Problem {
    Problem::unauthorized(
        "Bearer realm=\"weir\", error=\"invalid_token\"",
        "the token does not belong to a device or a service",
    )
}

/// Refuses a token in the query where the configuration does not permit it: proxies on the way
/// would log it.
fn query_token<'a>(edge: &Edge, token: Option<&'a str>) -> Result<Option<&'a str>, Problem> {
    match token {
        Some(_) if !edge.shared.config().http.query_token => Err(Problem::field(
            "access_token",
            "this server takes no token in the query (http.query_token); send it in Authorization",
        )),
        token => Ok(token),
    }
}
