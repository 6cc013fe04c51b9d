//! The reference model of one topic, as the front knows it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::id::{ConnId, SlowPolicy, TopicId};
use crate::message::Message;

/// A topic as the front knows it.
#[derive(Debug, Default)]
pub(super) struct TopicModel {
    pub(super) members: Vec<usize>,
    /// How often the front counts each connection.
    pub(super) counts: BTreeMap<ConnId, u32>,
    pub(super) is_retiring: bool,
    pub(super) slow: SlowPolicy,
    pub(super) has_ticks: bool,
    /// Offset of the last message.
    pub(super) head: u64,
    /// The messages in its ring.
    pub(super) ring: VecDeque<Kept>,
    pub(super) ring_max: usize,
}

/// A message in a ring.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) offset: u64,
    pub(super) number: u32,
    pub(super) message: Arc<Message>,
}

impl TopicModel {
    pub(super) fn count(&mut self, conn: ConnId) {
        *self.counts.entry(conn).or_default() += 1;
    }

    /// Takes one count of the connection back.
    pub(super) fn uncount(&mut self, conn: ConnId) -> Result<(), String> {
        let Some(count) = self.counts.get_mut(&conn) else {
            return Err(format!("{conn:?} leaves, and is not counted"));
        };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&conn);
        }
        Ok(())
    }

    /// The messages that its ring keeps.
    pub(super) fn kept(&self) -> impl Iterator<Item = &Arc<Message>> {
        self.ring.iter().map(|kept| &kept.message)
    }

    /// Empties the ring, which releases its messages.
    pub(super) fn forget(&mut self) {
        self.ring.clear();
    }
}

/// The id of a topic.
pub(super) fn topic_of(index: usize) -> TopicId {
    TopicId(u32::try_from(index).expect("a handful of topics"))
}
