//! `GET /v1/topics/{topic}/history`: the retained messages of a topic, in parts.

use std::sync::Arc;

use http::StatusCode;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use weir_engine::Nanos;
use weir_wire::v1::Position;

use super::Api;
use crate::auth::{Act, Requester};
use crate::core::rights::{self, CallerDevice, Denied};
use crate::http::Caller;
use crate::http::web::problem::{Kind, Problem};
use crate::http::web::push;
use crate::http::web::query::Query;
use crate::http::web::reply::{self, Reply};
use crate::topics::{History, Range};

/// A part of a topic's history.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = History)]
pub(super) struct HistoryView<'a> {
    topic: &'a str,
    /// 16 hexadecimal digits; `null`: the topic does not exist, so nothing is kept.
    #[schema(required, pattern = "^[0-9a-f]{16}$")]
    epoch: Option<String>,
    /// Whether all messages since `after` are here or follow. `false` without `after`.
    recovered: bool,
    /// In the order of their offsets. Gaps are messages that conflation has replaced.
    #[schema(value_type = Vec<push::PushView>)]
    messages: Vec<Box<RawValue>>,
    /// Whether more messages follow, from `next` on.
    more: bool,
    /// The position that this part reaches: `after` of the next request.
    #[schema(required, pattern = "^[0-9a-f]{16}-[0-9]+$")]
    next: Option<String>,
}

impl Api {
    pub(super) async fn history(
        &self,
        caller: &Caller,
        requester: &Requester,
        (topic, range): (&str, Range),
    ) -> Result<Reply, Problem> {
        self.check_history(requester, topic)?;
        self.handle.shared().follow([topic]).await.map_err(Problem::unknown_to_broker)?;
        let bytes_max = range.bytes_max.min(caller.ledger.part_bytes());
        let range = Range { bytes_max, ..range };
        let history = self.handle.shared().router.history(topic, range);
        // Without room for the answer, the answer is not made.
        let messages = history.iter().flat_map(|history| &history.messages);
        let expected = messages.map(|message| message.frame().len()).sum::<usize>().min(bytes_max);
        let mut charge = caller.ledger.charge(expected)?;
        let view = match &history {
            Some(history) => HistoryView::new(topic, history, bytes_max),
            None => HistoryView::nothing(topic),
        };
        let bytes = serde_json::to_vec(&view).unwrap_or_default();
        charge.fit(bytes.len())?;
        let mut reply = reply::bytes(StatusCode::OK, "application/json", bytes.into());
        reply.extensions_mut().insert(Arc::new(charge));
        Ok(reply)
    }

    /// Refuses a caller that may not subscribe to the topic, and a topic whose class hides its
    /// history.
    fn check_history(&self, requester: &Requester, topic: &str) -> Result<(), Problem> {
        let shared = self.handle.shared();
        let device = CallerDevice::Named(requester.device.as_deref());
        let caller = rights::Caller { grant: shared.auth.grant(&requester.grant), device };
        match shared.permit(&caller, Act::Subscribe, topic) {
            Ok(destination) if destination.class().history => Ok(()),
            Ok(destination) => {
                let pattern = destination.class().pattern.as_str();
                let detail =
                    format!("topics of class {pattern:?} have no history (topic_classes, history)");
                Err(Problem::new(Kind::NotFound, detail))
            }
            Err(Denied::Name(error)) => Err(Problem::field("topic", error.to_string())),
            Err(Denied::NotPermitted(detail) | Denied::NoPresence(detail)) => {
                Err(Problem::forbidden(detail).at("topic"))
            }
        }
    }
}

impl<'a> HistoryView<'a> {
    /// Takes messages as JSON until the answer has its greatest length. Skips expired messages.
    fn new(topic: &'a str, history: &History, bytes_max: usize) -> Self {
        let now = Nanos::now();
        let (mut messages, mut bytes) = (Vec::with_capacity(history.messages.len()), 0);
        let mut reached = None;
        for message in &history.messages {
            if message.expires_at().is_none_or(|at| at > now)
                && let Some(json) = push::to_json(message.frame())
            {
                bytes += json.get().len();
                if bytes > bytes_max && !messages.is_empty() {
                    break;
                }
                messages.push(json);
            }
            reached = Some(message.offset());
        }
        let last = history.messages.last().map(|message| message.offset());
        let more = !history.is_all || reached != last;
        let next = if more { reached.unwrap_or(history.sent) } else { history.sent };
        HistoryView {
            topic,
            epoch: Some(format!("{:016x}", history.epoch)),
            recovered: history.recovered,
            messages,
            more,
            next: Some(format!("{:016x}-{next}", history.epoch)),
        }
    }

    /// The history of a topic that does not exist.
    fn nothing(topic: &'a str) -> Self {
        let messages = Vec::new();
        HistoryView { topic, epoch: None, recovered: false, messages, more: false, next: None }
    }
}

/// The part that a query asks for.
pub(super) fn range(query: Option<&str>) -> Result<Range, Problem> {
    let query = Query::parse(query, &["limit", "after"])?;
    Ok(Range { after: after(&query)?, messages_max: query.limit()?, bytes_max: BYTES_MAX })
}

/// The position after which to begin.
fn after(query: &Query) -> Result<Option<Position>, Problem> {
    let Some(text) = query.value("after") else { return Ok(None) };
    let parsed = text.split_once('-').and_then(|(epoch, offset)| {
        let is_hex = epoch.len() == 16 && epoch.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_number = offset.bytes().all(|byte| byte.is_ascii_digit());
        let epoch = u64::from_str_radix(epoch, 16).ok().filter(|_| is_hex && is_number)?;
        Some(Position { epoch, offset: offset.parse().ok()? })
    });
    parsed.map(Some).ok_or_else(|| {
        let detail =
            format!("after is {text:?}; it is EPOCH-OFFSET, 16 hexadecimal digits and a number");
        Problem::field("after", detail)
    })
}

/// The most bytes of the messages in one answer: some thousands of short ones. A single message may
/// have more; see also [`Ledger::part_bytes`](crate::limits::http_ledger::Ledger::part_bytes).
const BYTES_MAX: usize = 1 << 20;
