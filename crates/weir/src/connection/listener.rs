//! TCP listeners: binding, and accepting without spinning when descriptors run out.

use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{SocketFlags, acceptfrom_with};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};
use tracing::warn;
use weir_engine::Transport;
use weir_wire::CloseReason;

use crate::base::config::Config;
use crate::base::model::Spoken;
use crate::connection::farewell::{Farewell, turn_away};
use crate::core::state::SharedState;
use crate::limits::admission::Unsettled;
use crate::observe::counters::{AcceptError, ConnectRefuseCause};
use crate::tls::stream::Stream;

/// The sizes that the kernel granted for the buffers. The kernel doubles the configured sizes and
/// caps them with `wmem_max` and `rmem_max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffers {
    /// `SO_SNDBUF`.
    pub send_bytes: usize,
    /// `SO_RCVBUF`.
    pub recv_bytes: usize,
}

/// A listening socket for devices. It hands out bare descriptors; the runtime learns only of
/// admitted connections.
pub(crate) type Listener = AsyncFd<TcpListener>;

/// A listener's way to treat accepted connections.
pub(crate) struct Door {
    pub(crate) transport: Transport,
    pub(crate) spoken: Spoken,
    /// Begins to serve a connection, on the listener's runtime.
    pub(crate) serve: Serve,
}

/// Takes the connection, its place, and whether it begins with a PROXY header.
pub(crate) type Serve = Box<dyn Fn(Stream, Unsettled, bool) + Send + Sync>;

impl Door {
    fn farewell(&self) -> Farewell {
        match (self.transport, self.spoken) {
            (Transport::Tls, Spoken::Frames | Spoken::Http) => Farewell::Reset,
            (Transport::Tcp, Spoken::Frames) => Farewell::Goodbye,
            (Transport::Tcp, Spoken::Http) => Farewell::Unavailable,
        }
    }
}

/// Binds a listener. `rivals` are the addresses of all listeners of its kind; `is_shared` lets
/// other sockets listen on the same address.
///
/// All options are set before `listen`. Accepted sockets inherit them (Linux copies the whole
/// socket), which saves five syscalls a connection. The receive buffer must be set before TCP
/// agrees on the window scale.
pub(crate) fn bind(
    addr: SocketAddr,
    rivals: &[SocketAddr],
    is_shared: bool,
    config: &Config,
) -> io::Result<(Listener, Buffers)> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(is_shared)?;
    if addr.is_ipv6() {
        socket.set_only_v6(!takes_both(addr, rivals))?;
    }
    set_options(&socket, config)?;
    socket.bind(&addr.into())?;
    listen(socket, config)
}

/// The same with a socket that listens already. Connections that came before it was handed over
/// have the kernel's usual window.
pub(crate) fn adopt(socket: Socket, config: &Config) -> io::Result<(Listener, Buffers)> {
    socket.set_nonblocking(true)?;
    set_options(&socket, config)?;
    listen(socket, config)
}

fn set_options(socket: &Socket, config: &Config) -> io::Result<()> {
    let tcp = &config.tcp;
    socket.set_tcp_nodelay(true)?;
    socket.set_send_buffer_size(tcp.send_buffer_bytes)?;
    socket.set_recv_buffer_size(tcp.recv_buffer_bytes)?;
    socket.set_tcp_user_timeout(Some(tcp.user_timeout))?;
    socket.set_tcp_notsent_lowat(tcp.notsent_lowat_bytes)
}

/// Begins to listen. On a socket that listens already it sets the backlog.
fn listen(socket: Socket, config: &Config) -> io::Result<(Listener, Buffers)> {
    socket.listen(i32::try_from(config.listen.accept_backlog).unwrap_or(i32::MAX))?;
    let buffers =
        Buffers { send_bytes: socket.send_buffer_size()?, recv_bytes: socket.recv_buffer_size()? };
    #[expect(
        deprecated,
        reason = "unsound where a type changes its descriptor; a listener keeps it"
    )]
    let listener = AsyncFd::with_interest(socket.into(), Interest::READABLE)?;
    Ok((listener, buffers))
}

/// Accepts until the gateway shuts down.
pub(crate) async fn run(shared: Arc<SharedState>, listener: Listener, door: Door) {
    let _watch = Watch { shared: Arc::clone(&shared), addr: listener.get_ref().local_addr().ok() };
    let mut trouble = AcceptTrouble::of(listener.get_ref().local_addr());
    loop {
        tokio::select! {
            () = accept(&shared, &listener, &door, &mut trouble) => return,
            () = shared.drains.ending() => return,
            () = shared.door.paused() => {}
        }
        // What arrives meanwhile waits in the kernel.
        tokio::select! {
            () = shared.door.serves() => {}
            () = shared.drains.ending() => return,
        }
    }
}

async fn accept(
    shared: &Arc<SharedState>,
    listener: &Listener,
    door: &Door,
    trouble: &mut AcceptTrouble,
) {
    let mut refused = 0_u32;
    loop {
        // With connections always there, this task would see the pause only after many of them.
        if !shared.door.is_open() {
            shared.door.serves().await;
        }
        let (socket, peer) = match listener.async_io(Interest::READABLE, accept_one).await {
            Ok(accepted) => accepted,
            Err(error) => {
                let kind = AcceptError::of(&error);
                shared.counters().count_accept_error(kind);
                if !(is_out_of_descriptors(kind) && shed_one(shared, listener, door.farewell())) {
                    tell_readiness(shared, listener, kind, Some(&error));
                    trouble.meet(kind, &error).await;
                }
                continue;
            }
        };
        if trouble.end() {
            tell_readiness(shared, listener, AcceptError::Other, None);
        }
        shared.counters().count_accepted();
        let is_proxied = peer.is_some_and(|peer| is_proxy(shared, peer));
        match shared.admission.enter(door.transport, door.spoken, peer, is_proxied) {
            Ok(unsettled) => {
                let Ok(stream) = TcpStream::from_std(socket.into()) else {
                    shared.counters().count_closed(CloseReason::SocketError);
                    continue;
                };
                let stream = match door.transport {
                    Transport::Tcp => Stream::plain(stream),
                    Transport::Tls => Stream::unsecured(stream),
                };
                (door.serve)(stream, unsettled, is_proxied);
            }
            Err(cause) => {
                turn_away(shared, socket, peer, cause, door.farewell());
                refused = refused.wrapping_add(1);
                // Admitted connections get a turn while a storm is refused.
                if refused.is_multiple_of(REFUSED_AT_ONCE) {
                    yield_now().await;
                }
            }
        }
    }
}

/// A non-blocking socket, and its peer's address if the kernel names it.
fn accept_one(listener: &TcpListener) -> io::Result<(OwnedFd, Option<IpAddr>)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (socket, peer) = acceptfrom_with(listener, flags)?;
    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
    Ok((socket, peer.map(|peer| peer.ip())))
}

/// Whether connections from this peer begin with a PROXY header.
fn is_proxy(shared: &SharedState, peer: IpAddr) -> bool {
    let peer = peer.to_canonical();
    shared.config().listen.proxy_networks.iter().any(|network| network.contains(&peer))
}

/// Turns one connection away with a descriptor that was reserved for this. `false` if none is left,
/// or no connection waits.
///
/// This happens only if the process holds more other descriptors than were counted at the start.
fn shed_one(shared: &SharedState, listener: &Listener, farewell: Farewell) -> bool {
    if !shared.admission.lend_descriptor() {
        return false;
    }
    let accepted = accept_one(listener.get_ref());
    let is_shed = accepted.is_ok();
    if let Ok((socket, peer)) = accepted {
        shared.counters().count_accepted();
        turn_away(shared, socket, peer, ConnectRefuseCause::Descriptors, farewell);
    }
    shared.admission.restore_descriptors();
    is_shed
}

fn is_out_of_descriptors(kind: AcceptError) -> bool {
    match kind {
        AcceptError::Emfile => true,
        // `Enfile` is a limit of the whole machine: other processes would take what this one frees.
        AcceptError::Enfile | AcceptError::Memory | AcceptError::Aborted | AcceptError::Other => {
            false
        }
    }
}

/// Whether a listener on the IPv6 wildcard also takes IPv4: yes, unless IPv4 has its own listener
/// on that port.
pub(crate) fn takes_both(addr: SocketAddr, listen: &[SocketAddr]) -> bool {
    let is_rival = |other: &SocketAddr| other.is_ipv4() && other.port() == addr.port();
    addr.ip() == IpAddr::from([0u16; 8]) && !(addr.port() != 0 && listen.iter().any(is_rival))
}

/// Tells readiness that a listener cannot accept connections. Without `error`: that it can again.
fn tell_readiness(
    shared: &SharedState,
    listener: &Listener,
    kind: AcceptError,
    error: Option<&io::Error>,
) {
    let Ok(addr) = listener.get_ref().local_addr() else { return };
    if kind != AcceptError::Aborted {
        let cause = error.map(|error| format!("cannot accept connections: {error}"));
        shared.readiness.set_listener(addr, cause);
    }
}

/// Errors of one listener that cannot accept: how long it pauses, and when it logs them.
///
/// Limits: a pause begins with [`PAUSE_MIN`] and doubles up to [`PAUSE_MAX`]. One line is logged in
/// [`LOG_INTERVAL`].
pub(crate) struct AcceptTrouble {
    /// The listener's address.
    addr: Option<SocketAddr>,
    pause: Duration,
    logged_at: Option<Instant>,
    unlogged: u64,
}

impl AcceptTrouble {
    /// A listener at `addr` that has had no error yet.
    pub(crate) fn of(addr: io::Result<SocketAddr>) -> Self {
        Self { addr: addr.ok(), pause: PAUSE_MIN, logged_at: None, unlogged: 0 }
    }

    /// The listener has accepted a connection. Returns whether it had to pause before.
    pub(crate) fn end(&mut self) -> bool {
        mem::replace(&mut self.pause, PAUSE_MIN) != PAUSE_MIN
    }

    /// Logs the error and pauses. Without a descriptor or memory for it, the connection stays in
    /// the backlog, and the next accept would fail at once: the growing pause keeps the thread from
    /// spinning.
    pub(crate) async fn meet(&mut self, kind: AcceptError, error: &io::Error) {
        self.unlogged += 1;
        let now = Instant::now();
        if self.logged_at.is_none_or(|at| now.duration_since(at) >= LOG_INTERVAL) {
            let (kind, times) = (kind.name(), self.unlogged);
            let listener = self.addr.map(tracing::field::display);
            warn!(kind, %error, times, listener, "cannot accept a connection");
            (self.logged_at, self.unlogged) = (Some(now), 0);
        }
        match kind {
            AcceptError::Aborted => {}
            AcceptError::Emfile
            | AcceptError::Enfile
            | AcceptError::Memory
            | AcceptError::Other => {
                sleep(self.pause).await;
                self.pause = (self.pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

/// Notices that a listener has ended by itself.
struct Watch {
    shared: Arc<SharedState>,
    addr: Option<SocketAddr>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(addr) = self.addr.filter(|_| !self.shared.drains.is_ending()) {
            self.shared.readiness.end_listener(addr);
        }
    }
}

/// Refusals that take a quarter of a millisecond.
const REFUSED_AT_ONCE: u32 = 32;
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// Closed connections return descriptors. This is soon enough to notice, and seldom enough to cost
/// nothing.
const PAUSE_MAX: Duration = Duration::from_millis(500);
const LOG_INTERVAL: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wildcard_takes_ipv4_unless_that_listens_itself() {
        let check = |addr: &str, listen: &[&str], expected: bool| {
            let listen: Vec<SocketAddr> = listen.iter().map(|addr| addr.parse().unwrap()).collect();
            assert_eq!(
                takes_both(addr.parse().unwrap(), &listen),
                expected,
                "{addr} in {listen:?}"
            );
        };
        check("[::]:7070", &["[::]:7070"], true);
        check("[::]:7070", &["[::]:7070", "0.0.0.0:7071"], true);
        check("[::]:7070", &["[::]:7070", "0.0.0.0:7070"], false);
        check("[::]:0", &["[::]:0", "127.0.0.1:0"], true);
        check("[::1]:7070", &["[::1]:7070"], false);
    }

    #[tokio::test]
    async fn accepted_sockets_inherit_what_the_listener_was_given() {
        let config = Config::default();
        let (listener, buffers) =
            bind("127.0.0.1:0".parse().unwrap(), &[], false, &config).unwrap();
        let addr = listener.get_ref().local_addr().unwrap();
        let _peer = std::net::TcpStream::connect(addr).unwrap();
        let accepted = listener.async_io(Interest::READABLE, accept_one).await;
        let (stream, peer) = accepted.unwrap();
        assert_eq!(peer, Some(addr.ip()));
        let socket = socket2::SockRef::from(&stream);
        assert!(socket.tcp_nodelay().unwrap());
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(config.tcp.user_timeout));
        assert_eq!(socket.tcp_notsent_lowat().unwrap(), config.tcp.notsent_lowat_bytes);
        assert_eq!(socket.send_buffer_size().unwrap(), buffers.send_bytes);
        assert_eq!(socket.recv_buffer_size().unwrap(), buffers.recv_bytes);
    }
}
