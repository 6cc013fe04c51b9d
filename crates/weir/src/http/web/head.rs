//! What the head of a request says of its sender: the token that it shows, and the page that it comes from.

use http::header::ORIGIN;
use http::request::Parts;
use http::{HeaderName, Method};

use super::problem::{Kind, Problem};

/// The token of an `Authorization` header of the scheme `Bearer`.
pub(crate) fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = header.split_at_checked(BEARER.len())?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(BEARER) && !token.is_empty()).then_some(token)
}

/// Refuses a request that a browser sends for a page of another origin without naming the origin.
///
/// Browsers leave `Origin` away where a page embeds something, such as an image, and say in `Sec-Fetch-Site` how the page
/// is related to the server (Fetch Metadata, section 2.3). Programs that are no browsers send neither. To follow a link is
/// no use of the API by a page, so it is let through, but where `has_effect` says that looking changes something.
///
/// Errors: 403. A request with `Origin` is not looked at: it says more.
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
    let detail = "the request comes from a page of another origin, which it does not name";
    Err(Problem::new(Kind::ForeignOrigin, detail).at_header("Sec-Fetch-Site"))
}

const BEARER: &[u8] = b"bearer ";
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
