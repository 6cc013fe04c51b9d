//! Tells requests from answers.
//!
//! Each answer begins with a mark that no request may have: `"answer":true`, or field 8. Answers of
//! earlier versions have no mark, so the other fields that only answers have count too. A datagram
//! that is neither is a reply of another service.

use super::Form;
use crate::fields::Fields;

/// The kind of a datagram, by its outermost fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// It has a field that only answers have.
    Answer,
    /// It has no such field, and has a field of a request.
    Request,
    /// It has no field of either.
    Neither,
}

impl Role {
    /// Looks at the outermost fields, up to the end or to the first unreadable byte.
    ///
    /// Cost: one pass; nothing is allocated.
    pub(super) fn of(datagram: &[u8]) -> Role {
        match Form::of(datagram) {
            Form::Json => Role::among(Names { rest: datagram, level: 0 }.map(of_member)),
            Form::Protobuf => {
                let mut fields = Fields::new(datagram);
                Role::among(std::iter::from_fn(|| {
                    let field = fields.next().ok()??;
                    Some(of_field(field.number, field.bytes().is_ok(), field.uint64().is_ok()))
                }))
            }
        }
    }

    fn among(mut fields: impl Iterator<Item = Role>) -> Role {
        let mut role = Role::Neither;
        loop {
            match fields.next() {
                Some(Role::Answer) => return Role::Answer,
                Some(Role::Request) => role = Role::Request,
                Some(Role::Neither) => {}
                None => return role,
            }
        }
    }
}

/// The role that a member of a JSON object shows. Both kinds have an `id`, as have messages of
/// other protocols.
fn of_member(name: &[u8]) -> Role {
    match name {
        b"answer" | b"error" | b"published" | b"expiresAt" | b"gateways" => Role::Answer,
        b"pt" | b"count" | b"devSn" | b"devKey" | b"publish" => Role::Request,
        _ => Role::Neither,
    }
}

/// The role that a field of `DatagramRequest` or `DatagramAnswer` shows. The two share the numbers
/// up to 5.
fn of_field(number: u32, is_bytes: bool, is_varint: bool) -> Role {
    match (number, is_bytes, is_varint) {
        (4, _, true) | (6 | 7, true, _) | (8, _, true) => Role::Answer,
        (2 | 4 | 5, true, _) | (3, _, true) => Role::Request,
        _ => Role::Neither,
    }
}

/// The names of the outermost members of a JSON object, with their escapes. A broken or cut object
/// ends the names early.
struct Names<'a> {
    rest: &'a [u8],
    level: usize,
}

impl<'a> Iterator for Names<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            match byte {
                b'{' | b'[' => self.level += 1,
                b'}' | b']' => self.level = self.level.saturating_sub(1),
                b'"' => {
                    let string = self.string()?;
                    if self.level == 1 && self.rest.trim_ascii_start().starts_with(b":") {
                        return Some(string);
                    }
                }
                _ => {}
            }
        }
    }
}

impl<'a> Names<'a> {
    /// The rest of a string, after its opening quotation mark.
    fn string(&mut self) -> Option<&'a [u8]> {
        let mut is_escaped = false;
        let end = self.rest.iter().position(|byte| {
            let is_end = *byte == b'"' && !is_escaped;
            is_escaped = *byte == b'\\' && !is_escaped;
            is_end
        })?;
        let (string, rest) = self.rest.split_at(end);
        self.rest = &rest[1..];
        Some(string)
    }
}
