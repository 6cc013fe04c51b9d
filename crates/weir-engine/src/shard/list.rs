//! Lists of connections, linked through their outboxes, in the order in which a state began.

use crate::outbox::{Links, Outbox};
use crate::slot::Slot;
use crate::table::Table;

/// A list of connections, oldest first: of the stalled ones, and of those that lag.
///
/// Shape: two slots here, two in the outbox of each listed connection.
/// Cost: adding and removing are O(1), without an allocation.
pub(super) struct SlotList {
    pub(super) first: Slot,
    pub(super) last: Slot,
    pub(super) len: usize,
    links: fn(&mut Outbox) -> &mut Links,
}

impl SlotList {
    /// An empty list whose links `links` finds.
    pub(super) const fn new(links: fn(&mut Outbox) -> &mut Links) -> Self {
        Self { first: Slot::NONE, last: Slot::NONE, len: 0, links }
    }

    /// The oldest.
    pub(super) fn first(&self) -> Option<Slot> {
        self.first.some()
    }

    /// All, oldest first.
    pub(super) fn slots<S>(&self, table: &mut Table<S>) -> Vec<u32> {
        let mut slots = Vec::with_capacity(self.len);
        let mut next = self.first;
        while let Some(links) = self.links(table, next) {
            slots.push(next.index());
            next = links.next;
        }
        slots
    }

    /// Forgets all, whose outboxes have gone.
    pub(super) fn forget(&mut self) {
        (self.first, self.last, self.len) = (Slot::NONE, Slot::NONE, 0);
    }

    /// Appends a connection, which has an outbox and is not in the list.
    pub(super) fn append<S>(&mut self, table: &mut Table<S>, slot: Slot) {
        let last = std::mem::replace(&mut self.last, slot);
        match self.links(table, last) {
            Some(links) => links.next = slot,
            None => self.first = slot,
        }
        if let Some(links) = self.links(table, slot) {
            *links = Links { previous: last, next: Slot::NONE };
        }
        self.len += 1;
    }

    /// Takes out a connection that is in the list.
    pub(super) fn remove<S>(&mut self, table: &mut Table<S>, slot: Slot) {
        let Some(links) = self.links(table, slot) else { return };
        let Links { previous, next } = std::mem::take(links);
        match self.links(table, previous) {
            Some(links) => links.next = next,
            None => self.first = next,
        }
        match self.links(table, next) {
            Some(links) => links.previous = previous,
            None => self.last = previous,
        }
        self.len -= 1;
    }

    fn links<'a, S>(&self, table: &'a mut Table<S>, slot: Slot) -> Option<&'a mut Links> {
        table[slot.some()?].outbox.as_mut().map(|outbox| (self.links)(outbox))
    }
}
