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
    /// Our own word, which leaves before anything else of the library's.
    due: Vec<u8>,
}

impl Tap {
    pub(super) fn new(stream: Stream, ahead: Vec<u8>, guest: Arc<Guest>) -> Self {
        Self { stream, ahead, guest, due: Vec::new() }
    }

    /// The stream, and what was not read yet of what came before.
    pub(super) fn into_parts(self) -> (Stream, Vec<u8>) {
        (self.stream, self.ahead)
    }
}

impl Tap {
    /// Says what is due between two frames of HTTP/2.
    fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(interim) = &self.guest.interim else { return Poll::Ready(Ok(())) };
        if self.due.is_empty() {
            self.due = interim.take_due();
        }
        while !self.due.is_empty() {
            let Poll::Ready(count) = Pin::new(&mut self.stream).poll_write(cx, &self.due) else {
                self.guest.blocked();
                return Poll::Pending;
            };
            self.due.drain(..count?);
            self.guest.wrote();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Tap {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Tap { stream, ahead, guest, .. } = self.get_mut();
        if !ahead.is_empty() {
            let count = ahead.len().min(into.remaining());
            if let Some(interim) = &guest.interim {
                interim.read(&ahead[..count]);
            }
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
            if let Some(interim) = &guest.interim {
                interim.read(&into.filled()[before..]);
            }
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
        let tap = self.get_mut();
        ready!(tap.poll_due(cx))?;
        let Tap { stream, guest, .. } = tap;
        let written = Pin::new(stream).poll_write(cx, bytes);
        match &written {
            Poll::Ready(count) => {
                if let (Some(interim), Ok(count)) = (&guest.interim, count) {
                    interim.written(&bytes[..*count]);
                }
                guest.wrote();
            }
            Poll::Pending => guest.blocked(),
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let tap = self.get_mut();
        ready!(tap.poll_due(cx))?;
        let Tap { stream, guest, .. } = tap;
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
