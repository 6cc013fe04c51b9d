//! Why a message is not accepted, and why a topic does not begin.

use std::time::Duration;

use crate::base::model::SubscribeError;

/// The reason for a refused publish. The router has pushed nothing and used no offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouteError {
    /// A shard's mailbox is full, or the router stands still.
    Busy,
    /// The byte budget has no room for the message.
    Budget,
    /// The message is longer than its class allows.
    TooLarge { limit: usize },
    /// The topic has reached its class's messages in a second.
    RateLimited { per_second: u32, after: Duration },
    /// The running tick has no room left.
    TickFull { limit: usize, after: Duration },
    /// The message would begin a topic, but `topics_max` topics exist, or half as many without
    /// subscribers.
    TooManyTopics,
}

/// Why a topic does not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotBegun {
    /// The router stands still.
    Still,
    /// There are too many.
    TooMany,
}

impl From<NotBegun> for RouteError {
    fn from(error: NotBegun) -> RouteError {
        match error {
            NotBegun::Still => RouteError::Busy,
            NotBegun::TooMany => RouteError::TooManyTopics,
        }
    }
}

impl From<NotBegun> for SubscribeError {
    fn from(error: NotBegun) -> SubscribeError {
        match error {
            NotBegun::Still => SubscribeError::Busy,
            NotBegun::TooMany => SubscribeError::TooManyTopics,
        }
    }
}
