//! Traces of what callers ask: spans for an OpenTelemetry collector.
//!
//! A span is made only if its trace is recorded, and then waits in a bounded queue for the exporter
//! (`gateway/traces.rs`). Without the feature `otlp` there are no spans, and nothing here has a cost.

#[cfg(feature = "otlp")]
pub(crate) mod export;
#[cfg(feature = "otlp")]
mod message;
#[cfg(not(feature = "otlp"))]
mod off;
#[cfg(feature = "otlp")]
mod on;
#[cfg(feature = "otlp")]
mod tries;

#[cfg(not(feature = "otlp"))]
pub(crate) use off::{Span, Tracer};
#[cfg(feature = "otlp")]
pub(crate) use on::{Span, SpanOutcome, Tracer};

use std::sync::Arc;

use weir_upstream::TrySpans;

/// The place of a request in a trace that began elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) trace: [u8; 16],
    /// The span of the request's sender.
    pub(crate) parent: [u8; 8],
    /// The request's own span, if it has one already.
    pub(crate) span: Option<[u8; 8]>,
    pub(crate) is_sampled: bool,
}

/// Who waits for the work of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpanKind {
    /// This gateway.
    Internal,
    /// Somebody who has asked it.
    #[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "there are no spans"))]
    Server,
    /// This gateway, for another service.
    #[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "there are no spans"))]
    Client,
}

/// What records the tries of a request to an upstream as children of this span.
pub(crate) fn tries_of(span: &Option<Span>) -> Option<Arc<dyn TrySpans>> {
    span.as_ref().map(Span::tries)
}

/// Says in a span what it belongs to.
pub(crate) fn note(span: &mut Option<Span>, key: &'static str, value: &str) {
    if let Some(span) = span {
        span.set(key, value);
    }
}

/// Says in the span of a message where it goes.
pub(crate) fn note_topic(span: &mut Option<Span>, topic: &str) {
    if let Some(span) = span {
        span.set("messaging.destination.name", topic);
    }
}

/// Says in a span why its work has failed, if it has.
pub(crate) fn note_failure(span: &mut Option<Span>, error: Option<&str>) {
    if let (Some(span), Some(error)) = (span, error) {
        span.fail(error);
    }
}
