//! The floor of a handshake's sockets: accept, exchange the same numbers of bytes, close; no protocol at all.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::{Errno, read};
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, listen, recv, send, sockopt};

use super::{BACKLOG, EVENTS_MAX, PATIENCE, READ_BYTES};
use crate::peer::Peer;
use crate::process::Cpus;
use crate::protocol::FloorAnswer;
use crate::sys;

/// The floor, seen from the process that directs it.
pub(crate) struct Exchange {
    peer: Peer,
    /// Where it listens.
    pub(crate) addr: SocketAddr,
}

/// The floor itself.
struct Slab {
    epoll: OwnedFd,
    listener: OwnedFd,
    conns: Vec<Option<Conn>>,
    free: Vec<usize>,
    script: Vec<usize>,
    buf: Vec<u8>,
}

/// A connection: `step` counts what was received and sent in turn.
struct Conn {
    fd: OwnedFd,
    step: usize,
    received: usize,
}

const LISTENER: u64 = u64::MAX;
const INPUT: u64 = u64::MAX - 1;

impl Exchange {
    /// Starts one that receives and sends so many bytes in turn.
    pub(crate) fn start(script: &[u64], cpus: Option<&Cpus>) -> Result<Exchange> {
        let script: Vec<String> = script.iter().map(u64::to_string).collect();
        let mut peer = Peer::start("exchange-process", &["--script", &script.join(",")], cpus)?;
        match peer.hear(PATIENCE)? {
            FloorAnswer::Listening(addr) => Ok(Exchange { peer, addr }),
            other @ (FloorAnswer::Sent { .. } | FloorAnswer::Holds(_)) => {
                bail!("the floor said {other:?}")
            }
        }
    }

    /// CPU time it has used.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        sys::process_cpu(self.peer.pid()).context("cannot read the floor's CPU time")
    }
}

/// Runs the floor until standard input ends.
pub(crate) fn run(script: Vec<usize>) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen")?;
    let addr = listener.local_addr().context("cannot listen")?;
    listener.set_nonblocking(true).context("cannot listen")?;
    let listener = OwnedFd::from(listener);
    listen(&listener, BACKLOG).context("cannot listen")?;
    let epoll = epoll::create(CreateFlags::CLOEXEC).context("cannot make an epoll")?;
    let input = std::io::stdin();
    epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)
        .context("cannot watch")?;
    epoll::add(&epoll, &input, EventData::new_u64(INPUT), EventFlags::IN)
        .context("cannot watch")?;
    super::answer(&mut std::io::stdout(), &FloorAnswer::Listening(addr))?;
    let buf = vec![0; READ_BYTES];
    let mut slab = Slab { epoll, listener, conns: Vec::new(), free: Vec::new(), script, buf };
    let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
    loop {
        events.clear();
        match epoll::wait(&slab.epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("epoll failed"),
        }
        for event in &events {
            let data = event.data;
            match data.u64() {
                LISTENER => slab.accept()?,
                INPUT => {
                    if read(&input, &mut slab.buf).unwrap_or(0) == 0 {
                        return Ok(());
                    }
                }
                index => slab.exchange(usize::try_from(index).context("an index is a usize")?),
            }
        }
    }
}

impl Slab {
    fn accept(&mut self) -> Result<()> {
        loop {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let fd = match accept_with(&self.listener, flags) {
                Ok(fd) => fd,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => return Err(error).context("the floor cannot accept"),
            };
            sockopt::set_tcp_nodelay(&fd, true).context("cannot set TCP_NODELAY")?;
            let index = self.free.pop().unwrap_or_else(|| {
                self.conns.push(None);
                self.conns.len() - 1
            });
            epoll::add(&self.epoll, &fd, EventData::new_u64(index as u64), EventFlags::IN)
                .context("cannot watch a socket")?;
            self.conns[index] = Some(Conn { fd, step: 0, received: 0 });
        }
    }

    /// One read, and the next bytes to send once all have come that come before them.
    fn exchange(&mut self, index: usize) {
        let Some(Some(conn)) = self.conns.get_mut(index) else { return };
        let got = match recv(&conn.fd, &mut self.buf[..], RecvFlags::empty()) {
            Ok((got, _)) => got,
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => 0,
        };
        conn.received += got;
        let wanted = self.script.get(conn.step).copied().unwrap_or(0);
        let mut over = got == 0;
        if !over && conn.received >= wanted {
            let answer = self.script.get(conn.step + 1).copied().unwrap_or(0).min(self.buf.len());
            over = send(&conn.fd, &self.buf[..answer], SendFlags::NOSIGNAL).is_err();
            conn.received -= wanted;
            conn.step += 2;
        }
        if over {
            self.conns[index] = None;
            self.free.push(index);
        }
    }
}
