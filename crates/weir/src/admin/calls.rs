//! `POST /v1/devices/{id}/call`: a backend calls a device, and gets its answer.

use std::time::Duration;

use base64::Engine as _;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use utoipa::ToSchema;
use weir_wire::v1;

use crate::Handle;
use crate::backends::calls::{DeviceCall, NoAnswer};
use crate::base::clock::millis;
use crate::base::method::is_method;
use crate::core::publish::check_content_type;
use crate::http::web::json::{Text, parse};
use crate::http::web::problem::{CallProblem, Kind, Problem};
use crate::http::web::publish::BASE64;
use crate::http::web::query;
use crate::http::web::reply::{self, Reply};
use crate::observe::counters::calls::{CallDirection, CallLimit, CallOutcome};

/// A call to a device.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CallRequest<'a> {
    /// What is called: letters, digits, `.`, `_` and `-`, in segments joined by `/`.
    #[serde(borrow)]
    #[schema(value_type = String, max_length = 255)]
    method: Text<'a>,
    /// The content as text; without `text` and `data` it is empty.
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>)]
    text: Option<Text<'a>>,
    /// The content as bytes in base64; padding may be left out.
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>, content_encoding = "base64")]
    data: Option<Text<'a>>,
    /// The media type of the content: printable ASCII.
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>, max_length = 255)]
    content_type: Option<Text<'a>>,
    /// How long to wait for the answer: at most `calls.deadline_max`. Without it, the call waits for
    /// `calls.deadline`.
    #[schema(minimum = 1, maximum = 3_600_000)]
    deadline_ms: Option<u64>,
}

/// The answer of a device: exactly one of `text` and `data`.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CallAnswer {
    /// The content as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    text: Option<String>,
    /// The content as bytes in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false, content_encoding = "base64")]
    data: Option<String>,
    /// The media type of the content.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    content_type: String,
}

/// The places of calls that wait at the admin address.
pub(super) struct CallPlaces(Semaphore);

impl Default for CallPlaces {
    fn default() -> Self {
        CallPlaces(Semaphore::new(CALLS_MAX))
    }
}

/// Reads the body of a request that came at `came`.
pub(super) fn read(handle: &Handle, body: &[u8], came: Instant) -> Result<DeviceCall, Problem> {
    let CallRequest { method, text, data, content_type, deadline_ms } =
        parse::<CallRequest<'_>>(body)?;
    if !is_method(&method.0) {
        let detail = "method is not 1 to 255 letters, digits, \".\", \"_\" and \"-\", in segments joined \
                      by \"/\"";
        return Err(Problem::field("method", detail));
    }
    let payload = match (text, data) {
        (Some(_), Some(_)) => {
            return Err(Problem::field("data", "a call has at most one of text and data"));
        }
        (Some(text), None) => v1::call::Payload::Text(text.0.into_owned()),
        (None, Some(data)) => match BASE64.decode(data.0.as_bytes()) {
            Ok(data) => v1::call::Payload::Data(data),
            Err(error) => {
                return Err(Problem::field("data", format!("data is not base64: {error}")));
            }
        },
        (None, None) => v1::call::Payload::Text(String::new()),
    };
    let content_type = content_type.map_or_else(String::new, |text| text.0.into_owned());
    check_content_type(&content_type).map_err(|detail| Problem::field("content_type", detail))?;
    let calls = &handle.shared().calls;
    let max = millis(calls.deadline_max());
    if let Some(asked) = deadline_ms
        && !(1..=max).contains(&asked)
    {
        let detail = format!("deadline_ms is {asked}; send 1 to {max} (calls.deadline_max)");
        return Err(Problem::field("deadline_ms", detail));
    }
    let deadline = came + calls.time_for(deadline_ms.map(Duration::from_millis));
    Ok(DeviceCall { method: method.0.into_owned(), payload, content_type, deadline })
}

/// Calls the device `id`, a segment of the path.
///
/// Limits: [`CALLS_MAX`] wait at a time, so that other requests have connections left.
pub(super) async fn call(
    handle: &Handle,
    places: &CallPlaces,
    id: &str,
    call: DeviceCall,
) -> Result<Reply, Problem> {
    let (id, shared) = (&query::segment(id, "id")?, handle.shared());
    let Ok(_place) = places.0.try_acquire() else {
        let counts = &shared.counters().calls;
        counts.limit(CallDirection::ToDevice, CallLimit::Admin);
        counts.refuse(CallDirection::ToDevice, CallOutcome::Busy);
        let detail = format!("{CALLS_MAX} calls wait at this address, which is the limit");
        return Err(Problem::retry(Kind::TooManyRequests, RETRY, detail));
    };
    let answer = shared.call_device(id, &call).await.map_err(|error| no_answer(id, error))?;
    if !answer.code.is_empty() {
        return Err(failed(id, answer));
    }
    let (text, data) = match answer.payload {
        Some(v1::answer::Payload::Text(text)) => (Some(text), None),
        Some(v1::answer::Payload::Data(data)) => (None, Some(BASE64.encode(data))),
        None => (None, Some(String::new())),
    };
    let view = CallAnswer { text, data, content_type: answer.content_type };
    Ok(reply::json(StatusCode::OK, &view))
}

/// The device has answered with an error.
fn failed(id: &str, answer: v1::Answer) -> Problem {
    let v1::Answer { code, message, .. } = answer;
    let detail = match message.as_str() {
        "" => format!("device {id:?} has answered with the error {code:?}"),
        message => message.to_owned(),
    };
    Problem::new(Kind::Call(CallProblem::Failed), detail).of_device(code)
}

fn no_answer(id: &str, error: NoAnswer) -> Problem {
    match error {
        NoAnswer::NotConnected => {
            Problem::new(Kind::NotFound, format!("device {id:?} is not connected"))
        }
        NoAnswer::Unsupported => {
            let detail =
                format!("device {id:?} is connected, and has not announced that it answers calls");
            Problem::new(Kind::Call(CallProblem::Unsupported), detail)
        }
        NoAnswer::Limited(CallLimit::Connection, detail) => {
            Problem::retry(Kind::Call(CallProblem::TooMany), RETRY, detail)
        }
        NoAnswer::Limited(_, detail) => Problem::retry(Kind::Busy, RETRY, detail),
        NoAnswer::TooLarge(limit) => {
            let detail =
                format!("the call does not fit a frame of {limit} bytes (limits.frame_bytes_max)");
            Problem::new(Kind::TooLarge, detail)
        }
        NoAnswer::DeadlineExceeded => {
            let detail =
                format!("device {id:?} has not answered in time; it may have done what was asked");
            Problem::new(Kind::Call(CallProblem::Timeout), detail)
        }
        NoAnswer::Disconnected => {
            let detail = format!(
                "the connection of device {id:?} ended before it answered; it may have done what was asked"
            );
            Problem::new(Kind::Call(CallProblem::Gone), detail)
        }
        NoAnswer::NodesSilent(missing) => Problem::nodes_silent(&missing.unwrap_or_default()),
    }
}

/// The admin address takes some more connections, for other requests.
pub(super) const CALLS_MAX: usize = 1024;
const RETRY: Duration = Duration::from_secs(1);
