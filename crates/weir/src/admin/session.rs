//! `/v1/session`: signs a browser in with a token, tells who is signed in, and signs out.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::header::{HeaderValue, SET_COOKIE};
use http::request::Parts;
use hyper::body::Body;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::guard::{self, Guard, Sender};
use crate::auth::admin::{AdminAccess, Caller, Session, SignIn};
use crate::base::clock::{millis, unix_millis};
use crate::http::web::body::{self, Room};
use crate::http::web::json::{Text, parse};
use crate::http::web::problem::{Kind, Problem};
use crate::http::web::query::Query;
use crate::http::web::reply::{self, Reply};
use crate::observe::audit::ActOutcome;

/// The token that opens a session.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = SignIn)]
#[serde(deny_unknown_fields)]
pub(super) struct SignInRequest<'a> {
    /// The token of `admin.token`, or one of `[[admin.tokens]]`.
    #[serde(borrow)]
    #[schema(value_type = String)]
    token: Text<'a>,
}

/// The caller of the admin API.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Session)]
pub(super) struct SessionView<'a> {
    /// The name of the token: `admin` for `admin.token`, and `anyone` where no token is needed.
    name: &'a str,
    /// The scopes of the token: `read`, `publish`, `operate`, `devices`.
    may: Vec<&'static str>,
    /// The end of the session if it is not used any more, in milliseconds since 1970; `null`: there
    /// is no session, but a token in the request, or none is needed.
    #[schema(required)]
    expires_at_ms: Option<u64>,
}

/// A request to sign in, and what is known of it.
pub(super) struct Attempt<'a> {
    pub(super) access: &'a AdminAccess,
    pub(super) room: &'a Room,
    pub(super) head: &'a Parts,
    /// The address that accepted the connection, and that of the peer.
    pub(super) local: IpAddr,
    pub(super) from: IpAddr,
}

/// What has become of it.
pub(super) struct Signed {
    /// The owner of the token.
    pub(super) who: Option<Arc<Caller>>,
    pub(super) outcome: ActOutcome,
    pub(super) answer: Result<Reply, Problem>,
}

impl Attempt<'_> {
    /// `POST /v1/session`. The id of the session is always a new one, whatever cookies come with the
    /// request; a session that it shows ends.
    ///
    /// Limits: failed attempts by source. A malformed request is none.
    pub(super) async fn sign_in<B>(self, body: B) -> Signed
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if let Err(after) = self.access.begin_attempt(self.from) {
            return Signed::refused(None, ActOutcome::Limited, limited(after));
        }
        let signed = self.try_token(body).await;
        if signed.outcome != ActOutcome::WrongToken {
            self.access.give_back_attempt(self.from);
        }
        signed
    }

    async fn try_token<B>(&self, body: B) -> Signed
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let headers = &self.head.headers;
        let invalid = |problem| Signed::refused(None, ActOutcome::Invalid, problem);
        let checked = Query::parse(self.head.uri.query(), &[])
            .and_then(|_| body::check_json(headers))
            .and_then(|()| self.room.check(headers));
        let announced = match checked {
            Ok(announced) => announced,
            Err(problem) => return invalid(problem),
        };
        let body = match self.room.read(announced, body).await {
            Ok(body) => body,
            Err(problem) => return invalid(problem),
        };
        let token = match parse::<SignInRequest<'_>>(&body.bytes) {
            Ok(request) => request.token.0,
            Err(problem) => return invalid(problem),
        };
        match self.access.sign_in(&token) {
            Ok(SignIn::Needless) => {
                Signed { who: None, outcome: ActOutcome::Done, answer: Ok(look(&Sender::Anyone)) }
            }
            Ok(SignIn::Session { id, session }) => self.open(&id, session),
            Ok(SignIn::Service(caller)) => {
                let detail = format!(
                    "the token of service {:?} opens no session; use admin.token or one of admin.tokens",
                    caller.name()
                );
                Signed::refused(Some(caller), ActOutcome::WrongScope, Problem::forbidden(detail))
            }
            Ok(SignIn::WrongToken) => {
                let detail = "the token is not the one of admin.token, nor one of admin.tokens";
                let refused = guard::wrong_token(detail);
                Signed::refused(None, refused.outcome, *refused.problem)
            }
            Err(error) => {
                tracing::error!(%error, "cannot make the id of a session");
                let detail = "the system has no random bytes; try again";
                let problem = Problem::retry(Kind::Busy, Duration::from_secs(1), detail);
                Signed::refused(None, ActOutcome::Failed, problem)
            }
        }
    }

    fn open(&self, id: &str, session: Arc<Session>) -> Signed {
        for shown in guard::session_ids(&self.head.headers) {
            if let Some(earlier) = self.access.session(shown) {
                self.access.sign_out(&earlier);
            }
        }
        let who = Some(Arc::clone(session.caller()));
        let is_https = Guard(self.access).is_https(self.head, self.local);
        let mut reply = look(&Sender::Session(session));
        set_cookie(&mut reply, id, is_https, "");
        Signed { who, outcome: ActOutcome::Done, answer: Ok(reply) }
    }
}

impl Signed {
    fn refused(who: Option<Arc<Caller>>, outcome: ActOutcome, problem: Problem) -> Signed {
        Signed { who, outcome, answer: Err(problem) }
    }
}

/// `GET /v1/session`.
pub(super) fn look(sender: &Sender) -> Reply {
    let left = match sender {
        Sender::Session(session) => Some(session.left()),
        Sender::Anyone | Sender::Nobody | Sender::Token(_) => None,
    };
    let view = SessionView {
        name: sender.name(),
        may: sender.scopes().iter().map(|scope| scope.name()).collect(),
        expires_at_ms: left.map(|left| unix_millis() + millis(left)),
    };
    reply::json(StatusCode::OK, &view)
}

/// `DELETE /v1/session`. A token that came without a session stays valid.
pub(super) fn sign_out(access: &AdminAccess, sender: &Sender) -> Reply {
    if let Sender::Session(session) = sender {
        access.sign_out(session);
    }
    let mut reply = reply::empty(StatusCode::NO_CONTENT);
    set_cookie(&mut reply, "", false, "; Max-Age=0");
    reply
}

fn set_cookie(reply: &mut Reply, id: &str, is_secure: bool, more: &str) {
    let secure = if is_secure { "; Secure" } else { "" };
    let name = guard::SESSION_COOKIE;
    let cookie = format!("{name}={id}; HttpOnly; SameSite=Strict; Path=/{secure}{more}");
    // An id is base64url.
    if let Ok(cookie) = HeaderValue::try_from(cookie) {
        reply.headers_mut().insert(SET_COOKIE, cookie);
    }
}

fn limited(after: Duration) -> Problem {
    let detail = "too many attempts to sign in from this address have failed; try again";
    Problem::retry(Kind::TooManyFailures, after, detail)
}

/// The room for requests to sign in: strangers must not take that of publishers.
pub(super) fn room() -> Room {
    Room::new(BODY_BYTES_MAX, BODY_TIMEOUT, ROOM_BUDGET_BYTES)
}

/// The longest token, with every byte escaped.
const BODY_BYTES_MAX: usize = 32 * 1024;
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// A room takes a sixteenth of its budget: here 1 MiB.
const ROOM_BUDGET_BYTES: usize = 16 << 20;
