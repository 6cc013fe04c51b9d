//! A fast decoder for calls, which are nearly all datagrams: one pass, no allocation.
//!
//! It leaves everything that it does not know to the libraries, so it never refuses a datagram.

use std::borrow::Cow;

use super::{Datagram, Form, ID_BYTES_MAX, Id, Request, TOKEN_BYTES_MAX};
use crate::fields::Fields;

/// The call in the datagram; `None`: it is something else, or is written in a rare form.
pub(super) fn decode(datagram: &[u8]) -> Option<Datagram<'_>> {
    let (token, count, id) = match datagram.first()? {
        b'{' => json(&datagram[1..])?,
        _ => protobuf(datagram)?,
    };
    if token.is_empty() || token.len() > TOKEN_BYTES_MAX {
        return None;
    }
    let request = Request::Call { token: Cow::Borrowed(token), count };
    Some(Datagram { form: Form::of(datagram), id, request })
}

type Call<'a> = (&'a str, u64, Id<'a>);

/// Members in any order, each once; strings of plain ASCII.
fn json(members: &[u8]) -> Option<Call<'_>> {
    let (mut token, mut count, mut id) = (None, None, Id::None);
    let mut rest = Text(members);
    loop {
        let name = rest.skip_space().string()?;
        rest.skip_space().take(b':')?;
        rest.skip_space();
        match name {
            "pt" if token.is_none() => token = Some(rest.string()?),
            "count" if count.is_none() => count = Some(rest.number()?),
            "id" if id == Id::None => id = rest.id()?,
            _ => return None,
        }
        match rest.skip_space().next()? {
            b',' => {}
            b'}' => break,
            _ => return None,
        }
    }
    rest.skip_space();
    if rest.0.is_empty() { Some((token?, count?, id)) } else { None }
}

fn protobuf(datagram: &[u8]) -> Option<Call<'_>> {
    let (mut token, mut count, mut id) = ("", None, Id::None);
    let mut fields = Fields::new(datagram);
    while let Some(field) = fields.next().ok()? {
        match field.number {
            1 => {
                id = match field.uint64().ok()? {
                    0 => Id::None,
                    number => Id::Number(number),
                }
            }
            2 => token = field.text().ok()?,
            3 => count = Some(field.uint64().ok()?),
            _ => return None,
        }
    }
    Some((token, count?, id))
}

/// The rest of a text.
struct Text<'a>(&'a [u8]);

impl<'a> Text<'a> {
    fn skip_space(&mut self) -> &mut Self {
        while let [b' ' | b'\t' | b'\n' | b'\r', rest @ ..] = self.0 {
            self.0 = rest;
        }
        self
    }

    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    /// A string without escapes and with ASCII characters only.
    fn string(&mut self) -> Option<&'a str> {
        self.take(b'"')?;
        let is_plain = |byte: &u8| (b' '..=b'~').contains(byte) && *byte != b'"' && *byte != b'\\';
        let end = self.0.iter().position(|byte| !is_plain(byte))?;
        let (string, rest) = self.0.split_at(end);
        self.0 = rest;
        self.take(b'"')?;
        str::from_utf8(string).ok()
    }

    /// A whole number of 64 bits.
    fn number(&mut self) -> Option<u64> {
        let end = self.0.iter().position(|byte| !byte.is_ascii_digit())?;
        let (digits, rest) = self.0.split_at(end);
        if digits.is_empty() || (digits[0] == b'0' && digits.len() > 1) {
            return None;
        }
        // A fraction or an exponent: no whole number.
        if matches!(rest.first()?, b'.' | b'e' | b'E') {
            return None;
        }
        self.0 = rest;
        digits.iter().try_fold(0_u64, |number, digit| {
            number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
        })
    }

    fn id(&mut self) -> Option<Id<'a>> {
        if self.0.first()? != &b'"' {
            return Some(Id::Number(self.number()?));
        }
        let text = self.string()?;
        let fits = !text.is_empty() && text.len() <= ID_BYTES_MAX;
        fits.then_some(Id::Text(Cow::Borrowed(text)))
    }
}
