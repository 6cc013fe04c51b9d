//! Who waits for subscriptions.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::contract::Error;

/// A call that waits for some subscriptions. If all that hold it drop it, it has failed.
pub(in crate::redis) struct Call {
    left: AtomicUsize,
    answer: Mutex<Option<oneshot::Sender<Result<(), Error>>>>,
}

impl Call {
    /// One that waits for so many.
    pub(in crate::redis) fn new(count: usize) -> (Arc<Call>, oneshot::Receiver<Result<(), Error>>) {
        let (answer, answered) = oneshot::channel();
        let call = Call { left: AtomicUsize::new(count), answer: Mutex::new(Some(answer)) };
        (Arc::new(call), answered)
    }

    /// One of them stands.
    pub(super) fn succeeded(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.end(Ok(()));
        }
    }

    /// One of them cannot stand.
    pub(super) fn failed(&self, error: Error) {
        self.end(Err(error));
    }

    fn end(&self, result: Result<(), Error>) {
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(answer) = answer {
            let _ = answer.send(result);
        }
    }
}
