//! Tells the other nodes of this one, and lists them.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};
use utoipa::ToSchema;
use weir_broker::{Error, Node, RevocationId};

use super::ClusterNode;
use crate::base::config::Config;
use crate::core::state::SharedState;

/// When this node announces itself, and the nodes that it has seen.
#[derive(Default)]
pub(super) struct Announcing {
    wake: Notify,
    seen: Mutex<NodesSeen>,
}

/// The nodes that lived when this node last looked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NodesSeen {
    /// Nodes with the same classes of topics as this one, itself included.
    pub(crate) same: usize,
    /// Names of nodes with others.
    pub(crate) different: Vec<String>,
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
    /// Of the classes of topics, the same at nodes whose classes are the same: 16 hexadecimal digits.
    #[serde(default)]
    settings: String,
    /// Whether it is being emptied, or ends.
    #[serde(default)]
    draining: bool,
    /// How long it has run.
    #[serde(default)]
    uptime_s: u64,
    /// Connections in topics with presence that it does not list, because it has
    /// `limits.presence_members_max` members.
    #[serde(default)]
    presence_unlisted: u64,
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

impl NodeInfo {
    /// Members that it does not list; `None`: it is of another version, and does not tell.
    pub(crate) fn presence_unlisted(&self) -> Option<u64> {
        self.about.as_ref().map(|about| about.presence_unlisted)
    }
}

impl Announcing {
    /// Something has changed that others wait for.
    pub(super) fn soon(&self) {
        self.wake.notify_one();
    }

    fn seen(&self) -> MutexGuard<'_, NodesSeen> {
        self.seen.lock().expect("no panic happens under the lock of the nodes")
    }
}

impl NodesSeen {
    fn of(nodes: &[NodeInfo], own: &str) -> NodesSeen {
        let mut seen = NodesSeen::default();
        for node in nodes {
            match &node.about {
                Some(about) if about.settings != own => seen.different.push(node.name.clone()),
                Some(_) => seen.same += 1,
                // What another version tells of itself means nothing here.
                None => {}
            }
        }
        seen
    }
}

/// Whether nodes have different classes of topics.
pub(crate) fn settings_differ(nodes: &[NodeInfo]) -> bool {
    let mut settings = nodes.iter().filter_map(|node| Some(&node.about.as_ref()?.settings));
    let first = settings.next();
    settings.any(|settings| Some(settings) != first)
}

impl ClusterNode {
    /// Announces this node now, as something has changed.
    pub(in crate::core) fn announce_soon(&self) {
        self.announcing.soon();
    }

    /// Announces this node again and again, until the gateway ends.
    pub(super) async fn run_announcing(&self, shared: &SharedState) {
        let interval = shared.config().cluster.node_ttl / 3;
        let mut looked = Instant::now();
        loop {
            // A revocation is told at once. Many together are told once.
            let _ = timeout(interval, self.announcing.wake.notified()).await;
            let turn = self.cluster.turns().take().await;
            self.announce(shared).await;
            drop(turn);
            if looked.elapsed() >= interval {
                looked = Instant::now();
                self.look(shared).await;
            }
            sleep(PAUSE).await;
        }
    }

    /// Looks at the other nodes, and tells when their classes of topics begin or cease to differ
    /// from this node's.
    async fn look(&self, shared: &SharedState) {
        // The loss of the broker is told elsewhere.
        let Ok(nodes) = shared.nodes().await else { return };
        let seen = NodesSeen::of(&nodes, &settings(&shared.config()));
        let before = std::mem::replace(&mut *self.announcing.seen(), seen.clone());
        if seen.different == before.different {
            return;
        }
        match seen.different.join(", ") {
            nodes if !nodes.is_empty() => warn!(
                nodes,
                "topic_classes of this node and of others differ: what a topic retains, and who may use it, depends on the node"
            ),
            _ => info!("all nodes have the same topic_classes again"),
        }
    }

    /// The nodes that lived a moment ago.
    pub(crate) fn nodes_seen(&self) -> NodesSeen {
        self.announcing.seen().clone()
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
            settings: settings(&self.config()),
            draining: self.drains.is_active(),
            uptime_s: self.admission.uptime().as_secs(),
            presence_unlisted: self.router.unlisted_count() as u64,
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
