//! The bytes of a connection on the front, with TLS or without.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use weir_engine::TlsAdoption;
use weir_engine::tls::{Alert, Session, Version};
use weir_wire::CloseReason;

use crate::base::read_buffer::{READ_BYTES, ReadBuffer};
use crate::observe::counters::Counters;

/// A connection's bytes: those of the socket, or what its TLS records hold.
///
/// ```text
///  plain ────────────────────────────────────────────┐
///                                                    ├──into_parts──▶ socket, keys, what was read ahead
///  unsecured ──handshake──▶ secure(session) ──▶ tls ─┘
/// ```
///
/// Limits: a TLS one holds at most one record and one read that are not taken yet, counted in the byte budget, and one
/// record that is not sent yet. The end of the socket without `close_notify` is an end like any other: what is spoken
/// inside tells by itself whether something is missing.
/// Cost: without TLS nothing is buffered. With it the buffers are there only as long as something is in them.
pub(crate) struct Stream {
    socket: TcpStream,
    layer: Layer,
}

/// What a connection is taken apart into.
pub(crate) struct Parts {
    pub(crate) socket: TcpStream,
    /// Received and opened, and not read.
    pub(crate) read_ahead: Vec<u8>,
    pub(crate) tls: Option<Box<TlsAdoption>>,
}

/// Why a connection cannot be taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotMovable {
    /// The peer has ended it.
    Ended,
    /// A record is not sent to its end.
    HalfSent,
}

enum Layer {
    Plain,
    /// The bytes belong to a handshake.
    Unsecured,
    Tls(Box<Records>),
}

/// Records of an established session.
struct Records {
    session: Session,
    /// Plaintext that is not read yet, and behind it records that are not opened yet.
    input: ReadBuffer,
    plaintext: usize,
    /// Whether something has come that [`Session::open`] has not seen.
    is_unopened: bool,
    /// The peer has said `close_notify`, or something that ended it.
    is_ended: bool,
    /// `close_notify` or a fatal alert is said.
    is_closed: bool,
    /// Records to be sent, of which `sent` bytes are.
    sealed: Vec<u8>,
    sent: usize,
    counters: Arc<Counters>,
}

impl Stream {
    /// Without TLS.
    pub(crate) fn plain(socket: TcpStream) -> Self {
        Self { socket, layer: Layer::Plain }
    }

    /// To be secured by a handshake.
    pub(crate) fn unsecured(socket: TcpStream) -> Self {
        Self { socket, layer: Layer::Unsecured }
    }

    /// From here on what is read and written goes through the session. `received`: what has come behind the handshake.
    pub(crate) fn secure(
        &mut self,
        session: Session,
        received: ReadBuffer,
        counters: &Arc<Counters>,
    ) {
        let is_unopened = !received.bytes.is_empty();
        self.layer = Layer::Tls(Box::new(Records {
            session,
            input: received,
            plaintext: 0,
            is_unopened,
            is_ended: false,
            is_closed: false,
            sealed: Vec::new(),
            sent: 0,
            counters: Arc::clone(counters),
        }));
    }

    /// The same connection, of another runtime.
    pub(crate) fn rebind(self, runtime: &Handle) -> io::Result<Stream> {
        let Stream { socket, layer } = self;
        let socket = socket.into_std()?;
        let _sockets_belong_to = runtime.enter();
        Ok(Stream { socket: TcpStream::from_std(socket)?, layer })
    }

    /// From here on HTTP is spoken: what is received is charged to its share.
    pub(crate) fn charge_http(&mut self) -> Result<(), CloseReason> {
        match &mut self.layer {
            Layer::Plain | Layer::Unsecured => Ok(()),
            Layer::Tls(records) => records.input.charge_http(),
        }
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Whether there is no TLS.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.layer, Layer::Plain)
    }

    /// Whether a handshake is to come: nothing that is written would be understood.
    pub(crate) fn is_unsecured(&self) -> bool {
        matches!(self.layer, Layer::Unsecured)
    }

    /// Bytes received and not read.
    pub(crate) fn input_bytes(&self) -> usize {
        match &self.layer {
            Layer::Plain | Layer::Unsecured => 0,
            Layer::Tls(records) => records.input.bytes.len(),
        }
    }

    /// Takes it apart, for whoever goes on with the connection.
    pub(crate) fn into_parts(self) -> Result<Parts, (Stream, NotMovable)> {
        let Stream { socket, layer } = self;
        match layer {
            Layer::Plain => Ok(Parts { socket, read_ahead: Vec::new(), tls: None }),
            Layer::Unsecured => {
                Err((Stream { socket, layer: Layer::Unsecured }, NotMovable::HalfSent))
            }
            Layer::Tls(mut records) => match records.obstacle(&socket) {
                Some(obstacle) => Err((Stream { socket, layer: Layer::Tls(records) }, obstacle)),
                None => Ok(records.into_parts(socket)),
            },
        }
    }
}

impl Records {
    fn obstacle(&mut self, socket: &TcpStream) -> Option<NotMovable> {
        // An error of the socket will show again.
        let _ = self.try_flush(socket);
        if self.is_ended || self.is_closed {
            Some(NotMovable::Ended)
        } else if self.sealed.is_empty() {
            None
        } else {
            Some(NotMovable::HalfSent)
        }
    }

    fn into_parts(mut self, socket: TcpStream) -> Parts {
        let mut read_ahead = std::mem::take(&mut self.input.bytes);
        let sealed_ahead = read_ahead.split_off(self.plaintext);
        let session = self.session.take();
        Parts { socket, read_ahead, tls: Some(Box::new(TlsAdoption { session, sealed_ahead })) }
    }

    fn poll_read(
        &mut self,
        socket: &TcpStream,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.plaintext > 0 {
                let count = self.plaintext.min(into.remaining());
                into.put_slice(&self.input.bytes[..count]);
                self.input.consume(count);
                self.plaintext -= count;
                return Poll::Ready(Ok(()));
            }
            if self.is_ended {
                return Poll::Ready(Ok(()));
            }
            if self.is_unopened {
                self.open(socket)?;
                continue;
            }
            ready!(socket.poll_read_ready(cx))?;
            let mut bytes = [0; READ_BYTES];
            match socket.try_read(&mut bytes) {
                Ok(0) => self.is_ended = true,
                Ok(count) => {
                    self.input.extend(&bytes[..count]).map_err(|_| ErrorKind::OutOfMemory)?;
                    self.is_unopened = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Opens the first record, if it is whole. No more than is read: what is behind the last word to the front, an end
    /// too, is for the shard.
    fn open(&mut self, socket: &TcpStream) -> io::Result<()> {
        let first = self.session.record_bytes(&self.input.bytes).ok().flatten();
        let first = first.unwrap_or(usize::MAX).min(self.input.bytes.len());
        let opened = match self.session.open(&mut self.input.bytes[..first]) {
            Ok(opened) => opened,
            Err(violation) => {
                self.counters.tls.count_violation(&violation);
                if let Some(alert) = violation.alert {
                    self.say_alert(alert, socket);
                }
                (self.is_ended, self.is_closed) = (true, true);
                return Err(io::Error::new(ErrorKind::InvalidData, violation));
            }
        };
        self.plaintext = opened.plaintext;
        self.is_ended = opened.is_end;
        if opened.plaintext == 0 {
            self.input.consume(opened.used);
        } else {
            self.input.bytes.drain(opened.plaintext..opened.used);
        }
        self.is_unopened = opened.used > 0 && self.input.bytes.len() > self.plaintext;
        // An answer waits until what is before it has left: a peer that asks and asks and reads nothing gets one.
        if self.session.is_due() && self.sealed.is_empty() {
            self.note_refusal();
            self.session.seal_due(&mut self.sealed).map_err(io::Error::other)?;
            self.try_flush(socket)?;
        }
        Ok(())
    }

    fn poll_write(
        &mut self,
        socket: &TcpStream,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_closed {
            return Poll::Ready(Err(ErrorKind::BrokenPipe.into()));
        }
        ready!(self.poll_flush(socket, cx))?;
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.note_refusal();
        let sealed = self.session.seal(&[IoSlice::new(bytes)], &mut self.sealed);
        let count = sealed.map_err(io::Error::other)?;
        // They count as written: what the socket does not take now leaves before anything else.
        let _ = self.poll_flush(socket, cx)?;
        Poll::Ready(Ok(count))
    }

    fn poll_flush(&mut self, socket: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            self.try_flush(socket)?;
            if self.sealed.is_empty() {
                return Poll::Ready(Ok(()));
            }
            ready!(socket.poll_write_ready(cx))?;
        }
    }

    /// Says `close_notify` and sends what is left.
    fn poll_close(&mut self, socket: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_closed {
            self.is_closed = true;
            let sealed = self.session.seal_alert(Alert::CloseNotify, &mut self.sealed);
            sealed.map_err(io::Error::other)?;
            self.counters.tls.count_alert_sent(Alert::CloseNotify);
        }
        self.poll_flush(socket, cx)
    }

    /// Counts the warning that leaves in front of the next record.
    fn note_refusal(&self) {
        if self.session.is_due() && self.session.version() == Version::Tls12 {
            self.counters.tls.count_alert_sent(Alert::NoRenegotiation);
        }
    }

    fn say_alert(&mut self, alert: Alert, socket: &TcpStream) {
        // It is over; whether the peer gets to know why depends on the socket.
        if self.session.seal_alert(alert, &mut self.sealed).is_ok() {
            let _ = self.try_flush(socket);
        }
    }

    /// Sends what the socket takes at once.
    fn try_flush(&mut self, socket: &TcpStream) -> io::Result<()> {
        while self.sent < self.sealed.len() {
            match socket.try_write(&self.sealed[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        (self.sealed, self.sent) = (Vec::new(), 0);
        Ok(())
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Stream { socket, layer } = self.get_mut();
        match layer {
            Layer::Plain | Layer::Unsecured => Pin::new(socket).poll_read(cx, into),
            Layer::Tls(records) => records.poll_read(socket, cx, into),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Stream { socket, layer } = self.get_mut();
        match layer {
            Layer::Plain | Layer::Unsecured => Pin::new(socket).poll_write(cx, bytes),
            Layer::Tls(records) => records.poll_write(socket, cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Stream { socket, layer } = self.get_mut();
        match layer {
            Layer::Plain | Layer::Unsecured => Pin::new(socket).poll_flush(cx),
            Layer::Tls(records) => records.poll_flush(socket, cx),
        }
    }

    /// Half a close: the peer may still send.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Stream { socket, layer } = self.get_mut();
        if let Layer::Tls(records) = layer {
            ready!(records.poll_close(socket, cx))?;
        }
        Pin::new(socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
