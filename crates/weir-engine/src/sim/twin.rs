//! The twin: for each connection, plainly, what must reach it and what must be heard from it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use weir_wire::CloseReason;

use super::link::PeerId;
use super::outgoing::Outgoing;
use super::secure::SecureEnd;
use crate::id::{ConnId, Priority, SlowPolicy};
use crate::time::Nanos;

/// Everything that was ever sent, by number, and the sums over it.
#[derive(Debug, Default)]
pub(crate) struct Book {
    pub(crate) sent: Vec<Sent>,
    /// Commands that the lane has taken.
    pub(crate) position: u64,
    pub(crate) turn: u64,
    /// Messages that a store keeps of a topic.
    pub(crate) keys_max: usize,
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
    pub(crate) frame: Vec<u8>,
    pub(crate) expires_at: Option<Nanos>,
    pub(crate) is_message: bool,
    pub(crate) topic: Option<usize>,
    pub(crate) position: u64,
    pub(crate) turn: u64,
    /// The first turn behind which all that was sent had reached everybody's queue; not known yet: beyond all turns.
    pub(crate) walked_in: u64,
    pub(crate) of_topic: OfTopic,
}

/// What is said of a message to a topic.
#[derive(Debug, Clone, Default)]
pub(crate) struct OfTopic {
    pub(crate) slow: SlowPolicy,
    pub(crate) key: Option<u8>,
    /// Of a tick, the numbers of its single messages.
    pub(crate) singles: Vec<u32>,
}

/// What a frame from the front begins with: no message of the protocol does.
pub(crate) const TAG: u8 = 0xf9;

impl Book {
    /// A new frame of `bytes` bytes of content; its number is in it, and it ends with its key.
    pub(crate) fn frame(&self, bytes: usize, key: Option<u8>) -> Vec<u8> {
        let number = u32::try_from(self.sent.len()).expect("fewer frames than 2^32");
        let mut body = vec![TAG];
        body.extend(number.to_le_bytes());
        let seed = number.wrapping_mul(0x9e37_79b1).to_le_bytes();
        body.extend(seed.iter().cycle().take(bytes));
        body.extend(key);
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
        let (position, turn) = (self.position, self.turn);
        let (walked_in, of_topic) = (u64::MAX, OfTopic::default());
        self.sent.push(Sent {
            frame,
            expires_at,
            is_message,
            topic,
            position,
            turn,
            walked_in,
            of_topic,
        });
        number
    }

    /// Says more of the frame that was entered last.
    pub(crate) fn describe(&mut self, of_topic: OfTopic) {
        if let Some(sent) = self.sent.last_mut() {
            sent.of_topic = of_topic;
        }
    }

    /// Behind this turn nothing is under way in the shard.
    pub(crate) fn note_quiet(&mut self) {
        for sent in self.sent.iter_mut().rev().take_while(|sent| sent.walked_in == u64::MAX) {
            sent.walked_in = self.turn;
        }
    }

    pub(crate) fn sent(&self, number: u32) -> &Sent {
        &self.sent[number as usize]
    }

    /// Whether `number` could have been dropped for its age at `now`.
    pub(crate) fn is_expired(&self, number: u32, now: Nanos) -> bool {
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
    /// The records, if it has TLS.
    pub(crate) tls: Option<SecureEnd>,
    /// Bytes that came with the adoption.
    pub(crate) ahead: u64,
    pub(crate) is_taken: bool,
    /// The command that greets it has been pushed.
    pub(crate) is_welcome: bool,
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
    pub(crate) topics: Vec<usize>,
    /// What it resumes.
    pub(crate) resumes: BTreeMap<usize, Resuming>,
    /// Topics and numbers of the resumes that the shard must say that it has refused.
    pub(crate) refused: BTreeSet<(usize, u32)>,
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
    /// When the socket last took bytes, while it is seen to lag.
    pub(crate) taken_at: Option<Nanos>,
}

/// A resume that has begun and has not had its last part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resuming {
    pub(crate) number: u32,
    /// Offset up to which parts have been pushed.
    pub(crate) after: u64,
    /// The next part has been asked for.
    pub(crate) is_asked: bool,
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
