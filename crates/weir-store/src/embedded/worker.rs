//! The work of the store's two threads: group commit, and reading.

use std::cell::RefCell;

use rusqlite::{Connection, ErrorCode};
use tracing::warn;

use super::changes::Recent;
use super::fold::Fold;
use super::identity::Identity;
use super::queue::{Job, Queue};
use super::tables::Tables;
use crate::contract::Error;

/// Carries out the writer's jobs until its queue is closed.
pub(super) fn write(conn: &Connection, recent: &Recent, queue: &Queue, identity: Identity) {
    let mut fold = Fold::default();
    let mut is_told = false;
    let mut work = Work { conn, recent, begin: "BEGIN IMMEDIATE", identity: Some(identity) };
    while work.serve(queue) {
        match work.fold(&mut fold) {
            Ok(()) => is_told = false,
            Err(error) if !is_told => {
                is_told = true;
                warn!(%error, "the store of devices cannot move changes into its rows");
            }
            Err(_) => {}
        }
    }
}

/// Carries out the reader's jobs until its queue is closed.
///
/// A transaction begins after its jobs have come, so they see all changes that were answered
/// before. The reader continues even if the files have been replaced: the open files still hold all
/// answered changes.
pub(super) fn read(conn: &Connection, recent: &Recent, queue: &Queue) {
    let mut work = Work { conn, recent, begin: "BEGIN", identity: None };
    while work.serve(queue) {}
}

/// The things that a thread works with.
struct Work<'a> {
    conn: &'a Connection,
    recent: &'a Recent,
    /// The statement that begins its transactions.
    begin: &'static str,
    /// The identity of the files, if the thread writes.
    identity: Option<Identity>,
}

impl Work<'_> {
    /// Carries out waiting jobs, once there are some. False if the queue has been closed.
    fn serve(&mut self, queue: &Queue) -> bool {
        let Some(mut jobs) = queue.take(GROUP_ITEMS) else { return false };
        jobs.retain(|job| !job.is_abandoned());
        if jobs.is_empty() {
            return true;
        }
        match self.transact(&mut jobs) {
            Ok(()) => jobs.into_iter().for_each(|job| job.answer(Ok(()))),
            // One damaged record must not make other jobs fail.
            Err(Error::Damaged(_)) if jobs.len() > 1 => {
                for mut job in jobs {
                    let outcome = self.transact(std::slice::from_mut(&mut job));
                    job.answer(outcome);
                }
            }
            Err(error) => jobs.into_iter().for_each(|job| job.answer(Err(error.clone()))),
        }
        true
    }

    /// Carries out jobs as one transaction, if it will be kept. After an error either none of them
    /// is carried out, or that is unknown.
    fn transact(&mut self, jobs: &mut [Box<dyn Job>]) -> Result<(), Error> {
        self.identity.as_ref().map_or(Ok(()), Identity::check).map_err(lost)?;
        self.run(jobs).map_err(|error| described(&error))?;
        self.identity.as_mut().map_or(Ok(()), Identity::check_written).map_err(lost)
    }

    fn run(&self, jobs: &mut [Box<dyn Job>]) -> rusqlite::Result<()> {
        let leads = RefCell::default();
        let run = || {
            // Held from before the transaction to its end.
            let changes = self.recent.changes();
            self.conn.prepare_cached(self.begin)?.execute([])?;
            let tables = Tables::new(self.conn, self.recent, &changes, &leads);
            for job in jobs {
                job.run(&tables)?;
            }
            tables.finish()?;
            self.conn.prepare_cached("COMMIT")?.execute([])?;
            let (pending, forgotten) = tables.into_changes();
            drop(changes);
            self.recent.publish(pending);
            forgotten.iter().for_each(|(token, device)| self.recent.index.remove(token, *device));
            Ok(())
        };
        let outcome = run();
        if outcome.is_err() {
            leads
                .take()
                .iter()
                .for_each(|(token, device)| self.recent.index.remove(token, *device));
        }
        if outcome.is_err() && !self.conn.is_autocommit() {
            // If this fails too, the next transaction cannot begin, and says so.
            let _ = self.conn.execute_batch("ROLLBACK");
        }
        outcome
    }

    /// Continues to move changes into their rows, as long as the files have not been replaced.
    fn fold(&mut self, fold: &mut Fold) -> rusqlite::Result<()> {
        let Some(identity) = self.identity.as_mut().filter(|identity| identity.check().is_ok())
        else {
            return Ok(());
        };
        let outcome = fold.step(self.conn, self.recent);
        // The next transaction reports the error.
        let _ = identity.check_written();
        outcome
    }
}

/// The error when writes would be gone after a restart.
fn lost(cause: String) -> Error {
    Error::Lost(format!("{cause}; new writes would be lost"))
}

/// The error for the caller that an error of SQLite means.
fn described(error: &rusqlite::Error) -> Error {
    let code = error.sqlite_error_code();
    match code {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            Error::Damaged(error.to_string())
        }
        Some(_) => Error::Unavailable(error.to_string()),
        // Not an error of SQLite's: an impossible value.
        None => Error::Damaged(error.to_string()),
    }
}

/// Items of a transaction, unless a single batch has more. Enough that each item's share of the
/// commit is small, and few enough that later items wait for some 100 ms.
const GROUP_ITEMS: usize = 2_048;
