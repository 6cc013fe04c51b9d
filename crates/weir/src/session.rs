//! A connection before it settles: from accept to the offer to a shard.
//!
//! ```text
//!  accepted ──Hello──▶ authenticated ──place on a shard──▶ offered ──Adopted──▶ settled (reports.rs)
//!     │                    │                                │
//!     └── hello_timeout, malformed, unauthorized, limits ───┴──▶ Goodbye, closed
//! ```

use std::io::{self, ErrorKind, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags, recv, send};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::debug;
use weir_engine::{Budget, Origin};
use weir_wire::v1::{ClientMessage, Hello, Subscribe, client_message::Kind};
use weir_wire::{CloseReason, ProstMessage, WireError, frame};

use crate::admission::{Admission, Unsettled};
use crate::config::LimitsConfig;
use crate::counters::ConnectRefuseCause;
use crate::frames;
use crate::hub::Hub;
use crate::lanes::credit;
use crate::proxy::{self, NoHeader};
use crate::tickets::Pending;

/// Takes a connection to its shard, or says why not.
///
/// `is_proxied`: it comes through a proxy, which tells where from.
/// Cost: a silent connection has this future and no buffer; one that sends has what it sent, counted in the budget.
pub(crate) async fn run(
    hub: Arc<Hub>,
    stream: TcpStream,
    mut unsettled: Unsettled,
    is_proxied: bool,
) {
    let mut draining = hub.draining.subscribe();
    let greeted = greet(&hub, &stream, &mut unsettled, is_proxied);
    let greeted = timeout(hub.config().connection.hello_timeout, greeted);
    let greeted = tokio::select! {
        greeted = greeted => greeted.unwrap_or(Err(CloseReason::HelloTimeout.into())),
        // The sender lives in the hub, so this ends only by draining.
        _ = draining.wait_for(|is_draining| *is_draining) => Err(CloseReason::Draining.into()),
    };
    let refused = match greeted {
        Ok(greeting) => settle(&hub, stream, greeting, unsettled).await,
        Err(NotGreeted::TurnedAway(cause)) => {
            // Others wait behind a source over its limits: its place is not kept for it to hear this.
            turn_away(&hub, stream, unsettled.addr(), cause);
            return;
        }
        Err(NotGreeted::Closed(reason)) => Err((stream, unsettled, reason)),
    };
    // The place among the unsettled is kept until the socket is closed.
    if let Err((stream, _unsettled, reason)) = refused {
        hub.counters().count_closed(reason);
        debug!(peer = ?stream.peer_addr().ok(), %reason, "connection refused");
        say_goodbye(stream, reason).await;
    }
}

/// Says goodbye at once and closes: for a connection that there is no place for.
///
/// Cost: three syscalls, or one for a source that floods; the runtime never hears of the socket.
pub(crate) fn turn_away(
    hub: &Hub,
    socket: impl AsFd,
    addr: Option<IpAddr>,
    cause: ConnectRefuseCause,
) {
    let reason = hub.admission.refuse(cause, addr);
    hub.counters().count_closed(reason);
    if !hub.admission.has_time_for_goodbye(cause) {
        return;
    }
    // Into an empty send buffer; should it fail nevertheless, the close alone has to say it.
    let _ = send(&socket, &frames::goodbye(reason), SendFlags::NOSIGNAL);
    // A close with unread bytes is a reset, which may overtake what was said.
    let mut bytes = [0; READ_BYTES];
    let _ = recv(&socket, &mut bytes, RecvFlags::DONTWAIT);
}

/// What `Hello` was, and what came behind it.
struct Greeting {
    hello: Hello,
    read_ahead: Vec<u8>,
}

/// Why a connection is not heard to the end of its `Hello`.
enum NotGreeted {
    /// Its own doing, or the time's: it is told as well as can be.
    Closed(CloseReason),
    /// There is no place for it, as is known from its PROXY header.
    TurnedAway(ConnectRefuseCause),
}

impl From<CloseReason> for NotGreeted {
    fn from(reason: CloseReason) -> Self {
        NotGreeted::Closed(reason)
    }
}

/// Connection, place and reason.
type Refused = (TcpStream, Unsettled, CloseReason);

/// Bytes of a PROXY header or a `Hello` that is not complete, counted in the byte budget by their capacity.
struct Partial<'a> {
    budget: &'a Budget,
    bytes: Vec<u8>,
    charged: usize,
}

/// Reads the PROXY header, where there is one, and `Hello`.
async fn greet(
    hub: &Hub,
    stream: &TcpStream,
    unsettled: &mut Unsettled,
    is_proxied: bool,
) -> Result<Greeting, NotGreeted> {
    let mut partial = Partial { budget: hub.engine().budget(), bytes: Vec::new(), charged: 0 };
    if is_proxied {
        let announced = loop {
            match proxy::decode(&partial.bytes) {
                Ok(Some(announced)) => break announced,
                Ok(None) => partial.read_more(stream).await?,
                // Whoever has listed what is no proxy would lose all devices that are told not to come back.
                Err(NoHeader) => {
                    return Err(NotGreeted::TurnedAway(ConnectRefuseCause::ProxyHeader));
                }
            }
        };
        partial.bytes.drain(..announced.bytes);
        if let Some(source) = announced.source.or(unsettled.addr()) {
            unsettled.count_source(source).map_err(NotGreeted::TurnedAway)?;
        }
    }
    let frame_bytes_max = hub.config().limits.frame_bytes_max;
    loop {
        if !is_proxied && proxy::is_signed(&partial.bytes) {
            return Err(NotGreeted::TurnedAway(ConnectRefuseCause::ProxyHeader));
        }
        match frame::decode(&partial.bytes, frame_bytes_max) {
            Ok(None) => partial.read_more(stream).await?,
            Ok(Some((body, taken))) => {
                let hello = decode_hello(body)?;
                return Ok(Greeting { hello, read_ahead: partial.bytes[taken..].to_vec() });
            }
            Err(WireError::FrameTooLarge { .. }) => return Err(CloseReason::FrameTooLarge.into()),
            Err(
                WireError::LengthMalformed
                | WireError::MessageMalformed(_)
                | WireError::PingTooLarge(_),
            ) => return Err(CloseReason::Malformed.into()),
        }
    }
}

fn decode_hello(body: &[u8]) -> Result<Hello, CloseReason> {
    match ClientMessage::decode(body).map(|message| message.kind) {
        Ok(Some(Kind::Hello(hello))) => Ok(hello),
        Ok(_) | Err(_) => Err(CloseReason::Malformed),
    }
}

/// Authenticates, finds a shard, waits for room in its lane, and offers the connection.
async fn settle(
    hub: &Arc<Hub>,
    stream: TcpStream,
    greeting: Greeting,
    unsettled: Unsettled,
) -> Result<(), Refused> {
    let Greeting { mut hello, read_ahead } = greeting;
    let (heartbeat, topics) =
        (agree_heartbeat(hub, hello.heartbeat_ms), wished_topics(&hub.config().limits, &mut hello));
    let admission = match hub.auth.authenticate(&hello.device_id, &hello.token) {
        Ok(admission) => admission,
        Err(reason) => return Err((stream, unsettled, reason)),
    };
    // Not kept while the lane is full: a token may be as long as a frame.
    drop(hello);
    // From here on a revocation of the device reaches this connection too.
    let pin = hub.devices.pin(&admission.device);
    let shard = match Admission::settle(hub) {
        Ok(shard) => shard,
        Err(cause) => {
            let reason = unsettled.refuse(cause);
            return Err((stream, unsettled, reason));
        }
    };
    let Ok(credit) = timeout(OFFER_TIMEOUT, credit(hub.lane(shard))).await else {
        hub.assignments.release(shard);
        let reason = unsettled.refuse(ConnectRefuseCause::Mailbox);
        return Err((stream, unsettled, reason));
    };
    let pending = Box::new(Pending {
        pin,
        heartbeat,
        priority: admission.priority,
        origin: Origin { source: unsettled.source(), grant: admission.grant },
        publish_limited: !admission.is_service,
        replaces: !admission.is_service,
        topics,
        unsettled,
    });
    let Ok(stream) = stream.into_std() else {
        hub.assignments.release(shard);
        hub.counters().count_closed(CloseReason::SocketError);
        return Ok(());
    };
    if let Err(socket) =
        hub.tickets[shard].offer(credit, OwnedFd::from(stream), pending, read_ahead)
    {
        hub.assignments.release(shard);
        hub.counters().count_closed(CloseReason::Draining);
        let _ = std::net::TcpStream::from(socket).write(&frames::goodbye(CloseReason::Draining));
    }
    Ok(())
}

/// The topics that `Hello` asks for, and one more where it asks for too many, which is what tells.
///
/// A topic without a name takes two bytes on the wire and 56 here: the longest `Hello` would hold megabytes. A name that
/// is too long stays just as much too long as is needed to tell.
fn wished_topics(limits: &LimitsConfig, hello: &mut Hello) -> Vec<Subscribe> {
    let mut topics = std::mem::take(&mut hello.topics);
    topics.truncate(limits.topics_per_connection_max + 1);
    topics.shrink_to_fit();
    for Subscribe { topic, .. } in &mut topics {
        let is_end = |at: &usize| topic.is_char_boundary(*at);
        if let Some(end) = (limits.topic_bytes_max + 1..topic.len()).find(is_end) {
            topic.truncate(end);
            topic.shrink_to_fit();
        }
    }
    topics
}

fn agree_heartbeat(hub: &Hub, wished_ms: u32) -> Duration {
    let connection = &hub.config().connection;
    match wished_ms {
        0 => connection.heartbeat,
        ms => Duration::from_millis(u64::from(ms))
            .clamp(connection.heartbeat_min, connection.heartbeat_max),
    }
}

/// Sends `Goodbye` and waits a moment for the peer's end, so that what the peer still sends does not turn our close
/// into a reset that overtakes it.
async fn say_goodbye(mut stream: TcpStream, reason: CloseReason) {
    let said = async {
        stream.write_all(&frames::goodbye(reason)).await?;
        stream.shutdown().await?;
        for _ in 0..DISCARDED_READS_MAX {
            stream.readable().await?;
            if discard(&stream)? == 0 {
                break;
            }
        }
        io::Result::Ok(())
    };
    // Whether it arrived or not, the socket is closed now.
    let _ = timeout(LINGER_TIMEOUT, said).await;
}

/// Reads and forgets; 0 at the end, otherwise at least 1.
fn discard(stream: &TcpStream) -> io::Result<usize> {
    let mut bytes = [0; READ_BYTES];
    match stream.try_read(&mut bytes) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(1),
        read => read,
    }
}

impl Partial<'_> {
    /// Waits for bytes and reads them.
    async fn read_more(&mut self, stream: &TcpStream) -> Result<(), CloseReason> {
        loop {
            stream.readable().await.map_err(|error| reason_of(&error))?;
            if self.read_from(stream)? {
                return Ok(());
            }
        }
    }

    /// Reads what is there; `false` if it was a false alarm.
    ///
    /// The bytes are read on the stack, so that the connection owns only what it sent.
    fn read_from(&mut self, stream: &TcpStream) -> Result<bool, CloseReason> {
        let mut read = [0; READ_BYTES];
        let count = match stream.try_read(&mut read) {
            Ok(0) => return Err(CloseReason::PeerClosed),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(reason_of(&error)),
        };
        let missing = (self.bytes.len() + count).saturating_sub(self.charged);
        if missing > 0 {
            // Doubling, like the buffer.
            let more = missing.max(self.charged);
            if !self.budget.take(more) {
                return Err(CloseReason::BudgetExhausted);
            }
            self.charged += more;
            self.bytes.reserve_exact(self.charged - self.bytes.len());
        }
        self.bytes.extend_from_slice(&read[..count]);
        Ok(true)
    }
}

impl Drop for Partial<'_> {
    fn drop(&mut self) {
        self.budget.give(self.charged);
    }
}

fn reason_of(error: &io::Error) -> CloseReason {
    #[expect(clippy::wildcard_enum_match_arm, reason = "a foreign enum that grows")]
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => CloseReason::PeerReset,
        ErrorKind::TimedOut => CloseReason::KernelTimeout,
        _ => CloseReason::SocketError,
    }
}

/// A `Hello` with a signed token fits into one read.
const READ_BYTES: usize = 4096;
/// Together with the time-out: how much a refused peer may still send before it gets a reset.
const DISCARDED_READS_MAX: usize = 64;
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
/// A lane that is full for this long belongs to a server that has more than it can do.
const OFFER_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_kept_of_what_hello_asks_for_than_can_be() {
        let limits =
            LimitsConfig { topics_per_connection_max: 4, topic_bytes_max: 8, ..Default::default() };
        let names = ["12345678", "123456789", "1234567890", "1234567äää", "", "six"];
        let topics = names.map(|name| Subscribe { topic: name.to_owned(), position: None });
        let mut hello = Hello { topics: topics.into(), ..Hello::default() };
        let wished = wished_topics(&limits, &mut hello);
        let wished: Vec<&str> = wished.iter().map(|wish| wish.topic.as_str()).collect();
        assert_eq!(wished, ["12345678", "123456789", "123456789", "1234567ä", ""]);
    }
}
