//! Notices that wait for their receivers, in a file: told at least once, in order, and kept for a
//! while so that a receiver can read them again.
//!
//! ```text
//!  tell ─▶ buffer ─▶ store-notices: one transaction ─▶ file ─▶ page ─▶ receiver ─▶ acknowledge
//!            └ full: counted, and told as lost
//! ```

mod buffer;
mod later;
mod status;
mod tables;
#[cfg(test)]
mod tests;
mod thread;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::contract::Error;
use crate::embedded::{OpenError, OpenedNotices};
use crate::records::Millis;
use buffer::{Buffer, Request};
use later::Later;
pub use status::{NoticeStatus, QueueWatch};
use tables::{Tables, early};
use thread::Writer;

/// The notices of one node, in one file. Each receiver has a queue of its own.
///
/// Shape: [`Notices::tell`] puts a notice into a buffer in memory. The thread `store-notices` takes
/// the whole buffer, writes it in one transaction, and gives each notice its sequence number. The
/// numbers of a queue have no gaps: what is missing was dropped.
/// Limits: the buffer holds [`Notices::BUFFER_MAX`] notices and [`Notices::BUFFER_BYTES_MAX`]
/// bytes. A further notice is counted and forgotten, and a notice in its place says so. A queue
/// holds what its [`NoticeQueue`] permits; then its oldest notices go.
/// Cost: a short lock for a notice. Nobody waits for the disk but the thread.
pub struct Notices {
    buffer: Arc<Buffer>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Whether the process before this one ended without closing the file.
    was_broken_off: bool,
}

/// The queue of one receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoticeQueue {
    /// The receiver's name.
    pub name: String,
    /// The most notices in it, those included that were delivered and are still kept.
    pub notices_max: u64,
    /// The most bytes of their texts.
    pub bytes_max: u64,
    /// How long a delivered notice is kept.
    pub keep: Duration,
}

/// The number of a queue in the file. It is never given to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueId(pub(crate) i64);

/// A notice before it has its numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewNotice {
    /// When it happened.
    pub at: Millis,
    /// The queues that get it; there may be none.
    pub queues: Arc<[QueueId]>,
    /// Its text.
    pub body: Box<str>,
    /// What it changes.
    pub change: Change,
}

/// Something that begins and ends, such as a connection. The end of everything that was told to
/// have begun is told too, by the next process if this one cannot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The notice is about nothing that stands.
    None,
    /// It has begun. If that was told already, the notice is dropped.
    Begins(Standing),
    /// What has this key has ended. If its beginning was not told, the notice is dropped.
    Ends(Box<str>),
}

/// Something that has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Names it, among everything that stands.
    pub key: Box<str>,
    /// What the text about its end needs.
    pub detail: Box<str>,
}

/// Why notices are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The process before this one did not end in order. Notices of its last moments may be missing.
    Crash,
    /// The buffer was full; so many were forgotten.
    Buffer(u64),
}

/// Knows the texts of notices that this file has to make itself, and what stands now.
pub trait NoticeSource: Send {
    /// The time since 1970.
    fn now(&self) -> Millis;
    /// The text that tells of missing notices.
    fn lost(&self, loss: Loss) -> Box<str>;
    /// The notice of an end. `is_crash`: the process that told its beginning has crashed; else the
    /// end itself was lost.
    fn ended(&self, standing: &Standing, is_crash: bool) -> NewNotice;
    /// The notices of everything that stands now, each with a [`Change::Begins`].
    ///
    /// Cost: as much as there is; it is called after a loss only.
    fn standing(&self) -> Vec<NewNotice>;
}

/// Notices of one queue, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NoticePage {
    /// Tells this queue from another one of the same name, in another file.
    pub stream: u32,
    /// The notices after this one were asked for.
    pub after: u64,
    /// The first notice that is kept. Those between `after` and it are gone.
    pub first: u64,
    /// The number of the next notice.
    pub next: u64,
    /// The numbers and texts.
    pub notices: Vec<(u64, String)>,
}

/// How much a page may hold. It has one notice at least, if there is one.
#[derive(Debug, Clone, Copy)]
pub struct PageLimits {
    /// The most notices.
    pub notices_max: usize,
    /// The most bytes of their texts.
    pub bytes_max: usize,
}

impl Notices {
    /// The most notices in the buffer.
    pub const BUFFER_MAX: usize = 65_536;
    /// The most bytes of their texts.
    pub const BUFFER_BYTES_MAX: usize = 16 << 20;
    /// The most queues.
    pub const QUEUES_MAX: usize = 16;

    /// Opens the file, or makes it.
    ///
    /// # Errors
    /// Another process holds it, it cannot be written, it is damaged, or it is something else.
    ///
    /// # Cost
    /// Blocks. After a crash it reads the log, of at most 64 MB.
    pub fn open(path: PathBuf, source: impl NoticeSource + 'static) -> Result<Notices, OpenError> {
        Self::open_run(&path, source, Tables::open)
    }

    /// The same in the place of the process before this one: what that has told to stand may stand
    /// still, and [`Notices::go_on`] finds out.
    ///
    /// # Errors
    /// Those of [`Notices::open`].
    pub fn open_to_go_on(
        path: PathBuf,
        source: impl NoticeSource + 'static,
    ) -> Result<Notices, OpenError> {
        Self::open_run(&path, source, Tables::go_on)
    }

    fn open_run(
        path: &Path,
        source: impl NoticeSource + 'static,
        tables: impl FnOnce(&Connection) -> rusqlite::Result<Tables>,
    ) -> Result<Notices, OpenError> {
        let (mut opened, tables) = opened_file(path, tables)?;
        let was_broken_off = opened.was_broken_off();
        let run = move |buffer: &Buffer| {
            let mut writer = Writer::new(&opened, tables, Box::new(source), buffer);
            writer.run();
            if writer.owes_recovery() {
                opened.keep_mark();
            }
        };
        Self::start(run, was_broken_off)
    }

    /// The file that the process before this one still holds, with its queues and a watch of each.
    /// It opens as soon as it can after [`Notices::begin`]. Until then notices stay in the buffer,
    /// and what is asked of the file waits. What that process has told to stand stands.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn later(
        path: PathBuf,
        source: impl NoticeSource + 'static,
        queues: Vec<NoticeQueue>,
    ) -> Result<(Notices, Vec<(QueueId, QueueWatch)>), OpenError> {
        let queues: Vec<_> =
            queues.into_iter().map(|queue| (queue, QueueWatch::default())).collect();
        let known = queues.iter().zip(0..).map(|((_, watch), place)| (early(place), watch.clone()));
        let known = known.collect();
        let later = Later { path, source: Box::new(source), queues };
        Ok((Self::start(move |buffer| later.run(buffer), false)?, known))
    }

    fn start(
        run: impl FnOnce(&Buffer) + Send + 'static,
        was_broken_off: bool,
    ) -> Result<Notices, OpenError> {
        let buffer = Arc::new(Buffer::default());
        let shared = Arc::clone(&buffer);
        let run = move || {
            // However the thread ends, nobody waits for it afterwards.
            let _closed = shared.close_at_end();
            run(&shared);
        };
        let thread = std::thread::Builder::new().name("store-notices".to_owned()).spawn(run);
        let thread = Mutex::new(Some(thread.map_err(OpenError::Thread)?));
        Ok(Notices { buffer, thread, was_broken_off })
    }

    /// Lets the file of [`Notices::later`] be opened.
    pub fn begin(&self) {
        self.buffer.begin();
    }

    /// Whether the process before this one ended without closing the file.
    pub fn was_broken_off(&self) -> bool {
        self.was_broken_off
    }

    /// Takes a notice. It waits for nothing.
    pub fn tell(&self, notice: NewNotice) {
        self.buffer.push(notice);
    }

    /// Changes the queues. One whose name is not among them is removed with its notices. Returns
    /// their numbers, in the same order, and a watch of each.
    ///
    /// # Errors
    /// The file cannot be written; nothing has changed.
    pub async fn set_queues(
        &self,
        queues: Vec<NoticeQueue>,
    ) -> Result<Vec<(QueueId, QueueWatch)>, Error> {
        self.ask(|reply| Request::SetQueues { queues, reply }).await
    }

    /// Tells the end of everything that an earlier process has left standing. Call it before the
    /// first [`Notices::tell`]. Returns how much there was.
    ///
    /// # Errors
    /// The file cannot be written. What was not told yet still stands.
    pub async fn recover(&self) -> Result<u64, Error> {
        self.ask(|reply| Request::Recover { reply }).await
    }

    /// Notes what stands now, in the place of the process before this one, and tells the ends of
    /// what does not stand any more.
    ///
    /// # Errors
    /// The file cannot be written.
    pub async fn go_on(&self) -> Result<(), Error> {
        self.ask(|reply| Request::GoOn { reply }).await
    }

    /// Notes what stands now, without telling anybody.
    ///
    /// # Errors
    /// The file cannot be written.
    pub async fn adopt(&self) -> Result<(), Error> {
        self.ask(|reply| Request::Adopt { reply }).await
    }

    /// Notices of a queue: those after a number, or else those that were not acknowledged.
    ///
    /// # Errors
    /// There is no such queue, or the file cannot be read.
    pub async fn page(
        &self,
        queue: QueueId,
        after: Option<u64>,
        limits: PageLimits,
    ) -> Result<NoticePage, Error> {
        self.ask(|reply| Request::Page { queue, after, limits, reply }).await
    }

    /// Notes that a queue's notices up to this one were delivered.
    ///
    /// # Errors
    /// The file cannot be written. They will be delivered again.
    pub async fn acknowledge(&self, queue: QueueId, sequence: u64) -> Result<(), Error> {
        self.ask(|reply| Request::Acknowledge { queue, sequence, reply }).await
    }

    /// Notices in the buffer.
    pub fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// Notices that were forgotten because the buffer was full. One that several queues should have
    /// got counts for each.
    pub fn forgotten(&self) -> u64 {
        self.buffer.forgotten()
    }

    /// Writes what the buffer holds, and closes the file.
    ///
    /// # Cost
    /// Blocks until that is done.
    pub fn close(&self) {
        self.buffer.close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A thread that panicked has reported it.
            let _ = thread.join();
        }
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Request,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        self.buffer.ask(request(reply))?;
        let closed = |_| Error::Unavailable("the file of notices is closed".to_owned());
        answer.await.map_err(closed)?
    }
}

/// Opens the file, or makes it.
fn opened_file(
    path: &Path,
    tables: impl FnOnce(&Connection) -> rusqlite::Result<Tables>,
) -> Result<(OpenedNotices, Tables), OpenError> {
    let opened = crate::embedded::open_notices(path, tables::SCHEMA)?;
    let tables = tables(&opened.connection)
        .map_err(|error| OpenError::Failed { path: path.to_owned(), text: error.to_string() })?;
    Ok((opened, tables))
}

impl Drop for Notices {
    fn drop(&mut self) {
        self.close();
    }
}
