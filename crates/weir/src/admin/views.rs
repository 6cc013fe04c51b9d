//! Connections, topics and devices as JSON.

use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::device_list;
use crate::base::clock::millis;
use crate::http::web::problem::{Kind, Problem};
use crate::http::web::query::{self, Query};
use crate::http::web::reply::{self, Reply};
use crate::provisioning::device_store::StoredDevice;
use crate::{Connection, ConnectionQuery, Handle};

/// A connection.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Connection)]
pub(super) struct ConnectionView {
    /// 16 hexadecimal digits.
    #[schema(pattern = "^[0-9a-f]{16}$")]
    id: String,
    device: String,
    #[schema(required)]
    peer: Option<String>,
    /// The address by which limits count the connection.
    #[schema(required)]
    source: Option<String>,
    /// `tcp` or `tls`.
    transport: &'static str,
    protocol: &'static str,
    age_ms: u64,
    idle_ms: u64,
    heartbeat_ms: u64,
    queued_bytes: usize,
    /// Set only above the high watermark.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64, required = false)]
    stalled_ms: Option<u64>,
    topics: Vec<String>,
}

/// A page of connections.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Connections)]
pub(super) struct ConnectionsView {
    connections: Vec<ConnectionView>,
    /// `null` on the last page.
    #[schema(required)]
    next_cursor: Option<String>,
}

/// A topic.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Topic)]
pub(super) struct TopicView {
    topic: String,
    subscribers: u32,
    offset: u64,
    /// 16 hexadecimal digits.
    #[schema(pattern = "^[0-9a-f]{16}$")]
    epoch: String,
    /// The pattern of its topic class.
    class: String,
    retained_messages: usize,
}

/// A page of topics.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Topics)]
pub(super) struct TopicsView {
    topics: Vec<TopicView>,
    /// `null` on the last page.
    #[schema(required)]
    next_cursor: Option<String>,
}

/// A device that is connected, connecting, or in the store.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Device)]
pub(super) struct DeviceView<'a> {
    device: &'a str,
    connections: Vec<ConnectionView>,
    /// The store's record of the device; `null` if there is none.
    #[schema(required)]
    stored: Option<StoredDevice>,
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
    let (connections, stored) = (handle.device(id).await?, device_list::find(handle, id).await?);
    if connections.is_none() && stored.is_none() {
        return Err(no_device(id));
    }
    let connections = connections.into_iter().flatten().map(ConnectionView::from).collect();
    Ok(reply::json(StatusCode::OK, &DeviceView { device: id, connections, stored }))
}

/// `POST /v1/devices/{id}/revoke`; its body is empty, or an empty object.
pub(super) async fn revoke(handle: &Handle, id: &str, body: &[u8]) -> Result<Reply, Problem> {
    let body: String = String::from_utf8_lossy(body).split_whitespace().collect();
    if !matches!(body.as_str(), "" | "{}") {
        let detail = "send no body, or an empty object";
        return Err(Problem::new(Kind::InvalidRequest, detail));
    }
    let id = &query::segment(id, "id")?;
    if device_list::revoke(handle, id).await? {
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
