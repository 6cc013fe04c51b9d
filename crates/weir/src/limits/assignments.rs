//! The choice of a shard for the next connection.

use std::sync::atomic::{AtomicUsize, Ordering};

use weir_engine::ConnId;

/// How many connections each shard has, as far as the front knows: offered ones included, closed ones until the
/// report.
pub(crate) struct Assignments {
    by_shard: Box<[AtomicUsize]>,
    total: AtomicUsize,
    connections_max: usize,
}

impl Assignments {
    /// At most as many as the shards can number together.
    pub(crate) fn new(shards: usize, connections_max: usize) -> Self {
        let connections_max = connections_max.min(shards * ConnId::SLOTS_MAX);
        let by_shard = (0..shards).map(|_| AtomicUsize::new(0)).collect();
        Self { by_shard, total: AtomicUsize::new(0), connections_max }
    }

    /// Whether there are `connections_max` connections.
    pub(crate) fn is_full(&self) -> bool {
        self.total.load(Ordering::Relaxed) >= self.connections_max
    }

    /// Chooses the shard with the fewest connections, and counts one more there; `None` at
    /// `connections_max`.
    pub(crate) fn assign(&self) -> Option<usize> {
        let max = self.connections_max;
        let entered = self.total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
            (count < max).then_some(count + 1)
        });
        entered.ok()?;
        let counts = self.by_shard.iter().map(|count| count.load(Ordering::Relaxed));
        let (shard, _) = counts.enumerate().min_by_key(|(_, count)| *count)?;
        self.by_shard[shard].fetch_add(1, Ordering::Relaxed);
        Some(shard)
    }

    /// Counts one connection less on a shard.
    pub(crate) fn release(&self, shard: usize) {
        self.by_shard[shard].fetch_sub(1, Ordering::Relaxed);
        self.total.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emptiest_shard_is_next_until_all_are_full() {
        let assignments = Assignments::new(2, 3);
        let assigned: Vec<_> = (0..4).map(|_| assignments.assign()).collect();
        assert_eq!(assigned, [Some(0), Some(1), Some(0), None]);
        assert!(assignments.is_full());
        assignments.release(1);
        assert_eq!(assignments.assign(), Some(1));
    }
}
