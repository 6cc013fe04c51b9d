//! This node in its cluster, as far as it is not about topics: messages to devices and to all,
//! claims of connections, revocations, announcements.
//!
//! | part | does |
//! |---|---|
//! | `local` | takes what the broker tells, and runs the tasks |
//! | `sending` | messages to devices and to all, to the broker and from it |
//! | `handover` | lets another process go on as this node |
//! | `claims` | tells the broker which devices have which connections here |
//! | `revocations` | carries out each revocation once, and knows how far it is |
//! | `announcing` | tells the other nodes of this one, and lists them |
//! | `calls` | calls devices at other nodes, and has those of others call devices here |
//! | `questions` | asks other nodes about their connections, and answers them |

mod announcing;
mod call_letter;
mod calls;
mod claims;
mod handover;
mod local;
mod questions;
mod revocations;
mod sending;

use std::sync::Arc;

use tokio::runtime;
use tokio::sync::Semaphore;
use tracing::{debug, error};
use weir_broker::NodeNumber;
use weir_engine::{ConnId, DeviceRef, OwnNode};

use crate::auth::devices::Devices;
use crate::cluster::Cluster;
use crate::observe::counters::Counters;
use announcing::Announcing;
pub(crate) use announcing::{NodeAbout, NodeInfo, settings_differ};
use calls::NodeCalls;
use claims::Claims;
use questions::Questions;
pub(crate) use questions::{ConnectionView, Others, Question};
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
    counters: Arc<Counters>,
    runtime: runtime::Handle,
    sending: Arc<Semaphore>,
    claims: Claims,
    revoked: Revoked,
    announcing: Announcing,
    questions: Questions,
    calls: NodeCalls,
}

/// What waits for the broker, or for other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Backlog {
    /// Messages to devices and to all.
    pub(crate) messages: usize,
    /// Claims of connections, and devices whose connections are to be claimed again.
    pub(crate) claims: usize,
    pub(crate) releases: usize,
    /// Questions to other nodes.
    pub(crate) questions: usize,
    /// Questions of other nodes.
    pub(crate) answers: usize,
}

impl ClusterNode {
    /// Called within a tokio runtime.
    pub(in crate::core) fn new(
        cluster: Arc<Cluster>,
        own: OwnNode,
        counters: &Arc<Counters>,
    ) -> Arc<ClusterNode> {
        let node = ClusterNode {
            own,
            counters: Arc::clone(counters),
            runtime: runtime::Handle::current(),
            sending: Arc::new(Semaphore::new(SENDING_MAX)),
            claims: Claims::new(counters),
            revoked: Revoked::default(),
            announcing: Announcing::default(),
            questions: Questions::default(),
            calls: NodeCalls::default(),
            cluster,
        };
        node.take_number(node.cluster.node());
        Arc::new(node)
    }

    /// Tells the broker that this node ends. Its tasks have ended before.
    pub(crate) async fn retire(&self) {
        if let Err(error) = self.cluster.broker().retire().await {
            debug!(%error, "the broker was not told that this node ends");
        }
    }

    /// Claims a connection that has entered its device's record, soon. One that has been revoked
    /// meanwhile is not claimed.
    pub(crate) fn claim(&self, devices: &Devices, device: DeviceRef, conn: ConnId) {
        self.claims.claim(devices, device, conn);
    }

    /// Releases a connection that has ended, soon.
    pub(crate) fn release(&self, device: &str, conn: ConnId) {
        self.claims.release(device, conn);
    }

    /// What waits now.
    pub(crate) fn backlog(&self, devices: &Devices) -> Backlog {
        let (claims, releases) = self.claims.waiting(devices);
        Backlog {
            messages: SENDING_MAX - self.sending.available_permits(),
            claims,
            releases,
            questions: self.questions.asked(),
            answers: self.questions.answering(),
        }
    }

    fn take_number(&self, number: NodeNumber) {
        if !self.own.renumber(number.0) {
            error!(number = number.0, "the broker has given a number that no connection can carry");
        }
    }
}

/// More messages to devices and to all are refused with `busy`. Each takes about a kilobyte beside
/// its payload.
const SENDING_MAX: usize = 4096;
