//! The baselines of datagrams: processes that send every datagram back.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;

use super::PATIENCE;
use crate::peer::Peer;
use crate::process::Cpus;
use crate::protocol::BaselineAnswer;
use crate::sys::{self, datagrams};

/// The way in which a baseline receives and sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Style {
    /// In batches: `recvmmsg` and `sendmmsg`.
    Batches,
    /// One by one: `recvfrom` and `sendto`.
    Single,
}

/// A handle of a baseline's process.
pub(crate) struct Baseline {
    peer: Peer,
    /// The address of the listener.
    pub(crate) addr: SocketAddr,
}

impl Style {
    /// Name on the command line.
    fn name(self) -> &'static str {
        match self {
            Style::Batches => "batches",
            Style::Single => "single",
        }
    }
}

impl Baseline {
    /// Starts one.
    pub(crate) fn start(style: Style, cpus: Option<&Cpus>) -> Result<Baseline> {
        let mut peer = Peer::start("udp-process", &["--style", style.name()], cpus)?;
        match peer.hear(PATIENCE)? {
            BaselineAnswer::Listening(addr) => Ok(Baseline { peer, addr }),
            other @ (BaselineAnswer::Sent { .. } | BaselineAnswer::Holds(_)) => {
                bail!("the baseline said {other:?}")
            }
        }
    }

    /// CPU time that the process has used.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        sys::process_cpu(self.peer.pid()).context("cannot read the baseline's CPU time")
    }
}

/// Runs the baseline until it is killed: a thread and a socket for each processor, as the server has.
pub(crate) fn run(style: Style) -> Result<()> {
    let threads = Cpus::allowed(None)?.count();
    let first = socket(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    let addr = first.local_addr()?;
    let mut sockets = vec![first];
    for _ in 1..threads {
        sockets.push(socket(addr)?);
    }
    super::answer(&mut std::io::stdout(), &BaselineAnswer::Listening(addr))?;
    thread::scope(|scope| {
        let threads: Vec<_> =
            sockets.iter().map(|socket| scope.spawn(move || echo(style, socket))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| anyhow!("a thread of the baseline panicked"))?
        })
    })
}

fn echo(style: Style, socket: &UdpSocket) -> Result<()> {
    match style {
        Style::Batches => Err(datagrams::echo_in_batches(socket.as_fd()).into()),
        Style::Single => {
            let mut buf = [0; datagrams::BYTES];
            loop {
                let (bytes, peer) = socket.recv_from(&mut buf)?;
                socket.send_to(&buf[..bytes], peer)?;
            }
        }
    }
}

fn socket(addr: SocketAddr) -> Result<UdpSocket> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
    let (kind, flags) = (SocketType::DGRAM, SocketFlags::CLOEXEC);
    let fd = socket_with(AddressFamily::INET, kind, flags, None).context("cannot make a socket")?;
    datagrams::share_port(fd.as_fd()).context("cannot share a port")?;
    datagrams::set_buffers(fd.as_fd(), BUFFER_BYTES).context("cannot set buffers")?;
    bind(&fd, &addr).context("cannot listen")?;
    Ok(UdpSocket::from(fd))
}

/// As the server's by default.
pub(crate) const BUFFER_BYTES: i32 = 2 * 1024 * 1024;
