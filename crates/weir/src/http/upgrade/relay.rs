//! Server-sent events over HTTP/2. A shard writes them into a socket pair, and a relay passes them
//! on to the stream.
//!
//! A stream of HTTP/2 cannot move to a shard, but its source can. The shard holds one end of the
//! pair like any connection, with its outbox, watermarks and ends. The relay reads the other end as
//! fast as the stream's window allows, and no faster. While that window is closed, the relay reads
//! nothing and would not see the end of the shard's side. A [`Watch`] sees that end, and bounds the
//! time in which the client must take the rest.

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
use super::super::orders::Order;
use super::super::piece::{Held, Piece};
use super::events::EventsUpgrade;
use crate::connection::opening;
use crate::http::web::problem::{Kind, Problem};
use crate::limits::admission::Descriptor;
use crate::tls::stream::Stream;

/// The events of one stream.
///
/// Limits: the socket buffers bound the bytes in the pair. The relay reads one piece at a time,
/// which the byte budget counts as long as the stream lives. The end of the stream is sent when
/// hyper holds no piece of it: until then the stream can be reset.
/// Cost: two descriptors and the kernel's memory for them, beside those of the stream.
pub(crate) struct Relayed {
    from: Arc<UnixStream>,
    charge: Arc<RelayCharge>,
    /// The pieces that have not left. A pause does not reset the stream: the shard decides when a
    /// reader is too slow.
    leaving: Arc<Leaving>,
    connection: Arc<HttpConnection>,
    _descriptor: Descriptor,
}

/// Ready when the shard has ended and the client did not take the rest in time. Then the stream has
/// to be reset.
pub(crate) type Watch = Pin<Box<dyn Future<Output = ()> + Send>>;

thread_local! {
    /// Carries the watch from the poll that began to relay to the task of the request.
    static BEGUN: Cell<Option<Watch>> = const { Cell::new(None) };
}

/// Takes the watch of the request that was polled just now.
pub(crate) fn take_watch() -> Option<Watch> {
    BEGUN.take()
}

/// The bytes that a relay holds of the byte budget: one piece, and the bytes that wait for the
/// stream's window.
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

/// Lets a shard write the events of a request, and relays them.
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
            busy("there is no room for one more connection")
        })?;
    let response = upgrade.response(());
    let upgraded = upgrade
        .into_events(&connection.edge, connection.caller.identity.clone())
        .ok_or_else(|| busy("the device was not admitted"))?;
    let to = TcpStream::from_std(std::net::TcpStream::from(to))
        .map_err(|_| busy("the runtime takes no more sockets"))?;
    Box::pin(opening::run_paired(shared, Stream::plain(to), unsettled, upgraded)).await;
    let from = Arc::new(from);
    BEGUN.set(Some(Box::pin(watch(Arc::clone(&from), shared.config().connection.stall_timeout))));
    let (charge, leaving) = (Arc::new(charge), Leaving::new(&connection.edge));
    let connection = Arc::clone(connection);
    Ok(response.map(|()| Relayed { from, charge, leaving, connection, _descriptor }))
}

/// Waits for the end of the shard's side, and then for the time that the client has.
async fn watch(from: Arc<UnixStream>, stall_timeout: Duration) {
    // Nothing is ever written here, so the socket is writable until the other end is closed.
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
        // Nobody counts the bytes that wait in this buffer.
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
                // The shard has ended its side. Its last event said why.
                Ok(0) | Err(_) => {
                    ready!(self.leaving.poll_gone(cx));
                    // A reader that comes back over the same connection would not go elsewhere.
                    if self.connection.edge.shared.drains.pace().is_some() {
                        self.connection.orders.tell(Order::Drain);
                    }
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

/// A few events, and the most that waits for a stream's window. The kernel doubles the size for its
/// own records.
const PIECE_BYTES: usize = 16 * 1024;
const RETRY_AFTER: Duration = Duration::from_secs(1);
