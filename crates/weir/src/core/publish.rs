//! Publishing: to a topic, to a device, to all. Nothing here waits.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use weir_engine::{Command, ConnId, Credit, Item, Message, Nanos, Priority, TopicMessage};
use weir_wire::hot;

use crate::base::mailboxes::{self, Publisher};
use crate::base::model::{Accepted, Payload, Publication, PublishError, Target};
use crate::core::state::SharedState;
use crate::observe::counters::{PublishTarget, RefuseCause};
use crate::topics::{Class, Offer, Place, RouteError, validate_name};

impl SharedState {
    pub(crate) fn publish(
        &self,
        publication: &Publication<'_>,
        publisher: Publisher,
    ) -> Result<Accepted, PublishError> {
        let accepted = self.route(publication, publisher);
        match &accepted {
            Ok(_) => self.counters().count_published(PublishTarget::of(&publication.target)),
            Err(error) => self.counters().count_refused(RefuseCause::of(error)),
        }
        accepted
    }

    fn route(
        &self,
        publication: &Publication<'_>,
        publisher: Publisher,
    ) -> Result<Accepted, PublishError> {
        let draft = Draft::new(self, publication, publisher)?;
        match publication.target {
            Target::Topic(topic) => self.publish_to_topic(topic, &draft),
            Target::Device(device) => self.publish_to_device(device, &draft),
            Target::All => self.publish_to_all(&draft),
        }
    }

    fn publish_to_topic(&self, topic: &str, draft: &Draft<'_>) -> Result<Accepted, PublishError> {
        validate_name(topic, self.config().limits.topic_bytes_max)?;
        let message = |class: &Class, place| draft.topic_message(class, place);
        let routed = self.router.publish(topic, draft.offer(), message);
        let routed = routed.map_err(|error| draft.error(error))?;
        let connections = routed.map_or(0, |routed| routed.connections);
        Ok(Accepted { id: draft.id, offset: routed.map(|routed| routed.offset), connections })
    }

    /// Under the device's lock, so that a connection that replaces another at this moment gets the message, or the one
    /// before it does.
    fn publish_to_device(&self, device: &str, draft: &Draft<'_>) -> Result<Accepted, PublishError> {
        self.devices.look_at(device, |conns| {
            if conns.len() == 0 {
                return Ok(draft.accepted(0));
            }
            let credits = conns.iter().map(|conn| {
                mailboxes::try_credit(self.mailbox(conn.shard()), Priority::Normal, draft.publisher)
            });
            let credits: Vec<Credit<'_, OwnedFd>> =
                credits.collect::<Option<_>>().ok_or(PublishError::Busy(RETRY_AFTER))?;
            // The first connection stands for the device.
            let target = conns.iter().next().map_or(0, |conn| conn.to_u64());
            let message =
                draft.message(target).ok_or(PublishError::BudgetExhausted(RETRY_AFTER))?;
            for (credit, conn) in credits.into_iter().zip(conns.iter()) {
                credit.push(Command::Send(conn, Item::Message(Arc::clone(&message))));
            }
            Ok(draft.accepted(conns.len()))
        })
    }

    fn publish_to_all(&self, draft: &Draft<'_>) -> Result<Accepted, PublishError> {
        let connections = self.devices.connection_count();
        if connections == 0 {
            return Ok(draft.accepted(0));
        }
        let credit = |mailbox| mailboxes::try_credit(mailbox, Priority::Normal, draft.publisher);
        let credits = self.mailboxes().iter().map(credit);
        let credits: Vec<Credit<'_, OwnedFd>> =
            credits.collect::<Option<_>>().ok_or(PublishError::Busy(RETRY_AFTER))?;
        let message = draft.message(0).ok_or(PublishError::BudgetExhausted(RETRY_AFTER))?;
        if !self.formats.get().encode_ahead(&message, self.counters()) {
            return Err(PublishError::BudgetExhausted(RETRY_AFTER));
        }
        for credit in credits {
            credit.push(Command::Broadcast(Arc::clone(&message)));
        }
        Ok(draft.accepted(connections))
    }
}

/// A message before its offset is known.
struct Draft<'a> {
    shared: &'a SharedState,
    push: hot::Push<'a>,
    id: u64,
    accepted_at: Nanos,
    expires_at: Option<Nanos>,
    publisher: Publisher,
}

impl<'a> Draft<'a> {
    fn new(
        shared: &'a SharedState,
        publication: &Publication<'a>,
        publisher: Publisher,
    ) -> Result<Draft<'a>, PublishError> {
        let id = shared.next_message_id();
        let push = hot::Push {
            topic: match publication.target {
                Target::Topic(topic) => topic,
                Target::Device(_) | Target::All => "",
            },
            payload: match publication.payload {
                Payload::Text(text) => hot::Payload::Text(text),
                Payload::Data(data) => hot::Payload::Data(data),
            },
            content_type: publication.content_type,
            key: publication.key,
            message_id: id,
            // Stands for the longest one until the real one is known.
            offset: u64::MAX,
            sender: publication.sender.map_or(0, ConnId::to_u64),
        };
        let (bytes, limit) = (push.frame_bytes(), shared.config().limits.frame_bytes_max);
        if bytes > limit {
            return Err(PublishError::TooLarge { bytes, limit });
        }
        let accepted_at = Nanos::now();
        let expires_at = publication.ttl.map(|ttl| accepted_at.after(ttl));
        Ok(Draft { shared, push, id, accepted_at, expires_at, publisher })
    }

    fn offer(&self) -> Offer<'_> {
        let frame_bytes = self.push.frame_bytes();
        let (accepted_at, publisher) = (self.accepted_at, self.publisher);
        Offer { frame_bytes, key: self.push.key, accepted_at, publisher }
    }

    /// Encodes it for a device, or for all (0); `None` if the budget is used up.
    fn message(&self, target: u64) -> Option<Arc<Message>> {
        let (frame, _) = self.encode(0);
        self.made(frame, TopicMessage { target, ..TopicMessage::default() })
    }

    /// Encodes it for a topic; `None` if the budget is used up.
    fn topic_message(&self, class: &Class, place: Place) -> Option<Arc<Message>> {
        let (frame, key) = self.encode(place.offset);
        self.made(frame, class.topic_message(place, key))
    }

    fn made(&self, frame: Vec<u8>, topic: TopicMessage) -> Option<Arc<Message>> {
        let leaves_room = self.publisher == Publisher::Device;
        let topic = TopicMessage { sender: self.push.sender, leaves_room, ..topic };
        let budget = self.shared.engine().budget();
        Message::of_topic(budget, frame, self.accepted_at, self.expires_at, topic)
    }

    /// The frame, and where its key stands in it.
    fn encode(&self, offset: u64) -> (Vec<u8>, Range<u32>) {
        let push = hot::Push { offset, ..self.push };
        let mut frame = Vec::with_capacity(push.frame_bytes());
        let key = push.encode_frame(&mut frame);
        let place = |at| u32::try_from(at).expect("a frame is shorter than four gigabytes");
        (frame, place(key.start)..place(key.end))
    }

    fn error(&self, error: RouteError) -> PublishError {
        match error {
            RouteError::Busy => PublishError::Busy(RETRY_AFTER),
            RouteError::Budget => PublishError::BudgetExhausted(RETRY_AFTER),
            RouteError::TooLarge { limit } => {
                PublishError::TooLargeForTopic { bytes: self.push.frame_bytes(), limit }
            }
            RouteError::RateLimited { per_second, after } => {
                PublishError::RateLimited { per_second, after }
            }
            RouteError::TickFull { limit, after } => PublishError::TickFull { limit, after },
            RouteError::TooManyTopics => PublishError::TooManyTopics {
                limit: self.shared.config().limits.topics_max,
                after: RETRY_AFTER,
            },
        }
    }

    fn accepted(&self, connections: usize) -> Accepted {
        let connections = u32::try_from(connections).unwrap_or(u32::MAX);
        Accepted { id: self.id, offset: None, connections }
    }
}

/// Checks what a device says of its message; the admin API has the same rule.
///
/// Errors: a sentence with the field, its length and the limit.
pub(crate) fn check_fields(content_type: &str, key: &str) -> Result<(), String> {
    for (field, value) in [("content_type", content_type), ("key", key)] {
        if value.len() > FIELD_BYTES_MAX {
            let bytes = value.len();
            return Err(format!("{field} of {bytes} bytes is over the limit of {FIELD_BYTES_MAX}"));
        }
    }
    if content_type.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
        return Ok(());
    }
    Err("content_type holds what is not printable ASCII".to_owned())
}

/// Longer ones are no media types and no keys: each travels with every message.
const FIELD_BYTES_MAX: usize = 255;
/// A mailbox empties within a few turns; a second is what the header of HTTP can say at the least.
const RETRY_AFTER: Duration = Duration::from_secs(1);
