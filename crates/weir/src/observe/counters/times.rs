//! Durations that many threads count; [`Durations`] is for a single writer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use weir_engine::Durations;

/// Durations, in the buckets of [`Durations`].
///
/// Cost: two relaxed atomic operations for each duration.
#[derive(Debug, Default)]
pub(crate) struct Times {
    buckets: [AtomicU64; Durations::BUCKETS],
    sum_nanos: AtomicU64,
}

impl Times {
    pub(crate) fn record(&self, time: Duration) {
        let is_within = |index: &usize| Durations::bound(*index).is_none_or(|bound| time <= bound);
        let index = (0..Durations::BUCKETS).find(is_within).unwrap_or(Durations::BUCKETS - 1);
        self.buckets[index].fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.sum_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Counts by bucket, not cumulated.
    pub(crate) fn counts(&self) -> [u64; Durations::BUCKETS] {
        std::array::from_fn(|index| self.buckets[index].load(Ordering::Relaxed))
    }

    pub(crate) fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_nanos.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_counts_in_the_bucket_that_holds_it() {
        let check = |time: Duration, expected: usize| {
            let times = Times::default();
            times.record(time);
            let index = times.counts().iter().position(|count| *count == 1);
            assert_eq!((index, times.sum()), (Some(expected), time), "{time:?}");
        };
        check(Duration::ZERO, 0);
        check(Durations::LEAST, 0);
        check(Durations::LEAST + Duration::from_nanos(1), 1);
        check(Duration::from_secs(3600), Durations::BUCKETS - 1);
    }
}
