//! Server-sent events over HTTP/2: what a shard writes into a pair of sockets is passed on to the stream.
//!
//! A stream of HTTP/2 cannot be moved to a shard, but what feeds it can: the shard holds one end of a pair like any
//! connection, with its queue, its watermarks and its ends. Here the other end is read as fast as the stream's window
//! lets its client take it, and no faster.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::Frame;
use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use super::super::guest::Guest;
use super::events::EventsWish;
use crate::admission::Descriptor;
use crate::session;
use crate::tls::stream::Stream;
use crate::web::problem::{Kind, Problem};

/// The events of one stream.
///
/// Limits: what the pair holds is bounded by its buffers; what is read is one piece, counted in the byte budget while
/// the stream lives.
/// Cost: two descriptors and what the kernel keeps for them, beside the stream's own.
pub(crate) struct Relayed {
    from: UnixStream,
    _charge: Charge,
    _descriptor: Descriptor,
}

/// What is on its way between the pair and the client: a piece, and what the stream keeps for its window.
struct Charge(Arc<weir_engine::Budget>);

impl Charge {
    fn take(budget: &Arc<weir_engine::Budget>) -> Option<Charge> {
        budget.take(2 * PIECE_BYTES).then(|| Charge(Arc::clone(budget)))
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.0.give(2 * PIECE_BYTES);
    }
}

/// Has a shard write the events of a request, and passes them on.
pub(crate) async fn relay(
    guest: &Guest,
    wish: EventsWish,
) -> Result<http::Response<Relayed>, Problem> {
    let hub = &guest.edge.hub;
    let busy = |detail: &str| Problem::retry(Kind::Busy, RETRY_AFTER, detail);
    let _charge = Charge::take(hub.engine().budget()).ok_or_else(|| {
        Problem::retry(Kind::BudgetExhausted, RETRY_AFTER, "the byte budget is used up")
    })?;
    let (from, to) = pair().map_err(|_| busy("there are no descriptors left"))?;
    let (unsettled, _descriptor) =
        hub.admission.enter_relayed(hub, guest.caller.peer).map_err(|cause| {
            hub.admission.refuse(cause, guest.caller.peer);
            busy("there is no place for one more connection")
        })?;
    let response = wish.response(());
    let live = wish.into_events(&guest.edge, guest.caller.identity.clone());
    let to = TcpStream::from_std(std::net::TcpStream::from(to))
        .map_err(|_| busy("the runtime takes no more sockets"))?;
    session::run_live(hub, Stream::plain(to), unsettled, live).await;
    Ok(response.map(|()| Relayed { from, _charge, _descriptor }))
}

fn pair() -> io::Result<(UnixStream, OwnedFd)> {
    let (from, to) = std::os::unix::net::UnixStream::pair()?;
    for end in [&from, &to] {
        end.set_nonblocking(true)?;
        // What waits here is not seen as waiting by anybody.
        socket2::SockRef::from(end).set_send_buffer_size(PIECE_BYTES)?;
    }
    Ok((UnixStream::from_std(from)?, OwnedFd::from(to)))
}

impl Relayed {
    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        let mut bytes = [0; PIECE_BYTES];
        let mut read = ReadBuf::new(&mut bytes);
        let polled = ready!(Pin::new(&mut self.from).poll_read(cx, &mut read));
        Poll::Ready(match polled {
            Ok(()) if !read.filled().is_empty() => {
                Some(Frame::data(Bytes::copy_from_slice(read.filled())))
            }
            // The shard has ended it, and has said why in the last event.
            Ok(()) | Err(_) => None,
        })
    }
}

/// A few events, and as much as waits for a stream's window; the kernel doubles it for what it keeps itself.
const PIECE_BYTES: usize = 16 * 1024;
const RETRY_AFTER: std::time::Duration = std::time::Duration::from_secs(1);
