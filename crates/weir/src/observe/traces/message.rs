//! The messages of OTLP that we send and read, in protobuf.
//!
//! Source: `opentelemetry/proto/trace/v1/trace.proto` and its neighbours, release 1; their fields do
//! not change any more. Fields that we never set are left out.

use std::time::Duration;

use prost::Message;

use super::SpanKind;
use super::on::Finished;

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(super) spans: Vec<SpanMessage>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Scope {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SpanMessage {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    pub(super) parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub(super) name: String,
    #[prost(int32, tag = "6")]
    pub(super) kind: i32,
    #[prost(fixed64, tag = "7")]
    pub(super) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    pub(super) end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    pub(super) status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    pub(super) flags: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    #[prost(string, tag = "2")]
    pub(super) message: String,
    #[prost(int32, tag = "3")]
    pub(super) code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AnyValue {
    /// A member of a `oneof`: written even if it is empty.
    #[prost(string, optional, tag = "1")]
    pub(super) string_value: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportAnswer {
    #[prost(message, optional, tag = "1")]
    pub(super) partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PartialSuccess {
    #[prost(int64, tag = "1")]
    pub(super) rejected_spans: i64,
    #[prost(string, tag = "2")]
    pub(super) error_message: String,
}

/// The request that exports these spans.
pub(super) fn request(service: &str, spans: Vec<Finished>) -> Vec<u8> {
    let resource = [("service.name", service), ("telemetry.sdk.name", NAME)];
    let resource = resource.map(|(key, value)| KeyValue::new(key, value.to_owned()));
    let scope = Scope { name: NAME.to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
    let spans = spans.into_iter().map(SpanMessage::from).collect();
    let resource_spans = ResourceSpans {
        resource: Some(Resource { attributes: resource.into() }),
        scope_spans: vec![ScopeSpans { scope: Some(scope), spans }],
    };
    ExportRequest { resource_spans: vec![resource_spans] }.encode_to_vec()
}

impl From<Finished> for SpanMessage {
    fn from(span: Finished) -> SpanMessage {
        let mut attributes: Vec<KeyValue> =
            span.attributes.into_iter().map(|(key, value)| KeyValue::new(key, value)).collect();
        let status = span.error.map(|error| {
            attributes.push(KeyValue::new("error.type", error.clone()));
            Status { message: error, code: STATUS_CODE_ERROR }
        });
        SpanMessage {
            trace_id: span.trace.into(),
            span_id: span.span.into(),
            parent_span_id: span.parent.map(Vec::from).unwrap_or_default(),
            name: span.name.to_owned(),
            kind: span.kind.number(),
            start_time_unix_nano: nanos(span.began),
            end_time_unix_nano: nanos(span.ended),
            attributes,
            status,
            flags: SAMPLED,
        }
    }
}

impl SpanKind {
    /// The number in `enum SpanKind`.
    fn number(self) -> i32 {
        match self {
            SpanKind::Internal => 1,
            SpanKind::Server => 2,
            SpanKind::Client => 3,
        }
    }
}

impl KeyValue {
    fn new(key: &str, value: String) -> KeyValue {
        KeyValue { key: key.to_owned(), value: Some(AnyValue { string_value: Some(value) }) }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

const NAME: &str = "weir";
const STATUS_CODE_ERROR: i32 = 2;
/// The flag of W3C Trace Context.
const SAMPLED: u32 = 1;
