//! The language of surveys: what the front asks a shard about memory, and the answer.

use std::time::Duration;

use crate::id::{ConnId, DeviceRef, TopicId};
use crate::memory::Footprint;

/// A question about the memory of a shard, and about those that keep it.
///
/// Cost: one answer looks at some thousand connections at most: 20 to 200 µs of the shard, which
/// goes on with its work before the next one.
pub struct Survey {
    /// The place at which to begin: 0, or [`SurveyPage::next_cursor`].
    pub cursor: u32,
    /// How many [`Holding`]s of each kind to list, the oldest first.
    pub holdings_max: usize,
    /// Receives the answer, on the same terms as [`crate::Inspect::reply`].
    pub reply: Box<dyn FnOnce(SurveyPage) + Send>,
}

/// The answer to a [`Survey`].
#[derive(Debug, Default)]
pub struct SurveyPage {
    /// The memory of the connections on this page; on the first page also that of the shard.
    pub memory: ShardMemory,
    /// The oldest holdings on this page, in no order.
    pub holdings: Vec<Holding>,
    /// Where the next page begins; `None` at the end.
    pub next_cursor: Option<u32>,
}

/// Memory of a shard, by purpose.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ShardMemory {
    /// The table of connections.
    pub connections: Footprint,
    /// The table of TLS states.
    pub tls: Footprint,
    /// Memberships, and the topics' lists of members.
    pub members: Footprint,
    /// Outboxes without the messages in them, by the class of the first message: see
    /// [`crate::TopicMessage::class`].
    pub outboxes: Vec<Footprint>,
    /// Empty outboxes for later use.
    pub spare_outboxes: Footprint,
    /// Blocks by purpose and age.
    pub blocks: [[Footprint; BlockAge::ALL.len()]; BlockPurpose::ALL.len()],
    /// Empty blocks for later use.
    pub free_blocks: Footprint,
    /// The newest messages of topics behind which connections lag, without the messages.
    pub conflation: Footprint,
    /// Running resumes.
    pub resumes: Footprint,
    /// The positions that readers of several topics have been told.
    pub positions: Footprint,
    /// Fan-outs, and the connections that they have touched.
    pub fanouts: Footprint,
    /// Reports for which the front had no room.
    pub backlog: Footprint,
    /// Buffers and lists of the shard itself.
    pub buffers: Footprint,
}

weir_wire::named_enum! {
    /// What a block of received bytes is for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum BlockPurpose {
        /// A begun frame.
        Frame = "begun_frame",
        /// Whole frames that wait for the front, or for answers to leave.
        HeldBack = "held_back",
        /// A begun TLS record.
        Record = "begun_record",
    }
}

weir_wire::named_enum! {
    /// How long a block has been in use.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum BlockAge {
        /// Less than a second.
        Young = "under_1s",
        /// Longer. Its connection ends when `connection.frame_timeout` has passed.
        Old = "over_1s",
    }
}

/// Memory that a connection keeps, or has others keep for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// What is kept.
    pub kind: HoldingKind,
    /// The connection.
    pub conn: ConnId,
    /// Its device.
    pub device: DeviceRef,
    /// The topic; for an outbox, that of its first message.
    pub topic: Option<TopicId>,
    /// The epoch of that message; 0: unknown, or no message.
    pub epoch: u64,
    /// The kept bytes.
    pub bytes: usize,
    /// The time since it began.
    pub age: Duration,
}

weir_wire::named_enum! {
    /// A kind of [`Holding`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum HoldingKind {
        /// An outbox: something has waited in it all the time. `bytes` are those to send.
        Outbox = "outbox",
        /// A message that waits for this connection alone. Its age counts from when it was accepted.
        Message = "message",
        /// A block of received bytes.
        Block = "block",
        /// A subscription. Its age is exact to a second.
        Subscription = "subscription",
    }
}

impl ShardMemory {
    /// Adds the memory of another page or shard.
    pub fn add(&mut self, other: &ShardMemory) {
        let classes = self.outboxes.len().max(other.outboxes.len());
        self.outboxes.resize(classes, Footprint::default());
        for (sum, more) in self.outboxes.iter_mut().zip(&other.outboxes) {
            *sum += *more;
        }
        let blocks = self.blocks.iter_mut().flatten().zip(other.blocks.iter().flatten());
        blocks.for_each(|(sum, more)| *sum += *more);
        self.connections += other.connections;
        self.tls += other.tls;
        self.members += other.members;
        self.spare_outboxes += other.spare_outboxes;
        self.free_blocks += other.free_blocks;
        self.conflation += other.conflation;
        self.resumes += other.resumes;
        self.positions += other.positions;
        self.fanouts += other.fanouts;
        self.backlog += other.backlog;
        self.buffers += other.buffers;
    }
}
