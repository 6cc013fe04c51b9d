//! Copies of the file: made beside a gateway that serves, and put in its place again.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, chown};
use std::path::{Path, PathBuf};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::file::{self, OpenError};
use super::identity::beside;
use super::tables;
use crate::records::Hash;

/// Why a copy of the store was not made, or not put in the store's place.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The store itself is missing, held, damaged or something else.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The target exists.
    #[error("{0}: exists already; nothing was written")]
    Exists(PathBuf),
    /// The copy cannot be used.
    #[error("backup {path}: {text}; nothing was changed")]
    Unusable {
        /// The copy.
        path: PathBuf,
        /// What is wrong with it.
        text: String,
    },
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// A copy of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backup {
    /// Devices in it.
    pub devices: u64,
    /// Its size.
    pub bytes: u64,
}

/// Writes a copy of the store at `path` to the new file `to`, also while a gateway serves from it.
///
/// Everything that the store answered before this call is in the copy. The copy needs no file
/// beside it. It appears whole or not at all, and only its owner may read it.
///
/// # Errors
/// There is no store at `path`, it is damaged, or `to` exists or cannot be written.
///
/// # Cost
/// Blocks while it reads the whole file. Meanwhile the store's log cannot begin anew, so it grows
/// by what is written.
pub fn back_up(path: &Path, to: &Path) -> Result<Backup, BackupError> {
    file::recognise(path)?;
    if to.exists() {
        return Err(BackupError::Exists(to.into()));
    }
    let part = beside(to, ".part");
    let made = copy_out(path, &part).and_then(|()| {
        let (backup, _) = examine(&part, to)?;
        put(&part, to)?;
        Ok(backup)
    });
    remove_if_failed(&made, &part);
    made
}

/// Puts the copy `from` in the place of the store at `path`. The files of a store that is there
/// get new names, with `.old`, if `replace` permits it; the second value is the name of its file.
///
/// The copy is checked first: its whole structure, its format, and that it was hashed with the
/// secrets of this `fingerprint`. The new file belongs to the owner of its directory, so that root
/// can restore the store of another user.
///
/// # Errors
/// A process holds the store; there is a store and `replace` is false; the copy is unreadable,
/// damaged, of another version or of other secrets. Then the store is as it was.
pub fn restore(
    from: &Path,
    path: &Path,
    fingerprint: &Hash,
    replace: bool,
) -> Result<(Backup, Option<PathBuf>), BackupError> {
    let unusable = |text: String| BackupError::Unusable { path: from.into(), text };
    if beside(from, "-wal").exists() {
        return Err(unusable(
            "beside it lies a log (-wal), so this is a store in use, or a copy of one, and no backup"
                .to_owned(),
        ));
    }
    let source = File::open(from).map_err(|source| at(from, source))?;
    // Held until the files have their names.
    let mut lock = file::lock(path)?;
    // What a killed gateway left behind stays known until other files are in the place.
    lock.keep_mark();
    let is_there = fs::metadata(path).is_ok_and(|file| file.len() > 0);
    if is_there && !replace {
        return Err(BackupError::Exists(path.into()));
    }
    let part = beside(path, ".restore");
    let restored = copy_in(source, &part).and_then(|()| {
        let (backup, known) = examine(&part, from)?;
        if known != Some(*fingerprint) {
            return Err(unusable(
                "was hashed with another key file; restore that key file first".to_owned(),
            ));
        }
        for file in [&part, &lock.path] {
            give_to_owner_of(directory_of(path), file)?;
        }
        let old = unused_name(path);
        // Also a log without its file: the copy must not find it.
        set_aside(path, &old)?;
        put(&part, path)?;
        lock.forget_mark();
        Ok((backup, is_there.then_some(old)))
    });
    remove_if_failed(&restored, &part);
    restored
}

/// Copies what was committed before, in one transaction, and writes nothing to the store.
fn copy_out(path: &Path, part: &Path) -> Result<(), BackupError> {
    // SQLite fills an empty file, and keeps its mode.
    create(part)?;
    let name = part.to_str().ok_or_else(|| {
        let text = "the name must be UTF-8";
        at(part, io::Error::new(io::ErrorKind::InvalidInput, text))
    })?;
    let copy = || -> rusqlite::Result<()> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(path, flags)?;
        conn.busy_timeout(file::BUSY_TIMEOUT)?;
        // If the gateway ends meanwhile, its log must stay for its next start.
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        conn.execute("VACUUM INTO ?1", [name]).map(drop)
    };
    copy().map_err(|error| file::failed(path, &error).into())
}

fn copy_in(mut source: File, part: &Path) -> Result<(), BackupError> {
    let mut target = create(part)?;
    io::copy(&mut source, &mut target).map(drop).map_err(|source| at(part, source))
}

/// Checks all of a copy. Returns what is in it, and the fingerprint of its secrets. Errors name it
/// `name`.
fn examine(part: &Path, name: &Path) -> Result<(Backup, Option<Hash>), BackupError> {
    let unusable = |text: String| BackupError::Unusable { path: name.into(), text };
    file::recognise(part).map_err(|error| {
        unusable(match error {
            OpenError::Missing(_) => "is empty".to_owned(),
            OpenError::Foreign(_) => "is no store of devices".to_owned(),
            OpenError::Format { found, .. } => format!("has format {found}, which is not known"),
            OpenError::Damaged { text, .. } | OpenError::Failed { text, .. } => {
                format!("is damaged: {text}")
            }
            other @ (OpenError::Held { .. }
            | OpenError::Unwritable { .. }
            | OpenError::ForeignNotices(_)
            | OpenError::OtherSecrets(_)
            | OpenError::Library(_)
            | OpenError::Thread(_)) => other.to_string(),
        })
    })?;
    let look = || -> rusqlite::Result<(String, u64, Option<Hash>)> {
        let conn = file::connection(part)?;
        let state = conn.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
        Ok((state, tables::count(&conn)?, tables::known_fingerprint(&conn)?))
    };
    let (state, devices, fingerprint) =
        look().map_err(|error| unusable(format!("is damaged: {error}")))?;
    if state != "ok" {
        let line = state.lines().last().unwrap_or_default();
        return Err(unusable(format!("is damaged: {line}")));
    }
    let bytes = fs::metadata(part).map_err(|source| at(part, source))?.len();
    Ok((Backup { devices, bytes }, fingerprint))
}

/// Gives a complete file its name, and has both on disk.
fn put(part: &Path, to: &Path) -> Result<(), BackupError> {
    let sync = |path: &Path| File::open(path).and_then(|file| file.sync_all());
    sync(part).map_err(|source| at(part, source))?;
    fs::rename(part, to).map_err(|source| at(to, source))?;
    sync(directory_of(to)).map_err(|source| at(to, source))
}

/// A name for the store that is there. An earlier restore may have kept another store, and that one
/// may be the right one.
fn unused_name(path: &Path) -> PathBuf {
    let is_used = |name: &Path| FILES.iter().any(|ending| beside(name, ending).exists());
    let mut name = beside(path, ".old");
    let mut count = 1;
    while is_used(&name) {
        count += 1;
        name = beside(path, &format!(".old-{count}"));
    }
    name
}

/// Renames the files of the store that is there: another database must not find its log.
fn set_aside(path: &Path, old: &Path) -> Result<(), BackupError> {
    for ending in FILES {
        let (from, to) = (beside(path, ending), beside(old, ending));
        match fs::rename(&from, &to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed.map_err(|source| at(&from, source))?,
        }
    }
    Ok(())
}

fn create(path: &Path) -> Result<File, BackupError> {
    // It may be there from a call that was broken off.
    let _ = fs::remove_file(path);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options.open(path).map_err(|source| at(path, source))
}

/// Only root may give files away.
fn give_to_owner_of(directory: &Path, file: &Path) -> Result<(), BackupError> {
    let give = || {
        let (given, owner) = (fs::metadata(file)?, fs::metadata(directory)?);
        if given.uid() == owner.uid() {
            return Ok(());
        }
        chown(file, Some(owner.uid()), Some(owner.gid()))
    };
    match give() {
        // A directory of several users.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        given => given.map_err(|source| at(file, source)),
    }
}

fn remove_if_failed<T>(outcome: &Result<T, BackupError>, part: &Path) {
    if outcome.is_err() {
        for ending in ["", "-journal", "-wal", "-shm"] {
            let _ = fs::remove_file(beside(part, ending));
        }
    }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn at(path: &Path, source: io::Error) -> BackupError {
    BackupError::File { path: path.into(), source }
}

/// The endings of a store's files. The log comes first: if renaming breaks off, the file without its
/// log is still in its place, and the log is not lost.
const FILES: [&str; 3] = ["-wal", "-shm", ""];
