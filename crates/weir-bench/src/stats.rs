//! Medians and lag histograms.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Lags in microseconds, with three significant digits, up to an hour.
#[derive(Debug, Clone)]
pub(crate) struct Lags(Histogram<u64>);

impl Default for Lags {
    fn default() -> Self {
        Lags::new()
    }
}

/// A histogram in transit between two processes: values in microseconds, each with its number of
/// occurrences.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LagCounts(Vec<(u64, u64)>);

const MICROS_MAX: u64 = 3_600_000_000;

impl Lags {
    /// An empty histogram.
    pub(crate) fn new() -> Lags {
        Lags(Histogram::new_with_bounds(1, MICROS_MAX, 3).expect("the bounds are valid"))
    }

    /// Counts one lag.
    pub(crate) fn record(&mut self, nanos: u64) {
        self.0.saturating_record(nanos / 1000);
    }

    /// Removes all lags.
    pub(crate) fn reset(&mut self) {
        self.0.reset();
    }

    /// Adds the counts of another process.
    pub(crate) fn add(&mut self, counts: &LagCounts) {
        for (micros, count) in &counts.0 {
            self.0.saturating_record_n(*micros, *count);
        }
    }

    /// The counts, for another process.
    pub(crate) fn counts(&self) -> LagCounts {
        LagCounts(
            self.0
                .iter_recorded()
                .map(|value| (value.value_iterated_to(), value.count_at_value()))
                .collect(),
        )
    }

    /// The lag that `quantile` (0 to 1) of the messages did not exceed, in milliseconds; `None` without messages.
    pub(crate) fn quantile_ms(&self, quantile: f64) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "an hour of microseconds is far below 2^53")]
        let micros = self.0.value_at_quantile(quantile) as f64;
        (!self.0.is_empty()).then_some(micros / 1000.0)
    }

    /// The number of lags.
    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// The longest lag, in milliseconds.
    pub(crate) fn max_ms(&self) -> Option<f64> {
        self.quantile_ms(1.0)
    }
}

/// The middle value, or the mean of the two middle ones; `None` of nothing.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get((sorted.len() - 1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

/// A count as a floating-point number.
#[expect(clippy::cast_precision_loss, reason = "counts here are far below 2^53")]
pub(crate) fn real(count: u64) -> f64 {
    count as f64
}

/// A counter's value as a whole number.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counters are whole, positive and far below 2^53"
)]
pub(crate) fn whole(value: f64) -> u64 {
    value.max(0.0).round() as u64
}

/// Whether number `index` belongs to a share (0 to 1) of all numbers that is spread evenly over
/// them.
pub(crate) fn is_in_share(index: u32, share: f64) -> bool {
    let before = (f64::from(index) * share).floor();
    (f64::from(index + 1) * share).floor() > before
}

/// Rounds to three decimal places: more would be noise.
pub(crate) fn milli(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_spread_evenly() {
        let count =
            |numbers, share| (0..numbers).filter(|index| is_in_share(*index, share)).count();
        assert_eq!((count(2000, 0.1), count(10, 0.1)), (200, 1));
        assert_eq!((count(2000, 1.0), count(2000, 0.0)), (2000, 0));
    }

    #[test]
    fn medians() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0]), Some(3.0));
        assert_eq!(median([9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([1.0, 9.0, 3.0, 2.0]), Some(2.5));
    }

    #[test]
    fn lags_travel_between_processes() {
        let mut one = Lags::new();
        for millis in 1..=100 {
            one.record(millis * 1_000_000);
        }
        let text = serde_json::to_string(&one.counts()).unwrap();
        let mut two = Lags::new();
        assert_eq!(two.quantile_ms(0.5), None);
        two.add(&serde_json::from_str(&text).unwrap());
        assert_eq!(two.quantile_ms(0.5), one.quantile_ms(0.5));
        assert!((two.quantile_ms(0.5).unwrap() - 50.0).abs() < 0.1);
        assert!((two.quantile_ms(0.99).unwrap() - 99.0).abs() < 0.1);
        assert!((two.max_ms().unwrap() - 100.0).abs() < 0.1);
        two.reset();
        assert_eq!(two.max_ms(), None);
    }
}
