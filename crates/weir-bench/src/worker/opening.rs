//! The connect phase: a bounded number of connections in progress; the next begins when one is
//! open.

use std::time::Duration;

/// The state of the connect phase.
#[derive(Debug)]
pub(crate) struct Opening {
    count: u32,
    window: u32,
    patience: Duration,
    begun: u32,
    arrived: u32,
    started: Duration,
    progressed: Duration,
    reported: u32,
}

/// Connections between two reports of progress.
const REPORT_EVERY: u32 = 500;

impl Opening {
    /// A connect phase for `count` connections, at most `window` at the same time. It gives up
    /// after `patience` without progress.
    pub(crate) fn new(count: u32, window: u32, patience: Duration, now: Duration) -> Opening {
        let window = window.max(1);
        Opening {
            count,
            window,
            patience,
            begun: 0,
            arrived: 0,
            started: now,
            progressed: now,
            reported: 0,
        }
    }

    /// Number of the next connection to begin now, if any.
    pub(crate) fn poll_begin(&mut self) -> Option<u32> {
        (self.begun < self.count && self.begun - self.arrived < self.window).then(|| {
            self.begun += 1;
            self.begun - 1
        })
    }

    /// A connection is settled.
    pub(crate) fn handle_arrival(&mut self, now: Duration) {
        self.arrived += 1;
        self.progressed = now;
    }

    /// Connections that are settled, if a report of progress is due.
    pub(crate) fn poll_report(&mut self) -> Option<u32> {
        (self.arrived >= self.reported + REPORT_EVERY).then(|| {
            self.reported = self.arrived;
            self.arrived
        })
    }

    /// Connections that are settled.
    pub(crate) fn arrived(&self) -> u32 {
        self.arrived
    }

    /// Whether all are settled.
    pub(crate) fn is_complete(&self) -> bool {
        self.arrived == self.count
    }

    /// Time since the start.
    pub(crate) fn elapsed(&self, now: Duration) -> Duration {
        now.saturating_sub(self.started)
    }

    /// The reason to give up, if the patience has ended.
    pub(crate) fn poll_failure(&self, now: Duration) -> Option<String> {
        (now.saturating_sub(self.progressed) >= self.patience).then(|| {
            let on_their_way = self.begun - self.arrived;
            format!(
                "{on_their_way} connections on their way and none arrived for {:?}; {} of {} are open",
                self.patience, self.arrived, self.count
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_window_moves_with_arrivals() {
        let mut opening = Opening::new(5, 2, SECOND, SECOND);
        assert_eq!([0; 3].map(|_| opening.poll_begin()), [Some(0), Some(1), None]);
        opening.handle_arrival(SECOND);
        assert_eq!([0; 2].map(|_| opening.poll_begin()), [Some(2), None]);
        for _ in 0..4 {
            assert!(!opening.is_complete());
            opening.handle_arrival(SECOND);
            opening.poll_begin();
        }
        assert!(opening.is_complete());
        assert_eq!(opening.poll_begin(), None);
    }

    #[test]
    fn it_gives_up_only_without_progress() {
        let mut opening = Opening::new(5, 2, 2 * SECOND, SECOND);
        opening.poll_begin();
        assert_eq!(opening.poll_failure(2 * SECOND), None);
        opening.handle_arrival(2 * SECOND);
        opening.poll_begin();
        assert_eq!(opening.poll_failure(3 * SECOND), None);
        let why = opening.poll_failure(4 * SECOND).unwrap();
        assert!(why.contains("1 connections on their way") && why.contains("1 of 5"), "{why}");
        assert_eq!(opening.elapsed(4 * SECOND), 3 * SECOND);
    }
}
