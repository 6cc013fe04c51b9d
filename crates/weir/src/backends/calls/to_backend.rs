//! Calls of devices: each is a task that asks an upstream.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue;
use tokio::sync::oneshot;
use tokio::time::{Duration, Instant, timeout_at};
use weir_engine::ConnId;
use weir_wire::v1::server_message::Kind;
use weir_wire::{CallCode, ProstMessage, v1};

use super::exchange::{Content, Fault, Question, Reply};
use super::level::Share;
use super::table::NoPlace;
use super::{CallDirection, CallLimit, CallOutcome, CallRoute, Calls, Shares, limit_message};
use crate::base::config::Actor;
use crate::base::frames;
use crate::base::method::is_method;
use crate::observe::traces::{Span, note_failure, tries_of};

/// A device's call that goes on.
pub(crate) struct BegunCall {
    calls: Arc<Calls>,
    conn: ConnId,
    id: u32,
    route: Arc<CallRoute>,
    method: String,
    content: Content,
    began: Instant,
    deadline: Instant,
    /// Ends when the call is given up.
    ended: oneshot::Receiver<Infallible>,
    shares: Shares,
    _of_route: Share,
    is_counted: bool,
    pub(crate) span: Option<Span>,
}

/// Why a call does not begin.
pub(crate) enum NotBegun {
    /// Its id cannot be answered: the sentence for an `Error`.
    Id(String),
    /// The answer's frame.
    Answer(CallOutcome, Box<[u8]>),
}

impl Calls {
    /// Begins a call of a device. `permits` tells whether the device is one of these callers.
    ///
    /// The caller spawns [`BegunCall::ask`].
    pub(crate) fn begin(
        self: &Arc<Self>,
        conn: ConnId,
        call: v1::Call,
        permits: impl Fn(&[Actor]) -> bool,
    ) -> Result<BegunCall, NotBegun> {
        let id = call.id;
        if id == 0 {
            return Err(NotBegun::Id("id of a call is 0; number your calls from 1 on".to_owned()));
        }
        let refuse = |(outcome, fault): (CallOutcome, Fault)| {
            self.counters.calls.refuse(CallDirection::ToBackend, outcome);
            NotBegun::Answer(outcome, frame(fault.into_answer(id)))
        };
        let (route, method, asked) = self.check(call, permits).map_err(refuse)?;
        let began = Instant::now();
        let rules = self.rules.load();
        let limited = |limit: CallLimit, max: usize| {
            self.counters.calls.limit(CallDirection::ToBackend, limit);
            let fault = Fault::new(CallCode::Busy, limit_message(limit, max));
            refuse((CallOutcome::Busy, fault))
        };
        let shares = self
            .share(&rules, asked.content.payload.len())
            .map_err(|(limit, max)| limited(limit, max))?;
        let of_route = route.in_flight.take(1, route.calls_max);
        let of_route = of_route.ok_or_else(|| limited(CallLimit::Route, route.calls_max))?;
        let max = rules.calls_per_connection_max;
        let ended = self.table.begin(conn, id, max).map_err(|no_place| match no_place {
            NoPlace::Used => NotBegun::Id(format!("a call with the id {id} goes on already")),
            NoPlace::Full | NoPlace::NoAnswers => limited(CallLimit::Connection, max),
        })?;
        self.counters.calls.begin(CallDirection::ToBackend);
        route.count_begun();
        Ok(BegunCall {
            calls: Arc::clone(self),
            conn,
            id,
            route,
            method,
            deadline: began + asked.time(self),
            content: asked.content,
            began,
            ended,
            shares,
            _of_route: of_route,
            is_counted: false,
            span: None,
        })
    }

    /// Finds the route, and checks the fields.
    fn check(
        &self,
        call: v1::Call,
        permits: impl Fn(&[Actor]) -> bool,
    ) -> Result<(Arc<CallRoute>, String, Asked), (CallOutcome, Fault)> {
        let v1::Call { method, payload, content_type, deadline_ms, .. } = call;
        let invalid = |message: String| {
            (CallOutcome::InvalidField, Fault::new(CallCode::InvalidField, message))
        };
        if !is_method(&method) {
            let message = "method is not 1 to 255 letters, digits, \".\", \"_\" and \"-\", in segments \
                           joined by \"/\"";
            return Err(invalid(message.to_owned()));
        }
        let content_type = check_content_type(&content_type).map_err(invalid)?;
        let rules = self.rules.load();
        let Some(route) = rules.route(&method) else {
            let fault = Fault::new(CallCode::Unsupported, format!("no route fits {method:?}"));
            return Err((CallOutcome::Unsupported, fault));
        };
        if !permits(&route.callers) {
            let message = format!(
                "to call {method:?} is not permitted: its route lets {} (calls.routes, callers)",
                actors(&route.callers)
            );
            let fault = Fault::new(CallCode::NotPermitted, message);
            return Err((CallOutcome::NotPermitted, fault));
        }
        let (payload, is_text) = match payload {
            Some(v1::call::Payload::Text(text)) => (Bytes::from(text), true),
            Some(v1::call::Payload::Data(data)) => (Bytes::from(data), false),
            None => (Bytes::new(), false),
        };
        if payload.len() > route.payload_bytes_max {
            let message = format!(
                "payload of {} bytes is over the limit of {} (calls.routes, payload_bytes_max)",
                payload.len(),
                route.payload_bytes_max
            );
            return Err((CallOutcome::TooLarge, Fault::new(CallCode::TooLarge, message)));
        }
        let content = Content { payload, content_type, is_text };
        Ok((Arc::clone(route), method, Asked { content, deadline_ms }))
    }
}

/// What a call asks for.
struct Asked {
    content: Content,
    deadline_ms: u32,
}

impl Asked {
    fn time(&self, calls: &Calls) -> Duration {
        let asked = Duration::from_millis(u64::from(self.deadline_ms));
        calls.time_for(Some(asked).filter(|asked| !asked.is_zero()))
    }
}

impl BegunCall {
    /// Asks the upstream for the device, and sends the answer, unless the device does not wait for it
    /// any more.
    pub(crate) async fn ask(mut self, device: &str) {
        let upstream = self.calls.backends.get(&self.route.upstream);
        let rules = self.calls.rules.load_full();
        let question = Question {
            route: &self.route,
            device,
            conn: self.conn,
            id: self.id,
            method: &self.method,
            content: &self.content,
            deadline: self.deadline,
            spans: tries_of(&self.span),
        };
        let (payload, bytes_max) = (&mut self.shares.payload, rules.payload_bytes_max);
        let asking = question.ask(upstream, (payload, bytes_max));
        let replied = tokio::select! {
            biased;
            _ = &mut self.ended => return,
            replied = timeout_at(self.deadline, asking) => replied,
        };
        let replied = replied.unwrap_or_else(|_| {
            let message = "no answer before the deadline".to_owned();
            Err(Fault::new(CallCode::DeadlineExceeded, message))
        });
        let (mut outcome, mut answer) = match replied {
            Ok(reply) => (reply.outcome(), reply.into_answer(self.id)),
            Err(fault) => (fault.outcome(), fault.into_answer(self.id)),
        };
        if answer.encoded_len() + FRAME_HEAD_BYTES > rules.frame_bytes_max {
            let message = format!(
                "the answer does not fit a frame of {} bytes (limits.frame_bytes_max)",
                rules.frame_bytes_max
            );
            (outcome, answer) = (
                CallOutcome::TooLarge,
                Fault::new(CallCode::TooLarge, message).into_answer(self.id),
            );
        }
        // Otherwise the call was given up, or its connection has ended, and that is counted.
        if self.calls.answer_device(self.conn, self.id, frame(answer)).await {
            self.count(outcome);
        }
    }

    fn count(&mut self, outcome: CallOutcome) {
        self.is_counted = true;
        note_failure(&mut self.span, (outcome != CallOutcome::Done).then_some(outcome.name()));
        let counts = &self.calls.counters.calls;
        counts.end(CallDirection::ToBackend, outcome, self.began.elapsed());
    }
}

impl Drop for BegunCall {
    fn drop(&mut self) {
        if !self.is_counted {
            note_failure(&mut self.span, Some(CallOutcome::Cancelled.name()));
            let counts = &self.calls.counters.calls;
            counts.end_unanswered(CallDirection::ToBackend, self.began.elapsed());
        }
    }
}

pub(super) fn frame(answer: v1::Answer) -> Box<[u8]> {
    frames::encode(Kind::Answer(answer))
}

/// The header of a media type; `None`: it is empty.
///
/// Errors: the sentence for the caller.
pub(super) fn check_content_type(content_type: &str) -> Result<Option<HeaderValue>, String> {
    if content_type.is_empty() {
        return Ok(None);
    }
    let is_printable = content_type.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    let header = HeaderValue::from_str(content_type).ok();
    match header.filter(|_| is_printable && content_type.len() <= CONTENT_TYPE_BYTES_MAX) {
        Some(header) => Ok(Some(header)),
        None => Err(format!(
            "content_type is not at most {CONTENT_TYPE_BYTES_MAX} bytes of printable ASCII"
        )),
    }
}

fn actors(actors: &[Actor]) -> String {
    match actors {
        [] => "nobody".to_owned(),
        actors => actors.iter().map(Actor::to_string).collect::<Vec<_>>().join(" and "),
    }
}

impl Reply {
    fn outcome(&self) -> CallOutcome {
        if self.code.is_none() { CallOutcome::Done } else { CallOutcome::Failed }
    }

    fn into_answer(self, id: u32) -> v1::Answer {
        let Reply { code, message, status, payload, is_text, content_type } = self;
        let payload = if is_text {
            String::from_utf8(payload).map_or_else(
                |bytes| v1::answer::Payload::Data(bytes.into_bytes()),
                v1::answer::Payload::Text,
            )
        } else {
            v1::answer::Payload::Data(payload)
        };
        v1::Answer {
            id,
            code: code.map_or_else(String::new, |code| code.name().to_owned()),
            payload: Some(payload),
            content_type,
            message,
            status,
        }
    }
}

impl Fault {
    fn outcome(&self) -> CallOutcome {
        match self.code {
            CallCode::Unsupported => CallOutcome::Unsupported,
            CallCode::NotPermitted => CallOutcome::NotPermitted,
            CallCode::InvalidField => CallOutcome::InvalidField,
            CallCode::TooLarge => CallOutcome::TooLarge,
            CallCode::Busy => CallOutcome::Busy,
            CallCode::DeadlineExceeded => CallOutcome::DeadlineExceeded,
            CallCode::Unavailable => CallOutcome::Unavailable,
            CallCode::Uncertain => CallOutcome::Uncertain,
            CallCode::Failed => CallOutcome::Failed,
        }
    }

    pub(super) fn into_answer(self, id: u32) -> v1::Answer {
        let Fault { code, message } = self;
        v1::Answer { id, code: code.name().to_owned(), message, ..v1::Answer::default() }
    }
}

const CONTENT_TYPE_BYTES_MAX: usize = 255;
/// The kind's key and length around an answer.
const FRAME_HEAD_BYTES: usize = 6;
