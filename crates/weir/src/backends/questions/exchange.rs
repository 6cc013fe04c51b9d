//! One request to the upstream of a hook, and its answer.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use tokio::time::{Instant, timeout_at};
use weir_upstream::{Outgoing, SendError, SendOptions, TrySpans};

use super::answer::{Parsed, parse};
use super::{Errand, Settings};
use crate::backends::Backends;
use crate::backends::signature::{SIGNATURE, sign};
use crate::base::clock::{unix_millis, unix_time};
use crate::observe::counters::hooks::QuestionOutcome;

/// How a question failed, and a sentence about it for the log.
pub(super) type Failed = (QuestionOutcome, String);

/// Asks within the hook's time.
///
/// The request may reach a backend twice: a question changes nothing.
pub(super) async fn exchange(
    backends: &Backends,
    errand: &Errand,
    spans: Option<Arc<dyn TrySpans>>,
) -> Result<Parsed, Failed> {
    let Errand { hook, upstream, body, settings, .. } = errand;
    let timeout = settings.way(*hook).timeout;
    let deadline = Instant::now() + timeout;
    let Some(upstream) = backends.get(upstream) else {
        return Err((QuestionOutcome::Unreachable, "no upstream has this name".to_owned()));
    };
    let request = request(settings, errand, body.clone());
    let options = SendOptions {
        deadline: Some(deadline),
        idempotent: Some(true),
        spans,
        ..SendOptions::default()
    };
    let asked = async {
        let answer = upstream.send(request, options).await.map_err(|error| failed(&error))?;
        if answer.status() != StatusCode::OK {
            let why = format!("the status is {}", answer.status().as_u16());
            return Err((QuestionOutcome::Status, why));
        }
        let body = Limited::new(answer.into_body(), settings.answer_bytes_max).collect().await;
        body.map(|body| body.to_bytes()).map_err(|error| {
            if error.is::<LengthLimitError>() {
                let why = format!(
                    "the answer is longer than {} bytes (hooks.answer_bytes_max)",
                    settings.answer_bytes_max
                );
                return (QuestionOutcome::TooLong, why);
            }
            match error.downcast_ref() {
                Some(error) => failed(error),
                None => (QuestionOutcome::Unreachable, error.to_string()),
            }
        })
    };
    let body = timeout_at(deadline, asked).await.unwrap_or_else(|_| {
        Err((QuestionOutcome::TimedOut, format!("no answer after {timeout:?} (timeout)")))
    })?;
    parse(*hook, &body, unix_millis(), &settings.rules)
        .map_err(|why| (QuestionOutcome::Malformed, why))
}

fn request(settings: &Settings, errand: &Errand, body: Bytes) -> Request<Outgoing> {
    let signature =
        (!settings.secret.is_empty()).then(|| sign(&settings.secret, unix_time().as_secs(), &body));
    let mut request = Request::new(Outgoing::Whole(body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from(settings.way(errand.hook).path.clone());
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(signature) = signature {
        headers.insert(SIGNATURE, signature);
    }
    request
}

fn failed(error: &SendError) -> Failed {
    let outcome = match error.kind() {
        "timed_out" => QuestionOutcome::TimedOut,
        "full" => QuestionOutcome::Full,
        _ => QuestionOutcome::Unreachable,
    };
    (outcome, error.to_string())
}
