//! What a shard hands over when another process takes its place: everything that it knows, as plain
//! values.
//!
//! Times are those of the monotonic clock, which all processes of a machine share. Numbers of slots,
//! devices and topics stay what they are; messages have numbers of the export, so that a message
//! which several connections share is shared again.

mod format;
mod messages;

use std::collections::HashSet;
use std::ops::Range;

use weir_wire::CloseReason;
use weir_wire::format::Format;

use crate::id::{ConnId, DeviceRef, Origin, Priority, SlowPolicy, TopicId};
use crate::time::Nanos;
use crate::tls::{Alert, Session};

pub use format::NotUnderstood;
pub use messages::{ImportedMessages, Messages};

/// Everything that a shard knows. `S` is a socket.
///
/// Shape: some 300 bytes for a connection, and the bytes that wait.
#[derive(Debug)]
pub struct ShardExport<S> {
    /// When the shard began. Ticks count from here.
    pub started: Nanos,
    /// Slots that exist.
    pub slots: u32,
    /// Free slots, with the generation of their next connection. The last one is used first.
    pub free: Vec<(u32, u32)>,
    /// Slots that are not used again.
    pub retired: Vec<u32>,
    /// The running number of the next welcome.
    pub welcomes: u32,
    /// The greatest number of a drain that has begun or was ended.
    pub drains: u32,
    /// The connections whose sockets are held, in the order of their slots.
    pub connections: Vec<ConnectionExport<S>>,
    /// The messages that wait. Those in a tick stand before it.
    pub messages: Vec<MessageExport>,
    /// The newest messages of topics behind which connections lag.
    pub stores: Vec<StoreExport>,
    /// The resumes under way.
    pub resumes: Vec<ResumeExport>,
    /// Slots of stalled connections, longest-stalled first.
    pub stalled: Vec<u32>,
    /// Slots of connections that lag, longest-lagging first.
    pub lagging: Vec<u32>,
    /// Slots of connections for which something waits, in the order in which room is made.
    pub waiting: Vec<u32>,
}

impl<S> ShardExport<S> {
    /// Checks that the parts fit together: each slot is free, retired, or has one connection of this
    /// shard, and what names a slot or a message names one that is there.
    ///
    /// Errors: the field and the value that do not fit.
    pub(crate) fn check(&self, index: u8) -> Result<(), NotUnderstood> {
        let wrong = |field, value: u64| Err(NotUnderstood { field, value });
        if self.connections.len() + self.free.len() + self.retired.len() != self.slots as usize {
            return wrong("shard.slots", self.slots.into());
        }
        let mut used = vec![false; self.slots as usize];
        for connection in &self.connections {
            let id = connection.id;
            if id.shard() != usize::from(index) {
                return wrong("connection.id of another shard", id.to_u64());
            }
            name(&mut used, id.slot().index(), ("connection.id used twice", id.to_u64()))?;
        }
        let mut all = used.clone();
        let unused = self.free.iter().map(|(slot, _)| *slot).chain(self.retired.iter().copied());
        for slot in unused {
            name(&mut all, slot, ("slot named twice", slot.into()))?;
        }
        let lists = [&self.stalled, &self.lagging, &self.waiting].into_iter().flatten().copied();
        let mut named = lists.chain(self.resumes.iter().map(|resume| resume.slot));
        match named.find(|slot| used.get(*slot as usize) != Some(&true)) {
            Some(slot) => wrong("slot without a connection", slot.into()),
            None => self.check_messages(),
        }
    }

    fn check_messages(&self) -> Result<(), NotUnderstood> {
        let mut known = HashSet::with_capacity(self.messages.len());
        let unknown = |field, number: Option<&u64>| match number {
            Some(number) => Err(NotUnderstood { field, value: *number }),
            None => Ok(()),
        };
        for message in &self.messages {
            unknown("message.singles", message.singles.iter().find(|one| !known.contains(*one)))?;
            known.insert(message.number);
        }
        for outbox in self.connections.iter().filter_map(|one| one.outbox.as_ref()) {
            let numbers = outbox.items.iter().filter_map(|item| match item {
                ItemExport::Message(number) => Some(number),
                ItemExport::Frame(_) => None,
            });
            unknown("item.message", numbers.into_iter().find(|one| !known.contains(*one)))?;
        }
        let of_stores = self.stores.iter().flat_map(|store| &store.messages);
        unknown("store.messages", of_stores.into_iter().find(|one| !known.contains(*one)))
    }
}

/// Notes that a slot is named, which must not be so yet.
fn name(
    named: &mut [bool],
    slot: u32,
    (twice, value): (&'static str, u64),
) -> Result<(), NotUnderstood> {
    match named.get_mut(slot as usize).map(|is_named| std::mem::replace(is_named, true)) {
        Some(false) => Ok(()),
        Some(true) => Err(NotUnderstood { field: twice, value }),
        None => Err(NotUnderstood { field: "slot beyond shard.slots", value: slot.into() }),
    }
}

/// One connection.
#[derive(Debug)]
pub struct ConnectionExport<S> {
    /// Its socket.
    pub socket: S,
    /// Whether the other process has the socket already.
    pub lent: bool,
    /// Its id, which stays.
    pub id: ConnId,
    /// Its device.
    pub device: DeviceRef,
    /// From its adoption.
    pub origin: Origin,
    /// Its priority.
    pub priority: Priority,
    /// Interval of the signs of life, in ticks.
    pub heartbeat: u32,
    /// Why it ends, if it is closing.
    pub closing: Option<CloseReason>,
    /// The running number of its welcome.
    pub welcomed: Option<u32>,
    /// The fields of its rates, deadlines and flags, which mean something to a shard alone.
    pub inner: Inner,
    /// Its topics, and the tick at which it joined each, to a second.
    pub topics: Vec<(TopicId, u32)>,
    /// The beginning of a frame, or frames that wait for the front.
    pub partial: Option<BlockExport>,
    /// What waits for its socket.
    pub outbox: Option<Box<OutboxExport>>,
    /// For a reader of events of several topics: the last position told of each (epoch, offset).
    pub positions: Option<Vec<(u64, u64)>>,
    /// Its TLS state.
    pub tls: Option<Box<TlsExport>>,
}

/// Fields of a connection that mean something to a shard alone. Times are ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inner {
    /// When the bucket of publishes is full again.
    pub publish_due: u32,
    /// When the bucket of other frames is full again.
    pub frames_due: u32,
    /// When it was adopted.
    pub adopted_at: u32,
    /// When the last whole frame came, or when closing began.
    pub heard_at: u32,
    /// When the shard looks at its deadlines, at the latest.
    pub timer: u32,
    /// Flags, see `shard/handover.rs`.
    pub flags: u32,
}

/// Bytes of a begun frame or record.
#[derive(Debug)]
pub struct BlockExport {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The tick at which the first one came.
    pub since: u32,
}

/// The TLS state of a connection.
#[derive(Debug)]
pub struct TlsExport {
    /// Keys and sequence numbers. They are wiped where they were.
    pub session: Session,
    /// A begun record, or records that were read ahead.
    pub partial: Option<BlockExport>,
    /// Whether `partial` may hold whole records.
    pub is_ahead: bool,
    /// Whether the peer has sent `close_notify`.
    pub is_ended: bool,
    /// The alert with which our side ends; `None`: nothing may be sealed any more.
    pub farewell: Option<Alert>,
}

/// What waits for a socket.
#[derive(Debug)]
pub struct OutboxExport {
    /// The items, in order.
    pub items: Vec<ItemExport>,
    /// Bytes of the first item that the kernel has.
    pub sent: usize,
    /// The record that has begun to leave: its rest, and the bytes of the items for which it stands.
    pub sealed: Option<(Vec<u8>, usize)>,
    /// The bytes of the last ticks and replay chunks, since when, and the bytes behind them.
    pub grace: (usize, Nanos, usize),
    /// When something began to wait.
    pub began_at: Nanos,
    /// When it crossed the high watermark.
    pub stalled_since: Option<Nanos>,
    /// When the socket last took bytes.
    pub taken_at: Nanos,
    /// The topics behind which it lags: the order from which on it has still to get messages, and
    /// the order of the last one that a walk has brought.
    pub lags: Vec<(TopicId, u64, u64)>,
}

/// An item that waits.
#[derive(Debug)]
pub enum ItemExport {
    /// A message, by its number.
    Message(u64),
    /// Bytes for this connection alone, in its format.
    Frame(Box<[u8]>),
}

/// A message.
#[derive(Debug)]
pub struct MessageExport {
    /// Its number in exports of this process.
    pub number: u64,
    /// Its bytes.
    pub frame: Box<[u8]>,
    /// Their format.
    pub format: Format,
    /// Epoch of its topic; 0: it has no position.
    pub epoch: u64,
    /// When the gateway accepted it.
    pub accepted_at: Nanos,
    /// When it expires.
    pub expires_at: Option<Nanos>,
    /// Its priority.
    pub priority: Priority,
    /// The topic's policy for slow connections.
    pub slow: SlowPolicy,
    /// Whether it is the batch of a tick.
    pub is_tick: bool,
    /// Its topic.
    pub topic: Option<TopicId>,
    /// Its offset.
    pub offset: u64,
    /// Where its conflation key stands in the frame.
    pub key: Range<u32>,
    /// The messages of a tick, by their numbers.
    pub singles: Vec<u64>,
    /// See [`TopicMessage::shift`](crate::TopicMessage::shift).
    pub shift: u64,
    /// See [`TopicMessage::replaces`](crate::TopicMessage::replaces).
    pub replaces: u64,
    /// The number of the topic's class.
    pub class: u16,
    /// The places in the budget for which it counts while it waits.
    pub holders: (u16, Option<u16>),
}

/// The newest messages of a conflating topic.
#[derive(Debug)]
pub struct StoreExport {
    /// The topic.
    pub topic: TopicId,
    /// Order of the last message that was entered.
    pub met: Option<u64>,
    /// The messages, by their numbers, in their order.
    pub messages: Vec<u64>,
}

/// A resume under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumeExport {
    /// Slot of the connection.
    pub slot: u32,
    /// The topic.
    pub topic: TopicId,
    /// Number of the resume, from the front.
    pub number: u32,
    /// Offset up to which its chunks have come.
    pub after: u64,
    /// Number of chunks that have come.
    pub parts: u32,
    /// Whether the next chunk has been asked for.
    pub is_asked: bool,
}
