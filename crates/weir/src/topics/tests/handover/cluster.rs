//! Topics of a cluster that are handed over, and what the broker tells a router that stands still.

#![expect(
    clippy::reversed_empty_ranges,
    reason = "a range is the messages of a page, also of none"
)]

use std::pin::pin;
use std::task::{Context, Waker};

use weir_broker::{History, Scope};

use super::super::broker::{KEPT, Room, class, received, room_with};
use super::*;
use crate::topics::{Followed, Replay};

impl Room {
    /// Another process takes over.
    fn hand_over(&mut self, config: &Config) {
        assert!(self.mailbox.pop().is_none(), "the shard has carried everything out");
        let other = room_with(config, 100);
        let mut rings = EarlyRings::new(&other.budget);
        other.router.import(sent(&self.router), &mut rings).unwrap();
        (self.router, self.mailbox, self.budget) = (other.router, other.mailbox, other.budget);
        self.question = None;
    }

    fn replays(&self) -> Vec<Replay> {
        self.router.needs().drain_replays()
    }

    fn answer(&self, replay: Replay, offsets: std::ops::RangeInclusive<u64>) {
        let top = weir_broker::Position { epoch: 7, offset: 9 };
        let messages = offsets.map(received).collect();
        let history = History { top, first: 1, began: 0, messages };
        let answering = pin!(self.router.answer_replay(replay, Some(&history)));
        let mut context = Context::from_waker(Waker::noop());
        assert!(std::future::Future::poll(answering, &mut context).is_ready());
    }
}

fn config(retention_messages: usize) -> Config {
    config_of(class(retention_messages, Duration::ZERO))
}

/// A topic `t` with three messages in epoch 7, and connection 1 in it.
fn joined(config: &Config) -> Room {
    let mut room = room_with(config, 100);
    assert_eq!(room.subscribe(1, None), Ok(()));
    assert_eq!(room.asked(), ["join t"]);
    room.history((7, 3), (1, 0), 1..=3);
    assert_eq!(room.hear(), ["1 in 7.3"]);
    room
}

fn strings<const N: usize>(strings: [&str; N]) -> Vec<String> {
    strings.map(str::to_owned).into()
}

#[test]
fn a_topic_is_joined_anew_and_what_came_meanwhile_is_read() {
    let config = config(KEPT);
    let mut room = joined(&config);
    room.hand_over(&config);
    assert_eq!(room.asked(), ["join t"]);
    // Nobody waits for that.
    assert_eq!(room.subscribe(2, Some((7, 2))), Ok(()));
    assert_eq!(room.hear(), ["2 in 7.2 recovered", "2 m3"]);
    room.live(7, 6..=6);
    assert!(room.fails(), "it is joined again");
    room.history((7, 6), (1, 0), 4..=6);
    assert_eq!(room.hear(), strings(["1 m4", "2 m4", "1 m5", "2 m5", "1 m6", "2 m6"]));
    assert_eq!(room.asked(), [""; 0]);
    room.end();
}

#[test]
fn who_waits_for_a_topic_goes_on_waiting() {
    let config = config(KEPT);
    let mut room = room_with(&config, 100);
    assert_eq!((room.subscribe(1, None), room.subscribe(2, None)), (Ok(()), Ok(())));
    room.live(7, 2..=2);
    room.hand_over(&config);
    assert_eq!((room.router.parked_count(), room.asked()), (2, strings(["join t"])));
    room.unsubscribe(1);
    room.history((7, 1), (1, 0), 1..=1);
    assert_eq!(room.hear(), ["1 out", "2 in 7.2"]);
    room.hand_over(&config);
    assert_eq!((room.router.parked_count(), room.asked()), (0, strings(["join t"])));
    room.history((7, 2), (1, 0), 1..=2);
    room.end();
}

#[test]
fn without_retention_what_waits_is_kept() {
    let config = config(0);
    let mut room = joined(&config);
    room.router.stand_still();
    room.live(7, 4..=5);
    assert_eq!(room.hear(), [""; 0]);
    room.hand_over(&config);
    assert_eq!(room.asked(), ["join t"]);
    room.history((7, 5), (6, 0), 6..=5);
    assert_eq!(room.hear(), ["1 m4", "1 m5"]);
    room.end();
}

#[test]
fn resumes_ask_the_broker_again() {
    let bytes = {
        let room = joined(&config(KEPT));
        let bytes = room.router.retained().bytes() / 3;
        room.end();
        bytes
    };
    let mut config = config_of(TopicClass {
        retention_bytes: 2 * bytes,
        resume_from_oldest: Some(false),
        ..class(KEPT, Duration::ZERO)
    });
    config.connection.low_watermark_bytes = 60;
    let mut room = room_with(&config, 100);
    assert_eq!((room.subscribe(1, None), room.asked()), (Ok(()), strings(["join t"])));
    room.history((7, 9), (1, 0), 1..=9);
    assert_eq!(room.hear(), ["1 in 7.9"]);
    assert_eq!((room.subscribe(2, Some((7, 3))), room.hear()), (Ok(()), vec![]));
    assert_eq!(room.replays().len(), 1);
    room.hand_over(&config);
    assert_eq!(room.asked(), ["join t"]);
    room.history((7, 9), (1, 0), 10..=9);
    assert_eq!(room.router.parked_count(), 1);
    let first = room.replays().remove(0);
    assert_eq!(first.query().after, 3);
    // An answer that is not heard.
    room.router.stand_still();
    room.answer(first, 4..=9);
    room.router.resume_serving();
    let first = room.replays().remove(0);
    room.answer(first, 4..=9);
    assert_eq!(room.hear(), ["2 in 7.3 recovered", "2 m4", "2 m5"]);
    assert_eq!((room.replays().len(), room.router.parked_count()), (1, 0));
    room.hand_over(&config);
    assert_eq!(room.asked(), ["join t"]);
    room.history((7, 9), (1, 0), 10..=9);
    let next = room.replays().remove(0);
    assert_eq!(next.query().after, 5);
    room.answer(next, 6..=9);
    assert_eq!(room.hear(), ["2 m6", "2 m7", "2 m8", "2 m9"]);
    room.live(7, 10..=10);
    assert_eq!(room.hear(), ["1 m10", "2 m10"]);
    room.end();
}

#[test]
fn a_topic_lingers_on() {
    let config = config(KEPT);
    let mut room = joined(&config);
    room.unsubscribe(1);
    assert_eq!(room.hear(), ["1 out"]);
    room.hand_over(&config);
    assert_eq!(room.asked(), ["join t"]);
    room.history((7, 3), (1, 0), 1..=3);
    let (delay, now) = (Duration::from_secs(30), Nanos::now());
    assert!(room.router.leave_empty(delay, now) <= delay);
    assert_eq!((room.asked(), room.router.topic_count()), (vec![], 1));
    room.router.leave_empty(delay, now.after(delay));
    assert_eq!((room.asked(), room.router.topic_count()), (strings(["leave t"]), 0));
    room.end();
}

#[test]
fn what_the_broker_tells_meanwhile_is_heard_later() {
    let mut room = joined(&config(KEPT));
    room.router.handle_gap(&Scope::All);
    assert_eq!(room.asked(), ["read t 3"]);
    room.router.stand_still();
    room.history((7, 4), (1, 0), 4..=4);
    room.live(7, 5..=5);
    assert_eq!(room.subscribe(2, None), Err(SubscribeError::Busy));
    assert_eq!(room.router.follow("u"), Followed::Waits);
    room.router.leave_empty(Duration::ZERO, Nanos(u64::MAX));
    assert_eq!((room.hear(), room.asked()), (vec![], vec![]));
    room.router.resume_serving();
    assert_eq!(room.asked(), ["read t 3"]);
    room.history((7, 4), (1, 0), 4..=4);
    assert_eq!(room.hear(), ["1 m4", "1 m5"]);
    // Live, and behind nothing.
    room.router.stand_still();
    room.live(7, 6..=6);
    room.router.resume_serving();
    assert_eq!((room.hear(), room.asked()), (strings(["1 m6"]), vec![]));
    // A gap that was told meanwhile.
    room.router.stand_still();
    room.router.handle_gap(&Scope::Topics(vec!["t".into()]));
    assert_eq!(room.asked(), [""; 0]);
    room.router.resume_serving();
    assert_eq!(room.asked(), ["read t 6"]);
    room.history((7, 6), (1, 0), 7..=6);
    room.end();
}

/// Who has left and whom the broker is being told of is told again.
#[tokio::test]
async fn changes_of_presence_on_their_way_are_told_again() {
    let config = config_of(TopicClass { presence: true, ..class(KEPT, Duration::ZERO) });
    let mut room = joined(&config);
    let watcher = Subscriber { presence: true, ..Subscriber::new(conn(0, 2), Format::Stream) };
    assert_eq!(room.take("t", watcher), Ok(()));
    assert_eq!(room.hear(), ["2 in 7.3"]);
    let told = |room: &Room| {
        let topics = room.router.take_presence();
        let changes = room.router.presence_changes(&topics[0], 100);
        let ids = |conns: Vec<ConnId>| {
            conns.into_iter().map(|conn| conn.to_u64() & 0xffff).collect::<Vec<_>>()
        };
        let left = ids(changes.left().map(|(conn, _)| conn).collect());
        let entered = ids(changes.entered().map(|(conn, _)| conn).collect());
        (topics, left, entered)
    };
    let (topics, left, entered) = told(&room);
    room.router.end_presence(&topics[0]);
    assert_eq!((left, entered), (vec![], vec![1, 2]));
    room.unsubscribe(1);
    room.hear();
    let (_, left, entered) = told(&room);
    assert_eq!((left, entered), (vec![1], vec![]));
    room.hand_over(&config);
    assert_eq!(room.router.member_count(), 2, "one of them has left");
    let (topics, left, entered) = told(&room);
    assert_eq!((left, entered), (vec![1], vec![2]));
    // The broker may have told something that nobody here has heard.
    room.router.tell_watchers(&topics[0]).await;
    room.router.end_presence(&topics[0]);
    assert_eq!(room.hear(), ["2 hears missed"]);
    assert_eq!(room.asked(), ["join t"]);
    room.history((7, 3), (1, 0), 4..=3);
    room.end();
}
