//! Redis' clock, as far as this node knows it.
//!
//! The order of a device's connections is that of Redis' clock, and a claim may reach Redis long after it was made: it
//! waits here, on the network, or for a Redis that stands still. Meanwhile the device may have moved to another node. So a
//! claim also says at what time its connection was accepted at the latest.

use std::time::Duration;

use tokio::time::Instant;

/// The most that Redis' clock may be ahead of this node's.
#[derive(Debug)]
pub(super) struct RedisClock {
    /// What the numbers count from.
    origin: Instant,
    /// By how much it is ahead at most, in microseconds, with the time of the first answer that counts: of the answers
    /// of late, and of those before.
    ahead: [Option<(Instant, i64)>; 2],
}

impl RedisClock {
    pub(super) fn new() -> RedisClock {
        RedisClock { origin: Instant::now(), ahead: [None; 2] }
    }

    /// Redis has told its time (microseconds since 1970) between two moments. The smallest difference is the truest: its
    /// request took the shortest way.
    pub(super) fn handle_answer(&mut self, asked: Instant, answered: Instant, time: i64) {
        let (most, least) = (time - self.micros(asked), time - self.micros(answered));
        for known in &mut self.ahead {
            // The clock was set, or is another server's.
            if known.is_some_and(|(_, ahead)| ahead < least.saturating_sub(TOLERANCE)) {
                *known = None;
            }
        }
        match &mut self.ahead[0] {
            Some((since, ahead)) if answered - *since < KEPT => *ahead = (*ahead).min(most),
            late => {
                self.ahead[1] = late.replace((answered, most));
            }
        }
    }

    /// What Redis' clock showed at the latest so long before `now`; `None`: it has not told its time yet.
    pub(super) fn latest(&self, now: Instant, age: Duration) -> Option<i64> {
        let ahead = self.ahead.iter().flatten().map(|(_, ahead)| *ahead).min()?;
        let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
        Some(self.micros(now).saturating_add(ahead).saturating_sub(age))
    }

    fn micros(&self, at: Instant) -> i64 {
        i64::try_from((at - self.origin).as_micros()).unwrap_or(i64::MAX / 4)
    }
}

/// How long answers count: longer than a short trouble of the network, and so short that clocks do not drift apart.
const KEPT: Duration = Duration::from_secs(15);
/// How far clocks drift apart meanwhile, in microseconds.
const TOLERANCE: i64 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that is asked at these milliseconds of this node, answers so much later, and shows that time then.
    fn clock(answers: &[(u64, u64, i64)]) -> (RedisClock, Instant) {
        let mut clock = RedisClock::new();
        let origin = clock.origin;
        for &(asked, answered, time) in answers {
            let at = |millis| origin + Duration::from_millis(millis);
            clock.handle_answer(at(asked), at(answered), time * 1000);
        }
        (clock, origin)
    }

    #[track_caller]
    fn check(answers: &[(u64, u64, i64)], (now, age): (u64, u64), expected: Option<i64>) {
        let (clock, origin) = clock(answers);
        let latest = clock.latest(origin + Duration::from_millis(now), Duration::from_millis(age));
        assert_eq!(latest, expected.map(|millis| millis * 1000));
    }

    #[test]
    fn a_slow_answer_does_not_hide_what_a_quick_one_has_told() {
        check(&[], (100, 0), None);
        // Redis' clock is 1,000 ms ahead. The answer took the whole way back, or the whole way there.
        check(&[(10, 60, 1010)], (100, 30), Some(1070));
        check(&[(10, 60, 1060)], (100, 30), Some(1120));
        check(&[(10, 11, 1011), (500, 900, 1900)], (1000, 0), Some(2001));
        // Older than this node.
        check(&[(10, 10, 1010)], (100, 5000), Some(-3900));
    }

    #[test]
    fn old_answers_and_another_clock_are_forgotten() {
        let drifts = [(0, 0, 1000), (20_000, 20_000, 21_002), (40_000, 40_000, 41_004)];
        check(&drifts[..2], (20_000, 0), Some(21_000));
        check(&drifts, (40_000, 0), Some(41_002));
        // It was set forward by an hour; or back.
        check(&[(0, 0, 1000), (10, 20, 3_601_010)], (30, 0), Some(3_601_030));
        check(&[(0, 0, 1000), (10, 20, 510)], (30, 0), Some(530));
    }
}
