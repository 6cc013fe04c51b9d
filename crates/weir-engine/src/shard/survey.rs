//! Tells the front where the shard's memory is, and which connections have kept some for longest.

use std::mem::ManuallyDrop;
use std::time::Duration;

use super::Shard;
use crate::command::{Front, Report};
use crate::memory::{Footprint, rounded, rounded_table};
use crate::net::{Net, Ready};
use crate::outbox::Outbox;
use crate::pool::Block;
use crate::slot::{Slot, TlsSlot};
use crate::survey::{
    BlockAge, BlockPurpose, Holding, HoldingKind, ShardMemory, Survey, SurveyPage,
};
use crate::table::State;
use crate::time::{Tick, duration_of};
use crate::topics::{Member, Membership};

/// Entries and memberships that one page looks at.
const LOOKS_PER_PAGE: usize = 4096;

/// The oldest holdings so far, by kind.
struct Oldest {
    max: usize,
    by_kind: [Vec<Holding>; HoldingKind::ALL.len()],
}

impl Oldest {
    fn new(max: usize) -> Oldest {
        Oldest { max, by_kind: Default::default() }
    }

    fn note(&mut self, holding: Holding) {
        let (max, all) = (self.max, &mut self.by_kind[holding.kind as usize]);
        all.push(holding);
        // Sorts seldom, and never keeps more than twice as many.
        if all.len() >= 2 * max {
            all.sort_by_key(|holding| std::cmp::Reverse(holding.age));
            all.truncate(max);
        }
    }

    fn all(self) -> Vec<Holding> {
        let max = self.max;
        let sorted = self.by_kind.into_iter().flat_map(|mut all| {
            all.sort_by_key(|holding| std::cmp::Reverse(holding.age));
            all.truncate(max);
            all
        });
        sorted.collect()
    }
}

impl<N: Net, F: Front> Shard<N, F> {
    pub(super) fn survey(&mut self, survey: Survey) {
        let Survey { cursor, holdings_max, reply } = survey;
        // As in `inspect`: a panic leaks the reply.
        let reply = ManuallyDrop::new(reply);
        let page = self.survey_page(cursor, holdings_max);
        self.owes_wake |= self.inbox.answer(ManuallyDrop::into_inner(reply), page);
    }

    fn survey_page(&self, cursor: u32, holdings_max: usize) -> SurveyPage {
        let classes = self.lease.budget().classes();
        let mut memory = if cursor == 0 { self.own_memory() } else { ShardMemory::default() };
        memory.outboxes = vec![Footprint::default(); classes];
        let mut oldest = Oldest::new(holdings_max);
        let (mut index, mut looks) = (cursor, 0);
        let end = self.table.slots();
        while index < end && looks < LOOKS_PER_PAGE {
            looks += 1;
            let slot = Slot::at(index);
            index += 1;
            if self.table[slot].state == State::Free {
                continue;
            }
            self.count_memory(slot, &mut memory);
            if holdings_max > 0 {
                looks += self.list_holdings(slot, &mut oldest);
            }
        }
        let next_cursor = (index < end).then_some(index);
        SurveyPage { memory, holdings: oldest.all(), next_cursor }
    }

    /// The memory that belongs to no single connection.
    fn own_memory(&self) -> ShardMemory {
        let spare = self.spare_outboxes.iter().map(|outbox| outbox.occupied()).sum::<usize>()
            + rounded(self.spare_outboxes.capacity() * size_of::<Box<Outbox>>());
        let backlog = self.backlog.capacity() * size_of::<(Report, bool)>();
        let lists = [
            self.recv_buf.len(),
            self.tls.scratch.capacity(),
            self.replies.capacity(),
            self.ready.capacity() * size_of::<Ready>(),
            self.ready_high.capacity() * size_of::<Ready>(),
            self.to_read.capacity() * size_of::<Slot>(),
            self.held_back.capacity() * size_of::<Slot>(),
            self.due.capacity() * size_of::<Slot>(),
            self.batch.capacity() * size_of::<usize>(),
            self.wheel.bytes(),
        ];
        let buffers = Footprint::new(lists.len(), lists.iter().map(|bytes| rounded(*bytes)).sum());
        ShardMemory {
            connections: self.table.footprint(),
            tls: self.tls.footprint(),
            members: self.topics.footprint(),
            spare_outboxes: Footprint::new(self.spare_outboxes.len(), spare),
            free_blocks: self.pool.footprint(),
            conflation: self.latest.footprint(),
            resumes: self.resumes.footprint(),
            positions: self.positions_footprint(),
            fanouts: self.fanouts.footprint(),
            backlog: Footprint::new(self.backlog.len(), rounded(backlog)),
            buffers,
            ..ShardMemory::default()
        }
    }

    /// Adds the memory of a connection outside its entries.
    fn count_memory(&self, slot: Slot, memory: &mut ShardMemory) {
        let entry = &self.table[slot];
        memory.members.bytes += entry.memberships.occupied();
        if let Some(outbox) = &entry.outbox {
            let class = outbox.first_message().map_or(0, |message| message.charge().class());
            let class = usize::from(class).min(memory.outboxes.len() - 1);
            memory.outboxes[class].add(outbox.occupied());
        }
        for (purpose, block) in self.blocks_of(slot) {
            let age = if self.age(block.since) < OLD { BlockAge::Young } else { BlockAge::Old };
            memory.blocks[purpose as usize][age as usize].add(block.occupied());
        }
    }

    /// Notes everything that a connection holds. Returns the number of memberships looked at.
    fn list_holdings(&self, slot: Slot, oldest: &mut Oldest) -> usize {
        let entry = &self.table[slot];
        let holding = |kind, age, bytes| Holding {
            kind,
            conn: self.table.id(self.index, slot),
            device: entry.device,
            topic: None,
            epoch: 0,
            bytes,
            age,
        };
        if let Some(outbox) = &entry.outbox {
            let age = self.now.since(outbox.began_at);
            let first = outbox.first_message();
            let topic = first.map_or_else(
                || outbox.lags.first().map(|lag| lag.topic),
                |message| message.topic(),
            );
            let epoch = first.map_or(0, |message| message.epoch());
            let waiting = holding(HoldingKind::Outbox, age, outbox.bytes());
            oldest.note(Holding { topic, epoch, ..waiting });
            if let Some(message) = outbox.first_of_its_own() {
                let (topic, epoch) = (message.topic(), message.epoch());
                let age = self.now.since(message.accepted_at());
                let pinned = holding(HoldingKind::Message, age, message.occupied_bytes());
                oldest.note(Holding { topic, epoch, ..pinned });
            }
        }
        for (_, block) in self.blocks_of(slot) {
            oldest.note(holding(HoldingKind::Block, self.age(block.since), block.occupied()));
        }
        for Membership { topic, position } in entry.memberships.iter() {
            let Some(member) = self.topics.member(entry.priority, *topic, *position) else {
                continue;
            };
            let subscription =
                holding(HoldingKind::Subscription, self.age(member.joined()), MEMBER_BYTES);
            oldest.note(Holding { topic: Some(*topic), ..subscription });
        }
        entry.memberships.len()
    }

    /// The blocks of received bytes of a connection.
    fn blocks_of(&self, slot: Slot) -> impl Iterator<Item = (BlockPurpose, &Block)> {
        let entry = &self.table[slot];
        let purpose =
            if entry.flags.is_held_back() { BlockPurpose::HeldBack } else { BlockPurpose::Frame };
        let frame = entry.partial.as_deref().map(|block| (purpose, block));
        let tls = if entry.tls == TlsSlot::NONE { None } else { self.tls.get(entry.tls) };
        let record = tls.and_then(|tls| tls.partial.as_deref());
        frame.into_iter().chain(record.map(|block| (BlockPurpose::Record, block)))
    }

    fn positions_footprint(&self) -> Footprint {
        let entry = size_of::<(Slot, Vec<(u64, u64)>)>();
        let table = rounded_table(self.positions.capacity(), entry);
        let each = self
            .positions
            .values()
            .map(|positions| rounded(positions.capacity() * size_of::<(u64, u64)>()));
        Footprint::new(self.positions.len(), table + each.sum::<usize>())
    }

    fn age(&self, since: Tick) -> Duration {
        duration_of(self.tick().since(since))
    }
}

/// A subscription's entry in the topic's list, and in the connection's.
const MEMBER_BYTES: usize = size_of::<Member>() + size_of::<Membership>();
/// A block of this age has seen several turns of any healthy sender.
const OLD: Duration = Duration::from_secs(1);
