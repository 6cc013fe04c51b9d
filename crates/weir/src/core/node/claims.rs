//! The connections that count for their devices, on their way to the broker.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::{debug, warn};
use weir_broker::{Claim, ConnectionNumber, Name};
use weir_engine::ConnId;

use super::ClusterNode;
use crate::auth::devices::{DevicePlace, Devices};
use crate::limits::admission::{AcceptOrder, Admission};
use crate::observe::counters::{ClusterLimit, Counters};

/// What the broker is to be told of connections.
///
/// Shape: at most one change for each connection: the last one. One task sends them, in batches.
/// Limits: [`CLAIMS_MAX`] and [`DEVICES_MAX`]; beyond that all connections are claimed again, from
/// the devices' records. [`RELEASES_MAX`] releases: one more is forgotten, and its entry at the
/// broker ends with this node, or when a newer connection of the device takes its place.
pub(super) struct Claims {
    inner: Mutex<Changes>,
    wake: Notify,
}

struct Changes {
    counters: Arc<Counters>,
    claims: HashMap<ConnId, (Name, AcceptOrder), foldhash::fast::RandomState>,
    releases: HashMap<ConnId, Name, foldhash::fast::RandomState>,
    /// Devices whose connections are to be claimed again.
    again: VecDeque<Name>,
    /// All devices from there on are.
    from: Option<DevicePlace>,
}

/// What is sent at a time.
#[derive(Default)]
struct Batch {
    claims: Vec<(Name, ConnId, AcceptOrder)>,
    releases: Vec<(Name, ConnId)>,
}

impl Claims {
    pub(super) fn new(counters: &Arc<Counters>) -> Claims {
        let changes = Changes {
            counters: Arc::clone(counters),
            claims: HashMap::default(),
            releases: HashMap::default(),
            again: VecDeque::new(),
            from: None,
        };
        Claims { inner: Mutex::new(changes), wake: Notify::new() }
    }

    /// Claims and devices to be claimed again, and releases.
    pub(super) fn waiting(&self) -> (usize, usize) {
        let changes = self.lock();
        (changes.claims.len() + changes.again.len(), changes.releases.len())
    }

    /// The caller holds the device's lock.
    pub(super) fn claim(&self, device: &str, conn: ConnId, order: AcceptOrder) {
        self.lock().claim(device.into(), conn, order);
        self.wake.notify_one();
    }

    pub(super) fn release(&self, device: &str, conn: ConnId) {
        let mut changes = self.lock();
        // It may have been claimed, or be on its way.
        changes.claims.remove(&conn);
        changes.release(device.into(), conn);
        drop(changes);
        self.wake.notify_one();
    }

    pub(super) fn claim_again(&self, devices: &[Name]) {
        let mut changes = self.lock();
        if changes.again.len() + devices.len() > DEVICES_MAX {
            changes.counters.count_cluster_limit(ClusterLimit::Claims);
            changes.from = Some(DevicePlace::default());
            changes.again.clear();
        } else {
            changes.again.extend(devices.iter().cloned());
        }
        drop(changes);
        self.wake.notify_one();
    }

    pub(super) fn claim_all_again(&self) {
        let mut changes = self.lock();
        changes.from = Some(DevicePlace::default());
        changes.again.clear();
        drop(changes);
        self.wake.notify_one();
    }

    fn take(&self, devices: &Devices) -> Batch {
        self.look_up(devices);
        let mut changes = self.lock();
        let claimed: Vec<ConnId> = changes.claims.keys().take(BATCH).copied().collect();
        let released: Vec<ConnId> = changes.releases.keys().take(BATCH).copied().collect();
        let mut batch = Batch::default();
        for conn in claimed {
            if let Some((device, order)) = changes.claims.remove(&conn) {
                batch.claims.push((device, conn, order));
            }
        }
        for conn in released {
            if let Some(device) = changes.releases.remove(&conn) {
                batch.releases.push((device, conn));
            }
        }
        changes.tidy();
        batch
    }

    fn is_done(&self) -> bool {
        let Changes { claims, releases, again, from, .. } = &*self.lock();
        claims.is_empty() && releases.is_empty() && again.is_empty() && from.is_none()
    }

    /// Finds connections that are to be claimed again, if nothing else waits.
    fn look_up(&self, devices: &Devices) {
        let (again, from) = {
            let mut changes = self.lock();
            if !changes.claims.is_empty() {
                return;
            }
            let again: Vec<Name> = {
                let count = changes.again.len().min(BATCH);
                changes.again.drain(..count).collect()
            };
            let from = if again.is_empty() { changes.from.take() } else { None };
            (again, from)
        };
        let each = |id: &str, conn, order| self.lock().claim(id.into(), conn, order);
        for device in again {
            devices.look_at_counted(&device, each);
        }
        let next = from.and_then(|from| devices.walk(from, BATCH, each));
        let mut changes = self.lock();
        // All may have been wanted from the beginning meanwhile.
        changes.from = changes.from.or(next);
    }

    /// Takes back what the broker was not told.
    fn give_back(&self, batch: Batch) {
        let mut changes = self.lock();
        for (device, conn, order) in batch.claims {
            // It may have ended meanwhile.
            if !changes.releases.contains_key(&conn) {
                changes.claim(device, conn, order);
            }
        }
        for (device, conn) in batch.releases {
            changes.release(device, conn);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Changes> {
        self.inner.lock().expect("no panic happens under the lock of the claims")
    }
}

impl Changes {
    fn claim(&mut self, device: Name, conn: ConnId, order: AcceptOrder) {
        if self.claims.len() >= CLAIMS_MAX {
            self.counters.count_cluster_limit(ClusterLimit::Claims);
            self.claims.clear();
            self.from = Some(DevicePlace::default());
        }
        self.claims.insert(conn, (device, order));
    }

    fn release(&mut self, device: Name, conn: ConnId) {
        let has_room = self.releases.len() < RELEASES_MAX;
        match self.releases.entry(conn) {
            Entry::Vacant(entry) if has_room => {
                entry.insert(device);
            }
            Entry::Vacant(_) => {
                self.counters.count_cluster_limit(ClusterLimit::Releases);
                debug!(%conn, "the broker will not be told that it has ended");
            }
            Entry::Occupied(_) => {}
        }
    }

    /// Returns the memory after a rush.
    fn tidy(&mut self) {
        if self.claims.is_empty() && self.claims.capacity() > TABLE_KEPT {
            self.claims.shrink_to(0);
        }
        if self.releases.is_empty() && self.releases.capacity() > TABLE_KEPT {
            self.releases.shrink_to(0);
        }
    }
}

impl ClusterNode {
    /// Sends claims and releases until the gateway ends.
    pub(super) async fn run_claims(&self, devices: &Devices, admission: &Admission) {
        let mut has_failed = false;
        loop {
            let batch = self.claims.take(devices);
            if batch.claims.is_empty() && batch.releases.is_empty() {
                if self.claims.is_done() {
                    self.claims.wake.notified().await;
                }
                continue;
            }
            let Err(error) = self.send_batch(admission, batch).await else {
                has_failed = false;
                continue;
            };
            if !std::mem::replace(&mut has_failed, true) {
                warn!(%error, "the broker does not take claims of devices; they are tried again");
            }
            sleep(RETRY_DELAY).await;
        }
    }

    /// Claims go first: a device that is claimed and released at once is not left in between.
    async fn send_batch(
        &self,
        admission: &Admission,
        mut batch: Batch,
    ) -> Result<(), weir_broker::Error> {
        let claim = |device: &Name, conn: &ConnId, age| Claim {
            device: Name::clone(device),
            connection: ConnectionNumber(conn.to_u64()),
            age,
        };
        let broker = self.cluster.broker();
        let claims = batch.claims.iter();
        let claims = claims.map(|(id, conn, order)| claim(id, conn, admission.age(*order)));
        let claims: Vec<Claim> = claims.collect();
        if !claims.is_empty()
            && let Err(error) = broker.claim(claims).await
        {
            self.claims.give_back(batch);
            return Err(error);
        }
        batch.claims.clear();
        let releases = batch.releases.iter();
        let releases: Vec<Claim> =
            releases.map(|(id, conn)| claim(id, conn, Duration::ZERO)).collect();
        if !releases.is_empty()
            && let Err(error) = broker.release(releases).await
        {
            self.claims.give_back(batch);
            return Err(error);
        }
        Ok(())
    }
}

/// Claims in one call, and releases.
const BATCH: usize = 512;
const CLAIMS_MAX: usize = 1 << 16;
const RELEASES_MAX: usize = 1 << 18;
const DEVICES_MAX: usize = 1 << 16;
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Unused entries that a table may keep.
const TABLE_KEPT: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn conn(number: usize) -> ConnId {
        ConnId::from_u64(number as u64)
    }

    #[test]
    fn what_waits_is_bounded_and_no_claim_is_forgotten() {
        let counters = Arc::<Counters>::default();
        let claims = Claims::new(&counters);
        for number in 0..CLAIMS_MAX {
            claims.claim("d", conn(number), AcceptOrder(0));
        }
        assert_eq!((claims.waiting(), claims.lock().from), ((CLAIMS_MAX, 0), None));
        claims.claim("d", conn(CLAIMS_MAX), AcceptOrder(0));
        assert_eq!(claims.waiting(), (1, 0));
        assert!(claims.lock().from.is_some(), "all are claimed from their records");
        let devices: Vec<Name> = (0..DEVICES_MAX).map(|_| "d".into()).collect();
        claims.claim_again(&devices);
        assert_eq!(claims.waiting(), (1 + DEVICES_MAX, 0));
        claims.claim_again(&devices[..1]);
        assert_eq!(claims.waiting(), (1, 0));
        for number in 0..=RELEASES_MAX {
            claims.release("d", conn(number));
        }
        assert_eq!(claims.waiting(), (0, RELEASES_MAX));
        let reached = [ClusterLimit::Claims, ClusterLimit::Releases]
            .map(|limit| counters.cluster_limits(limit));
        assert_eq!(reached, [2, 1]);
    }
}
