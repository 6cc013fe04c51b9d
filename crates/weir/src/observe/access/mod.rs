//! The access log: a line for each request, formatted by the thread that answered it and written by a thread of its own.
//!
//! Read `queue.rs` for how lines travel, `line.rs` for how they look, `ids.rs` for what names a request.

mod escape;
pub(crate) mod ids;
pub(crate) mod line;
mod output;
mod queue;
mod stamp;
mod writer;

use std::cell::Cell;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use http::Version;

use self::ids::Ids;
use self::output::Output;
use self::queue::Queue;
use crate::base::config::AccessLogConfig;

/// One request that has been answered.
///
/// Limits: of each text a line shows so many bytes (`line.rs`), and `...` where it was longer.
pub(crate) struct Entry<'a> {
    /// When its head was there.
    pub(crate) began: Instant,
    /// From then until the answer was ready.
    pub(crate) took: Duration,
    /// Who asks, if that is known; behind a proxy, the address that the PROXY header names.
    pub(crate) remote: Option<IpAddr>,
    pub(crate) method: &'a str,
    /// What is asked for; the line shows nothing from a `?` on, where tokens may stand.
    pub(crate) target: &'a str,
    pub(crate) version: Version,
    pub(crate) status: u16,
    /// Bytes of the answer's body.
    pub(crate) bytes: u64,
    pub(crate) host: Option<&'a [u8]>,
    pub(crate) user_agent: Option<&'a [u8]>,
    /// Likewise cut where its query begins.
    pub(crate) referer: Option<&'a [u8]>,
    /// The device or service that the token is for.
    pub(crate) device: Option<&'a str>,
    pub(crate) ids: &'a Ids,
}

/// The access log of a gateway, or none.
///
/// Shape: lines lie in chunks of 32 KiB, `access_log.queue_bytes` of them, which are made when they are needed and kept.
/// Limits: when all are full, lines are dropped and counted, and a log line says so. Nobody waits for the file.
/// Cost: [`AccessLog::is_off`] is a look at a flag; a line some 100 ns and no allocation.
pub(crate) struct AccessLog {
    log: Option<Log>,
}

/// What an access log has counted since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Lines in the file.
    pub(crate) lines: u64,
    /// Lines that will never be.
    pub(crate) dropped: u64,
    /// Writes, and attempts to open the file, that failed.
    pub(crate) errors: u64,
}

/// A file that cannot be written to.
#[derive(Debug, thiserror::Error)]
#[error("access_log.path: cannot open {}: {source}", path.display())]
pub struct AccessLogError {
    /// The file.
    path: PathBuf,
    /// What the kernel says.
    source: io::Error,
}

struct Log {
    errors_only: bool,
    sample: u32,
    queue: Queue,
}

impl AccessLog {
    /// Opens the file and starts the thread that writes to it, or does neither if the configuration names none.
    ///
    /// `threads`: how many threads will record.
    pub(crate) fn start(
        config: &AccessLogConfig,
        threads: usize,
    ) -> Result<AccessLog, AccessLogError> {
        if config.path.as_os_str().is_empty() {
            return Ok(AccessLog::off());
        }
        Output::open(&config.path)
            .and_then(|output| AccessLog::with_output(config, threads, output))
            .map_err(|source| AccessLogError { path: config.path.clone(), source })
    }

    fn with_output(
        config: &AccessLogConfig,
        threads: usize,
        output: Output,
    ) -> io::Result<AccessLog> {
        let queue = writer::start(config, threads, output)?;
        let log = Log { errors_only: config.errors_only, sample: config.sample, queue };
        Ok(AccessLog { log: Some(log) })
    }

    /// None.
    pub(crate) const fn off() -> AccessLog {
        AccessLog { log: None }
    }

    /// Whether nothing is recorded: then nobody need gather what an [`Entry`] takes.
    #[inline]
    pub(crate) const fn is_off(&self) -> bool {
        self.log.is_none()
    }

    /// Adds the line of a request, if it is to have one. Never waits for the file.
    pub(crate) fn record(&self, entry: &Entry<'_>) {
        let Some(log) = &self.log else { return };
        if log.wants(entry.status) {
            log.queue.take(entry);
        }
    }

    /// Has the file opened anew, since the one that is open may have been renamed; `false`: there is none.
    pub(crate) fn reopen(&self) -> bool {
        let Some(log) = &self.log else { return false };
        log.queue.reopen();
        true
    }

    /// What it has counted; `None`: it is off.
    pub(crate) fn counts(&self) -> Option<Counts> {
        self.log.as_ref().map(|log| log.queue.counts())
    }

    /// Has all lines written and ends; later ones are dropped.
    ///
    /// Cost: blocks until all is written, for some seconds at the most.
    pub(crate) fn finish(&self) {
        if let Some(log) = &self.log {
            log.queue.finish();
        }
    }
}

impl Log {
    fn wants(&self, status: u16) -> bool {
        if self.errors_only && status < ERROR_STATUS_MIN {
            return false;
        }
        self.sample == 1 || {
            let turn = TURN.get();
            TURN.set(if turn + 1 >= self.sample { 0 } else { turn + 1 });
            turn == 0
        }
    }
}

/// A name for the file in a log line.
fn shown(path: &Path) -> impl std::fmt::Display {
    path.display()
}

thread_local! {
    /// Requests of this thread since it last recorded one, if not all are.
    static TURN: Cell<u32> = const { Cell::new(0) };
}

/// From here on an answer says that a request failed.
const ERROR_STATUS_MIN: u16 = 400;

#[cfg(test)]
mod tests;
