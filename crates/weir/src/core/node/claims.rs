//! The connections of devices, on their way to the broker.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::{debug, warn};
use weir_broker::{Claim, ConnectionNumber, Name};
use weir_engine::{ConnId, DeviceRef};

use super::ClusterNode;
use crate::auth::devices::{DevicePlace, Devices, Entered};
use crate::limits::admission::{AcceptOrder, Admission};
use crate::observe::counters::{ClusterLimit, Counters};

/// What the broker is to be told of connections.
///
/// New connections wait in a queue. Where it is full, and where connections are to be claimed
/// again, the device is marked in its record: see [`Devices::mark_due`]. A walk over the table of
/// devices finds the marks. So each claim is made, and none because another one had no room.
///
/// Shape: one task sends, in batches, and takes a part of each batch from the marks.
/// Limits: [`ENTERED_MAX`] connections in the queue, and a mark for each device: a bit.
/// [`RELEASES_MAX`] releases: one more is forgotten, and its entry at the broker ends with this
/// node, or when a newer connection of the device takes its place.
pub(super) struct Claims {
    inner: Mutex<Changes>,
    wake: Notify,
}

struct Changes {
    counters: Arc<Counters>,
    /// Connections that have entered their devices' records. They may have ended since.
    entered: VecDeque<(DeviceRef, ConnId)>,
    releases: HashMap<ConnId, Name, foldhash::fast::RandomState>,
    /// What the broker was last told, or is being told, beside the releases below.
    claiming: Vec<(DeviceRef, ConnId)>,
    releasing: Vec<(Name, ConnId)>,
}

/// Claims and releases of which the broker may not have heard.
pub(super) type Untold = (Vec<(DeviceRef, ConnId)>, Vec<(Name, ConnId)>);

/// What is sent at a time.
#[derive(Default)]
pub(super) struct Batch {
    claims: Vec<Due>,
    releases: Vec<(Name, ConnId)>,
}

/// A connection that is to be claimed.
struct Due {
    id: Name,
    device: DeviceRef,
    conn: ConnId,
    order: AcceptOrder,
    is_counted: bool,
}

impl Claims {
    pub(super) fn new(counters: &Arc<Counters>) -> Claims {
        let changes = Changes {
            counters: Arc::clone(counters),
            entered: VecDeque::new(),
            releases: HashMap::default(),
            claiming: Vec::new(),
            releasing: Vec::new(),
        };
        Claims { inner: Mutex::new(changes), wake: Notify::new() }
    }

    /// Connections and marked devices that are to be claimed, and releases.
    pub(super) fn waiting(&self, devices: &Devices) -> (usize, usize) {
        let due = devices.due_count();
        let changes = self.lock();
        (changes.entered.len() + due, changes.releases.len())
    }

    /// Claims a connection that has entered its device's record.
    pub(super) fn claim(&self, devices: &Devices, device: DeviceRef, conn: ConnId) {
        let has_room = {
            let mut changes = self.lock();
            let has_room = changes.entered.len() < ENTERED_MAX;
            if has_room {
                changes.entered.push_back((device, conn));
            } else {
                changes.counters.count_cluster_limit(ClusterLimit::Claims);
            }
            has_room
        };
        if !has_room {
            devices.mark_due(device, conn);
        }
        self.wake.notify_one();
    }

    /// Releases a connection that is in no record any more.
    pub(super) fn release(&self, device: &str, conn: ConnId) {
        self.lock().release(device.into(), conn);
        self.wake.notify_one();
    }

    pub(super) fn claim_again(&self, devices: &Devices, ids: &[Name]) {
        ids.iter().for_each(|id| devices.mark_due_by_id(id));
        self.wake.notify_one();
    }

    pub(super) fn claim_all_again(&self, devices: &Devices) {
        // The devices of these are marked too.
        self.lock().entered = VecDeque::new();
        devices.mark_all_due();
        self.wake.notify_one();
    }

    /// Takes a batch. A connection is claimed only if it is in its device's record now, so that no
    /// claim comes after the release.
    pub(super) fn take(&self, devices: &Devices, place: &mut DevicePlace) -> Batch {
        let mut batch = Batch::default();
        // The walk goes on however many connections come.
        let for_walk = if devices.due_count() == 0 { 0 } else { WALK_PART };
        let entered: Vec<_> = {
            let mut changes = self.lock();
            let count = changes.entered.len().min(BATCH - for_walk);
            changes.entered.drain(..count).collect()
        };
        let mut each = |entered: Entered<'_>| batch.claims.push(entered.into());
        for (device, conn) in &entered {
            devices.look_at_entered(*device, *conn, &mut each);
        }
        devices.take_due(place, BATCH - entered.len(), each);
        let mut changes = self.lock();
        let released: Vec<ConnId> = changes.releases.keys().take(BATCH).copied().collect();
        for conn in released {
            if let Some(device) = changes.releases.remove(&conn) {
                batch.releases.push((device, conn));
            }
        }
        changes.claiming = batch.claims.iter().map(|due| (due.device, due.conn)).collect();
        changes.releasing.clone_from(&batch.releases);
        changes.tidy();
        batch
    }

    /// What the broker is to be told, or may not have been told yet: claims and releases. A claim
    /// or a release that it has heard of does no harm when it hears of it again.
    pub(super) fn untold(&self) -> Untold {
        let changes = self.lock();
        let claims = changes.claiming.iter().chain(&changes.entered).copied().collect();
        let waiting = changes.releases.iter().map(|(conn, device)| (device.clone(), *conn));
        (claims, changes.releasing.iter().cloned().chain(waiting).collect())
    }

    /// Goes on with what another process was to tell. Nothing was claimed here so far.
    pub(super) fn go_on(&self, devices: &Devices, (claims, releases): Untold) {
        for (device, conn) in claims {
            self.claim(devices, device, conn);
        }
        for (device, conn) in releases {
            self.release(&device, conn);
        }
    }

    fn is_done(&self, devices: &Devices) -> bool {
        self.waiting(devices) == (0, 0)
    }

    /// Takes back what the broker was not told.
    fn give_back(&self, devices: &Devices, claims: &[Due], releases: Vec<(Name, ConnId)>) {
        claims.iter().for_each(|due| devices.mark_due(due.device, due.conn));
        let mut changes = self.lock();
        for (device, conn) in releases {
            changes.release(device, conn);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Changes> {
        self.inner.lock().expect("no panic happens under the lock of the claims")
    }
}

impl Changes {
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
        if self.entered.is_empty() && self.entered.capacity() > TABLE_KEPT {
            self.entered.shrink_to(0);
        }
        if self.releases.is_empty() && self.releases.capacity() > TABLE_KEPT {
            self.releases.shrink_to(0);
        }
    }
}

impl From<Entered<'_>> for Due {
    fn from(entered: Entered<'_>) -> Due {
        let Entered { id, device, conn, order, is_counted } = entered;
        Due { id: id.into(), device, conn, order, is_counted }
    }
}

impl ClusterNode {
    /// Sends claims and releases until the gateway ends.
    pub(super) async fn run_claims(&self, devices: &Devices, admission: &Admission) {
        let (mut place, mut has_failed) = (DevicePlace::default(), false);
        loop {
            let batch = self.claims.take(devices, &mut place);
            if batch.claims.is_empty() && batch.releases.is_empty() {
                if self.claims.is_done(devices) {
                    self.claims.wake.notified().await;
                }
                continue;
            }
            let turn = self.cluster.turns().take().await;
            let sent = self.send_batch(devices, admission, batch).await;
            drop(turn);
            let Err(error) = sent else {
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
        devices: &Devices,
        admission: &Admission,
        batch: Batch,
    ) -> Result<(), weir_broker::Error> {
        let claim = |(device, conn): (&Name, &ConnId), age, is_counted| Claim {
            device: Name::clone(device),
            connection: ConnectionNumber(conn.to_u64()),
            age,
            is_counted,
        };
        let broker = self.cluster.broker();
        let Batch { claims, releases } = batch;
        let mut left = &claims[..];
        // A device may have several connections.
        while !left.is_empty() {
            let (part, rest) = left.split_at(left.len().min(BATCH));
            let part = part
                .iter()
                .map(|due| claim((&due.id, &due.conn), admission.age(due.order), due.is_counted));
            if let Err(error) = broker.claim(part.collect()).await {
                self.claims.give_back(devices, left, releases);
                return Err(error);
            }
            left = rest;
        }
        let released = releases.iter();
        let released: Vec<Claim> =
            released.map(|(id, conn)| claim((id, conn), Duration::ZERO, true)).collect();
        if !released.is_empty()
            && let Err(error) = broker.release(released).await
        {
            self.claims.give_back(devices, &[], releases);
            return Err(error);
        }
        Ok(())
    }
}

/// Claims in one call, and releases.
const BATCH: usize = 512;
/// What the marks have of it at least.
const WALK_PART: usize = BATCH / 4;
const ENTERED_MAX: usize = 1 << 16;
const RELEASES_MAX: usize = 1 << 18;
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Unused entries that a table may keep.
const TABLE_KEPT: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    /// Devices with a connection each, and the claims of a node.
    struct Rig {
        devices: Arc<Devices>,
        claims: Claims,
        counters: Arc<Counters>,
        place: DevicePlace,
        next: u64,
    }

    impl Rig {
        fn new() -> Rig {
            let counters = Arc::<Counters>::default();
            let (devices, claims) = (Devices::new(1), Claims::new(&counters));
            Rig { devices, claims, counters, place: DevicePlace::default(), next: 0 }
        }

        /// Devices whose connections enter their records.
        fn enter(&mut self, count: u64) -> Vec<(DeviceRef, ConnId)> {
            let numbers = self.next..self.next + count;
            self.next += count;
            let enter = |number| {
                let (pin, conn) =
                    (self.devices.pin(&format!("d{number}")), ConnId::from_u64(number));
                self.devices.enter(&pin, (AcceptOrder(number), conn), true, || ()).unwrap();
                (pin.device(), conn)
            };
            numbers.map(enter).collect()
        }

        fn claim(&self, entered: &[(DeviceRef, ConnId)]) {
            for (device, conn) in entered {
                self.claims.claim(&self.devices, *device, *conn);
            }
        }

        fn take(&mut self) -> Batch {
            self.claims.take(&self.devices, &mut self.place)
        }

        /// The numbers of all that is claimed until nothing waits.
        fn take_all(&mut self) -> Vec<u64> {
            let mut taken = Vec::new();
            while !self.claims.is_done(&self.devices) {
                let batch = self.take();
                assert!(batch.claims.len() <= BATCH);
                taken.extend(batch.claims.iter().map(|due| due.conn.to_u64()));
            }
            taken.sort_unstable();
            taken
        }

        fn waiting(&self) -> (usize, usize) {
            self.claims.waiting(&self.devices)
        }
    }

    #[test]
    fn each_connection_is_claimed_once_however_many_wait() {
        let mut rig = Rig::new();
        let (count, beyond) = (ENTERED_MAX as u64 + 5_000, 5_000);
        let entered = rig.enter(count);
        rig.claim(&entered);
        assert_eq!(rig.waiting(), (ENTERED_MAX + 5_000, 0));
        assert_eq!(rig.claims.lock().entered.len(), ENTERED_MAX);
        assert_eq!(rig.counters.cluster_limits(ClusterLimit::Claims), beyond);
        assert!(rig.take_all().into_iter().eq(0..count));
        assert_eq!(rig.waiting(), (0, 0));
        // What was claimed is claimed again only if that is asked for.
        let ids = ["d7".into(), "never seen".into(), "d9".into(), "d7".into()];
        rig.claims.claim_again(&rig.devices, &ids);
        assert_eq!(rig.take_all(), [7, 9]);
        let more = rig.enter(10);
        rig.claim(&more);
        rig.claims.claim_all_again(&rig.devices);
        assert!(rig.take_all().into_iter().eq(0..count + 10));
    }

    #[test]
    fn what_is_marked_has_its_turn_while_connections_come() {
        let mut rig = Rig::new();
        rig.enter(1_000);
        rig.claims.claim_all_again(&rig.devices);
        let mut marked = 0;
        for _ in 0..1_000_usize.div_ceil(WALK_PART) {
            let entered = rig.enter(BATCH as u64);
            rig.claim(&entered);
            let taken = rig.take().claims;
            assert!(taken.len() <= BATCH);
            marked += taken.iter().filter(|due| due.conn.to_u64() < 1_000).count();
        }
        assert_eq!(marked, 1_000);
    }

    #[test]
    fn what_the_broker_did_not_take_is_claimed_again_unless_it_has_ended() {
        let mut rig = Rig::new();
        let entered = rig.enter(10);
        rig.claim(&entered);
        let end = |rig: &Rig, number: usize| {
            let (device, conn) = entered[number];
            let id = rig.devices.remove(device, conn).unwrap();
            rig.claims.release(&id.0, conn);
        };
        end(&rig, 0);
        let batch = rig.take();
        assert_eq!((batch.claims.len(), batch.releases.len()), (9, 1));
        end(&rig, 1);
        let other = rig.enter(1);
        rig.claims.give_back(&rig.devices, &batch.claims, batch.releases);
        assert_eq!(rig.waiting(), (8, 2));
        rig.claim(&other);
        let batch = rig.take();
        assert_eq!((batch.claims.len(), batch.releases.len()), (9, 2));
        assert_eq!(rig.waiting(), (0, 0));
    }

    #[test]
    fn releases_that_wait_are_bounded() {
        let rig = Rig::new();
        for number in 0..=RELEASES_MAX {
            rig.claims.release("d", ConnId::from_u64(number as u64));
        }
        assert_eq!(rig.waiting(), (0, RELEASES_MAX));
        assert_eq!(rig.counters.cluster_limits(ClusterLimit::Releases), 1);
    }
}
