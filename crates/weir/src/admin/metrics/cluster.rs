//! Metrics of a node in a cluster. Without one there are none.

use std::fmt;
use std::time::Duration;

use weir_broker::{BrokerCounts, QueueCounts};

use super::Gateway;
use super::families::{Families, Histogram};
use crate::core::node::Backlog;
use crate::observe::counters::tls::{SessionLookup, SessionSharing};
use crate::{ClusterLimit, Counters, EpochOutcome, Following, FromBroker};

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
        let since = Duration::from_millis(shared.router.broker_since_ms());
        to.duration(
            "weir_broker_since",
            "When the broker was lost or came back last, or this node started, in seconds since 1970.",
            since,
        )?;
        to.counters(
            "weir_cluster_limits_reached",
            "How often a limit on what waits for the broker, or for other nodes, was reached.",
            ClusterLimit::ALL.map(|limit| ([("limit", limit.name())], front.cluster_limits(limit))),
        )?;
        self.nodes(to)?;
        to.counters(
            "weir_cluster_messages",
            "Messages of topics of the cluster on this node, by what happened to them.",
            Following::ALL.map(|what| ([("outcome", what.name())], front.following(what))),
        )?;
        to.counters(
            "weir_cluster_epochs",
            "New epochs of topics of the cluster on this node, by whether offsets go on behind what it had got.",
            EpochOutcome::ALL.map(|what| ([("offsets", what.name())], front.epoch_changes(what))),
        )?;
        to.counter(
            "weir_cluster_resume_reads",
            "Parts of resumes that were read from the broker, as this node retains less than the broker.",
            front.resume_reads(),
        )?;
        to.counter(
            "weir_cluster_history_reads",
            "Parts of histories that were read from the broker, as this node retains less, or does not follow the topic.",
            front.history_reads(),
        )?;
        to.counters(
            "weir_cluster_direct_messages",
            "Messages to devices and to all that the broker has brought to this node, by what happened to them.",
            FromBroker::ALL.map(|what| ([("outcome", what.name())], front.from_broker(what))),
        )?;
        sessions(front, to)?;
        queue(&cluster.queue_counts(), to)?;
        to.histogram(
            "weir_broker_publish",
            "From the acceptance of a message on this node to the broker's answer, of those that were published.",
            &Histogram::of_broker(&cluster.publish_durations()),
        )?;
        broker(&cluster.broker().counts(), to)
    }

    /// What waits for other nodes, and how many of them there are.
    fn nodes(&self, to: &mut Families<'_>) -> fmt::Result {
        let shared = self.handle.shared();
        let Some(node) = &shared.node else { return Ok(()) };
        let Backlog { messages, claims, releases, questions, answers } =
            node.backlog(&shared.devices);
        let waiting = [
            (ClusterLimit::Subscriptions, shared.router.parked_count()),
            (ClusterLimit::Messages, messages),
            (ClusterLimit::Claims, claims),
            (ClusterLimit::Releases, releases),
            (ClusterLimit::Questions, questions),
            (ClusterLimit::Answers, answers),
        ];
        to.gauges(
            "weir_cluster_waiting",
            "What waits for the broker, or for other nodes, beside messages to topics.",
            waiting.map(|(limit, count)| ([("what", limit.name())], count as u64)),
        )?;
        let seen = node.nodes_seen();
        to.gauges(
            "weir_cluster_nodes",
            "Nodes that lived when this one last looked, by whether they have the same topic_classes.",
            [("same", seen.same as u64), ("different", seen.different.len() as u64)]
                .map(|(settings, count)| ([("settings", settings)], count)),
        )
    }
}

fn sessions(front: &Counters, to: &mut Families<'_>) -> fmt::Result {
    to.counters(
        "weir_tls_session_lookups",
        "TLS 1.2 sessions that other nodes may have stored, by what became of the look-up.",
        SessionLookup::ALL
            .map(|outcome| ([("outcome", outcome.name())], front.tls.session_lookups(outcome))),
    )?;
    to.counters(
        "weir_tls_sessions_shared",
        "New TLS 1.2 sessions for all nodes, by what became of them.",
        SessionSharing::ALL
            .map(|outcome| ([("outcome", outcome.name())], front.tls.sessions_shared(outcome))),
    )
}

fn queue(queue: &QueueCounts, to: &mut Families<'_>) -> fmt::Result {
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
    to.counter("weir_broker_batches", "Batches in these calls, each of one topic.", queue.batches)?;
    to.counter(
        "weir_broker_retries",
        "Batches that were sent again because an attempt had failed.",
        queue.retries,
    )
}

fn broker(counts: &BrokerCounts, to: &mut Families<'_>) -> fmt::Result {
    to.histogram(
        "weir_broker_round_trip",
        "From the sending of some commands to the broker to its last answer.",
        &Histogram::of_broker(&counts.round_trips),
    )?;
    to.counters(
        "weir_broker_commands",
        "Commands sent to the broker, by kind.",
        counts.commands.iter().map(|(kind, count)| ([("kind", *kind)], *count)),
    )?;
    to.counter("weir_broker_pipelines", "Pipelines in which they left.", counts.pipelines)?;
    to.counter(
        "weir_broker_connects",
        "Connections made to the broker, the first ones included.",
        counts.connects,
    )?;
    to.counter(
        "weir_broker_resubscriptions",
        "Subscriptions at the broker that were made again after an interruption.",
        counts.resubscriptions,
    )?;
    to.counter(
        "weir_broker_probes_missed",
        "Messages to itself that this node did not hear in time; after two it connects anew.",
        counts.probes_missed,
    )?;
    to.gauge(
        "weir_broker_evicting",
        "Servers of the broker that may remove keys when their memory is full (maxmemory-policy).",
        counts.evicting,
    )?;
    to.counter(
        "weir_broker_unknown_messages",
        "Messages of the broker that this node did not understand, as another version wrote them.",
        counts.unknown_messages,
    )
}
