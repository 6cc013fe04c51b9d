//! The stores of conflation: the newest message of each key, for every topic behind which a
//! connection lags.
//!
//! [`Latest`] does no I/O and charges nothing. It says how many bytes a store occupies, and the
//! shard does the rest (`catch_up`).

use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use crate::budget::Budget;
use crate::handover::StoreExport;
use crate::id::TopicId;
use crate::memory::Footprint;
use crate::message::Message;
use crate::outbox::{GATHER_MAX, Lag};
use crate::time::Nanos;

/// The newest messages of the topics behind which connections lag.
///
/// Shape: nothing for a topic behind which no connection lags; otherwise at most `conflation_keys_max` messages, by
/// reference.
#[derive(Debug, Default)]
pub(super) struct Latest {
    topics: BTreeMap<TopicId, Store>,
}

/// The newest messages of one topic.
///
/// Invariant: of each key at most one message; `by_key` has the orders of those with a key. Order: [`Message::order`].
#[derive(Debug, Default)]
struct Store {
    lagging: usize,
    /// Order of the last message that was entered. The next connection in the same walk need not enter it again.
    met: Option<u64>,
    by_order: BTreeMap<u64, Held>,
    by_key: HashMap<Key, u64>,
    /// Bytes that the shard's lease holds for the store.
    charged: usize,
}

/// A message that counts as waiting as long as the store keeps it.
#[derive(Debug)]
pub(super) struct Held(Arc<Message>);

/// The change of the lease after which it holds the bytes that a store occupies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Balance {
    /// Give back this many bytes.
    Give(usize),
    /// Take this many bytes, and then call [`Latest::note_charged`].
    Take(usize),
}

impl Held {
    /// Holds a message that counts as waiting already.
    pub(super) fn new(message: Arc<Message>) -> Held {
        Held(message)
    }
}

impl Deref for Held {
    type Target = Message;

    fn deref(&self) -> &Message {
        &self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// The message of a key.
#[derive(Debug)]
struct Key(Arc<Message>);

/// The bytes of a store, and of a message in it: tree and table nodes with the room that they leave
/// free.
const STORE_BYTES: usize = 256;
const NODE_BYTES: usize = 80;

/// One send of a connection that catches up gathers little more than this. So the kernel holds no
/// stale bytes when the shard asks for the rest. The default of `TCP_NOTSENT_LOWAT` is the same.
const BATCH_BYTES: usize = 16 * 1024;

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.0.key() == other.0.key()
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key().hash(state);
    }
}

impl Store {
    fn footprint(&self) -> usize {
        STORE_BYTES + self.by_order.len() * NODE_BYTES
    }

    /// Enters a message that counts as waiting, unless it, or a newer one of its key, is there.
    /// Returns how many messages it replaced.
    ///
    /// A connection that meets the message later, in a slower walk, enters it once more. That
    /// changes nothing.
    fn enter(&mut self, message: Held, messages_max: usize, keeps_older: bool) -> usize {
        let offset = message.order();
        let is_full = self.by_order.len() >= messages_max;
        if is_full && self.by_order.first_key_value().is_some_and(|(first, _)| offset < *first) {
            // It has fallen out already, and was counted then.
            return 0;
        }
        let mut replaced = 0;
        if !message.key().is_empty() {
            let key = Key(Arc::clone(&message.0));
            if let Some(before) = self.by_key.get(&key).copied() {
                if before >= offset || keeps_older {
                    return 0;
                }
                self.by_order.remove(&before);
                // The key's old message must not stay alive for its bytes.
                self.by_key.remove(&key);
                replaced = 1;
            }
            self.by_key.insert(key, offset);
        }
        self.by_order.insert(offset, message);
        while self.by_order.len() > messages_max
            && let Some((_, oldest)) = self.by_order.pop_first()
        {
            if !oldest.key().is_empty() {
                self.by_key.remove(&Key(Arc::clone(&oldest.0)));
            }
            replaced += 1;
        }
        replaced
    }

    /// See [`Latest::gather`].
    fn gather(&self, lag: &Lag, now: Nanos, batch: &mut Vec<Arc<Message>>) -> Option<u64> {
        if lag.next > lag.seen {
            return None;
        }
        let mut bytes = 0;
        for (offset, message) in self.by_order.range(lag.next..=lag.seen) {
            if message.is_expired(now) {
                return batch.is_empty().then_some(*offset);
            }
            batch.push(Arc::clone(&message.0));
            bytes += message.frame().len();
            if batch.len() == GATHER_MAX || bytes >= BATCH_BYTES {
                break;
            }
        }
        None
    }
}

impl Latest {
    /// Counts one more connection that lags behind a topic.
    pub(super) fn begin_lag(&mut self, topic: TopicId) {
        self.topics.entry(topic).or_default().lagging += 1;
    }

    /// Counts one connection less. With the last one the store goes. Returns the bytes that the
    /// lease held for it.
    pub(super) fn end_lag(&mut self, topic: TopicId) -> usize {
        let Some(store) = self.topics.get_mut(&topic) else { return 0 };
        store.lagging -= 1;
        if store.lagging > 0 {
            return 0;
        }
        self.topics.remove(&topic).map_or(0, |store| store.charged)
    }

    /// A walk brings the message at `offset` to a lagging connection. Returns whether to enter it:
    /// not if the walk has just brought it to another connection.
    pub(super) fn meet(&mut self, topic: TopicId, offset: u64) -> bool {
        let store = self.topics.get_mut(&topic);
        store.is_some_and(|store| store.met.replace(offset) != Some(offset))
    }

    /// The message that was met last has not been entered.
    pub(super) fn forget_met(&mut self, topic: TopicId) {
        if let Some(store) = self.topics.get_mut(&topic) {
            store.met = None;
        }
    }

    /// Enters a message and returns how many it replaced. `None`: no connection lags behind the
    /// topic any more.
    pub(super) fn enter(
        &mut self,
        topic: TopicId,
        message: Held,
        messages_max: usize,
        keeps_older: bool,
    ) -> Option<usize> {
        Some(self.topics.get_mut(&topic)?.enter(message, messages_max, keeps_older))
    }

    /// The change of the lease for a store.
    pub(super) fn account(&mut self, topic: TopicId) -> Balance {
        let Some(store) = self.topics.get_mut(&topic) else { return Balance::Give(0) };
        let (occupied, charged) = (store.footprint(), store.charged);
        if occupied > charged {
            return Balance::Take(occupied - charged);
        }
        store.charged = occupied;
        Balance::Give(charged - occupied)
    }

    /// Notes that the lease has taken this many bytes for a store; `false` if the store has gone
    /// meanwhile.
    pub(super) fn note_charged(&mut self, topic: TopicId, bytes: usize) -> bool {
        let store = self.topics.get_mut(&topic);
        store.map(|store| store.charged += bytes).is_some()
    }

    /// Puts the next messages of a lagging connection into `batch`, up to the first expired
    /// message. If the expired one comes first, it is skipped and its offset returned.
    pub(super) fn gather(
        &self,
        lag: &Lag,
        now: Nanos,
        batch: &mut Vec<Arc<Message>>,
    ) -> Option<u64> {
        self.topics.get(&lag.topic)?.gather(lag, now, batch)
    }

    /// What another process needs to make the same stores. `number` gives messages numbers.
    pub(super) fn export(&self, mut number: impl FnMut(&Arc<Message>) -> u64) -> Vec<StoreExport> {
        let stores = self.topics.iter().map(|(topic, store)| {
            let messages = store.by_order.values().map(|held| number(&held.0));
            StoreExport { topic: *topic, met: store.met, messages: messages.collect() }
        });
        stores.collect()
    }

    /// Fills the store of a topic, behind which connections lag already, as it was in another
    /// process. The messages count as waiting, even beyond the budget. Returns the bytes to charge.
    pub(super) fn import(
        &mut self,
        topic: TopicId,
        met: Option<u64>,
        messages: impl Iterator<Item = Arc<Message>>,
    ) -> usize {
        let Some(store) = self.topics.get_mut(&topic) else { return 0 };
        store.met = met;
        for message in messages {
            message.hold_anyway();
            store.enter(Held::new(message), usize::MAX, false);
        }
        store.charged = store.footprint();
        store.charged
    }

    /// The kept messages, and the bytes of the stores.
    pub(super) fn footprint(&self) -> Footprint {
        let mut sum = Footprint::default();
        for store in self.topics.values() {
            sum += Footprint::new(store.by_order.len(), store.footprint());
        }
        sum
    }

    /// The most bytes that a holder has, among the topics of these lags.
    pub(super) fn most_held(&self, lags: &[Lag], budget: &Budget) -> usize {
        let stores = lags.iter().filter_map(|lag| self.topics.get(&lag.topic));
        let newest = stores.filter_map(|store| store.by_order.values().next_back());
        let held = newest.map(|message| budget.held_by(message.charge().holders().target));
        held.max().unwrap_or(0)
    }
}

#[cfg(any(test, feature = "sim"))]
impl Latest {
    /// The messages of all stores.
    pub(super) fn held(&self) -> impl Iterator<Item = &Arc<Message>> {
        self.topics.values().flat_map(|store| store.by_order.values()).map(|held| &held.0)
    }

    /// The bytes that the stores have taken from the lease.
    pub(super) fn charged(&self) -> usize {
        self.topics.values().map(|store| store.charged).sum()
    }

    /// Looks for contradictions; `lagging` has the number of lagging connections for each topic.
    pub(super) fn check(&self, lagging: &BTreeMap<TopicId, usize>) -> Result<(), String> {
        let stores: BTreeMap<TopicId, usize> =
            self.topics.iter().map(|(topic, store)| (*topic, store.lagging)).collect();
        if stores != *lagging {
            return Err(format!("the stores count {stores:?} lagging, not {lagging:?}"));
        }
        self.topics.iter().try_for_each(|(topic, store)| {
            store.check().map_err(|what| format!("store of {topic:?}: {what}"))
        })
    }
}

#[cfg(any(test, feature = "sim"))]
impl Store {
    fn check(&self) -> Result<(), String> {
        if self.charged != self.footprint() {
            return Err(format!("charged {} of {}", self.charged, self.footprint()));
        }
        let keys = self.by_order.values().filter(|message| !message.key().is_empty()).count();
        let is_agreed = self.by_key.iter().all(|(key, offset)| {
            self.by_order.get(offset).is_some_and(|message| Arc::ptr_eq(&message.0, &key.0))
        });
        if keys != self.by_key.len() || !is_agreed {
            return Err(format!("keys and messages disagree: {self:?}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::TopicMessage;

    const TOPIC: TopicId = TopicId(3);
    const NOW: Nanos = Nanos(7);

    /// A message whose key is this byte; 0: no key.
    fn held(budget: &Arc<Budget>, offset: u64, key: u8, expires_at: Option<Nanos>) -> Held {
        let key_range = if key == 0 { 0..0 } else { 0..1 };
        let topic = TopicMessage { offset, key: key_range, ..TopicMessage::default() };
        let message = Message::of_topic(budget, vec![key; 10], NOW, expires_at, topic);
        let message = message.expect("the budget has room");
        assert!(message.hold(), "the budget has room");
        Held::new(message)
    }

    /// The offsets that come next, or the offset that is skipped.
    fn gather(latest: &Latest, next: u64, seen: u64) -> Result<Vec<u64>, u64> {
        let mut batch = Vec::new();
        let expired = latest.gather(&Lag { topic: TOPIC, next, seen }, NOW, &mut batch);
        match expired {
            Some(offset) => Err(offset),
            None => Ok(batch.iter().map(|message| message.offset()).collect()),
        }
    }

    #[test]
    fn of_each_key_the_newest_is_kept_and_of_all_the_last_few() {
        let budget = Budget::new(1 << 20);
        let mut latest = Latest::default();
        assert!(!latest.meet(TOPIC, 1), "no connection lags");
        latest.begin_lag(TOPIC);
        assert!(latest.meet(TOPIC, 1) && !latest.meet(TOPIC, 1));
        let mut enter = |offset, key| {
            latest.enter(TOPIC, held(&budget, offset, key, None), 3, false).expect("one lags")
        };
        let replaced = [(1, b'a'), (2, b'b'), (3, b'a'), (2, b'b'), (4, 0), (5, 0)];
        let replaced = replaced.map(|(offset, key)| enter(offset, key));
        assert_eq!(replaced, [0, 0, 1, 0, 0, 1]);
        assert_eq!(gather(&latest, 1, 9), Ok(vec![3, 4, 5]));
        assert_eq!(gather(&latest, 4, 4), Ok(vec![4]), "nothing behind what a walk has brought");
        assert_eq!(gather(&latest, 5, 4), Ok(vec![]));
    }

    #[test]
    fn a_store_is_charged_and_goes_with_the_last_who_lags() {
        let budget = Budget::new(1 << 20);
        let mut latest = Latest::default();
        latest.begin_lag(TOPIC);
        latest.begin_lag(TOPIC);
        assert_eq!(latest.enter(TOPIC, held(&budget, 1, 0, Some(NOW)), 3, false), Some(0));
        assert_eq!(gather(&latest, 1, 1), Err(1), "its time has passed");
        let Balance::Take(bytes) = latest.account(TOPIC) else { panic!("nothing is charged yet") };
        assert!(latest.note_charged(TOPIC, bytes));
        assert_eq!(latest.account(TOPIC), Balance::Give(0));
        assert_eq!((latest.end_lag(TOPIC), latest.end_lag(TOPIC)), (0, bytes));
        assert!(!latest.note_charged(TOPIC, bytes), "it has gone");
        assert_eq!(budget.used(), 0, "its message is released");
    }

    /// The connection for which there was no room is closed; the next one in the walk needs it.
    #[test]
    fn a_message_that_was_not_entered_is_met_again() {
        let mut latest = Latest::default();
        latest.begin_lag(TOPIC);
        assert!(latest.meet(TOPIC, 7));
        assert!(!latest.meet(TOPIC, 7), "the walk has just brought it to another one");
        latest.forget_met(TOPIC);
        assert!(latest.meet(TOPIC, 7));
    }
}
