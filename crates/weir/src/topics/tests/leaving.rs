//! Subscribers of a topic of the cluster that go, and topics that nobody waits for.

#![expect(
    clippy::reversed_empty_ranges,
    reason = "a range is the messages of a page, also of none"
)]

use super::broker::{KEPT, class, joined, room_of};
use super::*;

#[test]
fn a_topic_without_subscribers_lingers_and_is_left() {
    let mut room = joined(KEPT, 100);
    room.unsubscribe(1);
    assert_eq!(room.hear(), ["1 out"]);
    let (delay, now) = (Duration::from_secs(30), Nanos::now());
    assert!(room.router.leave_empty(delay, now) <= delay);
    // It is followed meanwhile.
    room.live(7, 4..=4);
    assert_eq!(room.subscribe(2, Some((7, 2))), Ok(()));
    assert_eq!(room.hear(), ["2 in 7.2 recovered", "2 m3", "2 m4"]);
    let later = now.after(2 * delay);
    room.router.leave_empty(delay, later);
    assert_eq!((room.asked(), room.router.topic_count()), (vec![], 1));
    room.unsubscribe(2);
    room.hear();
    room.router.leave_empty(delay, later.after(delay));
    assert_eq!((room.asked(), room.router.topic_count()), (vec!["leave t".to_owned()], 0));
    // What the broker has not heard is said again, unless the topic is wanted.
    room.router.leave_again(&"t".into());
    assert_eq!(room.asked(), ["leave t"]);
    assert_eq!(room.subscribe(3, None), Ok(()));
    room.router.leave_again(&"t".into());
    assert_eq!(room.asked(), ["join t"]);
    room.history((7, 4), (1, 0), 1..=4);
    room.end();
}

#[test]
fn an_answer_to_a_topic_that_has_ended_is_not_for_its_successor() {
    let mut room = joined(KEPT, 100);
    room.live(7, 5..=5);
    assert_eq!(room.asked(), ["read t 3"]);
    let former = room.question;
    room.unsubscribe(1);
    room.hear();
    room.router.leave_empty(Duration::ZERO, Nanos(u64::MAX));
    assert_eq!(room.subscribe(2, None), Ok(()));
    assert_eq!(room.asked(), ["leave t", "join t"]);
    let newer = std::mem::replace(&mut room.question, former);
    room.history((7, 5), (1, 0), 4..=5);
    assert!(!room.fails());
    assert_eq!((room.hear(), room.asked()), (vec![], vec![]));
    room.question = newer;
    room.history((7, 6), (1, 0), 1..=6);
    assert_eq!(room.hear(), ["2 in 7.6"]);
    room.end();
}

#[test]
fn who_waits_and_goes_is_counted_no_more() {
    let mut room = room_of(class(KEPT, Duration::ZERO), 100, 10);
    assert_eq!((room.subscribe(1, None), room.subscribe(2, None)), (Ok(()), Ok(())));
    room.unsubscribe(1);
    room.router.end_resumes(conn(0, 2));
    assert_eq!(room.hear(), ["1 out"]);
    room.end();
}

#[test]
fn a_tick_keeps_its_place_before_what_nobody_waited_for() {
    let mut room = room_of(class(KEPT, Duration::from_secs(1)), 100, 10);
    assert_eq!(room.subscribe(1, None), Ok(()));
    assert_eq!(room.asked(), ["join t"]);
    room.history((7, 0), (1, 0), 1..=0);
    assert_eq!(room.hear(), ["1 in 7.0"]);
    room.live(7, 1..=2);
    room.unsubscribe(1);
    assert_eq!(room.hear(), ["1 out"]);
    room.live(7, 3..=3);
    room.router.end_ticks();
    assert_eq!(room.subscribe(2, Some((7, 0))), Ok(()));
    assert_eq!(room.hear(), ["2 in 7.0 recovered", "2 m1", "2 m2", "2 m3"]);
    room.end();
}

#[test]
fn topics_beyond_the_limit_do_not_linger() {
    // Two topics may be without subscribers.
    let mut room = room_of(class(KEPT, Duration::ZERO), 100, 4);
    for topic in ["a", "b", "c"] {
        assert_eq!(room.subscribe_to(topic, 1, None), Ok(()));
    }
    assert_eq!(room.asked(), ["join a", "join b", "join c"]);
    room.router.end_resumes(conn(0, 1));
    assert_eq!((room.router.topic_count(), room.asked()), (2, vec!["leave c".to_owned()]));
    room.end();
}
