//! The calls that go on, by connection.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard};

use tokio::sync::oneshot;
use weir_engine::{ConnId, Footprint, rounded, rounded_table};
use weir_wire::handover::v1;
use weir_wire::v1::Answer;

/// The connections that answer calls, and the calls of all connections that go on.
///
/// Shape: a table for each shard. A connection that answers calls has an entry of 24 bytes, with
/// the table's slack some 50; another connection has one only while a call of it goes on. The end
/// of an entry ends all that waits in it.
/// Limits: the caller's, for the calls of one connection in each direction.
pub(super) struct Table {
    shards: Box<[Mutex<Entries>]>,
}

type Entries = HashMap<ConnId, Entry, foldhash::fast::RandomState>;

#[derive(Default)]
struct Entry {
    /// Whether calls may be sent to it.
    answers_calls: bool,
    /// The id of the last call that was sent to it.
    last: u32,
    going: Option<Box<Going>>,
}

/// The calls of one connection.
#[derive(Default)]
struct Going {
    /// The device's own calls. The end of the sender ends the task that asks the backend.
    own: Vec<(u32, oneshot::Sender<Infallible>)>,
    /// The calls that the device is to answer. The end of the sender tells that it will not.
    asked: Vec<(u32, oneshot::Sender<Answer>)>,
}

/// Why a call cannot begin.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// A call of the device with this id goes on.
    Used,
    /// As many calls of the connection as may be go on.
    Full,
    /// The connection answers no calls, or has ended.
    NoAnswers,
}

impl Table {
    pub(super) fn new(shards: usize) -> Table {
        Table { shards: (0..shards).map(|_| Mutex::default()).collect() }
    }

    /// Notes that a connection answers calls.
    pub(super) fn enter(&self, conn: ConnId) {
        self.lock(conn.shard()).entry(conn).or_default().answers_calls = true;
    }

    /// Ends a connection with all its calls. Returns how many of the device's own have ended.
    pub(super) fn end(&self, conn: ConnId) -> usize {
        let mut entries = self.lock(conn.shard());
        let ended = entries.remove(&conn);
        tidy(&mut entries);
        drop(entries);
        ended.and_then(|entry| entry.going).map_or(0, |going| going.own.len())
    }

    /// Ends all connections of a shard.
    pub(super) fn end_shard(&self, shard: usize) {
        let ended = std::mem::take(&mut *self.lock(shard));
        drop(ended);
    }

    /// Begins a call of the device. What is returned ends when the call is given up, or when the
    /// connection ends.
    pub(super) fn begin(
        &self,
        conn: ConnId,
        id: u32,
        max: usize,
    ) -> Result<oneshot::Receiver<Infallible>, NoPlace> {
        let mut entries = self.lock(conn.shard());
        let entry = entries.entry(conn).or_default();
        let own = &mut entry.going.get_or_insert_default().own;
        let place = match own.iter().any(|(used, _)| *used == id) {
            true => Err(NoPlace::Used),
            false if own.len() >= max => Err(NoPlace::Full),
            false => {
                let (sender, ended) = oneshot::channel();
                own.push((id, sender));
                Ok(ended)
            }
        };
        settle(&mut entries, conn);
        place
    }

    /// Ends a call of the device; `false`: it has ended before.
    pub(super) fn finish(&self, conn: ConnId, id: u32) -> bool {
        let mut entries = self.lock(conn.shard());
        let own = entries.get_mut(&conn).and_then(|entry| entry.going.as_mut());
        let ended = own.and_then(|going| take(&mut going.own, id));
        settle(&mut entries, conn);
        ended.is_some()
    }

    /// Begins a call that the connection is to answer: its id, and the way of the answer. The way
    /// ends when the connection does.
    pub(super) fn ask(
        &self,
        conn: ConnId,
        max: usize,
    ) -> Result<(u32, oneshot::Receiver<Answer>), NoPlace> {
        let mut entries = self.lock(conn.shard());
        let entry = entries.get_mut(&conn).filter(|entry| entry.answers_calls);
        let entry = entry.ok_or(NoPlace::NoAnswers)?;
        let asked = &mut entry.going.get_or_insert_default().asked;
        if asked.len() >= max {
            return Err(NoPlace::Full);
        }
        // An id comes again after four billion calls, and a call does not wait that long.
        entry.last = entry.last.checked_add(1).unwrap_or(1);
        let (sender, answer) = oneshot::channel();
        asked.push((entry.last, sender));
        Ok((entry.last, answer))
    }

    /// Hands an answer to the call that waits for it; `false`: none does.
    pub(super) fn answer(&self, conn: ConnId, answer: Answer) -> bool {
        let waiting = self.take_asked(conn, answer.id);
        waiting.is_some_and(|waiting| waiting.send(answer).is_ok())
    }

    /// Ends a call that the connection has not answered; `false`: it has ended before.
    pub(super) fn give_up(&self, conn: ConnId, id: u32) -> bool {
        self.take_asked(conn, id).is_some()
    }

    /// The connections with entries, and the calls that go on.
    pub(super) fn export(&self) -> v1::Calls {
        let mut calls = v1::Calls::default();
        for shard in 0..self.shards.len() {
            for (conn, entry) in &*self.lock(shard) {
                let conn = conn.to_u64();
                calls.conns.push(conn);
                calls.answer_calls.push(entry.answers_calls);
                calls.last.push(entry.last);
                let Some(going) = &entry.going else { continue };
                calls.own_conns.extend(going.own.iter().map(|_| conn));
                calls.own_ids.extend(going.own.iter().map(|(id, _)| *id));
                calls.asked_conns.extend(going.asked.iter().map(|_| conn));
                calls.asked_ids.extend(going.asked.iter().map(|(id, _)| *id));
            }
        }
        calls
    }

    /// Adds a connection of another process; `false`: it is here already, or its shard is not.
    pub(super) fn import(&self, conn: ConnId, answers_calls: bool, last: u32) -> bool {
        if conn.shard() >= self.shards.len() {
            return false;
        }
        let entry = Entry { answers_calls, last, going: None };
        self.lock(conn.shard()).insert(conn, entry).is_none()
    }

    /// Adds a call of a device that has begun in another process. `None`: there is no such
    /// connection, or it has such a call.
    pub(super) fn import_own(
        &self,
        conn: ConnId,
        id: u32,
    ) -> Option<oneshot::Receiver<Infallible>> {
        self.import_call(conn, id, |going| &mut going.own)
    }

    /// The same with a call that a device is to answer.
    pub(super) fn import_asked(&self, conn: ConnId, id: u32) -> Option<oneshot::Receiver<Answer>> {
        self.import_call(conn, id, |going| &mut going.asked)
    }

    fn import_call<T>(
        &self,
        conn: ConnId,
        id: u32,
        calls: impl FnOnce(&mut Going) -> &mut Vec<(u32, oneshot::Sender<T>)>,
    ) -> Option<oneshot::Receiver<T>> {
        let mut entries = self.shards.get(conn.shard()).map(|_| self.lock(conn.shard()))?;
        let entry = entries.get_mut(&conn)?;
        let calls = calls(entry.going.get_or_insert_default());
        if calls.iter().any(|(used, _)| *used == id) {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        calls.push((id, sender));
        Some(receiver)
    }

    /// Whether the connection answers calls.
    pub(super) fn answers_calls(&self, conn: ConnId) -> bool {
        let entries = self.lock(conn.shard());
        entries.get(&conn).is_some_and(|entry| entry.answers_calls)
    }

    /// The connections with entries, and the tables.
    pub(super) fn footprint(&self) -> Footprint {
        let mut sum = Footprint::default();
        for shard in 0..self.shards.len() {
            let entries = self.lock(shard);
            let table = rounded_table(entries.capacity(), size_of::<(ConnId, Entry)>());
            let going = entries.values().filter_map(|entry| entry.going.as_ref());
            let going = going.map(|going| {
                let own = going.own.capacity() * size_of::<(u32, oneshot::Sender<Infallible>)>();
                let asked = going.asked.capacity() * size_of::<(u32, oneshot::Sender<Answer>)>();
                rounded(size_of::<Going>()) + rounded(own) + rounded(asked)
            });
            sum += Footprint::new(entries.len(), table + going.sum::<usize>());
        }
        sum
    }

    fn take_asked(&self, conn: ConnId, id: u32) -> Option<oneshot::Sender<Answer>> {
        let mut entries = self.lock(conn.shard());
        let going = entries.get_mut(&conn).and_then(|entry| entry.going.as_mut());
        let waiting = going.and_then(|going| take(&mut going.asked, id));
        settle(&mut entries, conn);
        waiting
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Entries> {
        self.shards[shard].lock().expect("no panic happens under the lock of calls")
    }
}

fn take<T>(calls: &mut Vec<(u32, T)>, id: u32) -> Option<T> {
    let place = calls.iter().position(|(used, _)| *used == id)?;
    Some(calls.swap_remove(place).1)
}

/// Removes what is empty.
fn settle(entries: &mut Entries, conn: ConnId) {
    let Some(entry) = entries.get_mut(&conn) else { return };
    if entry.going.as_ref().is_some_and(|going| going.own.is_empty() && going.asked.is_empty()) {
        entry.going = None;
    }
    if entry.going.is_none() && !entry.answers_calls {
        entries.remove(&conn);
        tidy(entries);
    }
}

/// Returns the table's memory after many connections have gone.
fn tidy(entries: &mut Entries) {
    if entries.capacity() > KEPT && entries.len() < entries.capacity() / 8 {
        entries.shrink_to(entries.len() * 2);
    }
}

/// Unused places that a table may keep.
const KEPT: usize = 1024;
const _: () = assert!(size_of::<Entry>() <= 16);

#[cfg(test)]
mod tests {
    use super::*;

    fn conn(number: u64) -> ConnId {
        ConnId::from_u64(number)
    }

    fn answer(id: u32) -> Answer {
        Answer { id, ..Answer::default() }
    }

    #[test]
    fn a_call_is_answered_once_and_ends_with_its_connection() {
        let table = Table::new(1);
        assert_eq!(table.ask(conn(1), 2).unwrap_err(), NoPlace::NoAnswers);
        table.enter(conn(1));
        let (first, mut heard) = table.ask(conn(1), 2).unwrap();
        let (second, mut gone) = table.ask(conn(1), 2).unwrap();
        assert_eq!((first, second), (1, 2));
        assert_eq!(table.ask(conn(1), 2).unwrap_err(), NoPlace::Full);
        assert!(table.answer(conn(1), answer(1)) && !table.answer(conn(1), answer(1)));
        assert_eq!(heard.try_recv().unwrap().id, 1);
        assert!(!table.give_up(conn(1), 1));
        // An answer of another connection is none.
        assert!(!table.answer(conn(2), answer(2)));
        assert_eq!(table.end(conn(1)), 0);
        assert_eq!(gone.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        assert!(!table.answers_calls(conn(1)));
        assert_eq!(table.footprint().count, 0);
    }

    #[test]
    fn a_device_s_own_calls_end_when_they_are_given_up() {
        let table = Table::new(1);
        let mut first = table.begin(conn(1), 7, 2).unwrap();
        assert_eq!(table.begin(conn(1), 7, 2).unwrap_err(), NoPlace::Used);
        let mut second = table.begin(conn(1), 8, 2).unwrap();
        assert_eq!(table.begin(conn(1), 9, 2).unwrap_err(), NoPlace::Full);
        assert!(table.finish(conn(1), 7) && !table.finish(conn(1), 7));
        assert_eq!(first.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        assert_eq!(second.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        // A device that announces nothing gets no calls, also while it makes one.
        assert_eq!(table.ask(conn(1), 2).unwrap_err(), NoPlace::NoAnswers);
        assert_eq!(table.end(conn(1)), 1);
        assert_eq!(second.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        assert_eq!(table.footprint().count, 0);
    }

    #[test]
    fn memory_returns_when_connections_have_gone() {
        let table = Table::new(1);
        let empty = table.footprint();
        for number in 0..50_000 {
            table.enter(conn(number));
        }
        let full = table.footprint();
        assert!(full.bytes / full.count < 64, "{} for {}", full.bytes, full.count);
        for number in 0..50_000 {
            table.end(conn(number));
        }
        let kept = table.footprint();
        assert!(kept.count == 0 && kept.bytes <= empty.bytes + 64 * 2 * KEPT, "{}", kept.bytes);
    }
}
