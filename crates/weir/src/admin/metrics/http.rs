//! The metrics of HTTP.

use std::fmt;

use super::Gateway;
use super::families::Families;
use crate::http::counts::{Dialect, Discarded, End};

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
        )
    }
}
