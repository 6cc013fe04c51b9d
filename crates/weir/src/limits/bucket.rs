//! The rate at which one topic or sender publishes.

use std::time::Duration;

use weir_engine::Nanos;

/// The messages that one topic or one sender may publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) per_second: u32,
    pub(crate) burst: u32,
}

/// A token bucket.
///
/// Shape: the time at which it will be full again, 8 bytes. Each message moves this time ahead by
/// one interval. A message must wait if it would move the time further ahead of now than the burst.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Bucket(Nanos);

impl Bucket {
    /// When it will be full again.
    pub(crate) fn full_at(self) -> Nanos {
        self.0
    }

    /// A bucket that will be full again at this time.
    pub(crate) fn until(full_at: Nanos) -> Bucket {
        Bucket(full_at)
    }

    /// The bucket after one more message, or the time that the message must wait.
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
        // After a silence, not more than the burst.
        let later = Nanos(start + 60 * NANOS_PER_SECOND);
        let taken = (0..10).try_fold(bucket, |bucket, _| bucket.take(rate, later));
        assert!(taken.is_err());
        assert!((0..3).try_fold(bucket, |bucket, _| bucket.take(rate, later)).is_ok());
    }
}
