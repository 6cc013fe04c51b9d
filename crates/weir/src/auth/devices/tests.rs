//! Tests of devices against a simple model, and of the orders that matter.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn conn(number: u64) -> ConnId {
    ConnId::from_u64(number)
}

/// The order of the connection with this number. Lower numbers are accepted first.
fn handle(number: u64) -> (AcceptOrder, ConnId) {
    (AcceptOrder(number), conn(number))
}

fn enter(devices: &Arc<Devices>, id: &str, number: u64) -> (DeviceRef, Option<ConnId>) {
    let pin = devices.pin(id);
    let replaced = devices.enter(&pin, handle(number), true, || ()).unwrap();
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
                // A connection closes; it may have been replaced or revoked long ago.
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
                _ => prop_assert_eq!(devices.revoke(&id), Ok(twin.remove(&id))),
            }
            twin.retain(|_, conns| !conns.is_empty());
            prop_assert_eq!(devices.device_count(), twin.len());
            prop_assert_eq!(devices.connection_count(), twin.values().map(Vec::len).sum::<usize>());
            for (id, conns) in &twin {
                prop_assert_eq!(devices.connections_of(id), Some(conns.clone()));
                prop_assert_eq!(devices.look_at(id, |conns| conns.iter().collect::<Vec<_>>()), conns.clone());
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
    assert_eq!(devices.revoke("d"), Ok(Some(vec![])));
    let refused = devices.enter(&pin, handle(1), true, || panic!("it is not welcomed"));
    assert_eq!(refused, Err(NotEntered::Revoked));
    // A connection authenticated after the revocation may enter.
    let later = devices.pin("d");
    assert_eq!(devices.enter(&later, handle(2), true, || ()), Ok(None));
    assert_eq!(devices.enter(&pin, handle(3), true, || ()), Err(NotEntered::Revoked));
    drop((pin, later));
    assert_eq!(devices.connections_of("d"), Some(vec![conn(2)]));
}

#[test]
fn a_revocation_takes_those_who_are_in_and_those_on_their_way() {
    let devices = Devices::new(2);
    let (device, _) = enter(&devices, "d", 1);
    let pin = devices.pin("d");
    assert_eq!(devices.revoke("d"), Ok(Some(vec![conn(1)])));
    assert_eq!(devices.id_of(device, conn(1)), None);
    assert_eq!(devices.enter(&pin, handle(2), true, || ()), Err(NotEntered::Revoked));
    drop(pin);
    assert_eq!((devices.device_count(), devices.connection_count()), (0, 0));
    assert_eq!(devices.revoke("d"), Ok(None));
}

#[test]
fn a_record_goes_with_its_last_pin_or_handle() {
    let devices = Devices::new(1);
    let (first, second) = (devices.pin("d"), devices.pin("d"));
    drop(first);
    assert_eq!(devices.device_count(), 1);
    let device = second.device();
    devices.enter(&second, handle(1), true, || ()).unwrap();
    drop(second);
    assert_eq!(devices.device_count(), 1);
    devices.remove(device, conn(1));
    assert_eq!(devices.device_count(), 0);
}

#[test]
fn a_late_close_report_touches_no_stranger() {
    let devices = Devices::new(1);
    let (device, _) = enter(&devices, "d", 1);
    devices.revoke("d").unwrap();
    // One of these uses the slot again, if by chance of the hash.
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
        .enter(&pin, handle(1), true, || {
            // Runs under the device's lock, so a push to the device would wait.
            let stripe = parts(pin.device()).0;
            assert!(devices.stripes[stripe].try_lock().is_err());
        })
        .unwrap();
}

#[test]
fn who_was_revoked_while_somebody_was_asked_is_not_let_in() {
    let devices = Devices::new(1);
    // The token's device becomes known only after the revocation, and has no record.
    let (early, others) = (devices.mark(), "other");
    assert_eq!(devices.revoke("d"), Ok(None));
    assert_eq!(devices.pin_since("d", early).err(), Some(CloseReason::Revoked));
    assert!(devices.pin_since(others, early).is_ok());
    assert!(devices.pin_since("d", devices.mark()).is_ok());
    assert_eq!(devices.device_count(), 0);
}

/// An event of one connection in the process, and its time.
#[derive(Debug, Clone, Copy)]
enum Step {
    Welcome,
    End,
}

/// One connection of the model. Times are milliseconds of a clock outside the process.
#[derive(Debug, Clone)]
struct Attempt {
    device: u8,
    /// The time since the previous connection was accepted.
    gap: u64,
    /// The time until its shard and task enter it.
    delay: u64,
    /// The time from then until its end is reported.
    life: u64,
    /// Decides the order of events that are due at once.
    lot: u32,
}

fn attempt() -> impl Strategy<Value = Attempt> {
    (0u8..3, 0u64..20, 0u64..40, 1u64..200, any::<u32>())
        .prop_map(|(device, gap, delay, life, lot)| Attempt { device, gap, delay, life, lot })
}

/// The time at which a due event happens: not while the process is stopped.
fn past_pauses(due: u64, pauses: &[(u64, u64)]) -> u64 {
    pauses.iter().fold(due, |due, &(begin, length)| {
        let end = begin + length;
        if (begin..end).contains(&due) { end } else { due }
    })
}

proptest! {
    /// When the clock jumps, all missed events are due at once, in any order. Even then, a
    /// connection is told that it was replaced only if its device has since opened the allowed
    /// number of others.
    #[test]
    fn only_newer_connections_replace(
        max in 1usize..4,
        attempts in proptest::collection::vec(attempt(), 0..60),
        mut pauses in proptest::collection::vec((0u64..600, 50u64..5_000), 0..4),
    ) {
        pauses.sort_unstable();
        let devices = Devices::new(max);
        let (mut clock, mut steps) = (0, Vec::new());
        let mut pins = Vec::new();
        for (at, attempt) in attempts.iter().enumerate() {
            clock += attempt.gap;
            let welcome = past_pauses(clock + attempt.delay, &pauses);
            let end = past_pauses(welcome + attempt.life, &pauses);
            steps.push((welcome, attempt.lot, at, Step::Welcome));
            steps.push((end, attempt.lot, at, Step::End));
            pins.push(Some(devices.pin(&attempt.device.to_string())));
        }
        // A stable sort: events of one connection that are due at once keep their order.
        steps.sort_by_key(|(due, lot, at, _)| (*due, *lot, *at));
        let mut entered = vec![None; attempts.len()];
        let mut replaced = Vec::new();
        for (_, _, at, step) in steps {
            let number = at as u64;
            match step {
                Step::Welcome => {
                    let Some(pin) = pins[at].take() else { continue };
                    let mut is_welcomed = false;
                    match devices.enter(&pin, handle(number), true, || is_welcomed = true) {
                        Ok(oldest) => {
                            prop_assert!(is_welcomed);
                            entered[at] = Some(pin.device());
                            replaced.extend(oldest);
                        }
                        Err(not_entered) => {
                            prop_assert_eq!(not_entered, NotEntered::Replaced);
                            prop_assert!(!is_welcomed);
                            replaced.push(conn(number));
                        }
                    }
                }
                Step::End => {
                    if let Some(device) = entered[at] {
                        devices.remove(device, conn(number));
                    }
                }
            }
            for device in 0..3_u8 {
                let conns = devices.connections_of(&device.to_string()).unwrap_or_default();
                prop_assert!(conns.is_sorted() && conns.len() <= max, "{:?}", conns);
            }
        }
        for gone in replaced {
            let at = usize::try_from(gone.to_u64()).unwrap();
            let device = attempts[at].device;
            let newer = attempts[at + 1..].iter().filter(|other| other.device == device).count();
            prop_assert!(newer >= max, "{gone:?} was replaced, though {newer} came after it");
        }
        prop_assert_eq!((devices.connection_count(), devices.device_count()), (0, 0));
    }
}

#[test]
fn one_that_comes_late_gives_way_to_those_that_were_accepted_after_it() {
    let devices = Devices::new(2);
    let pin = devices.pin("d");
    let enter = |number| devices.enter(&pin, handle(number), true, || ());
    assert_eq!(enter(5), Ok(None));
    assert_eq!(enter(3), Ok(None));
    assert_eq!(enter(2), Err(NotEntered::Replaced));
    assert_eq!(enter(4), Ok(Some(conn(3))));
    // A service's connection replaces none, and has the place of its order.
    assert_eq!(devices.enter(&pin, handle(1), false, || ()), Ok(None));
    assert_eq!(devices.connections_of("d"), Some(vec![conn(1), conn(4), conn(5)]));
    assert_eq!(enter(6), Ok(Some(conn(1))));
}

#[test]
fn the_order_survives_where_it_is_kept() {
    for number in [0, 1, 0xff_ffff, 1 << 40, (1 << 56) - 1] {
        assert_eq!(OrderBytes::of(AcceptOrder(number)).unpacked(), AcceptOrder(number));
    }
}

/// A walk finds each device once, in pages.
#[test]
fn a_walk_finds_all_devices() {
    let devices = Devices::new(2);
    for number in 0..300 {
        enter(&devices, &format!("d{number}"), number);
    }
    let (mut found, mut pages, mut place) = (Vec::new(), 0, Some(DevicePlace::default()));
    while let Some(from) = place {
        place = devices.walk(from, 10, |id| found.push(id.to_owned()));
        pages += 1;
    }
    assert!(pages >= 30, "{pages}");
    found.sort_unstable();
    let mut expected: Vec<String> = (0..300).map(|number| format!("d{number}")).collect();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

/// A walk finds each marked device once, in pages, and knows the connections of services; what was evicted is in no
/// record.
#[test]
fn a_walk_finds_what_is_marked() {
    let devices = Devices::new(2);
    for number in 0..300 {
        enter(&devices, &format!("d{number}"), number);
    }
    let service = devices.pin("service");
    devices.enter(&service, handle(500), false, || ()).unwrap();
    assert!(devices.evict("d7", conn(7)) && !devices.evict("d7", conn(7)));
    assert!(!devices.evict("d8", conn(9)));
    let (mut found, mut pages, mut place) = (BTreeMap::new(), 0, DevicePlace::default());
    devices.mark_all_due();
    assert_eq!(devices.due_count(), 300);
    while devices.due_count() > 0 {
        devices.take_due(&mut place, 10, |Entered { id, conn, order, is_counted, .. }| {
            assert_eq!(found.insert(id.to_owned(), (order, conn)), None, "{id}");
            assert_eq!(is_counted, id != "service");
        });
        pages += 1;
    }
    assert_eq!(pages, 30);
    assert_eq!(found.remove("service"), Some(handle(500)));
    let expected = (0..300).filter(|number| *number != 7);
    assert_eq!(found, expected.map(|number| (format!("d{number}"), handle(number))).collect());
    let device = devices.pin("d3").device();
    let mut own = Vec::new();
    for number in [3, 4] {
        devices.look_at_entered(device, conn(number), |entered| own.push(entered.conn));
        devices.mark_due(device, conn(number));
    }
    devices.mark_due_by_id("d5");
    devices.mark_due_by_id("unknown");
    devices.take_due(&mut place, 10, |entered| own.push(entered.conn));
    own.sort_unstable_by_key(|conn| conn.to_u64());
    assert_eq!(own, [conn(3), conn(3), conn(5)]);
    // A mark goes with its record.
    devices.mark_due_by_id("d6");
    devices.revoke("d6").unwrap();
    assert_eq!(devices.due_count(), 0);
    assert_eq!(devices.connection_count(), 299);
    assert_eq!(
        devices.remove(service.device(), conn(500)).map(|(id, _)| id).as_deref(),
        Some("service")
    );
}
