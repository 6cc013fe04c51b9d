//! Pages of other origins: which of them may use the API (the Fetch standard, "CORS protocol"; RFC 6454).
//!
//! A page cannot leave `Origin` away where a request has effects, nor where it is another's; WebSockets have it always.
//! What is not allowed is refused before anything is done, not only kept from the page: so it need not be told which
//! requests have effects. Tokens stand in headers and never in cookies, so no page has one that it was not given.

use std::net::IpAddr;

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, HOST, HeaderMap, HeaderValue, ORIGIN,
    VARY,
};
use http::uri::{Authority, Uri};

use crate::web::head::{Origin, name_of};
use crate::web::problem::{Kind, Problem};

/// Whose pages may ask.
pub(super) struct Cors {
    is_open: bool,
    /// As browsers send them.
    origins: Box<[Box<str>]>,
}

impl Cors {
    /// `origins` have been checked with the configuration.
    pub(super) fn new(origins: &[String]) -> Self {
        Self {
            is_open: origins.iter().any(|origin| origin == "*"),
            origins: origins.iter().map(|origin| origin.as_str().into()).collect(),
        }
    }

    /// What `Access-Control-Allow-Origin` is to say: nothing if no page asks, or one of this server's own.
    ///
    /// The own pages of a server are those whose origin is the host that the request is for, if that is an address or
    /// `localhost`: a name could be a stranger's that points here, so its origin has to be configured.
    ///
    /// Errors: 403 for any other origin.
    pub(super) fn check(
        &self,
        headers: &HeaderMap,
        uri: &Uri,
    ) -> Result<Option<HeaderValue>, Problem> {
        let mut origins = headers.get_all(ORIGIN).iter();
        let Some(origin) = origins.next() else { return Ok(None) };
        let is_one = origins.next().is_none();
        if is_one && self.is_open {
            return Ok(Some(HeaderValue::from_static("*")));
        }
        let text = origin.to_str().unwrap_or_default();
        if is_one && self.origins.iter().any(|allowed| **allowed == *text) {
            return Ok(Some(origin.clone()));
        }
        let own = host(headers, uri).filter(cannot_be_rebound);
        if is_one && own.is_some_and(|own| Origin::parse(text).is_some_and(|page| page.is_of(&own)))
        {
            return Ok(None);
        }
        let detail = format!("origin {origin:?} is not one of http.cors_origins");
        Err(Problem::new(Kind::ForeignOrigin, detail).at_header("Origin"))
    }

    /// Says in an answer whose pages may read it; `allowed` comes from [`Cors::check`].
    pub(super) fn mark(&self, headers: &mut HeaderMap, allowed: Option<HeaderValue>) {
        if !self.is_open {
            headers.append(VARY, HeaderValue::from_static("Origin"));
        }
        if let Some(allowed) = allowed {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("Retry-After"));
        }
    }

    /// Says in the answer to a preflight what a page may send; `methods` are those of the path.
    pub(super) fn permit(headers: &mut HeaderMap, methods: &'static str) {
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(methods));
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(ALLOWED_HEADERS));
        headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE_SECONDS));
    }
}

/// The host that a request is for: over HTTP/2 it stands in the target.
fn host(headers: &HeaderMap, uri: &Uri) -> Option<Authority> {
    if let Some(authority) = uri.authority() {
        return Some(authority.clone());
    }
    headers.get(HOST)?.to_str().ok()?.parse().ok()
}

/// Whether nobody else can have the host's name point here.
fn cannot_be_rebound(host: &Authority) -> bool {
    let name = name_of(host);
    let literal = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || literal.parse::<IpAddr>().is_ok()
}

/// Beside those that a page may always send.
const ALLOWED_HEADERS: &str = "Authorization, Content-Type, Last-Event-ID, Traceparent, Tracestate";
/// How long a browser need not ask again. A change of the configuration takes as long to reach those who asked.
const MAX_AGE_SECONDS: &str = "600";

#[cfg(test)]
mod tests {
    use super::*;

    fn check(configured: &[&str], target: &str, headers: &[(&str, &str)]) -> Result<String, u16> {
        let configured: Vec<String> =
            configured.iter().map(|origin| (*origin).to_owned()).collect();
        let mut request = http::Request::builder().uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).unwrap();
        let checked = Cors::new(&configured).check(request.headers(), request.uri());
        let text = |value: Option<HeaderValue>| {
            value.map_or(String::new(), |value| value.to_str().unwrap().to_owned())
        };
        checked.map(text).map_err(|problem| problem.into_response().status().as_u16())
    }

    #[test]
    fn only_configured_origins_and_the_server_s_own_are_let_in() {
        let allowed = "https://app.example";
        for (configured, host, origin, expected) in [
            (&[][..], "gate.example", "https://app.example", Err(403)),
            (&[], "gate.example", "null", Err(403)),
            (&[], "gate.example", "", Err(403)),
            (&["*"], "gate.example", "null", Ok("*")),
            (&["*"], "gate.example", allowed, Ok("*")),
            (&[allowed], "gate.example", allowed, Ok(allowed)),
            (&[allowed], "gate.example", "http://app.example", Err(403)),
            (&[allowed], "gate.example", "https://app.example:8443", Err(403)),
            (&[allowed], "gate.example", "https://app.example.evil.example", Err(403)),
            // Its own, if nobody can have made the name point here.
            (&[], "127.0.0.1:8080", "http://127.0.0.1:8080", Ok("")),
            (&[], "[::1]:8080", "http://[::1]:8080", Ok("")),
            (&[], "localhost", "http://localhost", Ok("")),
            (&[], "localhost:8080", "http://localhost:3000", Err(403)),
            (&[], "rebound.example:8080", "http://rebound.example:8080", Err(403)),
        ] {
            let given = check(configured, "/v1/publish", &[("host", host), ("origin", origin)]);
            let expected = expected.map(str::to_owned);
            assert_eq!(given, expected, "{configured:?} {host} {origin}");
            // The same over HTTP/2.
            let target = format!("http://{host}/v1/publish");
            let given = check(configured, &target, &[("origin", origin)]);
            assert_eq!(given, expected, "{configured:?} {target} {origin}");
        }
    }

    #[test]
    fn who_is_no_page_is_not_asked_and_who_is_two_is_none() {
        assert_eq!(check(&[], "/v1/publish", &[("host", "gate.example")]), Ok(String::new()));
        let two = [("origin", "https://app.example"), ("origin", "https://app.example")];
        assert_eq!(check(&["https://app.example"], "/", &two), Err(403));
        assert_eq!(check(&["*"], "/", &two), Err(403));
    }
}
