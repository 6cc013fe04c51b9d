//! Resumes and histories that reach further back than the ring, with a test in the place of the broker.

#![expect(
    clippy::reversed_empty_ranges,
    reason = "a range is the messages of a page, also of none"
)]

use std::future::Future;
use std::ops::RangeInclusive;
use std::pin::pin;
use std::task::{Context, Waker};

use weir_broker::{History, Name};
use weir_engine::Share;

use super::broker::{KEPT, Room, class, received, room_with};
use super::*;
use crate::observe::counters::ResumeOutcome;
use crate::topics::{Found, Range, Replay};

/// A topic `t` with nine messages in epoch 7, of which the ring has the last two, and connection 1
/// in it. A part holds two messages.
fn cut(resume_from_oldest: bool) -> Room {
    let bytes = {
        let room = joined(&config_of(class(KEPT, Duration::ZERO)));
        let bytes = room.router.retained().bytes() / 9;
        room.end();
        bytes
    };
    let mut config = config_of(TopicClass {
        retention_bytes: 2 * bytes,
        resume_from_oldest: Some(resume_from_oldest),
        ..class(KEPT, Duration::ZERO)
    });
    config.connection.low_watermark_bytes = 60;
    joined(&config)
}

fn joined(config: &Config) -> Room {
    let mut room = room_with(config, 100);
    assert_eq!(room.subscribe(1, None), Ok(()));
    assert_eq!(room.asked(), ["join t"]);
    room.history((7, 9), (1, 0), 1..=9);
    assert_eq!(room.hear(), ["1 in 7.9"]);
    room
}

/// The one part that a resume waits for.
fn asked(room: &Room) -> (u64, Replay) {
    let mut replays = room.router.needs().drain_replays();
    assert_eq!(replays.len(), 1, "{replays:?}");
    let replay = replays.remove(0);
    (replay.query().after, replay)
}

fn is_asked(room: &Room) -> bool {
    !room.router.needs().drain_replays().is_empty()
}

fn answer(room: &Room, replay: Replay, (epoch, first): (u64, u64), offsets: RangeInclusive<u64>) {
    let top = weir_broker::Position { epoch, offset: 9 };
    let messages = offsets.map(received).collect();
    reply(room, replay, Some(&History { top, first, began: 0, messages }));
}

fn reply(room: &Room, replay: Replay, history: Option<&History>) {
    let answering = pin!(room.router.answer_replay(replay, history));
    assert!(answering.poll(&mut Context::from_waker(Waker::noop())).is_ready(), "a credit is free");
}

fn resumes(room: &Room) -> [u64; 3] {
    ResumeOutcome::ALL.map(|outcome| room.router.counters.resumes(outcome))
}

#[test]
fn what_the_ring_lacks_comes_from_the_broker() {
    let mut room = cut(false);
    assert_eq!((room.subscribe(2, Some((7, 3))), room.hear()), (Ok(()), vec![]));
    let (after, first) = asked(&room);
    assert_eq!(after, 3);
    answer(&room, first, (7, 1), 4..=9);
    assert_eq!(room.hear(), ["2 in 7.3 recovered", "2 m4", "2 m5"]);
    let (after, next) = asked(&room);
    assert_eq!(after, 5);
    // New messages do not mix with the missed ones.
    room.live(7, 10..=10);
    assert_eq!(room.hear(), ["1 m10"]);
    answer(&room, next, (7, 1), 6..=9);
    assert_eq!(room.hear(), ["2 m6", "2 m7"]);
    let (_, next) = asked(&room);
    answer(&room, next, (7, 1), 8..=9);
    // The ring has the rest.
    assert_eq!(room.hear(), ["2 m8", "2 m9", "2 m10"]);
    room.live(7, 11..=11);
    assert_eq!(room.hear(), ["1 m11", "2 m11"]);
    assert_eq!((resumes(&room), room.router.counters.resume_reads()), ([1, 0, 0], 3));
    room.end();
}

#[test]
fn what_the_ring_has_costs_the_broker_nothing() {
    let mut room = cut(false);
    assert_eq!(room.subscribe(2, Some((7, 7))), Ok(()));
    assert_eq!(room.hear(), ["2 in 7.7 recovered", "2 m8", "2 m9"]);
    assert!(!is_asked(&room));
    // Neither does a ring that ends where the class says so.
    let mut config = config_of(class(5, Duration::ZERO));
    config.connection.low_watermark_bytes = 60;
    let mut other = joined(&config);
    assert_eq!(other.subscribe(2, Some((7, 3))), Ok(()));
    assert_eq!(other.hear(), ["2 in 7.9"]);
    assert!(!is_asked(&other));
    room.end();
    other.end();
}

#[test]
fn what_the_broker_keeps_no_more_is_told() {
    let mut room = cut(false);
    assert_eq!((room.subscribe(2, Some((7, 3))), room.hear()), (Ok(()), vec![]));
    let (_, first) = asked(&room);
    answer(&room, first, (7, 6), 6..=9);
    assert_eq!(room.hear(), ["2 in 7.9"]);
    room.end();

    let mut room = cut(true);
    assert_eq!((room.subscribe(2, Some((7, 3))), room.hear()), (Ok(()), vec![]));
    let (_, first) = asked(&room);
    answer(&room, first, (7, 6), 6..=9);
    assert_eq!(room.hear(), ["2 in 7.5", "2 m6", "2 m7", "2 m8", "2 m9"]);
    // Of another epoch, all that is kept comes.
    assert_eq!((room.subscribe(3, Some((8, 3))), room.hear()), (Ok(()), vec![]));
    assert_eq!(room.asked(), ["read t 9"]);
    room.history((7, 9), (1, 0), 10..=9);
    let (after, first) = asked(&room);
    assert_eq!(after, 0);
    answer(&room, first, (7, 6), 6..=9);
    assert_eq!(room.hear(), ["3 in 7.5", "3 m6", "3 m7", "3 m8", "3 m9"]);
    assert_eq!(resumes(&room), [0, 2, 0]);
    room.end();
}

#[test]
fn a_hole_in_what_is_read_ends_the_resume() {
    let mut room = cut(false);
    for (offsets, first) in [(8..=9, 8), (7..=9, 1)] {
        assert_eq!((room.subscribe(2, Some((7, 3))), room.hear()), (Ok(()), vec![]));
        let (_, begin) = asked(&room);
        answer(&room, begin, (7, 1), 4..=9);
        assert_eq!(room.hear(), ["2 in 7.3 recovered", "2 m4", "2 m5"]);
        let (_, next) = asked(&room);
        answer(&room, next, (7, first), offsets);
        assert_eq!(room.hear(), ["2 out"]);
    }
    assert_eq!(resumes(&room), [0, 0, 2]);
    room.end();
}

#[test]
fn a_broker_that_does_not_answer_ends_what_waits() {
    let mut room = cut(false);
    assert_eq!((room.subscribe(2, Some((7, 3))), room.hear()), (Ok(()), vec![]));
    let (_, first) = asked(&room);
    // Who waits already is told so.
    assert_eq!((room.subscribe(2, Some((7, 3))), room.hear()), (Ok(()), vec!["2 busy".into()]));
    reply(&room, first, None);
    assert_eq!(room.hear(), ["2 busy"]);
    assert_eq!((room.subscribe(2, Some((7, 3))), room.hear()), (Ok(()), vec![]));
    let (_, first) = asked(&room);
    answer(&room, first, (7, 1), 4..=5);
    assert_eq!(room.hear(), ["2 in 7.3 recovered", "2 m4", "2 m5"]);
    let (_, next) = asked(&room);
    reply(&room, next, None);
    assert_eq!(room.hear(), ["2 out"]);
    room.end();
}

#[test]
fn who_has_gone_gets_nothing() {
    let mut room = cut(false);
    assert_eq!((room.subscribe(2, Some((7, 3))), room.hear()), (Ok(()), vec![]));
    let (_, first) = asked(&room);
    room.unsubscribe(2);
    assert_eq!(room.hear(), ["2 out"]);
    answer(&room, first, (7, 1), 4..=9);
    assert_eq!((room.hear(), is_asked(&room)), (vec![], false));
    assert_eq!(room.subscribe(3, Some((7, 3))), Ok(()));
    let (_, first) = asked(&room);
    room.router.end_resumes(conn(0, 3));
    answer(&room, first, (7, 1), 4..=9);
    assert_eq!((room.hear(), is_asked(&room)), (vec![], false));
    room.end();
}

#[test]
fn a_new_epoch_is_known_before_the_answer() {
    let mut room = cut(false);
    assert_eq!((room.subscribe(2, Some((7, 3))), room.hear()), (Ok(()), vec![]));
    let (_, first) = asked(&room);
    answer(&room, first, (8, 1), 4..=9);
    assert_eq!((room.hear(), room.asked()), (vec![], vec!["read t 9".to_owned()]));
    room.history((8, 9), (1, 9), 10..=9);
    assert_eq!(room.hear(), ["1 now 8.9", "2 in 8.9"]);
    room.end();
}

fn range(after: Option<(u64, u64)>) -> Range {
    let after = after.map(|(epoch, offset)| Position { epoch, offset });
    Range { after, messages_max: 100, bytes_max: 10_000 }
}

#[test]
fn a_history_comes_from_the_broker_where_this_node_cannot_know_it() {
    let mut room = cut(false);
    let look = |room: &Room, topic, after| match room.router.history(topic, range(after)) {
        Found::Here(history) => {
            let offsets = history.messages.iter().map(|message| message.offset());
            Some((history.recovered, history.is_all, offsets.collect::<Vec<u64>>()))
        }
        Found::AtBroker => None,
        Found::Nowhere => panic!("each topic belongs to the cluster"),
    };
    for (after, expected) in [
        (Some((7, 7)), Some((true, true, vec![8, 9]))),
        (Some((7, 8)), Some((true, true, vec![9]))),
        (Some((7, 9)), Some((true, true, vec![]))),
        (None, None),
        (Some((7, 6)), None),
        // Positions that the broker may know better.
        (Some((7, 10)), None),
        (Some((8, 8)), None),
    ] {
        assert_eq!(look(&room, "t", after), expected, "{after:?}");
    }
    assert_eq!(look(&room, "another", None), None);
    // Something is missing.
    room.live(7, 12..=12);
    assert_eq!(room.asked(), ["read t 9"]);
    assert_eq!(look(&room, "t", Some((7, 8))), None);
    room.history((7, 12), (1, 0), 10..=12);
    assert_eq!(room.hear(), ["1 m10", "1 m11", "1 m12"]);
    assert_eq!(look(&room, "t", Some((7, 11))), Some((true, true, vec![12])));
    // Without the broker nobody knows what other nodes have published.
    room.router.set_broker_lost(true);
    assert_eq!(look(&room, "t", Some((7, 11))), None);
    room.end();
}

#[test]
fn what_the_broker_keeps_makes_a_history() {
    let room = cut(false);
    let tell = |after, (first, offsets): (u64, RangeInclusive<u64>)| {
        let top = weir_broker::Position { epoch: 7, offset: 9 };
        let mut messages: Vec<_> = offsets.map(received).collect();
        // The time of one of them is over.
        let push = hot::Push { topic: "t", ..hot::Push::default() };
        let ttl = Some(Duration::from_millis(1));
        let expired = Envelope { accepted_ms: 1, ttl, push }.encode();
        let at_6 = messages.iter_mut().filter(|message| message.offset == 6);
        at_6.for_each(|message| message.payload = expired.clone());
        let kept = History { top, first, began: 0, messages };
        let history = room.router.history_of("t", range(after), &kept).unwrap();
        assert_eq!((history.epoch, history.sent), (7, 9));
        let offsets = history.messages.iter().map(|message| message.offset());
        (history.recovered, history.is_all, history.reached, offsets.collect::<Vec<u64>>())
    };
    for (after, kept, expected) in [
        (None, (1, 1..=3), (false, false, 3, vec![1, 2, 3])),
        (Some((7, 3)), (1, 4..=5), (true, false, 5, vec![4, 5])),
        (Some((7, 3)), (4, 4..=9), (true, true, 9, vec![4, 5, 7, 8, 9])),
        (Some((7, 5)), (1, 6..=6), (true, false, 6, vec![])),
        (Some((7, 9)), (1, 10..=9), (true, true, 9, vec![])),
        // Some have gone, or all.
        (Some((7, 3)), (5, 5..=9), (false, true, 9, vec![5, 7, 8, 9])),
        (Some((7, 3)), (10, 10..=9), (false, true, 3, vec![])),
        // Unknown positions.
        (Some((8, 3)), (1, 1..=2), (false, false, 2, vec![1, 2])),
        (Some((7, 10)), (1, 1..=9), (false, true, 9, vec![1, 2, 3, 4, 5, 7, 8, 9])),
    ] {
        assert_eq!(tell(after, kept.clone()), expected, "{after:?} {kept:?}");
    }
    // Without room in the budget there is none.
    let rest = room.budget.bytes_max_of(Share::Messages) - room.budget.used_of(Share::Messages);
    assert!(room.budget.take(Share::Messages, rest));
    let top = weir_broker::Position { epoch: 7, offset: 9 };
    let kept = History { top, first: 1, began: 0, messages: vec![received(4)] };
    assert!(room.router.history_of("t", range(None), &kept).is_none());
    room.budget.give(Share::Messages, rest);
    room.end();
}

#[test]
fn a_range_asks_again_where_the_epoch_is_another() {
    let topic = Name::from("t");
    let top = |epoch, offset| weir_broker::Position { epoch, offset };
    for (after, top, is_known, asked) in [
        (None, top(7, 9), true, [0, 0]),
        (Some((7, 3)), top(7, 9), true, [3, 0]),
        (Some((7, 9)), top(7, 9), true, [9, 0]),
        (Some((7, 10)), top(7, 9), false, [10, 0]),
        (Some((8, 3)), top(7, 9), false, [3, 0]),
    ] {
        let range = range(after);
        assert_eq!(range.is_known_at(top), is_known, "{after:?}");
        let queries = [true, false].map(|is_known| range.query(&topic, is_known));
        assert_eq!(queries.map(|query| query.after), asked, "{after:?}");
    }
}
