//! `GET /v1/stats`: the figures of this node as one document; `GET /v1/stats/stream`: the same once
//! a second, for any number of readers.

mod counts;
mod parts;
mod upstreams;
mod view;

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use http_body_util::{BodyExt as _, Either};
use hyper::body::{Body, Frame};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::MissedTickBehavior;

use super::metrics::Gateway;
use crate::Handle;
use crate::http::web::problem::{Kind, Problem};
use crate::http::web::reply::{self, Reply};
pub(super) use view::StatsView;

/// The figures, and the readers of their stream.
///
/// Limits: [`READERS_MAX`] readers. Nothing waits for a reader: one that has not taken a document
/// when the next one comes misses that next one.
/// Cost: one document a second while there is a reader, and nothing without one. Each reader costs
/// a write of the same bytes.
pub(super) struct Stats {
    gateway: Gateway,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    readers: Vec<Sender<Bytes>>,
    /// The last event, for a reader that comes between two. `None` if no task makes any.
    last: Option<Bytes>,
    /// Whether a task makes events.
    is_running: bool,
    /// The server ends, so there are no more readers.
    is_closed: bool,
}

/// The body of a reader: an event a second.
struct Stream {
    events: Receiver<Bytes>,
}

impl Stats {
    pub(super) fn new(handle: Handle) -> Arc<Stats> {
        Arc::new(Stats { gateway: Gateway::new(handle), state: Mutex::default() })
    }

    /// `GET /v1/stats`.
    pub(super) fn look(&self) -> Reply {
        reply::json(StatusCode::OK, &StatsView::of(&self.gateway))
    }

    /// `GET /v1/stats/stream`.
    pub(super) fn stream(self: &Arc<Self>) -> Result<Reply, Problem> {
        let Some(events) = self.listen() else {
            let detail = format!("{READERS_MAX} streams of figures are open, which is the limit");
            return Err(Problem::retry(Kind::TooManyRequests, RETRY_AFTER, detail));
        };
        let mut response = reply::empty(StatusCode::OK);
        let content_type = HeaderValue::from_static("text/event-stream; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, content_type);
        // The end of the connection then shows the end of the stream.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        *response.body_mut() = Either::Right(Stream { events }.boxed_unsync());
        Ok(response)
    }

    /// Ends all streams.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        self.remove(&mut state, |_| false);
    }

    /// Enters a reader; `None` if there are too many. The first one starts the task.
    fn listen(self: &Arc<Self>) -> Option<Receiver<Bytes>> {
        let (sender, receiver) = channel(1);
        let mut state = self.lock();
        if state.is_closed {
            return Some(receiver);
        }
        self.remove(&mut state, |reader| !reader.is_closed());
        if state.readers.len() >= READERS_MAX {
            self.counts().count_refused();
            return None;
        }
        if let Some(last) = &state.last {
            // The queue is empty, so it has room.
            let _ = sender.try_send(last.clone());
        }
        state.readers.push(sender);
        self.counts().set_open(state.readers.len());
        if !std::mem::replace(&mut state.is_running, true) {
            tokio::spawn(Arc::clone(self).run());
        }
        Some(receiver)
    }

    /// Makes an event each second until there is no reader.
    async fn run(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if self.is_unheard() {
                return;
            }
            let event = event(&StatsView::of(&self.gateway));
            self.tell(&event);
        }
    }

    /// Whether there is no reader, so that the task ends.
    fn is_unheard(&self) -> bool {
        let mut state = self.lock();
        self.remove(&mut state, |reader| !reader.is_closed());
        if state.readers.is_empty() {
            (state.is_running, state.last) = (false, None);
        }
        state.readers.is_empty()
    }

    fn tell(&self, event: &Bytes) {
        let mut state = self.lock();
        state.last = Some(event.clone());
        self.remove(&mut state, |reader| match reader.try_send(event.clone()) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                self.counts().count_skipped();
                true
            }
            Err(TrySendError::Closed(_)) => false,
        });
    }

    fn remove(&self, state: &mut State, stays: impl FnMut(&Sender<Bytes>) -> bool) {
        state.readers.retain(stays);
        self.counts().set_open(state.readers.len());
    }

    fn counts(&self) -> &crate::observe::counters::ReaderCounts {
        &self.gateway.handle().counters().stats
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Body for Stream {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.events.poll_recv(cx).map(|event| event.map(|event| Ok(Frame::data(event))))
    }
}

/// A server-sent event. JSON escapes line breaks, so its data is one line.
fn event(view: &StatsView) -> Bytes {
    let mut text = b"data: ".to_vec();
    // The document has only numbers and texts, and a Vec takes everything.
    let _ = serde_json::to_writer(&mut text, view);
    text.extend_from_slice(b"\n\n");
    text.into()
}

/// A quarter of the connections to the admin API: the others stay for requests.
const READERS_MAX: usize = 64;
const PERIOD: Duration = Duration::from_secs(1);
const RETRY_AFTER: Duration = Duration::from_secs(1);
