//! Formats other than a stream of frames: WebSocket messages and server-sent events.
//!
//! The gateway and the rest of the shard use frames. This file turns them into the format of a
//! connection before they wait or leave. A message to many connections is encoded once per format
//! ([`Message::encode`]).

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

use weir_wire::format::{self, Format};
use weir_wire::{CloseReason, ws};

use super::Shard;
use crate::command::Front;
use crate::id::TopicId;
use crate::message::Message;
use crate::net::Net;
use crate::slot::Slot;
use crate::stats::DropRule;
use crate::table::{Beat, State};
use crate::time::Tick;

/// The last position that a connection has been told of each of its topics, by the topics' epochs.
///
/// Shape: by slot; only for connections that read the events of several topics.
/// Limits: `topics_per_connection_max` positions each, and the number of connections. Charged to
/// the byte budget.
pub(super) type Positions = HashMap<Slot, Vec<(u64, u64)>, RandomState>;

impl<N: Net, F: Front> Shard<N, F> {
    pub(super) fn format(&self, slot: Slot) -> Format {
        self.table[slot].format()
    }

    /// Appends frames to `out` in the connection's format. If the budget has no room for their
    /// position, it appends nothing and the connection ends.
    pub(super) fn form(&mut self, slot: Slot, frames: &[u8], out: &mut Vec<u8>) {
        let format = self.format(slot);
        let from = out.len();
        let Some(tail) = format::encode(format, frames, 0, out) else { return };
        if !self.tells_positions(slot) {
            return;
        }
        if !self.note_position(slot, tail.position.epoch, tail.position.offset) {
            out.truncate(from);
            return self.end_for_budget(slot);
        }
        out.truncate(out.len() - tail.bytes);
        self.put_positions(slot, out);
    }

    /// A message in the connection's format: the shared encoding, or a copy with this connection's
    /// positions. If the budget has no room for the copy, the connection ends.
    pub(super) fn formed(&mut self, slot: Slot, message: &Arc<Message>) -> Option<Arc<Message>> {
        let format = self.format(slot);
        if message.encode(format) {
            self.stats.encoded[format.index()].add(1);
        }
        if message.tail(format) == 0 || !self.tells_positions(slot) {
            return Some(Arc::clone(message));
        }
        self.copied(slot, message)
    }

    /// The same for a retained message. The encoding is not kept with the message.
    pub(super) fn formed_of_retained(
        &mut self,
        slot: Slot,
        message: &Arc<Message>,
    ) -> Option<Arc<Message>> {
        if message.is_encoded(self.format(slot)) {
            return self.formed(slot, message);
        }
        self.copied(slot, message)
    }

    fn copied(&mut self, slot: Slot, message: &Arc<Message>) -> Option<Arc<Message>> {
        let mut tail = Vec::with_capacity(TAIL_BYTES);
        let tells_positions = message.epoch() != 0 && self.tells_positions(slot);
        if tells_positions {
            if !self.note_position(slot, message.epoch(), message.offset()) {
                self.end_for_budget(slot);
                return None;
            }
            self.put_positions(slot, &mut tail);
        }
        let copy = message.copy(self.format(slot), tells_positions.then_some(&tail));
        if copy.is_none() {
            self.end_for_budget(slot);
        }
        copy
    }

    /// Ends a connection because the budget has no room for its message.
    fn end_for_budget(&mut self, slot: Slot) {
        self.note_accepted();
        self.count_dropped(DropRule::Closed, 1);
        self.close(slot, CloseReason::BudgetExhausted);
    }

    /// Queues an answer to received frames, to be sent together with the others.
    pub(super) fn reply(&mut self, slot: Slot, encode: impl FnOnce(&mut Vec<u8>)) {
        if self.format(slot) == Format::Stream {
            return encode(&mut self.replies);
        }
        let (mut frames, mut replies) = (Vec::new(), std::mem::take(&mut self.replies));
        encode(&mut frames);
        self.form(slot, &frames, &mut replies);
        self.replies = replies;
    }

    /// Notes the position that a connection has been told of a topic. `false` if the budget has no
    /// room for one more topic.
    fn note_position(&mut self, slot: Slot, epoch: u64, offset: u64) -> bool {
        if let Some(last) = self.position(slot, epoch) {
            *last = offset;
            return true;
        }
        let Some(positions) = self.positions.get_mut(&slot) else { return false };
        if !self.events.take(POSITION_BYTES) {
            return false;
        }
        positions.reserve_exact(1);
        positions.push((epoch, offset));
        true
    }

    fn position(&mut self, slot: Slot, epoch: u64) -> Option<&mut u64> {
        let positions = self.positions.get_mut(&slot)?;
        positions.iter_mut().find(|(known, _)| *known == epoch).map(|(_, last)| last)
    }

    /// What was formed to catch up with a topic and has not begun to leave is not told as received.
    /// `epoch` and `shift` are those of the messages.
    pub(super) fn take_back_position(
        &mut self,
        slot: Slot,
        topic: TopicId,
        (epoch, shift): (u64, u64),
    ) {
        if epoch == 0 || !self.tells_positions(slot) || self.is_seeded_early_position() {
            return;
        }
        let lags = self.table[slot].outbox.as_ref().map_or(&[][..], |outbox| &outbox.lags);
        if let Some(lag) = lags.iter().find(|lag| lag.topic == topic) {
            let sent = lag.next.saturating_sub(1).wrapping_sub(shift);
            if let Some(last) = self.position(slot, epoch) {
                *last = sent;
            }
        }
    }

    /// An epoch has ended: its position is not told any more.
    pub(super) fn forget_position(&mut self, slot: Slot, epoch: u64) {
        let Some(positions) = self.positions.get_mut(&slot) else { return };
        let Some(at) = positions.iter().position(|(known, _)| *known == epoch) else { return };
        positions.swap_remove(at);
        positions.shrink_to_fit();
        self.events.give(POSITION_BYTES);
    }

    fn put_positions(&self, slot: Slot, out: &mut Vec<u8>) {
        let positions = self.positions.get(&slot).map_or(&[][..], |positions| positions.as_slice());
        format::sse_id(positions.iter().copied(), out);
    }

    /// Makes each event name the positions of all topics of the connection, which begins with these
    /// positions. `false` if the budget has no room for them.
    pub(super) fn begin_positions(&mut self, slot: Slot, mut positions: Vec<(u64, u64)>) -> bool {
        let has_room = self.events.take(bytes_of_positions(positions.len()));
        if has_room {
            positions.shrink_to_fit();
            self.positions.insert(slot, positions);
        }
        has_room
    }

    /// Whether the connection's events name the positions of all its topics.
    pub(super) fn tells_positions(&self, slot: Slot) -> bool {
        !self.positions.is_empty() && self.positions.contains_key(&slot)
    }

    /// Forgets the positions of a connection that ends.
    pub(super) fn forget_positions(&mut self, slot: Slot) {
        if self.format(slot) == Format::Sse
            && let Some(positions) = self.positions.remove(&slot)
        {
            self.events.give(bytes_of_positions(positions.len()));
        }
    }

    /// Gives a sign of life to a peer that sends none itself, or asks the peer for one.
    ///
    /// If something waits, neither helps, because it would stand behind that. Then the shard checks
    /// whether the socket takes the waiting bytes.
    pub(super) fn beat(&mut self, slot: Slot) {
        let format = self.format(slot);
        if self.table[slot].outbox.is_some() {
            return self.beat_behind(slot);
        }
        let now = self.tick();
        let entry = &mut self.table[slot];
        match format {
            Format::Stream => return,
            Format::WsProtobuf | Format::WsJson => {
                entry.flags.beat = Beat::Asked;
                entry.leave_time_to_answer(now);
                let mut ping = Vec::with_capacity(2);
                ws::put_frame_head(ws::Opcode::Ping, 0, &mut ping);
                self.send_formed(slot, &ping);
            }
            // The kernel notices when the reader has gone: it gives up if sent bytes stay
            // unacknowledged.
            Format::Sse => {
                entry.heard_at = now;
                self.send_formed(slot, SSE_COMMENT);
            }
        }
        self.stats.beats.add(1);
    }

    /// The same while something waits. If the socket has taken nothing between two beats, the
    /// connection is closed. It may have too few waiting bytes to be stalled.
    fn beat_behind(&mut self, slot: Slot) {
        let last_beat = self.table[slot].heard_at;
        let has_waited = self.table[slot].flags.beat == Beat::Waiting;
        if has_waited && self.has_taken_nothing_since(slot, last_beat) {
            // The socket may take bytes now; the kernel has not been asked yet.
            self.flush(slot);
            if self.has_taken_nothing_since(slot, last_beat) {
                return self.close(slot, CloseReason::Stalled);
            }
        }
        let now = self.tick();
        let entry = &mut self.table[slot];
        entry.heard_at = now;
        if entry.outbox.is_some() {
            entry.flags.beat = Beat::Waiting;
        }
    }

    /// Whether something waits for an open connection whose socket has taken nothing since `since`.
    fn has_taken_nothing_since(&self, slot: Slot, since: Tick) -> bool {
        let entry = &self.table[slot];
        let outbox = entry.outbox.as_ref().filter(|_| entry.state == State::Open);
        outbox.is_some_and(|outbox| Tick::at(self.started, outbox.taken_at) < since)
    }
}

/// A line that readers of events ignore (WHATWG HTML, section 9.2.6).
const SSE_COMMENT: &[u8] = b":\n\n";
/// Two positions and the bytes around them.
const TAIL_BYTES: usize = 64;
/// An epoch and the offset in its topic.
const POSITION_BYTES: usize = size_of::<(u64, u64)>();

/// The bytes that the positions of a connection occupy, with the room that the map leaves free.
pub(super) const fn bytes_of_positions(count: usize) -> usize {
    64 + count * POSITION_BYTES
}
