//! Drains: connections are closed one after the other, spread evenly over a time.

use std::time::Duration;

use weir_wire::CloseReason;

use super::Shard;
use crate::command::{Drain, DrainWhat, Front, Report};
use crate::net::Net;
use crate::slot::Slot;
use crate::table::State;
use crate::time::{Nanos, TICK};

/// Entries that a turn looks at: some 0.2 ms.
const ENTRIES_PER_TURN: u32 = 4096;

/// Connections that a turn closes: some 2 ms, so that a ping never waits longer behind a drain.
const CLOSES_PER_TURN: u32 = 128;

/// A drain that runs, or one that keeps closing what is adopted.
///
/// Shape: a cursor over the table, and counts; nothing is kept for a connection.
/// Cost: a turn looks at [`ENTRIES_PER_TURN`] entries at most, until all that are due are closed.
pub(super) struct Draining {
    drain: Drain,
    began: Nanos,
    nanos: u64,
    /// Only connections that were welcomed before this number are chosen, unless all are.
    before: u32,
    /// The number of connections to close, and how many of them the cursor has closed.
    count: u64,
    closed: u64,
    /// Index of the next slot, and of the last one that had a connection at the beginning.
    cursor: u32,
    end: u32,
    /// Connections in front of the cursor from which to choose, and those that this pass has left.
    candidates: u64,
    left: u64,
    step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The cursor walks over the table.
    Closing,
    /// All are told. Their sockets linger.
    Closed,
    /// The front has been told.
    Over,
}

impl Draining {
    fn new(drain: Drain, open: u64, (end, before): (u32, u32), now: Nanos) -> Draining {
        let count = match drain.what {
            DrainWhat::All => open,
            DrainWhat::Count(count) => count.min(open),
        };
        Draining {
            drain,
            began: now,
            nanos: u64::try_from(drain.over.as_nanos()).unwrap_or(u64::MAX),
            before,
            count,
            closed: 0,
            cursor: 0,
            end,
            candidates: open,
            left: 0,
            step: Step::Closing,
        }
    }

    pub(super) fn retry_after_ms(&self) -> (u32, u32) {
        self.drain.retry_after_ms
    }

    fn closes_all(&self) -> bool {
        self.drain.what == DrainWhat::All
    }

    /// How long the shard may sleep until the drain goes on; `None`: it has nothing to do.
    pub(super) fn patience(&self, now: Nanos) -> Option<Duration> {
        match self.step {
            Step::Closing if self.is_behind(now) => Some(Duration::ZERO),
            Step::Closing | Step::Closed => Some(TICK),
            Step::Over => None,
        }
    }

    /// Whether more connections are due at this moment.
    fn is_behind(&self, now: Nanos) -> bool {
        let elapsed = u64::try_from(now.since(self.began).as_nanos()).unwrap_or(u64::MAX);
        if elapsed >= self.nanos || self.closed >= self.count {
            return true;
        }
        let due = u128::from(self.count) * u128::from(elapsed);
        u128::from(self.closed) < due.div_ceil(u128::from(self.nanos))
    }

    /// Whether to close a connection at the cursor.
    ///
    /// Every choice of the same size is equally likely, and the whole count is closed at the end of
    /// the pass (Knuth, The Art of Computer Programming, volume 2, 3.4.2, algorithm S).
    fn chooses(&mut self, random: &mut u64) -> bool {
        let wanted = self.count.saturating_sub(self.closed);
        let is_chosen = self.closes_all() || draw(random, self.candidates.max(1)) < wanted;
        self.candidates = self.candidates.saturating_sub(1);
        if is_chosen {
            self.closed += 1;
        } else {
            self.left += 1;
        }
        is_chosen
    }

    /// Begins another pass where connections that ended by themselves have left the count short.
    fn end_pass(&mut self) {
        let is_short = self.closed < self.count && self.left > 0;
        if self.closes_all() || !is_short {
            self.step = Step::Closed;
            return;
        }
        (self.cursor, self.candidates, self.left) = (0, self.left, 0);
    }
}

impl<N: Net, F: Front> Shard<N, F> {
    pub(super) fn begin_drain(&mut self, drain: Drain) {
        if drain.number <= self.drains {
            return;
        }
        self.drains = drain.number;
        self.random = drain.seed;
        let table = (self.table.slots(), self.table.welcomes());
        let open = self.stats.connections.get();
        self.draining = Some(Draining::new(drain, open, table, self.now));
    }

    pub(super) fn end_drain(&mut self, number: u32) {
        self.drains = self.drains.max(number);
        if self.draining.as_ref().is_some_and(|draining| draining.drain.number <= number) {
            self.draining = None;
        }
    }

    /// Whether a connection that is adopted now is closed at once.
    pub(super) fn closes_newcomers(&self) -> bool {
        self.draining.as_ref().is_some_and(Draining::closes_all)
    }

    /// Closes the connections whose time has come, and tells the front when the drain is over.
    pub(super) fn go_on_draining(&mut self) {
        let mut closes = 0;
        for _ in 0..ENTRIES_PER_TURN {
            if closes >= CLOSES_PER_TURN {
                break;
            }
            match self.next_of_drain() {
                Next::Close(slot) => {
                    self.close(slot, CloseReason::Draining);
                    closes += 1;
                }
                Next::Look => {}
                Next::Wait => break,
            }
        }
        let is_empty = self.table.in_use() == 0;
        let Some(draining) = &mut self.draining else { return };
        if draining.step != Step::Closed || draining.closes_all() && !is_empty {
            return;
        }
        draining.step = Step::Over;
        let number = draining.drain.number;
        if !draining.closes_all() {
            self.draining = None;
        }
        self.report(Report::Drained { number }, false);
    }

    fn next_of_drain(&mut self) -> Next {
        let Some(draining) = &mut self.draining else { return Next::Wait };
        if draining.step != Step::Closing || !draining.is_behind(self.now) {
            return Next::Wait;
        }
        let is_enough = !draining.closes_all() && draining.closed >= draining.count;
        if is_enough || draining.cursor >= draining.end {
            draining.end_pass();
            return Next::Look;
        }
        let slot = Slot::at(draining.cursor);
        draining.cursor += 1;
        let may_close = match draining.drain.what {
            DrainWhat::All => self.table[slot].state == State::Open,
            DrainWhat::Count(_) => self.table.is_welcomed_before(slot, draining.before),
        };
        if may_close && draining.chooses(&mut self.random) {
            return Next::Close(slot);
        }
        Next::Look
    }
}

/// The next step of a drain.
enum Next {
    Close(Slot),
    /// The next entry is to be looked at.
    Look,
    /// No connection is due.
    Wait,
}

/// A random number below `width`, which is not 0.
pub(super) fn draw(random: &mut u64, width: u64) -> u64 {
    *random = random.wrapping_add(1);
    splitmix(*random) % width
}

/// One step of the SplitMix64 generator (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
/// Generators, 2014).
fn splitmix(state: u64) -> u64 {
    let mut mixed = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
