//! Topics of a cluster, with a test in the place of the broker.

#![expect(clippy::wildcard_enum_match_arm, reason = "whatever else comes is a failure")]
#![expect(
    clippy::reversed_empty_ranges,
    reason = "a range is the messages of a page, also of none"
)]

use std::ops::RangeInclusive;

use weir_broker::{History, Received};
use weir_engine::{Item, Share};

use super::*;
use crate::observe::counters::{ClusterLimit, EpochOutcome, Following};
use crate::topics::follow::PARKED_MAX;
use crate::topics::{Need, Question};

/// One shard, whose connections hear what it is told, and the questions to the broker.
pub(super) struct Room {
    pub(super) router: Router,
    pub(super) mailbox: Detached<OwnedFd>,
    pub(super) budget: Arc<Budget>,
    members: BTreeSet<(ConnId, TopicId)>,
    pub(super) question: Option<Question>,
}

pub(super) const KEPT: usize = 100;

pub(super) fn class(retention_messages: usize, tick: Duration) -> TopicClass {
    TopicClass {
        pattern: "*".to_owned(),
        retention_messages,
        tick,
        resume_from_oldest: Some(false),
        ..TopicClass::default()
    }
}

pub(super) fn room_of(class: TopicClass, capacity: usize, topics_max: usize) -> Room {
    let mut config = config_of(class);
    config.limits.topics_max = topics_max;
    room_with(&config, capacity)
}

pub(super) fn room_with(config: &Config, capacity: usize) -> Room {
    let (mailbox, end) = Detached::mailbox(capacity, 1);
    let budget = Budget::new(1 << 20);
    let mailboxes = vec![mailbox].into();
    let router = Router::new(mailboxes, Arc::clone(&budget), Arc::default(), config, true);
    Room { router, mailbox: end, budget, members: BTreeSet::new(), question: None }
}

/// A topic `t` with three messages in epoch 7, and connection 1 in it.
pub(super) fn joined(retention_messages: usize, capacity: usize) -> Room {
    let mut room = room_of(class(retention_messages, Duration::ZERO), capacity, 10);
    assert_eq!(room.subscribe(1, None), Ok(()));
    assert_eq!(room.asked(), ["join t"]);
    room.history((7, 3), (1, 0), 1..=3);
    assert_eq!((room.hear(), room.asked()), (vec!["1 in 7.3".to_owned()], vec![]));
    room
}

pub(super) fn received(offset: u64) -> Received {
    let push = hot::Push {
        topic: "t",
        payload: hot::Payload::Text("value"),
        message_id: 1,
        ..hot::Push::default()
    };
    Received { offset, payload: Envelope { accepted_ms: u64::MAX, ttl: None, push }.encode() }
}

impl Room {
    pub(super) fn subscribe(
        &self,
        number: u64,
        position: Option<(u64, u64)>,
    ) -> Result<(), SubscribeError> {
        self.subscribe_to("t", number, position)
    }

    pub(super) fn subscribe_to(
        &self,
        topic: &str,
        number: u64,
        position: Option<(u64, u64)>,
    ) -> Result<(), SubscribeError> {
        let position = position.map(|(epoch, offset)| Position { epoch, offset });
        let subscriber =
            Subscriber { position, ..Subscriber::new(conn(0, number), Format::Stream) };
        self.take(topic, subscriber)
    }

    /// A connection's device has its number as id.
    pub(super) fn take(&self, topic: &str, subscriber: Subscriber) -> Result<(), SubscribeError> {
        let credit = self.router.mailboxes[0].try_credit(CreditKind::Control).unwrap();
        let device = number(subscriber.conn).to_string();
        let subscribed =
            self.router.subscribe(credit, topic, subscriber, || Some(device.as_str().into()));
        subscribed.map_err(|(error, _)| error)
    }

    pub(super) fn unsubscribe(&self, number: u64) {
        let credit = self.router.mailboxes[0].try_credit(CreditKind::Control).unwrap();
        self.router.unsubscribe(credit, conn(0, number), "t");
    }

    /// What the topics need from the broker. The newest question is answered next.
    pub(super) fn asked(&mut self) -> Vec<String> {
        let mut asked = |need| match need {
            Need::Join(topic, _, question) => {
                self.question = Some(question);
                format!("join {topic}")
            }
            Need::Read(topic, after, question) => {
                self.question = Some(question);
                format!("read {topic} {after}")
            }
            Need::Leave(topic) => format!("leave {topic}"),
            Need::Retry(topic) => format!("retry {topic}"),
        };
        self.router.needs().drain().into_iter().map(&mut asked).collect()
    }

    pub(super) fn history(
        &self,
        (epoch, top): (u64, u64),
        (first, began): (u64, u64),
        offsets: RangeInclusive<u64>,
    ) {
        let top = weir_broker::Position { epoch, offset: top };
        let messages = offsets.map(received).collect();
        let history = History { top, first, began, messages };
        self.router.handle_history("t", self.question.unwrap(), &history);
    }

    pub(super) fn fails(&self) -> bool {
        self.router.handle_failure("t", self.question.unwrap())
    }

    pub(super) fn live(&self, epoch: u64, offsets: RangeInclusive<u64>) {
        self.router.handle_messages("t", epoch, offsets.map(received).collect());
    }

    /// What connections hear, each thing with the number of the connection.
    pub(super) fn hear(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.hear_one()).flatten().collect()
    }

    fn hear_one(&mut self) -> Option<Vec<String>> {
        let command = self.mailbox.pop()?;
        let kind = command.credit_kind();
        let mut heard = Vec::new();
        match command {
            Command::Subscribe { conn, topic, reply } => {
                heard.push(format!("{} in {}", number(conn), position(&reply)));
                if !self.members.insert((conn, topic)) {
                    self.router.leave(topic, conn);
                }
            }
            Command::Resume(chunk) => {
                let conn = number(chunk.conn);
                if let Some(begin) = &chunk.begin {
                    heard.push(format!("{conn} in {}", position(&begin.reply)));
                }
                let messages = chunk.messages.iter().flat_map(|message| pushes(message.frame()));
                heard.extend(messages.map(|push| format!("{conn} m{}", push.1)));
                if chunk.is_last {
                    assert!(self.members.insert((chunk.conn, chunk.topic)));
                } else {
                    let credit = self.router.mailboxes[0].try_credit(CreditKind::Control).unwrap();
                    let part = (chunk.resume, chunk.after);
                    self.router.resume_next(credit, chunk.conn, chunk.topic, part);
                }
            }
            Command::Unsubscribe { conn, topic, .. } => {
                heard.push(format!("{} out", number(conn)));
                if self.members.remove(&(conn, topic)) {
                    self.router.leave(topic, conn);
                }
            }
            Command::Publish(topic, message) => {
                let (body, _) = frame::decode(message.frame(), 1 << 20).unwrap().unwrap();
                let heard_by_all = match hot::FromServer::decode(body).unwrap() {
                    hot::FromServer::Other => vec![format!("now {}", position(message.frame()))],
                    _ => {
                        pushes(message.frame()).iter().map(|push| format!("m{}", push.1)).collect()
                    }
                };
                for (conn, _) in self.members.iter().filter(|(_, other)| *other == topic) {
                    let of_conn =
                        heard_by_all.iter().map(|what| format!("{} {what}", number(*conn)));
                    heard.extend(of_conn);
                }
            }
            Command::Send(conn, Item::Frame(frame)) => {
                let server_message::Kind::Error(error) = decode(&frame) else { panic!() };
                heard.push(format!("{} {}", number(conn), error.code));
            }
            Command::Send(conn, Item::Message(message)) => {
                heard.push(format!("{} hears {}", number(conn), told(message.frame())));
            }
            Command::Retire(topic) => self.router.retired(topic),
            other => panic!("the router does not push {other:?}"),
        }
        self.mailbox.return_credit(kind);
        Some(heard)
    }

    /// All connections leave, and then the topics end: nothing is left.
    pub(super) fn end(mut self) {
        self.hear();
        for (conn, topic) in std::mem::take(&mut self.members) {
            self.router.leave(topic, conn);
            self.router.end_resumes(conn);
        }
        self.router.end_ticks();
        for topic in self.router.take_presence() {
            self.router.presence_changes(&topic, usize::MAX);
            self.router.end_presence(&topic);
        }
        self.router.leave_empty(Duration::ZERO, Nanos(u64::MAX));
        self.hear();
        self.router.retry_retirements();
        assert_eq!((self.router.check_empty(), self.budget.used()), (Ok(()), 0));
        assert_eq!(self.router.mailboxes[0].depth(), 0);
    }
}

pub(super) fn number(conn: ConnId) -> u64 {
    conn.to_u64() & 0xffff
}

/// Who has entered and who has left, by device.
fn told(frame: &[u8]) -> String {
    let server_message::Kind::Presence(presence) = decode(frame) else { panic!() };
    let joined = presence.joined.iter().map(|member| format!("+{}", member.device_id));
    let left = presence.left.iter().map(|member| format!("-{}", member.device_id));
    let missed = presence.missed.then(|| "missed".to_owned());
    let told: Vec<String> = missed.into_iter().chain(left).chain(joined).collect();
    told.join(" ")
}

fn position(reply: &[u8]) -> String {
    let server_message::Kind::Subscribed(subscribed) = decode(reply) else { panic!() };
    let Position { epoch, offset } = subscribed.position.unwrap();
    let recovered = if subscribed.recovered { " recovered" } else { "" };
    format!("{epoch}.{offset}{recovered}")
}

#[test]
fn the_first_subscriber_waits_and_those_behind_it_do_not() {
    let mut room = room_of(class(KEPT, Duration::ZERO), 100, 10);
    assert_eq!(room.subscribe(1, None), Ok(()));
    assert_eq!((room.hear(), room.asked()), (vec![], vec!["join t".to_owned()]));
    // The subscription stands before the read is answered.
    room.live(7, 2..=3);
    room.history((7, 2), (1, 0), 1..=2);
    assert_eq!(room.hear(), ["1 in 7.3"]);
    room.live(7, 4..=4);
    assert_eq!(room.subscribe(2, None), Ok(()));
    assert_eq!(room.hear(), ["1 m4", "2 in 7.4"]);
    assert_eq!(room.asked(), [""; 0]);
    room.end();
}

#[test]
fn who_resumes_gets_what_it_missed_as_soon_as_this_node_knows_it() {
    let mut room = joined(KEPT, 100);
    let known = ["2 in 7.1 recovered", "2 m2", "2 m3"];
    assert_eq!(
        (room.subscribe(2, Some((7, 1))), room.hear()),
        (Ok(()), known.map(str::to_owned).into())
    );
    // An epoch that this node does not know may be newer than the one that it knows.
    assert_eq!((room.subscribe(3, Some((8, 1))), room.hear()), (Ok(()), vec![]));
    assert_eq!(room.asked(), ["read t 3"]);
    room.history((7, 3), (1, 0), 4..=3);
    assert_eq!(room.hear(), ["3 in 7.3"]);
    // It has seen more at another node than this one has got so far.
    assert_eq!((room.subscribe(4, Some((7, 5))), room.hear()), (Ok(()), vec![]));
    assert_eq!(room.asked(), ["read t 3"]);
    // The next one comes after that read began.
    assert_eq!((room.subscribe(5, Some((7, 6))), room.hear()), (Ok(()), vec![]));
    room.history((7, 5), (1, 0), 4..=5);
    let heard = room.hear();
    assert_eq!(heard, ["1 m4", "2 m4", "3 m4", "1 m5", "2 m5", "3 m5"]);
    assert_eq!(room.asked(), ["read t 5"]);
    room.history((7, 6), (1, 0), 6..=6);
    let heard = room.hear();
    assert_eq!(heard[3..], ["5 in 7.6 recovered", "4 in 7.5 recovered", "4 m6"]);
    room.end();
}

#[test]
fn gaps_are_filled_and_what_came_twice_goes() {
    let mut room = joined(KEPT, 100);
    room.live(7, 2..=4);
    assert_eq!((room.hear(), room.asked()), (vec!["1 m4".to_owned()], vec![]));
    room.live(7, 6..=6);
    room.live(7, 7..=7);
    assert_eq!((room.hear(), room.asked()), (vec![], vec!["read t 4".to_owned()]));
    room.history((7, 6), (1, 0), 5..=6);
    assert_eq!(
        (room.hear(), room.asked()),
        (["1 m5", "1 m6", "1 m7"].map(str::to_owned).into(), vec![])
    );
    // A page is not all.
    room.router.handle_gap(&weir_broker::Scope::All);
    assert_eq!(room.asked(), ["read t 7"]);
    room.history((7, 9), (1, 0), 8..=8);
    assert_eq!(room.asked(), ["read t 8"]);
    room.history((7, 9), (1, 0), 9..=9);
    assert_eq!(room.hear(), ["1 m8", "1 m9"]);
    // What the broker keeps no more is lost, and told.
    room.live(7, 14..=14);
    assert_eq!(room.asked(), ["read t 9"]);
    room.history((7, 14), (13, 0), 13..=14);
    assert_eq!(room.hear(), ["1 now 7.12", "1 m13", "1 m14"]);
    let counted = [Following::Gap, Following::Filled, Following::Lost, Following::Restarted]
        .map(|what| room.router.counters.following(what));
    assert_eq!(counted, [2, 6, 3, 1]);
    room.end();
}

#[test]
fn without_retention_offsets_tell_the_gap() {
    let mut room = joined(0, 100);
    room.live(7, 6..=6);
    assert_eq!((room.hear(), room.asked()), (vec!["1 m6".to_owned()], vec![]));
    assert_eq!(room.router.counters.following(Following::Lost), 2);
    room.end();
}

#[test]
fn a_new_epoch_is_told_before_its_first_message() {
    let mut room = joined(KEPT, 100);
    room.live(8, 3..=3);
    assert_eq!((room.hear(), room.asked()), (vec![], vec!["read t 3".to_owned()]));
    room.history((8, 3), (1, 2), 4..=3);
    assert_eq!(
        (room.hear(), room.asked()),
        (vec!["1 now 8.2".to_owned()], vec!["read t 2".to_owned()])
    );
    room.history((8, 3), (1, 2), 3..=3);
    assert_eq!((room.hear(), room.asked()), (vec!["1 m3".to_owned()], vec![]));
    // A message of the former epoch that comes late changes nothing.
    room.live(7, 4..=4);
    assert_eq!(room.asked(), ["read t 3"]);
    room.history((8, 3), (1, 2), 4..=3);
    assert_eq!(room.asked(), ["read t 3"]);
    room.history((8, 3), (1, 2), 4..=3);
    assert_eq!((room.hear(), room.asked()), (vec![], vec![]));
    // Where the broker has lost nothing that this node had got, the new epoch was a false alarm.
    room.live(9, 4..=4);
    assert_eq!(room.asked(), ["read t 3"]);
    room.history((9, 4), (1, 3), 4..=4);
    assert_eq!(room.hear(), ["1 now 9.3", "1 m4"]);
    let counted = EpochOutcome::ALL.map(|what| room.router.counters.epoch_changes(what));
    assert_eq!((EpochOutcome::ALL[0], counted), (EpochOutcome::Continued, [1, 1]));
    room.end();
}

#[test]
fn while_the_broker_is_lost_subscribers_are_refused() {
    let mut room = joined(KEPT, 100);
    room.router.set_broker_lost(true);
    assert_eq!(room.subscribe(2, None), Err(SubscribeError::BrokerUnavailable));
    room.router.set_broker_lost(false);
    // One that waits is told.
    assert_eq!(room.subscribe(2, Some((7, 4))), Ok(()));
    assert_eq!(room.asked(), ["read t 3"]);
    assert!(room.fails(), "a topic with members is read again");
    assert_eq!(room.hear(), ["2 busy"]);
    room.history((7, 4), (1, 0), 4..=4);
    assert_eq!(room.hear(), ["1 m4"]);
    room.end();
}

#[test]
fn a_join_that_fails_is_taken_back() {
    let mut room = room_of(class(KEPT, Duration::ZERO), 100, 10);
    assert_eq!(room.subscribe(1, None), Ok(()));
    assert_eq!(room.asked(), ["join t"]);
    room.live(7, 1..=1);
    assert!(!room.fails());
    assert_eq!(
        (room.hear(), room.asked()),
        (vec!["1 busy".to_owned()], vec!["leave t".to_owned()])
    );
    assert_eq!(room.budget.used(), 0, "what was held has gone");
    assert_eq!(room.subscribe(1, None), Ok(()));
    assert_eq!(room.asked(), ["join t"]);
    room.history((7, 1), (1, 0), 1..=1);
    assert_eq!(room.hear(), ["1 in 7.1"]);
    room.end();
}

#[test]
fn without_credits_those_who_wait_are_refused_later() {
    let mut room = room_of(class(KEPT, Duration::ZERO), 2, 10);
    for number in 1..=6 {
        assert_eq!(room.subscribe(number, None), Ok(()));
    }
    assert_eq!(room.asked(), ["join t"]);
    assert!(!room.fails());
    assert_eq!(
        (room.hear(), room.asked()),
        (busy([6, 5]), ["retry t", "leave t"].map(str::to_owned).into())
    );
    room.router.go_on("t");
    assert_eq!((room.hear(), room.asked()), (busy([4, 3]), vec!["retry t".to_owned()]));
    // One that comes meanwhile has the topic joined again, and the answer is for all.
    assert_eq!(room.subscribe(7, None), Ok(()));
    assert_eq!(room.asked(), ["join t"]);
    room.router.go_on("t");
    assert_eq!((room.hear(), room.asked()), (vec![], vec![]));
    room.history((7, 0), (1, 0), 1..=0);
    assert_eq!(room.asked(), ["read t 0"], "the first six came while the join was under way");
    room.history((7, 0), (1, 0), 1..=0);
    assert_eq!(room.hear(), ["7 in 7.0", "2 in 7.0"]);
    room.router.go_on("t");
    assert_eq!(room.hear(), ["1 in 7.0"]);
    assert_eq!(room.router.parked_count(), 0);
    room.end();
}

fn busy(numbers: [u64; 2]) -> Vec<String> {
    numbers.map(|number| format!("{number} busy")).into()
}

#[test]
fn without_credits_a_topic_falls_behind_and_recovers() {
    let mut room = joined(KEPT, 2);
    room.live(7, 4..=7);
    assert_eq!(room.asked(), ["retry t"]);
    room.router.go_on("t");
    assert_eq!(room.asked(), ["retry t"]);
    assert_eq!(room.hear(), ["1 m4", "1 m5"]);
    room.router.go_on("t");
    assert_eq!((room.hear(), room.asked()), (["1 m6", "1 m7"].map(str::to_owned).into(), vec![]));
    // In the middle of a page.
    room.live(7, 12..=12);
    assert_eq!(room.asked(), ["read t 7"]);
    room.history((7, 12), (1, 0), 8..=12);
    assert_eq!(
        (room.hear(), room.asked()),
        (["1 m8", "1 m9"].map(str::to_owned).into(), vec!["retry t".to_owned()])
    );
    room.router.go_on("t");
    assert_eq!(room.asked(), ["read t 9"]);
    room.history((7, 11), (1, 0), 10..=11);
    assert_eq!(room.hear(), ["1 m10", "1 m11"]);
    room.live(7, 12..=12);
    room.hear();
    // Before the notice of a new epoch.
    room.live(7, 13..=14);
    room.live(8, 1..=1);
    assert_eq!(room.asked(), ["read t 14"]);
    room.history((8, 1), (1, 0), 2..=1);
    assert_eq!(room.asked(), ["retry t"]);
    assert_eq!(room.hear(), ["1 m13", "1 m14"]);
    room.router.go_on("t");
    assert_eq!(room.asked(), ["read t 14"]);
    room.history((8, 1), (1, 0), 2..=1);
    assert_eq!(
        (room.hear(), room.asked()),
        (vec!["1 now 8.0".to_owned()], vec!["read t 0".to_owned()])
    );
    room.history((8, 1), (1, 0), 1..=1);
    assert_eq!(room.hear(), ["1 m1"]);
    room.end();
}

#[test]
fn without_budget_what_is_held_goes_and_is_read_again() {
    let mut room = joined(KEPT, 100);
    let bytes = (1 << 20) - room.budget.used();
    let taken = (0..bytes).take_while(|_| room.budget.take(Share::Messages, 1)).count();
    room.live(7, 4..=4);
    assert_eq!((room.hear(), room.asked()), (vec![], vec!["retry t".to_owned()]));
    room.budget.give(Share::Messages, taken);
    room.router.go_on("t");
    assert_eq!(room.asked(), ["read t 3"]);
    room.history((7, 4), (1, 0), 4..=4);
    assert_eq!((room.hear(), room.asked()), (vec!["1 m4".to_owned()], vec![]));
    room.end();
}

#[test]
fn what_waits_for_earlier_messages_is_bounded_and_read_again() {
    let mut room = joined(2 * 1_100, 2_000);
    room.live(7, 5..=5);
    assert_eq!(room.asked(), ["read t 3"]);
    room.live(7, 6..=1_100);
    let limit = |room: &Room| room.router.counters.cluster_limits(ClusterLimit::Held);
    assert_eq!(limit(&room), 1_096 - 1_024);
    room.history((7, 1_100), (1, 0), 4..=4);
    assert_eq!((room.hear(), room.asked()), (vec!["1 m4".into()], vec!["read t 4".into()]));
    room.history((7, 1_100), (1, 0), 5..=1_100);
    let heard = room.hear();
    assert_eq!((heard.len(), heard.last().unwrap().as_str()), (1_096, "1 m1100"));
    room.end();
}

#[test]
fn subscriptions_that_wait_are_bounded() {
    let mut room = room_of(class(KEPT, Duration::ZERO), 100, 10);
    for number in 0..PARKED_MAX as u64 {
        assert_eq!(room.subscribe(number, None), Ok(()));
    }
    assert_eq!(room.router.parked_count(), PARKED_MAX);
    assert_eq!(room.subscribe(u64::from(u32::MAX), None), Err(SubscribeError::BrokerUnavailable));
    assert_eq!(room.router.counters.cluster_limits(ClusterLimit::Subscriptions), 1);
    for number in 0..PARKED_MAX as u64 {
        room.router.end_resumes(conn(0, number));
    }
    room.asked();
    room.end();
}
