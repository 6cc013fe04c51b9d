//! A sender of datagrams, from whichever address of this machine it likes.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::wait::PATIENCE;

/// A socket that sends to one address and hears from there alone.
pub struct Datagrams(UdpSocket);

impl Datagrams {
    /// A socket at a loopback address, towards `to`.
    pub fn new(to: SocketAddr) -> Result<Datagrams> {
        let local = match to.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            loopback @ IpAddr::V6(_) => loopback,
        };
        Self::bound(local, to)
    }

    /// A socket at this address, any of 127.0.0.0/8, towards `to`.
    pub fn from(local: [u8; 4], to: SocketAddr) -> Result<Datagrams> {
        Self::bound(local.into(), to)
    }

    fn bound(local: IpAddr, to: SocketAddr) -> Result<Datagrams> {
        let socket = UdpSocket::bind((local, 0))?;
        socket.connect(to)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Datagrams(socket))
    }

    /// Sends.
    pub fn send(&self, datagram: impl AsRef<[u8]>) -> Result<()> {
        self.0.send(datagram.as_ref())?;
        Ok(())
    }

    /// The next answer, as it came.
    pub fn hear(&self) -> Result<Vec<u8>> {
        let mut answer = vec![0; 9000];
        let bytes = self.0.recv(&mut answer)?;
        answer.truncate(bytes);
        Ok(answer)
    }

    /// The next answer, if it has come.
    pub fn heard(&self) -> Result<Option<Vec<u8>>> {
        self.0.set_nonblocking(true)?;
        let heard = self.hear();
        self.0.set_nonblocking(false)?;
        or_none(heard)
    }

    /// The next answer, if it comes within `pause`.
    pub fn hear_within(&self, pause: Duration) -> Result<Option<Vec<u8>>> {
        self.0.set_read_timeout(Some(pause))?;
        let heard = self.hear();
        self.0.set_read_timeout(Some(PATIENCE))?;
        or_none(heard)
    }

    /// The answer to JSON.
    pub fn ask(&self, datagram: &str) -> Result<Value> {
        self.send(datagram)?;
        let answer = self.hear()?;
        serde_json::from_slice(&answer).with_context(|| format!("{answer:?}"))
    }
}

/// Nothing where it did not come in time.
fn or_none(heard: Result<Vec<u8>>) -> Result<Option<Vec<u8>>> {
    match heard {
        Ok(answer) => Ok(Some(answer)),
        Err(error) => match error.downcast_ref::<std::io::Error>().map(std::io::Error::kind) {
            Some(ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(None),
            _ => Err(error),
        },
    }
}
