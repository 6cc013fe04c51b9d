//! Devices that another process takes over.
//!
//! Connections in their opening stay behind, and so do their pins. If one of them shall enter the
//! table of the other process after all, it is pinned there anew, with the mark at which the table
//! was exported: see [`Devices::pin_since`]. So a revocation since counts.

use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use hashbrown::HashTable;
use tokio::sync::Notify;
use weir_engine::ConnId;
use weir_engine::handover::NotUnderstood;
use weir_wire::handover::v1;

use super::revocations::Revocations;
use super::{Conns, Devices, HashKey, OrderBytes, Record, STRIPES, Stripe, stripe_of};
use crate::base::handover::{HandingOver, check_column, count, refused};
use crate::base::slab::Slab;
use crate::limits::admission::AcceptOrder;

/// Whether the devices are being handed over, and what has to wait for its end.
///
/// Limits: [`HELD_BACK_MAX`], and [`HELD_BACK_BYTES_MAX`] for messages; more are refused all the
/// same, forgotten, and counted.
#[derive(Default)]
pub(super) struct Gate {
    is_shut: AtomicBool,
    held_back: Mutex<Waiting>,
    has_come: Notify,
}

/// What has to wait.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) all: Vec<HeldBack>,
    /// Of messages.
    bytes: usize,
    /// There was no room for so many more.
    pub(crate) forgotten: u64,
}

/// What came while the devices were being handed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HeldBack {
    /// See [`Devices::revoke`].
    Revoke(Box<str>),
    /// See [`Devices::evict`].
    Evict(Box<str>, ConnId),
    /// A message from another node; `None`: for all devices.
    Deliver(Option<Box<str>>, Box<[u8]>),
}

impl Gate {
    /// Call it under the lock that the export takes.
    pub(super) fn check(&self, held_back: impl FnOnce() -> HeldBack) -> Result<(), HandingOver> {
        if !self.is_shut.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.lock().push(held_back());
        self.has_come.notify_one();
        Err(HandingOver)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.held_back.lock().expect("no panic happens under this lock")
    }
}

impl Waiting {
    fn push(&mut self, held_back: HeldBack) {
        let bytes = match &held_back {
            HeldBack::Deliver(_, message) => message.len(),
            HeldBack::Revoke(_) | HeldBack::Evict(..) => 0,
        };
        if self.all.len() < HELD_BACK_MAX && self.bytes + bytes <= HELD_BACK_BYTES_MAX {
            self.bytes += bytes;
            self.all.push(held_back);
        } else {
            self.forgotten += 1;
        }
    }

    fn is_empty(&self) -> bool {
        self.all.is_empty() && self.forgotten == 0
    }
}

impl Devices {
    /// From here on nothing is revoked or evicted here, and nothing is sent to a device, until
    /// [`Devices::resume`]. When this returns, what was sent before is in the queues of the shards.
    pub(crate) fn stand_still(&self) {
        self.gate.is_shut.store(true, Ordering::Relaxed);
        (0..STRIPES).for_each(|stripe| drop(self.lock(stripe)));
    }

    /// Keeps a message from another node until it is known who goes on; `false`: that is known.
    pub(crate) fn hold_back(&self, device: Option<&str>, message: &[u8]) -> bool {
        let held_back = || HeldBack::Deliver(device.map(Box::from), message.into());
        self.gate.check(held_back).is_err()
    }

    /// Waits for what has to be carried out by the process that has taken over.
    pub(crate) async fn held_back(&self) -> Waiting {
        loop {
            let waiting = std::mem::take(&mut *self.gate.lock());
            if !waiting.is_empty() {
                return waiting;
            }
            self.gate.has_come.notified().await;
        }
    }

    /// Whether nothing may be sent to a device. It counts within [`Devices::look_at`].
    pub(crate) fn is_still(&self) -> bool {
        self.gate.is_shut.load(Ordering::Relaxed)
    }

    /// Everything that another process needs to go on with these devices. They stand still from here
    /// on, if they did not before.
    ///
    /// The caller sees to it that no connection enters or ends any more: the shards are held, and
    /// their dispatchers have nothing left to do. Only connections in their opening pin and unpin.
    pub(crate) fn export(&self) -> v1::Devices {
        self.gate.is_shut.store(true, Ordering::Relaxed);
        let stripes = (0..STRIPES).map(|stripe| self.lock(stripe).export()).collect();
        v1::Devices { hash_key: self.hasher.export(), revoked: self.mark(), stripes }
    }

    /// What has to be carried out, by this process or the one that has taken the devices over. If
    /// it is this one, everything is as it was before [`Devices::stand_still`].
    pub(crate) fn resume(&self) -> Waiting {
        self.gate.is_shut.store(false, Ordering::Relaxed);
        // Whoever saw the gate shut has left the stripe's lock after this.
        (0..STRIPES).for_each(|stripe| drop(self.lock(stripe)));
        std::mem::take(&mut *self.gate.lock())
    }

    /// Connections that are in no record any more, and have not ended.
    pub(crate) fn leaving(&self) -> Vec<ConnId> {
        let of_stripe = |stripe| self.lock(stripe).leaving.keys().copied().collect::<Vec<_>>();
        (0..STRIPES).flat_map(of_stripe).collect()
    }

    /// Takes over the devices of another process. There were none here so far.
    pub(crate) fn import(&self, devices: v1::Devices) -> Result<(), NotUnderstood> {
        check_column("devices.stripes", devices.stripes.len(), STRIPES)?;
        self.hasher.import(&devices.hash_key)?;
        self.revoked.store(count("devices.revoked", devices.revoked)?, Ordering::SeqCst);
        let mut entered = 0;
        for (index, stripe) in devices.stripes.into_iter().enumerate() {
            let newest = stripe.revocations.last().copied().unwrap_or(stripe.forgotten);
            if newest > devices.revoked {
                return Err(refused("devices.revocations", newest));
            }
            let restored = Stripe::restore(stripe, index, &self.hasher)?;
            entered += restored.records.iter().map(|record| record.conns.len()).sum::<usize>();
            *self.lock(index) = restored;
        }
        self.connections.store(entered, Ordering::Relaxed);
        Ok(())
    }
}

impl Stripe {
    fn export(&self) -> v1::DeviceStripe {
        let mut stripe = v1::DeviceStripe { free: self.records.free(), ..Default::default() };
        for (place, record) in self.records.used() {
            if record.conns.len() == 0 {
                // It is there for its pins, which stay behind.
                stripe.free.push(place);
                continue;
            }
            stripe.ids.push_str(&record.id);
            stripe.id_bytes.push(column(record.id.len()));
            stripe.generations.push(record.generation);
            stripe.conn_counts.push(column(record.conns.len()));
            for nth in 0..record.conns.len() {
                let Some((AcceptOrder(order), conn)) = record.conns.get(nth) else { continue };
                stripe.conns.push(conn.to_u64());
                stripe.orders.push(order);
            }
            if self.due.next(place) == Some(place) {
                stripe.due.push(place);
            }
        }
        let leaving = self.leaving.iter();
        stripe.leaving = leaving
            .map(|(conn, (device, AcceptOrder(order)))| v1::LeavingConn {
                conn: conn.to_u64(),
                device: device.to_string(),
                order: *order,
            })
            .collect();
        stripe.uncounted = self.uncounted.iter().map(|conn| conn.to_u64()).collect();
        (stripe.revocations, stripe.revoked_hashes, stripe.forgotten) = self.revocations.export();
        stripe
    }

    fn restore(
        stripe: v1::DeviceStripe,
        index: usize,
        hasher: &HashKey,
    ) -> Result<Stripe, NotUnderstood> {
        let records = records_of(&stripe)?;
        let records = Slab::restore(records.into_iter(), &stripe.free)
            .ok_or_else(|| refused("devices.free", stripe.free.len() as u64))?;
        let mut restored = Stripe { records, ..Stripe::default() };
        restored.fill_index(index, hasher)?;
        for place in stripe.due {
            if restored.records.get(place).is_none() {
                return Err(refused("devices.due", place));
            }
            restored.due.set(place);
        }
        for v1::LeavingConn { conn, device, order } in stripe.leaving {
            let (conn, order) = (ConnId::from_u64(conn), checked_order(order)?);
            restored.leaving.insert(conn, (device.into(), order));
        }
        restored.uncounted = stripe.uncounted.into_iter().map(ConnId::from_u64).collect();
        check_column(
            "devices.revoked_hashes",
            stripe.revoked_hashes.len(),
            stripe.revocations.len(),
        )?;
        let (numbers, forgotten) = (stripe.revocations, stripe.forgotten);
        restored.revocations = Revocations::restore(&numbers, stripe.revoked_hashes, forgotten)
            .ok_or_else(|| refused("devices.revocations", numbers.len() as u64))?;
        Ok(restored)
    }

    fn fill_index(&mut self, index: usize, hasher: &HashKey) -> Result<(), NotUnderstood> {
        let records = &self.records;
        let hash_of = |slot: &u32| {
            let record = records.get(*slot).expect("the index names slots in use");
            hasher.hash_one(record.id.as_ref())
        };
        let mut table = HashTable::with_capacity(records.used().count());
        for (slot, record) in records.used() {
            let hash = hasher.hash_one(record.id.as_ref());
            if stripe_of(hash) != index {
                return Err(refused("devices.ids: the place of an id", slot));
            }
            let is_same =
                |other: &u32| records.get(*other).is_some_and(|other| other.id == record.id);
            if table.find(hash, is_same).is_some() {
                return Err(refused("devices.ids: the place of a repeated id", slot));
            }
            table.insert_unique(hash, slot, hash_of);
        }
        self.index = table;
        Ok(())
    }
}

impl Conns {
    fn last(&self) -> Option<(AcceptOrder, ConnId)> {
        self.get(self.len().checked_sub(1)?)
    }

    /// Adds the newest one.
    fn push(&mut self, order: AcceptOrder, conn: ConnId) {
        match self {
            Conns::None => *self = Conns::One(OrderBytes::of(order), conn),
            Conns::One(first, oldest) => {
                *self = Conns::Many(Box::new(vec![(first.unpacked(), *oldest), (order, conn)]));
            }
            Conns::Many(conns) => conns.push((order, conn)),
        }
    }
}

/// The records in the order of their places.
fn records_of(stripe: &v1::DeviceStripe) -> Result<Vec<Record>, NotUnderstood> {
    let count = stripe.id_bytes.len();
    check_column("devices.generations", stripe.generations.len(), count)?;
    check_column("devices.conn_counts", stripe.conn_counts.len(), count)?;
    check_column("devices.orders", stripe.orders.len(), stripe.conns.len())?;
    let mut ids = stripe.ids.as_str();
    let mut entries = stripe.orders.iter().zip(&stripe.conns);
    let mut records = Vec::with_capacity(count);
    let columns = stripe.id_bytes.iter().zip(&stripe.generations).zip(&stripe.conn_counts);
    for ((bytes, generation), conn_count) in columns {
        let (id, rest) = ids
            .split_at_checked(*bytes as usize)
            .ok_or_else(|| refused("devices.id_bytes", *bytes))?;
        ids = rest;
        let mut conns = Conns::None;
        for nth in 0..*conn_count {
            let entry =
                entries.next().ok_or_else(|| refused("devices.conn_counts", *conn_count))?;
            let (order, conn) = (checked_order(*entry.0)?, ConnId::from_u64(*entry.1));
            if nth > 0 && conns.last().is_none_or(|(last, _)| last > order) {
                return Err(refused("devices.orders", order.0));
            }
            conns.push(order, conn);
        }
        if matches!(conns, Conns::None) {
            return Err(refused("devices.conn_counts", *conn_count));
        }
        records.push(Record { id: id.into(), conns, generation: *generation, pins: 0 });
    }
    if !ids.is_empty() || entries.next().is_some() {
        return Err(refused("devices.id_bytes: bytes that no id has", ids.len() as u64));
    }
    Ok(records)
}

fn checked_order(order: u64) -> Result<AcceptOrder, NotUnderstood> {
    let order = AcceptOrder(order);
    match OrderBytes::of(order).unpacked() == order {
        true => Ok(order),
        false => Err(refused("devices.orders", order.0)),
    }
}

fn column(number: usize) -> u32 {
    u32::try_from(number).expect("a device has less than four billion of anything")
}

/// More than a second's worth of revocations.
const HELD_BACK_MAX: usize = 1 << 16;
const HELD_BACK_BYTES_MAX: usize = 16 << 20;

#[cfg(test)]
mod tests;
