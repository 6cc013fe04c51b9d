//! Takes what the broker tells this node.

use std::sync::{Arc, OnceLock, Weak};

use tracing::{info, warn};
use weir_broker::{
    ConnectionNumber, Event, EventHandler, Name, NodeNumber, PublishQueue, Revocation, Scope,
};

use super::handover::Passing;
use crate::topics::Router;

/// Hears the broker. Messages of topics go to the router; the rest goes to the [`LocalNode`].
pub(crate) struct BrokerEvents {
    router: Arc<Router>,
    /// It holds the broker, which holds this.
    queue: OnceLock<Weak<PublishQueue>>,
    node: OnceLock<Arc<dyn LocalNode>>,
    passing: Passing,
}

/// This node, as far as the broker tells it of more than topics. No method may wait.
pub(crate) trait LocalNode: Send + Sync {
    /// A message to a device that is connected here.
    fn to_device(&self, device: &str, payload: &[u8]);
    /// A message to all connections.
    fn to_all(&self, payload: &[u8]);
    /// A message from another node to this one.
    fn to_node(&self, payload: Vec<u8>);
    /// A device has newer connections elsewhere: this one is closed.
    fn evict(&self, device: &str, connection: ConnectionNumber);
    /// A device was revoked.
    fn revoke(&self, revocation: Revocation);
    /// What came for these devices, or for this node, may have been missed: connections are to be
    /// claimed again, and revocations to be read.
    fn missed(&self, scope: &Scope);
    /// This node has another number from now on.
    fn renumber(&self, number: NodeNumber);
}

impl BrokerEvents {
    pub(crate) fn new(router: Arc<Router>) -> Arc<BrokerEvents> {
        let (queue, node) = (OnceLock::new(), OnceLock::new());
        Arc::new(BrokerEvents { router, queue, node, passing: Passing::default() })
    }

    /// From here on messages that wait leave as soon as the broker is back.
    pub(super) fn set_queue(&self, queue: &Arc<PublishQueue>) {
        let _ = self.queue.set(Arc::downgrade(queue));
    }

    /// From here on events that are not of topics have somewhere to go. Until then there is no
    /// connection that they could concern.
    pub(crate) fn set_node(&self, node: Arc<dyn LocalNode>) {
        let _ = self.node.set(node);
    }

    fn tell(&self, tell: impl FnOnce(&dyn LocalNode)) {
        if let Some(node) = self.node.get() {
            tell(node.as_ref());
        }
    }

    pub(super) fn passing(&self) -> &Passing {
        &self.passing
    }

    /// Carries out what was held back for another process. Returns whether something was let go of.
    pub(super) fn resume(&self) -> bool {
        self.passing.release(|event| self.carry_out(event))
    }

    /// The same, and no other process is about to go on.
    pub(super) fn end_passing(&self) -> bool {
        self.passing.end(|event| self.carry_out(event))
    }

    fn handle_message(&self, topic: &Name, epoch: u64, messages: Vec<weir_broker::Received>) {
        self.router.handle_messages(topic, epoch, messages);
    }
}

impl EventHandler for BrokerEvents {
    fn handle(&self, event: Event) {
        self.passing.pass(event, |event| self.carry_out(event));
    }
}

impl BrokerEvents {
    fn carry_out(&self, event: Event) {
        match event {
            Event::Messages { topic, epoch, messages } => {
                self.handle_message(&topic, epoch, messages);
            }
            Event::Gap(scope) => {
                self.router.handle_gap(&scope);
                self.tell(|node| node.missed(&scope));
            }
            Event::ToDevice { device, payload } => {
                self.tell(|node| node.to_device(&device, &payload));
            }
            Event::ToAll(payload) => self.tell(|node| node.to_all(&payload)),
            Event::ToNode(payload) => self.tell(|node| node.to_node(payload)),
            Event::Evicted { device, connection } => {
                self.tell(|node| node.evict(&device, connection));
            }
            Event::Revoked(revocation) => self.tell(|node| node.revoke(revocation)),
            Event::Presence { topic, joined, left } => {
                self.router.handle_presence(&topic, joined, left);
            }
            Event::Vacated { topic, occupancy } => self.router.handle_vacated(&topic, occupancy),
            Event::Lost(cause) => {
                self.router.set_broker_lost(true);
                warn!(
                    cause,
                    "the broker cannot be reached: topics of the cluster take no messages and no subscribers"
                );
            }
            Event::Back { after } => {
                self.router.set_broker_lost(false);
                if let Some(queue) = self.queue.get().and_then(Weak::upgrade) {
                    queue.wake();
                }
                info!(
                    after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX),
                    "the broker is back"
                );
            }
            Event::Renumbered(number) => {
                warn!(
                    number = number.0,
                    "the lease of this node's number had run out; it has a new number"
                );
                self.tell(|node| node.renumber(number));
            }
        }
    }
}
