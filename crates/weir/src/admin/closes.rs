//! `GET /v1/closes`: the last ends of connections, the newest first.

use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;
use weir_wire::CloseReason;

use crate::Handle;
use crate::base::clock::millis;
use crate::core::ends::End;
use crate::http::web::problem::Problem;
use crate::http::web::query::Query;
use crate::http::web::reply::{self, Reply};

/// The last ends of connections of this node.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Closes)]
pub(super) struct ClosesView {
    /// The newest first.
    closes: Vec<CloseView>,
    /// How many ends are kept, whatever the query asks for.
    kept: usize,
}

/// The end of a connection. A member is `null` where it is not known.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Close)]
struct CloseView {
    at_ms: u64,
    /// 16 hexadecimal digits; `null` if the connection was refused before it settled.
    #[schema(required, pattern = "^[0-9a-f]{16}$")]
    connection: Option<String>,
    /// Of a refused connection it may be a mere claim.
    #[schema(required)]
    device: Option<String>,
    #[schema(required)]
    peer: Option<String>,
    /// The address by which limits count the connection.
    #[schema(required)]
    source: Option<String>,
    #[schema(required)]
    client: Option<String>,
    protocol: &'static str,
    /// `tcp` or `tls`.
    transport: &'static str,
    reason: &'static str,
    code: u16,
    age_ms: u64,
}

/// Answers with the ends that the query asks for.
pub(super) fn list(handle: &Handle, query: Option<&str>) -> Result<Reply, Problem> {
    let query = Query::parse(query, &["limit", "device", "reason"])?;
    let (limit, device) = (query.limit()?, query.value("device"));
    let reason = query.value("reason").map(reason).transpose()?;
    let ends = &handle.shared().ends;
    let closes = ends.newest(limit, |end| {
        device.is_none_or(|device| end.device.as_deref() == Some(device))
            && reason.is_none_or(|reason| end.reason == reason)
    });
    let closes = closes.into_iter().map(CloseView::of).collect();
    Ok(reply::json(StatusCode::OK, &ClosesView { closes, kept: ends.count() }))
}

fn reason(name: &str) -> Result<CloseReason, Problem> {
    CloseReason::ALL.into_iter().find(|reason| reason.name() == name).ok_or_else(|| {
        let known = CloseReason::ALL.map(CloseReason::name).join(", ");
        let detail = format!("{name:?} is no close reason; the reasons are {known}");
        Problem::field("reason", detail)
    })
}

impl CloseView {
    fn of(end: End) -> CloseView {
        CloseView {
            at_ms: millis(end.at),
            connection: end.conn.map(|conn| conn.to_string()),
            device: end.device.map(String::from),
            peer: end.peer.map(|peer| peer.to_string()),
            source: end.source.map(|source| source.to_string()),
            client: end.client.as_deref().map(str::to_owned),
            protocol: end.protocol.name(),
            transport: end.transport.name(),
            reason: end.reason.name(),
            code: end.reason.code(),
            age_ms: millis(end.age),
        }
    }
}
