//! The last words to a connection that is refused a place.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::base::frames;
use crate::base::read_buffer::READ_BYTES;
use crate::core::state::SharedState;
use crate::observe::counters::ConnectRefuseCause;

/// The way to tell a connection that there is no place for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Farewell {
    /// The frame `Goodbye`.
    Goodbye,
    /// An HTTP answer.
    Unavailable,
    /// A reset. A TLS handshake just for this would cost more than the refusal saves.
    Reset,
}

/// Tells a connection that there is no place for it, and closes it at once.
///
/// Cost: three syscalls, or one for a source that floods. The runtime never learns of the socket.
pub(crate) fn turn_away(
    shared: &SharedState,
    socket: impl AsFd,
    addr: Option<IpAddr>,
    cause: ConnectRefuseCause,
    farewell: Farewell,
) {
    let reason = shared.admission.refuse(cause, addr);
    shared.counters().count_closed(reason);
    if farewell == Farewell::Reset {
        // If this fails, the peer sees an end of the stream instead.
        let _ = set_socket_linger(&socket, Some(Duration::ZERO));
        return;
    }
    if !shared.admission.has_time_for_goodbye(cause) {
        return;
    }
    match farewell {
        Farewell::Goodbye => say_at_once(&socket, &frames::goodbye(reason)),
        Farewell::Unavailable => say_at_once(&socket, UNAVAILABLE),
        Farewell::Reset => {}
    }
}

/// Sends the last bytes of a connection that is closed next, without waiting.
///
/// Cost: two syscalls.
pub(crate) fn say_at_once(socket: impl AsFd, last: &[u8]) {
    // The send buffer is empty. If the call fails nevertheless, the peer sees only the close.
    let _ = send(&socket, last, SendFlags::NOSIGNAL);
    // A close with unread bytes is a reset, which may overtake the last bytes.
    let mut bytes = [0; READ_BYTES];
    let _ = recv(&socket, &mut bytes, RecvFlags::DONTWAIT);
}

/// The HTTP answer to a connection without a place. It is valid for every request.
pub(crate) const UNAVAILABLE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n\
    Content-Length: 0\r\n\r\n";
