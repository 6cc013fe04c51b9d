//! Upgrades: how many there were, and the one by which this process has taken the place of another.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use weir_wire::handover::v1;

/// How an upgrade has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpgradeOutcome {
    /// The new process serves.
    Moved,
    /// The old process serves on.
    Failed,
}

weir_wire::named_enum! {
    /// A limit of upgrades that was reached.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum UpgradeLimit {
        /// What comes for devices from the pause on, and waits for the process that goes on: one more
        /// revocation, eviction or message of another node is not carried out.
        HeldBack = "held_back",
        /// Messages that the old process has passed on, and whose answers are missing: one more is
        /// refused with `busy`.
        Publishes = "publishes",
        /// `upgrade.linger`: a connection or call that the old process has closed at its end.
        Linger = "linger",
    }
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
///
/// What the old process counts after it has handed over is told to the new one, because nobody asks
/// the old one any more.
#[derive(Debug, Default)]
pub(crate) struct Upgrades {
    counts: [AtomicU64; UpgradeOutcome::ALL.len()],
    reached: [AtomicU64; UpgradeLimit::ALL.len()],
    /// What the process that takes over knows of `reached`.
    told: [AtomicU64; UpgradeLimit::ALL.len()],
    has_reached: Notify,
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

    /// What this limit has refused, lost or closed.
    pub(crate) fn reached(&self, limit: UpgradeLimit) -> u64 {
        self.reached[limit as usize].load(Ordering::Relaxed)
    }

    /// The limit has refused, lost or closed so much.
    pub(crate) fn reach(&self, limit: UpgradeLimit, count: u64) {
        if count > 0 {
            self.reached[limit as usize].fetch_add(count, Ordering::Relaxed);
            self.has_reached.notify_one();
        }
    }

    /// What another process knows from here on.
    pub(crate) fn export_limits(&self) -> Vec<v1::UpgradeLimit> {
        let export = |limit: UpgradeLimit| {
            let count = self.reached(limit);
            self.told[limit as usize].store(count, Ordering::Relaxed);
            told(limit, count)
        };
        UpgradeLimit::ALL.into_iter().map(export).collect()
    }

    /// Adds what another process has told.
    pub(crate) fn add_limit(&self, told: &v1::UpgradeLimit) {
        if let Some(limit) = named(told) {
            self.reach(limit, told.count);
        }
    }

    /// Waits until there is something that the other process does not know.
    pub(crate) async fn untold(&self) -> Vec<v1::UpgradeLimit> {
        loop {
            let untold = self.untold_now();
            if !untold.is_empty() {
                return untold;
            }
            self.has_reached.notified().await;
        }
    }

    /// The other process knows of this now.
    pub(crate) fn note_told(&self, told: &v1::UpgradeLimit) {
        if let Some(limit) = named(told) {
            self.told[limit as usize].fetch_add(told.count, Ordering::Relaxed);
        }
    }

    /// Whether the other process knows of everything.
    pub(crate) fn has_told_all(&self) -> bool {
        self.untold_now().is_empty()
    }

    fn untold_now(&self) -> Vec<v1::UpgradeLimit> {
        let untold = |limit: UpgradeLimit| {
            let known = self.told[limit as usize].load(Ordering::Relaxed);
            told(limit, self.reached(limit).saturating_sub(known))
        };
        UpgradeLimit::ALL.into_iter().map(untold).filter(|told| told.count > 0).collect()
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

fn told(limit: UpgradeLimit, count: u64) -> v1::UpgradeLimit {
    v1::UpgradeLimit { name: limit.name().to_owned(), count }
}

/// `None`: only another version of the program has this limit.
fn named(told: &v1::UpgradeLimit) -> Option<UpgradeLimit> {
    UpgradeLimit::ALL.into_iter().find(|limit| limit.name() == told.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_the_old_process_counts_later_is_told_to_the_new_one_once() {
        let (old, new) = (Upgrades::default(), Upgrades::default());
        old.reach(UpgradeLimit::HeldBack, 2);
        old.export_limits().iter().for_each(|limit| new.add_limit(limit));
        assert!(old.has_told_all());
        old.reach(UpgradeLimit::HeldBack, 3);
        old.reach(UpgradeLimit::Linger, 1);
        for limit in old.untold().await {
            new.add_limit(&limit);
            old.note_told(&limit);
        }
        assert!(old.has_told_all());
        new.add_limit(&v1::UpgradeLimit { name: "of another version".to_owned(), count: 9 });
        let counts = |upgrades: &Upgrades| UpgradeLimit::ALL.map(|limit| upgrades.reached(limit));
        assert_eq!((counts(&old), counts(&new)), ([5, 0, 1], [5, 0, 1]));
    }
}
