//! The reference model of the bytes to a device: the frames that must come, their order, and the
//! frames that may be missing.

use std::collections::{BTreeMap, VecDeque};

use weir_wire::format::Format;
use weir_wire::hot::Push;
use weir_wire::{ErrorCode, ProstMessage, frame, v1};

use super::book::{Book, Says, Sent, priority_of};
use super::edge::{self, Unit};
use super::owed::{Answer, Direct, DirectWhat, Look, Reply, Seen, Turns};
use super::positions::Told;
use crate::id::{SlowPolicy, TopicId};
use crate::time::Nanos;

/// The frames that must reach one connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outgoing {
    pub(crate) format: Format,
    /// A begun frame or event, and when it was begun.
    partial: Vec<u8>,
    begun: Begun,
    /// Events of a batch that has not come whole, and when the first one was begun.
    gathered: Vec<Vec<u8>>,
    gathered_begun: Begun,
    /// The positions that a reader of events has been told.
    pub(crate) told: Told,
    /// When the last sign of life left, or was last asked for.
    pub(crate) beat_at: Option<Nanos>,
    /// Signs of life that were asked for and not given yet.
    pub(crate) pings: u32,
    pub(crate) directs: VecDeque<Direct>,
    pub(crate) pushes: VecDeque<u32>,
    /// The messages due of conflating topics, one by one and unordered; for batches, the single
    /// messages.
    pub(crate) newest: BTreeMap<usize, VecDeque<u32>>,
    /// The turns in which the connection was stalled, and those in which it lagged.
    pub(crate) stalled_in: Turns,
    pub(crate) lagged_in: Turns,
    pub(crate) answers: VecDeque<Answer>,
    /// The codes in the `Goodbye` and in the Close frame that were seen.
    pub(crate) goodbye: Option<u32>,
    pub(crate) close: Option<Option<u16>>,
    /// From this turn on only `Goodbye` may begin.
    pub(crate) ended_in: Option<u64>,
    /// The device sent garbage, so its answers cannot be predicted.
    pub(crate) is_wild: bool,
}

/// When something was begun: the time, and the turn.
type Begun = (Nanos, u64);

impl Outgoing {
    pub(crate) fn new(format: Format, tells_positions: bool) -> Self {
        Self { format, told: Told::new(tells_positions), ..Self::default() }
    }

    /// Takes bytes as they leave, and compares their frames with those that must come.
    pub(crate) fn take(&mut self, bytes: &[u8], book: &Book, look: Look) -> Result<Seen, String> {
        let mut seen = Seen::default();
        let fresh = look.sealed_in.unwrap_or((look.now, book.turn));
        let mut all = std::mem::take(&mut self.partial);
        if all.is_empty() {
            self.begun = fresh;
        }
        all.extend_from_slice(bytes);
        let mut rest = &all[..];
        while !rest.is_empty() {
            let Some((unit, used)) = edge::cut(self.format, rest)? else { break };
            let begun = std::mem::replace(&mut self.begun, fresh);
            self.take_unit(unit, book, look, begun, &mut seen)?;
            rest = &rest[used..];
        }
        self.partial = rest.to_vec();
        Ok(seen)
    }

    fn take_unit(
        &mut self,
        unit: Unit,
        book: &Book,
        look: Look,
        begun: Begun,
        seen: &mut Seen,
    ) -> Result<(), String> {
        let is_end = matches!(unit, Unit::Close(_));
        if self.close.is_some() || (self.goodbye.is_some() && !is_end) {
            return Err(format!("{unit:?} behind the end"));
        }
        let is_event = matches!(unit, Unit::Event(..));
        if !self.gathered.is_empty() && !is_event {
            return Err(format!("{unit:?} within a tick"));
        }
        match unit {
            Unit::Frame(frame) => self.take_frame(&frame, book, look, begun, seen).map(drop),
            Unit::Event(frame, id) => {
                self.take_event(frame, id.as_deref(), book, look, begun, seen)
            }
            Unit::Pong(data) => self.take_reply(&Reply::Control(data), look),
            Unit::Close(code) => {
                self.close = Some(code);
                Ok(())
            }
            Unit::Ping | Unit::Comment => {
                self.check_before_end(look, begun)?;
                self.beat_at = Some(look.now);
                self.pings += 1;
                Ok(())
            }
        }
    }

    fn check_before_end(&self, look: Look, begun: Begun) -> Result<(), String> {
        if !look.is_queue && self.ended_in.is_some_and(|turn| begun.1 > turn) {
            return Err("a frame was begun behind the end of its connection".into());
        }
        Ok(())
    }

    /// Takes an event. Of a batch, the last event tells the position, and stands for all.
    fn take_event(
        &mut self,
        frame: Vec<u8>,
        id: Option<&[v1::Position]>,
        book: &Book,
        look: Look,
        begun: Begun,
        seen: &mut Seen,
    ) -> Result<(), String> {
        let (body, _) = frame::decode(&frame, usize::MAX).ok().flatten().ok_or("no frame")?;
        let push = Push::decode(body).map_err(|error| error.to_string())?;
        let is_part = push.is_some_and(|push| push.offset > 0);
        if self.gathered.is_empty() {
            self.gathered_begun = begun;
        } else if !is_part {
            return Err("another event within a tick".into());
        }
        if !is_part {
            let number = self.take_frame(&frame, book, look, begun, seen)?;
            return self.take_id(number, id, book, look);
        }
        self.gathered.push(frame);
        if id.is_none() {
            return Ok(());
        }
        let begun = self.gathered_begun;
        let frame = self.gathered_frame(book)?;
        let number = self.take_frame(&frame, book, look, begun, seen)?;
        self.take_id(number, id, book, look)
    }

    /// Notes an event's id.
    fn take_id(
        &mut self,
        number: Option<u32>,
        id: Option<&[v1::Position]>,
        book: &Book,
        look: Look,
    ) -> Result<(), String> {
        let mut told = std::mem::take(&mut self.told);
        told.take_id(number, id, book, |topic, offset| {
            self.check_nothing_missing(topic, offset, book, look)
        })?;
        self.told = told;
        Ok(())
    }

    /// Checks that all of a topic up to `offset` has come, or may never come.
    fn check_nothing_missing(
        &self,
        topic: usize,
        offset: u64,
        book: &Book,
        look: Look,
    ) -> Result<(), String> {
        let is_before = |number: u32| {
            let sent = book.sent(number);
            sent.topic == Some(topic) && sent.of_topic.offset <= offset
        };
        // Frames after the end of the topic belong to another resume, which may begin further back.
        let is_of_this = |direct: &&Direct| match direct.what {
            DirectWhat::Frame(number) => {
                !matches!(book.sent(number).says, Says::Unsubscribed(left, _) if left == topic)
            }
            DirectWhat::Missed(_) | DirectWhat::TooMany | DirectWhat::Busy => true,
        };
        let directs = self.directs.iter().take_while(is_of_this);
        let missed = directs.filter_map(|direct| match direct.what {
            DirectWhat::Missed(number) => Some(number),
            DirectWhat::Frame(_) | DirectWhat::TooMany | DirectWhat::Busy => None,
        });
        let pushed = self.pushes.iter().copied();
        let is_missing = |number: &u32| {
            let may_miss = book.is_expired(*number, look.now)
                || self.has_left(*number, book)
                || self.may_skip(*number, book);
            is_before(*number) && !may_miss
        };
        if let Some(number) = missed.chain(pushed).find(is_missing) {
            return Err(format!("message {number} has not come"));
        }
        let Some(due) = self.newest.get(&topic) else { return Ok(()) };
        let count = due.iter().take_while(|number| is_before(**number)).count();
        self.check_given_way(due, count, book, look.now)
    }

    /// The frame of which the gathered events were made: one with a message, or a batch.
    fn gathered_frame(&mut self, book: &Book) -> Result<Vec<u8>, String> {
        let mut numbers = Vec::new();
        let frames = std::mem::take(&mut self.gathered);
        for frame in &frames {
            let (body, _) = frame::decode(frame, usize::MAX).ok().flatten().ok_or("no frame")?;
            let number = book.number_of(body)?.ok_or("no message")?;
            if book.sent(number).frame != *frame {
                return Err(format!("event {number} says something else"));
            }
            numbers.push(number);
        }
        // A batch of one message looks like that message. If the batch is still due, it comes
        // first: a connection that leaves a topic and resumes it gets the earlier queued messages.
        let is_missed = |number| {
            let is_due = |tick| self.pushes.contains(&tick);
            self.directs.iter().any(|direct| direct.what == DirectWhat::Missed(number))
                && !book.sent(number).tick.is_some_and(is_due)
        };
        match (&numbers[..], book.sent(numbers[0]).tick) {
            ([number], None) => Ok(book.sent(*number).frame.clone()),
            ([number], Some(tick))
                if is_missed(*number) || book.sent(tick).of_topic.singles != numbers =>
            {
                Ok(book.sent(*number).frame.clone())
            }
            (_, Some(tick)) if book.sent(tick).of_topic.singles == numbers => {
                Ok(book.sent(tick).frame.clone())
            }
            _ => Err(format!("{numbers:?} are no tick")),
        }
    }

    /// Takes a whole frame. Returns its number, unless it is one of the shard's own.
    fn take_frame(
        &mut self,
        frame: &[u8],
        book: &Book,
        look: Look,
        begun: Begun,
        seen: &mut Seen,
    ) -> Result<Option<u32>, String> {
        let (body, _) = frame::decode(frame, usize::MAX).ok().flatten().ok_or("no frame")?;
        let Some(number) = book.number_of(body)? else {
            self.take_message(body, book, look, seen)?;
            return Ok(None);
        };
        self.check_before_end(look, begun)?;
        let sent = book.sent(number);
        if sent.frame != frame {
            return Err(format!("frame {number} has other bytes"));
        }
        if !look.is_queue && sent.expires_at.is_some_and(|at| at <= begun.0) {
            return Err(format!("frame {number} was begun when its time had passed"));
        }
        seen.delivered += u64::from(sent.is_message);
        self.take_number(number, book, look, seen)?;
        Ok(Some(number))
    }

    fn take_number(
        &mut self,
        number: u32,
        book: &Book,
        look: Look,
        seen: &mut Seen,
    ) -> Result<(), String> {
        let is_due = |what| self.directs.iter().any(|direct| direct.what == what);
        let next = self.directs.iter().find(|direct| {
            direct.what == DirectWhat::Missed(number) || !direct.may_expire(book, look.now)
        });
        let is_missed = next.is_some_and(|direct| direct.what == DirectWhat::Missed(number));
        if is_missed {
            self.take_direct(DirectWhat::Missed(number), book, look, seen)
        } else if is_due(DirectWhat::Frame(number)) {
            self.take_direct(DirectWhat::Frame(number), book, look, seen)
        } else if book.sent(number).of_topic.slow == SlowPolicy::Conflate {
            self.take_newest(number, book, look)
        } else {
            self.take_push(number, book, look, seen)
        }
    }

    fn take_direct(
        &mut self,
        what: DirectWhat,
        book: &Book,
        look: Look,
        seen: &mut Seen,
    ) -> Result<(), String> {
        while let Some(direct) = self.directs.pop_front() {
            if direct.what == what {
                if let Some(left) = direct.left {
                    self.pushes.retain(|number| {
                        let sent = book.sent(*number);
                        sent.topic != Some(left) || sent.position > direct.position
                    });
                    if let Some(newest) = self.newest.get_mut(&left) {
                        newest.retain(|number| book.sent(*number).position > direct.position);
                    }
                }
                return Ok(());
            }
            if !direct.may_expire(book, look.now) {
                return Err(format!("{what:?} came, {direct:?} should have come"));
            }
            seen.expired += 1;
        }
        Err(format!("{what:?} came and was not for this connection, or came twice"))
    }

    fn take_push(
        &mut self,
        number: u32,
        book: &Book,
        look: Look,
        seen: &mut Seen,
    ) -> Result<(), String> {
        self.check_overtakes_nothing(number, book, look)?;
        let mut at = 0;
        while let Some(expected) = self.pushes.get(at).copied() {
            if expected == number {
                self.pushes.remove(at);
                return Ok(());
            }
            // Frames of lower priority may be overtaken.
            if priority_of(book.sent(expected).topic) > priority_of(book.sent(number).topic) {
                at += 1;
                continue;
            }
            self.pushes.remove(at);
            if self.has_left(expected, book) || self.may_skip(expected, book) {
                continue;
            }
            if !book.is_expired(expected, look.now) {
                return Err(format!("message {number} came, {expected} should have come"));
            }
            seen.expired += 1;
        }
        Err(format!("message {number} came and was not for this connection, or came twice"))
    }

    fn check_overtakes_nothing(&self, number: u32, book: &Book, look: Look) -> Result<(), String> {
        let position = book.sent(number).position;
        let is_early =
            |direct: &&Direct| direct.position < position && !direct.may_expire(book, look.now);
        match self.directs.iter().find(is_early) {
            Some(direct) => Err(format!("message {number} overtook {direct:?}")),
            None => Ok(()),
        }
    }

    /// Whether the connection may have been stalled, or lagged, when this message of a dropping
    /// topic came.
    pub(super) fn may_skip(&self, number: u32, book: &Book) -> bool {
        let Sent { turn, walked_in, .. } = *book.sent(number);
        book.sent(number).of_topic.slow == SlowPolicy::Drop
            && (self.stalled_in.holds_within(turn, walked_in)
                || self.lagged_in.holds_within(turn, walked_in))
    }

    /// Takes a message of a conflating topic. Newer messages have replaced those before it in its
    /// topic.
    fn take_newest(&mut self, number: u32, book: &Book, look: Look) -> Result<(), String> {
        self.check_overtakes_nothing(number, book, look)?;
        let sent = book.sent(number);
        let topic = sent.topic.ok_or("a conflated message without a topic")?;
        let single = [number];
        let singles =
            if sent.of_topic.singles.is_empty() { &single } else { &sent.of_topic.singles[..] };
        let due = self.newest.get(&topic).ok_or("a message of a topic that it is not in")?;
        let at = due.iter().position(|due| *due == singles[0]).ok_or_else(|| {
            format!("message {number} came and was not for this connection, or came twice")
        })?;
        if due.range(at..).zip(singles).filter(|(due, single)| due == single).count()
            < singles.len()
        {
            return Err(format!("a part of tick {number} came before it"));
        }
        self.check_given_way(due, at, book, look.now)?;
        if let Some(due) = self.newest.get_mut(&topic) {
            due.drain(..at + singles.len());
        }
        Ok(())
    }

    /// Checks that the first `count` due messages may never come. Each has expired, or the
    /// connection has left its topic. Or the connection lagged, and a newer message of the key is
    /// due, or too many others pushed it out of the store.
    pub(super) fn check_given_way(
        &self,
        due: &VecDeque<u32>,
        count: usize,
        book: &Book,
        now: Nanos,
    ) -> Result<(), String> {
        for (index, number) in due.iter().enumerate().take(count) {
            let sent = book.sent(*number);
            let key = sent.of_topic.key;
            let is_newer = |other: &u32| key.is_some() && book.sent(*other).of_topic.key == key;
            let is_replaced = due.range(index + 1..).any(is_newer);
            let has_fallen_out = due.len() - index > book.keys_max;
            let lagged = self.lagged_in.holds_within(sent.turn, sent.walked_in);
            let may_give_way = lagged && (has_fallen_out || is_replaced);
            if !may_give_way && !book.is_expired(*number, now) && !self.has_left(*number, book) {
                return Err(format!("message {number} of a conflating topic is lost: {sent:?}"));
            }
        }
        Ok(())
    }

    /// Whether the connection leaves the message's topic behind it. Then it may miss the message.
    pub(super) fn has_left(&self, number: u32, book: &Book) -> bool {
        let sent = book.sent(number);
        let leaves = |direct: &Direct| direct.left.is_some() && direct.left == sent.topic;
        self.directs.iter().any(|direct| leaves(direct) && direct.position > sent.position)
    }

    /// Takes a message of the protocol itself.
    fn take_message(
        &mut self,
        body: &[u8],
        book: &Book,
        look: Look,
        seen: &mut Seen,
    ) -> Result<(), String> {
        use v1::server_message::Kind;
        let message =
            v1::ServerMessage::decode(body).map_err(|error| format!("{error}: {body:?}"))?;
        match message.kind {
            Some(Kind::Goodbye(goodbye)) => {
                self.goodbye = Some(goodbye.code);
                Ok(())
            }
            Some(Kind::Error(error)) if error.code == ErrorCode::TooManyTopics.name() => {
                self.take_direct(DirectWhat::TooMany, book, look, seen)
            }
            Some(Kind::Error(error)) if error.code == ErrorCode::Busy.name() => {
                self.take_direct(DirectWhat::Busy, book, look, seen)
            }
            Some(Kind::Error(_)) => self.take_reply(&Reply::Error, look),
            Some(Kind::Pong(pong)) => self.take_reply(&Reply::Pong(pong.data), look),
            other => Err(format!("unexpected {other:?}")),
        }
    }

    fn take_reply(&mut self, reply: &Reply, look: Look) -> Result<(), String> {
        if self.is_wild {
            return Ok(());
        }
        match self.answers.pop_front() {
            Some(answer) if answer.reply == *reply && answer.end <= look.consumed => Ok(()),
            other => Err(format!("answer {reply:?} came, {other:?} should have come")),
        }
    }

    /// Whether no frame stands half sent.
    pub(crate) fn is_whole(&self) -> bool {
        self.partial.is_empty() && self.gathered.is_empty()
    }

    /// Checks that everything queued before `position` has come, for an end that leaves behind it.
    pub(crate) fn check_all_before(
        &self,
        position: u64,
        book: &Book,
        now: Nanos,
    ) -> Result<(), String> {
        let is_due = |direct: &&Direct| direct.position < position && !direct.may_expire(book, now);
        if let Some(direct) = self.directs.iter().find(is_due) {
            return Err(format!("{direct:?} is lost"));
        }
        let is_due = |number: &&u32| {
            let is_before = book.sent(**number).position < position;
            let may_miss = book.is_expired(**number, now) || self.may_skip(**number, book);
            is_before && !may_miss && !self.has_left(**number, book)
        };
        match self.pushes.iter().find(is_due) {
            Some(number) => Err(format!("message {number} is lost")),
            None => Ok(()),
        }
    }

    /// Settles the model when nothing waits any more. A missing frame that must have come is an
    /// error; the rest is forgotten.
    ///
    /// Returns how many frames must have been dropped because they expired.
    ///
    /// Messages of the topics in `lags` are not due, because they are in the stores.
    pub(crate) fn settle(
        &mut self,
        book: &Book,
        look: Look,
        lags: &[TopicId],
    ) -> Result<u64, String> {
        let lags = |topic: &usize| lags.iter().any(|id| id.0 as usize == *topic);
        for (topic, due) in &self.newest {
            let count = if lags(topic) { 0 } else { due.len() };
            self.check_given_way(due, count, book, look.now)?;
        }
        self.newest.retain(|topic, _| lags(topic));
        let mut expired = 0;
        if !self.is_whole() {
            return Err("a frame is half sent and nothing waits".into());
        }
        for number in std::mem::take(&mut self.pushes) {
            if self.has_left(number, book) || self.may_skip(number, book) {
                continue;
            }
            if !book.is_expired(number, look.now) {
                return Err(format!("message {number} is lost"));
            }
            expired += 1;
        }
        for direct in std::mem::take(&mut self.directs) {
            if !direct.may_expire(book, look.now) {
                return Err(format!("{direct:?} is lost"));
            }
            expired += 1;
        }
        let is_due = |answer: &&Answer| answer.end <= look.consumed;
        match self.answers.iter().find(is_due) {
            Some(answer) if !self.is_wild => Err(format!("{answer:?} is lost")),
            Some(_) | None => Ok(expired),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::book::OfTopic;
    use super::*;

    /// Fails if only the last turn in which it was stalled is compared (`may_skip`).
    #[test]
    fn only_a_stall_while_a_message_came_excuses_its_loss() {
        let mut book = Book::default();
        for (turn, walked_in) in [(4, 5), (5, 6), (6, 8), (6, 9), (12, u64::MAX), (13, 14)] {
            book.turn = turn;
            let number = book.enter(Vec::new(), true, None, None);
            book.describe(OfTopic { slow: SlowPolicy::Drop, ..OfTopic::default() });
            book.sent[number as usize].walked_in = walked_in;
        }
        let mut outgoing = Outgoing::default();
        for turn in [3, 4, 5, 9, 12] {
            outgoing.stalled_in.note(turn);
        }
        let skips: Vec<bool> = (0..6).map(|number| outgoing.may_skip(number, &book)).collect();
        assert_eq!(skips, [true, true, false, true, true, false]);
    }
}
