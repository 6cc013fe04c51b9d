//! Reads datagrams with libraries: those in a rare form, and those with errors.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

use super::{
    DEPTH_MAX, Datagram, Field, Form, ID_BYTES_MAX, Id, KEY_BYTES_MAX, Malformed, Request,
    SERIAL_BYTES_MAX, TOKEN_BYTES_MAX,
};
use crate::v1::datagram_request::Kind;
use crate::{ProstMessage, json, v1};

pub(super) fn decode(datagram: &[u8]) -> Result<Datagram<'static>, Malformed> {
    match Form::of(datagram) {
        Form::Json => read_json(datagram),
        Form::Protobuf => read_protobuf(datagram),
    }
}

/// The members of a JSON datagram. `null` counts as absent.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Members {
    id: WireId,
    pt: Option<String>,
    count: Option<u64>,
    #[serde(rename = "devSn")]
    serial: Option<String>,
    #[serde(rename = "devKey")]
    key: Option<String>,
    publish: Option<v1::Publish>,
}

#[derive(Default)]
struct WireId(Id<'static>);

fn read_json(datagram: &[u8]) -> Result<Datagram<'static>, Malformed> {
    let broken = |field, path: &str, reason: String| Malformed {
        form: Form::Json,
        id: Id::None,
        field,
        path: path.to_owned(),
        reason,
    };
    let text = str::from_utf8(datagram)
        .map_err(|_| broken(Field::Datagram, "", "JSON is not UTF-8".to_owned()))?;
    if depth(text) > DEPTH_MAX {
        let reason = format!("nested more than {DEPTH_MAX} levels deep");
        return Err(broken(Field::Datagram, "", reason));
    }
    let members: Members = json::read(text).map_err(|error| {
        let first = error.path().split(['.', '[']).next().unwrap_or_default();
        let field = Field::ALL.into_iter().find(|field| field.name() == first);
        broken(field.unwrap_or(Field::Datagram), error.path(), error.reason().to_owned())
    })?;
    let Members { id: WireId(id), pt, count, serial, key, publish } = members;
    let activate = (serial.is_some() || key.is_some())
        .then(|| v1::Activate { serial: serial.unwrap_or_default(), key: key.unwrap_or_default() });
    request(Form::Json, id, pt.unwrap_or_default(), count, activate, publish)
}

fn read_protobuf(datagram: &[u8]) -> Result<Datagram<'static>, Malformed> {
    let message = v1::DatagramRequest::decode(datagram).map_err(|error| {
        let reason = error.to_string();
        // The library names the field `DatagramRequest.token: …`; we name its place in JSON.
        let names = [
            ("DatagramRequest.id:", Field::Id),
            ("DatagramRequest.token:", Field::Token),
            ("DatagramRequest.count:", Field::Count),
            ("DatagramRequest.activate:", Field::Serial),
            ("DatagramRequest.publish:", Field::Publish),
            ("Activate.serial:", Field::Serial),
            ("Activate.key:", Field::Key),
        ];
        let named = names.into_iter().rev().find(|(name, _)| reason.contains(name));
        let field = named.map_or(Field::Datagram, |(_, field)| field);
        Malformed {
            form: Form::Protobuf,
            id: Id::None,
            field,
            path: String::new(),
            reason: json::cut(reason),
        }
    })?;
    let id = match message.id {
        0 => Id::None,
        number => Id::Number(number),
    };
    let (mut count, mut activate, mut publish) = (None, None, None);
    match message.kind {
        Some(Kind::Count(number)) => count = Some(number),
        Some(Kind::Activate(message)) => activate = Some(message),
        Some(Kind::Publish(message)) => publish = Some(message),
        None => {}
    }
    request(Form::Protobuf, id, message.token, count, activate, publish)
}

/// The one request in a datagram, with all fields that it needs and no others.
fn request(
    form: Form,
    id: Id<'static>,
    token: String,
    count: Option<u64>,
    activate: Option<v1::Activate>,
    publish: Option<v1::Publish>,
) -> Result<Datagram<'static>, Malformed> {
    let checked = match (count, activate, publish) {
        (Some(count), None, None) => {
            check_token(&token).map(|()| Request::Call { token: Cow::Owned(token), count })
        }
        (None, Some(activate), None) => check_activate(&token, &activate)
            .map(|()| Request::Activate { serial: activate.serial, key: activate.key }),
        (None, None, Some(publish)) => check_token(&token)
            .and_then(|()| check_publish(&publish))
            .map(|()| Request::Publish { token, publish }),
        (None, None, None) if token.is_empty() => Err((
            Field::Datagram,
            "",
            "asks for nothing: count with pt, devSn with devKey, or publish with pt".to_owned(),
        )),
        (None, None, None) => {
            Err((Field::Count, "", "is missing: pt comes with count or with publish".to_owned()))
        }
        (count, _, _) => {
            let field = if count.is_some() { Field::Count } else { Field::Publish };
            Err((
                field,
                "",
                "a datagram asks for one thing: a call, an activation or a publish".to_owned(),
            ))
        }
    };
    match checked {
        Ok(request) => Ok(Datagram { form, id, request }),
        Err((field, path, reason)) => {
            Err(Malformed { form, id, field, path: path.to_owned(), reason })
        }
    }
}

/// The field, the place in it, and the error.
type Fault = (Field, &'static str, String);

fn check_token(token: &str) -> Result<(), Fault> {
    check_text(Field::Token, token, TOKEN_BYTES_MAX)
}

fn check_activate(token: &str, activate: &v1::Activate) -> Result<(), Fault> {
    if !token.is_empty() {
        return Err((Field::Token, "", "does not go with devSn and devKey".to_owned()));
    }
    check_text(Field::Serial, &activate.serial, SERIAL_BYTES_MAX)?;
    if let Some(control) = activate.serial.chars().find(|char| char.is_control()) {
        let code = u32::from(control);
        return Err((Field::Serial, "", format!("has the control character U+{code:04X}")));
    }
    check_text(Field::Key, &activate.key, KEY_BYTES_MAX)
}

fn check_publish(publish: &v1::Publish) -> Result<(), Fault> {
    if publish.topic.is_empty() {
        return Err((Field::Publish, "publish.topic", "is missing or empty".to_owned()));
    }
    if publish.payload.is_none() {
        let reason = "has neither text nor data".to_owned();
        return Err((Field::Publish, "publish", reason));
    }
    Ok(())
}

fn check_text(field: Field, text: &str, bytes_max: usize) -> Result<(), Fault> {
    match text.len() {
        0 => Err((field, "", "is missing or empty".to_owned())),
        bytes if bytes > bytes_max => {
            Err((field, "", format!("{bytes} bytes are over the limit of {bytes_max}")))
        }
        _ => Ok(()),
    }
}

/// The deepest level in a text, with strings skipped.
fn depth(text: &str) -> usize {
    let (mut level, mut deepest) = (0_usize, 0);
    let (mut in_string, mut escaped) = (false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                level += 1;
                deepest = deepest.max(level);
            }
            b'}' | b']' if !in_string => level = level.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

impl<'de> Deserialize<'de> for WireId {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct Either;

        impl Visitor<'_> for Either {
            type Value = WireId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number, or text of 1 to {ID_BYTES_MAX} bytes")
            }

            fn visit_unit<E: de::Error>(self) -> Result<WireId, E> {
                Ok(WireId(Id::None))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<WireId, E> {
                Ok(WireId(Id::Number(number)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<WireId, E> {
                if text.is_empty() || text.len() > ID_BYTES_MAX {
                    return Err(E::invalid_length(text.len(), &self));
                }
                Ok(WireId(Id::Text(Cow::Owned(text.to_owned()))))
            }
        }

        input.deserialize_any(Either)
    }
}
