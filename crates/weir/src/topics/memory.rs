//! Where the memory of topics is, and the rings with the oldest messages.

use std::cmp::Reverse;
use std::time::Duration;

use tokio::task::yield_now;
use weir_engine::{Footprint, Nanos, rounded};

use super::follow::ClusterTopic;
use super::{Extra, Router, Topic, lock};

/// The memory of the router, without the messages.
#[derive(Debug, Default)]
pub(crate) struct TopicsMemory {
    /// Topics with their names, tables and ids.
    pub(crate) topics: Footprint,
    /// Messages in rings, and the lists of them.
    pub(crate) rings: Footprint,
    /// Messages in running ticks, and the lists of them.
    pub(crate) ticks: Footprint,
    /// Members of topics with presence.
    pub(crate) presence: Footprint,
    /// What topics of the cluster need besides.
    pub(crate) cluster: Footprint,
    /// Running resumes.
    pub(crate) resumes: Footprint,
    /// The rings with the oldest messages, in order.
    pub(crate) oldest: Vec<OldRing>,
}

/// A ring and its oldest message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OldRing {
    pub(crate) topic: String,
    /// The bytes of all its messages.
    pub(crate) bytes: usize,
    /// The age of its oldest message.
    pub(crate) age: Duration,
}

impl Router {
    /// Sums the memory of all topics, and finds the rings with the oldest messages.
    ///
    /// Cost: some 0.2 µs for a topic, under its lock. Other tasks have a turn after each thousand.
    pub(crate) async fn memory(&self, rings_max: usize) -> TopicsMemory {
        let mut memory = TopicsMemory { resumes: self.resumes.footprint(), ..Default::default() };
        let now = Nanos::now();
        let mut chunk = 0;
        while let Some(topics) = self.ids.chunk(chunk) {
            for topic in &topics {
                memory.add(topic, now, rings_max);
            }
            memory.keep_oldest(rings_max);
            drop(topics);
            yield_now().await;
            chunk += 1;
        }
        let tables = self.stripes.iter().map(|stripe| rounded(lock(stripe).allocation_size()));
        memory.topics.bytes += tables.sum::<usize>()
            + rounded(size_of_val(&*self.stripes))
            + self.ids.occupied()
            + rounded(lock(&self.rings).capacity() * size_of::<usize>())
            + rounded(lock(&self.lingering).capacity() * size_of::<(Nanos, usize)>());
        memory
    }

    /// The numbers of classes that messages may carry, with their patterns; `None` for messages to
    /// no topic.
    pub(crate) fn class_patterns(&self) -> Vec<(u16, Option<String>)> {
        let classes = self.classes.load();
        classes.patterns().map(|(number, name)| (number, name.map(str::to_owned))).collect()
    }

    /// The topic's name, if the topic still exists and has this epoch. 0 stands for any.
    pub(crate) fn name_in(&self, id: weir_engine::TopicId, epoch: u64) -> Option<String> {
        let topic = self.ids.topic(id)?;
        let is_it = epoch == 0 || topic.lock().epoch == epoch;
        is_it.then(|| topic.name.as_ref().to_owned())
    }
}

impl TopicsMemory {
    fn add(&mut self, topic: &Topic, now: Nanos, rings_max: usize) {
        let state = topic.lock();
        let own = rounded(size_of::<Topic>() + ARC_BYTES) + rounded(topic.name.len());
        self.topics.add(own + state.counts.bytes());
        let Some(extra) = &state.extra else { return };
        self.topics.bytes += rounded(size_of::<Extra>());
        self.rings += extra.ring.footprint();
        self.ticks += extra.tick.footprint();
        if let Some(members) = &extra.members {
            self.presence += members.footprint();
        }
        if extra.cluster.is_some() {
            self.cluster.add(rounded(size_of::<ClusterTopic>()));
        }
        if let Some(since) = extra.ring.since().filter(|_| rings_max > 0) {
            let age = now.since(since);
            let is_old = self.oldest.len() < rings_max
                || self.oldest.last().is_some_and(|least| age > least.age);
            if is_old {
                let (topic, bytes) = (topic.name.as_ref().to_owned(), extra.ring.bytes());
                self.oldest.push(OldRing { topic, bytes, age });
            }
        }
    }

    fn keep_oldest(&mut self, rings_max: usize) {
        self.oldest.sort_by_key(|ring| Reverse(ring.age));
        self.oldest.truncate(rings_max);
    }
}

const ARC_BYTES: usize = 2 * size_of::<usize>();
