//! Requests over HTTP in a closed loop: a fixed number in flight on each connection.

mod asker;
mod conn;
mod count;
mod fault;
mod http1;
mod http2;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::sockopt;

use self::asker::Asker;
use self::conn::{Conn, Known, Moment, Next};
use self::count::Count;
use self::fault::Fault;
use self::http2::{Http2, LITERAL_BYTES_MAX};
use super::conn::dial_unstamped;
use super::wire::{Inbox, Wire};
use super::{EVENTS_MAX, READ_BYTES, Worker};
use crate::clock;
use crate::protocol::{Answer, HttpPlan, HttpTally};
use crate::tls::TlsClient;

/// All requests of a run.
struct Load<'a> {
    plan: &'a HttpPlan,
    tls: Option<&'a TlsClient>,
    epoll: OwnedFd,
    conns: Vec<Conn>,
    /// Places of failed connections, with the time of the next attempt.
    failed: VecDeque<(u64, usize)>,
    /// Connections begun.
    begun: u64,
    asker: Asker,
    authority: String,
    known: Known,
    inbox: &'a mut Inbox,
    count: Count,
}

/// Time before the next attempt after a failed connection.
const RETRY_NS: u64 = 10_000_000;
/// Longest time without any answer.
const PATIENCE_NS: u64 = 10_000_000_000;
/// Connections that may fail in a row; the number of simultaneous connections, if that is more.
const FAILURES_MAX: u32 = 100;
/// Longest wait for an event.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Source addresses: each is used again only after this number of connections.
const SOURCES: u64 = 60_000;

impl<W: Write> Worker<W> {
    /// Runs the requests and answers with the results.
    pub(super) fn request(&mut self, plan: &HttpPlan) -> Result<()> {
        // Tickets of another server are useless here.
        let result = plan
            .tls
            .as_ref()
            .map(TlsClient::new)
            .transpose()
            .and_then(|tls| Load::new(plan, tls.as_ref(), &mut self.inbox).and_then(Load::run));
        match result {
            Ok(tally) => self.answer(&Answer::Requested(Box::new(tally))),
            Err(error) => self.answer(&Answer::Failed { error: format!("{error:#}") }),
        }
    }
}

impl<'a> Load<'a> {
    fn new(
        plan: &'a HttpPlan,
        tls: Option<&'a TlsClient>,
        inbox: &'a mut Inbox,
    ) -> Result<Load<'a>> {
        if let Some(tls) = tls {
            tls.fetch_tickets(plan.addr, plan.connections)?;
        }
        let authority = plan.addr.to_string();
        if !plan.path.starts_with('/') || plan.path.len() > LITERAL_BYTES_MAX {
            bail!("a path begins with / and has at most {LITERAL_BYTES_MAX} bytes");
        }
        let asker = Asker::new(plan, &authority);
        Ok(Load {
            plan,
            tls,
            epoll: epoll::create(CreateFlags::CLOEXEC).context("cannot make an epoll")?,
            conns: Vec::new(),
            failed: VecDeque::new(),
            begun: 0,
            asker,
            authority,
            known: Known::default(),
            inbox,
            count: Count::new(),
        })
    }

    fn run(mut self) -> Result<HttpTally> {
        for place in 0..self.plan.connections as usize {
            self.conns.push(Conn::empty());
            self.open(place)?;
        }
        let started = clock::monotonic_ns();
        self.count.progressed_ns = started;
        let counts_at = started + self.plan.warm_up_ms * 1_000_000;
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        let timeout = clock::timespec(LOOK_EVERY);
        loop {
            events.clear();
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, room, Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("epoll failed"),
            }
            for event in &events {
                let (data, flags) = (event.data, event.flags);
                let place = usize::try_from(data.u64()).context("a place is a usize")?;
                self.handle_event(place, flags)?;
            }
            let now = clock::monotonic_ns();
            while let Some((_, place)) = self.failed.front().copied().filter(|(due, _)| *due <= now)
            {
                self.failed.pop_front();
                self.open(place)?;
            }
            if self.count.from_ns == 0 {
                if now >= counts_at {
                    self.count.begin(now, self.plan)?;
                }
            } else if self.count.is_over(self.plan.until, now) {
                return self.finish(now);
            }
            if now > self.count.progressed_ns + PATIENCE_NS {
                bail!("no answer for 10 s; errors: {:?}", self.count.tally.errors);
            }
        }
    }

    fn finish(mut self, now: u64) -> Result<HttpTally> {
        self.count.end(now, self.plan)?;
        for conn in &mut self.conns {
            conn.close(&mut self.count.tally);
        }
        let mut tally = self.count.tally;
        tally.lags = self.count.lags.counts();
        tally.answer = self.known.first;
        tally.content_bytes = self.known.length.unwrap_or(0);
        tally.asked = self.asker.asked;
        tally.repeated = self.known.tokens.repeated();
        Ok(tally)
    }

    /// Begins a connection at a place.
    fn open(&mut self, place: usize) -> Result<()> {
        let number = self.begun;
        self.begun += 1;
        let tls = self.tls.map(|tls| tls.connection(number)).transpose()?;
        let began_ns = clock::monotonic_ns();
        let fd = dial_unstamped(self.plan.addr, source(self.plan, number))?;
        let interest = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, &fd, EventData::new_u64(place as u64), interest)
            .context("cannot watch a socket")?;
        let conn = &mut self.conns[place];
        conn.wire = Some(Wire::new(fd, tls));
        conn.connected = false;
        conn.answered = false;
        conn.asked = false;
        conn.began_ns = began_ns;
        conn.sent.clear();
        conn.partial.clear();
        conn.out.clear();
        conn.http2 = self.plan.style.is_http2().then(|| {
            let depth = self.plan.depth;
            Box::new(Http2::new(&self.plan.path, &self.authority, self.tls.is_some(), depth))
        });
        Ok(())
    }

    fn handle_event(&mut self, place: usize, flags: EventFlags) -> Result<()> {
        if self.conns[place].wire.is_none() {
            return Ok(());
        }
        match self.try_handle(place, flags) {
            Ok(Next::Stays) => Ok(()),
            Ok(next) => {
                self.conns[place].close(&mut self.count.tally);
                self.count.tally.reopened += u64::from(next == Next::Closes);
                self.open(place)
            }
            Err(fault) => {
                self.count.note(fault.kind());
                self.count.failures += 1;
                if self.count.failures > FAILURES_MAX.max(self.plan.connections) {
                    bail!("no answers; errors: {:?}", self.count.tally.errors);
                }
                self.conns[place].close(&mut self.count.tally);
                self.failed.push_back((clock::monotonic_ns() + RETRY_NS, place));
                Ok(())
            }
        }
    }

    fn try_handle(&mut self, place: usize, flags: EventFlags) -> Result<Next, Fault> {
        let conn = &mut self.conns[place];
        let Some(wire) = &mut conn.wire else { return Ok(Next::Stays) };
        if !conn.connected {
            match sockopt::socket_error(&*wire) {
                Ok(Ok(())) => {}
                Ok(Err(error)) | Err(error) => {
                    let how = format!("connect_{:?}", error.kind());
                    return Err(Fault::Socket(how.to_lowercase()));
                }
            }
            conn.connected = true;
            conn.greet(&mut self.asker, self.plan);
        }
        if flags.contains(EventFlags::OUT) {
            conn.flush(&mut self.count.tally)?;
        }
        if !flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR)
        {
            return Ok(Next::Stays);
        }
        self.read(place)
    }

    /// Reads until the socket is empty: epoll reports an edge once.
    fn read(&mut self, place: usize) -> Result<Next, Fault> {
        loop {
            let conn = &mut self.conns[place];
            let Some(wire) = &mut conn.wire else { return Ok(Next::Stays) };
            let bytes = match wire.receive_unstamped(self.inbox) {
                Ok(0) if conn.is_idle() => return Ok(Next::Closes),
                Ok(0) => return Err(Fault::Socket("eof".to_owned())),
                Ok(bytes) => bytes,
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::AGAIN | Errno::INTR) => return Ok(Next::Stays),
                    _ => return Err(error.into()),
                },
            };
            self.count.tally.received_bytes += bytes as u64;
            let next = self.take(place)?;
            if next != Next::Stays || bytes < READ_BYTES {
                return Ok(next);
            }
        }
    }

    /// Handles the inbox's content for a connection, and sends a new request for each answer.
    fn take(&mut self, place: usize) -> Result<Next, Fault> {
        let now = clock::monotonic_ns();
        let Load { conns, inbox, known, count, plan, asker, .. } = self;
        let conn = &mut conns[place];
        let mut moment = Moment { now, plan, asker, known, count };
        let next = if conn.partial.is_empty() {
            let (used, next) = conn.take(inbox.content(), &mut moment)?;
            conn.partial.extend_from_slice(&inbox.content()[used..]);
            next
        } else {
            let mut whole = std::mem::take(&mut conn.partial);
            whole.extend_from_slice(inbox.content());
            let (used, next) = conn.take(&whole, &mut moment)?;
            whole.drain(..used);
            conn.partial = whole;
            next
        };
        if next == Next::Stays {
            conn.flush(&mut count.tally)?;
        }
        Ok(next)
    }
}

/// On loopback each connection has another source address, so that ports in TIME_WAIT do not
/// disturb it.
fn source(plan: &HttpPlan, number: u64) -> Option<SocketAddr> {
    let IpAddr::V4(target) = plan.addr.ip() else { return None };
    let [.., high, low] = (number % SOURCES + 1).to_be_bytes();
    let source = Ipv4Addr::new(127, plan.source, high, low);
    target.is_loopback().then(|| SocketAddr::from((source, 0)))
}
