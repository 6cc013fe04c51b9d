//! The peer's address of a connection that has broken. After a reset `getpeername` does not tell it
//! any more, and `SO_PEERNAME` does.

#![expect(unsafe_code, reason = "getsockopt")]

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// The address of the peer, if the socket ever had one.
///
/// Cost: a syscall for IPv4, two for IPv6.
pub(super) fn of(socket: BorrowedFd<'_>) -> Option<SocketAddr> {
    let name: [u8; V4_BYTES] = read(socket)?;
    match i32::from(u16::from_ne_bytes([name[0], name[1]])) {
        libc::AF_INET => {
            let ip = Ipv4Addr::new(name[4], name[5], name[6], name[7]);
            Some(SocketAddr::from((ip, port(&name))))
        }
        libc::AF_INET6 => {
            let name: [u8; V6_BYTES] = read(socket)?;
            let ip: [u8; 16] = name[8..24].try_into().ok()?;
            Some(SocketAddr::from((Ipv6Addr::from(ip), port(&name))))
        }
        _ => None,
    }
}

fn port(name: &[u8]) -> u16 {
    u16::from_be_bytes([name[2], name[3]])
}

/// The first bytes of the name. The kernel refuses a buffer that is longer than the name.
fn read<const BYTES: usize>(socket: BorrowedFd<'_>) -> Option<[u8; BYTES]> {
    let mut name = [0; BYTES];
    let mut len = libc::socklen_t::try_from(BYTES).ok()?;
    // SAFETY: the kernel writes at most `len` bytes, and `name` has as many.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERNAME,
            name.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    (result == 0 && len as usize == BYTES).then_some(name)
}

const V4_BYTES: usize = size_of::<libc::sockaddr_in>();
const V6_BYTES: usize = size_of::<libc::sockaddr_in6>();

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd as _;
    use std::time::Duration;

    use rustix::net::sockopt::set_socket_linger;

    use super::*;

    #[test]
    fn a_reset_connection_still_has_its_peer() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            // A machine may have no IPv6.
            let Ok(listener) = TcpListener::bind(host) else { continue };
            let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut socket, addr) = listener.accept().unwrap();
            set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
            drop(peer);
            assert!(socket.read(&mut [0]).is_err(), "it is reset");
            assert!(socket.peer_addr().is_err(), "the usual way does not tell it");
            assert_eq!(of(socket.as_fd()), Some(addr));
        }
    }

    #[test]
    fn a_socket_without_a_peer_has_none() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(of(listener.as_fd()), None);
    }
}
