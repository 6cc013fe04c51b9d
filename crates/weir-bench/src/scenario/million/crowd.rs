//! The processes that hold the connections, directed as one.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use super::memory::MachineMemory;
use crate::clock;
use crate::peer::Peer;
use crate::process::{raise_open_files, rss_anon};
use crate::protocol::{HoldAnswer, HoldOrder, HoldPlan, HoldTally};
use crate::stats::Lags;
use crate::workers::{PER_PROCESS, end_progress, progress};

/// All processes, and the least available memory so far.
pub(super) struct Crowd {
    peers: Vec<Peer>,
    wanted: u32,
    reserve: u64,
    pub(super) available_min: u64,
}

/// What was opened.
#[derive(Debug, Default)]
pub(super) struct Ramp {
    pub(super) open: u32,
    pub(super) tls: u32,
    pub(super) took: Duration,
    /// What ended it before all were open.
    pub(super) stopped_by: Option<Stop>,
}

/// Why no more connections were opened.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The machine has no more memory to spare.
    Reserve,
    /// A connection could not be opened.
    Error(String),
}

/// Connections between two looks at the memory, for each process that connects.
const STEP: u32 = 1000;
/// Longest time of one step, and of an order that needs no waiting.
const PATIENCE: Duration = Duration::from_secs(120);
/// While something is awaited, the memory is looked at this often.
const LOOK: Duration = Duration::from_millis(200);
/// Descriptors of a process that are no connections.
const OWN_DESCRIPTORS: u64 = 64;

impl Crowd {
    /// Starts as many processes as `wanted` connections need.
    pub(super) fn start(plan: &HoldPlan, wanted: u32, reserve: u64) -> Result<Crowd> {
        let (open_files, _) = raise_open_files()?;
        let room = u32::try_from(open_files.saturating_sub(OWN_DESCRIPTORS)).unwrap_or(u32::MAX);
        let each = room.min(PER_PROCESS);
        if each == 0 {
            bail!("the limit on open files has no room for connections");
        }
        let available_min = MachineMemory::now()?.available;
        let mut crowd = Crowd { peers: Vec::new(), wanted, reserve, available_min };
        for first in (0..wanted).step_by(each as usize) {
            let mut peer = Peer::start("holder-process", &[], None)?;
            peer.say(&HoldOrder::Plan(Box::new(HoldPlan { first, ..plan.clone() })))?;
            crowd.peers.push(peer);
        }
        for index in 0..crowd.peers.len() {
            crowd.expect_done(index)?;
        }
        Ok(crowd)
    }

    pub(super) fn processes(&self) -> usize {
        self.peers.len()
    }

    /// Memory of all processes, in bytes.
    pub(super) fn rss_anon(&self) -> Result<u64> {
        self.peers.iter().map(|peer| rss_anon(peer.pid())).sum()
    }

    /// Opens connections in the first process, and closes them again.
    pub(super) fn warm_up(&mut self, count: u32) -> Result<()> {
        let count = count.min(self.share(0));
        self.peers[0].say(&HoldOrder::Open { count })?;
        let answer = self.hear(0)?;
        if !matches!(answer, HoldAnswer::Opened { error: None, .. }) {
            return Err(unexpected(&answer));
        }
        self.close_one(0)
    }

    /// Opens all connections, in `at_once` processes at a time, as long as the memory permits.
    pub(super) fn open(&mut self, at_once: usize) -> Result<Ramp> {
        let began = clock::monotonic();
        let mut ramp = Ramp::default();
        let mut opened = vec![(0, 0); self.peers.len()];
        let mut active: Vec<usize> = Vec::new();
        let mut next = 0;
        loop {
            while ramp.stopped_by.is_none() && active.len() < at_once && next < self.peers.len() {
                if !self.has_memory()? {
                    ramp.stopped_by = Some(Stop::Reserve);
                    break;
                }
                self.order_step(next, 0)?;
                active.push(next);
                next += 1;
            }
            let Some(index) = active.first().copied() else { break };
            active.rotate_left(1);
            let Some(answer) = self.peers[index].poll(LOOK / 20)? else { continue };
            let HoldAnswer::Opened { open, tls, error } = answer else {
                return Err(unexpected(&answer));
            };
            opened[index] = (open, tls);
            ramp.open = opened.iter().map(|(open, _)| open).sum();
            progress("connected", ramp.open, self.wanted);
            if let Some(error) = error {
                ramp.stopped_by.get_or_insert(Stop::Error(error));
            }
            if ramp.stopped_by.is_none() && !self.has_memory()? {
                ramp.stopped_by = Some(Stop::Reserve);
            }
            if ramp.stopped_by.is_none() && open < self.share(index) {
                self.order_step(index, open)?;
            } else {
                active.retain(|other| *other != index);
            }
        }
        end_progress();
        ramp.tls = opened.iter().map(|(_, tls)| tls).sum();
        ramp.took = clock::monotonic().saturating_sub(began);
        Ok(ramp)
    }

    fn order_step(&mut self, index: usize, open: u32) -> Result<()> {
        let count = STEP.min(self.share(index).saturating_sub(open));
        self.peers[index].say(&HoldOrder::Open { count })
    }

    /// Connections of a process.
    fn share(&self, index: usize) -> u32 {
        let processes = u32::try_from(self.peers.len()).unwrap_or(1);
        let index = u32::try_from(index).unwrap_or(0);
        let (each, more) = (self.wanted / processes, self.wanted % processes);
        each + u32::from(index < more)
    }

    /// Sends an order to all, and waits until all have carried it out.
    pub(super) fn tell_all(&mut self, order: &HoldOrder) -> Result<()> {
        self.peers.iter_mut().try_for_each(|peer| peer.say(order))?;
        (0..self.peers.len()).try_for_each(|index| self.expect_done(index))
    }

    /// Tells all to wait for messages.
    pub(super) fn expect_messages(&mut self, next_seq: u32, wait: Duration) -> Result<()> {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let order = HoldOrder::Collect { next_seq, wait_ms };
        self.peers.iter_mut().try_for_each(|peer| peer.say(&order))
    }

    /// Waits until all have the messages, or have waited for `wait`.
    pub(super) fn collect(&mut self, wait: Duration) -> Result<(HoldTally, Lags)> {
        let (mut all, mut lags) = (HoldTally::default(), Lags::new());
        let deadline = clock::monotonic() + wait + PATIENCE;
        for index in 0..self.peers.len() {
            let tally = loop {
                if !self.has_memory()? {
                    bail!("the run ends, as less memory than the reserve is available");
                }
                match self.peers[index].poll(LOOK)? {
                    Some(HoldAnswer::Collected(tally)) => break *tally,
                    Some(other) => return Err(unexpected(&other)),
                    None if clock::monotonic() > deadline => bail!("a process does not answer"),
                    None => {}
                }
            };
            lags.add(&tally.lags);
            all.delivered += tally.delivered;
            all.missing += tally.missing;
            all.wrong += tally.wrong;
            all.unstamped += tally.unstamped;
            all.closed += tally.closed;
            all.pongs += tally.pongs;
            all.errors.extend(tally.errors);
        }
        Ok((all, lags))
    }

    /// Waits for `time`, as long as the memory permits.
    pub(super) fn wait(&mut self, time: Duration) -> Result<()> {
        let until = clock::monotonic() + time;
        while clock::monotonic() < until {
            if !self.has_memory()? {
                bail!("the run ends, as less memory than the reserve is available");
            }
            clock::sleep(LOOK.min(until.saturating_sub(clock::monotonic())));
        }
        Ok(())
    }

    /// Resets all connections, one process after the other.
    pub(super) fn close(&mut self) -> Result<()> {
        (0..self.peers.len()).try_for_each(|index| self.close_one(index))
    }

    fn close_one(&mut self, index: usize) -> Result<()> {
        self.peers[index].say(&HoldOrder::Close)?;
        self.expect_done(index)
    }

    fn expect_done(&mut self, index: usize) -> Result<()> {
        let answer = self.hear(index)?;
        if matches!(answer, HoldAnswer::Done) { Ok(()) } else { Err(unexpected(&answer)) }
    }

    fn hear(&mut self, index: usize) -> Result<HoldAnswer> {
        self.peers[index].hear(PATIENCE).context("a process that holds connections")
    }

    fn has_memory(&mut self) -> Result<bool> {
        let available = MachineMemory::now()?.available;
        self.available_min = self.available_min.min(available);
        Ok(available >= self.reserve)
    }
}

fn unexpected(answer: &HoldAnswer) -> anyhow::Error {
    anyhow!("a process that holds connections said {answer:?}")
}
