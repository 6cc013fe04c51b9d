//! The baseline of attacks: a process that accepts connections and datagrams and discards
//! everything.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use anyhow::{Result, bail};
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use tokio::task::LocalSet;

use super::PATIENCE;
use crate::peer::Peer;
use crate::process::Cpus;
use crate::protocol::BaselineAnswer;

/// A handle of this process, which is killed when the handle is dropped.
pub(crate) struct Discard {
    _peer: Peer,
    /// The address of the listener, for TCP and UDP.
    pub(crate) addr: SocketAddr,
}

type Buffer = Rc<RefCell<Vec<u8>>>;

impl Discard {
    /// Starts the process.
    pub(crate) fn start(cpus: Option<&Cpus>) -> Result<Discard> {
        let mut peer = Peer::start("discard-process", &[], cpus)?;
        match peer.hear(PATIENCE)? {
            BaselineAnswer::Listening(addr) => Ok(Discard { _peer: peer, addr }),
            other @ (BaselineAnswer::Sent { .. } | BaselineAnswer::Holds(_)) => {
                bail!("the baseline said {other:?}")
            }
        }
    }
}

/// Runs the process until it is killed.
pub(crate) fn run() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    LocalSet::new().block_on(&runtime, async {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let listener = socket.listen(BACKLOG)?;
        let addr = listener.local_addr()?;
        let datagrams = UdpSocket::bind(addr).await?;
        super::answer(&mut std::io::stdout(), &BaselineAnswer::Listening(addr))?;
        let buf: Buffer = Rc::new(RefCell::new(vec![0; READ_BYTES]));
        tokio::select! {
            () = accept(&listener, &buf) => {}
            () = drain(&datagrams, &buf) => {}
        }
        Ok(())
    })
}

async fn accept(listener: &TcpListener, buf: &Buffer) {
    loop {
        // An error concerns a connection that has gone, or descriptors that will be free again.
        if let Ok((stream, _)) = listener.accept().await {
            tokio::task::spawn_local(discard(stream, buf.clone()));
        }
    }
}

/// Reads until the end, and closes.
async fn discard(stream: TcpStream, buf: Buffer) {
    while stream.readable().await.is_ok() {
        match stream.try_read(&mut buf.borrow_mut()) {
            Ok(0) => break,
            Err(error) if error.kind() != ErrorKind::WouldBlock => break,
            Ok(_) | Err(_) => {}
        }
    }
    // Close with a reset; if this fails, the connection closes in good order.
    let _ = sockopt::set_socket_linger(&stream, Some(std::time::Duration::ZERO));
}

async fn drain(socket: &UdpSocket, buf: &Buffer) {
    while socket.readable().await.is_ok() {
        // A datagram that cannot be read is lost.
        let _ = socket.try_recv(&mut buf.borrow_mut());
    }
}

const READ_BYTES: usize = 64 << 10;
/// The same as a gateway's.
const BACKLOG: u32 = 4096;
