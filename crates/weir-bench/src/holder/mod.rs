//! The process that holds as many connections as its limit on open files permits, for little memory.
//!
//! A connection costs its socket and 12 bytes, with TLS 120 more. No epoll watches it: the kernel
//! stamps what arrives, so it does not matter when it is read. Pings are sent in turn, and answers
//! are read one tick later.

mod held;
mod opening;

use std::io::Write;
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use held::{Crowd, Due};
use opening::{Client, Opening};

use crate::clock;
use crate::peer::lines::Lines;
use crate::protocol::{HoldAnswer, HoldOrder, HoldPlan, HoldTally};

/// The state of the process.
pub(crate) struct Holder<W> {
    input: OwnedFd,
    lines: Lines,
    output: W,
    plan: Option<(HoldPlan, Client)>,
    crowd: Crowd,
    opening: Option<Opening>,
    collecting: Option<Collecting>,
    is_quiet: bool,
    /// The next tick.
    ticks_at: Duration,
}

/// A wait for messages.
struct Collecting {
    due: Due,
    until: Duration,
    /// When the next look at the connections is due.
    looks_at: Duration,
}

/// Pings are sent, and their answers read, this often.
const TICK: Duration = Duration::from_millis(100);
/// While messages are awaited, some connections are looked at this often.
const LOOK: Duration = Duration::from_millis(100);

impl<W: Write> Holder<W> {
    /// Takes orders from `input`, answers on `output`.
    pub(crate) fn new(input: OwnedFd, output: W) -> Holder<W> {
        Holder {
            input,
            lines: Lines::default(),
            output,
            plan: None,
            crowd: Crowd::default(),
            opening: None,
            collecting: None,
            is_quiet: false,
            ticks_at: Duration::ZERO,
        }
    }

    /// Works until the orders end.
    pub(crate) fn run(&mut self) -> Result<()> {
        loop {
            let is_input = self.wait()?;
            self.tick(clock::monotonic());
            self.open_more(clock::monotonic())?;
            self.collect(clock::monotonic())?;
            if is_input && !self.handle_input()? {
                return Ok(());
            }
        }
    }

    /// Waits for an order, for connections that are opened, or for the next tick. Returns whether
    /// there is input.
    fn wait(&mut self) -> Result<bool> {
        let looks_at = self.collecting.as_ref().map(|collecting| collecting.looks_at);
        let until = looks_at.into_iter().fold(self.ticks_at, Duration::min);
        let timeout = clock::timespec(until.saturating_sub(clock::monotonic()));
        let mut polled = vec![PollFd::new(&self.input, PollFlags::IN)];
        if let Some(opening) = &self.opening {
            polled.extend(opening.polled());
        }
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("poll failed"),
        }
        let ready: Vec<bool> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
        if let Some(opening) = &mut self.opening {
            opening.note_ready(&ready[1..]);
        }
        Ok(ready[0])
    }

    fn tick(&mut self, now: Duration) {
        if now < self.ticks_at {
            return;
        }
        // After a long step the missed ticks are made up for in one.
        let passed = now.saturating_sub(self.ticks_at).min(10 * TICK) + TICK;
        self.ticks_at = now + TICK;
        self.crowd.read_pongs();
        if let Some((plan, _)) = self.plan.as_ref().filter(|_| !self.is_quiet) {
            self.crowd.ping(passed.as_secs_f64() * 1000.0 / f64::from(plan.ping_ms.max(1)));
        }
    }

    fn open_more(&mut self, now: Duration) -> Result<()> {
        let Some(opening) = &mut self.opening else { return Ok(()) };
        let Some(plan) = &self.plan else { return Ok(()) };
        let error = opening.step(plan, &mut self.crowd, now).err();
        if error.is_none() && !opening.is_complete() {
            return Ok(());
        }
        self.opening = None;
        let error = error.map(|error| format!("{error:#}"));
        let (open, tls) = (self.crowd.open(), self.crowd.with_tls());
        self.answer(&HoldAnswer::Opened { open, tls, error })
    }

    fn collect(&mut self, now: Duration) -> Result<()> {
        let Some(collecting) = &mut self.collecting else { return Ok(()) };
        if now < collecting.looks_at {
            return Ok(());
        }
        let is_over = now >= collecting.until;
        let missing = self.crowd.look(&mut collecting.due, is_over);
        collecting.looks_at = clock::monotonic() + LOOK;
        if missing > 0 && !is_over {
            return Ok(());
        }
        self.collecting = None;
        let tally = HoldTally { missing, ..self.crowd.take_tally() };
        self.answer(&HoldAnswer::Collected(Box::new(tally)))
    }

    fn handle_input(&mut self) -> Result<bool> {
        let more = self.lines.fill(&self.input)?;
        while let Some(order) = self.lines.next_order()? {
            self.handle_order(order)?;
        }
        Ok(more)
    }

    fn handle_order(&mut self, order: HoldOrder) -> Result<()> {
        let now = clock::monotonic();
        match order {
            HoldOrder::Plan(plan) => {
                self.crowd = Crowd::new(plan.size);
                match Client::new(&plan) {
                    Ok(client) => self.plan = Some((*plan, client)),
                    Err(error) => {
                        return self.answer(&HoldAnswer::Failed { error: format!("{error:#}") });
                    }
                }
            }
            HoldOrder::Open { count } => {
                self.opening = Some(Opening::new(count, now));
                return Ok(());
            }
            HoldOrder::Quiet => self.is_quiet = true,
            HoldOrder::Ping => self.is_quiet = false,
            HoldOrder::Collect { next_seq, wait_ms } => {
                let due = self.crowd.due(next_seq);
                let until = now + Duration::from_millis(wait_ms);
                self.collecting = Some(Collecting { due, until, looks_at: now });
                return Ok(());
            }
            HoldOrder::Close => self.crowd.close(),
        }
        self.answer(&HoldAnswer::Done)
    }

    fn answer(&mut self, answer: &HoldAnswer) -> Result<()> {
        serde_json::to_writer(&mut self.output, answer).context("cannot answer")?;
        self.output.write_all(b"\n").context("cannot answer")?;
        self.output.flush().context("cannot answer")
    }
}
