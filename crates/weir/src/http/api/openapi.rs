//! `GET /openapi.json` of the public address.

use std::sync::LazyLock;

use bytes::Bytes;
use utoipa::openapi::HttpMethod;
use utoipa::openapi::schema::{Array, ArrayBuilder, Object, ObjectBuilder};

use super::activation::{ActivatedView, Activation};
use super::history::HistoryView;
use crate::http::web::openapi::{
    Description, IDEMPOTENCY_KEY, Operation, idempotency_key, limit, text, text_like,
};
use crate::http::web::presence::PresenceView;
use crate::http::web::problem::Kind;
use crate::http::web::publish::{Many, Message, Published, Results};

/// The document.
pub(super) fn document() -> Bytes {
    DOCUMENT.clone()
}

fn write() -> Bytes {
    let get = HttpMethod::Get;
    Description::default()
        .operation(get.clone(), "/", hello("root"))
        .operation(get.clone(), "/rest/hello", hello("hello"))
        .operation(get.clone(), "/v1/connect", connect())
        .operation(get.clone(), "/v1/sse", sse())
        .operation(HttpMethod::Post, "/v1/publish", publish())
        .operation(get.clone(), "/v1/topics/{topic}/history", history())
        .operation(get.clone(), "/v1/topics/{topic}/presence", presence())
        .operation(HttpMethod::Post, "/auth/gw/active", activate("activateByOldPath"))
        .operation(HttpMethod::Post, "/v1/devices/activate", activate("activate"))
        .operation(HttpMethod::Post, "/v1/devices/token/refresh", refresh())
        .operation(get, "/openapi.json", description())
        .write("Weir: the public API", ABOUT)
}

fn hello(id: &str) -> Operation {
    Operation::open(id, "A greeting, for smoke tests and benches")
        .answers_text("text/plain", "`Hello World`; over HTTP/2 `Hello World - via HTTP/2`")
        .refuses(&[Kind::InvalidRequest])
}

fn connect() -> Operation {
    Operation::new("connect", "Open a WebSocket (RFC 6455), over HTTP/1.1 only")
        .description(
            "Subprotocols: `weir.v1.protobuf`, `weir.v1.json`. A token may also come as the subprotocol \
             `weir.token.BASE64URL`, or in `Hello`. See docs/protocol.md.",
        )
        .answers_nothing(101, "The connection is a WebSocket now")
        .query("access_token", "A token, if `http.query_token` permits it here", text())
        .refuses(&[
            Kind::InvalidRequest,
            Kind::Unauthorized,
            Kind::ForeignOrigin,
            Kind::UnknownHost,
            Kind::UpgradeRequired,
            Kind::TooManyFailures,
            Kind::StoreUnavailable,
        ])
}

fn sse() -> Operation {
    let topics = || -> Array { ArrayBuilder::new().items(text()).build() };
    Operation::new("sse", "Listen to topics by server-sent events")
        .query("topic", "A topic; may be given several times", topics())
        .query(
            "device",
            "The device id, unless the token belongs to one device or to a service",
            text(),
        )
        .query(
            "presence",
            "One of these topics, to hear who enters it and who leaves; may be given several times",
            topics(),
        )
        .query("heartbeat_ms", "The wished interval of comments that show life", text())
        .query("last_event_id", "The value of `Last-Event-ID`, for a first request", text())
        .query("access_token", "A token, if `http.query_token` permits it here", text())
        .answers_text("text/event-stream", "Events from now on, or from `Last-Event-ID` on")
        .refuses(&[
            Kind::InvalidRequest,
            Kind::Unauthorized,
            Kind::Forbidden,
            Kind::ForeignOrigin,
            Kind::UnknownHost,
            Kind::Busy,
            Kind::BudgetExhausted,
            Kind::TooManyFailures,
            Kind::StoreUnavailable,
        ])
}

fn publish() -> Operation {
    Operation::new("publish", "Publish one message, or up to 1,000")
        .description(
            "Devices publish to topics; a service with the right `publish` may also name a device, or `all`.",
        )
        .header("Idempotency-Key", IDEMPOTENCY_KEY, idempotency_key())
        .body_of::<Message<'_>, Many<'_>>()
        .answers_with::<Published, Results<'_>>("The outcome, or the outcome of each message")
        .refuses(&[
            Kind::InvalidRequest,
            Kind::Unauthorized,
            Kind::Forbidden,
            Kind::ForeignOrigin,
            Kind::UnknownHost,
            Kind::BodyTimeout,
            Kind::TooLarge,
            Kind::UnsupportedMediaType,
            Kind::RateLimited,
            Kind::MailboxFull,
            Kind::BudgetExhausted,
            Kind::TickFull,
            Kind::TooManyTopics,
            Kind::InProgress,
            Kind::Uncertain,
            Kind::BrokerUnavailable,
            Kind::TooManyRequests,
            Kind::Busy,
            Kind::TooManyFailures,
            Kind::StoreUnavailable,
        ])
}

fn history() -> Operation {
    Operation::new("history", "Read the history of a topic")
        .segment("topic", "Its name, percent-encoded (`%2F` for a slash)", topic())
        .query("limit", "The greatest number of messages", limit())
        .query("after", "Only messages after this position", text_like("^[0-9a-fA-F]{16}-[0-9]+$"))
        .answers::<HistoryView<'_>>(
            "Messages in order, at most 1 MiB of them or one, and where to continue",
        )
        .refuses(&[
            Kind::InvalidRequest,
            Kind::Unauthorized,
            Kind::Forbidden,
            Kind::ForeignOrigin,
            Kind::UnknownHost,
            Kind::NotFound,
            Kind::BudgetExhausted,
            Kind::TooManyRequests,
            Kind::TooManyFailures,
            Kind::StoreUnavailable,
        ])
}

fn presence() -> Operation {
    Operation::new("presence", "List the connections in a topic")
        .description("Only for callers that `presence_for` of the topic's class names.")
        .segment("topic", "Its name, percent-encoded (`%2F` for a slash)", topic())
        .query("limit", "The greatest number of connections", limit())
        .query("after", "Only connections after this one", text_like("^[0-9a-fA-F]{16}$"))
        .answers::<PresenceView>("A page, and how many there are in all")
        .refuses(&[
            Kind::InvalidRequest,
            Kind::Unauthorized,
            Kind::Forbidden,
            Kind::ForeignOrigin,
            Kind::UnknownHost,
            Kind::NotFound,
            Kind::BudgetExhausted,
            Kind::BrokerUnavailable,
            Kind::TooManyRequests,
            Kind::TooManyFailures,
            Kind::StoreUnavailable,
        ])
}

fn activate(id: &str) -> Operation {
    Operation::open(id, "Get a token for a device, with its serial number and its key")
        .description(
            "Each time it is a new one; the one before is valid for `activation.grace` longer. Members that are not known \
             are ignored, and so is the media type. An unknown serial number and a wrong key are one answer.",
        )
        .takes::<Activation<'_>>()
        .answers::<ActivatedView<'_>>("The token")
        .refuses(&[
            Kind::InvalidRequest,
            Kind::Unauthorized,
            Kind::ForeignOrigin,
            Kind::NotFound,
            Kind::BodyTimeout,
            Kind::TooLarge,
            Kind::TooManyFailures,
            Kind::StoreUnavailable,
            Kind::TooManyRequests,
        ])
}

fn refresh() -> Operation {
    Operation::new("refresh", "Exchange a device's token for a new one")
        .description("The old one is valid for `activation.grace` longer. The body is not read.")
        .answers::<ActivatedView<'_>>("The token")
        .refuses(&[
            Kind::InvalidRequest,
            Kind::Unauthorized,
            Kind::ForeignOrigin,
            Kind::NotFound,
            Kind::TooManyFailures,
            Kind::StoreUnavailable,
        ])
}

fn topic() -> Object {
    ObjectBuilder::from(text()).min_length(Some(1)).build()
}

fn description() -> Operation {
    Operation::open("openapi", "This document")
        .answers_json("An OpenAPI document", Object::new().into())
        .refuses(&[
            Kind::InvalidRequest,
            Kind::ForeignOrigin,
            Kind::BudgetExhausted,
            Kind::TooManyRequests,
        ])
}

static DOCUMENT: LazyLock<Bytes> = LazyLock::new(write);

const ABOUT: &str = "What browsers, backends and devices without the protocol's own framing use. Tokens are those of \
                     `auth.tokens` and `auth.services`; without one a request is an anonymous device's, where such are \
                     admitted. Each path that knows GET knows HEAD, and all know OPTIONS, also for pages of the origins \
                     in `http.cors_origins`. See docs/http-api.md.";
