//! What nodes and broker tell each other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The name of a topic or a device. Cheap to copy.
pub type Name = Arc<str>;

/// A place in a topic's sequence of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position {
    /// The unbroken sequence that the offset counts in; never 0.
    pub epoch: u64,
    /// Offset of a message; the first has 1. 0 stands before the first.
    pub offset: u64,
}

/// Messages to one topic, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The topic.
    pub topic: Name,
    /// Tells this batch from all others of this node, so that a retry changes nothing.
    pub id: BatchId,
    /// What the broker keeps of the topic; `None`: positions only.
    pub retention: Option<Retention>,
    /// The messages; at least one.
    pub entries: Vec<Entry>,
}

/// The number of a batch. A node counts them up for each topic, beginning above all that it used before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BatchId(pub u64);

/// A message to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its bytes.
    pub payload: Vec<u8>,
    /// A second message with the same key and target is not published within [`Entry::KEY_KEPT`]: the answer is that of
    /// the first.
    pub idempotency_key: Option<Name>,
}

/// What a broker keeps of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Number of messages; a broker may keep a tenth more.
    pub messages_max: usize,
    /// How long each.
    pub ttl: Duration,
}

/// A message with its offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// Its offset.
    pub offset: u64,
    /// Its bytes.
    pub payload: Vec<u8>,
}

/// Which part of a topic's messages to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryQuery {
    /// The topic.
    pub topic: Name,
    /// Messages above this offset.
    pub after: u64,
    /// How many at most.
    pub messages_max: usize,
    /// How many bytes they have together at most. The first one may have more.
    pub bytes_max: usize,
}

/// A part of what a broker keeps of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// The newest position: epoch, and offset of the last message accepted.
    pub top: Position,
    /// Offset of the oldest message that is kept; `top.offset + 1` if none is.
    pub first: u64,
    /// Offset of the last message that was accepted before the epoch of `top` began; 0 if there is none. Messages up to
    /// it may still be kept: they are of an earlier epoch, whose later messages may have been lost.
    pub began: u64,
    /// In order. They begin above the query's offset, or at `first` if that is higher.
    pub messages: Vec<Received>,
}

/// Of what messages may have been missed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// Messages of these topics.
    Topics(Vec<Name>),
    /// What came for these devices: messages to them, and evictions. Their connections are to be claimed again.
    Devices(Vec<Name>),
    /// What came for this node: messages to it and to all, and revocations, which are to be read.
    Node,
    /// All of these.
    All,
}

/// A connection of some node: unique in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionNumber(pub u64);

/// The number of a node in its cluster, from 1; unique among nodes that live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeNumber(pub u16);

/// A connection of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The device.
    pub device: Name,
    /// The connection.
    pub connection: ConnectionNumber,
    /// How long ago the connection was accepted.
    pub age: Duration,
    /// Whether it counts for its device. If not, it evicts none and is not evicted: its node gets messages to the device,
    /// and that is all.
    pub is_counted: bool,
}

/// How far a message to all went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    /// Nodes that were subscribed.
    pub reached: u32,
    /// Nodes that live.
    pub live: u32,
}

/// The place of a revocation among all, as the broker writes it. Later ones are greater.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RevocationId(pub u64, pub u64);

/// A device was revoked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revocation {
    /// Its place.
    pub id: RevocationId,
    /// The device.
    pub device: Name,
}

/// What was revoked after an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revocations {
    /// In order, at most [`Revocations::PAGE`]; a full page means that more may follow.
    pub revoked: Vec<Revocation>,
    /// Whether nothing between the id asked for and the first one is missing. The broker keeps revocations for a day.
    pub is_complete: bool,
}

/// What a node tells of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub number: NodeNumber,
    /// Its name, from the configuration.
    pub name: String,
    /// The last revocation that it has carried out.
    pub revoked_to: Option<RevocationId>,
    /// More about it, as the gateway writes it (JSON).
    pub about: String,
}

/// What another process of this machine needs to go on as this node.
///
/// Shape: some 40 bytes for each connection and topic, and their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeState {
    /// Tells this node from all others, also from those that had its name before.
    pub instance: String,
    /// Its number.
    pub number: NodeNumber,
    /// For how long it has the number still.
    pub lease_left: Duration,
    /// The number of the stay under which its members stand; 0: none has begun.
    pub stay: u64,
    /// The number of the last entry in the index of its stays.
    pub last_entry: u64,
    /// The number of the last call that changed members.
    pub last_call: u64,
    /// What stands in the index of its stay, with the numbers of the entries.
    pub entries: Vec<(Name, u64)>,
    /// The connections that are claimed.
    pub claimed: Vec<(Name, ConnectionNumber)>,
}

/// A connection that is present in a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The connection.
    pub connection: ConnectionNumber,
    /// Its device.
    pub device: Name,
}

/// A part of the members of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberPage {
    /// By connection number.
    pub members: Vec<Member>,
    /// Whether none follow.
    pub is_last: bool,
    /// Connections in all, at this moment.
    pub connections: u64,
    /// Devices in all, at this moment. Above some thousand a device that is at several nodes may count once for each.
    pub devices: u64,
}

/// Whether a node has subscribers to a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attendance {
    /// The topic.
    pub topic: Name,
    /// Whether there are subscribers.
    pub is_attended: bool,
    /// Whether each earlier call of the node for this topic had an answer.
    pub is_sure: bool,
}

/// What a node has done to a topic's occupancy: the time from its first subscriber at any node to its last one.
///
/// An occupancy has a number: the microsecond of its begin by the broker's clock, since 1970. It is greater than the
/// numbers of the topic's earlier occupancies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Occupancy {
    /// The one that the node has begun.
    pub begun: Option<u64>,
    /// The one that the node has ended. It may have ended before the other one has begun.
    pub ended: Option<u64>,
}

/// The id of a session that outlives a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub [u8; 32]);

/// A session that all nodes can find.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSession {
    /// Its id.
    pub id: SessionId,
    /// Its bytes, sealed by the node: at most [`StoredSession::BYTES_MAX`].
    pub sealed: Vec<u8>,
    /// How long it is kept; at least a millisecond.
    pub ttl: Duration,
}

impl StoredSession {
    /// A session takes some hundred bytes; one with a client's certificate chain some thousand.
    pub const BYTES_MAX: usize = 16 * 1024;
}

impl Entry {
    /// How long a broker remembers an idempotency key.
    pub const KEY_KEPT: Duration = Duration::from_secs(300);
}

impl Member {
    /// How long members outlive their node, unless its broker is told otherwise. A Redis that is silent, or a connection to
    /// it that breaks, is back within this time most often.
    pub const KEPT: Duration = Duration::from_secs(30);
}

impl Revocations {
    /// Revocations in a page.
    pub const PAGE: usize = 1000;
}

/// The members of each topic, by connection. Of a connection that is there twice the last counts.
pub(crate) fn by_topic(members: Vec<(Name, Member)>) -> BTreeMap<Name, Vec<Member>> {
    let mut topics: BTreeMap<Name, BTreeMap<ConnectionNumber, Member>> = BTreeMap::new();
    for (topic, member) in members {
        topics.entry(topic).or_default().insert(member.connection, member);
    }
    topics.into_iter().map(|(topic, members)| (topic, members.into_values().collect())).collect()
}
