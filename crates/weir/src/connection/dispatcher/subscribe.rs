//! Subscriptions: what a connection asks for, and what it is told.

use weir_broker::Name;
use weir_engine::{Command, ConnId, CreditKind, DeviceRef, Item};
use weir_wire::ErrorCode;
use weir_wire::v1::Subscribe;

use super::{Asker, Dispatcher, Job, OutOfCredit, caller};
use crate::auth::Act;
use crate::backends::questions::Outcome;
use crate::base::frames;
use crate::base::model::SubscribeError;
use crate::core::asking::subscribe_answered;
use crate::core::events::EventKind;
use crate::core::rights::Denied;
use crate::observe::counters::SubscribeRefuseCause;
use crate::topics::{Subscriber, left};

impl Dispatcher {
    /// Subscribes the topics of `Hello` before any later message of the connection is handled.
    pub(super) fn subscribe_first(&mut self, asker: Asker, topics: Vec<Subscribe>) {
        let limit = self.shared.config().limits.topics_per_connection_max;
        if topics.len() > limit {
            let message = format!(
                "hello asks for more topics than the limit of {limit} (limits.topics_per_connection_max)"
            );
            self.shared
                .counters()
                .count_subscribe_refused(SubscribeRefuseCause::TopicsPerConnectionMax);
            self.answer(asker.conn, frames::error(ErrorCode::TooManyTopics, message, "", 0));
        }
        let topics = topics.into_iter().take(limit);
        if self.shared.questions.asks_acts() {
            return self.receive_first(asker, topics.collect());
        }
        for subscribe in topics.rev() {
            self.want_topic(asker, subscribe, None);
        }
    }

    /// Ends a subscription because its connection asked for that.
    pub(super) fn unsubscribe(
        &mut self,
        conn: ConnId,
        device: DeviceRef,
        topic: String,
    ) -> Result<(), OutOfCredit> {
        let credit = self.shared.mailbox(self.shard).try_credit(CreditKind::Control);
        let router = &self.shared.router;
        if !credit.is_some_and(|credit| router.unsubscribe(credit, conn, &topic)) {
            return Err(OutOfCredit(Job::Unsubscribe { conn, device, topic }));
        }
        self.tell(conn, device, || EventKind::Unsubscribed(topic));
        Ok(())
    }

    /// Ends a subscription that is no longer permitted.
    pub(super) fn expel(
        &mut self,
        conn: ConnId,
        device: DeviceRef,
        topic: String,
    ) -> Result<(), OutOfCredit> {
        let credit = self.shared.mailbox(self.shard).try_credit(CreditKind::Control);
        if !credit.is_some_and(|credit| self.shared.router.expel(credit, conn, &topic)) {
            return Err(OutOfCredit(Job::Expel { conn, device, topic }));
        }
        self.tell(conn, device, || EventKind::Unsubscribed(topic));
        Ok(())
    }

    /// Queues a subscription, if the topic's name is valid, the connection has the right, and the
    /// hook permits it.
    pub(super) fn want_topic(
        &mut self,
        asker: Asker,
        subscribe: Subscribe,
        outcome: Option<Outcome>,
    ) {
        let Subscribe { topic, position, presence } = subscribe;
        let conn = asker.conn;
        let checked = match presence {
            true => {
                let grant = self.grant(asker);
                self.shared.permit_presence(&caller(&grant, asker), &topic).map(|_| ())
            }
            false => self.check(asker, Act::Subscribe, &topic),
        };
        let answered = |outcome| subscribe_answered(&topic, outcome);
        let checked = checked.and_then(|()| outcome.map_or(Ok(()), answered));
        let Err(denied) = checked else {
            let Asker { device, origin, .. } = asker;
            let format = origin.format();
            self.jobs.push_front(Job::Subscribe {
                conn,
                device,
                format,
                topic,
                position,
                presence,
            });
            return;
        };
        let frame = match denied {
            // The answer does not repeat the topic, which may be long.
            Denied::Name(error) => {
                self.shared.counters().count_subscribe_refused(SubscribeRefuseCause::TopicName);
                frames::error(ErrorCode::TopicName, error.to_string(), "", 0)
            }
            Denied::NotPermitted(message) => {
                self.shared.counters().count_subscribe_refused(SubscribeRefuseCause::NotPermitted);
                frames::error(ErrorCode::NotPermitted, message, &topic, 0)
            }
            Denied::Hook(message) => {
                self.shared.counters().count_subscribe_refused(SubscribeRefuseCause::Hook);
                frames::error(ErrorCode::NotPermitted, message, &topic, 0)
            }
            Denied::HookUnavailable(message) => {
                let cause = SubscribeRefuseCause::HookUnavailable;
                self.shared.counters().count_subscribe_refused(cause);
                frames::error(ErrorCode::Busy, message, &topic, 0)
            }
            Denied::NoPresence(message) => {
                self.shared.counters().count_subscribe_refused(SubscribeRefuseCause::NoPresence);
                frames::error(ErrorCode::NotSupported, message, &topic, 0)
            }
        };
        self.answer(conn, frame);
    }

    /// Queues the end of a subscription. A connection without the right to subscribe is in no such
    /// topic, and must learn nothing about it.
    pub(super) fn leave_topic(&mut self, asker: Asker, topic: String) {
        let (conn, device) = (asker.conn, asker.device);
        match self.check(asker, Act::Subscribe, &topic) {
            Ok(()) => self.jobs.push_front(Job::Unsubscribe { conn, device, topic }),
            // The answer does not repeat the topic, which may be long.
            Err(Denied::Name(error)) => {
                self.shared.counters().count_subscribe_refused(SubscribeRefuseCause::TopicName);
                let message = error.to_string();
                self.answer(conn, frames::error(ErrorCode::TopicName, message, "", 0));
            }
            Err(
                Denied::NotPermitted(_)
                | Denied::NoPresence(_)
                | Denied::Hook(_)
                | Denied::HookUnavailable(_),
            ) => {
                self.answer(conn, left(&topic));
            }
        }
    }

    pub(super) fn subscribe(
        &mut self,
        device: DeviceRef,
        topic: String,
        subscriber: Subscriber,
    ) -> Result<(), OutOfCredit> {
        let Subscriber { conn, format, position, presence, .. } = subscriber;
        let Some(credit) = self.shared.mailbox(self.shard).try_credit(CreditKind::Control) else {
            let job = Job::Subscribe { conn, device, format, topic, position, presence };
            return Err(OutOfCredit(job));
        };
        let named = || self.shared.devices.with_id_of(device, conn, |id| Name::from(id));
        let subscribed = self.shared.router.subscribe(credit, &topic, subscriber, named);
        if let Err((error, credit)) = subscribed {
            let Some(cause) = SubscribeRefuseCause::of(error) else {
                let job = Job::Subscribe { conn, device, format, topic, position, presence };
                return Err(OutOfCredit(job));
            };
            self.shared.counters().count_subscribe_refused(cause);
            let frame = match error {
                // The answer does not repeat the topic, which may be long.
                SubscribeError::Name(error) => {
                    frames::error(ErrorCode::TopicName, error.to_string(), "", 0)
                }
                SubscribeError::BrokerUnavailable => {
                    let message = "the broker cannot be reached; try again in a second".to_owned();
                    frames::error(ErrorCode::Busy, message, &topic, 0)
                }
                SubscribeError::TooManyMembers => {
                    let limit = self.shared.config().limits.presence_members_max;
                    let message = format!(
                        "all {limit} places of topics with presence are in use (limits.presence_members_max); \
                         try again later, or without presence"
                    );
                    frames::error(ErrorCode::Busy, message, &topic, 0)
                }
                SubscribeError::Busy => return Ok(()),
                SubscribeError::TooManyTopics => {
                    let limit = self.shared.config().limits.topics_max;
                    let message = format!("all {limit} topics are in use (limits.topics_max)");
                    frames::error(ErrorCode::TooManyTopics, message, &topic, 0)
                }
            };
            credit.push(Command::Send(conn, Item::Frame(frame)));
            return Ok(());
        }
        self.tell(conn, device, || EventKind::Subscribed(topic));
        Ok(())
    }
}
