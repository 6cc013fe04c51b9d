//! Upgrades: how many there were, and the one by which this process has taken the place of another.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How an upgrade has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpgradeOutcome {
    /// The new process serves.
    Moved,
    /// The old process serves on.
    Failed,
}

/// The upgrade by which this process has taken the place of another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upgraded {
    /// When this process began to serve, since 1970.
    pub at: Duration,
    /// The number of this process.
    pub pid: u32,
    /// The program of the process before this one, with its version.
    pub before: String,
    /// How long nobody has served.
    pub pause: Duration,
    /// Connections that have moved to this process, by transport.
    pub connections: Vec<(&'static str, u64)>,
    /// Connections that the process before this one has kept, by cause.
    pub stayed: Vec<(&'static str, u64)>,
}

/// Counts upgrades, those of the processes before this one included.
#[derive(Debug, Default)]
pub(crate) struct Upgrades {
    counts: [AtomicU64; UpgradeOutcome::ALL.len()],
    last: OnceLock<Upgraded>,
}

impl UpgradeOutcome {
    pub(crate) const ALL: [UpgradeOutcome; 2] = [UpgradeOutcome::Moved, UpgradeOutcome::Failed];

    pub(crate) fn name(self) -> &'static str {
        match self {
            UpgradeOutcome::Moved => "moved",
            UpgradeOutcome::Failed => "failed",
        }
    }
}

impl Upgraded {
    /// Connections of all transports that have moved.
    pub fn connection_count(&self) -> u64 {
        self.connections.iter().map(|(_, count)| count).sum()
    }
}

impl Upgrades {
    pub(crate) fn count(&self, outcome: UpgradeOutcome) -> u64 {
        self.counts[outcome as usize].load(Ordering::Relaxed)
    }

    /// Adds upgrades with this outcome.
    pub(crate) fn add(&self, outcome: UpgradeOutcome, count: u64) {
        self.counts[outcome as usize].fetch_add(count, Ordering::Relaxed);
    }

    /// This process has taken the place of another one.
    pub(crate) fn note(&self, upgraded: Upgraded) {
        self.add(UpgradeOutcome::Moved, 1);
        // It happens once.
        let _ = self.last.set(upgraded);
    }

    /// `None`: this process was started otherwise.
    pub(crate) fn last(&self) -> Option<&Upgraded> {
        self.last.get()
    }
}
