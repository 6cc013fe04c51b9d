//! How long an endpoint takes to answer: an average that jumps to peaks and decays.

use std::time::Duration;

use tokio::time::Instant;

/// Peak EWMA: a higher value counts at once, a lower one by and by. Without values it decays, so
/// that an endpoint that was slow gets a request again.
///
/// Source: Finagle's balancer "p2c peak EWMA".
pub(crate) struct Latency {
    micros: f64,
    /// When `micros` was right. `None`: never measured.
    measured: Option<Instant>,
}

impl Latency {
    pub(crate) const UNKNOWN: Latency = Latency { micros: 0.0, measured: None };

    /// The average now, in microseconds. `None`: never measured.
    pub(crate) fn micros(&self, now: Instant) -> Option<f64> {
        self.measured.map(|at| self.micros * weight(at, now))
    }

    /// An answer took so long.
    pub(crate) fn observe(&mut self, now: Instant, took: Duration) {
        let took = micros(took);
        let weight = self.measured.map_or(0.0, |at| weight(at, now));
        let aged = self.micros * weight;
        self.micros = if took > aged { took } else { aged + took * (1.0 - weight) };
        self.measured = Some(now);
    }

    /// There is no answer after so long. Only a peak counts.
    pub(crate) fn unanswered(&mut self, now: Instant, took: Duration) {
        if self.micros(now).is_none_or(|average| micros(took) > average) {
            self.observe(now, took);
        }
    }

    /// A failure took so long. It counts twice the average, at most `most`: an endpoint that fails
    /// at once must not look like a fast one.
    pub(crate) fn failed(&mut self, now: Instant, took: Duration, most: Duration) {
        let average = self.micros(now).unwrap_or(0.0).max(micros(FAILURE_LEAST));
        let doubled = Duration::from_secs_f64(average * 2.0 / 1e6);
        self.observe(now, doubled.min(most).max(took));
    }
}

fn micros(took: Duration) -> f64 {
    took.as_secs_f64() * 1e6
}

/// What is left of a value after the time from `then` to `now`: 1 at once, 0 in the end.
fn weight(then: Instant, now: Instant) -> f64 {
    (-now.saturating_duration_since(then).as_secs_f64() / DECAY_SECONDS).exp()
}

/// The time in which a value decays to 37 %. Finagle's and Linkerd's value.
const DECAY_SECONDS: f64 = 10.0;

/// So that failures also count at an endpoint that answers in no time.
const FAILURE_LEAST: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn about(latency: &Latency, now: Instant, expected: f64) {
        let micros = latency.micros(now).unwrap();
        assert!((micros - expected).abs() < expected * 0.01 + 1.0, "{micros}, not {expected}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_peak_counts_at_once_and_decays() {
        let start = Instant::now();
        let mut latency = Latency::UNKNOWN;
        assert_eq!(latency.micros(start), None);
        latency.observe(start, 10 * MS);
        latency.observe(start + MS, 100 * MS);
        about(&latency, start + MS, 100_000.0);
        latency.observe(start + 2 * MS, 10 * MS);
        about(&latency, start + 2 * MS, 99_991.0);
        about(&latency, start + 10_000 * MS, 36_788.0);
        latency.observe(start + 60_000 * MS, 10 * MS);
        about(&latency, start + 60_000 * MS, 10_000.0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_fast_failure_counts_as_slow() {
        let start = Instant::now();
        let mut latency = Latency::UNKNOWN;
        latency.observe(start, 10 * MS);
        latency.failed(start, Duration::ZERO, 1_000 * MS);
        about(&latency, start, 20_000.0);
        for _ in 0..20 {
            latency.failed(start, Duration::ZERO, 1_000 * MS);
        }
        about(&latency, start, 1_000_000.0);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_counts_only_as_a_peak() {
        let start = Instant::now();
        let mut latency = Latency::UNKNOWN;
        latency.observe(start, 10 * MS);
        latency.unanswered(start + 10_000 * MS, MS);
        about(&latency, start + 10_000 * MS, 3_679.0);
        latency.unanswered(start + 10_000 * MS, 50 * MS);
        about(&latency, start + 10_000 * MS, 50_000.0);
    }
}
