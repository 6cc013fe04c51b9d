//! Drains: how many connections are told to leave, when, and which stay.

use std::collections::BTreeSet;
use std::time::Duration;

use weir_engine::{Command, Drain, DrainWhat};
use weir_wire::CloseReason;

use crate::stage::{Device, Stage};

fn order(
    number: u32,
    what: DrainWhat,
    over_ms: u64,
    seed: u64,
) -> Command<weir_engine::sim::SimOffer> {
    let over = Duration::from_millis(over_ms);
    Command::Drain(Drain { number, what, over, retry_after_ms: (5, 9), seed })
}

/// The places of the devices that were told to leave, each once.
fn told(stage: &mut Stage, devices: &[Device]) -> BTreeSet<usize> {
    let mut told = BTreeSet::new();
    for (place, device) in devices.iter().enumerate() {
        match &stage.heard(*device)[..] {
            [] => {}
            [word] if word == "goodbye draining" => assert!(told.insert(place)),
            other => panic!("device {place} heard {other:?}"),
        }
    }
    told
}

fn closed(stage: &Stage) -> u64 {
    stage.shard.stats().closed[CloseReason::Draining.index()].get()
}

/// Fails when the count is not a count (`chooses`), or newcomers are chosen (`before`).
#[test]
fn a_drain_of_some_closes_so_many_and_no_newcomers() {
    let mut stage = Stage::new();
    let devices = stage.members(1, 1000);
    stage.shard.push(order(1, DrainWhat::Count(250), 2_000, 1));
    stage.shard.advance(Duration::from_millis(1_000));
    let half = closed(&stage);
    assert!((120..=140).contains(&half), "{half} after half of the time");
    let newcomers: Vec<Device> = (0..500).map(|_| stage.join()).collect();
    stage.shard.advance(Duration::from_millis(1_100));
    let gone = told(&mut stage, &devices);
    assert_eq!((gone.len(), closed(&stage)), (250, 250));
    assert_eq!(told(&mut stage, &newcomers).len(), 0);
    assert_eq!(stage.reported().iter().filter(|report| *report == "drained 1").count(), 1);
    // They come from everywhere.
    for quarter in 0..4 {
        let count = gone.range(quarter * 250..(quarter + 1) * 250).count();
        assert!((30..=95).contains(&count), "{count} of quarter {quarter}");
    }
    // Those that are left hear as before.
    stage.publish(1, "on");
    stage.settle();
    let left = (0..1000).find(|place| !gone.contains(place)).unwrap();
    assert_eq!(stage.heard(devices[left]), ["on"]);
}

/// Fails when the choice depends on the place alone (`draw`).
#[test]
fn a_drain_of_some_does_not_always_choose_the_same() {
    let chosen = [1, 2].map(|seed| {
        let mut stage = Stage::new();
        let devices = stage.members(1, 100);
        stage.shard.push(order(1, DrainWhat::Count(30), 0, seed));
        stage.settle();
        told(&mut stage, &devices)
    });
    assert_eq!(chosen.each_ref().map(BTreeSet::len), [30, 30]);
    assert_ne!(chosen[0], chosen[1]);
}

/// Connections that end by themselves do not count. Others are told in their place, as long as
/// there are any.
///
/// Fails when a drain is over after one pass (`end_pass`).
#[test]
fn a_drain_of_some_makes_up_for_those_that_leave_by_themselves() {
    let mut stage = Stage::new();
    let devices = stage.members(1, 200);
    stage.shard.push(order(1, DrainWhat::Count(60), 10_000, 1));
    stage.settle();
    for device in &devices[100..] {
        stage.shard.peer_end(device.peer);
    }
    stage.shard.advance(Duration::from_secs(11));
    assert_eq!(closed(&stage), 60);
    assert!(stage.reported().contains(&"drained 1".to_string()));
    stage.shard.push(order(2, DrainWhat::Count(60), 1_000, 1));
    stage.shard.advance(Duration::from_secs(2));
    assert_eq!(closed(&stage), 100, "no more are there");
    assert!(stage.reported().contains(&"drained 2".to_string()));
}

/// Fails when an ended drain goes on, or keeps refusing (`end_drain`).
#[test]
fn a_drain_that_is_ended_closes_no_more() {
    let mut stage = Stage::new();
    let devices = stage.members(1, 100);
    stage.shard.push(order(1, DrainWhat::All, 1_000, 1));
    stage.shard.advance(Duration::from_millis(500));
    let before = told(&mut stage, &devices).len();
    assert!((45..=60).contains(&before), "{before}");
    stage.shard.push(Command::EndDrain(1));
    stage.settle();
    assert_eq!(stage.reported().last().unwrap(), "drained 1");
    let newcomer = stage.join();
    stage.shard.advance(Duration::from_secs(5));
    assert_eq!(told(&mut stage, &devices).len(), 0);
    assert_eq!(stage.heard(newcomer), Vec::<String>::new());
    assert_eq!(closed(&stage), before as u64);
    assert_eq!(stage.shard.mailbox().depth(), 0, "all credits are back");
}

/// Fails when numbers are not compared (`begin_drain`).
#[test]
fn a_drain_that_comes_late_is_ignored() {
    let mut stage = Stage::new();
    let devices = stage.members(1, 10);
    stage.shard.push(Command::EndDrain(3));
    stage.shard.push(order(3, DrainWhat::All, 0, 1));
    stage.settle();
    assert_eq!(told(&mut stage, &devices).len(), 0);
    // A newer one replaces one that runs, and an older one does not.
    stage.shard.push(order(4, DrainWhat::All, 3_600_000, 1));
    stage.shard.push(order(6, DrainWhat::All, 0, 1));
    stage.shard.push(order(5, DrainWhat::All, 3_600_000, 1));
    stage.shard.advance(Duration::from_secs(2));
    assert_eq!(told(&mut stage, &devices).len(), 10);
    assert_eq!(stage.reported().last().unwrap(), "drained 6");
    assert_eq!(stage.shard.mailbox().depth(), 0, "all credits are back");
}

/// However many are due at once, a turn closes few, and others are served in between.
///
/// Fails when a turn closes all that are due (`CLOSES_PER_TURN`).
#[test]
fn a_drain_does_its_work_in_parts() {
    let mut stage = Stage::new();
    let devices = stage.members(1, 3_000);
    stage.shard.push(order(1, DrainWhat::All, 0, 1));
    stage.shard.turn();
    let first = closed(&stage);
    assert!((1..1_000).contains(&first), "{first} in one turn");
    stage.settle();
    assert_eq!((closed(&stage), told(&mut stage, &devices).len()), (3_000, 3_000));
}
