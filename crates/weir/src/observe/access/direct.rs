//! Lines that are written by whoever records them, one write each: what an access log costs that is on the hot path.
//! For measurements (`access_log.synchronous`).

use std::sync::{Mutex, MutexGuard};

use tracing::warn;

use super::output::Output;
use super::stamp::Stamp;
use super::{Counts, Entry, line, shown};
use crate::base::config::AccessLogFormat;

pub(super) struct Direct {
    format: AccessLogFormat,
    state: Mutex<State>,
}

struct State {
    output: Output,
    stamp: Stamp,
    /// The last line, written up to `done`.
    line: Vec<u8>,
    done: usize,
    counts: Counts,
}

impl Direct {
    pub(super) fn new(format: AccessLogFormat, output: Output) -> Direct {
        let (stamp, counts) = (Stamp::new(), Counts::default());
        let line = Vec::with_capacity(line::LINE_BYTES_MAX);
        let state = Mutex::new(State { output, stamp, line, done: 0, counts });
        Direct { format, state }
    }

    pub(super) fn take(&self, entry: &Entry<'_>) {
        let mut state = self.lock();
        let State { output, stamp, line, done, counts } = &mut *state;
        // First what is left of a line that has begun.
        if (1..line.len()).contains(done) {
            if output.write(line, done).is_err() {
                counts.errors += 1;
                counts.dropped += 1;
                return;
            }
            counts.lines += 1;
        }
        line.clear();
        *done = 0;
        let unix = crate::base::clock::unix_time();
        stamp.set(u64::try_from(unix.as_micros()).unwrap_or(u64::MAX));
        line::write(self.format, line, stamp, entry);
        match output.write(line, done) {
            Ok(()) => counts.lines += 1,
            Err(_) if *done > 0 => counts.errors += 1,
            Err(_) => {
                counts.errors += 1;
                counts.dropped += 1;
            }
        }
    }

    pub(super) fn reopen(&self) {
        let mut state = self.lock();
        if let Err(error) = state.output.reopen() {
            state.counts.errors += 1;
            let path = shown(state.output.path());
            warn!(%path, %error, "cannot open the access log anew; the open file stays");
        }
    }

    pub(super) fn counts(&self) -> Counts {
        self.lock().counts
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic happens under the lock of the access log")
    }
}
