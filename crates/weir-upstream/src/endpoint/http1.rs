//! A connection for HTTP/1.1: one request at a time.
//!
//! No task drives it. The caller's own task does, while it waits for the head or reads the body:
//! so an exchange wakes no other task. While the connection is idle, nothing drives it; its next
//! user looks whether it is still open.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::task::unconstrained;
use tokio::time::Instant;
use tracing::debug;

use super::places::Place;
use super::wire::Wire;
use crate::dial::ByteStream;
use crate::outgoing::{TryBody, Upload};

/// An open connection.
pub(crate) struct Http1 {
    sender: SendRequest<TryBody>,
    /// `None` when it has ended, or when a task drives it.
    driver: Option<Connection<TokioIo<Wire>, TryBody>>,
    place: Arc<Place>,
    /// After this time it gets no request.
    pub(crate) expires: Instant,
    pub(crate) idle_since: Instant,
}

type Answered = Result<Response<Incoming>, TrySendError<Request<TryBody>>>;

impl Http1 {
    pub(crate) async fn open(
        stream: Box<dyn ByteStream>,
        place: Arc<Place>,
        now: Instant,
        expires: Instant,
    ) -> hyper::Result<Box<Http1>> {
        let io = TokioIo::new(Wire::new(stream, Arc::clone(&place)));
        let (sender, driver) = Builder::new().max_buf_size(BUFFER_BYTES_MAX).handshake(io).await?;
        Ok(Box::new(Http1 { sender, driver: Some(driver), place, expires, idle_since: now }))
    }

    /// Whether it is open and without a request.
    pub(crate) fn is_idle(&mut self) -> bool {
        self.drive(&mut Context::from_waker(Waker::noop()));
        self.driver.is_some() && self.sender.is_ready()
    }

    /// Bytes that the stream has taken since it was opened.
    pub(crate) fn written(&self) -> u64 {
        self.place.written.load(Ordering::Relaxed)
    }

    /// Begins a request. [`Http1::finish`] then waits for the head of its answer.
    ///
    /// Two steps, and the request is an argument of the first: a future that is given a request keeps
    /// room for it to its end.
    pub(crate) fn begin(
        &mut self,
        mut request: Request<TryBody>,
        may_upgrade: bool,
    ) -> impl Future<Output = Answered> + use<> {
        request.body_mut().keep_until(&self.place.written);
        if may_upgrade {
            self.hand_to_task();
        }
        self.sender.try_send_request(request)
    }

    /// Waits for the head of an answer. To drop the future and the connection cancels the request.
    pub(crate) async fn finish<F: Future<Output = Answered>>(
        &mut self,
        answer: Pin<&mut F>,
        upload: Option<Arc<Upload>>,
    ) -> Answered {
        let mut answer = unconstrained(answer);
        let mut answer = Pin::new(&mut answer);
        let driver = &mut self.driver;
        let (written, mut before) = (&self.place.written, 0);
        let answer = poll_fn(|cx| {
            // What the driver does may make the answer ready, and nothing else does. So no waker is
            // needed for the answer; and none for the driver, unless it has to wait. A waker of this
            // task would be woken by what this task does itself.
            let mut quiet = Context::from_waker(Waker::noop());
            drive(driver, &mut quiet);
            if let Poll::Ready(answer) = answer.as_mut().poll(&mut quiet) {
                return Poll::Ready(answer);
            }
            drive(driver, cx);
            if let Some(upload) = &upload {
                let now = written.load(Ordering::Relaxed);
                if std::mem::replace(&mut before, now) != now {
                    upload.note_progress();
                }
            }
            match driver {
                Some(_) => answer.as_mut().poll(&mut quiet),
                // It has ended with an answer or without, or another task drives it.
                None => answer.as_mut().poll(cx),
            }
        });
        let answer = answer.await;
        if answer.is_ok() && upload.is_some_and(|upload| !upload.has_ended()) {
            // The request goes on beside the answer, also while nobody reads the answer.
            self.hand_to_task();
        }
        answer
    }

    /// Reads from the body of the answer.
    pub(crate) fn poll_body(
        &mut self,
        body: &mut Incoming,
        cx: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        if self.driver.is_none() {
            return Pin::new(body).poll_frame(cx);
        }
        let mut quiet = Context::from_waker(Waker::noop());
        if let Poll::Ready(frame) = poll_quietly(body, &mut quiet) {
            return Poll::Ready(frame);
        }
        self.drive(&mut quiet);
        if let Poll::Ready(frame) = poll_quietly(body, &mut quiet) {
            return Poll::Ready(frame);
        }
        self.drive(cx);
        match self.driver {
            Some(_) => poll_quietly(body, &mut quiet),
            None => Pin::new(body).poll_frame(cx),
        }
    }

    fn drive(&mut self, cx: &mut Context<'_>) {
        drive(&mut self.driver, cx);
    }

    /// From now on a task drives it, until it ends. Then it can be upgraded, and takes no further
    /// request.
    fn hand_to_task(&mut self) {
        if let Some(driver) = self.driver.take() {
            tokio::spawn(async move {
                if let Err(error) = driver.with_upgrades().await {
                    debug!(%error, "a connection to an upstream has ended");
                }
            });
        }
    }
}

fn drive(driver: &mut Option<Connection<TokioIo<Wire>, TryBody>>, cx: &mut Context<'_>) {
    let Some(connection) = driver else { return };
    if let Poll::Ready(ended) = pin!(unconstrained(&mut *connection)).poll(cx) {
        if let Err(error) = ended {
            debug!(%error, "a connection to an upstream has ended");
        }
        // Whoever waits for an answer or a body hears of the end.
        *driver = None;
    }
}

/// Only the driver makes a body ready, so its waker need not wake this task.
fn poll_quietly(
    body: &mut Incoming,
    quiet: &mut Context<'_>,
) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
    pin!(unconstrained(poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)))).poll(quiet)
}

/// The longest head of an answer; also what a connection buffers of a body.
const BUFFER_BYTES_MAX: usize = 128 * 1024;
