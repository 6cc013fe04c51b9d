//! The front's acts for topics in a run: messages by policy, ticks, and the rings that resumes
//! read.

use std::sync::Arc;
use std::time::Duration;

use weir_wire::format::Format;
use weir_wire::hot;

use super::book::{OfTopic, Says, epoch_of, name_of, priority_of};
use super::conn::{Phase, Resuming};
use super::driver::Run;
use super::owed::{Direct, DirectWhat};
use super::topic::{Kept, TopicModel, topic_of};
use crate::command::{Command, ReplayBegin, ReplayChunk};
use crate::id::{ConnId, SlowPolicy, TopicId};
use crate::message::{Message, TopicMessage};

/// The properties of a new message.
struct Wanted {
    topic: Option<usize>,
    offset: u64,
    key: Option<u8>,
    is_tick: bool,
    singles: Vec<(Arc<Message>, u32)>,
}

/// The frame of a topic's batch.
fn tick_frame(topic: usize, head: u64, singles: &[(Arc<Message>, u32)]) -> Vec<u8> {
    let singles: Vec<_> =
        (head..).zip(singles.iter().map(|(message, _)| message.frame())).collect();
    let mut frame = Vec::new();
    hot::encode_batch_frames(&name_of(topic), &singles, usize::MAX, &mut frame);
    frame
}

impl Run {
    /// A topic of a random kind.
    pub(super) fn topic(&mut self) -> TopicModel {
        TopicModel {
            slow: *self.dice.pick(&SlowPolicy::ALL).unwrap_or(&SlowPolicy::Close),
            has_ticks: self.dice.chance(1 << 15),
            ring_max: [0, 3, 12][self.dice.index(3)],
            ..TopicModel::default()
        }
    }

    /// A new message to all connections or to one, if the budget has room, and its number.
    pub(super) fn message(&mut self) -> Option<(Arc<Message>, u32)> {
        self.message_to(Wanted {
            topic: None,
            offset: 0,
            key: None,
            is_tick: false,
            singles: vec![],
        })
    }

    fn message_to(&mut self, wanted: Wanted) -> Option<(Arc<Message>, u32)> {
        let Wanted { topic, offset, key, is_tick, singles } = wanted;
        let bytes = match self.dice.below(20) {
            0 => self.dice.between(600, 3000),
            1..=3 => self.dice.between(100, 600),
            _ => self.dice.below(60),
        };
        let head = singles.first().map_or(offset, |(message, _)| message.offset());
        let (frame, key_range) = match topic {
            Some(topic) if !singles.is_empty() => (tick_frame(topic, head, &singles), 0..0),
            _ => self.book.push(bytes as usize, topic, offset, key),
        };
        let now = self.shard.now();
        let may_expire = !is_tick && self.dice.chance(1 << 13);
        let expires_at = may_expire.then(|| {
            let ttl_ms = [0, 1, 150, 900][self.dice.index(4)];
            now.after(Duration::from_millis(ttl_ms))
        });
        let slow = topic.map_or(SlowPolicy::Close, |topic| self.topics[topic].slow);
        let [from, to] =
            [key_range.start, key_range.end].map(|at| u32::try_from(at).expect("short frames"));
        let is_conflating = slow == SlowPolicy::Conflate;
        let of_topic = TopicMessage {
            priority: priority_of(topic),
            slow,
            is_tick,
            epoch: topic.map_or(0, epoch_of),
            offset,
            key: from..to,
            singles: singles
                .iter()
                .filter(|_| is_conflating)
                .map(|(message, _)| Arc::clone(message))
                .collect(),
            sender: offset % 3,
            ..TopicMessage::default()
        };
        let budget = self.shard.budget();
        let message = Message::of_topic(budget, frame.clone(), now, expires_at, of_topic)?;
        let number = self.book.enter(frame, true, expires_at, topic);
        let singles = singles.into_iter().map(|(_, number)| number).collect();
        self.book.describe(OfTopic { slow, key, offset, singles });
        if self.dice.chance(1 << 14) {
            let format = Format::ALL[self.dice.index(Format::COUNT)];
            let _ = message.encode_ahead(format);
        }
        Some((message, number))
    }

    /// A single message at `offset`.
    fn single(&mut self, topic: usize, offset: u64) -> Option<(Arc<Message>, u32)> {
        let has_key = self.topics[topic].slow == SlowPolicy::Conflate && self.dice.chance(3 << 14);
        let key = has_key.then(|| u8::try_from(self.dice.below(4)).unwrap_or(0));
        let (topic, is_tick) = (Some(topic), false);
        self.message_to(Wanted { topic, offset, key, is_tick, singles: vec![] })
    }

    pub(super) fn publish(&mut self) {
        let topic = self.dice.index(self.topics.len());
        let model = &self.topics[topic];
        if model.is_retiring {
            return;
        }
        let next = model.head + 1;
        let is_tick = model.has_ticks && self.dice.chance(3 << 14);
        let count = if is_tick { self.dice.between(1, 4) } else { 1 };
        let singles: Option<Vec<_>> =
            (next..next + u64::from(count)).map(|offset| self.single(topic, offset)).collect();
        let Some(singles) = singles else { return };
        let head = next + u64::from(count) - 1;
        let (message, number) = if is_tick {
            let singles = singles.clone();
            let wanted = Wanted { topic: Some(topic), offset: head, key: None, is_tick, singles };
            let Some(made) = self.message_to(wanted) else { return };
            made
        } else {
            singles[0].clone()
        };
        if self.push(Command::Publish(topic_of(topic), message)) {
            self.note_published(topic, number, next, &singles);
        }
    }

    fn note_published(
        &mut self,
        topic: usize,
        number: u32,
        first: u64,
        singles: &[(Arc<Message>, u32)],
    ) {
        let model = &mut self.topics[topic];
        for index in &model.members {
            let outgoing = &mut self.conns[*index].outgoing;
            match model.slow {
                SlowPolicy::Conflate => {
                    let due = outgoing.newest.entry(topic).or_default();
                    due.extend(singles.iter().map(|(_, number)| number));
                }
                SlowPolicy::Close | SlowPolicy::Drop => outgoing.pushes.push_back(number),
            }
        }
        for (offset, (message, number)) in (first..).zip(singles) {
            model.head = offset;
            let message = Arc::clone(message);
            model.ring.push_back(Kept { offset, number: *number, message });
            if model.ring.len() > model.ring_max {
                model.ring.pop_front();
            }
        }
    }

    /// Whether the front would enter this connection into a topic, again or not. A reader of events
    /// named all its topics once, at the beginning.
    fn may_join(&mut self, index: usize, topic: usize) -> bool {
        let conn = &mut self.conns[index];
        if conn.format != Format::Sse {
            return true;
        }
        let is_new = !conn.topics.contains(&topic) && !conn.resumes.contains_key(&topic);
        is_new && (conn.tells_positions || *conn.only.get_or_insert(topic) == topic)
    }

    pub(super) fn subscribe(&mut self) {
        let Some(index) = self.pick_open() else { return };
        let topic = self.dice.index(self.topics.len());
        let Some(conn) = self.conns[index].id else { return };
        if self.topics[topic].is_retiring || !self.may_join(index, topic) {
            return;
        }
        let (reply, number) = self.reply(Says::Subscribed(topic, self.topics[topic].head));
        if !self.push(Command::Subscribe { conn, topic: topic_of(topic), reply }) {
            return;
        }
        self.topics[topic].count(conn);
        let is_in = self.conns[index].topics.contains(&topic);
        let what =
            if is_in { DirectWhat::Frame(number) } else { self.answer(index, topic, number) };
        self.note_direct(index, what);
        if !is_in && what == DirectWhat::Frame(number) {
            self.enter(index, topic);
        }
    }

    /// The answer to a connection that asks for a topic it is not in: `number`, unless it is
    /// refused.
    fn answer(&self, index: usize, topic: usize, number: u32) -> DirectWhat {
        let conn = &self.conns[index];
        if conn.resumes.contains_key(&topic) {
            DirectWhat::Busy
        } else if conn.topics.len() + conn.resumes.len() >= self.settings.topics_per_connection_max
        {
            DirectWhat::TooMany
        } else {
            DirectWhat::Frame(number)
        }
    }

    fn enter(&mut self, index: usize, topic: usize) {
        self.conns[index].topics.push(topic);
        self.topics[topic].members.push(index);
    }

    /// Notes that the command pushed last brings this item to a connection.
    fn note_direct(&mut self, index: usize, what: DirectWhat) {
        let direct = Direct { what, position: self.book.position - 1, left: None };
        self.conns[index].outgoing.directs.push_back(direct);
    }

    pub(super) fn unsubscribe(&mut self) {
        let Some(index) = self.pick_open() else { return };
        let mut topic = self.dice.index(self.topics.len());
        if let Some(resumed) = self.conns[index].resumes.keys().next()
            && self.dice.chance(1 << 14)
        {
            topic = *resumed;
        }
        self.unsubscribe_from(index, topic, None);
    }

    fn unsubscribe_from(&mut self, index: usize, topic: usize, after: Option<u64>) -> bool {
        let Some(conn) = self.conns[index].id else { return true };
        let (reply, number) = self.reply(Says::Unsubscribed(topic, after));
        if !self.push(Command::Unsubscribe { conn, topic: topic_of(topic), reply }) {
            return false;
        }
        let conn = &mut self.conns[index];
        conn.resumes.remove(&topic);
        let is_in = conn.topics.contains(&topic);
        conn.topics.retain(|other| *other != topic);
        self.topics[topic].members.retain(|other| *other != index);
        let (what, position) = (DirectWhat::Frame(number), self.book.position - 1);
        let left = is_in.then_some(topic);
        self.conns[index].outgoing.directs.push_back(Direct { what, position, left });
        true
    }

    /// Begins to resume a topic for some connection, from an offset that the ring still covers.
    pub(super) fn resume(&mut self) {
        let Some(index) = self.pick_open() else { return };
        let topic = self.dice.index(self.topics.len());
        let (Some(conn), model) = (self.conns[index].id, &self.topics[topic]) else { return };
        if model.is_retiring || !self.may_join(index, topic) {
            return;
        }
        let (head, kept) = (self.topics[topic].head, self.topics[topic].ring.len());
        let after = head - self.dice.index(kept + 1) as u64;
        let (reply, number) = self.reply(Says::Subscribed(topic, after));
        let (reply_if_member, number_if_member) = self.reply(Says::Subscribed(topic, head));
        self.resumes_begun += 1;
        let resume = self.resumes_begun;
        let begin = Some(ReplayBegin { reply, reply_if_member });
        let (chunk, numbers) = self.chunk(conn, topic, resume, after, begin);
        let (after, is_last) = (chunk.after, chunk.is_last);
        if !self.push(Command::Resume(Box::new(chunk))) {
            return;
        }
        if is_last {
            self.topics[topic].count(conn);
        }
        let is_member = self.conns[index].topics.contains(&topic);
        let what = match is_member {
            true => DirectWhat::Frame(number_if_member),
            false => self.answer(index, topic, number),
        };
        self.note_direct(index, what);
        if !is_last && (is_member || what == DirectWhat::TooMany) {
            self.conns[index].refused.insert((topic, resume));
        }
        if what == DirectWhat::Frame(number) {
            let resuming = Resuming { number: resume, after, is_asked: false };
            self.conns[index].resumes.insert(topic, resuming);
            self.note_part(index, topic, &numbers, resuming, is_last);
        }
    }

    /// The messages of a topic after `after`, as many as fit a replay chunk.
    fn chunk(
        &self,
        conn: ConnId,
        topic: usize,
        resume: u32,
        after: u64,
        begin: Option<ReplayBegin>,
    ) -> (ReplayChunk, Vec<u32>) {
        let model = &self.topics[topic];
        let mut bytes = 0;
        let mut kept = Vec::new();
        for one in model.ring.iter().filter(|one| one.offset > after) {
            bytes += one.message.frame().len();
            if !kept.is_empty() && bytes > self.settings.low_watermark_bytes {
                break;
            }
            kept.push(one);
        }
        let after = kept.last().map_or(after, |one| one.offset);
        let messages = kept.iter().map(|one| Arc::clone(&one.message)).collect();
        let numbers = kept.iter().map(|one| one.number).collect();
        let is_last = after >= model.head;
        let topic = topic_of(topic);
        (ReplayChunk { conn, topic, resume, begin, messages, after, is_last }, numbers)
    }

    /// Notes that a chunk has been pushed to a connection that resumes the topic.
    fn note_part(
        &mut self,
        index: usize,
        topic: usize,
        numbers: &[u32],
        resuming: Resuming,
        is_last: bool,
    ) {
        for number in numbers {
            self.note_direct(index, DirectWhat::Missed(*number));
        }
        if is_last {
            self.conns[index].resumes.remove(&topic);
            self.enter(index, topic);
        } else {
            self.conns[index].resumes.insert(topic, resuming);
        }
    }

    /// Handles a connection that has room for its next chunk.
    pub(super) fn take_resume_next(
        &mut self,
        conn: ConnId,
        topic: TopicId,
        resume: u32,
        after: u64,
    ) -> Result<(), String> {
        let topic = topic.0 as usize;
        let index = self.conns.iter().position(|model| model.id == Some(conn));
        let index = index.ok_or_else(|| format!("{conn:?} is unknown and resumes"))?;
        if self.conns[index].phase != Phase::Open {
            return Err(format!("{conn:?} resumes topic {topic} and has ended"));
        }
        let running = self.conns[index].resumes.get_mut(&topic);
        // The resume may have been called off meanwhile.
        let Some(running) = running.filter(|running| running.number == resume) else {
            return Ok(());
        };
        if running.after != after || std::mem::replace(&mut running.is_asked, true) {
            return Err(format!("{conn:?} asks behind {after} of topic {topic}: {running:?}"));
        }
        self.to_resume.push((index, topic, resume));
        self.summary.parts += 1;
        Ok(())
    }

    /// Answers connections that have asked for more, as far as the queue has room.
    pub(super) fn go_on_with_resumes(&mut self) {
        for (index, topic, resume) in std::mem::take(&mut self.to_resume) {
            let conn = &self.conns[index];
            let running = conn.resumes.get(&topic).copied();
            let Some(running) = running.filter(|running| running.number == resume) else {
                continue;
            };
            let (Some(id), Phase::Open) = (conn.id, conn.phase) else { continue };
            let log_start = self.topics[topic].ring.front().map_or(u64::MAX, |one| one.offset);
            let is_overtaken =
                running.after < self.topics[topic].head && log_start > running.after + 1;
            let is_pushed = if is_overtaken {
                self.unsubscribe_from(index, topic, Some(running.after))
            } else {
                self.push_part(index, topic, id, running)
            };
            if !is_pushed {
                self.to_resume.push((index, topic, resume));
            }
        }
    }

    fn push_part(&mut self, index: usize, topic: usize, conn: ConnId, running: Resuming) -> bool {
        let (chunk, numbers) = self.chunk(conn, topic, running.number, running.after, None);
        let (after, is_last) = (chunk.after, chunk.is_last);
        if !self.push(Command::Resume(Box::new(chunk))) {
            return false;
        }
        if is_last {
            self.topics[topic].count(conn);
        }
        let running = Resuming { after, is_asked: false, ..running };
        self.note_part(index, topic, &numbers, running, is_last);
        true
    }

    /// Pushes a chunk of a resume that has ended, or never existed.
    pub(super) fn push_stale_part(&mut self) {
        let Some(index) = self.pick_open() else { return };
        let topic = self.dice.index(self.topics.len());
        let resume = self.dice.below(self.resumes_begun + 1);
        let running = self.conns[index].resumes.get(&topic);
        let Some(conn) = self.conns[index].id else { return };
        if running.is_some_and(|running| running.number == resume) || self.topics[topic].is_retiring
        {
            return;
        }
        self.push_lost_part(conn, topic, resume);
    }

    /// Pushes a chunk that no connection gets. Its count comes back.
    pub(super) fn push_lost_part(&mut self, conn: ConnId, topic: usize, resume: u32) {
        let (mut chunk, _) = self.chunk(conn, topic, resume, 0, None);
        chunk.is_last = self.dice.chance(1 << 15);
        let is_last = chunk.is_last;
        if self.push(Command::Resume(Box::new(chunk))) && is_last {
            self.topics[topic].count(conn);
        }
    }

    pub(super) fn retire(&mut self) {
        let topic = self.dice.index(self.topics.len());
        let model = &self.topics[topic];
        if model.counts.is_empty()
            && !model.is_retiring
            && self.push(Command::Retire(topic_of(topic)))
        {
            self.topics[topic].is_retiring = true;
            self.topics[topic].ring.clear();
            for index in &self.live {
                self.conns[*index].resumes.remove(&topic);
            }
        }
    }
}
