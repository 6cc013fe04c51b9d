//! Calls in both directions, and their answers.

use std::fmt;
use std::time::Duration;

use weir_wire::{CallCode, v1};

use crate::Payload;

/// A call: of this client to a backend, or of a backend to this client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The id that the answer repeats. Each side numbers its own calls.
    pub id: u32,
    /// What is called: letters, digits, `.`, `_` and `-`, in segments joined by `/`.
    pub method: String,
    /// Content.
    pub payload: Payload,
    /// Media type, or empty.
    pub content_type: String,
    /// How long the caller waits from now on; `None`: as long as the server lets it.
    pub deadline: Option<Duration>,
}

/// What is answered to a call: a result, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallAnswer {
    /// It is done.
    Done {
        /// Content.
        payload: Payload,
        /// Media type, or empty.
        content_type: String,
    },
    /// It is not done.
    Failed(CallError),
}

/// Why a call is not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallError {
    /// A word for programs. The server's own words are those of [`CallCode`].
    pub code: String,
    /// A sentence for people.
    pub message: String,
    /// What came with the error, mostly nothing.
    pub payload: Payload,
    /// Media type of the payload, or empty.
    pub content_type: String,
    /// The status that the backend has answered with: of HTTP, or of gRPC. 0: none.
    pub status: u32,
}

/// The answer to a call of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// The id of the call.
    pub id: u32,
    /// The answer.
    pub answer: CallAnswer,
}

impl CallAnswer {
    /// A result of text.
    pub fn text(text: impl Into<String>) -> CallAnswer {
        CallAnswer::Done { payload: Payload::Text(text.into()), content_type: String::new() }
    }

    /// An error. `code` is a word for programs, `message` a sentence for people.
    pub fn failed(code: impl Into<String>, message: impl Into<String>) -> CallAnswer {
        CallAnswer::Failed(CallError {
            code: code.into(),
            message: message.into(),
            payload: Payload::Data(Vec::new()),
            content_type: String::new(),
            status: 0,
        })
    }

    /// The error for a method that the program does not know.
    pub fn unsupported(method: &str) -> CallAnswer {
        CallAnswer::failed(CallCode::Unsupported.name(), format!("no method {method:?} here"))
    }

    pub(crate) fn into_wire(self, id: u32) -> v1::Answer {
        match self {
            CallAnswer::Done { payload, content_type } => v1::Answer {
                id,
                payload: Some(answer_payload(payload)),
                content_type,
                ..v1::Answer::default()
            },
            CallAnswer::Failed(failed) => {
                let CallError { mut code, message, payload, content_type, status } = failed;
                // An empty code would be a result.
                if code.is_empty() {
                    code = CallCode::Failed.name().to_owned();
                }
                let payload = Some(answer_payload(payload));
                v1::Answer { id, code, payload, content_type, message, status }
            }
        }
    }
}

fn answer_payload(payload: Payload) -> v1::answer::Payload {
    match payload {
        Payload::Text(text) => v1::answer::Payload::Text(text),
        Payload::Data(data) => v1::answer::Payload::Data(data),
    }
}

impl Call {
    pub(crate) fn into_wire(self) -> v1::Call {
        let Call { id, method, payload, content_type, deadline } = self;
        let payload = Some(match payload {
            Payload::Text(text) => v1::call::Payload::Text(text),
            Payload::Data(data) => v1::call::Payload::Data(data),
        });
        let deadline_ms = deadline
            .map_or(0, |deadline| u32::try_from(deadline.as_millis().max(1)).unwrap_or(u32::MAX));
        v1::Call { id, method, payload, content_type, deadline_ms }
    }
}

impl From<v1::Call> for Call {
    fn from(call: v1::Call) -> Call {
        Call {
            id: call.id,
            method: call.method,
            payload: match call.payload {
                Some(v1::call::Payload::Text(text)) => Payload::Text(text),
                Some(v1::call::Payload::Data(data)) => Payload::Data(data),
                None => Payload::Data(Vec::new()),
            },
            content_type: call.content_type,
            deadline: (call.deadline_ms > 0)
                .then(|| Duration::from_millis(u64::from(call.deadline_ms))),
        }
    }
}

impl From<v1::Answer> for Answered {
    fn from(answer: v1::Answer) -> Answered {
        let v1::Answer { id, code, payload, content_type, message, status } = answer;
        let payload = match payload {
            Some(v1::answer::Payload::Text(text)) => Payload::Text(text),
            Some(v1::answer::Payload::Data(data)) => Payload::Data(data),
            None => Payload::Data(Vec::new()),
        };
        let answer = match code.is_empty() {
            true => CallAnswer::Done { payload, content_type },
            false => CallAnswer::Failed(CallError { code, message, payload, content_type, status }),
        };
        Answered { id, answer }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.code)?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}
