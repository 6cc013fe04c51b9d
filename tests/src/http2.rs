//! A client of HTTP/2 that can say what no library would.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Result, bail, ensure};

use crate::wait::PATIENCE;

/// A connection of a client, whose frames are written by hand.
pub struct Http2 {
    /// The socket.
    pub stream: TcpStream,
    heard: Vec<u8>,
}

/// The kinds of frames (RFC 9113 section 6).
pub const DATA: u8 = 0;
/// See [`DATA`].
pub const HEADERS: u8 = 1;
/// See [`DATA`].
pub const RST_STREAM: u8 = 3;
/// See [`DATA`].
pub const SETTINGS: u8 = 4;
/// See [`DATA`].
pub const PING: u8 = 6;
/// See [`DATA`].
pub const GOAWAY: u8 = 7;
/// See [`DATA`].
pub const WINDOW_UPDATE: u8 = 8;
/// See [`DATA`].
pub const CONTINUATION: u8 = 9;
/// A flag of [`DATA`] and [`HEADERS`].
pub const END_STREAM: u8 = 1;
/// A flag of [`HEADERS`] and [`CONTINUATION`].
pub const END_HEADERS: u8 = 4;
/// A flag of [`SETTINGS`] and [`PING`].
const ACK: u8 = 1;
/// `:method GET`, `:scheme http`, `:path /`, and `:authority a` without an index.
pub const GET: &[u8] = &[0x82, 0x86, 0x84, 0x01, 1, b'a'];
/// `:method POST`, `:scheme http`, without path and host.
pub const POST: &[u8] = &[0x83, 0x86];
/// `:authority localhost`, without an index.
const HOST: &[u8] = b"\x01\x09localhost";
/// Has no stream send anything, until its window is opened.
pub const CLOSED_WINDOW: &[u8] = &[0, 4, 0, 0, 0, 0];

/// A frame that was heard: kind, flags, stream and payload.
pub type Flagged = (u8, u8, u32, Vec<u8>);

/// A frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [head.as_slice(), payload].concat()
}

/// A field of a header list, written out: it depends on no table and enters none. At most 126 bytes each.
pub fn field(name: &str, value: &str) -> Vec<u8> {
    let length = |text: &str| u8::try_from(text.len()).unwrap_or(0);
    [&[0, length(name)], name.as_bytes(), &[length(value)], value.as_bytes()].concat()
}

/// The status that the header list of an answer begins with, if it is the first one on its connection.
pub fn status(head: &[u8]) -> Option<u16> {
    const INDEXED: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
    match *head {
        [index @ 0x88..=0x8e, ..] => INDEXED.get(usize::from(index - 0x88)).copied(),
        // `:status` by its index, then a value: in digits, or in Huffman's code.
        [0x08 | 0x18 | 0x48, 3, ref digits @ ..] => {
            std::str::from_utf8(digits.get(..3)?).ok()?.parse().ok()
        }
        [0x08 | 0x18 | 0x48, length, ref code @ ..] if length & 0x80 != 0 => {
            let bits: String = code.iter().take(3).map(|byte| format!("{byte:08b}")).collect();
            let mut rest = bits.as_str();
            let mut status = 0;
            for _ in 0..3 {
                let short = rest.starts_with("000");
                let (digit, left) = rest.split_at_checked(if short { 5 } else { 6 })?;
                let code = u16::from_str_radix(digit, 2).ok()?;
                // 0 to 2 are 00000 to 00010, 3 to 9 are 011001 to 011111.
                status = status * 10 + if short { code } else { code.checked_sub(0b01_0110)? };
                rest = left;
            }
            Some(status)
        }
        _ => None,
    }
}

impl Http2 {
    /// Connects, and says the preface with these settings.
    pub fn connect(addr: SocketAddr, settings: &[u8]) -> Result<Http2> {
        let mut stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")?;
        stream.write_all(&frame(SETTINGS, 0, 0, settings))?;
        Ok(Http2 { stream, heard: Vec::new() })
    }

    /// Asks for a path, on this stream.
    pub fn get(&mut self, stream: u32, path: &str) -> Result<()> {
        // A path that is not in the tables, neither before nor after.
        let length = u8::try_from(path.len())?;
        ensure!(length < 127, "a longer path has a longer length");
        let head = [&[0x82, 0x86, 0x04, length], path.as_bytes(), HOST].concat();
        Ok(self.stream.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &head))?)
    }

    /// Posts a body, on this stream.
    pub fn post(&mut self, stream: u32, path: &str, body: &[u8]) -> Result<()> {
        let length = u8::try_from(path.len())?;
        ensure!(length < 127, "a longer path has a longer length");
        let head = [&[0x83, 0x86, 0x04, length], path.as_bytes(), HOST].concat();
        self.stream.write_all(&frame(HEADERS, END_HEADERS, stream, &head))?;
        Ok(self.stream.write_all(&frame(DATA, END_STREAM, stream, body))?)
    }

    /// The body of the answer on a stream; its end may be a reset that asks for no more.
    pub fn body(&mut self, stream: u32) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            match self.hear_with_flags()? {
                Some((DATA, flags, on, data)) if on == stream => {
                    body.extend(data);
                    if flags & END_STREAM != 0 {
                        return Ok(body);
                    }
                }
                Some((RST_STREAM, _, on, _)) if on == stream => return Ok(body),
                Some(_) => {}
                None => bail!("it ends before the answer"),
            }
        }
    }

    /// Asks for server-sent events, and goes on when the head of the answer is there.
    pub fn get_events(&mut self, stream: u32, path: &str) -> Result<()> {
        self.get(stream, path)?;
        loop {
            match self.hear()? {
                // `:status 200`.
                Some((HEADERS, on, head)) if on == stream && head.first() == Some(&0x88) => {
                    return Ok(());
                }
                Some((SETTINGS | PING | WINDOW_UPDATE, ..)) => {}
                Some((DATA, on, _)) if on != stream => {}
                other => bail!("no answer of 200 on stream {stream}, but {other:?}"),
            }
        }
    }

    /// The next frame: kind, stream and payload; `None` at the end. What is asked for by it is answered: a ping, and
    /// settings.
    pub fn hear(&mut self) -> Result<Option<(u8, u32, Vec<u8>)>> {
        let heard = self.hear_with_flags()?;
        Ok(heard.map(|(kind, _, stream, payload)| (kind, stream, payload)))
    }

    /// The same with the flags of the frame.
    pub fn hear_with_flags(&mut self) -> Result<Option<Flagged>> {
        loop {
            if let [high, middle, low, kind, flags, id @ ..] = &self.heard[..]
                && let Some((id, payload)) = id.split_first_chunk::<4>()
            {
                let length =
                    usize::from(*high) << 16 | usize::from(*middle) << 8 | usize::from(*low);
                if payload.len() >= length {
                    let (kind, flags) = (*kind, *flags);
                    let heard = (kind, flags, u32::from_be_bytes(*id), payload[..length].to_vec());
                    self.heard.drain(..9 + length);
                    if matches!(kind, PING | SETTINGS) && flags & ACK == 0 {
                        let payload = if kind == PING { &heard.3[..] } else { &[] };
                        // Whoever has ended needs no answer.
                        let _ = self.stream.write_all(&frame(kind, ACK, 0, payload));
                    }
                    return Ok(Some(heard));
                }
            }
            let mut bytes = [0; 16 * 1024];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Ok(None),
                Ok(count) => self.heard.extend(&bytes[..count]),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    bail!("it does not end")
                }
                Err(_) => return Ok(None),
            }
        }
    }

    /// Reads to the end; answers with the code of the last GOAWAY.
    pub fn end(mut self) -> Result<Option<u32>> {
        let mut code = None;
        while let Some((kind, _, payload)) = self.hear()? {
            if kind == GOAWAY {
                code =
                    payload.get(4..8).and_then(|code| code.try_into().ok()).map(u32::from_be_bytes);
            }
        }
        Ok(code)
    }
}

/// The body of one answer: what comes on its stream, whose window is opened as it is read.
pub struct Streamed {
    conn: Http2,
    stream: u32,
    heard: Vec<u8>,
}

impl Streamed {
    /// Connects and asks for server-sent events.
    pub fn get(addr: SocketAddr, path: &str) -> Result<Streamed> {
        let mut conn = Http2::connect(addr, &[])?;
        conn.get_events(1, path)?;
        Ok(Streamed { conn, stream: 1, heard: Vec::new() })
    }

    /// The connection.
    pub fn conn(&mut self) -> &mut Http2 {
        &mut self.conn
    }
}

impl Read for Streamed {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.heard.is_empty() {
            match self.conn.hear().map_err(io::Error::other)? {
                Some((DATA, stream, data)) if stream == self.stream => {
                    if data.is_empty() {
                        return Ok(0);
                    }
                    let read = u32::try_from(data.len()).map_err(io::Error::other)?.to_be_bytes();
                    for opened in [0, stream] {
                        // Whoever has ended needs no window.
                        let _ = self.conn.stream.write_all(&frame(WINDOW_UPDATE, 0, opened, &read));
                    }
                    self.heard = data;
                }
                Some((RST_STREAM, stream, _)) if stream == self.stream => return Ok(0),
                Some(_) => {}
                None => return Ok(0),
            }
        }
        let count = buf.len().min(self.heard.len());
        buf[..count].copy_from_slice(&self.heard[..count]);
        self.heard.drain(..count);
        Ok(count)
    }
}
