//! Guests: connections that wait for `Welcome`, stay for a moment, and end with a reset.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::sockopt;
use weir_wire::v1::{ServerMessage, server_message};
use weir_wire::{CloseReason, ProstMessage, frame};

use super::conn::{device_id, dial, hello_frame, reset};
use super::wire::{Inbox, Received, Wire};
use super::{EVENTS_MAX, READ_BYTES, Worker};
use crate::clock;
use crate::protocol::{Answer, ChurnPlan, ChurnTally};
use crate::stats::Lags;
use crate::tls::TlsClient;

/// All guests of a run.
///
/// Shape: a slot for each present guest; free slots are used again. A refused guest has no slot
/// until it comes again.
struct Churn<'a> {
    plan: &'a ChurnPlan,
    tls: Option<&'a TlsClient>,
    epoll: OwnedFd,
    guests: Vec<Option<Guest>>,
    free: Vec<usize>,
    /// Welcomed guests and the times at which they leave, in that order.
    leaving: VecDeque<(Duration, usize)>,
    /// Refused guests: the time at which each comes again, its number, and the time at which it
    /// first came.
    returning: BinaryHeap<Reverse<(Duration, u64, Duration)>>,
    /// Present guests without a welcome.
    on_their_way: u32,
    start: Duration,
    count: u64,
    begun: u64,
    inbox: &'a mut Inbox,
    tally: ChurnTally,
    connects: Lags,
}

/// One connection.
struct Guest {
    /// `None` once the server has ended it. A welcomed guest keeps its slot until it would have
    /// left.
    fd: Option<Wire>,
    number: u64,
    began: Duration,
    connected: bool,
    /// Bytes sent and received in turn.
    script: Vec<u64>,
    /// Answers that must still come before the guest is welcome.
    awaited: u8,
    /// Code of the received `Goodbye`; 0: none.
    goodbye: u32,
    partial: Vec<u8>,
}

/// Longest frame expected.
const FRAME_BYTES_MAX: usize = 16 << 20;
/// Longest wait for welcomes after the last guest has come.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same, if refused guests come again.
const RETRY_PATIENCE: Duration = Duration::from_secs(60);
/// Guests that may resume at the same time if no option limits them. Each takes a ticket until it
/// gets new ones.
const WINDOW: u32 = 64;
const SLEEP_MAX: Duration = Duration::from_millis(10);
/// Guests begun between two reads.
const BURST_MAX: usize = 64;
/// Source addresses: each is used again only after this number of guests.
const SOURCES: u64 = 60_000;

impl<W: Write> Worker<W> {
    /// Runs guests and answers with the results.
    pub(super) fn churn(&mut self, plan: &ChurnPlan) -> Result<()> {
        let result = self.prepare_tls(plan.ways.tls.as_ref()).and_then(|()| {
            let tls = self.tls.as_ref();
            Churn::new(plan, tls, &mut self.inbox).and_then(Churn::run)
        });
        match result {
            Ok(tally) => self.answer(&Answer::Churned(Box::new(tally))),
            Err(error) => self.answer(&Answer::Failed { error: format!("{error:#}") }),
        }
    }
}

impl<'a> Churn<'a> {
    fn new(
        plan: &'a ChurnPlan,
        tls: Option<&'a TlsClient>,
        inbox: &'a mut Inbox,
    ) -> Result<Churn<'a>> {
        if let Some(tls) = tls {
            tls.fetch_tickets(plan.addr, plan.ways.window.unwrap_or(WINDOW))?;
        }
        Ok(Churn {
            plan,
            tls,
            epoll: epoll::create(CreateFlags::CLOEXEC).context("cannot make an epoll")?,
            guests: Vec::new(),
            free: Vec::new(),
            leaving: VecDeque::new(),
            returning: BinaryHeap::new(),
            on_their_way: 0,
            start: clock::monotonic(),
            count: plan.count,
            begun: 0,
            inbox,
            tally: ChurnTally::default(),
            connects: Lags::new(),
        })
    }

    fn run(mut self) -> Result<ChurnTally> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        let patience = self.plan.ways.retry_ms.map_or(PATIENCE, |_| RETRY_PATIENCE);
        let hold = Duration::from_millis(self.plan.hold_ms);
        let mut begun_at = self.start;
        let tickets = self.tls.map_or(0, TlsClient::received);
        loop {
            let now = clock::monotonic();
            let sleep = self.begin_due(now)?;
            self.leave_due(now);
            if self.begun < self.count {
                begun_at = now;
            }
            let there = self.guests.len() - self.free.len() + self.returning.len();
            let over = there == 0 || now > begun_at + hold + patience;
            if self.begun == self.count && over {
                let waiting = u64::from(self.on_their_way) + self.returning.len() as u64;
                *self.tally.failed.entry("no_answer".to_owned()).or_insert(0) += waiting;
                self.tally.tickets = self.tls.map_or(0, TlsClient::received) - tickets;
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

    /// Begins the guests that are due; returns the time until the next step.
    fn begin_due(&mut self, now: Duration) -> Result<Duration> {
        while let Some(Reverse((due, number, began))) = self.returning.peek().copied() {
            if due > now {
                break;
            }
            self.returning.pop();
            self.begin(number, began)?;
        }
        for _ in 0..BURST_MAX {
            if self.plan.ways.window.is_some_and(|window| self.on_their_way >= window) {
                return Ok(SLEEP_MAX);
            }
            let due = self.due(self.begun);
            if self.begun == self.count {
                return Ok(SLEEP_MAX);
            }
            if due > now {
                return Ok((due - now).min(SLEEP_MAX));
            }
            let late = u64::try_from((now - due).as_micros()).unwrap_or(u64::MAX);
            self.tally.late_max_us = self.tally.late_max_us.max(late);
            let number = self.begun;
            self.begun += 1;
            self.begin(number, clock::monotonic())?;
        }
        Ok(Duration::ZERO)
    }

    fn begin(&mut self, number: u64, began: Duration) -> Result<()> {
        let [.., high, low] = (number % SOURCES + 1).to_be_bytes();
        let source = SocketAddr::from((Ipv4Addr::new(127, self.plan.source, high, low), 0));
        let tls = self.tls.map(|tls| tls.connection(number)).transpose()?;
        let fd = Wire::new(dial(self.plan.addr, Some(source), None)?, tls);
        self.on_their_way += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.guests.push(None);
            self.guests.len() - 1
        });
        let data = EventData::new_u64(slot as u64);
        epoll::add(&self.epoll, &fd, data, EventFlags::OUT).context("cannot watch a socket")?;
        self.guests[slot] = Some(Guest {
            fd: Some(fd),
            number,
            began,
            connected: false,
            script: Vec::new(),
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
        let Some(fd) = &mut guest.fd else { return };
        if !guest.connected {
            guest.connected = true;
            let result = match sockopt::socket_error(&*fd) {
                Ok(Ok(())) => epoll::modify(
                    &self.epoll,
                    &*fd,
                    EventData::new_u64(slot as u64),
                    EventFlags::IN,
                ),
                Ok(Err(error)) | Err(error) => Err(error),
            };
            let first = match self.plan.ways.script.first() {
                Some(bytes) => zeroes(*bytes),
                None => hello_frame(&self.plan.hello, &device_id(), &self.plan.topic, None),
            };
            let result = result.and_then(|()| fd.send(&first));
            guest.note_sent();
            if let Err(error) = result {
                self.end(slot, &format!("connect_{error:?}").to_lowercase());
            }
            return;
        }
        match fd.receive(READ_BYTES, self.inbox) {
            Ok(Received { bytes: 0, .. }) => self.end(slot, "eof"),
            Ok(got) => {
                guest.note_received(got.bytes as u64);
                guest.note_sent();
                let awaited = guest.awaited;
                if let Err(how) = guest.take(self.inbox.content(), &self.plan.ways.script) {
                    self.end(slot, how);
                } else if awaited > 0 && guest.awaited == 0 {
                    self.welcome(slot);
                }
            }
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::AGAIN | Errno::INTR) => {}
                Some(error) => self.end(slot, &format!("{error:?}").to_lowercase()),
                None => self.end(slot, &error.to_string()),
            },
        }
    }

    fn welcome(&mut self, slot: usize) {
        let Some(guest) = &mut self.guests[slot] else { return };
        let now = clock::monotonic();
        let took = now.saturating_sub(guest.began).as_nanos();
        self.connects.record(u64::try_from(took).unwrap_or(u64::MAX));
        self.on_their_way -= 1;
        self.tally.welcomed += 1;
        self.tally.seconds = now.saturating_sub(self.start).as_secs_f64();
        if let Some(agreed) = guest.fd.as_ref().and_then(Wire::agreed) {
            *self.tally.handshakes.entry(agreed).or_insert(0) += 1;
        }
        self.tally.script = std::mem::take(&mut guest.script);
        self.leaving.push_back((now + Duration::from_millis(self.plan.hold_ms), slot));
    }

    /// The server ended the connection, or it failed.
    fn end(&mut self, slot: usize, how: &str) {
        let Some(guest) = &mut self.guests[slot] else { return };
        guest.fd = None;
        let by = match CloseReason::from_code(guest.goodbye) {
            Some(reason) => reason.name(),
            None => how,
        };
        let welcomed = guest.awaited == 0;
        let counted = match self.plan.ways.retry_ms.filter(|_| !welcomed) {
            Some(retry_ms) => {
                // Not all at the same time, or the server refuses them again.
                let wait = Duration::from_millis(rand::random_range(retry_ms / 2..=retry_ms));
                let due = clock::monotonic() + wait;
                self.returning.push(Reverse((due, guest.number, guest.began)));
                &mut self.tally.refused
            }
            None => &mut self.tally.failed,
        };
        *counted.entry(by.to_owned()).or_insert(0) += 1;
        if !welcomed {
            self.on_their_way -= 1;
            self.guests[slot] = None;
            self.free.push(slot);
        }
    }
}

impl Guest {
    /// Handles received bytes; an error names the kind of failure.
    fn take(&mut self, content: &[u8], script: &[u64]) -> Result<(), &'static str> {
        if !script.is_empty() {
            return self.follow(script);
        }
        self.partial.extend_from_slice(content);
        if self.take_frames() { Ok(()) } else { Err("malformed") }
    }

    /// Sends the next bytes of the script once all bytes before them have come.
    fn follow(&mut self, script: &[u64]) -> Result<(), &'static str> {
        let heard = self.script.last().copied().unwrap_or(0);
        if heard < script.get(self.script.len() - 1).copied().unwrap_or(0) {
            return Ok(());
        }
        match script.get(self.script.len()) {
            None => self.awaited = 0,
            Some(bytes) => {
                let fd = self.fd.as_mut().ok_or("gone")?;
                fd.send(&zeroes(*bytes)).map_err(|_| "cannot_send")?;
                self.note_sent();
            }
        }
        Ok(())
    }

    /// Sent and received bytes alternate; several pieces in one direction count as one.
    fn note_sent(&mut self) {
        let bytes = self.fd.as_mut().map_or(0, Wire::take_sent);
        if bytes > 0 {
            if self.script.len().is_multiple_of(2) {
                self.script.push(0);
            }
            self.script.last_mut().into_iter().for_each(|sent| *sent += bytes);
        }
    }

    fn note_received(&mut self, bytes: u64) {
        if self.script.len() % 2 == 1 {
            self.script.push(0);
        }
        self.script.last_mut().into_iter().for_each(|received| *received += bytes);
    }

    /// Handles the complete frames; `false` if the bytes are no frames.
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

fn zeroes(bytes: u64) -> Vec<u8> {
    vec![0; usize::try_from(bytes).unwrap_or(0)]
}
