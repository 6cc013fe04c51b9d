//! Pushes as JSON: the proto3 JSON form of `weir.v1.Push`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use utoipa::ToSchema;
use weir_wire::v1::push::Payload;
use weir_wire::v1::{Push, ServerMessage, server_message::Kind};
use weir_wire::{ProstMessage as _, frame};

/// One message, as a subscriber gets it. Members with their default value are omitted.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Push)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PushView {
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    topic: String,
    /// The content, if it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    text: Option<String>,
    /// The content as base64, if it is bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false, content_encoding = "base64")]
    data: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    content_type: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    key: String,
    /// A number as text, because not every JSON reader has numbers of 64 bits. So are the next two.
    #[serde(skip_serializing_if = "is_zero")]
    #[schema(required = false, pattern = "^[0-9]+$")]
    message_id: String,
    #[serde(skip_serializing_if = "is_zero")]
    #[schema(required = false, pattern = "^[0-9]+$")]
    offset: String,
    /// The connection that published it, if any.
    #[serde(skip_serializing_if = "is_zero")]
    #[schema(required = false, pattern = "^[0-9]+$")]
    sender: String,
}

/// The JSON of a frame with a `Push`; `None`: the frame has none.
pub(crate) fn to_json(frame: &[u8]) -> Option<Box<RawValue>> {
    let (body, _) = frame::decode(frame, frame.len()).ok()??;
    match ServerMessage::decode(body).ok()?.kind? {
        Kind::Push(push) => to_raw_value(&PushView::from(push)).ok(),
        Kind::Welcome(_)
        | Kind::Pong(_)
        | Kind::Batch(_)
        | Kind::Subscribed(_)
        | Kind::Unsubscribed(_)
        | Kind::Published(_)
        | Kind::Error(_)
        | Kind::Expiring(_)
        | Kind::Refreshed(_)
        | Kind::Presence(_)
        | Kind::Call(_)
        | Kind::Answer(_)
        | Kind::Cancel(_)
        | Kind::Goodbye(_) => None,
    }
}

impl From<Push> for PushView {
    fn from(push: Push) -> Self {
        let (text, data) = match push.payload {
            Some(Payload::Text(text)) => (Some(text), None),
            Some(Payload::Data(data)) => (None, Some(STANDARD.encode(data))),
            None => (None, None),
        };
        Self {
            topic: push.topic,
            text,
            data,
            content_type: push.content_type,
            key: push.key,
            message_id: push.message_id.to_string(),
            offset: push.offset.to_string(),
            sender: push.sender.to_string(),
        }
    }
}

fn is_zero(number: &str) -> bool {
    number == "0"
}
