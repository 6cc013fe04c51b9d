//! Tests of the table of sources against a simple model, and of its buckets.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn limits(connections: usize, rate: u32, burst: u32) -> LimitsConfig {
    LimitsConfig {
        connections_per_source_max: connections,
        connects_per_source_per_second: rate,
        connects_per_source_burst: burst,
        ..LimitsConfig::default()
    }
}

fn source(addr: &str) -> Source {
    Source::of(addr.parse().unwrap())
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn what_counts_as_one_source() {
    let check = |addr: &str, expected: &str| assert_eq!(source(addr).to_string(), expected);
    check("192.0.2.7", "192.0.2.7");
    check("::ffff:192.0.2.7", "192.0.2.7");
    check("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64");
    check("::1", "::/64");
    assert_ne!(source("0.0.0.0"), source("::"));
    assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:0:0:1"));
    assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
}

#[test]
fn connections_of_a_source_are_counted_until_they_leave() {
    let sources = Sources::new(&limits(2, 0, 0));
    let (one, other) = (source("127.0.0.1"), source("127.0.0.2"));
    let first = sources.enter(one, ms(0)).unwrap();
    let second = sources.enter(one, ms(0)).unwrap();
    assert_eq!(first, second);
    assert_eq!(sources.enter(one, ms(0)), Err(SourceFull::Connections));
    assert!(sources.enter(other, ms(0)).is_ok());
    sources.leave(first, ms(0));
    assert!(sources.enter(one, ms(0)).is_ok());
    assert_eq!(sources.source(first), Some(one));
    sources.leave(second, ms(0));
    sources.leave(second, ms(0));
    assert_eq!(sources.count(), 1, "without a rate a source without connections is forgotten");
}

#[test]
fn a_burst_and_then_the_rate() {
    let sources = Sources::new(&limits(0, 10, 3));
    let one = source("127.0.0.1");
    let connect = |at: u64| match sources.enter(one, ms(at)) {
        Ok(entered) => {
            sources.leave(entered, ms(at));
            true
        }
        Err(full) => {
            assert_eq!(full, SourceFull::Rate);
            false
        }
    };
    let admitted: Vec<bool> = (0..4).map(|_| connect(1000)).collect();
    assert_eq!(admitted, [true, true, true, false]);
    assert!(!connect(1099));
    assert!(connect(1100));
    assert!(!connect(1100));
    // A refusal uses nothing up, and the entry lives until the bucket is full.
    sources.sweep(ms(1399));
    assert_eq!(sources.count(), 1);
    sources.sweep(ms(1400));
    assert_eq!(sources.count(), 0);
    let admitted: Vec<bool> = (0..4).map(|_| connect(1400)).collect();
    assert_eq!(admitted, [true, true, true, false]);
}

#[test]
fn a_burst_of_nothing_admits_one_at_a_time() {
    let sources = Sources::new(&limits(0, 1, 0));
    let one = source("127.0.0.1");
    assert!(sources.enter(one, ms(0)).is_ok());
    assert_eq!(sources.enter(one, ms(999)), Err(SourceFull::Rate));
    assert!(sources.enter(one, ms(1000)).is_ok());
}

#[test]
fn a_crowd_of_addresses_is_remembered_only_in_part() {
    let sources = Sources::new(&limits(0, 1, 256));
    let held = sources.enter(source("127.0.0.1"), ms(0)).unwrap();
    for number in 0..200_000 {
        let entered = sources.enter(Source::V6(number), ms(0)).unwrap();
        sources.leave(entered, ms(0));
    }
    assert!(sources.count() <= STRIPES * RECENT_MAX + 1, "{}", sources.count());
    let remembered = sources.count() as u64;
    assert_eq!(sources.forgotten(), 200_001 - remembered);
    assert_eq!(sources.source(held), Some(source("127.0.0.1")));
    let places: u32 = (0..STRIPES).map(|index| sources.lock(index).entries.places()).sum();
    assert!(places as usize <= STRIPES * (RECENT_MAX + 2), "{places}");
    sources.leave(held, ms(0));
    sources.sweep(ms(1_000));
    assert_eq!(sources.count(), 0);
}

#[test]
fn the_number_that_a_shard_carries_names_the_source() {
    for (stripe, slot) in [(0, 0), (15, 0), (0, 1), (7, 1 << 27)] {
        let named = SourceRef::new(stripe, slot);
        assert_eq!(named.parts(), (stripe, slot));
        assert_eq!(SourceRef::from_origin(SourceRef::to_origin(Some(named))), Some(named));
    }
    assert_eq!(SourceRef::from_origin(SourceRef::to_origin(None)), None);
}

/// The model: remembers every source for ever, and fills buckets bit by bit.
struct Twin {
    rules: Rules,
    sources: BTreeMap<Source, (u32, u64, u64)>,
}

impl Twin {
    fn enter(&mut self, source: Source, now: u64) -> Result<(), SourceFull> {
        let rules = self.rules;
        let (connections, level, at) = self.sources.entry(source).or_insert((0, rules.burst, now));
        *level = (*level + (now - *at)).min(rules.burst);
        *at = now;
        if *connections >= rules.connections_max {
            return Err(SourceFull::Connections);
        }
        if *level < rules.interval {
            return Err(SourceFull::Rate);
        }
        *level -= rules.interval;
        *connections += 1;
        Ok(())
    }
}

proptest! {
    #[test]
    fn admits_whom_a_table_of_all_buckets_admits(
        connections in 0usize..4,
        rate in 0u32..20,
        burst in 1u32..5,
        steps in proptest::collection::vec((0u8..8, 0u32..4, 0u64..400), 0..300),
    ) {
        let limits = limits(connections, rate, burst);
        let sources = Sources::new(&limits);
        let mut twin = Twin { rules: Rules::new(&limits), sources: BTreeMap::new() };
        let mut held: Vec<(Source, SourceRef)> = Vec::new();
        let mut now = Duration::ZERO;
        for (what, number, pause) in steps {
            now += ms(pause);
            match what {
                0..4 => {
                    let source = Source::V4(number);
                    let entered = sources.enter(source, now);
                    let expected = twin.enter(source, nanoseconds(now));
                    prop_assert_eq!(entered.map(|_| ()), expected);
                    held.extend(entered.ok().map(|entered| (source, entered)));
                }
                4..7 if !held.is_empty() => {
                    let (source, left) = held.swap_remove(number as usize % held.len());
                    prop_assert_eq!(sources.source(left), Some(source));
                    sources.leave(left, now);
                    twin.sources.get_mut(&source).unwrap().0 -= 1;
                }
                _ => sources.sweep(now),
            }
        }
        for (_, left) in held {
            sources.leave(left, now);
        }
        sources.sweep(now + Duration::from_secs(10));
        prop_assert_eq!(sources.count(), 0);
        prop_assert!((0..STRIPES).all(|index| sources.lock(index).recent == 0));
    }
}

#[test]
fn failures_are_forgiven_with_time_and_paid_for_when_they_come_at_once() {
    let failures = Sources::of_failures(6, 3);
    let (guesser, other) = (Source::V4(1), Source::V4(2));
    let at = Duration::from_secs;
    for _ in 0..3 {
        assert_eq!(failures.wait(guesser, at(100)), None);
        assert_eq!(failures.strike(guesser, at(100)), None);
    }
    assert_eq!(failures.wait(guesser, at(100)), Some(at(10)));
    assert_eq!(failures.wait(other, at(100)), None);
    assert_eq!(failures.wait(guesser, at(110)), None);
    // Many simultaneous attempts that were not checked before: the debt has a limit.
    for _ in 0..10_000 {
        let _ = failures.strike(guesser, at(110));
    }
    assert_eq!(failures.wait(guesser, at(110)), Some(at(10 + 600)));
    assert_eq!(failures.wait(guesser, at(110 + 610)), None);
    failures.sweep(at(10_000));
    assert_eq!(failures.count(), 0);
}

#[test]
fn a_crowd_of_sources_that_fail_takes_bounded_room() {
    let failures = Sources::of_failures(10, 20);
    for source in 0..200_000 {
        failures.strike(Source::V4(source), Duration::from_secs(1));
    }
    assert!(failures.count() <= STRIPES * RECENT_MAX, "{}", failures.count());
}
