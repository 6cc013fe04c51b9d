//! One fetch of an issuer's keys.

use std::time::Duration;

use http::header::{ACCEPT, AGE, CACHE_CONTROL};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use tokio::time::timeout;
use weir_upstream::{Outgoing, SendError, SendOptions};

use super::key_set::{self, KeySet, KeySetError};
use super::{FetchOutcome, Issuer};
use crate::backends::Backends;

/// Fetched keys, and how long they are fresh.
pub(super) struct Fetched {
    pub(super) set: KeySet,
    pub(super) fresh: Duration,
}

/// Why there are no keys.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    /// A reload removes upstream and issuer together, and is not yet at the issuer.
    #[error("there is no upstream {0:?}")]
    NoUpstream(String),
    #[error(transparent)]
    Send(SendError),
    #[error("no whole answer after {0:?} (fetch_timeout)")]
    TimedOut(Duration),
    #[error("the status is {0}, and not 200")]
    Status(StatusCode),
    #[error("the answer breaks off: {0}")]
    Broken(Box<dyn std::error::Error + Send + Sync>),
    #[error("the answer has more than {BYTES_MAX} bytes")]
    TooLarge,
    #[error(transparent)]
    Set(#[from] KeySetError),
}

impl Issuer {
    /// Errors: no answer, or one that is no key set.
    /// Cost: at most [`BYTES_MAX`] bytes for the answer.
    pub(super) async fn fetch(&self, backends: &Backends) -> Result<Fetched, FetchError> {
        let limit = self.config.fetch_timeout;
        let answer = timeout(limit, Box::pin(self.ask(backends))).await;
        let (headers, body) = answer.unwrap_or(Err(FetchError::TimedOut(limit)))?;
        let set = key_set::read(&body, self.demands())?;
        Ok(Fetched { set, fresh: self.fresh(&headers) })
    }

    async fn ask(&self, backends: &Backends) -> Result<(HeaderMap, Vec<u8>), FetchError> {
        let name = &self.config.upstream;
        let upstream = backends.get(name).ok_or_else(|| FetchError::NoUpstream(name.clone()))?;
        let mut request = Request::new(Outgoing::Whole(Default::default()));
        *request.uri_mut() = self.config.path.parse().expect("the path was checked");
        request.headers_mut().insert(ACCEPT, ACCEPTED);
        let sent = upstream.send(request, SendOptions::default()).await;
        let (head, body) = sent.map_err(FetchError::Send)?.into_parts();
        if head.status != StatusCode::OK {
            return Err(FetchError::Status(head.status));
        }
        let body =
            Limited::new(body, BYTES_MAX).collect().await.map_err(|error| match error
                .is::<LengthLimitError>(
            ) {
                true => FetchError::TooLarge,
                false => FetchError::Broken(error),
            })?;
        Ok((head.headers, body.to_bytes().into()))
    }

    /// How long an answer is fresh, within our own bounds.
    fn fresh(&self, headers: &HeaderMap) -> Duration {
        let config = &self.config;
        let said = fresh(headers).unwrap_or(config.refresh);
        said.min(config.refresh).max(config.fetch_interval)
    }
}

impl FetchError {
    pub(super) fn outcome(&self) -> FetchOutcome {
        match self {
            FetchError::NoUpstream(_) | FetchError::Send(_) | FetchError::Broken(_) => {
                FetchOutcome::Unreachable
            }
            FetchError::TimedOut(_) => FetchOutcome::TimedOut,
            FetchError::Status(_) => FetchOutcome::Status,
            FetchError::TooLarge | FetchError::Set(KeySetError::TooMany(_)) => {
                FetchOutcome::TooLarge
            }
            FetchError::Set(KeySetError::NoSet(_)) => FetchOutcome::Invalid,
        }
    }
}

/// The time that an answer says it is fresh, in our private cache (RFC 9111 sections 4.2 and 5.2.2).
fn fresh(headers: &HeaderMap) -> Option<Duration> {
    let values = headers.get_all(CACHE_CONTROL).iter().filter_map(|value| value.to_str().ok());
    let mut max_age = None;
    for directive in values.flat_map(|value| value.split(',')) {
        let (name, value) = directive.trim().split_once('=').unwrap_or((directive.trim(), ""));
        if name.eq_ignore_ascii_case("no-store") || name.eq_ignore_ascii_case("no-cache") {
            return Some(Duration::ZERO);
        }
        if name.eq_ignore_ascii_case("max-age") {
            max_age = value.trim_matches('"').parse::<u32>().ok();
        }
    }
    let number = |name| headers.get(name)?.to_str().ok()?.parse::<u32>().ok();
    let age: u32 = number(AGE).unwrap_or(0);
    max_age.map(|seconds| Duration::from_secs(seconds.saturating_sub(age).into()))
}

const ACCEPTED: http::HeaderValue =
    http::HeaderValue::from_static("application/jwk-set+json, application/json");
/// Sixteen RSA keys of 8192 bits, with their chains of certificates.
pub(super) const BYTES_MAX: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_how_long_it_is_fresh() {
        let check = |lines: &[(&str, &str)], expected: Option<u64>| {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                let name: http::HeaderName = name.parse().unwrap();
                headers.append(name, value.parse().unwrap());
            }
            assert_eq!(fresh(&headers), expected.map(Duration::from_secs), "{lines:?}");
        };
        check(&[], None);
        check(&[("cache-control", "public, max-age=600, must-revalidate")], Some(600));
        check(&[("cache-control", "public"), ("cache-control", "MAX-AGE=\"60\"")], Some(60));
        check(&[("cache-control", "max-age=600"), ("age", "100")], Some(500));
        check(&[("cache-control", "max-age=600"), ("age", "700")], Some(0));
        check(&[("cache-control", "max-age=600, no-store")], Some(0));
        check(&[("cache-control", "No-Cache")], Some(0));
        check(&[("cache-control", "max-age=soon")], None);
        check(&[("cache-control", "s-maxage=5")], None);
    }
}
