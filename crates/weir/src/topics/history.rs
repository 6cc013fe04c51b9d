//! Reading a topic's retained messages without a subscription.

use std::sync::Arc;

use weir_engine::Message;
use weir_wire::v1::Position;

use super::resume::Missed;
use super::{Ring, Router};

/// A part of a topic's retained messages.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) epoch: u64,
    /// Offset of the last message sent.
    pub(crate) sent: u64,
    /// Whether every message sent since the requested position is here or in a later part.
    pub(crate) recovered: bool,
    /// Whether this part ends with the newest retained message.
    pub(crate) is_all: bool,
    /// In order of their offsets; conflation in ticks leaves gaps.
    pub(crate) messages: Box<[Arc<Message>]>,
}

/// The requested part of a history.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    /// Only messages after this position. `None`, or a position unknown to the topic: from the
    /// oldest retained message.
    pub(crate) after: Option<Position>,
    pub(crate) messages_max: usize,
    /// The limit on the bytes of their frames; a lone message may exceed it.
    pub(crate) bytes_max: usize,
}

impl Router {
    /// Reads a topic's retained messages; `None` if no topic has this name.
    ///
    /// Cost: copies only references under the topic's lock.
    pub(crate) fn history(&self, name: &str, range: Range) -> Option<History> {
        let topic = self.find(name)?;
        let state = topic.lock();
        let missed = range.after.map(|position| topic.missed(&state, position));
        let (recovered, behind) = match missed {
            Some(Missed::Nothing) => (true, state.sent(&topic.class)),
            Some(Missed::Since(offset)) => (true, offset),
            Some(Missed::AtBroker(_) | Missed::Unknown) | None => (false, 0),
        };
        let empty = Ring::default();
        let ring = state.extra.as_ref().map_or(&empty, |extra| &extra.ring);
        let (messages, is_all) = ring.some_behind(behind, range.bytes_max, range.messages_max);
        let (epoch, sent) = (state.epoch, state.sent(&topic.class));
        Some(History { epoch, sent, recovered, is_all, messages })
    }
}
