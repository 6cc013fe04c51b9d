//! Connections, topics and devices as JSON.

use http::StatusCode;
use serde::Serialize;

use crate::web::problem::{Kind, Problem, millis};
use crate::web::query::{self, Query};
use crate::web::reply::{self, Reply};
use crate::{Connection, ConnectionQuery, Handle};

#[derive(Debug, Serialize)]
struct ConnectionView {
    id: String,
    device: String,
    peer: Option<String>,
    source: Option<String>,
    transport: &'static str,
    protocol: &'static str,
    age_ms: u64,
    idle_ms: u64,
    heartbeat_ms: u64,
    queued_bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    stalled_ms: Option<u64>,
    topics: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ConnectionsView {
    connections: Vec<ConnectionView>,
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize)]
struct TopicView {
    topic: String,
    subscribers: u32,
    offset: u64,
    epoch: String,
    class: String,
    retained_messages: usize,
}

#[derive(Debug, Serialize)]
struct TopicsView {
    topics: Vec<TopicView>,
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize)]
struct DeviceView<'a> {
    device: &'a str,
    connections: Vec<ConnectionView>,
}

/// `GET /v1/connections`.
pub(super) async fn connections(handle: &Handle, query: Option<&str>) -> Result<Reply, Problem> {
    let query = Query::parse(query, &["limit", "cursor", "device", "topic"])?;
    let asked = ConnectionQuery {
        device: query.value("device").map(str::to_owned),
        topic: query.value("topic").map(str::to_owned),
        cursor: query.connection_cursor()?,
        limit: query.limit()?,
    };
    let (connections, next) = handle.connections(&asked).await?;
    let view = ConnectionsView {
        connections: connections.into_iter().map(ConnectionView::from).collect(),
        next_cursor: next.map(query::connection_cursor),
    };
    Ok(reply::json(StatusCode::OK, &view))
}

/// `GET /v1/connections/{id}`.
pub(super) async fn connection(handle: &Handle, id: &str) -> Result<Reply, Problem> {
    match handle.connection(connection_id(id)?).await? {
        Some(connection) => Ok(reply::json(StatusCode::OK, &ConnectionView::from(connection))),
        None => Err(no_connection(id)),
    }
}

/// `DELETE /v1/connections/{id}`.
pub(super) async fn close(handle: &Handle, id: &str) -> Result<Reply, Problem> {
    if handle.close(connection_id(id)?).await? {
        return Ok(reply::empty(StatusCode::NO_CONTENT));
    }
    Err(no_connection(id))
}

/// `GET /v1/topics`.
pub(super) fn topics(handle: &Handle, query: Option<&str>) -> Result<Reply, Problem> {
    let query = Query::parse(query, &["limit", "cursor", "prefix"])?;
    let (limit, after) = (query.limit()?, query.topic_cursor()?);
    let prefix = query.value("prefix").unwrap_or_default();
    let mut topics = handle.topics(prefix, after.as_deref(), limit + 1);
    let more = topics.len() > limit;
    topics.truncate(limit);
    let last = topics.last().filter(|_| more);
    let next_cursor = last.map(|last| query::topic_cursor(&last.topic));
    let topics = topics.into_iter().map(|info| TopicView {
        topic: info.topic,
        subscribers: info.subscribers,
        offset: info.offset,
        epoch: format!("{:016x}", info.epoch),
        class: info.class,
        retained_messages: info.retained_messages,
    });
    Ok(reply::json(StatusCode::OK, &TopicsView { topics: topics.collect(), next_cursor }))
}

/// `GET /v1/devices/{id}`.
pub(super) async fn device(handle: &Handle, id: &str) -> Result<Reply, Problem> {
    let id = &query::segment(id, "id")?;
    let Some(connections) = handle.device(id).await? else { return Err(no_device(id)) };
    let connections = connections.into_iter().map(ConnectionView::from).collect();
    Ok(reply::json(StatusCode::OK, &DeviceView { device: id, connections }))
}

/// `POST /v1/devices/{id}/revoke`; its body is empty, or an empty object.
pub(super) async fn revoke(handle: &Handle, id: &str, body: &[u8]) -> Result<Reply, Problem> {
    let body: String = String::from_utf8_lossy(body).split_whitespace().collect();
    if !matches!(body.as_str(), "" | "{}") {
        let detail = "the body of this request is empty, or an empty object";
        return Err(Problem::new(Kind::InvalidRequest, detail));
    }
    let id = &query::segment(id, "id")?;
    if handle.revoke(id).await? {
        return Ok(reply::empty(StatusCode::NO_CONTENT));
    }
    Err(no_device(id))
}

impl From<Connection> for ConnectionView {
    fn from(connection: Connection) -> Self {
        let info = connection.info;
        Self {
            id: info.id.to_string(),
            device: connection.device,
            peer: info.peer.map(|peer| peer.to_string()),
            source: connection.source,
            transport: info.transport.name(),
            protocol: info.origin.format.name(),
            age_ms: millis(info.age),
            idle_ms: millis(info.idle),
            heartbeat_ms: millis(info.heartbeat),
            queued_bytes: info.queued_bytes,
            stalled_ms: info.stalled.map(millis),
            topics: connection.topics,
        }
    }
}

fn connection_id(text: &str) -> Result<weir_engine::ConnId, Problem> {
    let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match text.parse() {
        Ok(id) if digits => Ok(id),
        Ok(_) | Err(_) => Err(Problem::field("id", "a connection's id is 16 hexadecimal digits")),
    }
}

fn no_connection(id: &str) -> Problem {
    Problem::new(Kind::NotFound, format!("there is no connection {id}"))
}

fn no_device(id: &str) -> Problem {
    Problem::new(Kind::NotFound, format!("device {id:?} is not known here"))
}
