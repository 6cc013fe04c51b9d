//! `/v1/drain`: begins to empty the node, tells how far that is, and cancels it.

use std::time::Duration;

use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::base::clock::millis;
use crate::http::web::json::{Text, parse};
use crate::http::web::problem::{Kind, Problem};
use crate::http::web::reply::{self, Reply};
use crate::{DrainError, DrainInfo, DrainOptions, Handle, parse_duration};

/// How to drain a node.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = DrainRequest)]
#[serde(deny_unknown_fields)]
pub(super) struct DrainRequest<'a> {
    /// The share of the connections to close, more than 0. With 1, the default, the node also
    /// admits no new connection until the drain is cancelled.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    share: Option<f64>,
    /// The time for which the node is not ready before the first connection is told to leave, such
    /// as `5s`, which is the default; at most `1h`.
    #[serde(borrow)]
    #[schema(value_type = Option<String>, pattern = "^[0-9]+(ms|s|m|h)$")]
    lead: Option<Text<'a>>,
    /// The time over which connections are told to leave, such as `60s`, which is the default; at
    /// most `24h`.
    #[serde(borrow)]
    #[schema(value_type = Option<String>, pattern = "^[0-9]+(ms|s|m|h)$")]
    over: Option<Text<'a>>,
}

/// The newest drain of this node.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Drain)]
pub(super) struct DrainView {
    /// `idle` (there was none), `announced` (the node is not ready, nobody is told to leave yet),
    /// `draining`, `drained` or `cancelled`.
    state: &'static str,
    /// The time of the last change, in milliseconds since 1970.
    since_ms: u64,
    /// How it was asked for. These three are not there if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = f64, required = false)]
    share: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64, required = false)]
    lead_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64, required = false)]
    over_ms: Option<u64>,
    /// Settled connections now.
    connections: u64,
    /// HTTP connections now.
    http_connections: u64,
    /// Settled connections that the drain closes, as counted when it began.
    to_close: u64,
    /// Settled connections that it has closed.
    closed: u64,
}

impl DrainView {
    pub(super) fn of(info: DrainInfo) -> DrainView {
        DrainView {
            state: info.state.name(),
            since_ms: info.since_ms,
            share: info.options.map(|options| options.share),
            lead_ms: info.options.map(|options| millis(options.lead)),
            over_ms: info.options.map(|options| millis(options.over)),
            connections: info.connections,
            http_connections: info.http_connections,
            to_close: info.to_close,
            closed: info.closed,
        }
    }
}

/// `GET /v1/drain`.
pub(super) fn look(handle: &Handle) -> Reply {
    reply::json(StatusCode::OK, &DrainView::of(handle.drain_info()))
}

/// `POST /v1/drain`; without a body, with the defaults.
pub(super) fn begin(handle: &Handle, body: &[u8]) -> Result<Reply, Problem> {
    let asked = match body.trim_ascii() {
        b"" => DrainRequest::default(),
        body => parse::<DrainRequest<'_>>(body)?,
    };
    let usual = DrainOptions::default();
    let options = DrainOptions {
        share: asked.share.unwrap_or(usual.share),
        lead: time("lead", asked.lead.as_ref(), usual.lead)?,
        over: time("over", asked.over.as_ref(), usual.over)?,
    };
    let info = handle.drain(options).map_err(refusal)?;
    Ok(reply::json(StatusCode::ACCEPTED, &DrainView::of(info)))
}

/// `DELETE /v1/drain`.
pub(super) async fn cancel(handle: &Handle) -> Result<Reply, Problem> {
    let info = handle.cancel_drain().await?;
    Ok(reply::json(StatusCode::OK, &DrainView::of(info)))
}

fn time(field: &str, text: Option<&Text<'_>>, usual: Duration) -> Result<Duration, Problem> {
    let Some(Text(text)) = text else { return Ok(usual) };
    parse_duration(text).map_err(|error| Problem::field(field, error.to_string()))
}

fn refusal(error: DrainError) -> Problem {
    let detail = error.to_string();
    match error {
        DrainError::Share(_) => Problem::field("share", detail),
        DrainError::Lead(_) => Problem::field("lead", detail),
        DrainError::Over(_) => Problem::field("over", detail),
        DrainError::Busy(_) | DrainError::Ending => Problem::new(Kind::DrainRunning, detail),
        DrainError::HandingOver => Problem::handing_over(),
    }
}
