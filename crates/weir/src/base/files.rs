//! Notices that files have changed, and has them read again.

use std::fmt::Display;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use tracing::{info, warn};

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
