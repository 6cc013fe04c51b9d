//! Problem documents (RFC 9457): how a request is refused.

use std::time::Duration;

use http::StatusCode;
use http::header::{
    ACCEPT_ENCODING, ALLOW, CONNECTION, HeaderValue, RETRY_AFTER, SEC_WEBSOCKET_VERSION, UPGRADE,
    WWW_AUTHENTICATE,
};
use serde::Serialize;
use utoipa::ToSchema;

use super::reply::{self, Reply};
use crate::base::clock::millis;
use crate::limits::http_ledger;
use crate::{PublishError, ShardSilent, TopicNameError};

/// Why a request is refused: each is one `type`, one title and one status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Something in the request is not as documented.
    InvalidRequest,
    /// No token, or a wrong one.
    Unauthorized,
    /// The token is good, but not for this.
    Forbidden,
    /// A page of another origin asks.
    ForeignOrigin,
    /// There is no such path, connection or device.
    NotFound,
    /// The path is for another protocol.
    UpgradeRequired,
    /// The path does not know the method.
    MethodNotAllowed,
    /// The body did not come in time.
    BodyTimeout,
    /// A body without its length.
    LengthRequired,
    /// A body or a message over its limit.
    TooLarge,
    /// A head over its limit.
    HeadTooLarge,
    /// A body that is not JSON, or coded.
    UnsupportedMediaType,
    /// A body in a transfer coding that is not known.
    UnknownCoding,
    /// A `Host` that this server does not go by.
    UnknownHost,
    /// More messages than the topic takes, or than one sender may publish.
    RateLimited,
    /// The topic's tick is full.
    TickFull,
    /// As many topics exist as may.
    TooManyTopics,
    /// A shard's mailbox is full.
    MailboxFull,
    /// The server has no room for it.
    Busy,
    /// The byte budget is used up.
    BudgetExhausted,
    /// Too many request bodies at once.
    TooManyRequests,
    /// Too many attempts from an address have failed.
    TooManyFailures,
    /// What keeps devices and tokens does not answer.
    StoreUnavailable,
    /// A shard does not answer.
    ShardSilent,
    /// Not listening yet, or draining.
    NotReady,
}

/// The place of a message in a request body, for the member `field` of a problem.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessagePlace<'a> {
    /// The path of its object, with what joins a member to it.
    pub(crate) object: &'a str,
    /// The member that holds its content.
    pub(crate) content: &'static str,
}

impl Kind {
    /// The end of its `type`, its title and its status.
    pub(crate) const fn facts(self) -> (&'static str, &'static str, StatusCode) {
        const UNAVAILABLE: StatusCode = StatusCode::SERVICE_UNAVAILABLE;
        const TOO_MANY: StatusCode = StatusCode::TOO_MANY_REQUESTS;
        match self {
            Kind::InvalidRequest => {
                ("invalid-request", "The request is invalid", StatusCode::BAD_REQUEST)
            }
            Kind::Unauthorized => {
                ("unauthorized", "A valid token is required", StatusCode::UNAUTHORIZED)
            }
            Kind::Forbidden => {
                ("forbidden", "The token does not permit this", StatusCode::FORBIDDEN)
            }
            Kind::ForeignOrigin => {
                ("foreign-origin", "Pages of other origins are refused", StatusCode::FORBIDDEN)
            }
            Kind::NotFound => ("not-found", "Not found", StatusCode::NOT_FOUND),
            Kind::UpgradeRequired => {
                ("upgrade-required", "Upgrade required", StatusCode::UPGRADE_REQUIRED)
            }
            Kind::MethodNotAllowed => {
                ("method-not-allowed", "Method not allowed", StatusCode::METHOD_NOT_ALLOWED)
            }
            Kind::BodyTimeout => {
                ("body-timeout", "The body did not come in time", StatusCode::REQUEST_TIMEOUT)
            }
            Kind::LengthRequired => {
                ("length-required", "Length required", StatusCode::LENGTH_REQUIRED)
            }
            Kind::TooLarge => ("too-large", "Too large", StatusCode::PAYLOAD_TOO_LARGE),
            Kind::HeadTooLarge => (
                "head-too-large",
                "The head is too large",
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            ),
            Kind::UnsupportedMediaType => (
                "unsupported-media-type",
                "The body is of another media type",
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
            ),
            Kind::UnknownCoding => {
                ("unknown-coding", "The transfer coding is not known", StatusCode::NOT_IMPLEMENTED)
            }
            Kind::UnknownHost => (
                "unknown-host",
                "This server does not go by that host name",
                StatusCode::MISDIRECTED_REQUEST,
            ),
            Kind::RateLimited => {
                ("rate-limited", "No more messages are taken at the moment", TOO_MANY)
            }
            Kind::TickFull => ("tick-full", "The topic's tick is full", UNAVAILABLE),
            Kind::TooManyTopics => ("too-many-topics", "Too many topics exist", UNAVAILABLE),
            Kind::MailboxFull => ("mailbox-full", "A mailbox is full", UNAVAILABLE),
            Kind::Busy => ("busy", "The server is busy", UNAVAILABLE),
            Kind::BudgetExhausted => {
                ("budget-exhausted", "The byte budget is used up", UNAVAILABLE)
            }
            Kind::TooManyRequests => {
                ("too-many-requests", "Too many requests at once", UNAVAILABLE)
            }
            Kind::TooManyFailures => {
                ("too-many-failures", "Too many attempts from this address have failed", TOO_MANY)
            }
            Kind::StoreUnavailable => {
                ("store-unavailable", "The store of devices does not answer", UNAVAILABLE)
            }
            Kind::ShardSilent => ("shard-silent", "A shard does not answer", UNAVAILABLE),
            Kind::NotReady => ("not-ready", "Not ready", UNAVAILABLE),
        }
    }
}

/// A refusal, as a document and as a response.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    kind: Kind,
    detail: String,
    field: Option<String>,
    retry_after: Option<Duration>,
    /// A header that belongs to this refusal: `Allow`, `WWW-Authenticate`, or `Accept-Encoding`.
    header: Option<HeaderValue>,
}

impl From<ShardSilent> for Problem {
    fn from(error: ShardSilent) -> Self {
        Self::retry(Kind::ShardSilent, Duration::from_secs(1), error.to_string())
    }
}

impl Problem {
    /// Limits: `detail` is cut at [`DETAIL_BYTES_MAX`], because it may repeat parts of the request.
    pub(crate) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        let detail = clipped(detail.into(), DETAIL_BYTES_MAX);
        Self { kind, detail, field: None, retry_after: None, header: None }
    }

    /// A field, a query parameter or a path segment is at fault.
    pub(crate) fn field(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(Kind::InvalidRequest, detail).at(field)
    }

    /// A header is at fault, beyond what its kind says.
    pub(crate) fn at_header(self, name: &'static str) -> Self {
        self.at(name)
    }

    /// A member, a parameter or a header is at fault, beyond what its kind says.
    ///
    /// Limits: `field` is cut at [`FIELD_BYTES_MAX`].
    pub(crate) fn at(self, field: impl Into<String>) -> Self {
        Self { field: Some(clipped(field.into(), FIELD_BYTES_MAX)), ..self }
    }

    /// 405; `allow` lists the methods that the path knows.
    pub(crate) fn method(allow: &'static str) -> Self {
        let detail = format!("this path knows {allow}");
        Self {
            header: Some(HeaderValue::from_static(allow)),
            ..Self::new(Kind::MethodNotAllowed, detail)
        }
    }

    /// 415 for a content coding.
    pub(crate) fn coding(detail: &'static str) -> Self {
        Self {
            header: Some(HeaderValue::from_static("identity")),
            field: Some("Content-Encoding".to_owned()),
            ..Self::new(Kind::UnsupportedMediaType, detail)
        }
    }

    /// 401 with its challenge.
    pub(crate) fn unauthorized(challenge: &'static str, detail: &'static str) -> Self {
        Self {
            header: Some(HeaderValue::from_static(challenge)),
            ..Self::new(Kind::Unauthorized, detail)
        }
    }

    /// 403 for a token that is known.
    pub(crate) fn forbidden(detail: String) -> Self {
        let challenge = "Bearer realm=\"weir\", error=\"insufficient_scope\"";
        Self {
            header: Some(HeaderValue::from_static(challenge)),
            ..Self::new(Kind::Forbidden, detail)
        }
    }

    /// A refusal that passes.
    pub(crate) fn retry(kind: Kind, after: Duration, detail: impl Into<String>) -> Self {
        Self { retry_after: Some(after), ..Self::new(kind, detail) }
    }

    /// 503: devices and tokens cannot be asked for.
    pub(crate) fn store_unavailable() -> Self {
        let detail = "what keeps devices and tokens does not answer; try again";
        Self::retry(Kind::StoreUnavailable, STORE_RETRY, detail)
    }

    /// The same for an operator, who may know why.
    pub(crate) fn store_failed(error: &weir_store::Error) -> Self {
        Self::retry(Kind::StoreUnavailable, STORE_RETRY, error.to_string())
    }

    /// 429: tokens from there are not looked at for a while.
    pub(crate) fn too_many_tokens(after: Duration) -> Self {
        let detail = "too many tokens from this address were not valid (auth.failures_per_source_per_second); try again";
        Self::retry(Kind::TooManyFailures, after, detail)
    }

    /// 404: there is no store.
    pub(crate) fn no_store() -> Self {
        Self::new(Kind::NotFound, "this gateway keeps no devices (store.kind)")
    }

    /// A message was refused that stood at this place.
    pub(crate) fn publish(error: PublishError, place: MessagePlace<'_>) -> Self {
        let detail = error.to_string();
        match error {
            PublishError::TopicName(
                TopicNameError::Empty
                | TopicNameError::TooLong { .. }
                | TopicNameError::Control(_)
                | TopicNameError::Wildcard(_),
            ) => Self::field(format!("{}topic", place.object), detail),
            PublishError::TooLarge { .. } | PublishError::TooLargeForTopic { .. } => {
                Self::new(Kind::TooLarge, detail).at(format!("{}{}", place.object, place.content))
            }
            PublishError::RateLimited { after, .. } => {
                Self::retry(Kind::RateLimited, after, detail)
            }
            PublishError::TickFull { after, .. } => Self::retry(Kind::TickFull, after, detail),
            PublishError::TooManyTopics { after, .. } => {
                Self::retry(Kind::TooManyTopics, after, detail)
            }
            PublishError::Busy(after) => Self::retry(Kind::MailboxFull, after, detail),
            PublishError::BudgetExhausted(after) => {
                Self::retry(Kind::BudgetExhausted, after, detail)
            }
        }
    }

    pub(crate) fn document(&self) -> Document<'_> {
        let (slug, title, status) = self.kind.facts();
        Document {
            kind: format!("urn:problem-type:weir:{slug}"),
            title,
            status: status.as_u16(),
            detail: &self.detail,
            field: self.field.as_deref(),
            retry_after_ms: self.retry_after.map(millis),
        }
    }

    pub(crate) fn into_response(self) -> Reply {
        let (_, _, status) = self.kind.facts();
        let mut response = reply::json(status, &self.document());
        let headers = response.headers_mut();
        headers.insert(
            http::header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if let Some(after) = self.retry_after {
            let seconds = millis(after).div_ceil(1000).max(1);
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(value) = self.header {
            let name = if matches!(self.kind, Kind::Unauthorized | Kind::Forbidden) {
                WWW_AUTHENTICATE
            } else if self.kind == Kind::UnsupportedMediaType {
                ACCEPT_ENCODING
            } else {
                ALLOW
            };
            headers.insert(name, value);
        }
        if self.kind == Kind::UpgradeRequired {
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
            headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        }
        if matches!(self.kind, Kind::BodyTimeout | Kind::LengthRequired) {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// A problem document's members; `field` and `retry_after_ms` are extensions.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct Document<'a> {
    #[serde(rename = "type")]
    kind: String,
    title: &'static str,
    status: u16,
    detail: &'a str,
    /// The member, parameter, part of the path or header at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    field: Option<&'a str>,
    /// Where waiting helps: for how long.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64, required = false)]
    retry_after_ms: Option<u64>,
}

/// The text; a longer one is cut and marked.
fn clipped(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        let end = (0..=bytes_max - CUT.len()).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        text.push_str(CUT);
        text.shrink_to_fit();
    }
    text
}

/// The longest text of ours has some 300 bytes.
const DETAIL_BYTES_MAX: usize = 512;
/// A path of members, such as `messages[999].content_type`.
const FIELD_BYTES_MAX: usize = 128;
const CUT: &str = "…";

/// A store that has gone is tried again about as often.
const STORE_RETRY: Duration = Duration::from_secs(2);

impl From<http_ledger::NoShare> for Problem {
    fn from(no_share: http_ledger::NoShare) -> Self {
        let (kind, detail) = match no_share {
            http_ledger::NoShare::Connection => (
                Kind::TooManyRequests,
                "answers that this connection has not taken are at their limit (http.answer_bytes_max)",
            ),
            http_ledger::NoShare::Share | http_ledger::NoShare::Budget => {
                (Kind::BudgetExhausted, "the byte budget has no room for the answer")
            }
        };
        Problem::retry(kind, Duration::from_secs(1), detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_mailbox_says_when_to_come_back() {
        let error = PublishError::Busy(Duration::from_millis(1200));
        let response =
            Problem::publish(error, MessagePlace { object: "", content: "text" }).into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[RETRY_AFTER], "2");
    }

    #[test]
    fn what_a_request_brings_is_not_repeated_at_length() {
        let long = "é".repeat(100_000);
        let problem = Problem::field(long.clone(), format!("there is nothing at {long:?}"));
        let document = serde_json::to_value(problem.document()).unwrap();
        for (member, bytes_max) in [("detail", DETAIL_BYTES_MAX), ("field", FIELD_BYTES_MAX)] {
            let text = document[member].as_str().unwrap();
            assert!(text.len() <= bytes_max && text.ends_with("é…"), "{member}: {}", text.len());
        }
        assert!(document["detail"].as_str().unwrap().starts_with("there is nothing at \"éé"));
        let exact = "x".repeat(DETAIL_BYTES_MAX);
        assert_eq!(Problem::new(Kind::NotFound, exact.clone()).document().detail, exact);
    }

    #[test]
    fn a_document_has_the_members_of_the_standard() {
        let problem = Problem::field("limit", "not a number");
        let json = serde_json::to_value(problem.document()).unwrap();
        assert_eq!(json["type"], "urn:problem-type:weir:invalid-request");
        assert_eq!(json["status"], 400);
        assert_eq!(json["field"], "limit");
        assert!(json.get("retry_after_ms").is_none());
    }
}
