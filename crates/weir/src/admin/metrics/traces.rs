//! Metrics of traces.

use std::fmt;

use super::Gateway;
use super::families::Families;
use crate::observe::traces::SpanOutcome;

impl Gateway {
    pub(super) fn traces(&self, to: &mut Families<'_>) -> fmt::Result {
        let tracer = &self.handle.shared().tracer;
        to.counters(
            "weir_trace_spans",
            "Spans that ended, by what became of them.",
            SpanOutcome::ALL.map(|outcome| ([("outcome", outcome.name())], tracer.spans(outcome))),
        )?;
        to.gauge(
            "weir_trace_spans_waiting",
            "Spans that wait for their export.",
            tracer.waiting() as u64,
        )
    }
}
