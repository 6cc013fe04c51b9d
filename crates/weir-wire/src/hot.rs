//! The hot messages (`Ping`, `Pong`, `Publish`, `Push`), decoded and encoded by borrowing.

use crate::WireError;

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
    pub fn decode(body: &'a [u8]) -> Result<FromDevice<'a>, WireError> {
        let _ = body;
        Err(WireError::MessageMalformed("not written yet"))
    }
}

impl<'a> Publish<'a> {
    /// Decodes the body of a frame that holds a `ClientMessage` with `publish`.
    pub fn decode(body: &'a [u8]) -> Result<Publish<'a>, WireError> {
        let _ = body;
        Err(WireError::MessageMalformed("not written yet"))
    }

    /// Appends a frame with a `ClientMessage` that holds this `Publish`.
    pub fn encode_frame(&self, out: &mut Vec<u8>) {
        let _ = out;
    }
}

impl<'a> Push<'a> {
    /// Decodes the body of a frame; `None` if the `ServerMessage` is of another kind.
    pub fn decode(body: &'a [u8]) -> Result<Option<Push<'a>>, WireError> {
        let _ = body;
        Err(WireError::MessageMalformed("not written yet"))
    }

    /// Bytes of the frame that [`Push::encode_frame`] appends.
    pub fn frame_bytes(&self) -> usize {
        0
    }

    /// Appends a frame with a `ServerMessage` that holds this `Push`.
    pub fn encode_frame(&self, out: &mut Vec<u8>) {
        let _ = out;
    }
}

/// Appends a frame with a `Ping` to `out` (what a client sends).
pub fn encode_ping_frame(data: &[u8], out: &mut Vec<u8>) {
    let _ = (data, out);
}

/// Appends a frame with a `Pong` to `out`.
pub fn encode_pong_frame(data: &[u8], out: &mut Vec<u8>) {
    let _ = (data, out);
}
