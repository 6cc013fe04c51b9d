//! A message on its way to many connections. It is encoded once and shared by reference.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use weir_wire::format::{self, Format};

use crate::budget::{Budget, Charge, Holders, Share};
use crate::handover::MessageExport;
use crate::id::{Priority, SlowPolicy, TopicId};
use crate::memory::rounded;
use crate::time::Nanos;

/// A message in the form that sockets take, shared by all its recipients.
///
/// Shape: one frame, or the frames of one tick in a row, encoded before they enter a mailbox. If a
/// connection needs another format, the message is encoded in it once. Beside the bytes stands what
/// the shard needs to deliver them.
/// Limits: the bytes count against the byte budget once, as the allocator rounds them, until the
/// last reference is dropped.
/// Cost: one allocation for the frame, one for this struct, and three for the first other format. A
/// delivery adds nothing.
#[derive(Debug)]
pub struct Message {
    frame: Box<[u8]>,
    /// The format of `frame`: frames of a stream, unless this is one connection's own copy.
    format: Format,
    others: OnceLock<Box<Others>>,
    epoch: u64,
    accepted_at: Nanos,
    expires_at: Option<Nanos>,
    priority: Priority,
    slow: SlowPolicy,
    is_tick: bool,
    topic: TopicId,
    offset: u64,
    key: Range<u32>,
    singles: Box<[Arc<Message>]>,
    shift: u64,
    replaces: u64,
    charge: Charge,
}

/// The message in formats other than frames on a stream.
#[derive(Debug, Default)]
struct Others([OnceLock<Encoding>; Format::COUNT - 1]);

/// The message in one such format.
#[derive(Debug)]
struct Encoding {
    bytes: Box<[u8]>,
    /// The last bytes, which name the position. For a connection with several topics the shard
    /// replaces them.
    tail: usize,
}

/// The facts about a message to a topic that a shard needs beside its bytes.
#[derive(Debug, Default)]
pub struct TopicMessage {
    /// Its priority.
    pub priority: Priority,
    /// The topic's policy for slow connections.
    pub slow: SlowPolicy,
    /// Whether this is the batch of a tick. It counts towards the high watermark only from the next
    /// batch on, together with the batches that come within 50 ms.
    pub is_tick: bool,
    /// The topic; `None` if the message is for a device or for all.
    pub topic: Option<TopicId>,
    /// The number of the topic's class, for [`Budget::messages`]; 0: it has none.
    pub class: u16,
    /// Epoch of its topic; 0: the message has no position.
    pub epoch: u64,
    /// Its offset in the topic; for a batch, the offset of the last message in it.
    pub offset: u64,
    /// Offset and shift together give the place of the message among all that this node sends of the topic. It rises also
    /// where a new epoch begins with lower offsets. 0 for a topic that has one epoch.
    pub shift: u64,
    /// The epoch that ends with this message, if the message says that a new epoch begins; 0 otherwise. Connections do
    /// not catch up with what they have not got of that epoch.
    pub replaces: u64,
    /// Where its conflation key stands in the frame; empty: none.
    pub key: Range<u32>,
    /// The messages of a tick one by one, in order of their offsets, if `slow` is
    /// [`SlowPolicy::Conflate`].
    pub singles: Box<[Arc<Message>]>,
    /// A number for the target device, if the message is for one device. Epochs distinguish
    /// messages to topics.
    pub target: u64,
    /// A number for the connection that has sent the message; 0: none.
    pub sender: u64,
    /// Whether the message leaves a part of the room for other senders. Messages from devices do.
    pub leaves_room: bool,
}

impl Message {
    /// A message whose whole frame is `frame`; `None` if the budget has no room for it.
    ///
    /// `accepted_at` is the time at which the gateway took the message; delivery lag counts from
    /// there. If the shard has not begun to send the message by `expires_at`, it drops the message
    /// and counts it under `expired`.
    pub fn new(
        budget: &Arc<Budget>,
        frame: Vec<u8>,
        accepted_at: Nanos,
        expires_at: Option<Nanos>,
    ) -> Option<Arc<Message>> {
        Self::of_topic(budget, frame, accepted_at, expires_at, TopicMessage::default())
    }

    /// A message to a topic; otherwise like [`Message::new`].
    pub fn of_topic(
        budget: &Arc<Budget>,
        frame: Vec<u8>,
        accepted_at: Nanos,
        expires_at: Option<Nanos>,
        topic: TopicMessage,
    ) -> Option<Arc<Message>> {
        // This leaves a quarter of the room for messages on their way.
        let left = if topic.leaves_room { budget.bytes_max() / 16 } else { 0 };
        let bytes_max = budget.bytes_max_of(Share::Messages) - left;
        let bytes = occupied(&frame, &topic);
        let whose = (holders(budget, &topic), topic.class);
        let charge = Charge::take(budget, bytes, bytes_max, whose)?;
        Some(Self::charged(charge, frame, accepted_at, expires_at, topic))
    }

    /// The batch of a tick as one message; otherwise like [`Message::of_topic`].
    ///
    /// Limits: charged even beyond the budget. The messages in it were charged one by one, and give
    /// their bytes back only when the batch has left.
    pub fn of_tick(
        budget: &Arc<Budget>,
        frames: Vec<u8>,
        accepted_at: Nanos,
        expires_at: Option<Nanos>,
        topic: TopicMessage,
    ) -> Arc<Message> {
        let whose = (holders(budget, &topic), topic.class);
        let charge = Charge::overdraw(budget, occupied(&frames, &topic), whose);
        Self::charged(charge, frames, accepted_at, expires_at, topic)
    }

    fn charged(
        charge: Charge,
        frame: Vec<u8>,
        accepted_at: Nanos,
        expires_at: Option<Nanos>,
        topic: TopicMessage,
    ) -> Arc<Message> {
        let TopicMessage { priority, slow, is_tick, epoch, offset, key, singles, .. } = topic;
        let TopicMessage { shift, replaces, .. } = topic;
        Arc::new(Message {
            frame: frame.into_boxed_slice(),
            format: Format::Stream,
            others: OnceLock::new(),
            epoch,
            accepted_at,
            expires_at,
            priority,
            slow,
            is_tick,
            topic: topic.topic.unwrap_or(TopicId::NONE),
            offset,
            key,
            singles,
            shift,
            replaces,
            charge,
        })
    }

    /// What another process needs to make the same message.
    pub(crate) fn export(&self, number: u64, singles: Vec<u64>) -> MessageExport {
        MessageExport {
            number,
            frame: self.frame.clone(),
            format: self.format,
            epoch: self.epoch,
            accepted_at: self.accepted_at,
            expires_at: self.expires_at,
            priority: self.priority,
            slow: self.slow,
            is_tick: self.is_tick,
            topic: self.topic(),
            offset: self.offset,
            key: self.key.clone(),
            singles,
            shift: self.shift,
            replaces: self.replaces,
            class: self.charge.class(),
            holders: self.charge.holders().export(),
        }
    }

    /// A message from another process. It is charged even beyond the budget, as it was accepted.
    pub(crate) fn import(
        budget: &Arc<Budget>,
        export: MessageExport,
        singles: Box<[Arc<Message>]>,
    ) -> Arc<Message> {
        let bytes = Message::occupied_by(export.frame.len()) + rounded(size_of_val(&*singles));
        let whose = (Holders::import(export.holders), export.class);
        let charge = Charge::overdraw(budget, bytes, whose);
        Arc::new(Message {
            frame: export.frame,
            format: export.format,
            others: OnceLock::new(),
            epoch: export.epoch,
            accepted_at: export.accepted_at,
            expires_at: export.expires_at,
            priority: export.priority,
            slow: export.slow,
            is_tick: export.is_tick,
            topic: export.topic.unwrap_or(TopicId::NONE),
            offset: export.offset,
            key: export.key,
            singles,
            shift: export.shift,
            replaces: export.replaces,
            charge,
        })
    }

    /// Counts one more queue, and all that the message keeps, even beyond the budget.
    pub(crate) fn hold_anyway(&self) {
        self.charge.hold_anyway();
        self.singles.iter().for_each(|single| single.charge.hold_anyway());
    }

    /// The bytes that a message with such a frame occupies, before it has other formats.
    pub fn occupied_by(frame_bytes: usize) -> usize {
        rounded(frame_bytes) + rounded(size_of::<Message>() + ARC_BYTES)
    }

    /// The frame, length prefix included.
    pub fn frame(&self) -> &[u8] {
        &self.frame
    }

    /// The message in a format in which it has been encoded.
    pub(crate) fn bytes(&self, format: Format) -> &[u8] {
        if format == self.format { &self.frame } else { &self.encoding(format).0.bytes }
    }

    /// Encodes the message in a format ahead, so that no shard must do it. `false` if the budget
    /// has no room for it.
    pub fn encode_ahead(&self, format: Format) -> bool {
        if self.is_encoded(format) {
            return true;
        }
        let (bytes, tail) = self.encoded(format);
        let begins = self.others.get().is_none();
        let occupied = rounded(bytes.len()) + if begins { rounded(size_of::<Others>()) } else { 0 };
        if !self.charge.try_add(occupied) {
            return false;
        }
        let place = &self.others.get_or_init(Box::default).0[format.index() - 1];
        // If another thread has just encoded it, the bytes are the same, and count twice until the
        // message is gone.
        let _ = place.set(Encoding { bytes, tail });
        true
    }

    /// Encodes the message in a format if that has not happened yet. Returns whether this call did
    /// it.
    ///
    /// Limits: charged beyond the budget if necessary, because the message is accepted and must
    /// leave.
    /// Cost: none if the encoding exists. If another shard is producing it, this one waits, at most
    /// as long as the encoding takes.
    pub(crate) fn encode(&self, format: Format) -> bool {
        format != self.format && self.encoding(format).1
    }

    /// Whether the message has been encoded in a format.
    pub(crate) fn is_encoded(&self, format: Format) -> bool {
        format == self.format
            || self.others.get().is_some_and(|others| others.0[format.index() - 1].get().is_some())
    }

    /// The bytes that it occupies, in all its formats.
    pub fn occupied_bytes(&self) -> usize {
        self.charge.bytes()
    }

    /// The number of bytes at the end of the message in that format that name the position.
    pub(crate) fn tail(&self, format: Format) -> usize {
        if format == self.format { 0 } else { self.encoding(format).0.tail }
    }

    fn encoding(&self, format: Format) -> (&Encoding, bool) {
        let (mut is_new, mut begins) = (false, 0);
        let others = self.others.get_or_init(|| {
            begins = rounded(size_of::<Others>());
            Box::default()
        });
        let encoding = others.0[format.index() - 1].get_or_init(|| {
            is_new = true;
            let (bytes, tail) = self.encoded(format);
            self.charge.add(begins + rounded(bytes.len()));
            Encoding { bytes, tail }
        });
        (encoding, is_new)
    }

    fn encoded(&self, format: Format) -> (Box<[u8]>, usize) {
        debug_assert!(self.format == Format::Stream, "a connection's own copy has one format");
        let mut bytes = Vec::new();
        let tail = format::encode(format, &self.frame, self.epoch, &mut bytes);
        (bytes.into_boxed_slice(), tail.map_or(0, |tail| tail.bytes))
    }

    /// One connection's own copy in a format, with `tail` as its tail if given. `None` if the
    /// budget has no room for it.
    pub(crate) fn copy(&self, format: Format, tail: Option<&[u8]>) -> Option<Arc<Message>> {
        let made;
        let (shared, shared_tail) = if self.is_encoded(format) {
            (self.bytes(format), self.tail(format))
        } else {
            made = self.encoded(format);
            (&*made.0, made.1)
        };
        let frame = match tail {
            Some(tail) => [&shared[..shared.len() - shared_tail], tail].concat(),
            None => shared.to_vec(),
        };
        let bytes = Message::occupied_by(frame.len());
        let whose = (self.charge.holders(), self.charge.class());
        let charge = Charge::take(self.charge.budget(), bytes, usize::MAX, whose)?;
        Some(Arc::new(Message {
            frame: frame.into_boxed_slice(),
            format,
            others: OnceLock::new(),
            epoch: 0,
            accepted_at: self.accepted_at,
            expires_at: self.expires_at,
            priority: self.priority,
            slow: self.slow,
            is_tick: self.is_tick,
            topic: self.topic,
            offset: self.offset,
            key: 0..0,
            singles: Box::default(),
            shift: self.shift,
            replaces: self.replaces,
            charge,
        }))
    }

    /// The bytes of the budget that the message occupies, and their share.
    pub(crate) fn charge(&self) -> &Charge {
        &self.charge
    }

    /// Counts one more queue of a slow connection that holds the message, and all that it keeps.
    /// `false` if the share for waiting has no room for it.
    pub(crate) fn hold(&self) -> bool {
        if !self.charge.hold() {
            return false;
        }
        let held = self.singles.iter().take_while(|single| single.charge.hold()).count();
        if held < self.singles.len() {
            self.singles.iter().take(held).for_each(|single| single.charge.release());
            self.charge.release();
            return false;
        }
        true
    }

    /// Counts one queue less.
    pub(crate) fn release(&self) {
        self.charge.release();
        self.singles.iter().for_each(|single| single.charge.release());
    }

    /// Notes that a ring begins to keep it, or ceases to.
    pub fn retain(&self, is_retained: bool) {
        self.charge.retain(is_retained);
    }

    /// Its topic, if it has one.
    pub(crate) fn topic(&self) -> Option<TopicId> {
        Some(self.topic).filter(|topic| *topic != TopicId::NONE)
    }

    /// Epoch of its topic; 0 if it has no position.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// When the gateway accepted it.
    pub fn accepted_at(&self) -> Nanos {
        self.accepted_at
    }

    /// A shard does not begin to send the message after this time.
    pub fn expires_at(&self) -> Option<Nanos> {
        self.expires_at
    }

    /// Its priority.
    pub fn priority(&self) -> Priority {
        self.priority
    }

    /// The topic's policy for slow connections.
    pub fn slow(&self) -> SlowPolicy {
        self.slow
    }

    /// Whether this is the batch of a tick.
    pub fn is_tick(&self) -> bool {
        self.is_tick
    }

    /// Its offset in the topic; for a batch, the offset of the last message; 0 without a topic.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Its place among all messages that this node sends of the topic, whatever their epochs.
    pub(crate) fn order(&self) -> u64 {
        self.offset.wrapping_add(self.shift)
    }

    /// See [`TopicMessage::shift`].
    pub(crate) fn shift(&self) -> u64 {
        self.shift
    }

    /// See [`TopicMessage::replaces`].
    pub(crate) fn replaces(&self) -> u64 {
        self.replaces
    }

    /// Its conflation key; empty: none.
    pub fn key(&self) -> &[u8] {
        &self.frame[self.key.start as usize..self.key.end as usize]
    }

    /// The messages of a tick one by one, if the caller gave them.
    pub fn singles(&self) -> &[Arc<Message>] {
        &self.singles
    }

    pub(crate) fn is_expired(&self, now: Nanos) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

fn holders(budget: &Budget, topic: &TopicMessage) -> Holders {
    let target = if topic.epoch == 0 { topic.target } else { topic.epoch };
    let sender = (topic.sender != 0).then(|| budget.holder(topic.sender));
    Holders { target: budget.holder(target), sender }
}

fn occupied(frame: &[u8], topic: &TopicMessage) -> usize {
    Message::occupied_by(frame.len()) + rounded(size_of_val(&*topic.singles))
}

/// The two counts of an `Arc`.
const ARC_BYTES: usize = 2 * size_of::<usize>();

/// An item in the queue of a connection: a shared message, or a frame for this connection alone.
#[derive(Debug, Clone)]
pub enum Item {
    /// Shared by many connections.
    Message(Arc<Message>),
    /// For one connection: an answer, `Welcome`, `Goodbye`. In a command it is a frame of a stream;
    /// in an outbox it is in the connection's format.
    Frame(Box<[u8]>),
}

impl Item {
    /// The bytes that leave on a connection with that format.
    pub(crate) fn bytes(&self, format: Format) -> &[u8] {
        match self {
            Item::Message(message) => message.bytes(format),
            Item::Frame(frame) => frame,
        }
    }

    /// The bytes of the budget that a waiting item costs beside its queue node. A shared message
    /// has paid for itself.
    pub(crate) fn own_bytes(&self) -> usize {
        match self {
            Item::Message(_) => 0,
            Item::Frame(frame) => frame.len(),
        }
    }

    pub(crate) fn is_tick(&self) -> bool {
        match self {
            Item::Message(message) => message.is_tick(),
            Item::Frame(_) => false,
        }
    }

    pub(crate) fn is_expired(&self, now: Nanos) -> bool {
        match self {
            Item::Message(message) => message.is_expired(now),
            Item::Frame(_) => false,
        }
    }
}
