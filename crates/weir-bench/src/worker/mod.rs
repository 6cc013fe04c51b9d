//! The process that holds client sockets: one thread, one epoll loop, one receive buffer.

mod churn;
mod conn;
mod counter;
mod echo;
pub(crate) mod keys;
mod opening;
mod order;
mod pacing;
mod publish;
mod publishing;
mod requests;
mod returning;
mod room;
mod subscribing;
#[cfg(test)]
mod tests;
mod upgrade;
pub(crate) mod wire;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::process::nice;
use weir_wire::format::Format;

use conn::{Conn, Phase};
pub(crate) use conn::{device_id, dial, hello_frame, source_of};
use counter::{Counter, Published};
use opening::Opening;
use pacing::{Pacer, TICK, Turn};
use publishing::Publishing;
use wire::{Inbox, Received, Wire};

use crate::clock;
use crate::payload::foreign::{self, Protocol};
use crate::peer::lines::Lines;
use crate::protocol::{Answer, Collect, OpenPlan, Order, Reading, Tally, from_hex};
use crate::tls::{TlsClient, TlsPlan};

/// The state of a worker.
pub(crate) struct Worker<W> {
    epoll: OwnedFd,
    input: OwnedFd,
    lines: Lines,
    output: W,
    plan: Option<OpenPlan>,
    conns: Vec<Conn>,
    counter: Counter,
    opening: Option<Opening>,
    collecting: Option<Collecting>,
    publishing: Option<Publishing>,
    /// Numbers that each publishing connection has used up.
    numbers: Vec<u32>,
    /// Connections that must come back, with their times; the last one first.
    returning: Vec<(Duration, usize)>,
    /// Where they come back to; nothing: where they were.
    destinations: Vec<SocketAddr>,
    /// After this time, one that is refused comes again.
    again: Option<Duration>,
    pacer: Pacer,
    paced_at: Duration,
    inbox: Inbox,
    tls: Option<TlsClient>,
    /// TLS handshakes since connections were opened, by agreed parameters.
    handshakes: BTreeMap<String, u64>,
}

/// A report that waits for messages in flight.
struct Collecting {
    order: Collect,
    until: Duration,
    checked: Duration,
}

/// Bytes per read: a burst of messages fits.
const READ_BYTES: usize = 64 << 10;
/// Niceness of a worker with lowered priority.
const NICENESS: i32 = 10;
/// Events per wait.
const EVENTS_MAX: usize = 512;
/// The number that stands for the orders, among the numbers of connections.
const INPUT: u64 = u64::MAX;
/// Time between two checks whether all messages have come; a check goes over all connections.
const CHECK_EVERY: Duration = Duration::from_millis(10);

impl<W: Write> Worker<W> {
    /// Takes orders from `input`, answers on `output`.
    pub(crate) fn new(input: OwnedFd, output: W) -> Result<Worker<W>> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).context("cannot make an epoll")?;
        epoll::add(&epoll, &input, EventData::new_u64(INPUT), EventFlags::IN)
            .context("cannot watch the orders")?;
        Ok(Worker {
            epoll,
            input,
            lines: Lines::default(),
            output,
            plan: None,
            conns: Vec::new(),
            counter: Counter::default(),
            publishing: None,
            numbers: Vec::new(),
            returning: Vec::new(),
            destinations: Vec::new(),
            again: None,
            opening: None,
            collecting: None,
            pacer: Pacer::default(),
            paced_at: Duration::ZERO,
            inbox: Inbox::new(READ_BYTES),
            tls: None,
            handshakes: BTreeMap::new(),
        })
    }

    /// Works until the orders end.
    pub(crate) fn run(&mut self) -> Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        loop {
            let timeout = self.timeout().map(clock::timespec);
            events.clear();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("epoll failed"),
            }
            for event in &events {
                let data = event.data;
                if data.u64() != INPUT {
                    let index = usize::try_from(data.u64()).context("an index is a usize")?;
                    self.handle_event(index)?;
                } else if !self.handle_input()? {
                    return Ok(());
                }
            }
            self.turn(clock::monotonic())?;
        }
    }

    fn timeout(&self) -> Option<Duration> {
        if let Some(due) = self.publishing.as_ref().map(Publishing::poll_due) {
            let left = due.map_or(Duration::ZERO, |due| due.saturating_sub(clock::monotonic()));
            return Some(left.min(CHECK_EVERY));
        }
        if !self.returning.is_empty() || self.pacer.is_active() || self.collecting.is_some() {
            Some(CHECK_EVERY)
        } else {
            self.opening.is_some().then_some(Duration::from_millis(200))
        }
    }

    /// Does the work that is due by time, not by an event.
    fn turn(&mut self, now: Duration) -> Result<()> {
        self.poll_opening(now)?;
        self.publish(now)?;
        self.poll_returning(now);
        if self.pacer.is_active() && now >= self.paced_at + TICK {
            self.paced_at = now;
            self.read_paced(now);
        }
        let Some(collecting) = &mut self.collecting else { return Ok(()) };
        if now < collecting.checked + CHECK_EVERY {
            return Ok(());
        }
        collecting.checked = now;
        let published = Published::new(&collecting.order.published);
        // Paced clients read without waiting for an event.
        let paced = self.pacer.is_active();
        let missing = self.conns.iter().enumerate().any(|(index, conn)| {
            is_waited_for(conn, &collecting.order, paced)
                && self.counter.missing(index, conn, &published) > 0
        });
        let unanswered = self.conns.iter().any(|conn| conn.fd.is_some() && conn.pings > 0);
        let waiting = missing || unanswered || !self.returning.is_empty();
        if waiting && now < collecting.until {
            return Ok(());
        }
        let tally = tally_of(&self.counter, &self.conns, &published);
        self.collecting = None;
        self.answer(&Answer::Collected(Box::new(tally)))
    }

    fn handle_input(&mut self) -> Result<bool> {
        let more = self.lines.fill(&self.input)?;
        while let Some(order) = self.lines.next_order()? {
            self.handle_order(order)?;
        }
        Ok(more)
    }

    fn handle_order(&mut self, order: Order) -> Result<()> {
        let now = clock::monotonic();
        match order {
            Order::Open(plan) => return self.open(plan, now),
            Order::Collect(order) => {
                let until = now + Duration::from_millis(order.wait_ms);
                self.collecting = Some(Collecting { order, until, checked: Duration::ZERO });
                return Ok(());
            }
            Order::Begin => self.counter.reset(),
            Order::Read(reading) => self.change_reading(reading, now),
            Order::Emit { frame } => {
                let Some(frame) = from_hex(&frame) else {
                    return self.answer(&Answer::Failed {
                        error: "a frame that is not hexadecimal".to_owned(),
                    });
                };
                self.emit(&frame);
            }
            Order::Echo(plan) => return self.echo(&plan),
            Order::Subscribe(plan) => return self.subscribe(&plan),
            Order::Publish(plan) => {
                self.begin_publishing(&plan, now);
                return Ok(());
            }
            Order::Churn(plan) => return self.churn(&plan),
            Order::Request(plan) => return self.request(&plan),
            Order::ComeBack(plan) => self.come_back(plan, now),
            Order::NoteAges => {
                let now_ns = clock::realtime_ns();
                for index in (0..self.conns.len()).filter(|index| self.conns[*index].fd.is_some()) {
                    self.counter.note_ages(index, now_ns);
                }
            }
            Order::StandBack => {
                nice(NICENESS).context("cannot stand back")?;
            }
            Order::Close => {
                self.conns = Vec::new();
                self.pacer.stop();
            }
        }
        self.answer(&Answer::Done)
    }

    fn answer(&mut self, answer: &Answer) -> Result<()> {
        serde_json::to_writer(&mut self.output, answer).context("cannot answer")?;
        self.output.write_all(b"\n").context("cannot answer")?;
        self.output.flush().context("cannot answer")
    }

    fn open(&mut self, plan: OpenPlan, now: Duration) -> Result<()> {
        if !self.conns.is_empty() {
            return self
                .answer(&Answer::Failed { error: "connections are open already".to_owned() });
        }
        let last = plan.first + plan.count.saturating_sub(1);
        let streams = (plan.first..=last).map(|index| plan.streams.of(index)).max().unwrap_or(0);
        let topics = (0..=streams).map(|stream| topic(&plan.topic_prefix, stream)).collect();
        self.counter = Counter::new(&plan, topics);
        self.numbers.clear();
        let patience = Duration::from_millis(plan.patience_ms);
        self.handshakes.clear();
        let fetched = self.prepare_tls(plan.tls.as_ref()).and_then(|()| match &self.tls {
            Some(tls) => tls.fetch_tickets(plan.addr, plan.window),
            None => Ok(()),
        });
        if let Err(error) = fetched {
            return self.answer(&Answer::Failed { error: format!("{error:#}") });
        }
        self.opening = Some(Opening::new(plan.count, plan.window, patience, now));
        self.plan = Some(plan);
        Ok(())
    }

    /// Sets the TLS plan. Tickets from the same plan are kept.
    fn prepare_tls(&mut self, plan: Option<&TlsPlan>) -> Result<()> {
        self.tls = match (plan, self.tls.take()) {
            (None, _) => None,
            (Some(plan), Some(mut client)) if client.speaks(plan) => {
                client.resume(plan.resume);
                Some(client)
            }
            (Some(plan), _) => Some(TlsClient::new(plan)?),
        };
        Ok(())
    }

    fn poll_opening(&mut self, now: Duration) -> Result<()> {
        let Some(opening) = &mut self.opening else { return Ok(()) };
        let Some(plan) = &self.plan else { return Ok(()) };
        let mut failure = None;
        while let Some(number) = opening.poll_begin() {
            match Conn::dial(plan, self.tls.as_ref(), plan.first + number)
                .and_then(|conn| watch_new(&self.epoll, conn, self.conns.len()))
            {
                Ok(conn) => self.conns.push(conn),
                Err(error) => {
                    failure = Some(format!("connection {}: {error:#}", plan.first + number));
                    break;
                }
            }
        }
        let ended = closed_early(&self.counter, &self.conns, plan.first);
        let error = failure
            .or(ended)
            .or_else(|| opening.poll_failure(now).filter(|_| !opening.is_complete()));
        if error.is_some() || opening.is_complete() {
            let (connected, seconds) = (opening.arrived(), opening.elapsed(now).as_secs_f64());
            self.opening = None;
            let handshakes = std::mem::take(&mut self.handshakes);
            return self.answer(&Answer::Opened { connected, seconds, handshakes, error });
        }
        if let Some(connected) = opening.poll_report() {
            self.answer(&Answer::Progress { connected })?;
        }
        Ok(())
    }

    fn handle_event(&mut self, index: usize) -> Result<()> {
        match self.conns.get(index).map(|conn| conn.phase) {
            None | Some(Phase::Ended) => {}
            Some(Phase::Connecting) => match self.conns[index].form {
                Format::Stream => self.greet(index),
                Format::WsProtobuf | Format::WsJson | Format::Sse => self.ask_for_messages(index),
            },
            Some(Phase::Upgrading) => self.read_head(index),
            Some(Phase::Greeting | Phase::Settled) => {
                self.read(index, READ_BYTES);
            }
        }
        Ok(())
    }

    /// The kernel has connected, or failed to.
    fn greet(&mut self, index: usize) {
        let Some(plan) = &self.plan else { return };
        let conn = &mut self.conns[index];
        let Some(fd) = &mut conn.fd else { return };
        let result = match sockopt::socket_error(&*fd) {
            Ok(Ok(())) => epoll::modify(&self.epoll, &*fd, event_data(index), EventFlags::IN),
            Ok(Err(error)) | Err(error) => Err(error),
        };
        let result = result.and_then(|()| match &plan.hello {
            None => Ok(()),
            Some(hello) => {
                let position = conn.away.as_mut().and_then(|away| {
                    away.hello_ns = clock::realtime_ns();
                    conn.position
                });
                let topic = self.counter.topic(conn.stream);
                let frame = match plan.protocol {
                    Protocol::Weir => hello_frame(hello, &conn.device, topic, position),
                    other @ (Protocol::Nats | Protocol::Mqtt) => {
                        foreign::greeting(other, &conn.device, topic)
                    }
                };
                // A fresh socket takes a small frame whole.
                fd.send(&frame).map(|_| ())
            }
        });
        match result {
            Ok(()) => {
                conn.phase = Phase::Greeting;
                self.settle(index);
            }
            Err(error) => self.end(index, &format!("connect_{error:?}").to_lowercase()),
        }
    }

    fn settle(&mut self, index: usize) {
        let conn = &mut self.conns[index];
        if conn.phase == Phase::Greeting && conn.awaited == 0 {
            conn.phase = Phase::Settled;
            if let Some(agreed) = conn.fd.as_ref().and_then(Wire::agreed) {
                *self.handshakes.entry(agreed).or_insert(0) += 1;
            }
            if let Some(opening) = &mut self.opening {
                opening.handle_arrival(clock::monotonic());
            }
        }
    }

    /// Reads once, at most `limit` bytes; returns the number of bytes.
    fn read(&mut self, index: usize, limit: usize) -> usize {
        let conn = &mut self.conns[index];
        let Some(fd) = &mut conn.fd else { return 0 };
        let how = match fd.receive(limit, &mut self.inbox) {
            Ok(Received { bytes: 0, .. }) => "eof".to_owned(),
            Ok(got) => match self.counter.take(index, conn, self.inbox.content(), got.stamp) {
                Ok(()) => {
                    self.settle(index);
                    return got.bytes;
                }
                Err(error) => {
                    self.counter.tally.wrong += 1;
                    self.counter.note(error);
                    "malformed".to_owned()
                }
            },
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::AGAIN | Errno::INTR) => return 0,
                Some(Errno::CONNRESET) => "reset".to_owned(),
                Some(Errno::TIMEDOUT) => "timeout".to_owned(),
                _ => error.to_string(),
            },
        };
        self.end(index, &how);
        0
    }

    fn end(&mut self, index: usize, how: &str) {
        let again = self.again.filter(|_| self.is_coming_back(index));
        let conn = &mut self.conns[index];
        conn.fd = None;
        conn.phase = Phase::Ended;
        conn.partial = Vec::new();
        match again {
            None => self.counter.note_closed(conn, how),
            Some(again) => {
                self.counter.note_refused(conn, how);
                self.plan_return(index, clock::monotonic() + again);
            }
        }
    }

    fn change_reading(&mut self, reading: Reading, now: Duration) {
        self.pacer.stop();
        let slow = |conn: &&mut Conn| conn.slow && conn.fd.is_some();
        match reading {
            Reading::Full => {
                for (index, conn) in
                    self.conns.iter_mut().enumerate().filter(|(_, conn)| !conn.watched)
                {
                    watch(&self.epoll, conn, index);
                }
            }
            Reading::Stop => {
                self.conns.iter_mut().filter(slow).for_each(|conn| unwatch(&self.epoll, conn))
            }
            Reading::Paced { bytes_per_second, stagger_ms } => {
                let open = self
                    .conns
                    .iter()
                    .enumerate()
                    .filter(|(_, conn)| conn.slow && conn.fd.is_some());
                let paced = open.map(|(index, _)| index).collect();
                self.pacer.start(bytes_per_second, Duration::from_millis(stagger_ms), paced, now);
            }
        }
    }

    fn read_paced(&mut self, now: Duration) {
        for place in 0.. {
            match self.pacer.poll_turn(place, now) {
                None => return,
                Some((_, Turn::Wait)) => {}
                Some((index, Turn::Start)) => unwatch(&self.epoll, &mut self.conns[index]),
                Some((index, Turn::Read(bytes))) => {
                    let got = self.read(index, bytes);
                    self.pacer.handle_read(place, got);
                }
            }
        }
    }

    fn emit(&mut self, frame: &[u8]) {
        for index in 0..self.conns.len() {
            let Some(fd) = &mut self.conns[index].fd else { continue };
            match fd.send(frame) {
                Ok(sent) if sent == frame.len() => {}
                Ok(sent) => self.counter.note(format!("{sent} of {} bytes were sent", frame.len())),
                Err(error) => self.counter.note(format!("cannot send: {error}")),
            }
        }
    }
}

/// Name of a stream's topic.
pub(crate) fn topic(prefix: &str, stream: u32) -> String {
    if prefix.is_empty() { String::new() } else { format!("{prefix}{stream}") }
}

fn event_data(index: usize) -> EventData {
    EventData::new_u64(index as u64)
}

fn watch_new(epoll: &OwnedFd, conn: Conn, index: usize) -> Result<Conn> {
    if let Some(fd) = &conn.fd {
        epoll::add(epoll, fd, event_data(index), EventFlags::IN | EventFlags::OUT)
            .context("cannot watch a socket")?;
    }
    Ok(conn)
}

fn watch(epoll: &OwnedFd, conn: &mut Conn, index: usize) {
    if let Some(fd) = &conn.fd {
        conn.watched = epoll::add(epoll, fd, event_data(index), EventFlags::IN).is_ok();
    }
}

/// Removes a socket from epoll, so that not even its end is reported.
fn unwatch(epoll: &OwnedFd, conn: &mut Conn) {
    if let Some(fd) = &conn.fd {
        conn.watched = epoll::delete(epoll, fd).is_err();
    }
}

/// The reason why a connection ended before all were open, if one did.
fn closed_early(counter: &Counter, conns: &[Conn], first: u32) -> Option<String> {
    if counter.tally.closed_by.is_empty() {
        return None;
    }
    let number = conns.iter().position(|conn| conn.phase == Phase::Ended)?;
    let by: Vec<&str> = counter.tally.closed_by.keys().map(String::as_str).collect();
    let said = counter.tally.errors.join("; ");
    Some(format!(
        "connection {} was closed while connecting: {} {said}",
        first as usize + number,
        by.join(", ")
    ))
}

fn is_waited_for(conn: &Conn, order: &Collect, paced: bool) -> bool {
    conn.fd.is_some() && (conn.watched || paced) && (!conn.slow || order.slow_too)
}

fn tally_of(counter: &Counter, conns: &[Conn], published: &Published<'_>) -> Tally {
    let mut tally = counter.report();
    for (index, conn) in conns.iter().enumerate() {
        let missing = counter.missing(index, conn, published);
        let open = u64::from(conn.fd.is_some());
        tally.away += u64::from(conn.away.is_some());
        tally.unanswered += u64::from(conn.pings) * open;
        if conn.slow {
            tally.open_slow += open;
            tally.missing_slow += missing * open;
        } else {
            tally.open += open;
            tally.missing += missing;
        }
    }
    tally
}
