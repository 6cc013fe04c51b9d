//! The store that needs no server: one file of SQLite's.

mod changes;
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

pub use file::OpenError;

use crate::contract::{Answer, BATCH_MAX, Error, Store};
use crate::records::{
    Device, DeviceEntry, Hash, Holder, Issue, Issued, Millis, Page, Put, Refusal, Revoked, Serial,
};
#[cfg(test)]
use changes::Recent;
use file::Lock;
use queue::{Queue, Task};
use tables::Tables;

/// Keeps devices in one file, without a server.
///
/// One thread writes: it takes whatever waits, carries it out in one transaction, and answers when that is on disk.
/// Another one reads, from what has been committed.
///
/// # Limits
/// At most `queue_max` items wait for each of the two; who comes then is told so at once. Nobody waits longer than
/// `timeout`; what nobody waits for any more is not begun.
///
/// # Source
/// docs/decisions/0005-embedded-store.md: why SQLite, and with these settings.
pub struct Embedded {
    timeout: Duration,
    queue_max: usize,
    opened: EmbeddedReport,
    #[cfg(test)]
    recent: Arc<Recent>,
    // What has been asked is carried out when it ends, and in this order: the last connection that is closed moves the
    // log into the file, and that is the writer's; then others may open it.
    reads: Worker,
    writes: Worker,
    /// Until it is closed.
    lock: Mutex<Option<Lock>>,
    /// Where a test has it, which goes with it.
    #[cfg(test)]
    directory: Option<tempfile::TempDir>,
}

/// What an [`Embedded`] store is made with.
#[derive(Debug, Clone)]
pub struct EmbeddedOptions {
    /// Its file. Beside it lie `-wal`, `-shm` and `.lock`.
    pub path: PathBuf,
    /// Whether to make the file where there is none; otherwise that is [`OpenError::Missing`].
    pub create: bool,
    /// Nobody waits longer for an answer.
    pub timeout: Duration,
    /// Items that may wait; a single batch may always, if nothing else does.
    pub queue_max: usize,
    /// Of the secrets that keys and tokens are hashed by ([`crate::Secrets::fingerprint`]).
    pub fingerprint: Hash,
}

/// What was found when a file was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddedReport {
    /// Devices in it.
    pub devices: u64,
    /// It was made.
    pub is_new: bool,
    /// How long it took to look whether it is damaged.
    pub check: Duration,
    /// That was long enough for the whole file.
    pub is_checked: bool,
    /// The process before ended without closing it, and the log with the last changes, which must then be there, is not.
    pub is_log_lost: bool,
}

/// A thread and what waits for it.
struct Worker {
    queue: Arc<Queue>,
    /// Until it is told to end.
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The end of a thread that is to come.
struct End {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

impl Embedded {
    /// Opens the file, or makes it if the options permit that.
    ///
    /// # Errors
    /// There is none, another process holds it, it cannot be written, it is damaged, of another version, or was hashed by
    /// other secrets.
    ///
    /// # Cost
    /// Blocks while it looks for damage, which reads the whole file and takes ten seconds at the most; while it reads which
    /// tokens lead to which devices, some half a second for a million that have been activated; and after a crash as long as
    /// reading the log takes, which has 64 MB at the most.
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
            #[cfg(test)]
            recent,
            #[cfg(test)]
            directory: None,
            reads,
            writes,
            lock: Mutex::new(Some(opened.lock)),
        })
    }

    /// What was found when it was opened.
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
                Ok(Err(_)) => Err(Error::Unavailable("it has been closed".to_owned())),
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

    /// There is nothing to remove: tokens stand in the records of their devices.
    fn sweep(&self, _: Millis, _: usize) -> Answer<'_, usize> {
        Box::pin(std::future::ready(Ok(0)))
    }

    fn count(&self) -> Answer<'_, u64> {
        self.ask(&self.reads, 1, |tables| tables.count())
    }

    fn probe(&self) -> Answer<'_, ()> {
        self.ask(&self.writes, 1, |tables| tables.probe())
    }

    fn close(&self) -> Answer<'_, ()> {
        let (reads, writes) = (self.reads.end(), self.writes.end());
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
        Box::pin(async move {
            let ended = tokio::task::spawn_blocking(move || {
                // In this order, as when it is dropped.
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
            // However it ends, nobody waits for it afterwards.
            let _closed = shared.close_at_end();
            run(&shared);
        });
        Ok(Worker { queue, thread: Mutex::new(Some(thread.map_err(OpenError::Thread)?)) })
    }

    /// Its end, for whoever is the first to ask for it.
    fn end(&self) -> End {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        End { queue: Arc::clone(&self.queue), thread }
    }
}

impl End {
    /// Has the thread end when nothing waits any more, and waits for that.
    fn wait(self) {
        self.queue.close();
        if let Some(thread) = self.thread {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end().wait();
    }
}
