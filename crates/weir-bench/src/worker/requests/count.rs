//! The counts of requests, and the CPU time that they take.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::protocol::{HttpEnd, HttpPlan, HttpTally};
use crate::stats::Lags;
use crate::sys;

/// The counts of a load.
pub(super) struct Count {
    pub(super) tally: HttpTally,
    pub(super) lags: Lags,
    /// Start of the measured time; 0: not yet.
    pub(super) from_ns: u64,
    /// Time of the last answer.
    pub(super) progressed_ns: u64,
    /// Connections that failed since then.
    pub(super) failures: u32,
    pub(super) server_cpu: Option<Duration>,
    pub(super) helpers_cpu: Vec<Duration>,
    pub(super) client_cpu: Duration,
}

impl Count {
    pub(super) fn new() -> Count {
        Count {
            tally: HttpTally::default(),
            lags: Lags::new(),
            from_ns: 0,
            progressed_ns: 0,
            failures: 0,
            server_cpu: None,
            helpers_cpu: Vec::new(),
            client_cpu: Duration::ZERO,
        }
    }

    /// Counts an error.
    pub(super) fn note(&mut self, kind: String) {
        *self.tally.errors.entry(kind).or_insert(0) += 1;
    }

    /// Begins the measured time.
    pub(super) fn begin(&mut self, now: u64, plan: &HttpPlan) -> Result<()> {
        self.lags.reset();
        self.tally.answered = 0;
        self.tally.refused = 0;
        self.tally.received_bytes = 0;
        self.tally.sent_bytes = 0;
        self.from_ns = now;
        self.server_cpu = plan.pid.map(cpu_of).transpose()?;
        self.helpers_cpu = plan.helpers.iter().copied().map(cpu_of).collect::<Result<_>>()?;
        self.client_cpu = own_cpu()?;
        Ok(())
    }

    pub(super) fn is_over(&self, until: HttpEnd, now: u64) -> bool {
        match until {
            HttpEnd::Millis(millis) => now >= self.from_ns + millis * 1_000_000,
            HttpEnd::Answers(answers) => self.tally.answered >= answers,
        }
    }

    pub(super) fn end(&mut self, now: u64, plan: &HttpPlan) -> Result<()> {
        let spent = |after: Duration, before: Duration| {
            u64::try_from(after.saturating_sub(before).as_nanos()).unwrap_or(u64::MAX)
        };
        if let (Some(pid), Some(before)) = (plan.pid, self.server_cpu) {
            self.tally.server_cpu_ns = Some(spent(cpu_of(pid)?, before));
        }
        for (pid, before) in plan.helpers.iter().zip(&self.helpers_cpu) {
            self.tally.helpers_cpu_ns.push(spent(cpu_of(*pid)?, *before));
        }
        self.tally.client_cpu_ns = spent(own_cpu()?, self.client_cpu);
        self.tally.seconds = Duration::from_nanos(now - self.from_ns).as_secs_f64();
        Ok(())
    }
}

fn cpu_of(pid: u32) -> Result<Duration> {
    sys::process_cpu(pid).context("cannot read the CPU time of a server")
}

fn own_cpu() -> Result<Duration> {
    sys::process_cpu(std::process::id()).context("cannot read the generator's CPU time")
}
