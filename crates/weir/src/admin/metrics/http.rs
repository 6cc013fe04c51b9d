//! The metrics of HTTP.

use std::fmt;

use prometheus_client::registry::Unit;

use super::Gateway;
use super::families::Families;
use crate::limits::http_ledger::NoShare;
use crate::observe::counters::http::{Dialect, Discarded, End};
use crate::observe::counters::routes::RouteFailure;

impl Gateway {
    pub(super) fn http(&self, to: &mut Families<'_>) -> fmt::Result {
        let counts = &self.handle.counters().http;
        to.counters(
            "weir_http_requests",
            "Requests answered on listen.http and listen.https, by version and class of the status.",
            counts.requests().map(|(version, class, count)| {
                ([("version", version), ("status", class)], count)
            }),
        )?;
        to.gauges(
            "weir_http_connections",
            "Connections that HTTP is spoken on, by version.",
            Dialect::ALL
                .map(|dialect| ([("version", dialect.name())], counts.connections(dialect) as u64)),
        )?;
        to.counters(
            "weir_http_connections_ended",
            "Connections that HTTP was spoken on, by how that ended.",
            End::ALL.map(|end| ([("cause", end.name())], counts.ended(end))),
        )?;
        to.counters(
            "weir_http_discarded",
            "Bodies that were refused while they came, and thrown away so that the refusal arrives, by how that ended.",
            Discarded::ALL
                .map(|outcome| ([("outcome", outcome.name())], counts.discarded(outcome))),
        )?;
        self.routes(to)?;
        self.http_memory(to)
    }

    fn routes(&self, to: &mut Families<'_>) -> fmt::Result {
        let routes = self.handle.counters().routes.all();
        let answers = routes.iter().flat_map(|route| {
            route
                .answers()
                .map(|(class, count)| ([("route", route.name()), ("status", class)], count))
        });
        to.counters(
            "weir_route_requests",
            "Requests answered on routes to upstreams, by route (host and prefix) and class of the status.",
            answers,
        )?;
        let failures = routes.iter().flat_map(|route| {
            RouteFailure::ALL.map(|cause| {
                ([("route", route.name()), ("cause", cause.name())], route.failures(cause))
            })
        });
        to.counters(
            "weir_route_failures",
            "Requests on routes to upstreams that were refused, got no answer, or whose answers broke off, by route and cause.",
            failures,
        )?;
        to.gauges(
            "weir_route_requests_in_progress",
            "Requests on routes to upstreams whose answers have not left, WebSockets included, by route.",
            routes.iter().map(|route| ([("route", route.name())], route.in_progress() as u64)),
        )?;
        to.gauges(
            "weir_route_tunnels",
            "Open WebSockets to upstreams, by route.",
            routes.iter().map(|route| ([("route", route.name())], route.tunnels() as u64)),
        )
    }

    fn http_memory(&self, to: &mut Families<'_>) -> fmt::Result {
        let share = &self.handle.shared().http_share;
        to.gauge_in(
            "weir_http_charged",
            &Unit::Bytes,
            "The part of the byte budget that HTTP uses: requests in progress and read buffers over HTTP/2, and long answers that have not left.",
            share.used() as u64,
        )?;
        to.gauge(
            "weir_http_charged_bytes_max",
            "The most that weir_http_charged_bytes may be.",
            share.bytes_max() as u64,
        )?;
        to.counters(
            "weir_http_room_refused",
            "Requests over HTTP/2 and long answers that were refused for lack of room, by the limit: http.answer_bytes_max of \
             the connection, HTTP's share of the byte budget, or the budget.",
            NoShare::ALL.map(|cause| ([("cause", cause.name())], share.refused(cause))),
        )?;
        to.counter(
            "weir_http_streams_reset",
            "Streams of HTTP/2 that were reset because their answers made no progress for connection.stall_timeout.",
            share.streams_reset(),
        )
    }
}
