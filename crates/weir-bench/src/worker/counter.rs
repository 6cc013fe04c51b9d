//! Splits bytes from the server into messages, and counts them.

use weir_wire::format::Format;
use weir_wire::v1::{ServerMessage, Subscribed, server_message};
use weir_wire::ws::Opcode;
use weir_wire::{CloseReason, ProstMessage, frame};

use super::conn::{Conn, Phase};
use super::keys::Keys;
use super::order::{Brought, Order};
use super::room::{Room, Taken};
use crate::clock;
use crate::payload::foreign::{self, Protocol};
use crate::payload::forms::{self, Piece};
use crate::payload::{Header, Verifier};
use crate::protocol::{Check, OpenPlan, Tally};
use crate::stats::Lags;

/// Checks and counts the messages on all connections of a worker.
pub(crate) struct Counter {
    /// Counts since the last reset. [`Counter::report`] fills in the lags.
    pub(crate) tally: Tally,
    lags: Lags,
    lags_slow: Lags,
    lags_last: Lags,
    returns: Lags,
    ages: Lags,
    lags_ping: Lags,
    /// Empty buffers for frames that come in pieces.
    spare: Vec<Vec<u8>>,
    judge: Judge,
    /// Number of the first connection.
    first: u32,
    topics: Vec<String>,
    protocol: Protocol,
}

/// The expected messages.
enum Judge {
    Streams(Verifier),
    Room(Room),
    Offsets(Order),
    Keys(Keys),
}

/// The published messages.
pub(crate) struct Published<'a> {
    /// Number of messages by stream or by publisher.
    by_stream: &'a [u32],
    /// Their sum.
    in_all: u64,
}

impl Published<'_> {
    /// A count for each stream or publisher.
    pub(crate) fn new(by_stream: &[u32]) -> Published<'_> {
        Published { by_stream, in_all: by_stream.iter().map(|count| u64::from(*count)).sum() }
    }
}

/// Empty buffers kept. One buffer for each connection, as large as a tick, would exceed the CPU's
/// caches.
const SPARE_MAX: usize = 64;
/// Longest frame accepted from a server.
const FRAME_BYTES_MAX: usize = 16 << 20;
/// Errors kept for the report: the first ones tell most.
const ERRORS_MAX: usize = 5;

impl Default for Counter {
    /// A counter that expects nothing.
    fn default() -> Counter {
        Counter::with(Judge::Streams(Verifier::new(0)), 0, Vec::new())
    }
}

impl Counter {
    /// A counter for this plan; `topics` by number of stream.
    pub(crate) fn new(plan: &OpenPlan, topics: Vec<String>) -> Counter {
        let (size, topic) = (plan.size, topics.first().cloned().unwrap_or_default());
        let judge = match plan.check {
            Check::Streams => Judge::Streams(Verifier::new(size).speaking(plan.protocol)),
            Check::Room(publishers) => Judge::Room(Room::new(topic, size, publishers)),
            Check::Offsets => Judge::Offsets(Order::new(topics.len(), size)),
            Check::Keys(keys) => Judge::Keys(Keys::new(topic, size, keys)),
        };
        Counter { protocol: plan.protocol, ..Counter::with(judge, plan.first, topics) }
    }

    fn with(judge: Judge, first: u32, topics: Vec<String>) -> Counter {
        Counter {
            tally: Tally::default(),
            lags: Lags::new(),
            lags_slow: Lags::new(),
            lags_last: Lags::new(),
            returns: Lags::new(),
            ages: Lags::new(),
            lags_ping: Lags::new(),
            spare: Vec::new(),
            judge,
            first,
            topics,
            protocol: Protocol::Weir,
        }
    }

    /// Starts to count anew. Values about the whole life of connections stay.
    pub(crate) fn reset(&mut self) {
        let closed_by = std::mem::take(&mut self.tally.closed_by);
        self.tally = Tally { closed: self.tally.closed, closed_by, ..Tally::default() };
        self.lags.reset();
        self.lags_slow.reset();
        self.lags_last.reset();
        self.returns.reset();
        self.ages.reset();
        self.lags_ping.reset();
    }

    /// Topic of a stream.
    pub(crate) fn topic(&self, stream: u32) -> &str {
        self.topics.get(stream as usize).map_or("", String::as_str)
    }

    /// The counts.
    pub(crate) fn report(&self) -> Tally {
        Tally {
            lags: self.lags.counts(),
            lags_slow: self.lags_slow.counts(),
            lags_last: self.lags_last.counts(),
            returns: self.returns.counts(),
            ages: self.ages.counts(),
            lags_ping: self.lags_ping.counts(),
            seen: match &self.judge {
                Judge::Offsets(order) => order.seen(),
                Judge::Streams(_) | Judge::Room(_) | Judge::Keys(_) => Vec::new(),
            },
            ..self.tally.clone()
        }
    }

    /// Records the ages of the values that connection `index` holds.
    pub(crate) fn note_ages(&mut self, index: usize, now_ns: u64) {
        if let Judge::Keys(keys) = &self.judge {
            keys.ages(index, now_ns, &mut self.ages);
        }
    }

    /// Messages that connection `index` must still receive, given the published ones.
    pub(crate) fn missing(&self, index: usize, conn: &Conn, published: &Published<'_>) -> u64 {
        match &self.judge {
            Judge::Keys(keys) => keys.missing(index, published.by_stream),
            Judge::Streams(_) => {
                let published = published.by_stream.get(conn.stream as usize).copied().unwrap_or(0);
                published.saturating_sub(conn.next_seq).into()
            }
            Judge::Room(_) => published.in_all.saturating_sub(conn.place.received),
            Judge::Offsets(_) => {
                let last = published.by_stream.get(conn.stream as usize).copied().unwrap_or(0);
                let offset = conn.position.map_or(0, |position| position.offset);
                u64::from(last).saturating_sub(offset)
            }
        }
    }

    /// Notes an error.
    pub(crate) fn note(&mut self, error: String) {
        if self.tally.errors.len() < ERRORS_MAX {
            self.tally.errors.push(error);
        }
    }

    /// Notes that the server has closed a connection.
    pub(crate) fn note_closed(&mut self, conn: &Conn, how: &str) {
        *self.tally.closed_by.entry(ended_by(conn, how)).or_insert(0) += 1;
        self.tally.closed += u64::from(!conn.slow);
    }

    /// Notes that the server has refused a connection that comes again.
    pub(crate) fn note_refused(&mut self, conn: &Conn, how: &str) {
        *self.tally.refused.entry(ended_by(conn, how)).or_insert(0) += 1;
    }

    /// Handles bytes that connection `index` received at time `stamp`.
    ///
    /// Errors: bytes that are no stream of frames; the connection is then unusable.
    pub(crate) fn take(
        &mut self,
        index: usize,
        conn: &mut Conn,
        bytes: &[u8],
        stamp: Option<u64>,
    ) -> Result<(), String> {
        self.tally.bytes += bytes.len() as u64;
        if conn.partial.is_empty() {
            let used = self.take_frames(index, conn, bytes, stamp)?;
            if used < bytes.len() {
                conn.partial = self.spare.pop().unwrap_or_default();
                conn.partial.extend_from_slice(&bytes[used..]);
            }
            return Ok(());
        }
        let mut whole = std::mem::take(&mut conn.partial);
        whole.extend_from_slice(bytes);
        let used = self.take_frames(index, conn, &whole, stamp)?;
        whole.drain(..used);
        if !whole.is_empty() {
            conn.partial = whole;
        } else if self.spare.len() < SPARE_MAX {
            self.spare.push(whole);
        }
        Ok(())
    }

    fn take_frames(
        &mut self,
        index: usize,
        conn: &mut Conn,
        bytes: &[u8],
        stamp: Option<u64>,
    ) -> Result<usize, String> {
        if self.protocol != Protocol::Weir {
            return self.take_foreign(index, conn, bytes, stamp);
        }
        match conn.form {
            Format::Stream => {}
            Format::WsProtobuf | Format::WsJson | Format::Sse => {
                return self.take_pieces(index, conn, bytes, stamp);
            }
        }
        let mut used = 0;
        loop {
            let frame = frame::decode(&bytes[used..], FRAME_BYTES_MAX)
                .map_err(|error| error.to_string())?;
            let Some((body, frame_bytes)) = frame else { return Ok(used) };
            self.take_frame(index, conn, body, frame_bytes, stamp)?;
            used += frame_bytes;
        }
    }

    /// The same for bytes of another server.
    fn take_foreign(
        &mut self,
        index: usize,
        conn: &mut Conn,
        bytes: &[u8],
        stamp: Option<u64>,
    ) -> Result<usize, String> {
        let mut used = 0;
        while let Some((piece, length)) = foreign::next(self.protocol, &bytes[used..])? {
            match piece {
                foreign::Piece::Message => {
                    self.take_frame(index, conn, &bytes[used..used + length], length, stamp)?;
                }
                foreign::Piece::Ready => conn.awaited = conn.awaited.saturating_sub(1),
                foreign::Piece::Ping => {
                    let sent =
                        conn.fd.as_mut().map(|fd| fd.send(foreign::answer_to_ping(self.protocol)));
                    sent.transpose().map_err(|error| format!("cannot send: {error}"))?;
                }
                foreign::Piece::Nothing => {}
            }
            used += length;
        }
        Ok(used)
    }

    /// The same for bytes over HTTP.
    fn take_pieces(
        &mut self,
        index: usize,
        conn: &mut Conn,
        bytes: &[u8],
        stamp: Option<u64>,
    ) -> Result<usize, String> {
        let mut used = 0;
        while let Some((piece, piece_bytes)) = forms::next(conn.form, &bytes[used..])? {
            match piece {
                Piece::Message(message) => {
                    self.take_frame(index, conn, message, piece_bytes, stamp)?;
                }
                Piece::Ping(data) => conn.send_frame(Opcode::Pong, data)?,
                Piece::Close(code) => {
                    conn.goodbye = code.map_or(conn.goodbye, u32::from);
                    let reason = code.map(u16::to_be_bytes);
                    // The server may have gone already.
                    let _ =
                        conn.send_frame(Opcode::Close, reason.as_ref().map_or(&[], |it| &it[..]));
                }
                Piece::Nothing => {}
            }
            used += piece_bytes;
        }
        Ok(used)
    }

    fn take_frame(
        &mut self,
        index: usize,
        conn: &mut Conn,
        body: &[u8],
        bytes: usize,
        stamp: Option<u64>,
    ) -> Result<(), String> {
        let topic = self.topics.get(conn.stream as usize).map_or("", String::as_str);
        let found = match &mut self.judge {
            Judge::Streams(verifier) => {
                let verified = verifier.check(conn.form, (conn.stream, conn.next_seq), topic, body);
                verified.map(|verified| {
                    let Some(verified) = verified else { return false };
                    for header in &verified.headers {
                        self.take_message(conn, *header, stamp);
                    }
                    if let Some(position) = &mut conn.position {
                        position.offset = position.offset.max(verified.last_offset);
                    }
                    true
                })
            }
            Judge::Room(room) => {
                let taken = room.take(&mut conn.place, body);
                self.tally.duplicates += room.take_repeated();
                taken.map(|taken| self.take_room(taken, stamp))
            }
            Judge::Offsets(order) => {
                let offset = conn.position.map(|position| position.offset);
                let brought = order.take((conn.stream, topic), offset, body);
                brought.map(|brought| match brought {
                    None => false,
                    Some(brought) => {
                        self.take_brought(index, conn, brought, stamp);
                        true
                    }
                })
            }
            Judge::Keys(keys) => keys.take(index, body).map(|brought| {
                let Some(brought) = brought else { return false };
                self.tally.delivered += brought.sent_ns.len() as u64;
                self.tally.duplicates += brought.stale;
                // The slow link is simulated by slow reading, so bytes in the kernel's buffers have
                // not arrived yet.
                let now = clock::realtime_ns();
                let lags = if conn.slow { &mut self.lags_slow } else { &mut self.lags };
                brought
                    .sent_ns
                    .iter()
                    .for_each(|sent_ns| lags.record(now.saturating_sub(*sent_ns)));
                true
            }),
        };
        match found {
            Ok(true) => {
                self.tally.frames += 1;
                self.tally.frame_bytes = bytes as u64;
            }
            Ok(false) => self.take_other(conn, body, stamp)?,
            Err(error) => {
                self.tally.wrong += 1;
                self.note(match &self.judge {
                    Judge::Offsets(_) => format!("client {}, {error}", self.first as usize + index),
                    Judge::Streams(_) | Judge::Room(_) | Judge::Keys(_) => error,
                });
            }
        }
        Ok(())
    }

    /// Handles a frame of a room; returns whether it carries messages.
    fn take_room(&mut self, taken: Taken, stamp: Option<u64>) -> bool {
        match taken {
            Taken::Other => return false,
            Taken::Again(frame) => self.tally.duplicates += frame.sent_ns.len() as u64,
            Taken::Next(frame) => {
                self.tally.delivered += frame.sent_ns.len() as u64;
                let Some(stamp) = stamp else {
                    self.tally.unstamped += frame.sent_ns.len() as u64;
                    return true;
                };
                for sent_ns in &frame.sent_ns {
                    self.lags.record(stamp.saturating_sub(*sent_ns));
                }
                if let Some(last) = frame.sent_ns.iter().max() {
                    self.lags_last.record(stamp.saturating_sub(*last));
                }
            }
        }
        true
    }

    /// Counts messages that came by offset.
    fn take_brought(
        &mut self,
        index: usize,
        conn: &mut Conn,
        brought: Brought,
        stamp: Option<u64>,
    ) {
        self.tally.delivered += brought.sent_ns.len() as u64;
        self.tally.gaps += brought.skipped;
        self.tally.duplicates += brought.repeated;
        for sent_ns in brought.sent_ns {
            self.note_lag(conn, sent_ns, stamp);
        }
        if let Some(position) = &mut conn.position {
            position.offset = brought.offset;
        }
        if let Some(fault) = brought.fault {
            self.note(format!("client {}, {fault}", self.first as usize + index));
        }
    }

    fn take_message(&mut self, conn: &mut Conn, header: Header, stamp: Option<u64>) {
        let Header { stream, seq, sent_ns } = header;
        if seq < conn.next_seq {
            self.tally.duplicates += 1;
            self.note(format!(
                "stream {stream}: message {seq} where {} was to come",
                conn.next_seq
            ));
            return;
        }
        let gap = u64::from(seq - conn.next_seq);
        *(if conn.slow { &mut self.tally.gaps_slow } else { &mut self.tally.gaps }) += gap;
        conn.next_seq = seq.saturating_add(1);
        self.tally.delivered += 1;
        self.note_lag(conn, sent_ns, stamp);
    }

    /// Records the lag of a message. A connection that came back is live with the first message
    /// that was published after its `Hello`.
    fn note_lag(&mut self, conn: &mut Conn, sent_ns: u64, stamp: Option<u64>) {
        if let Some(away) = conn.away.filter(|away| sent_ns >= away.hello_ns) {
            let time = clock::monotonic().saturating_sub(away.since).as_nanos();
            self.returns.record(u64::try_from(time).unwrap_or(u64::MAX));
            conn.away = None;
        }
        match stamp {
            None => self.tally.unstamped += 1,
            Some(stamp) if conn.slow || conn.away.is_some() => {
                self.lags_slow.record(stamp.saturating_sub(sent_ns))
            }
            Some(stamp) => self.lags.record(stamp.saturating_sub(sent_ns)),
        }
    }

    /// Handles `Subscribed`: a new subscription, or a resumed one.
    fn take_subscribed(&mut self, conn: &mut Conn, subscribed: &Subscribed) {
        conn.awaited = conn.awaited.saturating_sub(1);
        if conn.away.is_some() {
            let counted = if subscribed.recovered {
                &mut self.tally.recovered
            } else {
                &mut self.tally.unrecovered
            };
            *counted += 1;
            if subscribed.recovered && subscribed.position != conn.position {
                self.tally.wrong += 1;
                self.note(format!(
                    "asked to resume from {:?}, the server goes on from {:?}",
                    conn.position, subscribed.position
                ));
            }
        } else if conn.phase == Phase::Settled {
            self.tally.told += 1;
        }
        conn.position = subscribed.position;
    }

    /// Handles a message without a payload of the bench.
    fn take_other(
        &mut self,
        conn: &mut Conn,
        body: &[u8],
        stamp: Option<u64>,
    ) -> Result<(), String> {
        use server_message::Kind;
        let body = forms::body(conn.form, body)?;
        let message = ServerMessage::decode(&body[..]).map_err(|error| error.to_string())?;
        match message.kind {
            Some(Kind::Welcome(_)) => conn.awaited = conn.awaited.saturating_sub(1),
            Some(Kind::Subscribed(subscribed)) => self.take_subscribed(conn, &subscribed),
            Some(Kind::Goodbye(goodbye)) => conn.goodbye = goodbye.code,
            Some(Kind::Pong(pong)) if conn.pings > 0 => {
                conn.pings -= 1;
                self.tally.pongs += 1;
                let sent_ns = <[u8; 8]>::try_from(&pong.data[..]).map(u64::from_be_bytes);
                let lag = stamp.zip(sent_ns.ok()).map(|(stamp, sent)| stamp.saturating_sub(sent));
                lag.into_iter().for_each(|lag| self.lags_ping.record(lag));
            }
            Some(Kind::Error(error)) => {
                let settled = if conn.phase == Phase::Settled { "" } else { " to Hello" };
                self.note(format!(
                    "the server answered{settled}: {}: {}",
                    error.code, error.message
                ));
            }
            other @ (None
            | Some(
                Kind::Pong(_)
                | Kind::Push(_)
                | Kind::Batch(_)
                | Kind::Unsubscribed(_)
                | Kind::Published(_)
                | Kind::Expiring(_)
                | Kind::Refreshed(_)
                | Kind::Presence(_)
                | Kind::Call(_)
                | Kind::Answer(_)
                | Kind::Cancel(_),
            )) => self.note(format!("an unexpected message: {other:?}")),
        }
        Ok(())
    }
}

/// The reason for which the server has ended a connection; `how`: what the socket has said.
fn ended_by(conn: &Conn, how: &str) -> String {
    match CloseReason::from_code(conn.goodbye).map(CloseReason::name) {
        Some(name) => name.to_owned(),
        None if conn.goodbye != 0 => format!("code_{}", conn.goodbye),
        None => how.to_owned(),
    }
}
