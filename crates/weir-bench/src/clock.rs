//! The clocks of the bench. The bench is driven by time, so it reads the clock itself.

use std::time::Duration;

use rustix::thread::{NanosleepRelativeResult, nanosleep};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Time since a fixed moment. It never goes back.
pub(crate) fn monotonic() -> Duration {
    duration(clock_gettime(ClockId::Monotonic))
}

/// The same in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    u64::try_from(monotonic().as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds since 1970: the clock of the kernel's receive timestamps.
pub(crate) fn realtime_ns() -> u64 {
    u64::try_from(duration(clock_gettime(ClockId::Realtime)).as_nanos()).unwrap_or(u64::MAX)
}

/// Waits. A signal does not end the wait early.
pub(crate) fn sleep(time: Duration) {
    let mut rest = timespec(time);
    while let NanosleepRelativeResult::Interrupted(left) = nanosleep(&rest) {
        rest = left;
    }
}

/// Waits until [`monotonic`] shows `moment`; returns at once if it has passed.
pub(crate) fn sleep_until(moment: Duration) {
    sleep(moment.saturating_sub(monotonic()));
}

/// A time span in the kernel's form.
pub(crate) fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

/// A kernel time as a span; a negative one is zero.
pub(crate) fn duration(time: Timespec) -> Duration {
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
