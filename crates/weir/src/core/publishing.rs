//! A message that was taken, and may still wait for the broker.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use tokio::runtime;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::task::coop;
use weir_broker::{Error, Waiting};

use crate::base::model::{Accepted, NodesReached, PublishError, RETRY_AFTER};
use crate::observe::counters::{Counters, PublishTarget, RefuseCause};

/// A message on its way: a future of [`Accepted`].
///
/// Without a cluster, and to a topic of this node alone, a message is accepted at once. Another one
/// is accepted when the broker has answered. To drop this changes nothing: the message is published
/// all the same.
#[must_use = "a message to a topic of the cluster may still fail"]
pub struct Publishing(State);

enum State {
    Done(Accepted),
    Sent { waiting: Waiting, id: u64, connections: u32, counters: Arc<Counters> },
    Asked(oneshot::Receiver<Result<Accepted, PublishError>>),
}

/// A message to a device or to all, which the broker carries to the nodes.
pub(in crate::core) struct Sending {
    /// The answer but for the nodes.
    pub(in crate::core) accepted: Accepted,
    pub(in crate::core) target: PublishTarget,
    pub(in crate::core) counters: Arc<Counters>,
    /// Held until the broker has answered.
    pub(in crate::core) permit: OwnedSemaphorePermit,
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

    /// The process that has taken over has been asked.
    pub(in crate::core) fn asked(
        answered: oneshot::Receiver<Result<Accepted, PublishError>>,
    ) -> Publishing {
        Publishing(State::Asked(answered))
    }

    /// Calls the broker now, and waits for its answer in a task, so that nothing depends on whether
    /// the caller waits.
    pub(in crate::core) fn ask(
        runtime: &runtime::Handle,
        call: impl Future<Output = Result<NodesReached, Error>> + Send + 'static,
        sending: Sending,
    ) -> Publishing {
        let (answer, answered) = oneshot::channel();
        let mut asking = Box::pin(async move {
            let Sending { accepted, target, counters, permit } = sending;
            let result = match call.await {
                Ok(nodes) => {
                    counters.count_published(target);
                    Ok(Accepted { nodes: Some(nodes), ..accepted })
                }
                Err(error) => {
                    let error = refusal(&error);
                    counters.count_refused(RefuseCause::of(&error));
                    Err(error)
                }
            };
            drop(permit);
            // The caller may not want to know.
            let _ = answer.send(result);
        });
        let _guard = runtime.enter();
        // The first poll hands the message to the broker, so the messages of a caller keep their
        // order.
        let mut first = std::pin::pin!(coop::unconstrained(asking.as_mut()));
        if first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            runtime.spawn(asking);
        }
        Publishing(State::Asked(answered))
    }

    /// The answer, if the message was accepted at once: that is so without a cluster.
    pub fn accepted(&self) -> Option<Accepted> {
        match &self.0 {
            State::Done(accepted) => Some(*accepted),
            State::Sent { .. } | State::Asked(_) => None,
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
        let (waiting, id, connections, counters) = match &mut self.0 {
            State::Done(accepted) => return Poll::Ready(Ok(*accepted)),
            State::Asked(answered) => {
                let answer = ready!(Pin::new(answered).poll(context));
                // The runtime ends: nobody knows.
                return Poll::Ready(answer.unwrap_or(Err(PublishError::Uncertain(RETRY_AFTER))));
            }
            State::Sent { waiting, id, connections, counters } => {
                (waiting, id, connections, counters)
            }
        };
        let answer = match ready!(Pin::new(waiting).poll(context)) {
            Ok((position, nodes)) => {
                counters.count_published(PublishTarget::Topic);
                Ok(Accepted {
                    id: *id,
                    offset: Some(position.offset),
                    epoch: Some(position.epoch),
                    connections: *connections,
                    nodes: Some(NodesReached::Subscribed(nodes)),
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
