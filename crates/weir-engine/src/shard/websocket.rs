//! Bytes from WebSockets (RFC 6455). The shard assembles messages in place and answers control
//! frames. It handles messages like frames of a stream.
//!
//! ```text
//!  receive buffer ──whole message──▶ unmasked in place ──▶ handled
//!        └── a part, or whole messages without room ─────▶ block: head │ put together │ as received
//! ```
//!
//! A connection without a begun message has no block.

use std::ops::Range;

use weir_wire::format::Format;
use weir_wire::ws::{self, Assembly, Control, Opcode, Step, WsError};
use weir_wire::{CloseReason, ErrorCode, json};

use super::Shard;
use super::read::{Handled, encode_error};
use crate::command::Front;
use crate::net::Net;
use crate::pool::Block;
use crate::slot::Slot;
use crate::table::State;
use crate::time::Tick;

/// The head of a block, in front of its bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Begun {
    assembly: Assembly,
    /// Bytes behind the head that are needed before another look is of use.
    needed: u32,
    /// Length of a message at the beginning for which there was no room. It may be empty.
    whole: Option<u32>,
}

impl Begun {
    const BYTES: usize = 24;

    fn to_bytes(self) -> [u8; Begun::BYTES] {
        let mut bytes = [0; Begun::BYTES];
        bytes[..16].copy_from_slice(&self.assembly.to_bytes());
        bytes[16..20].copy_from_slice(&self.needed.to_ne_bytes());
        let whole = self.whole.map_or(0, |bytes| bytes.saturating_add(1));
        bytes[20..].copy_from_slice(&whole.to_ne_bytes());
        bytes
    }

    fn of(block: &Block) -> Begun {
        let head = &block.filled()[..Begun::BYTES];
        let number =
            |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let mut assembly = [0; 16];
        assembly.copy_from_slice(&head[..16]);
        let assembly = Assembly::from_bytes(assembly);
        Begun { assembly, needed: number(16), whole: number(20).checked_sub(1) }
    }
}

/// The rest of the bytes after a look.
enum Left {
    /// Nothing is left, or the connection has ended.
    Nothing,
    /// A begun message, and the place where the bytes continue that were not looked at.
    Part(Begun, Range<usize>, usize),
    /// A message for which there is no room, and the bytes behind it, from this place on.
    Held(Begun, usize),
}

impl Left {
    /// The rest after a frame that was taken: the message gathered at `at`. The frame ends `used`
    /// bytes behind `at`.
    fn gathered(assembly: Assembly, at: usize, used: usize) -> Left {
        let begun = Begun { assembly, ..Begun::default() };
        Left::Part(begun, at..at + assembly.bytes(), at + used)
    }
}

impl<N: Net, F: Front> Shard<N, F> {
    /// Takes received bytes.
    pub(super) fn take_ws(&mut self, slot: Slot, input: &mut [u8]) {
        let mut input = input;
        loop {
            let Some(block) = self.table[slot].partial.take() else {
                let left = self.take_ws_bytes(slot, Begun::default(), input);
                let used = self.keep_left(slot, &left, input, self.tick());
                input = &mut input[used..];
                if input.is_empty() {
                    return;
                }
                continue;
            };
            let have = block.filled().len() - Begun::BYTES;
            let missing = (Begun::of(&block).needed as usize).saturating_sub(have);
            if missing == 0 {
                self.take_ws_block(slot, block);
                if self.table[slot].flags.is_held_back() {
                    return self.keep(slot, input);
                }
                if self.table[slot].state != State::Open {
                    return;
                }
                continue;
            }
            if input.is_empty() {
                self.table[slot].partial = Some(block);
                return;
            }
            let (more, rest) = input.split_at_mut(missing.min(input.len()));
            input = rest;
            let charged = block.footprint();
            let block = self.pool.extend(block, more);
            if !self.put_block(slot, block, charged) {
                return;
            }
        }
    }

    /// Takes the bytes in a block, and keeps the rest.
    pub(super) fn take_ws_block(&mut self, slot: Slot, block: Box<Block>) {
        let begun = Begun::of(&block);
        let mut block = block;
        // Held-back messages had come in time.
        let since = if begun.whole.is_some() { self.tick() } else { block.since };
        let input = &mut block.filled_mut()[Begun::BYTES..];
        let left = self.take_ws_bytes(slot, begun, input);
        match left {
            // The gathered bytes stay in place; the frame that was taken behind them goes.
            Left::Part(begun, Range { start: 0, end }, used)
                if used == input.len() && self.table[slot].state == State::Open =>
            {
                block.filled_mut()[..Begun::BYTES].copy_from_slice(&begun.to_bytes());
                block.truncate(Begun::BYTES + end);
                self.table[slot].partial = Some(block);
            }
            left @ (Left::Part(..) | Left::Held(..) | Left::Nothing) => {
                let used = self.keep_left(slot, &left, input, since);
                if used < input.len() {
                    self.take_ws(slot, &mut input[used..]);
                }
                self.drop_block(block);
            }
        }
    }

    /// Keeps the rest of `input`. Returns where the bytes begin that must still be looked at.
    fn keep_left(&mut self, slot: Slot, left: &Left, input: &[u8], since: Tick) -> usize {
        let all = input.len();
        let (begun, kept, used) = match left {
            Left::Nothing => return all,
            Left::Part(begun, kept, used) => (begun, kept.clone(), *used),
            Left::Held(begun, from) => (begun, *from..all, all),
        };
        if self.table[slot].state != State::Open {
            return all;
        }
        let block = self.pool.take(&begun.to_bytes(), since);
        let block = self.pool.extend(block, &input[kept]);
        if !self.put_block(slot, block, 0) {
            return all;
        }
        if matches!(left, Left::Held(..)) {
            self.hold_back(slot);
        } else {
            self.arm(slot, since.plus(self.limits.frame));
        }
        used
    }

    /// The head of a new block.
    pub(super) const FRESH: [u8; Begun::BYTES] = [0; Begun::BYTES];

    /// Goes through bytes, of which the first are those of the begun message. Stops at the first
    /// fragment, or at a frame between two fragments. From then on a block gathers the message, so
    /// that it need not make room for each frame behind it.
    fn take_ws_bytes(&mut self, slot: Slot, begun: Begun, input: &mut [u8]) -> Left {
        let limits = ws::Limits {
            message_bytes_max: self.settings.frame_bytes_max,
            fragments_max: ws::FRAGMENTS_MAX,
        };
        let Begun { mut assembly, whole, .. } = begun;
        let mut at = whole.map_or(0, |bytes| bytes as usize);
        if whole.is_some() && !self.is_seeded_forgotten_message() {
            match self.take_ws_message(slot, &input[..at]) {
                Handled::Yes => {}
                Handled::Closed => return Left::Nothing,
                Handled::NoRoom => return Left::Held(begun, 0),
            }
        }
        while self.table[slot].state == State::Open {
            if at == input.len() && assembly.is_idle() {
                return Left::Nothing;
            }
            let rest = &mut input[at..];
            match ws::next(&mut assembly, rest, limits) {
                Ok(Step::More { needed }) => {
                    let needed = u32::try_from(needed).unwrap_or(u32::MAX);
                    let kept = at..input.len();
                    return Left::Part(Begun { assembly, needed, whole: None }, kept, input.len());
                }
                Ok(Step::Control { control, payload, used }) if assembly.is_idle() => {
                    self.take_control(slot, control, &rest[payload]);
                    at += used;
                }
                Ok(Step::Control { control, payload, used }) => {
                    self.take_control(slot, control, &rest[payload]);
                    return Left::gathered(assembly, at, used);
                }
                Ok(Step::Fragment { used }) if self.is_seeded_unmoved_fragment() => {
                    let (begun, end) = (Begun { assembly, ..Begun::default() }, at + used);
                    return Left::Part(begun, end - assembly.bytes()..end, end);
                }
                Ok(Step::Fragment { used }) => return Left::gathered(assembly, at, used),
                Ok(Step::Message { is_text, body, used }) => {
                    match self.take_ws_kind(slot, is_text, &rest[body.clone()]) {
                        Handled::Yes => at += used,
                        Handled::Closed => return Left::Nothing,
                        Handled::NoRoom => {
                            let whole = u32::try_from(body.len()).unwrap_or(u32::MAX);
                            let begun = Begun { whole: Some(whole), ..Begun::default() };
                            return Left::Held(begun, at + close_up(rest, body, used));
                        }
                    }
                }
                Err(error) => {
                    self.refuse_ws(slot, error);
                    return Left::Nothing;
                }
            }
        }
        Left::Nothing
    }

    /// Handles one whole message, if it is of the kind that was agreed on.
    fn take_ws_kind(&mut self, slot: Slot, is_text: bool, body: &[u8]) -> Handled {
        if is_text == (self.format(slot) == Format::WsJson) {
            return self.take_ws_message(slot, body);
        }
        let said = if is_text { "text" } else { "binary" };
        let mut last = Vec::new();
        ws::put_close(
            ws::UNSUPPORTED_DATA,
            &format!("{said} messages are not of this subprotocol"),
            &mut last,
        );
        self.send_replies(slot);
        self.close_saying(slot, CloseReason::Malformed, Some(last.into()));
        Handled::Closed
    }

    fn take_ws_message(&mut self, slot: Slot, body: &[u8]) -> Handled {
        if self.format(slot) != Format::WsJson {
            return self.handle_frame(slot, body);
        }
        let text = std::str::from_utf8(body).unwrap_or_default();
        match json::client_body(text) {
            Ok(body) => self.handle_frame(slot, &body),
            Err(_) if self.owes_answers() => Handled::NoRoom,
            Err(error) => {
                let message = error.to_string();
                self.reply(slot, |out| {
                    encode_error(ErrorCode::InvalidField, "", &message, 0, out);
                });
                self.hear(slot);
                self.charge_frames(slot, 1);
                if self.table[slot].state == State::Open { Handled::Yes } else { Handled::Closed }
            }
        }
    }

    fn take_control(&mut self, slot: Slot, control: Control, payload: &[u8]) {
        match control {
            Control::Ping => {
                self.stats.pings.add(1);
                ws::put_frame_head(Opcode::Pong, payload.len(), &mut self.replies);
                self.replies.extend_from_slice(payload);
                self.hear(slot);
                self.charge_frames(slot, 1);
            }
            Control::Pong => {
                self.hear(slot);
                self.charge_frames(slot, 1);
            }
            Control::Close => match ws::close_code(payload) {
                Ok(code) => {
                    self.send_replies(slot);
                    let mut last = Vec::new();
                    match code {
                        Some(code) => ws::put_close(code, "", &mut last),
                        None => ws::put_frame_head(Opcode::Close, 0, &mut last),
                    }
                    self.close_saying(slot, CloseReason::PeerClosed, Some(last.into()));
                }
                Err(error) => self.refuse_ws(slot, error),
            },
        }
    }

    /// Ends a connection whose peer has violated RFC 6455.
    fn refuse_ws(&mut self, slot: Slot, error: WsError) {
        self.send_replies(slot);
        let mut last = Vec::new();
        ws::put_close(error.close_code(), &error.to_string(), &mut last);
        self.close_saying(slot, error.reason(), Some(last.into()));
    }
}

/// Moves the bytes in `keep` up to `used`; returns where they begin.
fn close_up(bytes: &mut [u8], keep: Range<usize>, used: usize) -> usize {
    let to = used - keep.len();
    bytes.copy_within(keep, to);
    to
}
