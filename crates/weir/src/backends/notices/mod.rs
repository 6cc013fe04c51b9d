//! Notices: services are told what happens, at least once, and in order for each device.
//!
//! The front tells; nothing waits. A thread of the store writes the notices to a file. For each
//! receiver a task sends what the file has.

mod body;
mod deliver;
mod receiver;
mod source;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::task::{AbortHandle, JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};
use weir_engine::{ConnId, OwnNode};
use weir_store::{Change, NewNotice, NoticePage, OpenError, PageLimits, Standing};
use weir_wire::CloseReason;

use super::Backends;
use crate::base::clock::{millis, unix_millis, unix_time};
use crate::base::config::{Config, ConfigError, NoticeEvent};
use crate::base::model::{Accepted, Publication};
use crate::base::private::{make_private_directory, state_directory};
use crate::limits::admission::AcceptOrder;
use body::{Body, Message, StandingConn};
pub(crate) use body::{cursor, parse_cursor};
pub(crate) use receiver::Figures;
use receiver::Receivers;
use source::Source;

/// Tells the receivers what happens.
///
/// Cost: without a receiver, one relaxed read for each event.
pub(crate) struct Notices {
    is_on: AtomicBool,
    receivers: ArcSwap<Receivers>,
    /// Present from the first receiver on.
    file: ArcSwapOption<weir_store::Notices>,
    /// The process before this one holds the file until it has handed over.
    is_awaited: AtomicBool,
    own: OwnNode,
    backends: Arc<Backends>,
    /// The time of accept order 0, in microseconds since 1970.
    began_micros: AtomicU64,
    /// Lists what stands now.
    present: OnceLock<Present>,
    tasks: Mutex<deliver::Tasks>,
}

/// How the file is opened.
#[derive(Debug, Clone, Copy)]
enum Begin {
    Anew,
    /// What the process with this number has told goes on.
    InPlaceOf(u32),
}

/// Calls the function with everything that stands now.
type Present = Box<dyn Fn(&mut dyn FnMut(Stands<'_>)) + Send + Sync>;

/// Something that has begun and has not ended.
pub(crate) enum Stands<'a> {
    Connection(Who<'a>),
    /// A topic of this node with subscribers.
    Topic(&'a str),
}

/// A connection, with its device.
#[derive(Clone, Copy)]
pub(crate) struct Who<'a> {
    pub(crate) device: &'a str,
    pub(crate) conn: ConnId,
    pub(crate) order: AcceptOrder,
}

/// Who has published a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Author {
    Device,
    Service,
    AdminApi,
    /// The program that embeds the gateway.
    Program,
}

impl Author {
    /// In the order of their numbers in a hand-over.
    pub(crate) const ALL: [Author; 4] =
        [Author::Device, Author::Service, Author::AdminApi, Author::Program];

    fn name(self) -> &'static str {
        match self {
            Author::Device => "device",
            Author::Service => "service",
            Author::AdminApi => "admin",
            Author::Program => "program",
        }
    }
}

/// The sender of a message.
#[derive(Clone, Copy)]
pub(crate) enum Sender<'a> {
    Connection(Who<'a>),
    /// The device or service of a request; `None`: nobody known.
    Request(Option<&'a str>),
}

/// Why notices cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum NoticesError {
    /// The file cannot be opened.
    #[error("hooks.notices_file: {0}")]
    Open(#[from] OpenError),
    /// Its directory cannot be made.
    #[error("hooks.notices_file: cannot make {}: {error}", directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// There is no place for the file.
    #[error(
        "hooks.notices_file is \"\": allowed is a path, since neither STATE_DIRECTORY nor XDG_STATE_HOME nor HOME is set"
    )]
    NoPlace,
    /// The file cannot be written.
    #[error("hooks.notices_file: {0}")]
    Unwritable(#[from] weir_store::Error),
}

impl Notices {
    pub(crate) fn new(backends: Arc<Backends>, own: OwnNode) -> Arc<Notices> {
        Arc::new(Notices {
            is_on: AtomicBool::new(false),
            receivers: ArcSwap::default(),
            file: ArcSwapOption::empty(),
            is_awaited: AtomicBool::new(false),
            own,
            backends,
            began_micros: AtomicU64::new(u64::try_from(unix_time().as_micros()).unwrap_or(0)),
            present: OnceLock::new(),
            tasks: Mutex::default(),
        })
    }

    /// Opens the file if there is a receiver, and tells the ends that a crash has left untold. Call
    /// it before anything is told.
    ///
    /// `old`: the process in whose place this one comes. It may hold the file. Nothing is told then
    /// before [`Notices::go_on`].
    pub(crate) async fn start(
        self: &Arc<Self>,
        config: &Config,
        old: Option<u32>,
    ) -> Result<(), NoticesError> {
        let begin = match old {
            Some(process) => Begin::InPlaceOf(process),
            None => Begin::Anew,
        };
        self.open(config, begin).await?;
        let Some(file) = self.file.load_full() else { return Ok(()) };
        if old.is_some() {
            if self.receivers.load().is_empty() {
                let made = Receivers::make(&file, config, &Receivers::default()).await?;
                self.receivers.store(Arc::new(made));
            }
            return Ok(());
        }
        let made = Receivers::make(&file, config, &self.receivers.load()).await?;
        self.receivers.store(Arc::new(made));
        if file.was_broken_off() {
            let ends = file.recover().await?;
            info!(ends, "the process before this one was broken off: its ends are told");
        } else {
            file.recover().await?;
        }
        self.begin(&file);
        Ok(())
    }

    /// This process owns everything from now on.
    pub(crate) fn go_on(self: &Arc<Self>) {
        let Some(file) = self.file.load_full() else { return };
        self.begin(&file);
        if self.is_awaited.load(Ordering::Relaxed) {
            file.begin();
            return;
        }
        tokio::spawn(async move {
            if let Err(error) = file.go_on().await {
                warn!(%error, "the file of notices does not know what stands");
            }
        });
    }

    /// Another process owns everything: closes the file for it, with all that was told. A request
    /// that is under way is waited for, but not long; without an answer its notices are sent again.
    pub(crate) async fn hand_over(&self) {
        let Some(file) = self.file.load_full() else { return };
        self.is_on.store(false, Ordering::Relaxed);
        let tasks = self.tasks().finish();
        let aborts: Vec<_> = tasks.iter().map(JoinHandle::abort_handle).collect();
        let all = async {
            for task in tasks {
                // One that has failed has reported it.
                let _ = task.await;
            }
        };
        if timeout(LAST_REQUESTS, all).await.is_err() {
            info!("a receiver has not answered yet: its notices are sent again");
            aborts.iter().for_each(AbortHandle::abort);
        }
        if spawn_blocking(move || file.close()).await.is_err() {
            warn!("the file of notices did not close in order");
        }
    }

    /// Sets what lists everything that stands. It is called after a loss.
    pub(crate) fn list_by(&self, present: Present) {
        // It is set once.
        let _ = self.present.set(present);
    }

    /// Prepares a reload: opens the file if the first receiver comes.
    ///
    /// Errors: the file cannot be used.
    pub(crate) async fn prepare(self: &Arc<Self>, config: &Config) -> Result<(), ConfigError> {
        self.open(config, Begin::Anew).await.map_err(|error| ConfigError {
            key: "hooks.notices_file".to_owned(),
            value: format!("{:?}", config.hooks.notices_file),
            allowed: format!("a file that can be used ({error})"),
            depends_on: &[],
        })
    }

    /// Uses the receivers of a configuration that has been prepared.
    pub(crate) async fn replace(self: &Arc<Self>, config: &Config) {
        let Some(file) = self.file.load_full() else { return };
        let was_on = self.is_on.load(Ordering::Relaxed);
        match Receivers::make(&file, config, &self.receivers.load()).await {
            Ok(made) => self.receivers.store(Arc::new(made)),
            Err(error) => {
                warn!(%error, "the receivers of notices stay as they were");
                return;
            }
        }
        self.begin(&file);
        if !was_on && let Err(error) = file.adopt().await {
            warn!(%error, "ends of connections that stand already will not be told");
        }
    }

    /// Whether anything is told at all.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    pub(crate) fn connected(&self, who: Who<'_>) {
        let standing = self.standing_conn(who);
        self.tell(NoticeEvent::Connected, None, Change::Begins(standing), |body| {
            self.by(who, body)
        });
    }

    pub(crate) fn disconnected(&self, who: Who<'_>, reason: CloseReason, age: Duration) {
        let change = Change::Ends(conn_key(who.conn));
        self.tell(NoticeEvent::Disconnected, None, change, |body| {
            self.by(who, body);
            (body.reason, body.code) = (Some(reason.name()), Some(reason.code()));
            body.age_ms = Some(millis(age));
        });
    }

    pub(crate) fn subscribed(&self, who: Who<'_>, topic: &str) {
        let event = NoticeEvent::Subscribed;
        self.tell(event, Some(topic), Change::None, |body| self.by(who, body));
    }

    pub(crate) fn unsubscribed(&self, who: Who<'_>, topic: &str) {
        let event = NoticeEvent::Unsubscribed;
        self.tell(event, Some(topic), Change::None, |body| self.by(who, body));
    }

    /// Whether a receiver is told of messages to this topic.
    pub(crate) fn hears_of_messages(&self, topic: &str) -> bool {
        self.is_on() && self.receivers.load().hear(NoticeEvent::Published, Some(topic))
    }

    /// `accepted`: `None` if the broker has been asked and has not answered yet.
    pub(crate) fn published(
        &self,
        (sender, author): (Sender<'_>, Author),
        (topic, publication): (&str, &Publication<'_>),
        accepted: Option<Accepted>,
    ) {
        self.tell(NoticeEvent::Published, Some(topic), Change::None, |body| {
            body.source = Some(author.name());
            match sender {
                Sender::Connection(who) => self.by(who, body),
                Sender::Request(device) => body.device = device.map(str::to_owned),
            }
            body.message = Some(Message::of(publication, accepted));
        });
    }

    /// A topic of this node has got its first subscriber.
    pub(crate) fn occupied(&self, topic: &str) {
        let change = Change::Begins(standing_topic(topic));
        self.tell(NoticeEvent::Occupied, Some(topic), change, |_| ());
    }

    /// A topic of this node has lost its last subscriber.
    pub(crate) fn vacated(&self, topic: &str) {
        let change = Change::Ends(standing_topic(topic).key);
        self.tell(NoticeEvent::Vacated, Some(topic), change, |_| ());
    }

    /// Whether a receiver is told when this topic is occupied, or vacated.
    pub(crate) fn hears_of_occupancy(&self, topic: &str) -> bool {
        let receivers = self.receivers.load();
        [NoticeEvent::Occupied, NoticeEvent::Vacated]
            .into_iter()
            .any(|event| receivers.hear(event, Some(topic)))
    }

    /// A topic of the cluster has got its first subscriber at any node. The broker knows that it
    /// stands; the file does not, because the topic may outlive this node.
    pub(crate) fn occupied_in_cluster(&self, topic: &str, occupancy: u64) {
        self.tell_occupancy(NoticeEvent::Occupied, topic, occupancy);
    }

    /// A topic of the cluster has lost its last subscriber at any node.
    pub(crate) fn vacated_in_cluster(&self, topic: &str, occupancy: u64) {
        self.tell_occupancy(NoticeEvent::Vacated, topic, occupancy);
    }

    fn tell_occupancy(&self, event: NoticeEvent, topic: &str, occupancy: u64) {
        self.tell(event, Some(topic), Change::None, |body| body.claim = Some(occupancy));
    }

    /// The figures of all receivers.
    pub(crate) fn figures(&self) -> Vec<Figures> {
        self.receivers.load().iter().map(|receiver| receiver.figures()).collect()
    }

    /// Notices on their way to the file, and those that found no room there. `None`: there is no
    /// file.
    pub(crate) fn buffer(&self) -> Option<(usize, u64)> {
        self.file.load().as_ref().map(|file| (file.buffered(), file.forgotten()))
    }

    /// Notices of a receiver, as text; `None`: there is no such receiver.
    pub(crate) async fn read(
        &self,
        name: &str,
        after: Option<u64>,
        limit: usize,
    ) -> Option<Result<NoticePage, weir_store::Error>> {
        let file = self.file.load_full()?;
        let queue = self.receivers.load().iter().find(|receiver| receiver.name() == name)?.queue();
        let limits = PageLimits { notices_max: limit, bytes_max: PAGE_BYTES_MAX };
        Some(file.page(queue, Some(after.unwrap_or(0)), limits).await)
    }

    /// Sends the last notices for so long, then closes the file. Receivers that do not answer are
    /// not waited for.
    pub(crate) async fn finish(&self, over: Duration) {
        let Some(file) = self.file.load_full() else { return };
        self.is_on.store(false, Ordering::Relaxed);
        let end = Instant::now() + over;
        let sent = async {
            while file.buffered() > 0 || self.receivers.load().iter().any(|one| one.is_behind()) {
                sleep(FINISH_INTERVAL).await;
            }
        };
        let is_sent = timeout(end.saturating_duration_since(Instant::now()), sent).await.is_ok();
        self.tasks().stop();
        let waiting: u64 = self.figures().iter().map(|figures| figures.status.waiting).sum();
        if !is_sent || waiting > 0 {
            info!(waiting, "notices wait in their file for the next start");
        }
        if spawn_blocking(move || file.close()).await.is_err() {
            warn!("the file of notices did not close in order");
        }
    }

    async fn open(self: &Arc<Self>, config: &Config, begin: Begin) -> Result<(), NoticesError> {
        if config.hooks.receivers.is_empty() || self.file.load().is_some() {
            return Ok(());
        }
        let path = file_path(&config.hooks.notices_file)?;
        let (source, of_file) = (Source::new(self), path.clone());
        let opened = spawn_blocking(move || {
            if let Some(directory) = path.parent().filter(|path| !path.as_os_str().is_empty()) {
                make_private_directory(directory).map_err(|error| NoticesError::Directory {
                    directory: directory.to_owned(),
                    error,
                })?;
            }
            Ok::<_, NoticesError>(match begin {
                Begin::Anew => weir_store::Notices::open(path, source)?,
                Begin::InPlaceOf(_) => weir_store::Notices::open_to_go_on(path, source)?,
            })
        });
        let ended = |error| weir_store::Error::Unavailable(format!("opening has ended: {error}"));
        let file = match (opened.await.map_err(ended)?, begin) {
            (
                Err(NoticesError::Open(OpenError::Held { holder: Some(holder), .. })),
                Begin::InPlaceOf(old),
            ) if holder == old => {
                let queues = receiver::queues_of(config);
                let (file, made) = weir_store::Notices::later(of_file, Source::new(self), queues)?;
                let receivers = Receivers::with(made, config, &Receivers::default());
                self.receivers.store(Arc::new(receivers));
                self.is_awaited.store(true, Ordering::Relaxed);
                file
            }
            (opened, _) => opened?,
        };
        self.file.store(Some(Arc::new(file)));
        Ok(())
    }

    /// Lets the tasks send what waits for the receivers in use.
    fn begin(self: &Arc<Self>, file: &Arc<weir_store::Notices>) {
        let receivers = self.receivers.load_full();
        self.is_on.store(!receivers.is_empty(), Ordering::Relaxed);
        self.tasks().begin(&receivers, file, (&self.backends, &self.own));
    }

    fn tell(
        &self,
        event: NoticeEvent,
        topic: Option<&str>,
        change: Change,
        fill: impl FnOnce(&mut Body),
    ) {
        if !self.is_on() {
            return;
        }
        if let Some(file) = &*self.file.load()
            && let Some(notice) = self.notice(event, topic, change, fill)
        {
            file.tell(notice);
        }
    }

    /// `None`: nobody is to be told, and nothing begins or ends.
    fn notice(
        &self,
        event: NoticeEvent,
        topic: Option<&str>,
        change: Change,
        fill: impl FnOnce(&mut Body),
    ) -> Option<NewNotice> {
        let queues = self.receivers.load().queues(event, topic);
        let at = unix_millis();
        if queues.is_empty() {
            // The file knows what stands whoever listens, for receivers that come later.
            let is_change = change != Change::None;
            return is_change.then(|| NewNotice { at, queues, body: "".into(), change });
        }
        let mut body = Body::new(event.name(), at, self.own.number());
        body.topic = topic.map(str::to_owned);
        fill(&mut body);
        Some(NewNotice { at, queues, body: body.text(), change })
    }

    fn by(&self, who: Who<'_>, body: &mut Body) {
        body.device = Some(who.device.to_owned());
        body.connection = Some(who.conn.to_string());
        body.claim = Some(self.claim(who.order));
        body.node = who.conn.node();
    }

    /// The time of accept order 0, in microseconds since 1970.
    pub(crate) fn began_micros(&self) -> u64 {
        self.began_micros.load(Ordering::Relaxed)
    }

    /// Goes on with the orders of another process. There were no connections here so far.
    pub(crate) fn go_on_from(&self, began_micros: u64) {
        self.began_micros.store(began_micros, Ordering::Relaxed);
    }

    /// The claim of a connection: the microsecond of its accept, since 1970. It is greater than that
    /// of every connection that its node accepted before.
    fn claim(&self, AcceptOrder(order): AcceptOrder) -> u64 {
        self.began_micros().saturating_add(order)
    }

    fn standing_conn(&self, Who { device, conn, order }: Who<'_>) -> Standing {
        let detail = StandingConn { device: device.to_owned(), claim: self.claim(order) };
        Standing { key: conn_key(conn), detail: detail.text() }
    }

    fn tasks(&self) -> MutexGuard<'_, deliver::Tasks> {
        self.tasks.lock().expect("no panic happens under the lock of the tasks")
    }
}

/// The notices of a page as a list in JSON, and the number of the last one; `None`: there is none.
pub(crate) fn list_of(notices: &Notices, page: &NoticePage) -> Option<(String, u64)> {
    body::list(page, |count| source::dropped(notices.own.number(), count))
}

fn conn_key(conn: ConnId) -> Box<str> {
    format!("{CONN}{conn}").into()
}

fn standing_topic(topic: &str) -> Standing {
    Standing { key: format!("{TOPIC}{topic}").into(), detail: "".into() }
}

fn file_path(configured: &Path) -> Result<PathBuf, NoticesError> {
    if !configured.as_os_str().is_empty() {
        return Ok(configured.to_owned());
    }
    Ok(state_directory().ok_or(NoticesError::NoPlace)?.join("notices.db"))
}

/// Begins the keys of connections. They sort before topics: connections end before their topics are
/// vacated.
const CONN: char = 'c';
/// Begins the keys of topics.
const TOPIC: char = 't';
/// Of one request, and of one page of the admin API.
const PAGE_BYTES_MAX: usize = 1 << 20;
/// Meanwhile the notices of the next process wait in its memory.
const LAST_REQUESTS: Duration = Duration::from_secs(2);
const FINISH_INTERVAL: Duration = Duration::from_millis(10);
