//! Which connections are in a topic, and how those of dead nodes leave it.
//!
//! The nodes that can reach the broker look for dead ones, by turns. Only time that passes between two looks counts, and
//! no more of it than such a pause takes: while nobody looks, no node is dead for longer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::nodes::Nodes;
use super::{LinkId, MemoryOptions};
use crate::records::{ConnectionNumber, Member, MemberPage, Name};

/// The members of all topics, by the node that entered them.
pub(super) struct Presence {
    topics: BTreeMap<Name, BTreeMap<LinkId, BTreeMap<ConnectionNumber, Name>>>,
    /// How many members each node has.
    counts: BTreeMap<LinkId, usize>,
    /// Nodes that attend topics.
    attending: BTreeSet<LinkId>,
    /// The last call of each node for a topic that was carried out.
    calls: BTreeMap<(LinkId, Name), u64>,
    /// A seeded bug: see [`MemoryOptions`].
    obeys_late_calls: bool,
    /// How long members outlive their node.
    kept: Duration,
    /// When a node last looked for dead ones.
    looked: Instant,
    /// Nodes that were dead then, and for how long.
    dead: BTreeMap<LinkId, Duration>,
    /// Nodes whose members have left without them. They are told when they come back.
    ended: BTreeSet<LinkId>,
}

/// What has changed in a topic.
#[derive(Default)]
pub(super) struct Change {
    pub(super) joined: Vec<Member>,
    pub(super) left: Vec<Member>,
}

/// Looks for dead nodes in the time for which members outlive theirs.
const LOOKS: u32 = 6;

impl Presence {
    pub(super) fn new(options: &MemoryOptions, now: Instant) -> Presence {
        Presence {
            topics: BTreeMap::new(),
            counts: BTreeMap::new(),
            attending: BTreeSet::new(),
            calls: BTreeMap::new(),
            obeys_late_calls: options.obeys_late_calls,
            kept: options.presence_kept,
            looked: now,
            dead: BTreeMap::new(),
            ended: BTreeSet::new(),
        }
    }

    /// A node's call is about to be carried out for a topic; `false`: a later one was.
    pub(super) fn begin_call(&mut self, link: LinkId, topic: &Name, call: u64) -> bool {
        let last = self.calls.entry((link, Name::clone(topic))).or_default();
        *last = call.max(*last);
        *last == call || self.obeys_late_calls
    }

    pub(super) fn enter(&mut self, link: LinkId, topic: &Name, entered: &[Member]) -> Change {
        let mut change = Change::default();
        let links = self.topics.entry(Name::clone(topic)).or_default();
        let members = links.entry(link).or_default();
        for member in entered {
            let connection = member.connection;
            match members.insert(connection, Name::clone(&member.device)) {
                Some(device) if device == member.device => continue,
                Some(device) => change.left.push(Member { connection, device }),
                None => *self.counts.entry(link).or_default() += 1,
            }
            change.joined.push(member.clone());
        }
        change
    }

    pub(super) fn exit(
        &mut self,
        link: LinkId,
        topic: &Name,
        connections: impl IntoIterator<Item = ConnectionNumber>,
    ) -> Change {
        let mut change = Change::default();
        let Some(links) = self.topics.get_mut(topic) else { return change };
        let Some(members) = links.get_mut(&link) else { return change };
        for connection in connections {
            let device = members.remove(&connection);
            change.left.extend(device.map(|device| Member { connection, device }));
        }
        let count = self.counts.entry(link).or_default();
        *count -= change.left.len();
        if *count == 0 {
            self.counts.remove(&link);
        }
        if members.is_empty() {
            links.remove(&link);
        }
        if links.is_empty() {
            self.topics.remove(topic);
        }
        change
    }

    /// What a node has in each topic.
    pub(super) fn of(&self, link: LinkId) -> Vec<(Name, Vec<ConnectionNumber>)> {
        let of = |(topic, links): (&Name, &BTreeMap<LinkId, BTreeMap<ConnectionNumber, Name>>)| {
            Some((Name::clone(topic), links.get(&link)?.keys().copied().collect()))
        };
        self.topics.iter().filter_map(of).collect()
    }

    /// Whether a node has members, or attends topics.
    pub(super) fn has(&self, link: LinkId) -> bool {
        self.counts.contains_key(&link) || self.attending.contains(&link)
    }

    /// Notes how many topics a node attends.
    pub(super) fn count_attended(&mut self, link: LinkId, count: usize) {
        match count {
            0 => self.attending.remove(&link),
            1.. => self.attending.insert(link),
        };
    }

    /// Nodes to look for.
    fn watched(&self) -> BTreeSet<LinkId> {
        self.counts.keys().chain(&self.attending).copied().collect()
    }

    /// A page of the members whose nodes live.
    pub(super) fn members(
        &self,
        topic: &Name,
        after: Option<ConnectionNumber>,
        limit: usize,
        lives: impl Fn(LinkId) -> bool,
    ) -> MemberPage {
        let links = self.topics.get(topic).into_iter().flatten();
        let living = links.filter(|(link, _)| lives(**link));
        let members: BTreeMap<ConnectionNumber, &Name> = living
            .flat_map(|(_, members)| members)
            .map(|(connection, device)| (*connection, device))
            .collect();
        let devices: BTreeSet<&Name> = members.values().copied().collect();
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let (connections, devices) = (count(members.len()), count(devices.len()));
        let mut rest = members.into_iter().filter(|(connection, _)| Some(*connection) > after);
        let member = |(connection, device)| Member { connection, device: Name::clone(device) };
        let members = rest.by_ref().take(limit).map(member).collect();
        MemberPage { members, is_last: rest.next().is_none(), connections, devices }
    }

    /// A node lives. Whether its members have left without it.
    pub(super) fn came_back(&mut self, link: LinkId) -> bool {
        self.dead.remove(&link);
        self.ended.remove(&link)
    }

    /// The members of a node have left without it.
    pub(super) fn end(&mut self, link: LinkId) {
        self.ended.insert(link);
    }

    /// When to look for dead nodes; `None`: no node has members, or attends topics.
    pub(super) fn due(&self, nodes: &Nodes) -> Option<Instant> {
        let first = self.watched().iter().map(|link| nodes.lives_until(*link)).min()?;
        let earliest = self.looked + self.kept / LOOKS;
        Some(first.map_or(earliest, |first| earliest.max(first)))
    }

    /// Looks for dead nodes, and gives those whose members are to leave.
    pub(super) fn look(&mut self, nodes: &Nodes, now: Instant) -> Vec<LinkId> {
        let pause = (now - self.looked).min(2 * self.kept / LOOKS);
        self.looked = now;
        let mut dead = BTreeMap::new();
        for link in self.watched().into_iter().filter(|link| !nodes.lives(*link, now)) {
            let before = self.dead.get(&link);
            dead.insert(link, before.map_or(Duration::ZERO, |before| *before + pause));
        }
        self.dead = dead;
        let gone = self.dead.iter().filter(|(_, dead_for)| **dead_for >= self.kept);
        gone.map(|(link, _)| *link).collect()
    }
}
