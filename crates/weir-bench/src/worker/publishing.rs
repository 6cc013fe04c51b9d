//! The schedule of publishing from connections: an open loop at a fixed rate, in which connections
//! take turns.

use std::time::Duration;

use weir_wire::hot::{Payload, Publish};

use crate::clock;
use crate::payload::Header;
use crate::protocol::{PublishPlan, PublishTally};
use crate::stats::{is_in_share, real, whole};

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
    /// Indices of the connections that publish, and of those that ping.
    publishers: Vec<usize>,
    pinging: Vec<usize>,
    /// Pings a second, those that are left, and those that were sent.
    pings: f64,
    pings_left: u64,
    pinged: u64,
    size: usize,
    tally: PublishTally,
    text: String,
    frame: Vec<u8>,
}

impl Publishing {
    /// A schedule for those of the worker's connections whose number is below `plan.publishers`.
    ///
    /// `speaks` says of each connection whether it can send, and `numbers` how many numbers each has
    /// used up.
    pub(super) fn new(
        plan: &PublishPlan,
        topic: String,
        first: u32,
        (speaks, numbers): (Vec<bool>, Vec<u32>),
        now: Duration,
    ) -> Publishing {
        let here = (plan.publishers.saturating_sub(first) as usize).min(speaks.len());
        let speakers = |among: &[bool]| -> Vec<usize> {
            (0..).zip(among).filter(|(_, speaks)| **speaks).map(|(index, _)| index).collect()
        };
        let (mut publishers, pinging) = (speakers(&speaks[..here]), speakers(&speaks));
        let drops = |index: usize| {
            is_in_share(first + u32::try_from(index).unwrap_or(u32::MAX), plan.except)
        };
        publishers.retain(|index| !drops(*index));
        let mut sent = numbers;
        sent.resize(sent.len().max(here), 0);
        let count = u32::try_from(publishers.len()).unwrap_or(u32::MAX);
        let pings = if pinging.is_empty() { 0.0 } else { plan.pings };
        let length = f64::from(plan.count) / plan.rate.max(RATE_MIN);
        Publishing {
            topic,
            first,
            start: now,
            rate: plan.rate * f64::from(count),
            count: u64::from(plan.count) * u64::from(count),
            next: 0,
            publishers,
            pinging,
            pings,
            pings_left: whole(pings * length),
            pinged: 0,
            size: plan.size,
            tally: PublishTally { first, sent, ..PublishTally::default() },
            text: String::new(),
            frame: Vec::new(),
        }
    }

    /// The time of the next message or ping; `None` after the last.
    pub(super) fn poll_due(&self) -> Option<Duration> {
        let publish = (self.next < self.count).then(|| self.due(self.next, self.rate));
        let ping = (self.pings_left > 0).then(|| self.due(self.pinged, self.pings));
        publish.into_iter().chain(ping).min()
    }

    fn due(&self, number: u64, rate: f64) -> Duration {
        self.start + Duration::from_secs_f64(real(number) / rate.max(RATE_MIN))
    }

    /// The next connection to publish and its frame, if it is due now.
    pub(super) fn poll_frame(&mut self, now: Duration) -> Option<(usize, &[u8])> {
        let due = (self.next < self.count).then(|| self.due(self.next, self.rate))?;
        if due > now {
            return None;
        }
        let index = turn(&self.publishers, self.next)?;
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

    /// The next connection to ping, if it is due now.
    pub(super) fn poll_ping(&mut self, now: Duration) -> Option<usize> {
        if self.pings_left == 0 || self.due(self.pinged, self.pings) > now {
            return None;
        }
        self.pings_left -= 1;
        self.pinged += 1;
        turn(&self.pinging, self.pinged - 1)
    }

    /// The frame was sent, or not; then its number is used again.
    pub(super) fn handle_sent(&mut self, index: usize, sent: bool) {
        if sent {
            self.tally.sent[index] += 1;
        } else {
            self.tally.unsent += 1;
        }
    }

    /// The results, once all messages are published and all pings sent.
    pub(super) fn poll_tally(&mut self) -> Option<PublishTally> {
        (self.next == self.count && self.pings_left == 0).then(|| std::mem::take(&mut self.tally))
    }
}

/// Whose turn it is.
fn turn(among: &[usize], number: u64) -> Option<usize> {
    let count = u64::try_from(among.len()).ok().filter(|count| *count > 0)?;
    among.get(usize::try_from(number % count).ok()?).copied()
}

/// A rate by which can be divided.
const RATE_MIN: f64 = 1e-9;

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: PublishPlan = PublishPlan {
        topic: String::new(),
        publishers: 5,
        rate: 2.0,
        count: 2,
        except: 0.0,
        size: 32,
        pings: 0.0,
    };

    fn schedule(plan: &PublishPlan, first: u32, speaks: &[bool], now: Duration) -> Publishing {
        Publishing::new(plan, "t".to_owned(), first, (speaks.to_vec(), Vec::new()), now)
    }

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
        let mut publishing = schedule(&PLAN, 3, &[true; 10], start);
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
        let mut publishing = schedule(&PLAN, 4, &[true; 10], Duration::ZERO);
        let late = Duration::from_secs(9);
        assert_eq!(publishing.poll_frame(late).map(|(index, _)| index), Some(0));
        publishing.handle_sent(0, false);
        assert_eq!(published(&mut publishing, late), [(0, 4, 0)]);
        assert_eq!(publishing.poll_tally().unwrap().unsent, 1);
        let mut nobody = schedule(&PLAN, 5, &[true; 10], Duration::ZERO);
        assert!(nobody.poll_frame(late).is_none() && nobody.poll_tally().is_some());
    }

    #[test]
    fn numbers_go_on_and_who_cannot_send_is_left_out() {
        let plan = PublishPlan { publishers: 3, count: 1, pings: 3.0, ..PLAN };
        let (speaks, late) = (vec![true, false, true, true], Duration::from_secs(9));
        let mut publishing =
            Publishing::new(&plan, "t".to_owned(), 0, (speaks, vec![7, 0, 9]), Duration::ZERO);
        assert_eq!(published(&mut publishing, late), [(0, 0, 7), (2, 2, 9)]);
        assert!(publishing.poll_tally().is_none(), "pings are left");
        // Half a second of three pings a second, rounded.
        assert_eq!([(); 3].map(|()| publishing.poll_ping(late)), [Some(0), Some(2), None]);
        assert_eq!(publishing.poll_tally().unwrap().sent, [8, 0, 10]);
        let plan = PublishPlan { except: 0.5, ..PLAN };
        let mut publishing = schedule(&plan, 0, &[true; 4], Duration::ZERO);
        let who: Vec<usize> = published(&mut publishing, late).iter().map(|it| it.0).collect();
        assert_eq!(who, [0, 2, 0, 2], "who drops at times does not publish");
    }
}
