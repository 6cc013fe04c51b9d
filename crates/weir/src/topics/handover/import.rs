//! Makes topics of an export.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use weir_engine::handover::{ImportedMessages, NotUnderstood};
use weir_engine::{Nanos, TopicId};
use weir_wire::handover::v1;

use super::rings::EarlyRings;
use super::{Shards, growing, pairs};
use crate::base::handover::refused;
use crate::limits::bucket::Bucket;
use crate::topics::classes::Use;
use crate::topics::counts::ShardCounts;
use crate::topics::formats::Formats;
use crate::topics::reload::Had;
use crate::topics::ring::{Retained, Ring};
use crate::topics::tick::Tick;
use crate::topics::ticker::Ticker;
use crate::topics::{Class, Extra, Router, State, Topic, lock};

/// What the topics of an import need.
struct Import<'a> {
    router: &'a Router,
    messages: &'a ImportedMessages,
    /// The rings that came early, and what they retain.
    rings: &'a mut HashMap<TopicId, Ring, foldhash::fast::RandomState>,
    retained: &'a Retained,
    shards: Shards,
    /// As the classes of the other process were.
    uses: Vec<Use>,
    /// The classes of topics that keep something of their class before.
    in_place: HashMap<(*const Class, u32), Arc<Class>>,
    /// Resumes by topic.
    resuming: HashMap<TopicId, u32, foldhash::fast::RandomState>,
    /// Tickers of lengths that no class has any more.
    former: Vec<Arc<Ticker>>,
    /// Topics to which others may subscribe than before.
    changed: HashSet<TopicId>,
}

impl Router {
    /// Takes the topics of another process into this router, which has none yet. Messages that have
    /// not come early are taken there.
    ///
    /// Returns the topics to which others may subscribe than before, as [`Router::replace`] does.
    ///
    /// Limits: what was accepted or subscribed is kept, even beyond the limits of this configuration.
    /// Errors: a field that this program does not understand. The router is of no use then.
    pub(crate) fn import(
        &self,
        export: v1::Topics,
        early: &mut EarlyRings,
    ) -> Result<HashSet<TopicId>, NotUnderstood> {
        debug_assert!(self.topic_count() == 0, "nobody uses the router yet");
        let EarlyRings { messages, rings, retained } = early;
        messages.take([export.messages])?;
        let shards = Shards(self.mailboxes.len());
        let classes = export.classes.ok_or_else(|| refused("topics.classes", 0_u64))?;
        let renumbered = self.classes.load().numbered_as(&classes)?;
        self.classes.store(Arc::new(renumbered));
        let uses = classes.in_use.into_iter().map(Use::import);
        let mut import = Import {
            router: self,
            messages,
            rings,
            retained,
            shards,
            uses: uses.collect::<Result<_, _>>()?,
            in_place: HashMap::new(),
            resuming: self.resumes.import(export.next_resume, export.resumes, shards)?,
            former: Vec::new(),
            changed: HashSet::new(),
        };
        let topics = export.topics.into_iter().map(|topic| import.topic(topic));
        let topics = topics.collect::<Result<Vec<Arc<Topic>>, NotUnderstood>>()?;
        let (changed, former, resuming) = (import.changed, import.former, import.resuming);
        let is_known = |id: TopicId| topics.binary_search_by_key(&id, |topic| topic.id).is_ok();
        if let Some(id) = resuming.into_keys().find(|id| !is_known(*id)) {
            return Err(refused("topic_resume.topic", id.0));
        }
        self.ids.import(export.ids.unwrap_or_default(), &topics, shards)?;
        self.tickers.add_former(&former);
        self.retained.note_refused(export.refused);
        // This process has a connection of its own to the broker.
        if export.is_broker_lost == self.is_broker_lost() {
            self.broker_since_ms.store(export.broker_since_ms, Ordering::Relaxed);
        }
        self.attendances.import(export.attendances);
        self.settle(&topics);
        self.import_replays(export.replays, shards)?;
        Ok(changed)
    }

    /// Whether there is a topic of this id.
    pub(crate) fn knows(&self, id: TopicId) -> bool {
        self.ids.topic(id).is_some()
    }

    /// Lists topics where they were listed, and lets go of what their classes do not keep.
    fn settle(&self, topics: &[Arc<Topic>]) {
        let mut lingering = Vec::new();
        for topic in topics {
            let mut state = topic.lock();
            self.note_attendance_anew(&mut state);
            if state.extra.as_ref().is_some_and(|extra| !extra.ring.is_empty()) {
                lock(&self.rings).push(Arc::clone(topic));
            }
            self.list_imported(topic, &mut state);
            if topic.class().is_cluster {
                lingering.extend(state.lingers_since().map(|since| (since, Arc::clone(topic))));
                self.ask_anew(topic, &mut state);
                self.check_presence(topic, &mut state);
            }
        }
        lingering.sort_by_key(|(since, topic)| (*since, topic.id));
        lock(&self.lingering).extend(lingering);
        self.say_attendance_again(None);
        for topic in topics {
            while !self.trim_to_class(topic) {}
            // It may have begun for something that was then refused.
            self.end_if_idle(topic, &mut topic.lock());
        }
    }

    /// Counts a topic from another process. It retains what it retained there.
    fn note_attendance_anew(&self, state: &mut State) {
        state.is_unattended = state.is_unattended();
        self.unattended.fetch_add(usize::from(state.is_unattended), Ordering::Relaxed);
    }
}

impl Import<'_> {
    /// Makes a topic, and enters its name.
    fn topic(&mut self, export: v1::Topic) -> Result<Arc<Topic>, NotUnderstood> {
        let id = TopicId(export.id);
        if export.name.is_empty() {
            return Err(refused("topic.name", 0_u64));
        }
        let class = self.class(&export)?;
        let before = &self.uses[export.class as usize];
        let (tick, retention) = (before.tick, before.is_retained);
        if export.epoch == 0 && !class.is_cluster {
            return Err(refused("topic.epoch", 0_u64));
        }
        let mut counts = ShardCounts::default();
        for (shard, count) in pairs("topic.members", &export.members)? {
            counts.import(self.shards.index("topic.members", shard)?, count)?;
        }
        let mut state = State {
            formats: Formats::import(export.formats)?,
            epoch: export.epoch,
            offset: growing("topic.offset", export.offset)?,
            counts,
            ..State::new(&class)
        };
        if let Some(extra) = export.extra {
            state.extra = Some(Box::new(self.extra(extra, &class, (id, state.offset))?));
        } else if self.resuming.contains_key(&id) {
            state.extra_mut();
        }
        if let Some(extra) = &mut state.extra {
            extra.resuming = self.resuming.get(&id).copied().unwrap_or(0);
        }
        if class.is_cluster && state.extra.as_ref().is_none_or(|extra| extra.cluster.is_none()) {
            return Err(refused("topic_extra.cluster", export.id));
        }
        self.router.fit(&mut state, Had { ticks: tick.is_some(), retention }, &class);
        let name: Box<str> = export.name.into_boxed_str();
        let is_awaited = state.extra.as_ref().is_some_and(|extra| extra.tick.is_awaited());
        let topic = Topic { name, id, class: ArcSwap::new(class), state: Mutex::new(state) };
        let topic = Arc::new(topic);
        if is_awaited {
            self.await_tick(&topic, tick);
        }
        self.enter(&topic)?;
        Ok(topic)
    }

    /// The class that fits its name here, as far as a topic that exists can have it.
    fn class(&mut self, export: &v1::Topic) -> Result<Arc<Class>, NotUnderstood> {
        let before = self.uses.get(export.class as usize);
        let before = before.ok_or_else(|| refused("topic.class", export.class))?;
        if before.fixed.is_cluster && !self.router.has_broker {
            return Err(refused("topic_class_use.is_cluster", 1_u64));
        }
        let classes = self.router.classes.load();
        let class = classes.of(&export.name);
        if class.admits() != before.admits {
            self.changed.insert(TopicId(export.id));
        }
        let in_place = self.in_place.entry((Arc::as_ptr(class), export.class));
        Ok(Arc::clone(in_place.or_insert_with(|| class.in_place_of(before.fixed))))
    }

    fn extra(
        &mut self,
        export: v1::TopicExtra,
        class: &Class,
        (id, offset): (TopicId, u64),
    ) -> Result<Extra, NotUnderstood> {
        let router = self.router;
        let ring = export.ring.unwrap_or_default();
        let tick = export.tick.unwrap_or_default();
        let conflation = class.tick.as_ref().is_some_and(|rule| rule.conflation);
        let cluster = match export.cluster {
            Some(cluster) if class.is_cluster => {
                Some(Box::new(router.import_follow(cluster, self.shards)?))
            }
            Some(_) | None => None,
        };
        let members = match export.presence {
            Some(members) if class.presence => {
                Some(Box::new(router.import_members(members, self.shards)?))
            }
            Some(_) | None => None,
        };
        let early = (self.rings.remove(&id), self.retained);
        Ok(Extra {
            bucket: Bucket::until(Nanos(growing("topic_extra.bucket", export.bucket)?)),
            ring: Ring::import(ring, offset, self.messages, &router.retained, early)?,
            tick: Tick::import(tick, (offset, conflation), self.messages, &router.hasher)?,
            resuming: 0,
            cluster,
            members,
        })
    }

    /// The end of a topic's tick is awaited where ticks of its class end now, or ended before.
    fn await_tick(&mut self, topic: &Arc<Topic>, before: Option<Duration>) {
        let class = topic.class();
        let length = before.unwrap_or_default();
        let ticker = match &class.tick {
            Some(rule) => &rule.ticker,
            None => match self.former.iter().position(|ticker| ticker.length() == length) {
                Some(place) => &self.former[place],
                None => {
                    self.former.push(Arc::new(Ticker::new(length)));
                    &self.former[self.former.len() - 1]
                }
            },
        };
        ticker.list(Arc::clone(topic));
    }

    fn enter(&self, topic: &Arc<Topic>) -> Result<(), NotUnderstood> {
        let hasher = &self.router.hasher;
        let hash = hasher.hash_one(topic.name.as_ref());
        let mut stripe = lock(self.router.stripe(hash));
        if stripe.find(hash, |other| other.name == topic.name).is_some() {
            return Err(refused("topic.name", topic.id.0));
        }
        let rehash = |topic: &Arc<Topic>| hasher.hash_one(topic.name.as_ref());
        stripe.insert_unique(hash, Arc::clone(topic), rehash);
        Ok(())
    }
}
