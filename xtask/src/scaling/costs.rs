//! What things cost, as measured, and what is assumed. `docs/scaling.md` has a table of them, with
//! the commands.

/// CPU time for a call: some of it, and some for each node that lives.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    base_ns: u64,
    node_ns: u64,
}

impl Call {
    pub(super) const fn ns(self, nodes: u64) -> u64 {
        self.base_ns + nodes * self.node_ns
    }
}

/// Connections of each node before the loss.
pub(super) const CONNECTIONS: u64 = 1_000_000;
/// Assumed: processors of a node.
pub(super) const CORES: u64 = 16;
/// Assumed: the part of a node's CPU time that connected devices take. They go first.
pub(super) const CPU_BUSY_PERCENT: u64 = 30;
/// Assumed: the part of a shard's CPU time that messages take.
pub(super) const REDIS_BUSY_PERCENT: u64 = 30;

/// A full handshake with ECDSA P-256, from accept to `Welcome` and close.
pub(super) const FULL_NS: u64 = 177_000;
/// The same, resumed by ticket.
pub(super) const RESUMED_NS: u64 = 147_000;
/// An opening without TLS.
pub(super) const PLAIN_NS: u64 = 57_000;
/// To accept a connection: one task does it for a listener.
pub(super) const ACCEPT_NS: u64 = 12_000;
/// A refusal, with its accept.
pub(super) const REFUSE_NS: u64 = 13_000;
/// What the kernel takes to reset a connection of a process that was killed.
pub(super) const RESET_NS: u64 = 10_000;

/// Redis subscribes to a device's channel and enters the claim of a device that nobody holds.
pub(super) const CLAIM_NEW: Call = Call { base_ns: 9_400, node_ns: 80 };
/// The same for a device whose node is gone, and still counts as alive.
pub(super) const CLAIM_LEFT: Call = Call { base_ns: 15_800, node_ns: 120 };
/// The same for a device whose node is known to be gone: its claim takes two attempts.
pub(super) const CLAIM_DEAD: Call = Call { base_ns: 22_900, node_ns: 250 };
/// A node's own CPU time for a claim.
pub(super) const CLAIM_AT_NODE: Call = Call { base_ns: 7_200, node_ns: 86 };
/// Three round trips of half a millisecond for each batch of 512 claims: a node sends one batch after
/// the other.
pub(super) const CLAIM_TRIPS_NS: u64 = 3 * 500_000 / 512;

/// Redis ends a subscription of a node that is gone.
pub(super) const END_NS: u64 = 900;
/// Redis subscribes to a topic, and reads one message of it.
pub(super) const TOPIC_NS: u64 = 2_100 + 20_500;
/// Redis compares the position of a topic.
pub(super) const COMPARE_NS: u64 = 4_000;
