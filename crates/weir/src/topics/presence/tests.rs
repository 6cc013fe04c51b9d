//! Tests of the members of a topic against a simple model.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use weir_engine::{Budget, Share};

use super::members::*;
use super::*;

fn conn(number: u64) -> ConnId {
    ConnId::from_u64(number)
}

fn newcomer(places: &Arc<Places>, device: &str) -> Option<Newcomer> {
    Some(Newcomer { device: device.into(), _place: places.take()? })
}

/// Enters a connection of the device `d`, which does not watch, in a cluster.
fn enter(members: &mut Members, places: &Arc<Places>, number: u64) -> bool {
    let newcomer = newcomer(places, "d").filter(|_| !members.has(conn(number)));
    members.enter(conn(number), newcomer, (false, true))
}

/// The numbers of those that have left and of those that have entered.
fn numbers(changes: &Changes) -> (Vec<u64>, Vec<u64>) {
    let number = |(conn, _): (ConnId, &Name)| conn.to_u64();
    (changes.left().map(number).collect(), changes.entered().map(number).collect())
}

/// What the broker knows, as far as calls reach it.
#[derive(Default)]
struct Known {
    members: BTreeSet<u64>,
    calls: u64,
    /// The number of the last call that was carried out.
    last: u64,
}

/// Of a call that members leave, or that they enter.
struct Call {
    number: u64,
    left: Vec<u64>,
    entered: Vec<u64>,
}

impl Known {
    /// The calls that tell these changes.
    fn calls(&mut self, changes: &Changes) -> [Call; 2] {
        let (left, entered) = numbers(changes);
        self.calls += 2;
        let exit = Call { number: self.calls - 1, left, entered: vec![] };
        [exit, Call { number: self.calls, left: vec![], entered }]
    }

    /// A call that comes late does nothing.
    fn carry_out(&mut self, call: &Call) {
        if call.number > self.last {
            self.last = call.number;
            call.left.iter().for_each(|number| _ = self.members.remove(number));
            self.members.extend(&call.entered);
        }
    }
}

proptest! {
    /// Whatever fails and in whichever order, in the end the broker knows who is there.
    #[test]
    fn the_broker_comes_to_know_who_is_there(steps in proptest::collection::vec((0u8..14, 0u64..4), 0..300)) {
        let places = Places::new(1000);
        let mut members = Members::default();
        let mut counts = BTreeMap::<u64, u32>::new();
        let mut broker = Known::default();
        let mut in_flight: Option<(Changes, [Call; 2])> = None;
        let mut late = Vec::new();
        for (what, number) in steps {
            match what {
                0..3 => {
                    prop_assert!(enter(&mut members, &places, number));
                    *counts.entry(number).or_default() += 1;
                }
                3..6 if counts.contains_key(&number) => {
                    members.exit(conn(number), true);
                    *counts.get_mut(&number).unwrap() -= 1;
                    counts.retain(|_, count| *count > 0);
                }
                6 | 7 if in_flight.is_none() => {
                    let changes = members.take_changes(3);
                    let calls = broker.calls(&changes);
                    in_flight = Some((changes, calls));
                }
                8 => if let Some((_, calls)) = in_flight.take() {
                    calls.iter().for_each(|call| broker.carry_out(call));
                },
                9..12 => if let Some((changes, [exit, enter])) = in_flight.take() {
                    // The answer was lost, or the call; or it is late.
                    match number {
                        0 => broker.carry_out(&exit),
                        1 => late.push(exit),
                        2 => [&exit, &enter].into_iter().for_each(|call| broker.carry_out(call)),
                        _ => {
                            broker.carry_out(&exit);
                            late.push(enter);
                        }
                    }
                    members.give_back(changes);
                },
                12 => if let Some(call) = late.pop() {
                    broker.carry_out(&call);
                },
                13 => {
                    broker.members.clear();
                    members.enter_again();
                }
                _ => {}
            }
            let page = members.page(None, 100);
            let listed = page.members.iter().map(|(conn, _)| conn.to_u64());
            prop_assert!(listed.eq(counts.keys().copied()));
            prop_assert_eq!((page.connections, page.devices), (counts.len(), usize::from(!counts.is_empty())));
        }
        if let Some((changes, _)) = in_flight {
            members.give_back(changes);
        }
        let mut late = late.into_iter();
        while members.has_changes() {
            let calls = broker.calls(&members.take_changes(2));
            calls.iter().for_each(|call| broker.carry_out(call));
            late.next().iter().for_each(|call| broker.carry_out(call));
        }
        late.for_each(|call| broker.carry_out(&call));
        prop_assert!(broker.members.iter().eq(counts.keys()), "{:?} {:?}", broker.members, counts);
        prop_assert_eq!(places.used(), counts.len());
    }
}

#[test]
fn only_the_net_effect_is_told() {
    let places = Places::new(10);
    let mut members = Members::default();
    for number in [1, 2, 2] {
        enter(&mut members, &places, number);
    }
    assert_eq!(numbers(&members.take_changes(10)), (vec![], vec![1, 2]));
    // One comes and goes, one goes and comes, one of two subscriptions ends.
    enter(&mut members, &places, 3);
    for number in [3, 1, 2] {
        members.exit(conn(number), true);
    }
    enter(&mut members, &places, 1);
    assert!(!members.has_changes());
    members.exit(conn(2), true);
    assert_eq!(numbers(&members.take_changes(10)), (vec![2], vec![]));
}

#[test]
fn who_comes_back_when_the_broker_has_lost_all_is_told() {
    let places = Places::new(10);
    let mut members = Members::default();
    enter(&mut members, &places, 1);
    members.take_changes(10);
    members.exit(conn(1), true);
    members.enter_again();
    enter(&mut members, &places, 1);
    assert_eq!(numbers(&members.take_changes(10)), (vec![1], vec![1]));
}

#[test]
fn who_finds_no_place_is_not_listed_and_that_is_told() {
    let places = Places::new(2);
    let mut members = Members::default();
    let entered = [1, 2, 3, 1].map(|number| enter(&mut members, &places, number));
    assert_eq!(entered, [true, true, false, true]);
    let page = members.page(None, 1);
    assert_eq!((page.members.len(), page.is_last, page.is_complete), (1, false, false));
    let page = members.page(Some(page.members[0].0), 1);
    assert_eq!((page.members[0].0, page.is_last, page.connections), (conn(2), true, 2));
    members.exit(conn(3), true);
    assert!(members.page(None, 1).is_complete);
    // What has left keeps its place until the broker knows.
    members.take_changes(10);
    members.exit(conn(2), true);
    assert!(newcomer(&places, "d").is_none());
    drop(members.take_changes(10));
    assert!(newcomer(&places, "d").is_some());
}

#[test]
fn watchers_hear_the_last_thing_or_that_they_have_missed_something() {
    let (places, budget) = (Places::new(10), Budget::new(1 << 20));
    let mut members = Members::default();
    let device = || Name::from("d");
    // Nobody listens yet.
    members.hear((conn(9), device()), true, &budget);
    assert!(members.take_news(&budget).is_none());
    members.enter(conn(1), newcomer(&places, "d"), (true, true));
    for (number, has_entered) in [(2, true), (3, false), (2, false)] {
        members.hear((conn(number), device()), has_entered, &budget);
    }
    let news = members.take_news(&budget).unwrap();
    assert_eq!((news.joined.len(), news.left.len(), news.missed), (0, 2, false));
    assert_eq!((news.watchers, budget.used()), (vec![conn(1)], 0));
    let all = budget.bytes_max_of(Share::Messages);
    members.hear((conn(2), device()), true, &budget);
    assert!(budget.take(Share::Messages, all - budget.used()));
    members.hear((conn(4), device()), true, &budget);
    let news = members.take_news(&budget).unwrap();
    assert_eq!((news.joined.len(), news.left.len(), news.missed), (0, 0, true));
    assert!(members.take_news(&budget).is_none());
}
