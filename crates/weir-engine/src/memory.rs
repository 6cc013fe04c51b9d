//! Memory as the allocator counts it: sizes of allocations, and the levels of messages.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes that jemalloc takes for an allocation of `bytes`: the next of its size classes, or
/// whole pages.
///
/// Cost: some instructions; the allocator is not asked.
/// Source: `sc.h` and `sz.h` of jemalloc 5.3.1, for pages of 4 KiB; `weir-server` compares it with
/// the allocator.
pub const fn rounded(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        1..=8 => 8,
        9..=128 => bytes.next_multiple_of(16),
        // Four classes for each doubling.
        129..=16_384 => bytes.next_multiple_of(1 << ((bytes - 1).ilog2() - 2)),
        _ => bytes.next_multiple_of(4096),
    }
}

/// The bytes that a hash table of the standard library occupies: seven eighths of its places may be
/// used, and each has a byte beside it.
pub const fn rounded_table(capacity: usize, entry_bytes: usize) -> usize {
    if capacity == 0 {
        return 0;
    }
    let places = (capacity * 8 / 7).next_power_of_two();
    rounded((places * entry_bytes).next_multiple_of(GROUP_BYTES) + places + GROUP_BYTES)
}

/// Places that a hash table compares at once.
const GROUP_BYTES: usize = 16;

/// A number of things, and the bytes that the allocator takes for them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Footprint {
    /// The number of things.
    pub count: usize,
    /// The bytes of their allocations.
    pub bytes: usize,
}

impl Footprint {
    /// `count` things that occupy `bytes`, which are rounded already.
    pub const fn new(count: usize, bytes: usize) -> Footprint {
        Footprint { count, bytes }
    }

    /// `count` things, each in an allocation of `bytes`.
    pub const fn of_each(count: usize, bytes: usize) -> Footprint {
        Footprint { count, bytes: count * rounded(bytes) }
    }

    /// Counts one more thing that occupies `bytes`, which are rounded already.
    pub fn add(&mut self, bytes: usize) {
        *self += Footprint::new(1, bytes);
    }
}

impl AddAssign for Footprint {
    fn add_assign(&mut self, other: Footprint) {
        self.count += other.count;
        self.bytes += other.bytes;
    }
}

weir_wire::named_enum! {
    /// What keeps a message alive.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum MessagePlace {
        /// It is on its way to the shards or in a running tick.
        Moving = "moving",
        /// A ring keeps it, and it waits for no connection.
        Retained = "retained",
        /// It waits for at least one slow connection.
        Waiting = "waiting",
    }
}

/// The messages of one class of topics, by what keeps them.
///
/// Cost: two atomic operations when a message begins, when it ends, and for each side of a change.
#[derive(Debug, Default)]
pub(crate) struct Levels([Level; MessagePlace::ALL.len()]);

#[derive(Debug, Default)]
struct Level {
    count: AtomicUsize,
    bytes: AtomicUsize,
}

impl Levels {
    pub(crate) fn get(&self, place: MessagePlace) -> Footprint {
        let Level { count, bytes } = &self.0[place as usize];
        // What has just changed may leave before it enters.
        let level = |cell: &AtomicUsize| {
            let value = cell.load(Ordering::Relaxed);
            if isize::try_from(value).is_ok() { value } else { 0 }
        };
        Footprint::new(level(count), level(bytes))
    }

    pub(crate) fn enter(&self, place: MessagePlace, bytes: usize) {
        self.0[place as usize].count.fetch_add(1, Ordering::Relaxed);
        self.grow(place, bytes);
    }

    pub(crate) fn leave(&self, place: MessagePlace, bytes: usize) {
        let Level { count, bytes: level } = &self.0[place as usize];
        count.fetch_sub(1, Ordering::Relaxed);
        level.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// A message there has grown.
    pub(crate) fn grow(&self, place: MessagePlace, bytes: usize) {
        self.0[place as usize].bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_table_has_more_places_than_it_may_use() {
        let of_hashbrown = [(0, 0), (3, 64 + 4 + 16), (7, 128 + 8 + 16), (14, 256 + 16 + 16)];
        for (capacity, expected) in of_hashbrown {
            assert_eq!(rounded_table(capacity, 16), rounded(expected), "{capacity}");
        }
        for expected in [3, 7, 14, 28, 896] {
            let map = std::collections::HashMap::<u64, u64>::with_capacity(expected);
            assert_eq!(map.capacity(), expected);
        }
    }

    #[test]
    fn sizes_are_those_of_the_allocator() {
        let of_jemalloc = [
            (0, 0),
            (1, 8),
            (9, 16),
            (17, 32),
            (113, 128),
            (129, 160),
            (160, 160),
            (161, 192),
            (256, 256),
            (257, 320),
            (4096, 4096),
            (4097, 5120),
            (14_337, 16_384),
            (16_385, 20_480),
            (32_769, 36_864),
            (114_688, 114_688),
            (1_000_000, 1_003_520),
            (1_048_577, 1_052_672),
        ];
        for (bytes, expected) in of_jemalloc {
            assert_eq!(rounded(bytes), expected, "{bytes}");
        }
    }
}
