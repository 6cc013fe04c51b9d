//! The store that needs no server: one SQLite file.

mod changes;
mod copy;
mod file;
mod fold;
mod identity;
mod index;
mod queue;
mod tables;
#[cfg(test)]
mod tests;
mod worker;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::oneshot;

pub use copy::{Backup, BackupError, back_up, restore};
pub use file::OpenError;
pub(crate) use file::{OpenedNotices, open_notices};

use crate::contract::{Answer, BATCH_MAX, Error, Store, StoreMemory};
use crate::records::{
    Device, DeviceEntry, Hash, Holder, Issue, Issued, Millis, Page, Put, Refusal, Revoked, Serial,
};
use crate::sys;
use changes::Recent;
use file::Lock;
use queue::{Queue, Task};
use tables::Tables;

/// Keeps devices in one file, without a server.
///
/// One thread writes. It takes the waiting requests, carries them out in one transaction, and
/// answers when that is on disk. Another thread reads committed data.
///
/// # Limits
/// At most `queue_max` items wait for each of the two threads; a further one is refused at once. No
/// request waits longer than `timeout`. A thread does not begin a request whose caller has gone.
///
/// # Source
/// docs/decisions/0005-embedded-store.md: why SQLite, and with these settings.
pub struct Embedded {
    timeout: Duration,
    queue_max: usize,
    opened: EmbeddedReport,
    recent: Arc<Recent>,
    // Dropped in this order, each after its remaining requests. The last connection that closes
    // moves the log into the file, and that must be the writer's. Then other processes may open the
    // file.
    reads: Worker,
    writes: Worker,
    /// `None` once the store is closed.
    lock: Mutex<Option<Lock>>,
    /// A test's directory, which is removed with the store.
    #[cfg(test)]
    directory: Option<tempfile::TempDir>,
}

/// The options of an [`Embedded`] store.
#[derive(Debug, Clone)]
pub struct EmbeddedOptions {
    /// The path of its file. Beside it lie `-wal`, `-shm` and `.lock`.
    pub path: PathBuf,
    /// Whether to make a missing file. Otherwise a missing file is [`OpenError::Missing`].
    pub create: bool,
    /// The longest wait for an answer.
    pub timeout: Duration,
    /// The largest number of waiting items. A larger batch may wait if nothing else does.
    pub queue_max: usize,
    /// The [`crate::Secrets::fingerprint`] of the secrets with which keys and tokens are hashed.
    pub fingerprint: Hash,
}

/// A description of the file at the time of opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddedReport {
    /// Devices in it.
    pub devices: u64,
    /// Whether the file was made now.
    pub is_new: bool,
    /// How long the check for damage took.
    pub check: Duration,
    /// Whether this time sufficed for the whole file.
    pub is_checked: bool,
    /// Whether the previous process ended without closing the file, and the log is missing. It
    /// would have had the last changes.
    pub is_log_lost: bool,
}

/// A thread and its queue.
struct Worker {
    queue: Arc<Queue>,
    /// `None` once the thread was told to end.
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A thread that is about to end.
struct End {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

impl Embedded {
    /// Opens the file, or makes it if the options permit that.
    ///
    /// # Errors
    /// There is no file, another process holds it, it cannot be written, it is damaged, another
    /// version has written it, or it was hashed with other secrets.
    ///
    /// # Cost
    /// Blocks for three steps. The check for damage reads the whole file and takes at most ten
    /// seconds. Reading the tokens of the devices takes some half a second for a million activated
    /// ones. After a crash, reading the log takes time too; it has at most 64 MB.
    pub fn open(options: EmbeddedOptions) -> Result<Embedded, OpenError> {
        let opened = file::open(&options)?;
        let recent = Arc::new(opened.recent);
        let (writer, reader, identity) = (opened.writer, opened.reader, opened.identity);
        let shared = Arc::clone(&recent);
        let writes = Worker::start("store-writer", move |queue| {
            worker::write(&writer, &shared, queue, identity);
        })?;
        let shared = Arc::clone(&recent);
        let reads = Worker::start("store-reader", move |queue| {
            worker::read(&reader, &shared, queue);
        })?;
        let (timeout, queue_max) = (options.timeout, options.queue_max);
        Ok(Embedded {
            timeout,
            queue_max,
            opened: opened.report,
            recent,
            #[cfg(test)]
            directory: None,
            reads,
            writes,
            lock: Mutex::new(Some(opened.lock)),
        })
    }

    /// The description of the file at the time of opening.
    pub fn opened(&self) -> EmbeddedReport {
        self.opened
    }

    fn ask<T: Send + 'static>(
        &self,
        worker: &Worker,
        items: usize,
        run: impl FnMut(&Tables<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Answer<'static, T> {
        if items > BATCH_MAX {
            return Box::pin(async move { Err(Error::Overloaded(items)) });
        }
        let (reply, answer) = oneshot::channel();
        let pushed = worker.queue.push(items, self.queue_max, Box::new(Task::new(run, reply)));
        let timeout = self.timeout;
        Box::pin(async move {
            pushed?;
            match tokio::time::timeout(timeout, answer).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => Err(Error::Unavailable("the store is closed".to_owned())),
                Err(_) => {
                    let ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
                    Err(Error::TimedOut(ms))
                }
            }
        })
    }
}

impl Store for Embedded {
    fn name(&self) -> &'static str {
        "embedded"
    }

    fn put(&self, entries: Vec<DeviceEntry>, now: Millis) -> Answer<'_, Vec<Put>> {
        self.ask(&self.writes, entries.len(), move |tables| {
            entries.iter().map(|entry| tables.put(entry, now)).collect()
        })
    }

    fn issue(&self, issues: Vec<Issue>) -> Answer<'_, Vec<Result<Issued, Refusal>>> {
        self.ask(&self.writes, issues.len(), move |tables| {
            issues.iter().map(|issue| tables.issue(issue)).collect()
        })
    }

    fn check(&self, tokens: Vec<Hash>, now: Millis) -> Answer<'_, Vec<Option<Holder>>> {
        self.ask(&self.reads, tokens.len(), move |tables| {
            tokens.iter().map(|token| tables.check(token, now)).collect()
        })
    }

    fn revoke(&self, serials: Vec<Serial>) -> Answer<'_, Vec<Revoked>> {
        self.ask(&self.writes, serials.len(), move |tables| {
            serials.iter().map(|serial| tables.revoke(serial)).collect()
        })
    }

    fn find(&self, serials: Vec<Serial>) -> Answer<'_, Vec<Option<Device>>> {
        self.ask(&self.reads, serials.len(), move |tables| {
            serials.iter().map(|serial| tables.find(serial)).collect()
        })
    }

    fn list(&self, page: Page) -> Answer<'_, Vec<Device>> {
        let limit = page.limit.min(BATCH_MAX);
        self.ask(&self.reads, limit, move |tables| tables.list(page.after.as_ref(), limit))
    }

    fn seen(&self, seen: Vec<(Serial, Millis)>) -> Answer<'_, ()> {
        self.ask(&self.writes, seen.len(), move |tables| {
            seen.iter().try_for_each(|(serial, at)| tables.seen(serial, *at))
        })
    }

    /// There is nothing to remove, because tokens stand in the records of their devices.
    fn sweep(&self, _: Millis, _: usize) -> Answer<'_, usize> {
        Box::pin(std::future::ready(Ok(0)))
    }

    fn count(&self) -> Answer<'_, u64> {
        self.ask(&self.reads, 1, |tables| tables.count())
    }

    fn probe(&self) -> Answer<'_, ()> {
        self.ask(&self.writes, 1, |tables| tables.probe())
    }

    fn memory(&self) -> StoreMemory {
        let StoreMemory { entries, bytes } = self.recent.memory();
        StoreMemory { entries, bytes: bytes + sys::sqlite_bytes() }
    }

    fn close(&self) -> Answer<'_, ()> {
        let (reads, writes) = (self.reads.end(), self.writes.end());
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
        Box::pin(async move {
            let ended = tokio::task::spawn_blocking(move || {
                // The same order as when the store is dropped.
                reads.wait();
                writes.wait();
                drop(lock);
            });
            ended.await.map_err(|error| Error::Unavailable(error.to_string()))
        })
    }
}

impl Worker {
    fn start(name: &str, run: impl FnOnce(&Queue) + Send + 'static) -> Result<Worker, OpenError> {
        let queue = Arc::new(Queue::default());
        let shared = Arc::clone(&queue);
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            // However the thread ends, no caller waits for it afterwards.
            let _closed = shared.close_at_end();
            run(&shared);
        });
        Ok(Worker { queue, thread: Mutex::new(Some(thread.map_err(OpenError::Thread)?)) })
    }

    /// The end of the thread, for the first caller that asks for it.
    fn end(&self) -> End {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        End { queue: Arc::clone(&self.queue), thread }
    }
}

impl End {
    /// Tells the thread to end when its queue is empty, and waits for that.
    fn wait(self) {
        self.queue.close();
        if let Some(thread) = self.thread {
            // A thread that panicked has reported it.
            let _ = thread.join();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end().wait();
    }
}
