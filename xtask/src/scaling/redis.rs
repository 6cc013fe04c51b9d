//! Redis, and the claims that nodes send to it.

use super::clients::STEP_MS;
use super::costs;
use super::limits::{Limit, Limits};

/// The shards of Redis. Keys spread evenly, so all shards have the same work.
pub(super) struct Redis {
    shards: u64,
    /// The part of its CPU time that other work takes.
    busy_percent: u64,
    /// When what was asked so far is done.
    free_ns: u64,
    pub(super) busy_ns: u64,
}

/// What a device costs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Price {
    /// CPU time of its node.
    pub(super) node_ns: u64,
    /// CPU time of Redis.
    pub(super) redis_ns: u64,
}

/// Claims of a node, on their way to Redis: one batch at a time, as
/// `crates/weir/src/core/node/claims.rs` sends them. It makes no difference here which of them wait
/// in the queue, and for which a device is marked.
#[derive(Default)]
pub(super) struct Claims {
    waiting: u64,
    /// When the next batch may leave.
    ready_ns: u64,
    pub(super) waiting_peak: u64,
}

impl Redis {
    /// So many topics are followed, each by one node, beside what else is to be done.
    pub(super) fn new(shards: u64, topics: u64) -> Redis {
        let compared = topics / shards * costs::COMPARE_NS * 100 / COMPARE_INTERVAL_NS;
        let busy_percent = (costs::REDIS_BUSY_PERCENT + compared).min(BUSY_PERCENT_MAX);
        Redis { shards, busy_percent, free_ns: 0, busy_ns: 0 }
    }

    /// Work that arrives at a time, for all shards together; when it is done.
    pub(super) fn work(&mut self, at_ns: u64, cost_ns: u64) -> u64 {
        let share = cost_ns / self.shards;
        self.busy_ns += share;
        let took = share * 100 / (100 - self.busy_percent);
        self.free_ns = self.free_ns.max(at_ns) + took;
        self.free_ns
    }
}

impl Claims {
    /// Connections that have been welcomed are to be claimed.
    pub(super) fn enter(&mut self, count: u64) {
        self.waiting += count;
        self.waiting_peak = self.waiting_peak.max(self.waiting);
    }

    /// Sends batches during a step; how many were claimed, and how many claims were sent.
    pub(super) fn step(
        &mut self,
        now: u64,
        price: Price,
        redis: &mut Redis,
        limits: &mut Limits,
    ) -> (u64, u64) {
        let (begin, end) = (now * STEP_NS, (now + 1) * STEP_NS);
        let (mut claimed, mut sent) = (0, 0);
        let wait_ns = price.node_ns + costs::CLAIM_TRIPS_NS;
        self.ready_ns = self.ready_ns.max(begin);
        while self.ready_ns < end && self.waiting > 0 {
            let count = self.waiting.min(BATCH);
            sent += count;
            let done = redis.work(self.ready_ns, count * price.redis_ns) + count * wait_ns;
            if done - self.ready_ns > TIMEOUT_NS {
                limits.meet(Limit::Redis, 1, now);
                self.ready_ns += TIMEOUT_NS + RETRY_NS;
                continue;
            }
            self.ready_ns = done;
            claimed += count;
            self.waiting -= count;
        }
        (claimed, sent)
    }
}

/// `BATCH` and `RETRY_DELAY` of `crates/weir/src/core/node/claims.rs`.
const BATCH: u64 = 512;
const RETRY_NS: u64 = 200_000_000;
/// `cluster.timeout`.
const TIMEOUT_NS: u64 = 500_000_000;
/// Nodes compare the positions of their topics this often (`crates/weir/src/cluster/mod.rs`).
const COMPARE_INTERVAL_NS: u64 = 30_000_000_000;
/// Beyond that nothing else would come to its turn.
const BUSY_PERCENT_MAX: u64 = 95;
const STEP_NS: u64 = STEP_MS * 1_000_000;
