//! The settings of a cluster, and the limits that clients have met.

/// What a node is set to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub(super) transport: Transport,
    /// Whether all nodes have the same `tls.ticket_secret`, so that clients resume anywhere.
    pub(super) has_ticket_secret: bool,
    /// `limits.connections_max`.
    pub(super) connections_max: u64,
    /// `limits.unsettled_connections_max`.
    pub(super) unsettled_max: u64,
    /// `tls.handshake_queue_max`.
    pub(super) queue_max: u64,
    /// `listen.accept_backlog`.
    pub(super) accept_backlog: u64,
    /// Limits by source.
    pub(super) sources: Option<Sources>,
    /// Devices for which Redis has a shard.
    pub(super) devices_per_shard: u64,
}

/// How clients connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    /// Refusals are resets.
    Tls,
    /// Refusals are `Goodbye`s that say when to come back.
    Plain,
}

/// Addresses that clients come from, each node with the same limits for them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sources {
    pub(super) count: u64,
    /// `limits.connects_per_source_per_second`.
    pub(super) per_second: u64,
    /// `limits.connects_per_source_burst`.
    pub(super) burst: u64,
}

/// What can keep a client waiting or send it away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limit {
    Backlog,
    Connections,
    Unsettled,
    Sources,
    Queue,
    Patience,
    Redis,
}

/// How often each limit was met, and when first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Limits {
    met: Vec<Met>,
}

/// A limit that was met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Met {
    pub(super) limit: Limit,
    /// The step in which it was met first.
    pub(super) first: u64,
    pub(super) count: u64,
}

impl Settings {
    /// As shipped (`crates/weir/src/base/config`).
    pub(super) const SHIPPED: Settings = Settings {
        transport: Transport::Tls,
        has_ticket_secret: false,
        connections_max: 1_000_000,
        unsettled_max: 16_384,
        queue_max: 4_096,
        accept_backlog: 4_096,
        sources: None,
        devices_per_shard: 10_000_000,
    };

    /// As shipped, but a node has room for the connections of others.
    pub(super) const RAISED: Settings = Settings { connections_max: 2_000_000, ..Self::SHIPPED };

    /// The best that we have found.
    pub(super) const TUNED: Settings = Settings {
        has_ticket_secret: true,
        unsettled_max: 65_536,
        queue_max: 32_768,
        accept_backlog: 65_535,
        devices_per_shard: 2_500_000,
        ..Self::RAISED
    };
}

impl Sources {
    /// The tokens of all addresses before the first connect, in thousandths.
    pub(super) fn full(self) -> u64 {
        self.count * self.burst * 1_000
    }
}

impl Limit {
    /// The key of the configuration, or what else it is.
    pub(super) fn name(self) -> &'static str {
        match self {
            Limit::Backlog => "`listen.accept_backlog`",
            Limit::Connections => "`limits.connections_max`",
            Limit::Unsettled => "`limits.unsettled_connections_max`",
            Limit::Sources => "`limits.connects_per_source_per_second`",
            Limit::Queue => "`tls.handshake_queue_max`",
            Limit::Patience => "the client's `connect_timeout`",
            Limit::Redis => "`cluster.timeout`",
        }
    }
}

impl Limits {
    /// So many clients, or batches, met it.
    pub(super) fn meet(&mut self, limit: Limit, count: u64, now: u64) {
        if count == 0 {
            return;
        }
        match self.met.iter_mut().find(|met| met.limit == limit) {
            Some(met) => met.count += count,
            None => self.met.push(Met { limit, first: now, count }),
        }
    }

    /// In the order in which they were met first.
    pub(super) fn met(&self) -> &[Met] {
        &self.met
    }
}
