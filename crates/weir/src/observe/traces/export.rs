//! What the exporter sends and hears: batches of spans, and the collector's verdict.

use std::time::Duration;

use prost::Message as _;
use tokio::time::{Instant, timeout_at};

use super::SpanOutcome;
use super::message::{ExportAnswer, request};
use super::on::{Finished, Tracer};

/// Spans that leave together, encoded.
pub(crate) struct Batch {
    pub(crate) body: Vec<u8>,
    pub(crate) spans: usize,
}

impl Tracer {
    /// Waits for spans: until there are [`BATCH_MAX`], or this time after the first.
    pub(crate) async fn batch(&self, service: &str, gather: Duration) -> Batch {
        let mut waiting = self.waiting.lock().await;
        let mut spans: Vec<Finished> = Vec::new();
        waiting.recv_many(&mut spans, BATCH_MAX).await;
        let until = Instant::now() + gather;
        while spans.len() < BATCH_MAX {
            let room = BATCH_MAX - spans.len();
            if timeout_at(until, waiting.recv_many(&mut spans, room)).await.is_err() {
                break;
            }
        }
        let count = spans.len();
        Batch { body: request(service, spans), spans: count }
    }

    /// The collector has taken a batch. Its answer may say that it refuses some of the spans.
    pub(crate) fn note_taken(&self, batch: &Batch, answer: &[u8]) -> Option<String> {
        let partial = ExportAnswer::decode(answer).ok().and_then(|answer| answer.partial_success);
        let partial = partial.unwrap_or_default();
        let refused = usize::try_from(partial.rejected_spans).unwrap_or(0).min(batch.spans);
        self.counts.count(SpanOutcome::Refused, refused);
        self.counts.count(SpanOutcome::Exported, batch.spans - refused);
        (refused > 0).then_some(partial.error_message)
    }

    /// A batch is lost.
    pub(crate) fn note_lost(&self, batch: &Batch, outcome: SpanOutcome) {
        self.counts.count(outcome, batch.spans);
    }
}

/// Some 200 KB with long names.
const BATCH_MAX: usize = 512;
