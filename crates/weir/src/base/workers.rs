//! Threads for connections that are not on a shard: runtimes of their own.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use tokio::runtime::{self, Runtime};

use crate::base::threads::schedule_settling_thread;

/// A runtime.
///
/// Dropped, it ends by itself: also on a thread of a runtime, which must not wait.
pub(crate) struct Workers(Option<Runtime>);

impl Workers {
    /// Starts `threads` threads of that name, which only get what shards and front leave.
    pub(crate) fn start(name: &str, threads: usize) -> io::Result<Workers> {
        let schedule = move || schedule_settling_thread(threads);
        Workers::scheduled(name, threads, POLLS_BETWEEN_EVENTS, schedule)
    }

    /// The same, whose threads begin with `schedule`, and look for events after so many polls.
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

/// Ends behind the tasks that are ready by now.
///
/// Unlike tokio's `yield_now` it is in the run queue meanwhile, from which another thread takes it should this one be
/// held up.
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

/// Among them may be steps of handshakes, of a millisecond each with RSA.
const POLLS_BETWEEN_EVENTS: u32 = 8;
