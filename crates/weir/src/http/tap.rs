//! Between the stream of a connection and the library that speaks HTTP on it: it shows what goes through.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::guest::Guest;
use crate::tls::stream::Stream;

/// A stream whose guest knows when bytes come, when the socket takes none, and when all has left.
///
/// That all has left is known since the library flushes behind everything that it writes: the last call was a flush that
/// was done.
/// It does not end the socket's side when it is told to: whoever takes it apart does, or drops it.
pub(super) struct Tap {
    stream: Stream,
    /// What came before HTTP was recognised; it is read first.
    ahead: Vec<u8>,
    guest: Arc<Guest>,
}

impl Tap {
    pub(super) fn new(stream: Stream, ahead: Vec<u8>, guest: Arc<Guest>) -> Self {
        Self { stream, ahead, guest }
    }

    /// The stream, and what was not read yet of what came before.
    pub(super) fn into_parts(self) -> (Stream, Vec<u8>) {
        (self.stream, self.ahead)
    }
}

impl AsyncRead for Tap {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Tap { stream, ahead, guest } = self.get_mut();
        if !ahead.is_empty() {
            let count = ahead.len().min(into.remaining());
            into.put_slice(&ahead[..count]);
            ahead.drain(..count);
            if ahead.is_empty() {
                *ahead = Vec::new();
            }
            guest.heard();
            return Poll::Ready(Ok(()));
        }
        let before = into.filled().len();
        ready!(Pin::new(stream).poll_read(cx, into))?;
        if into.filled().len() > before {
            guest.heard();
        } else {
            guest.ended();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tap {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Tap { stream, guest, .. } = self.get_mut();
        let written = Pin::new(stream).poll_write(cx, bytes);
        match written {
            Poll::Ready(_) => guest.wrote(),
            Poll::Pending => guest.blocked(),
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Tap { stream, guest, .. } = self.get_mut();
        let flushed = Pin::new(stream).poll_flush(cx);
        match flushed {
            Poll::Ready(_) => guest.flushed(),
            Poll::Pending => guest.blocked(),
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}
