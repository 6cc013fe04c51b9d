//! The log: lines go to standard error, or to a file, at a bounded rate and through a bounded queue.
//! They never delay the gateway.

mod limit;

use std::fs::File;
use std::io::{IsTerminal, Write};

use anyhow::Context;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, registry, reload};

use crate::config::{LogFormat, LogSettings};
use limit::LineLimit;

/// The log. When dropped, it writes the queued lines.
///
/// Limits: `log.lines_per_second` for each place in the code that logs; lines beyond it are
/// counted, and one line reports their number. `log.queue_lines` lines wait for standard error;
/// more are dropped and counted.
pub(crate) struct Log {
    losses: Losses,
    control: Control,
    _flushes_when_dropped: WorkerGuard,
}

/// Changes the log while it runs.
#[derive(Clone)]
pub(crate) struct Control {
    filter: reload::Handle<EnvFilter, Registry>,
    limit: LineLimit,
}

/// Counts the lines that were not written.
#[derive(Clone)]
pub(crate) struct Losses {
    dropped: ErrorCounter,
    limit: LineLimit,
}

impl Log {
    /// Makes the process log to standard error.
    pub(crate) fn start(settings: &LogSettings) -> anyhow::Result<Log> {
        let stderr = std::io::stderr();
        let is_terminal = stderr.is_terminal();
        Self::start_with(settings, stderr, is_terminal)
    }

    /// Makes the process log to a file.
    pub(crate) fn start_in(settings: &LogSettings, file: File) -> anyhow::Result<Log> {
        Self::start_with(settings, file, false)
    }

    fn start_with(
        settings: &LogSettings,
        to: impl Write + Send + 'static,
        has_colours: bool,
    ) -> anyhow::Result<Log> {
        let (queue, guard) = NonBlockingBuilder::default()
            .lossy(true)
            .buffered_lines_limit(settings.queue_lines)
            .thread_name("weir-log")
            .finish(to);
        let limit = LineLimit::new(settings.lines_per_second);
        let losses = Losses { dropped: queue.error_counter(), limit: limit.clone() };
        let filter = subscribe(settings, limit.clone(), queue, has_colours)?;
        let control = Control { filter, limit };
        Ok(Log { losses, control, _flushes_when_dropped: guard })
    }

    /// The counts of lines that were not written.
    pub(crate) fn losses(&self) -> Losses {
        self.losses.clone()
    }

    /// What changes the log.
    pub(crate) fn control(&self) -> Control {
        self.control.clone()
    }
}

impl Control {
    /// Uses level and lines per second of these settings, which were checked, from now on.
    pub(crate) fn apply(&self, settings: &LogSettings) {
        self.limit.limit(settings.lines_per_second);
        if let Ok(filter) = settings.level.parse::<EnvFilter>()
            && let Err(error) = self.filter.reload(filter)
        {
            tracing::error!(%error, "the log keeps its level");
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.losses.limit.tell();
    }
}

impl Losses {
    /// Lines for which the queue had no room.
    pub(crate) fn dropped(&self) -> u64 {
        u64::try_from(self.dropped.dropped_lines()).unwrap_or(u64::MAX)
    }

    /// Lines that exceeded the rate.
    pub(crate) fn suppressed(&self) -> u64 {
        self.limit.suppressed()
    }

    /// Logs how many lines were suppressed since the last report.
    pub(crate) fn tell_suppressed(&self) {
        self.limit.tell();
    }
}

fn subscribe(
    settings: &LogSettings,
    limit: LineLimit,
    queue: NonBlocking,
    has_colours: bool,
) -> anyhow::Result<reload::Handle<EnvFilter, Registry>> {
    let filter: EnvFilter = settings.level.parse().context("log.level")?;
    let (filter, handle) = reload::Layer::new(filter);
    let subscriber = registry().with(filter).with(limit);
    let lines = fmt::layer().with_writer(queue);
    let started = match settings.format {
        LogFormat::Text => subscriber.with(lines.with_ansi(has_colours)).try_init(),
        LogFormat::Json => subscriber.with(lines.json().flatten_event(true)).try_init(),
    };
    started.context("cannot start the log")?;
    Ok(handle)
}
