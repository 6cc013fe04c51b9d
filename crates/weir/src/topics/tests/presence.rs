//! Who is in a topic, and who hears of it: a router with one shard, and a test that ends the ticks.

#![expect(
    clippy::reversed_empty_ranges,
    reason = "a range is the messages of a page, also of none"
)]

use weir_broker::{ConnectionNumber, Member, Name, Scope};

use super::broker::{Room, class, number, room_with};
use super::*;
use crate::base::config;
use crate::observe::counters::PresenceOutcome;

/// Topics with presence; `scope` is that of the class.
fn room(scope: config::Scope, members_max: usize) -> Room {
    let class = TopicClass { presence: true, scope: Some(scope), ..class(4, Duration::ZERO) };
    let mut config = config_of(class);
    config.limits.presence_members_max = members_max;
    // A replay chunk holds one message.
    config.connection.low_watermark_bytes = 30;
    room_with(&config, 20)
}

fn local() -> Room {
    room(config::Scope::Node, 100)
}

/// Topic `t` of a cluster, which connection 1 has entered.
fn joined() -> Room {
    let mut room = room(config::Scope::Cluster, 100);
    room.enter(1, false);
    // While the broker has not answered, it is not in the topic.
    assert_eq!(room.changes(), "");
    room.asked();
    room.history((7, 0), (1, 0), 1..=0);
    assert_eq!((room.hear(), room.changes()), (vec!["1 in 7.0".to_owned()], "+1".to_owned()));
    room
}

fn member(number: u64) -> Member {
    let device = Name::from(number.to_string());
    Member { connection: ConnectionNumber(conn(0, number).to_u64()), device }
}

impl Room {
    fn enter(&self, number: u64, presence: bool) {
        let subscriber =
            Subscriber { presence, ..Subscriber::new(conn(0, number), Format::Stream) };
        assert_eq!(self.take("t", subscriber), Ok(()));
    }

    /// A tick ends; what connections hear.
    async fn tick(&mut self) -> Vec<String> {
        for topic in self.router.take_presence() {
            self.router.tell_watchers(&topic).await;
            self.router.end_presence(&topic);
        }
        self.hear()
    }

    /// What the broker is told.
    fn changes(&self) -> String {
        let mut told = Vec::new();
        for topic in self.router.take_presence() {
            let changes = self.router.presence_changes(&topic, 100);
            told.extend(changes.left().map(|(conn, _)| format!("-{}", number(conn))));
            told.extend(changes.entered().map(|(conn, _)| format!("+{}", number(conn))));
            self.router.end_presence(&topic);
        }
        told.join(" ")
    }

    fn listed(&self) -> Vec<u64> {
        let page = self.router.members("t", None, 100);
        page.members.iter().map(|(conn, _)| number(*conn)).collect()
    }

    fn count(&self, outcome: PresenceOutcome) -> u64 {
        self.router.counters.presence(outcome)
    }
}

#[tokio::test]
async fn watchers_hear_who_enters_and_leaves_and_nobody_else_does() {
    let mut room = local();
    room.enter(1, false);
    assert_eq!((room.hear().len(), room.tick().await), (1, vec![]));
    room.enter(2, true);
    room.enter(3, false);
    room.unsubscribe(3);
    assert_eq!(room.hear().len(), 3);
    // Who was there before is not told, nor who came and left within a tick.
    assert_eq!(room.tick().await, ["2 hears +2"]);
    room.enter(3, true);
    room.unsubscribe(1);
    room.hear();
    assert_eq!(
        (room.tick().await, room.listed()),
        (vec!["2 hears -1 +3".to_owned(), "3 hears -1 +3".to_owned()], vec![2, 3],)
    );
    let told = [PresenceOutcome::Joined, PresenceOutcome::Left].map(|outcome| room.count(outcome));
    assert_eq!(told, [2, 1]);
    room.end();
}

/// The second `Subscribe` makes no second membership; what it says of presence counts.
#[tokio::test]
async fn presence_is_turned_on_and_off_by_another_subscribe() {
    let mut room = local();
    room.enter(1, false);
    room.enter(1, true);
    room.hear();
    assert_eq!((room.tick().await, room.listed()), (vec![], vec![1]));
    room.enter(2, true);
    room.hear();
    assert_eq!(room.tick().await.len(), 2);
    room.enter(1, false);
    room.enter(3, false);
    room.hear();
    assert_eq!(room.tick().await, ["2 hears +3"]);
    // Who has left hears nothing more, whatever was on its way.
    room.enter(4, false);
    room.hear();
    let topics = room.router.take_presence();
    room.unsubscribe(2);
    room.router.tell_watchers(&topics[0]).await;
    room.router.end_presence(&topics[0]);
    assert_eq!((room.hear(), room.listed()), (vec!["2 out".to_owned()], vec![1, 3, 4]));
    room.end();
}

/// A connection that resumes has been told that it is in the topic.
#[tokio::test]
async fn who_resumes_is_present_until_the_resume_is_called_off() {
    let mut room = local();
    room.enter(1, true);
    room.hear();
    room.tick().await;
    for _ in 0..3 {
        publish(&room.router, &room.budget, "t").unwrap();
    }
    let position = Some(Position { epoch: room.router.epoch("t").unwrap(), offset: 0 });
    let resume = |room: &Room, number| {
        let subscriber =
            Subscriber { position, ..Subscriber::new(conn(0, number), Format::Stream) };
        assert_eq!(room.take("t", subscriber), Ok(()));
    };
    resume(&room, 2);
    // It resumes the topic already, so this is refused and counts nothing.
    resume(&room, 2);
    room.hear();
    assert_eq!((room.tick().await, room.listed()), (vec!["1 hears +2".to_owned()], vec![1, 2]));
    room.unsubscribe(2);
    room.hear();
    assert_eq!((room.tick().await, room.listed()), (vec!["1 hears -2".to_owned()], vec![1]));
    // The connection ends before its shard has taken the first part.
    resume(&room, 3);
    room.router.end_resumes(conn(0, 3));
    room.hear();
    assert_eq!((room.tick().await, room.listed()), (vec![], vec![1]));
    room.unsubscribe(1);
    room.hear();
    sweep(&room.router, Nanos(u64::MAX));
    room.end();
}

#[tokio::test]
async fn in_a_cluster_the_broker_is_told_and_tells() {
    let mut room = joined();
    room.enter(2, true);
    assert_eq!((room.hear(), room.changes()), (vec!["2 in 7.0".to_owned()], "+2".to_owned()));
    room.router.handle_presence("t", vec![member(2), member(9)], vec![member(8)]);
    assert_eq!(room.tick().await, ["2 hears -8 +2 +9"]);
    // After a gap all are entered again, and watchers are told that they may have missed some.
    room.unsubscribe(1);
    room.hear();
    room.router.handle_gap(&Scope::Topics(vec!["t".into()]));
    assert_eq!(
        (room.changes(), room.tick().await),
        ("-1 +2".to_owned(), vec!["2 hears missed".to_owned()])
    );
    assert_eq!(room.count(PresenceOutcome::Missed), 1);
    room.router.handle_gap(&Scope::All);
    room.router.enter_all_again();
    assert_eq!(room.changes(), "+2");
    assert_eq!(room.tick().await.len(), 1);
    room.asked();
    room.history((7, 0), (1, 0), 1..=0);
    // The topic lives until the broker knows that all have left.
    room.unsubscribe(2);
    room.hear();
    room.router.leave_empty(Duration::ZERO, Nanos(u64::MAX));
    assert_eq!((room.router.topic_count(), room.changes()), (1, "-2".to_owned()));
    room.end();
}

#[tokio::test]
async fn beyond_the_limit_connections_are_not_listed_and_cannot_watch() {
    let mut room = room(config::Scope::Node, 1);
    room.enter(1, true);
    room.enter(2, false);
    let watcher =
        |number| Subscriber { presence: true, ..Subscriber::new(conn(0, number), Format::Stream) };
    assert_eq!(room.take("t", watcher(2)), Err(SubscribeError::TooManyMembers));
    assert_eq!(room.take("u", watcher(3)), Err(SubscribeError::TooManyMembers));
    // It has its place.
    assert_eq!(room.take("t", watcher(1)), Ok(()));
    assert_eq!((room.router.member_count(), room.router.unlisted_count()), (1, 1));
    assert!(!room.router.members("t", None, 9).is_complete);
    room.unsubscribe(1);
    room.hear();
    assert_eq!((room.router.member_count(), room.listed()), (0, vec![]));
    // Now there is a place for it.
    room.enter(2, true);
    room.hear();
    assert_eq!((room.router.unlisted_count(), room.listed()), (0, vec![2]));
    assert_eq!(room.count(PresenceOutcome::Unlisted), 1);
    room.end();
}

/// A watcher whose shard has no credit is waited for, unless it leaves.
#[tokio::test(start_paused = true)]
async fn watchers_are_waited_for_as_long_as_they_watch() {
    let mut room = local();
    for number in [1, 2] {
        room.enter(number, true);
    }
    room.hear();
    let taken: Vec<_> =
        std::iter::from_fn(|| room.router.mailboxes[0].try_credit(CreditKind::Message)).collect();
    let topics = room.router.take_presence();
    {
        let telling = room.router.tell_watchers(&topics[0]);
        tokio::pin!(telling);
        let ended = tokio::time::timeout(Duration::from_secs(60), &mut telling).await;
        assert!(ended.is_err());
        room.router.forget_shard(0);
        telling.await;
    }
    drop(taken);
    room.router.end_presence(&topics[0]);
    assert_eq!((room.hear(), room.listed()), (vec![], vec![]));
    room.end();
}

/// Without room in the budget watchers are told so as soon as there is some.
#[tokio::test]
async fn what_finds_no_room_is_told_as_missed() {
    let mut room = local();
    room.enter(1, true);
    room.hear();
    room.tick().await;
    let bytes = room.budget.bytes_max_of(weir_engine::Share::Messages) - room.budget.used();
    assert!(room.budget.take(weir_engine::Share::Messages, bytes));
    room.enter(2, false);
    room.hear();
    assert_eq!(room.tick().await, [""; 0]);
    room.budget.give(weir_engine::Share::Messages, bytes);
    assert_eq!((room.tick().await, room.listed()), (vec!["1 hears missed".to_owned()], vec![1, 2]));
    room.end();
}
