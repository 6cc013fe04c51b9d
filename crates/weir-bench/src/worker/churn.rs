//! Guests: connections that come, are told `Welcome`, stay a moment and end with a reset.

use std::collections::VecDeque;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use weir_wire::v1::{ServerMessage, server_message};
use weir_wire::{CloseReason, ProstMessage, frame};

use super::conn::{dial, hello_frame, reset};
use super::{EVENTS_MAX, READ_BYTES, Worker};
use crate::clock;
use crate::protocol::{Answer, ChurnPlan, ChurnTally};
use crate::stats::Lags;

/// All guests of one run.
///
/// Shape: a slot for each guest that is there; free ones are used again.
struct Churn<'a> {
    plan: &'a ChurnPlan,
    epoll: OwnedFd,
    guests: Vec<Option<Guest>>,
    free: Vec<usize>,
    /// Guests that were welcomed, and when each leaves: in the order of their leaving.
    leaving: VecDeque<(Duration, usize)>,
    start: Duration,
    count: u64,
    begun: u64,
    buf: Vec<u8>,
    tally: ChurnTally,
    connects: Lags,
}

/// One connection.
struct Guest {
    /// None once the server has ended it; a guest that was welcomed keeps its slot until it would have left.
    fd: Option<OwnedFd>,
    began: Duration,
    connected: bool,
    /// Answers that are still to come before it is welcome.
    awaited: u8,
    /// Code of a `Goodbye`; 0: none came.
    goodbye: u32,
    partial: Vec<u8>,
}

/// Longest frame expected.
const FRAME_BYTES_MAX: usize = 16 << 20;
/// Longest wait for a guest to be welcomed, after the last one has come.
const PATIENCE: Duration = Duration::from_secs(10);
const SLEEP_MAX: Duration = Duration::from_millis(10);
/// Guests begun between two looks at what has come.
const BURST_MAX: usize = 64;
/// Source addresses: each is used again only after so many guests.
const SOURCES: u64 = 60_000;

impl<W: Write> Worker<W> {
    /// Runs a churn and answers with what it showed.
    pub(super) fn churn(&mut self, plan: &ChurnPlan) -> Result<()> {
        match Churn::new(plan).and_then(Churn::run) {
            Ok(tally) => self.answer(&Answer::Churned(Box::new(tally))),
            Err(error) => self.answer(&Answer::Failed { error: format!("{error:#}") }),
        }
    }
}

impl<'a> Churn<'a> {
    fn new(plan: &'a ChurnPlan) -> Result<Churn<'a>> {
        Ok(Churn {
            plan,
            epoll: epoll::create(CreateFlags::CLOEXEC).context("cannot make an epoll")?,
            guests: Vec::new(),
            free: Vec::new(),
            leaving: VecDeque::new(),
            start: clock::monotonic(),
            count: plan.count,
            begun: 0,
            buf: vec![0; READ_BYTES],
            tally: ChurnTally::default(),
            connects: Lags::new(),
        })
    }

    fn run(mut self) -> Result<ChurnTally> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        let end = self.due(self.count) + Duration::from_millis(self.plan.hold_ms) + PATIENCE;
        loop {
            let now = clock::monotonic();
            let sleep = self.begin_due(now)?;
            self.leave_due(now);
            let there = self.guests.len() - self.free.len();
            if self.begun == self.count && (there == 0 || now > end) {
                *self.tally.failed.entry("no_answer".to_owned()).or_insert(0) += there as u64;
                self.tally.failed.retain(|_, count| *count > 0);
                self.tally.connects = self.connects.counts();
                return Ok(self.tally);
            }
            let timeout = clock::timespec(sleep);
            events.clear();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                Some(&timeout),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("epoll failed"),
            }
            for event in &events {
                let data = event.data;
                self.handle_event(usize::try_from(data.u64()).context("a slot is a usize")?);
            }
        }
    }

    fn due(&self, number: u64) -> Duration {
        self.start + Duration::from_secs_f64(crate::stats::real(number) / self.plan.rate)
    }

    /// Begins those that are due; how long to sleep until there is more to do.
    fn begin_due(&mut self, now: Duration) -> Result<Duration> {
        for _ in 0..BURST_MAX {
            let due = self.due(self.begun);
            if self.begun == self.count {
                return Ok(SLEEP_MAX);
            }
            if due > now {
                return Ok((due - now).min(SLEEP_MAX));
            }
            let late = u64::try_from((now - due).as_micros()).unwrap_or(u64::MAX);
            self.tally.late_max_us = self.tally.late_max_us.max(late);
            self.begin()?;
        }
        Ok(Duration::ZERO)
    }

    fn begin(&mut self) -> Result<()> {
        let [.., high, low] = (self.begun % SOURCES + 1).to_be_bytes();
        let source = SocketAddr::from((Ipv4Addr::new(127, self.plan.source, high, low), 0));
        self.begun += 1;
        let fd = dial(self.plan.addr, Some(source), None)?;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.guests.push(None);
            self.guests.len() - 1
        });
        let data = EventData::new_u64(slot as u64);
        epoll::add(&self.epoll, &fd, data, EventFlags::OUT).context("cannot watch a socket")?;
        self.guests[slot] = Some(Guest {
            fd: Some(fd),
            began: clock::monotonic(),
            connected: false,
            awaited: self.plan.hello.answers(),
            goodbye: 0,
            partial: Vec::new(),
        });
        Ok(())
    }

    fn leave_due(&mut self, now: Duration) {
        while let Some(&(_, slot)) = self.leaving.front().filter(|(due, _)| *due <= now) {
            self.leaving.pop_front();
            if let Some(fd) = self.guests[slot].take().and_then(|guest| guest.fd) {
                reset(fd);
            }
            self.free.push(slot);
        }
    }

    fn handle_event(&mut self, slot: usize) {
        let Some(Some(guest)) = self.guests.get_mut(slot) else { return };
        let Some(fd) = &guest.fd else { return };
        if !guest.connected {
            guest.connected = true;
            let result = match sockopt::socket_error(fd) {
                Ok(Ok(())) => {
                    epoll::modify(&self.epoll, fd, EventData::new_u64(slot as u64), EventFlags::IN)
                }
                Ok(Err(error)) | Err(error) => Err(error),
            };
            let frame = hello_frame(&self.plan.hello, &self.plan.topic, None);
            let result = result.and_then(|()| send(fd, &frame, SendFlags::NOSIGNAL));
            if let Err(error) = result {
                self.end(slot, &format!("connect_{error:?}").to_lowercase());
            }
            return;
        }
        match recv(fd, &mut self.buf[..], RecvFlags::DONTWAIT) {
            Ok((got, _)) if got > 0 => {
                guest.partial.extend_from_slice(&self.buf[..got]);
                let awaited = guest.awaited;
                if !guest.take_frames() {
                    self.end(slot, "malformed");
                } else if awaited > 0 && guest.awaited == 0 {
                    self.welcome(slot);
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(_) => self.end(slot, "eof"),
            Err(error) => self.end(slot, &format!("{error:?}").to_lowercase()),
        }
    }

    fn welcome(&mut self, slot: usize) {
        let Some(guest) = &self.guests[slot] else { return };
        let now = clock::monotonic();
        let took = now.saturating_sub(guest.began).as_nanos();
        self.connects.record(u64::try_from(took).unwrap_or(u64::MAX));
        self.tally.welcomed += 1;
        self.leaving.push_back((now + Duration::from_millis(self.plan.hold_ms), slot));
    }

    /// The server ended it, or nothing came of it.
    fn end(&mut self, slot: usize, how: &str) {
        let Some(guest) = &mut self.guests[slot] else { return };
        guest.fd = None;
        let by = match CloseReason::from_code(guest.goodbye) {
            Some(reason) => reason.name(),
            None => how,
        };
        *self.tally.failed.entry(by.to_owned()).or_insert(0) += 1;
        if guest.awaited > 0 {
            self.guests[slot] = None;
            self.free.push(slot);
        }
    }
}

impl Guest {
    /// Takes the whole frames apart that have come; `false` if they are none.
    fn take_frames(&mut self) -> bool {
        let mut used = 0;
        loop {
            let Ok(frame) = frame::decode(&self.partial[used..], FRAME_BYTES_MAX) else {
                return false;
            };
            let Some((body, bytes)) = frame else { break };
            if self.awaited > 0 {
                let Ok(message) = ServerMessage::decode(body) else { return false };
                match message.kind {
                    Some(
                        server_message::Kind::Welcome(_) | server_message::Kind::Subscribed(_),
                    ) => {
                        self.awaited -= 1;
                    }
                    Some(server_message::Kind::Goodbye(goodbye)) => self.goodbye = goodbye.code,
                    _ => {}
                }
            }
            used += bytes;
        }
        self.partial.drain(..used);
        true
    }
}
