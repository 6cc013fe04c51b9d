//! Records at fixed places, in chunks.

use weir_engine::rounded;

/// Values at fixed places.
///
/// Shape: chunks of [`CHUNK`] places, so that growth copies nothing. Each free place names the next
/// one.
/// Cost: insert, look-up and remove are O(1). Chunks are never freed.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Vec<SlabEntry<T>>>,
    /// Head of the chain of free places; `NONE`: all are in use.
    free: u32,
}

#[derive(Debug)]
enum SlabEntry<T> {
    Used(T),
    Free { next: u32 },
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if self.free != NONE {
            let slot = self.free;
            let place = self.place_mut(slot).expect("the chain holds places that exist");
            let SlabEntry::Free { next } = *place else {
                unreachable!("the chain holds free places")
            };
            *place = SlabEntry::Used(value);
            self.free = next;
            return slot;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let before = (self.chunks.len() - 1) * CHUNK;
        let chunk = self.chunks.last_mut().expect("one was pushed if there was none");
        let slot = u32::try_from(before + chunk.len()).expect("places are numbered in 32 bits");
        chunk.push(SlabEntry::Used(value));
        slot
    }

    /// The bytes that the slab occupies, without what its values own.
    pub(crate) fn occupied(&self) -> usize {
        rounded(self.chunks.capacity() * size_of::<Vec<SlabEntry<T>>>())
            + self.chunks.len() * rounded(CHUNK * size_of::<SlabEntry<T>>())
    }

    /// All values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten().filter_map(|place| match place {
            SlabEntry::Used(value) => Some(value),
            SlabEntry::Free { .. } => None,
        })
    }

    /// All values, with their places.
    pub(crate) fn used(&self) -> impl Iterator<Item = (u32, &T)> {
        let places = self.chunks.iter().flatten().zip(0_u32..);
        places.filter_map(|(entry, place)| match entry {
            SlabEntry::Used(value) => Some((place, value)),
            SlabEntry::Free { .. } => None,
        })
    }

    /// The free places, in the order in which they are used.
    pub(crate) fn free(&self) -> Vec<u32> {
        let mut chain = Vec::new();
        let mut next = self.free;
        while next != NONE {
            chain.push(next);
            next = match self.chunks[next as usize / CHUNK][next as usize % CHUNK] {
                SlabEntry::Free { next } => next,
                SlabEntry::Used(_) => unreachable!("the chain holds free places"),
            };
        }
        chain
    }

    /// A slab with these free places, in the order in which they are used, and with values at all
    /// others. `None`: they are not the places of a slab.
    pub(crate) fn restore(values: impl ExactSizeIterator<Item = T>, free: &[u32]) -> Option<Self> {
        let places =
            values.len().checked_add(free.len()).filter(|places| *places < USED as usize)?;
        // For each free place the one behind it.
        let mut chain = vec![USED; places];
        for (order, place) in free.iter().enumerate() {
            let next = chain.get_mut(*place as usize).filter(|next| **next == USED)?;
            *next = free.get(order + 1).copied().unwrap_or(NONE);
        }
        let (mut values, mut chunks) = (values, Vec::with_capacity(places.div_ceil(CHUNK)));
        for part in chain.chunks(CHUNK) {
            let mut chunk = Vec::with_capacity(CHUNK);
            for next in part {
                chunk.push(match *next {
                    USED => SlabEntry::Used(values.next()?),
                    next => SlabEntry::Free { next },
                });
            }
            chunks.push(chunk);
        }
        Some(Self { chunks, free: free.first().copied().unwrap_or(NONE) })
    }

    /// The number of places, used or free.
    pub(crate) fn places(&self) -> u32 {
        let before = self.chunks.len().saturating_sub(1) * CHUNK;
        let places = before + self.chunks.last().map_or(0, Vec::len);
        u32::try_from(places).expect("places are numbered in 32 bits")
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        let slot = slot as usize;
        match self.chunks.get(slot / CHUNK)?.get(slot % CHUNK)? {
            SlabEntry::Used(value) => Some(value),
            SlabEntry::Free { .. } => None,
        }
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        match self.place_mut(slot)? {
            SlabEntry::Used(value) => Some(value),
            SlabEntry::Free { .. } => None,
        }
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        let next = self.free;
        if let Some(place @ SlabEntry::Used(_)) = self.place_mut(slot) {
            *place = SlabEntry::Free { next };
            self.free = slot;
        }
    }

    fn place_mut(&mut self, slot: u32) -> Option<&mut SlabEntry<T>> {
        let slot = slot as usize;
        self.chunks.get_mut(slot / CHUNK)?.get_mut(slot % CHUNK)
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), free: NONE }
    }
}

const NONE: u32 = u32::MAX;
/// Stands for a place in use, where a slab is made again.
const USED: u32 = u32::MAX - 1;
/// 10 KiB of device records.
const CHUNK: usize = 256;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn holds_what_a_map_holds(steps in proptest::collection::vec((any::<bool>(), 0u32..600), 0..1500)) {
            let mut slab = Slab::default();
            let mut twin = BTreeMap::new();
            for (is_insert, number) in steps {
                if is_insert {
                    let slot = slab.insert(number);
                    prop_assert_eq!(twin.insert(slot, number), None);
                } else {
                    slab.remove(number);
                    twin.remove(&number);
                }
            }
            prop_assert!(twin.keys().all(|slot| *slot < slab.places()));
            for slot in 0..1500 {
                prop_assert_eq!(slab.get(slot), twin.get(&slot));
            }
            // Another slab is made of the same places.
            let free = slab.free();
            let values: Vec<u32> = slab.used().map(|(_, value)| *value).collect();
            let mut restored = Slab::restore(values.into_iter(), &free).unwrap();
            prop_assert!(slab.used().eq(restored.used()));
            prop_assert_eq!(restored.free(), free);
            prop_assert_eq!(slab.insert(1), restored.insert(1));
            prop_assert_eq!(slab.insert(2), restored.insert(2));
            // Dense: there are no more places than were ever in use at one time.
            prop_assert!(slab.chunks.len() <= 1500 / CHUNK + 1);
        }
    }

    #[test]
    fn places_that_are_none_are_refused() {
        let restore = |used: usize, free: &[u32]| Slab::restore(vec![7; used].into_iter(), free);
        for free in [&[1, 1][..], &[2, 9], &[u32::MAX, 0], &[u32::MAX - 1, 0]] {
            assert!(restore(1, free).is_none(), "{free:?}");
        }
        assert_eq!(restore(1, &[2, 0]).unwrap().get(1), Some(&7));
        assert_eq!(restore(0, &[]).unwrap().places(), 0);
    }
}
