//! `GET /v1/events`: the events of connections and of the gateway, as server-sent events.

use std::fmt::Write as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use http_body_util::{BodyExt as _, Either};
use hyper::body::{Body, Frame};
use serde::Serialize;
use tokio::time::{Interval, MissedTickBehavior};
use utoipa::ToSchema;

use crate::base::clock::millis;
use crate::http::web::problem::{Kind, Problem};
use crate::http::web::query::Query;
use crate::http::web::reply::{self, Reply};
use crate::{Event, EventFilter, EventKind, Events, EventsEnd, Handle, Upgraded};

/// A body that continues until the reader leaves, falls behind, or the server ends.
struct EventStream {
    events: Events,
    /// Shows each side that the other one is alive. The first heartbeat opens the stream.
    heartbeat: Interval,
    is_over: bool,
}

/// The data of an event, as one line.
#[derive(Serialize)]
struct EventView<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    time_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    connection: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(flatten)]
    upgrade: Option<UpgradeView>,
}

/// An upgrade, in events and figures.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Upgrade)]
pub(super) struct UpgradeView {
    /// The number of this process.
    pid: u32,
    /// The program of the process before this one, with its version.
    before: String,
    /// How long nobody was served.
    pause_ms: f64,
    /// Connections that this process took over.
    connections: u64,
    /// Connections that the process before this one kept.
    stayed: u64,
}

impl UpgradeView {
    pub(super) fn of(upgraded: &Upgraded) -> UpgradeView {
        UpgradeView {
            pid: upgraded.pid,
            before: upgraded.before.clone(),
            pause_ms: upgraded.pause.as_secs_f64() * 1000.0,
            connections: upgraded.connection_count(),
            stayed: upgraded.stayed.iter().map(|(_, count)| count).sum(),
        }
    }
}

/// Answers with a stream of the events that the query asks for.
pub(super) fn stream(handle: &Handle, query: Option<&str>) -> Result<Reply, Problem> {
    let Some(events) = handle.events(filter(query)?) else {
        let detail =
            format!("{} streams of events are open, which is the limit", Events::READERS_MAX);
        return Err(Problem::retry(Kind::TooManyRequests, RETRY_AFTER, detail));
    };
    let mut heartbeat = tokio::time::interval(HEARTBEAT);
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stream = EventStream { events, heartbeat, is_over: false };
    let mut response = reply::empty(StatusCode::OK);
    let content_type = HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    // The end of the connection then shows the end of the stream.
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    *response.body_mut() = Either::Right(stream.boxed_unsync());
    Ok(response)
}

fn filter(query: Option<&str>) -> Result<EventFilter, Problem> {
    let query = Query::parse(query, &["type", "device", "topic", "sample"])?;
    let mut kinds = Vec::new();
    for word in query.value("type").into_iter().flat_map(|words| words.split(',')) {
        let Some(kind) = EventKind::NAMES.into_iter().find(|name| *name == word) else {
            let known = EventKind::NAMES.join(", ");
            let detail = format!("{word:?} is no type of event; the types are {known}");
            return Err(Problem::field("type", detail));
        };
        kinds.push(kind);
    }
    let sample = match query.value("sample").map(|value| (value, value.parse::<f64>())) {
        Some((_, Ok(share))) if (0.0..=1.0).contains(&share) => Some(share),
        Some((value, _)) => {
            let detail = format!("sample is {value:?}; it is a number from 0 to 1");
            return Err(Problem::field("sample", detail));
        }
        None => None,
    };
    let text = |name| query.value(name).map(str::to_owned);
    Ok(EventFilter { kinds, device: text("device"), topic: text("topic"), sample })
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = io::Error;

    /// Puts the events that are there into one piece, so that they take one write.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let mut text = String::new();
        if self.heartbeat.poll_tick(cx).is_ready() {
            text.push_str(":\n\n");
            // Not ready again at once. The poll registers the waker.
            let _ = self.heartbeat.poll_tick(cx);
        }
        while text.len() < PIECE_BYTES && !self.is_over {
            match self.events.poll_next(cx) {
                Poll::Ready(Ok(event)) => write_event(&event, &mut text),
                Poll::Ready(Err(EventsEnd::Overflow { dropped })) => {
                    // Writing into a String never fails.
                    let _ = write!(text, "event: overflow\ndata: {{\"dropped\":{dropped}}}\n\n");
                    self.is_over = true;
                }
                Poll::Ready(Err(EventsEnd::Closed)) => self.is_over = true,
                Poll::Pending => break,
            }
        }
        match (text.is_empty(), self.is_over) {
            (false, _) => Poll::Ready(Some(Ok(Frame::data(text.into())))),
            (true, true) => Poll::Ready(None),
            (true, false) => Poll::Pending,
        }
    }
}

fn write_event(event: &Event, to: &mut String) {
    let kind = event.kind.name();
    let (reason, upgrade) = match &event.kind {
        EventKind::Disconnected(reason) => (Some(reason.name()), None),
        EventKind::UpgradeFailed(reason) => (Some(reason.as_str()), None),
        EventKind::Upgraded(upgraded) => (None, Some(UpgradeView::of(upgraded))),
        EventKind::Connected | EventKind::Subscribed(_) | EventKind::Unsubscribed(_) => {
            (None, None)
        }
    };
    let view = EventView {
        kind,
        time_ms: millis(event.at),
        connection: event.conn.map(|conn| conn.to_string()),
        device: event.device.as_deref(),
        topic: event.topic(),
        reason,
        upgrade,
    };
    // JSON escapes line breaks, so the data is one line.
    let data = serde_json::to_string(&view).unwrap_or_default();
    let _ = write!(to, "event: {kind}\ndata: {data}\n\n");
}

/// Shorter than the silence after which proxies and firewalls close a connection.
const HEARTBEAT: Duration = Duration::from_secs(15);
const PIECE_BYTES: usize = 8 * 1024;
const RETRY_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_cannot_be_is_refused_by_its_name() {
        for (query, field, says) in [
            (
                "type=connected,opened",
                "type",
                "\"opened\" is no type of event; the types are connected",
            ),
            ("type=", "type", "no type of event"),
            ("sample=1.5", "sample", "sample is \"1.5\"; it is a number from 0 to 1"),
            ("sample=NaN", "sample", "from 0 to 1"),
            ("limit=5", "limit", "known are type, device, topic, sample"),
        ] {
            let problem = filter(Some(query)).unwrap_err();
            let problem = serde_json::to_value(problem.document()).unwrap();
            assert_eq!(problem["field"], field, "{query}");
            assert!(problem["detail"].as_str().unwrap().contains(says), "{problem}");
        }
        let query = Some("type=subscribed,unsubscribed&device=a%2Fb&topic=news%2F&sample=0.25");
        let expected = EventFilter {
            kinds: vec!["subscribed", "unsubscribed"],
            device: Some("a/b".to_owned()),
            topic: Some("news/".to_owned()),
            sample: Some(0.25),
        };
        assert_eq!(filter(query).unwrap(), expected);
        assert_eq!(filter(None).unwrap(), EventFilter::default());
    }

    #[test]
    fn an_event_is_one_line_of_json() {
        let event = Event {
            at: Duration::from_millis(1_700),
            conn: Some(weir_engine::ConnId::from_u64(0xab)),
            device: Some("a\"b".to_owned()),
            kind: EventKind::Disconnected(weir_wire::CloseReason::Stalled),
        };
        let mut text = String::new();
        write_event(&event, &mut text);
        let data = r#"{"type":"disconnected","time_ms":1700,"connection":"00000000000000ab","device":"a\"b","reason":"stalled"}"#;
        assert_eq!(text, format!("event: disconnected\ndata: {data}\n\n"));
        let upgraded = crate::Upgraded {
            at: Duration::from_millis(1_700),
            pid: 7,
            before: "weir 0.0.1".to_owned(),
            pause: Duration::from_micros(2_500),
            connections: vec![("tcp", 3), ("tls", 4)],
            stayed: vec![("http", 1)],
        };
        let kind = EventKind::Upgraded(upgraded);
        let event = Event { at: Duration::from_millis(1_700), conn: None, device: None, kind };
        let mut text = String::new();
        write_event(&event, &mut text);
        let data = r#"{"type":"upgraded","time_ms":1700,"pid":7,"before":"weir 0.0.1","pause_ms":2.5,"connections":7,"stayed":1}"#;
        assert_eq!(text, format!("event: upgraded\ndata: {data}\n\n"));
    }
}
