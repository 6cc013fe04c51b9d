//! Which connections count for a device.

use std::collections::BTreeMap;

use super::LinkId;
use crate::records::{Claim, ConnectionNumber, Name};

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
