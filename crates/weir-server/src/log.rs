//! Log lines: through a bounded queue to standard error, never in the way of the gateway.

use std::io::IsTerminal;

use anyhow::Context;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{LogFormat, LogSettings};

/// The log, for as long as it is held; dropped, it writes what is queued.
///
/// Limits: `log.queue_lines` lines wait for standard error; what does not fit is dropped and counted.
pub(crate) struct Log {
    dropped: ErrorCounter,
    _flushes_when_dropped: WorkerGuard,
}

impl Log {
    /// Makes the process log.
    pub(crate) fn start(settings: &LogSettings) -> anyhow::Result<Log> {
        let (queue, guard) = NonBlockingBuilder::default()
            .lossy(true)
            .buffered_lines_limit(settings.queue_lines)
            .thread_name("weir-log")
            .finish(std::io::stderr());
        let dropped = queue.error_counter();
        subscribe(settings, queue)?;
        Ok(Log { dropped, _flushes_when_dropped: guard })
    }

    /// What counts the dropped lines.
    pub(crate) fn dropped(&self) -> ErrorCounter {
        self.dropped.clone()
    }
}

fn subscribe(settings: &LogSettings, queue: NonBlocking) -> anyhow::Result<()> {
    let filter: EnvFilter = settings.level.parse().context("log.level")?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(queue);
    let started = match settings.format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).finish().try_init(),
        LogFormat::Json => lines.json().flatten_event(true).finish().try_init(),
    };
    started.context("cannot start the log")
}
