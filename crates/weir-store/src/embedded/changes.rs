//! Recent changes of devices, which are not in their rows yet.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::index::TokenIndex;
use crate::contract::StoreMemory;
use crate::records::{Device, Hash, Millis, Previous, State};

/// The part of a device's record that says which tokens are valid.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Change {
    pub(super) state: State,
    pub(super) activated: Option<Millis>,
    pub(super) generation: u64,
    pub(super) token: Option<(Hash, Millis)>,
    pub(super) previous: Option<Previous>,
}

/// The last change of each device, by the number of its row.
pub(super) type Changes = HashMap<i64, Change>;

/// The state that both threads share beside the file: changes that are not in their rows yet, and
/// the devices of tokens.
///
/// Limits: `FOLD_MAX` devices of `fold.rs`, and as many again that change while those are moved;
/// some 170 bytes each.
#[derive(Default)]
pub(super) struct Recent {
    pub(super) index: TokenIndex,
    changes: RwLock<Changes>,
}

impl Change {
    pub(super) fn of(device: &Device) -> Change {
        let Device { state, activated, generation, token, previous, .. } = *device;
        Change { state, activated, generation, token, previous }
    }

    /// Applies the change to a device, unless the device's row is as new.
    pub(super) fn apply(&self, device: &mut Device) {
        if self.generation <= device.generation {
            return;
        }
        device.state = self.state;
        device.activated = self.activated;
        device.generation = self.generation;
        device.token = self.token;
        device.previous = self.previous;
    }

    /// The hashes of the tokens that the device knows.
    pub(super) fn hashes(&self) -> [Option<Hash>; 2] {
        [self.token.map(|(token, _)| token), self.previous.map(|previous| previous.token)]
    }
}

impl Recent {
    /// The state after opening a file. The index then knows the tokens of these changes.
    pub(super) fn new(changes: Changes) -> Recent {
        let index = TokenIndex::default();
        for (device, change) in &changes {
            change.hashes().iter().flatten().for_each(|token| index.add(token, *device));
        }
        Recent { index, changes: RwLock::new(changes) }
    }

    /// The index of tokens, and the changes.
    pub(super) fn memory(&self) -> StoreMemory {
        let (changes, index) = (self.changes(), self.index.memory());
        // Seven eighths of a table's places may be used.
        let bytes = changes.capacity() * 8 / 7 * size_of::<(i64, Change)>();
        StoreMemory { entries: index.entries + changes.len(), bytes: index.bytes + bytes }
    }

    /// Take this lock before a transaction begins and keep it to its end. A change that is not here
    /// is in its row. Of a change that is here and in its row, the higher generation counts.
    pub(super) fn changes(&self) -> RwLockReadGuard<'_, Changes> {
        self.changes.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the changes of a transaction, once it is committed.
    pub(super) fn publish(&self, changes: Changes) {
        if !changes.is_empty() {
            self.changes_mut().extend(changes);
        }
    }

    pub(super) fn changes_mut(&self) -> RwLockWriteGuard<'_, Changes> {
        self.changes.write().unwrap_or_else(PoisonError::into_inner)
    }
}
