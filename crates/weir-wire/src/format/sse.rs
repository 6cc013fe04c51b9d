//! Server-sent events: messages as events, and positions as their ids.

use super::Tail;
use crate::hot::{FromServer, Push};
use crate::json::{self, put_decimal};
use crate::v1::{Position, server_message::Kind};
use crate::{ProstMessage, v1};

/// Appends `id:E-O,E-O` and the empty line that ends an event. A client returns the id in
/// `Last-Event-ID`.
///
/// Shape: each epoch as 16 lower-case hexadecimal digits, each offset in decimal. Without positions
/// only the empty line is written: an empty `id` would make the client forget its id.
pub fn sse_id(positions: impl Iterator<Item = (u64, u64)>, out: &mut Vec<u8>) {
    let start = out.len();
    for (index, (epoch, offset)) in positions.enumerate() {
        out.extend_from_slice(if index == 0 { b"id:" } else { b"," });
        out.extend((0..16).rev().map(|digit| HEX[(epoch >> (4 * digit) & 0x0f) as usize]));
        out.push(b'-');
        put_decimal(offset, out);
    }
    if out.len() > start {
        out.push(b'\n');
    }
    out.push(b'\n');
}

/// The positions in an id; `None` if [`sse_id`] would not write such an id.
///
/// Shape: at least one position; an offset has no leading zeros and fits 64 bits.
/// Limits: the caller bounds the length of `id`; one position takes at least 18 bytes of it.
pub fn parse_sse_id(id: &str) -> Option<Vec<Position>> {
    id.split(',').map(parse_position).collect()
}

fn parse_position(text: &str) -> Option<Position> {
    let (epoch, offset) = text.split_once('-')?;
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if epoch.len() != EPOCH_DIGITS || !epoch.bytes().all(is_hex) {
        return None;
    }
    let is_decimal = !offset.is_empty() && offset.bytes().all(|byte| byte.is_ascii_digit());
    if !is_decimal || (offset.len() > 1 && offset.starts_with('0')) {
        return None;
    }
    Some(Position { epoch: u64::from_str_radix(epoch, 16).ok()?, offset: offset.parse().ok()? })
}

/// Writes events. The end of the last event is not written yet, because its id depends on the next
/// event.
pub(super) struct Events<'o> {
    /// Epoch of messages with an offset; 0: they have no position.
    epoch: u64,
    out: &'o mut Vec<u8>,
    last: Last,
}

/// The written part of the last event.
enum Last {
    /// The whole event, or there is none.
    Whole,
    /// Everything except its id, which is this position or none, and the empty line.
    Open(Option<Position>),
}

impl<'o> Events<'o> {
    pub(super) fn new(epoch: u64, out: &'o mut Vec<u8>) -> Self {
        Events { epoch, out, last: Last::Whole }
    }

    /// Appends the events of a message; `None` if the body holds no message of ours.
    pub(super) fn put(&mut self, body: &[u8]) -> Option<()> {
        match FromServer::decode(body).ok()? {
            FromServer::Push(push) => self.put_push(&push),
            FromServer::Batch(batch) => {
                for push in batch.messages() {
                    self.put_push(&push.ok()?);
                }
            }
            FromServer::Pong { .. } => {}
            FromServer::Other => self.put_kind(&v1::ServerMessage::decode(body).ok()?.kind?),
            FromServer::Unknown => return None,
        }
        Some(())
    }

    /// Ends the last event. Returns its end, if it has an id.
    pub(super) fn finish(mut self) -> Option<Tail> {
        self.end(false)
    }

    fn put_push(&mut self, push: &Push<'_>) {
        let has_position = self.epoch != 0 && push.offset != 0;
        let position = has_position.then_some(Position { epoch: self.epoch, offset: push.offset });
        self.begin(position);
        self.out.extend_from_slice(b"data:");
        json::put_push(push, push.topic, self.out);
        self.out.push(b'\n');
    }

    fn put_kind(&mut self, kind: &Kind) {
        match kind {
            Kind::Welcome(welcome) => self.put_event("welcome", welcome, None, 0),
            Kind::Subscribed(subscribed) => {
                self.put_event("subscribed", subscribed, subscribed.position, 0);
            }
            Kind::Unsubscribed(unsubscribed) => {
                self.put_event("unsubscribed", unsubscribed, unsubscribed.position, 0);
            }
            Kind::Error(error) => self.put_event("error", error, None, 0),
            Kind::Presence(presence) => self.put_event("presence", presence, None, 0),
            Kind::Expiring(expiring) => self.put_event("expiring", expiring, None, 0),
            Kind::Goodbye(goodbye) => {
                self.put_event("goodbye", goodbye, None, goodbye.retry_after_ms);
            }
            // The hot kinds have been written before. The others answer requests that such a
            // connection cannot send, or need answers that it cannot give.
            Kind::Pong(_)
            | Kind::Push(_)
            | Kind::Batch(_)
            | Kind::Published(_)
            | Kind::Refreshed(_)
            | Kind::Call(_)
            | Kind::Answer(_)
            | Kind::Cancel(_) => {}
        }
    }

    fn put_event(
        &mut self,
        name: &str,
        message: &impl serde::Serialize,
        position: Option<Position>,
        retry_ms: u32,
    ) {
        self.begin(position);
        self.out.extend_from_slice(b"event:");
        self.out.extend_from_slice(name.as_bytes());
        if retry_ms != 0 {
            self.out.extend_from_slice(b"\nretry:");
            put_decimal(u64::from(retry_ms), self.out);
        }
        self.out.extend_from_slice(b"\ndata:");
        json::put_serialized(message, self.out);
        self.out.push(b'\n');
    }

    /// Ends the previous event, before one with this id.
    fn begin(&mut self, next: Option<Position>) {
        self.end(next.is_some());
        self.last = Last::Open(next);
    }

    fn end(&mut self, is_outdated: bool) -> Option<Tail> {
        let start = self.out.len();
        match std::mem::replace(&mut self.last, Last::Whole) {
            Last::Whole => None,
            Last::Open(Some(position)) if !is_outdated => {
                sse_id(std::iter::once((position.epoch, position.offset)), self.out);
                Some(Tail { bytes: self.out.len() - start, position })
            }
            Last::Open(_) => {
                self.out.push(b'\n');
                None
            }
        }
    }
}

const EPOCH_DIGITS: usize = 16;
const HEX: &[u8; 16] = b"0123456789abcdef";
