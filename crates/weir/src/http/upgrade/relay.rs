//! Server-sent events over HTTP/2: what a shard writes into a pair of sockets is passed on to the stream.
//!
//! A stream of HTTP/2 cannot be moved to a shard, but what feeds it can: the shard holds one end of a pair like any
//! connection, with its queue, its watermarks and its ends. Here the other end is read as fast as the stream's window
//! lets its client take it, and no faster. While that window is closed nothing is read, so the shard's end would not be
//! seen there: a [`Watch`] sees it, and bounds the time that the client has for what is left.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};
use weir_engine::{Budget, Share};

use super::super::connection::HttpConnection;
use super::super::leaving::Leaving;
use super::super::piece::{Held, Piece};
use super::events::EventsUpgrade;
use crate::connection::opening;
use crate::http::web::problem::{Kind, Problem};
use crate::limits::admission::Descriptor;
use crate::tls::stream::Stream;

/// The events of one stream.
///
/// Limits: what the pair holds is bounded by its buffers; what is read is one piece, counted in the byte budget while
/// the stream lives.
/// The stream's end is sent when the library holds no piece of it: until then it can be reset.
/// Cost: two descriptors and what the kernel keeps for them, beside the stream's own.
pub(crate) struct Relayed {
    from: Arc<UnixStream>,
    charge: Arc<RelayCharge>,
    /// The pieces that have not left. A pause does not reset the stream: the shard decides when its reader is too slow.
    leaving: Arc<Leaving>,
    _descriptor: Descriptor,
}

/// Done when a shard has ended and its client has not taken what was left in time: the stream is to be reset.
pub(crate) type Watch = Pin<Box<dyn Future<Output = ()> + Send>>;

thread_local! {
    /// From the poll that has begun to relay to whoever polls the request.
    static BEGUN: Cell<Option<Watch>> = const { Cell::new(None) };
}

/// What is to be watched of the request that was polled just now, once.
pub(crate) fn take_watch() -> Option<Watch> {
    BEGUN.take()
}

/// The bytes that a relay holds of the byte budget: one piece, and the bytes that wait for the stream's window.
struct RelayCharge(Arc<Budget>);

impl RelayCharge {
    fn take(budget: &Arc<Budget>) -> Option<RelayCharge> {
        budget.take(Share::Http, 2 * PIECE_BYTES).then(|| RelayCharge(Arc::clone(budget)))
    }
}

impl Drop for RelayCharge {
    fn drop(&mut self) {
        self.0.give(Share::Http, 2 * PIECE_BYTES);
    }
}

/// Has a shard write the events of a request, and passes them on.
pub(crate) async fn relay(
    connection: &Arc<HttpConnection>,
    upgrade: EventsUpgrade,
) -> Result<http::Response<Relayed>, Problem> {
    let shared = &connection.edge.shared;
    let busy = |detail: &str| Problem::retry(Kind::Busy, RETRY_AFTER, detail);
    let charge = RelayCharge::take(shared.engine().budget()).ok_or_else(|| {
        Problem::retry(Kind::BudgetExhausted, RETRY_AFTER, "the byte budget is used up")
    })?;
    let (from, to) = pair().map_err(|_| busy("there are no descriptors left"))?;
    let (unsettled, _descriptor) =
        shared.admission.enter_relayed(connection.caller.peer, upgrade.order).map_err(|cause| {
            shared.admission.refuse(cause, connection.caller.peer);
            busy("there is no place for one more connection")
        })?;
    let response = upgrade.response(());
    let upgraded = upgrade
        .into_events(&connection.edge, connection.caller.identity.clone())
        .ok_or_else(|| busy("it was not admitted"))?;
    let to = TcpStream::from_std(std::net::TcpStream::from(to))
        .map_err(|_| busy("the runtime takes no more sockets"))?;
    Box::pin(opening::run_paired(shared, Stream::plain(to), unsettled, upgraded)).await;
    let from = Arc::new(from);
    BEGUN.set(Some(Box::pin(watch(Arc::clone(&from), shared.config().connection.stall_timeout))));
    let (charge, leaving) = (Arc::new(charge), Leaving::new(&connection.edge));
    Ok(response.map(|()| Relayed { from, charge, leaving, _descriptor }))
}

/// Waits for the shard's end, and for as long as the client has then.
async fn watch(from: Arc<UnixStream>, stall_timeout: Duration) {
    // Nothing is ever written here, so it is writable, until the other end is closed.
    while let Ok(ready) = from.ready(Interest::WRITABLE).await {
        if ready.is_write_closed() {
            break;
        }
        let seen: io::Result<()> =
            from.try_io(Interest::WRITABLE, || Err(io::ErrorKind::WouldBlock.into()));
        debug_assert!(seen.is_err(), "it waits for what comes next");
    }
    tokio::time::sleep(stall_timeout).await;
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
    pub(crate) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Piece>> {
        let mut bytes = [0; PIECE_BYTES];
        loop {
            let read = match ready!(self.from.poll_read_ready(cx)) {
                Ok(()) => self.from.try_read(&mut bytes),
                Err(error) => Err(error),
            };
            match read {
                Ok(count @ 1..) => {
                    let data = Bytes::copy_from_slice(&bytes[..count]);
                    return Poll::Ready(Some(self.piece(data)));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The shard has ended it, and has said why in the last event.
                Ok(0) | Err(_) => {
                    ready!(self.leaving.poll_gone(cx));
                    return Poll::Ready(None);
                }
            }
        }
    }

    fn piece(&self, data: Bytes) -> Piece {
        let charge: Arc<dyn Send + Sync> = self.charge.clone();
        let leaving = Some(Arc::clone(&self.leaving));
        Piece::new(data, Held { leaving, charge: Some(charge), open: None })
    }
}

/// A few events, and as much as waits for a stream's window; the kernel doubles it for what it keeps itself.
const PIECE_BYTES: usize = 16 * 1024;
const RETRY_AFTER: Duration = Duration::from_secs(1);
