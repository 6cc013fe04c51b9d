//! The contract that every broker keeps.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::durations::DurationCounts;
use crate::records::{
    Attendance, Batch, Claim, ConnectionNumber, Entry, History, HistoryQuery, Member, MemberPage,
    Name, Node, NodeNumber, NodeState, Occupancy, Position, Reach, Received, Revocation,
    RevocationId, Revocations, Scope, SessionId, StoredSession,
};

/// The answer of a method: it comes in bounded time.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Why a broker did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It cannot be reached, and the request has not left this node.
    #[error("the broker cannot be reached: {0}")]
    Unavailable(String),
    /// The request has left this node, and no answer came. The broker may have carried it out.
    #[error("the broker did not answer: {0}")]
    Uncertain(String),
    /// Too many requests wait for it.
    #[error("{waiting} requests wait for the broker, the limit (cluster.waiting_max)")]
    Overloaded {
        /// How many wait.
        waiting: usize,
    },
    /// It has answered that it will not do it, for instance because its memory is full.
    #[error("the broker refuses: {0}")]
    Refused(String),
    /// Another cluster uses the same prefix on this broker.
    #[error("the prefix {prefix:?} belongs to another cluster, {found}; this one is {own}")]
    OtherCluster {
        /// `cluster.prefix`.
        prefix: String,
        /// The id found there.
        found: String,
        /// `cluster.id`.
        own: String,
    },
    /// It holds something that cannot be: it is damaged, or of another version.
    #[error("the broker holds something that cannot be: {0}")]
    Damaged(String),
}

/// Where the messages of a batch stand, in order, and how far they got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The epoch of the topic.
    pub epoch: u64,
    /// The offset of each message. Offsets follow each other, except those of messages that were published before
    /// under the same idempotency key: these keep the old offset, and its epoch if it is another one.
    pub positions: Vec<Position>,
    /// How many nodes were subscribed to the topic when the broker accepted the batch.
    pub nodes: u32,
}

/// What a broker has counted so far at this node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BrokerCounts {
    /// Commands sent, by kind.
    pub commands: Vec<(&'static str, u64)>,
    /// Pipelines in which they left.
    pub pipelines: u64,
    /// From the sending of a pipeline to its last answer.
    pub round_trips: DurationCounts,
    /// Connections made, the first ones included.
    pub connects: u64,
    /// Subscriptions made again after an interruption.
    pub resubscriptions: u64,
    /// Messages to itself that a connection did not hear.
    pub probes_missed: u64,
    /// Messages that it did not understand: another version wrote them.
    pub unknown_messages: u64,
    /// Servers, at this moment, that may remove what the broker needs.
    pub evicting: u64,
}

/// Holds several nodes together.
///
/// # Order
/// The broker gives each message of a topic the next offset, whichever node published it. Two batches of one node and
/// topic keep their order if the second is published after the first is answered.
///
/// # What a node hears
/// Everything comes through the [`EventHandler`] given when the broker was opened. After [`Broker::join`] has answered, each
/// message that is then accepted for the topic comes as [`Event::Messages`], until [`Broker::leave`]. It comes at most
/// once for each subscription, in the order of offsets, unless [`Event::Gap`] names the topic. A broker subscribes again
/// by itself when it has lost its subscriptions, and then reports a gap for each topic concerned. Between
/// [`Event::Lost`] and [`Event::Back`] nothing is heard.
///
/// # Epochs
/// An epoch names one unbroken sequence of offsets. When the broker may have lost messages that it had accepted, the
/// topic gets a new epoch; offsets begin again at 1 or go on. It never uses an offset of one epoch twice.
///
/// # Presence
/// Members belong to the node that entered them. They are listed as long as it lives. A node that is away for less than
/// half a minute has them still when it is back, and nobody is told. When it has been away for longer, as far as the
/// broker could be reached meanwhile, its members leave; one of the other nodes sees to that.
///
/// A node enters its members again
/// - after [`Event::Gap`]: those of the topics concerned, and all after [`Scope::All`]. The broker may have lost them, or
///   taken the node for dead. When it has done that, it tells a gap after the node's next announcement;
/// - after [`Event::Renumbered`]: all.
///
/// An exit that has failed is called again until it succeeds. A node makes the calls for one topic one after the other.
/// When a call has no answer, the node says the same again in later calls for these topics, as far as it is still true,
/// and the opposite where it is not. The call without an answer may be carried out late. If a later call of the node for
/// a topic was carried out before, the late one changes nothing there.
///
/// # Occupancy
/// A topic is occupied from its first subscriber at any node to its last one. [`Broker::attend`] says whether this node
/// has some. Exactly one node begins an occupancy, and one ends it: the answer says so to that node. When a node has
/// died, its subscribers go as its members do; the node that sees to that hears [`Event::Vacated`]. The node says again
/// what it attends when it enters its members again. A broker that has lost what it knew then begins a new occupancy.
///
/// # Errors and time
/// Each method ends within the time-out that the broker was opened with, plus the time that its turn takes; what waits is
/// bounded. After [`Error::Uncertain`] the caller may call again: all methods are idempotent, [`Broker::publish`] by the
/// batch's id, except [`Broker::to_node`], and [`Broker::to_device`] and [`Broker::to_all`] without an idempotency key:
/// their messages may then arrive twice.
///
/// # Bytes
/// Payloads are opaque. A broker carries each as it is.
pub trait Broker: Send + Sync + 'static {
    /// The name it goes by in metrics and logs.
    fn name(&self) -> &'static str;

    /// What it has counted so far; nothing, if it has no connections of its own.
    fn counts(&self) -> BrokerCounts {
        BrokerCounts::default()
    }

    /// The number of this node, which the broker has leased to it. It changes only with [`Event::Renumbered`].
    fn number(&self) -> NodeNumber;

    /// What another process of this machine needs to go on as this node; `None`: it cannot. What is asked here afterwards
    /// counts for the node all the same. The node must not retire here.
    fn state(&self) -> Answer<'_, Option<NodeState>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Takes what has become of the node in the other process since this one was opened with its [`Broker::state`], and asks
    /// for messages to its new devices. What that process asks from here on is not known here.
    fn go_on(&self, _state: NodeState) -> Answer<'_, ()> {
        let refused = Error::Refused("it does not go on as another process's node".to_owned());
        Box::pin(std::future::ready(Err(refused)))
    }

    /// Another process has gone on as this node: nothing is heard and nothing is renewed here any more. What is published here
    /// counts for the node still.
    fn hush(&self) {}

    /// Publishes batches, each to one topic: one answer for each batch, in order.
    ///
    /// At most one batch of a topic may be on its way at a time from one node; a retry names the same [`Batch::id`] and
    /// has the same messages. The broker then answers with the first result. Once a later batch of this node was accepted
    /// for the topic, the broker refuses the older one ([`Error::Refused`]), and publishes nothing: it may come from a
    /// connection that has broken.
    fn publish(&self, batches: Vec<Batch>) -> Answer<'_, Vec<Result<Published, Error>>>;

    /// Asks for topics: their messages come as events from here on. To join twice is to join once.
    fn join(&self, topics: Vec<Name>) -> Answer<'_, ()>;

    /// Ends the interest in topics. Messages on their way may still come.
    fn leave(&self, topics: Vec<Name>) -> Answer<'_, ()>;

    /// Reads what is kept: one answer for each query, in order. A topic that the broker does not know gets an epoch, as in
    /// [`Broker::tops`].
    fn read(&self, queries: Vec<HistoryQuery>) -> Answer<'_, Vec<History>>;

    /// The newest position of each topic, in order, and renews the time for which the broker remembers the topic. A
    /// topic that the broker does not know gets an epoch, and offset 0.
    fn tops(&self, topics: Vec<Name>) -> Answer<'_, Vec<Position>>;

    /// Enters connections into their devices' records, and asks for messages to these devices. Of each device the newest
    /// `connections_per_device_max` stay. The others are evicted: the nodes that hold them hear [`Event::Evicted`]. To
    /// claim again what was claimed is to renew it. The claims of a node count as long as the node lives. A claim that is
    /// not counted only asks for messages.
    fn claim(&self, claims: Vec<Claim>) -> Answer<'_, ()>;

    /// Takes connections out of their devices' records, and ends the interest in devices that then have none here. Whether
    /// they were counted does not matter.
    fn release(&self, claims: Vec<Claim>) -> Answer<'_, ()>;

    /// Sends to the nodes where the device is connected; how many those are. At most once, without an offset. The key of
    /// a message that reached no node is not remembered.
    fn to_device(&self, device: Name, message: Entry) -> Answer<'_, u32>;

    /// Sends to all nodes, this one included. At most once, without an offset. Keys as above.
    fn to_all(&self, message: Entry) -> Answer<'_, Reach>;

    /// Sends to one node; `false` if no node with this number listens. At most once.
    fn to_node(&self, node: NodeNumber, payload: Vec<u8>) -> Answer<'_, bool>;

    /// Tells all nodes that a device is revoked, durably: see [`Broker::revocations`].
    fn revoke(&self, device: Name) -> Answer<'_, RevocationId>;

    /// What was revoked after that id, oldest first.
    fn revocations(&self, after: Option<RevocationId>) -> Answer<'_, Revocations>;

    /// Announces this node, and what it tells of itself, for some seconds. Repeated while it lives.
    fn announce(&self, node: Node) -> Answer<'_, ()>;

    /// The nodes that live, by number.
    fn nodes(&self) -> Answer<'_, Vec<Node>>;

    /// Takes this node's announcement, claims and presence back: it ends. Its members leave their topics, as by
    /// [`Broker::exit`].
    fn retire(&self) -> Answer<'_, ()>;

    /// Enters members into topics' presence, or renews them. The nodes that have joined the topic hear of the new ones as
    /// [`Event::Presence`], this node included. To renew a member tells nobody. A connection is in a topic once: entered
    /// with another device, it leaves with the first one. See "Presence" above.
    fn enter(&self, members: Vec<(Name, Member)>) -> Answer<'_, ()>;

    /// Takes members out of topics' presence, by their connections; their devices do not matter. It is told as
    /// [`Broker::enter`] is. To take out what is not there tells nobody.
    fn exit(&self, members: Vec<(Name, Member)>) -> Answer<'_, ()>;

    /// The members of a topic on all nodes that live, a page at a time.
    fn members(
        &self,
        topic: Name,
        after: Option<ConnectionNumber>,
        limit: usize,
    ) -> Answer<'_, MemberPage>;

    /// Tells of topics, each once, whether this node has subscribers: one answer for each, in order. See "Occupancy"
    /// above.
    ///
    /// When a call had no answer, the next one for its topic is not sure ([`Attendance::is_sure`]). Its answer then has
    /// what the other one would have said, too, perhaps once more.
    fn attend(&self, topics: Vec<Attendance>) -> Answer<'_, Vec<Occupancy>>;

    /// Keeps sessions for a time, each in the place of an earlier one with its id, and forgets others. A failover may
    /// lose them.
    ///
    /// # Errors
    /// [`Error::Refused`]: one has more than [`StoredSession::BYTES_MAX`]; then nothing is changed.
    fn keep_sessions(&self, kept: Vec<StoredSession>, forgotten: Vec<SessionId>) -> Answer<'_, ()>;

    /// The bytes of a session that some node has kept; `None`: there is none, or its time is over.
    fn session(&self, id: SessionId) -> Answer<'_, Option<Vec<u8>>>;

    /// Ends it in order: what was asked is carried out, what is asked afterwards is refused.
    fn close(&self) -> Answer<'_, ()>;
}

/// Refuses sessions of which one is too large.
pub(crate) fn check_sessions(kept: &[StoredSession]) -> Result<(), Error> {
    let max = StoredSession::BYTES_MAX;
    match kept.iter().map(|session| session.sealed.len()).find(|&bytes| bytes > max) {
        Some(bytes) => {
            Err(Error::Refused(format!("a session of {bytes} bytes; the limit is {max}")))
        }
        None => Ok(()),
    }
}

/// Handles what a broker tells its node.
pub trait EventHandler: Send + Sync + 'static {
    /// Handles an event. Called on the broker's own tasks, for one topic in order, and for one device too. It must not wait.
    fn handle(&self, event: Event);
}

/// What a broker tells its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Messages of a topic, in order: their offsets follow each other.
    Messages {
        /// The topic.
        topic: Name,
        /// Its epoch.
        epoch: u64,
        /// The messages with their offsets.
        messages: Vec<Received>,
    },
    /// Messages may have been missed. The subscription works again.
    Gap(Scope),
    /// A message to a device that is connected here.
    ToDevice {
        /// The device.
        device: Name,
        /// The message.
        payload: Vec<u8>,
    },
    /// A message to all nodes.
    ToAll(Vec<u8>),
    /// A message to this node.
    ToNode(Vec<u8>),
    /// A device has newer connections than this one, which is to be closed.
    Evicted {
        /// The device.
        device: Name,
        /// The connection.
        connection: ConnectionNumber,
    },
    /// A device was revoked. After a gap some may be missing: see [`Broker::revocations`].
    Revoked(Revocation),
    /// Connections have entered a topic's presence, or left it. At most once; after a gap some may be missing.
    ///
    /// Those that left did so before the others entered: a connection that comes back with another device is in both.
    /// In all at most [`Event::MEMBERS_MAX`].
    Presence {
        /// The topic.
        topic: Name,
        /// Those that have entered.
        joined: Vec<Member>,
        /// Those that have left.
        left: Vec<Member>,
    },
    /// A topic has lost its last subscribers: those of a node that has ended.
    Vacated {
        /// The topic.
        topic: Name,
        /// The number of its occupancy.
        occupancy: u64,
    },
    /// The broker cannot be reached.
    Lost(String),
    /// The broker can be reached again, and its subscriptions stand. Gaps have been reported before this.
    Back {
        /// How long it was lost.
        after: Duration,
    },
    /// The number of this node was lost: it was away for longer than its lease, and another node may have the number. It
    /// has a new one.
    Renumbered(NodeNumber),
}

impl Event {
    /// Members in one [`Event::Presence`]. More come in several events.
    pub const MEMBERS_MAX: usize = 512;
}
