//! The hot messages (`Ping`, `Pong`, `Publish`, `Push`, `Batch`), decoded and encoded by borrowing.
//!
//! Encoding yields the bytes that prost would. Decoding takes and refuses the same bytes as prost,
//! including protobuf's rules for repeated fields (the last one wins, embedded messages merge).
//! There is one exception: a hot kind is malformed after a kind that is not decoded in the same
//! pass (`Batch`, and every kind that is not hot). Protobuf would let the last kind win, but this
//! code cannot know whether the earlier one is well-formed. No encoder writes two kinds.

mod batch;
mod from_device;
mod from_server;

use crate::fields::{self, Field, Fields};
use crate::{PING_BYTES_MAX, WireError, frame};

pub use batch::encode_batch_frames;
pub use from_device::{FromDevice, Publish};
pub use from_server::{Batch, FromServer, Messages, Push};

/// The content of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload<'a> {
    /// UTF-8 text.
    Text(&'a str),
    /// Bytes.
    Data(&'a [u8]),
}

/// Empty data, which a message without a payload has.
impl Default for Payload<'_> {
    fn default() -> Self {
        Payload::Data(&[])
    }
}

/// Appends a frame with a `Ping` to `out` (what a client sends).
///
/// Limits: the server refuses `data` over [`PING_BYTES_MAX`].
pub fn encode_ping_frame(data: &[u8], out: &mut Vec<u8>) {
    put_heartbeat_frame(CLIENT_PING, data, out);
}

/// Appends a frame with a `Pong` to `out`.
pub fn encode_pong_frame(data: &[u8], out: &mut Vec<u8>) {
    put_heartbeat_frame(SERVER_PONG, data, out);
}

impl<'a> Payload<'a> {
    /// The content as bytes, for either kind.
    pub fn as_bytes(self) -> &'a [u8] {
        match self {
            Payload::Text(text) => text.as_bytes(),
            Payload::Data(data) => data,
        }
    }

    fn field_bytes(self) -> usize {
        fields::delimited_bytes(self.as_bytes().len())
    }

    /// Writes the field even if it is empty, because its kind (text or data) matters.
    fn put(self, out: &mut Vec<u8>) {
        let number = match self {
            Payload::Text(_) => CONTENT_TEXT,
            Payload::Data(_) => CONTENT_DATA,
        };
        fields::put_delimited(number, self.as_bytes(), out);
    }
}

/// The common fields of `Publish` and `Push`, in the order of their numbers.
#[derive(Clone, Copy)]
struct Content<'a> {
    topic: &'a str,
    payload: Payload<'a>,
    content_type: &'a str,
    key: &'a str,
}

impl<'a> Content<'a> {
    /// Merges one field into an earlier one. Ignores fields with other numbers.
    #[inline]
    fn merge(&mut self, number: u8, field: &Field<'a>) -> Result<(), WireError> {
        match number {
            CONTENT_TOPIC => self.topic = field.text()?,
            CONTENT_TEXT => self.payload = Payload::Text(field.text()?),
            CONTENT_DATA => self.payload = Payload::Data(field.bytes()?),
            CONTENT_TYPE => self.content_type = field.text()?,
            CONTENT_KEY => self.key = field.text()?,
            _ => {}
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        fields::optional_delimited_bytes(self.topic.len())
            + self.payload.field_bytes()
            + fields::optional_delimited_bytes(self.content_type.len())
            + fields::optional_delimited_bytes(self.key.len())
    }

    /// Appends the fields. The key comes last.
    fn put(&self, out: &mut Vec<u8>) {
        fields::put_optional_delimited(CONTENT_TOPIC, self.topic.as_bytes(), out);
        self.payload.put(out);
        fields::put_optional_delimited(CONTENT_TYPE, self.content_type.as_bytes(), out);
        fields::put_optional_delimited(CONTENT_KEY, self.key.as_bytes(), out);
    }
}

/// Bytes of a frame whose message has one kind of `message_bytes`.
fn frame_bytes(message_bytes: usize) -> usize {
    let body_bytes = fields::delimited_bytes(message_bytes);
    fields::varint_bytes(body_bytes as u64) + body_bytes
}

/// Appends everything before the fields of a kind: the frame's length, the kind's key and its
/// length.
fn put_frame_head(kind: u8, message_bytes: usize, out: &mut Vec<u8>) {
    out.reserve(frame_bytes(message_bytes));
    frame::encode_length(fields::delimited_bytes(message_bytes), out);
    fields::put_delimited_head(kind, message_bytes, out);
}

fn put_heartbeat_frame(kind: u8, data: &[u8], out: &mut Vec<u8>) {
    put_frame_head(kind, fields::optional_delimited_bytes(data.len()), out);
    fields::put_optional_delimited(HEARTBEAT_DATA, data, out);
}

/// The `data` of a `Ping` or a `Pong`, with an earlier occurrence merged.
fn merged_heartbeat<'a>(earlier: &'a [u8], message: &'a [u8]) -> Result<&'a [u8], WireError> {
    let mut data = earlier;
    let mut fields = Fields::embedded(message, KIND_DEPTH);
    while let Some(field) = fields.next()? {
        if field.number == u32::from(HEARTBEAT_DATA) {
            data = field.bytes()?;
        }
    }
    Ok(data)
}

// Depth of a kind inside the outermost message.
const KIND_DEPTH: u32 = 1;
const MESSAGE_DEPTH: u32 = 2;

// Field numbers of `ClientMessage`. From the first to the last, 1 to 6 and 8 to 10, all are kinds.
const CLIENT_HELLO: u8 = 1;
const CLIENT_PING: u8 = 2;
const CLIENT_PUBLISH: u8 = 5;
const CLIENT_REFRESH: u8 = 6;
const CLIENT_CALL: u8 = 8;
const CLIENT_CANCEL: u8 = 10;

// Field numbers of `ServerMessage`. From the first to the last, 1 to 15, all are kinds.
const SERVER_WELCOME: u8 = 1;
const SERVER_PONG: u8 = 2;
const SERVER_PUSH: u8 = 3;
const SERVER_BATCH: u8 = 4;
pub(crate) const SERVER_GOODBYE: u8 = 10;
const SERVER_CANCEL: u8 = 15;

// Field number of `Ping` and `Pong`.
const HEARTBEAT_DATA: u8 = 1;

// Field numbers that `Publish` and `Push` share.
const CONTENT_TOPIC: u8 = 1;
const CONTENT_TEXT: u8 = 2;
const CONTENT_DATA: u8 = 3;
const CONTENT_TYPE: u8 = 4;
const CONTENT_KEY: u8 = 5;

const PUBLISH_REQUEST: u8 = 6;

const PUSH_MESSAGE_ID: u8 = 6;
const PUSH_OFFSET: u8 = 7;
const PUSH_SENDER: u8 = 8;

const BATCH_TOPIC: u8 = 1;
const BATCH_FIRST_OFFSET: u8 = 2;
const BATCH_LAST_OFFSET: u8 = 3;
const BATCH_MESSAGES: u8 = 4;

const BEHIND_ANOTHER_KIND: WireError = WireError::MessageMalformed("a second kind in one message");

#[cfg(test)]
mod tests;
