//! What the access log is told of a request, by whoever answers it.

use std::time::Instant;

use http::header::{HOST, HeaderMap, REFERER, USER_AGENT};
use http::{HeaderValue, Method, Request, Version};

use super::access::Entry;
use super::access::ids::Ids;
use super::guest::Guest;

/// What of a request outlives its head, where there is an access log.
pub(super) struct Noted {
    pub(super) began: Instant,
    method: Method,
    target: Box<str>,
    host: Option<HeaderValue>,
    user_agent: Option<HeaderValue>,
    referer: Option<HeaderValue>,
}

/// The device or service whose token a request has shown: an extension of its answer.
#[derive(Debug, Clone)]
pub(crate) struct Asker(pub(crate) Box<str>);

/// What is known of a request that has been answered.
struct Seen<'a> {
    began: Instant,
    method: &'a Method,
    target: &'a str,
    version: Version,
    host: Option<&'a HeaderValue>,
    user_agent: Option<&'a HeaderValue>,
    referer: Option<&'a HeaderValue>,
}

/// How it was answered.
pub(super) struct Outcome<'a> {
    pub(super) status: u16,
    /// Length of the answer's body, as far as it is known.
    pub(super) bytes: u64,
    pub(super) device: Option<&'a str>,
}

impl Noted {
    pub(super) fn of<B>(began: Instant, request: &Request<B>) -> Box<Noted> {
        let headers = request.headers();
        Box::new(Noted {
            began,
            method: request.method().clone(),
            target: request.uri().path().into(),
            host: headers.get(HOST).cloned(),
            user_agent: headers.get(USER_AGENT).cloned(),
            referer: headers.get(REFERER).cloned(),
        })
    }

    /// Has the log take the line of its request.
    pub(super) fn record(&self, guest: &Guest, version: Version, ids: &Ids, outcome: &Outcome<'_>) {
        let Noted { began, method, target, host, user_agent, referer } = self;
        let seen = Seen {
            began: *began,
            method,
            target,
            version,
            host: host.as_ref(),
            user_agent: user_agent.as_ref(),
            referer: referer.as_ref(),
        };
        seen.record(guest, ids, outcome);
    }
}

/// Has the log take the line of a request that is answered while its head is there.
pub(super) fn record_at_once(
    guest: &Guest,
    began: Instant,
    (method, target, version): (&Method, &str, Version),
    headers: &HeaderMap,
    (ids, outcome): (&Ids, &Outcome<'_>),
) {
    let (mut host, mut user_agent, mut referer) = (None, None, None);
    for (name, value) in headers {
        match name.as_str() {
            "host" => host = Some(value),
            "user-agent" => user_agent = Some(value),
            "referer" => referer = Some(value),
            _ => {}
        }
    }
    let seen = Seen { began, method, target, version, host, user_agent, referer };
    seen.record(guest, ids, outcome);
}

impl Seen<'_> {
    fn record(&self, guest: &Guest, ids: &Ids, outcome: &Outcome<'_>) {
        let Seen { began, method, target, version, host, user_agent, referer } = *self;
        guest.edge.hub.access_log.record(&Entry {
            began,
            took: began.elapsed(),
            remote: guest.caller.peer,
            method: method.as_str(),
            target,
            version,
            status: outcome.status,
            bytes: outcome.bytes,
            host: host.map(HeaderValue::as_bytes),
            user_agent: user_agent.map(HeaderValue::as_bytes),
            referer: referer.map(HeaderValue::as_bytes),
            device: outcome.device,
            ids,
        });
    }
}
