//! A message that was taken, and may still wait for the broker.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use weir_broker::{Error, Waiting};

use crate::base::model::{Accepted, PublishError};
use crate::core::publish::RETRY_AFTER;
use crate::observe::counters::{Counters, PublishTarget, RefuseCause};

/// A message on its way: a future of [`Accepted`].
///
/// A message to a topic of this node alone is accepted at once. A message to a topic of the cluster
/// is accepted when the broker has answered. To drop this changes nothing: the message is published
/// all the same.
#[must_use = "a message to a topic of the cluster may still fail"]
pub struct Publishing(State);

enum State {
    Done(Accepted),
    Sent { waiting: Waiting, id: u64, connections: u32, counters: Arc<Counters> },
}

impl Publishing {
    /// The broker has been asked.
    pub(crate) fn sent(
        waiting: Waiting,
        (id, connections): (u64, u32),
        counters: &Arc<Counters>,
    ) -> Publishing {
        Publishing(State::Sent { waiting, id, connections, counters: Arc::clone(counters) })
    }

    /// The answer, if the message was accepted at once: that is so without a cluster.
    pub fn accepted(&self) -> Option<Accepted> {
        match &self.0 {
            State::Done(accepted) => Some(*accepted),
            State::Sent { .. } => None,
        }
    }
}

impl From<Accepted> for Publishing {
    fn from(accepted: Accepted) -> Publishing {
        Publishing(State::Done(accepted))
    }
}

impl Future for Publishing {
    type Output = Result<Accepted, PublishError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let State::Sent { waiting, id, connections, counters } = &mut self.0 else {
            return match &self.0 {
                State::Done(accepted) => Poll::Ready(Ok(*accepted)),
                State::Sent { .. } => Poll::Pending,
            };
        };
        let answer = match ready!(Pin::new(waiting).poll(context)) {
            Ok((position, nodes)) => {
                counters.count_published(PublishTarget::Topic);
                Ok(Accepted {
                    id: *id,
                    offset: Some(position.offset),
                    epoch: Some(position.epoch),
                    connections: *connections,
                    nodes: Some(nodes),
                })
            }
            Err(error) => {
                let error = refusal(&error);
                counters.count_refused(RefuseCause::of(&error));
                Err(error)
            }
        };
        Poll::Ready(answer)
    }
}

/// What the publisher is told of a failure of the broker.
fn refusal(error: &Error) -> PublishError {
    match error {
        Error::Uncertain(_) => PublishError::Uncertain(RETRY_AFTER),
        Error::Overloaded { .. } => PublishError::Busy(RETRY_AFTER),
        Error::Unavailable(_) => PublishError::BrokerUnavailable(RETRY_AFTER),
        Error::Refused(_) | Error::OtherCluster { .. } | Error::Damaged(_) => {
            tracing::warn!(%error, "the broker refuses a message");
            PublishError::BrokerRefused(RETRY_AFTER)
        }
    }
}
