//! The fields of a protobuf message: read by borrowing, written by appending.
//!
//! This code accepts and refuses exactly the bytes that prost does. The tests and the fuzz targets
//! compare the two.

use crate::WireError;

/// How deep unknown groups may nest, counted as prost counts: the message itself is the first
/// level.
///
/// Reason: skipping a group recurses, and the sender chooses the depth.
pub(crate) const DEPTH_MAX: u32 = 100;

/// Reads the fields of one message, in the order of the wire.
///
/// Cost: one pass, no copy, no allocation. Recursion is at most [`DEPTH_MAX`] deep.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
    depth: u32,
}

/// One field: its number and its value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field<'a> {
    /// From 1 to 2^29 - 1.
    pub(crate) number: u32,
    value: Value<'a>,
}

/// A value by its wire type.
#[derive(Debug, Clone, Copy)]
enum Value<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    /// No message of ours has such a field, so its value is not kept.
    Fixed32,
    /// Skipped with all its content.
    Group,
}

impl<'a> Fields<'a> {
    /// The fields of the outermost message.
    pub(crate) fn new(body: &'a [u8]) -> Self {
        Fields { rest: body, depth: DEPTH_MAX }
    }

    /// The fields of a message that lies `depth` levels inside the outermost one.
    pub(crate) fn embedded(body: &'a [u8], depth: u32) -> Self {
        Fields { rest: body, depth: DEPTH_MAX - depth }
    }

    /// What has not been read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next field; `None` at the end of the message. After an error the rest is meaningless.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<Field<'a>>, WireError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (number, wire_type) = self.key()?;
        let value = self.value(number, wire_type, self.depth)?;
        Ok(Some(Field { number, value }))
    }

    #[inline]
    fn key(&mut self) -> Result<(u32, u32), WireError> {
        let key = u32::try_from(self.varint()?)
            .map_err(|_| WireError::MessageMalformed("field key over 32 bits"))?;
        match key >> 3 {
            0 => Err(WireError::MessageMalformed("field number 0")),
            number => Ok((number, key & 0x07)),
        }
    }

    #[inline]
    fn value(&mut self, number: u32, wire_type: u32, depth: u32) -> Result<Value<'a>, WireError> {
        if depth == 0 {
            return Err(WireError::MessageMalformed("groups nested too deeply"));
        }
        match wire_type {
            VARINT => Ok(Value::Varint(self.varint()?)),
            FIXED64 => {
                let (bytes, rest) = self.rest.split_first_chunk::<8>().ok_or(TRUNCATED)?;
                self.rest = rest;
                Ok(Value::Fixed64(u64::from_le_bytes(*bytes)))
            }
            BYTES => {
                let bytes = usize::try_from(self.varint()?).map_err(|_| TRUNCATED)?;
                let (value, rest) = self.rest.split_at_checked(bytes).ok_or(TRUNCATED)?;
                self.rest = rest;
                Ok(Value::Bytes(value))
            }
            GROUP_START => self.skip_group(number, depth),
            GROUP_END => Err(WireError::MessageMalformed("end of a group that did not begin")),
            FIXED32 => {
                let (_, rest) = self.rest.split_first_chunk::<4>().ok_or(TRUNCATED)?;
                self.rest = rest;
                Ok(Value::Fixed32)
            }
            _ => Err(WireError::MessageMalformed("unknown wire type")),
        }
    }

    #[cold]
    fn skip_group(&mut self, number: u32, depth: u32) -> Result<Value<'a>, WireError> {
        loop {
            let (inner, wire_type) = self.key()?;
            if wire_type != GROUP_END {
                self.value(inner, wire_type, depth - 1)?;
            } else if inner == number {
                return Ok(Value::Group);
            } else {
                return Err(WireError::MessageMalformed("end of another group"));
            }
        }
    }

    /// Takes any encoding of at most ten bytes and 64 bits, minimal or not, as every protobuf
    /// parser does.
    #[inline]
    fn varint(&mut self) -> Result<u64, WireError> {
        let mut value = 0;
        for (index, byte) in self.rest.iter().take(VARINT_BYTES_MAX).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * index);
            if *byte < 0x80 {
                if index == VARINT_BYTES_MAX - 1 && *byte > 1 {
                    break;
                }
                self.rest = &self.rest[index + 1..];
                return Ok(value);
            }
        }
        if self.rest.len() < VARINT_BYTES_MAX {
            return Err(TRUNCATED);
        }
        Err(WireError::MessageMalformed("varint over 64 bits"))
    }
}

impl<'a> Field<'a> {
    pub(crate) fn bytes(&self) -> Result<&'a [u8], WireError> {
        if let Value::Bytes(bytes) = self.value { Ok(bytes) } else { Err(WRONG_TYPE) }
    }

    pub(crate) fn text(&self) -> Result<&'a str, WireError> {
        str::from_utf8(self.bytes()?).map_err(|_| WireError::MessageMalformed("text is not UTF-8"))
    }

    pub(crate) fn uint64(&self) -> Result<u64, WireError> {
        if let Value::Varint(value) = self.value { Ok(value) } else { Err(WRONG_TYPE) }
    }

    /// The low 32 bits, as protobuf requires.
    pub(crate) fn uint32(&self) -> Result<u32, WireError> {
        Ok((self.uint64()? & 0xffff_ffff) as u32)
    }

    pub(crate) fn fixed64(&self) -> Result<u64, WireError> {
        if let Value::Fixed64(value) = self.value { Ok(value) } else { Err(WRONG_TYPE) }
    }
}

/// Bytes that `value` takes as a varint: 1 to 10.
#[inline]
pub(crate) fn varint_bytes(value: u64) -> usize {
    // 64 bits in groups of seven; 0 takes one byte too.
    ((value | 1).ilog2() / 7 + 1) as usize
}

/// Appends `value` as a varint.
#[inline]
pub(crate) fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7f) as u8);
}

/// Bytes of a length-delimited field with a number below 16.
pub(crate) fn delimited_bytes(bytes: usize) -> usize {
    KEY_BYTES + varint_bytes(bytes as u64) + bytes
}

/// Appends the head of a length-delimited field: its key and its length.
pub(crate) fn put_delimited_head(number: u8, bytes: usize, out: &mut Vec<u8>) {
    out.push(key(number, BYTES));
    put_varint(bytes as u64, out);
}

/// Appends a length-delimited field, even an empty one.
pub(crate) fn put_delimited(number: u8, bytes: &[u8], out: &mut Vec<u8>) {
    put_delimited_head(number, bytes.len(), out);
    out.extend_from_slice(bytes);
}

/// Like [`delimited_bytes`], but nothing for an empty field.
pub(crate) fn optional_delimited_bytes(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { delimited_bytes(bytes) }
}

/// Like [`put_delimited`], but nothing for an empty field.
pub(crate) fn put_optional_delimited(number: u8, bytes: &[u8], out: &mut Vec<u8>) {
    if !bytes.is_empty() {
        put_delimited(number, bytes, out);
    }
}

/// Bytes of a varint field with a number below 16; 0 is left out.
pub(crate) fn optional_varint_bytes(value: u64) -> usize {
    if value == 0 { 0 } else { KEY_BYTES + varint_bytes(value) }
}

/// Appends a varint field; 0 is left out.
pub(crate) fn put_optional_varint(number: u8, value: u64, out: &mut Vec<u8>) {
    if value != 0 {
        out.push(key(number, VARINT));
        put_varint(value, out);
    }
}

/// Bytes of a fixed64 field with a number below 16; 0 is left out.
pub(crate) fn optional_fixed64_bytes(value: u64) -> usize {
    if value == 0 { 0 } else { KEY_BYTES + size_of::<u64>() }
}

/// Appends a fixed64 field; 0 is left out.
pub(crate) fn put_optional_fixed64(number: u8, value: u64, out: &mut Vec<u8>) {
    if value != 0 {
        out.push(key(number, FIXED64));
        out.extend_from_slice(&value.to_le_bytes());
    }
}

/// The key of a field whose number is below 16, so that it takes one byte.
pub(crate) fn key(number: u8, wire_type: u32) -> u8 {
    debug_assert!((1..16).contains(&number), "the hot messages use one-byte keys only");
    number << 3 | (wire_type & 0x07) as u8
}

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
pub(crate) const BYTES: u32 = 2;
const GROUP_START: u32 = 3;
const GROUP_END: u32 = 4;
const FIXED32: u32 = 5;

/// A key with a number below 16.
pub(crate) const KEY_BYTES: usize = 1;

/// 64 bits in groups of seven.
const VARINT_BYTES_MAX: usize = 10;

const TRUNCATED: WireError = WireError::MessageMalformed("truncated");
const WRONG_TYPE: WireError = WireError::MessageMalformed("field of another wire type");
