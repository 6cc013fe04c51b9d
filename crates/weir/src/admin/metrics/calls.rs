//! Metrics of calls.

use std::fmt;

use prometheus_client::registry::Unit;

use super::Gateway;
use super::families::{Families, Histogram};
use crate::observe::counters::calls::{CallDirection, CallLimit, CallOutcome};

impl Gateway {
    pub(super) fn calls(&self, to: &mut Families<'_>) -> fmt::Result {
        let (counts, calls) = (&self.handle.counters().calls, &self.handle.shared().calls);
        let direction = |direction: CallDirection| ("direction", direction.name());
        to.gauges(
            "weir_calls_in_flight",
            "Calls that go on, by the side that is called.",
            CallDirection::ALL.map(|to| ([direction(to)], counts.in_flight(to) as u64)),
        )?;
        let ended = |to: CallDirection| {
            CallOutcome::ALL.map(|outcome| {
                ([direction(to), ("outcome", outcome.name())], counts.ended(to, outcome))
            })
        };
        to.counters(
            "weir_calls",
            "Calls that have ended or were refused, by the side that was called, and how.",
            CallDirection::ALL.into_iter().flat_map(ended),
        )?;
        let limited = |to: CallDirection| {
            CallLimit::ALL
                .map(|limit| ([direction(to), ("limit", limit.name())], counts.limited(to, limit)))
        };
        to.counters(
            "weir_calls_limited",
            "Calls that were refused because a limit was reached, by that limit.",
            CallDirection::ALL.into_iter().flat_map(limited),
        )?;
        to.counters(
            "weir_call_answers_late",
            "Answers that nobody waited for any more.",
            CallDirection::ALL.map(|to| ([direction(to)], counts.late_answers(to))),
        )?;
        to.gauge_in(
            "weir_call_payloads",
            &Unit::Bytes,
            "Bytes of the payloads of calls that go on (calls.payload_bytes_max).",
            calls.payload_bytes() as u64,
        )?;
        let times = CallDirection::ALL.map(|to| (to, Histogram::of(counts.times(to))));
        to.histograms(
            "weir_call_duration",
            "Time from a call to its end.",
            times.iter().map(|(to, times)| ([direction(*to)], times)),
        )?;
        let routes = calls.routes();
        if routes.is_empty() {
            return Ok(());
        }
        to.gauges(
            "weir_call_route_in_flight",
            "Calls of devices that go on, by route.",
            routes.iter().map(|route| ([("route", &*route.method)], route.in_flight() as u64)),
        )?;
        to.counters(
            "weir_call_route_begun",
            "Calls of devices that were begun, by route.",
            routes.iter().map(|route| ([("route", &*route.method)], route.begun())),
        )
    }
}
