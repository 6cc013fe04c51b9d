//! Bodies of requests and of answers.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::closing::{Cut, Inbound};
use super::connection::HttpConnection;
use super::leaving::{Handed, Leaving, set_handed};
use super::piece::{Held, Open, Piece};
use super::proxy::answer::PassedBody;
use super::upgrade::Relayed;
use crate::http::web::problem::Problem;
use crate::http::web::reply::Reply;
use crate::http::web::reply::Stream;
use crate::limits::http_ledger::AnswerCharge;
use crate::observe::counters::http::Dialect;

/// A request's body that tells its connection when a part of it comes.
pub(super) struct Asking {
    body: Inbound,
    connection: Arc<HttpConnection>,
    /// Whether it is the peer's turn, because the body is not whole.
    is_awaited: bool,
}

/// An answer's body, and the bytes that it is charged with.
///
/// A whole body leaves in pieces, so no connection keeps a buffer as large as its largest answer.
/// Over HTTP/2 the end of a long answer is sent when hyper holds no piece of it: until then its
/// stream can be reset.
pub(crate) struct Answer {
    content: Content,
    /// The request that the answer ends; only over HTTP/2.
    open: Option<Open>,
    /// The progress of a long answer over HTTP/2.
    leaving: Option<Arc<Leaving>>,
    /// Set for an answer in several pieces over HTTP/1.1.
    sending: Option<Sending>,
    charge: Option<Arc<AnswerCharge>>,
}

/// Marks a connection over HTTP/1.1 as within an answer, even while its buffer is empty. The mark
/// ends with its drop.
struct Sending(Arc<HttpConnection>);

enum Content {
    /// Nothing, or nothing any more.
    Empty,
    /// A fixed text.
    Text(&'static str),
    /// The rest of a whole body.
    Whole(Bytes),
    /// A body that continues.
    Stream(Going),
    /// Events that a shard writes.
    Relayed(Box<(Relayed, Turn)>),
    /// The answer of an upstream.
    Passed(Box<Passed>),
    /// hyper has the whole answer.
    Leaving,
}

/// An answer of an upstream. Until it ends, it is the gateway's turn.
struct Passed {
    body: PassedBody,
    /// Set when all pieces have come: the trailers, if there are any.
    end: Option<Option<HeaderMap>>,
    turn: Turn,
}

/// A stream. Until it ends, it is the gateway's turn.
struct Going {
    stream: Stream,
    _turn: Turn,
}

/// The gateway's turn to answer a request. It ends with the answer, or when nobody waits for the
/// answer any more.
pub(super) struct Turn(Arc<HttpConnection>);

impl Asking {
    /// `expects`: the HTTP/2 stream whose sender waits for `100 Continue`.
    pub(super) fn new(
        body: Incoming,
        connection: Arc<HttpConnection>,
        expects: Option<u32>,
    ) -> Self {
        let is_awaited = !body.is_end_stream();
        if is_awaited {
            connection.awaits();
        }
        Self { body: Inbound::new(body, &connection, expects), connection, is_awaited }
    }

    fn heard_all(&mut self) {
        if std::mem::take(&mut self.is_awaited) {
            self.connection.heard_all();
        }
    }
}

impl Body for Asking {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_none() || self.body.is_end_stream() {
            self.heard_all();
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

impl Drop for Asking {
    fn drop(&mut self) {
        // The handler does not wait for the rest.
        if self.is_awaited {
            self.connection.gave_up_body();
        }
    }
}

impl Answer {
    /// A fixed text.
    pub(super) fn text(text: &'static str) -> Answer {
        Answer::new(Content::Text(text))
    }

    /// Makes the answer from a reply. Until a stream ends, it is the gateway's turn.
    ///
    /// A long answer is charged here, unless its handler has charged it. Without room it becomes a
    /// refusal. So a handler with effects has to charge before them.
    pub(super) fn of(mut reply: Reply, turn: Turn) -> http::Response<Answer> {
        let connection = Arc::clone(turn.connection());
        let mut charge = reply.extensions_mut().remove::<Arc<AnswerCharge>>();
        let length = match reply.body() {
            Either::Left(full) => full.size_hint().exact().unwrap_or(0),
            Either::Right(_) => 0,
        };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if charge.is_none() && length > SHORT_BYTES {
            match connection.caller.ledger.charge(length) {
                Ok(taken) => charge = Some(Arc::new(taken)),
                Err(refused) => reply = Problem::from(refused).into_response(),
            }
        }
        reply.map(|body| {
            let content = match body {
                Either::Left(full) => whole(full),
                Either::Right(stream) => Content::Stream(Going { stream, _turn: turn }),
            };
            let mut answer = Answer { charge, ..Answer::new(content) };
            match (&answer.content, connection.dialect()) {
                (Content::Whole(bytes), Dialect::Http2) if bytes.len() > SHORT_BYTES => {
                    answer.leaving = Some(connection.watch_answer());
                }
                (Content::Whole(bytes), Dialect::Http1) if bytes.len() > PIECE_BYTES => {
                    answer.sending = Some(Sending::begin(connection));
                }
                _ => {}
            }
            answer
        })
    }

    /// The events that a shard writes.
    pub(super) fn relayed(relayed: Relayed, turn: Turn) -> Answer {
        Answer::new(Content::Relayed(Box::new((relayed, turn))))
    }

    /// The answer of an upstream.
    pub(super) fn passed(body: PassedBody, turn: Turn) -> Answer {
        Answer::new(Content::Passed(Box::new(Passed { body, end: None, turn })))
    }

    /// No body, for the answer to a `HEAD`.
    pub(super) fn empty() -> Answer {
        Answer::new(Content::Empty)
    }

    fn new(content: Content) -> Answer {
        Answer { content, open: None, leaving: None, sending: None, charge: None }
    }

    /// Ties the answer to its request, which ends when the answer has left.
    pub(super) fn belongs_to(&mut self, open: Option<Open>) {
        self.open = open;
    }

    /// A piece that is not the last one.
    fn part(&self, data: Bytes) -> Piece {
        let leaving = self.leaving.clone();
        if let Some(leaving) = &leaving {
            set_handed(Handed::Long(Arc::clone(leaving)));
        }
        Piece::new(data, Held { leaving, ..Held::default() })
    }

    /// The last piece. The request, the charge and the watch on the answer end with it.
    fn last(&mut self, data: Bytes) -> Piece {
        let (open, leaving) = (self.open.take(), self.leaving.clone());
        let (open, handed) = match (open, &leaving) {
            (Some(mut open), None) => {
                open.hand();
                (Some(open), Some(Handed::Short))
            }
            // The piece leaves, or the stream is reset; both end the request.
            (open, Some(leaving)) => (open, Some(Handed::Long(Arc::clone(leaving)))),
            (None, None) => (None, None),
        };
        if let Some(handed) = handed {
            set_handed(handed);
        }
        let charge = self.charge.take().map(|charge| charge as Arc<dyn Send + Sync>);
        self.sending = None;
        Piece::new(data, Held { open, leaving, charge })
    }
}

impl Answer {
    /// The next piece of an upstream's answer, or its trailers.
    fn poll_passed(&mut self, cx: &mut Context<'_>) -> Poll<Option<PieceOrError>> {
        let Content::Passed(passed) = &mut self.content else { return Poll::Ready(None) };
        let Passed { body, end, turn } = &mut **passed;
        let connection = turn.connection();
        if end.is_none() {
            match ready!(body.poll_frame(connection.now(), cx)).transpose() {
                Ok(Some(frame)) => match frame.into_data() {
                    Ok(data) if body.is_end_stream() => {
                        self.content = match &self.leaving {
                            Some(_) => Content::Leaving,
                            None => Content::Empty,
                        };
                        return Poll::Ready(Some(Ok(Frame::data(self.last(data)))));
                    }
                    Ok(data) => {
                        if connection.dialect() == Dialect::Http2 && self.leaving.is_none() {
                            self.leaving = Some(connection.watch_answer());
                        }
                        return Poll::Ready(Some(Ok(Frame::data(self.part(data)))));
                    }
                    Err(frame) => *end = Some(frame.into_trailers().ok()),
                },
                Ok(None) => *end = Some(None),
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
        if let Some(leaving) = &self.leaving {
            ready!(leaving.poll_gone(cx));
        }
        let trailers = end.take().flatten();
        self.content = Content::Empty;
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }
}

type PieceOrError = Result<Frame<Piece>, std::io::Error>;

fn whole(full: Full<Bytes>) -> Content {
    let mut full = full;
    let frame = Pin::new(&mut full).poll_frame(&mut Context::from_waker(std::task::Waker::noop()));
    match frame {
        Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
            Ok(bytes) if !bytes.is_empty() => Content::Whole(bytes),
            Ok(_) | Err(_) => Content::Empty,
        },
        Poll::Ready(Some(Err(never))) => match never {},
        Poll::Ready(None) | Poll::Pending => Content::Empty,
    }
}

impl Body for Answer {
    type Data = Piece;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, Self::Error>>> {
        let answer = &mut *self;
        let bytes = match &mut answer.content {
            Content::Empty => return Poll::Ready(None),
            Content::Text(text) => Bytes::from_static(text.as_bytes()),
            Content::Whole(rest) if rest.len() > PIECE_BYTES => {
                let part = rest.split_to(PIECE_BYTES);
                return Poll::Ready(Some(Ok(Frame::data(answer.part(part)))));
            }
            Content::Whole(rest) => std::mem::take(rest),
            Content::Stream(going) => {
                let frame = ready!(Pin::new(&mut going.stream).poll_frame(cx));
                let piece = |data| Piece::new(data, Held::default());
                return Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(piece))));
            }
            Content::Relayed(relayed) => {
                let piece = ready!(relayed.0.poll_piece(cx));
                return Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))));
            }
            Content::Passed(_) => return answer.poll_passed(cx),
            Content::Leaving => {
                if let Some(leaving) = &answer.leaving {
                    ready!(leaving.poll_gone(cx));
                }
                answer.content = Content::Empty;
                return Poll::Ready(None);
            }
        };
        answer.content = if answer.leaving.is_some() { Content::Leaving } else { Content::Empty };
        Poll::Ready(Some(Ok(Frame::data(answer.last(bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        match self.content {
            Content::Empty => true,
            Content::Text(_)
            | Content::Whole(_)
            | Content::Stream(_)
            | Content::Relayed(_)
            | Content::Passed(_)
            | Content::Leaving => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Empty | Content::Leaving => SizeHint::with_exact(0),
            Content::Text(text) => SizeHint::with_exact(text.len() as u64),
            Content::Whole(rest) => SizeHint::with_exact(rest.len() as u64),
            Content::Passed(passed) => passed.body.size_hint(),
            Content::Stream(_) | Content::Relayed(_) => SizeHint::default(),
        }
    }
}

impl Turn {
    pub(super) fn of(connection: &Arc<HttpConnection>) -> Turn {
        connection.begun();
        Turn(Arc::clone(connection))
    }

    pub(super) fn connection(&self) -> &Arc<HttpConnection> {
        &self.0
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.answered();
    }
}

impl Sending {
    fn begin(connection: Arc<HttpConnection>) -> Sending {
        connection.set_sending(true);
        Sending(connection)
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.0.set_sending(false);
    }
}

/// The most bytes of an answer that a connection buffers at one time.
const PIECE_BYTES: usize = 16 * 1024;
/// The charge of a request covers an answer up to this length.
const SHORT_BYTES: usize = 1024;
