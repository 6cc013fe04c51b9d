//! Watching files, and reading them again after a change.

use std::fmt::Display;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use tracing::{info, warn};

/// A user of files that are read again when they change.
pub(crate) trait Watched {
    /// The name in the log.
    const WHAT: &'static str;
    /// The reason why the files cannot be used.
    type Error: Display;

    /// The stamps of the files before they were first read.
    fn stamps_at_start(&self) -> &Stamps;
    fn files(&self) -> Vec<PathBuf>;
    /// Reads the files and uses their content. An error changes nothing.
    fn reload(&self) -> Result<(), Self::Error>;
}

/// The known states of the files.
pub(crate) struct Watch {
    /// At their last reading.
    tried: Stamps,
    /// At the last look.
    seen: Stamps,
}

/// The state of each file, in the order of [`Watched::files`]; `None` if it does not exist.
pub(crate) type Stamps = Vec<Option<Stamp>>;

/// A file's identity, length and last change.
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

    /// Reads the files if they have changed or `is_asked`; returns whether their content is in use
    /// now.
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
