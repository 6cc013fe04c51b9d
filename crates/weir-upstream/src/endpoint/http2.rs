//! A connection for HTTP/2: many requests at a time.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::client::conn::http2::{Builder, Connection, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tracing::debug;

use super::places::Place;
use super::wire::Wire;
use crate::dial::{ByteStream, DialError};
use crate::outgoing::TryBody;

/// A connection that is open, or that one of its requests opens while the others wait.
pub(crate) struct Http2 {
    sender: OnceCell<SendRequest<TryBody>>,
    failed: OnceLock<Arc<DialError>>,
    /// The streams that the peer permits, as far as we know from this and other connections.
    streams_max: Arc<AtomicUsize>,
    place: Arc<Place>,
    /// After this time it gets no further request.
    pub(crate) expires: Instant,
}

/// Drives a connection, and notes what the peer permits.
struct Driver {
    connection: Connection<TokioIo<Wire>, TryBody, TokioExecutor>,
    streams_max: Arc<AtomicUsize>,
}

impl Http2 {
    pub(crate) fn new(place: Arc<Place>, expires: Instant, streams_max: Arc<AtomicUsize>) -> Http2 {
        Http2 { sender: OnceCell::new(), failed: OnceLock::new(), streams_max, place, expires }
    }

    /// Whether it may get further requests.
    pub(crate) fn is_usable(&self, now: Instant) -> bool {
        now < self.expires
            && self.failed.get().is_none()
            && self.sender.get().is_none_or(|sender| !sender.is_closed())
    }

    pub(crate) fn is_open(&self) -> bool {
        self.sender.initialized()
    }

    pub(crate) fn streams_max(&self) -> usize {
        self.streams_max.load(Ordering::Relaxed)
    }

    /// The open connection. The first caller connects with `dial`; if it gives up, the next does.
    ///
    /// Errors: why it cannot be opened, for each caller that waited, and whether this caller was the
    /// one that tried.
    pub(crate) async fn sender(
        &self,
        dial: impl Future<Output = Result<Box<dyn ByteStream>, DialError>>,
    ) -> Result<SendRequest<TryBody>, (Arc<DialError>, bool)> {
        let open = async {
            if let Some(failed) = self.failed.get() {
                return Err((Arc::clone(failed), false));
            }
            let opened = match dial.await {
                Ok(stream) => self.open(stream).await,
                Err(error) => Err(error),
            };
            opened.map_err(|error| (Arc::clone(self.failed.get_or_init(|| Arc::new(error))), true))
        };
        self.sender.get_or_try_init(|| open).await.cloned()
    }

    async fn open(&self, stream: Box<dyn ByteStream>) -> Result<SendRequest<TryBody>, DialError> {
        let io = TokioIo::new(Wire::new(stream, Arc::clone(&self.place)));
        let opened = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .initial_max_send_streams(self.streams_max().max(1))
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_send_buf_size(STREAM_WINDOW_BYTES as usize)
            .handshake(io)
            .await;
        let (sender, connection) =
            opened.map_err(|error| DialError::Connect(std::io::Error::other(error)))?;
        let streams_max = Arc::clone(&self.streams_max);
        tokio::spawn(Driver { connection, streams_max });
        Ok(sender)
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let ended = Pin::new(&mut self.connection).poll(cx);
        self.streams_max.store(self.connection.current_max_send_streams(), Ordering::Relaxed);
        ended.map(|ended| {
            if let Err(error) = ended {
                debug!(%error, "a connection to an upstream has ended");
            }
        })
    }
}

/// Pings show that the peer is there while it works on requests.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// What one stream may send us, or we buffer for it, before the other side reads.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;

/// What all streams of a connection may send us.
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
