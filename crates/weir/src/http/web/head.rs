//! The sender of a request, as its head shows it: the token, and the site of the page.

use http::header::{AUTHORIZATION, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, HeaderName, Method};

use super::problem::{Kind, Problem};

/// Why the `Authorization` headers of a request give no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoToken {
    /// The request has several headers.
    Several,
    /// The header has another scheme than `Bearer`, no token, or a token that is not UTF-8.
    Malformed,
}

/// Reads the bearer token of a request. `None`: the request has no `Authorization` header.
pub(crate) fn bearer_token(headers: &HeaderMap) -> Result<Option<&str>, NoToken> {
    let mut headers = headers.get_all(AUTHORIZATION).iter();
    match (headers.next(), headers.next()) {
        (None, _) => Ok(None),
        (Some(header), None) => token_of(header.as_bytes()).map(Some).ok_or(NoToken::Malformed),
        (Some(_), Some(_)) => Err(NoToken::Several),
    }
}

fn token_of(header: &[u8]) -> Option<&str> {
    let (scheme, token) = header.split_at_checked(BEARER.len())?;
    let token = token.trim_ascii();
    let is_bearer = scheme.eq_ignore_ascii_case(BEARER) && !token.is_empty();
    std::str::from_utf8(token).ok().filter(|_| is_bearer)
}

/// Refuses a request that a browser sends for a page of another origin without naming the origin.
///
/// Browsers omit `Origin` where a page embeds something, such as an image. There `Sec-Fetch-Site`
/// tells how the page is related to the server (Fetch Metadata, section 2.3). Other programs send
/// neither header. A followed link is no use of the API by a page, so it passes, unless
/// `has_effect` says that a GET changes something.
///
/// Errors: 403. It does not check a request with `Origin`, which tells more.
pub(crate) fn check_site(head: &Parts, has_effect: bool) -> Result<(), Problem> {
    let headers = &head.headers;
    let is_own = |site: &http::HeaderValue| matches!(site.as_bytes(), b"same-origin" | b"none");
    if headers.contains_key(ORIGIN) || headers.get_all(SEC_FETCH_SITE).iter().all(is_own) {
        return Ok(());
    }
    let says = |name, value: &str| headers.get(name).is_some_and(|given| given == value);
    let is_link = matches!(head.method, Method::GET | Method::HEAD)
        && says(SEC_FETCH_MODE, "navigate")
        && says(SEC_FETCH_DEST, "document");
    if is_link && !has_effect {
        return Ok(());
    }
    let detail = "the request comes from a page of another origin and has no Origin header";
    Err(Problem::new(Kind::ForeignOrigin, detail).at_header("Sec-Fetch-Site"))
}

const BEARER: &[u8] = b"bearer ";
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
