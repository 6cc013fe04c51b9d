//! [`Net`] on epoll.

use std::io::{self, IoSlice};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, getpeername, recv, send, sendmsg,
    shutdown, sockopt,
};

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
    epoll: OwnedFd,
    high: OwnedFd,
    waker: Arc<OwnedFd>,
    events: Vec<epoll::Event>,
    events_high: Vec<epoll::Event>,
}

/// A socket of this shard. Only the shard closes it, because it cannot leave the thread.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    _stays_on_its_shard: PhantomData<*const ()>,
}

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
    pub(crate) fn new(waker: Arc<OwnedFd>) -> io::Result<Epoll> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let high = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edge = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, &*waker, epoll::EventData::new_u64(WAKER_KEY), edge)?;
        epoll::add(&epoll, &high, epoll::EventData::new_u64(HIGH_KEY), EventFlags::IN)?;
        Ok(Epoll { epoll, high, waker, events: Vec::new(), events_high: Vec::new() })
    }
}

/// Looks once, for at most `count_max` events.
fn look(
    epoll: &OwnedFd,
    events: &mut Vec<epoll::Event>,
    timeout: Option<&Timespec>,
    count_max: usize,
) -> io::Result<()> {
    events.clear();
    events.reserve(count_max);
    match epoll::wait(epoll, spare_capacity(events), timeout) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
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

/// The descriptor that a waker writes to, and the waker. Any thread may use the waker.
pub(crate) fn waker() -> io::Result<(Arc<OwnedFd>, Waker)> {
    let waker = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let written = Arc::clone(&waker);
    let wake = move || {
        // A full counter means that the waker has been used already.
        let _ = rustix::io::write(&*written, &1_u64.to_ne_bytes());
    };
    Ok((waker, Box::new(wake)))
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
        Ok(Socket { fd: offer, _stays_on_its_shard: PhantomData })
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
                    let _ = rustix::io::read(&*self.waker, &mut count);
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
        Ok(recv(&socket.fd, buf, RecvFlags::DONTWAIT)?.0)
    }

    fn send(&mut self, socket: &Socket, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match bufs {
            [buf] => Ok(send(&socket.fd, buf, flags)?),
            bufs => Ok(sendmsg(&socket.fd, bufs, &mut SendAncillaryBuffer::default(), flags)?),
        }
    }

    fn shutdown_write(&mut self, socket: &Socket) {
        // This fails only if the connection is over, which the next read shows.
        let _ = shutdown(&socket.fd, Shutdown::Write);
    }

    fn take_error(&mut self, socket: &Socket) -> Option<io::Error> {
        match sockopt::socket_error(&socket.fd) {
            Ok(Ok(())) => None,
            Ok(Err(error)) | Err(error) => Some(error.into()),
        }
    }

    fn peer_addr(&self, socket: &Socket) -> Option<SocketAddr> {
        getpeername(&socket.fd).ok().and_then(|addr| SocketAddr::try_from(addr?).ok())
    }

    fn close(&mut self, socket: Socket) {
        drop(socket);
    }

    fn abort(&mut self, socket: Socket) {
        let _ = sockopt::set_socket_linger(&socket.fd, Some(Duration::ZERO));
        drop(socket);
    }
}

/// Replaces a wait that does not fit the kernel's type.
const MAX_WAIT: Timespec = Timespec { tv_sec: i64::MAX, tv_nsec: 0 };
