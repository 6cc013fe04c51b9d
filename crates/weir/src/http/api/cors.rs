//! Pages of other origins: which of them may use the API (the Fetch standard, "CORS protocol"; RFC
//! 6454).
//!
//! Browsers send `Origin` with every request that has effects, with every request whose answer a
//! page of another origin may read, and with every WebSocket. In other requests `Sec-Fetch-Site`
//! tells where a request comes from. A request that is not allowed is refused before it has any
//! effect, and not only hidden from the page. Tokens come in headers and never in cookies, so a
//! page has only the tokens that it was given.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, HeaderMap, HeaderValue, ORIGIN, VARY,
};
use http::request::Parts;

use crate::base::host::Host;
use crate::base::origin::Origin;
use crate::http::web::head::check_site;
use crate::http::web::problem::{Kind, Problem};

/// The origins whose pages may use the API.
pub(super) struct Cors {
    is_open: bool,
    /// In the form in which browsers send them.
    origins: Box<[Box<str>]>,
}

impl Cors {
    /// `origins`: checked by the configuration.
    pub(super) fn new(origins: &[String]) -> Self {
        Self {
            is_open: origins.iter().any(|origin| origin == "*"),
            origins: origins.iter().map(|origin| origin.as_str().into()).collect(),
        }
    }

    /// The value for `Access-Control-Allow-Origin`. `None`: no page asks, or one of this server's
    /// own.
    ///
    /// A page is the server's own if its origin is the host and the scheme of the request, and that
    /// host is an address or `localhost`. Any other name must be configured: a stranger's name
    /// could point here.
    ///
    /// `scheme`: `http` or `https`. `has_effect`: even a GET of the path changes something.
    /// Errors: 403 for any other origin, and for a page without a named origin.
    pub(super) fn check(
        &self,
        scheme: &str,
        head: &Parts,
        has_effect: bool,
    ) -> Result<Option<HeaderValue>, Problem> {
        let headers = &head.headers;
        let mut origins = headers.get_all(ORIGIN).iter();
        let Some(origin) = origins.next() else {
            check_site(head, has_effect)?;
            return Ok(None);
        };
        let is_one = origins.next().is_none();
        if is_one && self.is_open {
            return Ok(Some(HeaderValue::from_static("*")));
        }
        let text = origin.to_str().unwrap_or_default();
        if is_one && self.origins.iter().any(|allowed| **allowed == *text) {
            return Ok(Some(origin.clone()));
        }
        let own = Host::of_request(headers, &head.uri).filter(Host::is_fixed);
        let is_own = |page: Origin<'_>| own.is_some_and(|own| page.is_of(&[scheme], &own));
        if is_one && Origin::parse(text).is_some_and(is_own) {
            return Ok(None);
        }
        let detail = format!("origin {origin:?} is not one of http.cors_origins");
        Err(Problem::new(Kind::ForeignOrigin, detail).at_header("Origin"))
    }

    /// Tells in an answer which pages may read it; `allowed` comes from [`Cors::check`].
    pub(super) fn mark(&self, headers: &mut HeaderMap, allowed: Option<HeaderValue>) {
        if !self.is_open {
            headers.append(VARY, HeaderValue::from_static("Origin"));
        }
        if let Some(allowed) = allowed {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("Retry-After"));
        }
    }

    /// Tells in the answer to a preflight what a page may send; `methods` are those of the path.
    pub(super) fn permit(headers: &mut HeaderMap, methods: &'static str) {
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(methods));
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(ALLOWED_HEADERS));
        headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE_SECONDS));
    }
}

/// The headers that a page may send, beside those that it may always send.
const ALLOWED_HEADERS: &str =
    "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, Traceparent, Tracestate";
/// The time for which a browser keeps the answer to a preflight. A change of the configuration
/// takes as long to reach it.
const MAX_AGE_SECONDS: &str = "600";

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a request that changes nothing and came without TLS.
    fn check(configured: &[&str], target: &str, headers: &[(&str, &str)]) -> Result<String, u16> {
        check_by("http", false, configured, target, headers)
    }

    fn check_by(
        scheme: &str,
        has_effect: bool,
        configured: &[&str],
        target: &str,
        headers: &[(&str, &str)],
    ) -> Result<String, u16> {
        let configured: Vec<String> =
            configured.iter().map(|origin| (*origin).to_owned()).collect();
        let mut request = http::Request::builder().uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        let checked = Cors::new(&configured).check(scheme, &head, has_effect);
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
            // Another server's, which differs by its scheme alone.
            (&[], "localhost", "https://localhost", Err(403)),
            (&[], "127.0.0.1:8080", "https://127.0.0.1:8080", Err(403)),
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
    fn the_scheme_of_a_page_is_compared() {
        for (scheme, origin, expected) in [
            ("https", "https://localhost:8443", Ok(String::new())),
            ("https", "http://localhost:8443", Err(403)),
            ("https", "https://localhost", Err(403)),
        ] {
            let headers = [("host", "localhost:8443"), ("origin", origin)];
            assert_eq!(check_by(scheme, false, &[], "/", &headers), expected, "{origin}");
        }
        // By the ports that go without saying.
        let headers = [("host", "localhost"), ("origin", "http://localhost")];
        assert_eq!(check_by("https", false, &[], "/", &headers), Err(403));
    }

    #[test]
    fn a_page_that_is_not_named_is_another_one() {
        let site = |site| [("host", "localhost"), ("sec-fetch-site", site)];
        let link = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
        for configured in [&[][..], &["*"], &["https://app.example"]] {
            for own in ["same-origin", "none"] {
                assert_eq!(check(configured, "/v1/sse", &site(own)), Ok(String::new()));
            }
            for other in ["same-site", "cross-site", "?"] {
                assert_eq!(check(configured, "/v1/sse", &site(other)), Err(403), "{other}");
                let followed = [&site(other)[..], &link].concat();
                assert_eq!(check(configured, "/openapi.json", &followed), Ok(String::new()));
                let effect = check_by("http", true, configured, "/v1/sse", &followed);
                assert_eq!(effect, Err(403), "{other}");
            }
        }
        // One that is named says more.
        let named = [&site("cross-site")[..], &[("origin", "https://app.example")]].concat();
        assert_eq!(check(&["https://app.example"], "/", &named).unwrap(), "https://app.example");
    }

    #[test]
    fn who_is_no_page_is_not_asked_and_who_is_two_is_none() {
        assert_eq!(check(&[], "/v1/publish", &[("host", "gate.example")]), Ok(String::new()));
        let two = [("origin", "https://app.example"), ("origin", "https://app.example")];
        assert_eq!(check(&["https://app.example"], "/", &two), Err(403));
        assert_eq!(check(&["*"], "/", &two), Err(403));
    }
}
