//! The rules for heads of requests and answers that pass.
//!
//! Source: RFC 9110 section 7.6 (forwarding), RFC 9112 sections 3.2 and 6 (target, framing), RFC
//! 9113 section 8.2 (HTTP/2).

use std::net::IpAddr;

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, HOST, HeaderMap, HeaderName, HeaderValue,
    TE, TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::{Method, Uri, Version};
use smallvec::SmallVec;

/// The sender of a request, as the service learns it.
pub(super) struct Sender<'a> {
    pub(super) peer: Option<IpAddr>,
    pub(super) is_tls: bool,
    /// Whether the peer is a proxy whose `X-Forwarded-` headers are true.
    pub(super) is_believed: bool,
    /// The device or service of the token.
    pub(super) identity: Option<Identity<'a>>,
    /// Whether the request's token is for Weir, and not for the service.
    pub(super) takes_token: bool,
}

/// The owner of a token.
#[derive(Debug, Clone, Copy)]
pub(super) enum Identity<'a> {
    Device(&'a str),
    Service(&'a str),
}

/// A part of a head that services could read in more than one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ambiguity(pub(super) &'static str);

/// Refuses a head whose body could end at several places.
pub(super) fn check_framing(head: &Parts) -> Result<(), Ambiguity> {
    let headers = &head.headers;
    if headers.contains_key(TRANSFER_ENCODING) && headers.contains_key(CONTENT_LENGTH) {
        return Err(Ambiguity("a request has either Content-Length or Transfer-Encoding"));
    }
    Ok(())
}

/// Whether a request asks for a WebSocket over HTTP/1.1. No other upgrade passes: one to HTTP/2
/// would carry requests past all rules.
pub(super) fn wants_websocket(head: &Parts) -> bool {
    let mut upgrades = head.headers.get_all(UPGRADE).iter();
    let is_websocket = match (upgrades.next(), upgrades.next()) {
        (Some(upgrade), None) => upgrade.as_bytes().eq_ignore_ascii_case(b"websocket"),
        (Some(_) | None, _) => false,
    };
    is_websocket
        && head.method == Method::GET
        && head.version == Version::HTTP_11
        && tokens(&head.headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case(b"upgrade"))
}

/// Makes the head for the service out of that of the client.
///
/// `keeps_host`: the service gets the client's `Host`. Path and query stay as they are.
pub(super) fn prepare(head: &mut Parts, from: &Sender<'_>, keeps_host: bool, is_websocket: bool) {
    let host = host(head);
    let has_trailers = tokens(&head.headers, &TE)
        .any(|token| token.split(|byte| *byte == b';').next().is_some_and(is_trailers));
    clean(&mut head.headers, |name| is_hop_by_hop(name) || is_of_weir(name, from));
    let headers = &mut head.headers;
    if from.takes_token {
        headers.remove(AUTHORIZATION);
    }
    if head.version == Version::HTTP_2 {
        join_cookies(headers);
    }
    if has_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if is_websocket {
        mark_websocket(headers);
    }
    forward(headers, from, host.as_ref());
    if let Some(host) = host.filter(|_| keeps_host) {
        headers.insert(HOST, host);
    }
    match from.identity {
        Some(Identity::Device(id)) => drop(headers.insert(DEVICE, encoded(id))),
        Some(Identity::Service(name)) => drop(headers.insert(SERVICE, encoded(name))),
        None => {}
    }
    let path = head.uri.path_and_query().cloned();
    head.uri = path.map(Uri::from).unwrap_or_default();
    head.version = Version::HTTP_11;
}

/// Asks for a WebSocket, or agrees to one.
pub(super) fn mark_websocket(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
}

/// Makes the head for the client out of that of the service.
pub(super) fn clean_answer(headers: &mut HeaderMap, is_head: bool) {
    // The body tells its length itself; only the answer to a HEAD has none.
    let length = headers.get(CONTENT_LENGTH).filter(|_| is_head).cloned();
    clean(headers, is_hop_by_hop);
    if let Some(length) = length.filter(|length| length.as_bytes().iter().all(u8::is_ascii_digit)) {
        headers.insert(CONTENT_LENGTH, length);
    }
}

/// The host that the request names: in its target, or else in its header (RFC 9112 section 3.2.2).
fn host(head: &Parts) -> Option<HeaderValue> {
    match head.uri.authority() {
        Some(authority) => HeaderValue::from_str(authority.as_str()).ok(),
        None => head.headers.get(HOST).filter(|host| !host.is_empty()).cloned(),
    }
}

/// Removes the headers that `is_dropped` names, and those that `Connection` names.
fn clean(headers: &mut HeaderMap, is_dropped: impl Fn(&str) -> bool) {
    let mut dropped: SmallVec<[HeaderName; 8]> = SmallVec::new();
    for token in tokens(headers, &CONNECTION) {
        // The names of the usual options are dropped anyway.
        if !OPTIONS.iter().any(|option| token.eq_ignore_ascii_case(option)) {
            dropped.extend(HeaderName::from_bytes(token).ok());
        }
    }
    for name in headers.keys() {
        let text = name.as_str();
        // Many services read `_` as `-`.
        let is_it = if text.as_bytes().contains(&b'_') {
            is_dropped(&text.replace('_', "-"))
        } else {
            is_dropped(text)
        };
        if is_it {
            dropped.push(name.clone());
        }
    }
    for name in dropped {
        headers.remove(name);
    }
}

/// Whether a header belongs to one connection (RFC 9110 section 7.6.1), or tells the length of a
/// body, or is answered here.
fn is_hop_by_hop(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "content-length"
            | "expect"
            | "host"
            | "http2-settings"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Whether a header tells something that only Weir can know.
fn is_of_weir(name: &str, from: &Sender<'_>) -> bool {
    name.starts_with("weir-")
        || name == "forwarded"
        || !from.is_believed && (name.starts_with("x-forwarded-") || name == "x-real-ip")
}

/// Tells the service where the request comes from.
fn forward(headers: &mut HeaderMap, from: &Sender<'_>, host: Option<&HeaderValue>) {
    if let Some(peer) = from.peer {
        let peer = peer.to_canonical().to_string();
        let mut way = Vec::new();
        for earlier in headers.get_all(&FORWARDED_FOR) {
            way.extend_from_slice(earlier.as_bytes());
            way.extend_from_slice(b", ");
        }
        way.extend_from_slice(peer.as_bytes());
        if let Ok(way) = HeaderValue::from_maybe_shared(bytes::Bytes::from(way)) {
            headers.insert(FORWARDED_FOR, way);
        }
    }
    if !headers.contains_key(&FORWARDED_PROTO) {
        let scheme = HeaderValue::from_static(if from.is_tls { "https" } else { "http" });
        headers.insert(FORWARDED_PROTO, scheme);
    }
    if let Some(host) = host.filter(|_| !headers.contains_key(&FORWARDED_HOST)) {
        headers.insert(FORWARDED_HOST, host.clone());
    }
}

/// Over HTTP/2 a cookie may come in several fields (RFC 9113 section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut cookies = headers.get_all(COOKIE).iter();
    if cookies.next().is_none() || cookies.next().is_none() {
        return;
    }
    let cookies: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(cookie) = HeaderValue::from_bytes(&cookies.join(&b"; "[..])) {
        headers.insert(COOKIE, cookie);
    }
}

/// The entries of a list in all fields of a name.
fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
    let fields = headers.get_all(name).iter();
    fields.flat_map(|field| field.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii))
}

fn is_trailers(token: &[u8]) -> bool {
    token.trim_ascii().eq_ignore_ascii_case(b"trailers")
}

/// An id as a header can have it: visible ASCII stays, all else and `%` is percent-encoded.
fn encoded(id: &str) -> HeaderValue {
    let mut text = String::with_capacity(id.len());
    for byte in id.bytes() {
        if byte.is_ascii_graphic() && byte != b'%' {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

const DEVICE: HeaderName = HeaderName::from_static("weir-device");
const SERVICE: HeaderName = HeaderName::from_static("weir-service");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const OPTIONS: [&[u8]; 4] = [b"te", b"close", b"upgrade", b"keep-alive"];

#[cfg(test)]
mod tests {
    use super::*;

    type Fields<'a> = &'a [(&'a str, &'a str)];

    const STRANGER: Sender<'_> = Sender {
        peer: Some(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7))),
        is_tls: false,
        is_believed: false,
        identity: None,
        takes_token: false,
    };

    fn head(version: Version, uri: &str, fields: Fields<'_>) -> Parts {
        let mut request = http::Request::builder().version(version).uri(uri);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn fields(headers: &HeaderMap) -> Vec<(String, String)> {
        let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
        let mut fields: Vec<_> =
            headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
        fields.sort();
        fields
    }

    fn check(from: &Sender<'_>, mut head: Parts, expected: Fields<'_>) {
        let is_websocket = wants_websocket(&head);
        prepare(&mut head, from, true, is_websocket);
        let expected: Vec<_> = expected
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        assert_eq!(fields(&head.headers), expected);
        assert_eq!(head.uri, "/x?y");
    }

    const PLAIN: Fields<'_> = &[
        ("host", "a:81"),
        ("x-forwarded-for", "192.0.2.7"),
        ("x-forwarded-host", "a:81"),
        ("x-forwarded-proto", "http"),
    ];

    #[test]
    fn only_headers_for_the_service_pass() {
        for dropped in [
            ("connection", "close, x-one , X-Two"),
            ("x-one", "1"),
            ("x-two", "2"),
            ("keep-alive", "5"),
            ("proxy-connection", "keep-alive"),
            ("te", "gzip"),
            ("upgrade", "h2c"),
            ("http2-settings", "AAAA"),
            ("content-length", "5"),
            ("transfer-encoding", "chunked"),
            ("expect", "100-continue"),
            ("weir-device", "d"),
            ("weir_device", "d"),
            ("weir-anything", "d"),
            ("forwarded", "for=1.2.3.4"),
            ("x-forwarded-for", "1.2.3.4"),
            ("x_forwarded_for", "1.2.3.4"),
            ("x-forwarded-user", "root"),
            ("x-real-ip", "1.2.3.4"),
            ("content_length", "5"),
        ] {
            let connection = ("connection", "x-one,x-two");
            let head = head(Version::HTTP_11, "/x?y", &[("host", "a:81"), connection, dropped]);
            check(&STRANGER, head, PLAIN);
        }
        // An absolute target counts before `Host`, and HTTP/2 has the host in its target alone.
        check(&STRANGER, head(Version::HTTP_11, "http://a:81/x?y", &[("host", "b")]), PLAIN);
        check(&STRANGER, head(Version::HTTP_2, "http://a:81/x?y", &[]), PLAIN);
        // No name in `Connection` takes away what the service must have.
        let named = [("host", "a:81"), ("connection", "host, x-forwarded-for, weir-device")];
        check(&STRANGER, head(Version::HTTP_11, "/x?y", &named), PLAIN);
    }

    #[test]
    fn a_service_learns_where_a_request_comes_from() {
        let proxy = Sender { is_believed: true, is_tls: true, ..STRANGER };
        let sent = [
            ("host", "inner"),
            ("x-forwarded-for", "1.2.3.4"),
            ("x-forwarded-host", "outer"),
            ("x-real-ip", "1.2.3.4"),
        ];
        let expected = [
            ("host", "inner"),
            ("x-forwarded-for", "1.2.3.4, 192.0.2.7"),
            ("x-forwarded-host", "outer"),
            ("x-forwarded-proto", "https"),
            ("x-real-ip", "1.2.3.4"),
        ];
        check(&proxy, head(Version::HTTP_11, "/x?y", &sent), &expected);
        let device =
            Sender { identity: Some(Identity::Device("käse 1%")), takes_token: true, ..STRANGER };
        let sent = [("host", "a"), ("authorization", "Bearer x"), ("weir-service", "root")];
        let expected = [
            ("host", "a"),
            ("weir-device", "k%C3%A4se%201%25"),
            ("x-forwarded-for", "192.0.2.7"),
            ("x-forwarded-host", "a"),
            ("x-forwarded-proto", "http"),
        ];
        check(&device, head(Version::HTTP_11, "/x?y", &sent), &expected);
    }

    #[test]
    fn grpc_and_websockets_keep_what_they_need() {
        let sent = [("host", "a:81"), ("te", "trailers"), ("cookie", "a=1"), ("cookie", "b=2")];
        let mut expected = vec![("cookie", "a=1; b=2")];
        expected.extend(PLAIN);
        expected.insert(2, ("te", "trailers"));
        check(&STRANGER, head(Version::HTTP_2, "/x?y", &sent), &expected);
        let sent =
            [("host", "a:81"), ("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket")];
        let mut expected = vec![("connection", "upgrade")];
        expected.extend(PLAIN);
        expected.insert(2, ("upgrade", "websocket"));
        check(&STRANGER, head(Version::HTTP_11, "/x?y", &sent), &expected);
        for other in ["h2c", "websocket, h2c", "tls/1.0"] {
            let sent = [("connection", "upgrade"), ("upgrade", other)];
            assert!(!wants_websocket(&head(Version::HTTP_11, "/x?y", &sent)), "{other}");
        }
    }

    #[test]
    fn an_answer_loses_what_belongs_to_the_connection() {
        let answer: Fields<'_> = &[
            ("connection", "x-own"),
            ("x-own", "1"),
            ("keep-alive", "5"),
            ("transfer-encoding", "chunked"),
            ("content-length", "7"),
            ("trailer", "grpc-status"),
            ("server", "s"),
        ];
        for (is_head, left) in [(false, 2), (true, 3)] {
            let mut headers = head(Version::HTTP_11, "/", answer).headers;
            clean_answer(&mut headers, is_head);
            assert_eq!(headers.len(), left, "{headers:?}");
        }
    }
}
