//! The jobs that the front does for a UDP thread, and the way back of their results.

use std::mem;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use weir_engine::Waker;
use weir_wire::v1;

use super::Reply;
use crate::base::model::Accepted;
use crate::limits::duplicates::Key;
use crate::provisioning::activation::Activated;
use crate::udp::backend::{Backend, DatagramRefusal, Validity};

/// Finished jobs.
///
/// Limits: at most the number of jobs that the thread has started.
pub(super) struct Jobs {
    done: Mutex<Vec<(Done, JobOutcome)>>,
    /// Whether the waker was used since the last look.
    is_woken: AtomicBool,
    waker: Waker,
}

/// The thread's next step once the front has answered.
pub(super) enum Done {
    Check { token: Box<str>, source: IpAddr },
    Ask { like: Key, reply: Reply<'static> },
}

/// The request to the front.
pub(super) enum What {
    Check { token: Box<str> },
    Activate { serial: String, key: String },
    Publish { token: String, publish: v1::Publish },
}

/// The answer of the front to a job.
pub(super) enum JobOutcome {
    Checked(Option<Validity>),
    Activated(Activated),
    Published(Option<Accepted>),
    Refused(DatagramRefusal),
}

/// A job of the front. If it is dropped without an outcome, the job was not done.
pub(super) struct Ticket {
    jobs: Arc<Jobs>,
    done: Option<Done>,
}

impl Jobs {
    pub(super) fn new(waker: Waker) -> Arc<Jobs> {
        Arc::new(Jobs { done: Mutex::default(), is_woken: AtomicBool::new(false), waker })
    }

    /// Takes what is done.
    pub(super) fn take(&self) -> Vec<(Done, JobOutcome)> {
        // Before the look: what is put behind it wakes again.
        if !self.is_woken.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        mem::take(&mut *self.done.lock().expect("no panic happens under this lock"))
    }

    fn put(&self, done: Done, outcome: JobOutcome) {
        self.done.lock().expect("no panic happens under this lock").push((done, outcome));
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            (self.waker)();
        }
    }
}

impl Done {
    /// The source of the request.
    pub(super) fn source(&self) -> IpAddr {
        match self {
            // One look-up serves all calls that show the token.
            Done::Check { source, .. } => *source,
            Done::Ask { reply, .. } => reply.peer.ip(),
        }
    }
}

impl What {
    pub(super) async fn ask(&self, backend: &dyn Backend, source: IpAddr) -> JobOutcome {
        let outcome = match self {
            What::Check { token } => backend.check(token, source).await.map(JobOutcome::Checked),
            What::Activate { serial, key } => {
                backend.activate(serial, key, source).await.map(JobOutcome::Activated)
            }
            What::Publish { token, publish } => {
                backend.publish(token, publish, source).await.map(JobOutcome::Published)
            }
        };
        outcome.unwrap_or_else(JobOutcome::Refused)
    }
}

impl Ticket {
    pub(super) fn new(jobs: Arc<Jobs>, done: Done) -> Ticket {
        Ticket { jobs, done: Some(done) }
    }

    pub(super) fn finish(mut self, outcome: JobOutcome) {
        if let Some(done) = self.done.take() {
            self.jobs.put(done, outcome);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            let refused = DatagramRefusal::busy("the server did not manage to answer");
            self.jobs.put(done, JobOutcome::Refused(refused));
        }
    }
}
