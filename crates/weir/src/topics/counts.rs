//! Members of one topic, by shard.

use weir_engine::handover::NotUnderstood;
use weir_engine::rounded;

use crate::base::handover::refused;

/// Members by shard.
///
/// Shape: 24 bytes. The first four shards have shard and count side by side. A topic with more
/// shards has a count for every shard up to the highest. A shard that has had a member stays known.
#[derive(Debug)]
pub(super) enum ShardCounts {
    /// Shards in `shards[..known]`, their members in `counts[..known]`.
    Few { known: u8, shards: [u8; FEW], counts: [u32; FEW] },
    /// Members plus one; 0 if the shard does not know the topic.
    Many(Box<[u32]>),
}

const FEW: usize = 4;
const _: () = assert!(size_of::<ShardCounts>() == 24);

impl ShardCounts {
    /// One more member on `shard`.
    pub(super) fn add(&mut self, shard: usize) {
        match self {
            ShardCounts::Few { known, shards, counts } => {
                let shard = narrow(shard);
                let used = usize::from(*known);
                if let Some(index) = shards[..used].iter().position(|other| *other == shard) {
                    counts[index] += 1;
                } else if used < FEW {
                    (shards[used], counts[used]) = (shard, 1);
                    *known += 1;
                } else {
                    self.spread();
                    self.add(usize::from(shard));
                }
            }
            ShardCounts::Many(counts) => {
                if counts.len() <= shard {
                    let mut longer = std::mem::take(counts).into_vec();
                    longer.resize(shard + 1, 0);
                    *counts = longer.into_boxed_slice();
                }
                counts[shard] = counts[shard].max(1) + 1;
            }
        }
    }

    /// Shards that have or had members, in the order in which they did, and how many they have.
    pub(super) fn export(&self) -> impl Iterator<Item = (u32, u32)> {
        self.entries().map(|(shard, count)| (u32::from(narrow(shard)), count))
    }

    /// A shard that has or had members in another process.
    pub(super) fn import(&mut self, shard: usize, count: u32) -> Result<(), NotUnderstood> {
        let is_known = self.known().any(|known| known == shard);
        let sum = u64::from(self.total()) + u64::from(count);
        if is_known || sum > u64::from(u32::MAX / 4) {
            return Err(refused("topic.members", count));
        }
        self.add(shard);
        match self {
            ShardCounts::Few { known, counts, .. } => counts[usize::from(*known) - 1] = count,
            ShardCounts::Many(counts) => counts[shard] = count + 1,
        }
        Ok(())
    }

    /// One member less on `shard`.
    pub(super) fn remove(&mut self, shard: usize) {
        let count = match self {
            ShardCounts::Few { known, shards, counts } => {
                let used = usize::from(*known);
                let index = shards[..used].iter().position(|other| usize::from(*other) == shard);
                index.map(|index| &mut counts[index]).filter(|count| **count > 0)
            }
            ShardCounts::Many(counts) => counts.get_mut(shard).filter(|count| **count > 1),
        };
        debug_assert!(count.is_some(), "a member leaves where one was counted");
        if let Some(count) = count {
            *count -= 1;
        }
    }

    /// The bytes that the counts occupy besides.
    pub(super) fn bytes(&self) -> usize {
        match self {
            ShardCounts::Few { .. } => 0,
            ShardCounts::Many(counts) => rounded(size_of_val(&**counts)),
        }
    }

    /// Members on all shards.
    pub(super) fn total(&self) -> u32 {
        match self {
            ShardCounts::Few { counts, .. } => counts.iter().sum(),
            ShardCounts::Many(counts) => counts.iter().map(|count| count.saturating_sub(1)).sum(),
        }
    }

    /// Shards that have members.
    pub(super) fn occupied(&self) -> impl Iterator<Item = usize> {
        self.entries().filter(|(_, count)| *count > 0).map(|(shard, _)| shard)
    }

    /// Shards that have or had members.
    pub(super) fn known(&self) -> impl Iterator<Item = usize> {
        self.entries().map(|(shard, _)| shard)
    }

    fn entries(&self) -> impl Iterator<Item = (usize, u32)> {
        let (few, many): (&[u8], &[u32]) = match self {
            ShardCounts::Few { known, shards, .. } => (&shards[..usize::from(*known)], &[]),
            ShardCounts::Many(counts) => (&[], counts),
        };
        let few =
            few.iter().enumerate().map(|(index, shard)| (usize::from(*shard), self.few(index)));
        let many = many.iter().enumerate().filter(|(_, count)| **count > 0);
        few.chain(many.map(|(shard, count)| (shard, count - 1)))
    }

    fn few(&self, index: usize) -> u32 {
        match self {
            ShardCounts::Few { counts, .. } => counts[index],
            ShardCounts::Many(_) => 0,
        }
    }

    fn spread(&mut self) {
        let highest = self.known().max().unwrap_or(0);
        let mut many = vec![0; highest + 1].into_boxed_slice();
        for (shard, count) in self.entries() {
            many[shard] = count + 1;
        }
        *self = ShardCounts::Many(many);
    }
}

impl Default for ShardCounts {
    fn default() -> Self {
        ShardCounts::Few { known: 0, shards: [0; FEW], counts: [0; FEW] }
    }
}

fn narrow(shard: usize) -> u8 {
    u8::try_from(shard).expect("a shard's index stands in 8 bits of a connection's id")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn counts_like_a_map(steps in proptest::collection::vec((any::<bool>(), 0usize..8), 0..200)) {
            let mut counts = ShardCounts::default();
            let mut twin = BTreeMap::<usize, u32>::new();
            for (is_add, shard) in steps {
                if is_add {
                    counts.add(shard);
                    *twin.entry(shard).or_default() += 1;
                } else if twin.get(&shard).is_some_and(|count| *count > 0) {
                    counts.remove(shard);
                    *twin.entry(shard).or_default() -= 1;
                }
                prop_assert_eq!(counts.total(), twin.values().sum::<u32>());
                let mut known: Vec<usize> = counts.known().collect();
                known.sort_unstable();
                prop_assert_eq!(known, twin.keys().copied().collect::<Vec<_>>());
                let mut occupied: Vec<usize> = counts.occupied().collect();
                occupied.sort_unstable();
                let expected = twin.iter().filter(|(_, count)| **count > 0);
                prop_assert_eq!(occupied, expected.map(|(shard, _)| *shard).collect::<Vec<_>>());
            }
        }
    }
}
