//! The invariants of a shard, recomputed from its tables between turns. The simulator also looks
//! into a shard here.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_wire::format::Format;

use super::Shard;
use super::forms::bytes_of_positions;
use super::list::SlotList;
use crate::budget::Share;
use crate::command::{Front, Report};
use crate::id::{ConnId, Priority, TopicId, Transport};
use crate::net::Net;
use crate::outbox::{Links, Outbox};
use crate::slot::Slot;
use crate::stats::{Cell, DropRule};
use crate::table::{Ending, Entry, HeldBack, Reading, State};
use crate::time::{Nanos, Tick};

/// Items counted where they are accepted and where they end, independently of the shard's own
/// counts.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    /// Items accepted for an open connection.
    accepted: Cell,
    /// Items whose last byte the kernel took.
    sent: Cell,
    /// Slots of connections that began to be stalled (`false`) or to lag (`true`).
    slow: Vec<(Slot, bool)>,
}

/// One open connection between two turns.
#[derive(Debug)]
pub(crate) struct Peek<'a> {
    pub(crate) outbox: Option<&'a Outbox>,
    pub(crate) stalled_since: Option<Nanos>,
    /// When the socket of a lagging connection last took bytes.
    pub(crate) taken_at: Option<Nanos>,
    /// Topics that it lags behind or resumes.
    pub(crate) lags: Vec<TopicId>,
    pub(crate) resumes: Vec<TopicId>,
    pub(crate) is_held_back: bool,
    /// It is not read from, as it sends faster than it may; and whether it will not be when it sends the next time.
    pub(crate) is_read_paused: bool,
    pub(crate) is_too_fast: bool,
    /// Whether the records that came with the adoption are opened.
    pub(crate) has_read_ahead: bool,
    pub(crate) topics: Vec<TopicId>,
}

/// Sums over the table.
#[derive(Debug, Default)]
struct Sums {
    /// Open connections by transport. The next two are by transport too.
    open: [u64; Transport::COUNT],
    lingering: [u64; Transport::COUNT],
    /// Open connections by format.
    formats: [u64; Format::COUNT],
    in_use: usize,
    unreported: usize,
    items: u64,
    bytes_held: usize,
    memberships: usize,
    timers: usize,
    stalled: usize,
    /// Connections in the list of those for which something waits.
    waiting: usize,
    /// Lagging connections, and their number behind each topic.
    lagging: usize,
    lags: BTreeMap<TopicId, usize>,
    by_priority: [u32; Priority::COUNT],
    /// Connections with TLS.
    secure: usize,
}

/// Fails with a message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}

impl<N: Net, F: Front> Shard<N, F> {
    pub(super) fn note_accepted(&self) {
        self.audit.accepted.add(1);
    }

    pub(super) fn note_sent(&self, count: u64) {
        self.audit.sent.add(count);
    }

    /// Notes that a connection begins to be stalled, or to lag.
    pub(super) fn note_slow(&mut self, slot: Slot, lags: bool) {
        self.audit.slow.push((slot, lags));
    }

    /// Connections that have begun to be stalled, or (`true`) to lag, since the last call.
    pub(crate) fn take_slow(&mut self) -> Vec<(Slot, bool)> {
        std::mem::take(&mut self.audit.slow)
    }

    /// An open connection; `None` if it has gone.
    pub(crate) fn peek(&self, conn: ConnId) -> Option<Peek<'_>> {
        let slot = self.table.find_open(conn)?;
        let entry = &self.table[slot];
        let lags = entry.outbox.iter().flat_map(|outbox| &outbox.lags);
        let resumes = self.resumes.iter().filter(|(other, ..)| *other == slot);
        Some(Peek {
            lags: lags.map(|lag| lag.topic).collect(),
            resumes: resumes.map(|(_, topic, _)| topic).collect(),
            outbox: entry.outbox.as_deref(),
            stalled_since: entry.outbox.as_ref().and_then(|outbox| outbox.stalled_since),
            taken_at: entry
                .outbox
                .as_ref()
                .and_then(|outbox| (!outbox.lags.is_empty()).then_some(outbox.taken_at)),
            is_held_back: entry.flags.is_held_back() || !entry.flags.welcomed,
            is_read_paused: entry.flags.reading == Reading::Paused,
            is_too_fast: entry.flags.reading == Reading::Paused
                || self.reading_due(slot) > self.tick(),
            has_read_ahead: self.tls.get(entry.tls).is_none_or(|tls| !tls.is_ahead),
            topics: entry.memberships.iter().map(|membership| membership.topic).collect(),
        })
    }

    /// Whether a record has left in part, even if the connection is closing.
    pub(crate) fn has_sealed(&self, conn: ConnId) -> bool {
        let is_current = self.table.generation(conn.slot()) == Some(conn.generation());
        let outbox = self.table.get(conn.slot()).and_then(|entry| entry.outbox.as_ref());
        is_current && outbox.is_some_and(|outbox| outbox.sealed.is_some())
    }

    /// Whether all requests have been carried out: no fan-out runs and no report waits.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.fanouts.is_busy() && self.fanouts.len() == 0 && self.backlog.is_empty()
    }

    /// The greatest number of a drain that has begun or was ended.
    pub(crate) fn drains(&self) -> u32 {
        self.drains
    }

    /// Whether no connection must be read from without an edge.
    pub(crate) fn has_read(&self) -> bool {
        self.to_read.is_empty()
    }

    /// Looks for contradictions in the shard's tables.
    pub(crate) fn check_invariants(&self) -> Result<(), String> {
        let high = self.table.check_free_list()?;
        let mut sums = Sums::default();
        for slot in Slot::all(0..high) {
            let entry = &self.table[slot];
            self.check_entry(slot, entry, &mut sums).map_err(|what| {
                let Entry { state, reason, flags, timer, outbox, .. } = entry;
                format!("slot {slot}: {what}: {state:?} {reason} {flags:?} {timer:?} {outbox:?}")
            })?;
        }
        sums.bytes_held += self.latest.charged() + self.resumes.charged();
        let told = self.positions.values().map(|told| bytes_of_positions(told.capacity()));
        sums.bytes_held += told.sum::<usize>();
        self.check_resumes()?;
        self.check_sums(&sums)?;
        self.latest.check(&sums.lags)?;
        self.check_stalled(&sums)?;
        self.check_lagging(&sums)?;
        self.check_list(&self.waiting, sums.waiting, |outbox| (outbox.wait_links, Nanos(0)))
            .map_err(|what| format!("the list of connections for which something waits: {what}"))?;
        self.check_credits()?;
        let walks = |priority, topic| self.fanouts.walks_over(priority, topic);
        self.topics.check(walks)
    }

    fn check_entry(
        &self,
        slot: Slot,
        entry: &Entry<N::Socket>,
        sums: &mut Sums,
    ) -> Result<(), String> {
        let state = entry.state;
        let is_held = matches!(state, State::Open | State::Closing);
        ensure!(entry.socket.is_some() == is_held, "a socket is there while it is held");
        ensure!(is_held || entry.outbox.is_none(), "an outbox without a socket");
        ensure!(state == State::Open || entry.partial.is_none(), "a block of a closed connection");
        let memberships = entry.memberships.len();
        ensure!(state == State::Open || memberships == 0, "a membership of a closed connection");
        ensure!(entry.timer.is_armed() || !is_held, "no timer");
        ensure!(is_held || !entry.timer.is_armed(), "a timer without a connection");
        if state == State::Free {
            return Ok(());
        }
        sums.in_use += 1;
        sums.by_priority[entry.priority.index()] += 1;
        let transport = entry.transport().index();
        sums.open[transport] += u64::from(state == State::Open);
        sums.formats[entry.format().index()] += u64::from(state == State::Open);
        sums.lingering[transport] += u64::from(state == State::Closing);
        sums.unreported +=
            usize::from(state != State::Open && !entry.flags.ending.has(Ending::REPORTED));
        ensure!(
            state != State::Closed || !entry.flags.ending.has(Ending::REPORTED),
            "over, and not freed"
        );
        sums.timers += usize::from(entry.timer.is_armed());
        self.wheel.check_timer(|slot| self.table[slot].timer, slot)?;
        if is_held {
            let end = self.timer_due(slot);
            ensure!(entry.timer.at() <= end, "the timer comes behind the deadline {end:?}");
        }
        if let Some(outbox) = &entry.outbox {
            self.check_outbox(entry, outbox)?;
            sums.items += outbox.len() as u64;
            sums.bytes_held += outbox.charged;
            sums.stalled += usize::from(outbox.stalled_since.is_some());
            sums.waiting += usize::from(outbox.is_waiting);
            let is_seen_to = outbox.is_waiting && outbox.is_held();
            ensure!(entry.flags.to_flush || is_seen_to, "waiting items are not counted");
            sums.lagging += usize::from(!outbox.lags.is_empty());
            for lag in &outbox.lags {
                let is_in = entry.memberships.find(lag.topic).is_some();
                ensure!(is_in, "lags behind {:?} and is not in it", lag.topic);
                *sums.lags.entry(lag.topic).or_default() += 1;
            }
        }
        sums.bytes_held += entry.partial.as_ref().map_or(0, |block| block.footprint());
        if let Some(tls) = self.tls.get(entry.tls) {
            ensure!(is_held, "keys without a socket");
            sums.secure += 1;
            ensure!(state == State::Open || tls.partial.is_none(), "a record after the close");
            sums.bytes_held += tls.partial.as_ref().map_or(0, |block| block.footprint());
            ensure!(!tls.is_due() || entry.outbox.is_some(), "a KeyUpdate gets no answer");
        }
        for (at, membership) in entry.memberships.iter().enumerate() {
            let member = self.topics.member(entry.priority, membership.topic, membership.position);
            let is_agreed = member.is_some_and(|member| member.is(slot, at));
            ensure!(is_agreed, "{membership:?} disagrees with the topic: {member:?}");
        }
        sums.memberships += memberships;
        let flags = entry.flags;
        ensure!(!flags.to_read || self.to_read.contains(&slot), "in no list to read");
        ensure!(!flags.is_held_back() || entry.partial.is_some(), "nothing is held back");
        ensure!(self.will_take_held_back(slot), "nothing takes the held back frames");
        Ok(())
    }

    /// Whether the shard will look at the frames that a connection holds back.
    fn will_take_held_back(&self, slot: Slot) -> bool {
        let flags = self.table[slot].flags;
        match flags.held_back {
            HeldBack::No => true,
            HeldBack::ForFront => self.held_back.contains(&slot),
            HeldBack::ForAnswers => {
                flags.to_read || self.is_stalled(slot) || flags.reading == Reading::Paused
            }
        }
    }

    /// The tick at which the shard must look at the entry, at the latest.
    fn timer_due(&self, slot: Slot) -> Tick {
        let entry = &self.table[slot];
        let at = if entry.state == State::Open {
            self.next_deadline(slot).0
        } else {
            entry.heard_at.plus(self.limits.linger)
        };
        // A deadline that has passed meanwhile fires at the next poll.
        at.max(self.tick().plus(1))
    }

    fn check_outbox(&self, entry: &Entry<N::Socket>, outbox: &Outbox) -> Result<(), String> {
        outbox.check()?;
        ensure!(outbox.charged == outbox.footprint(), "the charge differs from the occupied bytes");
        let is_needed = !outbox.is_empty() || !outbox.lags.is_empty();
        ensure!(is_needed, "an outbox without need");
        let is_stalled = outbox.stalled_since.is_some();
        ensure!(!is_stalled || entry.state == State::Open, "stalled and not open");
        if entry.state == State::Open && !entry.flags.to_flush {
            let bytes = outbox.bytes();
            let is_high = outbox.bytes_counted() > self.settings.high_watermark_bytes;
            ensure!(is_stalled || !is_high, "{bytes} bytes wait and it is not stalled");
            let is_low = bytes <= self.settings.low_watermark_bytes;
            ensure!(!is_stalled || !is_low, "{bytes} bytes wait and it is stalled");
        }
        Ok(())
    }

    fn check_sums(&self, sums: &Sums) -> Result<(), String> {
        let stats = &self.stats;
        ensure!(sums.in_use == self.table.in_use(), "entries: {sums:?}");
        let by_priority = self.table.by_priority();
        ensure!(sums.by_priority == by_priority, "{by_priority:?} entries by priority: {sums:?}");
        let open = Transport::ALL.map(|transport| stats.connections.of(transport).get());
        ensure!(sums.open == open, "{open:?} open connections by transport: {sums:?}");
        let formats = Format::ALL.map(|format| stats.formats[format.index()].get());
        ensure!(sums.formats == formats, "{formats:?} open connections by format: {sums:?}");
        let lingering = Transport::ALL.map(|transport| stats.lingering.of(transport).get());
        ensure!(sums.lingering == lingering, "{lingering:?} lingering by transport: {sums:?}");
        ensure!(sums.items == stats.queued_items.get(), "items: {sums:?}");
        let held = self.lease.held() + self.incoming.held() + self.events.held();
        ensure!(sums.bytes_held == held, "the lease holds {held}: {sums:?}");
        ensure!(self.lease.budget().used() >= held, "the budget knows less than the lease");
        let budget = self.lease.budget();
        let (used, most) = (budget.used_of(Share::Waiting), budget.bytes_max_of(Share::Waiting));
        let overdrawn = budget.overdrawn();
        ensure!(used <= most + overdrawn, "{used} bytes wait of {most} and {overdrawn}");
        let is_open = |slot: &&Slot| self.table[**slot].state == State::Open;
        let told = self.positions.keys().filter(is_open).count();
        ensure!(told == self.positions.len(), "leftover positions: {:?}", self.positions);
        ensure!(sums.memberships == self.topics.memberships(), "memberships: {sums:?}");
        self.tls.check(sums.secure)?;
        ensure!(sums.timers == self.wheel.armed(), "timers: {sums:?}");
        let waiting = self.backlog.iter().filter(|(report, _)| is_closed(report)).count();
        ensure!(sums.unreported == waiting, "{waiting} ends wait to be reported: {sums:?}");
        let (accepted, sent) = (self.audit.accepted.get(), self.audit.sent.get());
        let closed = stats.dropped[DropRule::Closed as usize].get();
        let expired = stats.dropped[DropRule::Expired as usize].get();
        ensure!(
            accepted == sent + closed + expired + sums.items,
            "{accepted} items accepted; {sent} sent, {closed} dropped at closing, {expired} expired, {} queued",
            sums.items
        );
        Ok(())
    }

    /// The bytes of `Waiting` that this shard has: those of its lease, and those of messages in its
    /// queues, each counted once.
    pub(crate) fn waiting_bytes(&self) -> Result<usize, String> {
        let outboxes =
            Slot::all(0..self.table.slots()).filter_map(|slot| self.table[slot].outbox.as_ref());
        let held = outboxes.flat_map(|outbox| outbox.held()).chain(self.latest.held());
        let mut queues = BTreeMap::new();
        for message in held.flat_map(|message| std::iter::once(message).chain(message.singles())) {
            let (count, _) = queues.entry(Arc::as_ptr(message)).or_insert((0, message));
            *count += 1;
        }
        let mut bytes = self.lease.taken();
        for (count, message) in queues.values() {
            let counted = message.charge().queues();
            ensure!(counted == *count, "{count} queues hold a message, {counted} are counted");
            bytes += message.occupied_bytes();
        }
        Ok(bytes)
    }

    fn check_resumes(&self) -> Result<(), String> {
        for (slot, topic, _) in self.resumes.iter() {
            let entry = &self.table[slot];
            ensure!(entry.state == State::Open, "slot {slot} resumes {topic:?} and is not open");
            let is_in = entry.memberships.find(topic).is_some();
            ensure!(!is_in, "slot {slot} resumes {topic:?} and is in it");
            let waiting = entry.outbox.as_ref().map_or(0, |outbox| outbox.bytes());
            let has_room = waiting <= self.settings.low_watermark_bytes;
            let asked =
                self.resumes.iter().filter(|(other, _, is_asked)| *other == slot && *is_asked);
            let asked = asked.count();
            ensure!(asked <= 1, "slot {slot}: {asked} chunks are asked for");
            ensure!(asked == 1 || !has_room, "slot {slot}: no chunk asked for of {topic:?}");
        }
        Ok(())
    }

    fn check_stalled(&self, sums: &Sums) -> Result<(), String> {
        let since = |outbox: &Outbox| outbox.stalled_since.unwrap_or_default();
        self.check_list(&self.stalled, sums.stalled, |outbox| (outbox.links, since(outbox)))
            .map_err(|what| format!("the list of the stalled: {what}: {sums:?}"))
    }

    fn check_lagging(&self, sums: &Sums) -> Result<(), String> {
        self.check_list(&self.lagging, sums.lagging, |outbox| (outbox.lag_links, Nanos(0)))
            .map_err(|what| format!("the list of lagging connections: {what}: {sums:?}"))
    }

    /// Walks a list of `len` connections. `look` returns the links of a connection, and the time
    /// since which it is in the list.
    fn check_list(
        &self,
        list: &SlotList,
        len: usize,
        look: impl Fn(&Outbox) -> (Links, Nanos),
    ) -> Result<(), String> {
        ensure!(len == list.len, "{} are listed", list.len);
        let (mut slot, mut previous, mut since) = (list.first, Slot::NONE, Nanos(0));
        for _ in 0..list.len {
            let outbox = self.table.get(slot).and_then(|entry| entry.outbox.as_ref());
            let Some(outbox) = outbox else { return Err(format!("slot {slot} has no outbox")) };
            let (links, at) = look(outbox);
            ensure!(links.previous == previous, "slot {slot}: broken");
            ensure!(at >= since, "slot {slot}: older than the one before it");
            (previous, slot, since) = (slot, links.next, at);
        }
        ensure!(slot == Slot::NONE && previous == list.last, "it does not end");
        Ok(())
    }

    fn check_credits(&self) -> Result<(), String> {
        let (out, in_queue) = self.inbox.credits_out();
        let (walking, waiting) = (self.fanouts.len(), self.fanouts.commands_waiting());
        let reports = self.backlog.iter().filter(|(_, credit)| *credit).count();
        let [messages, control] = out;
        ensure!(
            messages + control == in_queue + walking + waiting + reports,
            "{out:?} credits are out: {in_queue} in the queue, {walking} walking, {waiting} behind them, {reports} in reports"
        );
        ensure!(messages >= walking, "{messages} credits for messages are out, {walking} walk");
        ensure!(
            control >= waiting + reports,
            "{control} other credits are out, {waiting} wait for walks and {reports} for reports"
        );
        Ok(())
    }
}

fn is_closed(report: &Report) -> bool {
    matches!(report, Report::Closed { .. })
}
