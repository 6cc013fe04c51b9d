//! Datagrams: a request in one, its answer in another, as JSON or as one message of protocol buffers.
//!
//! A call is read and answered without an allocation; everything else is read by the libraries.

mod answer;
mod call;
mod library;
mod role;

use std::borrow::Cow;
use std::fmt;

pub use answer::{Answer, Refused};

use crate::v1;
use role::Role;

/// A request that one datagram holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Datagram<'a> {
    /// How it is written, and so its answer.
    pub form: Form,
    /// What tells it from others; repeated in the answer.
    pub id: Id<'a>,
    /// What is asked for.
    pub request: Request<'a>,
}

/// What a datagram asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Request<'a> {
    /// A sign of life of an activated device: answered with the same two fields.
    Call {
        /// Its token.
        token: Cow<'a, str>,
        /// Any number.
        count: u64,
    },
    /// A device asks for its token.
    Activate {
        /// Its serial: 1 to [`SERIAL_BYTES_MAX`] bytes without control characters.
        serial: String,
        /// Its key: 1 to [`KEY_BYTES_MAX`] bytes.
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

/// How a datagram is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// One object; it begins with `{`.
    Json,
    /// One `DatagramRequest` or `DatagramAnswer`.
    Protobuf,
}

/// What a sender calls its request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Id<'a> {
    /// Nothing.
    #[default]
    None,
    /// A number.
    Number(u64),
    /// Text of at most [`ID_BYTES_MAX`] bytes; in JSON only.
    Text(Cow<'a, str>),
}

/// Why a datagram is no request.
///
/// Only what is malformed is answered. So no answer is answered, whichever gateway sent it, and neither is the reply of
/// some other service: two programs that answer datagrams never keep each other busy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoRequest {
    /// It has a field that only answers have.
    Answer,
    /// It has no field of a request.
    Foreign,
    /// It has fields of a request, and something is wrong with it.
    Malformed(Malformed),
}

/// A request that cannot be understood: always the sender's fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// How it seems to be written.
    pub form: Form,
    /// The request's id, if it could be read.
    pub id: Id<'static>,
    /// The field at fault.
    pub field: Field,
    /// Where in the field, such as `publish.topic`; the field's name, or nothing, if there is no more to say.
    pub path: String,
    /// What is wrong, in at most some 200 bytes.
    pub reason: String,
}

crate::named_enum! {
    /// What can be wrong of a datagram.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Field {
        /// The datagram itself: its length, its form, or what it asks for.
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
/// Fields that are not known are passed over, but for those that only answers have.
/// Limits: the caller bounds the datagram's length; what is in it is bounded by the constants beside.
/// Errors: [`NoRequest`]; where it is malformed, the field is named.
/// Cost: a call without escapes is read in one pass and without an allocation; anything else takes a second pass, a
/// library and some allocations.
pub fn decode(datagram: &[u8]) -> Result<Datagram<'_>, NoRequest> {
    if let Some(call) = call::decode(datagram) {
        return Ok(call);
    }
    decode_by_library(datagram)
}

/// The same without the short way for calls: what that is compared with.
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

/// What a datagram is that is longer than the `limit`, by its beginning.
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
    /// That of a datagram that begins so.
    pub fn of(datagram: &[u8]) -> Form {
        if datagram.first() == Some(&b'{') { Form::Json } else { Form::Protobuf }
    }
}

impl Id<'_> {
    /// The same, whose bytes are its own.
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

/// Longest token: one that a service has signed and filled with claims.
pub const TOKEN_BYTES_MAX: usize = 4096;
/// Longest serial, as the stores take it.
pub const SERIAL_BYTES_MAX: usize = 128;
/// Longest key: longer ones are no keys.
pub const KEY_BYTES_MAX: usize = 256;
/// Longest id in JSON: a UUID and then some.
pub const ID_BYTES_MAX: usize = 64;
/// How deep a JSON datagram may nest, itself counted: `publish` is the second level.
pub const DEPTH_MAX: usize = 8;

#[cfg(test)]
mod tests;
