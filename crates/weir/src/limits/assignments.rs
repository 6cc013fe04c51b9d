//! The choice of a shard for the next connection.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The connections of each shard as the front counts them: from the offer until the report of the
/// end.
pub(crate) struct Assignments {
    by_shard: Box<[AtomicUsize]>,
    total: AtomicUsize,
    connections_max: usize,
}

impl Assignments {
    pub(crate) fn new(shards: usize, connections_max: usize) -> Self {
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
