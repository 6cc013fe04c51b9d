//! Messages that the old process of an upgrade has passed on to the new one, and whose answers it
//! awaits.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use weir_wire::handover::v1;

use crate::base::model::{Accepted, PublishError, RETRY_AFTER};
use crate::core::idempotency::message_accepted;
use crate::core::publishing::Publishing;

/// The messages whose answers are awaited.
///
/// Limits: [`ASKED_MAX`], and the room on the way; a further one is refused with `busy`.
#[derive(Default)]
pub(crate) struct Forwards(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// Present while the new process is there.
    way: Option<mpsc::Sender<v1::LinkPublish>>,
    last: u64,
    asked: HashMap<u64, oneshot::Sender<Result<Accepted, PublishError>>>,
}

/// Why a message was not passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum NotAsked {
    /// The new process is not there.
    Gone,
    /// Too many wait.
    Full,
}

impl Forwards {
    /// From here on the new process is asked.
    pub(crate) fn begin(&self, way: mpsc::Sender<v1::LinkPublish>) {
        self.lock().way = Some(way);
    }

    /// The new process is not there any more. What it has not answered is uncertain.
    pub(crate) fn end(&self) {
        *self.lock() = Inner::default();
    }

    /// Takes an answer.
    pub(crate) fn answered(&self, published: &v1::LinkPublished) {
        let Some(asked) = self.lock().asked.remove(&published.number) else { return };
        let answer = match (&published.accepted, published.is_uncertain) {
            (Some(accepted), _) => Ok(message_accepted(accepted)),
            (None, true) => Err(PublishError::Uncertain(RETRY_AFTER)),
            (None, false) => Err(PublishError::Busy(RETRY_AFTER)),
        };
        // The caller may have gone.
        let _ = asked.send(answer);
    }

    pub(in crate::core) fn ask(&self, publish: v1::LinkPublish) -> Result<Publishing, NotAsked> {
        let mut inner = self.lock();
        let number = inner.last + 1;
        let way = inner.way.as_ref().ok_or(NotAsked::Gone)?;
        if inner.asked.len() >= ASKED_MAX {
            return Err(NotAsked::Full);
        }
        way.try_send(v1::LinkPublish { number, ..publish }).map_err(|error| match error {
            TrySendError::Full(_) => NotAsked::Full,
            TrySendError::Closed(_) => NotAsked::Gone,
        })?;
        inner.last = number;
        let (answer, answered) = oneshot::channel();
        inner.asked.insert(number, answer);
        Ok(Publishing::asked(answered))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// More than there are requests in progress at a time when another process has taken over.
const ASKED_MAX: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_answers_is_bounded() {
        let forwards = Forwards::default();
        let ask = || forwards.ask(v1::LinkPublish::default()).map(drop);
        assert_eq!(ask(), Err(NotAsked::Gone));
        let (way, mut asked) = mpsc::channel(ASKED_MAX + 1);
        forwards.begin(way);
        for _ in 0..ASKED_MAX {
            assert_eq!(ask(), Ok(()));
        }
        assert_eq!(ask(), Err(NotAsked::Full));
        let number = asked.try_recv().unwrap().number;
        assert_eq!(ask(), Err(NotAsked::Full), "it has no answer yet");
        forwards.answered(&v1::LinkPublished { number, ..v1::LinkPublished::default() });
        assert_eq!(ask(), Ok(()));
        forwards.end();
        assert_eq!(ask(), Err(NotAsked::Gone));
        // The way is shorter than the list of those that wait.
        let (way, asked) = mpsc::channel(1);
        forwards.begin(way);
        assert_eq!((ask(), ask()), (Ok(()), Err(NotAsked::Full)));
        drop(asked);
        assert_eq!(ask(), Err(NotAsked::Gone));
    }
}
