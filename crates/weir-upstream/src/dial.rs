//! A connected stream to an endpoint.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::error::DialError;
use crate::names::Endpoint;
use crate::settings::{Settings, SettingsError};

/// Connects endpoints.
pub(crate) struct Dialer {
    connect_timeout: Duration,
}

/// A connected stream: plain or TLS, direct or through a proxy.
pub(crate) enum Stream {
    Tcp(TcpStream),
}

impl Dialer {
    /// Errors: a setting that is not allowed, such as a certificate that cannot be read.
    pub(crate) fn new(settings: &Settings) -> Result<Dialer, SettingsError> {
        Ok(Dialer { connect_timeout: settings.connect_timeout })
    }

    /// Connects, with handshake and proxy, within `connect_timeout`.
    pub(crate) async fn connect(&self, endpoint: &Endpoint) -> Result<Stream, DialError> {
        let Endpoint::Tcp(addr) = endpoint;
        match timeout(self.connect_timeout, TcpStream::connect(addr)).await {
            Ok(Ok(stream)) => {
                let _ = stream.set_nodelay(true);
                Ok(Stream::Tcp(stream))
            }
            Ok(Err(error)) => Err(DialError::Connect(error)),
            Err(_) => Err(DialError::TimedOut(self.connect_timeout)),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
