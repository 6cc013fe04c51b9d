//! A device that speaks frames over a real, blocking socket.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use weir_wire::v1::{self, client_message, server_message};
use weir_wire::{ProstMessage, frame};

use crate::wait::PATIENCE;

/// One connection of a device.
pub struct Device {
    channel: Channel,
    received: Vec<u8>,
}

/// What frames go through.
enum Channel {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

/// A connection from this address, any of 127.0.0.0/8.
pub(crate) fn connect_from(local: Ipv4Addr, addr: SocketAddr) -> Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    bind(&socket, &SocketAddr::from((local, 0)))?;
    connect(&socket, &addr)?;
    Ok(socket.into())
}

impl Device {
    /// Connects without a word.
    pub fn connect(addr: SocketAddr) -> Result<Device> {
        Self::over(TcpStream::connect_timeout(&addr, PATIENCE)?)
    }

    /// Connects from an address of its own, without a word.
    pub fn connect_from(local: Ipv4Addr, addr: SocketAddr) -> Result<Device> {
        Self::over(connect_from(local, addr)?)
    }

    /// Connects with TLS to "localhost", without a word behind the handshake.
    pub fn connect_tls(addr: SocketAddr, config: &Arc<ClientConfig>) -> Result<Device> {
        Self::over_tls(addr, config, |stream| {
            while stream.conn.is_handshaking() {
                stream.conn.complete_io(&mut stream.sock)?;
            }
            Ok(())
        })
    }

    /// Begins the same with TLS 1.3, and hears all that the server says in the handshake. Its own last
    /// words wait for [`Device::end_handshake`].
    pub fn begin_tls(addr: SocketAddr, config: &Arc<ClientConfig>) -> Result<Device> {
        Self::over_tls(addr, config, |stream| {
            stream.conn.write_tls(&mut stream.sock)?;
            while stream.conn.is_handshaking() {
                if stream.conn.read_tls(&mut stream.sock)? == 0 {
                    bail!("the server has ended amid the handshake");
                }
                stream.conn.process_new_packets()?;
            }
            Ok(())
        })
    }

    fn over_tls(
        addr: SocketAddr,
        config: &Arc<ClientConfig>,
        shake_hands: impl FnOnce(&mut StreamOwned<ClientConnection, TcpStream>) -> Result<()>,
    ) -> Result<Device> {
        let mut device = Self::over(TcpStream::connect_timeout(&addr, PATIENCE)?)?;
        let Channel::Plain(socket) = device.channel else { bail!("it begins without TLS") };
        let name = ServerName::try_from("localhost")?;
        let tls = ClientConnection::new(Arc::clone(config), name)?;
        let mut stream = StreamOwned::new(tls, socket);
        shake_hands(&mut stream)?;
        device.channel = Channel::Tls(Box::new(stream));
        Ok(device)
    }

    /// Says the last words of the handshake.
    pub fn end_handshake(&mut self) -> Result<()> {
        let Channel::Tls(stream) = &mut self.channel else { bail!("without TLS there is none") };
        while stream.conn.wants_write() {
            stream.conn.write_tls(&mut stream.sock)?;
        }
        Ok(())
    }

    fn over(stream: TcpStream) -> Result<Device> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Device { channel: Channel::Plain(stream), received: Vec::new() })
    }

    /// The certificate that the server has shown, in DER; `None` without TLS.
    pub fn server_certificate(&self) -> Option<&[u8]> {
        match &self.channel {
            Channel::Plain(_) => None,
            Channel::Tls(stream) => stream.conn.peer_certificates()?.first().map(AsRef::as_ref),
        }
    }

    /// Connects, greets as `device_id` without a token, and waits for `Welcome` and for each topic's `Subscribed`.
    pub fn greet(addr: SocketAddr, device_id: &str, topics: &[&str]) -> Result<Device> {
        let mut device = Self::connect(addr)?;
        device.say_hello(device_id, topics)?;
        Ok(device)
    }

    /// What [`Device::greet`] does on a connection that is there.
    pub fn say_hello(&mut self, device_id: &str, topics: &[&str]) -> Result<()> {
        let topics = topics.iter().map(|topic| v1::Subscribe {
            topic: (*topic).into(),
            position: None,
            presence: false,
        });
        let hello = v1::Hello {
            device_id: device_id.into(),
            topics: topics.collect(),
            ..v1::Hello::default()
        };
        let count = hello.topics.len();
        self.send(client_message::Kind::Hello(hello))?;
        match self.hear()? {
            Some(server_message::Kind::Welcome(_)) => {}
            other => bail!("expected Welcome, got {other:?}"),
        }
        for _ in 0..count {
            match self.hear()? {
                Some(server_message::Kind::Subscribed(_)) => {}
                other => bail!("expected Subscribed, got {other:?}"),
            }
        }
        Ok(())
    }

    /// The socket.
    pub fn stream(&mut self) -> &mut TcpStream {
        match &mut self.channel {
            Channel::Plain(socket) => socket,
            Channel::Tls(stream) => &mut stream.sock,
        }
    }

    /// Sends one message.
    pub fn send(&mut self, kind: client_message::Kind) -> Result<()> {
        let mut out = Vec::new();
        frame::encode(&v1::ClientMessage { kind: Some(kind) }, &mut out);
        self.send_bytes(&out)
    }

    /// Sends bytes as they are.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.channel {
            Channel::Plain(socket) => socket.write_all(bytes)?,
            Channel::Tls(stream) => {
                stream.write_all(bytes)?;
                stream.flush()?;
            }
        }
        Ok(())
    }

    /// The next message; `None` at the server's end.
    pub fn hear(&mut self) -> Result<Option<server_message::Kind>> {
        loop {
            if let Some((body, used)) = frame::decode(&self.received, 1 << 20)? {
                let message = v1::ServerMessage::decode(body)?;
                self.received.drain(..used);
                return Ok(Some(message.kind.context("a message has a kind")?));
            }
            let mut buf = [0; 4096];
            let read = match &mut self.channel {
                Channel::Plain(socket) => socket.read(&mut buf)?,
                Channel::Tls(stream) => stream.read(&mut buf)?,
            };
            match read {
                0 if self.received.is_empty() => return Ok(None),
                0 => bail!("the stream ended within a frame"),
                bytes => self.received.extend_from_slice(&buf[..bytes]),
            }
        }
    }

    /// All bytes up to the server's end.
    pub fn all_bytes(&mut self) -> Result<Vec<u8>> {
        let mut bytes = std::mem::take(&mut self.received);
        match &mut self.channel {
            Channel::Plain(socket) => socket.read_to_end(&mut bytes)?,
            Channel::Tls(stream) => stream.read_to_end(&mut bytes)?,
        };
        Ok(bytes)
    }

    /// The next message, which must be a `Push`.
    pub fn push(&mut self) -> Result<v1::Push> {
        match self.hear()? {
            Some(server_message::Kind::Push(push)) => Ok(push),
            other => bail!("expected Push, got {other:?}"),
        }
    }

    /// Reads on until `Goodbye`, and on to the end behind it.
    pub fn goodbye(&mut self) -> Result<v1::Goodbye> {
        loop {
            let message = self.hear()?.context("the stream ended without Goodbye")?;
            if let server_message::Kind::Goodbye(goodbye) = message {
                return match self.hear()? {
                    None => Ok(goodbye),
                    Some(more) => bail!("{more:?} behind Goodbye"),
                };
            }
            if !matches!(message, server_message::Kind::Push(_)) {
                bail!("expected Goodbye, got {message:?}");
            }
        }
    }

    /// Whether nothing arrives for `pause`.
    pub fn is_silent(&mut self, pause: Duration) -> Result<bool> {
        self.stream().set_read_timeout(Some(pause))?;
        let outcome = self.hear();
        self.stream().set_read_timeout(Some(PATIENCE))?;
        match outcome {
            Ok(_) => Ok(false),
            Err(error) => match error.downcast_ref::<std::io::Error>().map(std::io::Error::kind) {
                Some(std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => Ok(true),
                _ => Err(error),
            },
        }
    }
}
