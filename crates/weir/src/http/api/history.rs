//! `GET /v1/topics/{topic}/history`: the retained messages of a topic, in parts.

use std::sync::Arc;

use http::StatusCode;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use weir_engine::Nanos;
use weir_wire::v1::Position;

use super::{Api, RETRY_AFTER, caller_as};
use crate::auth::{Act, Requester};
use crate::core::rights::Denied;
use crate::core::state::SharedState;
use crate::http::Caller;
use crate::http::web::problem::{Kind, Problem};
use crate::http::web::push;
use crate::http::web::query::Query;
use crate::http::web::reply::{self, Reply};
use crate::limits::http_ledger::{AnswerCharge, NoShare};
use crate::topics::{Found, History, Range};

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
        self.check_history(caller, requester, topic).await?;
        let bytes_max = range.bytes_max.min(caller.ledger.part_bytes());
        let range = Range { bytes_max, ..range };
        let (history, mut charge) = self.find_history(caller, topic, range).await?;
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

    /// The history, and a charge for the answer: without room for it, it is not made.
    async fn find_history(
        &self,
        caller: &Caller,
        topic: &str,
        range: Range,
    ) -> Result<(Option<History>, AnswerCharge), Problem> {
        let SharedState { router, cluster, .. } = &**self.handle.shared();
        let charge = |bytes| caller.ledger.charge(bytes);
        let bytes_of = |history: &History| {
            let frames = history.messages.iter().map(|message| message.frame().len());
            frames.sum::<usize>().min(range.bytes_max)
        };
        // A topic that is asked for again costs the broker nothing, as this node follows it then.
        let _ = router.follow(topic);
        let cluster = match (router.history(topic, range), cluster) {
            (Found::AtBroker, Some(cluster)) => cluster,
            (Found::Here(history), _) => {
                let charge = charge(bytes_of(&history))?;
                return Ok((Some(history), charge));
            }
            (Found::Nowhere | Found::AtBroker, _) => return Ok((None, charge(0)?)),
        };
        let _turn = cluster.turn_to_read().await;
        // What comes is not known yet.
        let mut charge = charge(range.bytes_max)?;
        self.handle.counters().count_history_read();
        let kept = cluster.history(topic, range).await;
        let kept = kept.map_err(|_| Problem::unknown_to_broker(topic))?;
        let history = router.history_of(topic, range, &kept).ok_or(NoShare::Budget)?;
        charge.fit(bytes_of(&history))?;
        Ok((Some(history), charge))
    }

    /// Refuses a caller that may not subscribe to the topic, and a topic whose class hides its
    /// history.
    async fn check_history(
        &self,
        caller: &Caller,
        requester: &Requester,
        topic: &str,
    ) -> Result<(), Problem> {
        let shared = self.handle.shared();
        let caller = caller_as(requester, caller);
        let permitted = match shared.permit(&caller, Act::Subscribe, topic) {
            Ok(destination) if destination.class().history => None,
            Ok(destination) => {
                let class = destination.class();
                let pattern = class.pattern.as_str();
                let detail =
                    format!("topics of class {pattern:?} have no history (topic_classes, history)");
                Some(Problem::new(Kind::NotFound, detail))
            }
            Err(denied) => Some(denied_history(denied)),
        };
        match permitted {
            Some(problem) => Err(problem),
            None => shared.check_asking(&caller, topic).await.map_err(denied_history),
        }
    }
}

fn denied_history(denied: Denied) -> Problem {
    match denied {
        Denied::Name(error) => Problem::field("topic", error.to_string()),
        Denied::NotPermitted(detail) | Denied::NoPresence(detail) | Denied::Hook(detail) => {
            Problem::forbidden(detail).at("topic")
        }
        Denied::HookUnavailable(detail) => Problem::retry(Kind::Busy, RETRY_AFTER, detail),
    }
}

impl<'a> HistoryView<'a> {
    /// Takes messages as JSON until the answer has its greatest length. Skips expired messages.
    fn new(topic: &'a str, history: &History, bytes_max: usize) -> Self {
        let now = Nanos::now();
        let (mut messages, mut bytes) = (Vec::with_capacity(history.messages.len()), 0);
        let (mut reached, mut has_room) = (history.reached, true);
        for message in &history.messages {
            if message.expires_at().is_none_or(|at| at > now)
                && let Some(json) = push::to_json(message.frame())
            {
                bytes += json.get().len();
                has_room = bytes <= bytes_max || messages.is_empty();
                if !has_room {
                    break;
                }
                messages.push(json);
            }
            reached = message.offset();
        }
        let more = !history.is_all || !has_room;
        let next = match (more, has_room) {
            (false, _) => history.sent,
            // Those behind the last message here are left out too.
            (true, true) => history.reached,
            (true, false) => reached,
        };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_which_nothing_is_left_leads_on() {
        let part = |is_all| History {
            epoch: 7,
            sent: 9,
            recovered: true,
            reached: 6,
            is_all,
            messages: Box::default(),
        };
        for (is_all, next) in [(false, "0000000000000007-6"), (true, "0000000000000007-9")] {
            let history = part(is_all);
            let view = HistoryView::new("t", &history, 100);
            assert_eq!((view.more, view.next.as_deref()), (!is_all, Some(next)));
        }
    }
}
