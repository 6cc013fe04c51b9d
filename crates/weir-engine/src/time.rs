//! The clocks of a shard: nanoseconds to measure with, and coarse ticks for deadlines.

use std::time::Duration;

/// A point on the monotonic clock (`CLOCK_MONOTONIC`), in nanoseconds. It is the same for all
/// threads of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Time since `earlier`; zero if that lies ahead.
    pub const fn since(self, earlier: Nanos) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The point `duration` later.
    pub fn after(self, duration: Duration) -> Nanos {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Nanos(self.0.saturating_add(nanos))
    }

    /// Reads the clock, for code that stamps messages before they enter a mailbox. A shard reads it
    /// once a turn.
    pub fn now() -> Nanos {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
        Nanos(seconds * NANOS_PER_SECOND + nanos)
    }
}

/// The length of a clock tick, the unit of deadlines. It is fine enough for time-outs of seconds,
/// and takes four bytes an entry.
pub const TICK: Duration = Duration::from_millis(100);

const NANOS_PER_SECOND: u64 = 1_000_000_000;
const NANOS_PER_TICK: u64 = 100_000_000;

/// A number of ticks since the shard started; wraps after 13 years.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Tick(pub(crate) u32);

impl Tick {
    /// The tick of `now`, counted from `start`.
    pub(crate) fn at(start: Nanos, now: Nanos) -> Tick {
        let ticks = now.0.saturating_sub(start.0) / NANOS_PER_TICK;
        Tick(u32::try_from(ticks).unwrap_or(u32::MAX))
    }

    /// The first tick at which at least `ticks` whole ticks have passed since this one began.
    pub(crate) fn plus(self, ticks: u32) -> Tick {
        Tick(self.0.saturating_add(ticks))
    }

    /// Ticks since `earlier`; zero if that lies ahead.
    pub(crate) fn since(self, earlier: Tick) -> u32 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A duration in whole ticks, rounded up so that no deadline comes early.
pub(crate) fn ticks(duration: Duration) -> u32 {
    let ticks = duration.as_nanos().div_ceil(u128::from(NANOS_PER_TICK));
    u32::try_from(ticks).unwrap_or(u32::MAX)
}

/// Ticks as a duration.
pub(crate) fn duration_of(ticks: u32) -> Duration {
    TICK * ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_round_up_to_ticks() {
        assert_eq!(ticks(Duration::ZERO), 0);
        assert_eq!(ticks(Duration::from_millis(1)), 1);
        assert_eq!(ticks(Duration::from_secs(10)), 100);
        assert_eq!(ticks(Duration::MAX), u32::MAX);
    }

    #[test]
    fn a_clock_that_steps_back_counts_as_standing_still() {
        assert_eq!(Nanos(5).since(Nanos(9)), Duration::ZERO);
        assert_eq!(Tick::at(Nanos(1_000_000_000), Nanos(0)), Tick(0));
    }
}
