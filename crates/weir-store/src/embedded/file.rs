//! Opening the file: one process at a time, and only a file that this version knows.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::changes::Recent;
use super::tables::{self, SCHEMA};
use crate::records::Hash;

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
    #[error("store {path}: is damaged: {text}")]
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
    pub(super) lock: File,
}

/// Opens a file, or makes it, and holds it for this process.
pub(super) fn open(path: &Path, fingerprint: &Hash) -> Result<Opened, OpenError> {
    if rusqlite::version_number() < LIBRARY_MIN {
        return Err(OpenError::Library(rusqlite::version()));
    }
    let lock = lock(path)?;
    let is_new = probe(path)?;
    let connect = || -> rusqlite::Result<(Connection, Connection)> {
        let writer = connection(path)?;
        if is_new {
            writer.pragma_update(None, "page_size", PAGE_BYTES)?;
        }
        Ok((writer, connection(path)?))
    };
    let (writer, reader) = connect().map_err(|error| failed(path, &error))?;
    format(path, &writer)?;
    set(&writer, &reader).map_err(|error| failed(path, &error))?;
    let known = tables::fingerprint(&writer, fingerprint).map_err(|error| failed(path, &error))?;
    if known != *fingerprint {
        return Err(OpenError::OtherSecrets(path.into()));
    }
    let recent = Recent::read(&writer).map_err(|error| failed(path, &error))?;
    Ok(Opened { writer, reader, recent, lock })
}

/// Holds the file for this process, by a file beside it: SQLite's own locks are let go between transactions.
fn lock(path: &Path) -> Result<File, OpenError> {
    let unwritable = |source| OpenError::Unwritable { path: path.into(), source };
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut file = options.open(&name).map_err(unwritable)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // Best effort: it may just be writing it.
            let _ = (&file).take(20).read_to_string(&mut holder);
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
    Ok(file)
}

/// Makes sure that the file can be written, with the permissions that SQLite then takes over; whether it is new.
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

/// Makes the tables in a new file; otherwise looks whether they are ours.
fn format(path: &Path, conn: &Connection) -> Result<(), OpenError> {
    let number = |pragma: &str| conn.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let look =
        || Ok((number("application_id")?, number("user_version")?, number("schema_version")?));
    let (application, version, schema) = look().map_err(|error| failed(path, &error))?;
    // Without tables, it was made and nothing came of it.
    if (application, version, schema) == (0, 0, 0) {
        let sql = format!(
            "PRAGMA journal_mode = wal; PRAGMA synchronous = full; BEGIN IMMEDIATE; {SCHEMA} \
             PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {FORMAT}; COMMIT;"
        );
        return conn.execute_batch(&sql).map_err(|error| failed(path, &error));
    }
    if application != APPLICATION {
        return Err(OpenError::Foreign(path.into()));
    }
    if version != FORMAT {
        return Err(OpenError::Format { path: path.into(), found: version });
    }
    Ok(())
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
/// More than there are.
const STATEMENTS: usize = 32;
