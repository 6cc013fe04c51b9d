//! Small numbers by which gateway and shards name connections, topics and devices.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use weir_wire::format::Format;

use crate::slot::Slot;

/// A connection of one process, never used twice.
///
/// Shape: shard (8 bits), generation of the slot (32), slot (24); 8 bytes. Printed as 16 hexadecimal digits.
/// An id whose generation has passed is *stale*. If a command names one, the shard drops and counts
/// the command, or reports it back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(u64);

impl ConnId {
    /// Connections that one shard can number: 16,777,216.
    pub const SLOTS_MAX: usize = 1 << 24;

    pub(crate) fn new(shard: u8, slot: Slot, generation: u32) -> Self {
        debug_assert!((slot.index() as usize) < Self::SLOTS_MAX, "the table refuses more slots");
        Self(u64::from(shard) << 56 | u64::from(generation) << 24 | u64::from(slot.index()))
    }

    /// Index of the shard that owns the connection.
    pub const fn shard(self) -> usize {
        (self.0 >> 56) as usize
    }

    pub(crate) const fn slot(self) -> Slot {
        Slot::at((self.0 & 0xff_ffff) as u32)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the middle 32 bits are meant")]
    pub(crate) const fn generation(self) -> u32 {
        (self.0 >> 24) as u32
    }

    /// The id as a number, as in `Welcome` and `Push`.
    pub const fn to_u64(self) -> u64 {
        self.0
    }

    /// The id with this number. It may name no connection.
    pub const fn from_u64(number: u64) -> Self {
        Self(number)
    }
}

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}g{}", self.shard(), self.slot(), self.generation())
    }
}

impl FromStr for ConnId {
    type Err = ParseIntError;

    fn from_str(digits: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(digits, 16).map(Self)
    }
}

/// A topic by number. Numbers are dense. A number is used again once every shard has forgotten its
/// topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicId(pub u32);

impl TopicId {
    /// No topic.
    pub(crate) const NONE: TopicId = TopicId(u32::MAX);
}

/// The front's handle of a device record; the shard only gives it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceRef(pub u32);

/// The front's note of a connection's identity and format. The shard gives it back unchanged, and
/// uses the format.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The front's number for its source address.
    pub source: u32,
    /// The row number of the token's rights.
    pub grant: u16,
    /// The format that the connection uses.
    pub format: Format,
}

weir_wire::named_enum! {
    /// The priority of a connection, or of a topic's messages. It is strict: the higher one always
    /// goes first.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
    #[repr(u8)]
    pub enum Priority {
        /// Before all others. Meant for few connections and topics.
        High = "high",
        /// The default.
        #[default]
        Normal = "normal",
        /// After all others.
        Low = "low",
    }
}

impl Priority {
    /// Number of priorities.
    pub const COUNT: usize = Self::ALL.len();

    /// Position in [`Priority::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

weir_wire::named_enum! {
    /// What carries the frames of a connection.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    #[repr(u8)]
    pub enum Transport {
        /// TCP alone: the frames are the stream.
        Tcp = "tcp",
        /// TLS records.
        Tls = "tls",
    }
}

impl Transport {
    /// Number of transports.
    pub const COUNT: usize = Self::ALL.len();

    /// Position in [`Transport::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

weir_wire::named_enum! {
    /// A topic's policy for a connection that is too slow.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub enum SlowPolicy {
        /// Queue them. A connection that stays above the high watermark for `stall_timeout` is
        /// closed.
        #[default]
        Close = "close",
        /// Skip and count them while the connection is above the high watermark: the offsets show a
        /// gap. They are skipped too while it lags behind a conflating topic and more waits than a
        /// begun message, so that both topics have turns.
        Drop = "drop",
        /// Keep only a position while anything waits for the connection. It gets the newest message
        /// of each key as soon as its socket takes bytes. It is closed when the socket takes
        /// nothing for `stall_timeout`.
        Conflate = "conflate",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_print_come_back() {
        let id = ConnId::new(3, Slot::at(0xab_cdef), 0xdead_beef);
        assert_eq!((id.shard(), id.slot(), id.generation()), (3, Slot::at(0xab_cdef), 0xdead_beef));
        assert_eq!(id.to_string().parse::<ConnId>(), Ok(id));
        assert_eq!(ConnId::from_u64(id.to_u64()), id);
    }
}
