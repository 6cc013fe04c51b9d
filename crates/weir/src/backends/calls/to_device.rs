//! Calls of backends: each waits for the answer of a device.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use weir_engine::ConnId;
use weir_wire::v1::server_message::Kind;
use weir_wire::{ProstMessage, v1};

use super::handover::news;
use super::table::NoPlace;
use super::{CallDirection, CallLimit, CallOutcome, Calls, Shares, left_ms, limit_message};
use crate::base::frames;
use crate::base::handover::HandingOver;

/// A call of a backend: its fields but the id, and when it ends.
#[derive(Debug, Clone)]
pub(crate) struct DeviceCall {
    pub(crate) method: String,
    pub(crate) payload: v1::call::Payload,
    pub(crate) content_type: String,
    pub(crate) deadline: Instant,
}

/// Why a device has not answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NoAnswer {
    /// No connection of it is there.
    NotConnected,
    /// It has not announced that it answers calls.
    Unsupported,
    /// A limit was reached. The sentence for the caller.
    Limited(CallLimit, String),
    /// The call does not fit a frame of this many bytes.
    TooLarge(usize),
    /// It has not answered in time.
    DeadlineExceeded,
    /// Its connection has ended before it answered. It may have carried the call out.
    Disconnected,
    /// Some nodes do not tell whether it is there; `None`: the broker does not tell which there are.
    NodesSilent(Option<Vec<u16>>),
}

/// A call that a device is to answer. If it is dropped before, the device is told.
struct Waiting<'a> {
    calls: &'a Calls,
    conn: ConnId,
    id: u32,
    began: Instant,
    is_sent: bool,
    outcome: CallOutcome,
    _shares: Shares,
}

impl DeviceCall {
    fn payload_bytes(&self) -> usize {
        match &self.payload {
            v1::call::Payload::Text(text) => text.len(),
            v1::call::Payload::Data(data) => data.len(),
        }
    }

    /// The message. Its time is what is left.
    pub(crate) fn to_wire(&self, id: u32) -> v1::Call {
        v1::Call {
            id,
            method: self.method.clone(),
            payload: Some(self.payload.clone()),
            content_type: self.content_type.clone(),
            deadline_ms: left_ms(self.deadline),
        }
    }
}

impl Calls {
    /// Whether one of these connections answers calls.
    pub(crate) fn are_answered(&self, conns: &[ConnId]) -> bool {
        conns.iter().any(|conn| self.table.answers_calls(*conn))
    }

    /// Calls a device: the newest of its connections that answers calls. `conns` are all, the
    /// oldest first. To drop the future gives the call up.
    pub(crate) async fn ask_device(
        &self,
        conns: &[ConnId],
        call: &DeviceCall,
    ) -> Result<v1::Answer, NoAnswer> {
        let direction = CallDirection::ToDevice;
        let refuse = |outcome: CallOutcome, no_answer: NoAnswer| {
            self.counters.calls.refuse(direction, outcome);
            no_answer
        };
        let conn = conns.iter().rev().find(|conn| self.table.answers_calls(**conn));
        let Some(conn) = conn.copied() else {
            return Err(refuse(CallOutcome::Unsupported, NoAnswer::Unsupported));
        };
        let rules = self.rules.load_full();
        let bytes = call.to_wire(u32::MAX).encoded_len() + FRAME_HEAD_BYTES;
        if bytes > rules.frame_bytes_max {
            let too_large = NoAnswer::TooLarge(rules.frame_bytes_max);
            return Err(refuse(CallOutcome::TooLarge, too_large));
        }
        let limited = |limit: CallLimit, max: usize| {
            self.counters.calls.limit(direction, limit);
            refuse(CallOutcome::Busy, NoAnswer::Limited(limit, limit_message(limit, max)))
        };
        let shares =
            self.share(&rules, call.payload_bytes()).map_err(|(limit, max)| limited(limit, max))?;
        let max = rules.calls_per_connection_max;
        let (id, answer) = self.table.ask(conn, max).map_err(|no_place| match no_place {
            NoPlace::Full => limited(CallLimit::Connection, max),
            NoPlace::NoAnswers | NoPlace::Used => {
                refuse(CallOutcome::Disconnected, NoAnswer::NotConnected)
            }
        })?;
        self.counters.calls.begin(direction);
        let waiting = Waiting {
            calls: self,
            conn,
            id,
            began: Instant::now(),
            is_sent: false,
            outcome: CallOutcome::Cancelled,
            _shares: shares,
        };
        waiting.answer(call, answer).await
    }

    /// Tells a device that nobody waits for its answer any more.
    pub(super) fn cancel(&self, conn: ConnId, id: u32) {
        // Without a runtime the gateway has ended.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let way = Arc::clone(&self.way);
            runtime.spawn(async move {
                let cancel = || Some(frames::encode(Kind::Cancel(v1::Cancel { id })));
                if way.send(conn, cancel).await.is_err() {
                    way.tell(news(conn, id, false, None)).await;
                }
            });
        }
    }
}

impl Waiting<'_> {
    async fn answer(
        mut self,
        call: &DeviceCall,
        answer: oneshot::Receiver<v1::Answer>,
    ) -> Result<v1::Answer, NoAnswer> {
        let (calls, conn, id) = (self.calls, self.conn, self.id);
        let is_sent = &mut self.is_sent;
        let asked = async move {
            let frame = || Some(frames::encode(Kind::Call(call.to_wire(id))));
            calls.way.send(conn, frame).await?;
            *is_sent = true;
            Ok(answer.await)
        };
        let (outcome, answered) = match timeout_at(call.deadline, asked).await {
            Ok(Ok(Ok(answer))) if answer.code.is_empty() => (CallOutcome::Done, Ok(answer)),
            Ok(Ok(Ok(answer))) => (CallOutcome::Failed, Ok(answer)),
            // The table has let go of it.
            Ok(Ok(Err(_))) => (CallOutcome::Disconnected, Err(NoAnswer::Disconnected)),
            Ok(Err(HandingOver)) => {
                let text = "another process has taken over the device; ask again".to_owned();
                (CallOutcome::Busy, Err(NoAnswer::Limited(CallLimit::Calls, text)))
            }
            Err(_) => (CallOutcome::DeadlineExceeded, Err(NoAnswer::DeadlineExceeded)),
        };
        self.outcome = outcome;
        answered
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let counts = &self.calls.counters.calls;
        counts.end(CallDirection::ToDevice, self.outcome, self.began.elapsed());
        if self.calls.table.give_up(self.conn, self.id) && self.is_sent {
            self.calls.cancel(self.conn, self.id);
        }
    }
}

/// The kind's key and length around a call.
const FRAME_HEAD_BYTES: usize = 6;
