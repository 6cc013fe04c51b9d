//! The new process's side: it makes shards and a front of what the old process hands over.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::task::spawn_blocking;
use weir_engine::handover::NotUnderstood;
use weir_engine::{Budget, ConnId, Lent, Nanos, Priority, Source, Taken, TakenOver};
use weir_wire::handover::v1;
use weir_wire::handover::v1::link_message::Kind as Message;
use zeroize::Zeroizing;

use super::early::Early;
use super::node::NewNode;
use super::parts::{
    FRONT_PART, LENT_BYTES, LENT_PART, LISTENERS_PART, SHARD_PART, decode, settled,
};
use crate::auth::CredentialsChange;
use crate::backends::calls::MovedCalls;
use crate::base::clock::unix_time;
use crate::base::config::Config;
use crate::connection::dispatcher::TakenTerms;
use crate::core::events::EventKind;
use crate::core::recheck::Changed;
use crate::core::state::SharedState;
use crate::handover::{Link, NotMoved, Predecessor, printable, reserve_descriptors};
use crate::observe::upgrades::{UpgradeOutcome, Upgraded};
use crate::topics::EarlyRings;
use crate::udp;

/// What comes from an old process.
pub(in crate::gateway) struct Incoming {
    predecessor: Predecessor,
    /// What the old process has said it hands over, once it has.
    plan: OnceLock<v1::LinkPlan>,
    /// Carries what the front needs before the pause.
    front: Mutex<Option<Link>>,
    early: OnceLock<Early>,
}

/// What comes before the pause.
pub(in crate::gateway) struct TakenParts {
    /// The sockets of the listeners with their names.
    pub(in crate::gateway) sockets: Vec<(String, OwnedFd)>,
    /// By shard.
    pub(in crate::gateway) sources: Vec<Source>,
}

/// What the tasks and threads of the front begin with.
#[derive(Default)]
pub(in crate::gateway) struct TakenFront {
    /// By shard.
    pub(in crate::gateway) terms: Vec<TakenTerms>,
    /// What the threads for datagrams remembered.
    pub(in crate::gateway) remembered: udp::Remembered,
    /// What the broker has told the old process.
    pub(in crate::gateway) heard: v1::BrokerHeard,
    pub(in crate::gateway) rest: Rest,
}

/// What remains to be done for what was taken over, once this process serves.
#[derive(Default)]
pub(in crate::gateway) struct Rest {
    /// What the configuration of this process changes for the connections.
    pub(super) changed: Changed,
    /// Calls that have begun in the old process.
    pub(super) calls: MovedCalls,
}

impl Incoming {
    pub(in crate::gateway) fn new(predecessor: Predecessor) -> Incoming {
        let (plan, early) = (OnceLock::new(), OnceLock::new());
        Incoming { predecessor, plan, front: Mutex::default(), early }
    }

    /// The number of the old process.
    pub(in crate::gateway) fn process(&self) -> u32 {
        self.predecessor.pid()
    }

    /// Takes what comes before the pause. It blocks.
    pub(in crate::gateway) fn prepare(&self, shards: usize) -> Result<TakenParts, NotMoved> {
        let until = Nanos::now().after(PATIENCE);
        let plan = self.predecessor.plan(until).map_err(NotMoved::because)?;
        let _ = self.plan.set(plan.clone());
        let sockets = self.predecessor.link().receive_sockets(LISTENERS_PART, until);
        let sockets = sockets.map_err(NotMoved::because)?;
        let links = (0..shards).map(|_| self.predecessor.link_of(until));
        let links: Vec<_> = links.collect::<Result<_, _>>().map_err(NotMoved::because)?;
        let (_, front) = self.predecessor.link_of(until).map_err(NotMoved::because)?;
        *self.front.lock().unwrap_or_else(PoisonError::into_inner) = Some(front);
        let source = |(_, link): (String, Link)| Source {
            link: link.into_socket(),
            receive: Box::new(move |link, borrow| receive(link, plan.connections, borrow)),
        };
        Ok(TakenParts { sockets, sources: links.into_iter().map(source).collect() })
    }

    /// Opens the broker as the node of the old process; `None`: it works alone. Then it takes what
    /// comes early, which is charged to `budget`.
    pub(in crate::gateway) async fn open_node(
        &self,
        config: &Config,
        given: bool,
        budget: &Arc<Budget>,
    ) -> Result<Option<NewNode>, NotMoved> {
        let link = self.front.lock().unwrap_or_else(PoisonError::into_inner).take();
        let link = link.ok_or_else(|| NotMoved("the link of the front is missing".to_owned()))?;
        let node = NewNode::open(config, given, &link).await?;
        let early = Early::begin(link, budget, node.as_ref().map(NewNode::rounds));
        // Nobody else sets it.
        let _ = self.early.set(early.map_err(NotMoved::because)?);
        let until = Nanos::now().after(PATIENCE);
        let said = self.predecessor.link().send(Message::Ready(v1::LinkReady {}), until);
        said.map(|()| node).map_err(NotMoved::because)
    }

    /// Fills the front, and waits for the decision. `Ok`: this process owns everything. It blocks.
    pub(in crate::gateway) fn own(
        &self,
        shared: &SharedState,
        taken: &[Vec<Taken>],
        node: Option<&NewNode>,
    ) -> Result<TakenFront, NotMoved> {
        if let Some(node) = node {
            node.prepare(shared);
        }
        let early = || NotMoved("the state is read before its format is known".to_owned());
        let plan = self.plan.get().ok_or_else(early)?;
        let until = Nanos::now().after(PATIENCE);
        let part = self.predecessor.link().receive_part(FRONT_PART, until);
        let (bytes, _) = part.map_err(NotMoved::because)?;
        let mut front = decode(Zeroizing::new(bytes), plan.format)?;
        let upgrades = front.upgrades.take().unwrap_or_default();
        let none = || NotMoved("nothing has come early".to_owned());
        let mut rings = self.early.get().ok_or_else(none)?.rings()?;
        let taken = import(shared, front, taken, &mut rings).map_err(NotMoved::because)?;
        self.predecessor.own()?;
        note(shared, &plan.program, upgrades);
        // Many messages: nobody waits until they are let go of.
        drop(spawn_blocking(move || drop(rings)));
        Ok(taken)
    }

    /// The pair, after the decision.
    pub(super) fn into_link(self) -> Link {
        self.predecessor.into_link()
    }

    /// Tells the old process why this one ends.
    pub(in crate::gateway) fn fail(self, why: &impl ToString) {
        self.predecessor.fail(&why.to_string());
    }
}

/// Notes that this process has taken over.
fn note(shared: &SharedState, before: &str, upgrades: v1::UpgradeHistory) {
    let v1::UpgradeHistory { moved, failed, pause_began, stays_http, stays_unsettled, limits } =
        upgrades;
    shared.upgrades.add(UpgradeOutcome::Moved, moved);
    shared.upgrades.add(UpgradeOutcome::Failed, failed);
    limits.iter().for_each(|limit| shared.upgrades.add_limit(limit));
    let upgraded = Upgraded {
        at: unix_time(),
        pid: std::process::id(),
        before: printable(before),
        pause: Nanos::now().since(Nanos(pause_began)),
        connections: settled(shared.engine()),
        stayed: vec![("http", stays_http), ("unsettled", stays_unsettled)],
    };
    shared.events.begin_with(EventKind::Upgraded(upgraded.clone()));
    shared.upgrades.note(upgraded);
}

fn import(
    shared: &SharedState,
    front: v1::Front,
    taken: &[Vec<Taken>],
    rings: &mut EarlyRings,
) -> Result<TakenFront, NotUnderstood> {
    let missing = |field| NotUnderstood { field, value: 0 };
    let topics = front.topics.ok_or_else(|| missing("front.topics"))?;
    let topics = shared.router.import(topics, rings)?;
    let callers = front.callers.ok_or_else(|| missing("front.callers"))?;
    let callers = shared.import_callers(callers)?;
    for (shard, taken) in taken.iter().enumerate() {
        for connection in taken.iter().filter(|connection| !connection.is_closing) {
            shared.take_over(shard, connection.origin)?;
        }
    }
    if front.terms.len() != taken.len() {
        return Err(NotUnderstood { field: "front.terms", value: front.terms.len() as u64 });
    }
    let terms = front.terms.into_iter().zip(taken.iter().enumerate());
    let terms =
        terms.map(|(terms, (shard, taken))| TakenTerms::import(shared, (shard, taken), terms));
    let terms = terms.collect::<Result<_, _>>()?;
    shared.end_take_over();
    let CredentialsChange { admits_less, grants: all_topics } = callers.change;
    Ok(TakenFront {
        terms,
        remembered: udp::import(&shared.config().udp, front.datagrams)?,
        heard: front.broker_heard.unwrap_or_default(),
        rest: Rest { changed: Changed { admits_less, topics, all_topics }, calls: callers.calls },
    })
}

/// Runs on the shard's thread. A table of its own gets room for so many descriptors before the
/// pause. First come the sockets that are lent, until a part without any.
fn receive(
    link: OwnedFd,
    connections: u64,
    borrow: &mut dyn FnMut(Lent) -> io::Result<()>,
) -> io::Result<TakenOver> {
    let link = Link::new(link);
    reserve_descriptors(&link, connections);
    let until = Nanos::now().after(PATIENCE);
    link.send(Message::Ready(v1::LinkReady {}), until).map_err(io::Error::other)?;
    loop {
        let (conns, sockets) = link.receive_part(LENT_PART, until).map_err(io::Error::other)?;
        if sockets.is_empty() {
            break;
        }
        let (conns, rest) = conns.as_chunks::<LENT_BYTES>();
        if conns.len() != sockets.len() || !rest.is_empty() {
            return Err(io::Error::other("another number of lent sockets than of connections"));
        }
        for ([id @ .., priority], socket) in conns.iter().zip(sockets) {
            let priority = Priority::ALL.get(usize::from(*priority)).copied();
            let priority = priority.ok_or_else(|| io::Error::other("an unknown priority"))?;
            borrow(Lent { conn: ConnId::from_u64(u64::from_be_bytes(*id)), priority, socket })?;
        }
    }
    let (state, sockets) = link.receive_part(SHARD_PART, until).map_err(io::Error::other)?;
    Ok(TakenOver { state, sockets })
}

/// The old process pauses as soon as all shards are here.
const PATIENCE: Duration = Duration::from_secs(60);
