//! How long things took, counted in buckets.

use std::time::Duration;

/// Durations by length.
///
/// Shape: a duration counts in the first bucket whose bound it does not exceed: 16 µs, and each bound is twice the one
/// before. The last bucket has no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DurationCounts {
    /// Counts by bucket, not cumulated.
    pub buckets: [u64; DurationCounts::BUCKETS],
    /// Sum of all durations.
    pub sum: Duration,
}

impl DurationCounts {
    /// Buckets: from 16 µs to 134 s, and one above.
    pub const BUCKETS: usize = 25;

    /// Upper bound of a bucket; `None` for the last one.
    pub const fn bound(index: usize) -> Option<Duration> {
        if index + 1 < Self::BUCKETS { Some(Duration::from_nanos(LEAST << index)) } else { None }
    }

    pub(crate) fn record(&mut self, duration: Duration) {
        let is_within = |index: &usize| Self::bound(*index).is_none_or(|bound| duration <= bound);
        let index = (0..Self::BUCKETS).find(is_within).unwrap_or(Self::BUCKETS - 1);
        self.buckets[index] += 1;
        self.sum = self.sum.saturating_add(duration);
    }
}

const LEAST: u64 = 1 << 14;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_counts_in_the_bucket_that_holds_it() {
        for (nanos, expected) in [(0, 0), (LEAST, 0), (LEAST + 1, 1), (u64::MAX, 24)] {
            let mut counts = DurationCounts::default();
            counts.record(Duration::from_nanos(nanos));
            let index = counts.buckets.iter().position(|count| *count == 1);
            assert_eq!((index, counts.sum), (Some(expected), Duration::from_nanos(nanos)));
        }
    }
}
