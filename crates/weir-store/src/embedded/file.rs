//! Opening the file: one process at a time, and only a file that this version knows.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};
use tokio::time::Instant;

use super::changes::Recent;
use super::identity::{Identity, beside};
use super::tables::{self, SCHEMA};
use super::{EmbeddedOptions, EmbeddedReport};

/// Why a store's file does not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("store {path}: is held by {holder}")]
    Held {
        /// The file.
        path: PathBuf,
        /// The other process, as far as it is known.
        holder: String,
    },
    /// It, or what lies beside it, cannot be written.
    #[error("store {path}: cannot be opened for writing: {source}")]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// There is none, or an empty file, and none is to be made.
    #[error("store {0}: is not there, or is empty")]
    Missing(PathBuf),
    /// It is something else.
    #[error("store {0}: is no store of devices")]
    Foreign(PathBuf),
    /// Another version has written it.
    #[error("store {path}: has format {found}; this version knows format {FORMAT}")]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: i64,
    },
    /// It cannot be read as what it says it is.
    #[error("store {path}: is damaged: {text}; bring it back from its copy")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What SQLite says.
        text: String,
    },
    /// Its keys and tokens were hashed by other secrets.
    #[error(
        "store {0}: was hashed with another key file than this one: bring that back from its copy, as no key of a device \
         can be checked without it"
    )]
    OtherSecrets(PathBuf),
    /// SQLite cannot work with it.
    #[error("store {path}: {text}")]
    Failed {
        /// The file.
        path: PathBuf,
        /// What SQLite says.
        text: String,
    },
    /// The library is one that may damage files.
    #[error("SQLite {0} may damage files; at least 3.51.3 is needed")]
    Library(&'static str),
    /// A thread cannot be started.
    #[error("a thread of the store cannot be started: {0}")]
    Thread(io::Error),
}

/// A file that has been opened.
pub(super) struct Opened {
    pub(super) writer: Connection,
    pub(super) reader: Connection,
    pub(super) recent: Recent,
    pub(super) identity: Identity,
    pub(super) report: EmbeddedReport,
    pub(super) lock: Lock,
}

/// Holds the file for this process.
///
/// Shape: a file beside the store's, with the number of the process that holds it, and empty once that has let go.
pub(super) struct Lock {
    file: File,
    path: PathBuf,
    /// The process before this one ended without letting go.
    was_broken_off: bool,
}

/// Opens a file, or makes it if that is permitted, and holds it for this process.
pub(super) fn open(options: &EmbeddedOptions) -> Result<Opened, OpenError> {
    let path = options.path.as_path();
    if rusqlite::version_number() < LIBRARY_MIN {
        return Err(OpenError::Library(rusqlite::version()));
    }
    let is_missing = || match std::fs::metadata(path) {
        Ok(file) => file.len() == 0,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    let missing = || OpenError::Missing(path.into());
    // Whoever only looks leaves no trace; but a process may hold what has been taken away.
    if !options.create && is_missing() && !beside(path, ".lock").exists() {
        return Err(missing());
    }
    let lock = lock(path)?;
    if !options.create && is_missing() {
        return Err(missing());
    }
    let is_empty = probe(path)?;
    let is_log_lost = lock.was_broken_off && !is_empty && !beside(path, "-wal").exists();
    let connect = || -> rusqlite::Result<(Connection, Connection)> {
        let writer = connection(path)?;
        if is_empty {
            writer.pragma_update(None, "page_size", PAGE_BYTES)?;
        }
        Ok((writer, connection(path)?))
    };
    let (writer, reader) = connect().map_err(|error| failed(path, &error))?;
    let is_new = format(options, &writer)?;
    set(&writer, &reader).map_err(|error| failed(path, &error))?;
    let (check, is_checked) = check(path, &reader)?;
    let fingerprint = &options.fingerprint;
    let known = tables::fingerprint(&writer, fingerprint).map_err(|error| failed(path, &error))?;
    if known != *fingerprint {
        return Err(OpenError::OtherSecrets(path.into()));
    }
    let recent = tables::recent(&writer).map_err(|error| failed(path, &error))?;
    let devices = tables::count(&reader).map_err(|error| failed(path, &error))?;
    let unseen = |source| OpenError::Unwritable { path: path.into(), source };
    let identity = Identity::new(path, &lock.path).map_err(unseen)?;
    let report = EmbeddedReport { devices, is_new, check, is_checked, is_log_lost };
    Ok(Opened { writer, reader, recent, identity, report, lock })
}

/// Looks whether the file is put together as it should be, for a limited time; how long it took, and whether that was
/// enough for all of it.
fn check(path: &Path, conn: &Connection) -> Result<(Duration, bool), OpenError> {
    let interrupt = conn.get_interrupt_handle();
    let (ended, end) = sync_channel::<()>(1);
    let begun = Instant::now();
    let checked = thread::scope(|scope| {
        let watch = move || {
            if end.recv_timeout(CHECK_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
                interrupt.interrupt();
            }
        };
        thread::Builder::new().spawn_scoped(scope, watch).map_err(OpenError::Thread)?;
        let checked = conn.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0));
        drop(ended);
        Ok(checked)
    })?;
    let took = begun.elapsed();
    match checked {
        Ok(text) if text == "ok" => Ok((took, true)),
        Ok(text) => {
            // A line says which database it is, and there is one.
            let text = text.lines().last().unwrap_or_default().to_owned();
            Err(OpenError::Damaged { path: path.into(), text })
        }
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => {
            Ok((took, false))
        }
        Err(error) => Err(failed(path, &error)),
    }
}

/// Holds the file for this process, by a file beside it: SQLite's own locks are let go between transactions.
fn lock(path: &Path) -> Result<Lock, OpenError> {
    let unwritable = |source| OpenError::Unwritable { path: path.into(), source };
    let name = beside(path, ".lock");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut file = options.open(&name).map_err(unwritable)?;
    let held = file.try_lock();
    let mut holder = String::new();
    // Best effort: whoever holds it may just be writing it.
    let _ = (&file).take(20).read_to_string(&mut holder);
    match held {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let holder = match holder.trim().parse::<u32>() {
                Ok(process) => format!("process {process}"),
                Err(_) => "another process".to_owned(),
            };
            return Err(OpenError::Held { path: path.into(), holder });
        }
        Err(TryLockError::Error(source)) => return Err(unwritable(source)),
    }
    let write = |file: &mut File| {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    };
    write(&mut file).map_err(unwritable)?;
    Ok(Lock { file, path: name, was_broken_off: !holder.is_empty() })
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Should it fail, the next process takes this one for one that was broken off, and says so.
        let _ = self.file.set_len(0);
    }
}

/// Makes sure that the file can be written, with the permissions that SQLite then takes over; whether it is empty.
fn probe(path: &Path) -> Result<bool, OpenError> {
    let unwritable = |source| OpenError::Unwritable { path: path.into(), source };
    if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return Err(OpenError::Foreign(path.into()));
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path).map_err(unwritable)?;
    let mut head = Vec::new();
    file.take(SQLITE_MAGIC.len() as u64).read_to_end(&mut head).map_err(unwritable)?;
    if !head.is_empty() && head != SQLITE_MAGIC {
        return Err(OpenError::Foreign(path.into()));
    }
    Ok(head.is_empty())
}

fn connection(path: &Path) -> rusqlite::Result<Connection> {
    // Each is used by one thread alone.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(BUSY_TIMEOUT)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(conn)
}

/// Makes the tables in a new file, and says so; otherwise looks whether they are ours.
fn format(options: &EmbeddedOptions, conn: &Connection) -> Result<bool, OpenError> {
    let path = options.path.as_path();
    let number = |pragma: &str| conn.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let look =
        || Ok((number("application_id")?, number("user_version")?, number("schema_version")?));
    let (application, version, schema) = look().map_err(|error| failed(path, &error))?;
    // Without tables, it was made and nothing came of it.
    if (application, version, schema) == (0, 0, 0) {
        if !options.create {
            return Err(OpenError::Missing(path.into()));
        }
        let sql = format!(
            "PRAGMA journal_mode = wal; PRAGMA synchronous = full; BEGIN IMMEDIATE; {SCHEMA} \
             PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {FORMAT}; COMMIT;"
        );
        conn.execute_batch(&sql).map_err(|error| failed(path, &error))?;
        return Ok(true);
    }
    if application != APPLICATION {
        return Err(OpenError::Foreign(path.into()));
    }
    if version != FORMAT {
        return Err(OpenError::Format { path: path.into(), found: version });
    }
    Ok(false)
}

/// The settings that decision 0005 argues for.
fn set(writer: &Connection, reader: &Connection) -> rusqlite::Result<()> {
    for conn in [writer, reader] {
        conn.pragma_update(None, "journal_mode", "wal")?;
        conn.pragma_update(None, "synchronous", "full")?;
        conn.pragma_update(None, "cache_size", -CACHE_KIB)?;
        conn.pragma_update(None, "mmap_size", 0)?;
        conn.pragma_update(None, "journal_size_limit", LOG_BYTES_MAX)?;
    }
    // One connection alone moves the log into the file.
    writer.pragma_update(None, "wal_autocheckpoint", LOG_PAGES)?;
    reader.pragma_update(None, "wal_autocheckpoint", 0)?;
    reader.pragma_update(None, "query_only", true)
}

fn failed(path: &Path, error: &rusqlite::Error) -> OpenError {
    let (path, text) = (path.into(), error.to_string());
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            OpenError::Damaged { path, text }
        }
        _ => OpenError::Failed { path, text },
    }
}

/// What every file of SQLite's begins with.
const SQLITE_MAGIC: &[u8] = b"SQLite format 3\0";
/// "Weir": other programs' files have another number, or none.
const APPLICATION: i64 = 0x5765_6972;
/// Of the tables and what stands in them.
const FORMAT: i64 = 1;
/// 3.7.0 to 3.51.2 may damage a file when its log begins anew.
const LIBRARY_MIN: i32 = 3_051_003;
/// An activation changes a row here and one there: small pages are less to write.
const PAGE_BYTES: i64 = 4_096;
/// Of each of the two connections.
const CACHE_KIB: i64 = 32 << 10;
/// The log is moved into the file when it has so many pages: some 32 MB.
const LOG_PAGES: i64 = 8_000;
/// What the log keeps of its size when it begins anew.
const LOG_BYTES_MAX: i64 = 64 << 20;
/// Nobody else writes; a reader may have to wait while the log is recovered.
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);
/// A start does not wait longer for the check of a file: some gigabytes of one that the machine has in memory.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// More than there are.
const STATEMENTS: usize = 32;
