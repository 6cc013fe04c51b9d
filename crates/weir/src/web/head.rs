//! What the head of a request says: the host that it is for, the page that it is from, the token that it shows.

use http::uri::Authority;

/// The token of an `Authorization` header of the scheme `Bearer`.
pub(crate) fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = header.split_at_checked(BEARER.len())?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(BEARER) && !token.is_empty()).then_some(token)
}

/// Whether there is a name and at most a port behind it: no user, no port that is no number.
pub(crate) fn is_host_and_port(authority: &Authority) -> bool {
    match authority.as_str().strip_prefix(authority.host()) {
        Some("") => true,
        Some(_) => authority.port_u16().is_some(),
        None => false,
    }
}

/// Whether an `Origin` names the host that the request is for.
pub(crate) fn is_same_origin(origin: &str, host: &Authority) -> bool {
    let (origin, port) = match origin.split_once("://") {
        Some(("http", origin)) => (origin, 80),
        Some(("https", origin)) => (origin, 443),
        Some(_) | None => return false,
    };
    origin.parse::<Authority>().is_ok_and(|origin| {
        name_of(&origin) == name_of(host)
            && origin.port_u16().unwrap_or(port) == host.port_u16().unwrap_or(port)
    })
}

/// The host's name as it is compared.
pub(crate) fn name_of(authority: &Authority) -> String {
    authority.host().trim_end_matches('.').to_ascii_lowercase()
}

const BEARER: &[u8] = b"bearer ";
