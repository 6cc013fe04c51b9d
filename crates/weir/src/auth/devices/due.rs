//! Marks on devices whose connections the broker of a cluster is still to be told of.

use std::hash::BuildHasher as _;

use weir_engine::{ConnId, DeviceRef};

use super::{DevicePlace, Devices, Record, STRIPES, Stripe, device_ref, parts, stripe_of};
use crate::limits::admission::AcceptOrder;

/// A connection as its device's record has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entered<'a> {
    pub(crate) id: &'a str,
    pub(crate) device: DeviceRef,
    pub(crate) conn: ConnId,
    pub(crate) order: AcceptOrder,
    /// Whether it counts for its device: not if it is a service's.
    pub(crate) is_counted: bool,
}

/// The marked slots of a stripe.
///
/// Shape: a bit for each slot up to the highest that was ever marked.
/// Cost: to find the next marked one reads 64 slots at a time.
#[derive(Default)]
pub(super) struct Marks {
    words: Vec<u64>,
    count: usize,
}

impl Marks {
    pub(super) fn set(&mut self, slot: u32) {
        let (word, bit) = place(slot);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.count += usize::from(self.words[word] & bit == 0);
        self.words[word] |= bit;
    }

    pub(super) fn clear(&mut self, slot: u32) {
        let (word, bit) = place(slot);
        if let Some(bits) = self.words.get_mut(word)
            && *bits & bit != 0
        {
            *bits &= !bit;
            self.count -= 1;
        }
    }

    /// The first marked slot from this one on.
    pub(super) fn next(&self, from: u32) -> Option<u32> {
        if self.count == 0 {
            return None;
        }
        let (first, bit) = place(from);
        // Of the first word only the bits from that slot on count.
        let mut seen = bit.wrapping_sub(1);
        for (word, bits) in self.words.iter().enumerate().skip(first) {
            let left = bits & !std::mem::take(&mut seen);
            if left != 0 {
                let slot = word * WORD + left.trailing_zeros() as usize;
                return Some(u32::try_from(slot).expect("only slots are marked"));
            }
        }
        None
    }
}

impl Devices {
    /// Marks the device of a connection, if the connection is still there.
    pub(crate) fn mark_due(&self, device: DeviceRef, conn: ConnId) {
        let (stripe, slot) = parts(device);
        let mut stripe = self.lock(stripe);
        if stripe.records.get(slot).is_some_and(|record| record.conns.place_of(conn).is_some()) {
            stripe.due.set(slot);
        }
    }

    /// Marks the device of this id, if it is known.
    pub(crate) fn mark_due_by_id(&self, id: &str) {
        let hash = self.hasher.hash_one(id);
        let mut stripe = self.lock(stripe_of(hash));
        if let Some(slot) = stripe.find(hash, id) {
            stripe.due.set(slot);
        }
    }

    /// Marks all devices.
    pub(crate) fn mark_all_due(&self) {
        for stripe in 0..STRIPES {
            let mut stripe = self.lock(stripe);
            let Stripe { records, due, .. } = &mut *stripe;
            let used = (0..records.places()).filter(|slot| records.get(*slot).is_some());
            used.for_each(|slot| due.set(slot));
        }
    }

    /// Number of marked devices.
    pub(crate) fn due_count(&self) -> usize {
        (0..STRIPES).map(|stripe| self.lock(stripe).due.count).sum()
    }

    /// Takes the marks of at most `devices_max` devices from that place on, once round the table.
    /// Calls `each` for their connections under the device's lock. It must not wait.
    pub(crate) fn take_due(
        &self,
        from: &mut DevicePlace,
        devices_max: usize,
        mut each: impl FnMut(Entered<'_>),
    ) {
        let mut left = devices_max;
        // The walk ends in the stripe in whose middle it begins.
        for _ in 0..=STRIPES {
            let mut stripe = self.lock(from.stripe);
            while left > 0
                && let Some(slot) = stripe.due.next(from.slot)
            {
                stripe.due.clear(slot);
                stripe.each_entered(device_ref(from.stripe, slot), &mut each);
                from.slot = slot + 1;
                left -= 1;
            }
            if left == 0 {
                return;
            }
            *from = DevicePlace { stripe: (from.stripe + 1) % STRIPES, slot: 0 };
        }
    }

    /// Calls `each` for a connection, if it is in its device's record.
    pub(crate) fn look_at_entered(
        &self,
        device: DeviceRef,
        conn: ConnId,
        mut each: impl FnMut(Entered<'_>),
    ) {
        let stripe = self.lock(parts(device).0);
        stripe.each_entered(device, |entered| {
            if entered.conn == conn {
                each(entered);
            }
        });
    }
}

impl Stripe {
    fn each_entered(&self, device: DeviceRef, mut each: impl FnMut(Entered<'_>)) {
        let (_, slot) = parts(device);
        let Some(Record { id, conns, .. }) = self.records.get(slot) else { return };
        for place in 0..conns.len() {
            let Some((order, conn)) = conns.get(place) else { continue };
            let is_counted = !self.uncounted.contains(&conn);
            each(Entered { id, device, conn, order, is_counted });
        }
    }
}

/// The word of a slot, and its bit there.
fn place(slot: u32) -> (usize, u64) {
    (slot as usize / WORD, 1 << (slot as usize % WORD))
}

const WORD: usize = 64;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn marks_are_a_set(steps in proptest::collection::vec((0u8..3, 0u32..200), 0..200)) {
            let (mut marks, mut twin) = (Marks::default(), BTreeSet::new());
            for (what, slot) in steps {
                match what {
                    0 => {
                        marks.set(slot);
                        twin.insert(slot);
                    }
                    1 => {
                        marks.clear(slot);
                        twin.remove(&slot);
                    }
                    _ => prop_assert_eq!(marks.next(slot), twin.range(slot..).next().copied()),
                }
                prop_assert_eq!(marks.count, twin.len());
            }
        }
    }
}
