//! Waiting for other processes: for how long, and how often to look.

use std::time::{Duration, Instant};

/// How long anything that must happen may take on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The time, for what is measured of another process.
#[expect(clippy::disallowed_methods, reason = "the tests wait for another process")]
pub fn now() -> Instant {
    Instant::now()
}

/// A short pause between two looks at another process.
#[expect(clippy::disallowed_methods, reason = "the tests wait for another process")]
pub(crate) fn rest() {
    std::thread::sleep(Duration::from_millis(20));
}
