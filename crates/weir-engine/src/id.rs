//! Small numbers by which gateway and shards name connections, topics and devices.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};
use std::num::ParseIntError;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use weir_wire::format::Format;

use crate::slot::Slot;

/// A connection of a cluster, never used twice while its node keeps its number.
///
/// Shape: number of the node (10 bits, from the top), shard (8), slot (22), generation of the slot (24); 8 bytes.
/// Printed as 16 hexadecimal digits.
/// An id whose generation has passed is *stale*, and so is one with another node's number. A command that names it is
/// dropped and counted, or reported back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(u64);

impl ConnId {
    /// Connections that one shard can number: 4,194,304.
    pub const SLOTS_MAX: usize = 1 << SLOT_BITS;

    /// Nodes that one cluster can number, 0 included: 1,024.
    pub const NODES_MAX: u16 = 1 << NODE_BITS;

    /// Connections that a slot can number one after the other, counted from 1: 16,777,215.
    pub(crate) const GENERATION_MAX: u32 = (1 << GENERATION_BITS) - 1;

    pub(crate) fn new(node: u16, shard: u8, slot: Slot, generation: u32) -> Self {
        debug_assert!(node < Self::NODES_MAX, "a node's number is checked where it is set");
        debug_assert!((slot.index() as usize) < Self::SLOTS_MAX, "the table refuses more slots");
        debug_assert!(generation <= Self::GENERATION_MAX, "the slot is used no more");
        let place = u64::from(shard) << SHARD_AT | u64::from(slot.index()) << SLOT_AT;
        Self(u64::from(node) << NODE_AT | place | u64::from(generation))
    }

    /// The number that the node had in its cluster when the connection was adopted; 0 without a cluster.
    pub const fn node(self) -> u16 {
        (self.0 >> NODE_AT) as u16
    }

    /// Index of the shard that owns the connection, at its node.
    pub const fn shard(self) -> usize {
        (self.0 >> SHARD_AT) as usize & ((1 << SHARD_BITS) - 1)
    }

    pub(crate) const fn slot(self) -> Slot {
        Slot::at((self.0 >> SLOT_AT & ((1 << SLOT_BITS) - 1)) as u32)
    }

    pub(crate) const fn generation(self) -> u32 {
        (self.0 & ((1 << GENERATION_BITS) - 1)) as u32
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

const GENERATION_BITS: u32 = 24;
const SLOT_BITS: u32 = 22;
const SHARD_BITS: u32 = 8;
const NODE_BITS: u32 = 10;

const SLOT_AT: u32 = GENERATION_BITS;
const SHARD_AT: u32 = SLOT_AT + SLOT_BITS;
const NODE_AT: u32 = SHARD_AT + SHARD_BITS;
const _: () = assert!(NODE_AT + NODE_BITS == u64::BITS);

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.node() != 0 {
            write!(f, "{}:", self.node())?;
        }
        write!(f, "{}.{}g{}", self.shard(), self.slot(), self.generation())
    }
}

impl FromStr for ConnId {
    type Err = ParseIntError;

    fn from_str(digits: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(digits, 16).map(Self)
    }
}

/// The number of this node in its cluster, which can change while shards run. Clones share it.
///
/// Shape: below [`ConnId::NODES_MAX`]; 0 as long as it belongs to no cluster. The ids of new connections carry it. Those
/// that exist keep the number that they were adopted under.
#[derive(Debug, Clone, Default)]
pub struct OwnNode(Arc<AtomicU16>);

impl OwnNode {
    /// The number.
    pub fn number(&self) -> u16 {
        self.0.load(Ordering::Relaxed)
    }

    /// Changes the number for all clones; `false`: no id has room for it, and nothing has changed.
    #[must_use]
    pub fn renumber(&self, number: u16) -> bool {
        let has_room = number < ConnId::NODES_MAX;
        if has_room {
            self.0.store(number, Ordering::Relaxed);
        }
        has_room
    }
}

/// A topic by number. Numbers are dense, and used again once every shard has forgotten the topic.
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
///
/// Shape: 8 bytes, as an entry has no room for more. The format and the number of the client
/// program share two of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The front's number for its source address.
    pub source: u32,
    /// The row number of the token's rights.
    pub grant: u16,
    /// The format in the lower bits, the client above.
    format_and_client: u16,
}

impl Origin {
    /// The greatest number of a client program.
    pub const CLIENT_MAX: u16 = u16::MAX >> FORMAT_BITS;

    /// A note. `client` is the front's number for the client program, at most
    /// [`Origin::CLIENT_MAX`].
    pub const fn new(source: u32, grant: u16, format: Format, client: u16) -> Self {
        debug_assert!(client <= Self::CLIENT_MAX);
        Self { source, grant, format_and_client: client << FORMAT_BITS | format as u16 }
    }

    /// The note of a connection of which nothing is known but the format.
    pub const fn of(format: Format) -> Self {
        Self::new(0, 0, format, 0)
    }

    /// The format that the connection uses.
    pub const fn format(self) -> Format {
        Format::ALL[(self.format_and_client & FORMAT_MASK) as usize]
    }

    /// The front's number for the client program.
    pub const fn client(self) -> u16 {
        self.format_and_client >> FORMAT_BITS
    }
}

const FORMAT_BITS: u32 = 2;
const FORMAT_MASK: u16 = (1 << FORMAT_BITS) - 1;
const _: () = assert!(Format::COUNT == 1 << FORMAT_BITS);
const _: () = assert!(size_of::<Origin>() == 8);

/// The address and port of a peer, small enough for a report of its end.
///
/// Shape: 18 bytes. An IPv4 address is kept as the IPv6 address that stands for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAddr {
    ip: [u8; 16],
    port: [u8; 2],
}

impl From<SocketAddr> for PeerAddr {
    fn from(addr: SocketAddr) -> Self {
        let ip = match addr {
            SocketAddr::V4(addr) => addr.ip().to_ipv6_mapped(),
            SocketAddr::V6(addr) => *addr.ip(),
        };
        Self { ip: ip.octets(), port: addr.port().to_be_bytes() }
    }
}

impl From<PeerAddr> for SocketAddr {
    fn from(PeerAddr { ip, port }: PeerAddr) -> Self {
        SocketAddr::new(Ipv6Addr::from(ip).to_canonical(), u16::from_be_bytes(port))
    }
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
        let id = ConnId::new(0x2a5, 0xf3, Slot::at(0x2b_cdef), 0xfe_beef);
        assert_eq!((id.node(), id.shard()), (0x2a5, 0xf3));
        assert_eq!((id.slot(), id.generation()), (Slot::at(0x2b_cdef), 0xfe_beef));
        assert_eq!(id.to_string().parse::<ConnId>(), Ok(id));
        assert_eq!(ConnId::from_u64(id.to_u64()), id);
    }

    /// Each part alone fills its own bits, and all parts fill all.
    #[test]
    fn no_part_reaches_into_another() {
        let slot = Slot::at(0x3f_ffff);
        let parts = [
            ConnId::new(0x3ff, 0, Slot::at(0), 0),
            ConnId::new(0, 0xff, Slot::at(0), 0),
            ConnId::new(0, 0, slot, 0),
            ConnId::new(0, 0, Slot::at(0), ConnId::GENERATION_MAX),
        ];
        assert_eq!(parts.iter().map(|part| part.to_u64()).sum::<u64>(), u64::MAX);
        assert_eq!(ConnId::new(0x3ff, 0xff, slot, ConnId::GENERATION_MAX).to_u64(), u64::MAX);
    }

    #[test]
    fn format_and_client_come_back() {
        for format in Format::ALL {
            for client in [0, 1, 1025, Origin::CLIENT_MAX] {
                let origin = Origin::new(u32::MAX, u16::MAX, format, client);
                assert_eq!((origin.format(), origin.client()), (format, client));
            }
        }
        assert_eq!(Origin::default().format(), Format::default());
    }

    #[test]
    fn a_node_takes_only_numbers_that_ids_have_room_for() {
        let node = OwnNode::default();
        let clone = node.clone();
        assert!(node.renumber(ConnId::NODES_MAX - 1));
        assert_eq!(clone.number(), 1023);
        assert!(!node.renumber(ConnId::NODES_MAX));
        assert_eq!(clone.number(), 1023);
    }
}
