//! Ends of connections. Each has one reason and one report. If possible, the shard tells the device
//! the reason.

use std::io;

use weir_wire::format::Format;
use weir_wire::{Advice, CloseReason, frame, v1};

use super::Shard;
use super::drain::draw;
use super::read::reason_of;
use crate::command::{Front, Report};
use crate::id::PeerAddr;
use crate::message::Item;
use crate::net::Net;
use crate::slot::Slot;
use crate::stats::DropRule;
use crate::table::{Ending, HeldBack, State};

impl<N: Net, F: Front> Shard<N, F> {
    /// Ends an open connection.
    ///
    /// Its memberships end at once, and the shard reports the end to the front. Waiting items are
    /// dropped and counted, except a committed remainder. If the server drains or the device is
    /// replaced, items that were queued before still leave; messages of topics that it lags behind
    /// do not, because no queue holds them.
    ///
    /// Then `Goodbye` leaves, and the socket lingers until the peer has ended too, at most
    /// `linger_timeout`.
    pub(super) fn close(&mut self, slot: Slot, reason: CloseReason) {
        self.close_saying(slot, reason, None);
    }

    /// The same with another farewell than `Goodbye`, in the connection's format.
    pub(super) fn close_saying(
        &mut self,
        slot: Slot,
        reason: CloseReason,
        last: Option<Box<[u8]>>,
    ) {
        if self.table[slot].state != State::Open {
            return;
        }
        let now = self.tick();
        let entry = &mut self.table[slot];
        entry.state = State::Closing;
        entry.reason = reason;
        entry.heard_at = now;
        entry.flags.held_back = HeldBack::No;
        self.stats.closed[reason.index()].add(1);
        self.stats.connections.leave(self.table[slot].transport());
        let format = &self.stats.formats[self.format(slot).index()];
        format.set(format.get() - 1);
        if let Some(block) = self.table[slot].partial.take() {
            self.drop_block(block);
        }
        self.drop_sealed_block(slot);
        self.end_lags(slot);
        self.end_resumes(slot);
        if self.is_stalled(slot) {
            self.end_stall(slot);
        }
        self.report_end(slot, reason);
        self.forget_positions(slot);
        if last.is_some() || reason.can_be_told() {
            self.say_last(slot, reason, last);
        } else {
            self.give_up_socket(slot);
        }
    }

    /// Ends a connection whose socket has failed.
    pub(super) fn fail(&mut self, slot: Slot, error: &io::Error) {
        match self.table[slot].state {
            State::Open => self.close(slot, reason_of(error)),
            State::Closing => self.give_up_socket(slot),
            State::Closed | State::Free => {}
        }
    }

    fn report_end(&mut self, slot: Slot, reason: CloseReason) {
        let mut topics = Vec::with_capacity(self.table[slot].memberships.len());
        while let Some(last) = self.table[slot].memberships.len().checked_sub(1) {
            topics.push(self.topics.leave(&mut self.table, slot, last));
        }
        let conn = self.table.id(self.index, slot);
        let entry = &self.table[slot];
        let (device, origin, transport) = (entry.device, entry.origin, entry.transport());
        let peer = entry.socket.as_ref().and_then(|socket| self.net.peer_addr(socket));
        let peer = peer.map(PeerAddr::from);
        let age_ticks = self.tick().since(entry.adopted_at);
        let topics = topics.into_boxed_slice();
        let closed =
            Report::Closed { conn, device, origin, reason, transport, peer, age_ticks, topics };
        self.report(closed, false);
    }

    fn say_last(&mut self, slot: Slot, reason: CloseReason, last: Option<Box<[u8]>>) {
        self.table[slot].flags.ending.note(Ending::TOLD);
        self.stats.lingering.enter(self.table[slot].transport());
        if self.is_mute(slot) {
            return self.give_up_socket(slot);
        }
        if !keeps_queue(reason) {
            self.drop_uncommitted(slot);
        }
        let last = last.unwrap_or_else(|| self.goodbye(slot, reason));
        let end = self.tick().plus(self.limits.linger);
        self.arm(slot, end);
        self.note_accepted();
        if !self.push(slot, Item::Frame(last), 0) {
            return self.give_up_socket(slot);
        }
        self.flush(slot);
        if self.table[slot].state != State::Closing {
            return;
        }
        if self.table[slot].outbox.is_none() {
            self.end_our_side(slot);
        }
        // Unread bytes may have had their edge. Closing the socket over them would be a reset.
        self.list_to_read(slot);
    }

    fn drop_uncommitted(&mut self, slot: Slot) {
        let forgets_sealed = self.is_seeded_dropped_committed();
        let Some(outbox) = &mut self.table[slot].outbox else { return };
        let dropped = if forgets_sealed { outbox.keep(0) } else { outbox.keep_remainder() };
        let is_empty = outbox.is_empty();
        self.stats.queued_items.set(self.stats.queued_items.get() - dropped as u64);
        self.count_dropped(DropRule::Closed, dropped);
        if is_empty {
            self.release_outbox(slot);
        } else {
            self.account(slot);
        }
    }

    fn goodbye(&mut self, slot: Slot, reason: CloseReason) -> Box<[u8]> {
        let retry_after_ms = match reason.advice() {
            Advice::ReconnectLater => self.draw_retry_after(),
            Advice::ReconnectNow | Advice::FixCredentials | Advice::DoNotReturn => 0,
        };
        let goodbye = v1::Goodbye {
            code: u32::from(reason.code()),
            reason: reason.name().into(),
            retry_after_ms,
        };
        let mut out = Vec::new();
        let message = v1::ServerMessage { kind: Some(v1::server_message::Kind::Goodbye(goodbye)) };
        frame::encode(&message, &mut out);
        if self.format(slot) != Format::Stream {
            let frames = std::mem::take(&mut out);
            self.form(slot, &frames, &mut out);
        }
        out.into_boxed_slice()
    }

    /// A random delay, so that devices that were closed together do not come back together.
    fn draw_retry_after(&mut self) -> u32 {
        let (least, most) = self
            .draining
            .as_ref()
            .map_or(self.settings.retry_after_ms, |draining| draining.retry_after_ms());
        let width = u64::from(most.saturating_sub(least)) + 1;
        least.saturating_add(u32::try_from(draw(&mut self.random, width)).unwrap_or(0))
    }

    /// Ends our side once everything is sent, and waits for the peer's end.
    pub(super) fn end_our_side(&mut self, slot: Slot) {
        let entry = &mut self.table[slot];
        let Some(socket) = &entry.socket else { return };
        if entry.flags.ending.note(Ending::SHUT) {
            self.net.shutdown_write(socket);
        }
        // The shard may have read the peer's end before.
        self.list_to_read(slot);
    }

    /// Closes the socket of a closed connection. Unsent items are dropped.
    pub(super) fn give_up_socket(&mut self, slot: Slot) {
        if self.table[slot].state != State::Closing {
            return;
        }
        let outbox = self.table[slot].outbox.as_ref();
        let dropped = outbox.map_or(0, |outbox| outbox.len());
        let is_cut = outbox.is_some_and(|outbox| !outbox.is_empty());
        self.count_dropped(DropRule::Closed, dropped);
        self.release_outbox(slot);
        if self.table[slot].flags.ending.has(Ending::TOLD) {
            self.stats.lingering.leave(self.table[slot].transport());
        }
        self.end_tls(slot);
        self.wheel.disarm(&mut self.table, slot);
        self.table[slot].state = State::Closed;
        if let Some(socket) = self.table[slot].socket.take() {
            if is_cut {
                self.net.abort(socket);
            } else {
                self.net.close(socket);
            }
        }
        self.release_if_over(slot);
    }

    /// Frees the slot once the socket is gone and the front has taken the report.
    pub(super) fn release_if_over(&mut self, slot: Slot) {
        let entry = &self.table[slot];
        if entry.state == State::Closed && entry.flags.ending.has(Ending::REPORTED) {
            self.table.release(slot);
        }
    }

    /// Closes the remaining connections when the thread ends, without a reason.
    pub(super) fn close_everything(&mut self) {
        for slot in Slot::all(0..self.table.slots()) {
            self.end_tls(slot);
            if let Some(socket) = self.table[slot].socket.take() {
                self.net.close(socket);
            }
        }
    }
}

/// Whether items queued before still leave: the device did nothing wrong and keeps up.
const fn keeps_queue(reason: CloseReason) -> bool {
    matches!(reason, CloseReason::Draining | CloseReason::Replaced)
}
