//! The devices in a run, and their acts.

use std::io;

use weir_wire::format::Format;
use weir_wire::ws::{self, Opcode};
use weir_wire::{CloseReason, PING_BYTES_MAX, frame, hot};

use super::conn::{Conn, Phase, Reading};
use super::driver::Run;
use super::edge;
use super::fault::Fault;
use super::incoming::Answers;
use super::link::{Owner, PeerId};
use super::owed::{Answer, Look, Reply};
use super::secure::Piece;

/// Key of a field that `weir.v1` does not know, length-delimited.
const UNKNOWN_KEY: u8 = 15 << 3 | 2;

impl Conn {
    /// The device sends bytes that must end its connection.
    fn end_bad(&mut self, bytes: &[u8], reason: CloseReason, last_word: Option<Option<u16>>) {
        let end = self.incoming.compose_bad(bytes);
        self.incoming.bad = Some((end, reason));
        self.incoming.last_word = last_word;
    }
}

impl Run {
    /// A device acts.
    pub(super) fn device_acts(&mut self) {
        let Some(index) = self.dice.pick(&self.live).copied() else { return };
        let act = self.dice.below(1000);
        if (850..=930).contains(&act) && !self.dice.chance(self.deadliness) {
            return self.speak_to_all();
        }
        match act {
            0..=699 => self.speak(index),
            700..=819 => self.change_reading(index),
            820..=849 => self.drip(index),
            850..=859 => self.send_garbage(index),
            860..=869 => self.send_oversized(index),
            870..=889 => self.end_side(index),
            890..=899 => {
                let reset = io::ErrorKind::ConnectionReset;
                self.fail(index, reset, Fault::Reset, CloseReason::PeerReset);
            }
            900..=909 => {
                let timed_out = io::ErrorKind::TimedOut;
                self.fail(index, timed_out, Fault::KernelTimeout, CloseReason::KernelTimeout);
            }
            910..=914 => {
                let unreachable = io::ErrorKind::HostUnreachable;
                self.fail(index, unreachable, Fault::Unreachable, CloseReason::SocketError);
            }
            915..=930 => {
                if !std::mem::replace(&mut self.conns[index].is_silent, true) {
                    self.faults.note(Fault::Silence);
                }
            }
            _ => self.speak_to_all(),
        }
    }

    /// Most devices give a sign of life.
    fn speak_to_all(&mut self) {
        for at in 0..self.live.len() {
            if self.dice.chance(3 << 14) {
                self.speak(self.live[at]);
            }
        }
    }

    /// Composes a few frames, and writes them, cut anywhere.
    fn speak(&mut self, index: usize) {
        if self.conns[index].is_silent {
            return;
        }
        for _ in 0..=self.dice.below(3) {
            self.compose(index);
        }
        let all = self.conns[index].incoming.unsent.len();
        let is_cut = self.dice.chance(1 << 12);
        let bytes = if is_cut { self.dice.index(all + 1) } else { all };
        self.write(index, bytes);
    }

    fn compose(&mut self, index: usize) {
        let size_end = if self.dice.chance(1 << 12) { 900 } else { 40 };
        let size = self.dice.below(size_end) as usize;
        let filler: Vec<u8> = (0..size).map(|at| u8::try_from(at % 120).unwrap_or(0)).collect();
        let conn = &mut self.conns[index];
        if conn.incoming.bad.is_some() {
            return;
        }
        let is_ws = matches!(conn.format, Format::WsProtobuf | Format::WsJson);
        match self.dice.below(10) {
            0..=1 if is_ws => {
                let answers = &mut Answers(&mut conn.outgoing.answers);
                conn.incoming.say_control(&mut self.dice, answers);
            }
            0..=5 => {
                let data = &filler[..size.min(PING_BYTES_MAX)];
                let mut frame = Vec::new();
                hot::encode_ping_frame(data, &mut frame);
                let (body, _) = frame::decode(&frame, usize::MAX).ok().flatten().expect("a frame");
                conn.ask(body, Reply::Pong(data.to_vec()), &mut self.dice);
            }
            6..=8 => {
                let most = if is_ws { 700 } else { 100 };
                conn.say_hello(&mut self.dice, size.min(most));
            }
            _ if conn.format == Format::WsJson && size.is_multiple_of(3) => {
                let answers = &mut Answers(&mut conn.outgoing.answers);
                let text = br#"{"ping":{"data":7}}"#;
                let end = conn.incoming.say_ws(Opcode::Text, text, &mut self.dice, answers);
                conn.outgoing.answers.push_back(Answer { end, reply: Reply::Error });
            }
            _ => {
                let body: &[u8] = if size.is_multiple_of(2) { &[] } else { &[UNKNOWN_KEY, 1, 7] };
                conn.ask(body, Reply::Error, &mut self.dice);
            }
        }
    }

    /// Writes this many of the composed bytes.
    fn write(&mut self, index: usize, bytes: usize) {
        let peer = self.conns[index].peer;
        if self.shard.net().link_of(peer).is_ended {
            return;
        }
        if self.conns[index].tls.is_some() {
            return self.write_sealed(index, bytes);
        }
        let incoming = &mut self.conns[index].incoming;
        let bytes = bytes.min(incoming.unsent.len());
        let written: Vec<u8> = incoming.unsent.drain(..bytes).collect();
        self.shard.peer_write(peer, &written);
    }

    fn drip(&mut self, index: usize) {
        self.faults.note(Fault::Drip);
        if self.conns[index].incoming.unsent.is_empty() {
            self.compose(index);
        }
        self.write(index, 1);
    }

    fn send_garbage(&mut self, index: usize) {
        if self.dice.chance(1 << 15) && self.break_record(index) {
            return;
        }
        self.faults.note(Fault::Garbage);
        let kind = self.dice.below(4);
        let noise: Vec<u8> =
            (0..30).map(|_| u8::try_from(self.dice.below(256)).unwrap_or(0)).collect();
        let conn = &mut self.conns[index];
        if conn.incoming.bad.is_some() || conn.outgoing.is_wild || conn.format == Format::Sse {
            return;
        }
        if kind == 3 {
            conn.outgoing.is_wild = true;
            // Bytes that are no message may be a Close frame.
            let reasons =
                [CloseReason::Malformed, CloseReason::FrameTooLarge, CloseReason::PeerClosed];
            conn.asked.extend(reasons);
            conn.incoming.compose_bad(&noise);
            return self.write(index, usize::MAX);
        }
        let (bytes, last_word) = match (conn.format, kind) {
            (Format::Stream, 0) => (vec![0xff, 0xff, 0xff, 0xff, 0xff], None),
            (Format::Stream, 1) => (vec![0x80, 0x00], None),
            (Format::Stream, _) => (vec![0x02, 0xff, 0xff], None),
            (format, _) => {
                let kind = self.dice.below(edge::BAD_KINDS);
                edge::bad_ws(format, kind, &mut self.dice)
            }
        };
        conn.end_bad(&bytes, CloseReason::Malformed, last_word.map(Some));
        self.write(index, usize::MAX);
    }

    fn send_oversized(&mut self, index: usize) {
        self.faults.note(Fault::Oversized);
        let conn = &mut self.conns[index];
        if conn.incoming.bad.is_some() || conn.outgoing.is_wild || conn.format == Format::Sse {
            return;
        }
        let (bytes, last_word) = match conn.format {
            Format::Stream | Format::Sse => (vec![0xff, 0xff, 0xff, 0xff, 0x0f], None),
            format @ (Format::WsProtobuf | Format::WsJson) => {
                (edge::oversized_ws(format, &mut self.dice), Some(Some(ws::TOO_BIG)))
            }
        };
        conn.end_bad(&bytes, CloseReason::FrameTooLarge, last_word);
        self.write(index, usize::MAX);
    }

    /// Sends a Close frame, if the connection is a WebSocket.
    fn say_close(&mut self, index: usize) {
        let code = [None, Some(1000), Some(1001), Some(4321)][self.dice.index(4)];
        let conn = &mut self.conns[index];
        let is_ws = matches!(conn.format, Format::WsProtobuf | Format::WsJson);
        if !is_ws || conn.incoming.bad.is_some() || conn.outgoing.is_wild {
            return;
        }
        self.faults.note(Fault::CloseFrame);
        let bytes = edge::close_frame(code, &mut self.dice);
        conn.asked.push(CloseReason::PeerClosed);
        conn.end_bad(&bytes, CloseReason::PeerClosed, Some(code));
        self.write(index, usize::MAX);
    }

    fn end_side(&mut self, index: usize) {
        if self.dice.chance(1 << 15) {
            self.say_close(index);
            if self.dice.chance(1 << 15) {
                return;
            }
        }
        self.faults.note(Fault::HalfClose);
        if self.dice.chance(1 << 15) {
            self.end_sealed(index);
        }
        let rejects = self.dice.chance(1 << 15);
        self.end_peer(index, rejects);
    }

    fn end_peer(&mut self, index: usize, rejects: bool) {
        let conn = &mut self.conns[index];
        conn.asked.push(CloseReason::PeerClosed);
        let peer = conn.peer;
        if rejects {
            conn.asked.push(CloseReason::PeerReset);
            self.shard.net().link_mut(peer).rejects = true;
        }
        self.shard.peer_end(peer);
    }

    fn fail(&mut self, index: usize, error: io::ErrorKind, fault: Fault, reason: CloseReason) {
        self.faults.note(fault);
        let conn = &mut self.conns[index];
        // The next call on a failed socket sees the end, or a broken pipe.
        conn.asked.extend([reason, CloseReason::PeerClosed, CloseReason::PeerReset]);
        self.shard.net().peer_fail(self.conns[index].peer, error);
    }

    fn change_reading(&mut self, index: usize) {
        let reading = match self.dice.below(4) {
            0 => {
                self.faults.note(Fault::Stall);
                Reading::Stopped
            }
            1 => {
                self.faults.note(Fault::SlowReader);
                Reading::Slowly(self.dice.between(1, 300) as usize)
            }
            _ => Reading::All,
        };
        self.conns[index].reading = reading;
    }

    /// The acts of a device before each turn: it reads, and answers the server's end with its own.
    pub(super) fn device_reads(&mut self, index: usize) {
        let conn = &self.conns[index];
        let bytes = match conn.reading {
            Reading::All => usize::MAX,
            Reading::Slowly(bytes) => bytes,
            Reading::Stopped => 0,
        };
        let peer = conn.peer;
        let link = self.shard.net().link_of(peer);
        let answers_end = link.is_our_side_ended && link.unread() == 0 && !link.is_ended;
        if bytes > 0 && link.unread() > 0 {
            self.shard.net().peer_skip(peer, bytes);
        }
        self.answer_pings(index);
        if answers_end && self.dice.chance(1 << 15) {
            self.end_peer(index, false);
        }
    }

    /// Answers a WebSocket's pings, once everything has been read.
    fn answer_pings(&mut self, index: usize) {
        let conn = &mut self.conns[index];
        let is_read = self.shard.net().link_of(conn.peer).unread() == 0;
        if !is_read || std::mem::take(&mut conn.outgoing.pings) == 0 || conn.is_silent {
            return;
        }
        if conn.format != Format::Sse && conn.incoming.bad.is_none() && !conn.outgoing.is_wild {
            conn.incoming.say_pong(&mut self.dice);
            self.write(index, usize::MAX);
        }
    }

    /// Notes the bytes that the shard has read from each connection.
    pub(super) fn note_reading(&mut self) {
        let now = self.shard.now();
        for at in 0..self.live.len() {
            let conn = &mut self.conns[self.live[at]];
            let link = self.shard.net().link_of(conn.peer);
            if !conn.is_taken && !matches!(link.owner, Owner::Offered(_)) {
                conn.is_taken = true;
                conn.incoming.heard_at = now;
            }
            if conn.is_taken {
                conn.note_consumed(link, now);
            }
        }
    }

    /// Compares the bytes that left for the devices with those that must reach them.
    pub(super) fn observe(&mut self) -> Result<(), String> {
        let now = self.shard.now();
        for index in self.shard.net().take_fresh() {
            let conn = &mut self.conns[index as usize];
            let link = self.shard.net().link_mut(PeerId(index));
            let consumed = conn.consumed(link);
            let pieces = match &mut conn.tls {
                Some(tls) => tls.open(link.observe()),
                None => Ok(vec![Piece { bytes: link.observe().to_vec(), sealed_in: None }]),
            };
            let at = |what| format!("connection {index} ({:?}): {what}", conn.id);
            for Piece { bytes, sealed_in } in pieces.map_err(at)? {
                let look = Look { now, consumed, is_queue: false, sealed_in };
                let seen = conn.outgoing.take(&bytes, &self.book, look).map_err(at)?;
                self.book.delivered += seen.delivered;
                self.book.expired += seen.expired;
            }
            if let (Some(code), Phase::Ended(reason)) = (conn.outgoing.goodbye, conn.phase)
                && code != u32::from(reason.code())
            {
                return Err(format!("connection {index}: Goodbye says {code}, not {reason}"));
            }
        }
        Ok(())
    }
}
