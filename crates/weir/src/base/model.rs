//! Values that several floors share: messages and their answers, topics, kinds of credentials.

use std::time::Duration;

use serde::Deserialize;
use weir_engine::ConnId;

/// The destination of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// The subscribers of a topic.
    Topic(&'a str),
    /// The connections of a device.
    Device(&'a str),
    /// Every connection.
    All,
}

/// The content of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload<'a> {
    /// UTF-8 text.
    Text(&'a str),
    /// Bytes.
    Data(&'a [u8]),
}

/// A message to publish.
#[derive(Debug, Clone, Copy)]
pub struct Publication<'a> {
    /// The destination.
    pub target: Target<'a>,
    /// The content.
    pub payload: Payload<'a>,
    /// The media type, or empty.
    pub content_type: &'a str,
    /// The conflation key, or empty.
    pub key: &'a str,
    /// The message is not sent to further connections after this time.
    pub ttl: Option<Duration>,
    /// The publishing connection, if a device published the message.
    pub sender: Option<ConnId>,
    /// Within five minutes a second message to the same target with the same key is not published:
    /// the answer is that of the first.
    pub idempotency_key: Option<IdempotencyKey<'a>>,
}

/// Tells a message that is sent again from a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdempotencyKey<'a> {
    /// Whose key it is: the keys of two callers do not meet. It has no space.
    pub caller: &'a str,
    /// The key.
    pub key: &'a str,
}

/// A message was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    /// The message's id, unique within a server.
    pub id: u64,
    /// The message's offset in the topic's epoch. `None` if the target is no topic, or the topic
    /// has no subscribers and its class retains nothing.
    pub offset: Option<u64>,
    /// The epoch in which the offset counts.
    pub epoch: Option<u64>,
    /// The number of connections of this node for which it was queued; for a topic of the cluster
    /// the number of its subscribers here when the message was taken.
    pub connections: u32,
    /// Nodes that were subscribed when the broker took the message; `None` without a broker.
    pub nodes: Option<NodesReached>,
}

/// The nodes that a message was sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodesReached {
    /// Nodes that were subscribed to the topic, or to messages to the device.
    Subscribed(u32),
    /// A message to all.
    All {
        /// Nodes that were subscribed.
        reached: u32,
        /// Nodes that live.
        live: u32,
    },
}

/// A message was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The topic name is invalid.
    #[error("{0}")]
    TopicName(#[from] TopicNameError),
    /// The message's frame exceeds the limit.
    #[error("message of {bytes} bytes is over the limit of {limit} (limits.frame_bytes_max)")]
    TooLarge {
        /// Bytes of the frame.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The message's frame exceeds the limit of the topic's class.
    #[error(
        "message of {bytes} bytes is over the limit of {limit} for this topic (message_bytes_max of its class)"
    )]
    TooLargeForTopic {
        /// Bytes of the frame.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The topic has reached its class's messages in a second: try again after the delay.
    #[error(
        "the topic takes {per_second} messages a second (publishes_per_second of its class); try again in {after:?}"
    )]
    RateLimited {
        /// The limit.
        per_second: u32,
        /// The delay.
        after: Duration,
    },
    /// The topic's running tick has reached its class's bytes: try again after the delay.
    #[error(
        "the topic's tick has gathered its limit of {limit} bytes (tick_bytes_max of its class); try again in {after:?}"
    )]
    TickFull {
        /// The limit.
        limit: usize,
        /// The rest of the tick.
        after: Duration,
    },
    /// The message would begin a topic, but there are too many topics: try again after the delay.
    #[error(
        "all {limit} topics are in use, or half of them have no subscribers (limits.topics_max); try again in {after:?}"
    )]
    TooManyTopics {
        /// The limit.
        limit: usize,
        /// The delay.
        after: Duration,
    },
    /// A shard's mailbox is full: try again after the delay.
    #[error("a shard's mailbox is full; try again in {0:?}")]
    Busy(Duration),
    /// The byte budget is used up: try again after the delay.
    #[error("the byte budget is used up; try again in {0:?}")]
    BudgetExhausted(Duration),
    /// The broker was asked and has not answered: the message may have been published. It can be
    /// sent again after the delay.
    #[error(
        "the broker did not answer, so the message may have been published; send it again in {0:?}"
    )]
    Uncertain(Duration),
    /// A message with the same idempotency key is on its way: its answer can be had after the delay.
    #[error("a message with this idempotency key is on its way; ask for its answer in {0:?}")]
    InProgress(Duration),
    /// The broker cannot be reached, and the message was not published.
    #[error("the broker cannot be reached, and the message was not published; try again in {0:?}")]
    BrokerUnavailable(Duration),
    /// The broker has refused the message. The log has its words.
    #[error("the broker refuses the message (the log says why); try again in {0:?}")]
    BrokerRefused(Duration),
}

impl IdempotencyKey<'_> {
    /// The key as the broker gets it, which knows no callers.
    pub(crate) fn for_broker(&self) -> String {
        format!("{} {}", self.caller, self.key)
    }
}

impl PublishError {
    /// The delay after which the same message may be accepted; `None` if it never will be.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            PublishError::RateLimited { after, .. }
            | PublishError::TickFull { after, .. }
            | PublishError::TooManyTopics { after, .. }
            | PublishError::Busy(after)
            | PublishError::BudgetExhausted(after)
            | PublishError::Uncertain(after)
            | PublishError::InProgress(after)
            | PublishError::BrokerUnavailable(after)
            | PublishError::BrokerRefused(after) => Some(*after),
            PublishError::TopicName(_)
            | PublishError::TooLarge { .. }
            | PublishError::TooLargeForTopic { .. } => None,
        }
    }
}

/// The reason why a topic name is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TopicNameError {
    /// The name is empty.
    #[error("topic name is empty")]
    Empty,
    /// The name is too long.
    #[error("topic name of {bytes} bytes is over the limit of {limit} (limits.topic_bytes_max)")]
    TooLong {
        /// Bytes of the name.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The name contains a control character, at this byte.
    #[error("topic name holds a control character at byte {0}")]
    Control(usize),
    /// The name contains `*`, `#` or `+`, which are reserved for wildcards.
    #[error(
        "topic name holds {0:?}, which is reserved for wildcards; wildcard topics do not exist yet"
    )]
    Wildcard(char),
}

/// One topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicInfo {
    /// Its name.
    pub topic: String,
    /// Its subscribers.
    pub subscribers: u32,
    /// Offset of its last message.
    pub offset: u64,
    /// Its epoch.
    pub epoch: u64,
    /// The pattern of its class.
    pub class: String,
    /// Retained messages.
    pub retained_messages: usize,
}

weir_wire::named_enum! {
    /// The kinds of credentials.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum AuthKind {
        /// No credentials.
        Anonymous = "anonymous",
        /// A client certificate, and no token.
        Certificate = "certificate",
        /// A token of the configuration, or a token that can be of no other kind.
        Token = "token",
        /// A token of an activated device.
        Device = "device",
        /// A signed token.
        Jwt = "jwt",
        /// A token that a hook knows.
        Hook = "hook",
    }
}

/// The protocol of a listener, with or without TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spoken {
    /// The frames of devices.
    Frames,
    /// HTTP.
    Http,
}

/// The reason why a subscription is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SubscribeError {
    Name(TopicNameError),
    /// There are `topics_max` topics.
    TooManyTopics,
    /// The topic belongs to the cluster, whose broker cannot be reached or has too much to do.
    BrokerUnavailable,
    /// It asks for presence, and there are `presence_members_max` members.
    TooManyMembers,
    /// Topics are being handed over to another process: it is tried again.
    Busy,
}

/// A mailbox empties within a few turns; one second is the shortest delay that HTTP's `Retry-After`
/// can name.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);
