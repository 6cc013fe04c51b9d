//! The writing thread of the access log.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::output::Output;
use super::queue::{Chunk, Orders, Queue, Shared, now};
use super::shown;
use crate::base::config::AccessLogConfig;

/// Writes full chunks as they come, and partly filled ones every 50 ms.
///
/// Limits: after an error it tries again every 100 ms, and meanwhile chunks fill up. If a write
/// fails within a line, the next one writes the rest, so that every line is complete.
pub(super) struct Writer {
    shared: Arc<Shared>,
    output: Output,
    /// The time of the last log line about errors, and the number of errors since.
    told: Option<Instant>,
    untold: u64,
}

/// Starts the thread that writes to `output`, and returns its queue.
pub(super) fn start(config: &AccessLogConfig, threads: usize, output: Output) -> io::Result<Queue> {
    let shared = Shared::new(config, threads);
    let writer = Writer::new(Arc::clone(&shared), output);
    thread::Builder::new().name("weir-access-log".to_owned()).spawn(|| writer.run())?;
    Ok(Queue::new(shared))
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, output: Output) -> Writer {
        Writer { shared, output, told: None, untold: 0 }
    }

    pub(super) fn run(mut self) {
        let mut next_gather = now() + GATHER_INTERVAL;
        loop {
            let Orders { must_reopen, must_end } = self.shared.sleep(next_gather);
            if must_reopen {
                self.reopen();
            }
            if must_end || now() >= next_gather {
                self.shared.adjust_clock();
                self.shared.gather();
                next_gather = now() + GATHER_INTERVAL;
            }
            while let Some(chunk) = self.shared.next_full() {
                self.write(chunk);
            }
            self.shared.tell_drops(now());
            if must_end {
                break;
            }
        }
        self.shared.set_ended();
    }

    /// Writes a chunk, however long that takes. If the writer must end, it makes one attempt.
    pub(super) fn write(&mut self, chunk: Chunk) {
        let mut done = 0;
        while let Err(error) = self.output.write(&chunk.bytes, &mut done) {
            self.count_error(&error, "cannot write to the access log");
            let Orders { must_reopen, must_end } = self.shared.sleep_on_error(RETRY_INTERVAL);
            if must_reopen {
                // The new file gets the whole line of which the old file has a part.
                done = line_start(&chunk.bytes, done);
                self.reopen();
            } else if must_end {
                let rest = &chunk.bytes[line_start(&chunk.bytes, done)..];
                let lost = rest.iter().filter(|byte| **byte == b'\n').count() as u64;
                self.shared.drop_lines(lost);
                self.shared.count_lines(chunk.lines - lost);
                return self.shared.give_back(chunk.bytes);
            }
        }
        self.shared.count_lines(chunk.lines);
        self.shared.give_back(chunk.bytes);
    }

    fn reopen(&mut self) {
        match self.output.reopen() {
            Ok(()) => info!(path = %shown(self.output.path()), "access log opened anew"),
            Err(error) => {
                self.count_error(&error, "cannot open the access log anew; the open file stays");
            }
        }
    }

    fn count_error(&mut self, error: &io::Error, what: &str) {
        self.shared.count_error();
        self.untold += 1;
        let now = now();
        if self.told.is_none_or(|told| now - told >= TELL_INTERVAL) {
            let (path, errors) = (shown(self.output.path()), self.untold);
            warn!(%path, %error, errors, "{what}");
            (self.told, self.untold) = (Some(now), 0);
        }
    }
}

/// The start of the line that contains `at` or begins there.
fn line_start(lines: &[u8], at: usize) -> usize {
    lines[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1)
}

/// A line is in the file within 100 ms, even if the thread is late.
const GATHER_INTERVAL: Duration = Duration::from_millis(50);
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
const TELL_INTERVAL: Duration = Duration::from_secs(10);
