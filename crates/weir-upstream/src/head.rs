//! The head of a request, as each try sends it.

use std::time::Duration;

use http::header::{CONTENT_TYPE, HOST, HeaderName, UPGRADE};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Method, Request, Uri, Version};

use crate::endpoint::Target;
use crate::outgoing::Kept;
use crate::settings::Protocol;
use crate::trace::traceparent;

/// A request before its first try.
pub(crate) struct Template {
    /// `None`: the last try has it.
    head: Option<Parts>,
    pub(crate) body: Kept,
    own_host: Option<HeaderValue>,
    callers_trace: Option<HeaderValue>,
    is_grpc: bool,
    pub(crate) may_upgrade: bool,
}

/// What differs from try to try.
pub(crate) struct Try<'a> {
    pub(crate) target: &'a Target,
    pub(crate) protocol: Protocol,
    pub(crate) scheme: Scheme,
    /// How long the try may take until the head of its answer.
    pub(crate) timeout: Duration,
    /// How long the caller waits for all of a gRPC call, if it says so.
    pub(crate) grpc_timeout: Option<Duration>,
    /// The `traceparent` that it sends.
    pub(crate) trace: Option<HeaderValue>,
    /// There will be no other.
    pub(crate) is_last: bool,
}

impl Template {
    pub(crate) fn new(head: Parts, body: Kept, callers_trace: Option<HeaderValue>) -> Template {
        let kind = head.headers.get(CONTENT_TYPE);
        let is_grpc = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        let may_upgrade = head.method == Method::CONNECT || head.headers.contains_key(UPGRADE);
        let own_host = head.headers.get(HOST).cloned();
        Template { head: Some(head), body, own_host, callers_trace, is_grpc, may_upgrade }
    }

    /// Whether the request may reach a backend twice (RFC 9110 section 9.2.2).
    pub(crate) fn is_idempotent(&self) -> bool {
        self.head.as_ref().is_some_and(|head| head.method.is_idempotent())
    }

    /// The `traceparent` of a try whose span has this id.
    pub(crate) fn trace(&self, span: u64) -> Option<HeaderValue> {
        traceparent(self.callers_trace.as_ref()?, span)
    }

    /// The request of a try.
    ///
    /// Errors: `None` if host or path make no URI.
    pub(crate) fn make(&mut self, this: &Try<'_>) -> Option<Request<crate::outgoing::TryBody>> {
        let mut head = if this.is_last { self.head.take()? } else { self.head.clone()? };
        match this.protocol {
            Protocol::Http1 => self.for_http1(&mut head, this),
            Protocol::Http2 => self.for_http2(&mut head, this)?,
        }
        if !self.is_grpc {
            head.headers.insert(DEADLINE, HeaderValue::from(millis(this.timeout)));
        } else if let Some(timeout) = this.grpc_timeout {
            let theirs = head.headers.get(GRPC_TIMEOUT).and_then(read_grpc_timeout);
            if theirs.is_none_or(|theirs| timeout < theirs) {
                // The format has eight digits.
                let text = format!("{}m", millis(timeout).min(99_999_999));
                head.headers.insert(GRPC_TIMEOUT, HeaderValue::from_str(&text).ok()?);
            }
        }
        if let Some(trace) = &this.trace {
            head.headers.insert(TRACEPARENT, trace.clone());
        }
        Some(Request::from_parts(head, self.body.lend()))
    }

    /// A connection has given the request back before it began.
    pub(crate) fn restore(&mut self, request: Request<crate::outgoing::TryBody>) {
        // Dropping the body brings it back.
        let (head, _) = request.into_parts();
        self.head.get_or_insert(head);
    }

    fn for_http1(&self, head: &mut Parts, this: &Try<'_>) {
        head.version = Version::HTTP_11;
        if head.uri.authority().is_some() && head.method != Method::CONNECT {
            let path = head.uri.path_and_query().cloned();
            head.uri = Uri::from(path.unwrap_or(PathAndQuery::from_static("/")));
        }
        let host = self.own_host.as_ref().unwrap_or(&this.target.host);
        head.headers.insert(HOST, host.clone());
    }

    fn for_http2(&self, head: &mut Parts, this: &Try<'_>) -> Option<()> {
        head.version = Version::HTTP_2;
        let authority = match &self.own_host {
            Some(host) => Authority::try_from(host.as_bytes()).ok()?,
            None => this.target.authority.clone(),
        };
        head.headers.remove(HOST);
        let mut uri = std::mem::take(&mut head.uri).into_parts();
        uri.scheme = Some(this.scheme.clone());
        uri.authority = Some(authority);
        uri.path_and_query.get_or_insert(PathAndQuery::from_static("/"));
        head.uri = Uri::from_parts(uri).ok()?;
        Some(())
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Source: the gRPC protocol over HTTP/2, "Timeout".
fn read_grpc_timeout(value: &HeaderValue) -> Option<Duration> {
    let text = value.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let count: u32 = digits.parse().ok()?;
    let unit = match unit {
        "H" => Duration::from_secs(3_600),
        "M" => Duration::from_secs(60),
        "S" => Duration::from_secs(1),
        "m" => Duration::from_millis(1),
        "u" => Duration::from_micros(1),
        "n" => Duration::from_nanos(1),
        _ => return None,
    };
    Some(unit * count)
}

/// How many milliseconds the caller still waits for the head of the answer.
const DEADLINE: HeaderName = HeaderName::from_static("weir-deadline-ms");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_of_grpc_are_read() {
        let check = |text: &'static str, expected: Option<Duration>| {
            assert_eq!(read_grpc_timeout(&HeaderValue::from_static(text)), expected, "{text}");
        };
        check("", None);
        check("5", None);
        check("5x", None);
        check("m", None);
        check("250m", Some(Duration::from_millis(250)));
        check("2S", Some(Duration::from_secs(2)));
        check("1H", Some(Duration::from_secs(3_600)));
        check("99999999H", Some(Duration::from_secs(3_600) * 99_999_999));
    }
}
