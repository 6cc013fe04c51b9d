//! The figures of parts that not every gateway has: TLS, datagrams, the device store, the cluster.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;
use weir_broker::DurationCounts;
use weir_store::{Circuit, QueueCounts};

use super::counts::{Counts, by_name};
use crate::observe::counters::tls::HandshakeFailure;
use crate::observe::counters::udp::Count;
use crate::provisioning::device_store::DeviceStore;
use crate::tls::Contexts;
use crate::{ClusterLimit, Counters, Handle};

/// TLS.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TlsFigures)]
pub(super) struct TlsView {
    /// Handshakes done, by what they were made with: `full`, or resumed by `ticket` or
    /// `session_id`.
    #[schema(value_type = BTreeMap<String, u64>)]
    handshakes: Counts,
    /// By cause.
    #[schema(value_type = BTreeMap<String, u64>)]
    handshakes_failed: Counts,
    handshakes_refused: u64,
    /// Handshakes that wait for their first step.
    handshake_queue: u64,
    certificates: Vec<CertificateView>,
}

/// A file of certificates or a revocation list.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CertificateEnd)]
struct CertificateView {
    /// `certificate` or `revocation_list`.
    kind: &'static str,
    file: String,
    /// The end of the first in the file that ends, in seconds since 1970.
    ends_s: i64,
}

/// Datagrams.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = UdpFigures)]
pub(super) struct UdpView {
    received: u64,
    sent: u64,
    /// By what was asked for.
    #[schema(value_type = BTreeMap<String, u64>)]
    done: Counts,
    /// By cause.
    #[schema(value_type = BTreeMap<String, u64>)]
    refused: Counts,
    malformed: u64,
    /// Thrown away by the kernel because a receive buffer was full.
    lost: u64,
    /// Requests that wait for the front.
    waiting: u64,
}

/// The device store.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = StoreFigures)]
pub(super) struct StoreView {
    devices: u64,
    /// By kind: `issue`, `check` and `state`.
    #[schema(value_type = BTreeMap<String, StoreQueueView>)]
    queues: BTreeMap<&'static str, StoreQueueView>,
    /// The circuit breakers that are open, of `store` and `cache`.
    circuits_open: Vec<&'static str>,
    /// `null` without a cache.
    #[schema(required)]
    cache: Option<CacheView>,
}

/// A queue before the store.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = StoreQueue)]
struct StoreQueueView {
    requests: u64,
    refused: u64,
    timed_out: u64,
    batches_failed: u64,
    depth: u64,
}

/// The Redis cache.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CacheFigures)]
struct CacheView {
    hits: u64,
    misses: u64,
    errors: u64,
    owed: u64,
}

/// The cluster, as this node sees it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ClusterFigures)]
pub(super) struct ClusterView {
    broker_reachable: bool,
    /// Nodes that lived when this one last looked: those with the same topic classes, itself
    /// included.
    nodes_same: u64,
    /// Names of the nodes with other topic classes.
    nodes_different: Vec<String>,
    /// Messages that wait for the broker.
    waiting: u64,
    waiting_bytes: u64,
    failed: u64,
    refused: u64,
    /// How often a limit was reached, by limit.
    #[schema(value_type = BTreeMap<String, u64>)]
    limits_reached: Counts,
    /// From the sending of commands to the broker to its last answer: counts by bucket, as in
    /// `times`.
    round_trips: Vec<u64>,
}

impl TlsView {
    pub(super) fn of(handle: &Handle) -> Self {
        let counts = &handle.counters().tls;
        let mut handshakes = Counts::new();
        for (.., kind, count) in counts.handshakes() {
            *handshakes.entry(kind).or_default() += count;
        }
        let expiries = handle.tls().map(Contexts::expiries).unwrap_or_default();
        TlsView {
            handshakes,
            handshakes_failed: by_name(HandshakeFailure::ALL, HandshakeFailure::name, |of| {
                counts.failed(of)
            }),
            handshakes_refused: counts.refused(),
            handshake_queue: counts.waiting() as u64,
            certificates: expiries
                .into_iter()
                .map(|expiry| CertificateView {
                    kind: expiry.kind.label(),
                    file: expiry.file,
                    ends_s: expiry.not_after,
                })
                .collect(),
        }
    }
}

impl UdpView {
    pub(super) fn of(counters: &Counters) -> Self {
        let counts = &counters.udp;
        let named = |names: &[(&'static str, Count)]| {
            names.iter().map(|(name, count)| (*name, counts.get(*count))).collect()
        };
        UdpView {
            received: counts.get(Count::Received),
            sent: counts.get(Count::Sent),
            done: named(&Count::DONE),
            refused: named(&Count::REFUSED),
            malformed: counts.malformed().map(|(_, count)| count).sum(),
            lost: counts.lost(),
            waiting: counts.waiting(),
        }
    }
}

impl StoreView {
    pub(super) fn of(store: &DeviceStore) -> Self {
        let counts = store.counts();
        let queues = [("issue", counts.issues), ("check", counts.checks), ("state", counts.states)];
        let cache = store.cache_counts().map(|cache| CacheView {
            hits: cache.hits,
            misses: cache.misses,
            errors: cache.errors,
            owed: cache.owed as u64,
        });
        let is_open = |circuit: &Circuit| !matches!(circuit, Circuit::Closed);
        StoreView {
            devices: store.device_count(),
            queues: queues.into_iter().map(|(kind, queue)| (kind, queue_view(&queue))).collect(),
            circuits_open: store
                .circuits()
                .filter(|(_, counts)| is_open(&counts.circuit))
                .map(|(of, _)| of)
                .collect(),
            cache,
        }
    }
}

fn queue_view(queue: &QueueCounts) -> StoreQueueView {
    StoreQueueView {
        requests: queue.items,
        refused: queue.refused,
        timed_out: queue.timed_out,
        batches_failed: queue.failed,
        depth: queue.queued as u64,
    }
}

impl ClusterView {
    /// `None` without a cluster.
    pub(super) fn of(handle: &Handle) -> Option<Self> {
        let shared = handle.shared();
        let cluster = shared.cluster.as_ref()?;
        let front = handle.counters();
        let seen = shared.node.as_ref().map(|node| node.nodes_seen());
        let (same, different) = seen.map_or((0, vec![]), |seen| (seen.same, seen.different));
        let queue = cluster.queue_counts();
        let DurationCounts { buckets, .. } = cluster.broker().counts().round_trips;
        Some(ClusterView {
            broker_reachable: !shared.router.is_broker_lost(),
            nodes_same: same as u64,
            nodes_different: different,
            waiting: queue.waiting as u64,
            waiting_bytes: queue.waiting_bytes as u64,
            failed: queue.failed,
            refused: queue.refused,
            limits_reached: by_name(ClusterLimit::ALL, ClusterLimit::name, |of| {
                front.cluster_limits(of)
            }),
            round_trips: buckets.to_vec(),
        })
    }
}
