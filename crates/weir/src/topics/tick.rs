//! Ticks: the messages that a topic accepts within one tick leave as one batch.
//!
//! An accepted message gets its offset at once, and is encoded as a single frame. At the end of the
//! tick the frames are copied into one message, with as few frames as the limit allows. Ticks of
//! the same length end together, at multiples of that length on the monotonic clock.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;
use tokio::task::{JoinSet, coop};
use tokio::time::sleep;
use weir_engine::handover::{ImportedMessages, Messages, NotUnderstood};
use weir_engine::{Command, Footprint, Message, Nanos, SlowPolicy, TopicMessage, rounded};
use weir_wire::handover::v1;
use weir_wire::hot;

use super::classes::TickRule;
use super::ticker::Ticker;
use super::{Class, MessagePosition, Offer, RouteError, Router, State, Topic};
use crate::base::handover::refused;
use crate::base::mailboxes::Publisher;

/// The messages of a topic's running tick.
///
/// Shape: an empty tick owns no memory outside this struct.
#[derive(Default)]
pub(super) struct Tick {
    /// By offset; `None`: a newer message of the same key replaced it.
    messages: Vec<Option<Arc<Message>>>,
    /// Index of the newest message of each key.
    keys: HashTable<u32>,
    live: usize,
    /// Bytes that the live messages occupy.
    bytes: usize,
    /// Offset of the last message sent.
    sent: u64,
    /// Whether the topic is on the ticker's list.
    is_listed: bool,
}

impl Tick {
    /// Offset of the last message sent.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    pub(super) fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// The gathered messages, and the bytes of their lists.
    pub(super) fn footprint(&self) -> Footprint {
        let list = rounded(self.messages.capacity() * size_of::<Option<Arc<Message>>>());
        Footprint::new(self.live, list + rounded(self.keys.allocation_size()))
    }

    /// Bytes of the live messages with one more message.
    fn bytes_with(&self, rule: &TickRule, offer: Offer<'_>, hasher: &RandomState) -> usize {
        let replaced = match rule.conflation {
            true => self
                .newest(offer.key.as_bytes(), hasher)
                .map_or(0, |message| message.occupied_bytes()),
            false => 0,
        };
        self.bytes - replaced + Message::occupied_by(offer.frame_bytes)
    }

    /// Takes a message; returns whether it replaced an older one.
    fn gather(&mut self, rule: &TickRule, message: Arc<Message>, hasher: &RandomState) -> bool {
        let mut is_newer = false;
        if rule.conflation && !message.key().is_empty() {
            if self.messages.len() > 2 * self.live + SLACK {
                self.compact(hasher);
            }
            is_newer = self.replace(message.key(), hasher);
        }
        self.live += 1;
        self.bytes += message.occupied_bytes();
        self.messages.push(Some(message));
        is_newer
    }

    /// Removes the message of this key, if any, and stores the index of its successor.
    fn replace(&mut self, key: &[u8], hasher: &RandomState) -> bool {
        let next = u32::try_from(self.messages.len()).expect("a tick is bounded by its bytes");
        let (messages, hash) = (&mut self.messages, hasher.hash_one(key));
        match self.keys.find_mut(hash, |index| key_at(messages, *index) == key) {
            Some(index) => {
                let old = messages[*index as usize].take();
                *index = next;
                self.live -= 1;
                self.bytes -= old.as_ref().map_or(0, |message| message.occupied_bytes());
                true
            }
            None => {
                let rehash = |index: &u32| hasher.hash_one(key_at(messages, *index));
                self.keys.insert_unique(hash, next, rehash);
                false
            }
        }
    }

    fn newest(&self, key: &[u8], hasher: &RandomState) -> Option<&Arc<Message>> {
        if key.is_empty() {
            return None;
        }
        let fits = |index: &u32| key_at(&self.messages, *index) == key;
        let index = self.keys.find(hasher.hash_one(key), fits)?;
        self.messages[*index as usize].as_ref()
    }

    /// Closes the gaps that replaced messages have left.
    fn compact(&mut self, hasher: &RandomState) {
        self.messages.retain(Option::is_some);
        self.keys.clear();
        for (index, message) in (0u32..).zip(self.messages.iter().flatten()) {
            if !message.key().is_empty() {
                let rehash = |index: &u32| hasher.hash_one(key_at(&self.messages, *index));
                self.keys.insert_unique(hasher.hash_one(message.key()), index, rehash);
            }
        }
    }

    /// Removes expired messages and returns their number.
    fn expire(&mut self, now: Nanos, hasher: &RandomState) -> usize {
        let is_expired =
            |message: &mut Arc<Message>| message.expires_at().is_some_and(|at| at <= now);
        let mut expired = 0;
        for place in &mut self.messages {
            if let Some(message) = place.take_if(is_expired) {
                expired += 1;
                self.bytes -= message.occupied_bytes();
            }
        }
        self.live -= expired;
        if expired > 0 {
            self.compact(hasher);
        }
        expired
    }

    /// A message has passed that nobody here waits for.
    pub(super) fn skip_to(&mut self, offset: u64) {
        if self.is_empty() {
            self.sent = offset;
        }
    }

    /// Lets go of what it has gathered; the next message stands behind `offset`.
    pub(super) fn forget(&mut self, offset: u64) {
        *self = Tick { sent: offset, is_listed: self.is_listed, ..Tick::default() };
    }

    /// Whether the topic is on a ticker's list.
    pub(super) fn is_awaited(&self) -> bool {
        self.is_listed
    }

    /// `None`: there is nothing to tell.
    pub(super) fn export(&self, messages: &mut Messages) -> Option<v1::TopicTick> {
        let gathered = self.messages.iter().flatten().map(|message| messages.number(message));
        let (messages, sent, is_listed) = (gathered.collect(), self.sent, self.is_listed);
        let tick = v1::TopicTick { messages, sent, is_listed };
        (tick != v1::TopicTick::default()).then_some(tick)
    }

    /// What another process has gathered. `last` is the topic's offset; `has_keys` tells whether
    /// newer messages take the place of those with the same key.
    pub(super) fn import(
        tick: v1::TopicTick,
        (last, has_keys): (u64, bool),
        messages: &ImportedMessages,
        hasher: &RandomState,
    ) -> Result<Tick, NotUnderstood> {
        let v1::TopicTick { messages: numbers, sent, is_listed } = tick;
        let is_listed = is_listed || !numbers.is_empty();
        let mut tick = Tick { sent, is_listed, live: numbers.len(), ..Tick::default() };
        let mut before = sent;
        for number in numbers {
            let message = messages.get(number)?;
            if message.offset() <= before {
                return Err(refused("topic_tick.messages", message.offset()));
            }
            before = message.offset();
            tick.bytes += message.occupied_bytes();
            tick.messages.push(Some(message));
        }
        if before > last {
            return Err(refused("topic_tick.sent", before));
        }
        if has_keys {
            tick.compact(hasher);
        }
        Ok(tick)
    }

    /// Begins the next tick.
    fn begin(&mut self, sent: u64) {
        *self = Tick { sent, is_listed: self.is_listed, ..Tick::default() };
    }
}

impl Router {
    /// Ends the ticks of all lengths; runs forever.
    pub(crate) async fn run_ticks(self: Arc<Self>) {
        let mut running = JoinSet::new();
        loop {
            for ticker in self.tickers.take_added() {
                let router = Arc::clone(&self);
                running.spawn(async move { router.run_ticker(&ticker).await });
            }
            tokio::select! {
                () = self.tickers.changed() => {}
                Some(_) = running.join_next() => {}
            }
        }
    }

    /// Waits for the end of each tick that has gathered messages, and ends it, until no class has
    /// such ticks.
    async fn run_ticker(&self, ticker: &Ticker) {
        while !ticker.is_over() {
            ticker.filled().await;
            sleep(ticker.rest(Nanos::now())).await;
            for _ in 0..ticker.len() {
                if !self.end_next_tick(ticker) {
                    break;
                }
                coop::consume_budget().await;
            }
        }
    }

    /// Ends all running ticks now; `false` if one could not be sent.
    pub(crate) fn end_ticks(&self) -> bool {
        let tickers = self.tickers.all();
        for ticker in &tickers {
            for _ in 0..ticker.len() {
                self.end_next_tick(ticker);
            }
        }
        tickers.iter().all(|ticker| ticker.is_done())
    }

    /// Takes a message into its topic's tick.
    pub(super) fn gather(
        &self,
        (topic, class): (&Arc<Topic>, &Class),
        state: &mut State,
        (rule, offer): (&TickRule, Offer<'_>),
        message: impl FnOnce(&Class, MessagePosition) -> Option<Arc<Message>>,
    ) -> Result<(), RouteError> {
        let position = topic.next(state);
        let extra = state.extra.as_mut().expect("a topic with a tick has an extra part");
        let ticker = &rule.ticker;
        let tick = &mut extra.tick;
        // An empty tick always has room: no limit is below the longest message.
        if !tick.is_empty() && tick.bytes_with(rule, offer, &self.hasher) > rule.bytes_max {
            let after = ticker.rest(offer.accepted_at);
            return Err(RouteError::TickFull { limit: rule.bytes_max, after });
        }
        let message = message(class, position).ok_or(RouteError::Budget)?;
        if tick.gather(rule, message, &self.hasher) {
            self.counters.count_tick_conflated();
        }
        if !tick.is_listed {
            tick.is_listed = true;
            ticker.list(Arc::clone(topic));
        }
        Ok(())
    }

    fn end_next_tick(&self, ticker: &Ticker) -> bool {
        let Some(topic) = ticker.take() else { return false };
        let mut state = topic.lock();
        if self.is_still() {
            drop(state);
            ticker.list(topic);
            ticker.put_down();
            return false;
        }
        if !state.ended {
            if self.end_tick(&topic, &mut state) {
                state.extra_mut().tick.is_listed = false;
            } else {
                self.counters.count_tick_deferred();
                ticker.list(Arc::clone(&topic));
            }
        }
        self.end_if_idle(&topic, &mut state);
        drop(state);
        ticker.put_down();
        true
    }

    /// Sends the batch of a tick. `false` if there is no credit: then the tick continues with the
    /// messages that have not expired.
    pub(super) fn end_tick(&self, topic: &Arc<Topic>, state: &mut State) -> bool {
        let shift = state.shift();
        let Some(extra) = &mut state.extra else { return true };
        if extra.tick.is_empty() {
            // It has left early.
            extra.tick.begin(state.offset);
            return true;
        }
        let expired = extra.tick.expire(Nanos::now(), &self.hasher);
        self.counters.count_expired(expired as u64 * u64::from(state.counts.total()));
        let messages: Vec<_> = extra.tick.messages.iter().flatten().cloned().collect();
        if !messages.is_empty() && state.counts.total() > 0 {
            // All these messages have been accepted, so their publishers no longer matter.
            let class = topic.class();
            let Some(credits) = self.credits(&state.counts, &class, Publisher::Backend) else {
                return false;
            };
            let (epoch, offset) = (state.epoch, state.offset);
            let place = MessagePosition { topic: Some(topic.id), epoch, offset, shift };
            let message = self.batch((topic, &class), &messages, place);
            // An accepted message must go out. If the budget has no room for an encoding, the
            // shards make it.
            state.formats.encode_ahead(&message, &self.counters);
            for credit in credits {
                credit.push(Command::Publish(topic.id, Arc::clone(&message)));
            }
        }
        for message in &messages {
            self.retain(topic, &mut extra.ring, message);
        }
        extra.tick.begin(state.offset);
        self.counters.count_tick(messages.len());
        true
    }

    /// All messages of a tick as one. A lone message needs no copy.
    fn batch(
        &self,
        (topic, class): (&Topic, &Class),
        messages: &[Arc<Message>],
        place: MessagePosition,
    ) -> Arc<Message> {
        let [first, _, ..] = messages else { return Arc::clone(&messages[0]) };
        let singles: Vec<(u64, &[u8])> =
            messages.iter().map(|message| (message.offset(), message.frame())).collect();
        let mut frames = Vec::new();
        hot::encode_batch_frames(&topic.name, &singles, self.frame_bytes_max, &mut frames);
        let expiries = messages.iter().map(|message| message.expires_at());
        // A single message without an expiry keeps the whole batch.
        let expires_at =
            expiries.collect::<Option<Vec<Nanos>>>().and_then(|all| all.into_iter().max());
        let of_topic = TopicMessage {
            priority: class.priority,
            slow: class.slow,
            is_tick: true,
            topic: Some(topic.id),
            class: class.number,
            epoch: place.epoch,
            offset: place.offset,
            shift: place.shift,
            key: 0..0,
            singles: match class.slow {
                SlowPolicy::Conflate => messages.into(),
                SlowPolicy::Close | SlowPolicy::Drop => Box::default(),
            },
            ..TopicMessage::default()
        };
        Message::of_tick(&self.budget, frames, first.accepted_at(), expires_at, of_topic)
    }
}

fn key_at(messages: &[Option<Arc<Message>>], index: u32) -> &[u8] {
    messages[index as usize].as_ref().map_or(&[], |message| message.key())
}

/// Gaps that stay before a tick is compacted.
const SLACK: usize = 64;
