//! Questions to other nodes about their connections, and the answers to theirs.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::debug;
use utoipa::ToSchema;
use weir_broker::NodeNumber;
use weir_engine::ConnId;

use super::ClusterNode;
use super::call_letter::CallLetter;
use crate::base::clock::millis;
use crate::core::handle::{Connection, ConnectionCursor, ConnectionQuery, ShardSilent};
use crate::core::state::SharedState;
use crate::observe::counters::{ClusterLimit, FromBroker};

/// The questions that wait for an answer.
///
/// Limits: [`ASKED_MAX`] of this node's, [`ANSWERING_MAX`] of others'. One more is not asked, or
/// not answered: then the node counts as silent.
pub(super) struct Questions {
    asked: Mutex<HashMap<u64, oneshot::Sender<Option<Found>>>>,
    next: AtomicU64,
    answering: Arc<Semaphore>,
}

/// What a node asks another one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Question {
    /// The connections of a device.
    Device { device: String },
    /// A page of connections; the cursor is shard and place.
    Connections {
        device: Option<String>,
        topic: Option<String>,
        cursor: Option<(u32, u32)>,
        limit: usize,
    },
    /// One connection.
    Connection { id: u64 },
    /// Close one connection. The answer has it if it was there.
    Close { id: u64 },
}

/// What a node has found.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Found {
    pub(crate) connections: Vec<ConnectionView>,
    /// Where the next page begins.
    pub(crate) next: Option<(u32, u32)>,
    /// Whether the device, or the connection, is known there.
    pub(crate) is_known: bool,
}

/// What all other nodes have found.
#[derive(Debug, Clone, Default)]
pub(crate) struct Others {
    pub(crate) connections: Vec<ConnectionView>,
    pub(crate) is_known: bool,
    /// Nodes that did not answer in time.
    pub(crate) missing: Vec<u16>,
    /// The broker did not tell which nodes there are.
    pub(crate) are_unknown: bool,
}

/// A connection.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Connection)]
pub(crate) struct ConnectionView {
    /// 16 hexadecimal digits.
    #[schema(pattern = "^[0-9a-f]{16}$")]
    id: String,
    /// The number of its node; only in a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u16, required = false)]
    node: Option<u16>,
    device: String,
    #[schema(required)]
    peer: Option<String>,
    /// The address by which limits count the connection.
    #[schema(required)]
    source: Option<String>,
    /// The name of the client program; `other` if too many names are in use.
    #[schema(required)]
    client: Option<String>,
    /// `tcp` or `tls`.
    transport: Cow<'static, str>,
    protocol: Cow<'static, str>,
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

/// What travels between nodes: a version byte, and this as JSON.
#[derive(Serialize, Deserialize)]
pub(super) enum Letter {
    Question {
        ask: u64,
        from: u16,
        question: Question,
    },
    /// `None`: a shard does not answer, or there is too much to tell.
    Answer {
        ask: u64,
        found: Option<Found>,
    },
    Calls(CallLetter),
}

impl Default for Questions {
    fn default() -> Self {
        Questions {
            asked: Mutex::default(),
            next: AtomicU64::new(0),
            answering: Arc::new(Semaphore::new(ANSWERING_MAX)),
        }
    }
}

impl Questions {
    /// Questions of this node that wait for an answer.
    pub(super) fn asked(&self) -> usize {
        self.lock().len()
    }

    /// Questions of other nodes that are being answered.
    pub(super) fn answering(&self) -> usize {
        ANSWERING_MAX - self.answering.available_permits()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Option<Found>>>> {
        self.asked.lock().expect("no panic happens under the lock of the questions")
    }
}

impl Letter {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        // A letter has only texts and numbers.
        let _ = serde_json::to_writer(&mut bytes, self);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Letter> {
        match bytes.split_first()? {
            (&VERSION, json) => serde_json::from_slice(json).ok(),
            (_, _) => None,
        }
    }
}

impl ClusterNode {
    /// The number of this node.
    pub(crate) fn number(&self) -> u16 {
        self.cluster.node().0
    }

    /// Asks a node; `None`: it does not answer, or not in time.
    pub(crate) async fn ask(&self, node: u16, question: Question) -> Option<Found> {
        let ask = self.questions.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answered) = oneshot::channel();
        {
            let mut asked = self.questions.lock();
            if asked.len() >= ASKED_MAX {
                self.counters.count_cluster_limit(ClusterLimit::Questions);
                return None;
            }
            asked.insert(ask, sender);
        }
        let _forget = Forget { node: self, ask };
        let letter = Letter::Question { ask, from: self.number(), question };
        let asked = async {
            match self.cluster.broker().to_node(NodeNumber(node), letter.encode()).await {
                Ok(true) => answered.await.ok().flatten(),
                Ok(false) | Err(_) => None,
            }
        };
        timeout(ASK_TIMEOUT, asked).await.ok().flatten()
    }

    /// Asks all other nodes at once.
    pub(crate) async fn ask_others(self: &Arc<Self>, question: &Question) -> Others {
        let mut others = Others::default();
        let Ok(nodes) = self.cluster.broker().nodes().await else {
            return Others { are_unknown: true, ..others };
        };
        let mut asked = JoinSet::new();
        let own = self.number();
        for number in nodes.into_iter().map(|node| node.number.0).filter(|node| *node != own) {
            let (node, question) = (Arc::clone(self), question.clone());
            asked.spawn(async move { (number, node.ask(number, question).await) });
        }
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok((_, Some(found))) => {
                    others.is_known |= found.is_known;
                    others.connections.extend(found.connections);
                }
                Ok((number, None)) => others.missing.push(number),
                // The runtime ends.
                Err(_) => others.are_unknown = true,
            }
        }
        others.missing.sort_unstable();
        others
    }

    pub(super) fn take_letter(&self, shared: &Arc<SharedState>, payload: &[u8]) {
        match Letter::decode(payload) {
            Some(Letter::Answer { ask, found }) => {
                if let Some(waiting) = self.questions.lock().remove(&ask) {
                    // The asker may have given up.
                    let _ = waiting.send(found);
                }
            }
            Some(Letter::Question { ask, from, question }) => {
                let Ok(permit) = Arc::clone(&self.questions.answering).try_acquire_owned() else {
                    self.counters.count_cluster_limit(ClusterLimit::Answers);
                    debug!(from, "too many questions of other nodes: one stays without an answer");
                    return;
                };
                let (shared, broker) = (Arc::clone(shared), Arc::clone(self.cluster.broker()));
                self.runtime.spawn(async move {
                    let found = shared.answer(question).await;
                    let letter = Letter::Answer { ask, found }.encode();
                    if let Err(error) = broker.to_node(NodeNumber(from), letter).await {
                        debug!(%error, from, "a node's question stays without an answer");
                    }
                    drop(permit);
                });
            }
            Some(Letter::Calls(letter)) => self.take_call_letter(shared, letter),
            None => shared.counters().count_from_broker(FromBroker::Unknown),
        }
    }
}

/// Forgets a question that nobody waits for any more.
struct Forget<'a> {
    node: &'a ClusterNode,
    ask: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.node.questions.lock().remove(&self.ask);
    }
}

impl SharedState {
    /// Answers a question about the connections of this node; `None`: it cannot.
    async fn answer(&self, question: Question) -> Option<Found> {
        match question {
            Question::Device { device } => {
                let connections = self.device(&device).await.ok()?;
                let is_known = connections.is_some();
                Some(self.found(connections.unwrap_or_default(), None, is_known))
            }
            Question::Connections { device, topic, cursor, mut limit } => loop {
                let cursor = cursor.map(|(shard, cursor)| ConnectionCursor { shard, cursor });
                let (device, topic) = (device.clone(), topic.clone());
                let query = ConnectionQuery { device, topic, cursor, limit };
                let (connections, next) = self.connections(&query).await.ok()?;
                let found = self.found(connections, next, true);
                // A connection may be in many topics.
                if serde_json::to_vec(&found).ok()?.len() <= ANSWER_BYTES_MAX {
                    return Some(found);
                }
                if limit <= 1 {
                    return None;
                }
                limit /= 4;
            },
            Question::Connection { id } => {
                let connection = self.connection(ConnId::from_u64(id)).await.ok()?;
                let is_known = connection.is_some();
                Some(self.found(connection.into_iter().collect(), None, is_known))
            }
            Question::Close { id } => {
                let is_known = self.close(ConnId::from_u64(id)).await.ok()?;
                Some(Found { is_known, ..Found::default() })
            }
        }
    }

    fn found(
        &self,
        connections: Vec<Connection>,
        next: Option<ConnectionCursor>,
        is_known: bool,
    ) -> Found {
        Found {
            connections: connections.into_iter().map(|one| self.view(one)).collect(),
            next: next.map(|next| (next.shard, next.cursor)),
            is_known,
        }
    }

    /// A connection of this node as JSON.
    pub(crate) fn view(&self, connection: Connection) -> ConnectionView {
        let info = connection.info;
        ConnectionView {
            id: info.id.to_string(),
            node: self.node.as_ref().map(|node| node.number()),
            device: connection.device,
            peer: info.peer.map(|peer| peer.to_string()),
            source: connection.source,
            client: connection.client.as_deref().map(str::to_owned),
            transport: info.transport.name().into(),
            protocol: info.origin.format().name().into(),
            age_ms: millis(info.age),
            idle_ms: millis(info.idle),
            heartbeat_ms: millis(info.heartbeat),
            queued_bytes: info.queued_bytes,
            stalled_ms: info.stalled.map(millis),
            topics: connection.topics,
        }
    }

    /// What the other nodes know; nothing without a cluster.
    pub(crate) async fn ask_others(&self, question: Question) -> Others {
        match &self.node {
            Some(node) => node.ask_others(&question).await,
            None => Others::default(),
        }
    }

    /// A page of the connections of one node, and its next cursor. `None`: the node does not answer.
    ///
    /// Errors: the node is this one, and a shard does not answer.
    pub(crate) async fn connections_at(
        &self,
        number: u16,
        query: ConnectionQuery,
    ) -> Result<Option<Found>, ShardSilent> {
        let node = match &self.node {
            Some(node) if node.number() != number => node,
            None if number != 0 => return Ok(None),
            Some(_) | None => {
                let (connections, next) = self.connections(&query).await?;
                return Ok(Some(self.found(connections, next, true)));
            }
        };
        let ConnectionQuery { device, topic, cursor, limit } = query;
        let cursor = cursor.map(|place| (place.shard, place.cursor));
        Ok(node.ask(number, Question::Connections { device, topic, cursor, limit }).await)
    }
}

const VERSION: u8 = 1;
/// Longer than a shard may take to answer.
const ASK_TIMEOUT: Duration = Duration::from_secs(3);
const ASKED_MAX: usize = 1024;
const ANSWERING_MAX: usize = 64;
/// A page of a thousand connections with few topics has some 400 KB.
const ANSWER_BYTES_MAX: usize = 1 << 20;
