//! What a server tells a client, as types with owned fields.

use std::fmt;
use std::time::Duration;

use weir_wire::{Advice, v1};

use crate::{Answered, Call, Payload};

/// One event from the server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A message, whether it came alone or in a batch.
    Push(Push),
    /// This connection is subscribed to a topic now.
    Subscribed(Subscribed),
    /// This connection is no longer subscribed to a topic.
    Unsubscribed(Unsubscribed),
    /// Connections have entered or left a topic; only where
    /// [`Subscription::presence`](crate::Subscription::presence) asks for it.
    Presence(Presence),
    /// A message of ours was accepted.
    Published(Published),
    /// The server could not do something that we asked for. The connection stays.
    Error(ServerError),
    /// The answer to [`Client::ping`](crate::Client::ping), with the same data.
    Pong(Vec<u8>),
    /// A backend calls this device: answer with [`Client::answer`](crate::Client::answer).
    Call(Call),
    /// The answer to a call of ours.
    Answered(Answered),
    /// The caller of this [`Event::Call`] does not wait for the answer any more.
    Cancelled(u32),
    /// The credentials end soon.
    Expiring(Expiring),
    /// The last event of a connection that the server ends.
    Goodbye(Goodbye),
}

/// A message to be published by [`Client::publish_message`](crate::Client::publish_message).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// Topic name.
    pub topic: String,
    /// Content.
    pub payload: Payload,
    /// Media type, or empty.
    pub content_type: String,
    /// Conflation key, or empty. In a conflating topic a message replaces an earlier one with the
    /// same key that has not left yet.
    pub key: String,
    /// Number that the answer carries; 0: no answer wanted.
    pub request: u32,
}

/// A message that was published to a topic, to this device or to everyone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    /// Topic name; empty for a message to the device or to everyone.
    pub topic: String,
    /// Content.
    pub payload: Payload,
    /// Media type, or empty.
    pub content_type: String,
    /// Conflation key, or empty.
    pub key: String,
    /// Id of the message, unique for a server.
    pub message_id: u64,
    /// Offset in the topic's epoch; 0 without a topic.
    pub offset: u64,
    /// Connection that published it; 0 for a backend. For this client's own messages it equals
    /// [`Client::connection_id`](crate::Client::connection_id).
    pub sender: u64,
}

/// A place in a topic's stream of messages. Positions of different epochs cannot be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Random per topic and unbroken sequence of offsets: a restart of the server, or a loss in a cluster, begins another.
    pub epoch: u64,
    /// Offset of a message. The first message of a topic has offset 1.
    pub offset: u64,
}

/// Everything in the topic after `position` reaches this connection.
///
/// It comes as the answer to a wish, and again in a running subscription when messages may have been lost: then with
/// another epoch, or with a later position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscribed {
    /// Topic name.
    pub topic: String,
    /// The position from which the messages continue.
    pub position: Option<Position>,
    /// Whether all messages since the requested position follow. False if no position was
    /// requested.
    pub recovered: bool,
    /// Where messages are lost: those after this position, which was asked for or had been seen. They end at `position`
    /// if the epochs are equal; otherwise nobody knows how many there were. `None`: none are lost.
    pub lost_after: Option<Position>,
}

/// Connections that have entered a topic, and connections that have left it, since the event before.
///
/// It does not name the connections that were there before: `GET /v1/topics/{topic}/presence` lists
/// them. Ask for the list after [`Event::Subscribed`], and when [`Presence::missed`] is true. Keep a
/// set: the list may have a connection already whose event follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presence {
    /// Topic name.
    pub topic: String,
    /// Connections that have entered.
    pub joined: Vec<Member>,
    /// Connections that have left.
    pub left: Vec<Member>,
    /// Events may be missing before this one: ask for the list again.
    pub missed: bool,
}

/// A connection that is in a topic, or was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its device.
    pub device_id: String,
    /// Its id.
    pub connection_id: u64,
}

/// The subscription to the topic has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsubscribed {
    /// Topic name.
    pub topic: String,
    /// Why, or empty when we asked for it. `fell_behind`: what follows `position` is no longer kept, as a resume was
    /// slower than new messages came, or the server itself missed some. To go on, subscribe again.
    pub reason: String,
    /// The position of the last message that the server sent, if there is a reason. The answer to
    /// our own request has none.
    pub position: Option<Position>,
}

/// The answer to a [`Client::publish`](crate::Client::publish) with a request number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// The number of the request.
    pub request: u32,
    /// Id of the message, unique for a server.
    pub message_id: u64,
    /// Offset in the topic's epoch.
    pub offset: u64,
    /// Connections subscribed when it was accepted, at the node that has answered.
    pub connections: u32,
    /// Epoch of the offset; 0 without an offset.
    pub epoch: u64,
}

/// The answer to a request that the server could not carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerError {
    /// A word for programs.
    pub code: String,
    /// A sentence for people.
    pub message: String,
    /// The number of the publish that this answers, or 0.
    pub request: u32,
    /// The topic concerned, or empty.
    pub topic: String,
}

/// The credentials end soon. The server closes the connection unless new ones come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expiring {
    /// Milliseconds since 1970-01-01T00:00:00Z.
    pub expires_at_ms: u64,
}

/// Why the server ends the connection, and what to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Goodbye {
    /// The close code, 4000 to 4399.
    pub code: u32,
    /// The reason's name.
    pub reason: String,
    /// The advice of the code's range. A code outside the ranges counts as
    /// [`Advice::ReconnectLater`].
    pub advice: Advice,
    /// How long to stay away, if the server says so.
    pub retry_after: Option<Duration>,
}

impl fmt::Display for Goodbye {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.reason)?;
        match self.retry_after {
            Some(delay) => write!(f, ", come back in {delay:?}"),
            None => Ok(()),
        }
    }
}

impl Publication {
    pub(crate) fn into_wire(self) -> v1::Publish {
        let Publication { topic, payload, content_type, key, request } = self;
        let payload = Some(match payload {
            Payload::Text(text) => v1::publish::Payload::Text(text),
            Payload::Data(data) => v1::publish::Payload::Data(data),
        });
        v1::Publish { topic, payload, content_type, key, request }
    }
}

impl From<v1::Push> for Push {
    fn from(push: v1::Push) -> Push {
        Push {
            topic: push.topic,
            payload: match push.payload {
                Some(v1::push::Payload::Text(text)) => Payload::Text(text),
                Some(v1::push::Payload::Data(data)) => Payload::Data(data),
                None => Payload::Data(Vec::new()),
            },
            content_type: push.content_type,
            key: push.key,
            message_id: push.message_id,
            offset: push.offset,
            sender: push.sender,
        }
    }
}

impl From<v1::Position> for Position {
    fn from(at: v1::Position) -> Position {
        Position { epoch: at.epoch, offset: at.offset }
    }
}

impl From<v1::Subscribed> for Subscribed {
    fn from(told: v1::Subscribed) -> Subscribed {
        Subscribed {
            topic: told.topic,
            position: told.position.map(Position::from),
            recovered: told.recovered,
            // Known to who knows how far the topic had been seen.
            lost_after: None,
        }
    }
}

impl From<v1::Presence> for Presence {
    fn from(told: v1::Presence) -> Presence {
        let members = |members: Vec<v1::Member>| members.into_iter().map(Member::from).collect();
        let v1::Presence { topic, joined, left, missed } = told;
        Presence { topic, joined: members(joined), left: members(left), missed }
    }
}

impl From<v1::Member> for Member {
    fn from(member: v1::Member) -> Member {
        Member { device_id: member.device_id, connection_id: member.connection_id }
    }
}

impl From<v1::Unsubscribed> for Unsubscribed {
    fn from(told: v1::Unsubscribed) -> Unsubscribed {
        Unsubscribed {
            topic: told.topic,
            reason: told.reason,
            position: told.position.map(Position::from),
        }
    }
}

impl From<v1::Published> for Published {
    fn from(told: v1::Published) -> Published {
        Published {
            request: told.request,
            message_id: told.message_id,
            offset: told.offset,
            connections: told.connections,
            epoch: told.epoch,
        }
    }
}

impl From<v1::Error> for ServerError {
    fn from(told: v1::Error) -> ServerError {
        ServerError {
            code: told.code,
            message: told.message,
            request: told.request,
            topic: told.topic,
        }
    }
}

impl From<v1::Goodbye> for Goodbye {
    fn from(told: v1::Goodbye) -> Goodbye {
        Goodbye {
            code: told.code,
            reason: told.reason,
            advice: Advice::from_code(told.code).unwrap_or(Advice::ReconnectLater),
            retry_after: (told.retry_after_ms > 0)
                .then(|| Duration::from_millis(u64::from(told.retry_after_ms))),
        }
    }
}
