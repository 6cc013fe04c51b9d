//! `GET /readyz`: whether the gateway is ready, part by part.

use std::time::Duration;

use http::StatusCode;
use http_body_util::{Either, Full};
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::web::problem::{Document, Kind, Problem};
use crate::http::web::query::Query;
use crate::http::web::reply::{self, Reply};
use crate::{Handle, Part, PartReadiness, Readiness};

/// Whether the gateway is ready, and the state of each part.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Readiness)]
pub(super) struct ReadinessView {
    ready: bool,
    /// Empty if `Host` is a name that is not this server's.
    parts: Vec<PartView>,
}

/// One part.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Part)]
pub(super) struct PartView {
    /// `listeners`, `shards`, `drain`; `store`, `cache` and `issuers` where they are configured.
    part: &'static str,
    /// `ok`, `degraded` (it is ready nevertheless) or `failed`.
    state: &'static str,
    /// The time of the last change, in milliseconds since 1970.
    since_ms: u64,
    /// The cause, if the part is not `ok`. If tokens are needed, it needs one with the scope `read`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    cause: Option<String>,
}

/// The same as a refusal.
#[derive(Serialize)]
struct NotReadyView<'a> {
    #[serde(flatten)]
    problem: Document<'a>,
    #[serde(flatten)]
    readiness: &'a ReadinessView,
}

/// Answers the request; `is_own_host`: it names this server, so the caller may see the parts;
/// `is_trusted`: the caller may also see causes.
pub(super) fn ready(
    handle: &Handle,
    query: Option<&str>,
    (is_own_host, is_trusted): (bool, bool),
) -> Result<Reply, Problem> {
    let (_, [left_out]) = Query::parse_with_lists(query, &[], [EXCLUDE])?;
    let left_out = left_out.iter().map(|name| part(name)).collect::<Result<Vec<_>, _>>()?;
    let readiness = handle.readiness();
    let mut view = ReadinessView::of(&readiness, &left_out, is_trusted);
    if !is_own_host {
        view.parts.clear();
    }
    if view.ready {
        return Ok(reply::json(StatusCode::OK, &view));
    }
    let counting = readiness.parts.iter().filter(|part| !left_out.contains(&part.part));
    let failed: Vec<&str> = counting
        .filter(|part| part.state == crate::PartState::Failed)
        .map(|part| part.part.name())
        .collect();
    let detail = match is_own_host {
        true => format!("not ready: {}", failed.join(", ")),
        false => "not ready".to_owned(),
    };
    let problem = Problem::retry(Kind::NotReady, RETRY_AFTER, detail);
    let whole = NotReadyView { problem: problem.document(), readiness: &view };
    // It has only numbers and texts.
    let body = serde_json::to_vec(&whole).unwrap_or_default();
    let mut reply = problem.into_response();
    *reply.body_mut() = Either::Left(Full::new(body.into()));
    Ok(reply)
}

fn part(name: &str) -> Result<Part, Problem> {
    Part::ALL.into_iter().find(|part| part.name() == name).ok_or_else(|| {
        let known = Part::ALL.map(Part::name).join(", ");
        Problem::field(EXCLUDE, format!("there is no part {name:?}; known are {known}"))
    })
}

impl ReadinessView {
    fn of(readiness: &Readiness, left_out: &[Part], is_trusted: bool) -> Self {
        ReadinessView {
            ready: readiness.is_ready_without(left_out),
            parts: readiness.parts.iter().map(|part| PartView::of(part, is_trusted)).collect(),
        }
    }
}

impl PartView {
    /// `is_trusted`: the caller may see the cause.
    pub(super) fn of(part: &PartReadiness, is_trusted: bool) -> Self {
        PartView {
            part: part.part.name(),
            state: part.state.name(),
            since_ms: part.since_ms,
            cause: part.cause.clone().filter(|_| is_trusted),
        }
    }
}

/// The parameter that names a part to leave out.
pub(super) const EXCLUDE: &str = "exclude";
const RETRY_AFTER: Duration = Duration::from_secs(1);
