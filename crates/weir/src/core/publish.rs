//! Publishing to a topic, to a device or to all. Nothing here waits.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use weir_broker::Entry;
use weir_engine::{Command, ConnId, Credit, Item, Message, Nanos, Priority, TopicMessage};
use weir_wire::{ErrorCode, hot};

use crate::auth::Act;
use crate::backends::notices::{self, Author};
use crate::base::clock::unix_millis;
use crate::base::config::Right;
use crate::base::handover::HandingOver;
use crate::base::mailboxes::{self, Credits, Publisher};
use crate::base::model::{
    Accepted, IdempotencyKey, Payload, Publication, PublishError, RETRY_AFTER, Target,
};
use crate::cluster::Cluster;
use crate::core::handle::{FromDevice, Handle, OnPublish, Refusal};
use crate::core::publishing::Publishing;
use crate::core::rights::{Caller, CallerDevice};
use crate::core::state::SharedState;
use crate::limits::rates::Sender;
use crate::observe::counters::{PublishTarget, RefuseCause};
use crate::topics::{
    Class, Destination, Envelope, MessagePosition, Offer, RouteError, Routed, validate_name,
};

/// The reason why a caller's message was not published.
#[derive(Debug)]
pub(crate) enum NotPublished {
    /// The caller's requests publish faster than `limits.publishes_per_second`.
    SenderRate { per_second: u32, after: Duration },
    /// A field has a value that is not allowed.
    Field { field: &'static str, message: String },
    /// The caller lacks the right.
    NotPermitted(String),
    /// The backend that was asked refuses it.
    HookRefused(String),
    /// The backend that was asked did not answer. Try again after the delay.
    HookUnavailable(Duration),
    /// The message was refused.
    Error(PublishError),
    /// The embedding program has refused it.
    Refused(Refusal),
}

impl Handle {
    /// Publishes for a device or a service. Checks rate and fields first. If the embedding program
    /// decides about topics, it then gets the message; otherwise the rights decide. `None`: that
    /// program took the message elsewhere.
    ///
    /// `sender` says whose rate a request uses up. It is `None` for a connection, whose shard
    /// limits it, and for a service, which has no limit.
    /// Cost: one look-up of the topic; no allocation but the message's own.
    pub(crate) fn publish_as(
        &self,
        caller: &Caller<'_>,
        sender: Option<Sender<'_>>,
        publication: &Publication<'_>,
    ) -> Result<Option<Publishing>, NotPublished> {
        let shared = self.shared();
        let checked = shared.check_sender(sender).and_then(|()| check_fields(publication));
        let published = checked.and_then(|()| match (publication.target, &self.on_publish) {
            (Target::Topic(topic), Some(on_publish)) => {
                self.pass_on(on_publish, caller, topic, publication)
            }
            _ => shared.route_as(caller, publication).map(Some),
        });
        published.inspect_err(|error| shared.count_not_published(error))
    }

    /// Passes a message to the embedding program, which alone decides. The program's own publishing
    /// counts it.
    fn pass_on(
        &self,
        on_publish: &OnPublish,
        caller: &Caller<'_>,
        topic: &str,
        publication: &Publication<'_>,
    ) -> Result<Option<Publishing>, NotPublished> {
        let shared = self.shared();
        validate_name(topic, shared.router.name_bytes_max()).map_err(PublishError::from)?;
        let entered;
        let device = match caller.device {
            CallerDevice::Named(device) => device.unwrap_or_default(),
            CallerDevice::Connected(device, conn) => {
                entered = shared.devices.id_of(device, conn);
                let gone = || "the connection is about to be closed".to_owned();
                entered.as_deref().ok_or_else(|| NotPublished::NotPermitted(gone()))?
            }
        };
        let event = FromDevice {
            conn: publication.sender,
            device,
            topic,
            payload: publication.payload,
            content_type: publication.content_type,
            key: publication.key,
            ttl: publication.ttl,
            idempotency_key: publication.idempotency_key,
            handle: self,
        };
        event.ask(on_publish).map_err(NotPublished::Refused)
    }
}

impl SharedState {
    /// Publishes for the admin API or the embedding program, which may publish anything. `device`:
    /// the program passes on what a device publishes.
    pub(crate) fn publish(
        &self,
        publication: &Publication<'_>,
        author: Author,
        device: Option<&str>,
    ) -> Result<Publishing, PublishError> {
        let publisher = match author {
            Author::Device => Publisher::Device,
            Author::Service | Author::AdminApi | Author::Program => Publisher::Backend,
        };
        let routed = self.route(publication, publisher, |_, _| Ok(()));
        if matches!(routed, Err(PublishError::Busy(_))) && self.door.has_moved() {
            return self.forward(publication, author, device);
        }
        let publishing =
            routed.inspect_err(|error| self.counters().count_refused(RefuseCause::of(error)))?;
        if let Target::Topic(topic) = publication.target
            && self.notices.hears_of_messages(topic)
        {
            let sender = (notices::Sender::Request(device), author);
            self.notices.published(sender, (topic, publication), publishing.accepted());
        }
        Ok(publishing)
    }

    /// Counts the refusal of a caller's message.
    pub(in crate::core) fn count_not_published(&self, error: &NotPublished) {
        if let Some(cause) = error.cause() {
            self.counters().count_refused(cause);
        }
    }

    pub(in crate::core) fn check_sender(
        &self,
        sender: Option<Sender<'_>>,
    ) -> Result<(), NotPublished> {
        let Some(sender) = sender else { return Ok(()) };
        self.publish_rates.take(sender, Nanos::now()).map_err(|after| {
            let per_second = self.config().limits.publishes_per_second;
            NotPublished::SenderRate { per_second, after }
        })
    }

    fn route_as(
        &self,
        caller: &Caller<'_>,
        publication: &Publication<'_>,
    ) -> Result<Publishing, NotPublished> {
        let may_publish_to_all = caller.grant.has(Right::Publish);
        if !may_publish_to_all && !matches!(publication.target, Target::Topic(_)) {
            return Err(NotPublished::NotPermitted(NOT_TO_DEVICES.to_owned()));
        }
        let routed = self.route(publication, caller.grant.publisher(), |topic, class| {
            self.permit_class(caller, Act::Publish, topic, class)
                .map_err(NotPublished::NotPermitted)
        });
        let is_busy = matches!(routed, Err(NotPublished::Error(PublishError::Busy(_))));
        if is_busy && self.door.has_moved() {
            let (author, device) = match (caller.grant.publisher(), caller.device) {
                (Publisher::Device, CallerDevice::Named(device)) => (Author::Device, device),
                (Publisher::Device, CallerDevice::Connected(..)) => (Author::Device, None),
                (Publisher::Backend, CallerDevice::Named(device)) => (Author::Service, device),
                (Publisher::Backend, CallerDevice::Connected(..)) => (Author::Service, None),
            };
            return Ok(self.forward(publication, author, device)?);
        }
        let publishing = routed?;
        self.tell_published(caller, publication, &publishing);
        Ok(publishing)
    }

    /// Tells the receivers of notices of a message.
    fn tell_published(
        &self,
        caller: &Caller<'_>,
        publication: &Publication<'_>,
        publishing: &Publishing,
    ) {
        let Target::Topic(topic) = publication.target else { return };
        if !self.notices.hears_of_messages(topic) {
            return;
        }
        let accepted = publishing.accepted();
        let about = (topic, publication);
        let author = match caller.grant.publisher() {
            Publisher::Device => Author::Device,
            Publisher::Backend => Author::Service,
        };
        match caller.device {
            CallerDevice::Named(device) => {
                let sender = (notices::Sender::Request(device), author);
                self.notices.published(sender, about, accepted);
            }
            CallerDevice::Connected(device, conn) => {
                // A connection that was replaced meanwhile has no further notice but its end.
                if let Some((device, order)) = self.devices.entry_of(device, conn) {
                    let who = notices::Who { device: &device, conn, order };
                    let sender = (notices::Sender::Connection(who), author);
                    self.notices.published(sender, about, accepted);
                }
            }
        }
    }

    /// `permit` checks the name and class of a topic before anything else happens. Other targets do
    /// not call it.
    pub(in crate::core) fn route<E: From<PublishError>>(
        &self,
        publication: &Publication<'_>,
        publisher: Publisher,
        permit: impl FnOnce(&str, &Class) -> Result<(), E>,
    ) -> Result<Publishing, E> {
        let draft = || Draft::new(self, publication, publisher);
        Ok(match publication.target {
            Target::Topic(topic) => {
                let limit = self.router.name_bytes_max();
                validate_name(topic, limit).map_err(PublishError::from)?;
                let destination = self.router.destination(topic);
                let class = destination.class();
                permit(topic, &class)?;
                let is_cluster = class.is_cluster;
                drop(class);
                match self.cluster.as_ref().filter(|_| is_cluster) {
                    Some(cluster) => {
                        self.publish_to_cluster(cluster, topic, destination, &draft()?)?
                    }
                    None => self.publish_once(publication, || {
                        self.publish_to_topic(topic, destination, &draft()?)
                    })?,
                }
            }
            Target::Device(_) | Target::All if self.node.is_some() => {
                self.send_to_nodes(publication.target, &draft()?)?
            }
            Target::Device(device) => {
                self.publish_once(publication, || self.publish_to_device(device, &draft()?))?
            }
            Target::All => self.publish_once(publication, || self.publish_to_all(&draft()?))?,
        })
    }

    /// Publishes on this node, unless the message's idempotency key is known.
    fn publish_once(
        &self,
        publication: &Publication<'_>,
        publish: impl FnOnce() -> Result<Accepted, PublishError>,
    ) -> Result<Publishing, PublishError> {
        let accepted = self.idempotency.once(publication, || {
            let accepted = publish()?;
            self.counters().count_published(PublishTarget::of(&publication.target));
            Ok(accepted)
        })?;
        Ok(accepted.into())
    }

    fn publish_to_topic(
        &self,
        topic: &str,
        destination: Destination,
        draft: &Draft<'_>,
    ) -> Result<Accepted, PublishError> {
        let message = |class: &Class, position| draft.topic_message(class, position);
        let routed = self.router.publish(topic, destination, draft.offer(), message);
        let routed = routed.map_err(|error| draft.error(error))?;
        let connections = routed.map_or(0, |routed| routed.connections);
        let (offset, epoch) = match routed {
            Some(Routed { offset, epoch, .. }) => (Some(offset), Some(epoch)),
            None => (None, None),
        };
        Ok(Accepted { id: draft.id, offset, epoch, connections, nodes: None })
    }

    /// Hands a message to the broker. This node's subscribers get it like those of all nodes: from
    /// the broker.
    fn publish_to_cluster(
        &self,
        cluster: &Cluster,
        topic: &str,
        destination: Destination,
        draft: &Draft<'_>,
    ) -> Result<Publishing, PublishError> {
        let admitted = self.router.admit(topic, destination, draft.offer());
        let (connections, retention) = admitted.map_err(|error| draft.error(error))?;
        let waiting = cluster.offer(&topic.into(), retention, draft.entry());
        let waiting = waiting.map_err(|_| PublishError::Busy(RETRY_AFTER))?;
        Ok(Publishing::sent(waiting, (draft.id, connections), self.counters()))
    }

    /// Publishes to the connections of the device on this node. Holds the device's lock. If one
    /// connection replaces another at this moment, the old or the new one gets the message.
    pub(in crate::core) fn publish_to_device(
        &self,
        device: &str,
        draft: &Draft<'_>,
    ) -> Result<Accepted, PublishError> {
        self.devices.look_at(device, |conns| {
            // The device may be connected to another process by now.
            if self.devices.is_still() {
                return Err(PublishError::Busy(RETRY_AFTER));
            }
            let count = conns.len();
            if count == 0 {
                return Ok(draft.accepted(0));
            }
            let credits = conns.iter().map(|conn| {
                mailboxes::try_credit(self.mailbox(conn.shard()), Priority::Normal, draft.publisher)
            });
            let credits: Credits<'_> =
                credits.collect::<Option<_>>().ok_or(PublishError::Busy(RETRY_AFTER))?;
            // The first connection identifies the device.
            let target = conns.iter().next().map_or(0, ConnId::to_u64);
            let message =
                draft.message(target).ok_or(PublishError::BudgetExhausted(RETRY_AFTER))?;
            for (credit, conn) in credits.into_iter().zip(conns.iter()) {
                credit.push(Command::Send(conn, Item::Message(Arc::clone(&message))));
            }
            Ok(draft.accepted(count))
        })
    }

    pub(in crate::core) fn publish_to_all(
        &self,
        draft: &Draft<'_>,
    ) -> Result<Accepted, PublishError> {
        let busy = |HandingOver| PublishError::Busy(RETRY_AFTER);
        let connections = self.devices.connection_count();
        if connections == 0 {
            return self.door.pass(|| draft.accepted(0)).map_err(busy);
        }
        let credit = |mailbox| mailboxes::try_credit(mailbox, Priority::Normal, draft.publisher);
        let credits = self.mailboxes().iter().map(credit);
        let credits: Credits<'_> =
            credits.collect::<Option<_>>().ok_or(PublishError::Busy(RETRY_AFTER))?;
        let message = draft.message(0).ok_or(PublishError::BudgetExhausted(RETRY_AFTER))?;
        if !self.formats.get().encode_ahead(&message, self.counters()) {
            return Err(PublishError::BudgetExhausted(RETRY_AFTER));
        }
        let push = |credit: Credit<'_, OwnedFd>| {
            credit.push(Command::Broadcast(Arc::clone(&message)));
        };
        let passed = self.door.pass(|| credits.into_iter().for_each(push));
        passed.map_err(busy)?;
        Ok(draft.accepted(connections))
    }
}

/// A message before its offset is known.
pub(in crate::core) struct Draft<'a> {
    shared: &'a SharedState,
    push: hot::Push<'a>,
    id: u64,
    accepted_at: Nanos,
    expires_at: Option<Nanos>,
    publisher: Publisher,
    idempotency_key: Option<IdempotencyKey<'a>>,
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
            // The longest possible offset, until the real one is known.
            offset: u64::MAX,
            sender: publication.sender.map_or(0, ConnId::to_u64),
        };
        let (bytes, limit) = (push.frame_bytes(), shared.router.frame_bytes_max());
        if bytes > limit {
            return Err(PublishError::TooLarge { bytes, limit });
        }
        let accepted_at = Nanos::now();
        let expires_at = publication.ttl.map(|ttl| accepted_at.after(ttl));
        let idempotency_key = publication.idempotency_key;
        Ok(Draft { shared, push, id, accepted_at, expires_at, publisher, idempotency_key })
    }

    /// A message that another node has accepted, with what is left of its time to live.
    pub(in crate::core) fn of_node(
        shared: &'a SharedState,
        push: hot::Push<'a>,
        ttl: Option<Duration>,
    ) -> Draft<'a> {
        let accepted_at = Nanos::now();
        let expires_at = ttl.map(|ttl| accepted_at.after(ttl));
        let (id, publisher) = (push.message_id, Publisher::Backend);
        Draft { shared, push, id, accepted_at, expires_at, publisher, idempotency_key: None }
    }

    /// The message as it travels between nodes.
    pub(in crate::core) fn entry(&self) -> Entry {
        let ttl = self.expires_at.map(|at| at.since(self.accepted_at));
        Entry {
            payload: Envelope { accepted_ms: unix_millis(), ttl, push: self.push }.encode(),
            idempotency_key: self.idempotency_key.map(|key| key.for_broker().into()),
        }
    }

    fn offer(&self) -> Offer<'_> {
        let frame_bytes = self.push.frame_bytes();
        let (accepted_at, publisher) = (self.accepted_at, self.publisher);
        Offer { frame_bytes, key: self.push.key, accepted_at, publisher }
    }

    /// Encodes the message for a device, or for all (0); `None` if the budget is used up.
    fn message(&self, target: u64) -> Option<Arc<Message>> {
        let (frame, _) = self.encode(0);
        self.made(frame, TopicMessage { target, ..TopicMessage::default() })
    }

    /// Encodes it for a topic; `None` if the budget is used up.
    fn topic_message(&self, class: &Class, position: MessagePosition) -> Option<Arc<Message>> {
        let (frame, key) = self.encode(position.offset);
        self.made(frame, class.topic_message(position, key))
    }

    fn made(&self, frame: Vec<u8>, topic: TopicMessage) -> Option<Arc<Message>> {
        let leaves_room = self.publisher == Publisher::Device;
        let topic = TopicMessage { sender: self.push.sender, leaves_room, ..topic };
        let budget = self.shared.engine().budget();
        Message::of_topic(budget, frame, self.accepted_at, self.expires_at, topic)
    }

    /// The frame, and the range of the key in it.
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

    pub(in crate::core) fn accepted(&self, connections: usize) -> Accepted {
        let connections = u32::try_from(connections).unwrap_or(u32::MAX);
        Accepted { id: self.id, offset: None, epoch: None, connections, nodes: None }
    }
}

impl NotPublished {
    /// The delay after which the same message may be accepted; `None` if it never will be.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            NotPublished::SenderRate { after, .. } | NotPublished::HookUnavailable(after) => {
                Some(*after)
            }
            NotPublished::Error(error) => error.retry_after(),
            NotPublished::Refused(refusal) => {
                let is_over_soon = matches!(refusal.code, ErrorCode::Busy | ErrorCode::RateLimited);
                is_over_soon.then_some(RETRY_AFTER)
            }
            NotPublished::Field { .. }
            | NotPublished::NotPermitted(_)
            | NotPublished::HookRefused(_) => None,
        }
    }

    /// The counted cause; `None` for a refusal of the embedding program, which counts its own.
    fn cause(&self) -> Option<RefuseCause> {
        match self {
            NotPublished::SenderRate { .. } => Some(RefuseCause::SenderRate),
            NotPublished::Field { .. } => Some(RefuseCause::InvalidField),
            NotPublished::NotPermitted(_) => Some(RefuseCause::NotPermitted),
            NotPublished::HookRefused(_) => Some(RefuseCause::Hook),
            NotPublished::HookUnavailable(_) => Some(RefuseCause::HookUnavailable),
            NotPublished::Error(error) => Some(RefuseCause::of(error)),
            NotPublished::Refused(_) => None,
        }
    }
}

impl From<PublishError> for NotPublished {
    fn from(error: PublishError) -> Self {
        NotPublished::Error(error)
    }
}

/// The device's answer.
impl From<NotPublished> for Refusal {
    fn from(not_published: NotPublished) -> Self {
        let (code, message) = match not_published {
            NotPublished::SenderRate { per_second, .. } => (
                ErrorCode::RateLimited,
                format!(
                    "a device may publish {per_second} messages a second (limits.publishes_per_second)"
                ),
            ),
            NotPublished::Field { message, .. } => (ErrorCode::InvalidField, message),
            NotPublished::NotPermitted(message) | NotPublished::HookRefused(message) => {
                (ErrorCode::NotPermitted, message)
            }
            NotPublished::HookUnavailable(_) => (ErrorCode::Busy, UNAVAILABLE.to_owned()),
            NotPublished::Error(error) => return error.into(),
            NotPublished::Refused(refusal) => return refusal,
        };
        Refusal { code, message }
    }
}

pub(in crate::core) fn check_fields(publication: &Publication<'_>) -> Result<(), NotPublished> {
    let Publication { content_type, key, .. } = publication;
    for (field, checked) in
        [("content_type", check_content_type(content_type)), ("key", check_key(key))]
    {
        checked.map_err(|message| NotPublished::Field { field, message })?;
    }
    Ok(())
}

/// Checks a media type: printable ASCII of at most 255 bytes.
///
/// Errors: a sentence with the field, its length and the limit.
pub(crate) fn check_content_type(content_type: &str) -> Result<(), String> {
    check_length("content_type", content_type)?;
    if content_type.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
        return Ok(());
    }
    Err("content_type contains a character that is not printable ASCII".to_owned())
}

/// Checks a conflation key: at most 255 bytes.
///
/// Errors: as for [`check_content_type`].
pub(crate) fn check_key(key: &str) -> Result<(), String> {
    check_length("key", key)
}

fn check_length(field: &str, value: &str) -> Result<(), String> {
    let bytes = value.len();
    if bytes <= FIELD_BYTES_MAX {
        return Ok(());
    }
    Err(format!("{field} of {bytes} bytes is over the limit of {FIELD_BYTES_MAX}"))
}

/// The sentence for a question that a backend did not answer.
pub(crate) const UNAVAILABLE: &str =
    "the backend that decides about this topic does not answer; try again in a second";
const NOT_TO_DEVICES: &str = "devices publish to topics only; a service needs the right \"publish\" \
                              to publish to a device or to all (auth.services, may)";
/// Each message carries these fields, and no sensible media type or key is longer.
const FIELD_BYTES_MAX: usize = 255;
