//! A broker in memory, for tests of what uses one.
//!
//! [`Memory`] is the server that the nodes of a test share. It keeps the whole contract. It takes time from tokio, and
//! chance from a seed: with a paused clock and one thread, a run with the same seed is the same run.
//!
//! ```text
//!  node ──► MemoryNode ──(agenda: requests, by time)──► state (topics, devices, presence, nodes, revocations)
//!  node ◄── EventHandler ◄──(agenda: answers, events)──┘
//! ```
//!
//! Each node has a link with an agenda, and a task that carries out what is due. Faults act there: they delay, drop,
//! double and break what is on its way. A link is in one of these states:
//!
//! ```text
//!          disconnected, unreachable, failover, paused for longer than the time-out
//!     up ────────────────────────────────────────────────► down     (the node hears Lost)
//!     up ◄──────────────────────────────────────────────── down     (the node hears Gap, perhaps Renumbered, and Back)
//! ```

mod agenda;
mod attendance;
mod changes;
mod devices;
mod faults;
mod link;
mod node;
mod nodes;
mod occupancies;
mod presence;
mod revocations;
mod sessions;
mod state;
#[cfg(test)]
mod tests;
mod topics;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

pub use self::faults::{Break, Chances, Counts, Delays, EventKind, Method};
use self::node::MemoryNode;
use self::state::State;
pub use self::topics::NewEpoch;
use crate::contract::{Broker, EventHandler};
use crate::records::{ConnectionNumber, Member, Name, NodeNumber, Position, Scope};

/// The server that the nodes of a test share. A copy is the same server.
///
/// Faults of one node go by the name of the node. Where a node is started again with its name, they concern the running
/// one.
#[derive(Clone)]
pub struct Memory {
    state: Arc<Mutex<State>>,
}

/// How the server behaves.
#[derive(Debug, Clone)]
pub struct MemoryOptions {
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// How long a topic is remembered after its last use.
    pub topics_kept: Duration,
    /// How long a node's number belongs to it without an announcement.
    pub lease: Duration,
    /// How long members outlive their node, while another node can reach the broker.
    pub presence_kept: Duration,
    /// Whether [`Memory::journal`] remembers all messages.
    pub keeps_journal: bool,
    /// A seeded bug: a call that changes presence and comes late is carried out behind later ones.
    pub obeys_late_calls: bool,
}

/// How a node uses the server.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// Connections that may count for one device.
    pub connections_per_device_max: usize,
    /// How long a call may take.
    pub timeout: Duration,
    /// How long an announcement counts.
    pub node_ttl: Duration,
    /// Requests that may be on their way.
    pub waiting_max: usize,
}

/// A node's link, also after a restart under the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct LinkId(u64);

impl Default for MemoryOptions {
    fn default() -> Self {
        MemoryOptions {
            seed: 1,
            topics_kept: Duration::from_secs(86_400),
            lease: Duration::from_secs(86_400),
            presence_kept: Member::KEPT,
            keeps_journal: false,
            obeys_late_calls: false,
        }
    }
}

impl Default for NodeOptions {
    fn default() -> Self {
        NodeOptions {
            connections_per_device_max: 1,
            timeout: Duration::from_secs(2),
            node_ttl: Duration::from_secs(10),
            waiting_max: 10_000,
        }
    }
}

impl Memory {
    /// An empty one.
    pub fn new(options: &MemoryOptions) -> Memory {
        Memory { state: Arc::new(Mutex::new(State::new(options, Instant::now()))) }
    }

    /// Connects a node. Called within a tokio runtime. If the broker is unreachable, the node hears
    /// [`Event::Lost`](crate::Event::Lost) first.
    pub fn node(
        &self,
        name: &str,
        options: NodeOptions,
        handler: Arc<dyn EventHandler>,
    ) -> Arc<dyn Broker> {
        Arc::new(MemoryNode::open(self, name, options, handler))
    }

    /// Sets how long things take between this node and the broker.
    pub fn set_delays(&self, name: &str, delays: Delays) {
        self.with(name, |link| link.faults.delays = delays.clone());
    }

    /// Sets how probable faults are at this node.
    pub fn set_chances(&self, name: &str, chances: Chances) {
        self.with(name, |link| link.faults.chances = chances.clone());
    }

    /// Breaks the connection under the next call of this method; `None`: of any method. Several of these follow each other.
    pub fn break_next(&self, name: &str, method: Option<Method>, place: Break) {
        self.with(name, |link| link.faults.breaks.push_back((method, place)));
    }

    /// Drops the next events of this kind.
    pub fn drop_next(&self, name: &str, kind: EventKind, count: u64) {
        self.with(name, |link| *link.faults.drops.entry(kind).or_default() += count);
    }

    /// Doubles the next events of this kind.
    pub fn double_next(&self, name: &str, kind: EventKind, count: u64) {
        self.with(name, |link| *link.faults.doubles.entry(kind).or_default() += count);
    }

    /// Breaks subscriptions, which are at once set up again. Events on their way are lost, and the node hears of a gap.
    pub fn lose_subscriptions(&self, name: &str, scope: &Scope) {
        self.with(name, |link| link.lose_subscriptions(scope.clone()));
    }

    /// Disconnects a node: what is on its way is lost, and it hears [`Event::Lost`](crate::Event::Lost).
    pub fn disconnect(&self, name: &str) {
        self.lock().set_disconnected(Some(name), true, Instant::now());
    }

    /// Ends [`Memory::disconnect`].
    pub fn reconnect(&self, name: &str) {
        self.lock().set_disconnected(Some(name), false, Instant::now());
    }

    /// Makes the broker unreachable for all nodes, or reachable again.
    pub fn set_reachable(&self, is_reachable: bool) {
        self.lock().set_disconnected(None, !is_reachable, Instant::now());
    }

    /// Stops everything between this node and the broker, or at the broker itself if no name is given. Requests wait, and
    /// are carried out afterwards. A node whose link is paused for longer than its time-out hears
    /// [`Event::Lost`](crate::Event::Lost).
    pub fn pause(&self, name: Option<&str>) {
        self.lock().set_paused(name, true, Instant::now());
    }

    /// Ends [`Memory::pause`].
    pub fn resume(&self, name: Option<&str>) {
        self.lock().set_paused(name, false, Instant::now());
    }

    /// Replaces the primary by a replica that has not got the newest messages of each topic, nor the idempotency keys and
    /// batches that belong to them. All nodes are disconnected for a moment.
    pub fn fail_over(&self, lost: u64, epochs: NewEpoch) {
        self.lock().fail_over(lost, epochs, Instant::now());
    }

    /// Refuses to publish, as a server whose memory is full; `None` ends that.
    pub fn set_refusal(&self, reason: Option<&str>) {
        self.lock().refusal = reason.map(str::to_owned);
    }

    /// Removes the oldest revocations, as if their day were over.
    pub fn forget_revocations(&self, count: usize) {
        self.lock().revocations.forget(count);
    }

    /// Kills a node: its subscriptions and requests end now, its claims when its announcement ends, and its presence
    /// [`MemoryOptions::presence_kept`] later. It hears nothing more, and what it asks is refused.
    pub fn kill(&self, name: &str) {
        let mut state = self.lock();
        let links = state.links.iter().filter(|(_, link)| link.name == name);
        let ids: Vec<LinkId> = links.map(|(id, _)| *id).collect();
        let ended: Vec<_> = ids.into_iter().map(|id| state.end(id)).collect();
        drop(state);
        drop(ended);
    }

    /// What has happened so far at this node; `None`: at all.
    pub fn counts(&self, name: Option<&str>) -> Counts {
        self.lock().counts(name)
    }

    /// What a topic ever accepted, in order, and also what a failover has lost; empty without
    /// [`MemoryOptions::keeps_journal`].
    pub fn journal(&self, topic: &str) -> Vec<(Position, Vec<u8>)> {
        self.lock().topics.journal(topic)
    }

    /// The nodes that are subscribed to a topic, by number.
    pub fn subscribers(&self, topic: &str) -> BTreeSet<NodeNumber> {
        let state = self.lock();
        let links = state.links.values();
        let subscribed = links.filter(|link| link.is_up() && link.topics.contains(topic));
        subscribed.map(|link| link.number).collect()
    }

    /// The connections that count for a device.
    pub fn connections(&self, device: &str) -> BTreeSet<ConnectionNumber> {
        let (state, now) = (self.lock(), Instant::now());
        let claims = state.devices.connections(device).into_iter();
        let living = claims.filter(|(_, claimed)| state.nodes.lives(claimed.link, now));
        living.map(|(connection, _)| connection).collect()
    }

    /// The topics that a node has joined.
    pub fn joined(&self, name: &str) -> BTreeSet<Name> {
        let state = self.lock();
        let links = state.links.values().filter(|link| link.name == name);
        links.flat_map(|link| link.topics.iter().cloned()).collect()
    }

    fn with(&self, name: &str, change: impl FnMut(&mut link::Link<state::Request>)) {
        let mut state = self.lock();
        state.links.values_mut().filter(|link| link.name == name).for_each(change);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
