//! Opens the file: for one process at a time, and only a file that this version knows.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use tokio::time::Instant;

use super::changes::Recent;
use super::identity::{Identity, beside};
use super::tables::{self, SCHEMA};
use super::{EmbeddedOptions, EmbeddedReport};

/// Why a store's file does not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process holds it.
    #[error("store {path}: is held by {}", named(*holder))]
    Held {
        /// The file.
        path: PathBuf,
        /// The number of the other process, if known.
        holder: Option<u32>,
    },
    /// The file, or a file beside it, cannot be written.
    #[error("store {path}: cannot be opened for writing: {source}")]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file does not exist or is empty, and the options do not permit to make it.
    #[error("store {0}: does not exist, or is empty")]
    Missing(PathBuf),
    /// The file is something else.
    #[error("store {0}: is no store of devices")]
    Foreign(PathBuf),
    /// The file of notices is something else.
    #[error("store {0}: is no file of notices")]
    ForeignNotices(PathBuf),
    /// Another version has written the file.
    #[error("store {path}: has format {found}; this version knows format {FORMAT}")]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: i64,
    },
    /// The file cannot be read as a store.
    #[error("store {path}: is damaged: {text}; restore it from its copy")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// SQLite's error.
        text: String,
    },
    /// Its keys and tokens were hashed with other secrets.
    #[error(
        "store {0}: was hashed with another key file; restore that key file from its copy, because without it \
         no device key can be checked"
    )]
    OtherSecrets(PathBuf),
    /// SQLite cannot work with the file.
    #[error("store {path}: {text}")]
    Failed {
        /// The file.
        path: PathBuf,
        /// SQLite's error.
        text: String,
    },
    /// This version of SQLite may damage files.
    #[error("SQLite {0} may damage files; at least 3.51.3 is needed")]
    Library(&'static str),
    /// A thread cannot be started.
    #[error("a thread of the store cannot be started: {0}")]
    Thread(io::Error),
}

/// An opened file.
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
/// Shape: a file beside the store's, with the number of the process that holds it. It is empty
/// after the process has released it.
pub(super) struct Lock {
    file: File,
    pub(super) path: PathBuf,
    /// Whether the process before this one ended without releasing the file.
    was_broken_off: bool,
    /// The next process shall hear that one was broken off, though this one releases the file.
    keeps_mark: bool,
}

/// An opened file of notices. It is held until this is dropped.
pub(crate) struct OpenedNotices {
    // Dropped first: the connection that closes moves the log into the file.
    pub(crate) connection: Connection,
    lock: Lock,
}

impl OpenedNotices {
    /// Whether the process before this one ended without closing the file.
    pub(crate) fn was_broken_off(&self) -> bool {
        self.lock.was_broken_off
    }

    /// Has the next process hear of the one that was broken off, because this one could not make up
    /// for it.
    pub(crate) fn keep_mark(&mut self) {
        self.lock.keeps_mark = true;
    }
}

impl Lock {
    /// Has the next process hear of the one that was broken off, if there was one.
    pub(super) fn keep_mark(&mut self) {
        self.keeps_mark = self.was_broken_off;
    }

    /// The files that it left behind are not used any more.
    pub(super) fn forget_mark(&mut self) {
        self.keeps_mark = false;
    }
}

/// Opens a file of notices, or makes it with these tables, and holds it for this process.
pub(crate) fn open_notices(path: &Path, schema: &str) -> Result<OpenedNotices, OpenError> {
    if rusqlite::version_number() < LIBRARY_MIN {
        return Err(OpenError::Library(rusqlite::version()));
    }
    let foreign = |error| {
        let is_foreign = matches!(error, OpenError::Foreign(_));
        if is_foreign { OpenError::ForeignNotices(path.into()) } else { error }
    };
    let lock = lock(path)?;
    probe(path).map_err(foreign)?;
    let connection = connection(path).map_err(|error| failed(path, &error))?;
    let tables = (NOTICES_APPLICATION, schema);
    format(path, true, &connection, tables).map_err(foreign)?;
    set_one(&connection).map_err(|error| failed(path, &error))?;
    let set = connection.pragma_update(None, "wal_autocheckpoint", LOG_PAGES);
    set.map_err(|error| failed(path, &error))?;
    Ok(OpenedNotices { connection, lock })
}

/// Opens a file, or makes it if the options permit that, and holds it for this process.
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
    // A process that only looks leaves no trace. But another process may hold a file that was
    // removed.
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
    let is_new = format(path, options.create, &writer, (APPLICATION, SCHEMA))?;
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

/// Checks that there is a store of devices which this version knows, and changes nothing.
pub(super) fn recognise(path: &Path) -> Result<(), OpenError> {
    let unreadable = |source| OpenError::Unwritable { path: path.into(), source };
    match std::fs::metadata(path) {
        Ok(file) if !file.is_file() => return Err(OpenError::Foreign(path.into())),
        Ok(file) if file.len() == 0 => return Err(OpenError::Missing(path.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(OpenError::Missing(path.into()));
        }
        found => found.map(drop).map_err(unreadable)?,
    }
    probe(path)?;
    let look = || {
        let conn = connection(path)?;
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        Ok(conn)
    };
    let conn = look().map_err(|error| failed(path, &error))?;
    format(path, false, &conn, (APPLICATION, SCHEMA)).map(drop)
}

/// Checks the file's structure for a limited time. Returns how long it took, and whether the time
/// sufficed for the whole file.
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
            // The first line names the database, and the store has only one.
            let text = text.lines().last().unwrap_or_default().to_owned();
            Err(OpenError::Damaged { path: path.into(), text })
        }
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => {
            Ok((took, false))
        }
        Err(error) => Err(failed(path, &error)),
    }
}

/// Holds the file for this process, by a file beside it, because SQLite releases its own locks
/// between transactions.
pub(super) fn lock(path: &Path) -> Result<Lock, OpenError> {
    let unwritable = |source| OpenError::Unwritable { path: path.into(), source };
    let name = beside(path, ".lock");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut file = options.open(&name).map_err(unwritable)?;
    let held = file.try_lock();
    let mut holder = String::new();
    // Best effort: the process that holds it may just be writing it.
    let _ = (&file).take(20).read_to_string(&mut holder);
    match held {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let holder = holder.trim().parse::<u32>().ok();
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
    Ok(Lock { file, path: name, was_broken_off: !holder.is_empty(), keeps_mark: false })
}

fn named(holder: Option<u32>) -> String {
    holder.map_or_else(|| "another process".to_owned(), |process| format!("process {process}"))
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.keeps_mark {
            return;
        }
        // If this fails, the next process assumes that this one was broken off, and says so.
        let _ = self.file.set_len(0);
    }
}

/// Makes sure that the file can be written, with permissions that SQLite then keeps. Returns
/// whether it is empty.
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

pub(super) fn connection(path: &Path) -> rusqlite::Result<Connection> {
    // Only one thread uses each connection.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(BUSY_TIMEOUT)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(conn)
}

/// Makes the tables in a new file and returns true. Otherwise checks whether the tables are ours.
fn format(
    path: &Path,
    create: bool,
    conn: &Connection,
    (ours, schema): (i64, &str),
) -> Result<bool, OpenError> {
    let number = |pragma: &str| conn.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let look =
        || Ok((number("application_id")?, number("user_version")?, number("schema_version")?));
    let (application, version, tables) = look().map_err(|error| failed(path, &error))?;
    // A file without tables was made, but never filled.
    if (application, version, tables) == (0, 0, 0) {
        if !create {
            return Err(OpenError::Missing(path.into()));
        }
        let sql = format!(
            "PRAGMA journal_mode = wal; PRAGMA synchronous = full; BEGIN IMMEDIATE; {schema} \
             PRAGMA application_id = {ours}; PRAGMA user_version = {FORMAT}; COMMIT;"
        );
        conn.execute_batch(&sql).map_err(|error| failed(path, &error))?;
        return Ok(true);
    }
    if application != ours {
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
        set_one(conn)?;
    }
    // Only the writer's connection moves the log into the file.
    writer.pragma_update(None, "wal_autocheckpoint", LOG_PAGES)?;
    reader.pragma_update(None, "wal_autocheckpoint", 0)?;
    reader.pragma_update(None, "query_only", true)
}

fn set_one(conn: &Connection) -> rusqlite::Result<()> {
    conn.pragma_update(None, "journal_mode", "wal")?;
    conn.pragma_update(None, "synchronous", "full")?;
    conn.pragma_update(None, "cache_size", -CACHE_KIB)?;
    conn.pragma_update(None, "mmap_size", 0)?;
    conn.pragma_update(None, "journal_size_limit", LOG_BYTES_MAX)
}

pub(super) fn failed(path: &Path, error: &rusqlite::Error) -> OpenError {
    let (path, text) = (path.into(), error.to_string());
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            OpenError::Damaged { path, text }
        }
        _ => OpenError::Failed { path, text },
    }
}

/// The beginning of every SQLite file.
const SQLITE_MAGIC: &[u8] = b"SQLite format 3\0";
/// "Weir": other programs' files have another number, or none.
const APPLICATION: i64 = 0x5765_6972;
/// The same of files with notices.
const NOTICES_APPLICATION: i64 = 0x5765_694e;
/// Version of the tables and of their content.
const FORMAT: i64 = 1;
/// Versions 3.7.0 to 3.51.2 may damage a file when its log begins anew.
const LIBRARY_MIN: i32 = 3_051_003;
/// An activation changes a row here and one there, so small pages mean fewer bytes to write.
const PAGE_BYTES: i64 = 4_096;
/// For each of the two connections.
const CACHE_KIB: i64 = 32 << 10;
/// SQLite moves the log into the file when it has this many pages: some 32 MB.
const LOG_PAGES: i64 = 8_000;
/// The size that the log keeps when it begins anew.
const LOG_BYTES_MAX: i64 = 64 << 20;
/// Nobody else writes. A reader may have to wait while the log is recovered.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(1);
/// A start does not wait longer for the check of a file. It suffices for some gigabytes that the
/// machine has in memory.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// More than the store has.
const STATEMENTS: usize = 32;
