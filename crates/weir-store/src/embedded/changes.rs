//! What has become of devices lately: written one behind the other, and moved into their rows many at a time.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rusqlite::{Connection, Result};

use super::index::TokenIndex;
use super::tables;
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

/// What both threads know beside the file: changes that are not in their rows yet, and where tokens lead.
///
/// Limits: [`FOLD_MAX`] devices, and as many again that change while those are moved; some 170 bytes each. On disk,
/// [`ROWS_MAX`] changes and those that come meanwhile.
#[derive(Default)]
pub(super) struct Recent {
    pub(super) index: TokenIndex,
    changes: RwLock<Changes>,
}

/// A move of changes into their rows, a slice between any two transactions.
#[derive(Default)]
pub(super) struct Fold {
    /// Those that are left, in the order of their rows, the last ones first: neighbours share pages.
    left: Vec<i64>,
    /// The last entry of the table of changes when it began.
    until: i64,
    /// The same at the last step, if there was one.
    last: Option<i64>,
}

impl Change {
    pub(super) fn of(device: &Device) -> Change {
        let Device { state, activated, generation, token, previous, .. } = *device;
        Change { state, activated, generation, token, previous }
    }

    /// Has a device be what it has become, unless its row is as new.
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

    /// The tokens that it knows.
    pub(super) fn hashes(&self) -> [Option<Hash>; 2] {
        [self.token.map(|(token, _)| token), self.previous.map(|previous| previous.token)]
    }
}

impl Recent {
    /// Reads it from the file.
    pub(super) fn read(conn: &Connection) -> Result<Recent> {
        let recent = Recent { changes: RwLock::new(tables::changes(conn)?), ..Recent::default() };
        let changes = recent.changes();
        for (device, change) in &*changes {
            change.hashes().iter().flatten().for_each(|token| recent.index.add(token, *device));
        }
        tables::each_token(conn, |device, token| {
            if !changes.contains_key(&device) {
                recent.index.add(&token, device);
            }
        })?;
        drop(changes);
        Ok(recent)
    }

    /// To be taken before a transaction begins and kept to its end: what it does not show is in the rows, and of what it
    /// shows the higher generation counts.
    pub(super) fn changes(&self) -> RwLockReadGuard<'_, Changes> {
        self.changes.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what a transaction has changed, once it is committed.
    pub(super) fn publish(&self, changes: Changes) {
        if !changes.is_empty() {
            self.changes_mut().extend(changes);
        }
    }

    fn changes_mut(&self) -> RwLockWriteGuard<'_, Changes> {
        self.changes.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fold {
    /// Goes on with a move, or begins one if there is enough to be moved. To be called where no transaction is.
    ///
    /// # Errors
    /// Nothing is lost: what has not been moved stays where it is.
    pub(super) fn step(&mut self, conn: &Connection, recent: &Recent) -> Result<()> {
        let (first, last) = tables::span_of_changes(conn)?;
        let before = self.last.replace(last).unwrap_or(last);
        let written = usize::try_from(last - before).unwrap_or_default();
        if self.left.is_empty() {
            let changes = recent.changes();
            // One device alone may fill the table.
            if changes.len() < FOLD_MAX && last - first < ROWS_MAX {
                return Ok(());
            }
            self.left = changes.keys().copied().collect();
            self.left.sort_unstable_by(|one, other| other.cmp(one));
            self.until = last;
        }
        // As fast as changes come, or there would be more and more of them.
        let size = SLICE.max(written);
        let slice = self.left.split_off(self.left.len().saturating_sub(size));
        let moved = self.run(conn, recent, &slice);
        match moved {
            Ok(moved) => {
                let mut changes = recent.changes_mut();
                for (device, change) in moved {
                    if changes.get(&device) == Some(&change) {
                        changes.remove(&device);
                    }
                }
                Ok(())
            }
            Err(error) => {
                if !conn.is_autocommit() {
                    // If this fails too, the next transaction cannot begin, and says so.
                    let _ = conn.execute_batch("ROLLBACK");
                }
                // The next move begins with all of them.
                self.left.clear();
                Err(error)
            }
        }
    }

    fn run(&self, conn: &Connection, recent: &Recent, slice: &[i64]) -> Result<Vec<(i64, Change)>> {
        let changes = recent.changes();
        let slice = slice.iter().rev().filter_map(|device| Some((*device, *changes.get(device)?)));
        let slice: Vec<(i64, Change)> = slice.collect();
        drop(changes);
        conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        for (device, change) in &slice {
            tables::move_into_row(conn, *device, change)?;
        }
        if self.left.is_empty() {
            tables::forget_changes(conn, self.until)?;
        }
        conn.prepare_cached("COMMIT")?.execute([])?;
        Ok(slice)
    }
}

/// So many that several of them share a page; few enough for memory and for what is read when the file is opened.
const FOLD_MAX: usize = if cfg!(test) { 16 } else { 65_536 };
/// Some 30 MB.
const ROWS_MAX: i64 = if cfg!(test) { 64 } else { 262_144 };
/// As many as a transaction has, unless a batch alone is larger.
const SLICE: usize = if cfg!(test) { 4 } else { 2_048 };
