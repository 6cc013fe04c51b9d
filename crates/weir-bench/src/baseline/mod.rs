//! The baseline of messages and echoes: a process that does only the necessary work with sockets.
//!
//! It accepts connections into a slab, watches them with epoll, sends the same bytes on all of them on
//! command, and sends received bytes back. It knows no protocol and keeps only the descriptor of a
//! connection.

pub(crate) mod discard;
pub(crate) mod exchange;
pub(crate) mod http;
pub(crate) mod hyper;
pub(crate) mod memory;
pub(crate) mod redis;
pub(crate) mod udp;

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, listen, recv, send, sockopt};
use serde::Serialize;

use crate::peer::Peer;
use crate::peer::lines::Lines;
use crate::process::Cpus;
use crate::protocol::{BaselineAnswer, BaselineOrder, from_hex, to_hex};
use crate::{clock, sys};

/// The way in which epoll reports bytes to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Trigger {
    /// As long as there are bytes (`EPOLLIN` alone).
    Level,
    /// When bytes arrive (`EPOLLIN | EPOLLET`).
    Edge,
}

/// A handle of the baseline's process.
pub(crate) struct Baseline {
    peer: Peer,
    /// The address of the listener.
    pub(crate) addr: SocketAddr,
}

/// The inputs of a baseline: new connections, and orders of the directing process.
struct Ear {
    epoll: OwnedFd,
    listener: OwnedFd,
}

/// The bare baseline itself.
struct Slab<W> {
    ear: Ear,
    conns: Vec<Option<OwnedFd>>,
    interest: EventFlags,
    buf: Vec<u8>,
    lines: Lines,
    output: W,
}

const LISTENER: u64 = u64::MAX;
const INPUT: u64 = u64::MAX - 1;
const BACKLOG: i32 = 4096;
const READ_BYTES: usize = 64 << 10;
const EVENTS_MAX: usize = 512;
/// Longest wait for an answer of the baseline.
const PATIENCE: Duration = Duration::from_secs(60);

impl Trigger {
    /// Name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Trigger::Level => "level",
            Trigger::Edge => "edge",
        }
    }
}

impl Baseline {
    /// Starts one.
    pub(crate) fn start(trigger: Trigger, cpus: Option<&Cpus>) -> Result<Baseline> {
        let mut peer = Peer::start("baseline-process", &["--trigger", trigger.name()], cpus)?;
        match peer.hear(PATIENCE)? {
            BaselineAnswer::Listening(addr) => Ok(Baseline { peer, addr }),
            other @ (BaselineAnswer::Sent { .. } | BaselineAnswer::Holds(_)) => {
                anyhow::bail!("the baseline said {other:?}")
            }
        }
    }

    /// Sends a frame on each connection. Returns how many connections took it whole, and how many
    /// did not.
    pub(crate) fn send(&mut self, frame: &[u8]) -> Result<(u64, u64)> {
        self.peer.say(&BaselineOrder::Send { frame: to_hex(frame) })?;
        match self.peer.hear(PATIENCE)? {
            BaselineAnswer::Sent { whole, short } => Ok((whole, short)),
            other @ (BaselineAnswer::Listening(_) | BaselineAnswer::Holds(_)) => {
                anyhow::bail!("the baseline said {other:?}")
            }
        }
    }

    /// Waits until the baseline has accepted `connections` connections.
    pub(crate) fn wait_for(&mut self, connections: u64) -> Result<()> {
        let deadline = clock::monotonic() + PATIENCE;
        loop {
            self.peer.say(&BaselineOrder::Count)?;
            let holds = match self.peer.hear(PATIENCE)? {
                BaselineAnswer::Holds(holds) => holds,
                other @ (BaselineAnswer::Listening(_) | BaselineAnswer::Sent { .. }) => {
                    anyhow::bail!("the baseline said {other:?}")
                }
            };
            if holds == connections {
                return Ok(());
            }
            if clock::monotonic() > deadline {
                anyhow::bail!("the baseline holds {holds} connections instead of {connections}");
            }
            clock::sleep(Duration::from_millis(20));
        }
    }

    /// CPU time that the process has used.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        sys::process_cpu(self.peer.pid()).context("cannot read the baseline's CPU time")
    }
}

impl Ear {
    /// Listens on a free port, and reads orders from `input`.
    fn open(input: impl AsFd) -> Result<(Ear, SocketAddr)> {
        let (ear, addr) = Ear::listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        epoll::add(&ear.epoll, &input, EventData::new_u64(INPUT), EventFlags::IN)
            .context("cannot watch")?;
        Ok((ear, addr))
    }

    /// Listens on an address.
    fn listen(addr: SocketAddr) -> Result<(Ear, SocketAddr)> {
        let listener = TcpListener::bind(addr).context("cannot listen")?;
        let addr = listener.local_addr().context("cannot listen")?;
        listener.set_nonblocking(true).context("cannot listen")?;
        let listener = OwnedFd::from(listener);
        listen(&listener, BACKLOG).context("cannot listen")?;
        let epoll = epoll::create(CreateFlags::CLOEXEC).context("cannot make an epoll")?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)
            .context("cannot watch")?;
        Ok((Ear { epoll, listener }, addr))
    }

    /// Replaces `events` with the new ones, up to its capacity; none after a signal.
    fn wait(&self, events: &mut Vec<Event>) -> Result<()> {
        events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("epoll failed"),
        }
    }

    /// The next waiting connection.
    fn accept(&self) -> Result<Option<OwnedFd>> {
        loop {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let conn = match accept_with(&self.listener, flags) {
                Ok(conn) => conn,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => return Err(error).context("the baseline cannot accept"),
            };
            sockopt::set_tcp_nodelay(&conn, true).context("cannot set TCP_NODELAY")?;
            return Ok(Some(conn));
        }
    }

    fn watch(&self, conn: &OwnedFd, index: usize, interest: EventFlags) -> Result<()> {
        let data = EventData::new_u64(index as u64);
        epoll::add(&self.epoll, conn, data, interest).context("cannot watch a socket")
    }
}

/// Runs the baseline: orders from standard input, answers on standard output.
pub(crate) fn run(trigger: Trigger) -> Result<()> {
    let input = std::io::stdin();
    let (ear, addr) = Ear::open(&input)?;
    let interest = match trigger {
        Trigger::Level => EventFlags::IN,
        Trigger::Edge => EventFlags::IN | EventFlags::ET,
    };
    let mut slab = Slab {
        ear,
        conns: Vec::new(),
        interest,
        buf: vec![0; READ_BYTES],
        lines: Lines::default(),
        output: std::io::stdout(),
    };
    slab.answer(&BaselineAnswer::Listening(addr))?;
    slab.run(input.as_fd())
}

impl<W: Write> Slab<W> {
    fn run(&mut self, input: impl AsFd) -> Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        loop {
            self.ear.wait(&mut events)?;
            for event in &events {
                let data = event.data;
                match data.u64() {
                    LISTENER => self.accept()?,
                    INPUT => {
                        if !self.lines.fill(&input)? {
                            return Ok(());
                        }
                        self.obey()?;
                    }
                    index => self.echo(usize::try_from(index).context("an index is a usize")?),
                }
            }
        }
    }

    fn accept(&mut self) -> Result<()> {
        while let Some(conn) = self.ear.accept()? {
            self.ear.watch(&conn, self.conns.len(), self.interest)?;
            self.conns.push(Some(conn));
        }
        Ok(())
    }

    /// One read, one send. A read that does not fill the buffer has read all bytes, which an edge
    /// trigger requires.
    fn echo(&mut self, index: usize) {
        let Some(Some(conn)) = self.conns.get(index) else { return };
        loop {
            let got = match recv(conn, &mut self.buf[..], RecvFlags::empty()) {
                Ok((got, _)) if got > 0 => got,
                Err(Errno::AGAIN | Errno::INTR) => return,
                Ok(_) | Err(_) => break,
            };
            if send(conn, &self.buf[..got], SendFlags::NOSIGNAL).is_err() {
                break;
            }
            if got < self.buf.len() {
                return;
            }
        }
        self.conns[index] = None;
    }

    fn obey(&mut self) -> Result<()> {
        while let Some(order) = self.lines.next_order()? {
            let answer = match order {
                BaselineOrder::Count => {
                    BaselineAnswer::Holds(self.conns.iter().flatten().count() as u64)
                }
                BaselineOrder::Send { frame } => {
                    self.send_all(&from_hex(&frame).context("not hexadecimal")?)
                }
            };
            self.answer(&answer)?;
        }
        Ok(())
    }

    fn send_all(&self, frame: &[u8]) -> BaselineAnswer {
        let mut whole = 0;
        let mut short = 0;
        for conn in self.conns.iter().flatten() {
            match send(conn, frame, SendFlags::NOSIGNAL) {
                Ok(sent) if sent == frame.len() => whole += 1,
                _ => short += 1,
            }
        }
        BaselineAnswer::Sent { whole, short }
    }

    fn answer(&mut self, answer: &BaselineAnswer) -> Result<()> {
        self::answer(&mut self.output, answer)
    }
}

/// Writes an answer as a line to the output of a directed process.
pub(crate) fn answer(output: &mut impl Write, answer: &impl Serialize) -> Result<()> {
    serde_json::to_writer(&mut *output, answer).context("cannot answer")?;
    output.write_all(b"\n").context("cannot answer")?;
    output.flush().context("cannot answer")
}
