//! The answer to a datagram, cut to the bytes that the sender's address may be sent.
//!
//! Each answer begins with its mark (`role.rs`), so that even its beginning is recognised as an
//! answer.

use super::{Form, Id};
use crate::fields::{
    put_delimited, put_delimited_head, put_optional_delimited, put_optional_varint, varint_bytes,
};
use crate::json::{put_decimal, put_serialized, put_string};
use crate::{ProstMessage, v1};

/// An answer to a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Answer<'a> {
    /// The answer to a call.
    Call {
        /// The token of the call.
        token: &'a str,
        /// The count of the call.
        count: u64,
    },
    /// The answer to an activation.
    Activated {
        /// The device's new token.
        token: &'a str,
        /// The end of the token, in milliseconds since 1970.
        expires_at_ms: u64,
        /// Gateways to connect to.
        gateways: &'a [String],
    },
    /// The answer to a publish.
    Published(&'a v1::Published),
    /// The request could not be carried out.
    Refused(Refused<'a>),
}

/// Why a request could not be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused<'a> {
    /// The code, a word for programs.
    pub code: &'a str,
    /// The field at fault, or empty.
    pub field: &'a str,
    /// A sentence for people.
    pub message: &'a str,
    /// Other than 0: a request after this time may succeed.
    pub retry_after_ms: u32,
}

impl Answer<'_> {
    /// Appends the answer within the allowed bytes. `false`: it does not fit, and nothing is
    /// appended.
    ///
    /// If necessary it leaves out gateways, then the end of a token; sentences, then fields.
    /// Cost: the answer to a call is written once, with no allocation except that of `out`.
    #[must_use]
    pub fn encode(&self, form: Form, id: &Id<'_>, bytes_max: usize, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        for cut in [Cut::Nothing, Cut::Some, Cut::All] {
            match form {
                Form::Json => self.put_json(id, cut, out),
                Form::Protobuf => self.put_protobuf(id, cut, out),
            }
            if out.len() - start <= bytes_max {
                return true;
            }
            out.truncate(start);
        }
        false
    }

    fn put_json(&self, id: &Id<'_>, cut: Cut, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"answer\":true,");
        match *self {
            Answer::Call { token, count } => {
                out.extend_from_slice(b"\"pt\":");
                put_string(token, out);
                out.extend_from_slice(b",\"count\":");
                put_decimal(count, out);
            }
            Answer::Activated { token, expires_at_ms, gateways } => {
                out.extend_from_slice(b"\"pt\":");
                put_string(token, out);
                if cut != Cut::All {
                    out.extend_from_slice(b",\"expiresAt\":");
                    put_decimal(expires_at_ms, out);
                }
                if cut == Cut::Nothing {
                    out.extend_from_slice(b",\"gateways\":[");
                    for (index, gateway) in gateways.iter().enumerate() {
                        if index > 0 {
                            out.push(b',');
                        }
                        put_string(gateway, out);
                    }
                    out.push(b']');
                }
            }
            Answer::Published(published) => {
                out.extend_from_slice(b"\"published\":");
                put_serialized(published, out);
            }
            Answer::Refused(refused) => {
                out.extend_from_slice(b"\"error\":");
                put_string(refused.code, out);
                if cut != Cut::All && !refused.field.is_empty() {
                    out.extend_from_slice(b",\"field\":");
                    put_string(refused.field, out);
                }
                if cut == Cut::Nothing && !refused.message.is_empty() {
                    out.extend_from_slice(b",\"message\":");
                    put_string(refused.message, out);
                }
                if refused.retry_after_ms > 0 {
                    out.extend_from_slice(b",\"retryAfterMs\":");
                    put_decimal(u64::from(refused.retry_after_ms), out);
                }
            }
        }
        match id {
            Id::None => {}
            Id::Number(number) => {
                out.extend_from_slice(b",\"id\":");
                put_decimal(*number, out);
            }
            Id::Text(text) => {
                out.extend_from_slice(b",\"id\":");
                put_string(text, out);
            }
        }
        out.push(b'}');
    }

    /// A `DatagramAnswer`.
    fn put_protobuf(&self, id: &Id<'_>, cut: Cut, out: &mut Vec<u8>) {
        put_optional_varint(8, 1, out);
        // Only numbers come in this form.
        if let Id::Number(number) = id {
            put_optional_varint(1, *number, out);
        }
        match *self {
            Answer::Call { token, count } => {
                put_delimited(2, token.as_bytes(), out);
                out.push(COUNT_KEY);
                crate::fields::put_varint(count, out);
            }
            Answer::Activated { token, expires_at_ms, gateways } => {
                put_delimited(2, token.as_bytes(), out);
                if cut != Cut::All {
                    put_optional_varint(4, expires_at_ms, out);
                }
                if cut == Cut::Nothing {
                    gateways.iter().for_each(|gateway| put_delimited(5, gateway.as_bytes(), out));
                }
            }
            Answer::Published(published) => {
                put_delimited_head(6, published.encoded_len(), out);
                published.encode_raw(out);
            }
            Answer::Refused(refused) => {
                let field = if cut == Cut::All { "" } else { refused.field };
                let message = if cut == Cut::Nothing { refused.message } else { "" };
                let retry = u64::from(refused.retry_after_ms);
                let bytes = crate::fields::optional_delimited_bytes(refused.code.len())
                    + crate::fields::optional_delimited_bytes(field.len())
                    + crate::fields::optional_delimited_bytes(message.len())
                    + if retry == 0 { 0 } else { 1 + varint_bytes(retry) };
                put_delimited_head(7, bytes, out);
                put_optional_delimited(1, refused.code.as_bytes(), out);
                put_optional_delimited(2, field.as_bytes(), out);
                put_optional_delimited(3, message.as_bytes(), out);
                put_optional_varint(4, retry, out);
            }
        }
    }
}

/// The parts that are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    Nothing,
    Some,
    All,
}

/// Field 3 as a varint. It is written even if it is 0, because its presence says that this answers
/// a call.
const COUNT_KEY: u8 = 3 << 3;
