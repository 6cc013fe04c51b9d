//! The twin: for each connection, plainly, what must reach it and what must be heard from it.

use std::collections::VecDeque;
use std::time::Duration;

use weir_wire::{CloseReason, ErrorCode, ProstMessage, frame, v1};

use super::link::PeerId;
use crate::id::{ConnId, Priority};
use crate::time::Nanos;

/// Everything that was ever sent, by number, and the sums over it.
#[derive(Debug, Default)]
pub(crate) struct Book {
    sent: Vec<Sent>,
    /// Commands that the lane has taken.
    pub(crate) position: u64,
    pub(crate) turn: u64,
    /// Messages seen whole behind the kernel.
    pub(crate) delivered: u64,
    /// Items that must have been dropped because their time had passed.
    pub(crate) expired: u64,
    /// Sends to connections whose end had been reported; and those whose end came between.
    pub(crate) gone: u64,
    pub(crate) maybe_gone: u64,
}

/// One frame from the front.
#[derive(Debug)]
pub(crate) struct Sent {
    frame: Vec<u8>,
    expires_at: Option<Nanos>,
    is_message: bool,
    topic: Option<usize>,
    position: u64,
}

/// What a frame from the front begins with: no message of the protocol does.
const TAG: u8 = 0xf9;

impl Book {
    /// A new frame of `bytes` bytes of content; its number is in it.
    pub(crate) fn frame(&self, bytes: usize) -> Vec<u8> {
        let number = u32::try_from(self.sent.len()).expect("fewer frames than 2^32");
        let mut body = vec![TAG];
        body.extend(number.to_le_bytes());
        let seed = number.wrapping_mul(0x9e37_79b1).to_le_bytes();
        body.extend(seed.iter().cycle().take(bytes));
        framed(&body)
    }

    /// Enters the frame that was made last; returns its number. Its position is that of the next command.
    pub(crate) fn enter(
        &mut self,
        frame: Vec<u8>,
        is_message: bool,
        expires_at: Option<Nanos>,
        topic: Option<usize>,
    ) -> u32 {
        let number = u32::try_from(self.sent.len()).expect("fewer frames than 2^32");
        let position = self.position;
        self.sent.push(Sent { frame, expires_at, is_message, topic, position });
        number
    }

    fn sent(&self, number: u32) -> &Sent {
        &self.sent[number as usize]
    }

    /// Whether `number` could have been dropped for its age at `now`.
    fn is_expired(&self, number: u32, now: Nanos) -> bool {
        self.sent(number).expires_at.is_some_and(|at| at <= now)
    }
}

/// The priority of a topic's messages, and of those that have no topic.
pub(crate) fn priority_of(topic: Option<usize>) -> Priority {
    topic.map_or(Priority::Normal, |topic| Priority::ALL[topic % Priority::COUNT])
}

/// Puts a length in front of a body.
pub(crate) fn framed(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 2);
    let mut rest = body.len();
    while rest >= 0x80 {
        out.push(u8::try_from(rest & 0x7f).expect("seven bits") | 0x80);
        rest >>= 7;
    }
    out.push(u8::try_from(rest).expect("seven bits"));
    out.extend_from_slice(body);
    out
}

/// Something for one connection alone, in the order of the lane.
#[derive(Debug, Clone)]
pub(crate) struct Direct {
    pub(crate) what: DirectWhat,
    pub(crate) position: u64,
    /// The topic that the connection has left when it reads this.
    pub(crate) left: Option<usize>,
}

/// What it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DirectWhat {
    /// A frame by its number.
    Frame(u32),
    /// The error for one topic too many.
    TooMany,
}

/// What the shard itself answers, once it has read to `end`.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) end: u64,
    /// What the `Pong` carries; `None`: the error for an unknown kind.
    pub(crate) pong: Option<Vec<u8>>,
}

/// What must reach one connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outgoing {
    /// The beginning of a frame, and when it was begun.
    partial: Vec<u8>,
    begun_at: Nanos,
    begun_in: u64,
    pub(crate) directs: VecDeque<Direct>,
    pub(crate) pushes: VecDeque<u32>,
    pub(crate) answers: VecDeque<Answer>,
    /// Code of the `Goodbye` that was seen.
    pub(crate) goodbye: Option<u32>,
    /// From this turn on only `Goodbye` may begin.
    pub(crate) ended_in: Option<u64>,
    /// The device sent garbage: nobody knows what is answered.
    pub(crate) is_wild: bool,
}

/// What was seen of the frames that one look brought.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) delivered: u64,
    pub(crate) expired: u64,
}

/// When and how a look is taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    pub(crate) now: Nanos,
    /// Bytes that the shard has read from the device.
    pub(crate) consumed: u64,
    /// It is the queue that is looked at: what has expired may still stand in it.
    pub(crate) is_queue: bool,
}

impl Outgoing {
    /// Takes bytes as they leave and holds the frames in them against what must come.
    pub(crate) fn take(&mut self, bytes: &[u8], book: &Book, look: Look) -> Result<Seen, String> {
        let mut seen = Seen::default();
        let mut begun = (look.now, book.turn);
        let mut all = std::mem::take(&mut self.partial);
        if !all.is_empty() {
            begun = (self.begun_at, self.begun_in);
        }
        all.extend_from_slice(bytes);
        let mut rest = &all[..];
        while !rest.is_empty() {
            let whole = frame::decode(rest, usize::MAX).map_err(|error| error.to_string())?;
            let Some((body, used)) = whole else { break };
            self.take_frame(&rest[..used], body, book, look, begun, &mut seen)?;
            rest = &rest[used..];
            begun = (look.now, book.turn);
        }
        (self.begun_at, self.begun_in) = begun;
        self.partial = rest.to_vec();
        Ok(seen)
    }

    fn take_frame(
        &mut self,
        frame: &[u8],
        body: &[u8],
        book: &Book,
        look: Look,
        begun: (Nanos, u64),
        seen: &mut Seen,
    ) -> Result<(), String> {
        if self.goodbye.is_some() {
            return Err("a frame behind Goodbye".into());
        }
        if body.first() != Some(&TAG) {
            return self.take_message(body, book, look, seen);
        }
        if !look.is_queue && self.ended_in.is_some_and(|turn| begun.1 > turn) {
            return Err("a frame was begun behind the end of its connection".into());
        }
        let number = body.get(1..5).and_then(|bytes| bytes.try_into().ok());
        let number = number.map(u32::from_le_bytes).ok_or("a frame without a number")?;
        let sent = book.sent.get(number as usize).ok_or("a frame that was never sent")?;
        if sent.frame != frame {
            return Err(format!("frame {number} has other bytes"));
        }
        if !look.is_queue && sent.expires_at.is_some_and(|at| at <= begun.0) {
            return Err(format!("frame {number} was begun when its time had passed"));
        }
        seen.delivered += u64::from(sent.is_message);
        if self.directs.iter().any(|direct| direct.what == DirectWhat::Frame(number)) {
            self.take_direct(DirectWhat::Frame(number), book, look, seen)
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
                }
                return Ok(());
            }
            match direct.what {
                DirectWhat::Frame(number) if book.is_expired(number, look.now) => seen.expired += 1,
                DirectWhat::Frame(_) | DirectWhat::TooMany => {
                    return Err(format!("{what:?} came, {direct:?} should have come"));
                }
            }
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
        let position = book.sent(number).position;
        let is_early = |direct: &&Direct| {
            let is_due = direct.position < position;
            let may_expire =
                matches!(direct.what, DirectWhat::Frame(n) if book.is_expired(n, look.now));
            is_due && !may_expire
        };
        if let Some(direct) = self.directs.iter().find(is_early) {
            return Err(format!("message {number} overtook {direct:?}"));
        }
        let mut at = 0;
        while let Some(expected) = self.pushes.get(at).copied() {
            if expected == number {
                self.pushes.remove(at);
                return Ok(());
            }
            // What is of lower priority may be overtaken.
            if priority_of(book.sent(expected).topic) > priority_of(book.sent(number).topic) {
                at += 1;
                continue;
            }
            self.pushes.remove(at);
            if self.has_left(expected, book) {
                continue;
            }
            if !book.is_expired(expected, look.now) {
                return Err(format!("message {number} came, {expected} should have come"));
            }
            seen.expired += 1;
        }
        Err(format!("message {number} came and was not for this connection, or came twice"))
    }

    /// Whether the connection leaves the topic of a message behind it: then it may miss it.
    fn has_left(&self, number: u32, book: &Book) -> bool {
        let sent = book.sent(number);
        let leaves = |direct: &Direct| direct.left.is_some() && direct.left == sent.topic;
        self.directs.iter().any(|direct| leaves(direct) && direct.position > sent.position)
    }

    /// A message of the protocol itself.
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
        let pong = match message.kind {
            Some(Kind::Goodbye(goodbye)) => {
                self.goodbye = Some(goodbye.code);
                return Ok(());
            }
            Some(Kind::Error(error)) if error.code == ErrorCode::TooManyTopics.name() => {
                return self.take_direct(DirectWhat::TooMany, book, look, seen);
            }
            Some(Kind::Error(_)) => None,
            Some(Kind::Pong(pong)) => Some(pong.data),
            other => return Err(format!("unexpected {other:?}")),
        };
        if self.is_wild {
            return Ok(());
        }
        match self.answers.pop_front() {
            Some(answer) if answer.pong == pong && answer.end <= look.consumed => Ok(()),
            other => Err(format!("answer {pong:?} came, {other:?} should have come")),
        }
    }

    /// Whether no frame stands half sent.
    pub(crate) fn is_whole(&self) -> bool {
        self.partial.is_empty()
    }

    /// Whether all that stood in the lane before `position` has come: for an end that leaves behind it.
    pub(crate) fn check_all_before(
        &self,
        position: u64,
        book: &Book,
        now: Nanos,
    ) -> Result<(), String> {
        let is_due = |direct: &&Direct| {
            let may_expire = matches!(direct.what, DirectWhat::Frame(n) if book.is_expired(n, now));
            direct.position < position && !may_expire
        };
        if let Some(direct) = self.directs.iter().find(is_due) {
            return Err(format!("{direct:?} is lost"));
        }
        let is_due = |number: &&u32| {
            let is_before = book.sent(**number).position < position;
            is_before && !book.is_expired(**number, now) && !self.has_left(**number, book)
        };
        match self.pushes.iter().find(is_due) {
            Some(number) => Err(format!("message {number} is lost")),
            None => Ok(()),
        }
    }

    /// When nothing waits any more: what must have come and has not is an error, the rest is forgotten.
    ///
    /// Returns how many must have been dropped for their age.
    pub(crate) fn settle(&mut self, book: &Book, look: Look) -> Result<u64, String> {
        let mut expired = 0;
        if !self.is_whole() {
            return Err("a frame is half sent and nothing waits".into());
        }
        for number in std::mem::take(&mut self.pushes) {
            if self.has_left(number, book) {
                continue;
            }
            if !book.is_expired(number, look.now) {
                return Err(format!("message {number} is lost"));
            }
            expired += 1;
        }
        for direct in std::mem::take(&mut self.directs) {
            match direct.what {
                DirectWhat::Frame(number) if book.is_expired(number, look.now) => expired += 1,
                DirectWhat::Frame(_) | DirectWhat::TooMany => {
                    return Err(format!("{direct:?} is lost"));
                }
            }
        }
        let is_due = |answer: &&Answer| answer.end <= look.consumed;
        match self.answers.iter().find(is_due) {
            Some(answer) if !self.is_wild => Err(format!("{answer:?} is lost")),
            Some(_) | None => Ok(expired),
        }
    }
}

/// What must be heard from one device.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// Composed and not yet written.
    pub(crate) unsent: VecDeque<u8>,
    /// Bytes composed so far.
    pub(crate) composed: u64,
    /// Where the frames end that the shard has not read whole.
    pub(crate) ends: VecDeque<u64>,
    last_end: u64,
    /// Bodies that the front must get, and where their frames end.
    pub(crate) bodies: VecDeque<(u64, Vec<u8>)>,
    /// Where the stream goes bad, and the reason that it must end with.
    pub(crate) bad: Option<(u64, CloseReason)>,
    /// When the shard last read the end of a frame, and the beginning of one that is not whole.
    pub(crate) heard_at: Nanos,
    pub(crate) begun_at: Option<Nanos>,
}

impl Incoming {
    pub(crate) fn new(now: Nanos) -> Self {
        Self {
            unsent: VecDeque::new(),
            composed: 0,
            ends: VecDeque::new(),
            last_end: 0,
            bodies: VecDeque::new(),
            bad: None,
            heard_at: now,
            begun_at: None,
        }
    }

    /// Appends a whole frame to what the device will write; returns where it ends.
    pub(crate) fn compose(&mut self, frame: &[u8]) -> u64 {
        self.unsent.extend(frame);
        self.composed += frame.len() as u64;
        self.ends.push_back(self.composed);
        self.composed
    }

    /// Appends bytes that are no whole frame.
    pub(crate) fn compose_bad(&mut self, bytes: &[u8]) -> u64 {
        self.unsent.extend(bytes);
        self.composed += bytes.len() as u64;
        self.composed
    }

    /// The shard has read up to `consumed`.
    pub(crate) fn note_consumed(&mut self, consumed: u64, now: Nanos) {
        let mut is_new = false;
        while self.ends.front().is_some_and(|end| *end <= consumed) {
            self.last_end = self.ends.pop_front().unwrap_or_default();
            self.heard_at = now;
            is_new = true;
        }
        if consumed <= self.last_end {
            self.begun_at = None;
        } else if self.begun_at.is_none() || is_new {
            self.begun_at = Some(now);
        }
    }

    /// Whether a whole frame stands in the `readable` bytes behind `consumed`.
    pub(crate) fn has_whole_frame(&self, consumed: u64, readable: u64) -> bool {
        self.ends.front().is_some_and(|end| *end <= consumed + readable)
    }
}

/// Where a connection stands, as the front knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Offered; no answer yet.
    Offered,
    /// Adopted.
    Open,
    /// Its end is reported.
    Ended(CloseReason),
    /// The socket is gone too, and all accounts are closed.
    Over,
}

/// How a device reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    /// All that comes.
    All,
    /// So many bytes a turn.
    Slowly(usize),
    /// Nothing.
    Stopped,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) peer: PeerId,
    pub(crate) heartbeat: Duration,
    pub(crate) id: Option<ConnId>,
    pub(crate) phase: Phase,
    /// Bytes that came with the adoption.
    pub(crate) ahead: u64,
    pub(crate) is_taken: bool,
    /// The command that greets it has been pushed.
    pub(crate) is_welcome: bool,
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
    pub(crate) topics: Vec<usize>,
    pub(crate) reading: Reading,
    pub(crate) is_silent: bool,
    /// Reasons that were brought about from outside.
    pub(crate) asked: Vec<CloseReason>,
    /// Lane position of what closes it behind all that was queued.
    pub(crate) closed_behind: Option<u64>,
    /// When it was last not read from: stalled, or held back.
    pub(crate) paused_at: Nanos,
    pub(crate) is_paused: bool,
    /// When it was first seen stalled, while it is.
    pub(crate) stalled_at: Option<Nanos>,
}

impl Conn {
    /// What a failure says of it.
    pub(crate) fn outline(&self) -> String {
        let Self { id, phase, reading, is_silent, asked, paused_at, stalled_at, .. } = self;
        let Incoming { heard_at, begun_at, bad, .. } = &self.incoming;
        format!(
            "{id:?} {phase:?}, reading {reading:?}, silent {is_silent}, heartbeat {:?}, asked {asked:?}, \
             paused {paused_at:?}, stalled {stalled_at:?}, heard {heard_at:?}, begun {begun_at:?}, bad {bad:?}",
            self.heartbeat
        )
    }
}
