//! The formats in which clients get a server's messages, and their encoding from frames.
//!
//! Inside Weir a message is a frame ([`crate::frame`]). Each other format is made from it once, for
//! all clients with that format.

mod sse;

use crate::fields::Fields;
use crate::hot::{FromServer, SERVER_GOODBYE};
use crate::v1::Position;
use crate::ws::{self, Opcode};
use crate::{ProstMessage, frame, json, v1};

pub use sse::{parse_sse_id, sse_id};

crate::named_enum! {
    /// The format of a client's connection.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
    #[repr(u8)]
    pub enum Format {
        /// Frames: each message after its length.
        #[default]
        Stream = "tcp",
        /// WebSocket: each message is a binary one.
        WsProtobuf = "websocket_protobuf",
        /// WebSocket: each message is a text one, in the JSON form of protobuf.
        WsJson = "websocket_json",
        /// Server-sent events with the JSON of a message's content.
        Sse = "sse",
    }
}

impl Format {
    /// Number of formats.
    pub const COUNT: usize = Self::ALL.len();

    /// Position in [`Format::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// A message in JSON has at most this many times the bytes of its frame's body, if the gateway has
/// made it.
///
/// A control character in a text becomes `\u0001`: six bytes for one. What stands around texts is less: the smallest
/// message of a batch has 15 bytes (text without content, id, offset) and 60 in JSON, and a number of 64 bits that takes 9
/// bytes has 20 digits and a name. A member of `Presence` with a device id of one byte has 14 bytes, and 57 in JSON. The
/// smallest `Call` has 9 bytes and 41 in JSON, the smallest `Cancel` 4 and 19. Data in base64 is four thirds.
pub const JSON_GROWTH_MAX: usize = 6;

/// The end of an encoding of events: `id:…` and the empty line after it. [`sse_id`] makes its
/// replacement from all positions of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail {
    /// Bytes at the end of the encoding.
    pub bytes: usize,
    /// The position in the `id`.
    pub position: Position,
}

/// Appends to `out` the frames in the client's `format`. If the result ends with an `id`, returns
/// that end.
///
/// `frames` are whole frames that Weir has made, each with a `ServerMessage`. Those of a topic all
/// have `epoch`; it is 0 if the messages have no topic.
/// - [`Format::Stream`]: a copy.
/// - [`Format::WsProtobuf`] and [`Format::WsJson`]: one WebSocket message each, in one frame. After
///   a `Goodbye` comes a Close frame with its code and reason.
/// - [`Format::Sse`]: one event each; for a `Batch` one event for each of its messages. An event
///   has an `id` if it has a position: a message by `epoch` and its offset, `Subscribed` and
///   `Unsubscribed` by the position in them. Of messages in a row only the last one has an `id`.
///   `Pong` and `Published` produce no event, because such a client cannot have sent the requests.
///
/// Errors: a frame that is invalid, or holds no message, is a fault of the caller. Debug builds
/// assert; other builds leave the message out.
/// Cost: one pass for messages and batches, with no allocation except `out`. prost decodes the
/// other messages.
pub fn encode(format: Format, frames: &[u8], epoch: u64, out: &mut Vec<u8>) -> Option<Tail> {
    match format {
        Format::Stream => out.extend_from_slice(frames),
        Format::WsProtobuf => each_body(frames, |body| put_binary(body, out)),
        Format::WsJson => each_body(frames, |body| put_text(body, out)),
        Format::Sse => {
            let mut events = sse::Events::new(epoch, out);
            each_body(frames, |body| events.put(body));
            return events.finish();
        }
    }
    None
}

/// Calls `take` with the bodies of `frames`, one after the other. `take` returns whether it
/// understood the body.
fn each_body(mut frames: &[u8], mut take: impl FnMut(&[u8]) -> Option<()>) {
    while !frames.is_empty() {
        let Ok(Some((body, used))) = frame::decode(frames, usize::MAX) else {
            debug_assert!(false, "bytes that are no frame of ours");
            return;
        };
        let is_understood = take(body).is_some();
        debug_assert!(is_understood, "a frame that holds no message of ours");
        frames = &frames[used..];
    }
}

fn put_binary(body: &[u8], out: &mut Vec<u8>) -> Option<()> {
    out.reserve(ws::HEAD_BYTES_MAX + body.len());
    ws::put_frame_head(Opcode::Binary, body.len(), out);
    out.extend_from_slice(body);
    put_close_behind_goodbye(body, out)
}

fn put_text(body: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let message = FromServer::decode(body).ok()?;
    // The length is known only when the JSON is there. A head of the reserved size moves nothing.
    let start = out.len();
    out.resize(start + ws::head_bytes(body.len()), 0);
    let json_start = out.len();
    let is_put = json::put_server_message(&message, body, out);
    if is_put.is_none() {
        out.truncate(start);
        return None;
    }
    let (head, head_bytes) = ws::frame_head(Opcode::Text, out.len() - json_start);
    out.splice(start..json_start, head[..head_bytes].iter().copied());
    put_close_behind_goodbye(body, out)
}

fn put_close_behind_goodbye(body: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let kind = Fields::new(body).next().ok()??;
    if kind.number == u32::from(SERVER_GOODBYE) {
        let goodbye = v1::Goodbye::decode(kind.bytes().ok()?).ok()?;
        ws::put_close(u16::try_from(goodbye.code).ok()?, &goodbye.reason, out);
    }
    Some(())
}

#[cfg(test)]
mod tests;
