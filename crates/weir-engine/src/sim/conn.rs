//! The reference model of one connection: what must reach its device, and what the front must hear
//! from it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use weir_wire::format::Format;
use weir_wire::{CloseReason, ProstMessage, v1};

use super::dice::Dice;
use super::incoming::{Answers, Incoming};
use super::link::{Link, PeerId};
use super::outgoing::Outgoing;
use super::owed::{Answer, Reply};
use super::secure::SecureEnd;
use crate::id::ConnId;
use crate::time::Nanos;

/// The state of a connection, as the front knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Offered; no answer yet.
    Offered,
    /// Adopted.
    Open,
    /// The front has the report of its end.
    Ended(CloseReason),
    /// The socket is gone too, and all counts are settled.
    Over,
}

/// How a device reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Everything that comes.
    All,
    /// This many bytes a turn.
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
    /// How many numbers its node had had when it was offered.
    pub(crate) renumbered: usize,
    pub(crate) phase: Phase,
    /// Its format, and whether its events name the positions of all its topics.
    pub(crate) format: Format,
    pub(crate) tells_positions: bool,
    /// The only topic of a reader of events whose ids name one position.
    pub(crate) only: Option<usize>,
    /// The device's TLS, if the connection has it.
    pub(crate) tls: Option<SecureEnd>,
    /// Bytes that came with the adoption.
    pub(crate) ahead: u64,
    pub(crate) is_taken: bool,
    /// Whether the command that greets it has been pushed.
    pub(crate) is_welcome: bool,
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
    pub(crate) topics: Vec<usize>,
    /// The topics that it resumes.
    pub(crate) resumes: BTreeMap<usize, Resuming>,
    /// Topics and numbers of resumes that the shard must report as refused.
    pub(crate) refused: BTreeSet<(usize, u32)>,
    pub(crate) reading: Reading,
    pub(crate) is_silent: bool,
    /// Reasons for an end that came from outside.
    pub(crate) asked: Vec<CloseReason>,
    /// Queue position of the command that closes it after everything queued.
    pub(crate) closed_behind: Option<u64>,
    /// When the shard last did not read from it, because it was stalled or held back.
    pub(crate) paused_at: Nanos,
    pub(crate) is_paused: bool,
    /// Whether its end answers its Close frame.
    pub(crate) must_echo: bool,
    /// When the shard was last seen not to listen to it: it held back received frames, or had not
    /// greeted it.
    pub(crate) held_at: Nanos,
    pub(crate) is_held: bool,
    /// When something last waited for it.
    pub(crate) waited_at: Nanos,
    pub(crate) is_waiting: bool,
    /// The bytes that its socket had taken, and when that was first seen.
    pub(crate) took: (u64, Nanos),
    /// The time by which it must have been asked for a sign of life.
    pub(crate) asked_by: Option<Nanos>,
    /// When it was first seen stalled, while it is stalled.
    pub(crate) stalled_at: Option<Nanos>,
    /// When the socket last took bytes, while it lags.
    pub(crate) taken_at: Option<Nanos>,
}

/// A running resume.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resuming {
    pub(crate) number: u32,
    /// Offset up to which chunks have been pushed.
    pub(crate) after: u64,
    /// Whether the next chunk has been asked for.
    pub(crate) is_asked: bool,
}

impl Conn {
    pub(crate) fn new(
        peer: PeerId,
        format: Format,
        tells_positions: bool,
        heartbeat: Duration,
        now: Nanos,
    ) -> Self {
        Self {
            peer,
            heartbeat,
            id: None,
            renumbered: 0,
            phase: Phase::Offered,
            format,
            tells_positions,
            only: None,
            tls: None,
            ahead: 0,
            is_taken: false,
            is_welcome: false,
            outgoing: Outgoing::new(format, tells_positions),
            incoming: Incoming::new(format, now),
            topics: Vec::new(),
            resumes: BTreeMap::new(),
            refused: BTreeSet::new(),
            reading: Reading::All,
            is_silent: false,
            asked: Vec::new(),
            closed_behind: None,
            paused_at: now,
            is_paused: false,
            must_echo: false,
            held_at: now,
            is_held: true,
            waited_at: now,
            is_waiting: false,
            took: (0, now),
            asked_by: None,
            stalled_at: None,
            taken_at: None,
        }
    }

    /// A short description for failures.
    pub(crate) fn outline(&self) -> String {
        let Self { id, phase, format, reading, is_silent, asked, paused_at, stalled_at, .. } = self;
        let Incoming { heard_at, begun_at, bad, .. } = &self.incoming;
        format!(
            "{id:?} {format:?} {phase:?}, reading {reading:?}, silent {is_silent}, heartbeat {:?}, asked {asked:?}, \
             paused {paused_at:?}, stalled {stalled_at:?}, heard {heard_at:?}, begun {begun_at:?}, bad {bad:?}",
            self.heartbeat
        )
    }
}

/// The device speaks.
impl Conn {
    /// Composes a message that the front gets.
    pub(crate) fn say_hello(&mut self, dice: &mut Dice, bytes: usize) {
        let body = hello_body(bytes);
        let end = self.say(&body, dice);
        if self.format != Format::Sse {
            self.incoming.bodies.push_back((end, body));
        }
    }

    /// Composes a message that the shard answers.
    pub(crate) fn ask(&mut self, body: &[u8], reply: Reply, dice: &mut Dice) {
        let end = self.say(body, dice);
        if self.format != Format::Sse {
            self.outgoing.answers.push_back(Answer { end, reply });
        }
    }

    fn say(&mut self, body: &[u8], dice: &mut Dice) -> u64 {
        self.incoming.say(body, dice, &mut Answers(&mut self.outgoing.answers))
    }
}

/// The shard reads.
impl Conn {
    /// Plaintext that the shard has read.
    pub(crate) fn consumed(&self, link: &Link) -> u64 {
        match &self.tls {
            Some(tls) => tls.plain_at(tls.ahead + link.consumed),
            None => self.ahead + link.consumed,
        }
    }

    /// Plaintext that the shard can read.
    pub(crate) fn readable(&self, link: &Link) -> u64 {
        let unread = link.inbound.len() as u64;
        match &self.tls {
            Some(tls) => tls.plain_at(tls.ahead + link.consumed + unread) - self.consumed(link),
            None => unread,
        }
    }

    /// Notes the bytes that the shard has read, as `link` says.
    pub(crate) fn note_consumed(&mut self, link: &Link, now: Nanos) {
        self.incoming.note_consumed(self.consumed(link), now);
        if let Some(tls) = &mut self.tls {
            tls.note_consumed(tls.ahead + link.consumed, now);
        }
    }

    /// Since when a begun record waits, while no whole record can be read.
    pub(crate) fn record_begun_at(&self, link: &Link) -> Option<Nanos> {
        self.tls.as_ref().filter(|tls| !tls.has_whole_record(link))?.begun_at
    }

    /// The reason, if the shard has read the bytes at which it must end the connection.
    pub(crate) fn has_ended(&self, link: &Link) -> Option<CloseReason> {
        let tls = self.tls.as_ref()?;
        let (end, reason) = tls.end?;
        (end <= tls.ahead + link.consumed).then_some(reason)
    }
}

/// The body of a message that the front gets.
fn hello_body(bytes: usize) -> Vec<u8> {
    use v1::client_message::Kind;
    let hello = v1::Hello { token: "h".repeat(bytes), ..v1::Hello::default() };
    v1::ClientMessage { kind: Some(Kind::Hello(hello)) }.encode_to_vec()
}
