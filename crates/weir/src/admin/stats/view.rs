//! The document of figures. It reads what the metrics page reads; totals count from the start of
//! the process, and their names are those of the metrics.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;
use weir_engine::{CreditKind, DropRule, Durations, Priority, ShardStats, Share, Transport};
use weir_wire::CloseReason;
use weir_wire::format::Format;

use super::counts::{Counts, by_name};
use super::parts::{ClusterView, StoreView, TlsView, UdpView};
use super::upstreams::UpstreamView;
use crate::admin::drain::DrainView;
use crate::admin::events::UpgradeView;
use crate::admin::metrics::{Gateway, Histogram};
use crate::admin::process;
use crate::admin::ready::PartView;
use crate::base::clock::{millis, unix_millis};
use crate::observe::counters::http::Dialect;
use crate::{
    AcceptError, AuthKind, AuthOutcome, ConnectRefuseCause, PublishTarget, RefuseCause,
    SubscribeRefuseCause, Upgraded,
};

/// The figures of this node.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Stats)]
pub(in crate::admin) struct StatsView {
    /// The time of reading, in milliseconds since 1970.
    time_ms: u64,
    version: &'static str,
    node: OwnNodeView,
    /// Time since the start, in milliseconds.
    uptime_ms: u64,
    /// Whether `/readyz` answers 200.
    ready: bool,
    /// The state of each part, as in `/readyz`.
    parts: Vec<PartView>,
    drain: DrainView,
    process: ProcessView,
    connections: ConnectionFiguresView,
    messages: MessageFiguresView,
    times: TimesView,
    budget: BudgetView,
    tls: TlsView,
    udp: UdpView,
    /// `null` without a device store.
    #[schema(required)]
    store: Option<StoreView>,
    /// `null` without a cluster.
    #[schema(required)]
    cluster: Option<ClusterView>,
    /// The upgrade that has begun this process; `null` if it was started otherwise.
    #[schema(required)]
    upgrade: Option<LastUpgradeView>,
    /// The services that the gateway calls, by name.
    upstreams: Vec<UpstreamView>,
    /// By index.
    shards: Vec<ShardView>,
}

/// The upgrade that has begun this process.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LastUpgrade)]
struct LastUpgradeView {
    /// When this process began to serve, in milliseconds since 1970.
    at_ms: u64,
    #[serde(flatten)]
    about: UpgradeView,
}

/// This node.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OwnNode)]
struct OwnNodeView {
    /// Its number in the cluster; 0 without one.
    number: u16,
    name: String,
}

/// The process, as the kernel and the allocator count it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Process)]
struct ProcessView {
    /// Processor time of all threads since the start.
    cpu_ms: u64,
    #[schema(required)]
    resident_bytes: Option<u64>,
    /// Bytes that the allocator has given out; `null` if it does not tell.
    #[schema(required)]
    allocated_bytes: Option<u64>,
    /// The same before connections were let in.
    #[schema(required)]
    allocated_at_start_bytes: Option<u64>,
    #[schema(required)]
    open_fds: Option<u64>,
    /// The soft limit; `null` without one.
    #[schema(required)]
    fds_max: Option<u64>,
}

/// Connections.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ConnectionFigures)]
struct ConnectionFiguresView {
    /// By transport.
    #[schema(value_type = BTreeMap<String, StatesView>)]
    transports: BTreeMap<&'static str, StatesView>,
    /// Settled connections by protocol.
    #[schema(value_type = BTreeMap<String, u64>)]
    protocols: Counts,
    /// HTTP connections by version.
    #[schema(value_type = BTreeMap<String, u64>)]
    http: Counts,
    /// Settled connections above the high watermark.
    stalled: u64,
    /// `limits.connections_max`.
    settled_max: u64,
    devices: u64,
    topics: u64,
    /// Pairs of a connection and a topic.
    memberships: u64,
    /// Source addresses that are known.
    sources: u64,
    /// Connections to the admin API.
    admin: u64,
    accepted: u64,
    adopted: u64,
    /// By reason.
    #[schema(value_type = BTreeMap<String, u64>)]
    closed: Counts,
    /// By cause.
    #[schema(value_type = BTreeMap<String, u64>)]
    refused: Counts,
    #[schema(value_type = BTreeMap<String, u64>)]
    accept_errors: Counts,
    /// Checked credentials, by outcome.
    #[schema(value_type = BTreeMap<String, u64>)]
    authentications: Counts,
}

/// Connections of a transport, by state.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = States)]
struct StatesView {
    settled: u64,
    unsettled: u64,
    lingering: u64,
}

/// Messages and bytes.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = MessageFigures)]
struct MessageFiguresView {
    /// Accepted for publishing, by target.
    #[schema(value_type = BTreeMap<String, u64>)]
    published: Counts,
    /// Not accepted, by cause.
    #[schema(value_type = BTreeMap<String, u64>)]
    publish_refused: Counts,
    #[schema(value_type = BTreeMap<String, u64>)]
    subscribe_refused: Counts,
    /// Messages whose last byte a socket took, one for each connection.
    delivered: u64,
    /// Not sent, by rule.
    #[schema(value_type = BTreeMap<String, u64>)]
    dropped: Counts,
    /// Whole frames read from settled connections.
    received_frames: u64,
    sent_bytes: u64,
    received_bytes: u64,
    /// Refused because a device sent them too fast.
    publishes_rate_limited: u64,
    /// Pauses of connections that sent frames too fast.
    reads_rate_limited: u64,
    retained: u64,
    retained_bytes: u64,
    retained_bytes_max: u64,
}

/// Histograms. All have the same buckets.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Times)]
struct TimesView {
    /// The upper bound of each bucket in seconds. The last bucket has none, so it is not here.
    bounds_s: Vec<f64>,
    /// From a fan-out's first send on a shard to its last.
    fanout: HistogramView,
    /// From a message's acceptance to its send, by priority of the connection.
    #[schema(value_type = BTreeMap<String, HistogramView>)]
    lag: BTreeMap<&'static str, HistogramView>,
    /// From accept to the shard's answer.
    settle: HistogramView,
    /// Length of a shard's turns.
    turn: HistogramView,
    /// Stalls that ended well.
    stall_recovered: HistogramView,
    /// Stalls that ended with a close.
    stall_closed: HistogramView,
}

/// A histogram since the start. Subtract an earlier one to get the time in between.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Histogram)]
struct HistogramView {
    /// By bucket, not cumulated; the last one counts everything longer.
    counts: Vec<u64>,
    sum_s: f64,
    /// The longest since the start; 0 where it is not kept.
    max_s: f64,
}

/// The byte budget.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Budget)]
struct BudgetView {
    used_bytes: u64,
    bytes_max: u64,
    peak_bytes: u64,
    /// Connections closed because they held the most of what waits.
    cut: u64,
    #[schema(value_type = BTreeMap<String, ShareView>)]
    shares: BTreeMap<&'static str, ShareView>,
}

/// A share of the byte budget.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Share)]
struct ShareView {
    used_bytes: u64,
    bytes_max: u64,
    refused: u64,
}

/// A shard.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Shard)]
struct ShardView {
    connections: u64,
    stalled: u64,
    /// Time in turns since the start: its growth in a second is the busy share of the shard.
    busy_s: f64,
    turns: u64,
    /// The longest turn.
    turn_max_s: f64,
    fanouts: u64,
    queued_bytes: u64,
    delivered: u64,
    /// Commands in its mailbox, by queue.
    #[schema(value_type = BTreeMap<String, u64>)]
    mailbox: Counts,
}

impl StatsView {
    /// Reads the figures.
    ///
    /// Cost: relaxed reads of some hundred counters, one read of `/proc`, a look at the allocator's
    /// statistics, and short locks of the sources and of the store's queues.
    pub(in crate::admin) fn of(gateway: &Gateway) -> Self {
        let handle = gateway.handle();
        let shared = handle.shared();
        let readiness = handle.readiness();
        StatsView {
            time_ms: unix_millis(),
            version: env!("CARGO_PKG_VERSION"),
            node: OwnNodeView {
                number: shared.node.as_ref().map_or(0, |node| node.number()),
                name: shared.config().cluster.node(),
            },
            uptime_ms: millis(shared.admission.uptime()),
            ready: readiness.is_ready_without(&[]),
            parts: readiness.parts.iter().map(|part| PartView::of(part, true)).collect(),
            drain: DrainView::of(handle.drain_info()),
            process: ProcessView::of(gateway),
            connections: ConnectionFiguresView::of(gateway),
            messages: MessageFiguresView::of(gateway),
            times: TimesView::of(gateway),
            budget: BudgetView::of(gateway),
            tls: TlsView::of(handle),
            udp: UdpView::of(handle.counters()),
            store: handle.device_store().map(|store| StoreView::of(store)),
            cluster: ClusterView::of(handle),
            upgrade: shared.upgrades.last().map(LastUpgradeView::of),
            upstreams: shared.backends.statuses().into_iter().map(UpstreamView::of).collect(),
            shards: gateway
                .shards()
                .enumerate()
                .map(|(index, stats)| ShardView::of(gateway, index, stats))
                .collect(),
        }
    }
}

impl LastUpgradeView {
    fn of(upgraded: &Upgraded) -> Self {
        LastUpgradeView { at_ms: millis(upgraded.at), about: UpgradeView::of(upgraded) }
    }
}

impl ProcessView {
    fn of(gateway: &Gateway) -> Self {
        let allocated = gateway.handle().shared().allocated();
        ProcessView {
            cpu_ms: millis(process::cpu_time()),
            resident_bytes: process::resident_bytes(),
            allocated_bytes: allocated.map(|[now, _]| now),
            allocated_at_start_bytes: allocated.map(|[_, start]| start),
            open_fds: process::open_fds(),
            fds_max: process::max_fds(),
        }
    }
}

impl ConnectionFiguresView {
    fn of(gateway: &Gateway) -> Self {
        let handle = gateway.handle();
        let (front, gauges) = (handle.counters(), handle.gauges());
        let authentications = |outcome| {
            AuthKind::ALL.into_iter().map(|kind| front.authentications(kind, outcome)).sum()
        };
        ConnectionFiguresView {
            transports: Transport::ALL
                .into_iter()
                .map(|of| (of.name(), states(gateway, of)))
                .collect(),
            protocols: Format::ALL
                .into_iter()
                .map(|of| (of.name(), gateway.speaking(of)))
                .collect(),
            http: Dialect::ALL
                .into_iter()
                .map(|dialect| (dialect.name(), front.http.connections(dialect) as u64))
                .collect(),
            stalled: gateway.sum(|shard| &shard.stalled),
            settled_max: handle.shared().config().limits.connections_max as u64,
            devices: gauges.devices as u64,
            topics: gauges.topics as u64,
            memberships: gateway.sum(|shard| &shard.memberships),
            sources: gauges.sources as u64,
            admin: front.admin_connections() as u64,
            accepted: front.accepted(),
            adopted: gateway.sum(|shard| &shard.adopted),
            closed: by_name(CloseReason::ALL, CloseReason::name, |of| gateway.closed(of)),
            refused: by_name(ConnectRefuseCause::ALL, ConnectRefuseCause::name, |of| {
                front.connect_refused(of)
            }),
            accept_errors: by_name(AcceptError::ALL, AcceptError::name, |of| {
                front.accept_errors(of)
            }),
            authentications: by_name(AuthOutcome::ALL, AuthOutcome::name, authentications),
        }
    }
}

fn states(gateway: &Gateway, transport: Transport) -> StatesView {
    let [(_, settled), (_, unsettled), (_, lingering)] = gateway.states(transport);
    StatesView { settled, unsettled, lingering }
}

impl MessageFiguresView {
    fn of(gateway: &Gateway) -> Self {
        let handle = gateway.handle();
        let (front, retained) = (handle.counters(), handle.retained());
        MessageFiguresView {
            published: by_name(PublishTarget::ALL, PublishTarget::name, |of| front.published(of)),
            publish_refused: by_name(RefuseCause::ALL, RefuseCause::name, |of| front.refused(of)),
            subscribe_refused: by_name(
                SubscribeRefuseCause::ALL,
                SubscribeRefuseCause::name,
                |of| gateway.subscribe_refused(of),
            ),
            delivered: gateway.sum(|shard| &shard.delivered),
            dropped: by_name(DropRule::ALL, DropRule::name, |of| gateway.dropped(of)),
            received_frames: gateway.sum(|shard| &shard.received_frames),
            sent_bytes: gateway.sum(|shard| &shard.sent_bytes),
            received_bytes: gateway.sum(|shard| &shard.received_bytes),
            publishes_rate_limited: gateway.sum(|shard| &shard.publishes_rate_limited),
            reads_rate_limited: gateway.sum(|shard| &shard.reads_rate_limited),
            retained: retained.messages as u64,
            retained_bytes: retained.bytes as u64,
            retained_bytes_max: retained.bytes_max as u64,
        }
    }
}

impl TimesView {
    fn of(gateway: &Gateway) -> Self {
        let of = |of: fn(&ShardStats) -> &Durations| HistogramView::of(&gateway.durations(of));
        let lag = |priority: Priority| {
            HistogramView::of(&gateway.durations(|shard| &shard.lag[priority.index()]))
        };
        TimesView {
            bounds_s: (0..Durations::BUCKETS)
                .filter_map(|index| Durations::bound(index).map(|bound| bound.as_secs_f64()))
                .collect(),
            fanout: of(|shard| &shard.fanout),
            lag: Priority::ALL.into_iter().map(|of| (of.name(), lag(of))).collect(),
            settle: HistogramView::of(&Histogram::of(&gateway.handle().counters().settle_times)),
            turn: of(|shard| &shard.turn),
            stall_recovered: of(|shard| &shard.stall_recovered),
            stall_closed: of(|shard| &shard.stall_closed),
        }
    }
}

impl HistogramView {
    fn of(histogram: &Histogram) -> Self {
        let Histogram { counts, sum, max } = histogram;
        HistogramView { counts: counts.to_vec(), sum_s: *sum, max_s: *max }
    }
}

impl BudgetView {
    fn of(gateway: &Gateway) -> Self {
        let budget = gateway.handle().engine().budget();
        let share = |share| ShareView {
            used_bytes: budget.used_of(share) as u64,
            bytes_max: budget.bytes_max_of(share) as u64,
            refused: budget.refused_of(share),
        };
        BudgetView {
            used_bytes: budget.used() as u64,
            bytes_max: budget.bytes_max() as u64,
            peak_bytes: budget.peak() as u64,
            cut: gateway.sum(|shard| &shard.cut),
            shares: Share::ALL.into_iter().map(|of| (of.name(), share(of))).collect(),
        }
    }
}

impl ShardView {
    fn of(gateway: &Gateway, index: usize, stats: &ShardStats) -> Self {
        let mailbox = gateway.handle().engine().mailbox(index);
        let queues = CreditKind::ALL.map(|kind| (kind.name(), mailbox.depth_of(kind) as u64));
        ShardView {
            connections: stats.connections.get(),
            stalled: stats.stalled.get(),
            busy_s: stats.turn.sum().as_secs_f64(),
            turns: stats.turns.get(),
            turn_max_s: stats.turn.max().as_secs_f64(),
            fanouts: stats.fanouts.get(),
            queued_bytes: stats.queued_bytes.get(),
            delivered: stats.delivered.get(),
            mailbox: queues
                .into_iter()
                .chain([("reserved", mailbox.reserved_depth() as u64)])
                .collect(),
        }
    }
}
