//! Checks that the store's files are still those that were opened. Writes to other files would be
//! lost.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The files of the store, as they were when it was opened.
///
/// SQLite keeps its files open. A removed or replaced file still takes writes, and they are all
/// lost when the process ends. So the writer compares the files before each transaction, and again
/// after it, before it answers.
///
/// Limits: the check does not notice a file that is overwritten in place and is never shorter for a
/// moment. SQLite then reports damage where it meets it.
/// Cost: a `stat` of each of the three files.
pub(super) struct Identity {
    database: Watched,
    log: Watched,
    lock: Watched,
}

/// One file.
struct Watched {
    path: PathBuf,
    device: u64,
    inode: u64,
    /// Its size when it was looked at last.
    bytes: u64,
}

impl Identity {
    /// Notes the identity of the files, which are open.
    pub(super) fn new(database: &Path, lock: &Path) -> io::Result<Identity> {
        Ok(Identity {
            database: Watched::new(database.into())?,
            log: Watched::new(beside(database, "-wal"))?,
            lock: Watched::new(lock.into())?,
        })
    }

    /// Checks that writes will be kept. Call it before a transaction.
    ///
    /// # Errors
    /// Names the file that has changed.
    pub(super) fn check(&self) -> Result<(), String> {
        self.database.check(self.database.bytes)?;
        self.log.check(self.log.bytes)?;
        self.lock.check(0).map(drop)
    }

    /// Checks that the last writes have been kept. Call it after a transaction, before the answers.
    ///
    /// # Errors
    /// Those of [`Identity::check`].
    pub(super) fn check_written(&mut self) -> Result<(), String> {
        // Only the writer makes it longer, and nothing makes it shorter.
        self.database.bytes = self.database.check(self.database.bytes)?;
        // The log may also become shorter, when it begins anew.
        self.log.bytes = self.log.check(0)?;
        self.lock.check(0).map(drop)
    }
}

impl Watched {
    fn new(path: PathBuf) -> io::Result<Watched> {
        let metadata = fs::metadata(&path)?;
        let (device, inode, bytes) = (metadata.dev(), metadata.ino(), metadata.len());
        Ok(Watched { path, device, inode, bytes })
    }

    /// The size of the file, if it is the same file and has at least `bytes_min` bytes.
    fn check(&self, bytes_min: u64) -> Result<u64, String> {
        let path = self.path.display();
        let metadata = fs::metadata(&self.path).map_err(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                return format!("{path} is gone: it was removed or renamed");
            }
            format!("{path} cannot be read any more: {error}")
        })?;
        if !self.is(&metadata) {
            return Err(format!("{path} was replaced by another file"));
        }
        let bytes = metadata.len();
        if bytes < bytes_min {
            return Err(format!("{path} was cut from {bytes_min} bytes to {bytes}"));
        }
        Ok(bytes)
    }

    fn is(&self, metadata: &Metadata) -> bool {
        (metadata.dev(), metadata.ino()) == (self.device, self.inode)
    }
}

/// The path of a file beside the store's.
pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}
