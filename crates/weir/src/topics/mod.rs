//! The router: which topics exist, who is in them by shard, and in which order their messages leave.
//!
//! A shard knows its members; the router knows only how many each shard has, and counts them so that no publish asks a
//! shard that has none. What is counted: a membership from the moment its `Subscribe`, or the last part of its
//! resume, is pushed until the shard reports it not made, left, or closed. Each +1 meets exactly one −1.
//!
//! Order of locks: a topic's, then one of its stripe, its ticker, the list of rings or that of resumes, then that of
//! the ids. None is held while waiting for anything.

mod classes;
mod counts;
mod formats;
mod history;
mod ids;
mod resume;
mod ring;
mod tick;

use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hashbrown::HashTable;
use weir_engine::{Budget, Command, Credit, Message, Nanos, TopicId};

use crate::base::config::Config;
use crate::base::mailboxes::{self, Mailboxes, Publisher};
use crate::base::model::{TopicInfo, TopicNameError};
use crate::limits::bucket::Bucket;
use crate::observe::counters::Counters;
pub(crate) use classes::{Class, Classes};
use counts::ShardCounts;
use formats::Formats;
pub(crate) use formats::SharedFormats;
pub(crate) use history::{History, Range};
use ids::Ids;
pub(crate) use ids::Retirement;
use resume::Resumes;
pub(crate) use resume::left;
use ring::{Retained, Ring};
use tick::{Tick, Ticker};

/// All topics.
///
/// Shape: name → topic in [`STRIPES`] hash tables, each behind a lock of its own; id → topic in chunks.
/// Limits: `topics_max` topics, those included whose id is not free again yet; half of them may be topics that nobody
/// is in, or who publishes to new names all the time would leave no topic to those who subscribe.
/// Cost: a topic with a name of 25 bytes takes 196 bytes in all, and more only if its class has a rate, a tick or
/// a ring; nothing remains of one that has ended.
pub(crate) struct Router {
    mailboxes: Arc<Mailboxes>,
    hasher: RandomState,
    stripes: Box<[Mutex<HashTable<Arc<Topic>>>]>,
    ids: Ids,
    classes: Classes,
    tickers: Box<[Ticker]>,
    /// Topics that keep something.
    rings: Mutex<Vec<Arc<Topic>>>,
    retained: Retained,
    /// Topics that nobody is in, resumes included: they live for what they keep.
    unattended: AtomicUsize,
    unattended_max: usize,
    resumes: Resumes,
    /// Bytes of one part of a resume.
    chunk_bytes_max: usize,
    budget: Arc<Budget>,
    counters: Arc<Counters>,
    name_bytes_max: usize,
    frame_bytes_max: usize,
}

/// One topic, from its first subscriber, or message to keep, to its last.
pub(crate) struct Topic {
    name: Box<str>,
    id: TopicId,
    epoch: u64,
    class: Arc<Class>,
    state: Mutex<State>,
}

/// What changes of a topic.
struct State {
    /// Offset of the last message accepted.
    offset: u64,
    counts: ShardCounts,
    /// Formats that its subscribers speak.
    formats: Formats,
    /// Whether it counts as one that nobody is in.
    is_unattended: bool,
    /// Out of the tables: whoever still holds the topic looks its name up again.
    ended: bool,
    /// What only the topics of some classes have.
    extra: Option<Box<Extra>>,
}

/// What a topic has beside its offset and its members, if its class asks for it.
#[derive(Default)]
struct Extra {
    bucket: Bucket,
    tick: Tick,
    ring: Ring,
    /// Connections that resume it and are not counted as members yet.
    resuming: u32,
}

/// What the router must know of a message before it is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer<'a> {
    /// Length of its frame, at the most.
    pub(crate) frame_bytes: usize,
    /// Its conflation key, or empty.
    pub(crate) key: &'a str,
    pub(crate) accepted_at: Nanos,
    pub(crate) publisher: Publisher,
}

/// Where a message goes: a topic that exists, or the class of a topic that may have to begin.
pub(crate) enum Destination {
    Topic(Arc<Topic>),
    Class(Arc<Class>),
}

/// The place of a message in its topic.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) epoch: u64,
    pub(crate) offset: u64,
}

/// A message was accepted for a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Routed {
    pub(crate) offset: u64,
    pub(crate) connections: u32,
}

/// Why a publish was refused: nothing has been pushed and no offset used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouteError {
    /// A shard's mailbox is full.
    Busy,
    /// The byte budget has no room for the message.
    Budget,
    /// It is longer than its class allows.
    TooLarge { limit: usize },
    /// The topic has had as many as its class allows in a second.
    RateLimited { per_second: u32, after: Duration },
    /// The running tick has gathered as much as it may.
    TickFull { limit: usize, after: Duration },
    /// It would have to begin its topic, and `topics_max` topics exist, or half as many that nobody is in.
    TooManyTopics,
}

impl Destination {
    /// The class of the topic.
    pub(crate) fn class(&self) -> &Class {
        match self {
            Destination::Topic(topic) => &topic.class,
            Destination::Class(class) => class,
        }
    }
}

impl Router {
    pub(crate) fn new(
        mailboxes: Arc<Mailboxes>,
        budget: Arc<Budget>,
        counters: Arc<Counters>,
        config: &Config,
    ) -> Self {
        let classes = Classes::new(config);
        Self {
            mailboxes,
            hasher: RandomState::new(),
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
            ids: Ids::new(config.limits.topics_max),
            tickers: classes.tick_lengths().iter().copied().map(Ticker::new).collect(),
            classes,
            rings: Mutex::default(),
            retained: Retained::new(match config.memory.retention_bytes {
                0 => budget.bytes_max() / 4,
                bytes => bytes,
            }),
            unattended: AtomicUsize::new(0),
            unattended_max: config.limits.topics_max.div_ceil(2),
            resumes: Resumes::default(),
            chunk_bytes_max: config.connection.low_watermark_bytes,
            budget,
            counters,
            name_bytes_max: config.limits.topic_bytes_max,
            frame_bytes_max: config.limits.frame_bytes_max,
        }
    }

    /// Publishes to a topic; `None` if it does not exist, which is to say that nobody is in it and nothing is kept.
    ///
    /// `message` makes the message once its offset is known; it is asked only if it will be pushed, or the budget is
    /// used up. All mailboxes get it or none.
    pub(crate) fn publish(
        &self,
        name: &str,
        mut destination: Destination,
        offer: Offer<'_>,
        message: impl FnOnce(&Class, Place) -> Option<Arc<Message>>,
    ) -> Result<Option<Routed>, RouteError> {
        loop {
            let topic = match destination {
                Destination::Topic(topic) => topic,
                Destination::Class(class) => match self.begin_to_publish(name, &class, offer)? {
                    Some(topic) => topic,
                    None => return Ok(None),
                },
            };
            let mut state = topic.lock();
            if state.ended {
                drop(state);
                destination = self.destination(name);
                continue;
            }
            let routed = self.accept(&topic, &mut state, offer, message);
            self.end_if_idle(&topic, &mut state);
            return routed.map(Some);
        }
    }

    /// Where a message to this name goes.
    ///
    /// Cost: one look-up; the patterns of the classes are tried only where no topic of this name exists.
    pub(crate) fn destination(&self, name: &str) -> Destination {
        match self.find(name) {
            Some(topic) => Destination::Topic(topic),
            None => Destination::Class(Arc::clone(self.classes.of(name))),
        }
    }

    /// Begins the topic of a message, if the topic would keep it.
    fn begin_to_publish(
        &self,
        name: &str,
        class: &Class,
        offer: Offer<'_>,
    ) -> Result<Option<Arc<Topic>>, RouteError> {
        class.check_length(offer.frame_bytes)?;
        if class.retention.is_none() {
            return Ok(None);
        }
        if self.unattended.load(Ordering::Relaxed) >= self.unattended_max {
            return Err(RouteError::TooManyTopics);
        }
        self.find_or_begin(name).map(Some).ok_or(RouteError::TooManyTopics)
    }

    /// Takes a message under its topic's lock, or nothing of it.
    fn accept(
        &self,
        topic: &Arc<Topic>,
        state: &mut State,
        offer: Offer<'_>,
        message: impl FnOnce(&Class, Place) -> Option<Arc<Message>>,
    ) -> Result<Routed, RouteError> {
        topic.class.check_length(offer.frame_bytes)?;
        let bucket = state.drawn_bucket(&topic.class, offer.accepted_at)?;
        match &topic.class.tick {
            Some(rule) => self.gather(topic, state, (rule, offer), message)?,
            None => {
                let credits =
                    self.credits(&state.counts, topic, offer.publisher).ok_or(RouteError::Busy)?;
                let message = message(&topic.class, topic.next(state)).ok_or(RouteError::Budget)?;
                if !state.formats.encode_ahead(&message, &self.counters) {
                    return Err(RouteError::Budget);
                }
                for credit in credits {
                    credit.push(Command::Publish(topic.id, Arc::clone(&message)));
                }
                if let Some(extra) = &mut state.extra {
                    self.retain(topic, &mut extra.ring, &message);
                }
            }
        }
        state.offset += 1;
        if let Some(extra) = &mut state.extra {
            extra.bucket = bucket;
        }
        Ok(Routed { offset: state.offset, connections: state.counts.total() })
    }

    /// A credit for each shard that has members, or none: those that are dropped return to their mailboxes.
    fn credits(
        &self,
        counts: &ShardCounts,
        topic: &Topic,
        publisher: Publisher,
    ) -> Option<Vec<Credit<'_, OwnedFd>>> {
        let priority = topic.class.priority;
        let credit =
            |shard: usize| mailboxes::try_credit(&self.mailboxes[shard], priority, publisher);
        counts.occupied().map(credit).collect()
    }

    /// A shard reports that a membership was not made, or has ended. The last one's end is the topic's, unless it keeps
    /// messages.
    pub(crate) fn leave(&self, id: TopicId, shard: usize) {
        let Some(topic) = self.ids.topic(id) else {
            debug_assert!(false, "a membership counts for a topic that lives");
            return;
        };
        let mut state = topic.lock();
        state.counts.remove(shard);
        self.end_if_idle(&topic, &mut state);
    }

    /// A shard has forgotten a topic.
    pub(crate) fn retired(&self, id: TopicId) {
        self.ids.confirm(id);
    }

    /// Asks the shards again whose mailboxes were full when topics ended; `false` while some still are.
    pub(crate) fn retry_retirements(&self) -> bool {
        self.ids.retry(|retirement| self.push_retire(retirement))
    }

    /// Waits until a mailbox was full when a topic ended.
    pub(crate) async fn retirement_due(&self) {
        self.ids.due().await;
    }

    /// Number of topics.
    pub(crate) fn topic_count(&self) -> usize {
        self.ids.live_count()
    }

    /// The topic's number, if it exists.
    pub(crate) fn id(&self, name: &str) -> Option<TopicId> {
        self.find(name).map(|topic| topic.id)
    }

    /// The epoch of the topic of this name, if it exists.
    pub(crate) fn epoch(&self, name: &str) -> Option<u64> {
        self.find(name).map(|topic| topic.epoch)
    }

    /// The topic's name, if it still exists.
    pub(crate) fn name(&self, id: TopicId) -> Option<String> {
        self.ids.topic(id).map(|topic| topic.name.as_ref().to_owned())
    }

    /// Topics by name: those with `prefix`, behind `after`, at most `limit`.
    ///
    /// Cost: looks at every name, a stripe at a time; for an operator's eyes.
    pub(crate) fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<TopicInfo> {
        let mut least: std::collections::BTreeMap<Box<str>, Arc<Topic>> = Default::default();
        for stripe in &self.stripes {
            for topic in lock(stripe).iter() {
                let name = topic.name.as_ref();
                let is_wanted = name.starts_with(prefix) && after.is_none_or(|after| name > after);
                let is_full = least.len() >= limit;
                let is_least = !is_full
                    || least.last_key_value().is_some_and(|(last, _)| name < last.as_ref());
                if !is_wanted || !is_least {
                    continue;
                }
                least.insert(name.into(), Arc::clone(topic));
                if least.len() > limit {
                    least.pop_last();
                }
            }
        }
        least.into_values().map(|topic| topic.info()).collect()
    }

    /// Counts a topic by whether somebody is in it; called whenever that may have changed.
    fn note_attendance(&self, state: &mut State) {
        let is_unattended = !state.ended && state.is_unattended();
        if is_unattended == state.is_unattended {
            return;
        }
        state.is_unattended = is_unattended;
        if !is_unattended {
            self.unattended.fetch_sub(1, Ordering::Relaxed);
        } else if self.unattended.fetch_add(1, Ordering::Relaxed) >= self.unattended_max
            && let Some(extra) = &mut state.extra
        {
            // One too many: it keeps nothing.
            extra.ring.give_up(&self.retained);
            extra.tick = Tick::default();
        }
    }

    fn end_if_idle(&self, topic: &Arc<Topic>, state: &mut State) {
        self.note_attendance(state);
        if state.ended || !state.is_idle(&topic.class) {
            return;
        }
        state.ended = true;
        self.note_attendance(state);
        let hash = self.hasher.hash_one(topic.name.as_ref());
        let mut stripe = lock(self.stripe(hash));
        if let Ok(entry) = stripe.find_entry(hash, |other| Arc::ptr_eq(other, topic)) {
            entry.remove();
        }
        drop(stripe);
        // Only shards that ever had a member know the topic.
        let shards = state.counts.known();
        self.ids.retire(topic.id, shards, |retirement| self.push_retire(retirement));
    }

    fn push_retire(&self, retirement: Retirement) -> bool {
        self.mailboxes[retirement.shard].try_push(Command::Retire(retirement.topic)).is_ok()
    }

    fn find(&self, name: &str) -> Option<Arc<Topic>> {
        let hash = self.hasher.hash_one(name);
        lock(self.stripe(hash)).find(hash, |topic| topic.name.as_ref() == name).cloned()
    }

    /// `None`: there are too many topics.
    fn find_or_begin(&self, name: &str) -> Option<Arc<Topic>> {
        let hash = self.hasher.hash_one(name);
        let mut stripe = lock(self.stripe(hash));
        if let Some(topic) = stripe.find(hash, |topic| topic.name.as_ref() == name) {
            return Some(Arc::clone(topic));
        }
        // Not under the lock of all numbers: there may be many patterns.
        let class = Arc::clone(self.classes.of(name));
        let topic = self.ids.begin(|id| {
            let state = Mutex::new(State::new(&class));
            Arc::new(Topic {
                name: name.into(),
                id,
                epoch: rand::random::<u64>().max(1),
                class,
                state,
            })
        })?;
        let rehash = |topic: &Arc<Topic>| self.hasher.hash_one(topic.name.as_ref());
        stripe.insert_unique(hash, Arc::clone(&topic), rehash);
        Some(topic)
    }

    fn stripe(&self, hash: u64) -> &Mutex<HashTable<Arc<Topic>>> {
        // The table uses the lower bits for the place and the upper seven for the tag.
        &self.stripes[(hash >> 48) as usize % STRIPES]
    }
}

impl State {
    fn new(class: &Class) -> State {
        let has_extra = class.rate.is_some() || class.tick.is_some() || class.retention.is_some();
        let extra = has_extra.then(Box::default);
        let counts = ShardCounts::default();
        let formats = Formats::default();
        State { offset: 0, counts, formats, is_unattended: false, ended: false, extra }
    }

    /// Whether nobody is in it, and nobody can come back for anything.
    fn is_idle(&self, class: &Class) -> bool {
        let holds = |extra: &Extra| {
            let is_kept = class.retention.is_some() && !extra.tick.is_empty();
            is_kept || !extra.ring.is_empty() || extra.resuming > 0
        };
        self.counts.total() == 0 && !self.extra.as_deref().is_some_and(holds)
    }

    /// Whether nobody is in it, or about to be.
    fn is_unattended(&self) -> bool {
        let is_resumed = self.extra.as_ref().is_some_and(|extra| extra.resuming > 0);
        self.counts.total() == 0 && !is_resumed
    }

    fn extra_mut(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    /// Offset of the last message that has left.
    fn sent(&self, class: &Class) -> u64 {
        match &self.extra {
            Some(extra) if class.tick.is_some() => extra.tick.sent(),
            Some(_) | None => self.offset,
        }
    }

    /// The bucket after one more message.
    fn drawn_bucket(&self, class: &Class, now: Nanos) -> Result<Bucket, RouteError> {
        let bucket = self.extra.as_ref().map(|extra| extra.bucket).unwrap_or_default();
        let Some(rate) = class.rate else { return Ok(bucket) };
        let limited = |after| RouteError::RateLimited { per_second: rate.per_second, after };
        bucket.take(rate, now).map_err(limited)
    }
}

impl Topic {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The place of the next message.
    fn next(&self, state: &State) -> Place {
        Place { epoch: self.epoch, offset: state.offset + 1 }
    }

    fn info(&self) -> TopicInfo {
        let state = self.lock();
        TopicInfo {
            topic: self.name.as_ref().to_owned(),
            subscribers: state.counts.total(),
            offset: state.offset,
            epoch: self.epoch,
            class: self.class.pattern.as_str().to_owned(),
            retained_messages: state.extra.as_ref().map_or(0, |extra| extra.ring.len()),
        }
    }
}

/// Checks a topic name.
pub(crate) fn validate_name(name: &str, limit: usize) -> Result<(), TopicNameError> {
    if name.is_empty() {
        return Err(TopicNameError::Empty);
    }
    if name.len() > limit {
        return Err(TopicNameError::TooLong { bytes: name.len(), limit });
    }
    for (index, character) in name.char_indices() {
        if character.is_control() {
            return Err(TopicNameError::Control(index));
        }
        if matches!(character, '*' | '#' | '+') {
            return Err(TopicNameError::Wildcard(character));
        }
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic happens under the router's locks")
}

const _: () =
    assert!(size_of::<Topic>() <= 96, "a topic of its own for each connection is in the sum");

/// Enough that publishers and shards seldom meet; each costs an empty table.
const STRIPES: usize = 64;

#[cfg(test)]
mod tests;
