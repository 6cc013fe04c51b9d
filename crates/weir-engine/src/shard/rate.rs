//! The rates at which a connection may send. It has two token buckets, each kept as one point in
//! time.
//!
//! `Publish` has its own bucket. A `Publish` beyond its rate is answered with an error. All other
//! work that a device can cause costs the other bucket: any other frame, a refused `Publish`, a
//! control frame of a WebSocket, a change of TLS keys, records and segments that are almost empty.
//! A connection that owes more than its burst is not read until it owes less. Its peer slows down
//! and loses nothing.

use std::time::Duration;

use weir_wire::format::Format;
use weir_wire::{CloseReason, ErrorCode, hot};

use super::Shard;
use super::read::{Handled, encode_error};
use super::tls_table::Effort;
use crate::command::Front;
use crate::net::Net;
use crate::settings::ShardSettings;
use crate::slot::Slot;
use crate::table::{Entry, Reading, State};
use crate::time::{Nanos, Tick};

/// The longest topic name: the upper end of the range of `limits.topic_bytes_max`.
const NAME_BYTES_MAX: usize = 1024;

/// A rate and its burst.
///
/// Shape: time is divided into intervals, one for each token. A connection's debt is kept as the
/// number of the interval at whose end it owes nothing, on a ring of 32 bits. At 100 a second, once
/// around the ring is 497 days. Each deadline of the connection moves a number that lies in the
/// past to now, so no such number counts as one in the future.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rate {
    per_second: u32,
    interval_nanos: u64,
    /// The size of a bucket, in intervals.
    burst: u32,
}

/// The verdict of the rate on a `Publish`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Pass it on, and then store this value.
    Pass(u32),
    /// Answer it with an error. It counts in `publish_due` all the same.
    Refuse(u32),
    /// End the connection, which continued in spite of a whole burst of refusals.
    End,
}

/// A connection ends when it owes this many bursts beyond the first one. No client sends that much
/// by mistake.
const BURSTS_OWED_MAX: u32 = 4;

/// The most intervals that a connection owes. The ring has four times as many.
const OWED_MAX: u32 = 1 << 30;
const BURST_MAX: u32 = OWED_MAX / 8;

/// A read of fewer bytes that completes no frame is work for nothing. TCP segments are larger,
/// except the last one of a frame.
pub(super) const SMALL_READ_BYTES: usize = 512;
/// This many small reads cost as much as a frame. Clients that write the length of a frame by
/// itself cause one for each frame.
const SMALL_READS_AS_FRAME: u32 = 16;
/// Where the shard drops all input, this many bytes cost as much as a frame.
const DROPPED_BYTES_AS_FRAME: usize = 4096;
/// This many TLS records for one frame are normal.
const RECORDS_OF_FRAME: u64 = 4;
/// One TLS record for this many bytes is normal too.
const BYTES_OF_RECORD: usize = 1024;

impl Rate {
    /// The rate for publishing; `None`: no limit.
    pub(super) fn of_publishes(settings: &ShardSettings) -> Option<Rate> {
        Self::of(settings.publishes_per_second, settings.publish_burst)
    }

    /// The rate for everything else. A device that reconnects subscribes to all its topics at once,
    /// and may have left as many before.
    pub(super) fn of_frames(settings: &ShardSettings) -> Option<Rate> {
        let topics = u32::try_from(settings.topics_per_connection_max).unwrap_or(u32::MAX);
        let burst = settings.frame_burst.max(topics.saturating_mul(2));
        Self::of(settings.frames_per_second, burst)
    }

    fn of(per_second: u32, burst: u32) -> Option<Rate> {
        let interval_nanos = NANOS_PER_SECOND.checked_div(per_second.into())?.max(1);
        Some(Rate { per_second, interval_nanos, burst: burst.clamp(1, BURST_MAX) })
    }

    /// The interval of `now`.
    #[expect(clippy::cast_possible_truncation, reason = "numbers go around a ring")]
    fn interval(self, now: Nanos) -> u32 {
        (now.0 / self.interval_nanos) as u32
    }

    /// The number of intervals from `now` until a bucket is full.
    fn owed(self, due: u32, now: Nanos) -> u32 {
        let ahead = due.wrapping_sub(self.interval(now));
        if ahead > OWED_MAX { 0 } else { ahead }
    }

    /// The interval in which a bucket is full that lacks `owed` intervals.
    fn due(self, owed: u32, now: Nanos) -> u32 {
        let due = self.interval(now).wrapping_add(owed.min(OWED_MAX));
        // This gives one token away, once around the ring.
        if due == Entry::<()>::FREELY { due - 1 } else { due }
    }

    /// Judges a further `Publish` at `now` of a connection whose bucket is full at `due`.
    fn judge(self, due: u32, now: Nanos) -> Verdict {
        let owed = self.owed(due, now) + 1;
        if owed <= self.burst {
            Verdict::Pass(self.due(owed, now))
        } else if owed <= self.burst * 2 {
            Verdict::Refuse(self.due(owed, now))
        } else {
            Verdict::End
        }
    }

    /// The time until the connection owes no more than a burst.
    fn pause(self, owed: u32) -> Duration {
        let intervals = u64::from(owed.saturating_sub(self.burst));
        Duration::from_nanos(self.interval_nanos.saturating_mul(intervals))
    }
}

impl<N: Net, F: Front> Shard<N, F> {
    /// Fills the buckets of a new connection.
    pub(super) fn fill_buckets(&mut self, slot: Slot) {
        let now = self.now;
        let entry = &mut self.table[slot];
        if let Some(rate) = self.limits.publish
            && entry.is_rate_limited()
        {
            entry.publish_due = rate.due(0, now);
        }
        if let Some(rate) = self.limits.frames {
            entry.frames_due = rate.due(0, now);
        }
    }

    /// Moves full buckets to now, so that time does not overtake them on the ring.
    pub(super) fn renew_buckets(&mut self, slot: Slot) {
        let now = self.now;
        let entry = &mut self.table[slot];
        if let Some(rate) = self.limits.publish
            && entry.is_rate_limited()
        {
            entry.publish_due = rate.due(rate.owed(entry.publish_due, now), now);
        }
        if let Some(rate) = self.limits.frames {
            entry.frames_due = rate.due(rate.owed(entry.frames_due, now), now);
        }
    }

    /// Charges a connection for as much work as `count` frames. Far beyond its burst the connection
    /// ends, unless its bytes had to wait for us.
    pub(super) fn charge_frames(&mut self, slot: Slot, count: u32) {
        let Some(rate) = self.limits.frames else { return };
        let now = self.now;
        let entry = &mut self.table[slot];
        if count == 0 || entry.state != State::Open || !entry.is_rate_limited() {
            return;
        }
        let owed = rate.owed(entry.frames_due, now).saturating_add(count).min(OWED_MAX);
        entry.frames_due = rate.due(owed, now);
        if owed / rate.burst > BURSTS_OWED_MAX && entry.flags.reading == Reading::Current {
            self.send_replies(slot);
            self.close(slot, CloseReason::RateLimited);
        }
    }

    /// Whether the shard must not read from a connection now, because it owes more than a burst.
    pub(super) fn pauses_reading(&mut self, slot: Slot) -> bool {
        let (due, now) = (self.reading_due(slot), self.tick());
        let entry = &mut self.table[slot];
        if due > now {
            if entry.flags.reading != Reading::Paused {
                entry.flags.reading = Reading::Paused;
                self.stats.reads_rate_limited.add(1);
            }
            self.arm(slot, due);
            return true;
        }
        if entry.flags.reading == Reading::Paused {
            entry.flags.reading = Reading::Late;
            // The shard reads now what the connection sent meanwhile; a begun frame could not
            // continue.
            entry.heard_at = now;
            let record = self.tls.get_mut(entry.tls).and_then(|tls| tls.partial.as_mut());
            for block in entry.partial.iter_mut().chain(record) {
                block.since = now;
            }
        }
        false
    }

    /// When the shard reads again from a connection that owes more than a burst; at once from any
    /// other.
    pub(super) fn reading_due(&self, slot: Slot) -> Tick {
        let Some(rate) = self.limits.frames else { return Tick(0) };
        let pause = rate.pause(rate.owed(self.table[slot].frames_due, self.now));
        if pause.is_zero() {
            return Tick(0);
        }
        Tick::at(self.started, self.now.after(pause)).plus(1)
    }

    /// Charges a connection for received bytes, by their result: `frames` whole frames.
    pub(super) fn charge_read(&mut self, slot: Slot, bytes: usize, frames: u64) {
        if self.format(slot) == Format::Sse {
            let count = u32::try_from(bytes / DROPPED_BYTES_AS_FRAME).unwrap_or(u32::MAX);
            return self.charge_frames(slot, count.saturating_add(1));
        }
        if bytes >= SMALL_READ_BYTES || frames > 0 {
            return;
        }
        // One count for all connections: a connection that sends more small reads pays more often.
        self.small_reads += 1;
        if self.small_reads >= SMALL_READS_AS_FRAME {
            self.small_reads = 0;
            self.charge_frames(slot, 1);
        }
    }

    /// Charges a connection for changes of keys, and for almost empty TLS records, by their result.
    pub(super) fn charge_records(
        &mut self,
        slot: Slot,
        effort: Effort,
        plaintext: usize,
        frames: u64,
    ) {
        let usual = frames * RECORDS_OF_FRAME + (plaintext / BYTES_OF_RECORD) as u64 + 1;
        let idle = u32::try_from(effort.records.saturating_sub(usual)).unwrap_or(u32::MAX);
        self.charge_frames(slot, idle.saturating_add(effort.key_changes));
    }

    /// Passes a `Publish` on, unless its connection publishes too fast.
    pub(super) fn handle_publish(&mut self, slot: Slot, body: &[u8]) -> Handled {
        let Some(rate) = self.limits.publish else { return self.pass_on(slot, body) };
        if !self.table[slot].is_rate_limited() {
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
            Verdict::Refuse(_) | Verdict::End if self.owes_answers() => Handled::NoRoom,
            // These came all at once because of us. They are refused, but neither owed nor a reason
            // to close.
            Verdict::Refuse(_) | Verdict::End
                if self.table[slot].flags.reading != Reading::Current =>
            {
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

    fn refuse_publish(&mut self, slot: Slot, body: &[u8], per_second: u32) -> Handled {
        let publish = hot::Publish::decode(body);
        let (topic, request) = publish.map_or(("", 0), |publish| (publish.topic, publish.request));
        // The answer does not repeat a text that cannot be a name, because it may be as long as a
        // frame.
        let topic = if topic.len() > NAME_BYTES_MAX { "" } else { topic };
        let message = format!(
            "connection publishes faster than {per_second} messages a second, the limit of limits.publishes_per_second"
        );
        self.reply(slot, |out| encode_error(ErrorCode::RateLimited, topic, &message, request, out));
        self.charge_frames(slot, 1);
        if self.table[slot].state == State::Open { Handled::Yes } else { Handled::Closed }
    }
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(per_second: u32, burst: u32) -> Rate {
        Rate::of(per_second, burst).expect("a rate is set")
    }

    /// How many of `count` at once are passed and refused before the end, and when the bucket is
    /// full again.
    fn publish(rate: Rate, due: &mut u32, now: Nanos, count: usize) -> (usize, usize) {
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
        let rate = rate(10, 5);
        let start = Nanos(7_000_000_000);
        let mut due = rate.due(0, start);
        assert_eq!(publish(rate, &mut due, start, 100), (5, 5), "then it ends");
        let mut due = rate.due(0, start);
        assert_eq!(publish(rate, &mut due, start, 7), (5, 2));
        // Refused messages are owed as well.
        let later = start.after(Duration::from_millis(200));
        assert_eq!(publish(rate, &mut due, later, 1), (0, 1));
        let later = start.after(Duration::from_millis(500));
        assert_eq!(publish(rate, &mut due, later, 3), (2, 1));
        let much_later = start.after(Duration::from_secs(60));
        assert_eq!(publish(rate, &mut due, much_later, 7), (5, 2));
    }

    #[test]
    fn whoever_keeps_to_the_rate_is_never_refused() {
        for (per_second, nanos) in [(100, 10_000_000), (7, 142_857_143), (1_000_000, 1000)] {
            let rate = rate(per_second, 1);
            // Also across the end of the ring.
            let mut now = Nanos(rate.interval_nanos * (u64::from(u32::MAX) - 5000) + 1);
            let mut due = rate.due(0, now);
            for _ in 0..10_000 {
                assert_eq!(publish(rate, &mut due, now, 1), (1, 0));
                now = Nanos(now.0 + nanos);
            }
        }
    }

    #[test]
    fn a_pause_lasts_until_no_more_than_a_burst_is_owed() {
        let rate = rate(100, 10);
        let now = Nanos(5_000_000_000);
        assert_eq!(rate.pause(rate.owed(rate.due(10, now), now)), Duration::ZERO);
        assert_eq!(rate.pause(rate.owed(rate.due(25, now), now)), Duration::from_millis(150));
        let later = now.after(Duration::from_millis(150));
        assert_eq!(rate.owed(rate.due(25, now), later), 10);
        assert_eq!(rate.owed(rate.due(u32::MAX, now), now), OWED_MAX);
    }

    #[test]
    fn without_a_rate_there_is_none() {
        assert_eq!(Rate::of(0, 5), None);
        assert_eq!(Rate::of(1, 0), Rate::of(1, 1));
        assert!(Rate::of(u32::MAX, u32::MAX).is_some());
        let settings = |frame_burst, topics_per_connection_max| ShardSettings {
            frames_per_second: 1,
            frame_burst,
            topics_per_connection_max,
            ..ShardSettings::default()
        };
        let burst = |settings| Rate::of_frames(&settings).map(|rate| rate.burst);
        assert_eq!([burst(settings(10, 2)), burst(settings(10, 64))], [Some(10), Some(128)]);
    }
}
