//! Measures the kernel's memory for one end of a connection, with pairs of sockets in this process.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use rustix::event::epoll;
use weir::LimitedMemory;

use crate::doctor::machine::Machine;

/// The kernel's memory for an accepted connection. `None` if it could not be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KernelBytes {
    /// All of it.
    pub(super) machine: Option<u64>,
    /// The part that counts against the limit of the cgroup, if there is one.
    pub(super) cgroup: Option<u64>,
}

/// Measures until both are known, at most [`ROUNDS`] times: if other programs give back more kernel
/// memory meanwhile than the sockets take, a round finds nothing.
pub(super) fn measure(
    machine: &Machine,
    cgroup: Option<&LimitedMemory>,
    pairs: usize,
) -> io::Result<KernelBytes> {
    let mut found = KernelBytes { machine: None, cgroup: None };
    for _ in 0..ROUNDS {
        let round = measure_once(machine, cgroup, pairs)?;
        found.machine = found.machine.or(round.machine);
        found.cgroup = found.cgroup.or(round.cgroup);
        if found.machine.is_some() && (found.cgroup.is_some() || cgroup.is_none()) {
            break;
        }
    }
    Ok(found)
}

/// Connects `pairs` pairs and accepts them as a gateway does. Before that, some pairs fill the gaps
/// in the kernel's tables.
///
/// Shape: the machine counts both ends, which cost the same. A cgroup counts some parts of the other
/// end only, so what it takes for one end is what it grows by when the connections are accepted.
fn measure_once(
    machine: &Machine,
    cgroup: Option<&LimitedMemory>,
    pairs: usize,
) -> io::Result<KernelBytes> {
    let before = Pairs::open(pairs / 4)?;
    let slab_before = machine.memory("SUnreclaim");
    let mut measured = Pairs::connect(pairs)?;
    let taken_before = cgroup.and_then(LimitedMemory::kernel_bytes);
    measured.accept()?;
    let taken_after = cgroup.and_then(LimitedMemory::kernel_bytes);
    let slab_after = machine.memory("SUnreclaim");
    drop((before, measured));
    let each = |before: Option<u64>, after: Option<u64>, ends: usize| {
        Some(after?.checked_sub(before?)? / ends as u64)
    };
    // None at all means that another program gave back as much meanwhile.
    let slab = each(slab_before, slab_after, 2 * pairs).filter(|bytes| *bytes > 0);
    let machine = slab.map(|slab| slab + INODE_BYTES);
    Ok(KernelBytes { machine, cgroup: each(taken_before, taken_after, pairs) })
}

/// Connections of this process with itself.
struct Pairs {
    listener: TcpListener,
    clients: Vec<TcpStream>,
    accepted: Vec<TcpStream>,
    epoll: std::os::fd::OwnedFd,
}

impl Pairs {
    /// Connects, without accepting: the connections wait in the backlog.
    fn connect(count: usize) -> io::Result<Pairs> {
        let socket = rustix::net::socket(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::STREAM,
            None,
        )?;
        rustix::net::bind(&socket, &std::net::SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        rustix::net::listen(&socket, i32::try_from(count + 1).unwrap_or(i32::MAX))?;
        let listener = TcpListener::from(socket);
        let addr = listener.local_addr()?;
        let mut clients = Vec::with_capacity(count);
        for _ in 0..count {
            let client = TcpStream::connect(addr)?;
            // Otherwise its port stays in use for a minute.
            rustix::net::sockopt::set_socket_linger(&client, Some(std::time::Duration::ZERO))?;
            clients.push(client);
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Pairs { listener, clients, accepted: Vec::with_capacity(count), epoll })
    }

    /// Accepts all, waits for each with epoll, and exchanges a few bytes.
    fn accept(&mut self) -> io::Result<()> {
        for client in &mut self.clients {
            let (mut accepted, _) = self.listener.accept()?;
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&self.epoll, &accepted, epoll::EventData::new_u64(0), flags)?;
            let mut buf = [0; 64];
            client.write_all(&buf)?;
            accepted.read_exact(&mut buf)?;
            accepted.write_all(&buf)?;
            client.read_exact(&mut buf)?;
            self.accepted.push(accepted);
        }
        Ok(())
    }

    fn open(count: usize) -> io::Result<Pairs> {
        let mut pairs = Pairs::connect(count)?;
        pairs.accept()?;
        Ok(pairs)
    }
}

/// Inode and name of a socket. The kernel counts them among what it can reclaim, where the caches of
/// files come and go; so they are not measured.
const INODE_BYTES: u64 = 1_100;
const ROUNDS: usize = 3;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_connection_takes_some_kilobytes() {
        let machine = Machine::new(Path::new("/"));
        let found = measure(&machine, None, 400).unwrap();
        assert!((1_500..12_000).contains(&found.machine.unwrap()), "{found:?}");
        assert_eq!(found.cgroup, None);
    }
}
