//! Runtimes with their own threads, for connections that are not on a shard.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use tokio::runtime::{self, Runtime};

use crate::base::threads::schedule_settling_thread;

/// A runtime.
///
/// A drop does not wait for its end, so a thread of another runtime may drop it.
pub(crate) struct Workers(Option<Runtime>);

impl Workers {
    /// Starts `threads` threads of that name. They get only the processor time that shards and
    /// front leave.
    pub(crate) fn start(name: &str, threads: usize) -> io::Result<Workers> {
        let schedule = move || schedule_settling_thread(threads);
        Workers::scheduled(name, threads, POLLS_BETWEEN_EVENTS, schedule)
    }

    /// The same with `schedule` called at the start of each thread, and a look for events after so
    /// many polls.
    pub(crate) fn scheduled(
        name: &str,
        threads: usize,
        polls_between_events: u32,
        schedule: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Workers> {
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name(name)
            .event_interval(polls_between_events)
            .on_thread_start(schedule)
            .enable_all()
            .build()?;
        Ok(Workers(Some(runtime)))
    }

    /// The handle for spawning tasks and registering sockets.
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

/// Returns after the tasks that are ready now have run.
///
/// Unlike tokio's `yield_now`, it waits in the run queue. If this thread is held up, another thread
/// can take it from there.
pub(crate) async fn behind_the_others() {
    let mut has_waited = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_waited, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// These polls may include steps of handshakes, of a millisecond each with RSA.
const POLLS_BETWEEN_EVENTS: u32 = 8;
