//! The twin: for each connection, plainly, what must reach it and what must be heard from it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use weir_wire::format::Format;
use weir_wire::hot::{FromServer, Payload, Push};
use weir_wire::{CloseReason, ProstMessage, frame, v1};

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
    pub(crate) says: Says,
    /// The tick that it is a part of.
    pub(crate) tick: Option<u32>,
}

/// What is said of a message to a topic.
#[derive(Debug, Clone, Default)]
pub(crate) struct OfTopic {
    pub(crate) slow: SlowPolicy,
    pub(crate) key: Option<u8>,
    /// Its offset, of a tick that of its last message.
    pub(crate) offset: u64,
    /// Of a tick, the numbers of its single messages.
    pub(crate) singles: Vec<u32>,
}

/// What the errors that the front sends say: no error of the shard does.
pub(crate) const FROM_FRONT: &str = "from_the_front";

/// What an answer of the front says of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Says {
    /// Nothing.
    Nothing,
    /// The connection is greeted.
    Welcome,
    /// It gets what is behind this offset.
    Subscribed(usize, u64),
    /// It is out of the topic; if it was resuming, here is how far it came.
    Unsubscribed(usize, Option<u64>),
}

/// The epoch of a topic.
pub(crate) fn epoch_of(topic: usize) -> u64 {
    0xabcd_0000_0000_0001 + topic as u64
}

/// The name of a topic.
pub(crate) fn name_of(topic: usize) -> String {
    format!("t{topic}")
}

impl Book {
    fn next(&self) -> u32 {
        u32::try_from(self.sent.len()).expect("fewer frames than 2^32")
    }

    /// A new frame with a message of `bytes` bytes; its number is in it. Says where its key stands.
    pub(crate) fn push(
        &self,
        bytes: usize,
        topic: Option<usize>,
        offset: u64,
        key: Option<u8>,
    ) -> (Vec<u8>, Range<usize>) {
        let number = self.next();
        let seed = number.wrapping_mul(0x9e37_79b1).to_le_bytes();
        let text: String =
            seed.iter().cycle().take(bytes).map(|byte| CHARS[*byte as usize % 8]).collect();
        let data: Vec<u8> = seed.iter().cycle().take(bytes).copied().collect();
        let key = key.map_or(String::new(), |key| key.to_string());
        let topic = topic.map_or(String::new(), name_of);
        let push = Push {
            topic: &topic,
            payload: if seed[3].is_multiple_of(2) {
                Payload::Text(&text)
            } else {
                Payload::Data(&data)
            },
            content_type: "",
            key: &key,
            message_id: number.into(),
            offset,
            sender: 0,
        };
        let mut frame = Vec::new();
        let key = push.encode_frame(&mut frame);
        (frame, key)
    }

    /// A new frame with an answer of the front; its number is in it.
    pub(crate) fn answer(&self, bytes: usize, says: Says) -> Vec<u8> {
        use v1::server_message::Kind;
        let number = self.next();
        let topic = format!("{number}#{}", "a".repeat(bytes));
        let position_of = |topic, offset| Some(v1::Position { epoch: epoch_of(topic), offset });
        let kind = match says {
            Says::Nothing => {
                let code = FROM_FRONT.into();
                Kind::Error(v1::Error { code, topic, ..v1::Error::default() })
            }
            Says::Welcome => Kind::Welcome(v1::Welcome {
                connection_id: number.into(),
                server_time_ms: bytes as u64,
                heartbeat_ms: 1,
            }),
            Says::Subscribed(of, offset) => Kind::Subscribed(v1::Subscribed {
                topic,
                position: position_of(of, offset),
                recovered: false,
            }),
            Says::Unsubscribed(of, offset) => Kind::Unsubscribed(v1::Unsubscribed {
                topic,
                position: offset.and_then(|offset| position_of(of, offset)),
                ..v1::Unsubscribed::default()
            }),
        };
        let mut frame = Vec::new();
        frame::encode(&v1::ServerMessage { kind: Some(kind) }, &mut frame);
        frame
    }

    /// The number in a frame; `None` if it is one of the shard's own.
    pub(crate) fn number_of(&self, body: &[u8]) -> Result<Option<u32>, String> {
        use v1::server_message::Kind;
        let wrong = |number: u64| format!("{number} is the number of no frame");
        let number = match FromServer::decode(body).map_err(|error| format!("{error}: {body:?}"))? {
            FromServer::Push(push) => push.message_id,
            FromServer::Batch(batch) => {
                let first = batch.messages().next().and_then(Result::ok).ok_or("an empty batch")?;
                let single = usize::try_from(first.message_id).ok();
                let tick = single.and_then(|single| self.sent.get(single)?.tick);
                return tick.map(Some).ok_or_else(|| wrong(first.message_id));
            }
            FromServer::Pong { .. } | FromServer::Unknown => return Ok(None),
            FromServer::Other => {
                let message = v1::ServerMessage::decode(body).map_err(|error| error.to_string())?;
                let topic = match message.kind {
                    Some(Kind::Welcome(welcome)) => welcome.connection_id.to_string(),
                    Some(Kind::Subscribed(subscribed)) => subscribed.topic,
                    Some(Kind::Unsubscribed(unsubscribed)) => unsubscribed.topic,
                    Some(Kind::Error(error)) if error.code == FROM_FRONT => error.topic,
                    _ => return Ok(None),
                };
                let number = topic.split('#').next().and_then(|number| number.parse().ok());
                number.ok_or("an answer without a number")?
            }
        };
        let known = u32::try_from(number).ok().filter(|known| *known < self.next());
        known.map(Some).ok_or_else(|| wrong(number))
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
        let (says, tick) = (Says::Nothing, None);
        self.sent.push(Sent {
            frame,
            expires_at,
            is_message,
            topic,
            position,
            turn,
            walked_in,
            of_topic,
            says,
            tick,
        });
        number
    }

    /// Says more of the frame that was entered last.
    pub(crate) fn describe(&mut self, of_topic: OfTopic) {
        let last = self.sent.len().saturating_sub(1);
        for single in &of_topic.singles {
            self.sent[*single as usize].tick = u32::try_from(last).ok();
        }
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

/// What texts are made of.
const CHARS: [char; 8] = ['a', ' ', '"', '\n', '\\', '\u{e4}', '\u{1}', ':'];

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
    pub(crate) format: Format,
    /// Composed and not yet written.
    pub(crate) unsent: VecDeque<u8>,
    /// Bytes composed so far.
    pub(crate) composed: u64,
    /// Where what is a sign of life ends, as far as the shard has not read it whole.
    pub(crate) ends: VecDeque<u64>,
    /// The same of those behind which nothing is begun, and the last that it has read.
    bounds: VecDeque<u64>,
    last_bound: u64,
    /// Bodies that the front must get, and where their frames end.
    pub(crate) bodies: VecDeque<(u64, Vec<u8>)>,
    /// Where the stream goes bad, and the reason that it must end with.
    pub(crate) bad: Option<(u64, CloseReason)>,
    /// What a WebSocket's Close frame must say then; `None`: the reason, behind `Goodbye`.
    pub(crate) last_word: Option<Option<u16>>,
    /// When the shard last read the end of a frame, and the beginning of one that is not whole.
    pub(crate) heard_at: Nanos,
    pub(crate) begun_at: Option<Nanos>,
}

impl Incoming {
    pub(crate) fn new(format: Format, now: Nanos) -> Self {
        Self {
            format,
            unsent: VecDeque::new(),
            composed: 0,
            ends: VecDeque::new(),
            bounds: VecDeque::new(),
            last_bound: 0,
            bodies: VecDeque::new(),
            bad: None,
            last_word: None,
            heard_at: now,
            begun_at: None,
        }
    }

    /// Appends a whole frame to what the device will write; returns where it ends.
    pub(crate) fn compose(&mut self, frame: &[u8]) -> u64 {
        self.unsent.extend(frame);
        self.composed += frame.len() as u64;
        self.ends.push_back(self.composed);
        self.bounds.push_back(self.composed);
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
        if self.format == Format::Sse {
            return;
        }
        let mut is_new = false;
        while self.ends.front().is_some_and(|end| *end <= consumed) {
            self.ends.pop_front();
            self.heard_at = now;
        }
        while self.bounds.front().is_some_and(|end| *end <= consumed) {
            self.last_bound = self.bounds.pop_front().unwrap_or_default();
            is_new = true;
        }
        if consumed <= self.last_bound {
            self.begun_at = None;
        } else if self.begun_at.is_none() || is_new {
            self.begun_at = Some(now);
        }
    }

    /// Whether a sign of life stands in the `readable` bytes behind `consumed`.
    pub(crate) fn has_sign(&self, consumed: u64, readable: u64) -> bool {
        self.ends.front().is_some_and(|end| *end <= consumed + readable)
    }

    /// Whether a whole message does.
    pub(crate) fn has_whole_frame(&self, consumed: u64, readable: u64) -> bool {
        self.bounds.front().is_some_and(|end| *end <= consumed + readable)
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
    /// What it speaks, and whether its events name the positions of all its topics.
    pub(crate) format: Format,
    pub(crate) tells_positions: bool,
    /// The one topic of a reader of events that does not.
    pub(crate) only: Option<usize>,
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
    /// Its end answers its Close frame.
    pub(crate) must_echo: bool,
    /// When the shard was last seen not to listen to it: it held back what had come, or had not greeted it.
    pub(crate) held_at: Nanos,
    pub(crate) is_held: bool,
    /// When something last waited for it.
    pub(crate) waited_at: Nanos,
    pub(crate) is_waiting: bool,
    /// Bytes that its socket had taken, and when that was first seen.
    pub(crate) took: (u64, Nanos),
    /// Since when it must have been asked for a sign of life.
    pub(crate) asked_by: Option<Nanos>,
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

    /// What a failure says of it.
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
