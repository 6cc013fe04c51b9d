//! A receiver of notices, which checks their order.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use crate::backend::Conduct;
use crate::clock;
use crate::stats::Lags;

/// The notices of a receiver.
#[derive(Default)]
pub(super) struct Receiver(Mutex<Received>);

/// What has come so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Received {
    /// Notices, each counted once.
    pub(super) notices: u64,
    /// Notices that came again.
    pub(super) again: u64,
    /// Numbers that were left out.
    pub(super) missing: u64,
    /// Requests that carried them.
    pub(super) requests: u64,
    /// The number of the last one.
    last: u64,
    /// From the event to the arrival of its notice.
    pub(super) lags: Lags,
    /// Time of the last arrival, by the monotonic clock.
    pub(super) arrived: Duration,
}

impl Receiver {
    /// A service that takes notices and hands them to this receiver.
    pub(super) fn conduct(self: &Arc<Receiver>) -> Conduct {
        let receiver = Arc::clone(self);
        Conduct::answers(move |body| {
            let mut received = receiver.0.lock().unwrap_or_else(PoisonError::into_inner);
            received.take(&String::from_utf8_lossy(body), clock::realtime_ns());
            received.arrived = clock::monotonic();
            Bytes::from_static(b"{}")
        })
    }

    /// What has come so far.
    pub(super) fn received(&self) -> Received {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until so many notices have come, or none for a while.
    pub(super) fn wait_for(&self, notices: u64) {
        let (mut seen, mut since) = (0, clock::monotonic());
        loop {
            let now = self.received().notices;
            if now >= notices || clock::monotonic() > since + PATIENCE {
                return;
            }
            if now > seen {
                (seen, since) = (now, clock::monotonic());
            }
            clock::sleep(Duration::from_millis(20));
        }
    }
}

/// Longest wait for the next notice.
const PATIENCE: Duration = Duration::from_secs(10);

impl Received {
    /// Takes a request's body. Payloads of the bench contain no quotation marks.
    fn take(&mut self, body: &str, now_ns: u64) {
        self.requests += 1;
        for (at, name) in body.match_indices(SEQUENCE) {
            let notice = &body[at + name.len()..];
            let sequence = number(notice);
            if sequence <= self.last {
                self.again += 1;
                continue;
            }
            if self.last > 0 {
                self.missing += sequence - self.last - 1;
            }
            self.last = sequence;
            self.notices += 1;
            if let Some(at) = notice.find(TIME) {
                let happened_ns = number(&notice[at + TIME.len()..]) * 1_000_000;
                self.lags.record(now_ns.saturating_sub(happened_ns));
            }
        }
    }
}

const SEQUENCE: &str = "\"sequence\":";
const TIME: &str = "\"time_ms\":";

/// The number at the start of a text.
fn number(text: &str) -> u64 {
    let end = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_counted_by_their_numbers() {
        let notice = |number: u64| {
            format!("{{\"sequence\":{number},\"event\":\"published\",\"time_ms\":1000,\"node\":1}}")
        };
        let body = |numbers: &[u64]| {
            let all: Vec<String> = numbers.iter().map(|number| notice(*number)).collect();
            format!("{{\"receiver\":\"bench\",\"notices\":[{}]}}", all.join(","))
        };
        let mut received = Received::default();
        received.take(&body(&[4, 5]), 1_002_000_000);
        received.take(&body(&[5, 6, 9]), 1_004_000_000);
        let Received { notices, again, missing, requests, .. } = received;
        assert_eq!((notices, again, missing, requests), (4, 1, 2, 2));
        assert_eq!(received.lags.max_ms().map(f64::round), Some(4.0));
    }
}
