//! Requests for server-sent events (WHATWG HTML, section 9.2).

use std::collections::HashSet;

use http::header::HeaderName;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response};
use weir_wire::CloseReason;
use weir_wire::format::{self, Format};
use weir_wire::v1::{Hello, Position, Subscribe};

use super::{query_token, token, user_agent};
use crate::auth::{Admission, Bearer, Claim};
use crate::connection::opening::{CallerIdentity, Upgraded};
use crate::http::Edge;
use crate::http::connection::HttpConnection;
use crate::http::web::problem::{Kind, Problem};
use crate::http::web::query::Query;
use crate::limits::admission::AcceptOrder;

/// A valid request for events.
#[derive(Clone)]
pub(crate) struct EventsUpgrade {
    pub(super) order: AcceptOrder,
    hello: Hello,
    /// The admitted device, once it is known.
    admission: Option<Box<Admission>>,
    /// Positions from `Last-Event-ID`; `None`: the request has none.
    last: Option<Vec<Position>>,
    /// Headers of the answer.
    headers: HeaderMap,
}

impl std::fmt::Debug for EventsUpgrade {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventsUpgrade")
            .field("topics", &self.hello.topics.len())
            .finish_non_exhaustive()
    }
}

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// One position takes 18 to 38 bytes.
const POSITION_BYTES_MAX: usize = 38;

impl EventsUpgrade {
    pub(super) fn of(
        edge: &Edge,
        head: &Parts,
        allowed: Option<HeaderValue>,
        order: AcceptOrder,
    ) -> Result<EventsUpgrade, Problem> {
        let config = edge.shared.config();
        let limits = &config.limits;
        let known = ["device", "heartbeat_ms", "access_token", "last_event_id"];
        let lists = ["topic", "presence"];
        let (query, [mut topics, presence]) =
            Query::parse_with_lists(head.uri.query(), &known, lists)?;
        let mut named = HashSet::new();
        topics.retain(|topic| named.insert(topic.clone()));
        if topics.len() > limits.topics_per_connection_max {
            let detail = format!(
                "{} topics are more than the limit of {} (limits.topics_per_connection_max)",
                topics.len(),
                limits.topics_per_connection_max
            );
            return Err(Problem::field("topic", detail));
        }
        let heartbeat_ms = match query.value("heartbeat_ms").map(str::parse) {
            None | Some(Ok(0)) => edge.heartbeat_of_events_ms(),
            Some(Ok(ms)) => ms,
            Some(Err(_)) => {
                return Err(Problem::field("heartbeat_ms", "it is not a number of milliseconds"));
            }
        };
        if let Some(topic) = presence.iter().find(|topic| !named.contains(*topic)) {
            let detail = format!("{topic:?} is none of the topics that this request asks for");
            return Err(Problem::field("presence", detail));
        }
        let from_query = query_token(edge, query.value("access_token"))?;
        let token = token(&head.headers, from_query)?;
        let device_id = query.value("device").unwrap_or_default().to_owned();
        let last = last_event_id(head, query.value("last_event_id"), topics.len())?;
        let subscribe =
            |topic| Subscribe { presence: presence.contains(&topic), position: None, topic };
        let topics = topics.into_iter().map(subscribe).collect();
        let client = user_agent(&head.headers);
        let hello = Hello { device_id, token, client, heartbeat_ms, topics, calls: false };
        let mut headers = headers();
        edge.api.mark_origin(&mut headers, allowed);
        Ok(EventsUpgrade { order, hello, admission: None, last, headers })
    }

    /// Names of the topics of which the client names a position, or might.
    pub(super) fn resumed(&self) -> impl Iterator<Item = &str> {
        let topics = self.last.is_some().then_some(&self.hello.topics);
        topics.into_iter().flatten().map(|subscribe| subscribe.topic.as_str())
    }

    pub(super) fn token(&self) -> &str {
        &self.hello.token
    }

    /// Claims the device id for the token. A refusal here is an HTTP answer; after the move it
    /// would be a close.
    pub(super) fn claim(
        &self,
        connection: &HttpConnection,
        bearer: &Bearer,
    ) -> Result<Claim, Problem> {
        let named = connection.caller.identity.as_deref();
        let claim = connection.edge.shared.auth.admit(named, &self.hello.device_id, bearer);
        claim.map_err(|reason| refused(reason, &self.hello.token))
    }

    pub(super) fn admitted(self, admission: Admission) -> EventsUpgrade {
        EventsUpgrade { admission: Some(Box::new(admission)), ..self }
    }

    /// The device of the request, as the request or its token names it.
    pub(super) fn device(&self) -> Option<&str> {
        self.admission.as_ref().map(|admission| &*admission.device)
    }

    /// Over HTTP/1.1: writes the head itself. The body has no length and ends with the connection.
    ///
    /// `None`: the device was not admitted.
    pub(super) fn into_live(self, edge: &Edge, identity: Option<String>) -> Option<Upgraded> {
        let mut head = String::from("HTTP/1.1 200 OK\r\nConnection: close\r\n");
        for (name, value) in &self.headers {
            head.push_str(name.as_str());
            head.push_str(": ");
            head.push_str(value.to_str().unwrap_or_default());
            head.push_str("\r\n");
        }
        head.push_str("\r\n");
        Some(Upgraded { head: head.into_bytes(), ..self.into_events(edge, identity)? })
    }

    /// The same without a head.
    pub(super) fn into_events(self, edge: &Edge, identity: Option<String>) -> Option<Upgraded> {
        let EventsUpgrade { mut hello, admission, last, .. } = self;
        debug_assert!(admission.is_some(), "it is moved when it has been admitted");
        let admission = admission?;
        if let Some(last) = last {
            let epoch = |subscribe: &Subscribe| edge.shared.router.epoch(&subscribe.topic);
            let epochs: Vec<_> = hello.topics.iter().map(epoch).collect();
            let without = position_without(&last, &epochs);
            for (subscribe, epoch) in hello.topics.iter_mut().zip(&epochs) {
                let own = last.iter().find(|position| Some(position.epoch) == *epoch);
                subscribe.position = own.copied().or(without);
            }
        }
        // A topic that is resumed later also stands in the events before. Otherwise a cut in
        // between would lose its position.
        let asked = hello.topics.iter().filter_map(|subscribe| subscribe.position);
        let asked = asked.filter(|position| position.epoch != 0);
        let asked = asked.map(|Position { epoch, offset }| (epoch, offset)).collect();
        Some(Upgraded {
            head: Vec::new(),
            read_ahead: Vec::new(),
            identity,
            format: Format::Sse,
            positions: (hello.topics.len() > 1).then_some(asked),
            caller: CallerIdentity::Is(hello, admission),
        })
    }

    /// Over HTTP/2: the head of the answer.
    pub(super) fn response<B>(&self, body: B) -> Response<B> {
        let mut response = Response::new(body);
        *response.headers_mut() = self.headers.clone();
        response
    }
}

/// The headers of the answer.
fn headers() -> HeaderMap {
    use http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // A proxy that buffers answers would keep the events.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    headers
}

/// The problem for a refused claim.
fn refused(reason: CloseReason, token: &str) -> Problem {
    if reason == CloseReason::Malformed {
        return Problem::field(
            "device",
            "name a device, without control characters and within limits.device_id_bytes_max, unless the token belongs to one",
        );
    }
    if token.is_empty() {
        return Problem::unauthorized(
            "Bearer realm=\"weir\"",
            "send one header \"Authorization: Bearer TOKEN\" with the token of a device or a service",
        );
    }
    Problem::new(Kind::Forbidden, "the token does not admit this device").at("device")
}

/// The positions that the client has reached. The header counts before the parameter. The parameter
/// is for clients that cannot set a header in their first request.
fn last_event_id(
    head: &Parts,
    parameter: Option<&str>,
    topics: usize,
) -> Result<Option<Vec<Position>>, Problem> {
    let header = head.headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok());
    let Some(id) = header.or(parameter).filter(|id| !id.is_empty()) else { return Ok(None) };
    let positions = (id.len() <= topics * POSITION_BYTES_MAX).then(|| format::parse_sse_id(id));
    match positions.flatten() {
        Some(positions) => Ok(Some(positions)),
        // An id that is not ours counts like an id of an earlier start.
        None => Ok(Some(Vec::new())),
    }
}

/// What stands for the position of a topic without one in the id.
///
/// A position does not name its topic. If each belongs to a topic of the request, the others are new
/// to the client, and go on from now. Otherwise the epoch of one of them may have ended, and they get
/// a position that no topic has, so that the answer is `recovered: false`.
fn position_without(last: &[Position], epochs: &[Option<u64>]) -> Option<Position> {
    let is_known = |position: &Position| epochs.contains(&Some(position.epoch));
    let are_new = !last.is_empty() && last.iter().all(is_known);
    (!are_new).then_some(Position { epoch: 0, offset: 0 })
}
