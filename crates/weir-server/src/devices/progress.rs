//! Shows the progress of an import: a bar on a terminal, otherwise a line every few seconds.

use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::complain;

/// See the module.
pub(super) struct Progress {
    began: Instant,
    told: Duration,
    /// Bytes read so far.
    bytes: Arc<AtomicU64>,
    size: u64,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// `size` 0 means unknown.
    pub(super) fn start(size: u64, bytes: Arc<AtomicU64>) -> Progress {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = if size > 0 { ProgressBar::new(size) } else { ProgressBar::no_length() };
            let style = ProgressStyle::with_template(
                "{bar:30} {percent}%  {msg}  {elapsed} elapsed, {eta} left",
            );
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Progress { began: now(), told: Duration::ZERO, bytes, size, bar }
    }

    /// Reports how many rows are stored, and up to which line.
    pub(super) fn advance(&mut self, rows: u64, line: Option<u64>) {
        let bytes = self.bytes.load(Ordering::Relaxed);
        let line = line.map_or_else(String::new, |line| format!(", up to line {line}"));
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
            bar.set_message(format!("{rows} rows{line}"));
            return;
        }
        let elapsed = self.elapsed();
        if elapsed < self.told + TELL_INTERVAL {
            return;
        }
        self.told = elapsed;
        let share = bytes.saturating_mul(100).checked_div(self.size);
        let share = share.map_or_else(String::new, |share| format!("{share} %, "));
        complain(format_args!("{share}{rows} rows{line}"));
    }

    /// Writes a line above the bar.
    pub(super) fn tell(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| complain(line)),
            None => complain(line),
        }
    }

    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        now().saturating_duration_since(self.began)
    }
}

#[expect(clippy::disallowed_methods, reason = "the elapsed time is shown to a person")]
fn now() -> Instant {
    Instant::now()
}

const TELL_INTERVAL: Duration = Duration::from_secs(5);
