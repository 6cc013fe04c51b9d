//! Which connections of which devices are here.

use std::collections::HashMap;

use crate::records::{Claim, ConnectionNumber, Name};

/// The connections of each device that are here.
#[derive(Default)]
pub(super) struct Devices {
    claimed: HashMap<Name, Claimed>,
}

/// The connections of a device. Most have one.
enum Claimed {
    One(ConnectionNumber),
    Many(Vec<ConnectionNumber>),
}

impl Claimed {
    fn insert(&mut self, connection: ConnectionNumber) {
        match self {
            Claimed::One(one) if *one == connection => {}
            Claimed::One(one) => *self = Claimed::Many(vec![*one, connection]),
            Claimed::Many(many) if many.contains(&connection) => {}
            Claimed::Many(many) => many.push(connection),
        }
    }

    /// Whether any is left.
    fn remove(&mut self, connection: ConnectionNumber) -> bool {
        match self {
            Claimed::One(one) => *one != connection,
            Claimed::Many(many) => {
                many.retain(|known| *known != connection);
                !many.is_empty()
            }
        }
    }

    fn all(&self) -> &[ConnectionNumber] {
        match self {
            Claimed::One(one) => std::slice::from_ref(one),
            Claimed::Many(many) => many,
        }
    }
}

impl Devices {
    pub(super) fn insert(&mut self, claim: &Claim) {
        self.note(&claim.device, claim.connection);
    }

    /// Whether the device has no connection here any more.
    pub(super) fn remove(&mut self, claim: &Claim) -> bool {
        let Some(claimed) = self.claimed.get_mut(&claim.device) else { return false };
        let is_last = !claimed.remove(claim.connection);
        if is_last {
            self.claimed.remove(&claim.device);
        }
        is_last
    }

    /// The devices.
    pub(super) fn names(&self) -> Vec<Name> {
        self.claimed.keys().cloned().collect()
    }

    /// The connections of each device.
    pub(super) fn all(&self) -> Vec<(Name, ConnectionNumber)> {
        let each = self.claimed.iter();
        let each = each.flat_map(|(device, claimed)| {
            claimed.all().iter().map(|connection| (device.clone(), *connection))
        });
        each.collect()
    }

    /// Notes a connection.
    pub(super) fn note(&mut self, device: &Name, connection: ConnectionNumber) {
        let claimed = self.claimed.entry(device.clone()).or_insert(Claimed::One(connection));
        claimed.insert(connection);
    }

    /// Takes all out.
    pub(super) fn take(&mut self) -> Vec<(Name, ConnectionNumber)> {
        let mut taken = Vec::new();
        for (device, claimed) in self.claimed.drain() {
            taken.extend(claimed.all().iter().map(|&connection| (device.clone(), connection)));
        }
        taken
    }
}
