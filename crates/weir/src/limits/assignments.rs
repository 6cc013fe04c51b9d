//! The choice of a shard for the next connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_engine::{ConnId, ShardStats};

use crate::observe::counters::ConnectRefuseCause;

/// How many connections each shard has, as far as the front knows: offered ones included, closed ones until the
/// report.
pub(crate) struct Assignments {
    by_shard: Box<[AtomicUsize]>,
    total: AtomicUsize,
    connections_max: AtomicUsize,
    /// Present if each shard has a descriptor table of its own.
    own_tables: Option<OwnTables>,
}

/// The tables of shards.
struct OwnTables {
    /// Sockets for which each table has room.
    sockets_max: usize,
    /// By shard. They count the lingering sockets.
    stats: Box<[Arc<ShardStats>]>,
}

impl Assignments {
    /// At most as many as the shards can number together. `sockets_max` are the sockets for which
    /// each shard has room in its own descriptor table, if it has one.
    pub(crate) fn new(
        stats: Box<[Arc<ShardStats>]>,
        connections_max: usize,
        sockets_max: Option<usize>,
    ) -> Self {
        let shards = stats.len();
        let connections_max = connections_max.min(shards * ConnId::SLOTS_MAX);
        let by_shard = (0..shards).map(|_| AtomicUsize::new(0)).collect();
        let own_tables = sockets_max.map(|sockets_max| OwnTables { sockets_max, stats });
        let (total, connections_max) = (AtomicUsize::new(0), AtomicUsize::new(connections_max));
        Self { by_shard, total, connections_max, own_tables }
    }

    /// Changes the limit for further connections.
    pub(crate) fn limit(&self, connections_max: usize) {
        let numbered = self.by_shard.len() * ConnId::SLOTS_MAX;
        self.connections_max.store(connections_max.min(numbered), Ordering::Relaxed);
    }

    /// Whether there is room for one more now.
    pub(crate) fn check(&self) -> Result<(), ConnectRefuseCause> {
        let total = self.total.load(Ordering::Relaxed);
        if total >= self.connections_max.load(Ordering::Relaxed) {
            return Err(ConnectRefuseCause::ConnectionsMax);
        }
        let has_room = self.own_tables.as_ref().is_none_or(|tables| {
            let lingering: usize =
                (0..self.by_shard.len()).map(|shard| tables.lingering(shard)).sum();
            let room = tables.sockets_max.saturating_mul(self.by_shard.len());
            total.saturating_add(lingering) < room
        });
        if has_room { Ok(()) } else { Err(ConnectRefuseCause::Descriptors) }
    }

    /// Chooses the shard with the fewest sockets, and counts one more connection there.
    pub(crate) fn assign(&self) -> Result<usize, ConnectRefuseCause> {
        let max = self.connections_max.load(Ordering::Relaxed);
        let entered = self.total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
            (count < max).then_some(count + 1)
        });
        entered.map_err(|_| ConnectRefuseCause::ConnectionsMax)?;
        let chosen = self.emptiest().filter(|shard| self.enter(*shard));
        if chosen.is_none() {
            self.total.fetch_sub(1, Ordering::Relaxed);
        }
        chosen.ok_or(ConnectRefuseCause::Descriptors)
    }

    /// Counts one more connection on a shard that another process has handed over; `false`: there is
    /// no such shard.
    pub(crate) fn take_over(&self, shard: usize) -> bool {
        let Some(count) = self.by_shard.get(shard) else { return false };
        count.fetch_add(1, Ordering::Relaxed);
        self.total.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Counts one connection less on a shard.
    pub(crate) fn release(&self, shard: usize) {
        self.by_shard[shard].fetch_sub(1, Ordering::Relaxed);
        self.total.fetch_sub(1, Ordering::Relaxed);
    }

    fn emptiest(&self) -> Option<usize> {
        let counts = self.by_shard.iter().map(|count| count.load(Ordering::Relaxed)).enumerate();
        let sockets = counts.map(|(shard, count)| {
            let lingering = self.own_tables.as_ref().map_or(0, |tables| tables.lingering(shard));
            (shard, count + lingering)
        });
        Some(sockets.min_by_key(|(_, count)| *count)?.0)
    }

    /// Counts one more, if the shard's table has room.
    fn enter(&self, shard: usize) -> bool {
        let count = &self.by_shard[shard];
        let Some(tables) = &self.own_tables else {
            count.fetch_add(1, Ordering::Relaxed);
            return true;
        };
        let max = tables.sockets_max.saturating_sub(tables.lingering(shard));
        let order = Ordering::Relaxed;
        count.fetch_update(order, order, |count| (count < max).then_some(count + 1)).is_ok()
    }
}

impl OwnTables {
    fn lingering(&self, shard: usize) -> usize {
        usize::try_from(self.stats[shard].lingering.get()).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assignments(shards: usize, connections_max: usize, sockets: Option<usize>) -> Assignments {
        let stats = (0..shards).map(|_| Arc::default()).collect();
        Assignments::new(stats, connections_max, sockets)
    }

    #[test]
    fn the_emptiest_shard_is_next_until_all_are_full() {
        let assignments = assignments(2, 3, None);
        let assigned: Vec<_> = (0..4).map(|_| assignments.assign()).collect();
        assert_eq!(assigned, [Ok(0), Ok(1), Ok(0), Err(ConnectRefuseCause::ConnectionsMax)]);
        assert_eq!(assignments.check(), Err(ConnectRefuseCause::ConnectionsMax));
        assignments.release(1);
        assert_eq!(assignments.check(), Ok(()));
        assert_eq!(assignments.assign(), Ok(1));
    }

    #[test]
    fn a_full_table_takes_no_more() {
        let assignments = assignments(3, 100, Some(2));
        let assigned: Vec<_> = (0..6).map(|_| assignments.assign()).collect();
        assert_eq!(assigned, [Ok(0), Ok(1), Ok(2), Ok(0), Ok(1), Ok(2)]);
        assert_eq!(assignments.check(), Err(ConnectRefuseCause::Descriptors));
        assert_eq!(assignments.assign(), Err(ConnectRefuseCause::Descriptors));
        assignments.release(1);
        assert_eq!(assignments.check(), Ok(()));
        assert_eq!(assignments.assign(), Ok(1));
        // Nothing was counted for those that were refused.
        (0..3).for_each(|shard| (0..2).for_each(|_| assignments.release(shard)));
        assert_eq!(assignments.total.load(Ordering::Relaxed), 0);
    }
}
