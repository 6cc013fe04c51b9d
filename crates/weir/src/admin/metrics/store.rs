//! The metrics of activations, and of the queues before the store.

use std::fmt;

use weir_store::{CacheCounts, Circuit, QueueCounts};

use super::Gateway;
use super::families::Families;
use crate::observe::counters::activation::ActivationOutcome;
use crate::provisioning::device_store::DeviceStore;

/// A family's name and help, and the number of a queue that it shows.
type Row<T> = (&'static str, &'static str, fn(&QueueCounts) -> T);

impl Gateway {
    pub(super) fn devices(&self, to: &mut Families<'_>) -> fmt::Result {
        let Some(devices) = self.handle.device_store() else { return Ok(()) };
        let activation = &self.handle.counters().activation;
        to.counters(
            "weir_activations",
            "Activations and refreshes of tokens, by what came of them; devices are not told one refusal from another.",
            ActivationOutcome::ALL
                .map(|outcome| ([("outcome", outcome.name())], activation.of(outcome))),
        )?;
        let counts = devices.counts();
        let queues = [("issue", counts.issues), ("check", counts.checks), ("state", counts.states)];
        let totals: [Row<u64>; 6] = [
            ("weir_store_requests", "What the store was to be asked.", |queue| queue.items),
            ("weir_store_batches", "Batches that went to the store.", |queue| queue.batches),
            ("weir_store_batches_failed", "Batches that it did not answer.", |queue| queue.failed),
            (
                "weir_store_requests_joined",
                "Those that were asked together with another one as one.",
                |queue| queue.joined,
            ),
            (
                "weir_store_requests_refused",
                "Those refused as store.queue_max waited already.",
                |queue| queue.refused,
            ),
            (
                "weir_store_requests_timed_out",
                "Those not answered within store.timeout.",
                |queue| queue.timed_out,
            ),
        ];
        for (name, help, count) in totals {
            to.counters(name, help, queues.map(|(kind, queue)| ([("kind", kind)], count(&queue))))?;
        }
        let levels: [Row<usize>; 3] = [
            ("weir_store_queue_depth", "Requests that wait for the store.", |queue| queue.queued),
            ("weir_store_queue_depth_peak", "The most that have waited.", |queue| {
                queue.queued_peak
            }),
            ("weir_store_batches_in_flight", "Batches on their way.", |queue| queue.in_flight),
        ];
        for (name, help, count) in levels {
            let values = queues.map(|(kind, queue)| ([("kind", kind)], count(&queue) as u64));
            to.gauges(name, help, values)?;
        }
        to.gauge(
            "weir_store_devices",
            "Devices in the store, as counted every few seconds.",
            devices.device_count(),
        )?;
        to.counter(
            "weir_store_seen_dropped",
            "Connects of devices of which the store was not told: too many at once, or it did not answer.",
            devices.seen_dropped(),
        )?;
        self.circuits(devices, to)?;
        match devices.cache_counts() {
            Some(cache) => cached(&cache, to),
            None => Ok(()),
        }
    }

    fn circuits(&self, devices: &DeviceStore, to: &mut Families<'_>) -> fmt::Result {
        let circuits: Vec<_> = devices.circuits().collect();
        if circuits.is_empty() {
            return Ok(());
        }
        to.gauges(
            "weir_store_circuit_open",
            "Whether a circuit breaker refuses what it is asked, or lets one through to see whether it may close.",
            circuits.iter().map(|(of, counts)| {
                ([("of", *of)], u64::from(!matches!(counts.circuit, Circuit::Closed)))
            }),
        )?;
        to.counters(
            "weir_store_circuit_opened",
            "How often it opened.",
            circuits.iter().map(|(of, counts)| ([("of", *of)], counts.opened)),
        )?;
        to.counters(
            "weir_store_circuit_requests",
            "What it was asked, by what came of it.",
            circuits.iter().flat_map(|(of, counts)| {
                [
                    ("succeeded", counts.succeeded),
                    ("failed", counts.failed),
                    ("refused", counts.refused),
                ]
                .map(|(outcome, count)| ([("of", *of), ("outcome", outcome)], count))
            }),
        )
    }
}

fn cached(cache: &CacheCounts, to: &mut Families<'_>) -> fmt::Result {
    to.counters(
        "weir_cache_lookups",
        "Tokens looked up in Redis, by what was found; stale ones were there, but older than what became of their device.",
        [
            ("hit", cache.hits),
            ("miss", cache.misses.saturating_sub(cache.stale)),
            ("stale", cache.stale),
        ]
        .map(|(outcome, count)| ([("outcome", outcome)], count)),
    )?;
    to.counter("weir_cache_errors", "Trips to Redis that failed.", cache.errors)?;
    to.gauge(
        "weir_cache_owed",
        "Devices of which Redis is still to be told that their tokens have ended.",
        cache.owed as u64,
    )
}
