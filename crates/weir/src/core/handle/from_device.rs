//! What devices send to the program that embeds the gateway.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use weir_engine::ConnId;
use weir_wire::ErrorCode;

use super::Handle;
use crate::base::mailboxes::Publisher;
use crate::base::model::{Accepted, Payload, Publication, PublishError, Target};

/// A device has published something.
pub struct FromDevice<'a> {
    /// The connection that it came from; `None`: from a request, `POST /v1/publish`.
    pub conn: Option<ConnId>,
    /// The device's id; empty for a request whose token is bound to none.
    pub device: &'a str,
    /// The topic that it names. Its name has been checked; that it exists is not needed.
    pub topic: &'a str,
    /// What it says.
    pub payload: Payload<'a>,
    /// Media type, or empty.
    pub content_type: &'a str,
    /// Conflation key, or empty.
    pub key: &'a str,
    /// After this long it is not to be begun any more; only requests say so.
    pub ttl: Option<Duration>,
    pub(crate) handle: &'a Handle,
}

/// Why what a device sent is not taken: it is told so in `Error`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The word for programs.
    pub code: ErrorCode,
    /// A sentence for people.
    pub message: String,
}

/// Called for everything that devices publish, on a front thread; what comes on a connection in its order.
pub(crate) type OnPublish =
    Arc<dyn Fn(&FromDevice<'_>) -> Result<Option<Accepted>, Refusal> + Send + Sync>;

impl FromDevice<'_> {
    /// Publishes it to the topic that it names, with its connection as the sender.
    pub fn publish(&self) -> Result<Accepted, PublishError> {
        let publication = Publication {
            target: Target::Topic(self.topic),
            payload: self.payload,
            content_type: self.content_type,
            key: self.key,
            ttl: self.ttl,
            sender: self.conn,
        };
        self.handle.shared().publish(&publication, Publisher::Device)
    }

    /// Asks the embedding program, which alone decides. A panic of its must end nothing else.
    pub(crate) fn ask(&self, on_publish: &OnPublish) -> Result<Option<Accepted>, Refusal> {
        catch_unwind(AssertUnwindSafe(|| on_publish(self))).unwrap_or_else(|_| {
            let conn = self.conn.map(tracing::field::display);
            tracing::error!(conn, "on_publish panicked");
            let message = "the server failed to handle it".to_owned();
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
            | PublishError::BudgetExhausted(_) => ErrorCode::Busy,
        };
        Refusal { code, message: error.to_string() }
    }
}
