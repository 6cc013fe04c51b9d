//! How fast a connection may publish: a bucket that fills with time, kept as one point in time.

use std::time::Duration;

use weir_wire::{CloseReason, ErrorCode, hot};

use super::Shard;
use super::read::{Handled, REPLIES_BYTES_MAX, encode_error};
use crate::command::Front;
use crate::net::Net;
use crate::settings::ShardSettings;
use crate::table::{Entry, State};
use crate::time::Nanos;

/// No topic's name is longer, whatever `limits.topic_bytes_max` says: the most that it may be set to.
const NAME_BYTES_MAX: usize = 1024;

/// The rate of the settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PublishRate {
    per_second: u32,
    /// What one `Publish` takes from the bucket.
    each: Duration,
    /// What the bucket holds. With as much again of debt the connection ends.
    burst: Duration,
}

/// What the rate says to a `Publish`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Passed on; when it is, this is stored.
    Pass(Nanos),
    /// Answered with an error, and counted in `publish_due` all the same.
    Refuse(Nanos),
    /// The connection goes on in spite of a whole burst of refusals.
    End,
}

impl PublishRate {
    /// `None`: as fast as they like.
    pub(super) fn of(settings: &ShardSettings) -> Option<PublishRate> {
        let per_second = settings.publishes_per_second;
        let each = Duration::from_secs(1).checked_div(per_second)?;
        let burst = each.saturating_mul(settings.publish_burst.max(1));
        Some(PublishRate { per_second, each, burst })
    }

    /// Judges one more `Publish` at `now` of a connection whose bucket is full at `due`.
    fn judge(self, due: Nanos, now: Nanos) -> Verdict {
        let due = due.max(now).after(self.each);
        let taken = due.since(now);
        if taken <= self.burst {
            Verdict::Pass(due)
        } else if taken <= self.burst * 2 {
            Verdict::Refuse(due)
        } else {
            Verdict::End
        }
    }
}

impl<N: Net, F: Front> Shard<N, F> {
    /// Passes a `Publish` on, unless its connection publishes too fast.
    pub(super) fn handle_publish(&mut self, slot: u32, body: &[u8]) -> Handled {
        let Some(rate) = self.limits.publish else { return self.pass_on(slot, body) };
        if self.table[slot].publish_due == Entry::<N::Socket>::FREELY {
            return self.pass_on(slot, body);
        }
        match rate.judge(self.table[slot].publish_due, self.now) {
            Verdict::Pass(due) => {
                let handled = self.pass_on(slot, body);
                if matches!(handled, Handled::Yes) {
                    self.table[slot].publish_due = due;
                }
                handled
            }
            // That it comes all at once is our doing: it is refused, and neither owed nor a reason to close.
            Verdict::Refuse(_) | Verdict::End if self.table[slot].flags.read_late => {
                self.stats.publishes_rate_limited.add(1);
                self.refuse_publish(slot, body, rate.per_second)
            }
            Verdict::Refuse(due) => {
                self.stats.publishes_rate_limited.add(1);
                self.table[slot].publish_due = due;
                self.refuse_publish(slot, body, rate.per_second)
            }
            Verdict::End => {
                self.stats.publishes_rate_limited.add(1);
                self.send_replies(slot);
                self.close(slot, CloseReason::RateLimited);
                Handled::Closed
            }
        }
    }

    fn refuse_publish(&mut self, slot: u32, body: &[u8], per_second: u32) -> Handled {
        let publish = hot::Publish::decode(body);
        let (topic, request) = publish.map_or(("", 0), |publish| (publish.topic, publish.request));
        // What cannot be a name is not said back: it may be as long as a frame.
        let topic = if topic.len() > NAME_BYTES_MAX { "" } else { topic };
        let message = format!(
            "connection publishes faster than {per_second} messages a second, the limit of limits.publishes_per_second"
        );
        self.reply(slot, |out| encode_error(ErrorCode::RateLimited, topic, &message, request, out));
        if self.replies.len() >= REPLIES_BYTES_MAX {
            self.send_replies(slot);
        }
        if self.table[slot].state == State::Open { Handled::Yes } else { Handled::Closed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(publishes_per_second: u32, publish_burst: u32) -> Option<PublishRate> {
        PublishRate::of(&ShardSettings {
            publishes_per_second,
            publish_burst,
            ..ShardSettings::default()
        })
    }

    /// How many of `count` at once are passed and refused before the end, and when the bucket is full again.
    fn publish(rate: PublishRate, due: &mut Nanos, now: Nanos, count: usize) -> (usize, usize) {
        let (mut passed, mut refused) = (0, 0);
        for _ in 0..count {
            match rate.judge(*due, now) {
                Verdict::Pass(new) => (*due, passed) = (new, passed + 1),
                Verdict::Refuse(new) => (*due, refused) = (new, refused + 1),
                Verdict::End => break,
            }
        }
        (passed, refused)
    }

    #[test]
    fn a_burst_passes_and_the_next_is_refused() {
        let rate = rate(10, 5).expect("a rate is set");
        let (mut due, start) = (Nanos(0), Nanos(7_000_000_000));
        assert_eq!(publish(rate, &mut due, start, 100), (5, 5), "then it ends");
        let mut due = Nanos(0);
        assert_eq!(publish(rate, &mut due, start, 7), (5, 2));
        // What was refused is owed as well.
        let later = start.after(Duration::from_millis(200));
        assert_eq!(publish(rate, &mut due, later, 1), (0, 1));
        let later = start.after(Duration::from_millis(500));
        assert_eq!(publish(rate, &mut due, later, 3), (2, 1));
        let much_later = start.after(Duration::from_secs(60));
        assert_eq!(publish(rate, &mut due, much_later, 7), (5, 2));
    }

    #[test]
    fn who_keeps_to_the_rate_is_never_refused() {
        let rate = rate(100, 1).expect("a rate is set");
        let (mut due, mut now) = (Nanos(0), Nanos(1));
        for _ in 0..10_000 {
            assert_eq!(publish(rate, &mut due, now, 1), (1, 0));
            now = now.after(Duration::from_millis(10));
        }
    }

    #[test]
    fn without_a_rate_there_is_none() {
        assert_eq!(rate(0, 5), None);
        assert_eq!(rate(1, 0), rate(1, 1));
        assert!(rate(u32::MAX, u32::MAX).is_some());
    }
}
