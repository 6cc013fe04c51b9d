//! The book of a run: every frame that was sent, by number, with its content.

use std::ops::Range;

use weir_wire::hot::{FromServer, Payload, Push};
use weir_wire::{ProstMessage, frame, v1};

use crate::id::{Priority, SlowPolicy};
use crate::time::Nanos;

/// All sent frames by number, and sums over them.
#[derive(Debug, Default)]
pub(crate) struct Book {
    pub(crate) sent: Vec<Sent>,
    /// Number of commands that the queue has taken.
    pub(crate) position: u64,
    pub(crate) turn: u64,
    /// The most messages of a topic that a store keeps.
    pub(crate) keys_max: usize,
    /// Messages that an observer behind the kernel has seen whole.
    pub(crate) delivered: u64,
    /// Items that must have been dropped because they had expired.
    pub(crate) expired: u64,
    /// Sends to connections whose end was reported before, and sends whose connection ended
    /// meanwhile.
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
    /// The first turn after which all earlier messages had reached every queue. Not known yet: a
    /// number beyond all turns.
    pub(crate) walked_in: u64,
    pub(crate) of_topic: OfTopic,
    pub(crate) says: Says,
    /// The tick to which it belongs.
    pub(crate) tick: Option<u32>,
}

/// The facts about a message to a topic.
#[derive(Debug, Clone, Default)]
pub(crate) struct OfTopic {
    pub(crate) slow: SlowPolicy,
    pub(crate) key: Option<u8>,
    /// Its offset; for a batch, that of its last message.
    pub(crate) offset: u64,
    /// For a batch, the numbers of its single messages.
    pub(crate) singles: Vec<u32>,
}

/// The text in errors from the front. The shard's own errors have other texts.
pub(crate) const FROM_FRONT: &str = "from_the_front";

/// The statement about a topic in an answer from the front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Says {
    /// Nothing.
    Nothing,
    /// The connection is greeted.
    Welcome,
    /// It gets the messages after this offset.
    Subscribed(usize, u64),
    /// It has left the topic. If it was resuming, this is the offset that the resume had reached.
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

    /// A new frame with a message of `bytes` bytes, which contains its number. Returns the range of
    /// its key.
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
            key: &key,
            message_id: number.into(),
            offset,
            ..Push::default()
        };
        let mut frame = Vec::new();
        let key = push.encode_frame(&mut frame);
        (frame, key)
    }

    /// A new frame with an answer of the front, which contains its number.
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

    /// Enters the last frame that was made, and returns its number. Its position is that of the
    /// next command.
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

    /// Adds facts about the frame that was entered last.
    pub(crate) fn describe(&mut self, of_topic: OfTopic) {
        let last = self.sent.len().saturating_sub(1);
        for single in &of_topic.singles {
            self.sent[*single as usize].tick = u32::try_from(last).ok();
        }
        if let Some(sent) = self.sent.last_mut() {
            sent.of_topic = of_topic;
        }
    }

    /// Notes that after this turn nothing is on its way in the shard.
    pub(crate) fn note_quiet(&mut self) {
        for sent in self.sent.iter_mut().rev().take_while(|sent| sent.walked_in == u64::MAX) {
            sent.walked_in = self.turn;
        }
    }

    pub(crate) fn sent(&self, number: u32) -> &Sent {
        &self.sent[number as usize]
    }

    /// Whether `number` may have been dropped at `now` because it had expired.
    pub(crate) fn is_expired(&self, number: u32, now: Nanos) -> bool {
        self.sent(number).expires_at.is_some_and(|at| at <= now)
    }
}

/// The priority of a topic's messages, or of messages without a topic.
pub(crate) fn priority_of(topic: Option<usize>) -> Priority {
    topic.map_or(Priority::Normal, |topic| Priority::ALL[topic % Priority::COUNT])
}

/// The characters of texts.
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
