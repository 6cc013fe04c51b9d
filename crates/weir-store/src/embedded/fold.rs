//! Moves changes into their devices' rows, many at a time.

use rusqlite::{Connection, Result};

use super::changes::{Change, Recent};
use super::tables;

/// A move of changes into their rows, one slice between any two transactions.
///
/// Limits: it begins when [`FOLD_MAX`] devices have changes, or [`ROWS_MAX`] changes are on disk.
#[derive(Default)]
pub(super) struct Fold {
    /// The remaining devices, in the order of their rows, the last ones first. Neighbours share
    /// pages.
    left: Vec<i64>,
    /// The last entry of the table of changes when the move began.
    until: i64,
    /// The last entry at the previous step, if there was one.
    last: Option<i64>,
}

impl Fold {
    /// Continues a move, or begins one if there are enough changes. Call it outside a transaction.
    ///
    /// # Errors
    /// Nothing is lost: changes that have not been moved stay in their table.
    pub(super) fn step(&mut self, conn: &Connection, recent: &Recent) -> Result<()> {
        let (first, last) = tables::span_of_changes(conn)?;
        let before = self.last.replace(last).unwrap_or(last);
        let written = usize::try_from(last - before).unwrap_or_default();
        if self.left.is_empty() {
            let changes = recent.changes();
            // A single device may fill the table.
            if changes.len() < FOLD_MAX && last - first < ROWS_MAX {
                return Ok(());
            }
            self.left = changes.keys().copied().collect();
            self.left.sort_unstable_by(|one, other| other.cmp(one));
            self.until = last;
        }
        // As many as have come, so that their number cannot grow without end.
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
                // The next move begins with all changes.
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

/// So many that several of them share a page; few enough for memory, and for reading them when the
/// file is opened.
const FOLD_MAX: usize = if cfg!(test) { 16 } else { 65_536 };
/// Some 30 MB.
const ROWS_MAX: i64 = if cfg!(test) { 64 } else { 262_144 };
/// As many as a transaction has, unless a single batch is larger.
const SLICE: usize = if cfg!(test) { 4 } else { 2_048 };
