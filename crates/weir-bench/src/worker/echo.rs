//! The echo: every connection sends `Ping` and waits for the `Pong` with the same data.
//!
//! A closed loop keeps one message of each connection in flight. An open loop sends by the clock. The
//! latency of a message then counts from the moment at which the message was due. So a pause of the
//! server counts for every message that it delays, even if that message was not sent yet.

use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rand::RngExt;
use rustix::event::epoll::{self, Event};
use rustix::io::Errno;
use weir_wire::hot::{encode_ping_frame, encode_pong_frame};

use super::conn::{Conn, Phase};
use super::wire::{Inbox, Received};
use super::{EVENTS_MAX, READ_BYTES, Worker};
use crate::clock;
use crate::protocol::{Answer, EchoPlan, EchoTally};
use crate::stats::Lags;

/// One run of the echo over all connections of a worker.
///
/// Shape: a lane for each connection. An ended connection keeps its lane, with no message in
/// flight.
struct Echo<'a> {
    epoll: &'a OwnedFd,
    conns: &'a mut [Conn],
    lanes: Vec<Lane>,
    frames: Frames,
    /// Messages a second in an open loop, on all connections together; `None`: a closed loop.
    rate: Option<f64>,
    window: Window,
    inbox: &'a mut Inbox,
    tally: EchoTally,
    lags: Lags,
    /// Messages of all lanes that are due and not answered.
    owed: u64,
    /// Number of the next message of an open loop.
    next: u64,
}

/// The messages of one connection.
#[derive(Debug, Default)]
struct Lane {
    /// The due time of each unanswered message; the first `in_flight` of them are sent.
    dues: VecDeque<Duration>,
    in_flight: usize,
    /// Number of the first of them.
    first: u32,
    /// Received bytes of its answer.
    matched: usize,
}

/// The times of a run: the time from `counted` to `end` is measured.
#[derive(Debug, Clone, Copy)]
struct Window {
    start: Duration,
    counted: Duration,
    end: Duration,
}

/// Requests and the answers to them: a fixed head, then random bytes.
struct Frames {
    request_head: Vec<u8>,
    answer_head: Vec<u8>,
    /// A message's data are `size` bytes of this pool, from a place that follows from connection
    /// and number.
    pool: Vec<u8>,
    size: usize,
    scratch: Vec<u8>,
}

/// Most messages in flight on one connection: far fewer than a socket's buffer holds.
const IN_FLIGHT_MAX: usize = 32;
/// Longest wait for answers after the last message was due.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest sleep, so that the end is noticed in time.
const SLEEP_MAX: Duration = Duration::from_millis(10);
/// Places in the pool.
const PLACES: usize = 1 << 20;
/// Errors kept for the report.
const ERRORS_MAX: usize = 5;

impl<W: Write> Worker<W> {
    /// Runs an echo and answers with the results.
    pub(super) fn echo(&mut self, plan: &EchoPlan) -> Result<()> {
        let echo =
            Echo::new(plan, &self.epoll, &mut self.conns, &mut self.inbox).and_then(Echo::run);
        match echo {
            Ok(tally) => self.answer(&Answer::Echoed(Box::new(tally))),
            Err(error) => self.answer(&Answer::Failed { error: format!("{error:#}") }),
        }
    }
}

impl<'a> Echo<'a> {
    /// An echo over the open connections.
    fn new(
        plan: &EchoPlan,
        epoll: &'a OwnedFd,
        conns: &'a mut [Conn],
        inbox: &'a mut Inbox,
    ) -> Result<Echo<'a>> {
        if conns.iter().all(|conn| conn.fd.is_none()) {
            bail!("no connection is open");
        }
        let start = clock::monotonic();
        let counted = start + Duration::from_millis(plan.warm_up_ms);
        let end = counted + Duration::from_millis(plan.measure_ms);
        Ok(Echo {
            epoll,
            lanes: conns.iter().map(|_| Lane::default()).collect(),
            conns,
            frames: Frames::new(plan.size, plan.bare),
            rate: plan.rate,
            window: Window { start, counted, end },
            inbox,
            tally: EchoTally::default(),
            lags: Lags::new(),
            owed: 0,
            next: 0,
        })
    }

    /// Runs to the end and waits for the last answers.
    fn run(mut self) -> Result<EchoTally> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        if self.rate.is_none() {
            for index in 0..self.conns.len() {
                self.offer(index, clock::monotonic());
            }
        }
        loop {
            let now = clock::monotonic();
            let sleep = self.offer_due(now);
            let over = now >= self.window.end;
            if over && (self.owed == 0 || now >= self.window.end + PATIENCE) {
                self.tally.lost += self.owed;
                self.tally.lags = self.lags.counts();
                return Ok(self.tally);
            }
            let timeout = clock::timespec(sleep);
            events.clear();
            match epoll::wait(
                self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                Some(&timeout),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("epoll failed"),
            }
            for event in &events {
                let data = event.data;
                // Orders wait until the run is over.
                if let Some(index) =
                    usize::try_from(data.u64()).ok().filter(|index| *index < self.conns.len())
                {
                    self.read(index);
                }
            }
        }
    }

    /// Offers the messages of an open loop that are due; returns the time until the next step.
    fn offer_due(&mut self, now: Duration) -> Duration {
        let Some(rate) = self.rate else { return SLEEP_MAX };
        loop {
            let offset = Duration::from_secs_f64(crate::stats::real(self.next) / rate);
            let due = self.window.start + offset;
            if due >= self.window.end {
                return SLEEP_MAX;
            }
            if due > now {
                return (due - now).min(SLEEP_MAX);
            }
            let lanes = self.lanes.len() as u64;
            let index = usize::try_from(self.next % lanes).expect("a remainder of a usize");
            self.next += 1;
            self.offer(index, due);
        }
    }

    /// A message is due on a connection: sends it, or queues it behind earlier ones.
    fn offer(&mut self, index: usize, due: Duration) {
        if self.conns[index].fd.is_none() {
            self.tally.lost += 1;
            return;
        }
        self.owed += 1;
        let lane = &mut self.lanes[index];
        lane.dues.push_back(due);
        if lane.in_flight < IN_FLIGHT_MAX && lane.in_flight + 1 == lane.dues.len() {
            self.send_next(index);
        }
    }

    fn send_next(&mut self, index: usize) {
        let lane = &mut self.lanes[index];
        let Some(fd) = &mut self.conns[index].fd else { return };
        let ahead = u32::try_from(lane.in_flight).unwrap_or(u32::MAX);
        let frame = self.frames.request(index, lane.first.wrapping_add(ahead));
        match fd.send(frame) {
            Ok(sent) if sent == frame.len() => lane.in_flight += 1,
            Ok(_) | Err(Errno::AGAIN) => self.end(index, "the socket takes no more"),
            Err(error) => self.end(index, &format!("cannot send: {error}")),
        }
    }

    fn read(&mut self, index: usize) {
        let Some(fd) = &mut self.conns[index].fd else { return };
        match fd.receive(READ_BYTES, self.inbox) {
            Ok(Received { bytes: 0, .. }) => self.end(index, "closed by the other side"),
            Ok(_) => self.take(index),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::AGAIN | Errno::INTR) => {}
                _ => self.end(index, &error.to_string()),
            },
        }
    }

    /// Compares the received bytes with the expected ones.
    fn take(&mut self, index: usize) {
        let mut from = 0;
        while from < self.inbox.content().len() {
            let lane = &mut self.lanes[index];
            if lane.in_flight == 0 {
                return self.end(index, "bytes that answer nothing");
            }
            let bytes = &self.inbox.content()[from..];
            let Some(taken) = self.frames.matches(index, lane.first, lane.matched, bytes) else {
                self.tally.wrong += 1;
                return self.end(index, "a wrong answer");
            };
            lane.matched += taken;
            from += taken;
            if lane.matched == self.frames.answer_bytes() {
                self.complete(index);
            }
        }
    }

    fn complete(&mut self, index: usize) {
        let lane = &mut self.lanes[index];
        let Some(due) = lane.dues.pop_front() else { return };
        lane.first = lane.first.wrapping_add(1);
        lane.in_flight -= 1;
        lane.matched = 0;
        let more = lane.in_flight < lane.dues.len();
        self.owed -= 1;
        let now = clock::monotonic();
        self.tally.answered_in_all += 1;
        self.tally.answered += u64::from(self.window.counts(now));
        if self.window.counts(due) {
            let latency = now.saturating_sub(due).as_nanos();
            self.lags.record(u64::try_from(latency).unwrap_or(u64::MAX));
        }
        if more {
            self.send_next(index);
        } else if self.rate.is_none() && now < self.window.end {
            self.offer(index, now);
        }
    }

    fn end(&mut self, index: usize, why: &str) {
        let lane = std::mem::take(&mut self.lanes[index]);
        let conn = &mut self.conns[index];
        conn.fd = None;
        conn.phase = Phase::Ended;
        self.owed -= lane.dues.len() as u64;
        self.tally.lost += lane.dues.len() as u64;
        self.tally.closed += 1;
        if self.tally.errors.len() < ERRORS_MAX {
            self.tally.errors.push(format!("echo on connection {index}: {why}"));
        }
    }
}

impl Window {
    fn counts(self, moment: Duration) -> bool {
        (self.counted..self.end).contains(&moment)
    }
}

impl Frames {
    /// Frames for data of `size` bytes. A bare echo returns the request itself.
    fn new(size: usize, bare: bool) -> Frames {
        let mut pool = vec![0; PLACES + size];
        rand::rng().fill(&mut pool[..]);
        let head = |encode: fn(&[u8], &mut Vec<u8>)| {
            let mut frame = Vec::new();
            encode(&pool[..size], &mut frame);
            frame.truncate(frame.len() - size);
            frame
        };
        let request_head = head(encode_ping_frame);
        let answer_head = if bare { request_head.clone() } else { head(encode_pong_frame) };
        Frames { request_head, answer_head, pool, size, scratch: Vec::new() }
    }

    fn data(&self, index: usize, number: u32) -> &[u8] {
        let mixed = (index as u64) << 32 | u64::from(number);
        let mixed = mixed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = usize::try_from(mixed >> 44).unwrap_or(0) % PLACES;
        &self.pool[place..place + self.size]
    }

    fn request(&mut self, index: usize, number: u32) -> &[u8] {
        let mut frame = std::mem::take(&mut self.scratch);
        frame.clear();
        frame.extend_from_slice(&self.request_head);
        frame.extend_from_slice(self.data(index, number));
        self.scratch = frame;
        &self.scratch
    }

    fn answer_bytes(&self) -> usize {
        self.answer_head.len() + self.size
    }

    /// The number of these bytes that belong to an answer with `matched` bytes already received;
    /// `None` if one of them is wrong.
    fn matches(&self, index: usize, number: u32, matched: usize, bytes: &[u8]) -> Option<usize> {
        let head = self.answer_head.get(matched..).unwrap_or(&[]);
        let in_head = head.len().min(bytes.len());
        let data_from = matched.saturating_sub(self.answer_head.len());
        let data = self.data(index, number).get(data_from..)?;
        let in_data = data.len().min(bytes.len() - in_head);
        let same = bytes[..in_head] == head[..in_head]
            && bytes[in_head..in_head + in_data] == data[..in_data];
        same.then_some(in_head + in_data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_matched_in_pieces_and_a_wrong_byte_is_found() {
        let mut frames = Frames::new(100, true);
        let whole = frames.request(3, 7).to_vec();
        assert_eq!(whole.len(), frames.answer_bytes());
        let next = frames.request(3, 8).to_vec();
        assert_ne!(whole, next);
        let both = [&whole[..], &next].concat();
        for cut in 0..whole.len() {
            assert_eq!(frames.matches(3, 7, 0, &whole[..cut]), Some(cut));
            assert_eq!(frames.matches(3, 7, cut, &both[cut..]), Some(whole.len() - cut));
            let mut wrong = whole.clone();
            wrong[cut] ^= 1;
            assert_eq!(frames.matches(3, 7, 0, &wrong), None, "byte {cut}");
        }
    }
}
