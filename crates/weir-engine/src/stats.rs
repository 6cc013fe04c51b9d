//! The counters of a shard. Only the shard writes them; every thread may read them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use weir_wire::CloseReason;
use weir_wire::format::Format;

use crate::id::{Priority, Transport};
use crate::tls::Alert;

/// A number that one thread writes and others read.
///
/// Cost: a load and a store, without a locked instruction. A reader may see the new value a moment
/// late.
#[derive(Debug, Default)]
pub struct Cell(AtomicU64);

impl Cell {
    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, count: u64) {
        self.set(self.get().wrapping_add(count));
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn raise(&self, value: u64) {
        if value > self.get() {
            self.set(value);
        }
    }
}

/// A number of connections. Each connection counts for its own transport.
#[derive(Debug, Default)]
pub struct ConnectionLevel([Cell; Transport::COUNT]);

impl ConnectionLevel {
    /// The connections of all transports.
    pub fn get(&self) -> u64 {
        self.0.iter().map(Cell::get).sum()
    }

    /// The connections of one transport.
    pub fn of(&self, transport: Transport) -> &Cell {
        &self.0[transport.index()]
    }

    pub(crate) fn enter(&self, transport: Transport) {
        self.of(transport).add(1);
    }

    pub(crate) fn leave(&self, transport: Transport) {
        let cell = self.of(transport);
        cell.set(cell.get() - 1);
    }
}

/// A histogram of durations, in buckets that double.
///
/// Shape: bucket `i` counts durations of at most `LEAST × 2^i`; the last one takes everything longer.
#[derive(Debug, Default)]
pub struct Durations {
    buckets: [Cell; Durations::BUCKETS],
    sum_nanos: Cell,
    max_nanos: Cell,
}

impl Durations {
    /// Buckets: from 16 µs to 134 s, and one above.
    pub const BUCKETS: usize = 25;
    /// Upper bound of the first bucket.
    pub const LEAST: Duration = Duration::from_nanos(1 << LEAST_BITS);

    /// Upper bound of a bucket; `None` for the last one, which has none.
    pub fn bound(index: usize) -> Option<Duration> {
        (index + 1 < Self::BUCKETS).then(|| Self::LEAST * (1 << index))
    }

    /// The counts of the buckets, not cumulated.
    pub fn counts(&self) -> [u64; Self::BUCKETS] {
        std::array::from_fn(|index| self.buckets[index].get())
    }

    /// Sum of all durations.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_nanos.get())
    }

    /// The longest duration.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_nanos.get())
    }

    pub(crate) fn record(&self, duration: Duration, times: u64) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bits = u64::BITS - nanos.saturating_sub(1).leading_zeros();
        let index = (bits.saturating_sub(LEAST_BITS) as usize).min(Self::BUCKETS - 1);
        self.buckets[index].add(times);
        self.sum_nanos.add(nanos.wrapping_mul(times));
        self.max_nanos.raise(nanos);
    }
}

const LEAST_BITS: u32 = 14;

weir_wire::named_enum! {
    /// Why an accepted item was not sent.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    #[repr(u8)]
    pub enum DropRule {
        /// The connection was closed while it waited.
        Closed = "closed",
        /// The command named a connection that had gone.
        Gone = "gone",
        /// The connection was above the high watermark, and its topic's policy is to drop.
        Slow = "slow",
        /// A newer message of its key replaced it before it was sent, or there were more keys than
        /// are kept. It counts once in a shard, however many connections lag, even if one of them
        /// had got it already.
        Conflated = "conflated",
        /// Its time to live had passed before its first byte was sent.
        Expired = "expired",
    }
}

impl Alert {
    /// All alerts that we send, in the order of [`ShardStats::tls_alerts_sent`].
    pub const ALL: [Alert; 8] = [
        Alert::CloseNotify,
        Alert::UnexpectedMessage,
        Alert::BadRecordMac,
        Alert::RecordOverflow,
        Alert::DecodeError,
        Alert::IllegalParameter,
        Alert::InternalError,
        Alert::NoRenegotiation,
    ];

    /// The alert as a metric label.
    pub const fn name(self) -> &'static str {
        match self {
            Alert::CloseNotify => "close_notify",
            Alert::UnexpectedMessage => "unexpected_message",
            Alert::BadRecordMac => "bad_record_mac",
            Alert::RecordOverflow => "record_overflow",
            Alert::DecodeError => "decode_error",
            Alert::IllegalParameter => "illegal_parameter",
            Alert::InternalError => "internal_error",
            Alert::NoRenegotiation => "no_renegotiation",
        }
    }

    /// Position in [`Alert::ALL`].
    pub(crate) const fn index(self) -> usize {
        match self {
            Alert::CloseNotify => 0,
            Alert::UnexpectedMessage => 1,
            Alert::BadRecordMac => 2,
            Alert::RecordOverflow => 3,
            Alert::DecodeError => 4,
            Alert::IllegalParameter => 5,
            Alert::InternalError => 6,
            Alert::NoRenegotiation => 7,
        }
    }
}

/// The counters of one shard. Totals never fall. Levels are as of the end of its last turn.
#[derive(Debug, Default)]
pub struct ShardStats {
    /// Level: connections that are open.
    pub connections: ConnectionLevel,
    /// Level: connections that are open, by [`Format`].
    pub formats: [Cell; Format::COUNT],
    /// Level: closed connections whose socket still flushes or waits for the peer's end.
    pub lingering: ConnectionLevel,
    /// Level: connections above the high watermark.
    pub stalled: Cell,
    /// Level: table entries in use, including lingering and unreported connections.
    pub table_entries: Cell,
    /// Level: descriptors in the shard's own table; 0 if it has none.
    pub descriptors: Cell,
    /// Level: topics with a list of members.
    pub topics: Cell,
    /// Level: memberships.
    pub memberships: Cell,
    /// Level: bytes held for outboxes, partial frames and the positions of readers, without the shared messages.
    pub queued_bytes: Cell,
    /// Level: items waiting in outboxes.
    pub queued_items: Cell,
    /// Level: fan-outs begun and not ended.
    pub fanouts: Cell,
    /// Level: connections that the shard does not read from because the front has no room for
    /// reports.
    pub read_paused: Cell,
    /// Slots of the table that are not used again, as an id has no room for another generation.
    pub slots_retired: Cell,
    /// Connections adopted.
    pub adopted: Cell,
    /// Sockets that the kernel closed on their way, as the shard's table had no free descriptor.
    pub passage_lost: Cell,
    /// Messages whose last byte the kernel took: one a connection.
    pub delivered: Cell,
    /// Bytes that the kernel took.
    pub sent_bytes: Cell,
    /// Bytes read.
    pub received_bytes: Cell,
    /// Whole frames read.
    pub received_frames: Cell,
    /// `Ping`s answered.
    pub pings: Cell,
    /// Signs of life sent: pings to silent WebSockets, comments to readers of events.
    pub beats: Cell,
    /// Shared messages that this shard was the first to encode in a [`Format`].
    pub encoded: [Cell; Format::COUNT],
    /// Sends that the kernel took only in part or not at all.
    pub sends_refused: Cell,
    /// Subscriptions refused because the connection was in `topics_per_connection_max` topics.
    pub subscriptions_refused: Cell,
    /// Refused `Publish`es that came faster than `publishes_per_second`.
    pub publishes_rate_limited: Cell,
    /// Pauses in reading because a connection sent faster than `frames_per_second`.
    pub reads_rate_limited: Cell,
    /// Connections that held the most, and ended because waiting bytes had no room.
    pub cut: Cell,
    /// Items dropped, by [`DropRule`].
    pub dropped: [Cell; DropRule::ALL.len()],
    /// TLS records sealed. Records that TLS itself sends in front of data do not count separately.
    pub tls_records_sealed: Cell,
    /// Changes of TLS keys, of either direction.
    pub tls_key_changes: Cell,
    /// Alerts sent, in the order of [`Alert::ALL`].
    pub tls_alerts_sent: [Cell; Alert::ALL.len()],
    /// Fatal alerts received.
    pub tls_alerts_received: Cell,
    /// Connections closed, by [`CloseReason`].
    pub closed: [Cell; CloseReason::COUNT],
    /// Bytes that the shard's thread has allocated so far, if [`ShardSettings::allocated_bytes`] is
    /// set.
    ///
    /// [`ShardSettings::allocated_bytes`]: crate::ShardSettings::allocated_bytes
    pub allocated_bytes: Cell,
    /// Turns of the loop.
    pub turns: Cell,
    /// Length of a turn, waiting not counted.
    pub turn: Durations,
    /// From a message's acceptance to its send, by [`Priority`] of the connection. One value for
    /// each send batch, weighted by its sends.
    pub lag: [Durations; Priority::COUNT],
    /// From a fan-out's first send to its last.
    pub fanout: Durations,
    /// From the crossing of the high watermark to the return below the low one.
    pub stall_recovered: Durations,
    /// From the crossing of the high watermark to the close.
    pub stall_closed: Durations,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_stand_where_their_index_says() {
        for (index, alert) in Alert::ALL.into_iter().enumerate() {
            assert_eq!(alert.index(), index, "{}", alert.name());
        }
    }

    #[test]
    fn a_duration_falls_into_the_first_bucket_that_holds_it() {
        let durations = Durations::default();
        durations.record(Duration::ZERO, 1);
        durations.record(Durations::LEAST, 1);
        durations.record(Durations::LEAST + Duration::from_nanos(1), 2);
        durations.record(Duration::from_secs(1000), 1);
        let counts = durations.counts();
        assert_eq!((counts[0], counts[1], counts[Durations::BUCKETS - 1]), (2, 2, 1));
        assert_eq!(durations.max(), Duration::from_secs(1000));
        assert_eq!(Durations::bound(1), Some(Durations::LEAST * 2));
        assert_eq!(Durations::bound(Durations::BUCKETS - 1), None);
    }
}
