//! Notices and requests on their way to the thread.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::status::QueueWatch;
use super::{NewNotice, NoticePage, NoticeQueue, Notices, PageLimits, QueueId};
use crate::contract::Error;

/// The buffer. It is bounded, and never makes a caller wait.
#[derive(Default)]
pub(super) struct Buffer {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
    forgotten: AtomicU64,
}

/// What waits for the thread.
#[derive(Default)]
pub(super) struct Waiting {
    pub(super) notices: Vec<NewNotice>,
    bytes: usize,
    /// How many were forgotten, by queue. They came after all of `notices`.
    pub(super) forgotten: BTreeMap<QueueId, u64>,
    /// Whether something was forgotten that begins or ends.
    pub(super) has_gap: bool,
    pub(super) requests: Vec<Request>,
    pub(super) is_closed: bool,
    /// Whether the file may be opened.
    has_begun: bool,
}

/// What callers ask of the thread.
pub(super) enum Request {
    SetQueues { queues: Vec<NoticeQueue>, reply: Reply<Vec<(QueueId, QueueWatch)>> },
    Recover { reply: Reply<u64> },
    GoOn { reply: Reply<()> },
    Adopt { reply: Reply<()> },
    Page { queue: QueueId, after: Option<u64>, limits: PageLimits, reply: Reply<NoticePage> },
    Acknowledge { queue: QueueId, sequence: u64, reply: Reply<()> },
}

impl Request {
    fn refuse(self, why: &str) {
        let error = Error::Unavailable(why.to_owned());
        // Askers may have gone.
        match self {
            Request::SetQueues { reply, .. } => drop(reply.send(Err(error))),
            Request::Recover { reply } => drop(reply.send(Err(error))),
            Request::Page { reply, .. } => drop(reply.send(Err(error))),
            Request::GoOn { reply }
            | Request::Adopt { reply }
            | Request::Acknowledge { reply, .. } => drop(reply.send(Err(error))),
        }
    }
}

type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// Closes the buffer when dropped, and forgets what waits.
pub(super) struct CloseAtEnd<'a>(&'a Buffer);

impl Waiting {
    /// Whether there is nothing to write.
    pub(super) fn is_empty(&self) -> bool {
        self.notices.is_empty() && self.forgotten.is_empty() && !self.has_gap
    }
}

impl Buffer {
    pub(super) fn push(&self, notice: NewNotice) {
        let mut waiting = self.lock();
        if waiting.is_closed {
            return;
        }
        let bytes = waiting.bytes + notice.body.len();
        if waiting.notices.len() >= Notices::BUFFER_MAX || bytes > Notices::BUFFER_BYTES_MAX {
            self.forgotten.fetch_add(notice.queues.len() as u64, Ordering::Relaxed);
            waiting.has_gap |= notice.change != super::Change::None;
            for queue in notice.queues.iter() {
                *waiting.forgotten.entry(*queue).or_default() += 1;
            }
            return;
        }
        waiting.bytes = bytes;
        let is_first = waiting.notices.is_empty();
        waiting.notices.push(notice);
        drop(waiting);
        if is_first {
            self.arrived.notify_one();
        }
    }

    pub(super) fn ask(&self, request: Request) -> Result<(), Error> {
        let mut waiting = self.lock();
        if waiting.is_closed {
            return Err(Error::Unavailable("the file of notices is closed".to_owned()));
        }
        if waiting.requests.len() >= REQUESTS_MAX {
            return Err(Error::Overloaded(REQUESTS_MAX));
        }
        waiting.requests.push(request);
        drop(waiting);
        self.arrived.notify_one();
        Ok(())
    }

    /// Waits for something to do, at most for `idle`, and takes all of it. Notices alone wait a
    /// moment for others, which share their commit. `is_blocked`: the file takes no notices, so
    /// that they stay here.
    pub(super) fn take(&self, idle: Duration, is_blocked: bool) -> Waiting {
        let mut waiting = self.lock();
        let has_work = |waiting: &Waiting| {
            let has_notices = !is_blocked && !waiting.notices.is_empty();
            waiting.is_closed || !waiting.requests.is_empty() || has_notices
        };
        if !has_work(&waiting) {
            let waits = |waiting: &mut Waiting| !has_work(waiting);
            let waited = self.arrived.wait_timeout_while(waiting, idle, waits);
            waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if waiting.requests.is_empty() && !waiting.is_closed {
            let waits = |waiting: &mut Waiting| {
                let is_half_full = waiting.notices.len() >= Notices::BUFFER_MAX / 2;
                waiting.requests.is_empty() && !waiting.is_closed && !is_half_full
            };
            if !waiting.notices.is_empty() && !is_blocked {
                let waited = self.arrived.wait_timeout_while(waiting, GATHER, waits);
                waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        let (is_closed, has_begun) = (waiting.is_closed, waiting.has_begun);
        if is_blocked {
            let requests = std::mem::take(&mut waiting.requests);
            return Waiting { requests, is_closed, ..Waiting::default() };
        }
        let taken = std::mem::take(&mut *waiting);
        (waiting.is_closed, waiting.has_begun) = (is_closed, has_begun);
        taken
    }

    /// Lets the file be opened.
    pub(super) fn begin(&self) {
        self.lock().has_begun = true;
        self.arrived.notify_all();
    }

    /// Waits until the file may be opened; `false`: it is closed before that.
    pub(super) fn has_begun(&self) -> bool {
        let waits = |waiting: &mut Waiting| !waiting.has_begun && !waiting.is_closed;
        let waited = self.arrived.wait_while(self.lock(), waits);
        !waited.unwrap_or_else(PoisonError::into_inner).is_closed
    }

    /// Waits so long, or until it is closed. Whether it is closed.
    pub(super) fn closes_within(&self, time: Duration) -> bool {
        let waits = |waiting: &mut Waiting| !waiting.is_closed;
        let waited = self.arrived.wait_timeout_while(self.lock(), time, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_closed
    }

    /// The file does not open: whoever waits for an answer is told so.
    pub(super) fn refuse_requests(&self, why: &str) {
        let requests = std::mem::take(&mut self.lock().requests);
        requests.into_iter().for_each(|request| request.refuse(why));
    }

    /// Has all that was told be compared with what stands.
    pub(super) fn note_gap(&self) {
        self.lock().has_gap = true;
    }

    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.arrived.notify_all();
    }

    pub(super) fn close_at_end(&self) -> CloseAtEnd<'_> {
        CloseAtEnd(self)
    }

    pub(super) fn len(&self) -> usize {
        self.lock().notices.len()
    }

    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CloseAtEnd<'_> {
    fn drop(&mut self) {
        self.0.close();
        // A caller that waits for an answer learns that there is none.
        let requests = std::mem::take(&mut self.0.lock().requests);
        drop(requests);
    }
}

/// How long notices wait for others. It is short beside the time of a commit on a slow disk.
const GATHER: Duration = Duration::from_millis(5);
/// Each receiver has one, and the admin API as many as it has connections.
const REQUESTS_MAX: usize = 1_024;
