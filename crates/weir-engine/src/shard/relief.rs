//! Which connections end when memory is short.
//!
//! Messages in the queues of slow connections have a share of the byte budget of their own, so they
//! never take the room of new messages. When little of it is left, the shard ends connections whose
//! queues hold messages of the largest holder: the topic, the device or the sender to which most of
//! the waiting bytes belong. These connections end even below the high watermark: a message is in
//! memory once, and its memory is free only after the last queue has released it.
//!
//! Begun frames and records have a share of their own. When it is short, connections end whose
//! begun frames have held much room for a long time.

use std::sync::Arc;

use weir_wire::CloseReason;

use super::Shard;
use crate::budget::Share;
use crate::command::Front;
use crate::message::Message;
use crate::net::Net;
use crate::pool::Block;
use crate::slot::Slot;
use crate::table::State;

/// A window: connections that the shard compares to find the one that holds the most. Some 20 µs.
const LOOKS_MAX: usize = 256;
/// Windows that the shard looks at before it ends a connection that does not belong to the largest
/// holder.
const WINDOWS_MAX: usize = 16;
/// A window: entries of the table that the shard compares by their begun frames. Some 10 µs.
const WINDOW_SLOTS: u32 = 1024;
/// Such windows that the shard looks at before the connection that asks for room ends: some 0.6 ms.
const WINDOWS_OF_SLOTS_MAX: u32 = 64;
/// Connections that end in a turn, so that others do not wait for it.
const ENDS_PER_TURN: usize = 32;

impl<N: Net, F: Front> Shard<N, F> {
    /// Counts a connection's queued messages as waiting, and lists the connection. `false` if there
    /// is no room.
    pub(super) fn hold_all(&mut self, slot: Slot) -> bool {
        self.list_waiting(slot);
        while let Some(outbox) = &mut self.table[slot].outbox
            && let Some(held) = outbox.hold_next()
        {
            // A `Goodbye` is not worth the end of another connection.
            if let Err(message) = held
                && (self.table[slot].state != State::Open
                    || !self.make_room(message.occupied_bytes()))
            {
                return false;
            }
        }
        true
    }

    /// Counts a message as waiting; `false` if there is no room for it.
    pub(super) fn hold(&mut self, message: &Arc<Message>) -> bool {
        while !message.hold() {
            if !self.make_room(message.occupied_bytes()) {
                return false;
            }
        }
        true
    }

    /// Takes bytes for waiting items. If there is no room, other connections end.
    pub(super) fn charge(&mut self, bytes: usize) -> bool {
        while !self.lease.take(bytes) {
            if !self.make_room(bytes) {
                return false;
            }
        }
        true
    }

    /// Takes bytes for a begun frame or record. If there is no room, connections end that began
    /// theirs long ago.
    pub(super) fn charge_incoming(&mut self, bytes: usize) -> bool {
        while !self.incoming.take(bytes) {
            let Some(slot) = self.first_begun() else { return false };
            self.stats.cut.add(1);
            self.close(slot, CloseReason::BudgetExhausted);
        }
        true
    }

    /// Looks for the connection whose begun frame or record has had the most room for the longest
    /// time. Searches window after window until it finds one.
    ///
    /// A device that sends whole frames has a begun frame only for a moment.
    fn first_begun(&mut self) -> Option<Slot> {
        let slots = self.table.slots();
        let windows = slots.div_ceil(WINDOW_SLOTS).min(WINDOWS_OF_SLOTS_MAX);
        for _ in 0..windows {
            let from = if self.looked_at < slots { self.looked_at } else { 0 };
            self.looked_at = slots.min(from + WINDOW_SLOTS);
            let begun =
                Slot::all(from..self.looked_at).map(|slot| (self.weight_of_begun(slot), slot));
            let heaviest = begun.max().filter(|(weight, _)| *weight > 0);
            if let Some((_, slot)) = heaviest {
                return Some(slot);
            }
        }
        None
    }

    /// The bytes of an open connection's begun frame and record, times the ticks since the first of
    /// them came.
    fn weight_of_begun(&self, slot: Slot) -> u64 {
        let entry = &self.table[slot];
        if entry.state != State::Open {
            return 0;
        }
        let record = self.tls.get(entry.tls).and_then(|tls| tls.partial.as_ref());
        let blocks = entry.partial.iter().chain(record).map(Box::as_ref);
        let weight = |block: &Block| {
            let ticks = self.tick().since(block.since) + 1;
            block.footprint() as u64 * u64::from(ticks)
        };
        blocks.map(weight).sum()
    }

    /// Ends a connection because there is no room for its waiting items.
    pub(super) fn end_without_room(&mut self, slot: Slot) {
        if self.table[slot].state == State::Open {
            self.close(slot, CloseReason::BudgetExhausted);
        } else {
            self.give_up_socket(slot);
        }
    }

    /// Ends connections that hold much while little room is left for waiting items.
    pub(super) fn relieve_budget(&mut self) {
        let mut ends = 0;
        while ends < ENDS_PER_TURN && self.lease.is_tight() {
            let bar = self.lease.budget().most_held() / 2;
            // Another shard may have such connections, or the next window.
            let Some((_, slot)) = self.largest_of_window().filter(|(held, _)| *held >= bar) else {
                return;
            };
            self.cut(slot);
            ends += 1;
        }
    }

    /// Ends one connection that holds much. `false` if there is none, or if its end would not help.
    fn make_room(&mut self, bytes: usize) -> bool {
        if bytes > self.lease.budget().bytes_max_of(Share::Waiting) {
            return false;
        }
        let bar = self.lease.budget().most_held() / 2;
        let windows = self.waiting.len.div_ceil(LOOKS_MAX).min(WINDOWS_MAX);
        let mut largest = None;
        for _ in 0..windows {
            largest = largest.max(self.largest_of_window());
            if largest.is_some_and(|(held, _)| held >= bar) {
                break;
            }
        }
        let Some((_, slot)) = largest else { return false };
        self.cut(slot);
        true
    }

    /// Looks at the next window of connections for which something waits. Returns the one that
    /// holds the most, and how much that is.
    fn largest_of_window(&mut self) -> Option<(usize, Slot)> {
        let mut largest = None;
        for _ in 0..self.waiting.len.min(LOOKS_MAX) {
            let slot = self.waiting.first()?;
            // Moves it to the end of the list.
            self.waiting.remove(&mut self.table, slot);
            self.waiting.append(&mut self.table, slot);
            largest = largest.max(Some((self.held_by(slot), slot)));
        }
        largest
    }

    /// The most bytes held by any topic, device or sender among a connection's waiting messages, or
    /// by the connection itself.
    fn held_by(&self, slot: Slot) -> usize {
        let Some(outbox) = &self.table[slot].outbox else { return 0 };
        let budget = self.lease.budget();
        let of_lags = self.latest.most_held(&outbox.lags, budget);
        outbox.most_held(budget).max(of_lags).max(outbox.charged)
    }

    /// Ends a connection to free its memory. Its committed items would stay until the linger ends,
    /// so the socket closes at once if a shared message is among them.
    fn cut(&mut self, slot: Slot) {
        if self.table[slot].state != State::Open {
            return self.give_up_socket(slot);
        }
        self.stats.cut.add(1);
        self.close(slot, CloseReason::BudgetExhausted);
        let outbox = self.table[slot].outbox.as_ref();
        if outbox.is_some_and(|outbox| outbox.has_message()) {
            self.give_up_socket(slot);
        }
    }

    pub(super) fn list_waiting(&mut self, slot: Slot) {
        let Some(outbox) = &mut self.table[slot].outbox else { return };
        if !std::mem::replace(&mut outbox.is_waiting, true) {
            self.waiting.append(&mut self.table, slot);
        }
    }

    pub(super) fn unlist_waiting(&mut self, slot: Slot) {
        let Some(outbox) = &mut self.table[slot].outbox else { return };
        if std::mem::take(&mut outbox.is_waiting) {
            self.waiting.remove(&mut self.table, slot);
        }
    }
}
