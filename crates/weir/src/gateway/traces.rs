//! Exporting traces: batches of spans go to a collector, over an upstream (OTLP/HTTP with protobuf).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use tokio::time::{Instant, sleep, timeout_at};
use tracing::{info, warn};
use weir_upstream::{Outgoing, SendOptions};

use crate::base::config::TelemetryConfig;
use crate::core::state::SharedState;
use crate::observe::traces::SpanOutcome;
use crate::observe::traces::export::Batch;

/// Why the collector does not have a batch.
enum Failure {
    /// It may take the batch later.
    Later(String, Option<Duration>),
    /// It will not take it.
    Never(String),
}

/// Exports spans for ever. One batch is on its way at a time; spans wait in the queue meanwhile.
pub(super) async fn export(shared: Arc<SharedState>) {
    let mut is_troubled = false;
    loop {
        let config = shared.config().telemetry.clone();
        let batch = shared.tracer.batch(&config.service_name, config.flush_interval).await;
        let sent = Box::pin(send(&shared, &batch)).await;
        match &sent {
            Ok(answer) => {
                if let Some(why) = shared.tracer.note_taken(&batch, answer) {
                    warn!(why, "the collector has refused some spans");
                }
            }
            Err(Failure::Later(why, _)) => {
                shared.tracer.note_lost(&batch, SpanOutcome::Failed);
                if !is_troubled {
                    warn!(why, "traces cannot be exported");
                }
            }
            Err(Failure::Never(why)) => {
                shared.tracer.note_lost(&batch, SpanOutcome::Refused);
                if !is_troubled {
                    warn!(why, "the collector refuses traces");
                }
            }
        }
        if is_troubled && sent.is_ok() {
            info!("traces are exported again");
        }
        is_troubled = sent.is_err();
    }
}

/// Sends a batch, again if need be, until `telemetry.timeout`. The configuration may change
/// meanwhile.
async fn send(shared: &SharedState, batch: &Batch) -> Result<Bytes, Failure> {
    let until = Instant::now() + shared.config().telemetry.timeout;
    let mut wait = RETRY_MIN;
    loop {
        let config = shared.config().telemetry.clone();
        let sent = timeout_at(until, Box::pin(try_once(shared, &config, batch))).await;
        let late = || Failure::Later("no answer in time (telemetry.timeout)".to_owned(), None);
        let (why, asked) = match sent.unwrap_or_else(|_| Err(late())) {
            Err(Failure::Later(why, asked)) => (why, asked),
            ended => return ended,
        };
        let pause = asked.unwrap_or(wait);
        if Instant::now() + pause >= until {
            return Err(Failure::Later(why, None));
        }
        sleep(pause).await;
        wait = RETRY_MAX.min(2 * wait);
    }
}

async fn try_once(
    shared: &SharedState,
    config: &TelemetryConfig,
    batch: &Batch,
) -> Result<Bytes, Failure> {
    let later = |why: String| Failure::Later(why, None);
    let Some(upstream) = shared.backends.get(&config.upstream) else {
        return Err(Failure::Never("telemetry.upstream is empty now".to_owned()));
    };
    let mut request = Request::new(Outgoing::Whole(batch.body.clone().into()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = config.path.parse().expect("the path was checked");
    request.headers_mut().insert(CONTENT_TYPE, PROTOBUF);
    // A collector that gets spans twice knows them by their ids.
    let options = SendOptions { idempotent: Some(true), ..SendOptions::default() };
    let answer = upstream.send(request, options).await.map_err(|error| later(error.to_string()))?;
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
    let status = head.status;
    if status.is_success() {
        // What it says beyond its status is only for the log.
        return Ok(body.map(|body| body.to_bytes()).unwrap_or_default());
    }
    let why = format!("the collector answers with {status}");
    match status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Err(Failure::Later(why, retry_after(&head.headers))),
        _ => Err(Failure::Never(why)),
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse::<u32>().ok()?;
    Some(Duration::from_secs(seconds.into()))
}

const PROTOBUF: HeaderValue = HeaderValue::from_static("application/x-protobuf");
const ANSWER_BYTES_MAX: usize = 64 * 1024;
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(5);
