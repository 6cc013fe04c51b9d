//! What a connection is told that there is no place for.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::base::frames;
use crate::base::read_buffer::READ_BYTES;
use crate::core::state::SharedState;
use crate::observe::counters::ConnectRefuseCause;

/// How one is told that there is no place for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Farewell {
    /// By the frame `Goodbye`.
    Goodbye,
    /// By an answer of HTTP.
    Unavailable,
    /// By a reset: a handshake only to say it would cost more than all that is saved.
    Reset,
}

/// Says goodbye at once and closes: for a connection that there is no place for.
///
/// Cost: three syscalls, or one for a source that floods; the runtime never hears of the socket.
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
        // Should it fail, the peer sees an end instead.
        let _ = set_socket_linger(&socket, Some(Duration::ZERO));
        return;
    }
    if !shared.admission.has_time_for_goodbye(cause) {
        return;
    }
    // Into an empty send buffer; should it fail nevertheless, the close alone has to say it.
    let _ = match farewell {
        Farewell::Goodbye => send(&socket, &frames::goodbye(reason), SendFlags::NOSIGNAL),
        Farewell::Unavailable => send(&socket, UNAVAILABLE, SendFlags::NOSIGNAL),
        Farewell::Reset => Ok(0),
    };
    // A close with unread bytes is a reset, which may overtake what was said.
    let mut bytes = [0; READ_BYTES];
    let _ = recv(&socket, &mut bytes, RecvFlags::DONTWAIT);
}

/// What one is told that there is no place for: as much as fits without knowing what it wanted.
pub(crate) const UNAVAILABLE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n\
    Content-Length: 0\r\n\r\n";
