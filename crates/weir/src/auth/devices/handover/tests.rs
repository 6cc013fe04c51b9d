//! Devices that move agree with those that stayed; damaged ones are refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use weir_engine::{DeviceRef, Nanos};
use weir_wire::{CloseReason, ProstMessage};

use super::*;
use crate::auth::devices::{NotEntered, Pin};

/// The devices that were handed over, as another process has them.
fn moved(devices: &Devices, max: usize) -> Arc<Devices> {
    let bytes = devices.export().encode_to_vec();
    let other = Devices::new(max);
    other.import(v1::Devices::decode(&*bytes).unwrap()).unwrap();
    other
}

fn conn(number: u64) -> ConnId {
    ConnId::from_u64(number)
}

/// One table of devices, and what is known of it outside.
struct Side {
    devices: Arc<Devices>,
    refs: BTreeMap<u64, DeviceRef>,
    opening: Vec<(String, u64, Pin)>,
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Entered(Result<Option<ConnId>, NotEntered>),
    Removed(Option<(Box<str>, AcceptOrder)>),
    Revoked(Option<Vec<ConnId>>),
    Evicted(bool),
    Pinned(Option<CloseReason>),
    Nothing,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    what: u8,
    which: u8,
    order: u64,
}

fn step() -> impl Strategy<Value = Step> {
    (0u8..12, 0u8..5, 0u64..1_000).prop_map(|(what, which, order)| Step { what, which, order })
}

impl Side {
    fn new(devices: Arc<Devices>) -> Side {
        Side { devices, refs: BTreeMap::new(), opening: Vec::new() }
    }

    fn run(&mut self, step: Step, number: u64, mark: u64) -> Outcome {
        let Step { what, which, order } = step;
        let id = format!("device-{which}");
        let nth = usize::from(which);
        match what {
            0..3 => match self.devices.pin_since(&id, u64::MAX) {
                Ok(pin) => self.enter(&pin, number, order, what > 0),
                Err(reason) => Outcome::Pinned(Some(reason)),
            },
            3 => match self.devices.pin_since(&id, mark) {
                Ok(pin) => {
                    self.opening.push((id, number, pin));
                    Outcome::Pinned(None)
                }
                Err(reason) => Outcome::Pinned(Some(reason)),
            },
            4 if !self.opening.is_empty() => {
                let (_, number, pin) = self.opening.swap_remove(nth % self.opening.len());
                self.enter(&pin, number, order, true)
            }
            5..8 => {
                let entry = self.refs.iter().nth(nth * 7 % self.refs.len().max(1));
                let Some((number, device)) = entry.map(|(number, device)| (*number, *device))
                else {
                    return Outcome::Nothing;
                };
                self.refs.remove(&number);
                Outcome::Removed(self.devices.remove(device, conn(number)))
            }
            8 => Outcome::Revoked(self.devices.revoke(&id).unwrap()),
            9 => {
                let conns = self.devices.connections_of(&id).unwrap_or_default();
                let Some(conn) = conns.get(nth % conns.len().max(1)) else {
                    return Outcome::Nothing;
                };
                Outcome::Evicted(self.devices.evict(&id, *conn))
            }
            10 => {
                self.devices.mark_due_by_id(&id);
                Outcome::Nothing
            }
            _ => Outcome::Nothing,
        }
    }

    fn enter(&mut self, pin: &Pin, number: u64, order: u64, replaces: bool) -> Outcome {
        let handle = (AcceptOrder(order), conn(number));
        let entered = self.devices.enter(pin, handle, replaces, || ());
        if entered.is_ok() {
            self.refs.insert(number, pin.device());
        }
        Outcome::Entered(entered)
    }

    /// The devices of which the broker is to be told. A mark on a record without a connection stays
    /// behind: once there is one, it is claimed anyway.
    fn due(&self) -> Vec<bool> {
        let ids: Vec<String> = (0..5).map(|which| format!("device-{which}")).collect();
        let due = ids.iter().map(|id| {
            let hash = self.devices.hasher.hash_one(id.as_str());
            let stripe = self.devices.lock(stripe_of(hash));
            let slot = stripe.find(hash, id).filter(|slot| {
                stripe.records.get(*slot).is_some_and(|record| record.conns.len() > 0)
            });
            slot.is_some_and(|slot| stripe.due.next(slot) == Some(slot))
        });
        due.collect()
    }

    /// What a reader of the table sees.
    fn shown(&self) -> impl PartialEq + std::fmt::Debug {
        let ids: Vec<String> = (0..5).map(|which| format!("device-{which}")).collect();
        let conns: Vec<_> = ids
            .iter()
            .map(|id| self.devices.connections_of(id).filter(|conns| !conns.is_empty()))
            .collect();
        let entered: Vec<_> = self
            .refs
            .iter()
            .map(|(number, device)| self.devices.entry_of(*device, conn(*number)))
            .collect();
        (conns, entered, self.devices.connection_count(), self.devices.mark())
    }
}

proptest! {
    /// Two tables, one of which was handed over in the middle, answer alike. Openings under way
    /// stay behind, and are pinned anew with the mark of the hand-over.
    #[test]
    fn devices_that_move_agree_with_those_that_stay(
        max in 1usize..4,
        before in proptest::collection::vec(step(), 0..120),
        after in proptest::collection::vec(step(), 0..120),
    ) {
        let mut old = Side::new(Devices::new(max));
        let mut number = 0;
        for step in before {
            number += 1;
            let mark = old.devices.mark().saturating_sub(u64::from(step.which) / 2);
            old.run(step, number, mark);
        }
        let mut new = Side::new(moved(&old.devices, max));
        prop_assert!(old.devices.resume().is_empty());
        new.refs = old.refs.clone();
        prop_assert!(new.shown() == old.shown());
        prop_assert_eq!(new.due(), old.due());
        let mark = new.devices.mark();
        for (id, number, pin) in &old.opening {
            let (stripe, slot) = super::super::parts(pin.device());
            let is_valid = old.devices.lock(stripe).records.get(slot).unwrap().generation
                == pin.generation;
            let again = new.devices.pin_since(id, if is_valid { mark } else { 0 });
            if let Ok(again) = again {
                new.opening.push((id.clone(), *number, again));
            }
        }
        // Without those that were revoked before.
        let known: Vec<u64> = new.opening.iter().map(|(_, number, _)| *number).collect();
        old.opening.retain(|(_, number, _)| known.contains(number));
        for step in after {
            number += 1;
            let mark = old.devices.mark().saturating_sub(u64::from(step.which) / 2);
            prop_assert_eq!(old.run(step, number, mark), new.run(step, number, mark));
            prop_assert!(old.shown() == new.shown(), "{:?}\n{:?}", old.shown(), new.shown());
        }
        old.opening.clear();
        new.opening.clear();
        prop_assert_eq!(old.devices.device_count(), new.devices.device_count());
        for side in [&mut old, &mut new] {
            for (number, device) in std::mem::take(&mut side.refs) {
                side.devices.remove(device, conn(number));
            }
            prop_assert_eq!((side.devices.device_count(), side.devices.connection_count()), (0, 0));
            let is_empty = |stripe| {
                let stripe = side.devices.lock(stripe);
                stripe.leaving.is_empty() && stripe.uncounted.is_empty()
            };
            prop_assert!((0..STRIPES).all(is_empty));
        }
    }
}

fn enter(devices: &Arc<Devices>, id: &str, number: u64) -> DeviceRef {
    let pin = devices.pin(id);
    devices.enter(&pin, (AcceptOrder(number), conn(number)), true, || ()).unwrap();
    pin.device()
}

#[test]
fn what_comes_meanwhile_is_carried_out_afterwards() {
    let devices = Devices::new(1);
    let device = enter(&devices, "d", 1);
    let exported = devices.export();
    assert_eq!(devices.revoke("d"), Err(HandingOver));
    assert!(!devices.evict("d", conn(1)));
    assert!(devices.has(device, conn(1)));
    let waiting = devices.resume();
    assert_eq!(waiting.forgotten, 0);
    assert_eq!(waiting.all, [HeldBack::Revoke("d".into()), HeldBack::Evict("d".into(), conn(1))]);
    assert_eq!(devices.revoke("d"), Ok(Some(vec![conn(1)])));
    let other = Devices::new(1);
    other.import(exported).unwrap();
    assert!(other.has(device, conn(1)));
    assert_eq!(other.revoke("d"), Ok(Some(vec![conn(1)])));
    assert_eq!(other.remove(device, conn(1)).map(|(id, _)| id).as_deref(), Some("d"));
}

#[test]
fn what_finds_no_room_meanwhile_is_counted() {
    let devices = Devices::new(1);
    devices.stand_still();
    let half = vec![0; HELD_BACK_BYTES_MAX / 2];
    for _ in 0..3 {
        assert!(devices.hold_back(None, &half));
    }
    let waiting = devices.resume();
    assert_eq!((waiting.all.len(), waiting.forgotten), (2, 1));
    devices.stand_still();
    for _ in 0..HELD_BACK_MAX + 3 {
        assert_eq!(devices.revoke("d"), Err(HandingOver));
    }
    let waiting = devices.resume();
    assert_eq!((waiting.all.len(), waiting.forgotten), (HELD_BACK_MAX, 3));
    assert!(devices.resume().is_empty());
}

#[test]
fn an_opening_that_stays_behind_is_revoked_by_both() {
    let devices = Devices::new(1);
    let pin = devices.pin("d");
    let other = moved(&devices, 1);
    assert_eq!(other.device_count(), 0, "its record stays with the pin");
    let mark = devices.mark();
    assert!(other.pin_since("d", mark).is_ok());
    assert_eq!(other.revoke("d"), Ok(None));
    assert_eq!(other.pin_since("d", mark).err(), Some(CloseReason::Revoked));
    drop(pin);
}

/// Some devices with everything that a table can hold.
fn crowded() -> Arc<Devices> {
    let devices = Devices::new(2);
    for number in 0..200 {
        enter(&devices, &format!("device-{}", number % 90), number);
    }
    let service = devices.pin("service");
    devices.enter(&service, (AcceptOrder(7), conn(500)), false, || ()).unwrap();
    for which in 0..10 {
        devices.revoke(&format!("device-{which}")).unwrap();
        devices.mark_due_by_id(&format!("device-{}", which + 20));
    }
    devices
}

#[test]
fn damaged_devices_are_refused() {
    type Damage = fn(&mut v1::Devices);
    let damages: &[Damage] = &[
        |devices| drop(devices.stripes.pop()),
        |devices| devices.hash_key.push(1),
        |devices| devices.hash_key[0] ^= 1,
        |devices| {
            let records = |stripe: &v1::DeviceStripe| stripe.id_bytes.len();
            let at = devices.stripes.iter().position(|stripe| records(stripe) > 0).unwrap();
            devices.stripes.swap(at, (at + 1) % STRIPES);
        },
        |devices| full(devices).free.extend([0, 0]),
        |devices| full(devices).free.push(u32::MAX),
        |devices| full(devices).ids.push('x'),
        |devices| full(devices).id_bytes[0] += 1,
        |devices| full(devices).id_bytes[0] = u32::MAX,
        |devices| full(devices).generations.clear(),
        |devices| full(devices).conn_counts[0] = 0,
        |devices| full(devices).conn_counts[0] = u32::MAX,
        |devices| full(devices).conns.push(1),
        |devices| full(devices).orders[0] = 1 << 56,
        |devices| full(devices).due.push(1 << 30),
        |devices| full(devices).revocations.push(1),
        |devices| full(devices).forgotten = u64::MAX,
        |devices| devices.revoked = u64::MAX,
        |devices| {
            let stripe = full(devices);
            (stripe.revocations, stripe.revoked_hashes) = (vec![5, 4], vec![0, 0]);
        },
        |devices| {
            let stripe = full(devices);
            stripe.leaving.push(v1::LeavingConn { order: u64::MAX, ..Default::default() });
        },
        // The same id twice.
        |devices| {
            let stripe = full(devices);
            let id = stripe.ids[..stripe.id_bytes[0] as usize].to_owned();
            stripe.ids.push_str(&id);
            stripe.id_bytes.push(stripe.id_bytes[0]);
            stripe.generations.push(0);
            stripe.conn_counts.push(1);
            stripe.conns.push(9);
            stripe.orders.push(9);
        },
    ];
    let exported = crowded().export();
    assert!(Devices::new(2).import(exported.clone()).is_ok());
    for (nth, damage) in damages.iter().enumerate() {
        let mut devices = exported.clone();
        damage(&mut devices);
        assert!(Devices::new(2).import(devices).is_err(), "damage {nth}");
    }
}

/// A stripe with records.
fn full(devices: &mut v1::Devices) -> &mut v1::DeviceStripe {
    devices.stripes.iter_mut().find(|stripe| !stripe.id_bytes.is_empty()).unwrap()
}

proptest! {
    /// Whatever has happened to the bytes, nothing panics.
    #[test]
    fn garbled_bytes_do_no_harm(flips in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..8)) {
        let mut bytes = crowded().export().encode_to_vec();
        for (at, flip) in flips {
            let at = usize::from(at) % bytes.len();
            bytes[at] ^= flip;
        }
        if let Ok(devices) = v1::Devices::decode(&*bytes) {
            let other = Devices::new(2);
            if other.import(devices).is_ok() {
                other.revoke("device-30").unwrap();
                other.walk(Default::default(), usize::MAX, |_| ());
            }
        }
    }
}

/// Measures the way of 100,000 devices: run it with `--release -- --ignored --nocapture`.
#[test]
#[ignore = "it measures"]
fn the_way_of_many_devices() {
    let devices = Devices::new(1);
    for number in 0..100_000 {
        enter(&devices, &format!("device-{number:017}"), number);
    }
    for _ in 0..3 {
        let begin = Nanos::now();
        let exported = devices.export();
        let at_export = Nanos::now().since(begin);
        let bytes = exported.encode_to_vec();
        let at_encode = Nanos::now().since(begin);
        let decoded = v1::Devices::decode(&*bytes).unwrap();
        let at_decode = Nanos::now().since(begin);
        let other = Devices::new(1);
        other.import(decoded).unwrap();
        let at_import = Nanos::now().since(begin);
        println!(
            "{} bytes; export {at_export:?}, encode {:?}, decode {:?}, import {:?}",
            bytes.len(),
            at_encode - at_export,
            at_decode - at_encode,
            at_import - at_decode
        );
        devices.resume();
    }
}
