//! The system calls that a shard uses, as a trait. The kernel implements it, and so does the
//! simulator.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::command::Passed;
use crate::id::Priority;
use crate::time::Nanos;

/// Wakes a thread out of its wait. Called only while the thread sleeps.
pub type Waker = Box<dyn Fn() + Send + Sync>;

/// The network under a shard.
///
/// Readiness is edge-triggered. After an edge the shard reads until a short read or `WouldBlock`,
/// and writes until `WouldBlock`. Only then is a further edge due.
pub trait Net {
    /// A socket on its way to a shard.
    type Offer;
    /// A socket that the shard owns. It cannot leave the shard's thread.
    type Socket;

    /// Reads the clock.
    fn now(&self) -> Nanos;

    /// Takes over an offered socket. From now on its readiness is reported under `key`.
    fn adopt(
        &mut self,
        offer: Self::Offer,
        key: u64,
        priority: Priority,
    ) -> io::Result<Self::Socket>;

    /// Takes a socket out of the passage. Earlier ones that nobody took are closed.
    ///
    /// Errors: the shard's table has no free descriptor. Then the kernel has closed the socket.
    fn take_passed(&mut self, passed: Passed) -> io::Result<Self::Offer>;

    /// Takes a descriptor out of the passage that is no connection. Earlier ones are closed.
    ///
    /// Errors: as for [`Net::take_passed`].
    fn take_link(&mut self, passed: Passed) -> io::Result<OwnedFd>;

    /// Wakes the front of a shard that has descriptors of its own.
    fn wake_front(&mut self);

    /// The descriptors in the shard's own table; 0 if it has none.
    fn descriptors(&self) -> usize;

    /// Waits for readiness and appends it to `ready`: first that of high-priority sockets, then
    /// that of at most `count_max` others. Returns early when the waker is used. Without a timeout
    /// it waits until something happens.
    fn wait(
        &mut self,
        ready: &mut Vec<Ready>,
        timeout: Option<Duration>,
        count_max: usize,
    ) -> io::Result<()>;

    /// Appends the readiness of sockets of high priority, without waiting.
    fn poll_high(&mut self, ready: &mut Vec<Ready>) -> io::Result<()>;

    /// Reads into `buf`; 0 is the peer's end.
    fn recv(&mut self, socket: &Self::Socket, buf: &mut [u8]) -> io::Result<usize>;

    /// Sends as much of `bufs` as the socket takes. Must not raise a signal.
    fn send(&mut self, socket: &Self::Socket, bufs: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Ends our side of the stream, after the bytes that were sent.
    fn shutdown_write(&mut self, socket: &Self::Socket);

    /// The pending error of the socket, if any.
    fn take_error(&mut self, socket: &Self::Socket) -> Option<io::Error>;

    /// The address of the peer, also after its connection broke.
    fn peer_addr(&self, socket: &Self::Socket) -> Option<SocketAddr>;

    /// The descriptor of a socket, for the process that it is handed to; `None` without a kernel.
    fn lend<'a>(&self, socket: &'a Self::Socket) -> Option<BorrowedFd<'a>>;

    /// Another process has copies of sockets, or no longer. While it has, a close must also end the
    /// connection, which otherwise lives as long as the copy.
    fn set_lent(&mut self, is_lent: bool);

    /// Closes the socket. The kernel still delivers the bytes that were sent.
    fn close(&mut self, socket: Self::Socket);

    /// Closes the socket and discards the bytes that were sent (a reset).
    fn abort(&mut self, socket: Self::Socket);
}

/// The readiness of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// From [`Net::adopt`].
    pub key: u64,
    /// There is something to read.
    pub readable: bool,
    /// There is room to write.
    pub writable: bool,
    /// The peer has ended its side, or the socket has an error. Reading tells which.
    pub ended: bool,
}
