//! Metrics of a node in a cluster. Without one there are none.

use std::fmt;

use super::Gateway;
use super::families::Families;
use crate::Following;

impl Gateway {
    pub(super) fn cluster(&self, to: &mut Families<'_>) -> fmt::Result {
        let shared = self.handle.shared();
        let Some(cluster) = &shared.cluster else { return Ok(()) };
        let front = self.handle.counters();
        to.gauge(
            "weir_broker_reachable",
            "Whether the broker of the cluster can be reached: 1, or 0.",
            u64::from(!shared.router.is_broker_lost()),
        )?;
        to.counters(
            "weir_cluster_messages",
            "Messages of topics of the cluster on this node, by what happened to them.",
            Following::ALL.map(|what| ([("outcome", what.name())], front.following(what))),
        )?;
        let queue = cluster.queue_counts();
        to.gauge(
            "weir_broker_waiting",
            "Messages that wait for the broker, those on their way included (cluster.waiting_max).",
            queue.waiting as u64,
        )?;
        to.gauge(
            "weir_broker_waiting_bytes",
            "Bytes of these messages (cluster.waiting_bytes_max).",
            queue.waiting_bytes as u64,
        )?;
        to.counter("weir_broker_offered", "Messages handed to the broker.", queue.entries)?;
        to.counter(
            "weir_broker_refused",
            "Messages not handed to the broker because too many waited.",
            queue.refused,
        )?;
        to.counter(
            "weir_broker_failed",
            "Messages that the broker has not accepted, or not in time.",
            queue.failed,
        )?;
        to.counter("weir_broker_calls", "Calls of the broker to publish.", queue.calls)?;
        to.counter(
            "weir_broker_batches",
            "Batches in these calls, each of one topic.",
            queue.batches,
        )?;
        to.counter(
            "weir_broker_retries",
            "Batches that were sent again because an attempt had failed.",
            queue.retries,
        )
    }
}
