//! The PROXY header, versions 1 and 2: the real source of a connection that a proxy passes on.
//!
//! It comes before everything else, and a configured proxy always sends it. Source: the PROXY
//! protocol specification of HAProxy, sections 2.1 and 2.2.

use std::net::IpAddr;

use proxy_header::{ParseConfig, Protocol, ProxyHeader};

/// The bytes are no PROXY header, or the header is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoHeader;

/// The content of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Announced {
    /// The source of the connection; `None` if it comes from the proxy itself, or the proxy does
    /// not know.
    pub(crate) source: Option<IpAddr>,
    /// Length of the header.
    pub(crate) bytes: usize,
}

/// Reads the header at the start of `bytes`; `None` if more bytes are needed.
///
/// Limits: version 1 ends within [`V1_BYTES_MAX`]; version 2 announces at most
/// [`V2_REST_BYTES_MAX`]. The parser gets only whole headers: on longer input it would take too
/// many bytes, or wait for bytes that never come.
pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Announced>, NoHeader> {
    if begins(bytes, V1_START) {
        return decode_v1(bytes);
    }
    if begins(bytes, V2_START) {
        return decode_v2(bytes);
    }
    Err(NoHeader)
}

/// Whether `bytes` begin with a whole signature of either version. No `Hello` begins so: read as a
/// frame, the signature announces a field that is longer than the frame.
pub(crate) fn is_signed(bytes: &[u8]) -> bool {
    bytes.starts_with(V1_START) || bytes.starts_with(V2_START)
}

fn decode_v1(bytes: &[u8]) -> Result<Option<Announced>, NoHeader> {
    let line = &bytes[..bytes.len().min(V1_BYTES_MAX)];
    match line.windows(2).position(|pair| pair == b"\r\n") {
        Some(end) => announced(&line[..end + 2]).map(Some),
        None if bytes.len() < V1_BYTES_MAX => Ok(None),
        None => Err(NoHeader),
    }
}

fn decode_v2(bytes: &[u8]) -> Result<Option<Announced>, NoHeader> {
    let Some((fixed, _)) = bytes.split_first_chunk::<V2_FIXED_BYTES>() else { return Ok(None) };
    let rest = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    if rest > V2_REST_BYTES_MAX {
        return Err(NoHeader);
    }
    match (fixed[12], bytes.get(..V2_FIXED_BYTES + rest)) {
        (V2_LOCAL | V2_PROXY, None) => Ok(None),
        // The rest of such a header must be ignored.
        (V2_LOCAL, Some(header)) => Ok(Some(Announced { source: None, bytes: header.len() })),
        (V2_PROXY, Some(header)) => announced(header).map(Some),
        _ => Err(NoHeader),
    }
}

/// Reads a whole header.
fn announced(header: &[u8]) -> Result<Announced, NoHeader> {
    let config = ParseConfig { include_tlvs: false, ..ParseConfig::default() };
    let (parsed, bytes) = ProxyHeader::parse(header, config).map_err(|_| NoHeader)?;
    if bytes != header.len() {
        return Err(NoHeader);
    }
    match parsed.proxied_address() {
        Some(address) if address.protocol == Protocol::Stream => {
            Ok(Announced { source: Some(address.source.ip()), bytes })
        }
        // A stream cannot carry datagrams.
        Some(_) => Err(NoHeader),
        None => Ok(Announced { source: None, bytes }),
    }
}

/// Whether `bytes` and `start` agree as far as both go.
fn begins(bytes: &[u8], start: &[u8]) -> bool {
    bytes.iter().zip(start).all(|(byte, expected)| byte == expected)
}

const V1_START: &[u8] = b"PROXY ";
/// The longest line of version 1, including its end.
const V1_BYTES_MAX: usize = 107;
const V2_START: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// The bytes up to and including the length of the rest.
const V2_FIXED_BYTES: usize = 16;
/// Addresses and extensions, such as a certificate's name. 64 KiB would be possible, but no proxy
/// sends so much.
const V2_REST_BYTES_MAX: usize = 4096;
const V2_LOCAL: u8 = 0x20;
const V2_PROXY: u8 = 0x21;

#[cfg(test)]
mod tests;
