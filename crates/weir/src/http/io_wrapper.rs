//! Between the stream of a connection and the library that speaks HTTP on it: it shows what goes through.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use weir_engine::Share;

use super::connection::HttpConnection;
use super::table::Table;
use crate::base::peer_charge::{NoRoom, PeerCharge};
use crate::observe::counters::http::Dialect;
use crate::tls::stream::Stream;

/// A stream whose connection knows when bytes come, when the socket takes none, and when all has left.
///
/// That all has left is known since the library flushes behind everything that it writes: the last call was a flush that
/// was done.
/// It does not end the socket's side when it is told to: whoever takes it apart does, or drops it.
pub(super) struct IoWrapper {
    stream: Stream,
    /// What came before HTTP was recognised; it is read first.
    ahead: Vec<u8>,
    connection: Arc<HttpConnection>,
    /// Our own word, which leaves before anything else of the library's.
    due: Vec<u8>,
    head: Head,
    /// Over HTTP/2.
    table: Option<Box<Table>>,
}

/// A head of HTTP/1.1 that is not whole, which the library keeps.
///
/// Limits: as long as the library's buffer has it grown, it is charged to the share of HTTP in the byte budget. Most
/// heads are shorter than [`BUFFER_BYTES`], and cost nothing here.
struct Head {
    /// The requests before it.
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

    /// The stream, and what was not read yet of what came before.
    pub(super) fn into_parts(self) -> (Stream, Vec<u8>) {
        (self.stream, self.ahead)
    }
}

impl IoWrapper {
    /// Says what is due between two frames of HTTP/2.
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

    /// It is whole.
    fn let_go(&mut self) {
        if self.charge.bytes() > 0 {
            // Nothing is always there.
            let _ = self.charge.set(0);
        }
    }
}

/// What the library begins with, for each connection (`INIT_BUFFER_SIZE` in hyper's `proto/h1/io.rs`).
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
