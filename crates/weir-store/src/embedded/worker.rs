//! What the store's two threads do: group commit, and reading.

use std::cell::RefCell;

use rusqlite::{Connection, ErrorCode};
use tracing::warn;

use super::changes::{Fold, Recent};
use super::queue::{Job, Queue};
use super::tables::Tables;
use crate::contract::Error;

/// Carries out what waits for the writer until its queue is closed.
pub(super) fn write(conn: &Connection, recent: &Recent, queue: &Queue) {
    let mut fold = Fold::default();
    let mut is_told = false;
    serve(conn, recent, queue, "BEGIN IMMEDIATE", || match fold.step(conn, recent) {
        Ok(()) => is_told = false,
        Err(error) if !is_told => {
            is_told = true;
            warn!(%error, "the store of devices cannot move what has changed into its rows");
        }
        Err(_) => {}
    });
}

/// Carries out what waits for the reader until its queue is closed.
///
/// A transaction begins after its jobs have come, so they see what was answered before.
pub(super) fn read(conn: &Connection, recent: &Recent, queue: &Queue) {
    serve(conn, recent, queue, "BEGIN", || {});
}

fn serve(
    conn: &Connection,
    recent: &Recent,
    queue: &Queue,
    begin: &str,
    mut afterwards: impl FnMut(),
) {
    while let Some(mut jobs) = queue.take(GROUP_ITEMS) {
        jobs.retain(|job| !job.is_abandoned());
        if jobs.is_empty() {
            continue;
        }
        match transact(conn, recent, begin, &mut jobs).map_err(|error| described(&error)) {
            Ok(()) => jobs.into_iter().for_each(|job| job.answer(Ok(()))),
            // One damaged record is no reason to refuse what does not concern it.
            Err(Error::Damaged(_)) if jobs.len() > 1 => {
                for mut job in jobs {
                    let outcome = transact(conn, recent, begin, std::slice::from_mut(&mut job));
                    job.answer(outcome.map_err(|error| described(&error)));
                }
            }
            Err(error) => jobs.into_iter().for_each(|job| job.answer(Err(error.clone()))),
        }
        afterwards();
    }
}

/// Carries out jobs as one transaction; on an error none of them.
fn transact(
    conn: &Connection,
    recent: &Recent,
    begin: &str,
    jobs: &mut [Box<dyn Job>],
) -> rusqlite::Result<()> {
    let leads = RefCell::default();
    let run = || {
        // From before the transaction to its end.
        let changes = recent.changes();
        conn.prepare_cached(begin)?.execute([])?;
        let tables = Tables::new(conn, recent, &changes, &leads);
        for job in jobs {
            job.run(&tables)?;
        }
        tables.finish()?;
        conn.prepare_cached("COMMIT")?.execute([])?;
        let (pending, forgotten) = tables.into_changes();
        drop(changes);
        recent.publish(pending);
        forgotten.iter().for_each(|(token, device)| recent.index.remove(token, *device));
        Ok(())
    };
    let outcome = run();
    if outcome.is_err() {
        leads.take().iter().for_each(|(token, device)| recent.index.remove(token, *device));
    }
    if outcome.is_err() && !conn.is_autocommit() {
        // If this fails too, the next transaction cannot begin, and says so.
        let _ = conn.execute_batch("ROLLBACK");
    }
    outcome
}

/// What an error of SQLite's means for whoever asked.
fn described(error: &rusqlite::Error) -> Error {
    let code = error.sqlite_error_code();
    match code {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            Error::Damaged(error.to_string())
        }
        Some(_) => Error::Unavailable(error.to_string()),
        // Not SQLite's own: a value that cannot be.
        None => Error::Damaged(error.to_string()),
    }
}

/// Items of a transaction, unless a single batch has more: enough that the commit's share of each is small, and few
/// enough that those behind them wait for some 100 ms.
const GROUP_ITEMS: usize = 2_048;
