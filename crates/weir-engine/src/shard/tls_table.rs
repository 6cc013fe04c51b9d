//! The TLS state of connections. It has its own table, so a connection without TLS pays four bytes.

use std::io::IoSlice;

use crate::chunks::Chunks;
use crate::memory::{Footprint, rounded};
use crate::pool::Block;
use crate::slot::TlsSlot;
use crate::stats::ShardStats;
use crate::tls::{Alert, Exhausted, Opened, Session, Version, Violation};

/// The TLS state of a shard's connections, and the scratch buffer in which records are sealed.
///
/// Shape: chunks of at most [`ENTRY_BYTES`] a connection, and a stack of the free places.
/// Limits: at most one place for each entry of the connection table.
/// Cost: insert, look-up and remove are O(1). Removing wipes the secrets.
#[derive(Debug)]
pub(super) struct TlsTable {
    entries: Chunks<TlsEntry, CHUNK>,
    free: Vec<TlsSlot>,
    /// Sealed bytes that are sent at once. Kept for its memory.
    pub(super) scratch: Vec<u8>,
}

/// The TLS state of one connection.
#[derive(Debug)]
pub(super) struct TlsEntry {
    session: Option<Session>,
    /// A begun record. Until the shard reads from the connection, all records that were read ahead.
    pub(super) partial: Option<Box<Block>>,
    /// Whether `partial` may hold whole records.
    pub(super) is_ahead: bool,
    /// Whether the peer has sent `close_notify`.
    pub(super) is_ended: bool,
    pub(super) farewell: Farewell,
}

/// The TLS state of a connection on its way from one shard to another.
#[derive(Debug)]
pub(super) struct TakenOut {
    pub(super) session: Session,
    pub(super) partial: Option<Box<Block>>,
    pub(super) is_ahead: bool,
    pub(super) is_ended: bool,
    /// `None`: [`Farewell::Over`].
    pub(super) farewell: Option<Alert>,
}

/// The cost of opening records besides their bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Effort {
    /// Opened records. Those before a change of keys are not counted.
    pub(super) records: u64,
    pub(super) key_changes: u32,
}

/// The state of our side's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Farewell {
    /// It ends with this alert, which is not sealed yet: `close_notify`, or the alert for a
    /// violation of the peer.
    Due(Alert),
    /// Nothing may be sealed any more: the alert has been sealed, the peer has sent a fatal alert,
    /// or the keys are spent.
    Over,
}

/// The most bytes that TLS takes for a connection, besides its entry.
const ENTRY_BYTES: usize = 184;
const _: () = assert!(size_of::<TlsEntry>() <= ENTRY_BYTES);

/// Some 50 KB a chunk.
const CHUNK: usize = 256;

/// The longest record, with the records that may have to leave before and after it.
const SCRATCH_BYTES: usize = 17 * 1024;

impl TlsTable {
    pub(super) const fn new() -> Self {
        Self { entries: Chunks::new(), free: Vec::new(), scratch: Vec::new() }
    }

    /// The connections with TLS, and the bytes of the whole table.
    pub(super) fn footprint(&self) -> Footprint {
        let free = rounded(self.free.capacity() * size_of::<TlsSlot>());
        let count = self.entries.len() as usize - self.free.len();
        Footprint::new(count, self.entries.occupied() + free)
    }

    /// Takes over the record session of a connection. Returns its place.
    pub(super) fn insert(&mut self, session: &mut Session) -> TlsSlot {
        if self.free.is_empty() {
            let first = self.entries.len();
            self.entries.grow(TlsEntry::vacant);
            self.free.extend(TlsSlot::all(first..self.entries.len()).rev());
            self.scratch.reserve(SCRATCH_BYTES);
        }
        let slot = self.free.pop().expect("a chunk was just added");
        self.entries[slot.index()].session = Some(session.take());
        slot
    }

    /// Frees a place and wipes its secrets. Returns its block, if it has a begun record.
    pub(super) fn remove(&mut self, slot: TlsSlot) -> Option<Box<Block>> {
        let entry = &mut self.entries[slot.index()];
        // This wipes the keys in place.
        entry.session = None;
        self.free.push(slot);
        std::mem::replace(entry, TlsEntry::vacant()).partial
    }

    /// Takes everything out of a place, which is free then. The secrets are wiped there.
    pub(super) fn take_out(&mut self, slot: TlsSlot) -> Option<TakenOut> {
        if slot == TlsSlot::NONE {
            return None;
        }
        let entry = &mut self.entries[slot.index()];
        let session = entry.session.as_mut()?.take();
        let farewell = match entry.farewell {
            Farewell::Due(alert) => Some(alert),
            Farewell::Over => None,
        };
        let (is_ahead, is_ended) = (entry.is_ahead, entry.is_ended);
        let partial = self.remove(slot);
        Some(TakenOut { session, partial, is_ahead, is_ended, farewell })
    }

    /// Puts everything into a place. Returns the place.
    pub(super) fn put_in(&mut self, taken_out: TakenOut) -> TlsSlot {
        let TakenOut { mut session, partial, is_ahead, is_ended, farewell } = taken_out;
        let slot = self.insert(&mut session);
        let entry = &mut self.entries[slot.index()];
        (entry.partial, entry.is_ahead, entry.is_ended) = (partial, is_ahead, is_ended);
        entry.farewell = farewell.map_or(Farewell::Over, Farewell::Due);
        slot
    }

    /// The TLS state of a connection, if it has one.
    pub(super) fn get(&self, slot: TlsSlot) -> Option<&TlsEntry> {
        if slot == TlsSlot::NONE { None } else { self.entries.get(slot.index()) }
    }

    /// The same, mutable.
    pub(super) fn get_mut(&mut self, slot: TlsSlot) -> Option<&mut TlsEntry> {
        if slot == TlsSlot::NONE { None } else { self.entries.get_mut(slot.index()) }
    }

    /// Seals at most one record's worth of `bufs` into the scratch buffer. Returns how many bytes
    /// that is.
    pub(super) fn seal(
        &mut self,
        slot: TlsSlot,
        bufs: &[IoSlice<'_>],
        stats: &ShardStats,
    ) -> Result<usize, Exhausted> {
        self.scratch.clear();
        let entry = &mut self.entries[slot.index()];
        let session = entry.open_session()?;
        note_refusal(session, stats);
        let sealed = session.seal(bufs, &mut self.scratch)?;
        stats.tls_records_sealed.add(1);
        let _ = note_key_changes(session, stats);
        Ok(sealed)
    }

    /// Seals TLS's own pending records. Returns whether there were any.
    pub(super) fn seal_due(
        &mut self,
        slot: TlsSlot,
        stats: &ShardStats,
    ) -> Result<bool, Exhausted> {
        self.scratch.clear();
        let entry = &mut self.entries[slot.index()];
        let Ok(session) = entry.open_session() else { return Ok(false) };
        if !session.is_due() {
            return Ok(false);
        }
        note_refusal(session, stats);
        session.seal_due(&mut self.scratch)?;
        stats.tls_records_sealed.add(1);
        let _ = note_key_changes(session, stats);
        Ok(true)
    }

    /// Seals the farewell behind the records in the scratch buffer. Returns whether there was one.
    pub(super) fn seal_farewell(&mut self, slot: TlsSlot, stats: &ShardStats) -> bool {
        let entry = &mut self.entries[slot.index()];
        let (Farewell::Due(alert), Some(session)) = (entry.farewell, &mut entry.session) else {
            return false;
        };
        entry.farewell = Farewell::Over;
        if session.seal_alert(alert, &mut self.scratch).is_err() {
            return false;
        }
        stats.tls_records_sealed.add(1);
        stats.tls_alerts_sent[alert.index()].add(1);
        true
    }
}

fn note_key_changes(session: &mut Session, stats: &ShardStats) -> u32 {
    let key_changes = session.take_key_changes();
    stats.tls_key_changes.add(key_changes.into());
    key_changes
}

/// Counts a warning that leaves in front of the next record.
fn note_refusal(session: &Session, stats: &ShardStats) {
    if session.is_due() && session.version() == Version::Tls12 {
        stats.tls_alerts_sent[Alert::NoRenegotiation.index()].add(1);
    }
}

impl TlsEntry {
    const fn vacant() -> Self {
        Self {
            session: None,
            partial: None,
            is_ahead: false,
            is_ended: false,
            farewell: Farewell::Due(Alert::CloseNotify),
        }
    }

    /// The session while it may still seal records.
    fn open_session(&mut self) -> Result<&mut Session, Exhausted> {
        match (self.farewell, &mut self.session) {
            (Farewell::Due(_), Some(session)) => Ok(session),
            (Farewell::Due(_) | Farewell::Over, _) => Err(Exhausted),
        }
    }

    /// Whether TLS has records of its own to send.
    pub(super) fn is_due(&self) -> bool {
        let is_open = self.farewell != Farewell::Over;
        is_open && self.session.as_ref().is_some_and(Session::is_due)
    }

    /// Puts a seeded bug into the session.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn repeat_number(&mut self) {
        if let Some(session) = &mut self.session {
            session.forge_number_again();
        }
    }

    /// Whether few records are left for keys that cannot be changed.
    pub(super) fn is_nearly_spent(&self) -> bool {
        self.session.as_ref().is_some_and(Session::is_nearly_exhausted)
    }

    /// Opens the whole records at the beginning of `input`.
    pub(super) fn open(
        &mut self,
        input: &mut [u8],
        stats: &ShardStats,
    ) -> Result<(Opened, Effort), Violation> {
        let session = self.session.as_mut().expect("an entry in use has a session");
        let before = session.records_opened();
        let opened = session.open(input);
        let key_changes = note_key_changes(session, stats);
        // With a new key the count of records begins again.
        let records = session.records_opened();
        let records = records.checked_sub(before).unwrap_or(records);
        opened.map(|opened| (opened, Effort { records, key_changes }))
    }

    /// Bytes that the begun record still needs. While its header is not whole, the bytes that the
    /// header needs.
    pub(super) fn missing_bytes(&self, begun: &[u8]) -> Result<usize, Violation> {
        let session = self.session.as_ref().expect("an entry in use has a session");
        let whole = session.record_bytes(begun)?.unwrap_or(HEADER_BYTES);
        Ok(whole.saturating_sub(begun.len()))
    }
}

/// Bytes of a record's header, which has its length.
const HEADER_BYTES: usize = 5;

#[cfg(any(test, feature = "sim"))]
impl TlsTable {
    /// Looks for contradictions; `in_use` connections have TLS.
    pub(super) fn check(&self, in_use: usize) -> Result<(), String> {
        let sessions =
            (0..self.entries.len()).filter(|index| self.entries[*index].session.is_some());
        let sessions = sessions.count();
        if sessions != in_use || self.free.len() + in_use != self.entries.len() as usize {
            let free = self.free.len();
            return Err(format!("{in_use} connections have TLS, {sessions} sessions, {free} free"));
        }
        Ok(())
    }
}
