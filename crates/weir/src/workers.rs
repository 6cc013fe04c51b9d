//! The threads on which connections become settled: runtimes of their own, below the shards.

use std::io;

use tokio::runtime::{self, Runtime};

use crate::threads::schedule_settling_thread;

/// A runtime whose threads only get what shards and front leave.
///
/// Dropped, it ends by itself: also on a thread of a runtime, which must not wait.
pub(crate) struct Workers(Option<Runtime>);

impl Workers {
    /// Starts `threads` threads of that name.
    pub(crate) fn start(name: &str, threads: usize) -> io::Result<Workers> {
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name(name)
            .on_thread_start(move || schedule_settling_thread(threads))
            .enable_all()
            .build()?;
        Ok(Workers(Some(runtime)))
    }

    /// To spawn on it, and to register sockets with it.
    pub(crate) fn handle(&self) -> &runtime::Handle {
        self.0.as_ref().expect("it is there until it is dropped").handle()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
