//! Notices new files, and has them used: certificates, and whatever else is [`Watched`].

use std::fmt::Display;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{info, warn};

use super::contexts::Contexts;
use crate::base::clock::unix_time;

/// Looks at the files every `tls.reload_interval`, and reads them when they have changed or somebody asks for it.
///
/// A change is taken up when the next look finds nothing new: certificate and key are seldom written at the same moment.
/// What cannot be used is told once; what was loaded before stays in use.
pub(crate) async fn watch(contexts: Arc<Contexts>) {
    let mut watch = Watch::new(&*contexts);
    warn_of_ends(&contexts);
    let mut until_warning = WARN_INTERVAL;
    loop {
        let is_asked = tokio::select! {
            () = sleep(contexts.reload_interval()) => false,
            () = contexts.reload_asked() => true,
        };
        let looked = Arc::clone(&contexts);
        // A file system may take its time.
        let look = spawn_blocking(move || {
            let is_new = watch.look(&*looked, is_asked);
            (watch, is_new)
        });
        let Ok((returned, is_new)) = look.await else {
            warn!("certificates are no longer reloaded: looking at their files has panicked");
            return;
        };
        watch = returned;
        until_warning = until_warning.saturating_sub(contexts.reload_interval());
        if is_new || until_warning.is_zero() {
            warn_of_ends(&contexts);
            until_warning = WARN_INTERVAL;
        }
    }
}

/// What is read from files, and read again when they change.
pub(crate) trait Watched {
    /// As the log calls it.
    const WHAT: &'static str;
    /// Why files cannot be used.
    type Error: Display;

    /// Of the files, before they were read for the first time.
    fn stamps_at_start(&self) -> &Stamps;
    fn files(&self) -> Vec<PathBuf>;
    /// Reads them, and uses what they hold. After an error all is as it was.
    fn reload(&self) -> Result<(), Self::Error>;
}

/// What is known of the files.
pub(crate) struct Watch {
    /// As they were when they were last read.
    tried: Stamps,
    /// As the last look found them.
    seen: Stamps,
}

/// Of each file what tells that it is another, in the order of [`Watched::files`]; `None`: it is not there.
pub(crate) type Stamps = Vec<Option<Stamp>>;

/// Which file it is, how long, and when it was last touched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamp {
    inode: (u64, u64),
    bytes: u64,
    changed: (i64, i64),
}

impl Watch {
    pub(crate) fn new(watched: &impl Watched) -> Watch {
        let tried = watched.stamps_at_start().clone();
        Watch { seen: tried.clone(), tried }
    }

    /// Reads the files if they have changed or it is asked for; whether what they hold is in use now.
    pub(crate) fn look<W: Watched>(&mut self, watched: &W, is_asked: bool) -> bool {
        let now = stamps(&watched.files());
        let is_settled = now == self.seen;
        self.seen.clone_from(&now);
        if !(is_asked || (is_settled && now != self.tried)) {
            return false;
        }
        self.tried = now;
        match watched.reload() {
            Ok(()) => {
                info!("{} reloaded", W::WHAT);
                true
            }
            Err(error) => {
                warn!(%error, "{} not reloaded; those loaded before stay in use", W::WHAT);
                false
            }
        }
    }
}

pub(crate) fn stamps(files: &[PathBuf]) -> Stamps {
    let stamp = |path: &PathBuf| {
        let metadata = fs::metadata(path).ok()?;
        Some(Stamp {
            inode: (metadata.dev(), metadata.ino()),
            bytes: metadata.len(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    };
    files.iter().map(stamp).collect()
}

fn warn_of_ends(contexts: &Contexts) {
    let now = unix_time();
    contexts.expiries().iter().for_each(|expiry| expiry.warn(now));
}

/// A line a day.
const WARN_INTERVAL: Duration = Duration::from_secs(86_400);
