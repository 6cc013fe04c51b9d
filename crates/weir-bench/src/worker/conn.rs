//! One client connection.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use rand::RngExt;
use rand::distr::Alphanumeric;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect, ipproto, socket_with, sockopt,
};
use weir_wire::format::Format;
use weir_wire::frame;
use weir_wire::v1::{ClientMessage, Hello, Position, Subscribe, client_message};

use super::room::Place;
use super::wire::Wire;
use crate::protocol::{HelloPlan, OpenPlan};
use crate::sys;
use crate::tls::TlsClient;

/// A client connection over its whole life: Connecting → Greeting → Settled → Ended; any state may
/// go to Ended. A connection that begins with HTTP is Upgrading before Greeting.
#[derive(Debug)]
pub(crate) struct Conn {
    /// The socket; `None` once ended.
    pub(crate) fd: Option<Wire>,
    /// The state.
    pub(crate) phase: Phase,
    /// Its id, which it keeps when it comes back.
    pub(super) device: String,
    /// The format of messages.
    pub(crate) form: Format,
    /// Number of the topic.
    pub(crate) stream: u32,
    /// Number of the next expected message.
    pub(crate) next_seq: u32,
    /// In a room: the received frames.
    pub(super) place: Place,
    /// Epoch of the topic and offset of the last message, from which the connection would resume.
    pub(crate) position: Option<Position>,
    /// Set from its drop until it is live again.
    pub(crate) away: Option<Away>,
    /// Answers that must still come before the connection is settled.
    pub(crate) awaited: u8,
    /// Pings without an answer.
    pub(super) pings: u8,
    /// Whether the client stops reading or reads slowly.
    pub(crate) slow: bool,
    /// Whether epoll watches it.
    pub(crate) watched: bool,
    /// Code of the received `Goodbye`; 0: none.
    pub(crate) goodbye: u32,
    /// Beginning of an incomplete frame.
    pub(crate) partial: Vec<u8>,
}

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The kernel is connecting.
    Connecting,
    /// The request is sent; the head of its answer must come.
    Upgrading,
    /// `Hello` is sent; `Welcome` and `Subscribed` must come.
    Greeting,
    /// Messages flow.
    Settled,
    /// Closed.
    Ended,
}

/// A dropped connection, until it gets a message that was published after its new `Hello`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Away {
    /// The time of the drop.
    pub(crate) since: Duration,
    /// The time of its new `Hello`, in nanoseconds since 1970; before that, the largest number.
    pub(crate) hello_ns: u64,
}

/// Connections from one source address: its port range holds 28,000, and the search for a free port
/// in a full one is slow.
const PER_SOURCE: u32 = 8000;
/// Letters and digits of a device id.
const DEVICE_ID_CHARS: usize = 24;

impl Conn {
    /// Begins to connect connection `index` of the run.
    pub(crate) fn dial(plan: &OpenPlan, tls: Option<&TlsClient>, index: u32) -> Result<Conn> {
        Conn::dial_to(plan.addr, plan, tls, index)
    }

    /// The same to another address for devices.
    pub(super) fn dial_to(
        addr: SocketAddr,
        plan: &OpenPlan,
        tls: Option<&TlsClient>,
        index: u32,
    ) -> Result<Conn> {
        let slow = plan.slow.is_some_and(|slow| slow.has(index));
        let recv_buffer = plan.slow.filter(|_| slow).map(|slow| slow.recv_buffer);
        let form = plan.form_of(index);
        let addr = match form {
            Format::Stream => addr,
            Format::WsProtobuf | Format::WsJson | Format::Sse => {
                plan.edge.context("no address for HTTP is known")?
            }
        };
        let fd = dial(addr, source(plan, index), recv_buffer)?;
        let tls = tls.map(|tls| tls.connection(index.into())).transpose()?;
        Ok(Conn {
            fd: Some(Wire::new(fd, tls)),
            phase: Phase::Connecting,
            device: device_id(),
            form,
            stream: plan.streams.of(index),
            next_seq: 0,
            place: Place::default(),
            position: None,
            away: None,
            awaited: plan.hello.as_ref().map_or(0, HelloPlan::answers),
            pings: 0,
            slow,
            watched: true,
            goodbye: 0,
            partial: Vec::new(),
        })
    }
}

/// Begins to connect, from `source` if given. The kernel stamps received data.
pub(crate) fn dial(
    addr: SocketAddr,
    source: Option<SocketAddr>,
    recv_buffer: Option<usize>,
) -> Result<OwnedFd> {
    let fd = socket(addr)?;
    sys::stamp_receives(fd.as_fd()).context("cannot ask for receive time stamps")?;
    connect_from(fd, addr, source, recv_buffer)
}

/// The same without stamps.
pub(super) fn dial_unstamped(addr: SocketAddr, source: Option<SocketAddr>) -> Result<OwnedFd> {
    connect_from(socket(addr)?, addr, source, None)
}

fn socket(addr: SocketAddr) -> Result<OwnedFd> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))
        .context("cannot make a socket")
}

fn connect_from(
    fd: OwnedFd,
    addr: SocketAddr,
    source: Option<SocketAddr>,
    recv_buffer: Option<usize>,
) -> Result<OwnedFd> {
    // A handshake has more than one send at its end, and the second must not wait for a delayed
    // acknowledgement.
    sockopt::set_tcp_nodelay(&fd, true).context("cannot set TCP_NODELAY")?;
    if let Some(bytes) = recv_buffer {
        sockopt::set_socket_recv_buffer_size(&fd, bytes).context("cannot set SO_RCVBUF")?;
    }
    if let Some(source) = source {
        sys::bind_address_only(fd.as_fd()).context("cannot set IP_BIND_ADDRESS_NO_PORT")?;
        bind(&fd, &source).with_context(|| format!("cannot bind to {source}"))?;
    }
    match connect(&fd, &addr) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(fd),
        Err(error) => Err(error).with_context(|| format!("cannot connect to {addr}")),
    }
}

/// Closes with a reset: neither side waits in TIME_WAIT, and the server sees the end at once.
pub(super) fn reset(fd: impl AsFd) {
    // If this fails, the connection still closes, in good order.
    let _ = sockopt::set_socket_linger(&fd, Some(Duration::ZERO));
    drop(fd);
}

/// Loopback has 16 million addresses: use as many sources as the port range requires.
fn source(plan: &OpenPlan, index: u32) -> Option<SocketAddr> {
    source_of(plan.addr, plan.source, index)
}

/// The source address of connection `index`, for a target on loopback. `second` is its second byte.
pub(crate) fn source_of(target: SocketAddr, second: u8, index: u32) -> Option<SocketAddr> {
    let IpAddr::V4(target) = target.ip() else { return None };
    if !target.is_loopback() {
        return None;
    }
    let [.., high, low] = (index / PER_SOURCE + 1).to_be_bytes();
    Some(SocketAddr::from((Ipv4Addr::new(127, second, high, low), 0)))
}

/// The first frame of a device's connection; with a position, to resume from it.
pub(crate) fn hello_frame(
    plan: &HelloPlan,
    device: &str,
    topic: &str,
    position: Option<Position>,
) -> Vec<u8> {
    let mut out = Vec::new();
    frame::encode(&hello(plan, device, topic, position), &mut out);
    out
}

/// An id that no other device has.
pub(crate) fn device_id() -> String {
    rand::rng().sample_iter(Alphanumeric).take(DEVICE_ID_CHARS).map(char::from).collect()
}

/// The message in the first frame.
pub(super) fn hello(
    plan: &HelloPlan,
    device: &str,
    topic: &str,
    position: Option<Position>,
) -> ClientMessage {
    let topics =
        plan.subscribe.then(|| Subscribe { topic: topic.to_owned(), position, presence: false });
    let hello = Hello {
        device_id: device.to_owned(),
        token: plan.token_of(device),
        client: "weir-bench".to_owned(),
        heartbeat_ms: HEARTBEAT_MS,
        topics: topics.into_iter().collect(),
        calls: false,
    };
    ClientMessage { kind: Some(client_message::Kind::Hello(hello)) }
}

impl HelloPlan {
    /// The token of a device.
    pub(crate) fn token_of(&self, device: &str) -> String {
        self.token.replace('*', device)
    }

    /// The number of answers to `Hello`: `Welcome`, and `Subscribed` for a topic.
    pub(crate) fn answers(&self) -> u8 {
        1 + u8::from(self.subscribe)
    }
}

/// Requested heartbeat: the longest that the server grants, so that no ping disturbs a measurement.
const HEARTBEAT_MS: u32 = 15 * 60 * 1000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::foreign::Protocol;
    use crate::protocol::{Check, Streams, Transport};

    #[test]
    fn sources_change_before_ports_run_out() {
        let plan = OpenPlan {
            addr: "127.0.0.1:7070".parse().unwrap(),
            first: 0,
            count: 0,
            source: 77,
            window: 1,
            patience_ms: 0,
            size: 32,
            hello: None,
            streams: Streams::Count(1),
            topic_prefix: String::new(),
            slow: None,
            check: Check::Streams,
            transport: Transport::Tcp,
            protocol: Protocol::Weir,
            edge: None,
            tls: None,
        };
        let shown = |index| source(&plan, index).unwrap().to_string();
        assert_eq!(shown(0), "127.77.0.1:0");
        assert_eq!(shown(7999), "127.77.0.1:0");
        assert_eq!(shown(8000), "127.77.0.2:0");
        assert_eq!(shown(2_040_000), "127.77.1.0:0");
        assert_eq!(source(&OpenPlan { addr: "[::1]:1".parse().unwrap(), ..plan }, 0), None);
    }
}
