//! Waiting for other processes: for how long, and how often to look.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};

/// How long anything that must happen may take on a slow machine. Only a test that fails waits for so long.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// The time, for what is measured of another process.
#[expect(clippy::disallowed_methods, reason = "the tests wait for another process")]
pub fn now() -> Instant {
    Instant::now()
}

/// A short pause between two looks at another process.
#[expect(clippy::disallowed_methods, reason = "the tests wait for another process")]
pub fn rest() {
    std::thread::sleep(Duration::from_millis(20));
}

/// A pause of a length that is part of the test, such as that of a fault.
#[expect(clippy::disallowed_methods, reason = "faults last for some time")]
pub(crate) fn pause(length: Duration) {
    if !length.is_zero() {
        std::thread::sleep(length);
    }
}

/// Runs a test whose times have to end: with short times at first, and if it fails, with times of several times the
/// length. So a slow machine has time enough in the end, a fast one does not wait, and a defect fails with all of them.
///
/// `test` gets the factor for its times.
pub fn with_longer_times(test: impl Fn(u64) -> Result<()>) -> Result<()> {
    let mut failures = String::new();
    for scale in SCALES {
        // The test library shows what it panics with.
        let tried = catch_unwind(AssertUnwindSafe(|| test(scale)))
            .unwrap_or_else(|_| Err(anyhow!("it panics")));
        match tried {
            Ok(()) => return Ok(()),
            Err(error) => failures.push_str(&format!("; with {scale} times the time: {error}")),
        }
    }
    test(LAST_SCALE).with_context(|| format!("it fails with all times{failures}"))
}

/// The first factors, and the last one, with which a test has to succeed.
const SCALES: [u64; 2] = [1, 4];
const LAST_SCALE: u64 = 16;
