//! The layout of one record: header, limits, nonce, and the sealing and opening of its content.

use std::iter;
use std::ops::Range;

use super::alert::{Alert, Violation};
use super::keys::IV_BYTES;
use super::protocol::{Cipher, Version};
use crate::sys::aead::{Aead, NONCE_BYTES, TAG_BYTES};

/// The most plaintext in one record (RFC 8446 section 5.1).
pub const PLAINTEXT_BYTES_MAX: usize = 1 << 14;

/// Bytes of the longest record that we open, with its header: 256 more than its plaintext (RFC 8446
/// section 5.2). That is also enough for the bytes that the ciphers of TLS 1.2 add.
pub const RECORD_BYTES_MAX: usize = HEADER_BYTES + PLAINTEXT_BYTES_MAX + 256;

/// The most plaintext in a record that we seal. In tests and in the simulator `seals` may set less.
#[cfg(not(any(test, feature = "sim")))]
pub(crate) const fn plaintext_bytes_max() -> usize {
    PLAINTEXT_BYTES_MAX
}

/// Bytes of a header: type, version, length.
pub(super) const HEADER_BYTES: usize = 5;

/// The kind of content in a record of an established connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ContentType {
    Alert = 21,
    Handshake = 22,
    ApplicationData = 23,
}

/// The content of a new record: the first `bytes` of `parts`.
pub(super) struct Content<I> {
    pub(super) kind: ContentType,
    pub(super) parts: I,
    pub(super) bytes: usize,
}

/// The record format of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) version: Version,
    pub(super) cipher: Cipher,
}

/// Bytes that the tag covers besides the text.
pub(super) struct Additional {
    bytes: [u8; 13],
    used: usize,
}

impl ContentType {
    fn from_u8(byte: u8) -> Result<ContentType, Violation> {
        match byte {
            21 => Ok(ContentType::Alert),
            22 => Ok(ContentType::Handshake),
            23 => Ok(ContentType::ApplicationData),
            20 => Err(Violation::unexpected("change_cipher_spec after the handshake")),
            _ => Err(Violation::unexpected("a record of unknown type")),
        }
    }
}

impl<'a> Content<iter::Once<&'a [u8]>> {
    /// Content that is one whole piece.
    pub(super) fn whole(kind: ContentType, content: &'a [u8]) -> Self {
        Content { kind, parts: iter::once(content), bytes: content.len() }
    }
}

impl Form {
    /// The bytes of the record that begins with `head`, with its header; `None` if `head` is
    /// shorter than a header.
    pub(super) fn record_bytes(self, head: &[u8]) -> Result<Option<usize>, Violation> {
        // The code ignores the version (RFC 8446 section 5.1), but the tag covers it.
        let Some(&[kind, _, _, high, low]) = head.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let kind = ContentType::from_u8(kind)?;
        if self.version == Version::Tls13 && kind != ContentType::ApplicationData {
            return Err(Violation::unexpected("plaintext after the handshake"));
        }
        let bytes = usize::from(u16::from_be_bytes([high, low]));
        if bytes > self.body_bytes_max() {
            return Err(Violation::new(Alert::RecordOverflow, "a record that is too long"));
        }
        if bytes < self.explicit_bytes() + TAG_BYTES {
            let cause = "a record that is too short for its tag";
            return Err(Violation::new(Alert::BadRecordMac, cause));
        }
        Ok(Some(HEADER_BYTES + bytes))
    }

    /// Opens a whole record in place. Returns its kind and the range of its content.
    pub(super) fn open(
        self,
        aead: &Aead,
        iv: &[u8; IV_BYTES],
        sequence: u64,
        record: &mut [u8],
    ) -> Result<(ContentType, Range<usize>), Violation> {
        let start = HEADER_BYTES + self.explicit_bytes();
        let (head, body) = record.split_at_mut(start);
        let (text, tag) = body.split_last_chunk_mut().expect("no record is shorter: record_bytes");
        let mut nonce = nonce(iv, sequence);
        if let Some(explicit) = head.get(HEADER_BYTES..).filter(|bytes| !bytes.is_empty()) {
            nonce[NONCE_BYTES - EXPLICIT_BYTES..].copy_from_slice(explicit);
        }
        let header = head.first_chunk().expect("a record has a header");
        let additional = self.additional(header, sequence, text.len());
        if !aead.open(&nonce, additional.as_slice(), text, tag) {
            return Err(Violation::new(Alert::BadRecordMac, "a record that does not open"));
        }
        let (kind, bytes) = match self.version {
            Version::Tls13 => inner(text)?,
            Version::Tls12 => (ContentType::from_u8(header[0])?, text.len()),
        };
        if bytes > PLAINTEXT_BYTES_MAX {
            return Err(Violation::new(Alert::RecordOverflow, "a record with too much plaintext"));
        }
        if bytes == 0 && kind != ContentType::ApplicationData {
            return Err(Violation::unexpected("an empty record of handshake or alert"));
        }
        Ok((kind, start..start + bytes))
    }

    /// Appends a record with this content.
    pub(super) fn seal<'a>(
        self,
        aead: &Aead,
        nonce: &[u8; NONCE_BYTES],
        sequence: u64,
        content: Content<impl Iterator<Item = &'a [u8]>>,
        out: &mut Vec<u8>,
    ) {
        let Content { kind, parts, bytes } = content;
        let (outer, inner_bytes) = match self.version {
            Version::Tls13 => (ContentType::ApplicationData, bytes + 1),
            Version::Tls12 => (kind, bytes),
        };
        let body = self.explicit_bytes() + inner_bytes + TAG_BYTES;
        let [high, low] = u16::try_from(body).expect("a record's length").to_be_bytes();
        let header = [outer as u8, 3, 3, high, low];
        out.reserve(HEADER_BYTES + body);
        out.extend_from_slice(&header);
        out.extend_from_slice(&nonce[NONCE_BYTES - self.explicit_bytes()..]);
        let start = out.len();
        let mut left = bytes;
        for part in parts {
            let part = &part[..part.len().min(left)];
            out.extend_from_slice(part);
            left -= part.len();
        }
        if self.version == Version::Tls13 {
            out.push(kind as u8);
        }
        out.extend_from_slice(&[0; TAG_BYTES]);
        let (text, tag) = out[start..].split_last_chunk_mut().expect("the tag's room is there");
        assert_eq!(text.len(), inner_bytes, "as many bytes as the header says");
        let additional = self.additional(&header, sequence, bytes);
        aead.seal(nonce, additional.as_slice(), text, tag);
    }

    /// Bytes of the nonce in front of the text.
    pub(super) fn explicit_bytes(self) -> usize {
        match self.version {
            Version::Tls12 if self.cipher.is_gcm() => EXPLICIT_BYTES,
            Version::Tls12 | Version::Tls13 => 0,
        }
    }

    /// The largest length in a header. TLS 1.2 permits more, but only for plaintext beyond its
    /// limit.
    fn body_bytes_max(self) -> usize {
        match self.version {
            Version::Tls13 => RECORD_BYTES_MAX - HEADER_BYTES,
            Version::Tls12 => self.explicit_bytes() + PLAINTEXT_BYTES_MAX + TAG_BYTES,
        }
    }

    pub(super) fn additional(
        self,
        header: &[u8; HEADER_BYTES],
        sequence: u64,
        plain: usize,
    ) -> Additional {
        let mut bytes = [0; 13];
        let used = match self.version {
            Version::Tls13 => {
                bytes[..HEADER_BYTES].copy_from_slice(header);
                HEADER_BYTES
            }
            Version::Tls12 => {
                let plain = u16::try_from(plain).expect("a record's length").to_be_bytes();
                bytes[..8].copy_from_slice(&sequence.to_be_bytes());
                bytes[8..11].copy_from_slice(&header[..3]);
                bytes[11..].copy_from_slice(&plain);
                bytes.len()
            }
        };
        Additional { bytes, used }
    }
}

impl Additional {
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.used]
    }
}

/// The IV with the sequence number XORed into its end (RFC 8446 section 5.3, RFC 7905). With GCM of
/// TLS 1.2 the end is the explicit nonce; rustls begins its series in the same way.
pub(super) fn nonce(iv: &[u8; IV_BYTES], sequence: u64) -> [u8; NONCE_BYTES] {
    let mut nonce = *iv;
    for (byte, sequence) in
        nonce[NONCE_BYTES - EXPLICIT_BYTES..].iter_mut().zip(sequence.to_be_bytes())
    {
        *byte ^= sequence;
    }
    nonce
}

/// Type and length of the content of a TLS 1.3 record, without its padding (RFC 8446 section 5.4).
fn inner(text: &[u8]) -> Result<(ContentType, usize), Violation> {
    if text.len() > PLAINTEXT_BYTES_MAX + 1 {
        let cause = "a record with too much plaintext and padding";
        return Err(Violation::new(Alert::RecordOverflow, cause));
    }
    let last = text.iter().rposition(|byte| *byte != 0);
    let at = last.ok_or(Violation::unexpected("a record of padding alone"))?;
    Ok((ContentType::from_u8(text[at])?, at))
}

/// Bytes of a nonce that a sequence number fills.
const EXPLICIT_BYTES: usize = size_of::<u64>();
