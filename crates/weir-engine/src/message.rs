//! A message on its way to many connections: encoded once, shared by reference.

use std::ops::Range;
use std::sync::Arc;

use crate::budget::{Budget, Charge};
use crate::id::{Priority, SlowPolicy};
use crate::time::Nanos;

/// A message as the sockets take it, shared by all who wait for it.
///
/// Shape: one frame, or the frames of one tick one behind the other, encoded before they enter a mailbox, and what the
/// shard must know to deliver them.
/// Limits: its bytes count against the byte budget once, from making to the last reference's end.
/// Cost: one allocation for the frame and one for this; a delivery adds nothing.
#[derive(Debug)]
pub struct Message {
    frame: Box<[u8]>,
    accepted_at: Nanos,
    expires_at: Option<Nanos>,
    priority: Priority,
    slow: SlowPolicy,
    is_tick: bool,
    offset: u64,
    key: Range<u32>,
    singles: Box<[Arc<Message>]>,
    _charge: Charge,
}

/// What a shard must know of a message to a topic, beside its bytes.
#[derive(Debug, Default)]
pub struct TopicMessage {
    /// When it is its turn.
    pub priority: Priority,
    /// What becomes of it for connections that do not keep up.
    pub slow: SlowPolicy,
    /// Whether this is what a tick has gathered: with those that come within 50 ms of it, it counts towards the high
    /// watermark only from the next one on.
    pub is_tick: bool,
    /// Its offset in the topic; of a tick, that of the last message in it.
    pub offset: u64,
    /// Where its conflation key stands in the frame; empty: none.
    pub key: Range<u32>,
    /// The messages of a tick one by one, in order of their offsets, if `slow` is [`SlowPolicy::Conflate`].
    pub singles: Box<[Arc<Message>]>,
}

impl Message {
    /// A message whose whole frame is `frame`; `None` when the budget has no room for it.
    ///
    /// `accepted_at` is when the gateway took it: delivery lag counts from there. After `expires_at` it is not begun
    /// any more (dropped and counted under `expired`).
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
        let charge = Charge::take(budget, occupied(&frame, &topic))?;
        Some(Self::charged(charge, frame, accepted_at, expires_at, topic))
    }

    /// What a tick has gathered, as one; otherwise like [`Message::of_topic`].
    ///
    /// Limits: charged beyond the budget's if need be. What was gathered has been charged one by one and can only give
    /// that back once this has left.
    pub fn of_tick(
        budget: &Arc<Budget>,
        frames: Vec<u8>,
        accepted_at: Nanos,
        expires_at: Option<Nanos>,
        topic: TopicMessage,
    ) -> Arc<Message> {
        let charge = Charge::overdraw(budget, occupied(&frames, &topic));
        Self::charged(charge, frames, accepted_at, expires_at, topic)
    }

    fn charged(
        charge: Charge,
        frame: Vec<u8>,
        accepted_at: Nanos,
        expires_at: Option<Nanos>,
        topic: TopicMessage,
    ) -> Arc<Message> {
        let TopicMessage { priority, slow, is_tick, offset, key, singles } = topic;
        Arc::new(Message {
            frame: frame.into_boxed_slice(),
            accepted_at,
            expires_at,
            priority,
            slow,
            is_tick,
            offset,
            key,
            singles,
            _charge: charge,
        })
    }

    /// The frame, length prefix included.
    pub fn frame(&self) -> &[u8] {
        &self.frame
    }

    /// When the gateway accepted it.
    pub fn accepted_at(&self) -> Nanos {
        self.accepted_at
    }

    /// After this it is not begun any more.
    pub fn expires_at(&self) -> Option<Nanos> {
        self.expires_at
    }

    /// When it is its turn.
    pub fn priority(&self) -> Priority {
        self.priority
    }

    /// What becomes of it for connections that do not keep up.
    pub fn slow(&self) -> SlowPolicy {
        self.slow
    }

    /// Whether this is what a tick has gathered.
    pub fn is_tick(&self) -> bool {
        self.is_tick
    }

    /// Its offset in the topic, of a tick that of the last message; 0 for what has no topic.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Its conflation key; empty: none.
    pub fn key(&self) -> &[u8] {
        &self.frame[self.key.start as usize..self.key.end as usize]
    }

    /// The messages of a tick one by one, if they were given.
    pub fn singles(&self) -> &[Arc<Message>] {
        &self.singles
    }

    pub(crate) fn is_expired(&self, now: Nanos) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

fn occupied(frame: &[u8], topic: &TopicMessage) -> usize {
    frame.len() + size_of::<Message>() + size_of_val(&*topic.singles)
}

/// What waits for one socket: a shared message, or a frame for this connection alone.
#[derive(Debug, Clone)]
pub enum Item {
    /// Shared with others.
    Message(Arc<Message>),
    /// For one connection: an answer, `Welcome`, `Goodbye`.
    Frame(Box<[u8]>),
}

impl Item {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Item::Message(message) => message.frame(),
            Item::Frame(frame) => frame,
        }
    }

    /// Bytes that waiting costs beside the queue node: a shared message has paid for itself.
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
