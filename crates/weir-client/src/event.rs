//! What a server tells a client, with owned fields.

use std::fmt;
use std::time::Duration;

use weir_wire::{Advice, v1};

/// One thing that the server told.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A message, whether it came alone or in a batch.
    Push(Push),
    /// This connection is in a topic now.
    Subscribed(Subscribed),
    /// This connection is no longer in a topic.
    Unsubscribed(Unsubscribed),
    /// A message of ours was accepted.
    Published(Published),
    /// Something that we asked for could not be done; the connection stays.
    Error(ServerError),
    /// The answer to [`Client::ping`](crate::Client::ping), with the same data.
    Pong(Vec<u8>),
    /// The credentials end soon.
    Expiring(Expiring),
    /// The last event of a connection that the server ends.
    Goodbye(Goodbye),
}

/// The content of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// UTF-8 text.
    Text(String),
    /// Bytes.
    Data(Vec<u8>),
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
    /// Conflation key, or empty: where the topic conflates, a message replaces an earlier one of the same key that has
    /// not left yet.
    pub key: String,
    /// Number that the answer carries; 0: none wanted.
    pub request: u32,
}

/// A message that was published to a topic, to this device or to everyone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    /// Topic name; empty for what was sent to the device or to everyone.
    pub topic: String,
    /// Content.
    pub payload: Payload,
    /// Media type, or empty.
    pub content_type: String,
    /// Conflation key, or empty.
    pub key: String,
    /// Id of the message, unique for a server.
    pub message_id: u64,
    /// Offset in the topic's epoch; 0 for what has no topic.
    pub offset: u64,
    /// Connection that published it; 0 for a backend. Equal to [`Client::connection_id`](crate::Client::connection_id)
    /// for one's own.
    pub sender: u64,
}

/// A place in a topic's stream of messages; positions of different epochs have nothing to do with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Random per topic and start of the server.
    pub epoch: u64,
    /// Offset of a message; the first one of a topic has 1.
    pub offset: u64,
}

/// Everything in the topic after `position` reaches this connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscribed {
    /// Topic name.
    pub topic: String,
    /// From where it goes on.
    pub position: Option<Position>,
    /// Whether all that was missed since the position asked for follows. False also where no position was asked for.
    pub recovered: bool,
}

/// The topic ended for this connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsubscribed {
    /// Topic name.
    pub topic: String,
    /// Why, or empty when we asked for it. `fell_behind`: a resume was slower than new messages came, and what follows
    /// `position` is no longer kept. To go on, subscribe again.
    pub reason: String,
    /// The last message that was sent, where there is a reason: the answer to our own wish has none.
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
    /// Connections subscribed when it was accepted.
    pub connections: u32,
}

/// The answer to something that could not be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerError {
    /// A word for programs.
    pub code: String,
    /// A sentence for people.
    pub message: String,
    /// The number of the publish that this answers, 0 otherwise.
    pub request: u32,
    /// The topic concerned, or empty.
    pub topic: String,
}

/// The credentials end soon: the server closes the connection unless new ones come.
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
    /// What the code's range asks for; a code outside the ranges counts as [`Advice::ReconnectLater`].
    pub advice: Advice,
    /// How long to stay away, if the server says.
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
        }
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
