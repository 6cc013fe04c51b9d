//! The lines of the access log, for requests that this edge answers.

use std::time::Instant;

use http::header::{HOST, HeaderMap, REFERER, USER_AGENT};
use http::{HeaderValue, Method, Request, Version};

use super::connection::HttpConnection;
use crate::observe::access::Entry;
use crate::observe::access::ids::Ids;
use crate::observe::access::line::{
    HOST_BYTES_MAX, METHOD_BYTES_MAX, REFERER_BYTES_MAX, TARGET_BYTES_MAX, USER_AGENT_BYTES_MAX,
};

/// The parts of a request that outlive its head; only where there is an access log.
pub(super) struct Noted {
    pub(super) began: Instant,
    method: Method,
    target: Box<str>,
    host: Option<HeaderValue>,
    user_agent: Option<HeaderValue>,
    referer: Option<HeaderValue>,
}

/// The device or service whose token a request has shown. It is an extension of the answer, if
/// there is an access log.
#[derive(Debug, Clone)]
pub(crate) struct Asker(pub(crate) Box<str>);

/// The parts of an answered request that the access log shows.
struct Seen<'a> {
    began: Instant,
    method: &'a Method,
    target: &'a str,
    version: Version,
    host: Option<&'a HeaderValue>,
    user_agent: Option<&'a HeaderValue>,
    referer: Option<&'a HeaderValue>,
}

/// The part of an answer that the access log shows.
pub(super) struct LoggedAnswer<'a> {
    pub(super) status: u16,
    /// The length of the answer's body, as far as it is known.
    pub(super) bytes: u64,
    pub(super) device: Option<&'a str>,
}

impl Noted {
    /// Limits: of each text it keeps as much as a line shows, and one byte more, so that the line
    /// shows the cut.
    pub(super) fn of<B>(began: Instant, request: &Request<B>) -> Box<Noted> {
        let headers = request.headers();
        let noted = |name, max| headers.get(name).map(|value| clipped(value, max));
        let path = request.uri().path();
        let end = (0..=path.len().min(TARGET_BYTES_MAX + 1)).rev();
        let end = end.into_iter().find(|end| path.is_char_boundary(*end));
        Box::new(Noted {
            began,
            method: short_method(request.method()),
            target: path[..end.unwrap_or(0)].into(),
            host: noted(HOST, HOST_BYTES_MAX),
            user_agent: noted(USER_AGENT, USER_AGENT_BYTES_MAX),
            referer: noted(REFERER, REFERER_BYTES_MAX),
        })
    }

    /// Gives the access log the line of the request.
    pub(super) fn record(
        &self,
        connection: &HttpConnection,
        version: Version,
        ids: &Ids,
        answer: &LoggedAnswer<'_>,
    ) {
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
        seen.record(connection, ids, answer);
    }
}

fn short_method(method: &Method) -> Method {
    let shown = method.as_str().as_bytes().get(..=METHOD_BYTES_MAX);
    shown.and_then(|shown| Method::from_bytes(shown).ok()).unwrap_or_else(|| method.clone())
}

/// The value; only its beginning if it is longer than a line shows.
fn clipped(value: &HeaderValue, max: usize) -> HeaderValue {
    if value.len() <= max + 1 {
        return value.clone();
    }
    HeaderValue::from_bytes(&value.as_bytes()[..=max]).unwrap_or_else(|_| value.clone())
}

/// Gives the access log the line of a request that is answered while its head is still there.
pub(super) fn record_at_once(
    connection: &HttpConnection,
    began: Instant,
    (method, target, version): (&Method, &str, Version),
    headers: &HeaderMap,
    (ids, answer): (&Ids, &LoggedAnswer<'_>),
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
    seen.record(connection, ids, answer);
}

impl Seen<'_> {
    fn record(&self, connection: &HttpConnection, ids: &Ids, answer: &LoggedAnswer<'_>) {
        let Seen { began, method, target, version, host, user_agent, referer } = *self;
        connection.edge.shared.access_log.record(&Entry {
            began,
            took: began.elapsed(),
            remote: connection.caller.peer,
            method: method.as_str(),
            target,
            version,
            status: answer.status,
            bytes: answer.bytes,
            host: host.map(HeaderValue::as_bytes),
            user_agent: user_agent.map(HeaderValue::as_bytes),
            referer: referer.map(HeaderValue::as_bytes),
            device: answer.device,
            ids,
        });
    }
}
