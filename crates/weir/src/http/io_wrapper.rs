//! The I/O wrapper between a connection's stream and hyper. It watches the bytes that pass.

use std::io;
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
/// succeeded.
/// `poll_shutdown` only flushes. The caller of [`IoWrapper::into_parts`] ends the socket's side, or
/// drops the stream.
pub(super) struct IoWrapper {
    stream: Stream,
    /// Bytes that came before HTTP began. They are read first.
    ahead: Vec<u8>,
    connection: Arc<HttpConnection>,
    /// Interim answers of ours. They leave before hyper's next bytes.
    due: Vec<u8>,
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
        Self { stream, ahead, connection, due: Vec::new(), head, table }
    }

    /// The stream, and the bytes that came before HTTP began and are still unread.
    pub(super) fn into_parts(self) -> (Stream, Vec<u8>) {
        (self.stream, self.ahead)
    }
}

impl IoWrapper {
    /// Writes the interim answers that are due, between two frames of HTTP/2.
    fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(interim) = &self.connection.interim else { return Poll::Ready(Ok(())) };
        if self.due.is_empty() {
            self.due = interim.take_due();
        }
        while !self.due.is_empty() {
            let Poll::Ready(count) = Pin::new(&mut self.stream).poll_write(cx, &self.due) else {
                self.connection.blocked();
                return Poll::Pending;
            };
            self.due.drain(..count?);
            self.connection.wrote();
        }
        Poll::Ready(Ok(()))
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
        ready!(io_wrapper.poll_due(cx))?;
        let IoWrapper { stream, connection, head, .. } = io_wrapper;
        head.let_go();
        let written = Pin::new(stream).poll_write(cx, bytes);
        match &written {
            Poll::Ready(count) => {
                if let (Some(interim), Ok(count)) = (&connection.interim, count) {
                    interim.written(&bytes[..*count]);
                }
                connection.wrote();
            }
            Poll::Pending => connection.blocked(),
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let io_wrapper = self.get_mut();
        ready!(io_wrapper.poll_due(cx))?;
        let IoWrapper { stream, connection, .. } = io_wrapper;
        if connection.watches_peer() && stream.poll_gone(cx).is_ready() {
            connection.orders.tell(Order::End(End::Peer));
        }
        let flushed = Pin::new(stream).poll_flush(cx);
        match flushed {
            Poll::Ready(_) => connection.flushed(),
            Poll::Pending => connection.blocked(),
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}
