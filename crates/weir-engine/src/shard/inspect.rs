//! Shows connections to the operator.

use std::mem::ManuallyDrop;

use super::Shard;
use crate::command::{ConnectionInfo, Front, Inspect, InspectPage, InspectWhat};
use crate::net::Net;
use crate::slot::Slot;
use crate::table::State;
use crate::time::duration_of;
use crate::topics::Member;

/// Slots that the shard looks at for one page. A page may be short, but a look never holds the
/// shard up.
const SLOTS_PER_PAGE: u32 = 4096;

impl<N: Net, F: Front> Shard<N, F> {
    pub(super) fn inspect(&mut self, inspect: Inspect) {
        // A reply that is dropped wakes the asker, and a shard with descriptors of its own cannot
        // do that. So a panic here leaks it.
        let Inspect { what, reply } = inspect;
        let reply = ManuallyDrop::new(reply);
        let page = self.look(what);
        self.owes_wake |= self.inbox.answer(ManuallyDrop::into_inner(reply), page);
    }

    fn look(&self, what: InspectWhat) -> InspectPage {
        match what {
            InspectWhat::One(conn) => {
                let connections =
                    self.table.find_open(conn).map(|slot| self.info(slot)).into_iter().collect();
                InspectPage { connections, next_cursor: None }
            }
            InspectWhat::All { cursor, limit } => {
                let is_open = |slot: &Slot| self.table[*slot].state == State::Open;
                let slot_at = |index| Some(Slot::at(index)).filter(is_open);
                self.page(cursor, self.table.slots(), limit, slot_at)
            }
            InspectWhat::Topic { topic, cursor, limit } => {
                let slot_at =
                    |position| self.topics.member_of_all(topic, position).and_then(Member::present);
                self.page(cursor, self.topics.end_of_all(topic), limit, slot_at)
            }
        }
    }

    fn page(
        &self,
        from: u32,
        end: u32,
        limit: usize,
        slot_at: impl Fn(u32) -> Option<Slot>,
    ) -> InspectPage {
        let mut connections = Vec::new();
        let mut cursor = from;
        while cursor < end && connections.len() < limit && cursor - from < SLOTS_PER_PAGE {
            connections.extend(slot_at(cursor).map(|slot| self.info(slot)));
            cursor += 1;
        }
        InspectPage { connections, next_cursor: (cursor < end).then_some(cursor) }
    }

    fn info(&self, slot: Slot) -> ConnectionInfo {
        let entry = &self.table[slot];
        let outbox = entry.outbox.as_ref();
        let now = self.tick();
        ConnectionInfo {
            id: self.table.id(self.index, slot),
            device: entry.device,
            transport: entry.transport(),
            priority: entry.priority,
            origin: entry.origin,
            peer: entry.socket.as_ref().and_then(|socket| self.net.peer_addr(socket)),
            age: duration_of(now.since(entry.adopted_at)),
            idle: duration_of(now.since(entry.heard_at)),
            heartbeat: duration_of(entry.heartbeat()),
            queued_bytes: outbox.map_or(0, |outbox| outbox.bytes()),
            stalled: outbox
                .and_then(|outbox| outbox.stuck_since())
                .map(|since| self.now.since(since)),
            topics: entry.memberships.iter().map(|membership| membership.topic).collect(),
        }
    }
}
