//! Connections, topics and devices as JSON.

use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::device_list;
use crate::core::node::{
    Confirmations, ConnectionView, NodeAbout, NodeInfo, Others, Question, settings_differ,
};
use crate::core::rights::Denied;
use crate::http::web::presence::{PageAsked, PresenceView};
use crate::http::web::problem::{Kind, Problem};
use crate::http::web::query::{self, Query};
use crate::http::web::reply::{self, Reply};
use crate::provisioning::device_store::StoredDevice;
use crate::{ConnectionCursor, ConnectionQuery, Handle};

/// A page of connections.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Connections)]
pub(super) struct ConnectionsView {
    connections: Vec<ConnectionView>,
    /// `null` on the last page.
    #[schema(required)]
    next_cursor: Option<String>,
    #[serde(flatten)]
    missing: MissingView,
}

/// What is missing in an answer of several nodes.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(super) struct MissingView {
    /// Nodes of the cluster that did not answer; their connections are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    missing_nodes: Vec<u16>,
    /// Present, and true, if the broker did not tell which nodes there are.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    nodes_unknown: bool,
}

/// The nodes that live.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Nodes)]
pub(super) struct NodesView {
    nodes: Vec<NodeView>,
    /// Whether `topic_classes` differ between nodes.
    settings_differ: bool,
}

/// A node.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Node)]
pub(super) struct NodeView {
    /// 0 if it belongs to no cluster.
    number: u16,
    name: String,
    /// Whether it has answered this request itself.
    own: bool,
    /// `null` if a node of another version tells something else.
    #[schema(required)]
    about: Option<NodeAbout>,
}

/// A device that is revoked, but perhaps still connected somewhere.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Revoking)]
pub(super) struct RevokingView {
    /// Nodes that have closed the device's connections.
    confirmed: Vec<u16>,
    #[serde(flatten)]
    missing: MissingView,
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
    #[serde(flatten)]
    missing: MissingView,
}

/// `GET /v1/connections`.
pub(super) async fn connections(handle: &Handle, query: Option<&str>) -> Result<Reply, Problem> {
    let query = Query::parse(query, &["limit", "cursor", "device", "topic", "node"])?;
    let asked = ConnectionQuery {
        device: query.value("device").map(str::to_owned),
        topic: query.value("topic").map(str::to_owned),
        cursor: query.connection_cursor()?,
        limit: query.limit()?,
    };
    let shared = handle.shared();
    let number = match query.value("node") {
        Some(number) => node_number(number)?,
        None => shared.node.as_ref().map_or(0, |node| node.number()),
    };
    let found = shared.connections_at(number, asked).await?;
    let missing_nodes = if found.is_some() { vec![] } else { vec![number] };
    let found = found.unwrap_or_default();
    let cursor = |(shard, cursor)| query::connection_cursor(ConnectionCursor { shard, cursor });
    let view = ConnectionsView {
        connections: found.connections,
        next_cursor: found.next.map(cursor),
        missing: MissingView { missing_nodes, nodes_unknown: false },
    };
    Ok(reply::json(StatusCode::OK, &view))
}

/// `GET /v1/connections/{id}`.
pub(super) async fn connection(handle: &Handle, id: &str) -> Result<Reply, Problem> {
    let (shared, number) = (handle.shared(), connection_id(id)?);
    if let Some(connection) = handle.connection(number).await? {
        return Ok(reply::json(StatusCode::OK, &shared.view(connection)));
    }
    let others = shared.ask_others(Question::Connection { id: number.to_u64() }).await;
    match others.connections.first() {
        Some(connection) => Ok(reply::json(StatusCode::OK, connection)),
        None => Err(nowhere(&others, no_connection(id))),
    }
}

/// `DELETE /v1/connections/{id}`.
pub(super) async fn close(handle: &Handle, id: &str) -> Result<Reply, Problem> {
    let number = connection_id(id)?;
    if handle.close(number).await? {
        return Ok(reply::empty(StatusCode::NO_CONTENT));
    }
    let others = handle.shared().ask_others(Question::Close { id: number.to_u64() }).await;
    if others.is_known {
        return Ok(reply::empty(StatusCode::NO_CONTENT));
    }
    Err(nowhere(&others, no_connection(id)))
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

/// `GET /v1/topics/{topic}/presence`.
pub(super) async fn presence(
    handle: &Handle,
    topic: &str,
    query: Option<&str>,
) -> Result<Reply, Problem> {
    let (topic, asked) = (query::segment(topic, "topic")?, PageAsked::of(query)?);
    let shared = handle.shared();
    shared.check_presence(&topic).map_err(|denied| match denied {
        Denied::Name(error) => Problem::field("topic", error.to_string()),
        Denied::NotPermitted(detail)
        | Denied::NoPresence(detail)
        | Denied::Hook(detail)
        | Denied::HookUnavailable(detail) => Problem::new(Kind::NotFound, detail),
    })?;
    let view = PresenceView::look(shared, topic, asked).await?;
    Ok(reply::json(StatusCode::OK, &view))
}

/// `GET /v1/devices/{id}`.
pub(super) async fn device(handle: &Handle, id: &str) -> Result<Reply, Problem> {
    let id = &query::segment(id, "id")?;
    let shared = handle.shared();
    let (connections, stored) = (handle.device(id).await?, device_list::find(handle, id).await?);
    let others = shared.ask_others(Question::Device { device: id.clone() }).await;
    if connections.is_none() && stored.is_none() && !others.is_known {
        return Err(nowhere(&others, no_device(id)));
    }
    let own = connections.into_iter().flatten().map(|connection| shared.view(connection));
    let connections = own.chain(others.connections).collect();
    let missing = MissingView { missing_nodes: others.missing, nodes_unknown: others.are_unknown };
    Ok(reply::json(StatusCode::OK, &DeviceView { device: id, connections, stored, missing }))
}

/// `GET /v1/nodes`.
pub(super) async fn nodes(handle: &Handle) -> Result<Reply, Problem> {
    let nodes = handle.shared().nodes().await.map_err(|error| Problem::broker(&error))?;
    let view = |NodeInfo { number, name, about, is_own, .. }: NodeInfo| NodeView {
        number,
        name,
        own: is_own,
        about,
    };
    let settings_differ = settings_differ(&nodes);
    let nodes = nodes.into_iter().map(view).collect();
    Ok(reply::json(StatusCode::OK, &NodesView { nodes, settings_differ }))
}

/// `POST /v1/devices/{id}/revoke`; its body is empty, or an empty object.
pub(super) async fn revoke(handle: &Handle, id: &str, body: &[u8]) -> Result<Reply, Problem> {
    let body: String = String::from_utf8_lossy(body).split_whitespace().collect();
    if !matches!(body.as_str(), "" | "{}") {
        let detail = "send no body, or an empty object";
        return Err(Problem::new(Kind::InvalidRequest, detail));
    }
    let id = &query::segment(id, "id")?;
    let (is_known, confirmations) = device_list::revoke(handle, id).await?;
    match confirmations {
        // Whether another node knows the device, none has said.
        Some(confirmations) if !confirmations.are_complete() => {
            let Confirmations { confirmed, missing, is_known } = confirmations;
            let missing = MissingView { missing_nodes: missing, nodes_unknown: !is_known };
            Ok(reply::json(StatusCode::ACCEPTED, &RevokingView { confirmed, missing }))
        }
        None if !is_known => Err(no_device(id)),
        Some(_) | None => Ok(reply::empty(StatusCode::NO_CONTENT)),
    }
}

fn node_number(text: &str) -> Result<u16, Problem> {
    text.parse().map_err(|_| Problem::field("node", "a node's number is a number up to 1023"))
}

/// Where no node has found anything: a problem that tells whether all were asked.
fn nowhere(others: &Others, problem: Problem) -> Problem {
    if others.missing.is_empty() && !others.are_unknown {
        return problem;
    }
    Problem::nodes_silent(&others.missing)
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
