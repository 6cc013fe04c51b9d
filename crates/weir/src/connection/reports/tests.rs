//! The queue of reports when it is full, and what comes beside it.

use std::time::Duration;

use tokio::sync::oneshot;
use weir_engine::{
    Budget, Command, ConnId, DeviceRef, Engine, Inspect, InspectPage, InspectWhat, Origin,
    ShardSettings, Urgent,
};

use super::*;

fn received(bytes: usize) -> Report {
    let body = vec![0; bytes].into_boxed_slice();
    Report::Received {
        conn: ConnId::from_u64(0),
        device: DeviceRef(0),
        origin: Origin::default(),
        body,
    }
}

#[tokio::test]
async fn a_full_queue_gives_back_and_is_noted() {
    let (mut reporter, mut reports) = queue(2, false);
    assert!(reporter.try_report(Report::Drained { number: 1 }).is_ok());
    assert!(reporter.try_report(Report::Drained { number: 1 }).is_ok());
    assert!(!reports.room.take_awaited());
    assert!(reporter.try_report(Report::Drained { number: 1 }).is_err());
    reports.queue.recv().await;
    assert!(reports.room.take_awaited());
    assert!(reporter.try_report(Report::Drained { number: 1 }).is_ok());
}

#[tokio::test]
async fn frames_from_devices_have_a_bound_and_the_rest_passes_them() {
    let (mut reporter, mut reports) = queue(1000, false);
    // A single frame always fits.
    assert!(reporter.try_report(received(2 * RECEIVED_BYTES_MAX)).is_ok());
    assert!(reporter.try_report(received(1)).is_err());
    assert!(reports.room.take_awaited());
    assert!(reporter.try_report(Report::Drained { number: 1 }).is_ok());
    let first = reports.queue.recv().await.unwrap();
    assert!(reporter.try_report(received(1)).is_err(), "taken is not carried out");
    reports.room.give(cost(&first));
    let mut count = 0;
    while reporter.try_report(received(10_000)).is_ok() {
        count += 1;
    }
    assert_eq!(count, RECEIVED_BYTES_MAX / (10_000 + size_of::<Report>()));
}

#[test]
fn nobody_is_left_to_tell() {
    let (mut reporter, reports) = queue(1, false);
    drop(reports);
    assert!(reporter.try_report(Report::Drained { number: 1 }).is_ok());
}

/// Under load there are always reports, and an answer must not wait for their end.
#[tokio::test]
async fn answers_of_a_shard_with_descriptors_of_its_own_come_beside_reports() {
    let (reporter, mut reports) = queue(8, true);
    let settings = ShardSettings { own_descriptors: true, ..ShardSettings::default() };
    let fronts: Vec<(Box<dyn Front>, _)> = vec![(Box::new(reporter), None)];
    let mut engine = Engine::start(&settings, Budget::new(1 << 20), fronts).unwrap();
    let mailbox = engine.mailbox(0).clone();
    reports.wake_by(engine.take_wakes(0).unwrap(), mailbox.clone()).unwrap();
    let (sender, mut answer) = oneshot::channel();
    let reply = Box::new(move |page: InspectPage| drop(sender.send(page)));
    let what = InspectWhat::One(ConnId::from_u64(0));
    assert!(mailbox.try_urgent(Urgent::Inspect(Inspect { what, reply })).is_ok());
    assert!(mailbox.try_push(Command::EndDrain(1)).is_ok());
    // The shard has carried out both.
    while mailbox.depth() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(answer.try_recv().is_err(), "no other thread has answered");
    let mut batch = Vec::new();
    assert!(reports.receive(&mut batch).await);
    assert!(matches!(batch[..], [Report::Drained { number: 1 }]));
    assert!(answer.try_recv().is_ok());
    engine.stop();
    assert!(!reports.receive(&mut Vec::new()).await, "the shard has woken the front at its end");
}
