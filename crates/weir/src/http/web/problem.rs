//! Problem documents (RFC 9457): the refusals of requests.

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

/// The reason of a refusal. Each has one `type`, one title and one status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A part of the request is not as documented.
    InvalidRequest,
    /// No token, or a wrong one.
    Unauthorized,
    /// The token is valid, but not for this request.
    Forbidden,
    /// A page of another origin sent the request.
    ForeignOrigin,
    /// There is no such path, connection or device.
    NotFound,
    /// The path is for another protocol.
    UpgradeRequired,
    /// The path does not know the method.
    MethodNotAllowed,
    /// The body did not come in time.
    BodyTimeout,
    /// The body comes without its length.
    LengthRequired,
    /// A body or a message over its limit.
    TooLarge,
    /// A head over its limit.
    HeadTooLarge,
    /// A body that is not JSON, or coded.
    UnsupportedMediaType,
    /// A body in an unknown transfer coding.
    UnknownCoding,
    /// The `Host` is not a name of this server.
    UnknownHost,
    /// More messages than the topic accepts, or than one sender may publish.
    RateLimited,
    /// The topic's tick is full.
    TickFull,
    /// There are as many topics as permitted.
    TooManyTopics,
    /// A shard's mailbox is full.
    MailboxFull,
    /// The server has no room for the request.
    Busy,
    /// The byte budget is used up.
    BudgetExhausted,
    /// The broker has not answered: the message may have been published.
    Uncertain,
    /// A message with the same idempotency key is on its way.
    InProgress,
    /// The node is being drained, or has been.
    DrainRunning,
    /// The program refuses its own configuration.
    ConfigurationRefused,
    /// A profile of the same kind is running.
    ProfileRunning,
    /// The system does not let the process make a profile.
    ProfileFailed,
    /// The broker cannot be reached, or refuses: nothing was published.
    BrokerUnavailable,
    /// There are too many request bodies at once.
    TooManyRequests,
    /// Too many attempts from one address have failed.
    TooManyFailures,
    /// The store of devices and tokens does not answer.
    StoreUnavailable,
    /// A shard does not answer.
    ShardSilent,
    /// A node of the cluster does not answer.
    NodeSilent,
    /// A device has not done what it was called for.
    Call(CallProblem),
    /// The server does not listen yet, or it drains.
    NotReady,
    /// An upstream has not answered.
    Service(ServiceFault),
}

/// Why an upstream has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServiceFault {
    /// None of its endpoints can be reached.
    Unreachable,
    /// It broke off, or its answer is no HTTP.
    Broken,
    /// It has no room for one more request.
    Busy,
    /// It did not answer in time.
    Timeout,
}

/// Why a device has not done what it was called for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallProblem {
    /// The device answers no calls.
    Unsupported,
    /// As many calls of the device go on as may.
    TooMany,
    /// The device has answered with an error.
    Failed,
    /// The connection of the device ended before it answered.
    Gone,
    /// The device has not answered in time.
    Timeout,
}

/// The place of a message in a request body, for the member `field` of a problem.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessagePlace<'a> {
    /// The path of the message's object, with the separator before a member.
    pub(crate) object: &'a str,
    /// The member that holds the content.
    pub(crate) content: &'static str,
}

impl Kind {
    /// The last part of its `type`, its title and its status.
    pub(crate) const fn facts(self) -> (&'static str, &'static str, StatusCode) {
        use StatusCode as S;
        match self {
            Kind::InvalidRequest => ("invalid-request", "The request is invalid", S::BAD_REQUEST),
            Kind::Unauthorized => ("unauthorized", "A valid token is required", S::UNAUTHORIZED),
            Kind::Forbidden => ("forbidden", "The token does not permit this", S::FORBIDDEN),
            Kind::ForeignOrigin => {
                ("foreign-origin", "Pages of other origins are refused", S::FORBIDDEN)
            }
            Kind::NotFound => ("not-found", "Not found", S::NOT_FOUND),
            Kind::UpgradeRequired => ("upgrade-required", "Upgrade required", S::UPGRADE_REQUIRED),
            Kind::MethodNotAllowed => {
                ("method-not-allowed", "Method not allowed", S::METHOD_NOT_ALLOWED)
            }
            Kind::BodyTimeout => {
                ("body-timeout", "The body did not come in time", S::REQUEST_TIMEOUT)
            }
            Kind::LengthRequired => ("length-required", "Length required", S::LENGTH_REQUIRED),
            Kind::TooLarge => ("too-large", "Too large", S::PAYLOAD_TOO_LARGE),
            Kind::HeadTooLarge => {
                ("head-too-large", "The head is too large", S::REQUEST_HEADER_FIELDS_TOO_LARGE)
            }
            Kind::UnsupportedMediaType => (
                "unsupported-media-type",
                "The body is of another media type",
                S::UNSUPPORTED_MEDIA_TYPE,
            ),
            Kind::UnknownCoding => {
                ("unknown-coding", "The transfer coding is not known", S::NOT_IMPLEMENTED)
            }
            Kind::UnknownHost => {
                ("unknown-host", "This server does not have that host name", S::MISDIRECTED_REQUEST)
            }
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
            Kind::Uncertain => {
                ("uncertain", "The message may or may not have been published", UNAVAILABLE)
            }
            Kind::InProgress => {
                ("in-progress", "The first request with this key goes on", S::CONFLICT)
            }
            Kind::DrainRunning => ("drain-running", "The node is drained already", S::CONFLICT),
            Kind::ConfigurationRefused => ("configuration-refused", "Configuration refused", UNFIT),
            Kind::ProfileRunning => ("profile-running", "Another profile is running", S::CONFLICT),
            Kind::ProfileFailed => ("profile-failed", "The profile failed", UNAVAILABLE),
            Kind::BrokerUnavailable => {
                ("broker-unavailable", "The cluster's broker cannot be reached", UNAVAILABLE)
            }
            Kind::TooManyRequests => {
                ("too-many-requests", "Too many requests at once", UNAVAILABLE)
            }
            Kind::TooManyFailures => {
                ("too-many-failures", "Too many attempts from this address have failed", TOO_MANY)
            }
            Kind::StoreUnavailable => {
                ("store-unavailable", "The store or the backend does not answer", UNAVAILABLE)
            }
            Kind::ShardSilent => ("shard-silent", "A shard does not answer", UNAVAILABLE),
            Kind::NodeSilent => ("node-silent", "A node does not answer", UNAVAILABLE),
            Kind::Call(problem) => problem.facts(),
            Kind::NotReady => ("not-ready", "Not ready", UNAVAILABLE),
            Kind::Service(fault) => fault.facts(),
        }
    }
}

impl ServiceFault {
    const fn facts(self) -> (&'static str, &'static str, StatusCode) {
        use StatusCode as S;
        match self {
            ServiceFault::Unreachable => {
                ("service-unreachable", "The service cannot be reached", S::BAD_GATEWAY)
            }
            ServiceFault::Broken => ("service-broken", "The service broke off", S::BAD_GATEWAY),
            ServiceFault::Busy => ("service-busy", "The service is busy", S::SERVICE_UNAVAILABLE),
            ServiceFault::Timeout => {
                ("service-timeout", "The service did not answer in time", S::GATEWAY_TIMEOUT)
            }
        }
    }
}

impl CallProblem {
    const fn facts(self) -> (&'static str, &'static str, StatusCode) {
        use StatusCode as S;
        match self {
            CallProblem::Unsupported => {
                ("calls-unsupported", "The device answers no calls", S::CONFLICT)
            }
            CallProblem::TooMany => {
                ("too-many-calls", "As many calls of the device go on as may", S::TOO_MANY_REQUESTS)
            }
            CallProblem::Failed => {
                ("call-failed", "The device has answered with an error", S::BAD_GATEWAY)
            }
            CallProblem::Gone => {
                ("device-gone", "The device has gone without an answer", S::BAD_GATEWAY)
            }
            CallProblem::Timeout => {
                ("call-timeout", "The device has not answered in time", S::GATEWAY_TIMEOUT)
            }
        }
    }
}

/// A refusal: a document, and the response that carries it.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    kind: Kind,
    detail: String,
    field: Option<Box<str>>,
    device_code: Option<Box<DeviceCode>>,
    retry_after: Option<Duration>,
    /// A header that belongs to this refusal: `Allow`, `WWW-Authenticate`, or `Accept-Encoding`.
    header: Option<HeaderValue>,
}

/// The word of a device's error. In a box of its own, because few problems have one.
#[derive(Debug, Clone)]
struct DeviceCode(String);

impl From<ShardSilent> for Problem {
    fn from(error: ShardSilent) -> Self {
        Self::retry(Kind::ShardSilent, Duration::from_secs(1), error.to_string())
    }
}

impl Problem {
    /// Another process takes over, or has taken over: the request is to come again, and finds that
    /// process on a new connection.
    pub(crate) fn handing_over() -> Self {
        let detail = "another process takes over this gateway; ask again, on a new connection";
        Self::retry(Kind::NotReady, Duration::from_secs(1), detail)
    }

    /// Limits: `detail` is cut at [`DETAIL_BYTES_MAX`], because it may repeat parts of the request.
    pub(crate) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        let detail = clipped(detail.into(), DETAIL_BYTES_MAX);
        let (field, device_code) = (None, None);
        Self { kind, detail, field, device_code, retry_after: None, header: None }
    }

    /// A refusal because of a field, a query parameter or a path segment.
    pub(crate) fn field(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(Kind::InvalidRequest, detail).at(field)
    }

    /// Names the header at fault, if its kind does not say it already.
    pub(crate) fn at_header(self, name: &'static str) -> Self {
        self.at(name)
    }

    /// Names the member, parameter or header at fault, if its kind does not say it already.
    ///
    /// Limits: `field` is cut at [`FIELD_BYTES_MAX`].
    pub(crate) fn at(self, field: impl Into<String>) -> Self {
        Self { field: Some(clipped(field.into(), FIELD_BYTES_MAX).into()), ..self }
    }

    /// Adds the word of a device's error.
    ///
    /// Limits: cut at [`FIELD_BYTES_MAX`].
    pub(crate) fn of_device(self, code: String) -> Self {
        let code = DeviceCode(clipped(code, FIELD_BYTES_MAX));
        Self { device_code: Some(Box::new(code)), ..self }
    }

    /// 405; `allow` lists the methods of the path.
    pub(crate) fn method(allow: &'static str) -> Self {
        let detail = format!("this path takes {allow}");
        Self {
            header: Some(HeaderValue::from_static(allow)),
            ..Self::new(Kind::MethodNotAllowed, detail)
        }
    }

    /// 415 for a content coding.
    pub(crate) fn coding(detail: &'static str) -> Self {
        Self {
            header: Some(HeaderValue::from_static("identity")),
            field: Some("Content-Encoding".into()),
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

    /// 403 for a known token without the right.
    pub(crate) fn forbidden(detail: String) -> Self {
        let challenge = "Bearer realm=\"weir\", error=\"insufficient_scope\"";
        Self {
            header: Some(HeaderValue::from_static(challenge)),
            ..Self::new(Kind::Forbidden, detail)
        }
    }

    /// A refusal that passes after a time.
    pub(crate) fn retry(kind: Kind, after: Duration, detail: impl Into<String>) -> Self {
        Self { retry_after: Some(after), ..Self::new(kind, detail) }
    }

    /// 503: the store of devices and tokens, or the backend that is asked, does not answer.
    pub(crate) fn store_unavailable() -> Self {
        let detail =
            "the store of devices, or the backend of hooks.connect, does not answer; try again";
        Self::retry(Kind::StoreUnavailable, STORE_RETRY, detail)
    }

    /// The broker of the cluster has not done what an operator has asked for.
    pub(crate) fn broker(error: &weir_broker::Error) -> Self {
        use weir_broker::Error;
        let kind = match error {
            Error::Uncertain(_) => Kind::Uncertain,
            Error::Unavailable(_)
            | Error::Overloaded { .. }
            | Error::Refused(_)
            | Error::OtherCluster { .. }
            | Error::Damaged(_) => Kind::BrokerUnavailable,
        };
        Self::retry(kind, BROKER_RETRY, error.to_string())
    }

    /// Some nodes of the cluster have not answered, and the others know nothing.
    pub(crate) fn nodes_silent(missing: &[u16]) -> Self {
        let detail = match missing {
            [] => "the broker does not tell which nodes there are".to_owned(),
            missing => format!("the nodes {missing:?} do not answer, and no other one knows it"),
        };
        Self::retry(Kind::NodeSilent, BROKER_RETRY, detail)
    }

    /// The same for an operator, who may see the reason.
    pub(crate) fn store_failed(error: &weir_store::Error) -> Self {
        Self::retry(Kind::StoreUnavailable, STORE_RETRY, error.to_string())
    }

    /// 429: the gateway does not check tokens from this address for a while.
    pub(crate) fn too_many_tokens(after: Duration) -> Self {
        let detail = "too many tokens from this address were not valid (auth.failures_per_source_per_second); try again";
        Self::retry(Kind::TooManyFailures, after, detail)
    }

    /// 404: there is no store.
    pub(crate) fn no_store() -> Self {
        Self::new(Kind::NotFound, "this gateway keeps no devices (store.kind)")
    }

    /// The refusal of the message at this place.
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
            PublishError::Uncertain(after) => {
                let key = "with the same Idempotency-Key it is published once";
                Self::retry(Kind::Uncertain, after, format!("{detail}; {key}"))
            }
            PublishError::InProgress(after) => Self::retry(Kind::InProgress, after, detail),
            PublishError::BrokerUnavailable(after) | PublishError::BrokerRefused(after) => {
                Self::retry(Kind::BrokerUnavailable, after, detail)
            }
        }
    }

    /// The broker does not tell what a topic of the cluster holds.
    pub(crate) fn unknown_to_broker(topic: &str) -> Self {
        let detail = format!("the broker does not answer for the topic {topic:?}; try again");
        Self::retry(Kind::BrokerUnavailable, Duration::from_secs(1), detail)
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.kind.facts().2
    }

    pub(crate) fn document(&self) -> Document<'_> {
        let (slug, title, status) = self.kind.facts();
        Document {
            kind: format!("urn:problem-type:weir:{slug}"),
            title,
            status: status.as_u16(),
            detail: &self.detail,
            field: self.field.as_deref(),
            device_code: self.device_code.as_deref().map(|code| &*code.0),
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

/// The members of a problem document; `field` and `retry_after_ms` are extensions.
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
    /// The word of the error that a device has answered with.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    device_code: Option<&'a str>,
    /// If a later attempt can succeed: the time to wait for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64, required = false)]
    retry_after_ms: Option<u64>,
}

/// The text. A longer text is cut, and marked as cut.
fn clipped(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        let end = (0..=bytes_max - CUT.len()).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        text.push_str(CUT);
        text.shrink_to_fit();
    }
    text
}

const UNAVAILABLE: StatusCode = StatusCode::SERVICE_UNAVAILABLE;
const TOO_MANY: StatusCode = StatusCode::TOO_MANY_REQUESTS;
/// What was asked for is understood, but cannot be done with what there is.
const UNFIT: StatusCode = StatusCode::UNPROCESSABLE_ENTITY;
/// Our longest text has some 300 bytes.
const DETAIL_BYTES_MAX: usize = 512;
/// A path of members, such as `messages[999].content_type`.
const FIELD_BYTES_MAX: usize = 128;
const CUT: &str = "…";

/// The gateway tries a lost store again about as often.
const STORE_RETRY: Duration = Duration::from_secs(2);
/// A failover takes some seconds; a short trouble is over at once.
const BROKER_RETRY: Duration = Duration::from_secs(1);

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
