//! What the broker tells this node, and the tasks of a running node.

use std::sync::{Arc, Weak};

use tokio::task::JoinSet;
use weir_broker::{ConnectionNumber, NodeNumber, Revocation, Scope};
use weir_engine::ConnId;

use super::ClusterNode;
use crate::cluster::{BrokerEvents, LocalNode};
use crate::core::state::SharedState;

/// Where the broker tells what is not about topics.
struct Local {
    node: Arc<ClusterNode>,
    /// It must not hold the state, which holds the broker, which holds this.
    shared: Weak<SharedState>,
}

impl ClusterNode {
    /// What is to be done before there is a connection.
    pub(crate) async fn begin(self: &Arc<Self>, shared: &Arc<SharedState>, events: &BrokerEvents) {
        let local = Local { node: Arc::clone(self), shared: Arc::downgrade(shared) };
        events.set_node(Arc::new(local));
        // The number may have changed before this node was told.
        self.take_number(self.cluster.node());
        self.read_first_revocations().await;
        self.announce(shared).await;
    }

    /// The same for what another process has handed over: nobody waits for the broker.
    pub(crate) fn go_on(self: &Arc<Self>, shared: &Arc<SharedState>, events: &BrokerEvents) {
        let local = Local { node: Arc::clone(self), shared: Arc::downgrade(shared) };
        events.set_node(Arc::new(local));
        self.take_number(self.cluster.node());
        self.announcing.soon();
    }

    /// Starts the tasks of a running node.
    pub(crate) fn spawn(self: &Arc<Self>, shared: &Arc<SharedState>, services: &mut JoinSet<()>) {
        let tasks = || (Arc::clone(self), Arc::clone(shared));
        let (node, state) = tasks();
        services.spawn(async move { node.run_claims(&state.devices, &state.admission).await });
        let (node, state) = tasks();
        services.spawn(async move { node.run_revocations(&state).await });
        let (node, state) = tasks();
        services.spawn(async move { node.run_announcing(&state).await });
    }
}

impl Local {
    fn with_shared(&self, act: impl FnOnce(&Arc<SharedState>)) {
        // Without it the gateway has ended, and all its connections.
        if let Some(shared) = self.shared.upgrade() {
            act(&shared);
        }
    }
}

impl LocalNode for Local {
    fn to_device(&self, device: &str, payload: &[u8]) {
        self.with_shared(|shared| shared.deliver(Some(device), payload));
    }

    fn to_all(&self, payload: &[u8]) {
        self.with_shared(|shared| shared.deliver(None, payload));
    }

    fn to_node(&self, payload: Vec<u8>) {
        self.with_shared(|shared| self.node.take_letter(shared, &payload));
    }

    fn evict(&self, device: &str, connection: ConnectionNumber) {
        self.with_shared(|shared| shared.evict(device, ConnId::from_u64(connection.0)));
    }

    fn revoke(&self, revocation: Revocation) {
        self.with_shared(|shared| self.node.take_revocation(shared, &revocation));
    }

    fn missed(&self, scope: &Scope) {
        match scope {
            Scope::Topics(_) => {}
            Scope::Devices(ids) => {
                self.with_shared(|shared| self.node.claims.claim_again(&shared.devices, ids));
            }
            Scope::Node => self.node.revoked.read_again(),
            Scope::All => {
                self.with_shared(|shared| self.node.claims.claim_all_again(&shared.devices));
                self.node.revoked.read_again();
            }
        }
    }

    fn renumber(&self, number: NodeNumber) {
        self.node.take_number(number);
        self.with_shared(|shared| {
            self.node.claims.claim_all_again(&shared.devices);
            shared.router.enter_all_again();
        });
        self.node.announcing.soon();
    }
}
