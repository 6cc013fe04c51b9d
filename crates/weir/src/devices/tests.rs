//! Devices against an obvious twin, and the orders that matter.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn conn(number: u64) -> ConnId {
    ConnId::from_u64(number)
}

fn enter(devices: &Arc<Devices>, id: &str, number: u64) -> (DeviceRef, Option<ConnId>) {
    let pin = devices.pin(id);
    let replaced = devices.enter(&pin, conn(number), true, || ()).unwrap();
    (pin.device(), replaced)
}

proptest! {
    #[test]
    fn agrees_with_its_twin(
        max in 1usize..4,
        steps in proptest::collection::vec((0u8..6, 0u8..5), 0..300),
    ) {
        let devices = Devices::new(max);
        let mut twin = BTreeMap::<String, Vec<ConnId>>::new();
        let mut refs = BTreeMap::<ConnId, (String, DeviceRef)>::new();
        let mut number = 0;
        for (what, which) in steps {
            let id = format!("device-{which}");
            match what {
                0..3 => {
                    number += 1;
                    let (device, replaced) = enter(&devices, &id, number);
                    refs.insert(conn(number), (id.clone(), device));
                    let conns = twin.entry(id).or_default();
                    conns.push(conn(number));
                    let oldest = (conns.len() > max).then(|| conns.remove(0));
                    prop_assert_eq!(replaced, oldest);
                }
                // Some connection closes: it may have been replaced or revoked long ago.
                3 | 4 => {
                    let nth = usize::from(which) % refs.len().max(1);
                    let Some((conn, (id, device))) = refs.iter().nth(nth) else { continue };
                    let (conn, id, device) = (*conn, id.clone(), *device);
                    refs.remove(&conn);
                    devices.remove(device, conn);
                    if let Some(conns) = twin.get_mut(&id) {
                        conns.retain(|other| *other != conn);
                    }
                }
                _ => prop_assert_eq!(devices.revoke(&id), twin.remove(&id)),
            }
            twin.retain(|_, conns| !conns.is_empty());
            prop_assert_eq!(devices.device_count(), twin.len());
            prop_assert_eq!(devices.connection_count(), twin.values().map(Vec::len).sum::<usize>());
            for (id, conns) in &twin {
                prop_assert_eq!(devices.connections_of(id), Some(conns.clone()));
                prop_assert_eq!(devices.look_at(id, <[ConnId]>::to_vec), conns.clone());
                for conn in conns {
                    let (_, device) = &refs[conn];
                    prop_assert_eq!(devices.id_of(*device, *conn), Some(id.clone()));
                }
            }
        }
    }
}

#[test]
fn one_that_is_revoked_while_connecting_cannot_enter() {
    let devices = Devices::new(1);
    let pin = devices.pin("d");
    assert_eq!(devices.revoke("d"), Some(vec![]));
    let refused = devices.enter(&pin, conn(1), true, || panic!("it is not welcomed"));
    assert_eq!(refused, Err(Revoked));
    // Authenticated behind the revocation, it may.
    let later = devices.pin("d");
    assert_eq!(devices.enter(&later, conn(2), true, || ()), Ok(None));
    assert_eq!(devices.enter(&pin, conn(3), true, || ()), Err(Revoked));
    drop((pin, later));
    assert_eq!(devices.connections_of("d"), Some(vec![conn(2)]));
}

#[test]
fn a_revocation_takes_those_who_are_in_and_those_on_their_way() {
    let devices = Devices::new(2);
    let (device, _) = enter(&devices, "d", 1);
    let pin = devices.pin("d");
    assert_eq!(devices.revoke("d"), Some(vec![conn(1)]));
    assert_eq!(devices.id_of(device, conn(1)), None);
    assert_eq!(devices.enter(&pin, conn(2), true, || ()), Err(Revoked));
    drop(pin);
    assert_eq!((devices.device_count(), devices.connection_count()), (0, 0));
    assert_eq!(devices.revoke("d"), None);
}

#[test]
fn a_record_goes_with_its_last_pin_or_handle() {
    let devices = Devices::new(1);
    let (first, second) = (devices.pin("d"), devices.pin("d"));
    drop(first);
    assert_eq!(devices.device_count(), 1);
    let device = second.device();
    devices.enter(&second, conn(1), true, || ()).unwrap();
    drop(second);
    assert_eq!(devices.device_count(), 1);
    devices.remove(device, conn(1));
    assert_eq!(devices.device_count(), 0);
}

#[test]
fn a_late_close_report_touches_no_stranger() {
    let devices = Devices::new(1);
    let (device, _) = enter(&devices, "d", 1);
    devices.revoke("d");
    // The slot is used again, if by chance of the hash, by one of these.
    for index in 0..1_000 {
        enter(&devices, &format!("other-{index}"), 1_000 + index);
    }
    devices.remove(device, conn(1));
    assert_eq!(devices.id_of(device, conn(1)), None);
    assert_eq!(devices.connection_count(), 1_000);
}

#[test]
fn nothing_is_pushed_before_welcome() {
    let devices = Devices::new(1);
    let pin = devices.pin("d");
    devices
        .enter(&pin, conn(1), true, || {
            // Under the device's lock: a push to it would wait for this.
            let stripe = parts(pin.device()).0;
            assert!(devices.stripes[stripe].try_lock().is_err());
        })
        .unwrap();
}

#[test]
fn who_was_revoked_while_somebody_was_asked_is_not_let_in() {
    let devices = Devices::new(1);
    // Whose token it is becomes known later than the revocation; no record is there.
    let (early, others) = (devices.mark(), "other");
    assert_eq!(devices.revoke("d"), None);
    assert_eq!(devices.pin_since("d", early).err(), Some(CloseReason::Revoked));
    assert!(devices.pin_since(others, early).is_ok());
    assert!(devices.pin_since("d", devices.mark()).is_ok());
    assert_eq!(devices.device_count(), 0);
}
