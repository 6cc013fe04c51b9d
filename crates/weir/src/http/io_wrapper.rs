//! The I/O wrapper between a connection's stream and hyper. It watches the bytes that pass.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use weir_engine::Share;

use super::connection::HttpConnection;
use super::orders::Order;
use super::table::Table;
use crate::base::peer_charge::{NoRoom, PeerCharge};
use crate::observe::counters::http::{Dialect, End};
use crate::tls::stream::Stream;

/// A stream that tells its connection when bytes come, when the socket takes none, and when all
/// bytes have left.
///
/// hyper flushes after every write. So all bytes have left when the last call was a flush that
/// succeeded, and was not put off.
/// `poll_shutdown` only flushes. The caller of [`IoWrapper::into_parts`] ends the socket's side, or
/// drops the stream.
///
/// Over HTTP/2, frames are gathered, because hyper writes and flushes each frame with more than 1 KiB
/// of data by itself. While other requests of the connection are open, a flush waits until the tasks
/// that can run have run, so their answers leave with it.
/// Over HTTP/1.1 without TLS, the pieces of a long answer leave from where they are.
///
/// Limits: [`GATHER_BYTES`] and the interim answers, only while something is to be sent. While the
/// socket takes nothing, they are charged to the share `http` of the byte budget. Without room the
/// connection ends.
pub(super) struct IoWrapper {
    stream: Stream,
    /// Bytes that came before HTTP began. They are read first.
    ahead: Vec<u8>,
    connection: Arc<HttpConnection>,
    /// Bytes over HTTP/2 that have not left, and where they begin.
    gathered: Vec<u8>,
    sent: usize,
    /// Bytes that are charged for what is gathered.
    held: usize,
    /// The turn of the connection's task in which a flush was put off.
    put_off: Option<u32>,
    head: Head,
    /// The header table of the peer; only over HTTP/2.
    table: Option<Box<Table>>,
}

/// The part of an HTTP/1.1 head that hyper keeps until the head is whole.
///
/// Limits: if the head makes hyper's buffer grow, its bytes are charged to the share `http` of the
/// byte budget. Most heads are shorter than [`BUFFER_BYTES`] and are not charged.
struct Head {
    /// The number of requests before it.
    requests: u32,
    bytes: usize,
    charge: PeerCharge,
}

impl IoWrapper {
    pub(super) fn new(stream: Stream, ahead: Vec<u8>, connection: Arc<HttpConnection>) -> Self {
        let is_h2 = connection.dialect() == Dialect::Http2;
        let table = is_h2.then(|| Box::new(Table::new()));
        let charge = PeerCharge::none(connection.edge.shared.engine().budget(), Share::Http);
        let head = Head { requests: 0, bytes: 0, charge };
        let (gathered, sent, held, put_off) = (Vec::new(), 0, 0, None);
        Self { stream, ahead, connection, gathered, sent, held, put_off, head, table }
    }

    /// The stream, and the bytes that came before HTTP began and are still unread.
    pub(super) fn into_parts(self) -> (Stream, Vec<u8>) {
        (self.stream, self.ahead)
    }
}

impl IoWrapper {
    /// Gathers the interim answers that are due, between two frames of HTTP/2, if there is room.
    fn gather_due(&mut self) {
        if let Some(interim) = &self.connection.interim
            && self.gathered.len() < GATHER_BYTES
        {
            self.gathered.extend_from_slice(&interim.take_due());
        }
    }

    /// Takes bytes over HTTP/2. They have not left, so a socket that takes none is still blocked.
    fn poll_gather(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.gather_due();
        if self.gathered.len() + bytes.len() > GATHER_BYTES {
            ready!(self.poll_send(cx))?;
        }
        let bytes = &bytes[..bytes.len().min(GATHER_BYTES)];
        if self.gathered.capacity() == 0 {
            self.gathered.reserve_exact(GATHER_BYTES);
        }
        self.gathered.extend_from_slice(bytes);
        if let Some(interim) = &self.connection.interim {
            interim.written(bytes);
        }
        Poll::Ready(Ok(bytes.len()))
    }

    /// Sends what is gathered.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.gathered.len() {
            let rest = &self.gathered[self.sent..];
            let Poll::Ready(count) = Pin::new(&mut self.stream).poll_write(cx, rest) else {
                self.connection.blocked();
                self.hold(self.gathered.capacity());
                return Poll::Pending;
            };
            let count = count?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += count;
            self.connection.wrote();
        }
        (self.gathered, self.sent) = (Vec::new(), 0);
        self.hold(0);
        Poll::Ready(Ok(()))
    }

    /// Charges what is gathered. What leaves within a turn is never charged.
    fn hold(&mut self, bytes: usize) {
        if self.held != bytes {
            self.held = bytes;
            self.connection.hold(bytes);
        }
    }

    /// Whether a flush waits for the answers of tasks that can run now.
    fn puts_off(&mut self, cx: &Context<'_>) -> bool {
        let (turn, connection) = (self.connection.turn(), &self.connection);
        match self.put_off {
            Some(begun) => return begun == turn,
            None if self.gathered.is_empty() || connection.caller.ledger.open_count() == 0 => {
                return false;
            }
            None => self.put_off = Some(turn),
        }
        // It is polled again behind the tasks that can run now.
        cx.waker().wake_by_ref();
        true
    }

    /// Flushes without delay.
    fn poll_flush_all(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.put_off = None;
        loop {
            self.gather_due();
            if self.gathered.is_empty() {
                break;
            }
            ready!(self.poll_send(cx))?;
        }
        let IoWrapper { stream, connection, .. } = self;
        let flushed = Pin::new(stream).poll_flush(cx);
        match flushed {
            Poll::Ready(_) => connection.flushed(),
            Poll::Pending => connection.blocked(),
        }
        flushed
    }
}

impl Head {
    fn heard(&mut self, count: usize, connection: &HttpConnection) -> io::Result<()> {
        let requests = connection.requests();
        if requests != self.requests {
            (self.requests, self.bytes) = (requests, 0);
            self.let_go();
        }
        if !connection.is_at_head() {
            return Ok(());
        }
        self.bytes += count;
        if self.bytes <= BUFFER_BYTES {
            return Ok(());
        }
        self.charge.set(self.bytes).map_err(|NoRoom| io::ErrorKind::OutOfMemory.into())
    }

    /// Gives the charge back, because the head is whole.
    fn let_go(&mut self) {
        if self.charge.bytes() > 0 {
            // Setting a charge to zero always succeeds.
            let _ = self.charge.set(0);
        }
    }
}

/// The first size of hyper's read buffer (`INIT_BUFFER_SIZE` in hyper's `proto/h1/io.rs`).
const BUFFER_BYTES: usize = 8192;

impl AsyncRead for IoWrapper {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let IoWrapper { stream, ahead, connection, head, table, .. } = self.get_mut();
        let mut heard = |bytes: &[u8]| {
            connection.heard();
            if let Some(interim) = &connection.interim {
                interim.read(bytes);
            }
            if let Some(kept) = table.as_mut().and_then(|table| table.read(bytes)) {
                connection.keep(kept);
            }
            head.heard(bytes.len(), connection)
        };
        if !ahead.is_empty() {
            let count = ahead.len().min(into.remaining());
            into.put_slice(&ahead[..count]);
            heard(&ahead[..count])?;
            ahead.drain(..count);
            if ahead.is_empty() {
                *ahead = Vec::new();
            }
            return Poll::Ready(Ok(()));
        }
        let before = into.filled().len();
        ready!(Pin::new(stream).poll_read(cx, into))?;
        if into.filled().len() > before {
            heard(&into.filled()[before..])?;
        } else {
            connection.ended();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for IoWrapper {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let io_wrapper = self.get_mut();
        io_wrapper.head.let_go();
        if io_wrapper.connection.dialect() == Dialect::Http2 {
            return io_wrapper.poll_gather(cx, bytes);
        }
        let IoWrapper { stream, connection, .. } = io_wrapper;
        let written = Pin::new(stream).poll_write(cx, bytes);
        connection.sent(written.is_ready());
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let io_wrapper = self.get_mut();
        io_wrapper.head.let_go();
        let IoWrapper { stream, connection, .. } = io_wrapper;
        let stream = Pin::new(stream);
        let length = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        let written = match pieces {
            [piece] => stream.poll_write(cx, piece),
            // To copy a short answer costs less than to tell the kernel of several pieces.
            _ if length <= SHORT_BYTES => {
                let mut short = [0; SHORT_BYTES];
                let mut end = 0;
                for piece in pieces {
                    short[end..end + piece.len()].copy_from_slice(piece);
                    end += piece.len();
                }
                stream.poll_write(cx, &short[..end])
            }
            _ => stream.poll_write_vectored(cx, pieces),
        };
        connection.sent(written.is_ready());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.dialect() == Dialect::Http1 && self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let io_wrapper = self.get_mut();
        let IoWrapper { stream, connection, .. } = io_wrapper;
        if connection.watches_peer() && stream.poll_gone(cx).is_ready() {
            connection.orders.tell(Order::End(End::Peer));
        }
        if io_wrapper.puts_off(cx) {
            return Poll::Ready(Ok(()));
        }
        io_wrapper.poll_flush_all(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_flush_all(cx)
    }
}

/// The most bytes over HTTP/2 that wait for a flush: one TLS record, or some ten short answers.
const GATHER_BYTES: usize = 16 * 1024;
/// The longest answer over HTTP/1.1 that is copied into one piece.
const SHORT_BYTES: usize = 2048;
