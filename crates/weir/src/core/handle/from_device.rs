//! Messages from devices to the program that embeds the gateway.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use weir_engine::ConnId;
use weir_wire::ErrorCode;

use super::Handle;
use crate::backends::notices::Author;
use crate::base::model::{IdempotencyKey, Payload, Publication, PublishError, Target};
use crate::core::publishing::Publishing;

/// A message that a device wants to publish.
pub struct FromDevice<'a> {
    /// The connection that sent it; `None` for an HTTP request or a datagram.
    pub conn: Option<ConnId>,
    /// The device's id; empty if the token of a request names no device.
    pub device: &'a str,
    /// The topic. Its name is valid, but the topic need not exist.
    pub topic: &'a str,
    /// The message's content.
    pub payload: Payload<'a>,
    /// The media type, or empty.
    pub content_type: &'a str,
    /// The conflation key, or empty.
    pub key: &'a str,
    /// The message expires after this time. Only HTTP requests set it.
    pub ttl: Option<Duration>,
    /// Tells a message that is sent again from a new one. [`FromDevice::publish`] looks at it; a
    /// program that takes the message elsewhere looks itself. Only HTTP requests set it.
    pub idempotency_key: Option<IdempotencyKey<'a>>,
    pub(crate) handle: &'a Handle,
}

/// A refusal of a device's message. The device gets it as `Error`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The code for programs.
    pub code: ErrorCode,
    /// The sentence for people.
    pub message: String,
}

/// Called on a front thread for each message that devices publish; the messages of one connection
/// come in its order.
pub(crate) type OnPublish =
    Arc<dyn Fn(&FromDevice<'_>) -> Result<Option<Publishing>, Refusal> + Send + Sync>;

impl FromDevice<'_> {
    /// Publishes the message to its topic, with the connection as the sender.
    pub fn publish(&self) -> Result<Publishing, PublishError> {
        let publication = Publication {
            target: Target::Topic(self.topic),
            payload: self.payload,
            content_type: self.content_type,
            key: self.key,
            ttl: self.ttl,
            sender: self.conn,
            idempotency_key: self.idempotency_key,
        };
        self.handle.shared().publish(&publication, Author::Device, Some(self.device))
    }

    /// Asks the embedding program, which alone decides. A panic in that program ends nothing else.
    pub(crate) fn ask(&self, on_publish: &OnPublish) -> Result<Option<Publishing>, Refusal> {
        catch_unwind(AssertUnwindSafe(|| on_publish(self))).unwrap_or_else(|_| {
            let conn = self.conn.map(tracing::field::display);
            tracing::error!(conn, "on_publish panicked");
            let message = "the server failed to handle the message".to_owned();
            Err(Refusal { code: ErrorCode::Busy, message })
        })
    }

    /// The gateway.
    pub fn handle(&self) -> &Handle {
        self.handle
    }
}

impl From<PublishError> for Refusal {
    fn from(error: PublishError) -> Self {
        let code = match error {
            PublishError::TopicName(_) => ErrorCode::TopicName,
            PublishError::TooLarge { .. } | PublishError::TooLargeForTopic { .. } => {
                ErrorCode::TooLarge
            }
            PublishError::RateLimited { .. } => ErrorCode::RateLimited,
            PublishError::TooManyTopics { .. } => ErrorCode::TooManyTopics,
            PublishError::TickFull { .. }
            | PublishError::Busy(_)
            | PublishError::BudgetExhausted(_)
            | PublishError::Uncertain(_)
            | PublishError::InProgress(_)
            | PublishError::BrokerUnavailable(_)
            | PublishError::BrokerRefused(_) => ErrorCode::Busy,
        };
        Refusal { code, message: error.to_string() }
    }
}
