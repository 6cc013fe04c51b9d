//! The old process's side.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime;
use weir_engine::Nanos;
use weir_wire::ProstMessage as _;
use weir_wire::handover::v1;
use weir_wire::handover::v1::link_message::Kind as Message;

use super::ROUND_PART;
use crate::cluster::{Cluster, Rest};
use crate::core::state::SharedState;
use crate::handover::{Link, NotMoved, Successor};

/// This node while the new process begins to listen as it. Dropped before [`OldNode::leave`], this
/// process goes on.
pub(in crate::gateway::handover) struct OldNode {
    cluster: Arc<Cluster>,
    /// The cluster, and what separates it from others in its Redis.
    names: (String, String),
    /// The topics that the new process has joined.
    joined: HashSet<String>,
    rest: Option<Rest>,
    has_left: bool,
}

impl OldNode {
    /// Lets the new process open the broker, and join the topics. `None`: this node works alone.
    pub(in crate::gateway::handover) fn begin(
        shared: &SharedState,
        (link, successor): (&Link, &Successor),
        runtime: &runtime::Handle,
        until: Nanos,
    ) -> Result<Option<OldNode>, NotMoved> {
        let Some(cluster) = &shared.cluster else {
            send(link, &v1::BrokerRound::default(), until)?;
            return await_ready(successor.link(), until).map(|()| None);
        };
        let config = &shared.config().cluster;
        // Before the new process listens: what it hears is noted here.
        cluster.begin_passing();
        let mut node = OldNode {
            cluster: Arc::clone(cluster),
            names: (config.id().to_owned(), config.prefix.clone()),
            joined: HashSet::new(),
            rest: None,
            has_left: false,
        };
        node.send_round(link, runtime, until)?;
        // What fails is said on the pair.
        await_ready(successor.link(), until)?;
        Ok(Some(node))
    }

    /// Stands still: what the new process listens to becomes no more.
    pub(in crate::gateway::handover) fn rest(
        &mut self,
        link: &Link,
        runtime: &runtime::Handle,
    ) -> Result<(), NotMoved> {
        let until = Nanos::now().after(ROUND_PATIENCE);
        // Most of it while others may still ask the broker.
        self.round(link, runtime, until)?;
        let rest = runtime.block_on(self.cluster.rest(REST_PATIENCE));
        self.rest = Some(rest.ok_or_else(|| NotMoved("the broker is too slow".to_owned()))?);
        self.round(link, runtime, until)
    }

    fn round(
        &mut self,
        link: &Link,
        runtime: &runtime::Handle,
        until: Nanos,
    ) -> Result<(), NotMoved> {
        self.send_round(link, runtime, until)?;
        await_ready(link, until)
    }

    fn send_round(
        &mut self,
        link: &Link,
        runtime: &runtime::Handle,
        until: Nanos,
    ) -> Result<(), NotMoved> {
        let node = runtime.block_on(self.cluster.export()).map_err(NotMoved::because)?;
        let cannot = || NotMoved("the broker of this program does not change hands".to_owned());
        let node = node.ok_or_else(cannot)?;
        let mut topics = self.cluster.joined();
        topics.retain(|topic| self.joined.insert(topic.clone()));
        let (cluster, prefix) = self.names.clone();
        send(link, &v1::BrokerRound { node: Some(node), cluster, prefix, topics }, until)
    }

    /// The new process has gone on.
    pub(in crate::gateway::handover) fn leave(mut self) {
        self.has_left = true;
        if let Some(rest) = self.rest.take() {
            self.cluster.leave_to_other(rest);
        }
    }
}

impl Drop for OldNode {
    fn drop(&mut self) {
        if !self.has_left {
            self.cluster.end_passing();
        }
    }
}

fn send(link: &Link, round: &v1::BrokerRound, until: Nanos) -> Result<(), NotMoved> {
    link.send_part(ROUND_PART, &round.encode_to_vec(), &[], until).map_err(NotMoved::because)
}

fn await_ready(link: &Link, until: Nanos) -> Result<(), NotMoved> {
    let Message::Ready(_) = link.receive(until).map_err(NotMoved::because)? else {
        return Err(NotMoved("another message where Ready is due".to_owned()));
    };
    Ok(())
}

/// Hundreds of thousands of topics take some seconds.
const ROUND_PATIENCE: Duration = Duration::from_secs(30);
/// A call of the broker ends within some milliseconds, or with its time-out.
const REST_PATIENCE: Duration = Duration::from_secs(5);
