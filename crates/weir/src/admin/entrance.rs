//! The way in: who sends a request, whether he may, and what the audit log says of it.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use hyper::body::Body;
use weir_engine::Nanos;

use super::audit::{self, Published};
use super::guard::{Guard, NOBODY, Refused, Sender};
use super::leased::leased;
use super::routes::{Asked, Route, Routes};
use super::session::{Attempt, Signed};
use crate::http::web::body;
use crate::http::web::problem::{Kind, Problem};
use crate::http::web::reply::Reply;
use crate::observe::audit::{Act, ActOutcome, Record};

/// The addresses at the two ends of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ends {
    /// The address that accepted it.
    pub(super) local: IpAddr,
    pub(super) peer: IpAddr,
}

/// Answers a request, and notes in the audit log what it did or tried to do.
pub(super) async fn answer<B>(routes: &Routes, ends: Ends, request: Request<B>) -> Reply
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (head, body) = request.into_parts();
    let asked = routes.find(&head);
    let published = Published::default();
    let mut note = Note {
        routes,
        from: ends.peer,
        asked: &asked,
        published: &published,
        who: Sender::Nobody,
        outcome: None,
    };
    let page = routes.page(&head);
    match admit(routes, ends, &asked, page.is_some()) {
        Err(Refused { outcome, who, problem }) => {
            note.outcome = Some(outcome);
            note.who = who.map_or(Sender::Nobody, Sender::Token);
            problem.into_response()
        }
        Ok((sender, _)) if asked.is_sign_in() => {
            let (access, room) = (&routes.shared().admin_access, &routes.sign_in_room);
            let attempt = Attempt { access, room, head: &head, local: ends.local, from: ends.peer };
            let Signed { who, outcome, answer } = Box::pin(attempt.sign_in(body)).await;
            note.outcome = Some(outcome);
            note.who = who.map_or(sender, Sender::Token);
            answer.unwrap_or_else(Problem::into_response)
        }
        Ok((sender, is_own_host)) => {
            if let Some(page) = page {
                let reply = page.unwrap_or_else(Problem::into_response);
                note.outcome = audit::outcome(asked.act(), false, reply.status());
                return reply;
            }
            note.who = sender;
            note.outcome = audit::is_change(asked.act()).then_some(ActOutcome::BrokenOff);
            let answered = routes.carry_out(&asked, (&note.who, is_own_host), body, &published);
            let reply = answered.await.unwrap_or_else(Problem::into_response);
            let reply = leased(reply, || note.who.lease(&routes.shared().admin_access));
            let is_nowhere = asked.route.is_none();
            note.outcome = audit::outcome(asked.act(), is_nowhere, reply.status());
            reply
        }
    }
}

/// What the audit log will say of a request when it ends. If its caller goes away, it ends without
/// an answer, and some acts are carried out nevertheless.
struct Note<'a> {
    routes: &'a Routes,
    from: IpAddr,
    asked: &'a Asked<'a>,
    published: &'a Published,
    who: Sender,
    /// `None`: nothing.
    outcome: Option<ActOutcome>,
}

impl Drop for Note<'_> {
    fn drop(&mut self) {
        let Some(outcome) = self.outcome else { return };
        let (from, act) = (self.from, self.asked.act());
        let record = Record { who: self.who.name(), from, act, outcome };
        let what = || audit::target((act, outcome), self.asked.id, self.asked.head, self.published);
        self.routes.shared().audit.note(&record, what, now());
    }
}

/// Notes input of a peer that is not HTTP, or a head over the limit.
pub(super) fn note_malformed(routes: &Routes, peer: IpAddr, is_too_long: bool) {
    let what = if is_too_long { "a head that is too long" } else { "a head that is not HTTP/1.1" };
    let outcome = ActOutcome::Invalid;
    let record = Record { who: NOBODY, from: peer, act: Act::Other, outcome };
    routes.shared().audit.note(&record, || what.into(), now());
}

/// The sender of a request that it may make, and whether the request names this server.
fn admit(
    routes: &Routes,
    ends: Ends,
    asked: &Asked<'_>,
    is_page: bool,
) -> Result<(Sender, bool), Refused> {
    let (guard, head) = (Guard(&routes.shared().admin_access), asked.head);
    let is_open = asked.route.is_some_and(Route::is_open);
    let is_own_host = guard.check_host(head, ends.local, is_open)?;
    if !body::is_chunked_alone(&head.headers) {
        let detail = "this server knows only the transfer coding chunked, used once";
        let problem = Problem::new(Kind::UnknownCoding, detail);
        return Err(Refused::invalid(problem.at_header("Transfer-Encoding")));
    }
    if asked.is_sign_in() || is_page {
        return Ok((Sender::Nobody, is_own_host));
    }
    let sender = guard.identify(head);
    if is_open {
        let known = sender.ok().filter(|_| is_own_host);
        return Ok((known.unwrap_or(Sender::Nobody), is_own_host));
    }
    let sender = sender?;
    guard.permit(&sender, asked.need())?;
    Ok((sender, is_own_host))
}

fn now() -> Duration {
    Duration::from_nanos(Nanos::now().0)
}
