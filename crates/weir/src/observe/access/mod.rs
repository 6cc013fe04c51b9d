//! The access log: one line for each request. The answering thread formats it, and another thread
//! writes it.
//!
//! Read `queue.rs` for the way of lines, `line.rs` for their form, and `ids.rs` for the names of a
//! request.

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
use weir_engine::Footprint;

use self::ids::Ids;
use self::output::Output;
use self::queue::Queue;
use crate::base::config::AccessLogConfig;

/// One answered request.
///
/// Limits: a line shows a limited part of each text (`line.rs`), and `...` after a longer one.
pub(crate) struct Entry<'a> {
    /// The time at which its head was complete.
    pub(crate) began: Instant,
    /// The time from then until the answer was ready.
    pub(crate) took: Duration,
    /// The client's address, if it is known; behind a proxy the address in the PROXY header.
    pub(crate) remote: Option<IpAddr>,
    pub(crate) method: &'a str,
    /// The requested target. The line omits everything from a `?` on, where tokens may be.
    pub(crate) target: &'a str,
    pub(crate) version: Version,
    pub(crate) status: u16,
    /// Bytes of the answer's body.
    pub(crate) bytes: u64,
    pub(crate) host: Option<&'a [u8]>,
    pub(crate) user_agent: Option<&'a [u8]>,
    /// Also cut where its query begins.
    pub(crate) referer: Option<&'a [u8]>,
    /// The device or service of the token.
    pub(crate) device: Option<&'a str>,
    pub(crate) ids: &'a Ids,
}

/// The access log of a gateway, or none.
///
/// Shape: lines lie in chunks of 32 KiB, up to `access_log.queue_bytes`. A chunk is allocated at
/// its first use, and then kept.
/// Limits: if all are full, lines are dropped and counted, and a log line says so. No request waits
/// for the file.
/// Cost: [`AccessLog::is_off`] reads a flag. A line costs some 100 ns and no allocation.
pub(crate) struct AccessLog {
    log: Option<Log>,
}

/// The counts of an access log since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Lines written to the file.
    pub(crate) lines: u64,
    /// Lines that were dropped.
    pub(crate) dropped: u64,
    /// Failed writes, and failed attempts to open the file.
    pub(crate) errors: u64,
}

/// A file that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("access_log.path: cannot open {}: {source}", path.display())]
pub struct AccessLogError {
    /// The file.
    path: PathBuf,
    /// The kernel's error.
    source: io::Error,
}

struct Log {
    errors_only: bool,
    sample: u32,
    queue: Queue,
}

impl AccessLog {
    /// Opens the file and starts the thread that writes to it, if the configuration names a file.
    ///
    /// `threads` is the number of recording threads.
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

    /// No access log.
    pub(crate) const fn off() -> AccessLog {
        AccessLog { log: None }
    }

    /// Whether nothing is recorded. Then the caller need not gather an [`Entry`].
    #[inline]
    pub(crate) const fn is_off(&self) -> bool {
        self.log.is_none()
    }

    /// Adds the line of a request, if its status and the sample require one. Never waits for the
    /// file.
    pub(crate) fn record(&self, entry: &Entry<'_>) {
        let Some(log) = &self.log else { return };
        if log.wants(entry.status) {
            log.queue.take(entry);
        }
    }

    /// Opens the file again, since it may have been renamed; `false` if there is none.
    pub(crate) fn reopen(&self) -> bool {
        let Some(log) = &self.log else { return false };
        log.queue.reopen();
        true
    }

    /// The chunks that have been allocated.
    pub(crate) fn footprint(&self) -> Footprint {
        self.log.as_ref().map(|log| log.queue.footprint()).unwrap_or_default()
    }

    /// The counts; `None` if the log is off.
    pub(crate) fn counts(&self) -> Option<Counts> {
        self.log.as_ref().map(|log| log.queue.counts())
    }

    /// Writes all lines and ends the log; later lines are dropped.
    ///
    /// Cost: blocks until everything is written, at most for some seconds.
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
    /// Requests of this thread since the last recorded one, if only a sample is recorded.
    static TURN: Cell<u32> = const { Cell::new(0) };
}

/// From this status on, a request counts as failed.
const ERROR_STATUS_MIN: u16 = 400;

#[cfg(test)]
mod tests;
