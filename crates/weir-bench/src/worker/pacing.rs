//! Clients that read slowly: each takes a fixed number of bytes per second.

use std::time::Duration;

/// The clients that read at a pace.
#[derive(Debug, Default)]
pub(crate) struct Pacer {
    bytes_per_second: f64,
    readers: Vec<Reader>,
}

/// One client.
#[derive(Debug)]
pub(crate) struct Reader {
    /// Index among the connections of the worker.
    pub(crate) conn: usize,
    starts: Duration,
    /// Time of the last calculation of the allowance; `None` before the start.
    reckoned: Option<Duration>,
    allowance: f64,
}

/// The permission of a client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Wait.
    Wait,
    /// Begin to read at the pace instead of at full speed.
    Start,
    /// Read at most this many bytes.
    Read(usize),
}

/// Time between two turns.
pub(crate) const TICK: Duration = Duration::from_millis(50);
/// A smaller allowance is saved for later: a receive window opens only after larger reads.
const READ_BYTES_MIN: f64 = 1024.0;
/// Allowance that a client without data may save, in seconds of its pace.
const SAVED_SECONDS_MAX: f64 = 1.0;

impl Pacer {
    /// Sets a pace for these connections; they begin one after the other over `stagger`.
    pub(crate) fn start(
        &mut self,
        bytes_per_second: f64,
        stagger: Duration,
        conns: Vec<usize>,
        now: Duration,
    ) {
        let count = u32::try_from(conns.len()).unwrap_or(u32::MAX).max(1);
        self.bytes_per_second = bytes_per_second;
        let reader = |(place, conn)| Reader {
            conn,
            starts: now + stagger * place / count,
            reckoned: None,
            allowance: 0.0,
        };
        self.readers = (0..).zip(conns).map(reader).collect();
    }

    /// Ends all pacing.
    pub(crate) fn stop(&mut self) {
        self.readers.clear();
    }

    /// Whether any client is paced.
    pub(crate) fn is_active(&self) -> bool {
        !self.readers.is_empty()
    }

    /// The permission of the client at `place`; `None` beyond the last client.
    pub(crate) fn poll_turn(&mut self, place: usize, now: Duration) -> Option<(usize, Turn)> {
        let saved_max = (self.bytes_per_second * SAVED_SECONDS_MAX).max(READ_BYTES_MIN);
        let reader = self.readers.get_mut(place)?;
        if now < reader.starts {
            return Some((reader.conn, Turn::Wait));
        }
        let Some(before) = reader.reckoned.replace(now) else {
            return Some((reader.conn, Turn::Start));
        };
        let earned = self.bytes_per_second * now.saturating_sub(before).as_secs_f64();
        reader.allowance = (reader.allowance + earned).min(saved_max);
        if reader.allowance < READ_BYTES_MIN {
            return Some((reader.conn, Turn::Wait));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is positive and bounded above"
        )]
        let bytes = reader.allowance as usize;
        Some((reader.conn, Turn::Read(bytes)))
    }

    /// The client at `place` has read this many bytes.
    pub(crate) fn handle_read(&mut self, place: usize, bytes: usize) {
        if let Some(reader) = self.readers.get_mut(place) {
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            reader.allowance -= f64::from(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(100);

    fn millis(millis: u64) -> Duration {
        START + Duration::from_millis(millis)
    }

    #[test]
    fn a_pace_is_kept_over_time() {
        let mut pacer = Pacer::default();
        pacer.start(10_000.0, Duration::ZERO, vec![5], START);
        assert_eq!(pacer.poll_turn(0, START), Some((5, Turn::Start)));
        let mut read = 0;
        for turn in 1..=200 {
            if let Some((5, Turn::Read(bytes))) = pacer.poll_turn(0, millis(turn * 50)) {
                assert!(bytes >= 1024);
                pacer.handle_read(0, bytes);
                read += bytes;
            }
        }
        assert!((99_000..=100_000).contains(&read), "{read} bytes in 10 s");
    }

    #[test]
    fn what_was_not_read_is_saved_for_a_second_only() {
        let mut pacer = Pacer::default();
        pacer.start(10_000.0, Duration::ZERO, vec![0], START);
        pacer.poll_turn(0, START);
        assert_eq!(pacer.poll_turn(0, millis(60_000)), Some((0, Turn::Read(10_000))));
    }

    #[test]
    fn clients_begin_one_after_the_other() {
        let mut pacer = Pacer::default();
        pacer.start(1.0, Duration::from_secs(4), vec![7, 8, 9, 10], START);
        assert_eq!(pacer.poll_turn(0, START), Some((7, Turn::Start)));
        assert_eq!(pacer.poll_turn(2, millis(1_999)), Some((9, Turn::Wait)));
        assert_eq!(pacer.poll_turn(2, millis(2_000)), Some((9, Turn::Start)));
        assert_eq!(pacer.poll_turn(4, START), None);
        pacer.stop();
        assert!(!pacer.is_active());
    }
}
