//! The connections of one shard. An entry has everything that the shard remembers of an idle
//! connection.

use weir_wire::CloseReason;
use weir_wire::format::Format;

use crate::chunks::Chunks;
use crate::id::{ConnId, DeviceRef, Origin, OwnNode, Priority, Transport};
use crate::memory::{Footprint, rounded};
use crate::outbox::Outbox;
use crate::pool::Block;
use crate::slot::{Slot, TlsSlot};
use crate::time::Tick;
use crate::topics::{Members, Memberships};
use crate::wheel::{Timed, Timer};

/// The entry of one connection.
///
/// Shape: at most [`ENTRY_BYTES`]; `outbox` and `partial` are null while nothing waits.
#[derive(Debug)]
pub(crate) struct Entry<S> {
    pub(crate) outbox: Option<Box<Outbox>>,
    pub(crate) partial: Option<Box<Block>>,
    pub(crate) memberships: Memberships,
    pub(crate) timer: Timer,
    /// `None` once closed. The entry stays until the front has taken the report.
    pub(crate) socket: Option<S>,
    /// Which of the slot's connections this is; [`RETIRED`] once the slot is used no more.
    generation: u32,
    /// Its place in the table of TLS states.
    pub(crate) tls: TlsSlot,
    pub(crate) device: DeviceRef,
    pub(crate) origin: Origin,
    pub(crate) priority: Priority,
    /// Running number of the welcome. It tells a walk over all slots which connections came later.
    pub(crate) welcomed: u32,
    /// The times when the connection's two buckets are full again: for `Publish`, and for all else
    /// that it sends. See `shard/rate.rs`. The first one is [`Entry::FREELY`] for a connection
    /// without these limits.
    pub(crate) publish_due: u32,
    pub(crate) frames_due: u32,
    pub(crate) adopted_at: Tick,
    /// When the last whole frame came, or a beat replaced one. In `Closing`: when closing began.
    pub(crate) heard_at: Tick,
    node_and_heartbeat: NodeAndHeartbeat,
    pub(crate) state: State,
    pub(crate) reason: CloseReason,
    pub(crate) flags: Flags,
}

/// The most bytes of an entry: 1,000,000 connections are 112 MB.
pub(crate) const ENTRY_BYTES: usize = 112;
const _: () = assert!(size_of::<Entry<std::os::fd::OwnedFd>>() <= ENTRY_BYTES);

/// No id is 0, because on the wire 0 stands for "no connection".
const FIRST_GENERATION: u32 = 1;
/// The generation of a slot that has none left: no id has it.
const RETIRED: u32 = 0;

/// The number of the node in a connection's id, and the agreed interval of its signs of life in ticks.
///
/// Shape: 4 bytes for both, 10 bits and 22, as an entry has no room for more.
#[derive(Debug, Clone, Copy)]
struct NodeAndHeartbeat(u32);

impl NodeAndHeartbeat {
    /// The longest interval that has room: more than four days.
    const HEARTBEAT_MAX: u32 = (1 << 22) - 1;

    fn new(node: u16, heartbeat: u32) -> Self {
        Self(u32::from(node) << 22 | heartbeat.min(Self::HEARTBEAT_MAX))
    }

    fn node(self) -> u16 {
        (self.0 >> 22) as u16
    }

    fn heartbeat(self) -> u32 {
        self.0 & Self::HEARTBEAT_MAX
    }
}

const _: () =
    assert!(ConnId::NODES_MAX.ilog2() + NodeAndHeartbeat::HEARTBEAT_MAX.count_ones() == 32);

/// The state of an entry.
///
/// ```text
/// Free ──adopt──► Open ──close──► Closing ──flushed, or linger_timeout──► Closed ──report taken──► Free
///                  └──────────────close (nothing can be told)──────────────▲
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// The slot has no connection.
    Free,
    /// The shard holds the connection and pushes to it.
    Open,
    /// The connection has ended and is reported. Its socket flushes `Goodbye` or waits for the
    /// peer's end.
    Closing,
    /// The socket is gone. The report waits for the front.
    Closed,
}

/// Small facts about a connection.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Flags {
    /// The front has greeted the connection: the shard reads from it, and broadcasts reach it.
    pub(crate) welcomed: bool,
    /// In the list of connections to read from again.
    pub(crate) to_read: bool,
    /// Whether `partial` holds whole frames, and for what they wait.
    pub(crate) held_back: HeldBack,
    /// The peer's end or an error has been announced. The shard reads until it shows.
    pub(crate) ended: bool,
    /// In the list of connections that a gathered fan-out will flush.
    pub(crate) to_flush: bool,
    /// While `to_flush`: the rank of the fan-outs that have it in their list.
    pub(crate) flush_rank: u8,
    /// Whether the shard reads its bytes as they come.
    pub(crate) reading: Reading,
    /// How far its end has come.
    pub(crate) ending: Ending,
    /// What the last beat found or did.
    pub(crate) beat: Beat,
}

/// Whether whole frames of a connection wait in its block, and for what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum HeldBack {
    /// None waits.
    #[default]
    No,
    /// The front had no room for the first one.
    ForFront,
    /// Answers to earlier frames must leave first. Then the shard handles these like unread bytes.
    ForAnswers,
}

/// Whether the shard reads a connection's bytes as they come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Reading {
    /// It does.
    #[default]
    Current,
    /// It did not, and has not read everything since. The rate of these bytes says nothing about
    /// the sender.
    Late,
    /// The connection sends faster than it may, and the shard does not read from it for a while.
    Paused,
}

impl Flags {
    /// Whether whole frames wait.
    pub(crate) fn is_held_back(&self) -> bool {
        self.held_back != HeldBack::No
    }

    /// All of them as a number, for another process. What waits for the end of a gathering is not
    /// among them.
    pub(crate) fn export(self) -> u32 {
        let bits = [self.welcomed, self.to_read, self.ended];
        let bits = bits.into_iter().rev().fold(0, |sum, bit| sum << 1 | u32::from(bit));
        let held_back = match self.held_back {
            HeldBack::No => 0,
            HeldBack::ForFront => 1,
            HeldBack::ForAnswers => 2,
        };
        let reading = match self.reading {
            Reading::Current => 0,
            Reading::Late => 1,
            Reading::Paused => 2,
        };
        let beat = match self.beat {
            Beat::Settled => 0,
            Beat::Asked => 1,
            Beat::Waiting => 2,
        };
        bits | held_back << 4 | reading << 8 | beat << 12 | u32::from(self.ending.0) << 16
    }

    /// The flags of such a number.
    pub(crate) fn import(number: u32) -> Flags {
        let digit = |at: u32| number >> at & 15;
        let held_back = match digit(4) {
            1 => HeldBack::ForFront,
            2 => HeldBack::ForAnswers,
            _ => HeldBack::No,
        };
        let reading = match digit(8) {
            1 => Reading::Late,
            2 => Reading::Paused,
            _ => Reading::Current,
        };
        let beat = match digit(12) {
            1 => Beat::Asked,
            2 => Beat::Waiting,
            _ => Beat::Settled,
        };
        Flags {
            welcomed: number & 1 != 0,
            to_read: number & 2 != 0,
            ended: number & 4 != 0,
            held_back,
            reading,
            beat,
            ending: Ending((number >> 16 & 7) as u8),
            to_flush: false,
            flush_rank: 0,
        }
    }

    /// Notes that the shard did not read from it for a while, and now reads the bytes that came
    /// meanwhile.
    pub(crate) fn read_late(&mut self) {
        if self.reading == Reading::Current {
            self.reading = Reading::Late;
        }
    }
}

/// The unanswered question of a connection's last beat, when a sign of life was due.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Beat {
    /// None: there was no beat, or the shard has heard from the connection since.
    #[default]
    Settled,
    /// The shard has asked a WebSocket for a sign of life, and has got none since.
    Asked,
    /// Something waited for a WebSocket or a reader of events, and has waited ever since.
    Waiting,
}

/// How far the end of a connection has come.
///
/// Shape: one bit for each step, because an entry has no room for a byte each.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ending(u8);

impl Ending {
    /// The front has taken the report.
    pub(crate) const REPORTED: Ending = Ending(1);
    /// Our side of the stream has been ended.
    pub(crate) const SHUT: Ending = Ending(2);
    /// The peer has been told the reason, or is being told.
    pub(crate) const TOLD: Ending = Ending(4);

    /// Whether it has come to this step.
    pub(crate) fn has(self, step: Ending) -> bool {
        self.0 & step.0 != 0
    }

    /// Notes that it has come to this step. Returns whether that is new.
    pub(crate) fn note(&mut self, step: Ending) -> bool {
        let is_new = !self.has(step);
        self.0 |= step.0;
        is_new
    }
}

/// The slab of connections.
///
/// Shape: chunks of entries, and a stack of the free slots, so that the newest is used first while it is warm.
/// Limits: `connections_max` of the shard; beyond it the caller refuses. A slot whose generations are used up is retired:
/// no connection gets it any more, and its entry stays. A shard that adopts 1,000 connections a second retires some two
/// thousand slots in a year.
/// Cost: insert, look-up and remove are O(1), without a syscall.
#[derive(Debug)]
pub(crate) struct Table<S> {
    entries: Chunks<Entry<S>>,
    free: Vec<Slot>,
    in_use: usize,
    /// How many of them have each priority.
    by_priority: [u32; Priority::COUNT],
    entries_max: usize,
    /// Slots that are not used again.
    retired: usize,
    slots_max: usize,
    generation_max: u32,
    node: OwnNode,
    welcomes: u32,
}

/// The identity of a connection, from the front.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Holder {
    pub(crate) device: DeviceRef,
    pub(crate) origin: Origin,
    pub(crate) priority: Priority,
    pub(crate) publish_limited: bool,
}

impl<S> Table<S> {
    pub(crate) fn new(entries_max: usize, node: OwnNode) -> Self {
        Self {
            entries: Chunks::new(),
            free: Vec::new(),
            in_use: 0,
            by_priority: [0; Priority::COUNT],
            entries_max,
            retired: 0,
            slots_max: ConnId::SLOTS_MAX,
            generation_max: ConnId::GENERATION_MAX,
            node,
            welcomes: 0,
        }
    }

    /// Forgets all entries, as if nothing had been there.
    pub(crate) fn empty(&mut self) {
        let (slots_max, generation_max) = (self.slots_max, self.generation_max);
        let empty = Table::new(self.entries_max, self.node.clone());
        *self = Table { slots_max, generation_max, ..empty };
    }

    /// Changes the limit. Entries beyond a lower one stay.
    pub(crate) fn limit(&mut self, entries_max: usize) {
        self.entries_max = entries_max;
    }

    /// Whether an entry in use has a connection of this priority, open or closed.
    pub(crate) fn has(&self, priority: Priority) -> bool {
        self.by_priority[priority.index()] > 0
    }

    /// Entries in use.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use
    }

    pub(crate) fn is_full(&self) -> bool {
        self.in_use >= self.entries_max.min(self.slots_max - self.retired)
    }

    /// Slots that are not used again, as their generations are used up.
    pub(crate) fn retired(&self) -> usize {
        self.retired
    }

    /// Slots that exist, used, free or retired.
    pub(crate) fn slots(&self) -> u32 {
        self.entries.len()
    }

    /// The entries in use, and the bytes of the whole table.
    pub(crate) fn footprint(&self) -> Footprint {
        let free = rounded(self.free.capacity() * size_of::<Slot>());
        Footprint::new(self.in_use, self.entries.occupied() + free)
    }

    /// The running number that the next welcome will carry.
    pub(crate) fn welcomes(&self) -> u32 {
        self.welcomes
    }

    /// A slot for a new connection that is not `Open` yet, so that its key can be registered first.
    pub(crate) fn reserve(&mut self) -> Slot {
        debug_assert!(!self.is_full(), "the caller refuses when full");
        if self.free.is_empty() {
            let first = self.entries.len();
            self.entries.grow(Entry::vacant);
            self.free.extend(Slot::all(first..self.entries.len()).rev());
        }
        self.in_use += 1;
        self.free.pop().expect("a chunk was just added")
    }

    /// Makes a reserved slot an open connection, whose id carries the node's number of this moment.
    pub(crate) fn open(
        &mut self,
        slot: Slot,
        socket: S,
        holder: Holder,
        heartbeat: u32,
        now: Tick,
    ) {
        let Holder { device, origin, priority, publish_limited } = holder;
        self.by_priority[priority.index()] += 1;
        let entry = &mut self.entries[slot.index()];
        entry.socket = Some(socket);
        (entry.device, entry.origin, entry.priority) = (device, origin, priority);
        entry.adopted_at = now;
        entry.heard_at = now;
        entry.node_and_heartbeat = NodeAndHeartbeat::new(self.node.number(), heartbeat);
        entry.state = State::Open;
        entry.publish_due = if publish_limited { 0 } else { Entry::<S>::FREELY };
        entry.flags = Flags::default();
    }

    /// Notes that a connection has been greeted.
    pub(crate) fn welcome(&mut self, slot: Slot, now: Tick) {
        let entry = &mut self.entries[slot.index()];
        if std::mem::replace(&mut entry.flags.welcomed, true) {
            return;
        }
        entry.welcomed = self.welcomes;
        entry.heard_at = now;
        self.welcomes = self.welcomes.wrapping_add(1);
    }

    /// Whether `slot` has an open connection that was welcomed before the welcome with this number.
    pub(crate) fn is_welcomed_before(&self, slot: Slot, before: u32) -> bool {
        let entry = &self.entries[slot.index()];
        // Welcomes are numbered on a ring: those since then lie between `before` and now.
        let now = self.welcomes;
        let is_earlier = now.wrapping_sub(entry.welcomed) > now.wrapping_sub(before);
        entry.state == State::Open && entry.flags.welcomed && is_earlier
    }

    /// The free slots with the generations of their next connections, and the retired ones.
    pub(crate) fn unused(&self) -> (Vec<(u32, u32)>, Vec<u32>) {
        let free = self.free.iter().map(|slot| (slot.index(), self.generation_of(*slot)));
        let all = Slot::all(0..self.slots());
        let retired = all.filter(|slot| self.generation_of(*slot) == RETIRED).map(Slot::index);
        (free.collect(), retired.collect())
    }

    /// Has the slots of an empty table like those of another process.
    pub(crate) fn restore(
        &mut self,
        slots: u32,
        free: &[(u32, u32)],
        retired: &[u32],
        welcomes: u32,
    ) {
        while self.slots() < slots {
            self.entries.grow(Entry::vacant);
        }
        for (slot, generation) in free {
            self.entries[*slot].generation = *generation;
        }
        for slot in retired {
            self.entries[*slot].generation = RETIRED;
        }
        self.free = free.iter().map(|(slot, _)| Slot::at(*slot)).collect();
        (self.retired, self.welcomes) = (retired.len(), welcomes);
    }

    /// Notes that a slot has the connection with this id from another process.
    pub(crate) fn note_restored(&mut self, slot: Slot, conn: ConnId, heartbeat: u32) {
        let entry = &mut self.entries[slot.index()];
        entry.generation = conn.generation();
        entry.node_and_heartbeat = NodeAndHeartbeat::new(conn.node(), heartbeat);
        self.by_priority[entry.priority.index()] += 1;
        self.in_use += 1;
    }

    /// Frees a slot, or retires it; every id that named it is stale from now on.
    pub(crate) fn release(&mut self, slot: Slot) {
        let entry = &mut self.entries[slot.index()];
        debug_assert!(entry.socket.is_none() && entry.outbox.is_none() && entry.partial.is_none());
        debug_assert!(!entry.timer.is_armed() && entry.memberships.len() == 0);
        debug_assert!(entry.tls == TlsSlot::NONE, "its keys go with its socket");
        if entry.state != State::Free {
            self.by_priority[entry.priority.index()] -= 1;
        }
        entry.state = State::Free;
        self.in_use -= 1;
        if entry.generation < self.generation_max {
            entry.generation += 1;
            self.free.push(slot);
        } else {
            entry.generation = RETIRED;
            self.retired += 1;
        }
    }

    /// The id of the connection in `slot`, which has been opened.
    pub(crate) fn id(&self, shard: u8, slot: Slot) -> ConnId {
        let entry = &self.entries[slot.index()];
        ConnId::new(entry.node_and_heartbeat.node(), shard, slot, entry.generation)
    }

    /// The slot of an open connection; `None` if the id is stale.
    pub(crate) fn find_open(&self, conn: ConnId) -> Option<Slot> {
        let entry = self.entries.get(conn.slot().index())?;
        let is_named =
            entry.generation == conn.generation() && entry.node_and_heartbeat.node() == conn.node();
        (is_named && entry.state == State::Open).then_some(conn.slot())
    }

    /// Like `find_open`, but ignores generations. This is a seeded bug.
    pub(crate) fn find_open_of_any_generation(&self, conn: ConnId) -> Option<Slot> {
        let entry = self.entries.get(conn.slot().index())?;
        (entry.state == State::Open).then_some(conn.slot())
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<&Entry<S>> {
        self.entries.get(slot.index())
    }

    pub(crate) fn generation_of(&self, slot: Slot) -> u32 {
        self.entries[slot.index()].generation
    }

    pub(crate) fn generation(&self, slot: Slot) -> Option<u32> {
        self.entries.get(slot.index()).map(|entry| entry.generation)
    }
}

#[cfg(any(test, feature = "sim"))]
impl<S> Table<S> {
    /// Entries in use of each priority.
    pub(crate) fn by_priority(&self) -> [u32; Priority::COUNT] {
        self.by_priority
    }

    /// Has slots retired after so many connections each, so that tests see it happen.
    pub(crate) fn set_generation_max(&mut self, generation_max: u32) {
        self.generation_max = generation_max;
    }

    /// Looks for contradictions in the list of free slots; returns the slot from which on none was ever used.
    pub(crate) fn check_free_list(&self) -> Result<u32, String> {
        let slots = self.slots();
        let (free, used, retired) = (self.free.len(), self.in_use, self.retired);
        if free + used + retired != slots as usize {
            return Err(format!("{free} free, {used} used and {retired} retired of {slots} slots"));
        }
        if let Some(slot) =
            self.free.iter().find(|slot| self.entries[slot.index()].state != State::Free)
        {
            return Err(format!("slot {slot} is listed as free"));
        }
        let unused = self
            .free
            .iter()
            .zip(Slot::all(0..slots).rev())
            .take_while(|(slot, last)| *slot == last);
        Ok(slots - u32::try_from(unused.count()).unwrap_or(u32::MAX))
    }
}

impl<S> std::ops::Index<Slot> for Table<S> {
    type Output = Entry<S>;

    fn index(&self, slot: Slot) -> &Entry<S> {
        &self.entries[slot.index()]
    }
}

impl<S> std::ops::IndexMut<Slot> for Table<S> {
    fn index_mut(&mut self, slot: Slot) -> &mut Entry<S> {
        &mut self.entries[slot.index()]
    }
}

impl<S> Timed for Table<S> {
    fn timer(&mut self, slot: Slot) -> &mut Timer {
        &mut self.entries[slot.index()].timer
    }
}

impl<S> Members for Table<S> {
    fn memberships(&mut self, slot: Slot) -> &mut Memberships {
        &mut self.entries[slot.index()].memberships
    }

    fn priority(&self, slot: Slot) -> Priority {
        self.entries[slot.index()].priority
    }
}

impl<S> Entry<S> {
    /// A time that never comes, for a connection without a limit.
    pub(crate) const FREELY: u32 = u32::MAX;

    /// Whether the rate limits for devices apply to the connection.
    pub(crate) fn is_rate_limited(&self) -> bool {
        self.publish_due != Self::FREELY
    }

    /// The format of the connection.
    pub(crate) fn format(&self) -> Format {
        self.origin.format()
    }

    /// Agreed interval of the signs of life, in ticks.
    pub(crate) fn heartbeat(&self) -> u32 {
        self.node_and_heartbeat.heartbeat()
    }

    /// Its peer has one heartbeat to answer from now on, however long it has been silent.
    pub(crate) fn leave_time_to_answer(&mut self, now: Tick) {
        self.heard_at = self.heard_at.max(Tick(now.0.saturating_sub(self.heartbeat())));
    }

    /// The transport of the socket, while there is one.
    pub(crate) fn transport(&self) -> Transport {
        if self.tls == TlsSlot::NONE { Transport::Tcp } else { Transport::Tls }
    }

    fn vacant() -> Self {
        Self {
            outbox: None,
            partial: None,
            memberships: Memberships::NONE,
            timer: Timer::IDLE,
            socket: None,
            generation: FIRST_GENERATION,
            tls: TlsSlot::NONE,
            device: DeviceRef(0),
            origin: Origin::default(),
            priority: Priority::Normal,
            welcomed: 0,
            publish_due: 0,
            frames_due: 0,
            adopted_at: Tick(0),
            heard_at: Tick(0),
            node_and_heartbeat: NodeAndHeartbeat::new(0, 0),
            state: State::Free,
            reason: CloseReason::Internal,
            flags: Flags::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::chunks::CHUNK;

    /// The entries need no socket here.
    fn table(entries_max: usize) -> (Table<()>, OwnNode) {
        let node = OwnNode::default();
        (Table::new(entries_max, node.clone()), node)
    }

    fn open(table: &mut Table<()>) -> ConnId {
        let slot = table.reserve();
        let (device, origin) = (DeviceRef(0), Origin::default());
        let holder = Holder { device, origin, priority: Priority::Normal, publish_limited: true };
        table.open(slot, (), holder, 600, Tick(0));
        table.id(0, slot)
    }

    fn release(table: &mut Table<()>, conn: ConnId) {
        table[conn.slot()].socket = None;
        table.release(conn.slot());
    }

    #[test]
    fn a_slot_is_not_used_again_when_its_generations_are_used_up() {
        let (mut table, _) = table(1);
        table.entries.grow(Entry::vacant);
        table.free.push(Slot::at(0));
        table.entries[0].generation = ConnId::GENERATION_MAX - 1;
        let [first, last] = [0; 2].map(|_| {
            let conn = open(&mut table);
            assert_eq!(table.find_open(conn), Some(Slot::at(0)));
            release(&mut table, conn);
            conn
        });
        assert_eq!(
            (first.generation(), last.generation()),
            (ConnId::GENERATION_MAX - 1, ConnId::GENERATION_MAX)
        );
        assert_eq!((table.retired(), table.in_use(), table.is_full()), (1, 0, false));
        let next = open(&mut table);
        assert_ne!(next.slot(), Slot::at(0));
        for stale in [first, last] {
            assert_eq!(table.find_open(stale), None);
        }
    }

    #[test]
    fn a_table_whose_slots_are_all_retired_is_full() {
        let (mut table, _) = table(usize::MAX);
        (table.slots_max, table.generation_max) = (CHUNK, 2);
        let mut ids = BTreeSet::new();
        while !table.is_full() {
            let conn = open(&mut table);
            assert!(ids.insert(conn), "{conn:?} comes twice");
            release(&mut table, conn);
            assert_eq!(table.check_free_list().err(), None);
        }
        assert_eq!((ids.len(), table.retired(), table.slots() as usize), (2 * CHUNK, CHUNK, CHUNK));
    }

    #[test]
    fn a_connection_keeps_the_number_that_its_node_had() {
        let (mut table, node) = table(8);
        let before = open(&mut table);
        assert!(node.renumber(1023));
        let after = open(&mut table);
        assert_eq!((before.node(), after.node()), (0, 1023));
        for conn in [before, after] {
            assert_eq!(table.id(0, conn.slot()), conn);
            assert_eq!(table.find_open(conn), Some(conn.slot()));
            let foreign = ConnId::new(1023 - conn.node(), 0, conn.slot(), conn.generation());
            assert_eq!(table.find_open(foreign), None, "{foreign:?} is not {conn:?}");
            assert_eq!(table[conn.slot()].heartbeat(), 600);
        }
    }

    #[test]
    fn node_and_heartbeat_leave_each_other_alone() {
        for node in [0, 1, ConnId::NODES_MAX - 1] {
            for heartbeat in [0, 864_000, NodeAndHeartbeat::HEARTBEAT_MAX] {
                let both = NodeAndHeartbeat::new(node, heartbeat);
                assert_eq!((both.node(), both.heartbeat()), (node, heartbeat));
            }
            let both = NodeAndHeartbeat::new(node, u32::MAX);
            assert_eq!((both.node(), both.heartbeat()), (node, NodeAndHeartbeat::HEARTBEAT_MAX));
        }
    }
}
