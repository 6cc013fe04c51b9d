//! UDP sockets that receive and send many datagrams by one system call (`recvmmsg`, `sendmmsg`).

#![expect(unsafe_code, reason = "syscalls that no safe wrapper covers")]

mod batch;
mod peer;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, ipproto, socket_with, sockopt,
};

pub use batch::{Inbox, Outbox, Received, Sent};
pub use peer::Peer;

use crate::net::Waker;

/// Sockets on one address. The kernel distributes datagrams among them; all datagrams from one
/// sender's port go to the same socket.
///
/// Limits: no other socket can share the address, not even one of the same user.
#[derive(Debug)]
pub struct DatagramSocket {
    fd: OwnedFd,
    waker: Arc<OwnedFd>,
    /// What the kernel had dropped when another process passed the socket to this one.
    lost_before: u32,
}

/// The options of a [`DatagramSocket`].
#[derive(Debug, Clone, Copy)]
pub struct DatagramOptions {
    /// The `SO_RCVBUF` to request.
    pub recv_buffer_bytes: usize,
    /// The `SO_SNDBUF` to request.
    pub send_buffer_bytes: usize,
    /// Whether an IPv6 socket refuses IPv4.
    pub only_v6: bool,
}

/// The sizes of a socket's buffers in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramBuffers {
    /// The granted `SO_RCVBUF`: twice the requested size, or twice `net.core.rmem_max`.
    pub recv_bytes: usize,
    /// The granted `SO_SNDBUF`, likewise with `net.core.wmem_max`.
    pub send_bytes: usize,
}

impl DatagramSocket {
    /// Binds `count` sockets to the address. With port 0 all have the same free port.
    ///
    /// Errors: the kernel's, for example an address in use.
    pub fn bind(
        addr: SocketAddr,
        count: usize,
        options: &DatagramOptions,
    ) -> io::Result<Vec<DatagramSocket>> {
        // The first one is bound alone, which fails if the address is in use. Then it lets the
        // others join.
        let first = DatagramSocket::open(addr, false, options)?;
        let addr = first.local_addr()?;
        if count > 1 {
            sockopt::set_socket_reuseport(&first.fd, true)?;
        }
        let mut sockets = vec![first];
        for _ in 1..count {
            sockets.push(DatagramSocket::open(addr, true, options)?);
        }
        Ok(sockets)
    }

    fn open(
        addr: SocketAddr,
        is_shared: bool,
        options: &DatagramOptions,
    ) -> io::Result<DatagramSocket> {
        let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(family, SocketType::DGRAM, flags, Some(ipproto::UDP))?;
        if addr.is_ipv6() {
            sockopt::set_ipv6_v6only(&fd, options.only_v6)?;
        }
        sockopt::set_socket_reuseport(&fd, is_shared)?;
        sockopt::set_socket_recv_buffer_size(&fd, options.recv_buffer_bytes)?;
        sockopt::set_socket_send_buffer_size(&fd, options.send_buffer_bytes)?;
        if addr.ip().is_unspecified() {
            // If the socket has many addresses, the answer must come from the one that was asked.
            match addr {
                SocketAddr::V4(_) => switch_on(&fd, libc::IPPROTO_IP, libc::IP_PKTINFO)?,
                SocketAddr::V6(_) => switch_on(&fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO)?,
            }
        }
        bind(&fd, &addr)?;
        Ok(DatagramSocket { fd, waker: Arc::new(super::counter()?), lost_before: 0 })
    }

    /// A bound socket of another process that was the gateway before this one. What waits in its
    /// buffer is received here.
    ///
    /// Errors: it is no socket for datagrams, or the kernel's.
    pub fn adopt(fd: OwnedFd, options: &DatagramOptions) -> io::Result<DatagramSocket> {
        if sockopt::socket_type(&fd)? != SocketType::DGRAM {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no socket for datagrams"));
        }
        sockopt::set_socket_recv_buffer_size(&fd, options.recv_buffer_bytes)?;
        sockopt::set_socket_send_buffer_size(&fd, options.send_buffer_bytes)?;
        let waker = Arc::new(super::counter()?);
        let mut socket = DatagramSocket { fd, waker, lost_before: 0 };
        socket.lost_before = socket.lost()?;
        Ok(socket)
    }

    /// The address that it is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::try_from(getsockname(&self.fd)?)?)
    }

    /// The buffers that the kernel has granted.
    pub fn buffers(&self) -> io::Result<DatagramBuffers> {
        Ok(DatagramBuffers {
            recv_bytes: sockopt::socket_recv_buffer_size(&self.fd)?,
            send_bytes: sockopt::socket_send_buffer_size(&self.fd)?,
        })
    }

    /// Used bytes of the receive buffer, including the bytes that the kernel adds to each datagram.
    ///
    /// Cost: a syscall.
    pub fn queued_bytes(&self) -> io::Result<usize> {
        self.meminfo().map(|info| info[MEMINFO_RMEM_ALLOC] as usize)
    }

    /// Datagrams that the kernel has dropped, since this process has the socket, because the receive
    /// buffer was full. The count wraps.
    ///
    /// Cost: a syscall. The kernel could tell the count with each datagram (`SO_RXQ_OVFL`), but
    /// then receiving costs more for all of them.
    pub fn lost(&self) -> io::Result<u32> {
        self.meminfo().map(|info| info[MEMINFO_DROPS].wrapping_sub(self.lost_before))
    }

    fn meminfo(&self) -> io::Result<[u32; MEMINFO_WORDS]> {
        let mut info = [0_u32; MEMINFO_WORDS];
        let mut bytes = libc::socklen_t::try_from(size_of_val(&info)).unwrap_or(0);
        // SAFETY: the kernel writes at most `bytes` bytes into the live array.
        let done = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_MEMINFO,
                info.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        if done == 0 { Ok(info) } else { Err(io::Error::last_os_error()) }
    }

    /// A waker that ends a [`DatagramSocket::wait`] from any thread.
    pub fn waker(&self) -> Waker {
        let waker = Arc::clone(&self.waker);
        Box::new(move || {
            // A full counter means that the waker has been used already.
            let _ = rustix::io::write(&*waker, &1_u64.to_ne_bytes());
        })
    }

    /// Waits for a datagram, for the waker, or until the timeout.
    ///
    /// Cost: a syscall, and one more if the waker was used.
    pub fn wait(&self, timeout: Duration) -> io::Result<()> {
        let mut fds = [
            PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.waker.as_fd(), PollFlags::IN),
        ];
        let timeout = Timespec::try_from(timeout).ok();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !fds[1].revents().is_empty() {
            self.reset_waker();
        }
        Ok(())
    }

    /// Waits for the waker, or until the timeout. Datagrams wait in the kernel.
    ///
    /// Cost: as [`DatagramSocket::wait`].
    pub fn wait_for_waker(&self, timeout: Duration) -> io::Result<()> {
        let mut fds = [PollFd::from_borrowed_fd(self.waker.as_fd(), PollFlags::IN)];
        let timeout = Timespec::try_from(timeout).ok();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => self.reset_waker(),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn reset_waker(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.waker, &mut count);
    }

    /// Waits until the kernel has room for datagrams to send, or until the timeout.
    fn wait_for_room(&self, timeout: Duration) {
        let timeout = Timespec::try_from(timeout).ok();
        // The next attempt to send shows whether there is room now.
        let _ = poll(
            &mut [PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::OUT)],
            timeout.as_ref(),
        );
    }
}

impl AsFd for DatagramSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn switch_on(fd: &OwnedFd, level: i32, option: i32) -> io::Result<()> {
    let on: libc::c_int = 1;
    let bytes = libc::socklen_t::try_from(size_of_val(&on)).unwrap_or(0);
    // SAFETY: the kernel reads `bytes` bytes of a live integer.
    let done =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const on).cast(), bytes) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `SK_MEMINFO_VARS`, and two of the words.
const MEMINFO_WORDS: usize = 9;
const MEMINFO_RMEM_ALLOC: usize = 0;
const MEMINFO_DROPS: usize = 8;

#[cfg(test)]
mod tests;
