//! The texts of notices.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use weir_store::{Millis, NoticePage};

use crate::base::model::{Accepted, Payload, Publication};

/// A notice without its numbers.
#[derive(Debug, Default, Serialize)]
pub(super) struct Body {
    event: &'static str,
    time_ms: Millis,
    pub(super) node: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) connection: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) claim: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) topic: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) code: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) age_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) source: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<Message>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) count: Option<u64>,
}

/// A message that was published. Numbers of 64 bits are texts.
#[derive(Debug, Serialize)]
pub(super) struct Message {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    content_type: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// In base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
}

/// What the notice of a connection's end needs.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StandingConn {
    pub(super) device: String,
    pub(super) claim: u64,
}

impl Body {
    pub(super) fn new(event: &'static str, time_ms: Millis, node: u16) -> Body {
        Body { event, time_ms, node, ..Body::default() }
    }

    pub(super) fn text(&self) -> Box<str> {
        json(self)
    }
}

impl Message {
    pub(super) fn of(publication: &Publication<'_>, accepted: Option<Accepted>) -> Message {
        let (text, data) = match publication.payload {
            Payload::Text(text) => (Some(text.to_owned()), None),
            Payload::Data(data) => (None, Some(STANDARD.encode(data))),
        };
        let number = |number: Option<u64>| number.map(|number| number.to_string());
        Message {
            id: number(accepted.map(|accepted| accepted.id)),
            offset: number(accepted.and_then(|accepted| accepted.offset)),
            epoch: number(accepted.and_then(|accepted| accepted.epoch)),
            content_type: publication.content_type.to_owned(),
            key: publication.key.to_owned(),
            text,
            data,
        }
    }
}

impl StandingConn {
    pub(super) fn text(&self) -> Box<str> {
        json(self)
    }
}

/// The notices of a page as a list in JSON, with the notice of a gap before them; and the number of
/// the last one. `None`: there is neither.
pub(super) fn list(page: &NoticePage, lost: impl FnOnce(u64) -> Box<str>) -> Option<(String, u64)> {
    let mut list =
        String::with_capacity(page.notices.iter().map(|(_, text)| text.len() + 64).sum());
    let mut last = None;
    let mut add = |sequence: u64, text: &str| {
        list.push(if last.is_none() { '[' } else { ',' });
        let (cursor, members) = (cursor(page.stream, sequence), text.strip_prefix('{'));
        list.push_str(&format!("{{\"sequence\":{sequence},\"cursor\":\"{cursor}\","));
        list.push_str(members.unwrap_or("}"));
        last = Some(sequence);
    };
    if page.first > page.after + 1 {
        add(page.first - 1, &lost(page.first - 1 - page.after));
    }
    page.notices.iter().for_each(|(sequence, text)| add(*sequence, text));
    last.map(|last| (list + "]", last))
}

/// The cursor of a notice.
pub(crate) fn cursor(stream: u32, sequence: u64) -> String {
    format!("{stream:08x}-{sequence}")
}

/// The stream and number of a cursor.
pub(crate) fn parse_cursor(cursor: &str) -> Option<(u32, u64)> {
    let (stream, sequence) = cursor.split_once('-')?;
    let is_stream = stream.len() == 8 && stream.bytes().all(|digit| digit.is_ascii_hexdigit());
    let is_number = sequence.bytes().all(|digit| digit.is_ascii_digit());
    if !is_stream || !is_number {
        return None;
    }
    Some((u32::from_str_radix(stream, 16).ok()?, sequence.parse().ok()?))
}

fn json(value: &impl Serialize) -> Box<str> {
    serde_json::to_string(value).expect("its members are numbers and texts").into()
}
