//! The way back from the shards: a bounded queue a shard.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::{TryRecvError, TrySendError};
use weir_engine::{Front, Report};

/// The shard's end.
pub(crate) struct Reporter {
    queue: mpsc::Sender<Report>,
    room: Arc<Room>,
    /// Something is in the queue of which the front has not been told.
    is_silent: bool,
}

/// The front's end.
pub(crate) struct Reports {
    queue: mpsc::Receiver<Report>,
    room: Arc<Room>,
}

/// What both ends know of the room on the way.
#[derive(Default)]
pub(crate) struct Room {
    /// Bytes of the frames from devices that have been taken and not been carried out.
    received_bytes: AtomicUsize,
    /// The shard was refused something and wants to be woken when there is room.
    is_awaited: AtomicBool,
    /// Wakes the front: the queue itself would do so for every report, and a switch of threads costs more than many.
    waker: Notify,
}

/// A way back for one shard, with room for `capacity` reports.
pub(crate) fn queue(capacity: usize) -> (Reporter, Reports) {
    let (sender, receiver) = mpsc::channel(capacity);
    let room = Arc::new(Room::default());
    let reporter = Reporter { queue: sender, room: Arc::clone(&room), is_silent: false };
    (reporter, Reports { queue: receiver, room })
}

impl Front for Reporter {
    fn try_report(&mut self, report: Report) -> Result<(), Report> {
        let report = match self.try_once(report) {
            Ok(()) => return Ok(()),
            Err(report) => report,
        };
        // Room that was made before the note would be missed: so once more behind it.
        self.room.is_awaited.store(true, Ordering::SeqCst);
        self.try_once(report)
    }

    fn flush(&mut self) {
        if std::mem::take(&mut self.is_silent) {
            self.room.waker.notify_one();
        }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        // The front learns of the end when it looks.
        self.queue = mpsc::channel(1).0;
        self.room.waker.notify_one();
    }
}

impl Reporter {
    fn try_once(&mut self, report: Report) -> Result<(), Report> {
        let bytes = cost(&report);
        if !self.room.take(bytes) {
            return Err(report);
        }
        match self.queue.try_send(report) {
            // Closed: the gateway is gone, and nobody is left to tell.
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

    /// Takes the next reports, at most [`BATCH_REPORTS`]; `false` at the end. May be dropped while it waits.
    pub(crate) async fn receive(&mut self, batch: &mut Vec<Report>) -> bool {
        loop {
            while batch.len() < BATCH_REPORTS {
                match self.queue.try_recv() {
                    Ok(report) => batch.push(report),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return !batch.is_empty(),
                }
            }
            if !batch.is_empty() {
                return true;
            }
            self.room.waker.notified().await;
        }
    }
}

impl Room {
    fn take(&self, bytes: usize) -> bool {
        if bytes == 0 {
            return true;
        }
        let before = self.received_bytes.fetch_add(bytes, Ordering::SeqCst);
        // One always fits, however long.
        let fits = before == 0 || before + bytes <= RECEIVED_BYTES_MAX;
        if !fits {
            self.received_bytes.fetch_sub(bytes, Ordering::SeqCst);
        }
        fits
    }

    /// What was received has been carried out.
    pub(crate) fn give(&self, bytes: usize) {
        self.received_bytes.fetch_sub(bytes, Ordering::SeqCst);
    }

    /// Whether the shard wants to be woken; asked after room has been made.
    pub(crate) fn take_awaited(&self) -> bool {
        self.is_awaited.swap(false, Ordering::SeqCst)
    }
}

/// Bytes that a report takes of the room for what devices send.
pub(crate) fn cost(report: &Report) -> usize {
    match report {
        Report::Received { body, .. } => body.len() + size_of::<Report>(),
        Report::Adopted { .. }
        | Report::Refused { .. }
        | Report::NotEntered { .. }
        | Report::Left { .. }
        | Report::ResumeNext { .. }
        | Report::ResumeRefused { .. }
        | Report::Closed { .. }
        | Report::Retired { .. }
        | Report::Drained => 0,
    }
}

/// Taken at a time.
pub(crate) const BATCH_REPORTS: usize = 64;
/// Thousands of usual frames a shard; some of the longest.
const RECEIVED_BYTES_MAX: usize = 1024 * 1024;
#[cfg(test)]
mod tests;
