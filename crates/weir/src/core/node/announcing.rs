//! Tells the other nodes of this one, and lists them.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tracing::debug;
use utoipa::ToSchema;
use weir_broker::{Error, Node, RevocationId};

use super::ClusterNode;
use crate::base::config::Config;
use crate::core::state::SharedState;

/// When this node announces itself.
#[derive(Default)]
pub(super) struct Announcing {
    wake: Notify,
}

/// What a node tells of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct NodeAbout {
    /// The version of Weir.
    #[serde(default)]
    version: String,
    /// Its connections of devices and services.
    #[serde(default)]
    connections: u64,
    /// Tells nodes with different classes of topics apart: 16 hexadecimal digits.
    #[serde(default)]
    settings: String,
    /// Whether it closes its connections to end.
    #[serde(default)]
    draining: bool,
    /// How long it has run.
    #[serde(default)]
    uptime_s: u64,
}

/// A node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeInfo {
    /// 0: the node belongs to no cluster.
    pub(crate) number: u16,
    pub(crate) name: String,
    pub(crate) revoked_to: Option<RevocationId>,
    /// `None`: a node of another version tells something else.
    pub(crate) about: Option<NodeAbout>,
    /// Whether it is this one.
    pub(crate) is_own: bool,
}

impl Announcing {
    /// Something has changed that others wait for.
    pub(super) fn soon(&self) {
        self.wake.notify_one();
    }
}

impl ClusterNode {
    /// Announces this node again and again, until the gateway ends.
    pub(super) async fn run_announcing(&self, shared: &SharedState) {
        let interval = shared.config().cluster.node_ttl / 3;
        loop {
            // A revocation is told at once. Many together are told once.
            let _ = timeout(interval, self.announcing.wake.notified()).await;
            self.announce(shared).await;
            sleep(PAUSE).await;
        }
    }

    pub(super) async fn announce(&self, shared: &SharedState) {
        let about = shared.about();
        let node = Node {
            number: self.cluster.node(),
            name: shared.config().cluster.node(),
            revoked_to: self.revoked.last(),
            // A view has only texts and numbers.
            about: serde_json::to_string(&about).unwrap_or_default(),
        };
        if let Err(error) = self.cluster.broker().announce(node).await {
            debug!(%error, "this node could not be announced");
        }
    }
}

impl SharedState {
    fn about(&self) -> NodeAbout {
        NodeAbout {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            connections: u64::try_from(self.devices.connection_count()).unwrap_or(u64::MAX),
            settings: settings(self.config()),
            draining: self.is_draining(),
            uptime_s: self.admission.uptime().as_secs(),
        }
    }

    /// The nodes that live, by number; without a cluster this one alone.
    pub(crate) async fn nodes(&self) -> Result<Vec<NodeInfo>, Error> {
        let Some(node) = &self.node else {
            let name = self.config().cluster.node();
            let about = Some(self.about());
            return Ok(vec![NodeInfo { number: 0, name, revoked_to: None, about, is_own: true }]);
        };
        let own = node.cluster.node();
        let nodes = node.cluster.broker().nodes().await?;
        let info = |node: Node| NodeInfo {
            number: node.number.0,
            about: serde_json::from_str(&node.about).ok(),
            name: node.name,
            revoked_to: node.revoked_to,
            is_own: node.number == own,
        };
        Ok(nodes.into_iter().map(info).collect())
    }
}

/// The same for nodes with the same classes of topics.
fn settings(config: &Config) -> String {
    let text = format!("{:?}", config.topic_classes);
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
    digest.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The least time between two announcements.
const PAUSE: Duration = Duration::from_millis(10);
