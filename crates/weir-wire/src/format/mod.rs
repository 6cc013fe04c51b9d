//! The forms in which a server's messages reach clients, and their making from frames.
//!
//! Inside Weir a message is a frame ([`crate::frame`]). What a client reads instead is made from it once for all who
//! read that form.

mod sse;

use crate::fields::Fields;
use crate::hot::{FromServer, SERVER_GOODBYE};
use crate::v1::Position;
use crate::ws::{self, Opcode};
use crate::{ProstMessage, frame, json, v1};

pub use sse::{parse_sse_id, sse_id};

crate::named_enum! {
    /// What a client reads.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
    #[repr(u8)]
    pub enum Format {
        /// Frames: each message behind its length.
        #[default]
        Stream = "tcp",
        /// WebSocket: each message a binary one.
        WsProtobuf = "websocket_protobuf",
        /// WebSocket: each message a text one, in the JSON form of protobuf.
        WsJson = "websocket_json",
        /// Server-sent events, which hold the JSON of what is in a message.
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

/// A message in JSON has at most so many times the bytes of its frame's body, if the gateway has made it.
///
/// A control character in a text becomes `\u0001`: six bytes for one. What stands around texts is less: the smallest
/// message of a batch has 15 bytes (text without content, id, offset) and 60 in JSON, and a number of 64 bits that takes 9
/// bytes has 20 digits and a name. Data in base64 is four thirds.
pub const JSON_GROWTH_MAX: usize = 6;

/// How an encoding of events ends: with `id:…` and the empty line behind it, to be replaced by what [`sse_id`] makes of
/// all positions of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail {
    /// Bytes at the end of the encoding.
    pub bytes: usize,
    /// What the `id` says.
    pub position: Position,
}

/// Appends to `out` what clients of `format` read of `frames`; returns how that ends, if it ends with an `id`.
///
/// `frames` are whole frames that Weir has made, each with a `ServerMessage`, and those of a topic are of the one with
/// `epoch`; 0 if the messages are of no topic.
/// - [`Format::Stream`]: a copy.
/// - [`Format::WsProtobuf`] and [`Format::WsJson`]: a WebSocket message each, in one frame; behind a `Goodbye` a Close
///   frame with its code and reason.
/// - [`Format::Sse`]: an event each, of a `Batch` one for each of its messages. An event has an `id` if it says a
///   position: a message by `epoch` and its offset, `Subscribed` and `Unsubscribed` by the position in them. Of
///   messages in a row only the last one has it. `Pong` and `Published` answer what such a client cannot have sent, and
///   lead to nothing.
///
/// Errors: a frame that is none, or holds no message, is a fault of the caller: it asserts in debug builds; otherwise
/// that message is left out.
/// Cost: one pass for messages and batches, without an allocation but `out`; others are decoded by prost.
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

/// The bodies of `frames`, one after the other. `take` says whether it understood.
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
    // The length is known when the JSON is there; a head of as many bytes as are left free moves nothing.
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
