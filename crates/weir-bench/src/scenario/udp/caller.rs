//! The sockets that send calls: a window of calls in flight on each, or calls at a fixed rate.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};

use crate::activations::ANSWER_MARK;
use crate::baseline::udp::BUFFER_BYTES;
use crate::clock;
use crate::stats::Lags;
use crate::sys::datagrams::{self, BATCH, Batch};

/// The sockets of one run.
pub(crate) struct Caller<S = Calls> {
    sockets: Vec<Socket>,
    /// The requests and their checks.
    pub(crate) script: S,
    batch: Batch,
    tally: Tally,
}

/// The results of calls.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) sent: u64,
    pub(crate) answered: u64,
    /// Answers that do not fit their call, or come twice.
    pub(crate) wrong: u64,
    pub(crate) lags: Lags,
    /// Time from the first call to the last answer.
    pub(crate) time: Duration,
    /// Received bytes.
    pub(crate) bytes: u64,
}

/// The content of requests, and the check of answers.
pub(crate) trait Script {
    /// Time without any answer after which a socket's requests are lost.
    const LOST_AFTER: Duration;

    /// Longest wait for the last answers of calls at a fixed rate.
    const GRACE_NS: u64 = 1_000_000_000;

    /// Writes request `number` of a socket into a place of the batch.
    fn write(&mut self, socket: usize, number: u64, batch: &mut Batch, place: usize);

    /// The number of the socket's request that this answers; `None` if it fits none, or is wrong.
    fn number_of(&mut self, socket: usize, answer: &[u8]) -> Option<u64>;
}

/// Calls of devices that have their tokens.
pub(crate) struct Calls {
    /// Requests without their count, one for each device.
    templates: Vec<Template>,
}

/// The same for servers that may pause: no answer is lost because it is late.
pub(crate) struct Patient(Calls);

struct Template {
    bytes: Vec<u8>,
    count_at: usize,
}

struct Socket {
    socket: UdpSocket,
    /// Number of the next call.
    next: u64,
    on_their_way: usize,
    /// Sending time of each call, by its number; 0: it has been answered.
    sent_at: Vec<u64>,
    heard_at: u64,
    /// Start of the time without any answer.
    silent_since: u64,
}

impl Caller {
    /// Connects sockets to a server that accepts these tokens.
    pub(crate) fn new(addr: SocketAddr, sockets: u32, tokens: &[String]) -> Result<Caller> {
        let templates = tokens.iter().map(|token| Template::new(token)).collect();
        Caller::with(addr, sockets, Calls { templates })
    }
}

impl Caller<Patient> {
    /// The same, with much patience.
    pub(crate) fn patient(addr: SocketAddr, sockets: u32, tokens: &[String]) -> Result<Self> {
        let Caller { sockets, script, batch, tally } = Caller::new(addr, sockets, tokens)?;
        Ok(Caller { sockets, script: Patient(script), batch, tally })
    }
}

impl<S: Script> Caller<S> {
    /// Connects sockets to a server that understands the script.
    pub(crate) fn with(addr: SocketAddr, sockets: u32, script: S) -> Result<Caller<S>> {
        let sockets = (0..sockets).map(|_| Socket::new(addr));
        Ok(Caller {
            sockets: sockets.collect::<Result<_>>()?,
            script,
            batch: Batch::new(),
            tally: Tally::default(),
        })
    }

    /// Makes `calls` calls, with at most `window` in flight on each socket.
    pub(crate) fn run(&mut self, calls: u64, window: usize) -> Result<Tally> {
        self.begin();
        let start = clock::monotonic_ns();
        while self.tally.sent < calls || self.on_their_way() > 0 {
            let mut moved = self.receive_all()?;
            for index in 0..self.sockets.len() {
                let socket = &self.sockets[index];
                let room = window.saturating_sub(socket.on_their_way).min(BATCH);
                // Sends full batches; sends a smaller one only when nothing else is in flight.
                let left = usize::try_from(calls - self.tally.sent).unwrap_or(BATCH);
                if room >= BATCH.min(window) / 2 || socket.on_their_way == 0 {
                    moved |= self.send(index, room.min(left))? > 0;
                }
            }
            if !moved {
                self.wait(PATIENCE)?;
                self.give_up();
            }
        }
        Ok(self.end(start))
    }

    /// Makes `calls` calls at a fixed rate, `rate` a second, and waits a while for the last
    /// answers.
    pub(crate) fn run_at(&mut self, calls: u64, rate: u32) -> Result<Tally> {
        self.begin();
        let start = clock::monotonic_ns();
        let (mut turn, mut ended) = (0, None);
        while ended.is_none_or(|ended: u64| clock::monotonic_ns() < ended + S::GRACE_NS) {
            let elapsed = u128::from(clock::monotonic_ns() - start);
            let due = elapsed * u128::from(rate) / 1_000_000_000;
            let due = u64::try_from(due).unwrap_or(u64::MAX).min(calls);
            let mut left = due - self.tally.sent;
            while left > 0 {
                let some = usize::try_from(left).unwrap_or(BATCH).min(PACED_BATCH);
                turn = (turn + 1) % self.sockets.len();
                left -= (self.send(turn, some)? as u64).max(1).min(left);
            }
            self.receive_all()?;
            match ended {
                Some(_) if self.on_their_way() == 0 => break,
                None if self.tally.sent >= calls => ended = Some(clock::monotonic_ns()),
                // No wake-up for each answer: it would cost the sender of the answer time.
                Some(_) | None => clock::sleep(PACED_PAUSE),
            }
        }
        self.sockets.iter_mut().for_each(|socket| socket.on_their_way = 0);
        Ok(self.end(start))
    }

    fn begin(&mut self) {
        self.tally = Tally::default();
        for socket in &mut self.sockets {
            socket.sent_at.fill(0);
            socket.heard_at = clock::monotonic_ns();
        }
    }

    fn end(&mut self, start: u64) -> Tally {
        let last = self.sockets.iter().map(|socket| socket.heard_at).max().unwrap_or(start);
        let mut tally = std::mem::take(&mut self.tally);
        tally.time = Duration::from_nanos(last.saturating_sub(start));
        tally
    }

    fn on_their_way(&self) -> usize {
        self.sockets.iter().map(|socket| socket.on_their_way).sum()
    }

    fn send(&mut self, index: usize, count: usize) -> Result<usize> {
        let socket = &mut self.sockets[index];
        for place in 0..count {
            let number = socket.next + place as u64;
            self.script.write(index, number, &mut self.batch, place);
        }
        if count == 0 {
            return Ok(0);
        }
        let now = clock::monotonic_ns();
        if socket.on_their_way == 0 {
            socket.silent_since = now;
        }
        let sent = self.batch.send(socket.socket.as_fd(), count).context("cannot send")?;
        for number in socket.next..socket.next + sent as u64 {
            socket.sent_at[place_of(number)] = now;
        }
        socket.next += sent as u64;
        socket.on_their_way += sent;
        self.tally.sent += sent as u64;
        Ok(sent)
    }

    fn receive_all(&mut self) -> Result<bool> {
        let mut any = false;
        for index in 0..self.sockets.len() {
            let received = self.batch.receive(self.sockets[index].socket.as_fd());
            let received = received.context("cannot receive")?;
            if received == 0 {
                continue;
            }
            any = true;
            let now = clock::monotonic_ns();
            for place in 0..received {
                self.hear(index, place, now);
            }
            let socket = &mut self.sockets[index];
            (socket.heard_at, socket.silent_since) = (now, now);
        }
        Ok(any)
    }

    fn hear(&mut self, index: usize, place: usize, now: u64) {
        let answer = self.batch.get(place);
        self.tally.bytes += answer.len() as u64;
        let socket = &mut self.sockets[index];
        let number = self.script.number_of(index, answer);
        let sent_at = number.map(|number| std::mem::take(&mut socket.sent_at[place_of(number)]));
        match sent_at {
            Some(sent_at @ 1..) => {
                self.tally.lags.record(now.saturating_sub(sent_at));
                self.tally.answered += 1;
                socket.on_their_way = socket.on_their_way.saturating_sub(1);
            }
            Some(0) | None => self.tally.wrong += 1,
        }
    }

    fn wait(&self, timeout: Duration) -> Result<()> {
        let fds = self.sockets.iter().map(|socket| PollFd::new(&socket.socket, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = fds.collect();
        poll(&mut fds, Some(&clock::timespec(timeout))).context("cannot wait")?;
        Ok(())
    }

    /// Calls of sockets that have been silent for long are lost.
    fn give_up(&mut self) {
        let now = clock::monotonic_ns();
        let patience = u64::try_from(S::LOST_AFTER.as_nanos()).unwrap_or(u64::MAX);
        for socket in &mut self.sockets {
            if socket.on_their_way > 0 && now > socket.silent_since.saturating_add(patience) {
                socket.on_their_way = 0;
                socket.sent_at.fill(0);
            }
        }
    }
}

impl Tally {
    /// Calls without an answer.
    pub(crate) fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.answered)
    }
}

impl Script for Calls {
    const LOST_AFTER: Duration = Duration::from_millis(300);

    fn write(&mut self, socket: usize, number: u64, batch: &mut Batch, place: usize) {
        let template = template_of(&self.templates, socket, number);
        let datagram = batch.set(place, &template.bytes);
        let count_at = template.count_at;
        write_count(&mut datagram[count_at..count_at + COUNT_DIGITS], number);
    }

    fn number_of(&mut self, socket: usize, answer: &[u8]) -> Option<u64> {
        read_count(answer).filter(|number| {
            let template = template_of(&self.templates, socket, *number);
            let (start, end) = (template.count_at - 1, template.count_at - 1 + COUNT_DIGITS);
            let call = &template.bytes[1..];
            // A gateway marks its answers; the baseline sends back what it gets.
            let echo = answer.strip_prefix(ANSWER_MARK).or_else(|| answer.strip_prefix(b"{"));
            echo.is_some_and(|echo| {
                echo.len() == call.len()
                    && echo[..start] == call[..start]
                    && echo[end..] == call[end..]
            })
        })
    }
}

impl Script for Patient {
    const LOST_AFTER: Duration = Duration::from_secs(3);
    const GRACE_NS: u64 = 3_000_000_000;

    fn write(&mut self, socket: usize, number: u64, batch: &mut Batch, place: usize) {
        self.0.write(socket, number, batch, place);
    }

    fn number_of(&mut self, socket: usize, answer: &[u8]) -> Option<u64> {
        self.0.number_of(socket, answer)
    }
}

impl Template {
    fn new(token: &str) -> Template {
        let start = format!("{{\"pt\":\"{token}\",\"count\":");
        let count_at = start.len();
        Template { bytes: format!("{start}{COUNT_MIN}}}").into_bytes(), count_at }
    }
}

impl Socket {
    fn new(addr: SocketAddr) -> Result<Socket> {
        let socket = UdpSocket::bind("127.0.0.1:0").context("cannot make a socket")?;
        socket.connect(addr).context("cannot connect a socket")?;
        datagrams::set_buffers(socket.as_fd(), BUFFER_BYTES).context("cannot set buffers")?;
        let sent_at = vec![0; PLACES];
        Ok(Socket { socket, next: 0, on_their_way: 0, sent_at, heard_at: 0, silent_since: 0 })
    }
}

/// Devices call in turn; each socket has its own share of the turns.
fn template_of(templates: &[Template], socket: usize, number: u64) -> &Template {
    let turn = usize::try_from(number).unwrap_or(0).wrapping_mul(31).wrapping_add(socket * 7919);
    &templates[turn % templates.len()]
}

fn place_of(number: u64) -> usize {
    usize::try_from(number).unwrap_or(0) % PLACES
}

pub(crate) fn write_count(digits: &mut [u8], number: u64) {
    let mut rest = COUNT_MIN + number % COUNT_MIN;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
    }
}

/// The count at the end of an answer: the number of its call.
pub(crate) fn read_count(answer: &[u8]) -> Option<u64> {
    let end = answer.len().checked_sub(1)?;
    let digits = str::from_utf8(answer.get(end.checked_sub(COUNT_DIGITS)?..end)?).ok()?;
    digits.parse::<u64>().ok()?.checked_sub(COUNT_MIN)
}

/// All counts have the same number of digits.
pub(crate) const COUNT_DIGITS: usize = 10;
const COUNT_MIN: u64 = 1_000_000_000;
/// Calls of one socket whose times are kept: more than can be in flight.
const PLACES: usize = 1 << 16;
/// Longest wait without an answer before a check for lost calls.
const PATIENCE: Duration = Duration::from_millis(50);
/// Calls at a fixed rate in one batch.
const PACED_BATCH: usize = 16;
const PACED_PAUSE: Duration = Duration::from_micros(50);

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends back what comes, but for one datagram in so many, and one it falsifies.
    fn serve(socket: &UdpSocket, calls: usize) {
        let mut buf = [0; 2000];
        for number in 0..calls {
            let (bytes, peer) = socket.recv_from(&mut buf).unwrap();
            if number == 5 {
                continue;
            }
            if number == 6 {
                buf[3] = b'x';
            }
            socket.send_to(&buf[..bytes], peer).unwrap();
        }
    }

    #[test]
    fn calls_are_counted_by_what_became_of_them() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let script = Patient(Calls { templates: ["a", "b", "c"].map(Template::new).into() });
        let mut caller = Caller::with(server.local_addr().unwrap(), 2, script).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&server, 100));
            let tally = caller.run(100, 8).unwrap();
            assert_eq!((tally.sent, tally.answered, tally.wrong), (100, 98, 1));
            assert_eq!(tally.lags.count(), 98);
        });
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&server, 100));
            let tally = caller.run_at(100, 10_000).unwrap();
            assert_eq!((tally.sent, tally.lost(), tally.wrong), (100, 2, 1));
        });
    }
}
