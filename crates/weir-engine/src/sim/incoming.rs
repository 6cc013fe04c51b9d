//! The reference model of what a device says: what it wrote, and what the front must hear.

use std::collections::VecDeque;

use weir_wire::format::Format;
use weir_wire::ws::Opcode;
use weir_wire::{CloseReason, ProstMessage, json, v1};

use super::book::framed;
use super::dice::Dice;
use super::edge::client_frame;
use super::owed::{Answer, Reply};
use crate::time::Nanos;

/// What is to be answered to a device.
pub(crate) struct Answers<'a>(pub(crate) &'a mut VecDeque<Answer>);

impl Answers<'_> {
    /// What it answers ends here.
    fn close(&mut self, end: u64) {
        if let Some(last) = self.0.back_mut().filter(|last| last.end == u64::MAX) {
            last.end = end;
        }
    }
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

impl Incoming {
    /// Appends a message with this body to what a device will write, as its format has it; returns where it ends.
    ///
    /// `answers` get what is answered to what stands between its parts. Who reads events says nothing: its end is 0.
    pub(super) fn say(&mut self, body: &[u8], dice: &mut Dice, answers: &mut Answers<'_>) -> u64 {
        match self.format {
            Format::Stream => self.compose(&framed(body)),
            Format::WsProtobuf => self.say_ws(Opcode::Binary, body, dice, answers),
            Format::WsJson => {
                let message = v1::ClientMessage::decode(body).expect("it says what is known");
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

    /// A ping or a pong by itself.
    pub(crate) fn say_control(&mut self, dice: &mut Dice, answers: &mut Answers<'_>) {
        let control = self.control(dice, answers);
        let end = self.compose(&control);
        answers.close(end);
    }

    /// A pong, or a ping and its answer, of which it is not yet known when it is due.
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
