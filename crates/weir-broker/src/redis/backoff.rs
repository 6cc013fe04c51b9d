//! Pauses between attempts.

use std::time::Duration;

use rand::RngExt as _;
use tokio::time::Instant;

/// How long to wait before the next attempt: longer each time, and less by chance, so that many nodes do not come back in
/// one moment.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
    /// Until when nothing is tried, and why.
    pause: Option<(Instant, String)>,
}

impl Backoff {
    pub(super) fn succeeded(&mut self) {
        *self = Backoff::default();
    }

    /// Takes note of a failure; the end of the pause.
    pub(super) fn failed(&mut self, why: &str) -> Instant {
        let pause = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        let until = Instant::now() + pause.mul_f64(rand::rng().random_range(0.5..1.0));
        self.pause = Some((until, why.to_owned()));
        until
    }

    /// Why nothing is to be tried now.
    pub(super) fn refuses(&self) -> Option<String> {
        let (until, why) = self.pause.as_ref()?;
        (Instant::now() < *until).then(|| why.clone())
    }
}

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(2);
