//! Which connections count for a device, and which are in a topic.

use std::collections::{BTreeMap, BTreeSet};

use super::LinkId;
use crate::records::{Claim, ConnectionNumber, Member, MemberPage, Name};

/// The claims of all devices.
#[derive(Default)]
pub(super) struct Devices {
    devices: BTreeMap<Name, BTreeMap<ConnectionNumber, Claimed>>,
}

/// A connection and the node that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claimed {
    pub(super) link: LinkId,
    /// When the connection was accepted, in nanoseconds of the broker's clock; it may have been before its start.
    accepted: i128,
}

impl Devices {
    /// Enters a connection and gives those that have to go, with their nodes. `lives` tells which nodes count.
    pub(super) fn claim(
        &mut self,
        link: LinkId,
        claim: &Claim,
        now: i128,
        connections_max: usize,
        lives: impl Fn(LinkId) -> bool,
    ) -> Vec<(ConnectionNumber, LinkId)> {
        let device = self.devices.entry(Name::clone(&claim.device)).or_default();
        device.retain(|_, claimed| claimed.link == link || lives(claimed.link));
        let age = i128::try_from(claim.age.as_nanos()).unwrap_or(i128::MAX);
        device.insert(claim.connection, Claimed { link, accepted: now.saturating_sub(age) });
        let mut oldest_first: Vec<(i128, ConnectionNumber, LinkId)> = device
            .iter()
            .map(|(connection, claimed)| (claimed.accepted, *connection, claimed.link))
            .collect();
        oldest_first.sort_unstable();
        oldest_first.truncate(device.len().saturating_sub(connections_max));
        for (_, connection, _) in &oldest_first {
            device.remove(connection);
        }
        oldest_first.into_iter().map(|(_, connection, link)| (connection, link)).collect()
    }

    /// Takes a connection out, if that node has it.
    pub(super) fn release(&mut self, link: LinkId, claim: &Claim) {
        let Some(device) = self.devices.get_mut(&claim.device) else {
            return;
        };
        device
            .retain(|connection, claimed| *connection != claim.connection || claimed.link != link);
        if device.is_empty() {
            self.devices.remove(&claim.device);
        }
    }

    /// Takes all connections of a node out.
    pub(super) fn remove(&mut self, link: LinkId) {
        for device in self.devices.values_mut() {
            device.retain(|_, claimed| claimed.link != link);
        }
        self.devices.retain(|_, device| !device.is_empty());
    }

    /// The connections of a device, whether their nodes live or not.
    pub(super) fn connections(&self, device: &str) -> Vec<(ConnectionNumber, Claimed)> {
        let device = self.devices.get(device).into_iter().flatten();
        device.map(|(connection, claimed)| (*connection, *claimed)).collect()
    }
}

/// The members of all topics, by the node that entered them.
#[derive(Default)]
pub(super) struct Presence {
    topics: BTreeMap<Name, BTreeMap<LinkId, BTreeMap<ConnectionNumber, Member>>>,
}

impl Presence {
    pub(super) fn enter(&mut self, link: LinkId, topic: Name, member: Member) {
        let members = self.topics.entry(topic).or_default().entry(link).or_default();
        members.insert(member.connection, member);
    }

    pub(super) fn exit(&mut self, link: LinkId, topic: &Name, connection: ConnectionNumber) {
        if let Some(members) = self.topics.get_mut(topic).and_then(|links| links.get_mut(&link)) {
            members.remove(&connection);
        }
        self.tidy();
    }

    /// Takes all members of a node out.
    pub(super) fn remove(&mut self, link: LinkId) {
        for links in self.topics.values_mut() {
            links.remove(&link);
        }
        self.tidy();
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
        let members: BTreeMap<ConnectionNumber, &Member> = living
            .flat_map(|(_, members)| members)
            .map(|(connection, member)| (*connection, member))
            .collect();
        let devices: BTreeSet<&Name> = members.values().map(|member| &member.device).collect();
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let (connections, devices) = (count(members.len()), count(devices.len()));
        let mut rest = members.into_iter().filter(|(connection, _)| Some(*connection) > after);
        let members = rest.by_ref().take(limit).map(|(_, member)| member.clone()).collect();
        MemberPage { members, is_last: rest.next().is_none(), connections, devices }
    }

    fn tidy(&mut self) {
        for links in self.topics.values_mut() {
            links.retain(|_, members| !members.is_empty());
        }
        self.topics.retain(|_, links| !links.is_empty());
    }
}
