//! A question, as the request has it.

use aws_lc_rs::digest::{Context, SHA256};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Serialize;
use weir_engine::ConnId;

use crate::base::model::{Payload, Publication};
use crate::observe::counters::hooks::Hook;

/// Something that a hook is asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question<'a> {
    pub(crate) hook: Hook,
    /// The name of the upstream that is asked.
    pub(crate) upstream: &'a str,
    pub(crate) from: Origin<'a>,
    pub(crate) about: About<'a>,
}

/// Where a question comes from. Only the device makes two questions different.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Origin<'a> {
    /// `None`: a request or a datagram, or the connection has no id yet.
    pub(crate) conn: Option<ConnId>,
    /// `None`: not known yet, or the token names none.
    pub(crate) device: Option<&'a str>,
    /// The address, if it is known.
    pub(crate) source: Option<&'a str>,
    /// `connection`, `http` or `udp`.
    pub(crate) transport: &'static str,
}

/// The subject of a question.
#[derive(Debug, Clone, Copy)]
pub(crate) enum About<'a> {
    Token(&'a str),
    Subscription(&'a str),
    /// `None`: the message itself is not part of the question.
    Message(&'a str, Option<&'a Publication<'a>>),
}

/// Equal questions have equal keys: a SHA-256 of all that makes questions different.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key(pub(super) [u8; 32]);

#[derive(Serialize)]
struct Body<'a> {
    hook: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    connection: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'a str>,
    transport: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Message<'a>>,
}

#[derive(Serialize)]
struct Message<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    #[serde(skip_serializing_if = "str::is_empty")]
    content_type: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
}

impl Question<'_> {
    /// The request's body.
    pub(super) fn body(&self) -> Bytes {
        let Origin { conn, device, source, transport } = self.from;
        let (token, topic, publication) = match self.about {
            About::Token(token) => (Some(token), None, None),
            About::Subscription(topic) => (None, Some(topic), None),
            About::Message(topic, publication) => (None, Some(topic), publication),
        };
        let body = Body {
            hook: self.hook.name(),
            connection: conn.map(|conn| conn.to_string()),
            device,
            source,
            transport,
            token,
            topic,
            message: publication.map(Message::of),
        };
        serde_json::to_vec(&body).expect("texts and numbers are always JSON").into()
    }

    pub(super) fn key(&self) -> Key {
        let mut context = Context::new(&SHA256);
        let mut add = |part: Option<&[u8]>| {
            let length = part.map_or(u64::MAX, |part| part.len() as u64);
            context.update(&length.to_le_bytes());
            context.update(part.unwrap_or_default());
        };
        add(Some(&[self.hook as u8]));
        add(Some(self.upstream.as_bytes()));
        add(self.from.device.map(str::as_bytes));
        match self.about {
            About::Token(subject) | About::Subscription(subject) => add(Some(subject.as_bytes())),
            About::Message(topic, publication) => {
                add(Some(topic.as_bytes()));
                if let Some(publication) = publication {
                    let (is_text, bytes) = match publication.payload {
                        Payload::Text(text) => (true, text.as_bytes()),
                        Payload::Data(data) => (false, data),
                    };
                    let ttl = publication.ttl.map(|ttl| ttl.as_millis().to_le_bytes());
                    add(Some(&[u8::from(is_text)]));
                    add(Some(bytes));
                    add(Some(publication.content_type.as_bytes()));
                    add(Some(publication.key.as_bytes()));
                    add(ttl.as_ref().map(|ttl| &ttl[..]));
                }
            }
        }
        let mut key = Key([0; 32]);
        key.0.copy_from_slice(context.finish().as_ref());
        key
    }
}

impl<'a> Message<'a> {
    fn of(publication: &Publication<'a>) -> Message<'a> {
        let (text, data) = match publication.payload {
            Payload::Text(text) => (Some(text), None),
            Payload::Data(data) => (None, Some(STANDARD.encode(data))),
        };
        let ttl_ms = publication.ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        let (content_type, key) = (publication.content_type, publication.key);
        Message { text, data, content_type, key, ttl_ms }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::base::model::Target;

    const FROM: Origin<'_> =
        Origin { conn: None, device: Some("van-7"), source: Some("192.0.2.1"), transport: "http" };

    fn publication(payload: Payload<'_>) -> Publication<'_> {
        Publication {
            target: Target::Topic("t"),
            payload,
            content_type: "",
            key: "",
            ttl: None,
            sender: None,
            idempotency_key: None,
        }
    }

    fn check(hook: Hook, from: Origin<'_>, about: About<'_>, expected: &str) {
        let body = Question { hook, upstream: "api", from, about }.body();
        assert_eq!(std::str::from_utf8(&body), Ok(expected));
    }

    #[test]
    fn the_body_names_what_is_known() {
        let unknown = Origin { device: None, source: None, transport: "connection", ..FROM };
        let about = About::Token("a\"b");
        let expected = r#"{"hook":"connect","transport":"connection","token":"a\"b"}"#;
        check(Hook::Connect, unknown, about, expected);
        let settled = Origin { conn: Some(ConnId::from_u64(7)), ..FROM };
        let expected = r#"{"hook":"subscribe","connection":"0000000000000007","device":"van-7","source":"192.0.2.1","transport":"http","topic":"t"}"#;
        check(Hook::Subscribe, settled, About::Subscription("t"), expected);
        let text = Publication {
            content_type: "text/plain",
            key: "k",
            ttl: Some(Duration::from_secs(2)),
            ..publication(Payload::Text("hi"))
        };
        let expected = r#"{"hook":"publish","device":"van-7","source":"192.0.2.1","transport":"http","topic":"t","message":{"text":"hi","content_type":"text/plain","key":"k","ttl_ms":2000}}"#;
        check(Hook::Publish, FROM, About::Message("t", Some(&text)), expected);
        let data = publication(Payload::Data(&[0, 255]));
        let expected = r#"{"hook":"publish","device":"van-7","source":"192.0.2.1","transport":"http","topic":"t","message":{"data":"AP8="}}"#;
        check(Hook::Publish, FROM, About::Message("t", Some(&data)), expected);
        let expected = r#"{"hook":"publish","device":"van-7","source":"192.0.2.1","transport":"http","topic":"t"}"#;
        check(Hook::Publish, FROM, About::Message("t", None), expected);
    }

    #[test]
    fn questions_are_alike_if_hook_upstream_device_and_subject_are() {
        let key = |hook, upstream, device, about| {
            let from = Origin { device, ..FROM };
            Question { hook, upstream, from, about }.key()
        };
        let topic = About::Subscription("t");
        let first = key(Hook::Subscribe, "api", Some("d"), topic);
        assert_eq!(first, key(Hook::Subscribe, "api", Some("d"), topic));
        let from = Origin { conn: Some(ConnId::from_u64(1)), source: None, ..FROM };
        let from = Origin { device: Some("d"), transport: "udp", ..from };
        let elsewhere = Question { hook: Hook::Subscribe, upstream: "api", from, about: topic };
        assert_eq!(first, elsewhere.key());
        let texts = ["hi", "ho"].map(|text| publication(Payload::Text(text)));
        let data = publication(Payload::Data(b"hi"));
        let with_key = Publication { key: "k", ..texts[0] };
        let with_type = Publication { content_type: "k", ..texts[0] };
        let with_ttl = Publication { ttl: Some(Duration::from_secs(1)), ..texts[0] };
        let message = |publication| {
            key(Hook::Publish, "api", Some("d"), About::Message("t", Some(publication)))
        };
        let keys = [
            first,
            key(Hook::Subscribe, "api", None, topic),
            key(Hook::Subscribe, "api", Some("e"), topic),
            key(Hook::Subscribe, "other", Some("d"), topic),
            key(Hook::Subscribe, "api", Some("d"), About::Subscription("u")),
            key(Hook::Publish, "api", Some("d"), About::Message("t", None)),
            message(&texts[0]),
            message(&texts[1]),
            message(&data),
            message(&with_key),
            message(&with_type),
            message(&with_ttl),
        ];
        for (index, key) in keys.iter().enumerate() {
            assert!(!keys[..index].contains(key), "{index}");
        }
    }
}
