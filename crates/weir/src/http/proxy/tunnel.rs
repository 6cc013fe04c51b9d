//! The bytes of a WebSocket between a client and an upstream.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::answer::Passage;
use super::charge::ProxyCharge;
use super::idle::Idle;
use crate::http::orders::{Follower, Orders};
use crate::observe::counters::http::End;
use crate::tls::stream::Stream;

/// A connection whose request has become a WebSocket with an upstream.
///
/// Limits: of each direction, at most [`PIECE_BYTES`] wait for a side that does not take them. The
/// route's `idle_timeout` ends a tunnel in which no byte moves.
/// Cost: no buffer while nothing waits.
pub(in crate::http) struct Tunnel {
    upgrade: OnUpgrade,
    idle_timeout: Duration,
    _passage: Passage,
    _charge: ProxyCharge,
}

/// One direction of a tunnel.
#[derive(Default)]
struct Pipe {
    /// Bytes that the other side has not taken; those before `taken` have gone.
    rest: Vec<u8>,
    taken: usize,
    /// Whether the one side has ended.
    is_ended: bool,
    /// Whether the other side knows that.
    is_over: bool,
    has_moved: bool,
}

impl Tunnel {
    pub(super) fn new(
        upgrade: OnUpgrade,
        mut passage: Passage,
        charge: ProxyCharge,
        idle_timeout: Duration,
    ) -> Tunnel {
        passage.in_route.become_tunnel();
        Tunnel { upgrade, idle_timeout, _passage: passage, _charge: charge }
    }

    /// Carries bytes until both sides have ended, one breaks, nothing moves for too long, or the
    /// connection is told to end.
    ///
    /// `ahead`: bytes of the client that were read already. `now`: tells the current tick.
    pub(in crate::http) async fn run(
        mut self,
        mut client: Stream,
        ahead: Vec<u8>,
        orders: &Orders,
        now: impl Fn() -> u32,
    ) -> End {
        let mut follower = Follower::default();
        let (mut idle, mut upstream) = (Idle::new(self.idle_timeout), None);
        let mut up = Pipe { rest: ahead, ..Pipe::default() };
        let mut down = Pipe::default();
        poll_fn(|cx| {
            if let Some(end) = follower.follow(orders, cx, || {}) {
                return Poll::Ready(end);
            }
            if follower.is_draining() {
                return Poll::Ready(End::Draining);
            }
            let upstream = match &mut upstream {
                Some(upstream) => upstream,
                None => match ready!(Pin::new(&mut self.upgrade).poll(cx)) {
                    Ok(upgraded) => upstream.insert(TokioIo::new(upgraded)),
                    Err(_) => return Poll::Ready(End::Broken),
                },
            };
            let polled = (up.poll(&mut client, upstream, cx), down.poll(upstream, &mut client, cx));
            if std::mem::take(&mut up.has_moved) | std::mem::take(&mut down.has_moved) {
                idle.moved();
            }
            match polled {
                (Poll::Ready(Err(_)), _) | (_, Poll::Ready(Err(_))) => Poll::Ready(End::Broken),
                (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(End::Peer),
                (Poll::Pending, _) | (_, Poll::Pending) => {
                    idle.poll(now(), cx).map(|()| End::IdleTimeout)
                }
            }
        })
        .await
    }
}

impl Pipe {
    /// Carries what is there; ready at the end.
    fn poll(
        &mut self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        for _ in 0..PIECES_AT_A_TIME {
            if self.is_over {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_rest(to, cx))?;
            if self.is_ended {
                ready!(Pin::new(&mut *to).poll_shutdown(cx))?;
                self.is_over = true;
                continue;
            }
            let mut space = [MaybeUninit::uninit(); PIECE_BYTES];
            let mut piece = ReadBuf::uninit(&mut space);
            if Pin::new(&mut *from).poll_read(cx, &mut piece)?.is_pending() {
                // TLS may hold a record that the socket has not taken.
                let _ = Pin::new(to).poll_flush(cx)?;
                return Poll::Pending;
            }
            let piece = piece.filled();
            (self.is_ended, self.has_moved) = (piece.is_empty(), true);
            let written = match Pin::new(&mut *to).poll_write(cx, piece)? {
                Poll::Ready(written) => written,
                Poll::Pending => 0,
            };
            self.rest.extend_from_slice(&piece[written..]);
        }
        // Other tasks have their turn.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Writes what waits.
    fn poll_rest(
        &mut self,
        to: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while self.taken < self.rest.len() {
            let written = ready!(Pin::new(&mut *to).poll_write(cx, &self.rest[self.taken..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.taken += written;
            self.has_moved = true;
        }
        (self.rest, self.taken) = (Vec::new(), 0);
        Poll::Ready(Ok(()))
    }
}

const PIECE_BYTES: usize = 8 * 1024;
const PIECES_AT_A_TIME: usize = 16;
