//! Requests for something that lives long: WebSockets and server-sent events.
//!
//! ```text
//!  request ─asked for rightly?─▶ Wish ─▶ taken from HTTP, or relayed over HTTP/2 ─▶ session ─▶ shard
//!              └── no: a problem document, and the connection goes on
//! ```

mod events;
mod relay;
mod socket;

use std::sync::Arc;

use http::header::{AUTHORIZATION, HeaderMap};
use http::request::Parts;
use http::{HeaderValue, Request, Version};

use super::Edge;
use super::closing::{SHORT, close};
use super::guest::Guest;
use crate::auth::{NoBearer, TokenOrigin};
use crate::connection::session;
use crate::http::web::head::bearer;
use crate::http::web::problem::{Kind, Problem};
use crate::limits::admission::{AcceptOrder, Seat};
use crate::tls::stream::Stream;
use events::EventsWish;
pub(super) use relay::{Relayed, Watch, relay, take_watch};
use socket::SocketWish;

/// What a connection is to become.
#[derive(Debug, Clone)]
pub(crate) enum Wish {
    Socket(SocketWish),
    Events(EventsWish),
}

/// A connection over HTTP/1.1 whose last request asks for something else than an answer.
///
/// All earlier answers have left, whole; of the last one nothing has been said.
pub(crate) struct Taken {
    pub(super) stream: Stream,
    /// What has come behind the request.
    pub(super) read_ahead: Vec<u8>,
    pub(super) request: Request<()>,
    pub(super) seat: Seat,
    pub(super) guest: Arc<Guest>,
}

impl Wish {
    /// What a request asks for, but for its token: see [`Wish::admit`].
    ///
    /// `allowed`: the origin of the page that asks, if it is another one that may.
    pub(super) fn of(
        guest: &Guest,
        head: &Parts,
        path: Path,
        allowed: Option<HeaderValue>,
    ) -> Result<Wish, Problem> {
        let edge = &guest.edge;
        let order = guest.accept_order();
        match path {
            Path::Connect if head.version != Version::HTTP_11 => Err(Problem::new(
                Kind::UpgradeRequired,
                "a WebSocket is opened by an upgrade of HTTP/1.1, not over HTTP/2",
            )),
            Path::Connect => SocketWish::of(edge, head, order).map(Wish::Socket),
            Path::Events => EventsWish::of(edge, head, allowed, order).map(Wish::Events),
        }
        .and_then(|wish| wish.checked(guest, head))
    }

    /// Who shows no token here is anonymous, or says in `Hello` who it is.
    fn checked(self, guest: &Guest, head: &Parts) -> Result<Wish, Problem> {
        if self.token().is_empty() {
            guest.edge.api.check_anonymous(&guest.caller, head)?;
        }
        Ok(self)
    }

    /// Has what its token stands for checked; without a wait where that is known here.
    pub(super) fn admit(self, guest: &Guest) -> Admitting {
        let hub = &guest.edge.hub;
        let bearer = match hub.auth.look(self.token(), hub.devices.mark()) {
            Some(Ok(bearer)) => bearer,
            Some(Err(no_bearer)) => return Admitting::Done(Err(problem(no_bearer))),
            None => return Admitting::Asks(self),
        };
        match self {
            Wish::Socket(wish) => Admitting::Done(Ok(Wish::Socket(wish.admitted(bearer)))),
            Wish::Events(wish) => match wish.claim(guest, &bearer) {
                Ok(claim) => match claim.settled(&hub.auth) {
                    Ok(admission) => Admitting::Done(Ok(Wish::Events(wish.admitted(admission)))),
                    Err(_) => Admitting::Asks(Wish::Events(wish)),
                },
                Err(problem) => Admitting::Done(Err(problem)),
            },
        }
    }

    /// The same where its token, or the id that it claims, has to be asked for.
    pub(super) async fn ask(self, guest: &Guest) -> Result<Wish, Problem> {
        let auth = &guest.edge.hub.auth;
        let origin = TokenOrigin::Connection(guest.caller.peer);
        let found = auth.find(self.token(), origin, guest.edge.hub.devices.mark()).await;
        let bearer = found.map_err(problem)?;
        match self {
            Wish::Socket(wish) => Ok(Wish::Socket(wish.admitted(bearer))),
            Wish::Events(wish) => {
                let admission = match wish.claim(guest, &bearer)?.settled(auth) {
                    Ok(admission) => admission,
                    Err(claim) => Box::pin(auth.confirm(claim)).await.map_err(problem)?,
                };
                Ok(Wish::Events(wish.admitted(admission)))
            }
        }
    }

    fn token(&self) -> &str {
        match self {
            Wish::Socket(wish) => wish.token(),
            Wish::Events(wish) => wish.token(),
        }
    }

    /// Whether its request came before or after another connection.
    fn order(&self) -> AcceptOrder {
        match self {
            Wish::Socket(wish) => wish.order,
            Wish::Events(wish) => wish.order,
        }
    }

    /// With which its request is answered.
    pub(super) fn status(&self) -> u16 {
        match self {
            Wish::Socket(_) => 101,
            Wish::Events(_) => 200,
        }
    }

    /// The device that it names, if it does.
    pub(super) fn device(&self) -> Option<&str> {
        match self {
            Wish::Socket(_) => None,
            Wish::Events(wish) => wish.device(),
        }
    }
}

/// Whether a wish may be.
pub(super) enum Admitting {
    Done(Result<Wish, Problem>),
    /// Its token has to be asked for.
    Asks(Wish),
}

/// Which of the two a path is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Path {
    Connect,
    Events,
}

/// Moves a connection to where it is to be.
pub(super) async fn go_on(taken: Taken) {
    let Taken { stream, read_ahead, mut request, seat, guest } = taken;
    let hub = &guest.edge.hub;
    let Some(wish) = request.extensions_mut().remove::<Wish>() else {
        debug_assert!(false, "a connection is parked with what it wishes");
        return;
    };
    drop(request);
    let addr = seat.addr();
    let unsettled = match seat.stand_up(wish.order()) {
        Ok(unsettled) => unsettled,
        Err((_seat, cause)) => {
            hub.counters().count_closed(hub.admission.refuse(cause, addr));
            let linger = Some(SHORT);
            return close(stream, super::UNAVAILABLE, linger, hub.counters()).await;
        }
    };
    let identity = guest.caller.identity.clone();
    let live = match wish {
        Wish::Socket(wish) => wish.into_live(identity, read_ahead),
        Wish::Events(wish) => match wish.into_live(&guest.edge, identity) {
            Some(live) => live,
            None => return,
        },
    };
    session::run_live(hub, stream, unsettled, live).await;
}

/// The token of a request, from its header or, where that is permitted, from its query; empty if there is none.
///
/// Errors: 401 for what is none.
fn token(headers: &HeaderMap, from_query: Option<&str>) -> Result<String, Problem> {
    let mut shown = headers.get_all(AUTHORIZATION).iter();
    let token = match (shown.next(), shown.next(), from_query) {
        (None, _, None) => return Ok(String::new()),
        (None, _, Some(token)) => Some(token),
        (Some(value), None, None) => {
            bearer(value.as_bytes()).and_then(|token| std::str::from_utf8(token).ok())
        }
        (Some(_), ..) => None,
    };
    token.map(str::to_owned).ok_or_else(unknown_token)
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
        "the token is not one of a device or a service",
    )
}

/// Refuses a token in the query where it is not permitted: it would stand in the logs of whatever is on the way.
fn query_token<'a>(edge: &Edge, token: Option<&'a str>) -> Result<Option<&'a str>, Problem> {
    match token {
        Some(_) if !edge.hub.config().http.query_token => Err(Problem::field(
            "access_token",
            "a token in the query is not taken here (http.query_token); send it in Authorization",
        )),
        token => Ok(token),
    }
}
