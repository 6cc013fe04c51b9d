//! Random choices, reproducible from a seed.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A seeded source of choices; the same seed makes the same ones on every machine.
#[derive(Debug)]
pub struct Dice(ChaCha8Rng);

impl Dice {
    /// Dice that `seed` decides.
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A number below `end`, which is not 0. For small ends the bias is at most 2⁻³², and does not
    /// matter here.
    pub fn below(&mut self, end: u32) -> u32 {
        let scaled = u64::from(self.0.next_u32()) * u64::from(end);
        u32::try_from(scaled >> 32).expect("below `end`, which has 32 bits")
    }

    /// A number from `least` to `most`, both included.
    pub fn between(&mut self, least: u32, most: u32) -> u32 {
        least + self.below(most - least + 1)
    }

    /// An index below `count`, which is not 0.
    pub fn index(&mut self, count: usize) -> usize {
        self.below(u32::try_from(count).unwrap_or(u32::MAX)) as usize
    }

    /// True in `in_65536` of 65,536 cases.
    pub fn chance(&mut self, in_65536: u32) -> bool {
        in_65536 > 0 && self.below(1 << 16) < in_65536
    }

    /// One of `items`, unless there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        (!items.is_empty()).then(|| &items[self.index(items.len())])
    }
}
