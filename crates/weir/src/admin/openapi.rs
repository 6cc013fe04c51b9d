//! `GET /openapi.json` of the admin address.

use std::sync::LazyLock;

use bytes::Bytes;
use utoipa::openapi::schema::{Object, ObjectBuilder, Type};
use utoipa::openapi::{HttpMethod, Required};
use weir_wire::CloseReason;

use super::audit::AuditView;
use super::calls::{CallAnswer, CallRequest};
use super::closes::ClosesView;
use super::debug::{MemoryView, RetentionView};
use super::device_list::{ImportedView, StoredPageView};
use super::drain::{DrainRequest, DrainView};
use super::guard::SESSION_COOKIE;
use super::notices::NoticesView;
use super::reload::{ReloadRequest, ReloadView};
use super::session::{SessionView, SignInRequest};
use super::stats::StatsView;
use super::views::{ConnectionsView, DeviceView, NodesView, RevokingView, TopicsView};
use super::{profiles, ready};
use crate::core::node::ConnectionView;
use crate::http::web::openapi::{
    Description, IDEMPOTENCY_KEY, Operation, idempotency_key, limit, text, text_like,
};
use crate::http::web::presence::PresenceView;
use crate::http::web::problem::{CallProblem, Kind};
use crate::http::web::publish::{Many, Message, Published, Results};
use crate::{AdminScope, Part};

/// The document.
pub(super) fn document() -> Bytes {
    DOCUMENT.clone()
}

fn write() -> Bytes {
    let get = HttpMethod::Get;
    Description::default()
        .operation(HttpMethod::Post, "/v1/publish", publish())
        .operation(get.clone(), "/v1/events", events())
        .operation(get.clone(), "/v1/connections", connections())
        .operation(get.clone(), "/v1/connections/{id}", connection())
        .operation(HttpMethod::Delete, "/v1/connections/{id}", close())
        .operation(get.clone(), "/v1/closes", closes())
        .operation(get.clone(), "/v1/topics", topics())
        .operation(get.clone(), "/v1/topics/{topic}/presence", presence())
        .operation(get.clone(), "/v1/devices", devices())
        .operation(HttpMethod::Post, "/v1/devices", import())
        .operation(get.clone(), "/v1/devices/export", export())
        .operation(get.clone(), "/v1/devices/{id}", device())
        .operation(HttpMethod::Post, "/v1/devices/{id}/revoke", revoke())
        .operation(HttpMethod::Post, "/v1/devices/{id}/call", call())
        .operation(get.clone(), "/v1/nodes", nodes())
        .operation(get.clone(), "/v1/drain", drain_state())
        .operation(HttpMethod::Post, "/v1/drain", drain())
        .operation(HttpMethod::Delete, "/v1/drain", cancel_drain())
        .operation(get.clone(), "/v1/stats", stats())
        .operation(get.clone(), "/v1/stats/stream", stats_stream())
        .operation(HttpMethod::Post, "/v1/reload", reload())
        .operation(get.clone(), "/v1/debug/memory", memory())
        .operation(get.clone(), "/v1/debug/retention", retention())
        .operation(get.clone(), "/v1/debug/cpu", cpu())
        .operation(get.clone(), "/v1/debug/heap", heap())
        .operation(get.clone(), "/healthz", health())
        .operation(get.clone(), "/readyz", ready())
        .operation(get.clone(), "/metrics", metrics())
        .operation(get.clone(), "/openapi.json", description())
        .operation(HttpMethod::Post, "/v1/session", sign_in())
        .operation(get.clone(), "/v1/session", session())
        .operation(HttpMethod::Delete, "/v1/session", sign_out())
        .operation(get.clone(), "/v1/audit", audit())
        .operation(get, "/v1/hooks/{id}/notices", notices())
        .cookie(SESSION_COOKIE)
        .write("Weir: the admin API", ABOUT)
}

fn publish() -> Operation {
    scoped(&[AdminScope::Publish], "publish", "Publish one message, or up to 1,000")
        .header("Idempotency-Key", IDEMPOTENCY_KEY, idempotency_key())
        .body_of::<Message<'_>, Many<'_>>()
        .answers_with::<Published, Results<'_>>("The outcome, or the outcome of each message")
        .refuses(&BODY)
        .refuses(&[
            Kind::LengthRequired,
            Kind::RateLimited,
            Kind::TickFull,
            Kind::TooManyTopics,
            Kind::MailboxFull,
            Kind::BudgetExhausted,
            Kind::InProgress,
            Kind::Uncertain,
            Kind::BrokerUnavailable,
        ])
}

fn events() -> Operation {
    let sample = ObjectBuilder::new().schema_type(Type::Number).minimum(Some(0)).maximum(Some(1));
    guarded("events", "Listen to the events of connections")
        .query("type", "Only events of these types, separated by commas", text())
        .query("device", "Only events of this device", text())
        .query("topic", "Only events of topics whose name begins so", text())
        .query("sample", "Only events of this share of the connections", sample.build())
        .answers_text("text/event-stream", "Events from now on")
        .refuses(&[Kind::TooManyRequests])
}

fn connections() -> Operation {
    paged("connections", "List connections")
        .query("device", "Only connections of this device", text())
        .query("topic", "Only connections in this topic", text())
        .query(
            "node",
            "The number of the node whose connections to list; this one by default",
            node(),
        )
        .answers::<ConnectionsView>("A page")
        .refuses(&[Kind::ShardSilent])
}

fn connection() -> Operation {
    guarded("connection", "Look at a connection")
        .segment("id", "Its id", connection_id())
        .answers::<ConnectionView>("The connection, at whichever node")
        .refuses(&[Kind::NotFound, Kind::ShardSilent, Kind::NodeSilent])
}

fn close() -> Operation {
    scoped(&[AdminScope::Operate], "close", "Close a connection")
        .segment("id", "Its id", connection_id())
        .answers_nothing(204, "It is told to close, with `closed_by_operator`")
        .refuses(&[Kind::NotFound, Kind::ShardSilent, Kind::NodeSilent])
}

fn closes() -> Operation {
    let reasons = CloseReason::ALL.map(CloseReason::name);
    let reasons = ObjectBuilder::from(text()).enum_values(Some(reasons)).build();
    guarded("closes", "The last ends of connections of this node, at most 1,000")
        .query("limit", "The greatest number of items to list", limit())
        .query("device", "Only ends of this device's connections", text())
        .query("reason", "Only ends for this reason", reasons)
        .answers::<ClosesView>("The newest first")
}

fn topics() -> Operation {
    paged("topics", "List topics by name")
        .query("prefix", "Only topics whose name begins so", text())
        .answers::<TopicsView>("A page")
}

fn presence() -> Operation {
    guarded("presence", "List the connections in a topic, at all nodes")
        .segment("topic", "Its name, percent-encoded (`%2F` for a slash)", device_id())
        .query("limit", "The greatest number of items to list", limit())
        .query(
            "after",
            "Only connections after this one: `next_after` of the previous page",
            connection_id(),
        )
        .answers::<PresenceView>("A page, and how many there are in all")
        .refuses(&[Kind::NotFound, Kind::BrokerUnavailable])
}

fn devices() -> Operation {
    guarded(
        "devices",
        "List the devices in the store, in the order of the bytes of their serial numbers",
    )
    .query("limit", "The greatest number of items to list", limit())
    .query("after", "Only devices after this one: `next_after` of the previous page", text())
    .answers::<StoredPageView>("A page")
    .refuses(&[Kind::NotFound, Kind::StoreUnavailable])
}

fn import() -> Operation {
    scoped(&[AdminScope::Devices], "importDevices", "Import devices")
        .description(
            "Rows of CSV under a header with `devSn` and `devKey`, or a JSON object with these members a line; each further \
             column or member is a label. A bad row is skipped. What is known already stays as it is, but for a key or \
             labels that have changed: so a request may be repeated.",
        )
        .body_text(&["text/csv", "application/x-ndjson"])
        .answers::<ImportedView>("The outcome of the rows")
        .refuses(&BODY)
        .refuses(&[Kind::Uncertain, Kind::BrokerUnavailable])
        .refuses(&[Kind::NotFound, Kind::StoreUnavailable, Kind::ShardSilent])
}

fn export() -> Operation {
    scoped(
        &[AdminScope::Devices],
        "exportDevices",
        "All devices in the store, without keys and tokens",
    )
    .answers_text("application/x-ndjson", "A line for each, as in a page of the list")
    .refuses(&[Kind::NotFound])
}

fn device() -> Operation {
    guarded("device", "Look at a device")
        .segment("id", DEVICE, device_id())
        .answers::<DeviceView<'_>>("The device, with its connections at all nodes")
        .refuses(&[Kind::NotFound, Kind::StoreUnavailable, Kind::ShardSilent, Kind::NodeSilent])
}

fn revoke() -> Operation {
    let nothing = ObjectBuilder::new().schema_type(Type::Object).max_properties(Some(0));
    scoped(&[AdminScope::Devices], "revoke", "Revoke a device")
        .segment("id", DEVICE, device_id())
        .body(nothing.into(), Required::False)
        .answers_nothing(
            204,
            "The store revokes the device for good, if it has it. Its connections are told to close, with `revoked`; \
             in a cluster all nodes have done so",
        )
        .accepts::<RevokingView>("The same, but some nodes of the cluster have not confirmed it yet")
        .refuses(&BODY)
        .refuses(&[Kind::NotFound, Kind::StoreUnavailable, Kind::ShardSilent])
        .refuses(&[Kind::Uncertain, Kind::BrokerUnavailable])
}

fn call() -> Operation {
    scoped(&[AdminScope::Publish], "call", "Call a device, and wait for its answer")
        .segment("id", DEVICE, device_id())
        .takes::<CallRequest<'_>>()
        .answers::<CallAnswer>("The answer of the device")
        .refuses(&BODY)
        .refuses(&[
            Kind::NotFound,
            Kind::Call(CallProblem::Unsupported),
            Kind::Call(CallProblem::TooMany),
            Kind::Busy,
            Kind::Call(CallProblem::Failed),
            Kind::Call(CallProblem::Gone),
            Kind::Call(CallProblem::Timeout),
            Kind::NodeSilent,
        ])
}

fn notices() -> Operation {
    scoped(&[AdminScope::Operate], "notices", "Read the notices of a receiver again")
        .description(
            "Those that were delivered stay for `keep` of the receiver. To read changes nothing: what waits is delivered \
             all the same. A service needs the right `events`.",
        )
        .segment("id", "The receiver's name", device_id())
        .query("limit", "The greatest number of items to list", limit())
        .query(
            "after",
            "Only notices after this one: its `cursor`, or `next_after` of the previous page",
            text_like("^[0-9a-f]{8}-[0-9]+$"),
        )
        .answers::<NoticesView>("A page, of 1 MiB at most")
        .refuses(&[Kind::NotFound, Kind::StoreUnavailable])
}

fn nodes() -> Operation {
    guarded("nodes", "List the nodes of the cluster that live; without a cluster this one alone")
        .answers::<NodesView>("The nodes, by number")
        .refuses(&[Kind::Uncertain, Kind::BrokerUnavailable])
}

fn drain() -> Operation {
    scoped(&[AdminScope::Operate], "drain", "Empty this node, or tell a share of its connections to go elsewhere")
        .description(
            "The node is not ready from now on, until a drain of a share is over or the drain is cancelled. After \
             `lead`, connections are told to leave with `draining`, spread evenly over `over`. The others stay served.",
        )
        .may_take::<DrainRequest<'_>>()
        .accepts::<DrainView>("It begins")
        .refuses(&BODY)
        .refuses(&[Kind::DrainRunning])
}

fn drain_state() -> Operation {
    guarded("drainState", "Look how far the newest drain of this node is")
        .answers::<DrainView>("The drain")
}

fn cancel_drain() -> Operation {
    scoped(&[AdminScope::Operate], "cancelDrain", "Cancel the drain of this node, if there is one")
        .answers::<DrainView>(
            "No further connection is closed, and new ones are admitted. Those that were told to leave are gone",
        )
        .refuses(&[Kind::ShardSilent])
}

fn stats() -> Operation {
    guarded("stats", "The figures of this node as one document")
        .answers::<StatsView>("The figures; totals count from the start of the process")
}

fn stats_stream() -> Operation {
    guarded("statsStream", "The same document as a server-sent event, once a second")
        .answers_text(
            "text/event-stream",
            "Each event's data is a document like that of `/v1/stats`",
        )
        .refuses(&[Kind::TooManyRequests])
}

fn reload() -> Operation {
    scoped(&[AdminScope::Operate], "reload", "Read the configuration again, and use what needs no restart")
        .description(
            "The whole configuration is checked first. If any of it is refused, nothing changes. Connections whose token \
             was removed are closed with `revoked`; subscriptions that a class no longer permits end.",
        )
        .may_take::<ReloadRequest>()
        .answers::<ReloadView>("What has changed, and what needs a restart")
        .refuses(&BODY)
        .refuses(&[Kind::NotFound, Kind::ConfigurationRefused])
}

fn memory() -> Operation {
    guarded("memory", "Where the memory of this node is")
        .answers::<MemoryView>("Its parts, and how far they explain it")
        .refuses(&[Kind::ShardSilent])
}

fn retention() -> Operation {
    guarded("retention", "What has kept memory of this node for longest")
        .query("limit", "The greatest number of items of each kind to list", limit())
        .answers::<RetentionView>("The oldest first")
        .refuses(&[Kind::ShardSilent])
}

fn cpu() -> Operation {
    let seconds = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1));
    #[expect(clippy::cast_precision_loss, reason = "it is below 2^52")]
    let seconds = seconds.maximum(Some(profiles::SECONDS_MAX as f64)).build();
    let about = format!("How long to sample; {} by default", profiles::SECONDS_DEFAULT);
    profile("cpuProfile", "Sample the CPU time of all threads")
        .query("seconds", &about, seconds)
        .refuses(&[Kind::ProfileRunning])
}

fn heap() -> Operation {
    profile("heapProfile", "Look which calls have allocated the memory that is in use")
        .description("Only with `admin.heap_profile`.")
        .refuses(&[Kind::ProfileRunning])
}

fn profile(id: &str, summary: &str) -> Operation {
    let formats = ObjectBuilder::from(text()).enum_values(Some(profiles::FORMATS)).build();
    let about = "`pprof` (protobuf in gzip), which is the default, or `folded` (a line a stack)";
    scoped(&[AdminScope::Operate], id, summary)
        .query("format", about, formats)
        .answers_texts(&["application/octet-stream", "text/plain"], "The profile")
        .refuses(&[Kind::NotFound, Kind::ProfileFailed])
}

fn health() -> Operation {
    open("health", "Whether the process answers at all").answers_text("text/plain", "It does")
}

fn ready() -> Operation {
    open("ready", "Whether devices are admitted, and the state of each part of the gateway")
        .description(
            "A part that has failed makes the answer 503, a problem document with the same members; `exclude` names one \
             that does not count, and may be given several times.",
        )
        .query(ready::EXCLUDE, "A part to leave out", parts())
        .answers::<ready::ReadinessView>("They are")
        .refuses(&[Kind::NotReady])
}

fn parts() -> Object {
    let names = Part::ALL.map(|part| part.name());
    ObjectBuilder::from(text()).enum_values(Some(names)).build()
}

fn metrics() -> Operation {
    guarded("metrics", "The metrics").answers_texts(
        &["text/plain", "application/openmetrics-text"],
        "The text format of Prometheus, or OpenMetrics where `Accept` prefers it",
    )
}

fn description() -> Operation {
    guarded("openapi", "This document").answers_json("An OpenAPI document", Object::new().into())
}

fn sign_in() -> Operation {
    open("signIn", "Open a session")
        .description(
            "The answer sets the cookie `weir_session`, which stands for the token in later requests. A request with \
             effects must then have an `Origin` that is this server, or `Sec-Fetch-Site: same-origin`. Ten failures at \
             once, and ten a minute, are permitted to an address.",
        )
        .takes::<SignInRequest<'_>>()
        .answers::<SessionView<'_>>("The session is open; or no token is needed, and no cookie is set")
        .refuses(&BODY)
        .refuses(&[Kind::Unauthorized, Kind::Forbidden, Kind::TooManyFailures, Kind::Busy])
}

fn session() -> Operation {
    scoped(&[], "session", "Tell who the caller is, and what he may do")
        .answers::<SessionView<'_>>("The caller, by cookie or by token")
}

fn sign_out() -> Operation {
    scoped(&[], "signOut", "End the session of the cookie, and the streams that it reads")
        .answers_nothing(204, "It has ended, or the request has come with a token instead")
}

fn audit() -> Operation {
    scoped(&[AdminScope::Operate], "audit", "Look at the last entries of the audit log")
        .query("limit", "The greatest number of items to list", limit())
        .answers::<AuditView>("The newest first")
}

/// An operation that needs a token with the scope `read`, if tokens are configured.
fn guarded(id: &str, summary: &str) -> Operation {
    scoped(&[AdminScope::Read], id, summary)
}

/// The same with these scopes; with none, each token of the admin API will do.
fn scoped(scopes: &[AdminScope], id: &str, summary: &str) -> Operation {
    let scopes: Vec<&str> = scopes.iter().map(|scope| scope.name()).collect();
    Operation::in_session(id, summary, &scopes)
        .refuses(&HEAD)
        .refuses(&[Kind::Unauthorized, Kind::Forbidden])
}

fn open(id: &str, summary: &str) -> Operation {
    Operation::open(id, summary).refuses(&HEAD)
}

fn paged(id: &str, summary: &str) -> Operation {
    guarded(id, summary).query("limit", "The greatest number of items to list", limit()).query(
        "cursor",
        "`next_cursor` of the previous page",
        text_like("^[A-Za-z0-9_-]+$"),
    )
}

fn node() -> Object {
    ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0)).maximum(Some(1023)).build()
}

fn connection_id() -> Object {
    text_like("^[0-9a-fA-F]{16}$")
}

fn device_id() -> Object {
    ObjectBuilder::from(text()).min_length(Some(1)).build()
}

const DEVICE: &str = "Its id, percent-encoded (`%2F` for a slash)";
/// The problems that the head alone may cause.
const HEAD: [Kind; 3] = [Kind::InvalidRequest, Kind::UnknownHost, Kind::ForeignOrigin];
/// The problems that a body may cause.
const BODY: [Kind; 4] =
    [Kind::UnsupportedMediaType, Kind::TooLarge, Kind::BodyTimeout, Kind::TooManyRequests];

static DOCUMENT: LazyLock<Bytes> = LazyLock::new(write);

const ABOUT: &str = "Publishing, looking, ending and the metrics. The token is that of `admin.token`, which is good for \
                     everything, or one of `[[admin.tokens]]` with the scope that an operation names; that of a service is \
                     good for `publish`, `events` and `call`. A browser may open a session instead. Each path that knows GET knows HEAD, but for `/v1/events`, `/v1/stats/stream`, `/v1/devices/export` and `/v1/debug`. See \
                     docs/admin-api.md.";
