//! The reference model of what a device sends: the bytes that it wrote, and the messages that the
//! front must hear.

use std::collections::VecDeque;

use weir_wire::format::Format;
use weir_wire::ws::Opcode;
use weir_wire::{CloseReason, ProstMessage, json, v1};

use super::book::framed;
use super::dice::Dice;
use super::edge::client_frame;
use super::owed::{Answer, Reply};
use crate::time::Nanos;

/// The answers that a device must get.
pub(crate) struct Answers<'a>(pub(crate) &'a mut VecDeque<Answer>);

impl Answers<'_> {
    /// Notes that the answered frame ends here.
    fn close(&mut self, end: u64) {
        if let Some(last) = self.0.back_mut().filter(|last| last.end == u64::MAX) {
            last.end = end;
        }
    }
}

/// The messages that the front must hear from one device.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) format: Format,
    /// Composed bytes that are not written yet.
    pub(crate) unsent: VecDeque<u8>,
    /// Bytes composed so far.
    pub(crate) composed: u64,
    /// The ends of signs of life that the shard has not read whole.
    pub(crate) ends: VecDeque<u64>,
    /// The ends after which nothing is begun, and the last one that the shard has read.
    bounds: VecDeque<u64>,
    last_bound: u64,
    /// Bodies that the front must get, and the ends of their frames.
    pub(crate) bodies: VecDeque<(u64, Vec<u8>)>,
    /// The place where the stream becomes invalid, and the reason with which it must end.
    pub(crate) bad: Option<(u64, CloseReason)>,
    /// The code of a WebSocket's Close frame at that end; `None`: the code of the reason, after
    /// `Goodbye`.
    pub(crate) last_word: Option<Option<u16>>,
    /// When the shard last read the end of a frame, and the beginning of a frame that is not whole.
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

    /// Appends a whole frame to the bytes that the device will write. Returns where it ends.
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

    /// Notes that the shard has read up to `consumed`.
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

    /// Whether the `readable` bytes behind `consumed` contain a sign of life.
    pub(crate) fn has_sign(&self, consumed: u64, readable: u64) -> bool {
        self.ends.front().is_some_and(|end| *end <= consumed + readable)
    }

    /// Whether they contain a whole message.
    pub(crate) fn has_whole_frame(&self, consumed: u64, readable: u64) -> bool {
        self.bounds.front().is_some_and(|end| *end <= consumed + readable)
    }
}

impl Incoming {
    /// Appends a message with this body, in the connection's format, to the bytes that a device
    /// will write. Returns where it ends.
    ///
    /// `answers` gets the answers to frames between its parts. A reader of events sends nothing:
    /// its end is 0.
    pub(super) fn say(&mut self, body: &[u8], dice: &mut Dice, answers: &mut Answers<'_>) -> u64 {
        match self.format {
            Format::Stream => self.compose(&framed(body)),
            Format::WsProtobuf => self.say_ws(Opcode::Binary, body, dice, answers),
            Format::WsJson => {
                let message = v1::ClientMessage::decode(body).expect("the message is well-formed");
                let text = json::client_message_to_json(&message);
                self.say_ws(Opcode::Text, text.as_bytes(), dice, answers)
            }
            Format::Sse => {
                self.compose_bad(body);
                0
            }
        }
    }

    /// A WebSocket message, whole or in parts with control frames between them.
    pub(crate) fn say_ws(
        &mut self,
        opcode: Opcode,
        payload: &[u8],
        dice: &mut Dice,
        answers: &mut Answers<'_>,
    ) -> u64 {
        let parts = if dice.chance(1 << 14) { dice.between(2, 5) } else { 1 };
        let (mut rest, mut opcode) = (payload, opcode);
        for _ in 1..parts {
            let (part, more) = rest.split_at(dice.index(rest.len() + 1));
            let mut bytes = client_frame(opcode, part, dice);
            bytes[0] &= 0x7f;
            self.compose_bad(&bytes);
            (rest, opcode) = (more, Opcode::Continuation);
            if dice.chance(1 << 14) {
                let control = self.control(dice, answers);
                let end = self.compose_bad(&control);
                self.ends.push_back(end);
                answers.close(end);
            }
        }
        let bytes = client_frame(opcode, rest, dice);
        self.compose(&bytes)
    }

    /// Appends a ping or a pong by itself.
    pub(crate) fn say_control(&mut self, dice: &mut Dice, answers: &mut Answers<'_>) {
        let control = self.control(dice, answers);
        let end = self.compose(&control);
        answers.close(end);
    }

    /// A pong, or a ping with its answer. The time of that answer is not known yet.
    fn control(&self, dice: &mut Dice, answers: &mut Answers<'_>) -> Vec<u8> {
        let payload: Vec<u8> = vec![7; dice.index(20)];
        if dice.chance(1 << 15) {
            return client_frame(Opcode::Pong, &payload, dice);
        }
        answers.0.push_back(Answer { end: u64::MAX, reply: Reply::Control(payload.clone()) });
        client_frame(Opcode::Ping, &payload, dice)
    }

    /// The answer to a ping of the server.
    pub(crate) fn say_pong(&mut self, dice: &mut Dice) {
        let pong = client_frame(Opcode::Pong, &[], dice);
        self.compose(&pong);
    }
}
