//! The reports from the shards: one bounded queue for each shard.
//!
//! A shard with descriptors of its own cannot wake a task, because that may write to a descriptor
//! of the runtime. It adds to a counter instead, which the front polls.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::{TryRecvError, TrySendError};
use weir_engine::{Front, Mailbox, Report};

/// The shard's end.
pub(crate) struct Reporter {
    queue: mpsc::Sender<Report>,
    room: Arc<Room>,
    /// The queue has reports that the front has not been woken for.
    is_silent: bool,
    /// The shard wakes the front itself.
    is_woken_by_shard: bool,
}

/// The front's end.
pub(crate) struct Reports {
    queue: mpsc::Receiver<Report>,
    /// It does not keep the queue open.
    watch: mpsc::WeakSender<Report>,
    room: Arc<Room>,
    /// Present if the shard has descriptors of its own.
    wakes: Option<Wakes>,
}

/// The wakes of a shard that has descriptors of its own, and the mailbox that its answers wait in.
struct Wakes {
    counter: AsyncFd<OwnedFd>,
    mailbox: Mailbox<OwnedFd>,
}

/// The state of the queue that both ends share.
#[derive(Default)]
pub(crate) struct Room {
    /// Bytes of the frames from devices that the shard has reported and the front has not carried
    /// out.
    received_bytes: AtomicUsize,
    /// The shard was refused a report and wants to be woken when there is room.
    is_awaited: AtomicBool,
    /// Wakes the front. The queue itself would wake it for every report, and one switch of threads
    /// costs more than many reports.
    waker: Notify,
}

/// A queue of `capacity` reports for one shard. With `is_woken_by_shard` the shard wakes the front
/// itself; [`Reports::wake_by`] tells how.
pub(crate) fn queue(capacity: usize, is_woken_by_shard: bool) -> (Reporter, Reports) {
    let (sender, receiver) = mpsc::channel(capacity);
    let room = Arc::new(Room::default());
    let watch = sender.downgrade();
    let reporter =
        Reporter { queue: sender, room: Arc::clone(&room), is_silent: false, is_woken_by_shard };
    (reporter, Reports { queue: receiver, watch, room, wakes: None })
}

impl Front for Reporter {
    fn try_report(&mut self, report: Report) -> Result<(), Report> {
        let report = match self.try_once(report) {
            Ok(()) => return Ok(()),
            Err(report) => report,
        };
        // Room that was made before the flag was set would be missed, so try again.
        self.room.is_awaited.store(true, Ordering::SeqCst);
        self.try_once(report)
    }

    fn flush(&mut self) -> bool {
        let must_wake = std::mem::take(&mut self.is_silent);
        if must_wake && !self.is_woken_by_shard {
            self.room.waker.notify_one();
        }
        must_wake && self.is_woken_by_shard
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        // Replacing the sender closes the queue; the front sees that when it wakes.
        self.queue = mpsc::channel(1).0;
        if !self.is_woken_by_shard {
            self.room.waker.notify_one();
        }
    }
}

impl Reporter {
    fn try_once(&mut self, report: Report) -> Result<(), Report> {
        let bytes = cost(&report);
        if !self.room.take(bytes) {
            return Err(report);
        }
        match self.queue.try_send(report) {
            // The queue is closed: the gateway has gone, and no receiver is left.
            Ok(()) | Err(TrySendError::Closed(_)) => {
                self.is_silent = true;
                Ok(())
            }
            Err(TrySendError::Full(report)) => {
                self.room.received_bytes.fetch_sub(bytes, Ordering::SeqCst);
                Err(report)
            }
        }
    }
}

impl Reports {
    pub(crate) fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// Tells others than the dispatcher whether reports wait.
    pub(crate) fn watch(&self) -> ReportsWatch {
        ReportsWatch(self.watch.clone())
    }

    /// Takes the next reports, at most [`BATCH_REPORTS`]; `false` at the end. It also delivers the
    /// answers of a shard with descriptors of its own. Safe to drop while it waits.
    pub(crate) async fn receive(&mut self, batch: &mut Vec<Report>) -> bool {
        loop {
            self.deliver_answers();
            while batch.len() < BATCH_REPORTS {
                match self.queue.try_recv() {
                    Ok(report) => batch.push(report),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        self.deliver_answers();
                        return !batch.is_empty();
                    }
                }
            }
            if !batch.is_empty() {
                return true;
            }
            self.wait().await;
        }
    }

    fn deliver_answers(&self) {
        if let Some(wakes) = &self.wakes {
            wakes.mailbox.deliver_answers();
        }
    }

    /// Whether the shard has reported nothing that was not taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Waits until the shard has something to say.
    async fn wait(&self) {
        let Some(wakes) = &self.wakes else {
            return self.room.waker.notified().await;
        };
        match wakes.counter.readable().await {
            // The next wake is a new edge, so nobody has to read the counter.
            Ok(mut ready) => ready.clear_ready(),
            // The runtime ends, and so does this task.
            Err(_) => std::future::pending().await,
        }
    }

    /// Has the front woken by a shard with descriptors of its own, through this counter. Call it on
    /// the runtime.
    pub(crate) fn wake_by(
        &mut self,
        counter: OwnedFd,
        mailbox: Mailbox<OwnedFd>,
    ) -> io::Result<()> {
        #[expect(
            deprecated,
            reason = "unsound where a type changes its descriptor; a counter keeps it"
        )]
        let counter = AsyncFd::with_interest(counter, Interest::READABLE)?;
        self.wakes = Some(Wakes { counter, mailbox });
        Ok(())
    }
}

/// Whether the reports of a shard wait.
#[derive(Debug, Clone)]
pub(crate) struct ReportsWatch(mpsc::WeakSender<Report>);

impl ReportsWatch {
    /// Whether the dispatcher has taken every report.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.upgrade().is_none_or(|queue| queue.capacity() == queue.max_capacity())
    }
}

impl Room {
    fn take(&self, bytes: usize) -> bool {
        if bytes == 0 {
            return true;
        }
        let before = self.received_bytes.fetch_add(bytes, Ordering::SeqCst);
        // A single frame always fits, however long it is.
        let fits = before == 0 || before + bytes <= RECEIVED_BYTES_MAX;
        if !fits {
            self.received_bytes.fetch_sub(bytes, Ordering::SeqCst);
        }
        fits
    }

    /// Returns the bytes of a frame that has been carried out.
    pub(crate) fn give(&self, bytes: usize) {
        self.received_bytes.fetch_sub(bytes, Ordering::SeqCst);
    }

    /// Whether the shard wants to be woken. Call it after room has been made.
    pub(crate) fn take_awaited(&self) -> bool {
        self.is_awaited.swap(false, Ordering::SeqCst)
    }
}

/// The bytes that a report counts against `RECEIVED_BYTES_MAX`.
pub(crate) fn cost(report: &Report) -> usize {
    match report {
        Report::Received { body, .. } => frame_cost(body),
        Report::Adopted { .. }
        | Report::Refused { .. }
        | Report::NotEntered { .. }
        | Report::Left { .. }
        | Report::ResumeNext { .. }
        | Report::ResumeRefused { .. }
        | Report::Closed { .. }
        | Report::Retired { .. }
        | Report::Drained { .. } => 0,
    }
}

/// The same for the frame of a device.
pub(crate) fn frame_cost(body: &[u8]) -> usize {
    body.len() + size_of::<Report>()
}

/// Reports taken at a time.
pub(crate) const BATCH_REPORTS: usize = 64;
/// Room for thousands of usual frames of a shard, or some of the longest.
const RECEIVED_BYTES_MAX: usize = 1024 * 1024;
#[cfg(test)]
mod tests;
