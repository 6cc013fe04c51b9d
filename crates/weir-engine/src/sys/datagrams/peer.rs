//! The sender of a datagram, and the local address that it reached.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The sender of a datagram, and the local address that it reached. An answer needs nothing else.
///
/// Shape: the kernel's forms, 52 bytes. Two peers are equal if their addresses and ports are.
#[derive(Clone, Copy)]
pub struct Peer {
    pub(super) name: Name,
    pub(super) local: Local,
}

/// A `sockaddr_in` or `sockaddr_in6` as the kernel wrote it, then zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C, align(4))]
pub(super) struct Name(pub(super) [u8; NAME_BYTES]);

/// The address that a datagram was sent to, if the socket has many.
#[derive(Debug, Clone, Copy)]
pub(super) enum Local {
    /// The socket's own.
    Own,
    V4(Ipv4Addr),
    /// With the index of the interface, which link-local addresses need.
    V6(Ipv6Addr, u32),
}

/// Bytes of a `sockaddr_in6`, the longer of the two.
const NAME_BYTES: usize = 28;
const _: () = assert!(size_of::<libc::sockaddr_in6>() == NAME_BYTES);
pub(super) const SOCKLEN_OF_NAME: libc::socklen_t = 28;
const SOCKLEN_V4: libc::socklen_t = 16;
const _: () = assert!(size_of::<libc::sockaddr_in>() == SOCKLEN_V4 as usize);

impl Peer {
    /// Its address and port.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::new(self.ip(), u16::from_be_bytes([self.name.0[2], self.name.0[3]]))
    }

    /// Our address that the datagram was sent to; `None` if the socket has only one.
    pub fn local_ip(&self) -> Option<IpAddr> {
        match self.local {
            Local::Own => None,
            Local::V4(addr) => Some(addr.into()),
            Local::V6(addr, _) => Some(addr.into()),
        }
    }

    /// Its address.
    pub fn ip(&self) -> IpAddr {
        let bytes = &self.name.0;
        if i32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) == libc::AF_INET {
            return IpAddr::V4(Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]));
        }
        let mut octets = [0; 16];
        octets.copy_from_slice(&bytes[8..24]);
        IpAddr::V6(Ipv6Addr::from(octets))
    }
}

impl Name {
    pub(super) const NONE: Name = Name([0; NAME_BYTES]);

    /// The bytes that its address family needs.
    pub(super) fn socklen(&self) -> libc::socklen_t {
        let family = i32::from(u16::from_ne_bytes([self.0[0], self.0[1]]));
        if family == libc::AF_INET { SOCKLEN_V4 } else { SOCKLEN_OF_NAME }
    }
}

impl PartialEq for Peer {
    fn eq(&self, other: &Peer) -> bool {
        self.name == other.name
    }
}

impl Eq for Peer {}

impl std::hash::Hash for Peer {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.addr().fmt(f)
    }
}
