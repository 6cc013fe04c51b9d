//! Drains in a run: first one of some connections, which may be ended, and at the end one of all.

use std::time::Duration;

use weir_wire::CloseReason;

use super::conn::Phase;
use super::driver::Run;
use crate::command::{Command, Drain, DrainWhat};

/// The numbers of the two drains.
const OF_SOME: u32 = 1;
const OF_ALL: u32 = 2;

/// Events while some connections are drained.
const EVENTS: u32 = 200;

/// Turns in which a drain must be over.
const TURNS_TO_DRAIN: u32 = 20_000;

impl Run {
    /// Drains some connections while other events happen, and perhaps ends that too early. No more
    /// may close than asked for, none that came later, and none afterwards.
    pub(super) fn drain_some(&mut self) -> Result<(), String> {
        let count = self.dice.below(30).into();
        let over = Duration::from_millis(u64::from(self.dice.below(3)) * 400);
        let before = self.drained_so_far();
        let position = self.push_drain(OF_SOME, DrainWhat::Count(count), over)?;
        let is_there = |index: &usize| {
            let conn = &self.conns[*index];
            conn.is_welcome && conn.phase == Phase::Open
        };
        let there: Vec<usize> = self.live.iter().copied().filter(is_there).collect();
        // It begins behind the messages that were queued before.
        while self.shard.shard().drains() < OF_SOME {
            self.expect_goodbyes(position);
            self.turn()?;
        }
        for _ in 0..self.dice.below(EVENTS) {
            self.event()?;
        }
        let is_ended = self.dice.chance(1 << 15);
        while is_ended && !self.push(Command::EndDrain(OF_SOME)) {
            self.turn()?;
        }
        self.await_drained_some()?;
        let closed = self.drained_so_far() - before;
        let is_left = there.iter().any(|index| self.conns[*index].phase == Phase::Open);
        if closed > count || closed < count && is_left && !is_ended {
            return Err(format!("a drain of {count} has closed {closed}; one is left: {is_left}"));
        }
        Ok(())
    }

    fn await_drained_some(&mut self) -> Result<(), String> {
        for _ in 0..TURNS_TO_DRAIN {
            // The credit of `EndDrain` returns with its report.
            let is_quiet = self.is_up_to_date && self.shard.mailbox().depth() == 0;
            if self.drains.is_some_over && is_quiet {
                return Ok(());
            }
            self.turn()?;
        }
        Err("a drain of some is not over".into())
    }

    /// Ends all connections.
    pub(super) fn drain_all(&mut self) -> Result<(), String> {
        let over = Duration::from_millis(u64::from(self.dice.below(2)) * 700);
        let position = self.push_drain(OF_ALL, DrainWhat::All, over)?;
        self.drains.is_asked_of_all = true;
        self.expect_goodbyes(position);
        self.turn()?;
        for topic in &mut self.topics {
            topic.forget();
        }
        for _ in 0..TURNS_TO_DRAIN {
            let is_quiet = self.shard.shard().is_quiet() && self.shard.mailbox().depth() == 0;
            if self.drains.is_over && self.live.is_empty() && is_quiet {
                break;
            }
            self.turn()?;
            self.take_reports()?;
            self.bury_the_dead()?;
        }
        Ok(())
    }

    pub(super) fn take_drained(&mut self, number: u32) -> Result<(), String> {
        let drains = &mut self.drains;
        match number {
            // The front may take the report late.
            OF_SOME if drains.is_asked_of_all => {}
            OF_SOME => {
                drains.is_some_over = true;
                self.expect_no_goodbyes();
            }
            OF_ALL if drains.is_asked_of_all && !drains.is_over => drains.is_over = true,
            _ => return Err(format!("drain {number} is over twice, or unasked")),
        }
        Ok(())
    }

    /// Returns the command's position in the queue.
    fn push_drain(&mut self, number: u32, what: DrainWhat, over: Duration) -> Result<u64, String> {
        let drain = Drain { number, what, over, retry_after_ms: (100, 900), seed: 5 };
        while !self.push(Command::Drain(drain)) {
            self.turn()?;
        }
        Ok(self.book.position - 1)
    }

    /// The connections that are there may be closed by the drain at this position.
    fn expect_goodbyes(&mut self, position: u64) {
        for index in &self.live {
            let conn = &mut self.conns[*index];
            if matches!(conn.phase, Phase::Ended(_)) {
                continue;
            }
            if !conn.asked.contains(&CloseReason::Draining) {
                conn.asked.push(CloseReason::Draining);
            }
            if conn.closed_behind.is_none() || !conn.asked.contains(&CloseReason::Replaced) {
                conn.closed_behind = Some(position);
            }
        }
    }

    /// The connections that are left stay.
    fn expect_no_goodbyes(&mut self) {
        for index in &self.live {
            self.conns[*index].asked.retain(|reason| *reason != CloseReason::Draining);
        }
    }

    fn drained_so_far(&self) -> u64 {
        self.shard.stats().closed[CloseReason::Draining.index()].get()
    }
}
