//! The body of `POST /v1/publish`: from JSON to messages, and from their outcomes to JSON.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use http::StatusCode;
use serde::de::value::{CowStrDeserializer, MapAccessDeserializer};
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use super::idempotency::RequestKey;
use super::json::{Object, Text, parse};
use super::problem::{Document, MessagePlace, Problem};
use super::reply::{self, Reply};
use crate::core::publish::{check_content_type, check_key};
use crate::core::publishing::Publishing;
use crate::{Accepted, IdempotencyKey, NodesReached, Payload, Publication, Target};

/// Where messages are published, here and at the admin API.
pub(crate) const PUBLISH_PATH: &str = "/v1/publish";

/// One message to publish.
///
/// It has exactly one of `topic`, `device` and `all`, and exactly one of `text` and `data`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Message<'a> {
    /// A topic's name.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    topic: Option<Text<'a>>,
    /// A device's id.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    device: Option<Text<'a>>,
    /// `true`: to every connection.
    all: Option<bool>,
    /// The content as text.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    text: Option<Text<'a>>,
    /// The content as bytes in base64; padding may be left out.
    #[serde(borrow)]
    #[schema(value_type = Option<String>, content_encoding = "base64")]
    data: Option<Text<'a>>,
    /// The media type of the content: printable ASCII.
    #[serde(borrow)]
    #[schema(value_type = Option<String>, max_length = 255)]
    content_type: Option<Text<'a>>,
    /// The conflation key, at most 255 bytes.
    #[serde(borrow)]
    #[schema(value_type = Option<String>, max_length = 255)]
    key: Option<Text<'a>>,
    /// The server does not begin to send the message after this time.
    #[schema(minimum = 1, maximum = 86_400_000)]
    ttl_ms: Option<u64>,
}

/// Many messages to publish.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = Messages)]
#[serde(deny_unknown_fields)]
pub(crate) struct Many<'a> {
    #[schema(max_items = 1000)]
    #[serde(borrow, deserialize_with = "at_most_messages_max")]
    messages: Vec<Message<'a>>,
}

/// A body: many messages if its first member is `messages`; otherwise one message.
enum Form<'a> {
    One(Message<'a>),
    Many(Many<'a>),
}

impl<'de: 'a, 'a> Deserialize<'de> for Form<'a> {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = Form<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Form<'de>, A::Error> {
                let first = members.next_key::<Text<'de>>()?;
                let is_many = first.as_ref().is_some_and(|name| name.0 == "messages");
                let input = MapAccessDeserializer::new(Again { first, members });
                if is_many {
                    Many::deserialize(input).map(Form::Many)
                } else {
                    Message::deserialize(input).map(Form::One)
                }
            }
        }

        input.deserialize_map(Members)
    }
}

/// The members of an object whose first name has been read.
struct Again<'de, A> {
    first: Option<Text<'de>>,
    members: A,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Again<'de, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        match self.first.take() {
            Some(name) => seed.deserialize(CowStrDeserializer::new(name.0)).map(Some),
            None => self.members.next_key_seed(seed),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.members.next_value_seed(seed)
    }
}

/// The outcome of an accepted message.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Published {
    /// 16 hexadecimal digits.
    #[serde(serialize_with = "as_digits")]
    #[schema(value_type = String, pattern = "^[0-9a-f]{16}$")]
    id: u64,
    /// How many connections it was queued for.
    connections: u32,
    /// Its offset in the topic, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64, required = false)]
    offset: Option<u64>,
    /// The epoch in which the offset counts: 16 hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "some_as_digits")]
    #[schema(value_type = String, required = false, pattern = "^[0-9a-f]{16}$")]
    epoch: Option<u64>,
    /// Nodes of the cluster that were subscribed; only where a broker was asked. For a message to
    /// all also how many nodes live.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = NodesView, required = false)]
    nodes: Option<NodesView>,
}

/// The nodes that a message was sent to.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = NodesReached)]
pub(crate) enum NodesView {
    Subscribed(u32),
    All { reached: u32, live: u32 },
}

/// The outcomes of many messages, in their order.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Results<'a> {
    results: Vec<MessageOutcome<'a>>,
}

/// The outcome of one message of many.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = Outcome)]
pub(crate) enum MessageOutcome<'a> {
    Published(Published),
    Refused { error: Document<'a> },
}

/// Publishes for the sender of a request.
pub(crate) trait PublishOne: Sync {
    /// Publishes one message; `None`: the embedding program has taken it over. Only a backend that
    /// decides about the message makes this wait.
    fn publish(
        &self,
        publication: &Publication<'_>,
        place: MessagePlace<'_>,
    ) -> impl Future<Output = Result<Option<Publishing>, Problem>> + Send;
}

/// Publishes the messages of a body: one message, or many, each with its own outcome.
///
/// `reserve` takes room for the answer to many messages before the first of them is published.
/// `publisher` gets one message after the other. `key` is the request's idempotency key.
/// Errors: a malformed body publishes nothing, and neither does a body whose answer finds no room.
/// Cost: one message is encoded and queued at a time. Between some of them other work has its turn.
pub(crate) async fn publish(
    body: &[u8],
    key: Option<&RequestKey>,
    reserve: impl FnOnce(usize) -> Result<(), Problem>,
    publisher: &impl PublishOne,
) -> Result<Reply, Problem> {
    let messages = match parse::<Form<'_>>(body)? {
        Form::One(message) => {
            let key = key.map(RequestKey::of_one);
            let accepted = accepted(message.publish("", key, publisher).await?, "").await?;
            return Ok(reply::json(StatusCode::OK, &Published::from(accepted)));
        }
        Form::Many(Many { messages }) => messages,
    };
    reserve(messages.len() * OUTCOME_BYTES)?;
    let mut outcomes = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        if index % MESSAGES_AT_A_TIME == MESSAGES_AT_A_TIME - 1 {
            tokio::task::yield_now().await;
        }
        let key = key.map(|key| key.of_many(index));
        let key = key.as_ref().map(RequestKey::of_one);
        outcomes.push(message.publish(&format!("messages[{index}]."), key, publisher).await);
    }
    let mut answered = Vec::with_capacity(outcomes.len());
    for (index, outcome) in outcomes.into_iter().enumerate() {
        // All have been handed on before: to wait for one delays none.
        answered.push(match outcome {
            Ok(publishing) => accepted(publishing, &format!("messages[{index}].")).await,
            Err(problem) => Err(problem),
        });
    }
    let results = answered.iter().map(|outcome| match outcome {
        Ok(accepted) => MessageOutcome::Published(Published::from(*accepted)),
        Err(problem) => MessageOutcome::Refused { error: problem.document() },
    });
    Ok(reply::json(StatusCode::OK, &Results { results: results.collect() }))
}

/// Waits for the answer to a message.
async fn accepted(
    publishing: Option<Publishing>,
    object: &str,
) -> Result<Option<Accepted>, Problem> {
    let Some(publishing) = publishing else { return Ok(None) };
    let place = MessagePlace { object, content: "text" };
    publishing.await.map(Some).map_err(|error| Problem::publish(error, place))
}

/// A field, and its fault.
type Refusal = (&'static str, String);

enum Content<'a> {
    Text(&'a str),
    Data(Vec<u8>),
}

impl Message<'_> {
    /// Publishes the message; `object` is the path of its object in the body.
    async fn publish(
        &self,
        object: &str,
        idempotency_key: Option<IdempotencyKey<'_>>,
        publisher: &impl PublishOne,
    ) -> Result<Option<Publishing>, Problem> {
        let refuse = |(field, detail): Refusal| Problem::field(format!("{object}{field}"), detail);
        let target = self.target().map_err(refuse)?;
        let (field, content) = self.content().map_err(refuse)?;
        let publication = Publication {
            target,
            payload: match &content {
                Content::Text(text) => Payload::Text(text),
                Content::Data(data) => Payload::Data(data),
            },
            content_type: self.content_type().map_err(refuse)?,
            key: self.key().map_err(refuse)?,
            ttl: self.ttl().map_err(refuse)?,
            sender: None,
            idempotency_key,
        };
        publisher.publish(&publication, MessagePlace { object, content: field }).await
    }

    fn target(&self) -> Result<Target<'_>, Refusal> {
        match (&self.topic, &self.device, self.all) {
            (Some(topic), None, None) => Ok(Target::Topic(&topic.0)),
            (None, Some(device), None) if device.0.is_empty() => {
                Err(("device", "device id is empty".to_owned()))
            }
            (None, Some(device), None) => Ok(Target::Device(&device.0)),
            (None, None, Some(true)) => Ok(Target::All),
            (None, None, Some(false)) => {
                Err(("all", "all is false; send true, or omit it".to_owned()))
            }
            (topic, device, all) => {
                let field = match (topic, device, all) {
                    (_, _, Some(_)) => "all",
                    (_, Some(_), None) => "device",
                    (_, None, None) => "topic",
                };
                Err((field, "a message has exactly one of topic, device and all".to_owned()))
            }
        }
    }

    /// The content, and the name of its field.
    fn content(&self) -> Result<(&'static str, Content<'_>), Refusal> {
        match (&self.text, &self.data) {
            (Some(text), None) => Ok(("text", Content::Text(&text.0))),
            (None, Some(data)) => match BASE64.decode(data.0.as_bytes()) {
                Ok(data) => Ok(("data", Content::Data(data))),
                Err(error) => Err(("data", format!("data is not base64: {error}"))),
            },
            (text, _) => {
                let field = if text.is_some() { "data" } else { "text" };
                Err((field, "a message has exactly one of text and data".to_owned()))
            }
        }
    }

    fn content_type(&self) -> Result<&str, Refusal> {
        let value = self.content_type.as_ref().map_or("", |text| &text.0);
        check_content_type(value).map(|()| value).map_err(|detail| ("content_type", detail))
    }

    fn key(&self) -> Result<&str, Refusal> {
        let value = self.key.as_ref().map_or("", |text| &text.0);
        check_key(value).map(|()| value).map_err(|detail| ("key", detail))
    }

    fn ttl(&self) -> Result<Option<Duration>, Refusal> {
        let Some(ttl_ms) = self.ttl_ms else { return Ok(None) };
        if (1..=TTL_MS_MAX).contains(&ttl_ms) {
            return Ok(Some(Duration::from_millis(ttl_ms)));
        }
        let detail = format!("ttl_ms is {ttl_ms}; send 1 to {TTL_MS_MAX}, or omit it");
        Err(("ttl_ms", detail))
    }
}

impl From<Option<Accepted>> for Published {
    fn from(accepted: Option<Accepted>) -> Self {
        Self {
            id: accepted.map_or(0, |accepted| accepted.id),
            connections: accepted.map_or(0, |accepted| accepted.connections),
            offset: accepted.and_then(|accepted| accepted.offset),
            epoch: accepted.and_then(|accepted| accepted.epoch),
            nodes: accepted.and_then(|accepted| accepted.nodes).map(NodesView::from),
        }
    }
}

impl From<NodesReached> for NodesView {
    fn from(nodes: NodesReached) -> Self {
        match nodes {
            NodesReached::Subscribed(nodes) => Self::Subscribed(nodes),
            NodesReached::All { reached, live } => Self::All { reached, live },
        }
    }
}

/// The same of a number that may be absent. Serde passes a reference to the whole field.
fn some_as_digits<S: Serializer>(number: &Option<u64>, out: S) -> Result<S::Ok, S::Error> {
    as_digits(&number.unwrap_or(0), out)
}

fn as_digits<S: Serializer>(id: &u64, output: S) -> Result<S::Ok, S::Error> {
    output.collect_str(&format_args!("{id:016x}"))
}

/// Stops at the first message too many, before more memory is taken.
fn at_most_messages_max<'de, D>(input: D) -> Result<Vec<Message<'de>>, D::Error>
where
    D: Deserializer<'de>,
{
    struct Bounded;

    impl<'de> Visitor<'de> for Bounded {
        type Value = Vec<Message<'de>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "an array of at most {MESSAGES_MAX} messages")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut input: A) -> Result<Self::Value, A::Error> {
            let mut messages = Vec::new();
            while let Some(Object(message)) = input.next_element()? {
                if messages.len() == MESSAGES_MAX {
                    return Err(A::Error::custom(format_args!(
                        "more than {MESSAGES_MAX} messages in one request"
                    )));
                }
                messages.push(message);
            }
            Ok(messages)
        }
    }

    input.deserialize_seq(Bounded)
}

/// Bounds the time that one request takes of a front thread.
const MESSAGES_MAX: usize = 1000;
const MESSAGES_AT_A_TIME: usize = 64;
/// The bytes of one outcome in JSON. Most refusals are shorter.
const OUTCOME_BYTES: usize = 384;
/// A day. A message waits for a socket for seconds, so a longer time to live would have no effect.
const TTL_MS_MAX: u64 = 24 * 60 * 60 * 1000;
/// Base64 as requests may have it.
pub(crate) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(body: &str) -> Result<Message<'_>, serde_json::Value> {
        parse::<Message<'_>>(body.as_bytes())
            .map_err(|problem| serde_json::to_value(problem.document()).unwrap())
    }

    fn refused(body: &str) -> (&'static str, String) {
        let message = parsed(body).unwrap();
        let refusals = [
            message.target().err(),
            message.content().err(),
            message.content_type().err(),
            message.key().err(),
            message.ttl().err(),
        ];
        let mut refusals = refusals.into_iter().flatten();
        let refusal = refusals.next().expect("one field is at fault");
        assert_eq!(refusals.next(), None, "{body}");
        refusal
    }

    #[test]
    fn a_field_that_is_not_right_is_named() {
        let long = "k".repeat(256);
        for (body, field, says) in [
            (r#"{"text":""}"#, "topic", "exactly one of topic, device and all"),
            (r#"{"topic":"a","device":"b","text":""}"#, "device", "exactly one of"),
            (r#"{"topic":"a","all":true,"text":""}"#, "all", "exactly one of"),
            (r#"{"all":false,"text":""}"#, "all", "send true, or omit it"),
            (r#"{"device":"","text":""}"#, "device", "empty"),
            (r#"{"all":true}"#, "text", "exactly one of text and data"),
            (r#"{"all":true,"text":"","data":""}"#, "data", "exactly one of text and data"),
            (r#"{"all":true,"data":"a b"}"#, "data", "not base64"),
            (r#"{"all":true,"text":"","ttl_ms":0}"#, "ttl_ms", "send 1 to 86400000"),
            (r#"{"all":true,"text":"","ttl_ms":86400001}"#, "ttl_ms", "send 1 to 86400000"),
            (r#"{"all":true,"text":"","content_type":"a\nb"}"#, "content_type", "printable"),
            (&format!(r#"{{"all":true,"text":"","key":"{long}"}}"#), "key", "limit of 255"),
        ] {
            let (at, detail) = refused(body);
            assert_eq!(at, field, "{body}");
            assert!(detail.contains(says), "{body}: {detail}");
        }
    }

    #[test]
    fn what_is_not_well_formed_is_refused_with_its_path() {
        for (body, field, says) in [
            (r#"{"topci":"a"}"#, "topci", "unknown field `topci`"),
            (r#"{"topic":5}"#, "topic", "invalid type: integer"),
            (r#"{"ttl_ms":-1}"#, "ttl_ms", "invalid value"),
            (r#"{"ttl_ms":1.5}"#, "ttl_ms", "invalid type"),
        ] {
            let problem = parsed(body).unwrap_err();
            assert_eq!(problem["field"], field, "{problem}");
            assert!(problem["detail"].as_str().unwrap().contains(says), "{problem}");
        }
        let twice = parsed(r#"{"topic":"a","topic":"b"}"#).unwrap_err();
        assert!(twice["detail"].as_str().unwrap().contains("duplicate field `topic`"), "{twice}");
        for body in ["", "{", "null", "{} x", "\u{feff}{}", r#"{"topic":"a""#] {
            let problem = parsed(body).unwrap_err();
            assert!(problem.get("field").is_none(), "{body:?}: {problem}");
        }
    }

    #[test]
    fn many_messages_are_bounded_and_placed() {
        let body = format!(r#"{{"messages":[{}{{}}]}}"#, "{},".repeat(MESSAGES_MAX));
        let problem = parse::<Many<'_>>(body.as_bytes()).unwrap_err();
        assert!(format!("{problem:?}").contains("more than 1000 messages"), "{problem:?}");
        let body = r#"{"messages":[{},{"txt":""}]}"#;
        let problem = parse::<Many<'_>>(body.as_bytes()).unwrap_err();
        assert!(format!("{problem:?}").contains("messages[1].txt"), "{problem:?}");
    }

    /// A struct's members in their order would otherwise be taken for the struct.
    #[test]
    fn an_array_is_no_object() {
        let message = r#"["news",null,null,"hi",null,null,null,null]"#;
        for body in ["[]", message] {
            let problem = parsed(body).unwrap_err();
            assert!(problem["detail"].as_str().unwrap().contains("a JSON object"), "{problem}");
        }
        for (body, field) in [
            (format!("[[{message}]]"), None),
            (format!(r#"{{"messages":[{{}},{message}]}}"#), Some("messages[1]")),
        ] {
            let problem = parse::<Many<'_>>(body.as_bytes()).unwrap_err();
            let problem = serde_json::to_value(problem.document()).unwrap();
            assert_eq!(problem["field"].as_str(), field, "{problem}");
            assert!(problem["detail"].as_str().unwrap().contains("a JSON object"), "{problem}");
        }
    }

    #[test]
    fn escapes_and_both_forms_of_base64_are_read() {
        let message = parsed(r#"{"topic":"a\u0062","data":"AAE="}"#).unwrap();
        assert_eq!(message.target(), Ok(Target::Topic("ab")));
        let Ok(("data", Content::Data(data))) = message.content() else { panic!("data") };
        assert_eq!(data, [0, 1]);
        assert!(parsed(r#"{"all":true,"data":"AAE"}"#).unwrap().content().is_ok());
    }
}
