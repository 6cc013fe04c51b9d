//! Watches the state of the store and its cache, by regular questions and by the results of
//! requests.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use weir_store::{Error, QueueCounts};

use crate::core::state::SharedState;
use crate::observe::readiness::{Part, PartState};
use crate::provisioning::device_store::DeviceStore;

/// Watches the store until it is dropped.
pub(crate) async fn watch_store(shared: Arc<SharedState>) {
    let mut watch = Watch::default();
    loop {
        if let Some(devices) = &shared.device_store {
            watch.look(&shared, devices).await;
        }
        shared.readiness.set_threads_ended(shared.counters().udp.threads_ended());
        sleep(LOOK_INTERVAL).await;
    }
}

/// The state at the last look.
#[derive(Default)]
struct Watch {
    asked_at: Option<Instant>,
    /// Failed batches of issues and of checks so far.
    failed: [u64; 2],
    /// The time and text of the last damage that a batch met.
    damage: Option<(Instant, String)>,
    /// The store or the cache had a problem.
    has_trouble: bool,
}

impl Watch {
    /// Asks the store if that is due: every few seconds, and at once after a failure.
    async fn look(&mut self, shared: &SharedState, devices: &DeviceStore) {
        let now = Instant::now();
        let counts = devices.counts();
        let queues = [counts.issues, counts.checks];
        let failed = queues.map(|queue| queue.failed);
        let has_failed = std::mem::replace(&mut self.failed, failed) != failed;
        if has_failed && let Some(Error::Damaged(text)) = devices.last_error() {
            self.damage = Some((now, text));
        }
        let is_due = self.asked_at.is_none_or(|at| now.duration_since(at) >= ASK_INTERVAL);
        if !(is_due || has_failed || self.has_trouble) {
            return;
        }
        self.asked_at = Some(now);
        let (probed, pinged) = tokio::join!(devices.probe(), devices.ping_cache());
        let cache = match pinged {
            Some(Err(error)) => (PartState::Degraded, Some(error.to_string())),
            Some(Ok(())) | None => (PartState::Ok, None),
        };
        self.has_trouble = cache.0 != PartState::Ok;
        shared.readiness.set(Part::Cache, cache.0, cache.1);
        if let Some((state, cause)) = self.judge(probed, &queues, devices) {
            self.has_trouble |= state != PartState::Ok;
            shared.readiness.set(Part::Store, state, cause);
        }
    }

    /// The state of the store; `None` if it is unchanged.
    fn judge(
        &self,
        probed: Result<u64, Error>,
        queues: &[QueueCounts; 2],
        devices: &DeviceStore,
    ) -> Option<(PartState, Option<String>)> {
        match probed {
            // The store works as fast as it can.
            Err(Error::Overloaded(_)) => return None,
            Err(error) => return Some((PartState::Failed, Some(error.to_string()))),
            Ok(_) => {}
        }
        let Some((at, text)) = &self.damage else {
            return Some(match devices.missing_key_file() {
                None => (PartState::Ok, None),
                Some(path) => (PartState::Degraded, Some(key_file_is_gone(path))),
            });
        };
        // One damaged record is no reason to send all devices away; damage in every batch is.
        let is_general = queues.iter().any(|queue| queue.failed_in_a_row >= FAILED_IN_A_ROW);
        let state = if is_general && at.elapsed() < DAMAGE_COUNTS {
            PartState::Failed
        } else {
            PartState::Degraded
        };
        Some((state, Some(Error::Damaged(text.clone()).to_string())))
    }
}

fn key_file_is_gone(path: &Path) -> String {
    format!(
        "the key file {} is gone: restore it from its copy, because the store does not open without it",
        path.display()
    )
}

/// Failing requests are noticed this soon.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The probe writes a page and waits for the disk.
const ASK_INTERVAL: Duration = Duration::from_secs(5);
/// More batches in a row that meet damage than a record or two can explain.
const FAILED_IN_A_ROW: u64 = 3;
/// Without requests for this long, devices may try again.
const DAMAGE_COUNTS: Duration = Duration::from_secs(60);
