//! The bytes of a connection on the front, with or without TLS.

use std::io::{self, ErrorKind, IoSlice};
use std::mem::MaybeUninit;
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

/// A connection's bytes: those of the socket, or the content of its TLS records.
///
/// ```text
///  plain ────────────────────────────────────────────┐
///                                                    ├──into_parts──▶ socket, keys, what was read ahead
///  unsecured ──handshake──▶ secure(session) ──▶ tls ─┘
/// ```
///
/// Limits: a TLS stream holds at most one record and one read that were not taken yet, counted in
/// the byte budget, and one record that was not sent yet. The end of the socket without
/// `close_notify` counts as a normal end: the protocol inside shows whether something is missing.
/// Cost: without TLS nothing is buffered. With TLS, buffers exist only while they hold something.
pub(crate) struct Stream {
    socket: TcpStream,
    layer: Layer,
}

/// The parts of a connection that leaves the front.
pub(crate) struct Parts {
    pub(crate) socket: TcpStream,
    /// Received and opened bytes that were not read.
    pub(crate) read_ahead: Vec<u8>,
    pub(crate) tls: Option<Box<TlsAdoption>>,
}

/// The reason why a connection cannot leave the front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotMovable {
    /// The peer has ended the connection.
    Ended,
    /// A record has been sent only in part.
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
    /// Unread plaintext, followed by unopened records.
    input: ReadBuffer,
    plaintext: usize,
    /// Whether [`Session::open`] has not seen some of the received bytes.
    is_unopened: bool,
    /// The peer has sent `close_notify`, or a fatal error has occurred.
    is_ended: bool,
    /// `close_notify` or a fatal alert has been sent.
    is_closed: bool,
    /// Records to send; the first `sent` bytes have been sent.
    sealed: Vec<u8>,
    sent: usize,
    counters: Arc<Counters>,
}

impl Stream {
    /// A stream without TLS.
    pub(crate) fn plain(socket: TcpStream) -> Self {
        Self { socket, layer: Layer::Plain }
    }

    /// A stream that a handshake will secure.
    pub(crate) fn unsecured(socket: TcpStream) -> Self {
        Self { socket, layer: Layer::Unsecured }
    }

    /// Secures the stream: all later reads and writes go through the session. `received` holds the
    /// bytes after the handshake.
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

    /// The same connection on another runtime.
    pub(crate) fn rebind(self, runtime: &Handle) -> io::Result<Stream> {
        let Stream { socket, layer } = self;
        let socket = socket.into_std()?;
        let _sockets_belong_to = runtime.enter();
        Ok(Stream { socket: TcpStream::from_std(socket)?, layer })
    }

    /// Charges the received bytes to HTTP's share from now on.
    pub(crate) fn charge_http(&mut self) -> Result<(), CloseReason> {
        match &mut self.layer {
            Layer::Plain | Layer::Unsecured => Ok(()),
            Layer::Tls(records) => records.input.charge_http(),
        }
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Ready when the peer has ended its side, or the socket has failed, and no bytes are left to
    /// read.
    pub(crate) fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut byte = [MaybeUninit::uninit()];
        match ready!(self.socket.poll_peek(cx, &mut ReadBuf::uninit(&mut byte))) {
            Ok(1..) => Poll::Pending,
            Ok(0) | Err(_) => Poll::Ready(()),
        }
    }

    /// Whether the stream has no TLS.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.layer, Layer::Plain)
    }

    /// Whether the handshake is still to come; the peer would not understand any bytes.
    pub(crate) fn is_unsecured(&self) -> bool {
        matches!(self.layer, Layer::Unsecured)
    }

    /// Received bytes that were not read.
    pub(crate) fn input_bytes(&self) -> usize {
        match &self.layer {
            Layer::Plain | Layer::Unsecured => 0,
            Layer::Tls(records) => records.input.bytes.len(),
        }
    }

    /// Takes the connection apart, for its next owner.
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
        // An error of the socket will occur again.
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

    /// Opens the first record, if it is complete, and no more. The records after the front's last
    /// message, an end included, are for the shard.
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
        // An answer waits until earlier output has left, so a peer that only asks and never reads
        // gets one answer.
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
        // These bytes count as written. What the socket does not take now leaves before anything
        // else.
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

    /// Sends `close_notify` and the rest of the output.
    fn poll_close(&mut self, socket: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_closed {
            self.is_closed = true;
            let sealed = self.session.seal_alert(Alert::CloseNotify, &mut self.sealed);
            sealed.map_err(io::Error::other)?;
            self.counters.tls.count_alert_sent(Alert::CloseNotify);
        }
        self.poll_flush(socket, cx)
    }

    /// Counts the warning that goes in front of the next record.
    fn note_refusal(&self) {
        if self.session.is_due() && self.session.version() == Version::Tls12 {
            self.counters.tls.count_alert_sent(Alert::NoRenegotiation);
        }
    }

    fn say_alert(&mut self, alert: Alert, socket: &TcpStream) {
        // The connection is over. The socket decides whether the peer learns the reason.
        if self.session.seal_alert(alert, &mut self.sealed).is_ok() {
            let _ = self.try_flush(socket);
        }
    }

    /// Sends as much as the socket takes at once.
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

    /// With TLS it takes the first piece.
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Stream { socket, layer } = self.get_mut();
        match layer {
            Layer::Plain | Layer::Unsecured => Pin::new(socket).poll_write_vectored(cx, pieces),
            Layer::Tls(records) => {
                let first = pieces.iter().find(|piece| !piece.is_empty());
                records.poll_write(socket, cx, first.map_or(&[], |piece| piece))
            }
        }
    }

    /// A record takes one piece. So with TLS, pieces are better joined.
    fn is_write_vectored(&self) -> bool {
        !matches!(self.layer, Layer::Tls(_))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Stream { socket, layer } = self.get_mut();
        match layer {
            Layer::Plain | Layer::Unsecured => Pin::new(socket).poll_flush(cx),
            Layer::Tls(records) => records.poll_flush(socket, cx),
        }
    }

    /// Closes our side only: the peer may still send.
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
