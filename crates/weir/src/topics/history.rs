//! Looking at what a topic keeps, without being in it.

use std::sync::Arc;

use weir_engine::Message;
use weir_wire::v1::Position;

use super::resume::Missed;
use super::{Ring, Router};

/// A part of what a topic keeps.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) epoch: u64,
    /// Offset of the last message that has left.
    pub(crate) sent: u64,
    /// Whether all that has left since the position asked for is here or follows.
    pub(crate) recovered: bool,
    /// Whether nothing that is kept follows.
    pub(crate) is_all: bool,
    /// In order; gaps are what ticks have conflated.
    pub(crate) messages: Box<[Arc<Message>]>,
}

/// Which part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    /// What lies behind it; `None`, or one that the topic knows nothing of: from the oldest on that is kept.
    pub(crate) after: Option<Position>,
    pub(crate) messages_max: usize,
    /// Of their frames; one message may have more.
    pub(crate) bytes_max: usize,
}

impl Router {
    /// Looks at a topic; `None` if there is none of this name.
    ///
    /// Cost: references are copied under the topic's lock, nothing else.
    pub(crate) fn history(&self, name: &str, range: Range) -> Option<History> {
        let topic = self.find(name)?;
        let state = topic.lock();
        let missed = range.after.map(|position| topic.missed(&state, position));
        let (recovered, behind) = match missed {
            Some(Missed::Nothing) => (true, state.sent(&topic.class)),
            Some(Missed::Since(offset)) => (true, offset),
            Some(Missed::Unknown) | None => (false, 0),
        };
        let empty = Ring::default();
        let ring = state.extra.as_ref().map_or(&empty, |extra| &extra.ring);
        let (messages, is_all) = ring.some_behind(behind, range.bytes_max, range.messages_max);
        let (epoch, sent) = (topic.epoch, state.sent(&topic.class));
        Some(History { epoch, sent, recovered, is_all, messages })
    }
}
