//! The deadlines of a connection: signs of life, whole frames, and sockets that must take bytes.

use weir_wire::CloseReason;
use weir_wire::format::Format;

use super::Shard;
use crate::command::Front;
use crate::net::Net;
use crate::slot::Slot;
use crate::table::{Beat, Reading, State};
use crate::time::Tick;

/// What happens at a deadline of an open connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// The connection ends.
    End(CloseReason),
    /// The shard gives a sign of life, or asks for one.
    Beat,
    /// The shard reads again from a connection that sent too fast.
    Read,
}

impl<N: Net, F: Front> Shard<N, F> {
    /// Handles a timer of `slot`: ends the connection if a deadline has passed, or arms the next
    /// one.
    pub(super) fn check_deadlines(&mut self, slot: Slot, now: Tick) {
        let entry = &self.table[slot];
        match entry.state {
            State::Free | State::Closed => {}
            State::Closing => {
                let end = entry.heard_at.plus(self.limits.linger);
                if end <= now {
                    self.give_up_socket(slot);
                } else {
                    self.arm(slot, end);
                }
            }
            State::Open => {
                self.renew_buckets(slot);
                match self.next_deadline(slot) {
                    (at, _) if at > now => self.arm(slot, at),
                    _ => self.look_once_more(slot, now),
                }
            }
        }
    }

    /// Reads and writes once more before a missed deadline ends the connection. After a jump of the
    /// clock, or while thousands of sockets are ready, the peer may have acted without the kernel
    /// having been asked yet.
    pub(super) fn look_once_more(&mut self, slot: Slot, now: Tick) {
        let is_stuck = |end: Option<Tick>| end.is_some_and(|end| end <= now);
        if is_stuck(self.stuck_deadline(slot)) {
            self.flush(slot);
            if self.table[slot].state == State::Open && is_stuck(self.stuck_deadline(slot)) {
                return self.close(slot, CloseReason::Stalled);
            }
        }
        let has_more = self.table[slot].state == State::Open && self.read_open(slot);
        if self.table[slot].state != State::Open {
            return;
        }
        let mut next = self.next_deadline(slot);
        if next.1 == Due::Beat && next.0 <= now {
            self.beat(slot);
            if self.table[slot].state != State::Open {
                return;
            }
            next = self.next_deadline(slot);
        }
        match next {
            (at, Due::End(reason)) if at <= now && !has_more => self.close(slot, reason),
            (at, _) => self.arm(slot, at.max(now.plus(1))),
        }
    }

    /// When a connection ends that is above the high watermark, or that lags while its socket takes
    /// nothing. One tick is added, because that began within a tick.
    pub(super) fn stuck_deadline(&self, slot: Slot) -> Option<Tick> {
        let since = self.table[slot].outbox.as_ref()?.stuck_since()?;
        Some(Tick::at(self.started, since).plus(self.limits.stall.saturating_add(1)))
    }

    /// The first deadline of an open connection, and the event that is then due.
    ///
    /// While the shard does not read from a connection, the connection counts neither as silent nor
    /// as late: its bytes may have come.
    pub(super) fn next_deadline(&self, slot: Slot) -> (Tick, Due) {
        let stuck = self.stuck_deadline(slot).map(|end| (end, Due::End(CloseReason::Stalled)));
        match stuck {
            Some(stuck) if self.is_stalled(slot) => stuck,
            Some(stuck) => self.next_deadline_of_listener(slot).min(stuck),
            None => self.next_deadline_of_listener(slot),
        }
    }

    /// The same for a connection below the high watermark, whether it lags or not.
    pub(super) fn next_deadline_of_listener(&self, slot: Slot) -> (Tick, Due) {
        let entry = &self.table[slot];
        let silence = entry.heartbeat().saturating_mul(2);
        let silent = Due::End(CloseReason::HeartbeatMissed);
        if entry.flags.reading == Reading::Paused {
            return (self.reading_due(slot), Due::Read);
        }
        if entry.flags.is_held_back() || !entry.flags.welcomed {
            return (self.tick().plus(silence), silent);
        }
        let next = match entry.format() {
            Format::WsProtobuf | Format::WsJson if entry.flags.beat == Beat::Asked => {
                // Our question may still wait in the outbox.
                let due = if entry.outbox.is_some() { Due::Beat } else { silent };
                (entry.heard_at.plus(silence), due)
            }
            Format::WsProtobuf | Format::WsJson | Format::Sse => {
                (entry.heard_at.plus(entry.heartbeat()), Due::Beat)
            }
            Format::Stream => (entry.heard_at.plus(silence), silent),
        };
        let record = self.tls.get(entry.tls).and_then(|tls| tls.partial.as_ref());
        match entry.partial.iter().chain(record).map(|block| block.since).min() {
            Some(since) => {
                next.min((since.plus(self.limits.frame), Due::End(CloseReason::FrameTimeout)))
            }
            None => next,
        }
    }

    /// Arms the deadlines of a connection again when the shard reads from it again.
    pub(super) fn arm_next(&mut self, slot: Slot) {
        if self.table[slot].state == State::Open {
            let (at, _) = self.next_deadline(slot);
            self.arm(slot, at);
        }
    }
}
