//! Numbers and announcements of nodes, and which of them live.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::LinkId;
use crate::records::{Node, NodeNumber};

/// The nodes as the broker knows them.
pub(super) struct Nodes {
    /// How long a number belongs to a node that does not announce itself.
    lease: Duration,
    /// By number: who has it, and until when.
    leases: BTreeMap<NodeNumber, (LinkId, Instant)>,
    lives: BTreeMap<LinkId, Life>,
}

struct Life {
    until: Instant,
    announced: Option<Node>,
}

/// The numbers of nodes have 10 bits.
const NUMBERS: u16 = 1 << 10;

/// For this long after its last sign of life, a node that comes back finds its claims again.
const ABSENCE_MAX: Duration = Duration::from_secs(30);

impl Nodes {
    pub(super) fn new(lease: Duration) -> Nodes {
        Nodes { lease, leases: BTreeMap::new(), lives: BTreeMap::new() }
    }

    /// Gives a node its number: the one that it has, or the smallest that is free.
    pub(super) fn lease(&mut self, link: LinkId, now: Instant) -> Option<NodeNumber> {
        let own = self.leases.iter().find(|(_, (owner, until))| *owner == link && *until > now);
        let own = own.map(|(number, _)| *number);
        let is_free = |number: &NodeNumber| {
            self.leases.get(number).is_none_or(|(owner, until)| *until <= now && *owner != link)
        };
        let number = own.or_else(|| (1..NUMBERS).map(NodeNumber).find(is_free))?;
        self.leases.retain(|_, (owner, _)| *owner != link);
        self.leases.insert(number, (link, now + self.lease));
        Some(number)
    }

    /// A node lives from its opening on. It is listed only when it has announced itself.
    pub(super) fn begin(&mut self, link: LinkId, until: Instant) {
        self.lives.insert(link, Life { until, announced: None });
    }

    /// Whether the node comes back after so long an absence that its claims are gone.
    pub(super) fn announce(
        &mut self,
        link: LinkId,
        node: Node,
        until: Instant,
        now: Instant,
    ) -> bool {
        let before = self.lives.insert(link, Life { until, announced: Some(node) });
        before.is_none_or(|before| before.until + ABSENCE_MAX <= now)
    }

    /// A node that lives and was announced.
    pub(super) fn living(&self, now: Instant) -> Vec<Node> {
        let living = self.lives.values().filter(|life| life.until > now);
        let mut nodes: Vec<Node> = living.filter_map(|life| life.announced.clone()).collect();
        nodes.sort_by_key(|node| node.number);
        nodes
    }

    pub(super) fn lives(&self, link: LinkId, now: Instant) -> bool {
        self.lives.get(&link).is_some_and(|life| life.until > now)
    }

    /// Until when it lives, or lived; `None`: it has retired.
    pub(super) fn lives_until(&self, link: LinkId) -> Option<Instant> {
        self.lives.get(&link).map(|life| life.until)
    }

    /// Ends a node. Its number is free.
    pub(super) fn retire(&mut self, link: LinkId) {
        self.lives.remove(&link);
        self.leases.retain(|_, (owner, _)| *owner != link);
    }
}
