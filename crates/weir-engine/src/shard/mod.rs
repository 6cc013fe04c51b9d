//! One shard: the loop of its thread, and everything that the thread owns.
//!
//! Each turn takes the same steps in the same order: see [`Shard::turn`].
//!
//! State machines own a part of the state. They do no I/O and read no clock; they name the next
//! step:
//! - `fanouts`: the messages that go to many connections, and their order;
//! - `latest`: the newest messages of conflating topics;
//! - `resumes`: the replay chunks that have come;
//! - `drain`: which connections a drain closes, and when;
//! - `list`, `tls_table`: lists of connections, and their keys.
//!
//! The other files are parts of [`Shard`], which takes the steps that the machines name:
//! - from devices: `read`, `rate` (how fast they may send), `secure` (TLS), `websocket`;
//! - to devices: `write` (sends and flow control), `walk` (fan-outs), `catch_up` (conflation),
//!   `resume`, `forms` (formats other than a stream of frames);
//! - from the front: `commands`, `inspect`, `survey` (memory);
//! - ends: `close`, `deadlines`, `relief` (which connections end when room is short);
//! - `handover`: everything leaves for another process, and comes from one;
//! - only for tests: `check` (invariants), `seeded_bugs`.

mod catch_up;
#[cfg(any(test, feature = "sim"))]
mod check;
mod close;
mod commands;
mod deadlines;
mod drain;
mod fanouts;
mod forms;
mod handover;
mod inspect;
mod latest;
mod lending;
mod list;
mod rate;
mod read;
mod relief;
mod resume;
mod resumes;
mod secure;
mod seeded_bugs;
mod survey;
mod tls_table;
mod walk;
mod websocket;
mod write;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::budget::{Budget, Lease, Share};
use crate::command::{CreditKind, Front, Report};
use crate::id::{ConnId, Priority};
use crate::mailbox::Inbox;
use crate::message::Message;
use crate::net::{Net, Ready};
use crate::outbox::Outbox;
use crate::pool::Pool;
use crate::settings::ShardSettings;
use crate::slot::Slot;
use crate::stats::ShardStats;
use crate::table::{Ending, State, Table};
use crate::time::{Nanos, TICK, Tick, ticks};
use crate::topics::Topics;
use crate::wheel::Wheel;
use drain::Draining;
use fanouts::Fanouts;
use forms::Positions;
use latest::Latest;
use lending::Lending;
use list::SlotList;
use rate::Rate;
use resumes::Resumes;
use tls_table::TlsTable;

/// A shard: connections, members of topics, outboxes, and the loop that serves them.
///
/// Shape: one thread owns everything. The shard reaches the front only through `inbox` and `front`.
/// Limits: those of [`ShardSettings`], and the process's byte budget.
/// Cost: a turn that finds nothing to do is one `epoll_wait` and one reading of the clock.
pub(crate) struct Shard<N: Net, F> {
    index: u8,
    net: N,
    front: F,
    inbox: Inbox<N::Offer>,
    settings: ShardSettings,
    limits: Limits,
    slices: Slices,
    stats: Arc<ShardStats>,

    table: Table<N::Socket>,
    tls: TlsTable,
    topics: Topics,
    wheel: Wheel,
    /// Its pieces of the budget, for waiting items, for begun frames and records, and for positions
    /// of events.
    lease: Lease,
    incoming: Lease,
    events: Lease,
    pool: Pool,
    /// Empty outboxes for connections that need one.
    #[expect(clippy::vec_box, reason = "they move into entries as boxes")]
    spare_outboxes: Vec<Box<Outbox>>,
    /// The connections above the high watermark, longest-stalled first.
    stalled: SlotList,
    /// The connections that lag behind a topic, longest-lagging first.
    lagging: SlotList,
    /// The connections for which something waits. The shard looks at them in turn when room is
    /// short.
    waiting: SlotList,
    latest: Latest,
    /// Messages that one send to a lagging connection gathers. Kept for its memory.
    batch: Vec<Arc<Message>>,
    resumes: Resumes,
    positions: Positions,
    fanouts: Fanouts,
    draining: Option<Draining>,
    /// The greatest number of a drain that has begun or was ended.
    drains: u32,

    /// Reports for which the front had no room, oldest first, and whether a command's credit
    /// returns with the report. Bounded: one for each command in the queue, one for each entry and
    /// one for each running resume.
    backlog: VecDeque<(Report, bool)>,
    /// Answers wait that the front has not been woken for.
    owes_wake: bool,
    /// Connections to read from again although no edge will announce it.
    to_read: Vec<Slot>,
    /// Connections with frames for which the front had no room.
    held_back: Vec<Slot>,
    /// The slot up to which the shard has looked for begun frames.
    looked_at: u32,
    /// Small reads since the last charge for them.
    small_reads: u32,

    /// State of the random numbers for delays.
    random: u64,
    started: Nanos,
    /// The clock's value in this turn.
    now: Nanos,
    ready: Vec<Ready>,
    /// The readiness of connections of high priority in the middle of a turn.
    ready_high: Vec<Ready>,
    due: Vec<Slot>,
    /// The shard's one receive buffer.
    recv_buf: Box<[u8]>,
    /// Answers to the frames of one read, sent together.
    replies: Vec<u8>,
    /// Between [`Urgent::Suspend`](crate::Urgent::Suspend) and [`Urgent::GoOn`](crate::Urgent::GoOn).
    is_suspended: bool,
    /// After a pause, the events that may have come meanwhile and are not served. Deadlines wait for
    /// them, so that a peer does not pay for the pause.
    behind: usize,
    /// Sockets are lent to the process that will take over.
    lending: Option<Lending>,
    /// Sockets that another process has lent, whose connections it will hand over.
    borrowed: HashMap<ConnId, N::Socket, foldhash::fast::RandomState>,
    stopped: bool,
    #[cfg(any(test, feature = "sim"))]
    seeded_bug: Option<crate::seeded_bug::SeededBug>,
    #[cfg(any(test, feature = "sim"))]
    audit: check::Audit,
}

/// The settings' time-outs in ticks, and the rates for devices.
struct Limits {
    stall: u32,
    frame: u32,
    linger: u32,
    publish: Option<Rate>,
    frames: Option<Rate>,
}

/// The amount of each kind of work in a turn, before the shard looks at readiness again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slices {
    /// Commands; replay chunks count by their size. A full queue takes a few turns.
    pub(crate) commands: usize,
    /// Ready sockets that the shard serves, without those of high priority.
    pub(crate) events: usize,
    /// Sends of fan-outs: some 2 ms, so that a ping never waits longer behind one.
    pub(crate) sends: usize,
    /// Entries that walks look at. A gathering walk puts a message into each. Some 0.5 ms.
    pub(crate) steps: usize,
    /// A gathering ends when it has touched this many connections. This bounds the bytes in
    /// outboxes.
    pub(crate) touched: usize,
    /// Bytes of answers to the frames of one connection. Then they leave before further frames get
    /// an answer that may be longer than the frame: an empty frame is one byte, its `Error`
    /// seventy.
    pub(crate) replies: usize,
}

pub(crate) const SLICES: Slices = Slices {
    commands: 512,
    events: 256,
    sends: 256,
    steps: 4096,
    touched: 32 * 1024,
    replies: 16 * 1024,
};

/// After this many ready sockets the shard looks at those of high priority again: some 0.5 ms.
const EVENTS_BESIDE_HIGH: usize = 64;

/// One read. 64 KiB is as much as a busy device sends in a turn, and fits the cache beside the
/// table.
const RECV_BYTES: usize = 64 * 1024;

/// While the front has no room, the shard tries again this often.
const RETRY: Duration = Duration::from_millis(5);

impl Limits {
    fn of(settings: &ShardSettings) -> Limits {
        Limits {
            stall: ticks(settings.stall_timeout),
            frame: ticks(settings.frame_timeout),
            linger: ticks(settings.linger_timeout),
            publish: Rate::of_publishes(settings),
            frames: Rate::of_frames(settings),
        }
    }
}

impl<N: Net, F: Front> Shard<N, F> {
    /// A shard without connections.
    pub(crate) fn new(
        index: u8,
        net: N,
        front: F,
        inbox: Inbox<N::Offer>,
        settings: ShardSettings,
        budget: Arc<Budget>,
        stats: Arc<ShardStats>,
    ) -> Self {
        let started = net.now();
        let limits = Limits::of(&settings);
        Self {
            index,
            net,
            front,
            inbox,
            limits,
            slices: SLICES,
            stats,
            table: Table::new(settings.connections_max, settings.node.clone()),
            tls: TlsTable::new(),
            settings,
            topics: Topics::new(),
            wheel: Wheel::new(),
            lease: Lease::new(Arc::clone(&budget), Share::Waiting),
            incoming: Lease::new(Arc::clone(&budget), Share::Incoming),
            events: Lease::new(budget, Share::Http),
            pool: Pool::default(),
            spare_outboxes: Vec::new(),
            stalled: SlotList::new(|outbox| &mut outbox.links),
            lagging: SlotList::new(|outbox| &mut outbox.lag_links),
            waiting: SlotList::new(|outbox| &mut outbox.wait_links),
            latest: Latest::default(),
            batch: Vec::new(),
            resumes: Resumes::default(),
            positions: Positions::default(),
            fanouts: Fanouts::default(),
            draining: None,
            drains: 0,
            backlog: VecDeque::new(),
            owes_wake: false,
            to_read: Vec::new(),
            held_back: Vec::new(),
            looked_at: 0,
            small_reads: 0,
            random: started.0 ^ u64::from(index) << 56,
            started,
            now: started,
            ready: Vec::new(),
            ready_high: Vec::new(),
            due: Vec::new(),
            recv_buf: vec![0; RECV_BYTES].into_boxed_slice(),
            replies: Vec::new(),
            is_suspended: false,
            behind: 0,
            lending: None,
            borrowed: HashMap::default(),
            stopped: false,
            #[cfg(any(test, feature = "sim"))]
            seeded_bug: None,
            #[cfg(any(test, feature = "sim"))]
            audit: check::Audit::default(),
        }
    }

    /// Uses the limits of these settings from now on. No connection ends because of that. A deadline
    /// that runs already stays as it is.
    ///
    /// Cost: if a rate changes, one look at each connection, which begins with full buckets again.
    fn limit(&mut self, settings: &ShardSettings) {
        let before = [self.limits.publish, self.limits.frames];
        self.settings = self.settings.clone().with_limits(settings);
        self.limits = Limits::of(&self.settings);
        self.table.limit(self.settings.connections_max);
        if before != [self.limits.publish, self.limits.frames] {
            // What a connection owes is counted in intervals of its rate.
            for slot in Slot::all(0..self.table.slots()) {
                if self.table[slot].state == State::Open {
                    self.fill_buckets(slot);
                }
            }
        }
    }

    /// Serves until it is stopped.
    pub(crate) fn run(&mut self) {
        self.count_levels();
        while !self.stopped {
            self.turn();
        }
        self.close_everything();
        self.flush_front();
    }

    /// One turn: wait, read and write ready sockets, take commands, continue fan-outs, check
    /// deadlines.
    ///
    /// A fan-out does a bounded part of its work in a turn, so a huge one never delays a ping.
    /// Connections of high priority go first at every step. The shard also looks at them between
    /// long steps.
    pub(crate) fn turn(&mut self) {
        self.wait();
        let began = self.now;
        self.handle_ready();
        self.flush_front();
        self.take_urgent();
        self.pass_backlog();
        self.take_commands();
        if !self.is_suspended {
            self.read_again();
        }
        self.flush_front();
        self.look_at_high();
        self.go_on_with_fanouts();
        self.relieve_budget();
        self.go_on_draining();
        self.go_on_lending();
        if !self.is_suspended && self.behind == 0 {
            self.expire();
        }
        self.flush_front();
        self.count_levels();
        self.stats.turns.add(1);
        self.stats.turn.record(self.net.now().since(began), 1);
    }

    /// Asks the front to look at the reports and answers so far.
    fn flush_front(&mut self) {
        let owes_wake = std::mem::take(&mut self.owes_wake);
        if self.front.flush() || owes_wake {
            self.net.wake_front();
        }
    }

    fn wait(&mut self) {
        let mut timeout = self.patience();
        self.ready.clear();
        let has_high = self.table.has(Priority::High);
        let mut waited = Ok(());
        if has_high {
            waited = self.net.poll_high(&mut self.ready);
        }
        if !self.ready.is_empty() {
            timeout = Some(Duration::ZERO);
        }
        if let Err(error) =
            waited.and_then(|()| self.net.wait(&mut self.ready, timeout, self.slices.events))
        {
            // Only a fault of ours can end here (a bad descriptor, bad memory). To continue would
            // spin.
            panic!("waiting for readiness failed: {error}");
        }
        let events = self.ready.len();
        let is_more = events >= self.slices.events;
        self.behind = if is_more { self.behind.saturating_sub(events) } else { 0 };
        self.inbox.note_awake();
        self.now = self.net.now().max(self.now);
    }

    /// How long the next wait may last.
    fn patience(&self) -> Option<Duration> {
        let drain = self.draining.as_ref().and_then(|draining| draining.patience(self.now));
        let is_behind = drain == Some(Duration::ZERO);
        let reads = !self.is_suspended && !self.to_read.is_empty();
        let lends = self.lending.as_ref().is_some_and(Lending::is_busy);
        let is_busy = self.fanouts.is_busy() || reads || is_behind || lends;
        if is_busy {
            return Some(Duration::ZERO);
        }
        if !self.inbox.has_room_for_answer() {
            return Some(RETRY);
        }
        if !self.inbox.try_sleep() {
            return Some(Duration::ZERO);
        }
        if !self.backlog.is_empty() || !self.held_back.is_empty() {
            return Some(RETRY);
        }
        if self.wheel.is_empty() && drain.is_none() {
            return None;
        }
        Some(TICK)
    }

    fn handle_ready(&mut self) {
        let ready = std::mem::take(&mut self.ready);
        for (index, event) in ready.iter().enumerate() {
            if index > 0 && index.is_multiple_of(EVENTS_BESIDE_HIGH) {
                self.look_at_high();
            }
            self.handle_event(*event);
        }
        self.ready = ready;
    }

    /// Serves ready connections of high priority in the middle of a turn.
    fn look_at_high(&mut self) {
        if !self.table.has(Priority::High) {
            return;
        }
        let mut ready = std::mem::take(&mut self.ready_high);
        if let Err(error) = self.net.poll_high(&mut ready) {
            panic!("looking at readiness failed: {error}");
        }
        for event in ready.drain(..) {
            self.handle_event(event);
        }
        self.ready_high = ready;
        self.flush_front();
    }

    fn handle_event(&mut self, event: Ready) {
        let Some(slot) = self.slot_of(event.key) else { return };
        if event.ended {
            self.table[slot].flags.ended = true;
        }
        if event.writable {
            self.handle_writable(slot);
        }
        if event.readable || event.ended {
            if self.is_suspended {
                self.list_to_read(slot);
            } else {
                self.handle_readable(slot);
            }
        }
    }

    /// The slot of a readiness key, if it still has the socket of that key.
    fn slot_of(&self, key: u64) -> Option<Slot> {
        let (generation, slot) = split_key(key);
        let entry = self.table.get(slot)?;
        let is_current = self.table.generation(slot) == Some(generation);
        (is_current && entry.socket.is_some()).then_some(slot)
    }

    fn tick(&self) -> Tick {
        Tick::at(self.started, self.now)
    }

    fn expire(&mut self) {
        let now = self.tick();
        let mut due = std::mem::take(&mut self.due);
        self.wheel.poll(&mut self.table, now, &mut due);
        for slot in due.drain(..) {
            self.check_deadlines(slot, now);
        }
        self.due = due;
    }

    fn arm(&mut self, slot: Slot, at: Tick) {
        if !self.is_seeded_deaf_timer(slot) {
            self.wheel.arm(&mut self.table, slot, at);
        }
    }

    /// Sends a report to the front, now or as soon as it has room. `credit`: a command's credit
    /// returns once the front has taken the report.
    fn report(&mut self, report: Report, credit: bool) {
        if self.backlog.is_empty() {
            if let Err(report) = self.try_report(report, credit) {
                self.backlog.push_back((report, credit));
            }
        } else {
            self.backlog.push_back((report, credit));
        }
    }

    fn pass_backlog(&mut self) {
        while let Some((report, credit)) = self.backlog.pop_front() {
            if let Err(report) = self.try_report(report, credit) {
                self.backlog.push_front((report, credit));
                return;
            }
        }
    }

    fn try_report(&mut self, report: Report, credit: bool) -> Result<(), Report> {
        let closed = match &report {
            Report::Closed { conn, .. } => Some(conn.slot()),
            Report::Adopted { .. }
            | Report::Refused { .. }
            | Report::Received { .. }
            | Report::NotEntered { .. }
            | Report::Left { .. }
            | Report::ResumeNext { .. }
            | Report::ResumeRefused { .. }
            | Report::Retired { .. }
            | Report::Drained { .. } => None,
        };
        self.front.try_report(report)?;
        if credit {
            // No report answers a message.
            self.inbox.return_credit(CreditKind::Control);
        }
        if let Some(slot) = closed {
            self.table[slot].flags.ending.note(Ending::REPORTED);
            self.release_if_over(slot);
        }
        Ok(())
    }

    fn count_levels(&self) {
        let stats = &self.stats;
        stats.stalled.set(self.stalled.len as u64);
        stats.table_entries.set(self.table.in_use() as u64);
        stats.slots_retired.set(self.table.retired() as u64);
        stats.topics.set(self.topics.with_members() as u64);
        stats.memberships.set(self.topics.memberships() as u64);
        let held = self.lease.held() + self.incoming.held() + self.events.held();
        stats.queued_bytes.set(held as u64);
        stats.fanouts.set(self.fanouts.len() as u64);
        stats.read_paused.set(self.held_back.len() as u64);
        stats.descriptors.set(self.net.descriptors() as u64);
        if let Some(allocated_bytes) = self.settings.allocated_bytes {
            stats.allocated_bytes.set(allocated_bytes());
        }
    }
}

/// The readiness key of a slot: generation and slot. So the shard recognises a late edge for a
/// former socket.
pub(crate) fn key_of(generation: u32, slot: Slot) -> u64 {
    u64::from(generation) << 32 | u64::from(slot.index())
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves are meant")]
fn split_key(key: u64) -> (u32, Slot) {
    ((key >> 32) as u32, Slot::at(key as u32))
}
