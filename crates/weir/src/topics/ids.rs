//! Ids of topics: dense, and used again only after every shard has forgotten the topic.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use tokio::sync::Notify;
use weir_engine::handover::NotUnderstood;
use weir_engine::{TopicId, rounded, rounded_table};
use weir_wire::handover::v1;

use super::Topic;
use super::handover::{Shards, pairs};
use crate::base::handover::{narrow, refused};

/// Topics by id.
///
/// Shape: chunks of [`CHUNK`] pointers, so that growth copies only the pointers to chunks; eight
/// bytes a topic.
pub(super) struct Ids {
    table: RwLock<Table>,
    /// Retirements that found a full mailbox. Lock it after `table`, never before.
    waiting: Mutex<VecDeque<Retirement>>,
    due: Notify,
    topics_max: AtomicUsize,
}

/// A shard that has to forget a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Retirement {
    pub(crate) topic: TopicId,
    pub(crate) shard: usize,
}

#[derive(Default)]
struct Table {
    chunks: Vec<Box<[Option<Arc<Topic>>; CHUNK]>>,
    /// Ids below `used` have been assigned.
    used: usize,
    free: Vec<TopicId>,
    /// Ended topics, and the number of shards that still have to forget each.
    retiring: HashMap<TopicId, usize, foldhash::fast::RandomState>,
}

impl Ids {
    pub(super) fn new(topics_max: usize) -> Self {
        let topics_max = AtomicUsize::new(topics_max);
        Self { table: RwLock::default(), waiting: Mutex::default(), due: Notify::new(), topics_max }
    }

    /// Changes the limit for further topics.
    pub(super) fn limit(&self, topics_max: usize) {
        self.topics_max.store(topics_max, Ordering::Relaxed);
    }

    /// The topic that has this id now.
    pub(super) fn topic(&self, id: TopicId) -> Option<Arc<Topic>> {
        let table = self.table.read().expect(NO_PANIC);
        table.slot(id)?.clone()
    }

    /// Gives the next topic its id; `None` if there are too many.
    pub(super) fn begin(&self, topic: impl FnOnce(TopicId) -> Arc<Topic>) -> Option<Arc<Topic>> {
        let mut table = self.table.write().expect(NO_PANIC);
        if table.used - table.free.len() >= self.topics_max.load(Ordering::Relaxed) {
            return None;
        }
        let id = match table.free.pop() {
            Some(id) => id,
            None => {
                let id = TopicId(u32::try_from(table.used).ok()?);
                if table.used.is_multiple_of(CHUNK) {
                    table.chunks.push(Box::new([const { None }; CHUNK]));
                }
                table.used += 1;
                id
            }
        };
        let topic = topic(id);
        *table.slot_mut(id) = Some(Arc::clone(&topic));
        Some(topic)
    }

    /// Removes an ended topic from the table. Its id is free once all `shards` have confirmed.
    pub(super) fn retire(
        &self,
        topic: TopicId,
        shards: impl Iterator<Item = usize>,
        push: impl Fn(Retirement) -> bool,
    ) {
        let retirements: Vec<Retirement> =
            shards.map(|shard| Retirement { topic, shard }).collect();
        let mut table = self.table.write().expect(NO_PANIC);
        *table.slot_mut(topic) = None;
        if retirements.is_empty() {
            table.free.push(topic);
            return;
        }
        // Before the first push, because a shard may confirm at once.
        table.retiring.insert(topic, retirements.len());
        drop(table);
        for retirement in retirements {
            if !push(retirement) {
                self.waiting().push_back(retirement);
                self.due.notify_one();
            }
        }
    }

    /// Notes that a shard has forgotten a topic.
    pub(super) fn confirm(&self, id: TopicId) {
        let mut table = self.table.write().expect(NO_PANIC);
        let Some(remaining) = table.retiring.get_mut(&id) else {
            debug_assert!(false, "a shard confirms what it was asked");
            return;
        };
        *remaining -= 1;
        if *remaining == 0 {
            table.retiring.remove(&id);
            table.free.push(id);
        }
    }

    /// Repeats the retirements that found a full mailbox; `false` if one is still full.
    pub(super) fn retry(&self, push: impl Fn(Retirement) -> bool) -> bool {
        let mut waiting = self.waiting();
        waiting.retain(|retirement| !push(*retirement));
        waiting.is_empty()
    }

    pub(super) async fn due(&self) {
        self.due.notified().await;
    }

    /// What is left to tell when each topic tells its own id.
    pub(super) fn export(&self) -> v1::TopicIds {
        let table = self.table.read().expect(NO_PANIC);
        let mut retiring: Vec<(u32, u32)> = table
            .retiring
            .iter()
            .map(|(id, shards)| (id.0, u32::try_from(*shards).unwrap_or(u32::MAX)))
            .collect();
        retiring.sort_unstable();
        let waiting = self.waiting();
        let shard = |shard| u32::try_from(shard).unwrap_or(u32::MAX);
        let waiting = waiting.iter().flat_map(|one| [one.topic.0, shard(one.shard)]);
        v1::TopicIds {
            used: u32::try_from(table.used).unwrap_or(u32::MAX),
            free: table.free.iter().map(|id| id.0).collect(),
            retiring: retiring.into_iter().flat_map(|(id, shards)| [id, shards]).collect(),
            waiting: waiting.collect(),
        }
    }

    /// Takes the ids of another process, and its topics in the order of theirs, even beyond the
    /// limit.
    pub(super) fn import(
        &self,
        ids: v1::TopicIds,
        topics: &[Arc<Topic>],
        shards: Shards,
    ) -> Result<(), NotUnderstood> {
        let v1::TopicIds { used, free, retiring, waiting } = ids;
        let mut table = Table { free: free.into_iter().map(TopicId).collect(), ..Table::default() };
        let mut kinds = HashSet::new();
        for (id, count) in pairs("topic_ids.retiring", &retiring)? {
            let count = narrow("topic_ids.retiring", count)?;
            table.retiring.insert(TopicId(id), count);
        }
        let live = topics.iter().map(|topic| topic.id);
        let all = live.chain(table.free.iter().copied()).chain(table.retiring.keys().copied());
        let all = all.inspect(|id| {
            kinds.insert(*id);
        });
        // Each id is in one of the three.
        let (count, highest) = (all.count(), kinds.iter().max().map_or(0, |id| id.0 as usize + 1));
        if count != kinds.len() || count != used as usize || highest != count {
            return Err(refused("topic_ids.used", used));
        }
        let chunk = || Box::new([const { None }; CHUNK]);
        table.chunks.extend(std::iter::repeat_with(chunk).take(count.div_ceil(CHUNK)));
        table.used = count;
        for topic in topics {
            *table.slot_mut(topic.id) = Some(Arc::clone(topic));
        }
        for (id, shard) in pairs("topic_ids.waiting", &waiting)? {
            let topic = TopicId(id);
            if !table.retiring.contains_key(&topic) {
                return Err(refused("topic_ids.waiting", id));
            }
            let shard = shards.index("topic_ids.waiting", shard)?;
            self.waiting().push_back(Retirement { topic, shard });
            self.due.notify_one();
        }
        *self.table.write().expect(NO_PANIC) = table;
        Ok(())
    }

    /// Some of the topics, a chunk of ids at a time; `None` behind the last chunk.
    pub(super) fn chunk(&self, chunk: usize) -> Option<Vec<Arc<Topic>>> {
        let table = self.table.read().expect(NO_PANIC);
        table.chunks.get(chunk).map(|topics| topics.iter().flatten().cloned().collect())
    }

    /// The bytes of the table.
    pub(super) fn occupied(&self) -> usize {
        let table = self.table.read().expect(NO_PANIC);
        let retiring = rounded_table(table.retiring.capacity(), size_of::<(TopicId, usize)>());
        let waiting = rounded(self.waiting().capacity() * size_of::<Retirement>());
        let chunk = rounded(size_of::<[Option<Arc<Topic>>; CHUNK]>());
        rounded(table.chunks.capacity() * size_of::<usize>())
            + table.chunks.len() * chunk
            + rounded(table.free.capacity() * size_of::<TopicId>())
            + retiring
            + waiting
    }

    pub(super) fn live_count(&self) -> usize {
        let table = self.table.read().expect(NO_PANIC);
        table.used - table.free.len() - table.retiring.len()
    }

    #[cfg(test)]
    pub(super) fn in_use(&self) -> usize {
        let table = self.table.read().expect(NO_PANIC);
        table.used - table.free.len()
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Retirement>> {
        self.waiting.lock().expect(NO_PANIC)
    }
}

impl Table {
    fn slot(&self, id: TopicId) -> Option<&Option<Arc<Topic>>> {
        let index = id.0 as usize;
        self.chunks.get(index / CHUNK).map(|chunk| &chunk[index % CHUNK])
    }

    fn slot_mut(&mut self, id: TopicId) -> &mut Option<Arc<Topic>> {
        let index = id.0 as usize;
        &mut self.chunks[index / CHUNK][index % CHUNK]
    }
}

/// 8 KiB a chunk.
const CHUNK: usize = 1024;
const NO_PANIC: &str = "no panic happens under the router's locks";
