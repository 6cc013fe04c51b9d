//! A WebSocket whose frames are written by hand (RFC 6455), so that they may be as wrong as a test wants them.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::wait::PATIENCE;

/// One connection of a device.
pub struct Socket {
    /// The socket below.
    pub stream: TcpStream,
    heard: Vec<u8>,
}

/// A request for a WebSocket: whole lines with their ends.
pub struct Upgrade<'a> {
    /// `GET`, path and version.
    pub line: &'a str,
    /// What opens a WebSocket.
    pub headers: &'a str,
    /// What comes behind the head.
    pub rest: &'a [u8],
}

impl Default for Upgrade<'_> {
    fn default() -> Self {
        Upgrade {
            line: "GET /v1/connect HTTP/1.1\r\n",
            headers: "Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                      Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: weir.v1.json\r\n",
            rest: b"",
        }
    }
}

impl Upgrade<'_> {
    /// Connects and says it.
    pub fn say(&self, addr: SocketAddr) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let said = [self.line.as_bytes(), self.headers.as_bytes(), b"\r\n", self.rest].concat();
        stream.write_all(&said)?;
        Ok(stream)
    }
}

impl Socket {
    /// Opens one for JSON, without a word behind that.
    pub fn open(addr: SocketAddr) -> Result<Socket> {
        Self::open_by(addr, &Upgrade::default())
    }

    /// Opens one by this request.
    pub fn open_by(addr: SocketAddr, upgrade: &Upgrade<'_>) -> Result<Socket> {
        let mut socket = Socket { stream: upgrade.say(addr)?, heard: Vec::new() };
        let end = b"\r\n\r\n";
        let at = loop {
            if let Some(at) = socket.heard.windows(end.len()).position(|bytes| bytes == end) {
                break at;
            }
            ensure!(socket.read()?, "it ends within the head");
        };
        let head = String::from_utf8(socket.heard.drain(..at + end.len()).collect())?;
        ensure!(head.starts_with("HTTP/1.1 101 "), "it answers {head}");
        let accept = "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
        ensure!(head.contains(accept), "the wrong key in {head}");
        Ok(socket)
    }

    /// Opens one, greets as `device` without a token, and waits for `welcome` and for each topic's `subscribed`.
    pub fn greet(addr: SocketAddr, device: &str, topics: &[&str]) -> Result<Socket> {
        let mut socket = Self::open(addr)?;
        socket.say_hello(device, topics)?;
        Ok(socket)
    }

    /// What [`Socket::greet`] does on one that is open.
    pub fn say_hello(&mut self, device: &str, topics: &[&str]) -> Result<()> {
        let list: Vec<Value> = topics.iter().map(|topic| json!({"topic": topic})).collect();
        self.say(&json!({"hello": {"deviceId": device, "topics": list}}))?;
        self.expect("welcome")?;
        for _ in topics {
            self.expect("subscribed")?;
        }
        Ok(())
    }

    /// Sends a message.
    pub fn say(&mut self, message: &Value) -> Result<()> {
        self.send(&masked(0x81, message.to_string().as_bytes()))
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(bytes)?)
    }

    /// More bytes; `false` at the end.
    fn read(&mut self) -> Result<bool> {
        let mut bytes = [0; 16 * 1024];
        match self.stream.read(&mut bytes) {
            Ok(count) => {
                self.heard.extend(&bytes[..count]);
                Ok(count > 0)
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(false),
            Err(error) => Err(error).context("reading from a WebSocket"),
        }
    }

    /// The next frame: its first byte and its payload; `None` at the end.
    pub fn hear(&mut self) -> Result<Option<(u8, Vec<u8>)>> {
        loop {
            if let Some((first, head, length)) = parse(&self.heard)?
                && self.heard.len() >= head + length
            {
                let payload = self.heard[head..head + length].to_vec();
                self.heard.drain(..head + length);
                return Ok(Some((first, payload)));
            }
            if !self.read()? {
                return Ok(None);
            }
        }
    }

    /// What is in the next message, which must be of this kind. A ping before it is answered.
    pub fn expect(&mut self, kind: &str) -> Result<Value> {
        match self.hear()? {
            Some((0x89, data)) => {
                self.send(&masked(0x8a, &data))?;
                self.expect(kind)
            }
            Some((0x81, text)) => {
                let mut message: Value = serde_json::from_slice(&text)?;
                let inner = message.get_mut(kind).map(Value::take);
                inner.with_context(|| format!("wanted {kind}, heard {message}"))
            }
            other => bail!("wanted {kind}, heard {other:?}"),
        }
    }

    /// A Close frame with its code, 0 if it has none, and its reason; behind it must be the end.
    pub fn closed(&mut self) -> Result<(u16, String)> {
        match self.hear()? {
            Some((0x88, payload)) => {
                let (code, reason) = match payload.split_first_chunk::<2>() {
                    Some((code, reason)) => (u16::from_be_bytes(*code), reason.to_vec()),
                    None => (0, Vec::new()),
                };
                let more = self.hear()?;
                ensure!(more.is_none(), "{more:?} behind the Close frame");
                Ok((code, String::from_utf8(reason)?))
            }
            other => bail!("wanted a Close frame, heard {other:?}"),
        }
    }

    /// `goodbye`, whose code the Close frame behind it has too.
    pub fn goodbye(&mut self) -> Result<(u16, String)> {
        let goodbye = self.expect("goodbye")?;
        let (code, reason) = self.closed()?;
        ensure!(
            goodbye["code"] == code && goodbye["reason"] == reason.as_str(),
            "{goodbye} {code}"
        );
        Ok((code, reason))
    }
}

/// First byte, and the lengths of head and payload, of a server's frame.
fn parse(bytes: &[u8]) -> Result<Option<(u8, usize, usize)>> {
    let [first, second, rest @ ..] = bytes else { return Ok(None) };
    ensure!(second & 0x80 == 0, "a server's frame has a mask");
    ensure!(first & 0x70 == 0, "a server's frame has a reserved bit");
    Ok(match second {
        126 => rest
            .first_chunk::<2>()
            .map(|length| (*first, 4, usize::from(u16::from_be_bytes(*length)))),
        127 => match rest.first_chunk::<8>() {
            Some(length) => Some((*first, 10, usize::try_from(u64::from_be_bytes(*length))?)),
            None => None,
        },
        length => Some((*first, 2, usize::from(*length))),
    })
}

/// A client's frame: its first byte, and its payload behind a mask.
pub fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];
    let mut out = vec![first];
    let length = payload.len();
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(length @ ..126), _) => out.push(0x80 | length),
        (_, Ok(length)) => {
            out.push(0x80 | 126);
            out.extend(length.to_be_bytes());
        }
        (_, Err(_)) => {
            out.push(0x80 | 127);
            out.extend((length as u64).to_be_bytes());
        }
    }
    out.extend(MASK);
    out.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    out
}

/// A Close frame of a client.
pub fn close(code: u16, reason: &[u8]) -> Vec<u8> {
    masked(0x88, &[&code.to_be_bytes(), reason].concat())
}
