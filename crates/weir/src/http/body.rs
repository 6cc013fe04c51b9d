//! Bodies: of requests, whose coming is watched, and of answers.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::closing::Inbound;
use super::guest::Guest;
use super::live::Relayed;
use crate::admin;
use crate::web::reply::Reply;

/// A request's body that shows when something of it comes.
pub(super) struct Asking {
    body: Inbound,
    guest: Arc<Guest>,
}

/// An answer's body.
///
/// What is there as a whole leaves in pieces: so no connection keeps a buffer as large as its largest answer.
pub(crate) enum Answer {
    /// Nothing, or nothing any more.
    Empty,
    /// A text of the program's.
    Text(&'static str),
    /// What is left of a whole.
    Whole(Bytes),
    /// One that goes on.
    Stream(Going),
    /// Events, as long as a shard holds them.
    Relayed(Box<(Relayed, Turn)>),
}

/// A stream, and as long as it goes on, our turn.
pub(crate) struct Going {
    stream: admin::Stream,
    _turn: Turn,
}

/// Our turn to answer a request, which ends with its answer, or when nobody waits for that any more.
pub(super) struct Turn(Arc<Guest>);

impl Asking {
    /// `expects`: the stream of HTTP/2 whose sender waits for `100 Continue`.
    pub(super) fn new(body: Incoming, guest: Arc<Guest>, expects: Option<u32>) -> Self {
        Self { body: Inbound::new(body, &guest, expects), guest }
    }
}

impl Body for Asking {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_none() || self.body.is_end_stream() {
            self.guest.heard_all();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Answer {
    /// Takes a reply's body over. Until a stream ends it is our turn.
    pub(super) fn of(reply: Reply, turn: Turn) -> http::Response<Answer> {
        reply.map(|body| match body {
            Either::Left(full) => Answer::whole(full),
            Either::Right(stream) => Answer::Stream(Going { stream, _turn: turn }),
        })
    }

    /// The events that a shard writes.
    pub(super) fn relayed(relayed: Relayed, turn: Turn) -> Answer {
        Answer::Relayed(Box::new((relayed, turn)))
    }

    fn whole(full: Full<Bytes>) -> Answer {
        let mut full = full;
        let frame =
            Pin::new(&mut full).poll_frame(&mut Context::from_waker(std::task::Waker::noop()));
        match frame {
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(bytes) if !bytes.is_empty() => Answer::Whole(bytes),
                Ok(_) | Err(_) => Answer::Empty,
            },
            Poll::Ready(Some(Err(never))) => match never {},
            Poll::Ready(None) | Poll::Pending => Answer::Empty,
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let bytes = match &mut *self {
            Answer::Empty => return Poll::Ready(None),
            Answer::Text(text) => Bytes::from_static(text.as_bytes()),
            Answer::Whole(rest) if rest.len() > PIECE_BYTES => {
                return Poll::Ready(Some(Ok(Frame::data(rest.split_to(PIECE_BYTES)))));
            }
            Answer::Whole(rest) => std::mem::take(rest),
            Answer::Stream(going) => return Pin::new(&mut going.stream).poll_frame(cx),
            Answer::Relayed(relayed) => return relayed.0.poll_frame(cx).map(|frame| frame.map(Ok)),
        };
        *self = Answer::Empty;
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Answer::Empty => true,
            Answer::Text(_) | Answer::Whole(_) | Answer::Stream(_) | Answer::Relayed(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Answer::Empty => SizeHint::with_exact(0),
            Answer::Text(text) => SizeHint::with_exact(text.len() as u64),
            Answer::Whole(rest) => SizeHint::with_exact(rest.len() as u64),
            Answer::Stream(_) | Answer::Relayed(_) => SizeHint::default(),
        }
    }
}

impl Turn {
    pub(super) fn of(guest: &Arc<Guest>) -> Turn {
        Turn(Arc::clone(guest))
    }

    pub(super) fn guest(&self) -> &Arc<Guest> {
        &self.0
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.answered();
    }
}

/// As much as is buffered for a connection at one time.
const PIECE_BYTES: usize = 16 * 1024;
