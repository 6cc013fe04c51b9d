//! The new process's side.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime;
use weir_broker::{Broker, EventHandler, Name};
use weir_engine::Nanos;
use weir_wire::ProstMessage as _;
use weir_wire::handover::v1;
use weir_wire::handover::v1::link_message::Kind as Message;

use super::ROUND_PART;
use crate::base::config::Config;
use crate::cluster::handover::node_state;
use crate::cluster::{BrokerEvents, EarlyEvents, OpenBroker, configured_as};
use crate::core::state::SharedState;
use crate::handover::{Link, LinkError, NotMoved};
use crate::observe::counters::ClusterLimit;

/// The node as which this process goes on. It listens already.
pub(in crate::gateway) struct NewNode {
    broker: Arc<dyn Broker>,
    early: Arc<EarlyEvents>,
    joined: Joined,
}

/// The topics that this process has joined.
type Joined = Arc<Mutex<Vec<Name>>>;

impl NewNode {
    /// Opens the broker as the node of the old process, and joins its topics. `None`: it works
    /// alone. `given`: whether the program brings a broker of its own.
    pub(in crate::gateway::handover) async fn open(
        config: &Config,
        given: bool,
        link: &Link,
    ) -> Result<Option<NewNode>, NotMoved> {
        let round = receive(link, Nanos::now().after(PATIENCE)).map_err(NotMoved::because)?;
        let (node, is_set) = (round.node, config.cluster.is_set() || given);
        let Some(node) = node else {
            let differs =
                || NotMoved("the old process works alone: [cluster] needs a restart".into());
            return if is_set { Err(differs()) } else { Ok(None) };
        };
        if given {
            let cannot = "a broker of the program's own cannot be opened as another process's node";
            return Err(NotMoved(cannot.to_owned()));
        }
        let cluster = &config.cluster;
        if !is_set || (cluster.id(), &*cluster.prefix) != (&round.cluster, &*round.prefix) {
            return Err(NotMoved(format!(
                "the old process belongs to cluster {:?} with prefix {:?}: another one needs a \
                 restart (cluster.id, cluster.prefix)",
                round.cluster, round.prefix
            )));
        }
        let state = node_state(node, Nanos::now()).map_err(NotMoved::because)?;
        let missing = || NotMoved("[cluster] names no broker".to_owned());
        let open = configured_as(config, Some(state));
        let open = open.map_err(|error| NotMoved(format!("cluster.ca: {error}")))?;
        let early = Arc::<EarlyEvents>::default();
        let broker = open.ok_or_else(missing)?(Arc::clone(&early) as Arc<dyn EventHandler>).await;
        let broker = broker.map_err(|error| NotMoved(format!("[cluster]: {error}")))?;
        let joined = Joined::default();
        let topics = join(&*broker, round.topics, &joined).await;
        topics.map_err(|error| NotMoved(format!("[cluster]: {error}")))?;
        Ok(Some(NewNode { broker, early, joined }))
    }

    /// What takes the rounds after the first one. Called within a tokio runtime.
    pub(in crate::gateway::handover) fn rounds(&self) -> Rounds {
        let (broker, joined) = (Arc::clone(&self.broker), Arc::clone(&self.joined));
        Rounds { broker, joined, runtime: runtime::Handle::current() }
    }

    /// The broker, for the topics.
    pub(in crate::gateway) fn opened(&self) -> OpenBroker {
        let broker = Arc::clone(&self.broker);
        // What it tells goes to `early` until this process goes on.
        Box::new(move |_| Box::pin(std::future::ready(Ok(broker))))
    }

    /// Tells the router what is joined already. It has no topics yet.
    pub(in crate::gateway::handover) fn prepare(&self, shared: &SharedState) {
        let joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        shared.router.note_joined(joined.iter().cloned());
    }

    /// Goes on: this process owns everything.
    pub(in crate::gateway) fn go_on(
        &self,
        shared: &SharedState,
        events: Arc<BrokerEvents>,
        heard: &v1::BrokerHeard,
    ) {
        shared.router.follow_imported();
        if self.early.go_on(events, heard) {
            shared.counters().count_cluster_limit(ClusterLimit::Upgrade);
        }
    }
}

/// What takes the rounds after the first one.
pub(in crate::gateway::handover) struct Rounds {
    broker: Arc<dyn Broker>,
    joined: Joined,
    runtime: runtime::Handle,
}

impl Rounds {
    /// Takes rounds until the link ends.
    pub(in crate::gateway::handover) fn run(&self, link: &Link) {
        while let Ok(round) = receive(link, Nanos::now().after(PATIENCE)) {
            let answer = match self.runtime.block_on(self.take(round)) {
                Ok(()) => Message::Ready(v1::LinkReady {}),
                Err(NotMoved(sentence)) => Message::Failed(v1::LinkFailed { sentence }),
            };
            if link.send(answer, Nanos::now().after(PATIENCE)).is_err() {
                return;
            }
        }
    }

    async fn take(&self, round: v1::BrokerRound) -> Result<(), NotMoved> {
        let node = round.node.ok_or_else(|| NotMoved("a round without a node".to_owned()))?;
        let state = node_state(node, Nanos::now()).map_err(NotMoved::because)?;
        let failed = |error: weir_broker::Error| NotMoved(format!("[cluster]: {error}"));
        self.broker.go_on(state).await.map_err(failed)?;
        join(&*self.broker, round.topics, &self.joined).await.map_err(failed)
    }
}

async fn join(
    broker: &dyn Broker,
    topics: Vec<String>,
    joined: &Joined,
) -> Result<(), weir_broker::Error> {
    let topics: Vec<Name> = topics.into_iter().map(Name::from).collect();
    for part in topics.chunks(JOINS_MAX) {
        broker.join(part.to_vec()).await?;
    }
    joined.lock().unwrap_or_else(PoisonError::into_inner).extend(topics);
    Ok(())
}

fn receive(link: &Link, until: Nanos) -> Result<v1::BrokerRound, LinkError> {
    let (bytes, _) = link.receive_part(ROUND_PART, until)?;
    v1::BrokerRound::decode(&*bytes).map_err(|_| LinkError::NotUnderstood("a round of the broker"))
}

/// The old process pauses as soon as all shards are here.
const PATIENCE: Duration = Duration::from_secs(60);
/// Topics in one call.
const JOINS_MAX: usize = 512;
