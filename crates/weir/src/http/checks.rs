//! Checks of every head, with refusals that cost nothing to make.

use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version};
use hyper::body::Incoming;

use super::body::Answer;
use crate::base::host::Host;
use crate::base::origin::default_port;
use crate::http::web::body::is_chunked_alone;

/// A refusal with a fixed text.
pub(super) struct Refusal {
    status: StatusCode,
    document: &'static str,
    allow: Option<&'static str>,
}

impl Refusal {
    pub(super) fn answer(&self) -> Response<Answer> {
        let mut answer = Response::new(Answer::text(self.document));
        *answer.status_mut() = self.status;
        let headers: &mut HeaderMap = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        answer
    }
}

/// A request names one well-formed host (RFC 9112 section 3.2, RFC 9113 section 8.3.1). HTTP/1.0
/// need not.
pub(super) fn check_host(request: &Request<Incoming>) -> Result<(), &'static Refusal> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let (header, None) = (hosts.next(), hosts.next()) else { return Err(&BAD_HOST) };
    let target = match request.uri().authority() {
        Some(target) => Some(Host::parse(target.as_str()).ok_or(&BAD_HOST)?),
        None => None,
    };
    let is_named = match header.map(HeaderValue::to_str) {
        // If the target has no host, an HTTP/1.1 request has an empty header.
        Some(Ok("")) => request.version() != Version::HTTP_2,
        Some(Ok(text)) => Host::parse(text).is_some_and(|host| match target {
            Some(target) if request.version() == Version::HTTP_2 => {
                is_same(request, &host, &target)
            }
            Some(_) | None => true,
        }),
        Some(Err(_)) => false,
        None => match request.version() {
            Version::HTTP_11 => false,
            Version::HTTP_2 => target.is_some(),
            _ => true,
        },
    };
    is_named.then_some(()).ok_or(&BAD_HOST)
}

/// Whether both hosts name the same server. A missing port is that of the request's scheme.
fn is_same(request: &Request<Incoming>, one: &Host<'_>, other: &Host<'_>) -> bool {
    let port = request.uri().scheme_str().and_then(default_port);
    one.has_name_of(other) && one.port().or(port) == other.port().or(port)
}

/// Refuses every transfer coding except `chunked` (RFC 9112 section 6.1).
pub(super) fn check_coding(request: &Request<Incoming>) -> Result<(), &'static Refusal> {
    is_chunked_alone(request.headers()).then_some(()).ok_or(&UNKNOWN_CODING)
}

static BAD_HOST: Refusal = Refusal {
    status: StatusCode::BAD_REQUEST,
    document: r#"{"type":"urn:problem-type:weir:invalid-request","title":"The request is invalid","status":400,"detail":"a request names exactly one host: a host name or an address, and an optional port","field":"Host"}"#,
    allow: None,
};

static UNKNOWN_CODING: Refusal = Refusal {
    status: StatusCode::NOT_IMPLEMENTED,
    document: r#"{"type":"urn:problem-type:weir:unknown-coding","title":"The transfer coding is not known","status":501,"detail":"this server knows only the transfer coding chunked, used once","field":"Transfer-Encoding"}"#,
    allow: None,
};
