//! Spans for the tries of requests to upstreams.

use std::fmt::Write as _;
use std::sync::Arc;

use http::{HeaderValue, StatusCode};
use tokio::sync::mpsc;
use weir_upstream::{SendError, TrySpan, TrySpans};

use super::SpanKind;
use super::on::{Counts, Finished, Span, new_span};
use crate::base::clock::unix_time;

/// Makes the spans of a request's tries.
#[derive(Debug)]
struct Tries {
    trace: [u8; 16],
    /// The span that waits for the request.
    parent: [u8; 8],
    queue: mpsc::Sender<Finished>,
    counts: Arc<Counts>,
}

impl Span {
    /// What records the tries of a request to an upstream as children of this span.
    pub(crate) fn tries(&self) -> Arc<dyn TrySpans> {
        let begun = self.begun.as_ref().expect("it is taken when the span is dropped");
        let (queue, counts) = (self.queue.clone(), Arc::clone(&self.counts));
        Arc::new(Tries { trace: begun.trace, parent: begun.span, queue, counts })
    }
}

impl TrySpans for Tries {
    fn begin(&self, endpoint: &str) -> Box<dyn TrySpan> {
        let began = unix_time();
        let begun = Finished {
            name: "try",
            kind: SpanKind::Client,
            trace: self.trace,
            span: new_span(),
            parent: Some(self.parent),
            began,
            ended: began,
            attributes: Vec::new(),
            error: Some(GIVEN_UP.to_owned()),
        };
        let (queue, counts) = (self.queue.clone(), Arc::clone(&self.counts));
        let mut span = Span { begun: Some(Box::new(begun)), queue, counts };
        span.set("server.address", endpoint);
        Box::new(span)
    }
}

impl TrySpan for Span {
    fn traceparent(&self) -> HeaderValue {
        let mut text = String::with_capacity(55);
        if let Some(begun) = &self.begun {
            let (trace, span) = (u128::from_be_bytes(begun.trace), u64::from_be_bytes(begun.span));
            // Writing to a `String` cannot fail.
            let _ = write!(text, "00-{trace:032x}-{span:016x}-01");
        }
        HeaderValue::try_from(text).expect("digits are visible")
    }

    fn end(mut self: Box<Self>, outcome: Result<StatusCode, &SendError>) {
        if let Some(begun) = &mut self.begun {
            begun.error = None;
        }
        match outcome {
            Ok(status) => {
                self.set("http.response.status_code", status.as_str());
                if status.is_client_error() || status.is_server_error() {
                    self.fail(status.as_str());
                }
            }
            Err(error) => self.fail(error.kind()),
        }
    }
}

/// The caller did not wait for the try.
const GIVEN_UP: &str = "given_up";
