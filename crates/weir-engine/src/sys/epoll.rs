//! [`Net`] on epoll.

use std::io::{self, IoSlice};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, getpeername, recv, send, sendmsg,
    shutdown, sockopt,
};

use crate::mailbox::Bell;
use crate::net::{Net, Ready};
use crate::time::Nanos;

/// A shard's epoll and its bell.
///
/// Sockets are registered once, edge-triggered for reading and writing, and never touched again until they close:
/// a stall costs no syscall beyond the send that was refused.
pub(crate) struct Epoll {
    epoll: OwnedFd,
    bell: Arc<OwnedFd>,
    events: Vec<epoll::Event>,
}

/// A socket of this shard, closed by it alone: it cannot leave the thread.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    _stays_on_its_shard: PhantomData<*const ()>,
}

/// Events taken from one wait.
const EVENTS_MAX: usize = 1024;
/// The key of the bell; no slot has it.
const BELL_KEY: u64 = u64::MAX;

impl Epoll {
    /// An epoll for the calling thread that listens to `bell`.
    pub(crate) fn new(bell: Arc<OwnedFd>) -> io::Result<Epoll> {
        use epoll::EventFlags;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &epoll,
            &*bell,
            epoll::EventData::new_u64(BELL_KEY),
            EventFlags::IN | EventFlags::ET,
        )?;
        Ok(Epoll { epoll, bell, events: Vec::with_capacity(EVENTS_MAX) })
    }
}

/// A bell, and what rings it from any thread.
pub(crate) fn bell() -> io::Result<(Arc<OwnedFd>, Bell)> {
    let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let ringer = Arc::clone(&bell);
    let ring = move || {
        // A counter that is full has been ringing all along.
        let _ = rustix::io::write(&*ringer, &1_u64.to_ne_bytes());
    };
    Ok((bell, Box::new(ring)))
}

impl Net for Epoll {
    type Offer = OwnedFd;
    type Socket = Socket;

    fn now(&self) -> Nanos {
        Nanos::now()
    }

    fn adopt(&mut self, offer: OwnedFd, key: u64) -> io::Result<Socket> {
        use epoll::EventFlags;
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, &offer, epoll::EventData::new_u64(key), flags)?;
        Ok(Socket { fd: offer, _stays_on_its_shard: PhantomData })
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> io::Result<()> {
        use epoll::EventFlags;
        let timeout = timeout.map(|timeout| Timespec::try_from(timeout).unwrap_or(MAX_WAIT));
        self.events.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        for event in &self.events {
            let flags = event.flags;
            let key = event.data.u64();
            if key == BELL_KEY {
                let mut count = [0; 8];
                let _ = rustix::io::read(&*self.bell, &mut count);
                continue;
            }
            ready.push(Ready {
                key,
                readable: flags.contains(EventFlags::IN),
                writable: flags.contains(EventFlags::OUT),
                ended: flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR),
            });
        }
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
        // It fails only where the connection is over, which reading shows.
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

/// Stands for a wait that does not fit the kernel's type.
const MAX_WAIT: Timespec = Timespec { tv_sec: i64::MAX, tv_nsec: 0 };
