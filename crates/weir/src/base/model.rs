//! Values that several floors share: messages and their answers, topics, kinds of credentials.

use std::time::Duration;

use serde::Deserialize;
use weir_engine::ConnId;

/// Where a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// To the subscribers of a topic.
    Topic(&'a str),
    /// To the connections of a device.
    Device(&'a str),
    /// To every connection.
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
    /// Where it goes.
    pub target: Target<'a>,
    /// What it says.
    pub payload: Payload<'a>,
    /// Media type, or empty.
    pub content_type: &'a str,
    /// Conflation key, or empty.
    pub key: &'a str,
    /// After this long it is not begun any more.
    pub ttl: Option<Duration>,
    /// The connection that published it, if a device did.
    pub sender: Option<ConnId>,
}

/// A message was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    /// Its id, unique for a server.
    pub id: u64,
    /// Its offset in the topic's epoch; `None` where there is no topic, or nobody is in it and its class
    /// keeps nothing.
    pub offset: Option<u64>,
    /// Connections that it was queued for.
    pub connections: u32,
}

/// A message was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// A topic name that cannot be.
    #[error("{0}")]
    TopicName(#[from] TopicNameError),
    /// Its frame would be over the limit.
    #[error("message of {bytes} bytes is over the limit of {limit} (limits.frame_bytes_max)")]
    TooLarge {
        /// Bytes of the frame.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// Its frame would be over the limit of the topic's class.
    #[error(
        "message of {bytes} bytes is over the limit of {limit} for this topic (message_bytes_max of its class)"
    )]
    TooLargeForTopic {
        /// Bytes of the frame.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The topic has had as many messages as its class allows: try again after the delay.
    #[error(
        "the topic takes {per_second} messages a second (publishes_per_second of its class); try again in {after:?}"
    )]
    RateLimited {
        /// The limit.
        per_second: u32,
        /// The delay.
        after: Duration,
    },
    /// The topic's running tick has gathered as many bytes as its class allows: try again after the delay.
    #[error(
        "the topic's tick has gathered its limit of {limit} bytes (tick_bytes_max of its class); try again in {after:?}"
    )]
    TickFull {
        /// The limit.
        limit: usize,
        /// The rest of the tick.
        after: Duration,
    },
    /// It would have to begin its topic, and as many topics exist as may: try again after the delay.
    #[error(
        "{limit} topics exist, or half as many without subscribers, the limit (limits.topics_max); try again in {after:?}"
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
}

impl PublishError {
    /// When the same message may be accepted, if it may.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            PublishError::RateLimited { after, .. }
            | PublishError::TickFull { after, .. }
            | PublishError::TooManyTopics { after, .. }
            | PublishError::Busy(after)
            | PublishError::BudgetExhausted(after) => Some(*after),
            PublishError::TopicName(_)
            | PublishError::TooLarge { .. }
            | PublishError::TooLargeForTopic { .. } => None,
        }
    }
}

/// Why a topic name is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TopicNameError {
    /// It is empty.
    #[error("topic name is empty")]
    Empty,
    /// It is too long.
    #[error("topic name of {bytes} bytes is over the limit of {limit} (limits.topic_bytes_max)")]
    TooLong {
        /// Bytes of the name.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// It holds a control character.
    #[error("topic name holds a control character at byte {0}")]
    Control(usize),
    /// It holds `*` or `#` or `+`, which are kept for wildcards.
    #[error(
        "topic name holds {0:?}, which is kept for wildcards; wildcard topics do not exist yet"
    )]
    Wildcard(char),
}

/// One topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicInfo {
    /// Its name.
    pub topic: String,
    /// Memberships.
    pub subscribers: u32,
    /// Offset of its last message.
    pub offset: u64,
    /// Its epoch.
    pub epoch: u64,
    /// The pattern of its class.
    pub class: String,
    /// Messages kept for those who come back.
    pub retained_messages: usize,
}

weir_wire::named_enum! {
    /// What somebody shows to say who it is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum AuthKind {
        /// Nothing.
        Anonymous = "anonymous",
        /// A client certificate, and no token.
        Certificate = "certificate",
        /// A token of the configuration, or one that could be nothing else.
        Token = "token",
        /// A token of an activated device.
        Device = "device",
        /// A signed token.
        Jwt = "jwt",
    }
}

/// What is spoken behind a listener, over TLS or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spoken {
    /// The frames of devices.
    Frames,
    /// HTTP.
    Http,
}

/// Why a subscription was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SubscribeError {
    Name(TopicNameError),
    /// `topics_max` topics exist.
    TooManyTopics,
}
