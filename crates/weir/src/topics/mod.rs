//! The router: the topics by name, their subscribers per shard, and the order of their messages.
//!
//! A shard knows its members. The router only counts the members of each shard, so that no publish
//! reaches a shard without members. A membership counts from the push of its `Subscribe`, or of the
//! last chunk of its resume. It counts until the shard reports that the membership was not made, or
//! that it ended or its connection closed. Each +1 meets exactly one −1.
//!
//! Order of locks: the topic; then its stripe, its ticker, the list of rings or the resumes; then
//! the ids. No thread waits for anything but a lock while it holds one.

mod attendance;
mod classes;
mod counts;
mod destination;
mod follow;
mod formats;
mod handover;
mod history;
mod ids;
mod listing;
mod memory;
mod presence;
mod refusal;
mod reload;
mod resume;
mod ring;
mod subscriber;
mod tick;
mod ticker;

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use arc_swap::ArcSwap;
use hashbrown::HashTable;
use weir_engine::{Budget, Command, ConnId, Message, Nanos, TopicId};

use crate::backends::notices::Notices;
use crate::base::clock::unix_millis;
use crate::base::config::Config;
use crate::base::mailboxes::{self, Credits, Mailboxes, Publisher};
use crate::base::model::TopicNameError;
use crate::limits::bucket::Bucket;
use crate::observe::counters::Counters;
use attendance::Attendances;
pub(crate) use classes::{CLASS_NUMBERS, Class, Classes};
use counts::ShardCounts;
pub(crate) use destination::Destination;
use follow::{ClusterTopic, Needs};
pub(crate) use follow::{Envelope, Followed, Need, Question, Replay, SeededBug};
use formats::Formats;
pub(crate) use formats::SharedFormats;
pub(crate) use handover::{EarlyRings, SentRings};
pub(crate) use history::{Found, History, Range};
use ids::Ids;
pub(crate) use ids::Retirement;
pub(crate) use memory::{OldRing, TopicsMemory};
pub(crate) use presence::Changes;
use presence::{Members, Presence};
use refusal::NotBegun;
pub(crate) use refusal::RouteError;
use resume::Resumes;
pub(crate) use resume::left;
use ring::{Retained, Ring};
pub(crate) use subscriber::Subscriber;
use tick::Tick;
use ticker::Tickers;

/// All topics.
///
/// Shape: name → topic in [`STRIPES`] hash tables, each behind a lock of its own; id → topic in
/// chunks.
/// Limits: at most `topics_max` topics, including ended topics whose id is not free yet. At most
/// half of them may have no subscribers. Otherwise a publisher that always uses new names would
/// leave no topics for subscribers.
/// Cost: a topic with a name of 25 bytes takes 196 bytes in all. It takes more only if its class
/// has a rate, a tick or a ring. An ended topic leaves nothing behind.
pub(crate) struct Router {
    mailboxes: Arc<Mailboxes>,
    hasher: RandomState,
    stripes: Box<[Mutex<HashTable<Arc<Topic>>>]>,
    ids: Ids,
    gate: handover::Gate,
    classes: ArcSwap<Classes>,
    tickers: Tickers,
    /// Whether topics can belong to a cluster.
    has_broker: bool,
    /// Topics with retained messages.
    rings: Mutex<Vec<Arc<Topic>>>,
    retained: Retained,
    /// Topics without subscribers and without resumes. They exist only for their retained messages.
    unattended: AtomicUsize,
    unattended_max: AtomicUsize,
    resumes: Resumes,
    presence: Presence,
    needs: Needs,
    /// Is told of topics that get their first subscriber, and lose their last one.
    notices: OnceLock<Arc<Notices>>,
    /// Topics of the cluster that have subscribers here, as far as someone is told of that.
    attendances: Attendances,
    /// Topics of the cluster that have lost their last subscriber, and when.
    lingering: Mutex<VecDeque<(Nanos, Arc<Topic>)>>,
    /// Subscriptions that wait for the broker.
    parked: AtomicUsize,
    broker_lost: AtomicBool,
    /// When that changed last, or the start, in milliseconds since 1970.
    broker_since_ms: AtomicU64,
    #[cfg(test)]
    seeded_bug: std::sync::OnceLock<SeededBug>,
    /// Bytes of one replay chunk.
    chunk_bytes_max: AtomicUsize,
    budget: Arc<Budget>,
    counters: Arc<Counters>,
    name_bytes_max: AtomicUsize,
    frame_bytes_max: usize,
}

/// One topic. It begins with its first subscriber or its first message to retain.
pub(crate) struct Topic {
    name: Box<str>,
    id: TopicId,
    /// Changes only under the lock of `state`.
    class: ArcSwap<Class>,
    state: Mutex<State>,
}

/// The parts of a topic that change.
struct State {
    /// Names the sequence of offsets. A topic of the cluster has 0 until the broker tells it.
    epoch: u64,
    /// Offset of the last accepted message.
    offset: u64,
    counts: ShardCounts,
    /// Formats of its subscribers.
    formats: Formats,
    /// Whether `unattended` counts it.
    is_unattended: bool,
    /// It is in no table any more. A caller that still holds the topic looks its name up again.
    ended: bool,
    /// Only topics of some classes have this.
    extra: Option<Box<Extra>>,
}

/// Further state of a topic, if its class needs it.
#[derive(Default)]
struct Extra {
    bucket: Bucket,
    tick: Tick,
    ring: Ring,
    /// Connections that resume the topic, or wait for it, and do not count as members yet.
    resuming: u32,
    /// A topic of the cluster has this.
    cluster: Option<Box<ClusterTopic>>,
    /// A topic with presence has this from its first member on.
    members: Option<Box<Members>>,
}

/// The router needs this about a message before the message is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer<'a> {
    /// The largest possible length of its frame.
    pub(crate) frame_bytes: usize,
    /// Its conflation key, or empty.
    pub(crate) key: &'a str,
    pub(crate) accepted_at: Nanos,
    pub(crate) publisher: Publisher,
}

/// The position of a message in its topic.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessagePosition {
    /// `None` for a message that no shard gets.
    pub(crate) topic: Option<TopicId>,
    pub(crate) epoch: u64,
    pub(crate) offset: u64,
    /// See `TopicMessage::shift`.
    pub(crate) shift: u64,
}

/// A message was accepted for a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Routed {
    pub(crate) offset: u64,
    pub(crate) epoch: u64,
    pub(crate) connections: u32,
}

impl Router {
    pub(crate) fn new(
        mailboxes: Arc<Mailboxes>,
        budget: Arc<Budget>,
        counters: Arc<Counters>,
        config: &Config,
        has_broker: bool,
    ) -> Self {
        let classes = Classes::new(config, has_broker, None, |_| true);
        Self {
            mailboxes,
            hasher: RandomState::new(),
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
            ids: Ids::new(config.limits.topics_max),
            gate: handover::Gate::default(),
            tickers: Tickers::new(classes.tickers()),
            classes: ArcSwap::from_pointee(classes),
            has_broker,
            rings: Mutex::default(),
            retained: Retained::new(match config.memory.retention_bytes {
                0 => budget.bytes_max() / 4,
                bytes => bytes,
            }),
            unattended: AtomicUsize::new(0),
            unattended_max: AtomicUsize::new(config.limits.topics_max.div_ceil(2)),
            resumes: Resumes::default(),
            presence: Presence::new(config.limits.presence_members_max),
            needs: Needs::default(),
            notices: OnceLock::new(),
            attendances: Attendances::default(),
            lingering: Mutex::default(),
            parked: AtomicUsize::new(0),
            broker_lost: AtomicBool::new(false),
            broker_since_ms: AtomicU64::new(unix_millis()),
            #[cfg(test)]
            seeded_bug: std::sync::OnceLock::new(),
            chunk_bytes_max: AtomicUsize::new(config.connection.low_watermark_bytes),
            budget,
            counters,
            name_bytes_max: AtomicUsize::new(config.limits.topic_bytes_max),
            frame_bytes_max: config.limits.frame_bytes_max,
        }
    }

    /// Publishes to a topic. `None` if the topic does not exist: then it has no subscribers and its
    /// class retains nothing.
    ///
    /// `message` makes the message once its offset is known. The router calls it only when nothing
    /// but the byte budget can still refuse the message. All mailboxes get the message, or none.
    pub(crate) fn publish(
        &self,
        name: &str,
        mut destination: Destination,
        offer: Offer<'_>,
        message: impl FnOnce(&Class, MessagePosition) -> Option<Arc<Message>>,
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
            if self.is_still() {
                return Err(RouteError::Busy);
            }
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

    /// The destination of messages to this name.
    ///
    /// Cost: one look-up. It tries the patterns of the classes only if no topic has this name.
    pub(crate) fn destination(&self, name: &str) -> Destination {
        match self.find(name) {
            Some(topic) => Destination::Topic(topic),
            None => Destination::Class(Arc::clone(self.classes.load().of(name))),
        }
    }

    /// Checks a message to a topic of the cluster. Returns how many subscribers it has here, and how
    /// long the broker is to keep messages.
    pub(crate) fn admit(
        &self,
        name: &str,
        mut destination: Destination,
        offer: Offer<'_>,
    ) -> Result<(u32, Option<weir_broker::Retention>), RouteError> {
        destination.class().check_length(offer.frame_bytes)?;
        let retention = destination.class().broker_retention();
        loop {
            let topic = match destination {
                Destination::Topic(topic) => topic,
                // Only its rate makes a topic of this node out of one that nobody here is in.
                Destination::Class(class) if class.rate.is_none() => return Ok((0, retention)),
                Destination::Class(_) => {
                    if self.unattended.load(Ordering::Relaxed) >= self.unattended_max() {
                        return Err(RouteError::TooManyTopics);
                    }
                    self.find_or_begin(name)?
                }
            };
            let mut state = topic.lock();
            if self.is_still() {
                return Err(RouteError::Busy);
            }
            if state.ended {
                drop(state);
                destination = self.destination(name);
                continue;
            }
            let bucket = state.drawn_bucket(&topic.class(), offer.accepted_at);
            if let Ok(bucket) = bucket {
                state.extra_mut().bucket = bucket;
            }
            if state.is_unattended() {
                self.note_attendance(&topic, &mut state);
                self.linger(&topic, &mut state);
            }
            return bucket.map(|_| (state.counts.total(), retention));
        }
    }

    /// Begins the topic of a message, if its class retains messages.
    fn begin_to_publish(
        &self,
        name: &str,
        class: &Class,
        offer: Offer<'_>,
    ) -> Result<Option<Arc<Topic>>, RouteError> {
        class.check_length(offer.frame_bytes)?;
        if class.retention.is_none() {
            // A subscription may wait.
            return if self.is_still() { Err(RouteError::Busy) } else { Ok(None) };
        }
        if self.unattended.load(Ordering::Relaxed) >= self.unattended_max() {
            return Err(RouteError::TooManyTopics);
        }
        Ok(Some(self.find_or_begin(name)?))
    }

    /// Accepts a message under its topic's lock, or refuses it and changes nothing.
    fn accept(
        &self,
        topic: &Arc<Topic>,
        state: &mut State,
        offer: Offer<'_>,
        message: impl FnOnce(&Class, MessagePosition) -> Option<Arc<Message>>,
    ) -> Result<Routed, RouteError> {
        let class = topic.class();
        class.check_length(offer.frame_bytes)?;
        let bucket = state.drawn_bucket(&class, offer.accepted_at)?;
        self.deliver((topic, &class), state, offer, message)?;
        state.offset += 1;
        if let Some(extra) = &mut state.extra {
            extra.bucket = bucket;
        }
        let (offset, epoch) = (state.offset, state.epoch);
        Ok(Routed { offset, epoch, connections: state.counts.total() })
    }

    /// Sends the message that comes next, or gathers it for the running tick.
    fn deliver(
        &self,
        (topic, class): (&Arc<Topic>, &Class),
        state: &mut State,
        offer: Offer<'_>,
        message: impl FnOnce(&Class, MessagePosition) -> Option<Arc<Message>>,
    ) -> Result<(), RouteError> {
        match &class.tick {
            Some(rule) => self.gather((topic, class), state, (rule, offer), message)?,
            None => {
                // The class has lost its tick, and what the last one has gathered comes first.
                if state.has_gathered() && !self.end_tick(topic, state) {
                    return Err(RouteError::Busy);
                }
                let credits =
                    self.credits(&state.counts, class, offer.publisher).ok_or(RouteError::Busy)?;
                let message = message(class, topic.next(state)).ok_or(RouteError::Budget)?;
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
        Ok(())
    }

    /// A credit for each shard with members; `None` if one of them has none left. Dropped credits
    /// return to their mailboxes.
    fn credits(
        &self,
        counts: &ShardCounts,
        class: &Class,
        publisher: Publisher,
    ) -> Option<Credits<'_>> {
        let priority = class.priority;
        let credit =
            |shard: usize| mailboxes::try_credit(&self.mailboxes[shard], priority, publisher);
        counts.occupied().map(credit).collect()
    }

    /// Ends a membership after its shard has reported that it was not made, or has ended. The last
    /// membership ends the topic, unless messages are retained.
    pub(crate) fn leave(&self, id: TopicId, conn: ConnId) {
        let Some(topic) = self.ids.topic(id) else {
            debug_assert!(false, "a membership counts for a topic that lives");
            return;
        };
        let mut state = topic.lock();
        state.counts.remove(conn.shard());
        if state.counts.total() == 0 {
            self.tell_attendance(&topic, false);
        }
        self.exit_presence(&topic, &mut state, conn);
        self.end_if_idle(&topic, &mut state);
    }

    /// Frees the id of a topic that a shard has forgotten.
    pub(crate) fn retired(&self, id: TopicId) {
        self.ids.confirm(id);
    }

    /// Repeats the retirements that found a full mailbox; `false` while some mailbox is still full.
    pub(crate) fn retry_retirements(&self) -> bool {
        !self.is_still() && self.ids.retry(|retirement| self.push_retire(retirement))
    }

    /// Waits until a retirement has found a full mailbox.
    pub(crate) async fn retirement_due(&self) {
        self.ids.due().await;
    }

    /// Number of topics.
    pub(crate) fn topic_count(&self) -> usize {
        self.ids.live_count()
    }

    /// The topic's id, if the topic exists.
    pub(crate) fn id(&self, name: &str) -> Option<TopicId> {
        self.find(name).map(|topic| topic.id)
    }

    /// The epoch of the topic of this name, if it exists.
    pub(crate) fn epoch(&self, name: &str) -> Option<u64> {
        self.find(name).map(|topic| topic.lock().epoch)
    }

    /// The topic's name, if it still exists.
    pub(crate) fn name(&self, id: TopicId) -> Option<String> {
        self.ids.topic(id).map(|topic| topic.name.as_ref().to_owned())
    }

    fn end_if_idle(&self, topic: &Arc<Topic>, state: &mut State) {
        self.note_attendance(topic, state);
        if state.ended || !state.is_idle(&topic.class()) {
            return;
        }
        state.ended = true;
        self.note_attendance(topic, state);
        if topic.class().is_cluster {
            self.leave_broker(topic, state);
        }
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

    fn find_or_begin(&self, name: &str) -> Result<Arc<Topic>, NotBegun> {
        let hash = self.hasher.hash_one(name);
        let mut stripe = lock(self.stripe(hash));
        if let Some(topic) = stripe.find(hash, |topic| topic.name.as_ref() == name) {
            return Ok(Arc::clone(topic));
        }
        if self.is_still() {
            return Err(NotBegun::Still);
        }
        // Outside the lock of the ids, because there may be many patterns.
        let class = Arc::clone(self.classes.load().of(name));
        let topic = self.ids.begin(|id| {
            let state = Mutex::new(State::new(&class));
            Arc::new(Topic { name: name.into(), id, class: ArcSwap::new(class), state })
        });
        let topic = topic.ok_or(NotBegun::TooMany)?;
        let rehash = |topic: &Arc<Topic>| self.hasher.hash_one(topic.name.as_ref());
        stripe.insert_unique(hash, Arc::clone(&topic), rehash);
        Ok(topic)
    }

    fn stripe(&self, hash: u64) -> &Mutex<HashTable<Arc<Topic>>> {
        // The table uses the lower bits for the place and the upper seven for the tag.
        &self.stripes[(hash >> 48) as usize % STRIPES]
    }
}

impl State {
    fn new(class: &Class) -> State {
        let has_extra = class.rate.is_some()
            || class.tick.is_some()
            || class.retention.is_some()
            || class.presence
            || class.is_cluster;
        let cluster = || class.is_cluster.then(|| Box::new(ClusterTopic::new()));
        let extra = has_extra.then(|| Box::new(Extra { cluster: cluster(), ..Extra::default() }));
        let counts = ShardCounts::default();
        let formats = Formats::default();
        let epoch = if class.is_cluster { 0 } else { rand::random::<u64>().max(1) };
        State { epoch, offset: 0, counts, formats, is_unattended: false, ended: false, extra }
    }

    /// Whether the topic has no subscribers, no resumes and no messages for a later resume.
    fn is_idle(&self, class: &Class) -> bool {
        let holds = |extra: &Extra| {
            if extra.members.as_ref().is_some_and(|members| members.has_to_tell()) {
                return true;
            }
            if let Some(cluster) = &extra.cluster {
                return cluster.lingers() || extra.resuming > 0;
            }
            let is_kept = class.retention.is_some() && !extra.tick.is_empty();
            is_kept || !extra.ring.is_empty() || extra.resuming > 0
        };
        self.counts.total() == 0 && !self.extra.as_deref().is_some_and(holds)
    }

    /// Whether the topic has no subscribers and no resumes.
    fn is_unattended(&self) -> bool {
        let is_resumed = self.extra.as_ref().is_some_and(|extra| extra.resuming > 0);
        self.counts.total() == 0 && !is_resumed
    }

    /// See `TopicMessage::shift`.
    fn shift(&self) -> u64 {
        let cluster = self.extra.as_ref().and_then(|extra| extra.cluster.as_ref());
        cluster.map_or(0, |cluster| cluster.shift())
    }

    fn extra_mut(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    /// Whether messages wait for the end of a tick.
    fn has_gathered(&self) -> bool {
        self.extra.as_ref().is_some_and(|extra| !extra.tick.is_empty())
    }

    /// Offset of the last message sent.
    fn sent(&self, class: &Class) -> u64 {
        self.sent_with(class.tick.is_some())
    }

    /// The same for a topic that has ticks, or has none.
    fn sent_with(&self, has_ticks: bool) -> u64 {
        match &self.extra {
            Some(extra) if has_ticks || !extra.tick.is_empty() => extra.tick.sent(),
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
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The class of the topic. Under the topic's lock it does not change.
    fn class(&self) -> arc_swap::Guard<Arc<Class>> {
        self.class.load()
    }

    /// The place of the next message.
    fn next(&self, state: &State) -> MessagePosition {
        let (epoch, offset) = (state.epoch, state.offset + 1);
        MessagePosition { topic: Some(self.id), epoch, offset, shift: state.shift() }
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

/// Enough that publishers and shards seldom meet at one lock. Each stripe costs an empty table.
const STRIPES: usize = 64;

#[cfg(test)]
mod tests;
