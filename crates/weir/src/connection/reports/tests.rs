//! The queue of reports when it is full.

use weir_engine::{ConnId, DeviceRef, Origin};

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
    let (mut reporter, mut reports) = queue(2);
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
    let (mut reporter, mut reports) = queue(1000);
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
    let (mut reporter, reports) = queue(1);
    drop(reports);
    assert!(reporter.try_report(Report::Drained { number: 1 }).is_ok());
}
