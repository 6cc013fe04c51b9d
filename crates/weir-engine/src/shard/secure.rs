//! TLS on the shard. Records are sealed when a socket can take them, and opened in the receive
//! buffer.
//!
//! ```text
//!  outbox ──gather──▶ seal, one record ──▶ scratch ──send──▶ left whole: its items are done
//!                                                      └───▶ refused: the rest into the outbox, its items committed
//!  socket ──▶ receive buffer ──open in place──▶ plaintext ──▶ frames, as without TLS
//!                     └── the beginning of a record ──▶ block
//! ```
//!
//! A sealed record has used its sequence number. It leaves unchanged, or the connection ends. So a
//! connection has at most one.

use std::io::{self, IoSlice};
use std::sync::Arc;

use weir_wire::CloseReason;

use super::Shard;
use super::tls_table::Farewell;
use crate::command::{Front, TlsAdoption};
use crate::message::{Item, Message};
use crate::net::Net;
use crate::outbox::{GATHER_MAX, Sealed};
use crate::pool::Block;
use crate::slot::{Slot, TlsSlot};
use crate::stats::DropRule;
use crate::table::State;
use crate::tls::{Exhausted, Violation};

/// The result of sealing plaintext and offering it to a socket.
pub(super) struct Offered {
    /// Bytes of the plaintext whose records have left whole.
    pub(super) sent: usize,
    /// The record that the socket has refused, in part or whole.
    pub(super) rest: Option<Box<Sealed>>,
}

/// Why the connection can send nothing more.
pub(super) enum Unsendable {
    /// The socket has failed.
    Socket(io::Error),
    /// The keys are spent, or the peer has ended the session.
    Keys,
}

impl From<io::Error> for Unsendable {
    fn from(error: io::Error) -> Self {
        Unsendable::Socket(error)
    }
}

impl From<Exhausted> for Unsendable {
    fn from(_: Exhausted) -> Self {
        Unsendable::Keys
    }
}

impl<N: Net, F: Front> Shard<N, F> {
    pub(super) fn is_secure(&self, slot: Slot) -> bool {
        self.table[slot].tls != TlsSlot::NONE
    }

    /// Takes over the record session of a connection that is being adopted.
    pub(super) fn secure(&mut self, slot: Slot, tls: &mut TlsAdoption) {
        self.table[slot].tls = self.tls.insert(&mut tls.session);
    }

    /// Keeps the records that the front read ahead, until the shard reads from the connection.
    pub(super) fn keep_sealed_ahead(&mut self, slot: Slot, bytes: &[u8]) {
        if bytes.is_empty() || self.table[slot].state != State::Open {
            return;
        }
        let block = self.pool.take(bytes, self.tick());
        if self.put_sealed_block(slot, block, 0)
            && let Some(tls) = self.tls.get_mut(self.table[slot].tls)
        {
            tls.is_ahead = true;
        }
    }

    /// Releases received records that were not opened.
    pub(super) fn drop_sealed_block(&mut self, slot: Slot) {
        let tls = self.tls.get_mut(self.table[slot].tls);
        if let Some(block) = tls.and_then(|tls| tls.partial.take()) {
            self.drop_block(block);
        }
    }

    /// Wipes the keys of a connection whose socket closes.
    pub(super) fn end_tls(&mut self, slot: Slot) {
        let tls_slot = std::mem::replace(&mut self.table[slot].tls, TlsSlot::NONE);
        if tls_slot != TlsSlot::NONE
            && let Some(block) = self.tls.remove(tls_slot)
        {
            self.drop_block(block);
        }
    }

    /// Whether the connection can send nothing more, not even `Goodbye`.
    pub(super) fn is_mute(&self, slot: Slot) -> bool {
        self.tls.get(self.table[slot].tls).is_some_and(|tls| tls.farewell == Farewell::Over)
    }
}

/// Sending.
impl<N: Net, F: Front> Shard<N, F> {
    /// [`Shard::deliver`] for a connection for which nothing waits.
    pub(super) fn deliver_sealed(&mut self, slot: Slot, message: &Arc<Message>) -> bool {
        self.note_accepted();
        let bytes = message.bytes(self.format(slot));
        let is_sent = match self.offer(slot, &mut [IoSlice::new(bytes)]) {
            Ok(Offered { rest: None, .. }) => {
                self.note_sent(1);
                self.stats.delivered.add(1);
                true
            }
            Ok(Offered { sent, rest: Some(rest) }) => {
                self.commit(slot, [Item::Message(Arc::clone(message))], sent, rest);
                self.check_watermarks(slot);
                false
            }
            Err(cause) => {
                self.count_dropped(DropRule::Closed, 1);
                self.end_unsendable(slot, &cause);
                false
            }
        };
        self.end_if_spent(slot);
        is_sent
    }

    /// [`Shard::send_formed`] for a connection for which nothing waits.
    pub(super) fn send_bytes_sealed(&mut self, slot: Slot, bytes: &[u8]) {
        match self.offer(slot, &mut [IoSlice::new(bytes)]) {
            Ok(Offered { rest: None, .. }) => self.note_sent(1),
            Ok(Offered { sent, rest: Some(rest) }) => {
                self.commit(slot, [Item::Frame(bytes.into())], sent, rest);
                self.check_watermarks(slot);
            }
            Err(cause) => {
                self.count_dropped(DropRule::Closed, 1);
                self.end_unsendable(slot, &cause);
            }
        }
        self.end_if_spent(slot);
    }

    /// Seals and sends `bufs`, record by record, until all has left or the socket refuses.
    pub(super) fn offer(
        &mut self,
        slot: Slot,
        bufs: &mut [IoSlice<'_>],
    ) -> Result<Offered, Unsendable> {
        let mut bufs = bufs;
        let mut sent = 0;
        loop {
            IoSlice::advance_slices(&mut bufs, 0);
            if bufs.is_empty() {
                return Ok(Offered { sent, rest: None });
            }
            let bytes = self.tls.seal(self.table[slot].tls, bufs, &self.stats)?;
            if let Some(rest) = self.send_scratch(slot, bytes)? {
                return Ok(Offered { sent, rest: Some(rest) });
            }
            IoSlice::advance_slices(&mut bufs, bytes);
            sent += bytes;
        }
    }

    /// Sends the sealed bytes, which stand for `plaintext` bytes. Returns the part that the socket
    /// refuses.
    fn send_scratch(&mut self, slot: Slot, plaintext: usize) -> io::Result<Option<Box<Sealed>>> {
        let scratch = std::mem::take(&mut self.tls.scratch);
        let sent = self.send(slot, &[IoSlice::new(&scratch)]);
        let rest = sent.map(|sent| {
            self.note_taken(slot, sent);
            (sent < scratch.len()).then(|| Sealed::new(&scratch[sent..], plaintext))
        });
        self.tls.scratch = scratch;
        if let Ok(Some(_)) = &rest {
            self.seed_reused_nonce(slot);
        }
        rest
    }

    /// Notes that the socket took at least one byte of a record.
    fn note_taken(&mut self, slot: Slot, bytes: usize) {
        if bytes > 0
            && let Some(outbox) = &mut self.table[slot].outbox
        {
            outbox.taken_at = self.now;
        }
    }

    /// Queues the rest of a record that the socket has refused, and those of its items that do not
    /// wait already. `sent` bytes of the first item have left.
    pub(super) fn commit(
        &mut self,
        slot: Slot,
        items: impl IntoIterator<Item = Item>,
        sent: usize,
        rest: Box<Sealed>,
    ) {
        let now = self.now;
        let mut sent = sent;
        for item in items {
            self.outbox(slot).push(item, std::mem::take(&mut sent), now);
            self.stats.queued_items.add(1);
        }
        self.outbox(slot).sealed = Some(rest);
        self.account_or_end(slot);
    }

    fn account_or_end(&mut self, slot: Slot) {
        if !self.account(slot) {
            self.end_without_room(slot);
        }
    }

    /// Sends the waiting items, record by record, and TLS's own records. Returns whether everything
    /// is gone.
    pub(super) fn flush_sealed(&mut self, slot: Slot) -> bool {
        let outcome = self.flush_records(slot);
        if let Err(cause) = &outcome {
            self.end_unsendable(slot, cause);
        }
        self.end_if_spent(slot);
        matches!(outcome, Ok(true))
    }

    fn flush_records(&mut self, slot: Slot) -> Result<bool, Unsendable> {
        loop {
            if !self.flush_rest(slot)? {
                return Ok(false);
            }
            let Some(bytes) = self.seal_next(slot)? else { return Ok(true) };
            if let Some(rest) = self.send_scratch(slot, bytes)? {
                self.commit(slot, [], 0, rest);
                return Ok(false);
            }
            self.advance(slot, bytes);
        }
    }

    /// Sends the rest of a record that has begun to leave. Returns whether nothing of it is left.
    fn flush_rest(&mut self, slot: Slot) -> io::Result<bool> {
        let outbox = self.table[slot].outbox.as_mut();
        let Some(mut sealed) = outbox.and_then(|outbox| outbox.sealed.take()) else {
            return Ok(true);
        };
        let sent = self.send(slot, &[IoSlice::new(sealed.rest())]);
        let is_gone = sealed.advance(*sent.as_ref().unwrap_or(&0));
        let Some(outbox) = &mut self.table[slot].outbox else { return Ok(true) };
        if is_gone {
            self.advance(slot, sealed.plaintext());
        } else {
            outbox.sealed = Some(sealed);
        }
        self.note_taken(slot, sent?);
        Ok(is_gone)
    }

    /// Seals the next record. Returns how many bytes of the queue it stands for; `None` if there is
    /// nothing to send.
    fn seal_next(&mut self, slot: Slot) -> Result<Option<usize>, Exhausted> {
        loop {
            let entry = &self.table[slot];
            let tls_slot = entry.tls;
            let is_closing = entry.state == State::Closing;
            let Some(outbox) = entry.outbox.as_ref().filter(|outbox| !outbox.is_empty()) else {
                self.tls.scratch.clear();
                let has_more = is_closing && self.tls.seal_farewell(tls_slot, &self.stats);
                let has_more = has_more || self.tls.seal_due(tls_slot, &self.stats)?;
                return Ok(has_more.then_some(0));
            };
            if outbox.uncommitted().is_some_and(|item| item.is_expired(self.now)) {
                self.drop_first(slot);
                continue;
            }
            let mut bufs = [IoSlice::new(&[]); GATHER_MAX];
            let count = outbox.gather(&mut bufs, self.now);
            let bytes = self.tls.seal(tls_slot, &bufs[..count], &self.stats)?;
            return Ok(Some(bytes));
        }
    }

    /// Ends a connection that can send nothing more.
    pub(super) fn end_unsendable(&mut self, slot: Slot, cause: &Unsendable) {
        match cause {
            Unsendable::Socket(error) => self.fail(slot, error),
            Unsendable::Keys => {
                if let Some(tls) = self.tls.get_mut(self.table[slot].tls) {
                    tls.farewell = Farewell::Over;
                }
                self.close(slot, CloseReason::TlsKeysSpent);
                self.give_up_socket(slot);
            }
        }
    }

    /// Ends a connection while its keys still suffice for `Goodbye`.
    pub(super) fn end_if_spent(&mut self, slot: Slot) {
        let tls = self.tls.get(self.table[slot].tls);
        if tls.is_some_and(|tls| tls.is_nearly_spent()) {
            self.close(slot, CloseReason::TlsKeysSpent);
        }
    }
}

/// Receiving.
impl<N: Net, F: Front> Shard<N, F> {
    /// Called before each read. Opens the records that were read ahead, and ends a connection whose
    /// peer has ended. Returns whether to read.
    pub(super) fn may_read_sealed(&mut self, slot: Slot) -> bool {
        let Some(tls) = self.tls.get_mut(self.table[slot].tls) else { return true };
        if std::mem::take(&mut tls.is_ahead)
            && let Some(mut block) = tls.partial.take()
        {
            self.consume_sealed(slot, block.filled_mut());
            self.drop_block(block);
            return self.table[slot].state == State::Open && !self.table[slot].flags.is_held_back();
        }
        if tls.is_ended {
            self.answer_end(slot);
            self.close(slot, CloseReason::PeerClosed);
            return false;
        }
        true
    }

    /// Takes received bytes: opens the whole records, handles their plaintext, and keeps the rest.
    pub(super) fn consume_sealed(&mut self, slot: Slot, input: &mut [u8]) {
        let rest = self.complete_record(slot, input);
        let taken = rest.and_then(|rest| self.take_records(slot, rest));
        self.send_replies(slot);
        if let Err(violation) = taken {
            self.end_violator(slot, violation);
        }
        let is_due = self.tls.get(self.table[slot].tls).is_some_and(|tls| tls.is_due());
        if is_due && self.table[slot].outbox.is_none() && self.table[slot].state == State::Open {
            self.flush(slot);
        }
    }

    /// Completes the begun record, and no more. Returns the bytes behind it.
    fn complete_record<'a>(
        &mut self,
        slot: Slot,
        input: &'a mut [u8],
    ) -> Result<&'a mut [u8], Violation> {
        let mut input = input;
        loop {
            let Some(tls) = self.tls.get_mut(self.table[slot].tls) else { return Ok(input) };
            let Some(mut block) = tls.partial.take() else { return Ok(input) };
            let missing = tls.missing_bytes(block.filled());
            match missing {
                Ok(0) => {
                    let taken = self.take_records(slot, block.filled_mut());
                    self.drop_block(block);
                    taken?;
                }
                Ok(_) if input.is_empty() => {
                    tls.partial = Some(block);
                    return Ok(input);
                }
                Ok(missing) => {
                    let (more, rest) = input.split_at_mut(missing.min(input.len()));
                    input = rest;
                    let charged = block.footprint();
                    let block = self.pool.extend(block, more);
                    if !self.put_sealed_block(slot, block, charged) {
                        return Ok(&mut []);
                    }
                }
                Err(violation) => {
                    self.drop_block(block);
                    return Err(violation);
                }
            }
        }
    }

    /// Opens the whole records in `input`, handles their plaintext, and keeps the rest.
    fn take_records(&mut self, slot: Slot, input: &mut [u8]) -> Result<(), Violation> {
        if input.is_empty() || self.table[slot].state != State::Open {
            return Ok(());
        }
        let tls_slot = self.table[slot].tls;
        let tls = self.tls.get_mut(tls_slot).expect("a connection with TLS is open");
        if tls.is_ended {
            return Ok(());
        }
        let frames = self.stats.received_frames.get();
        let (opened, effort) = tls.open(input, &self.stats)?;
        tls.is_ended = opened.is_end;
        if opened.is_end {
            // The peer has ended as with FIN. Earlier frames are handled first, even if the front
            // makes them wait.
            self.table[slot].flags.ended = true;
            self.list_to_read(slot);
        }
        let (opened_bytes, rest) = input.split_at_mut(opened.used);
        self.take_plaintext(slot, &mut opened_bytes[..opened.plaintext]);
        let frames = self.stats.received_frames.get() - frames;
        self.charge_records(slot, effort, opened.plaintext, frames);
        if !rest.is_empty() && self.table[slot].state == State::Open {
            let block = self.pool.take(rest, self.tick());
            if self.put_sealed_block(slot, block, 0) {
                self.arm(slot, self.tick().plus(self.limits.frame));
            }
        }
        Ok(())
    }

    fn take_plaintext(&mut self, slot: Slot, plaintext: &mut [u8]) {
        if self.table[slot].flags.is_held_back() {
            self.keep(slot, plaintext);
        } else {
            self.take_input(slot, plaintext);
        }
    }

    /// Gives a begun record to its connection. If the budget has no room for it, the connection
    /// ends. `charged` is the number of bytes that it has been charged with already.
    fn put_sealed_block(&mut self, slot: Slot, block: Box<Block>, charged: usize) -> bool {
        let Some(block) = self.charge_block(slot, block, charged) else { return false };
        if let Some(tls) = self.tls.get_mut(self.table[slot].tls) {
            tls.partial = Some(block);
        }
        true
    }

    /// Ends a connection whose peer has violated TLS, or has sent a fatal alert.
    fn end_violator(&mut self, slot: Slot, violation: Violation) {
        let Some(tls) = self.tls.get_mut(self.table[slot].tls) else { return };
        if self.table[slot].state != State::Open {
            return;
        }
        match violation.alert {
            Some(alert) => tls.farewell = Farewell::Due(alert),
            None => {
                tls.farewell = Farewell::Over;
                self.stats.tls_alerts_received.add(1);
            }
        }
        self.close(slot, CloseReason::TlsRecord);
    }

    /// Answers the peer's `close_notify` with ours, if the socket takes it at once.
    fn answer_end(&mut self, slot: Slot) {
        let is_amid_record =
            self.table[slot].outbox.as_ref().is_some_and(|outbox| outbox.sealed.is_some());
        self.tls.scratch.clear();
        if !is_amid_record && self.tls.seal_farewell(self.table[slot].tls, &self.stats) {
            // A peer that has gone already does not miss it.
            if let Ok(Some(rest)) = self.send_scratch(slot, 0) {
                self.commit(slot, [], 0, rest);
            }
        }
    }
}
