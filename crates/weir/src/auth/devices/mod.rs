//! Connected devices: the id of each device, its generation, and the handles of its connections.
//!
//! A record lives while its device is connected, or while a [`Pin`] holds it. A connection has a
//! pin from authentication until it enters the record. So a revocation in between finds the record,
//! and the new generation is still there when the connection enters.
//!
//! The record orders the handles by [`AcceptOrder`], whatever the order in which shards report
//! them. So a connection that enters late, because its shard was busy or the process was stopped,
//! never replaces a connection that its device has opened since.

mod due;
mod handover;
mod revocations;

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use hashbrown::HashTable;
use weir_engine::{ConnId, DeviceRef, Footprint, rounded, rounded_table};
use weir_wire::CloseReason;

use crate::base::handover::HandingOver;
use crate::base::hash_key::HashKey;
use crate::base::slab::Slab;
use crate::limits::admission::AcceptOrder;
pub(crate) use due::Entered;
use due::Marks;
use handover::Gate;
pub(crate) use handover::HeldBack;
use revocations::Revocations;

/// All devices.
///
/// Shape: [`STRIPES`] tables, each behind its own lock, with an index of slots by id and records in
/// chunks. A [`DeviceRef`] is slot and stripe. A device with an id of 24 bytes and one connection
/// takes 40 bytes of record, 32 of id and 6 to 12 of index: 86 bytes in all, measured with 100,000
/// devices.
/// Limits: strangers choose ids, so the index hashes with a random key from the start.
pub(crate) struct Devices {
    hasher: HashKey,
    stripes: Box<[Mutex<Stripe>]>,
    connections_per_device_max: AtomicUsize,
    /// Handles in all records.
    connections: AtomicUsize,
    /// Revocations so far.
    revoked: AtomicU64,
    gate: Gate,
}

/// Keeps a device's record, with the generation at the device's authentication.
pub(crate) struct Pin {
    devices: Arc<Devices>,
    device: DeviceRef,
    generation: u32,
}

/// The reason why a connection does not enter its device's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotEntered {
    /// The device was revoked after its authentication.
    Revoked,
    /// The device already has the most connections allowed, and all were accepted after this one.
    Replaced,
}

#[derive(Default)]
struct Stripe {
    index: HashTable<u32>,
    records: Slab<Record>,
    /// Device ids of connections that were removed from their record and have not ended yet.
    leaving: HashMap<ConnId, (Box<str>, AcceptOrder), foldhash::fast::RandomState>,
    revocations: Revocations,
    /// Connections that replace none and are replaced by none: those of services.
    uncounted: HashSet<ConnId, foldhash::fast::RandomState>,
    /// Devices of which the broker is still to be told.
    due: Marks,
}

/// A place among all devices, for [`Devices::walk`] and [`Devices::take_due`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DevicePlace {
    stripe: usize,
    slot: u32,
}

struct Record {
    id: Box<str>,
    conns: Conns,
    generation: u32,
    pins: u32,
}

/// Handles in the order in which their connections were accepted. Only a second one needs an
/// allocation, and few devices have one.
#[expect(
    clippy::box_collection,
    reason = "eight bytes inline instead of 24, for the few that need it"
)]
enum Conns {
    None,
    /// The order fits beside the tag, so it costs nothing.
    One(OrderBytes, ConnId),
    Many(Box<Vec<(AcceptOrder, ConnId)>>),
}

/// An [`AcceptOrder`] in seven bytes. They number a million connections a second for two thousand
/// years.
#[derive(Clone, Copy)]
struct OrderBytes([u8; 7]);

/// The handles of one device, oldest first.
#[derive(Clone, Copy)]
pub(crate) struct Handles<'a>(&'a Conns);

impl Devices {
    pub(crate) fn new(connections_per_device_max: usize) -> Arc<Self> {
        Arc::new(Self {
            hasher: HashKey::random(),
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
            connections_per_device_max: AtomicUsize::new(connections_per_device_max),
            connections: AtomicUsize::new(0),
            revoked: AtomicU64::new(0),
            gate: Gate::default(),
        })
    }

    /// Changes the limit for further connections. A device that has more keeps them; each new one
    /// takes the place of the oldest.
    pub(crate) fn limit(&self, connections_per_device_max: usize) {
        self.connections_per_device_max.store(connections_per_device_max, Ordering::Relaxed);
    }

    /// The current moment, for [`Devices::pin_since`].
    pub(crate) fn mark(&self) -> u64 {
        self.revoked.load(Ordering::SeqCst)
    }

    /// Finds or creates the device's record, and keeps it until the pin is dropped. It fails if the
    /// device was revoked since the mark, or if so many revocations followed that this is unknown.
    ///
    /// The caller takes the mark before it authenticates, and the pin afterwards. So a revocation
    /// in between counts.
    pub(crate) fn pin_since(self: &Arc<Self>, id: &str, mark: u64) -> Result<Pin, CloseReason> {
        let hash = self.hasher.hash_one(id);
        let stripe_index = stripe_of(hash);
        let mut stripe = self.lock(stripe_index);
        match stripe.revocations.has_since(mark, hash) {
            Some(false) => {}
            Some(true) => return Err(CloseReason::Revoked),
            None => return Err(CloseReason::StoreUnavailable),
        }
        let slot = match stripe.find(hash, id) {
            Some(slot) => slot,
            None => stripe.insert(hash, id, &self.hasher),
        };
        let record = stripe.records.get_mut(slot).expect("the index names slots in use");
        record.pins += 1;
        let device = device_ref(stripe_index, slot);
        Ok(Pin { devices: Arc::clone(self), device, generation: record.generation })
    }

    /// Enters a connection into its device's record, at the place of its order. If the device
    /// already has `connections_per_device_max`, a connection that `replaces` takes the place of
    /// the oldest one, which is returned to be closed. If the new one is itself the oldest, it does
    /// not enter.
    ///
    /// `welcome` runs under the device's lock, so no push to the device comes before it. It must
    /// not wait.
    pub(crate) fn enter(
        &self,
        pin: &Pin,
        (order, conn): (AcceptOrder, ConnId),
        replaces: bool,
        welcome: impl FnOnce(),
    ) -> Result<Option<ConnId>, NotEntered> {
        let (stripe, slot) = parts(pin.device);
        let mut stripe = self.lock(stripe);
        let record = stripe.records.get_mut(slot).expect("a pin keeps the record");
        if record.generation != pin.generation {
            return Err(NotEntered::Revoked);
        }
        let max = self.connections_per_device_max.load(Ordering::Relaxed);
        let has_to_give_way = replaces && record.conns.len() >= max;
        if has_to_give_way && record.conns.are_newer_than(order) {
            return Err(NotEntered::Replaced);
        }
        welcome();
        record.conns.insert(order, conn);
        if has_to_give_way {
            let oldest = record.conns.take_oldest();
            if let Some((order, oldest)) = oldest {
                let id = record.id.clone();
                stripe.leaving.insert(oldest, (id, order));
            }
            return Ok(oldest.map(|(_, oldest)| oldest));
        }
        if !replaces {
            stripe.uncounted.insert(conn);
        }
        self.connections.fetch_add(1, Ordering::Relaxed);
        Ok(None)
    }

    /// Removes a connection's handle, if it is still there; the last handle removes the record.
    /// Returns the device's id and the connection's order if the connection was ever entered.
    pub(crate) fn remove(
        &self,
        device: DeviceRef,
        conn: ConnId,
    ) -> Option<(Box<str>, AcceptOrder)> {
        let (stripe, slot) = parts(device);
        let mut stripe = self.lock(stripe);
        stripe.uncounted.remove(&conn);
        if let Some(left) = stripe.take_leaving(conn) {
            return Some(left);
        }
        // A replaced or revoked connection is in no record, and its slot may belong to another
        // device by now.
        let record = stripe.records.get_mut(slot)?;
        let order = record.conns.remove(conn)?;
        let id = record.id.clone();
        self.connections.fetch_sub(1, Ordering::Relaxed);
        stripe.drop_if_idle(slot, &self.hasher);
        Some((id, order))
    }

    /// Revokes a device. Connections in their opening can no longer enter; entered ones are removed
    /// and returned to be closed. `None` if no connection of the device is known.
    ///
    /// The store of its tokens must refuse the device before this call.
    ///
    /// Errors: the devices are being handed over. It is carried out afterwards, by the process that
    /// has them then: see [`Devices::resume`].
    pub(crate) fn revoke(&self, id: &str) -> Result<Option<Vec<ConnId>>, HandingOver> {
        let hash = self.hasher.hash_one(id);
        let mut stripe = self.lock(stripe_of(hash));
        self.gate.check(|| HeldBack::Revoke(id.into()))?;
        let number = self.revoked.fetch_add(1, Ordering::SeqCst) + 1;
        stripe.revocations.note(number, hash);
        let Some(slot) = stripe.find(hash, id) else { return Ok(None) };
        let record = stripe.records.get_mut(slot).expect("the index names slots in use");
        record.generation = record.generation.wrapping_add(1);
        let entries: Vec<_> = Handles(&record.conns).entries().collect();
        record.conns = Conns::None;
        let id = record.id.clone();
        let leaving = entries.iter().map(|(order, conn)| (*conn, (id.clone(), *order)));
        stripe.leaving.extend(leaving);
        let conns: Vec<ConnId> = entries.iter().map(|(_, conn)| *conn).collect();
        self.connections.fetch_sub(conns.len(), Ordering::Relaxed);
        stripe.drop_if_idle(slot, &self.hasher);
        Ok(Some(conns))
    }

    /// Takes a connection out of its device's record, because the device has newer ones at other
    /// nodes. The caller closes it. `false`: it was not there, or the devices are being handed over,
    /// as for [`Devices::revoke`].
    pub(crate) fn evict(&self, id: &str, conn: ConnId) -> bool {
        let hash = self.hasher.hash_one(id);
        let mut stripe = self.lock(stripe_of(hash));
        if self.gate.check(|| HeldBack::Evict(id.into(), conn)).is_err() {
            return false;
        }
        let Some(slot) = stripe.find(hash, id) else { return false };
        let record = stripe.records.get_mut(slot).expect("the index names slots in use");
        let Some(order) = record.conns.remove(conn) else { return false };
        let id = record.id.clone();
        stripe.leaving.insert(conn, (id, order));
        self.connections.fetch_sub(1, Ordering::Relaxed);
        stripe.drop_if_idle(slot, &self.hasher);
        true
    }

    /// Calls `each` for the ids of at least `devices_min` devices from that place on; returns the
    /// place of the next one. `None`: there is none. `each` runs under the device's lock. It must
    /// not wait.
    pub(crate) fn walk(
        &self,
        from: DevicePlace,
        devices_min: usize,
        mut each: impl FnMut(&str),
    ) -> Option<DevicePlace> {
        let (mut seen, mut from) = (0, from);
        while from.stripe < STRIPES {
            let stripe = self.lock(from.stripe);
            for slot in from.slot..stripe.records.places() {
                if seen >= devices_min {
                    return Some(DevicePlace { slot, ..from });
                }
                let Some(record) = stripe.records.get(slot) else { continue };
                seen += 1;
                each(&record.id);
            }
            from = DevicePlace { stripe: from.stripe + 1, slot: 0 };
        }
        None
    }

    /// The device's connections, oldest first; `None` if the device is unknown.
    pub(crate) fn connections_of(&self, id: &str) -> Option<Vec<ConnId>> {
        let hash = self.hasher.hash_one(id);
        let stripe = self.lock(stripe_of(hash));
        let slot = stripe.find(hash, id)?;
        stripe.records.get(slot).map(|record| Handles(&record.conns).iter().collect())
    }

    /// Calls `look` with the device's connections, oldest first, under its lock; with none if the
    /// device is unknown.
    ///
    /// A push to one of them comes after its `Welcome` and before the `Evict` of its replacement.
    /// `look` must not wait.
    pub(crate) fn look_at<T>(&self, id: &str, look: impl FnOnce(Handles<'_>) -> T) -> T {
        let hash = self.hasher.hash_one(id);
        let stripe = self.lock(stripe_of(hash));
        let record = stripe.find(hash, id).and_then(|slot| stripe.records.get(slot));
        look(Handles(record.map_or(&Conns::None, |record| &record.conns)))
    }

    /// Whether the connection is entered: not replaced, revoked or closed.
    pub(crate) fn has(&self, device: DeviceRef, conn: ConnId) -> bool {
        self.with_id_of(device, conn, |_| ()).is_some()
    }

    /// The id of a connection's device; `None` if the connection was replaced, revoked or closed.
    pub(crate) fn id_of(&self, device: DeviceRef, conn: ConnId) -> Option<String> {
        self.with_id_of(device, conn, str::to_owned)
    }

    /// Calls `look` with the id of a connection's device, without a copy; `None` as above. `look`
    /// must not wait.
    pub(crate) fn with_id_of<T>(
        &self,
        device: DeviceRef,
        conn: ConnId,
        look: impl FnOnce(&str) -> T,
    ) -> Option<T> {
        let (stripe, slot) = parts(device);
        let stripe = self.lock(stripe);
        let record = stripe.records.get(slot)?;
        record.conns.place_of(conn).is_some().then(|| look(&record.id))
    }

    /// The id of a connection's device and the connection's order; `None` as above.
    pub(crate) fn entry_of(
        &self,
        device: DeviceRef,
        conn: ConnId,
    ) -> Option<(String, AcceptOrder)> {
        let (stripe, slot) = parts(device);
        let stripe = self.lock(stripe);
        let record = stripe.records.get(slot)?;
        let (order, _) = record.conns.get(record.conns.place_of(conn)?)?;
        Some((record.id.as_ref().to_owned(), order))
    }

    /// Calls `each` for all entered connections, under their devices' locks. It must not wait.
    pub(crate) fn each_connection(&self, mut each: impl FnMut(&str, ConnId, AcceptOrder)) {
        for stripe in 0..STRIPES {
            for record in self.lock(stripe).records.iter() {
                let handles = Handles(&record.conns);
                handles.entries().for_each(|(order, conn)| each(&record.id, conn, order));
            }
        }
    }

    /// Calls `look` with the id of a pinned device, under its lock. `look` must not wait.
    pub(crate) fn with_id_of_pin<T>(&self, pin: &Pin, look: impl FnOnce(&str) -> T) -> T {
        let (stripe, slot) = parts(pin.device);
        let stripe = self.lock(stripe);
        look(&stripe.records.get(slot).expect("a pin keeps the record").id)
    }

    #[cfg(test)]
    pub(crate) fn pin(self: &Arc<Self>, id: &str) -> Pin {
        self.pin_since(id, u64::MAX).expect("nothing is revoked in the future")
    }

    /// The device records, with their index.
    ///
    /// Cost: reads each record, one stripe at a time: some 5 ns for a device.
    pub(crate) fn footprint(&self) -> Footprint {
        let mut sum = Footprint::new(0, rounded(size_of_val(&*self.stripes)));
        for stripe in 0..STRIPES {
            sum += self.lock(stripe).footprint();
        }
        sum
    }

    /// Number of records.
    pub(crate) fn device_count(&self) -> usize {
        (0..STRIPES).map(|stripe| self.lock(stripe).index.len()).sum()
    }

    /// Number of entered connections.
    pub(crate) fn connection_count(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    fn unpin(&self, device: DeviceRef) {
        let (stripe, slot) = parts(device);
        let mut stripe = self.lock(stripe);
        let record = stripe.records.get_mut(slot).expect("a pin keeps the record");
        record.pins -= 1;
        stripe.drop_if_idle(slot, &self.hasher);
    }

    fn lock(&self, stripe: usize) -> MutexGuard<'_, Stripe> {
        self.stripes[stripe].lock().expect("no panic happens under the devices' locks")
    }
}

impl Pin {
    /// The reference to the device that a shard carries.
    pub(crate) fn device(&self) -> DeviceRef {
        self.device
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.devices.unpin(self.device);
    }
}

impl Stripe {
    fn footprint(&self) -> Footprint {
        let ids = self.records.iter().map(|record| rounded(record.id.len()));
        let many = self.records.iter().map(|record| record.conns.occupied());
        let leaving_ids = self.leaving.values().map(|(id, _)| rounded(id.len()));
        let bytes = rounded(self.index.allocation_size())
            + self.records.occupied()
            + ids.chain(many).chain(leaving_ids).sum::<usize>()
            + rounded_table(
                self.leaving.capacity(),
                size_of::<(ConnId, (Box<str>, AcceptOrder))>(),
            )
            + rounded_table(self.uncounted.capacity(), size_of::<ConnId>())
            + self.revocations.occupied();
        Footprint::new(self.index.len(), bytes)
    }

    fn find(&self, hash: u64, id: &str) -> Option<u32> {
        let records = &self.records;
        let has_id = |slot: &u32| records.get(*slot).is_some_and(|record| *record.id == *id);
        self.index.find(hash, has_id).copied()
    }

    fn insert(&mut self, hash: u64, id: &str, hasher: &HashKey) -> u32 {
        let record = Record { id: id.into(), conns: Conns::None, generation: 0, pins: 0 };
        let slot = self.records.insert(record);
        let records = &self.records;
        let rehash = |slot: &u32| {
            let record = records.get(*slot).expect("the index names slots in use");
            hasher.hash_one(record.id.as_ref())
        };
        self.index.insert_unique(hash, slot, rehash);
        slot
    }

    fn take_leaving(&mut self, conn: ConnId) -> Option<(Box<str>, AcceptOrder)> {
        let left = self.leaving.remove(&conn);
        // Returns the table's memory after many connections have left.
        if self.leaving.is_empty() && self.leaving.capacity() > LEAVING_KEPT {
            self.leaving.shrink_to(0);
        }
        left
    }

    fn drop_if_idle(&mut self, slot: u32, hasher: &HashKey) {
        let Some(record) = self.records.get(slot) else { return };
        if record.pins > 0 || record.conns.len() > 0 {
            return;
        }
        let hash = hasher.hash_one(record.id.as_ref());
        if let Ok(entry) = self.index.find_entry(hash, |other| *other == slot) {
            entry.remove();
        }
        self.records.remove(slot);
        self.due.clear(slot);
    }
}

impl<'a> Handles<'a> {
    pub(crate) fn len(self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = ConnId> + 'a {
        self.entries().map(|(_, conn)| conn)
    }

    fn entries(self) -> impl Iterator<Item = (AcceptOrder, ConnId)> + 'a {
        let Handles(conns) = self;
        (0..conns.len()).filter_map(|place| conns.get(place))
    }
}

impl Conns {
    /// The bytes outside the record.
    fn occupied(&self) -> usize {
        match self {
            Conns::None | Conns::One(..) => 0,
            Conns::Many(conns) => {
                rounded(size_of::<Vec<(AcceptOrder, ConnId)>>())
                    + rounded(conns.capacity() * size_of::<(AcceptOrder, ConnId)>())
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Conns::None => 0,
            Conns::One(..) => 1,
            Conns::Many(conns) => conns.len(),
        }
    }

    fn get(&self, place: usize) -> Option<(AcceptOrder, ConnId)> {
        match self {
            Conns::One(order, conn) if place == 0 => Some((order.unpacked(), *conn)),
            Conns::None | Conns::One(..) => None,
            Conns::Many(conns) => conns.get(place).copied(),
        }
    }

    fn place_of(&self, conn: ConnId) -> Option<usize> {
        match self {
            Conns::None => None,
            Conns::One(_, own) => (*own == conn).then_some(0),
            Conns::Many(conns) => conns.iter().position(|(_, other)| *other == conn),
        }
    }

    /// Whether all were accepted after a connection of that order.
    fn are_newer_than(&self, order: AcceptOrder) -> bool {
        self.get(0).is_none_or(|(oldest, _)| oldest > order)
    }

    fn insert(&mut self, order: AcceptOrder, conn: ConnId) {
        match self {
            Conns::None => *self = Conns::One(OrderBytes::of(order), conn),
            Conns::One(other, first) => {
                let mut conns = vec![(other.unpacked(), *first), (order, conn)];
                conns.sort_unstable();
                *self = Conns::Many(Box::new(conns));
            }
            Conns::Many(conns) => {
                let place = conns.partition_point(|(other, _)| *other < order);
                conns.insert(place, (order, conn));
            }
        }
    }

    /// The order of the removed connection; `None`: it was not there.
    fn remove(&mut self, conn: ConnId) -> Option<AcceptOrder> {
        let place = self.place_of(conn)?;
        let (order, _) = self.get(place)?;
        self.remove_at(place);
        Some(order)
    }

    fn take_oldest(&mut self) -> Option<(AcceptOrder, ConnId)> {
        let oldest = self.get(0)?;
        self.remove_at(0);
        Some(oldest)
    }

    fn remove_at(&mut self, place: usize) {
        match self {
            Conns::None | Conns::One(..) => *self = Conns::None,
            Conns::Many(conns) => {
                conns.remove(place);
                if let [(order, last)] = conns[..] {
                    *self = Conns::One(OrderBytes::of(order), last);
                }
            }
        }
    }
}

impl OrderBytes {
    fn of(AcceptOrder(number): AcceptOrder) -> Self {
        let [_, bytes @ ..] = number.to_be_bytes();
        Self(bytes)
    }

    fn unpacked(self) -> AcceptOrder {
        let mut number = [0; 8];
        number[1..].copy_from_slice(&self.0);
        AcceptOrder(u64::from_be_bytes(number))
    }
}

fn stripe_of(hash: u64) -> usize {
    // The table uses the lower bits for the place and the upper seven for the tag.
    (hash >> 48) as usize % STRIPES
}

fn device_ref(stripe: usize, slot: u32) -> DeviceRef {
    let stripe = u32::try_from(stripe).expect("there are 64 stripes");
    debug_assert!(slot < u32::MAX >> STRIPE_BITS, "a stripe never holds 67 million records");
    DeviceRef(slot << STRIPE_BITS | stripe)
}

fn parts(device: DeviceRef) -> (usize, u32) {
    (device.0 as usize % STRIPES, device.0 >> STRIPE_BITS)
}

/// Enough that shards and publishers seldom meet at one lock.
const STRIPES: usize = 1 << STRIPE_BITS;
const STRIPE_BITS: u32 = 6;
/// Unused entries that a stripe's table may keep.
const LEAVING_KEPT: usize = 64;
const _: () = assert!(size_of::<Record>() == 40);

#[cfg(test)]
mod tests;
