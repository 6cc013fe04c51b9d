//! Messages in the JSON form of protobuf (proto3 JSON). A library reads them; our own code writes
//! the hot ones.
//!
//! docs/protocol.md says where reading deviates from protobuf's rules.

mod write;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::hot::FromServer;
use crate::{ProstMessage, v1};

pub(crate) use write::{put_decimal, put_push, put_string};

/// Text that is no message. This is always the sender's fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonError {
    path: String,
    reason: String,
}

/// Reads a message of a device.
///
/// Unknown fields are ignored.
/// Limits: known fields nest at most five levels deep. Unknown ones are skipped without recursion.
/// Errors: [`JsonError`].
/// Cost: allocates the content of the message. Refused text is read twice.
pub fn client_message(text: &str) -> Result<v1::ClientMessage, JsonError> {
    read(text)
}

/// Reads a message of the server, like [`client_message`].
pub fn server_message(text: &str) -> Result<v1::ServerMessage, JsonError> {
    read(text)
}

/// Reads a message of a device and encodes it as the body of a frame.
///
/// Errors and limits: as for [`client_message`].
pub fn client_body(text: &str) -> Result<Vec<u8>, JsonError> {
    Ok(client_message(text)?.encode_to_vec())
}

/// Writes a message of a device.
pub fn client_message_to_json(message: &v1::ClientMessage) -> String {
    serde_json::to_string(message).expect(ALWAYS_JSON)
}

/// Writes a message of the server.
pub fn server_message_to_json(message: &v1::ServerMessage) -> String {
    serde_json::to_string(message).expect(ALWAYS_JSON)
}

impl JsonError {
    /// The place in the message, such as `hello.topics[1].position`; empty if it is not in a field.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The error at that place, with line and column; at most some 200 bytes.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl std::error::Error for JsonError {}

impl std::fmt::Display for JsonError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.path.is_empty() {
            write!(f, "message is malformed: {}", self.reason)
        } else {
            write!(f, "message is malformed: {}: {}", self.path, self.reason)
        }
    }
}

/// Appends a `ServerMessage` that is decoded from `body`; `None` if it is no message of ours.
pub(crate) fn put_server_message(
    message: &FromServer<'_>,
    body: &[u8],
    out: &mut Vec<u8>,
) -> Option<()> {
    match message {
        FromServer::Push(push) => {
            out.extend_from_slice(b"{\"push\":");
            put_push(push, push.topic, out);
            out.push(b'}');
        }
        FromServer::Batch(batch) => write::put_batch(batch, out)?,
        FromServer::Pong { data } => write::put_pong(data, out),
        FromServer::Other => {
            let message = v1::ServerMessage::decode(body).ok()?;
            message.kind.as_ref()?;
            put_serialized(&message, out);
        }
        FromServer::Unknown => return None,
    }
    Some(())
}

/// Appends the JSON of a message that prost has decoded.
pub(crate) fn put_serialized(message: &impl Serialize, out: &mut Vec<u8>) {
    serde_json::to_writer(out, message).expect(ALWAYS_JSON);
}

/// Reads first without tracking the path, which costs time. After an error it reads again with the
/// path.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> Result<T, JsonError> {
    if let Ok(message) = serde_json::from_str(text) {
        return Ok(message);
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let message = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        JsonError {
            // The unknown part of a path is left out.
            path: cut(path.trim_end_matches(['.', '?']).to_owned()),
            reason: cut(error.into_inner().to_string().replace(
                NO_NUMBER,
                "expected a whole number that the field can hold, or a string of one",
            )),
        }
    })?;
    let ended = deserializer.end();
    ended.map_err(|error| JsonError { path: String::new(), reason: cut(error.to_string()) })?;
    Ok(message)
}

/// An error repeats the unexpected text, which may be long.
pub(crate) fn cut(mut text: String) -> String {
    if text.len() > ERROR_BYTES_MAX {
        text.truncate(crate::char_boundary(&text, ERROR_BYTES_MAX));
        text.push('…');
    }
    text
}

/// Room for a path or a sentence. Anything longer repeats the input.
const ERROR_BYTES_MAX: usize = 200;

/// The library's error for a number that is no number, negative, too large or not whole.
const NO_NUMBER: &str = "data did not match any variant of untagged enum Content";

const ALWAYS_JSON: &str = "messages have string keys only, and memory takes all that is written";

#[cfg(test)]
mod tests;
