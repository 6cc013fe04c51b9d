//! Retained messages, sent while topics still change. When the topics stand still, each ring needs
//! only what has gone and what has come since.

use std::collections::HashMap;
use std::sync::Arc;

use weir_engine::handover::{ImportedMessages, Messages, NotUnderstood};
use weir_engine::{Budget, Message, TopicId};
use weir_wire::ProstMessage as _;
use weir_wire::handover::v1;

use crate::base::handover::refused;
use crate::topics::Router;
use crate::topics::ring::{Retained, Ring};

/// The messages that the old process has sent.
///
/// Shape: keeps each message that was sent early, so that its number stays its own.
#[derive(Default)]
pub(crate) struct SentRings {
    pub(super) messages: Messages,
    /// The newest one of each ring that was sent early.
    pub(super) newest: HashMap<TopicId, Arc<Message>, foldhash::fast::RandomState>,
    kept: Vec<Arc<Message>>,
}

/// The messages that the new process has got, and the rings of those that came early.
pub(crate) struct EarlyRings {
    pub(super) messages: ImportedMessages,
    pub(super) rings: HashMap<TopicId, Ring, foldhash::fast::RandomState>,
    /// What these rings retain.
    pub(super) retained: Retained,
}

impl Router {
    /// Sends what is retained now, in parts. The last one is empty.
    ///
    /// Cost: takes the lock of each topic once, for as long as it takes to list its ring.
    pub(crate) fn send_rings<E>(
        &self,
        sent: &mut SentRings,
        mut send: impl FnMut(&v1::EarlyRings) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut part, mut bytes, mut chunk) = (v1::EarlyRings::default(), 0, 0);
        while let Some(topics) = self.ids.chunk(chunk) {
            for topic in &topics {
                let ring = topic.lock().extra.as_ref().map(|extra| extra.ring.all());
                let ring = ring.unwrap_or_default();
                sent.newest.extend(ring.last().map(|newest| (topic.id, Arc::clone(newest))));
                let mut left = &ring[..];
                while !left.is_empty() {
                    let mut early = v1::EarlyRing { topic: topic.id.0, messages: Vec::new() };
                    while let Some((message, rest)) = left.split_first()
                        && bytes < PART_BYTES
                    {
                        left = rest;
                        bytes += message.frame().len() + EACH_BYTES;
                        early.messages.push(sent.messages.number(message));
                    }
                    part.rings.push(early);
                    if bytes >= PART_BYTES {
                        part.messages = sent.messages.take_exports();
                        send(&std::mem::take(&mut part))?;
                        bytes = 0;
                    }
                }
                sent.kept.extend(ring);
            }
            chunk += 1;
        }
        if !part.rings.is_empty() {
            part.messages = sent.messages.take_exports();
            send(&part)?;
        }
        send(&v1::EarlyRings::default())
    }
}

impl EarlyRings {
    /// None so far. All will be charged to `budget`.
    pub(crate) fn new(budget: &Arc<Budget>) -> EarlyRings {
        EarlyRings {
            messages: ImportedMessages::new(budget),
            rings: HashMap::default(),
            retained: Retained::new(usize::MAX),
        }
    }

    /// Takes a part. `false`: it was the last one.
    pub(crate) fn take(&mut self, part: &[u8]) -> Result<bool, NotUnderstood> {
        let damaged = |_| refused("early_rings", part.len() as u64);
        let v1::EarlyRings { messages, rings } = v1::EarlyRings::decode(part).map_err(damaged)?;
        if rings.is_empty() {
            return Ok(false);
        }
        self.messages.take([messages])?;
        for v1::EarlyRing { topic, messages } in rings {
            let ring = self.rings.entry(TopicId(topic)).or_default();
            for number in messages {
                ring.append(self.messages.get(number)?, &self.retained)?;
            }
        }
        Ok(true)
    }
}

impl Drop for EarlyRings {
    /// What no topic has taken is retained no more.
    fn drop(&mut self) {
        for ring in self.rings.values_mut() {
            ring.begin_behind(0, &self.retained);
        }
    }
}

/// Bytes of a part; one more message may be beyond it. Tests have several parts.
const PART_BYTES: usize = if cfg!(test) { 200 } else { 1 << 20 };
/// Of a message beside its frame.
const EACH_BYTES: usize = 64;
