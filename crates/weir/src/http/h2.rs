//! HTTP/2 on one connection.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::timeout;

use super::connection::HttpConnection;
use super::io_wrapper::IoWrapper;
use super::leaving::{Handed, Leaving, take_handed};
use super::orders::Follower;
use super::service::Service;
use super::upgrade::{Watch, take_watch};
use crate::base::config::HttpConfig;
use crate::observe::counters::http::End;
use crate::tls::stream::Stream;

/// The requests of a connection that have not been polled yet.
///
/// The connection's own task polls them after hyper has read all input that is there. So all
/// answers that are ready at once leave with one write. A request that has to wait becomes a task
/// of its own.
struct Tasks {
    begun: Mutex<Vec<Task>>,
    connection: Arc<HttpConnection>,
}

/// hyper's way to the requests. Each request has a clone, so a clone must not keep them alive.
#[derive(Clone)]
struct Executor(Weak<Tasks>);

/// A request, until its answer has left or its stream is reset. Dropping it resets the stream.
struct Task {
    answering: Pin<Box<dyn Future<Output = ()> + Send>>,
    watch: Option<Watch>,
    leaving: Option<Arc<Leaving>>,
    connection: Arc<HttpConnection>,
}

impl Future for Task {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let answered = self.answering.as_mut().poll(cx);
        let (watch, handed) = (take_watch(), take_handed());
        if answered.is_ready() {
            return answered;
        }
        self.watch = watch.or(self.watch.take());
        self.leaving = match handed {
            Some(Handed::Long(leaving)) => Some(leaving),
            // The answer waits for the window of its stream.
            Some(Handed::Short) => {
                let leaving = self.connection.watch_answer();
                leaving.handed();
                Some(leaving)
            }
            None => self.leaving.take(),
        };
        if self.leaving.as_ref().is_some_and(|leaving| leaving.is_stalled(cx)) {
            self.connection.caller.ledger.share().count_reset();
            return Poll::Ready(());
        }
        match &mut self.watch {
            Some(watch) => watch.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }
}

impl<F> hyper::rt::Executor<F> for Executor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, request: F) {
        // The connection's task has ended, so nothing could send the answer.
        let Some(tasks) = self.0.upgrade() else { return };
        let connection = Arc::clone(&tasks.connection);
        let task = Task { answering: Box::pin(request), watch: None, leaving: None, connection };
        tasks.lock().push(task);
    }
}

impl Tasks {
    fn new(connection: &Arc<HttpConnection>) -> Arc<Tasks> {
        Arc::new(Tasks { begun: Mutex::default(), connection: Arc::clone(connection) })
    }

    /// Polls all of them for the first time; `false`: there were none.
    fn begin(&self, cx: &mut Context<'_>) -> bool {
        let mut begun = std::mem::take(&mut *self.lock());
        let is_any = !begun.is_empty();
        for mut task in begun.drain(..) {
            if Pin::new(&mut task).poll(cx).is_pending() {
                tokio::spawn(task);
            }
        }
        // Keeps the allocation, unless new requests have come meanwhile.
        let mut left = self.lock();
        if left.is_empty() {
            *left = begun;
        }
        is_any
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Task>> {
        self.begun.lock().expect("no panic happens under the lock of the requests")
    }
}

fn builder(config: &HttpConfig, tasks: &Arc<Tasks>) -> http2::Builder<Executor> {
    let mut builder = http2::Builder::new(Executor(Arc::downgrade(tasks)));
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(config.h2_streams_max)
        .initial_stream_window_size(config.h2_window_bytes)
        .initial_connection_window_size(config.h2_window_bytes)
        .max_header_list_size(u32::try_from(config.head_bytes_max).unwrap_or(u32::MAX))
        .max_frame_size(FRAME_BYTES_MAX)
        .max_send_buf_size(SEND_BYTES_MAX)
        .max_pending_accept_reset_streams(RESETS_PENDING_MAX)
        .max_local_error_reset_streams(RESETS_OF_OURS_MAX)
        .keep_alive_interval(config.h2_ping_interval)
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}

/// Serves the connection to its end.
///
/// `ahead`: the bytes that have come so far.
pub(super) async fn converse(
    connection: &Arc<HttpConnection>,
    stream: Stream,
    ahead: Vec<u8>,
) -> End {
    let io_wrapper = TokioIo::new(IoWrapper::new(stream, ahead, Arc::clone(connection)));
    let service = Service::new(Arc::clone(connection));
    let tasks = Tasks::new(connection);
    let builder = builder(&connection.edge.h2, &tasks);
    let mut conn = pin!(builder.serve_connection(io_wrapper, service));
    let mut follower = Follower::default();
    let told = poll_fn(|cx| {
        connection.begin_turn();
        let drain = || conn.as_mut().graceful_shutdown();
        if let Some(end) = follower.follow(&connection.orders, cx, drain) {
            return Poll::Ready(Err(end));
        }
        loop {
            let polled = conn.as_mut().poll(cx);
            if let Some(interim) = &connection.interim {
                interim.settle();
            }
            if polled.is_ready() || !tasks.begin(cx) {
                return polled.map(Ok);
            }
        }
    })
    .await;
    match told {
        Ok(ended) => end_of(connection, ended, follower.is_draining()),
        Err(end) => {
            // GOAWAY tells the peer which of its requests were not handled, if the peer still
            // reads.
            conn.as_mut().graceful_shutdown();
            let goodbye = if end == End::Memory { Duration::ZERO } else { GOODBYE_TIMEOUT };
            let rest = poll_fn(|cx| {
                connection.begin_turn();
                conn.as_mut().poll(cx)
            });
            let _ = timeout(goodbye, rest).await;
            end
        }
    }
}

fn end_of(connection: &HttpConnection, ended: hyper::Result<()>, is_draining: bool) -> End {
    match ended {
        Ok(()) if connection.is_at_last_request() => End::RequestsMax,
        Ok(()) if is_draining => End::Draining,
        Ok(()) if connection.has_ended() => End::Peer,
        Ok(()) => End::Finished,
        Err(error) => {
            tracing::debug!(%error, peer = ?connection.caller.peer, "an HTTP/2 connection ended early");
            let cause = std::error::Error::source(&error);
            let of_socket = cause.is_some_and(|cause| cause.is::<io::Error>());
            match (of_socket, connection.has_ended()) {
                (true, false) => End::Broken,
                (true, true) => End::Peer,
                (false, _) => End::Protocol,
            }
        }
    }
}

/// The smallest limit that there may be (RFC 9113 section 4.2): one frame waits for each
/// connection.
const FRAME_BYTES_MAX: u32 = 16 * 1024;
/// The bytes of an answer that may wait for the window of its stream.
const SEND_BYTES_MAX: usize = 16 * 1024;
/// Streams that the peer reset before we handled them; more are a flood.
const RESETS_PENDING_MAX: usize = 20;
/// Streams that we reset because the peer broke a rule on them; more are an attack.
const RESETS_OF_OURS_MAX: usize = 128;
const PING_TIMEOUT: Duration = Duration::from_secs(10);
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);
