//! The threads that serve HTTP.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime;

use crate::base::threads::{Resources, schedule_edge_thread};
use crate::base::workers::Workers;

/// The threads that serve HTTP. Only this type chooses their arrangement.
///
/// Shape: one runtime with a thread for each processor granted. If there were several runtimes,
/// each would have its own listener on every address of `listen.http`, and the kernel would choose
/// between them.
pub(crate) struct Threads {
    runtimes: Vec<Workers>,
}

/// Chooses the runtime for connections that another thread has accepted, since a handshake came
/// first.
pub(super) struct Turns {
    runtimes: Vec<runtime::Handle>,
    next: AtomicUsize,
}

impl Threads {
    pub(crate) fn start(resources: &Resources) -> io::Result<Threads> {
        let threads = resources.settling_threads();
        let workers =
            Workers::scheduled("weir-http", threads, POLLS_BETWEEN_EVENTS, schedule_edge_thread)?;
        Ok(Threads { runtimes: vec![workers] })
    }

    /// The handle of each runtime.
    pub(crate) fn handles(&self) -> impl Iterator<Item = &runtime::Handle> {
        self.runtimes.iter().map(Workers::handle)
    }

    pub(super) fn turns(&self) -> Turns {
        Turns { runtimes: self.handles().cloned().collect(), next: AtomicUsize::new(0) }
    }
}

impl Turns {
    /// The runtime for the next connection.
    pub(super) fn next(&self) -> &runtime::Handle {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        &self.runtimes[turn % self.runtimes.len()]
    }
}

/// The number of requests that are answered in half a millisecond.
const POLLS_BETWEEN_EVENTS: u32 = 61;
