//! Opens the listeners, or takes those that another program has opened for the gateway.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};

use socket2::{Socket, Type};
use tokio::net::TcpListener;
use tokio::runtime;
use weir_engine::Transport;

use super::{Settling, StartError};
use crate::base::config::{Config, ListenConfig};
use crate::base::model::Spoken;
use crate::connection::listener::{self, Buffers, Listener};

/// Sockets that another program has opened and that no listener has taken yet: each with the key and
/// the address of its listener.
#[derive(Debug)]
pub(super) struct Passed(Vec<(&'static str, SocketAddr, Socket)>);

/// A listener with its protocol and its runtime.
pub(super) struct Bound {
    pub(super) addr: SocketAddr,
    pub(super) transport: Transport,
    pub(super) spoken: Spoken,
    pub(super) listener: Listener,
    pub(super) runtime: runtime::Handle,
}

impl Passed {
    /// Finds the listener of each socket.
    pub(super) fn check(
        sockets: Vec<(String, OwnedFd)>,
        listen: &ListenConfig,
    ) -> Result<Passed, StartError> {
        let mut passed = Passed(Vec::new());
        for (name, fd) in sockets {
            let socket = Socket::from(fd);
            match passed.place(&name, &socket, listen) {
                Ok((key, addr)) => passed.0.push((key, addr, socket)),
                Err(cause) => return Err(StartError::Socket { name, cause }),
            }
        }
        Ok(passed)
    }

    /// The sockets of an old process's listeners. Those without a listener in the configuration close.
    pub(super) fn of_predecessor(sockets: Vec<(String, OwnedFd)>, listen: &ListenConfig) -> Passed {
        let doors = listen.doors().into_iter().map(|(key, _)| key);
        let keys: Vec<_> = doors.chain([ADMIN, DATAGRAMS]).collect();
        let mut passed = Passed(Vec::new());
        for (name, fd) in sockets {
            let socket = Socket::from(fd);
            let key = keys.iter().find(|key| key.strip_prefix("listen.") == Some(&*name));
            let addr = socket.local_addr().ok().and_then(|addr| addr.as_socket());
            if let (Some(key), Some(addr)) = (key, addr) {
                passed.0.push((key, addr, socket));
            }
        }
        passed
    }

    fn place(
        &self,
        name: &str,
        socket: &Socket,
        listen: &ListenConfig,
    ) -> Result<(&'static str, SocketAddr), String> {
        let keys = listen.doors().map(|(key, addrs)| (key, addrs.to_vec()));
        let admin = (ADMIN, listen.admin.into_iter().collect());
        let mut keys = keys.into_iter().chain([admin]);
        let found = keys.find(|(key, _)| key.strip_prefix("listen.") == Some(name));
        let Some((key, addrs)) = found else {
            return Err("has no listener: allowed are tcp, tls, http, https and admin".to_owned());
        };
        let addr = socket.local_addr().ok().and_then(|addr| addr.as_socket());
        let listens = socket.is_listener().unwrap_or(false);
        let Some(addr) = addr.filter(|_| listens && socket.r#type().ok() == Some(Type::STREAM))
        else {
            return Err("is no listening TCP socket".to_owned());
        };
        if !addrs.contains(&addr) {
            let configured: Vec<String> = addrs.iter().map(ToString::to_string).collect();
            let configured = configured.join(", ");
            return Err(format!("has the address {addr}, but {key} has [{configured}]"));
        }
        if self.0.iter().any(|(other, at, _)| (*other, *at) == (key, addr)) {
            return Err(format!("is passed twice for {addr}"));
        }
        Ok((key, addr))
    }

    fn take(&mut self, key: &str, addr: SocketAddr) -> Option<Socket> {
        let is_it = |of: SocketAddr| of == addr || (addr.port() == 0 && of.ip() == addr.ip());
        let index = self.0.iter().position(|(at, of, _)| *at == key && is_it(*of))?;
        Some(self.0.remove(index).2)
    }

    /// All sockets of a listener: an old process may have had one for each of several threads.
    fn take_all(&mut self, key: &str, addr: SocketAddr) -> Vec<Socket> {
        let Some(first) = self.take(key, addr) else { return Vec::new() };
        let addr = first.local_addr().ok().and_then(|addr| addr.as_socket());
        let others = std::iter::from_fn(|| self.take(key, addr?));
        std::iter::once(first).chain(others).collect()
    }

    /// All sockets for datagrams of this address, in their order.
    pub(super) fn take_datagrams(&mut self, addr: SocketAddr) -> Vec<OwnedFd> {
        self.take_all(DATAGRAMS, addr).into_iter().map(OwnedFd::from).collect()
    }
}

pub(super) fn bind_all(
    config: &Config,
    settling: &Settling,
    passed: &mut Passed,
) -> Result<(Vec<Bound>, Buffers), StartError> {
    let mut listeners = Vec::new();
    let mut granted = Buffers { send_bytes: 0, recv_bytes: 0 };
    let kinds = [
        (Transport::Tcp, Spoken::Frames),
        (Transport::Tls, Spoken::Frames),
        (Transport::Tcp, Spoken::Http),
        (Transport::Tls, Spoken::Http),
    ];
    for ((key, addrs), (transport, spoken)) in config.listen.doors().into_iter().zip(kinds) {
        for addr in addrs {
            let runtimes = settling.of(transport, spoken);
            let sockets = passed.take_all(key, *addr);
            // If the kernel chooses the port, all runtimes share it.
            let mut common = *addr;
            for index in 0..runtimes.len().max(sockets.len()) {
                let runtime = runtimes[index % runtimes.len()];
                let _sockets_belong_to = runtime.enter();
                let bound = match sockets.get(index % sockets.len().max(1)) {
                    // A single socket serves all runtimes: another one could not join its address,
                    // because the kernel wants one user for all.
                    Some(socket) => {
                        socket.try_clone().and_then(|socket| listener::adopt(socket, config))
                    }
                    None => listener::bind(common, addrs, runtimes.len() > 1, config),
                };
                let bound = bound.and_then(|(listener, buffers)| {
                    granted = buffers;
                    common = listener.get_ref().local_addr()?;
                    let runtime = runtime.clone();
                    Ok(Bound { addr: common, transport, spoken, listener, runtime })
                });
                let listen_error = |source| StartError::Listen { key, addr: *addr, source };
                listeners.push(bound.map_err(listen_error)?);
            }
        }
    }
    Ok((listeners, granted))
}

/// Copies of the listening sockets, each with its name: the key of `[listen]`.
pub(super) fn copies(
    listeners: &[Bound],
    admin: Option<&TcpListener>,
) -> io::Result<Vec<(&'static str, OwnedFd)>> {
    let mut copies = Vec::new();
    for Bound { transport, spoken, listener, .. } in listeners {
        let name = match (transport, spoken) {
            (Transport::Tcp, Spoken::Frames) => "tcp",
            (Transport::Tls, Spoken::Frames) => "tls",
            (Transport::Tcp, Spoken::Http) => "http",
            (Transport::Tls, Spoken::Http) => "https",
        };
        copies.push((name, listener.get_ref().as_fd().try_clone_to_owned()?));
    }
    if let Some(admin) = admin {
        copies.push(("admin", admin.as_fd().try_clone_to_owned()?));
    }
    Ok(copies)
}

pub(super) fn addrs(listeners: &[Bound], transport: Transport, spoken: Spoken) -> Vec<SocketAddr> {
    let kind =
        listeners.iter().filter(|bound| (bound.transport, bound.spoken) == (transport, spoken));
    let mut addrs: Vec<SocketAddr> = kind.map(|bound| bound.addr).collect();
    // An address that several runtimes share is listed once.
    addrs.dedup();
    addrs
}

pub(super) async fn bind_admin(
    addr: Option<SocketAddr>,
    passed: &mut Passed,
) -> Result<Option<(SocketAddr, TcpListener)>, StartError> {
    let Some(addr) = addr else { return Ok(None) };
    let socket = passed.take(ADMIN, addr);
    let bound = async {
        let listener = match socket {
            Some(socket) => {
                socket.set_nonblocking(true)?;
                TcpListener::from_std(socket.into())?
            }
            None => TcpListener::bind(addr).await?,
        };
        Ok((listener.local_addr()?, listener))
    };
    let listen_error = |source| StartError::Listen { key: ADMIN, addr, source };
    bound.await.map(Some).map_err(listen_error)
}

/// The key of the listener of the admin API.
const ADMIN: &str = "listen.admin";
/// The key of the sockets for datagrams.
const DATAGRAMS: &str = "listen.udp";

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    /// Checks one socket under this name, where `listen.tcp` has these addresses.
    fn check(name: &str, fd: OwnedFd, tcp: &[SocketAddr], expected: Result<(), &str>) {
        let listen = ListenConfig { tcp: tcp.to_vec(), ..ListenConfig::default() };
        let checked = Passed::check(vec![(name.to_owned(), fd)], &listen);
        let found = checked.map(|_| ()).map_err(|error| error.to_string());
        match (found, expected) {
            (Ok(()), Ok(())) => {}
            (Err(found), Err(part)) => assert!(found.contains(part), "{found}"),
            (found, expected) => panic!("{name}: {found:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn a_socket_needs_a_listener_with_its_name_and_address() {
        let open = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (socket, other) = (open(), open().local_addr().unwrap());
        let addr = socket.local_addr().unwrap();
        let again = || socket.try_clone().unwrap().into();
        check("tcp", again(), &[other, addr], Ok(()));
        check("tcp", again(), &[other], Err("but listen.tcp has [127.0.0.1:"));
        check("tls", again(), &[addr], Err("but listen.tls has []"));
        check("weir.socket", again(), &[addr], Err("allowed are tcp, tls, http, https and admin"));
        let datagrams = UdpSocket::bind(addr).unwrap();
        check("tcp", datagrams.into(), &[addr], Err("is no listening TCP socket"));
        let listen = ListenConfig { tcp: vec![addr], ..ListenConfig::default() };
        let twice = vec![("tcp".to_owned(), again()), ("tcp".to_owned(), again())];
        let refused = Passed::check(twice, &listen).unwrap_err();
        assert!(refused.to_string().contains("is passed twice"), "{refused}");
    }
}
