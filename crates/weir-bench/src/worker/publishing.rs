//! The schedule of publishing from connections: an open loop at a fixed rate, in which connections
//! take turns.

use std::time::Duration;

use weir_wire::hot::{Payload, Publish};

use crate::clock;
use crate::payload::Header;
use crate::protocol::{PublishPlan, PublishTally};

/// The messages to publish, and the progress.
#[derive(Debug)]
pub(super) struct Publishing {
    topic: String,
    /// Number of the worker's first connection, counted over all workers. Publishers are numbered
    /// like connections.
    first: u32,
    start: Duration,
    /// Messages a second from all publishing connections of the worker.
    rate: f64,
    /// Messages still to publish.
    count: u64,
    next: u64,
    size: usize,
    tally: PublishTally,
    text: String,
    frame: Vec<u8>,
}

impl Publishing {
    /// A schedule for those of the worker's `conns` connections whose number is below
    /// `plan.publishers`.
    pub(super) fn new(
        plan: &PublishPlan,
        topic: String,
        first: u32,
        conns: usize,
        now: Duration,
    ) -> Publishing {
        let here = (plan.publishers.saturating_sub(first) as usize).min(conns);
        Publishing {
            topic,
            first,
            start: now,
            rate: plan.rate * f64::from(u32::try_from(here).unwrap_or(u32::MAX)),
            count: u64::from(plan.count) * here as u64,
            next: 0,
            size: plan.size,
            tally: PublishTally { first, sent: vec![0; here], ..PublishTally::default() },
            text: String::new(),
            frame: Vec::new(),
        }
    }

    /// The time of the next message; `None` after the last.
    pub(super) fn poll_due(&self) -> Option<Duration> {
        let offset = Duration::from_secs_f64(crate::stats::real(self.next) / self.rate.max(1e-9));
        (self.next < self.count).then(|| self.start + offset)
    }

    /// The next connection to publish and its frame, if it is due now.
    pub(super) fn poll_frame(&mut self, now: Duration) -> Option<(usize, &[u8])> {
        let due = self.poll_due().filter(|due| *due <= now)?;
        let here = self.tally.sent.len() as u64;
        let index = usize::try_from(self.next % here).ok()?;
        self.next += 1;
        let late = u64::try_from((now - due).as_micros()).unwrap_or(u64::MAX);
        self.tally.late_max_us = self.tally.late_max_us.max(late);
        let seq = self.tally.sent[index];
        let stream = self.first + u32::try_from(index).unwrap_or(u32::MAX);
        Header { stream, seq, sent_ns: clock::realtime_ns() }.compose(self.size, &mut self.text);
        let payload = Payload::Text(&self.text);
        self.frame.clear();
        Publish { topic: &self.topic, payload, content_type: "", key: "", request: 0 }
            .encode_frame(&mut self.frame);
        Some((index, &self.frame))
    }

    /// The frame was sent, or not; then its number is used again.
    pub(super) fn handle_sent(&mut self, index: usize, sent: bool) {
        if sent {
            self.tally.sent[index] += 1;
        } else {
            self.tally.unsent += 1;
        }
    }

    /// The results, once all messages are published.
    pub(super) fn poll_tally(&mut self) -> Option<PublishTally> {
        (self.next == self.count).then(|| std::mem::take(&mut self.tally))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: PublishPlan = PublishPlan { publishers: 5, rate: 2.0, count: 2, size: 32 };

    fn published(publishing: &mut Publishing, now: Duration) -> Vec<(usize, u32, u32)> {
        let mut all = Vec::new();
        while let Some((index, frame)) = publishing.poll_frame(now) {
            let (body, _) = weir_wire::frame::decode(frame, usize::MAX).unwrap().unwrap();
            let publish = Publish::decode(body).unwrap();
            let header = Header::parse(publish.payload.as_bytes()).unwrap();
            all.push((index, header.stream, header.seq));
            publishing.handle_sent(index, true);
        }
        all
    }

    #[test]
    fn connections_take_turns_by_the_clock() {
        let start = Duration::from_secs(10);
        let mut publishing = Publishing::new(&PLAN, "t".to_owned(), 3, 10, start);
        let at = |millis| start + Duration::from_millis(millis);
        assert_eq!(published(&mut publishing, at(249)), [(0, 3, 0)]);
        assert_eq!(publishing.poll_due(), Some(at(250)));
        assert_eq!(published(&mut publishing, at(600)), [(1, 4, 0), (0, 3, 1)]);
        assert!(publishing.poll_tally().is_none());
        assert_eq!(published(&mut publishing, at(9000)), [(1, 4, 1)]);
        assert_eq!(publishing.poll_due(), None);
        let tally = publishing.poll_tally().unwrap();
        assert_eq!((tally.first, tally.sent, tally.unsent), (3, vec![2, 2], 0));
        assert!(tally.late_max_us >= 8_000_000);
    }

    #[test]
    fn a_number_that_was_not_sent_is_used_again_and_others_publish_nothing() {
        let mut publishing = Publishing::new(&PLAN, "t".to_owned(), 4, 10, Duration::ZERO);
        let late = Duration::from_secs(9);
        assert_eq!(publishing.poll_frame(late).map(|(index, _)| index), Some(0));
        publishing.handle_sent(0, false);
        assert_eq!(published(&mut publishing, late), [(0, 4, 0)]);
        assert_eq!(publishing.poll_tally().unwrap().unsent, 1);
        let mut nobody = Publishing::new(&PLAN, "t".to_owned(), 5, 10, Duration::ZERO);
        assert!(nobody.poll_frame(late).is_none() && nobody.poll_tally().is_some());
    }
}
