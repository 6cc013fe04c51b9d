//! Histories as the broker tells them, where this node does not have what is asked for.

use weir_broker::{History as Kept, HistoryQuery, Name, Position};

use super::Source;
use super::apply::Arrived;
use crate::topics::{History, MessagePosition, Range, Router, State};

impl State {
    /// Whether this node has everything of a topic of the cluster that the broker has told.
    pub(in crate::topics) fn is_live(&self) -> bool {
        let cluster = self.extra.as_ref().and_then(|extra| extra.cluster.as_ref());
        !self.ended && cluster.is_some_and(|cluster| cluster.phase == super::Phase::Live)
    }
}

impl Range {
    /// What the broker is asked. `is_known`: whether the topic is still in the epoch of the
    /// requested position, as far as that is known.
    pub(crate) fn query(&self, topic: &Name, is_known: bool) -> HistoryQuery {
        HistoryQuery {
            topic: Name::clone(topic),
            after: self.after.filter(|_| is_known).map_or(0, |after| after.offset),
            messages_max: self.messages_max,
            bytes_max: self.bytes_max,
        }
    }

    /// Whether a topic with this newest position is in the epoch of the requested one.
    pub(crate) fn is_known_at(&self, top: Position) -> bool {
        self.after.is_none_or(|after| after.epoch == top.epoch && after.offset <= top.offset)
    }
}

impl Router {
    /// A history from what the broker keeps, as [`Range::query`] has asked for it. `None`: the byte
    /// budget has no room.
    pub(crate) fn history_of(&self, name: &str, range: Range, kept: &Kept) -> Option<History> {
        let destination = self.destination(name);
        let class = destination.class();
        let Position { epoch, offset: sent } = kept.top;
        let after = range.after.filter(|_| range.is_known_at(kept.top));
        let behind = after.map_or(0, |after| after.offset);
        let follows = kept.messages.first().is_some_and(|next| next.offset == behind + 1);
        let recovered = after.is_some() && (behind == sent || follows);
        let (mut messages, mut reached) = (Vec::new(), behind);
        for received in &kept.messages {
            match Arrived::read(received, Source::Kept) {
                Err(unread) => self.pass_over(unread, 0),
                Ok(arrived) => {
                    let offset = received.offset;
                    let place = MessagePosition { topic: None, epoch, offset, shift: 0 };
                    match arrived.message(&self.budget, &class, place) {
                        Some(message) => messages.push(message),
                        None if messages.is_empty() => return None,
                        None => break,
                    }
                }
            }
            reached = received.offset;
        }
        let is_all = kept.messages.is_empty() || reached >= sent;
        let messages = messages.into();
        Some(History { epoch, sent, recovered, reached, is_all, messages })
    }
}
