//! Bytes from devices. Frames are cut out of the shared receive buffer. The shard answers pings
//! itself and reports the rest.

use std::io;

use weir_wire::format::Format;
use weir_wire::hot::{self, FromDevice};
use weir_wire::{CloseReason, ErrorCode, WireError, frame, v1};

use super::Shard;
use crate::command::{Front, Report};
use crate::id::Priority;
use crate::message::Item;
use crate::net::Net;
use crate::pool::Block;
use crate::slot::Slot;
use crate::table::{Beat, HeldBack, Reading, State};

/// Reads of one connection in a turn: a quarter of a megabyte. Then the others have their turn.
const READS_PER_TURN: usize = 4;

/// The result of handling a frame.
pub(super) enum Handled {
    /// Done. Continue with the next frame.
    Yes,
    /// The front has no room, or answers must leave first. Keep this frame and the bytes behind it.
    NoRoom,
    /// The connection has ended.
    Closed,
}

impl<N: Net, F: Front> Shard<N, F> {
    pub(super) fn handle_readable(&mut self, slot: Slot) {
        match self.table[slot].state {
            State::Open => {
                self.read_open(slot);
            }
            State::Closing => self.discard(slot),
            State::Free | State::Closed => {}
        }
    }

    /// Reads until the socket is empty, or for this turn's share.
    ///
    /// Bytes stay in the kernel while the front has no room for earlier frames, and while the
    /// device does not take what is sent to it. A recovery lists the connection to be read again.
    /// Frames that were held back for answers come first.
    /// Returns whether the share was used up.
    pub(super) fn read_open(&mut self, slot: Slot) -> bool {
        for _ in 0..READS_PER_TURN {
            let flags = &self.table[slot].flags;
            if flags.held_back == HeldBack::ForFront || !flags.welcomed {
                return false;
            }
            if self.is_stalled(slot) {
                self.check_end(slot);
                return false;
            }
            if self.pauses_reading(slot) {
                return false;
            }
            if self.table[slot].flags.held_back == HeldBack::ForAnswers {
                self.table[slot].flags.held_back = HeldBack::No;
                self.take_kept(slot);
                if self.table[slot].state != State::Open {
                    return false;
                }
                continue;
            }
            if self.is_secure(slot) && !self.may_read_sealed(slot) {
                return false;
            }
            let mut buf = std::mem::take(&mut self.recv_buf);
            let read = self.recv(slot, &mut buf);
            let may_go_on = self.take_read(slot, read, &mut buf);
            self.recv_buf = buf;
            if !may_go_on {
                let is_all = !self.table[slot].flags.is_held_back() && !self.is_stalled(slot);
                if is_all && self.table[slot].flags.reading == Reading::Late {
                    self.table[slot].flags.reading = Reading::Current;
                }
                return false;
            }
        }
        self.list_to_read(slot);
        true
    }

    /// Ends a stalled connection whose peer has ended, because it cannot recover.
    fn check_end(&mut self, slot: Slot) {
        if !self.table[slot].flags.ended {
            return;
        }
        let socket = self.table[slot].socket.as_ref().expect("an open connection has a socket");
        let error = self.net.take_error(socket);
        self.close(slot, error.map_or(CloseReason::PeerClosed, |error| reason_of(&error)));
    }

    /// Lists the connection to be read again next turn, although no edge will announce it.
    pub(super) fn list_to_read(&mut self, slot: Slot) {
        let flags = &mut self.table[slot].flags;
        if !std::mem::replace(&mut flags.to_read, true) {
            self.to_read.push(slot);
        }
    }

    fn recv(&mut self, slot: Slot, buf: &mut [u8]) -> io::Result<usize> {
        let socket = self.table[slot].socket.as_ref().expect("an open connection has a socket");
        loop {
            match self.net.recv(socket, buf) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    /// Handles the outcome of one read. Returns whether there may be more to read.
    fn take_read(&mut self, slot: Slot, read: io::Result<usize>, buf: &mut [u8]) -> bool {
        match read {
            Ok(0) => {
                self.close(slot, CloseReason::PeerClosed);
                false
            }
            Ok(bytes) => {
                self.stats.received_bytes.add(bytes as u64);
                let frames = self.stats.received_frames.get();
                if self.is_secure(slot) {
                    self.consume_sealed(slot, &mut buf[..bytes]);
                } else {
                    self.consume(slot, &mut buf[..bytes]);
                }
                self.charge_read(slot, bytes, self.stats.received_frames.get() - frames);
                let entry = &self.table[slot];
                entry.state == State::Open && (bytes == buf.len() || entry.flags.ended)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) => {
                self.close(slot, reason_of(&error));
                false
            }
        }
    }

    /// Reads again from connections that no edge will announce, those of high priority first.
    pub(super) fn read_again(&mut self) {
        self.offer_held_back();
        let mut slots = std::mem::take(&mut self.to_read);
        for priority in Priority::ALL {
            if !self.table.has(priority) {
                continue;
            }
            for slot in &slots {
                let entry = &mut self.table[*slot];
                if entry.priority == priority && std::mem::replace(&mut entry.flags.to_read, false)
                {
                    self.handle_readable(*slot);
                }
            }
        }
        slots.clear();
        std::mem::swap(&mut slots, &mut self.to_read);
        self.to_read.append(&mut slots);
    }

    /// Offers held-back frames to the front once more, in turn by priority, until it has no room
    /// again.
    fn offer_held_back(&mut self) {
        if !self.backlog.is_empty() || self.held_back.is_empty() {
            return;
        }
        let mut slots = std::mem::take(&mut self.held_back);
        'offers: for priority in Priority::ALL {
            if !self.table.has(priority) {
                continue;
            }
            for slot in &slots {
                if self.table[*slot].priority == priority && !self.offer_held_back_of(*slot) {
                    break 'offers;
                }
            }
        }
        // A refused connection is listed again.
        let refused = self.held_back.last().copied();
        let waits = |slot: &Slot| self.table[*slot].flags.held_back == HeldBack::ForFront;
        slots.retain(|slot| Some(*slot) != refused && waits(slot));
        self.held_back.append(&mut slots);
    }

    /// Offers the held-back frames of one connection. Returns whether the front may have room for
    /// more.
    fn offer_held_back_of(&mut self, slot: Slot) -> bool {
        let entry = &mut self.table[slot];
        if entry.flags.held_back != HeldBack::ForFront {
            return true;
        }
        entry.flags.held_back = HeldBack::No;
        let Some(block) = entry.partial.take() else { return true };
        entry.flags.read_late();
        self.consume_block(slot, block);
        if self.table[slot].flags.held_back == HeldBack::ForFront {
            return false;
        }
        if self.table[slot].state == State::Open {
            self.list_to_read(slot);
            self.arm_next(slot);
        }
        true
    }

    /// Takes the bytes that came before the connection was welcomed, and reads on.
    pub(super) fn begin_reading(&mut self, slot: Slot) {
        self.take_kept(slot);
        if self.table[slot].state == State::Open {
            self.list_to_read(slot);
        }
    }

    /// Takes the bytes in the connection's block.
    fn take_kept(&mut self, slot: Slot) {
        if let Some(block) = self.table[slot].partial.take() {
            self.consume_block(slot, block);
        }
        self.arm_next(slot);
    }

    /// Takes the bytes in a block, which may be whole frames.
    fn consume_block(&mut self, slot: Slot, mut block: Box<Block>) {
        // A begun frame could not continue while the shard did not read. Its time begins now.
        block.since = self.tick();
        match self.format(slot) {
            Format::Stream => {
                self.take_stream(slot, block.filled());
                self.drop_block(block);
            }
            Format::WsProtobuf | Format::WsJson => self.take_ws_block(slot, block),
            Format::Sse => self.drop_block(block),
        }
        self.send_replies(slot);
    }

    /// Takes received or held-back bytes: handles whole frames at once, and keeps the rest in a
    /// block.
    pub(super) fn consume(&mut self, slot: Slot, input: &mut [u8]) {
        self.take_input(slot, input);
        self.send_replies(slot);
    }

    /// The same, but only gathers the answers. A reader of events has nothing to say after its
    /// request.
    pub(super) fn take_input(&mut self, slot: Slot, input: &mut [u8]) {
        match self.format(slot) {
            Format::Stream => self.take_stream(slot, input),
            Format::WsProtobuf | Format::WsJson => self.take_ws(slot, input),
            Format::Sse => {}
        }
    }

    fn take_stream(&mut self, slot: Slot, input: &[u8]) {
        if let Some(rest) = self.complete_block(slot, input) {
            self.take_frames(slot, rest);
        }
    }

    /// Completes the begun frame, and no more, so that the following bytes need no copy. `None`: no
    /// part of `input` is left to handle.
    fn complete_block<'a>(&mut self, slot: Slot, input: &'a [u8]) -> Option<&'a [u8]> {
        let mut input = input;
        loop {
            let Some(block) = self.table[slot].partial.take() else { return Some(input) };
            match missing_bytes(block.filled(), self.settings.frame_bytes_max) {
                Err(error) => {
                    self.drop_block(block);
                    self.close(slot, reason_of_wire(&error));
                    return None;
                }
                Ok(0) => {
                    if !self.take_block(slot, block) {
                        self.keep(slot, input);
                        return None;
                    }
                }
                Ok(_) if input.is_empty() => {
                    self.table[slot].partial = Some(block);
                    return None;
                }
                Ok(missing) => {
                    let (more, rest) = input.split_at(missing.min(input.len()));
                    input = rest;
                    let charged = block.footprint();
                    let block = self.pool.extend(block, more);
                    if !self.put_block(slot, block, charged) {
                        return None;
                    }
                }
            }
        }
    }

    /// Handles the whole frame in `block`. Returns whether the following frames can be handled too.
    fn take_block(&mut self, slot: Slot, block: Box<Block>) -> bool {
        let outcome = match frame::decode(block.filled(), self.settings.frame_bytes_max) {
            Ok(Some((body, _))) => self.handle_frame(slot, body),
            Ok(None) | Err(_) => unreachable!("the frame was found whole and within the limit"),
        };
        match outcome {
            Handled::Yes => {
                self.drop_block(block);
                true
            }
            Handled::Closed => {
                self.drop_block(block);
                false
            }
            Handled::NoRoom => {
                self.table[slot].partial = Some(block);
                self.hold_back(slot);
                false
            }
        }
    }

    /// Gives a block to its connection. If the budget has no room for it, the connection ends.
    /// `charged` is the number of bytes that it has been charged with already.
    pub(super) fn put_block(&mut self, slot: Slot, block: Box<Block>, charged: usize) -> bool {
        let block = self.charge_block(slot, block, charged);
        let is_granted = block.is_some();
        if is_granted {
            self.table[slot].partial = block;
        }
        is_granted
    }

    /// Charges the bytes of a connection's block above `charged`. If the budget has no room, the
    /// connection ends.
    pub(super) fn charge_block(
        &mut self,
        slot: Slot,
        block: Box<Block>,
        charged: usize,
    ) -> Option<Box<Block>> {
        let footprint = block.footprint();
        let granted = footprint <= charged || self.charge_incoming(footprint - charged);
        // Making room may have ended this very connection.
        if granted && self.table[slot].state == State::Open {
            return Some(block);
        }
        self.incoming.give(if granted { footprint } else { charged });
        self.pool.give(block);
        self.close(slot, CloseReason::BudgetExhausted);
        None
    }

    pub(super) fn drop_block(&mut self, block: Box<Block>) {
        self.incoming.give(block.footprint());
        self.pool.give(block);
    }

    /// Handles the whole frames in `input` in place and keeps the rest.
    fn take_frames(&mut self, slot: Slot, input: &[u8]) {
        let mut rest = input;
        while !rest.is_empty() && self.table[slot].state == State::Open {
            let (body, used) = match frame::decode(rest, self.settings.frame_bytes_max) {
                Ok(Some(frame)) => frame,
                Ok(None) => {
                    self.keep(slot, rest);
                    if self.table[slot].state == State::Open {
                        self.arm(slot, self.tick().plus(self.limits.frame));
                    }
                    return;
                }
                Err(error) => return self.close(slot, reason_of_wire(&error)),
            };
            match self.handle_frame(slot, body) {
                Handled::Yes => rest = &rest[used..],
                Handled::Closed => return,
                Handled::NoRoom => {
                    self.keep(slot, rest);
                    if self.table[slot].state == State::Open {
                        self.hold_back(slot);
                    }
                    return;
                }
            }
        }
    }

    /// Puts a begun frame, or whole frames for which there is no room, into the connection's block.
    pub(super) fn keep(&mut self, slot: Slot, bytes: &[u8]) {
        if bytes.is_empty() || self.table[slot].state != State::Open {
            return;
        }
        let (block, charged) = match self.table[slot].partial.take() {
            Some(block) => {
                let charged = block.footprint();
                (self.pool.extend(block, bytes), charged)
            }
            None if self.format(slot) == Format::Stream => (self.pool.take(bytes, self.tick()), 0),
            None => {
                let block = self.pool.take(&Self::FRESH, self.tick());
                (self.pool.extend(block, bytes), 0)
            }
        };
        self.put_block(slot, block, charged);
    }

    /// Notes that whole frames wait in the connection's block. If answers are due, the frames wait
    /// for these, and otherwise for the front.
    pub(super) fn hold_back(&mut self, slot: Slot) {
        if self.owes_answers() {
            self.table[slot].flags.held_back = HeldBack::ForAnswers;
            self.list_to_read(slot);
        } else {
            self.table[slot].flags.held_back = HeldBack::ForFront;
            self.held_back.push(slot);
        }
    }

    /// Whether so many answers are gathered that they must leave before there are more.
    ///
    /// Answers to pings are no longer than the pings, and need not wait.
    pub(super) fn owes_answers(&self) -> bool {
        self.replies.len() >= self.slices.replies
    }

    /// Handles one whole frame.
    pub(super) fn handle_frame(&mut self, slot: Slot, body: &[u8]) -> Handled {
        match FromDevice::decode(body) {
            Ok(FromDevice::Ping { data }) => {
                self.stats.pings.add(1);
                self.reply(slot, |out| hot::encode_pong_frame(data, out));
            }
            // `Publish` has a rate of its own.
            Ok(FromDevice::Publish) => match self.handle_publish(slot, body) {
                Handled::Yes => {
                    self.hear(slot);
                    return Handled::Yes;
                }
                outcome @ (Handled::NoRoom | Handled::Closed) => return outcome,
            },
            Ok(FromDevice::Other) => match self.pass_on(slot, body) {
                Handled::Yes => {}
                outcome @ (Handled::NoRoom | Handled::Closed) => return outcome,
            },
            Ok(FromDevice::Unknown) if self.owes_answers() => {
                if !self.is_seeded_left_out_answer() {
                    return Handled::NoRoom;
                }
            }
            Ok(FromDevice::Unknown) => {
                let message = "message of a kind that weir.v1 does not know";
                self.reply(slot, |out| encode_error(ErrorCode::UnknownKind, "", message, 0, out));
            }
            Err(error) => {
                self.close(slot, reason_of_wire(&error));
                return Handled::Closed;
            }
        }
        self.hear(slot);
        self.charge_frames(slot, 1);
        if self.table[slot].state == State::Open { Handled::Yes } else { Handled::Closed }
    }

    /// Notes that something whole has come.
    pub(super) fn hear(&mut self, slot: Slot) {
        self.stats.received_frames.add(1);
        let now = self.tick();
        let entry = &mut self.table[slot];
        (entry.heard_at, entry.flags.beat) = (now, Beat::Settled);
    }

    /// Passes a frame on to the front.
    pub(super) fn pass_on(&mut self, slot: Slot, body: &[u8]) -> Handled {
        if !self.backlog.is_empty() {
            return Handled::NoRoom;
        }
        let conn = self.table.id(self.index, slot);
        let (device, origin) = (self.table[slot].device, self.table[slot].origin);
        match self.front.try_report(Report::Received { conn, device, origin, body: body.into() }) {
            Ok(()) => Handled::Yes,
            Err(_) => Handled::NoRoom,
        }
    }

    /// Sends the gathered answers.
    pub(super) fn send_replies(&mut self, slot: Slot) {
        if self.replies.is_empty() {
            return;
        }
        let mut replies = std::mem::take(&mut self.replies);
        if self.table[slot].state == State::Open {
            self.send_formed(slot, &replies);
        }
        replies.clear();
        self.replies = replies;
    }

    /// Reads the bytes that a closed connection still sends, until its end, so that a reset does
    /// not destroy its `Goodbye`.
    fn discard(&mut self, slot: Slot) {
        let mut buf = std::mem::take(&mut self.recv_buf);
        let mut outcome = Ok(1);
        for _ in 0..READS_PER_TURN {
            outcome = self.recv(slot, &mut buf);
            if !matches!(outcome, Ok(bytes) if bytes > 0) {
                break;
            }
        }
        self.recv_buf = buf;
        match outcome {
            // A peer that has ended its side may still read the bytes on their way.
            Ok(0) if self.table[slot].outbox.is_some() => {}
            Ok(0) => self.give_up_socket(slot),
            Ok(_) => self.list_to_read(slot),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.give_up_socket(slot),
        }
    }
}

/// Appends an `Error` frame to `out`.
pub(super) fn encode_error(
    code: ErrorCode,
    topic: &str,
    message: &str,
    request: u32,
    out: &mut Vec<u8>,
) {
    let error = v1::Error {
        code: code.name().into(),
        message: message.into(),
        request,
        topic: topic.into(),
    };
    let message = v1::ServerMessage { kind: Some(v1::server_message::Kind::Error(error)) };
    frame::encode(&message, out);
}

/// An `Error` frame as an item.
pub(super) fn error_item(code: ErrorCode, topic: &str, message: &str) -> Item {
    let mut out = Vec::new();
    encode_error(code, topic, message, 0, &mut out);
    Item::Frame(out.into_boxed_slice())
}

/// Bytes that the begun frame in `begun` still needs; one while its length is unknown.
fn missing_bytes(begun: &[u8], frame_bytes_max: usize) -> Result<usize, WireError> {
    let whole = frame::whole_bytes(begun, frame_bytes_max)?;
    Ok(whole.map_or(1, |whole| whole.saturating_sub(begun.len())))
}

fn reason_of_wire(error: &WireError) -> CloseReason {
    match error {
        WireError::FrameTooLarge { .. } => CloseReason::FrameTooLarge,
        WireError::LengthMalformed
        | WireError::MessageMalformed(_)
        | WireError::PingTooLarge(_) => CloseReason::Malformed,
    }
}

/// The close reason for an error of the socket.
pub(super) fn reason_of(error: &io::Error) -> CloseReason {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut};
    let kind = error.kind();
    if matches!(kind, ConnectionReset | ConnectionAborted | BrokenPipe) {
        CloseReason::PeerReset
    } else if kind == TimedOut {
        CloseReason::KernelTimeout
    } else {
        CloseReason::SocketError
    }
}
