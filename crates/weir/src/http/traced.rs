//! The spans of requests that publish or activate, and of those that pass.

use http::{Request, StatusCode};

use crate::observe::access::ids::{Ids, Trace};
use crate::observe::traces::{Span, Tracer};

/// Begins the span of a request, if its trace is recorded.
///
/// Cost: a relaxed read without a collector.
pub(super) fn begin<B>(tracer: &Tracer, ids: &Ids, request: &Request<B>) -> Option<Span> {
    if !tracer.is_on() {
        return None;
    }
    let path = request.uri().path();
    let name = match path {
        "/v1/publish" => "publish",
        "/v1/devices/activate" | "/auth/gw/active" => "activate",
        "/v1/devices/token/refresh" => "refresh",
        _ => return None,
    };
    let mut span = tracer.begin(name, ids.trace().and_then(Trace::place))?;
    span.set("http.request.method", request.method().as_str());
    span.set("url.path", path);
    Some(span)
}

/// The same for a request that goes on to an upstream.
pub(super) fn begin_passed<B>(tracer: &Tracer, ids: &Ids, request: &Request<B>) -> Option<Span> {
    if !tracer.is_on() {
        return None;
    }
    let mut span = tracer.begin("proxy", ids.trace().and_then(Trace::place))?;
    span.set("http.request.method", request.method().as_str());
    span.set("url.path", request.uri().path());
    Some(span)
}

/// The request is answered.
pub(super) fn end(span: Option<Span>, status: StatusCode) {
    let Some(mut span) = span else { return };
    span.set("http.response.status_code", status.as_str());
    if !status.is_success() {
        span.fail(status.as_str());
    }
}
