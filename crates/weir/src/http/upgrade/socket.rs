//! Requests to open a WebSocket (RFC 6455 section 4.2).

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::header::{
    CONNECTION, HeaderMap, HeaderName, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::request::Parts;
use weir_wire::format::Format;

use super::{query_token, token, unknown_token, user_agent};
use crate::auth::Bearer;
use crate::connection::opening::{CallerIdentity, Upgraded};
use crate::http::Edge;
use crate::http::web::problem::{Kind, Problem};
use crate::http::web::query::Query;
use crate::limits::admission::AcceptOrder;

/// A valid request for a WebSocket.
#[derive(Clone)]
pub(crate) struct SocketUpgrade {
    pub(super) order: AcceptOrder,
    /// The value of `Sec-WebSocket-Accept`.
    accept: String,
    protocol: &'static str,
    format: Format,
    /// Empty: the token comes in `Hello`, if at all.
    token: String,
    /// The result for the token, once it is known.
    bearer: Option<Bearer>,
    /// The name of the client program, if `Hello` gives none.
    client: String,
}

impl std::fmt::Debug for SocketUpgrade {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SocketUpgrade").field("protocol", &self.protocol).finish_non_exhaustive()
    }
}

/// The subprotocols and their formats. The first one that the client names counts.
const PROTOCOLS: [(&str, Format); 2] =
    [("weir.v1.protobuf", Format::WsProtobuf), ("weir.v1.json", Format::WsJson)];
/// Stands in front of a token among the subprotocols.
const TOKEN_PROTOCOL: &str = "weir.token.";

impl SocketUpgrade {
    pub(super) fn of(
        edge: &Edge,
        head: &Parts,
        order: AcceptOrder,
    ) -> Result<SocketUpgrade, Problem> {
        let headers = &head.headers;
        if !has_word(headers, &CONNECTION, "upgrade") || !has_word(headers, &UPGRADE, "websocket") {
            let detail =
                "this path opens a WebSocket: send Connection: Upgrade and Upgrade: websocket";
            return Err(Problem::new(Kind::UpgradeRequired, detail));
        }
        if one(headers, &SEC_WEBSOCKET_VERSION) != Some("13") {
            let detail = "Sec-WebSocket-Version has to be 13, once";
            return Err(
                Problem::new(Kind::UpgradeRequired, detail).at_header("Sec-WebSocket-Version")
            );
        }
        let key = one(headers, &SEC_WEBSOCKET_KEY);
        let Some(key) = key.filter(|key| STANDARD.decode(key).is_ok_and(|key| key.len() == 16))
        else {
            let detail = "Sec-WebSocket-Key has to be 16 bytes in base64, once";
            return Err(Problem::field("Sec-WebSocket-Key", detail));
        };
        let query = Query::parse(head.uri.query(), &["access_token"])?;
        let from_query = query_token(edge, query.value("access_token"))?;
        let offered = || {
            let lists = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
            lists
                .filter_map(|list| list.to_str().ok())
                .flat_map(|list| list.split(','))
                .map(str::trim)
        };
        let known = |name: &str| PROTOCOLS.into_iter().find(|(known, _)| *known == name);
        let Some((protocol, format)) = offered().find_map(known) else {
            let detail = "Sec-WebSocket-Protocol has to name weir.v1.protobuf or weir.v1.json";
            return Err(Problem::field("Sec-WebSocket-Protocol", detail));
        };
        let mut token = token(headers, from_query)?;
        if let Some(encoded) = offered().find_map(|name| name.strip_prefix(TOKEN_PROTOCOL)) {
            let decoded = URL_SAFE_NO_PAD.decode(encoded).ok();
            let shown = decoded.and_then(|token| String::from_utf8(token).ok());
            let is_alone = token.is_empty();
            token =
                shown.filter(|token| is_alone && !token.is_empty()).ok_or_else(unknown_token)?;
        }
        let (accept, client) = (accept(key), user_agent(headers));
        Ok(SocketUpgrade { order, accept, protocol, format, token, bearer: None, client })
    }

    pub(super) fn token(&self) -> &str {
        &self.token
    }

    pub(super) fn admitted(self, bearer: Bearer) -> SocketUpgrade {
        let bearer = (!self.token.is_empty()).then_some(bearer);
        SocketUpgrade { token: String::new(), bearer, ..self }
    }

    pub(super) fn into_live(self, identity: Option<String>, read_ahead: Vec<u8>) -> Upgraded {
        let SocketUpgrade { accept, protocol, format, bearer, client, .. } = self;
        tracing::debug!(protocol, "a WebSocket is opened");
        let head = format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n"
        );
        Upgraded {
            head: head.into_bytes(),
            read_ahead,
            identity,
            format,
            positions: None,
            caller: CallerIdentity::Comes(bearer, client),
        }
    }
}

/// The only value of a header.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok(),
        (Some(_) | None, _) => None,
    }
}

/// Whether a comma-separated header has this word.
fn has_word(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    let lists = headers.get_all(name).iter().filter_map(|list| list.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|own| own.trim().eq_ignore_ascii_case(word))
}

/// The proof that the server has understood the key.
fn accept(key: &str) -> String {
    let joined = [key, "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"].concat();
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, joined.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_answered_as_in_the_standard() {
        assert_eq!(accept("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
