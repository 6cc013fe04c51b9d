//! The work of `store-notices`.

use std::collections::HashSet;
use std::time::Duration;

use rusqlite::Connection;
use tracing::warn;

use super::buffer::{Buffer, Request, Waiting};
use super::status::QueueWatch;
use super::tables::Tables;
use super::{Change, Loss, NewNotice, NoticeQueue, NoticeSource, Standing};
use crate::contract::Error;
use crate::embedded::OpenedNotices;

/// Writes notices, and answers requests.
pub(super) struct Writer<'a> {
    conn: &'a Connection,
    was_broken_off: bool,
    tables: Tables,
    source: Box<dyn NoticeSource>,
    buffer: &'a Buffer,
    /// What could not be written yet.
    unwritten: Option<Waiting>,
    is_told: bool,
}

impl<'a> Writer<'a> {
    pub(super) fn new(
        opened: &'a OpenedNotices,
        tables: Tables,
        source: Box<dyn NoticeSource>,
        buffer: &'a Buffer,
    ) -> Writer<'a> {
        Writer {
            conn: &opened.connection,
            was_broken_off: opened.was_broken_off(),
            tables,
            source,
            buffer,
            unwritten: None,
            is_told: false,
        }
    }

    /// Works until the buffer is closed.
    pub(super) fn run(&mut self) {
        loop {
            let is_blocked = self.unwritten.is_some();
            let mut taken = self.buffer.take(IDLE, is_blocked);
            let (requests, is_closed) = (std::mem::take(&mut taken.requests), taken.is_closed);
            let work = self.unwritten.take().unwrap_or(taken);
            // Without requests nothing has come for a while, so old notices are looked for.
            if work.is_empty() && !requests.is_empty() {
                // There is nothing to write.
            } else if let Err(error) = self.write(&work) {
                if !std::mem::replace(&mut self.is_told, true) {
                    warn!(%error, "notices cannot be written; they wait in memory");
                }
                self.unwritten = Some(work);
            } else {
                self.is_told = false;
            }
            requests.into_iter().for_each(|request| self.answer(request));
            if is_closed {
                if let Some(work) = &self.unwritten {
                    let notices = work.notices.len();
                    warn!(notices, "the file of notices is closed, and these are not in it");
                }
                return;
            }
        }
    }

    /// Whether an earlier process was broken off and nobody was told so.
    pub(super) fn owes_recovery(&self) -> bool {
        self.was_broken_off
    }

    /// Writes notices, and what is missing among them, in one transaction.
    fn write(&mut self, work: &Waiting) -> Result<(), Error> {
        self.transact(|tables, conn, source| {
            let now = source.now();
            for notice in &work.notices {
                tables.append(conn, notice)?;
            }
            for (queue, count) in &work.forgotten {
                tables.count_forgotten(*queue, *count);
                tables.append_to(conn, *queue, now, &source.lost(Loss::Buffer(*count)))?;
            }
            if work.has_gap {
                reconcile(tables, conn, source)?;
            }
            Ok(())
        })
    }

    fn answer(&mut self, request: Request) {
        // Askers may have gone.
        match request {
            Request::SetQueues { queues, reply } => {
                let made = self.transact(|tables, conn, _| tables.set_queues(conn, &queues));
                let _ = reply.send(made);
            }
            Request::Recover { reply } => drop(reply.send(self.recover())),
            Request::GoOn { reply } => drop(reply.send(self.go_on())),
            Request::Adopt { reply } => {
                let adopted = self.transact(|tables, conn, source| {
                    let standing = source.standing();
                    standing.iter().try_for_each(|notice| tables.adopt(conn, notice))
                });
                let _ = reply.send(adopted);
            }
            Request::Page { queue, after, limits, reply } => {
                let page = self.tables.page(self.conn, queue, after, limits);
                let page = page.map_err(|error| described(&error));
                let missing = || Error::Unavailable("there is no such queue".to_owned());
                let _ = reply.send(page.and_then(|page| page.ok_or_else(missing)));
            }
            Request::Acknowledge { queue, sequence, reply } => {
                let noted = self.transact(|tables, _, _| {
                    tables.acknowledge(queue, sequence);
                    Ok(())
                });
                let _ = reply.send(noted);
            }
        }
    }

    /// Uses the queues that had their numbers before the file was open, in the place of the process
    /// before this one.
    pub(super) fn take_over(&mut self, queues: &[(NoticeQueue, QueueWatch)]) -> Result<(), Error> {
        let was_broken_off = self.was_broken_off;
        self.transact(|tables, conn, source| {
            tables.set_early(conn, queues)?;
            if was_broken_off { tell_crash(tables, conn, source) } else { Ok(()) }
        })?;
        if std::mem::take(&mut self.was_broken_off) {
            self.buffer.note_gap();
        }
        Ok(())
    }

    /// Notes what stands now, in the place of the process before this one, and tells the ends of
    /// what does not.
    fn go_on(&mut self) -> Result<(), Error> {
        let was_broken_off = self.was_broken_off;
        self.transact(|tables, conn, source| {
            if was_broken_off {
                tell_crash(tables, conn, source)?;
            }
            let now = tell_ends(tables, conn, source)?;
            now.iter().try_for_each(|notice| tables.adopt(conn, notice))
        })?;
        self.was_broken_off = false;
        Ok(())
    }

    /// Tells the ends that an earlier process could not tell.
    fn recover(&mut self) -> Result<u64, Error> {
        if self.was_broken_off {
            self.transact(tell_crash)?;
            self.was_broken_off = false;
        }
        let mut count = 0;
        loop {
            let ended = self.transact(|tables, conn, source| {
                let left = tables.left_standing(conn, STANDING_AT_A_TIME)?;
                for left in &left {
                    tables.end_left(conn, left, &source.ended(&left.1, true))?;
                }
                Ok(left.len() as u64)
            })?;
            if ended == 0 {
                return Ok(count);
            }
            count += ended;
        }
    }

    /// Carries out a transaction. After an error nothing has changed.
    fn transact<T>(
        &mut self,
        run: impl FnOnce(&mut Tables, &Connection, &dyn NoticeSource) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        let before = self.tables.clone();
        let transaction = || {
            self.conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
            let result = run(&mut self.tables, self.conn, &*self.source)?;
            self.tables.finish(self.conn, self.source.now())?;
            self.conn.prepare_cached("COMMIT")?.execute([])?;
            Ok(result)
        };
        let outcome = transaction();
        if outcome.is_err() {
            self.tables = before;
            if !self.conn.is_autocommit() {
                // If this fails too, the next transaction cannot begin, and says so.
                let _ = self.conn.execute_batch("ROLLBACK");
            }
        } else if let Err(error) = self.tables.show(self.conn) {
            warn!(%error, "the figures of notices cannot be read");
        }
        outcome.map_err(|error| described(&error))
    }
}

/// Tells all receivers that know of something that the process before this one has crashed.
fn tell_crash(
    tables: &mut Tables,
    conn: &Connection,
    source: &dyn NoticeSource,
) -> rusqlite::Result<()> {
    let (now, body) = (source.now(), source.lost(Loss::Crash));
    let old = tables.queues().filter(|(_, queue)| !queue.is_new());
    let old: Vec<_> = old.map(|(id, _)| *id).collect();
    old.into_iter().try_for_each(|id| tables.append_to(conn, id, now, &body))
}

/// Compares what was told with what stands, after beginnings and ends were forgotten. Ends come
/// first: a device that has come back is told to have gone before it is told to be there.
fn reconcile(
    tables: &mut Tables,
    conn: &Connection,
    source: &dyn NoticeSource,
) -> rusqlite::Result<()> {
    let now = tell_ends(tables, conn, source)?;
    now.iter().try_for_each(|notice| tables.append(conn, notice))
}

/// Tells the ends of what was told to stand and does not. Returns what stands.
fn tell_ends(
    tables: &mut Tables,
    conn: &Connection,
    source: &dyn NoticeSource,
) -> rusqlite::Result<Vec<NewNotice>> {
    let now = source.standing();
    let keys: HashSet<&str> = now.iter().filter_map(key_of).collect();
    let mut after = String::new();
    loop {
        let told = tables.standing(conn, &after, STANDING_AT_A_TIME)?;
        let Some(last) = told.last() else { break };
        after = last.key.to_string();
        for standing in told.iter().filter(|standing| !keys.contains(&*standing.key)) {
            let Standing { key, .. } = standing;
            let notice = source.ended(standing, false);
            tables.append(conn, &NewNotice { change: Change::Ends(key.clone()), ..notice })?;
        }
    }
    drop(keys);
    Ok(now)
}

fn key_of(notice: &NewNotice) -> Option<&str> {
    match &notice.change {
        Change::Begins(standing) => Some(&standing.key),
        Change::Ends(_) | Change::None => None,
    }
}

fn described(error: &rusqlite::Error) -> Error {
    Error::Unavailable(format!("the file of notices: {error}"))
}

/// How long the thread waits before it looks for notices that are kept no more, or tries again to
/// write.
const IDLE: Duration = Duration::from_secs(1);
/// Ends that one transaction tells.
const STANDING_AT_A_TIME: u32 = 10_000;
