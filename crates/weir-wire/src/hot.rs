//! The hot messages (`Ping`, `Pong`, `Publish`, `Push`), decoded and encoded by borrowing.
//!
//! Encoding yields the bytes that prost would. Decoding takes and refuses what prost does, down to what protobuf says
//! of repeated fields (the last one wins, embedded messages merge), with one exception: a hot kind behind another kind
//! in the same message is malformed. Protobuf would have the last kind win, but whether the one before is well-formed
//! is not known here without decoding it, and no encoder writes two kinds.

use crate::fields::{self, Fields};
use crate::{PING_BYTES_MAX, WireError, frame};

/// What a frame from a device holds, as far as the shard needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FromDevice<'a> {
    /// Answered where it arrives.
    Ping {
        /// To be returned as it is; at most [`crate::PING_BYTES_MAX`] bytes.
        data: &'a [u8],
    },
    /// `Publish`: decode with [`Publish::decode`].
    Publish,
    /// Another kind that `weir.v1` knows: decode with prost.
    Other,
    /// No kind, or one that `weir.v1` does not know.
    Unknown,
}

/// The content of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload<'a> {
    /// UTF-8 text.
    Text(&'a str),
    /// Bytes.
    Data(&'a [u8]),
}

/// `Publish`, borrowed from the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Publish<'a> {
    /// Topic name.
    pub topic: &'a str,
    /// Content; absent on the wire: empty data.
    pub payload: Payload<'a>,
    /// Media type, or empty.
    pub content_type: &'a str,
    /// Conflation key, or empty.
    pub key: &'a str,
    /// Number that the answer carries; 0: no answer wanted.
    pub request: u32,
}

/// `Push`, borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Push<'a> {
    /// Topic name; empty for what was sent to a device or to all.
    pub topic: &'a str,
    /// Content.
    pub payload: Payload<'a>,
    /// Media type, or empty.
    pub content_type: &'a str,
    /// Conflation key, or empty.
    pub key: &'a str,
    /// Id of the message, unique for a server.
    pub message_id: u64,
    /// Offset in the topic's epoch; 0 for what has no topic.
    pub offset: u64,
    /// Connection that published it; 0 for a backend.
    pub sender: u64,
}

impl<'a> FromDevice<'a> {
    /// Classifies the body of a frame.
    ///
    /// What it says of `Ping`, `Publish` and `Unknown` holds: the whole body is well-formed, and [`Publish::decode`]
    /// succeeds. The content of any other kind is not looked at.
    /// Errors: [`WireError::PingTooLarge`], and [`WireError::MessageMalformed`] for all else.
    /// Cost: one pass, no allocation.
    pub fn decode(body: &'a [u8]) -> Result<FromDevice<'a>, WireError> {
        match FromDeviceKind::decode(body)? {
            FromDeviceKind::Missing => Ok(FromDevice::Unknown),
            FromDeviceKind::Ping(data) if data.len() > PING_BYTES_MAX => {
                Err(WireError::PingTooLarge(data.len()))
            }
            FromDeviceKind::Ping(data) => Ok(FromDevice::Ping { data }),
            FromDeviceKind::Publish(_) => Ok(FromDevice::Publish),
            FromDeviceKind::Other => Ok(FromDevice::Other),
        }
    }
}

impl<'a> Publish<'a> {
    /// Decodes the body of a frame that holds a `ClientMessage` with `publish`.
    ///
    /// Errors: [`WireError::MessageMalformed`], also for a message of another kind.
    /// Cost: one pass, no allocation.
    pub fn decode(body: &'a [u8]) -> Result<Publish<'a>, WireError> {
        match FromDeviceKind::decode(body)? {
            FromDeviceKind::Publish(publish) => Ok(publish),
            FromDeviceKind::Missing | FromDeviceKind::Ping(_) | FromDeviceKind::Other => {
                Err(WireError::MessageMalformed("not a publish"))
            }
        }
    }

    /// Appends a frame with a `ClientMessage` that holds this `Publish`.
    ///
    /// Cost: grows `out` at most once.
    pub fn encode_frame(&self, out: &mut Vec<u8>) {
        put_frame_head(CLIENT_PUBLISH, self.message_bytes(), out);
        fields::put_optional_delimited(CONTENT_TOPIC, self.topic.as_bytes(), out);
        self.payload.put(out);
        fields::put_optional_delimited(CONTENT_TYPE, self.content_type.as_bytes(), out);
        fields::put_optional_delimited(CONTENT_KEY, self.key.as_bytes(), out);
        fields::put_optional_varint(PUBLISH_REQUEST, u64::from(self.request), out);
    }

    fn message_bytes(&self) -> usize {
        fields::optional_delimited_bytes(self.topic.len())
            + self.payload.field_bytes()
            + fields::optional_delimited_bytes(self.content_type.len())
            + fields::optional_delimited_bytes(self.key.len())
            + fields::optional_varint_bytes(u64::from(self.request))
    }

    /// Reads the fields of one occurrence over those of an earlier one.
    fn merge(&mut self, message: &'a [u8]) -> Result<(), WireError> {
        let mut fields = Fields::embedded(message);
        while let Some(field) = fields.next()? {
            match u8::try_from(field.number) {
                Ok(CONTENT_TOPIC) => self.topic = field.text()?,
                Ok(CONTENT_TEXT) => self.payload = Payload::Text(field.text()?),
                Ok(CONTENT_DATA) => self.payload = Payload::Data(field.bytes()?),
                Ok(CONTENT_TYPE) => self.content_type = field.text()?,
                Ok(CONTENT_KEY) => self.key = field.text()?,
                Ok(PUBLISH_REQUEST) => self.request = field.uint32()?,
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }

    const EMPTY: Publish<'static> =
        Publish { topic: "", payload: Payload::Data(&[]), content_type: "", key: "", request: 0 };
}

impl<'a> Push<'a> {
    /// Decodes the body of a frame; `None` if the `ServerMessage` is of another kind, whose content is not looked at.
    ///
    /// Errors: [`WireError::MessageMalformed`]. Cost: one pass, no allocation.
    pub fn decode(body: &'a [u8]) -> Result<Option<Push<'a>>, WireError> {
        let mut push = None;
        let mut other = false;
        let mut fields = Fields::new(body);
        while let Some(field) = fields.next()? {
            match u8::try_from(field.number) {
                Ok(SERVER_PUSH) if other => return Err(BEHIND_ANOTHER_KIND),
                Ok(SERVER_PUSH) => push.get_or_insert(Push::EMPTY).merge(field.bytes()?)?,
                Ok(SERVER_WELCOME..=SERVER_GOODBYE) => {
                    field.bytes()?;
                    push = None;
                    other = true;
                }
                Ok(_) | Err(_) => {}
            }
        }
        Ok(push)
    }

    /// Bytes of the frame that [`Push::encode_frame`] appends.
    pub fn frame_bytes(&self) -> usize {
        let body = fields::delimited_bytes(self.message_bytes());
        fields::varint_bytes(body as u64) + body
    }

    /// Appends a frame with a `ServerMessage` that holds this `Push`.
    ///
    /// Cost: grows `out` at most once.
    pub fn encode_frame(&self, out: &mut Vec<u8>) {
        put_frame_head(SERVER_PUSH, self.message_bytes(), out);
        fields::put_optional_delimited(CONTENT_TOPIC, self.topic.as_bytes(), out);
        self.payload.put(out);
        fields::put_optional_delimited(CONTENT_TYPE, self.content_type.as_bytes(), out);
        fields::put_optional_delimited(CONTENT_KEY, self.key.as_bytes(), out);
        fields::put_optional_fixed64(PUSH_MESSAGE_ID, self.message_id, out);
        fields::put_optional_varint(PUSH_OFFSET, self.offset, out);
        fields::put_optional_fixed64(PUSH_SENDER, self.sender, out);
    }

    fn message_bytes(&self) -> usize {
        fields::optional_delimited_bytes(self.topic.len())
            + self.payload.field_bytes()
            + fields::optional_delimited_bytes(self.content_type.len())
            + fields::optional_delimited_bytes(self.key.len())
            + fields::optional_fixed64_bytes(self.message_id)
            + fields::optional_varint_bytes(self.offset)
            + fields::optional_fixed64_bytes(self.sender)
    }

    /// Reads the fields of one occurrence over those of an earlier one.
    fn merge(&mut self, message: &'a [u8]) -> Result<(), WireError> {
        let mut fields = Fields::embedded(message);
        while let Some(field) = fields.next()? {
            match u8::try_from(field.number) {
                Ok(CONTENT_TOPIC) => self.topic = field.text()?,
                Ok(CONTENT_TEXT) => self.payload = Payload::Text(field.text()?),
                Ok(CONTENT_DATA) => self.payload = Payload::Data(field.bytes()?),
                Ok(CONTENT_TYPE) => self.content_type = field.text()?,
                Ok(CONTENT_KEY) => self.key = field.text()?,
                Ok(PUSH_MESSAGE_ID) => self.message_id = field.fixed64()?,
                Ok(PUSH_OFFSET) => self.offset = field.uint64()?,
                Ok(PUSH_SENDER) => self.sender = field.fixed64()?,
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }

    const EMPTY: Push<'static> = Push {
        topic: "",
        payload: Payload::Data(&[]),
        content_type: "",
        key: "",
        message_id: 0,
        offset: 0,
        sender: 0,
    };
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

/// A `ClientMessage` with the kinds that matter here decoded.
enum FromDeviceKind<'a> {
    Missing,
    Ping(&'a [u8]),
    Publish(Publish<'a>),
    Other,
}

impl<'a> FromDeviceKind<'a> {
    fn decode(body: &'a [u8]) -> Result<Self, WireError> {
        let mut kind = FromDeviceKind::Missing;
        let mut fields = Fields::new(body);
        while let Some(field) = fields.next()? {
            kind = match u8::try_from(field.number) {
                Ok(CLIENT_PING) => FromDeviceKind::Ping(kind.merged_ping(field.bytes()?)?),
                Ok(CLIENT_PUBLISH) => FromDeviceKind::Publish(kind.merged_publish(field.bytes()?)?),
                Ok(CLIENT_HELLO..=CLIENT_REFRESH) => {
                    field.bytes()?;
                    FromDeviceKind::Other
                }
                Ok(_) | Err(_) => kind,
            };
        }
        Ok(kind)
    }

    fn merged_ping(&self, message: &'a [u8]) -> Result<&'a [u8], WireError> {
        let mut data: &[u8] = match self {
            FromDeviceKind::Ping(data) => data,
            FromDeviceKind::Missing | FromDeviceKind::Publish(_) => &[],
            FromDeviceKind::Other => return Err(BEHIND_ANOTHER_KIND),
        };
        let mut fields = Fields::embedded(message);
        while let Some(field) = fields.next()? {
            if field.number == u32::from(HEARTBEAT_DATA) {
                data = field.bytes()?;
            }
        }
        Ok(data)
    }

    fn merged_publish(self, message: &'a [u8]) -> Result<Publish<'a>, WireError> {
        let mut publish = match self {
            FromDeviceKind::Publish(publish) => publish,
            FromDeviceKind::Missing | FromDeviceKind::Ping(_) => Publish::EMPTY,
            FromDeviceKind::Other => return Err(BEHIND_ANOTHER_KIND),
        };
        publish.merge(message)?;
        Ok(publish)
    }
}

impl<'a> Payload<'a> {
    /// The content as bytes, whichever of the two it is.
    pub fn as_bytes(self) -> &'a [u8] {
        match self {
            Payload::Text(text) => text.as_bytes(),
            Payload::Data(data) => data,
        }
    }

    fn field_bytes(self) -> usize {
        fields::delimited_bytes(self.as_bytes().len())
    }

    /// Writes the field even if it is empty: which of the two it is says something.
    fn put(self, out: &mut Vec<u8>) {
        let number = match self {
            Payload::Text(_) => CONTENT_TEXT,
            Payload::Data(_) => CONTENT_DATA,
        };
        fields::put_delimited(number, self.as_bytes(), out);
    }
}

/// Appends all that stands before the fields of a kind: the frame's length, the kind's key and its length.
fn put_frame_head(kind: u8, message_bytes: usize, out: &mut Vec<u8>) {
    let body_bytes = fields::delimited_bytes(message_bytes);
    out.reserve(frame::LENGTH_BYTES_MAX + body_bytes);
    frame::encode_length(body_bytes, out);
    fields::put_delimited_head(kind, message_bytes, out);
}

fn put_heartbeat_frame(kind: u8, data: &[u8], out: &mut Vec<u8>) {
    put_frame_head(kind, fields::optional_delimited_bytes(data.len()), out);
    fields::put_optional_delimited(HEARTBEAT_DATA, data, out);
}

// Field numbers of `ClientMessage`. Between the first and the last, 1 to 6, all are kinds.
const CLIENT_HELLO: u8 = 1;
const CLIENT_PING: u8 = 2;
const CLIENT_PUBLISH: u8 = 5;
const CLIENT_REFRESH: u8 = 6;

// Field numbers of `ServerMessage`. Between the first and the last, 1 to 10, all are kinds.
const SERVER_WELCOME: u8 = 1;
const SERVER_PONG: u8 = 2;
const SERVER_PUSH: u8 = 3;
const SERVER_GOODBYE: u8 = 10;

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

const BEHIND_ANOTHER_KIND: WireError = WireError::MessageMalformed("a second kind in one message");

#[cfg(test)]
mod tests;
