//! The threads that verify signatures, on which no other work waits.

use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};

use tokio::runtime;

use crate::base::workers::Workers;

/// The threads. They start with the first key.
pub(crate) struct Verifier {
    /// 0: the callers verify on their own threads.
    threads: usize,
    workers: OnceLock<Workers>,
    starting: Mutex<()>,
}

impl Verifier {
    /// `threads` threads that do not run yet.
    pub(crate) fn new(threads: usize) -> Verifier {
        Verifier { threads, workers: OnceLock::new(), starting: Mutex::default() }
    }

    #[cfg(test)]
    pub(crate) fn none() -> Verifier {
        Verifier::new(0)
    }

    /// Starts the threads, unless they run.
    ///
    /// Errors: the kernel starts none.
    pub(crate) fn start(&self) -> io::Result<()> {
        let _others_wait = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if self.threads > 0 && self.workers.get().is_none() {
            let workers = Workers::start("weir-verify", self.threads)?;
            // No other caller has started them.
            let _ = self.workers.set(workers);
        }
        Ok(())
    }

    /// `None`: the caller's thread verifies.
    pub(super) fn handle(&self) -> Option<&runtime::Handle> {
        self.workers.get().map(Workers::handle)
    }
}
