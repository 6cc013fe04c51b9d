//! Whether the store's files are still those that were opened: what is written to others is lost.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The files that hold the store, as they were when it was opened.
///
/// SQLite keeps its files open. A file that is removed or replaced takes writes as before, and all of them are lost when
/// the process ends. So the writer compares before each transaction, and again after it and before anybody is answered.
///
/// Limits: a file that is overwritten in place, without being shorter for a moment, is not noticed here; SQLite then
/// reports damage where it meets it.
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
    /// It has had as many bytes since it was looked at last.
    bytes: u64,
}

impl Identity {
    /// Takes note of the files, which are open.
    pub(super) fn new(database: &Path, lock: &Path) -> io::Result<Identity> {
        Ok(Identity {
            database: Watched::new(database.into())?,
            log: Watched::new(beside(database, "-wal"))?,
            lock: Watched::new(lock.into())?,
        })
    }

    /// Whether what is written now will be kept; to be asked before a transaction.
    ///
    /// # Errors
    /// Says which file is not what it was.
    pub(super) fn check(&self) -> Result<(), String> {
        self.database.check(self.database.bytes)?;
        self.log.check(self.log.bytes)?;
        self.lock.check(0).map(drop)
    }

    /// Whether what was written has been kept; to be asked after a transaction, and before it is answered.
    ///
    /// # Errors
    /// Those of [`Identity::check`].
    pub(super) fn check_written(&mut self) -> Result<(), String> {
        // The writer alone makes it longer, and nothing makes it shorter.
        self.database.bytes = self.database.check(self.database.bytes)?;
        // This one is shortened, too, when it begins anew.
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

    /// How many bytes it has, if it is the same file and has at least `bytes_min`.
    fn check(&self, bytes_min: u64) -> Result<u64, String> {
        let path = self.path.display();
        let metadata = fs::metadata(&self.path).map_err(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                return format!("{path} is gone: it was removed or renamed");
            }
            format!("{path} cannot be seen any more: {error}")
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

/// The name of a file that lies beside the store's.
pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}
