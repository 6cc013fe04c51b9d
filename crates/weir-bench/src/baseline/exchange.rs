//! The baseline of a handshake's sockets: accept, exchange the same number of bytes, close. No
//! protocol.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::event::epoll::{Event, EventFlags};
use rustix::io::{Errno, read};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::{EVENTS_MAX, Ear, INPUT, LISTENER, PATIENCE, READ_BYTES};
use crate::peer::Peer;
use crate::process::Cpus;
use crate::protocol::BaselineAnswer;
use crate::sys;

/// A handle of the baseline's process.
pub(crate) struct Exchange {
    peer: Peer,
    /// The address of the listener.
    pub(crate) addr: SocketAddr,
}

/// The baseline itself.
struct Slab {
    ear: Ear,
    conns: Vec<Option<Conn>>,
    free: Vec<usize>,
    script: Vec<usize>,
    buf: Vec<u8>,
}

/// A connection; `step` counts the pieces received and sent in turn.
struct Conn {
    fd: OwnedFd,
    step: usize,
    received: usize,
}

impl Exchange {
    /// Starts a baseline that receives and sends these numbers of bytes in turn.
    pub(crate) fn start(script: &[u64], cpus: Option<&Cpus>) -> Result<Exchange> {
        let script: Vec<String> = script.iter().map(u64::to_string).collect();
        let mut peer = Peer::start("exchange-process", &["--script", &script.join(",")], cpus)?;
        match peer.hear(PATIENCE)? {
            BaselineAnswer::Listening(addr) => Ok(Exchange { peer, addr }),
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

/// Runs the baseline until standard input ends.
pub(crate) fn run(script: Vec<usize>) -> Result<()> {
    let input = std::io::stdin();
    let (ear, addr) = Ear::open(&input)?;
    super::answer(&mut std::io::stdout(), &BaselineAnswer::Listening(addr))?;
    let buf = vec![0; READ_BYTES];
    let mut slab = Slab { ear, conns: Vec::new(), free: Vec::new(), script, buf };
    let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
    loop {
        slab.ear.wait(&mut events)?;
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
        while let Some(fd) = self.ear.accept()? {
            let index = self.free.pop().unwrap_or_else(|| {
                self.conns.push(None);
                self.conns.len() - 1
            });
            self.ear.watch(&fd, index, EventFlags::IN)?;
            self.conns[index] = Some(Conn { fd, step: 0, received: 0 });
        }
        Ok(())
    }

    /// One read. When all bytes before the next ones to send have come, sends those.
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
