//! The metrics of the services that the gateway calls. Without `[[upstreams]]` there are none.

use std::fmt;

use prometheus_client::registry::Unit;
use weir_upstream::{EndpointState, EndpointStatus, Status};

use super::Gateway;
use super::families::Families;

/// A family's name and help, and the number of an upstream or an endpoint that it shows.
type Row<T> = (&'static str, &'static str, fn(&T) -> u64);

impl Gateway {
    pub(super) fn upstreams(&self, to: &mut Families<'_>) -> fmt::Result {
        let upstreams = self.handle.shared().backends.statuses();
        if upstreams.is_empty() {
            return Ok(());
        }
        for (name, help, count) in TOTALS {
            to.counters(name, help, upstreams.iter().map(|(of, it)| (named(of), count(it))))?;
        }
        to.counters(
            "weir_upstream_failures",
            "Requests that ended without an answer, by kind.",
            upstreams.iter().flat_map(|(of, it)| {
                let kinds = it.failures.by_kind();
                kinds.map(|(kind, count)| ([("upstream", of.as_str()), ("kind", kind)], count))
            }),
        )?;
        to.counters(
            "weir_upstream_lookup_failures",
            "Look-ups of names without records, by whether a DNS server has answered so.",
            upstreams.iter().flat_map(|(of, it)| {
                [("unanswered", it.names.failures), ("no_records", it.names.negatives)]
                    .map(|(kind, count)| ([("upstream", of.as_str()), ("kind", kind)], count))
            }),
        )?;
        to.counters(
            "weir_upstream_dial_failures",
            "Attempts to connect an endpoint, by the step that failed.",
            upstreams.iter().flat_map(|(of, it)| {
                it.dials
                    .failures_by_step()
                    .map(|(step, count)| ([("upstream", of.as_str()), ("step", step)], count))
            }),
        )?;
        for (name, help, count) in LEVELS {
            to.gauges(name, help, upstreams.iter().map(|(of, it)| (named(of), count(it))))?;
        }
        to.gauges(
            "weir_upstream_endpoints",
            "Endpoints, by whether they get requests.",
            upstreams.iter().flat_map(|(of, it)| {
                STATES.map(|state| {
                    let those = it.endpoints.iter().filter(|one| one.state.name() == state);
                    ([("upstream", of.as_str()), ("state", state)], those.count() as u64)
                })
            }),
        )?;
        endpoints(&upstreams, to)
    }
}

fn endpoints(upstreams: &[(String, Status)], to: &mut Families<'_>) -> fmt::Result {
    let each = || {
        upstreams.iter().flat_map(|(of, it)| {
            it.endpoints.iter().map(move |one| {
                ([("upstream", of.as_str()), ("endpoint", one.address.as_str())], one)
            })
        })
    };
    for (name, help, count) in ENDPOINT_TOTALS {
        to.counters(name, help, each().map(|(labels, one)| (labels, count(one))))?;
    }
    for (name, help, count) in ENDPOINT_LEVELS {
        to.gauges(name, help, each().map(|(labels, one)| (labels, count(one))))?;
    }
    to.gauges_in(
        "weir_upstream_endpoint_latency",
        &Unit::Seconds,
        "How long it takes until the head of an answer: the decaying average by which endpoints are chosen.",
        each().map(|(labels, one)| (labels, one.latency_us as f64 / 1e6)),
    )
}

fn named(upstream: &str) -> [(&'static str, &str); 1] {
    [("upstream", upstream)]
}

const TOTALS: [Row<Status>; 8] = [
    ("weir_upstream_requests", "Requests that were begun.", |it| it.requests),
    ("weir_upstream_retries", "Further tries of requests whose first try failed.", |it| it.retries),
    ("weir_upstream_retries_refused", "Tries that the retry budget did not permit.", |it| {
        it.retries_refused
    }),
    (
        "weir_upstream_waits_timed_out",
        "Requests that waited for a place until their deadline.",
        |it| it.waiting_timed_out,
    ),
    ("weir_upstream_lookups", "Look-ups of names that were begun.", |it| it.names.lookups),
    (
        "weir_upstream_stale_uses",
        "Requests that used records after their time, since no DNS server answered.",
        |it| it.names.stale_uses,
    ),
    ("weir_upstream_connects", "Connections that were made.", |it| it.dials.connected),
    (
        "weir_upstream_tls_reload_failures",
        "Changed TLS files that could not be used; the former ones stayed.",
        |it| it.dials.reload_failures,
    ),
];

const LEVELS: [Row<Status>; 2] = [
    ("weir_upstream_waiting", "Requests that wait for a place on a connection.", |it| {
        it.waiting as u64
    }),
    (
        "weir_upstream_endpoints_left_out",
        "Endpoints that are known, but beyond endpoints_max.",
        |it| it.names.left_out,
    ),
];

const ENDPOINT_TOTALS: [Row<EndpointStatus>; 4] = [
    ("weir_upstream_endpoint_requests", "Tries that were sent to it.", |one| one.requests),
    (
        "weir_upstream_endpoint_failures",
        "Tries that it failed: no connection, no answer in time, a broken one, or 502 to 504.",
        |one| one.failures,
    ),
    ("weir_upstream_endpoint_dial_failures", "How often it could not be connected.", |one| {
        one.dial_failures
    }),
    ("weir_upstream_endpoint_ejections", "How often it was set aside.", |one| one.ejections),
];

const ENDPOINT_LEVELS: [Row<EndpointStatus>; 3] = [
    ("weir_upstream_endpoint_in_flight", "Requests that it works on.", |one| one.in_flight as u64),
    ("weir_upstream_endpoint_connections", "Connections that are open or being opened.", |one| {
        one.connections as u64
    }),
    ("weir_upstream_endpoint_connections_idle", "Open connections without a request.", |one| {
        one.connections_idle as u64
    }),
];

const STATES: [&str; 3] = [
    EndpointState::Available.name(),
    EndpointState::SetAside(std::time::Duration::ZERO).name(),
    EndpointState::Probing.name(),
];
