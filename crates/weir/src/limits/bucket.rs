//! How fast one topic takes messages.

use std::time::Duration;

use weir_engine::Nanos;

/// Messages that are taken, by one topic or from one sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) per_second: u32,
    pub(crate) burst: u32,
}

/// A token bucket.
///
/// Shape: the moment at which it is full again, 8 bytes. A message moves it ahead by one interval; what would move it
/// further than the burst from now has to wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Bucket(Nanos);

impl Bucket {
    /// The bucket after one more message, or how long that would have to wait.
    pub(crate) fn take(self, rate: Rate, now: Nanos) -> Result<Bucket, Duration> {
        let interval = NANOS_PER_SECOND / u64::from(rate.per_second.max(1));
        let full = Nanos(self.0.0.max(now.0).saturating_add(interval));
        let latest = Nanos(now.0.saturating_add(interval.saturating_mul(u64::from(rate.burst))));
        if full > latest { Err(full.since(latest)) } else { Ok(Bucket(full)) }
    }
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_burst_at_once_and_then_the_rate() {
        let rate = Rate { per_second: 10, burst: 3 };
        let start = 5 * NANOS_PER_SECOND;
        let mut bucket = Bucket::default();
        for _ in 0..3 {
            bucket = bucket.take(rate, Nanos(start)).unwrap();
        }
        assert_eq!(bucket.take(rate, Nanos(start)), Err(Duration::from_millis(100)));
        assert_eq!(bucket.take(rate, Nanos(start + 60_000_000)), Err(Duration::from_millis(40)));
        let bucket = bucket.take(rate, Nanos(start + 100_000_000)).unwrap();
        assert!(bucket.take(rate, Nanos(start + 100_000_000)).is_err());
        // After a silence no more than the burst.
        let later = Nanos(start + 60 * NANOS_PER_SECOND);
        let taken = (0..10).try_fold(bucket, |bucket, _| bucket.take(rate, later));
        assert!(taken.is_err());
        assert!((0..3).try_fold(bucket, |bucket, _| bucket.take(rate, later)).is_ok());
    }
}
