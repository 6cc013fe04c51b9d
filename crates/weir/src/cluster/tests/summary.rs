//! What runs have done.

use std::fmt;

use super::clients::Told;
use super::run::Fault;

/// What was done.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Summary {
    pub(super) sum: u64,
    pub(super) events: u64,
    pub(super) virtual_secs: u64,
    pub(super) published: u64,
    pub(super) accepted: u64,
    pub(super) delivered: u64,
    pub(super) told: Told,
    /// Parts of resumes that came from the broker.
    pub(super) resume_reads: u64,
    /// Places where messages were passed over that had expired, or been replaced.
    pub(super) jumps: u64,
    pub(super) faults: [u64; Fault::ALL.len()],
}

impl Summary {
    pub(super) fn add(&mut self, other: &Summary) {
        self.events += other.events;
        self.virtual_secs += other.virtual_secs;
        self.published += other.published;
        self.accepted += other.accepted;
        self.delivered += other.delivered;
        self.told.add(&other.told);
        self.resume_reads += other.resume_reads;
        self.jumps += other.jumps;
        for (sum, count) in self.faults.iter_mut().zip(other.faults) {
            *sum += count;
        }
    }
}

impl Told {
    fn add(&mut self, other: &Told) {
        self.subscribed += other.subscribed;
        self.recovered += other.recovered;
        self.not_recovered += other.not_recovered;
        self.notices += other.notices;
        self.gaps += other.gaps;
        self.fell_behind += other.fell_behind;
        self.refused += other.refused;
        self.present += other.present;
        self.missed += other.missed;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} events, {} s of virtual time", self.events, self.virtual_secs)?;
        let (published, accepted) = (self.published, self.accepted);
        writeln!(f, "{published} published, {accepted} accepted, {} delivered", self.delivered)?;
        let (reads, jumps) = (self.resume_reads, self.jumps);
        writeln!(f, "{:?}, {reads} parts from the broker, {jumps} jumps", self.told)?;
        Fault::ALL
            .iter()
            .zip(self.faults)
            .try_for_each(|(fault, count)| writeln!(f, "  fault {fault:?}: {count}"))
    }
}
