//! Datagrams: each has one request or its answer, as JSON or as one protobuf message.
//!
//! Calls are read and answered without an allocation. Libraries read everything else.

mod answer;
mod call;
mod library;
mod role;

use std::borrow::Cow;
use std::fmt;

pub use answer::{Answer, Refused};

use crate::v1;
use role::Role;

/// The request in a datagram.
#[derive(Debug, Clone, PartialEq)]
pub struct Datagram<'a> {
    /// The form of the request, and so of its answer.
    pub form: Form,
    /// The id that distinguishes the request from others. The answer repeats it.
    pub id: Id<'a>,
    /// The request itself.
    pub request: Request<'a>,
}

/// The kinds of requests.
#[derive(Debug, Clone, PartialEq)]
pub enum Request<'a> {
    /// A sign of life of an activated device. The answer has the same two fields.
    Call {
        /// Its token.
        token: Cow<'a, str>,
        /// Any number.
        count: u64,
    },
    /// A device asks for its token.
    Activate {
        /// Its serial number: 1 to [`SERIAL_BYTES_MAX`] bytes without control characters.
        serial: String,
        /// Its device key: 1 to [`KEY_BYTES_MAX`] bytes.
        key: String,
    },
    /// An activated device publishes.
    Publish {
        /// Its token.
        token: String,
        /// The message. It has a topic and a payload.
        publish: v1::Publish,
    },
}

/// The encoding of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// One JSON object. It begins with `{`.
    Json,
    /// One `DatagramRequest` or `DatagramAnswer`.
    Protobuf,
}

/// The sender's id of its request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Id<'a> {
    /// No id.
    #[default]
    None,
    /// A number.
    Number(u64),
    /// A text of at most [`ID_BYTES_MAX`] bytes; only in JSON.
    Text(Cow<'a, str>),
}

/// Why a datagram is no request.
///
/// The gateway answers only malformed requests. It never answers an answer, from whichever gateway,
/// nor the reply of another service. So two programs that answer datagrams never keep each other
/// busy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoRequest {
    /// It has a field that only answers have.
    Answer,
    /// It has no field of a request.
    Foreign,
    /// It has fields of a request, but is wrong.
    Malformed(Malformed),
}

/// A request that cannot be understood. This is always the sender's fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// The probable encoding of the request.
    pub form: Form,
    /// The request's id, if it could be read.
    pub id: Id<'static>,
    /// The field at fault.
    pub field: Field,
    /// The place in the field, such as `publish.topic`. Otherwise the field's name, or empty.
    pub path: String,
    /// The error, in at most some 200 bytes.
    pub reason: String,
}

crate::named_enum! {
    /// The parts of a datagram that can be wrong.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Field {
        /// The datagram itself: its length, its encoding, or its request.
        Datagram = "datagram",
        /// `id`
        Id = "id",
        /// `pt`
        Token = "pt",
        /// `count`
        Count = "count",
        /// `devSn`
        Serial = "devSn",
        /// `devKey`
        Key = "devKey",
        /// `publish`
        Publish = "publish",
    }
}

/// Reads a datagram.
///
/// Unknown fields are ignored, except those that only answers have.
/// Limits: the caller bounds the datagram's length; the constants of this module bound its content.
/// Errors: [`NoRequest`]. If the request is malformed, the error names the field.
/// Cost: a call without escapes is read in one pass and without an allocation. Anything else takes
/// a second pass, a library and some allocations.
pub fn decode(datagram: &[u8]) -> Result<Datagram<'_>, NoRequest> {
    if let Some(call) = call::decode(datagram) {
        return Ok(call);
    }
    decode_by_library(datagram)
}

/// The same without the fast decoder for calls. Tests compare the two.
///
/// Errors: as for [`decode`].
pub fn decode_by_library(datagram: &[u8]) -> Result<Datagram<'static>, NoRequest> {
    let role = Role::of(datagram);
    match library::decode(datagram) {
        _ if role == Role::Answer => Err(NoRequest::Answer),
        Ok(request) => Ok(request),
        Err(_) if role == Role::Neither => Err(NoRequest::Foreign),
        Err(malformed) => Err(NoRequest::Malformed(malformed)),
    }
}

/// Judges a datagram longer than `limit` by its beginning.
pub fn too_long(beginning: &[u8], limit: usize) -> NoRequest {
    match Role::of(beginning) {
        Role::Answer => NoRequest::Answer,
        Role::Neither => NoRequest::Foreign,
        Role::Request => NoRequest::Malformed(Malformed {
            form: Form::of(beginning),
            id: Id::None,
            field: Field::Datagram,
            path: String::new(),
            reason: format!("longer than the limit of {limit} bytes (udp.datagram_bytes_max)"),
        }),
    }
}

impl Form {
    /// The encoding of a datagram with this beginning.
    pub fn of(datagram: &[u8]) -> Form {
        if datagram.first() == Some(&b'{') { Form::Json } else { Form::Protobuf }
    }
}

impl Id<'_> {
    /// The same id with owned bytes.
    pub fn into_owned(self) -> Id<'static> {
        match self {
            Id::None => Id::None,
            Id::Number(number) => Id::Number(number),
            Id::Text(text) => Id::Text(Cow::Owned(text.into_owned())),
        }
    }
}

impl std::error::Error for Malformed {}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = if self.path.is_empty() { self.field.name() } else { &self.path };
        write!(f, "{at}: {}", self.reason)
    }
}

/// Longest token. One that a service has signed and filled with claims fits.
pub const TOKEN_BYTES_MAX: usize = 4096;
/// Longest serial number, as in the stores.
pub const SERIAL_BYTES_MAX: usize = 128;
/// Longest device key.
pub const KEY_BYTES_MAX: usize = 256;
/// Longest id in JSON. A UUID fits easily.
pub const ID_BYTES_MAX: usize = 64;
/// How deep a JSON datagram may nest, counting itself: `publish` is the second level.
pub const DEPTH_MAX: usize = 8;

#[cfg(test)]
mod tests;
