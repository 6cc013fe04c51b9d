//! A message on its way to many connections: encoded once, shared by reference.

use std::sync::Arc;

use crate::budget::{Budget, Charge};
use crate::time::Nanos;

/// A message as the sockets take it, shared by all who wait for it.
///
/// Shape: one frame, encoded before it enters a mailbox, and what the shard must know to deliver it.
/// Limits: its bytes count against the byte budget once, from making to the last reference's end.
/// Cost: one allocation for the frame and one for this; a delivery adds nothing.
#[derive(Debug)]
pub struct Message {
    frame: Box<[u8]>,
    accepted_at: Nanos,
    expires_at: Option<Nanos>,
    _charge: Charge,
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
        let charge = Charge::take(budget, frame.len() + size_of::<Message>())?;
        Some(Arc::new(Message {
            frame: frame.into_boxed_slice(),
            accepted_at,
            expires_at,
            _charge: charge,
        }))
    }

    /// The frame, length prefix included.
    pub fn frame(&self) -> &[u8] {
        &self.frame
    }

    /// When the gateway accepted it.
    pub fn accepted_at(&self) -> Nanos {
        self.accepted_at
    }

    pub(crate) fn is_expired(&self, now: Nanos) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
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

    pub(crate) fn is_expired(&self, now: Nanos) -> bool {
        match self {
            Item::Message(message) => message.is_expired(now),
            Item::Frame(_) => false,
        }
    }
}
