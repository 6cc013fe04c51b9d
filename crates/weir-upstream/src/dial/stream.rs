//! A connected stream: plain or TLS, direct or through a proxy.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// What a connection is made of.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for T {}

/// A connected stream, ready for HTTP.
pub(super) type Stream = Box<dyn ByteStream>;

/// A stream through a proxy, with bytes of the service that came along with the proxy's answer.
struct Early(TcpStream, Bytes);

/// A stream through a proxy that has sent these bytes behind its answer.
pub(super) fn through_proxy(stream: TcpStream, early: Bytes) -> Stream {
    match early.is_empty() {
        true => Box::new(stream),
        false => Box::new(Early(stream, early)),
    }
}

impl AsyncRead for Early {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Early(stream, early) = self.get_mut();
        if early.has_remaining() {
            let count = early.len().min(buf.remaining());
            buf.put_slice(&early.split_to(count));
            return Poll::Ready(Ok(()));
        }
        Pin::new(stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Early {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(cx)
    }
}
