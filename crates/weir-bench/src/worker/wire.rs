//! A client's socket, plain or with TLS.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustls::ClientConnection;

use crate::sys;
use crate::tls::agreed;

/// The socket of a connection.
#[derive(Debug)]
pub(crate) struct Wire {
    fd: OwnedFd,
    tls: Option<Box<ClientConnection>>,
    /// Bytes sent since [`Wire::take_sent`].
    sent: u64,
}

/// The receive buffers, one set for all connections of a worker.
#[derive(Debug)]
pub(crate) struct Inbox {
    raw: Vec<u8>,
    plain: Vec<u8>,
    /// Bytes of `raw` that are plain content.
    content: usize,
}

/// The result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Received {
    /// Bytes read from the socket; 0: it has ended.
    pub(crate) bytes: usize,
    /// Time at which the kernel received the last of them, in nanoseconds since 1970.
    pub(crate) stamp: Option<u64>,
}

impl Inbox {
    /// An inbox for reads of this size.
    pub(crate) fn new(read_bytes: usize) -> Inbox {
        Inbox { raw: vec![0; read_bytes], plain: Vec::new(), content: 0 }
    }

    /// The content of the last read; under TLS it is shorter than the bytes read, or empty.
    pub(crate) fn content(&self) -> &[u8] {
        if self.plain.is_empty() { &self.raw[..self.content] } else { &self.plain }
    }
}

impl Wire {
    /// A connecting socket. Under TLS, the first [`Wire::send`] begins the handshake.
    pub(crate) fn new(fd: OwnedFd, tls: Option<Box<ClientConnection>>) -> Wire {
        Wire { fd, tls, sent: 0 }
    }

    /// Socket and TLS apart.
    pub(crate) fn into_parts(self) -> (OwnedFd, Option<Box<ClientConnection>>) {
        (self.fd, self.tls)
    }

    /// The agreed parameters, at the end of a TLS handshake.
    pub(crate) fn agreed(&self) -> Option<String> {
        self.tls.as_ref().and_then(|tls| agreed(tls))
    }

    /// Sends as much as the socket takes. Under TLS that is all or nothing, unless the socket has
    /// too little room.
    ///
    /// Bytes sent before the handshake has ended leave with its last flight.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        let Some(tls) = &mut self.tls else {
            let sent = send(&self.fd, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
            self.sent += sent as u64;
            return Ok(sent);
        };
        self.sent += flush(&self.fd, tls)?;
        if tls.wants_write() {
            return Err(Errno::AGAIN);
        }
        let taken = tls.writer().write(bytes).map_err(|_| Errno::PROTO)?;
        self.sent += flush(&self.fd, tls)?;
        Ok(if tls.wants_write() { 0 } else { taken })
    }

    /// Bytes sent since the last call, including those of the handshake.
    pub(crate) fn take_sent(&mut self) -> u64 {
        std::mem::take(&mut self.sent)
    }

    /// Reads once, at most `limit` bytes.
    pub(crate) fn receive(&mut self, limit: usize, inbox: &mut Inbox) -> io::Result<Received> {
        let limit = limit.min(inbox.raw.len());
        let (bytes, stamp) = sys::receive_stamped(self.fd.as_fd(), &mut inbox.raw[..limit])?;
        self.take(bytes, inbox)?;
        Ok(Received { bytes, stamp })
    }

    /// Reads once, as much as the inbox holds, without a time stamp. Returns the number of bytes
    /// from the socket.
    pub(super) fn receive_unstamped(&mut self, inbox: &mut Inbox) -> io::Result<usize> {
        let (bytes, _) = recv(&self.fd, &mut inbox.raw[..], RecvFlags::DONTWAIT)?;
        self.take(bytes, inbox)?;
        Ok(bytes)
    }

    /// Makes content of this number of bytes in the inbox.
    fn take(&mut self, bytes: usize, inbox: &mut Inbox) -> io::Result<()> {
        inbox.plain.clear();
        inbox.content = 0;
        match &mut self.tls {
            None => inbox.content = bytes,
            Some(tls) => {
                let result = open(tls, &inbox.raw[..bytes], &mut inbox.plain);
                // An alert tells the server the error; the server may have gone already.
                let flushed = flush(&self.fd, tls);
                result?;
                self.sent += flushed?;
            }
        }
        Ok(())
    }

    /// Sends as much of `out` as the socket takes, and keeps the rest; under TLS the rest is kept
    /// as records.
    pub(super) fn send_from(&mut self, out: &mut Vec<u8>) -> Result<(), Errno> {
        let taken = match &mut self.tls {
            None if out.is_empty() => 0,
            None => match send(&self.fd, out, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => {
                    self.sent += sent as u64;
                    sent
                }
                Err(Errno::AGAIN) => 0,
                Err(error) => return Err(error),
            },
            Some(tls) => {
                tls.writer().write_all(out).map_err(|_| Errno::PROTO)?;
                self.sent += flush(&self.fd, tls)?;
                out.len()
            }
        };
        out.drain(..taken);
        Ok(())
    }

    /// Under TLS, sends the alert that ends the connection.
    pub(super) fn say_goodbye(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            // The server may have gone already.
            let _ = flush(&self.fd, tls);
        }
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn open(tls: &mut ClientConnection, mut raw: &[u8], plain: &mut Vec<u8>) -> io::Result<()> {
    if raw.is_empty() {
        // The end of the socket. rustls decides whether it is also the end of TLS.
        tls.read_tls(&mut raw)?;
        return match tls.process_new_packets() {
            Ok(state) if state.peer_has_closed() => Ok(()),
            Ok(_) => Err(io::Error::other("eof_without_close_notify")),
            Err(error) => Err(io::Error::other(format!("tls: {error}"))),
        };
    }
    while !raw.is_empty() {
        tls.read_tls(&mut raw)?;
        let state =
            tls.process_new_packets().map_err(|error| io::Error::other(format!("tls: {error}")))?;
        let from = plain.len();
        plain.resize(from + state.plaintext_bytes_to_read(), 0);
        tls.reader().read_exact(&mut plain[from..])?;
        if state.peer_has_closed() {
            return Ok(());
        }
    }
    Ok(())
}

/// Sends as much as the socket takes; returns the number of bytes.
fn flush(fd: &OwnedFd, tls: &mut ClientConnection) -> Result<u64, Errno> {
    let mut sent = 0;
    while tls.wants_write() {
        match tls.write_tls(&mut Socket(fd)) {
            Ok(bytes) => sent += bytes as u64,
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::AGAIN) => return Ok(sent),
                other => return Err(other.unwrap_or(Errno::PROTO)),
            },
        }
    }
    Ok(sent)
}

/// A socket to write to without waiting.
struct Socket<'a>(&'a OwnedFd);

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(self.0, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
