//! The figures of the services that the gateway calls.

use serde::Serialize;
use utoipa::ToSchema;
use weir_upstream::{EndpointState, EndpointStatus, Status};

use super::counts::Counts;
use crate::base::clock::millis;

/// An upstream.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Upstream)]
pub(super) struct UpstreamView {
    name: String,
    requests: u64,
    /// Requests that ended without an answer, by kind.
    #[schema(value_type = BTreeMap<String, u64>)]
    failures: Counts,
    retries: u64,
    /// Tries that the retry budget did not permit.
    retries_refused: u64,
    /// Requests that wait for a place on a connection.
    waiting: u64,
    /// Requests that waited for a place until their deadline.
    waits_timed_out: u64,
    /// Why names have no records, or no new ones.
    name_problems: Vec<String>,
    /// Endpoints that are known, but beyond `endpoints_max`.
    endpoints_left_out: u64,
    endpoints: Vec<EndpointView>,
}

/// An endpoint of an upstream.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Endpoint)]
struct EndpointView {
    address: String,
    /// `available`, `set_aside` or `probing`.
    state: &'static str,
    /// How long it still gets no requests; `null` unless it is set aside.
    #[schema(required)]
    set_aside_ms: Option<u64>,
    in_flight: u64,
    connections: u64,
    connections_idle: u64,
    /// Tries that were sent to it.
    requests: u64,
    failures: u64,
    dial_failures: u64,
    /// How often it was set aside.
    ejections: u64,
    /// The decaying average by which endpoints are chosen; 0 if it is not known.
    latency_us: u64,
}

impl UpstreamView {
    pub(super) fn of((name, status): (String, Status)) -> Self {
        UpstreamView {
            name,
            requests: status.requests,
            failures: status.failures.by_kind().into_iter().collect(),
            retries: status.retries,
            retries_refused: status.retries_refused,
            waiting: status.waiting as u64,
            waits_timed_out: status.waiting_timed_out,
            name_problems: status.names.problems,
            endpoints_left_out: status.names.left_out,
            endpoints: status.endpoints.into_iter().map(EndpointView::of).collect(),
        }
    }
}

impl EndpointView {
    fn of(status: EndpointStatus) -> Self {
        let set_aside_ms = match status.state {
            EndpointState::SetAside(rest) => Some(millis(rest)),
            EndpointState::Available | EndpointState::Probing => None,
        };
        EndpointView {
            address: status.address,
            state: status.state.name(),
            set_aside_ms,
            in_flight: status.in_flight as u64,
            connections: status.connections as u64,
            connections_idle: status.connections_idle as u64,
            requests: status.requests,
            failures: status.failures,
            dial_failures: status.dial_failures,
            ejections: status.ejections,
            latency_us: status.latency_us,
        }
    }
}
