//! One call to an upstream: over HTTP as a POST, over gRPC as a unary call.

use std::fmt::Write as _;
use std::pin::pin;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, TE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt;
use tokio::time::Instant;
use weir_engine::ConnId;
use weir_upstream::{Incoming, Outgoing, SendError, SendOptions, TrySpans, Upstream};
use weir_wire::CallCode;

use super::level::Share;
use super::{CallRoute, left_ms};
use crate::base::config::CallProtocol;

/// What a call carries.
pub(super) struct Content {
    pub(super) payload: Bytes,
    pub(super) content_type: Option<HeaderValue>,
    pub(super) is_text: bool,
}

/// What an upstream is asked.
pub(super) struct Question<'a> {
    pub(super) route: &'a CallRoute,
    /// The device that calls.
    pub(super) device: &'a str,
    pub(super) conn: ConnId,
    pub(super) id: u32,
    pub(super) method: &'a str,
    pub(super) content: &'a Content,
    pub(super) deadline: Instant,
    pub(super) spans: Option<Arc<dyn TrySpans>>,
}

/// What an upstream has answered.
pub(super) struct Reply {
    /// `None`: it is done.
    pub(super) code: Option<CallCode>,
    pub(super) message: String,
    pub(super) status: u32,
    pub(super) payload: Vec<u8>,
    pub(super) is_text: bool,
    pub(super) content_type: String,
}

/// Why there is no answer of an upstream.
pub(super) struct Fault {
    pub(super) code: CallCode,
    /// The sentence for the device.
    pub(super) message: String,
}

/// The body of an answer, and what came behind it.
struct Whole {
    bytes: Vec<u8>,
    trailers: Option<HeaderMap>,
}

impl Question<'_> {
    /// Asks. The bytes of the answer are taken from `room`: a share, and the most that all may have.
    pub(super) async fn ask(
        &self,
        upstream: Option<Upstream>,
        room: (&mut Share, usize),
    ) -> Result<Reply, Fault> {
        let Some(upstream) = upstream else {
            return Err(Fault::new(CallCode::Unavailable, "the upstream is gone".to_owned()));
        };
        let request = match self.route.protocol {
            CallProtocol::Http => self.post(),
            CallProtocol::Grpc => self.unary(),
        };
        let request = request.map_err(|error| {
            Fault::new(CallCode::InvalidField, format!("the call cannot be sent: {error}"))
        })?;
        let options = SendOptions {
            deadline: Some(self.deadline),
            idempotent: Some(self.route.idempotent),
            spans: self.spans.clone(),
            ..SendOptions::default()
        };
        let answer = upstream.send(request, options).await.map_err(|error| Fault::of(&error))?;
        match self.route.protocol {
            CallProtocol::Http => self.posted(answer, room).await,
            CallProtocol::Grpc => self.answered(answer, room).await,
        }
    }

    fn post(&self) -> http::Result<Request<Outgoing>> {
        let content_type = match (&self.content.content_type, self.content.is_text) {
            (Some(content_type), _) => content_type.clone(),
            (None, true) => HeaderValue::from_static("text/plain; charset=utf-8"),
            (None, false) => HeaderValue::from_static("application/octet-stream"),
        };
        let request = self.request().header(CONTENT_TYPE, content_type);
        request.body(Outgoing::Whole(self.content.payload.clone()))
    }

    fn unary(&self) -> http::Result<Request<Outgoing>> {
        let payload = &self.content.payload;
        let mut body = BytesMut::with_capacity(GRPC_HEAD_BYTES + payload.len());
        body.put_u8(0);
        body.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX));
        body.extend_from_slice(payload);
        let request = self
            .request()
            // An upstream tells it with each try, but not of gRPC.
            .header("weir-deadline-ms", left_ms(self.deadline))
            .header(CONTENT_TYPE, HeaderValue::from_static("application/grpc"))
            .header(TE, HeaderValue::from_static("trailers"))
            .header("grpc-timeout", format!("{}m", left_ms(self.deadline).min(GRPC_TIMEOUT_MAX)));
        request.body(Outgoing::Whole(body.freeze()))
    }

    /// What both have in common: path and identity.
    fn request(&self) -> http::request::Builder {
        Request::post(format!("{}{}", self.route.base, self.method))
            .header("weir-method", self.method)
            .header("weir-device", visible(self.device))
            .header("weir-connection", self.conn.to_string())
            .header("weir-call", self.id)
    }

    async fn posted(
        &self,
        answer: Response<Incoming>,
        room: (&mut Share, usize),
    ) -> Result<Reply, Fault> {
        let (head, body) = answer.into_parts();
        let content_type = printable(head.headers.get(CONTENT_TYPE));
        let Whole { bytes, .. } = self.whole(body, room).await?;
        let is_done = head.status.is_success();
        let status = u32::from(head.status.as_u16());
        Ok(Reply {
            code: (!is_done).then_some(CallCode::Failed),
            message: match is_done {
                true => String::new(),
                false => format!("the backend has answered {}", head.status),
            },
            status,
            payload: bytes,
            is_text: is_text(&content_type),
            content_type,
        })
    }

    async fn answered(
        &self,
        answer: Response<Incoming>,
        room: (&mut Share, usize),
    ) -> Result<Reply, Fault> {
        let (head, body) = answer.into_parts();
        let content_type = printable(head.headers.get(CONTENT_TYPE));
        if head.status != StatusCode::OK || !content_type.starts_with("application/grpc") {
            let message = format!("the backend has answered {}, and not as gRPC", head.status);
            return Err(Fault::new(CallCode::Failed, message));
        }
        let Whole { bytes, trailers } = self.whole(body, room).await?;
        // An error may come without a body; then its status stands in the head.
        let ends = trailers.as_ref().unwrap_or(&head.headers);
        let (status, message) =
            grpc_status(ends).or_else(|| grpc_status(&head.headers)).ok_or_else(|| {
                Fault::new(CallCode::Uncertain, "the answer ends without a grpc-status".to_owned())
            })?;
        let payload = match status {
            0 => grpc_message(bytes)?,
            _ => Vec::new(),
        };
        let code = (status != 0).then_some(CallCode::Failed);
        Ok(Reply { code, message, status, payload, is_text: false, content_type: String::new() })
    }

    async fn whole(
        &self,
        body: Incoming,
        (share, bytes_max): (&mut Share, usize),
    ) -> Result<Whole, Fault> {
        let mut body = pin!(body);
        let mut whole = Whole { bytes: Vec::new(), trailers: None };
        while let Some(frame) = body.frame().await {
            match frame.map_err(|error| Fault::of(&error))?.into_data() {
                Ok(data) => self.take(&mut whole.bytes, &data, (&mut *share, bytes_max))?,
                Err(frame) => whole.trailers = frame.into_trailers().ok(),
            }
        }
        Ok(whole)
    }

    fn take(
        &self,
        bytes: &mut Vec<u8>,
        data: &Bytes,
        (share, bytes_max): (&mut Share, usize),
    ) -> Result<(), Fault> {
        let limit = self.route.payload_bytes_max + GRPC_HEAD_BYTES;
        if bytes.len() + data.len() > limit {
            let message = format!(
                "the answer is over the limit of {} bytes (calls.routes, payload_bytes_max)",
                self.route.payload_bytes_max
            );
            return Err(Fault::new(CallCode::TooLarge, message));
        }
        if !share.grow(data.len(), bytes_max) {
            let message = "the answer finds no room (calls.payload_bytes_max)".to_owned();
            return Err(Fault::new(CallCode::Uncertain, message));
        }
        bytes.extend_from_slice(data);
        Ok(())
    }
}

impl Fault {
    pub(super) fn new(code: CallCode, message: String) -> Fault {
        Fault { code, message }
    }

    /// The device learns what it can do about it, and no address of a backend.
    fn of(error: &SendError) -> Fault {
        let (code, message) = match (error.kind(), error.may_have_been_sent()) {
            ("timed_out", _) => (CallCode::DeadlineExceeded, "the backend did not answer in time"),
            ("full", false) => (CallCode::Busy, "as many calls wait for the backend as may"),
            (_, false) => (CallCode::Unavailable, "the backend cannot be reached"),
            (_, true) => (CallCode::Uncertain, "the connection to the backend broke"),
        };
        tracing::debug!(%error, "a call has no answer");
        Fault::new(code, message.to_owned())
    }
}

/// The status of gRPC, and its message.
fn grpc_status(headers: &HeaderMap) -> Option<(u32, String)> {
    let status = headers.get("grpc-status")?.to_str().ok()?.trim().parse().ok()?;
    let message = headers.get("grpc-message").map(HeaderValue::as_bytes).unwrap_or_default();
    let message = String::from_utf8_lossy(&unescaped(message)).into_owned();
    Some((status, message.chars().take(MESSAGE_CHARS_MAX).collect()))
}

/// The bytes, with `%xx` as the byte that it stands for.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((&first, behind)) = rest.split_first() {
        let digits = behind.first_chunk::<2>().filter(|_| first == b'%');
        let digits = digits.and_then(|digits| str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        out.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &behind[2..] } else { behind };
    }
    out
}

/// The bytes of the one message in the body.
fn grpc_message(mut body: Vec<u8>) -> Result<Vec<u8>, Fault> {
    let wrong = |says: &str| Err(Fault::new(CallCode::Uncertain, says.to_owned()));
    let Some((&[flag, a, b, c, d], rest)) = body.split_first_chunk::<GRPC_HEAD_BYTES>() else {
        return wrong("the answer holds no message of gRPC");
    };
    if flag != 0 {
        return wrong("the answer is compressed, which the call did not ask for");
    }
    if u32::try_from(rest.len()) != Ok(u32::from_be_bytes([a, b, c, d])) {
        return wrong("the answer does not hold exactly one message of gRPC");
    }
    body.drain(..GRPC_HEAD_BYTES);
    Ok(body)
}

fn printable(value: Option<&HeaderValue>) -> String {
    let text = value.and_then(|value| value.to_str().ok()).unwrap_or_default();
    text.chars().take(CONTENT_TYPE_CHARS_MAX).collect()
}

/// Whether bytes of this media type are text.
fn is_text(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    kind.starts_with("text/") || kind == "application/json" || kind.ends_with("+json")
}

/// Bytes outside of visible ASCII, and `%` itself, as `%xx`.
fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte.is_ascii_graphic() && byte != b'%' {
            true => out.push(char::from(byte)),
            // Writing to a `String` cannot fail.
            false => drop(write!(out, "%{byte:02X}")),
        }
    }
    out
}

/// Before a message: whether it is compressed, and its length.
const GRPC_HEAD_BYTES: usize = 5;
/// A time has at most eight digits.
const GRPC_TIMEOUT_MAX: u32 = 99_999_999;
const MESSAGE_CHARS_MAX: usize = 512;
const CONTENT_TYPE_CHARS_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_of_grpc_holds_one_message() {
        let check = |body: &[u8], expected: Option<&[u8]>| {
            assert_eq!(grpc_message(body.to_vec()).ok().as_deref(), expected, "{body:?}");
        };
        check(&[0, 0, 0, 0, 2, b'h', b'i'], Some(b"hi"));
        check(&[0, 0, 0, 0, 0], Some(b""));
        check(&[0, 0, 0, 0], None);
        check(&[], None);
        check(&[1, 0, 0, 0, 0], None);
        check(&[0, 0, 0, 0, 1, b'h', b'i'], None);
        check(&[0, 0, 0, 0, 3, b'h', b'i'], None);
    }

    #[test]
    fn a_status_of_grpc_has_a_message() {
        let mut headers = HeaderMap::new();
        assert_eq!(grpc_status(&headers), None);
        headers.insert("grpc-status", HeaderValue::from_static("5"));
        headers.insert("grpc-message", HeaderValue::from_static("no%20such%20order%E2%82%AC"));
        assert_eq!(grpc_status(&headers), Some((5, "no such order€".to_owned())));
        headers.insert("grpc-status", HeaderValue::from_static("x"));
        assert_eq!(grpc_status(&headers), None);
    }

    #[test]
    fn a_device_s_id_stands_in_a_header_whatever_it_is() {
        assert_eq!(visible("van-7"), "van-7");
        assert_eq!(visible("a b%\r\né"), "a%20b%25%0D%0A%C3%A9");
    }

    #[test]
    fn the_media_type_tells_what_is_text() {
        for (content_type, expected) in [
            ("text/plain; charset=utf-8", true),
            ("application/json", true),
            ("application/problem+json; x", true),
            ("application/octet-stream", false),
            ("", false),
        ] {
            assert_eq!(is_text(content_type), expected, "{content_type}");
        }
    }
}
