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
    /// Offset that this part reaches: the next one begins behind it.
    pub(crate) reached: u64,
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

/// Where the requested part of a history is.
#[derive(Debug)]
pub(crate) enum Found {
    Here(History),
    /// No topic has this name, so nothing is retained.
    Nowhere,
    /// At the broker: this node does not follow the topic, or retains less of it.
    AtBroker,
}

impl Router {
    /// Reads a topic's retained messages.
    ///
    /// Cost: copies only references under the topic's lock.
    pub(crate) fn history(&self, name: &str, range: Range) -> Found {
        let Some(topic) = self.find(name) else {
            return match self.classes.load().of(name).is_cluster {
                true => Found::AtBroker,
                false => Found::Nowhere,
            };
        };
        let state = topic.lock();
        // While the broker is lost, other nodes may have published.
        if topic.class().is_cluster && (!state.is_live() || self.is_broker_lost()) {
            return Found::AtBroker;
        }
        let empty = Ring::default();
        let ring = state.extra.as_ref().map_or(&empty, |extra| &extra.ring);
        let missed = range.after.map(|position| topic.missed(&state, position));
        let (recovered, behind) = match missed {
            Some(Missed::Nothing) => (true, state.sent(&topic.class())),
            Some(Missed::Since(offset)) => (true, offset),
            Some(Missed::AtBroker(_)) => return Found::AtBroker,
            // The broker may know an epoch or an offset that this node has yet to hear of.
            Some(Missed::Unknown) if topic.class().is_cluster => return Found::AtBroker,
            None if topic.class().is_cluster && ring.is_cut() => return Found::AtBroker,
            Some(Missed::Unknown) | None => (false, 0),
        };
        let (messages, is_all) = ring.some_behind(behind, range.bytes_max, range.messages_max);
        let (epoch, sent) = (state.epoch, state.sent(&topic.class()));
        let reached = messages.last().map_or(behind, |message| message.offset());
        Found::Here(History { epoch, sent, recovered, reached, is_all, messages })
    }
}
