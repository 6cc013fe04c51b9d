//! This node in its cluster, as far as it is not about topics: messages to devices and to all,
//! claims of connections, revocations, announcements.
//!
//! | part | does |
//! |---|---|
//! | this file | takes what the broker tells, and sends to devices and to all |
//! | `claims` | tells the broker which connections count for their devices |
//! | `revocations` | carries out each revocation once, and knows how far it is |
//! | `announcing` | tells the other nodes of this one, and lists them |

mod announcing;
mod claims;
mod revocations;

use std::sync::{Arc, OnceLock, Weak};

use tokio::runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tracing::{debug, error};
use weir_broker::{ConnectionNumber, Name, NodeNumber, Revocation, Scope};
use weir_engine::{Command, ConnId, DeviceRef, OwnNode};
use weir_wire::CloseReason;

use crate::base::clock::unix_millis;
use crate::base::mailboxes;
use crate::base::model::{NodesReached, PublishError, Target};
use crate::cluster::{Cluster, LocalNode};
use crate::core::publish::{Draft, RETRY_AFTER};
use crate::core::publishing::{Publishing, Sending};
use crate::core::state::SharedState;
use crate::limits::admission::AcceptOrder;
use crate::observe::counters::{FromBroker, PublishTarget};
use crate::topics::Envelope;
use announcing::Announcing;
pub(crate) use announcing::{NodeAbout, NodeInfo};
use claims::Claims;
pub(crate) use revocations::Confirmations;
use revocations::Revoked;

/// This node in its cluster.
///
/// Limits: [`SENDING_MAX`] messages to devices and to all wait for the broker; the limits of
/// [`Claims`].
pub(crate) struct ClusterNode {
    cluster: Arc<Cluster>,
    /// The number that new connections get.
    own: OwnNode,
    /// Set once, before there is a connection. It must not hold the state, which holds the broker,
    /// which holds this.
    shared: OnceLock<Weak<SharedState>>,
    runtime: runtime::Handle,
    sending: Arc<Semaphore>,
    claims: Claims,
    revoked: Revoked,
    announcing: Announcing,
}

impl ClusterNode {
    /// Called within a tokio runtime.
    pub(in crate::core) fn new(cluster: Arc<Cluster>, own: OwnNode) -> Arc<ClusterNode> {
        let node = ClusterNode {
            own,
            shared: OnceLock::new(),
            runtime: runtime::Handle::current(),
            sending: Arc::new(Semaphore::new(SENDING_MAX)),
            claims: Claims::default(),
            revoked: Revoked::default(),
            announcing: Announcing::default(),
            cluster,
        };
        node.take_number(node.cluster.node());
        Arc::new(node)
    }

    pub(in crate::core) fn set_shared(&self, shared: &Arc<SharedState>) {
        let _ = self.shared.set(Arc::downgrade(shared));
    }

    /// What is to be done before there is a connection.
    pub(crate) async fn begin(&self, shared: &SharedState) {
        // The number may have changed before this node was listened to.
        self.take_number(self.cluster.node());
        self.read_first_revocations().await;
        self.announce(shared).await;
    }

    /// Starts the tasks of a running node.
    pub(crate) fn spawn(self: &Arc<Self>, shared: &Arc<SharedState>, services: &mut JoinSet<()>) {
        let tasks = || (Arc::clone(self), Arc::clone(shared));
        let (node, state) = tasks();
        services.spawn(async move { node.run_claims(&state).await });
        let (node, state) = tasks();
        services.spawn(async move { node.run_revocations(&state).await });
        let (node, state) = tasks();
        services.spawn(async move { node.run_announcing(&state).await });
    }

    /// Tells the broker that this node ends. Its tasks have ended before.
    pub(crate) async fn retire(&self) {
        if let Err(error) = self.cluster.broker().retire().await {
            debug!(%error, "the broker was not told that this node ends");
        }
    }

    /// Claims a connection that has entered its device's record, soon.
    pub(crate) fn claim(
        &self,
        shared: &SharedState,
        device: DeviceRef,
        (order, conn): (AcceptOrder, ConnId),
    ) {
        // Under the device's lock, so that no release comes before it.
        let claim = |id: &str| self.claims.claim(id, conn, order);
        // A connection that has been revoked meanwhile is not claimed.
        let _ = shared.devices.with_id_of(device, conn, claim);
    }

    /// Releases a connection that has ended, soon.
    pub(crate) fn release(&self, device: &str, conn: ConnId) {
        self.claims.release(device, conn);
    }

    fn take_number(&self, number: NodeNumber) {
        if !self.own.renumber(number.0) {
            error!(number = number.0, "the broker has given a number that no connection can carry");
        }
    }

    fn with_shared(&self, act: impl FnOnce(&SharedState)) {
        // Without it the gateway has ended, and all its connections.
        if let Some(shared) = self.shared.get().and_then(Weak::upgrade) {
            act(&shared);
        }
    }
}

impl SharedState {
    /// Hands a message to a device or to all to the broker. The connections of this node get it
    /// like those of all nodes: from the broker.
    pub(in crate::core) fn send_to_nodes(
        &self,
        target: Target<'_>,
        draft: &Draft<'_>,
    ) -> Result<Publishing, PublishError> {
        let busy = || PublishError::Busy(RETRY_AFTER);
        let node = self.node.as_ref().ok_or_else(busy)?;
        let permit = Arc::clone(&node.sending).try_acquire_owned().map_err(|_| busy())?;
        let (broker, payload) = (Arc::clone(node.cluster.broker()), draft.envelope());
        let sending = |connections, target| Sending {
            accepted: draft.accepted(connections),
            target,
            counters: Arc::clone(self.counters()),
            permit,
        };
        Ok(match target {
            Target::Device(id) => {
                let connections = self.devices.look_at(id, |conns| conns.len());
                // The broker knows no connections of services: they get it here.
                let services = self.devices.uncounted_of(id);
                if !services.is_empty() {
                    self.publish_to_device(id, |conn| services.contains(&conn), draft)?;
                }
                let device = Name::from(id);
                let call = async move {
                    broker.to_device(device, payload).await.map(NodesReached::Subscribed)
                };
                Publishing::ask(&node.runtime, call, sending(connections, PublishTarget::Device))
            }
            Target::All | Target::Topic(_) => {
                let call = async move {
                    let reach = broker.to_all(payload).await?;
                    Ok(NodesReached::All { reached: reach.reached, live: reach.live })
                };
                let connections = self.devices.connection_count();
                Publishing::ask(&node.runtime, call, sending(connections, PublishTarget::All))
            }
        })
    }

    /// Delivers a message that the broker has carried here; `None`: to all.
    fn deliver(&self, device: Option<&str>, payload: &[u8]) {
        let outcome = match Envelope::decode(payload) {
            None => FromBroker::Unknown,
            Some(envelope) => match envelope.rest(unix_millis()) {
                None => FromBroker::Expired,
                Some(ttl) => {
                    let draft = Draft::of_node(self, envelope.push, ttl);
                    let accepted = match device {
                        Some(id) => {
                            let services = self.devices.uncounted_of(id);
                            self.publish_to_device(id, |conn| !services.contains(&conn), &draft)
                        }
                        None => self.publish_to_all(&draft),
                    };
                    accepted.map_or(FromBroker::Lost, |_| FromBroker::Delivered)
                }
            },
        };
        self.counters().count_from_broker(outcome);
    }

    /// Closes a connection that its device has replaced at another node.
    fn evict(&self, device: &str, conn: ConnId) {
        if !self.devices.evict(device, conn) {
            return;
        }
        let evict = Command::Evict(conn, CloseReason::Replaced);
        if let Err(evict) = self.mailbox(conn.shard()).try_push(evict) {
            // No record names the connection any more, so nothing else would close it.
            let mailboxes = Arc::clone(self.mailboxes());
            tokio::spawn(async move {
                mailboxes::push(&mailboxes[conn.shard()], evict).await;
            });
        }
    }
}

impl LocalNode for ClusterNode {
    fn to_device(&self, device: &str, payload: &[u8]) {
        self.with_shared(|shared| shared.deliver(Some(device), payload));
    }

    fn to_all(&self, payload: &[u8]) {
        self.with_shared(|shared| shared.deliver(None, payload));
    }

    fn to_node(&self, _payload: Vec<u8>) {}

    fn evict(&self, device: &str, connection: ConnectionNumber) {
        self.with_shared(|shared| shared.evict(device, ConnId::from_u64(connection.0)));
    }

    fn revoke(&self, revocation: Revocation) {
        self.with_shared(|shared| self.take_revocation(shared, &revocation));
    }

    fn missed(&self, scope: &Scope) {
        match scope {
            Scope::Topics(_) => {}
            Scope::Devices(devices) => self.claims.claim_again(devices),
            Scope::Node => self.revoked.read_again(),
            Scope::All => {
                self.claims.claim_all_again();
                self.revoked.read_again();
            }
        }
    }

    fn renumber(&self, number: NodeNumber) {
        self.take_number(number);
        self.claims.claim_all_again();
        self.announcing.soon();
    }
}

/// More messages to devices and to all are refused with `busy`. Each takes about a kilobyte beside
/// its payload.
const SENDING_MAX: usize = 4096;
