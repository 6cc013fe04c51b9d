//! [`Net`] on epoll.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, connect_unspec, getpeername, recv, send,
    sendmsg, shutdown, sockopt,
};

use super::descriptors::{PassageEnd, ShardFd, has_own_table};
use super::peer_name;
use crate::command::Passed;
use crate::id::Priority;
use crate::net::Waker;
use crate::net::{Net, Ready};
use crate::time::Nanos;

/// A shard's epoll and the descriptor of its waker.
///
/// Sockets are registered once, edge-triggered for reading and writing, and not touched again until
/// they close. So a stall costs no syscall beyond the refused send.
///
/// High-priority sockets have an epoll of their own, which the shard can look at without the
/// others. It is registered level-triggered with the main epoll, so that it ends a wait.
pub(crate) struct Epoll {
    epoll: ShardFd,
    high: ShardFd,
    waker: ShardFd,
    own_table: Option<OwnTable>,
    /// Sockets that the shard holds.
    sockets: usize,
    /// Another process has copies of some.
    is_lent: bool,
    events: Vec<epoll::Event>,
    events_high: Vec<epoll::Event>,
}

/// What connects a shard with a descriptor table of its own to the front.
pub(crate) struct OwnTable {
    /// The way of sockets into this table.
    pub(crate) passage: PassageEnd,
    /// Counts the wakes of the front.
    pub(crate) front: FrontWaker,
}

/// Wakes the front from a shard with a descriptor table of its own. The front polls the
/// descriptor.
#[derive(Debug, Clone)]
pub(crate) struct FrontWaker(Rc<ShardFd>);

/// A socket of this shard. Only the shard closes it, because it cannot leave the thread.
#[derive(Debug)]
pub(crate) struct Socket(ShardFd);

/// Events from one look at the high-priority sockets.
const HIGH_EVENTS_MAX: usize = 256;
/// The keys of the waker and of the high-priority epoll. No slot has them.
const WAKER_KEY: u64 = u64::MAX;
const HIGH_KEY: u64 = u64::MAX - 1;
/// The events for which sockets are registered.
const SOCKET_FLAGS: EventFlags =
    EventFlags::IN.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);

impl Epoll {
    /// An epoll for the calling thread that listens to `waker`.
    pub(crate) fn new(waker: ShardFd, own_table: Option<OwnTable>) -> io::Result<Epoll> {
        let epoll = ShardFd::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let high = ShardFd::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let edge = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, &waker, epoll::EventData::new_u64(WAKER_KEY), edge)?;
        epoll::add(&epoll, &high, epoll::EventData::new_u64(HIGH_KEY), EventFlags::IN)?;
        let (events, events_high) = (Vec::new(), Vec::new());
        let (sockets, is_lent) = (0, false);
        Ok(Epoll { epoll, high, waker, own_table, sockets, is_lent, events, events_high })
    }

    fn count_closed(&mut self) {
        self.sockets -= 1;
    }
}

/// The descriptors of a shard's own table beside sockets: standard streams, two epolls, two
/// wakers, the passage.
pub(crate) const OWN_TABLE_DESCRIPTORS: usize = 8;

impl FrontWaker {
    /// A waker that writes to this table's copy of the descriptor.
    pub(crate) fn new(written: ShardFd) -> FrontWaker {
        FrontWaker(Rc::new(written))
    }

    pub(crate) fn wake(&self) {
        write_one(&*self.0);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Adds one to the counter that the other side polls.
fn write_one(counter: impl AsFd) {
    // A full counter means that the other side has been woken already.
    let _ = rustix::io::write(counter, &1_u64.to_ne_bytes());
}

/// Looks once, for at most `count_max` events.
fn look(
    epoll: &ShardFd,
    events: &mut Vec<epoll::Event>,
    timeout: Option<&Timespec>,
    count_max: usize,
) -> io::Result<()> {
    events.clear();
    events.reserve(count_max);
    match epoll::wait(epoll, spare_capacity(events), timeout) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn ready_of(event: epoll::Event) -> Ready {
    let flags = event.flags;
    Ready {
        key: event.data.u64(),
        readable: flags.contains(EventFlags::IN),
        writable: flags.contains(EventFlags::OUT),
        ended: flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR),
    }
}

/// A counter that one side adds to and the other polls.
pub(crate) fn counter() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// A waker that adds to `counter`. Any thread may use it that shares the table of this one.
pub(crate) fn waker(counter: OwnedFd) -> Waker {
    Box::new(move || {
        debug_assert!(!has_own_table(), "a shard wakes no shard");
        write_one(&counter);
    })
}

impl Net for Epoll {
    type Offer = OwnedFd;
    type Socket = Socket;

    fn now(&self) -> Nanos {
        Nanos::now()
    }

    fn adopt(&mut self, offer: OwnedFd, key: u64, priority: Priority) -> io::Result<Socket> {
        let epoll = match priority {
            Priority::High => &self.high,
            Priority::Normal | Priority::Low => &self.epoll,
        };
        epoll::add(epoll, &offer, epoll::EventData::new_u64(key), SOCKET_FLAGS)?;
        self.sockets += 1;
        Ok(Socket(ShardFd::new(offer)))
    }

    fn take_passed(&mut self, passed: Passed) -> io::Result<OwnedFd> {
        match &self.own_table {
            Some(own_table) => own_table.passage.take(passed),
            None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn take_link(&mut self, passed: Passed) -> io::Result<OwnedFd> {
        self.take_passed(passed)
    }

    fn wake_front(&mut self) {
        if let Some(own_table) = &self.own_table {
            own_table.front.wake();
        }
    }

    fn descriptors(&self) -> usize {
        self.own_table.as_ref().map_or(0, |_| OWN_TABLE_DESCRIPTORS + self.sockets)
    }

    fn wait(
        &mut self,
        ready: &mut Vec<Ready>,
        timeout: Option<Duration>,
        count_max: usize,
    ) -> io::Result<()> {
        let timeout = timeout.map(|timeout| Timespec::try_from(timeout).unwrap_or(MAX_WAIT));
        look(&self.epoll, &mut self.events, timeout.as_ref(), count_max)?;
        let mut events = std::mem::take(&mut self.events);
        if events.iter().any(|event| event.data.u64() == HIGH_KEY) {
            self.poll_high(ready)?;
        }
        for event in events.drain(..) {
            match event.data.u64() {
                WAKER_KEY => {
                    let mut count = [0; 8];
                    let _ = rustix::io::read(&self.waker, &mut count);
                }
                HIGH_KEY => {}
                _ => ready.push(ready_of(event)),
            }
        }
        self.events = events;
        Ok(())
    }

    fn poll_high(&mut self, ready: &mut Vec<Ready>) -> io::Result<()> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        look(&self.high, &mut self.events_high, Some(&now), HIGH_EVENTS_MAX)?;
        ready.extend(self.events_high.drain(..).map(ready_of));
        Ok(())
    }

    fn recv(&mut self, socket: &Socket, buf: &mut [u8]) -> io::Result<usize> {
        Ok(recv(socket, buf, RecvFlags::DONTWAIT)?.0)
    }

    fn send(&mut self, socket: &Socket, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match bufs {
            [buf] => Ok(send(socket, buf, flags)?),
            bufs => Ok(sendmsg(socket, bufs, &mut SendAncillaryBuffer::default(), flags)?),
        }
    }

    fn shutdown_write(&mut self, socket: &Socket) {
        // This fails only if the connection is over, which the next read shows.
        let _ = shutdown(socket, Shutdown::Write);
    }

    fn take_error(&mut self, socket: &Socket) -> Option<io::Error> {
        match sockopt::socket_error(socket) {
            Ok(Ok(())) => None,
            Ok(Err(error)) | Err(error) => Some(error.into()),
        }
    }

    fn peer_addr(&self, socket: &Socket) -> Option<SocketAddr> {
        match getpeername(socket) {
            Ok(addr) => SocketAddr::try_from(addr?).ok(),
            Err(Errno::NOTCONN) => peer_name::of(socket.as_fd()),
            Err(_) => None,
        }
    }

    fn lend<'a>(&self, socket: &'a Socket) -> Option<BorrowedFd<'a>> {
        Some(socket.as_fd())
    }

    fn set_lent(&mut self, is_lent: bool) {
        self.is_lent = is_lent;
    }

    fn close(&mut self, socket: Socket) {
        if self.is_lent {
            // It fails only if the connection is over.
            let _ = shutdown(&socket, Shutdown::Both);
        }
        drop(socket);
        self.count_closed();
    }

    fn abort(&mut self, socket: Socket) {
        let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
        if self.is_lent {
            // As closing the last copy would: it sends a reset.
            let _ = connect_unspec(&socket);
        }
        drop(socket);
        self.count_closed();
    }
}

/// Replaces a wait that does not fit the kernel's type.
const MAX_WAIT: Timespec = Timespec { tv_sec: i64::MAX, tv_nsec: 0 };
